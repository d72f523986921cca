"""Forms of keys: what they begin with, and what follows. Kept as tables, so that a new one is a line.

Compared with the 222 rules of gitleaks of July 2026 by random keys of each rule. What these tables lack on purpose are
keys without a beginning of their own and without a name beside them, such as 40 hexadecimal digits.
"""

from __future__ import annotations

# fmt: off
FORMS = (
    # Clouds and where data lies
    (r"(?:AKIA|ASIA)[0-9A-Z]{16}[,;:\s\"'|]{1,6}", r"[A-Za-z0-9/+]{40}"),
    (r"(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA|A3T[A-Z0-9])", r"[0-9A-Z]{16}"),  # AWS
    (r"(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdz|AQoDYXdz)", r"[A-Za-z0-9+/]{60,}={0,2}"),  # a session of AWS
    (r"ABSK", r"[A-Za-z0-9+/]{100,}={0,2}"),  # AWS Bedrock
    (r"bedrock-api-key-", r"[A-Za-z0-9+/]{20,}={0,2}"),
    (r"AIza", r"[\w-]{30,}"),  # Google
    (r"ya29\.", r"[\w.-]{20,}"),
    (r"GOCSPX-", r"[\w-]{20,}"),
    (r"[\w~.]{3}[0-9]Q~", r"[\w.~-]{30,}"),  # Azure Active Directory
    (r"[A-Za-z0-9]{52}JQQJ99", r"[A-Za-z0-9]{26}"),  # Azure OpenAI and DevOps
    (
        r"[\w+/-]{30,90}(?:Az(?:Fu|Se|Ca)|A(?:IoT|SbT|EhS|CRD)|\+(?:ASt|ABa|AMC|ACR)|ACDb|APIM)",
        r"[\w+/-]{5,6}={0,2}(?!\w)",
    ),
    (r"LTAI", r"[A-Za-z0-9]{16,24}"),  # Alibaba
    (r"AQVN", r"[\w-]{35,}"),  # Yandex
    (r"do[opr]_v1_", r"[0-9a-f]{32,}"),  # DigitalOcean
    (r"v1\.0-[0-9a-f]{24}-", r"[0-9a-f]{60,}"),  # Cloudflare
    (r"cf[a-z]{1,3}_", r"[A-Za-z0-9]{40}[0-9a-f]{8}"),
    (r"eyJhIjoi", r"[A-Za-z0-9+/]{60,}={0,3}"),  # a tunnel
    (r"HRKU-", r"[\w-]{30,}"),  # Heroku
    (r"(?:vc[a-z]|nf[a-z]|xau|dhp)_", r"[A-Za-z0-9]{24,}"),  # Vercel, Netlify, Xata, DagsHub
    (r"vercel_blob_rw_", r"\w{20,}"),
    (r"r(?:nd_|e_[A-Za-z0-9]{8}_)", r"[A-Za-z0-9]{24,}"),  # Render, Resend
    (r"napi_", r"[a-z0-9]{40,}"),  # Neon
    (r"(?:mdb_sa_sk_|essu_|CCDB1_)", r"[\w=-]{30,}"),  # MongoDB Atlas, Elastic, Cockroach
    (r"ver:[0-9]{1,3}-hint:[0-9]{1,20}-", r"[A-Za-z0-9+/]{40,}={0,2}"),  # Snowflake
    (r"[0-9][A-Za-z0-9]{26}_", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,22}(?!\w)"),  # ngrok
    (r"dapi", r"[0-9a-f]{32}"),  # Databricks
    (r"sl\.", r"[\w=-]{60,}"),  # Dropbox
    (r"pat", r"[A-Za-z0-9]{14}\.[a-f0-9]{64}"),  # Airtable
    (r"pscale_(?:tkn|pw|oauth)_", r"[\w=.-]{20,}"),  # PlanetScale
    (r"4b1d", r"[A-Za-z0-9]{38}(?![A-Za-z0-9])"),  # ClickHouse
    (r"(?:tk-us-|tskey-[a-z]{3,10}-|f[mo][12][a-z]?_)", r"[\w+/=-]{20,}"),  # Scalingo, Tailscale, Fly
    # Where code lies, and what is made of it
    (r"gh[pousr]_", r"[A-Za-z0-9]{20,}"),  # GitHub
    (r"github_pat_", r"\w{20,}"),
    (r"gl(?:pat|dt|rt|cbt|ptt|agent|oas|ft|imt|soat|ffct|wt)-", r"[\w.-]{16,}"),  # GitLab
    (r"GR1348941", r"[\w-]{20}"),
    (r"_gitlab_session=", r"[0-9a-z]{32}"),
    (r"pypi-", r"[\w-]{16,}"),
    (r"npm_", r"[A-Za-z0-9]{30,}"),
    (r"oy2", r"(?=[a-z]*[0-9])[a-z0-9]{43}(?![a-z0-9])"),  # NuGet
    (r"cio", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32}(?![A-Za-z0-9])"),  # crates.io
    (r"packagist_[a-z]{3}_", r"[0-9a-f]{60,}"),
    (r"CCI(?:PAT|PRJ)_", r"[A-Za-z0-9]{20,24}_[0-9a-f]{40}"),  # CircleCI
    (r"bk[a-z]{2}_", r"[0-9a-f]{40}"),  # Buildkite
    (r"11", r"[0-9a-f]{32}(?![0-9a-f])"),  # Jenkins
    (r"snyk_[a-z]{3}\.", r"[0-9a-f]{8}\.[\w.-]{40,}"),
    (r"(?:depot_[a-z]{3,8}_|polar_[a-z]{2,4}_|zpka_)", r"\w{30,}"),
    (r"rubygems_", r"[0-9a-f]{32,}"),
    (r"CLOJARS_", r"[a-z0-9]{50,}"),
    (r"dckr_pat_", r"[\w-]{20,}"),  # Docker
    (r"AKCp", r"[A-Za-z0-9]{60,}"),  # Artifactory
    (r"cmVmd", r"[A-Za-z0-9]{59}"),
    (r"squ?[apu]_", r"[\w=-]{30,}"),  # Sonar
    (r"sgp_", r"(?:[A-Za-z0-9]{16}_|local_)?[a-f0-9]{40}"),  # Sourcegraph
    (r"pul-", r"[0-9a-f]{40}"),  # Pulumi
    (r"pn[bu]_", r"[A-Za-z0-9]{36}"),  # Prefect
    (r"sha256~", r"[\w-]{43}"),  # OpenShift
    (r"(?:pat|sat)\.", r"[\w-]{22}\.\w{24}\.\w{20}"),  # Harness
    (r"API-", r"[A-Z0-9]{26}(?![A-Z0-9])"),  # Octopus
    (r"PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),  # Postman
    # Models
    (r"sk-", r"[\w-]{20,}"),  # OpenAI, Anthropic
    (r"(?:gsk_|xai-|pplx-|nvapi-|tvly-|r8_|lsv2_[ps][tk]_|tgp_v1_|pcsk_)", r"[\w-]{20,}"),
    (r"fw_", r"[A-Za-z0-9]{22,}"),  # Fireworks
    (r"(?:wandb_v1_|aph0_)", r"[\w-]{20,}"),  # Weights & Biases, Anyscale
    (r"a[ks]-", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9])"),  # Modal
    (r"(?:hf_|api_org_)", r"[A-Za-z0-9]{20,}"),  # Hugging Face
    (r"hf_(?:oauth|jwt)_", r"[\w.=-]{20,}"),
    (r"csk-", r"[a-z0-9]{40,}"),  # Cerebras
    (r"pa-", r"(?=[A-Za-z_-]*[0-9])[\w-]{43}(?![\w-])"),  # Voyage
    (r"(?:jina_|llx-|rpa_)", r"[A-Za-z0-9]{40,}"),  # Jina, LlamaCloud, RunPod
    (r"sk_(?:car_)?", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{20,}"),  # ElevenLabs, Cartesia
    (r"(?:KGAT_|fc-)", r"[0-9a-f]{32}"),  # Kaggle, Firecrawl
    (r"(?:e2b_|dtn_)", r"[0-9a-f]{40,}"),  # E2B, Daytona
    (r"eyJhcGlf", r"[A-Za-z0-9+/]{40,}={0,3}"),  # Neptune
    # People talking to each other
    (r"xox[abeoprs](?:\.xox[bp])?-", r"[A-Za-z0-9-]{10,}"),  # Slack
    (r"xapp-", r"[A-Za-z0-9-]{10,}"),
    (r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[\w/-]{10,}"),
    (r"discord(?:app)?\.com/api/webhooks/", r"[\w/-]{20,}"),
    (r"(?:maker\.ifttt\.com/trigger/[\w/-]{1,99}/key/|hooks\.zapier\.com/hooks/catch/|hc-ping\.com/)", r"[\w/-]{8,}"),
    (r"AAAA[\w-]{7}:", r"APA91b[\w-]{60,}"),  # Firebase
    (r"[MNO][A-Za-z0-9_-]{23,25}\.[\w-]{6}\.", r"[\w-]{27,}"),  # Discord
    (r"[\w-]{1,60}\.webhook\.office\.com/", r"[\w@/-]{20,}"),
    (r"(?:bot)?[0-9]{5,16}:A", r"[\w-]{32,}"),  # Telegram
    (r"SG\.", r"[\w=-]{16,100}\.[\w=.-]{16,}"),  # SendGrid
    (r"(?:SK|AC)", r"[0-9a-fA-F]{32}"),  # Twilio
    (r"(?:pub)?key-", r"[0-9a-f]{32}"),  # Mailgun
    (r"[0-9a-f]{32}-us", r"[0-9]{1,2}"),  # Mailchimp
    (r"x(?:key|smtp)sib-", r"[0-9a-f]{60,}"),  # Brevo
    (r"(?:open\.(?:feishu\.cn|larksuite\.com)/open-apis/bot/v2/hook/)", r"[\w-]{20,}"),
    (r"KEY0", r"[0-9A-Fa-f]{28,}_[A-Za-z0-9]{20,}"),  # Telnyx
    (r"u\+", r"(?=[A-Za-z_-]*[0-9])(?=[^A-Z]*[A-Z])[\w-]{18}(?![\w-])"),  # PagerDuty
    (r"EAA[A-Z]", r"[A-Za-z0-9]{80,}"),  # Facebook
    (r"[0-9]{15,16}(?:\||%7C)", r"[\w-]{27,40}"),
    (r"A{20,22}", r"[A-Za-z0-9%]{70,}"),  # Twitter
    # Money
    (r"(?:sk|rk|pk)_(?:live|test|prod)_", r"[A-Za-z0-9]{10,}"),  # Stripe
    (r"whsec_", r"[A-Za-z0-9+/=]{16,}"),
    (r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}"),  # Shopify
    (r"sq0[a-z]{3}-", r"[\w-]{20,}"),  # Square
    (r"EAAA", r"[\w+/=-]{22,}"),
    (r"FLW(?:SEC|PUB)K(?:_TEST)?-", r"[0-9a-zA-Z]{12,}"),  # Flutterwave
    (r"access-(?:sandbox|production|development)-", r"[0-9a-f-]{36}"),  # Plaid
    (r"(?:duffel|shippo)_(?:live|test)_", r"[\w=-]{30,}"),
    (r"(?:live|test)_(?:pub_)?", r"[a-f0-9]{31,35}(?![a-f0-9])"),  # Lob
    (r"EZ[AT]K", r"[A-Za-z0-9]{54}"),  # EasyPost
    (r"rzp_(?:live|test)_", r"[A-Za-z0-9]{14,}"),  # Razorpay
    (r"access_token\$(?:production|sandbox)\$", r"[0-9a-z]{10,}\$[0-9a-f]{32}"),  # PayPal, Braintree
    (r"AQE", r"[A-Za-z0-9+/]{30,}={0,2}-[A-Za-z0-9+/=]{20,}-\S{10,}"),  # Adyen
    # What watches
    (r"(?:glsa|glc)_", r"[A-Za-z0-9_=+/]{20,}"),  # Grafana
    (r"eyJrIjoi", r"[A-Za-z0-9+/]{60,}={0,3}"),
    (r"(?:NRAK|NRJS|NRII)-", r"[A-Za-z0-9-]{16,}"),  # New Relic
    (r"dt0[a-z][0-9]{2}\.", r"[A-Za-z0-9]{24}\.[A-Za-z0-9]{60,}"),  # Dynatrace
    (r"sntry[su]_", r"[\w+/=-]{20,}"),  # Sentry
    (r"hc[a-z]{2}k_", r"[a-z0-9]{50,}"),  # Honeycomb
    (r"(?:ph[crsx]_|pylf_v[0-9]{1,2}_[a-z]{2}_)", r"[A-Za-z0-9]{30,}"),  # PostHog, Logfire
    # Others
    (r"BUNDLE_(?:ENTERPRISE|GEMS)__CONTRIBSYS__COM=", r"[a-f0-9]{8}:[a-f0-9]{8}"),
    (r"(?:infura\.io/(?:ws/)?v3/|alchemy\.com/v2/)", r"[\w-]{20,}"),
    (r"(?:lin_(?:api|oauth)_|secret_|ntn_|figd_|sbp_|rdme_|fio-u-|tfp_|sm_[aps]at_|CFPAT-)", r"[\w=.-]{16,}"),
    (r"(?:dp\.[a-z]{2,5}\.|secret-(?:live|test)-)", r"[\w=.-]{30,}"),  # Doppler, Stytch
    (r"(?:pat-[a-z]{2}[0-9]-|xa[ap]t-)", r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"),  # HubSpot, Axiom
    (r"[12]/[0-9]{12,20}(?:/[0-9]{12,20})?:", r"[0-9a-f]{32}"),  # Asana
    (r"00", r"(?=[a-z0-9_-]*[A-Z])(?=[A-Z0-9_-]*[a-z])[A-Za-z0-9_-]{40}(?![\w-])"),  # Okta
    (r"st\.[0-9a-f-]{8,36}\.", r"[0-9a-f]{32}\.[0-9a-f]{32}"),  # Infisical
    (r"0\.[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\.", r"[A-Za-z0-9]{30}:[A-Za-z0-9+/]{22}=="),  # Bitwarden
    (r"mega\.nz/(?:file|folder)/[\w-]{8}#", r"[\w-]{20,}"),
    (r"(?:ico-|p8e-)", r"[A-Za-z0-9]{32}"),  # Infracost, Adobe
    (r"s-s4t2(?:ud|af)-", r"[a-f0-9]{64}"),  # 42
    (r"dnkey-", r"[\w=-]{40,}"),  # Nebula
    (r"pk\.", r"[a-z0-9]{60}\.[a-z0-9]{22}"),  # Mapbox
    (r"[pst]k\.eyJ", r"[\w-]{20,}\.[\w-]{16,}"),
    (r"\w{6}_\w{29}_mmk", r""),  # MaxMind
    (r"A3-[A-Z0-9]{6}-", r"[A-Z0-9-]{26,}"),  # 1Password
    (r"ops_eyJ", r"[A-Za-z0-9+/]{60,}={0,3}"),
    (r"(?:sc|ext|scauth|authress)_", r"[a-zA-Z0-9]{5,30}\.[a-zA-Z0-9]{4,6}\.acc[_-][a-zA-Z0-9-]{10,32}\.[\w+/=-]{30,}"),
    (r"t1\.", r"[A-Za-z0-9_-]{1,80}={0,2}\.[\w-]{80,}={0,2}"),  # Yandex
    (r"hv[sbr]\.", r"[\w-]{20,}"),  # Vault
    (r"s\.", r"(?=[a-z]*[0-9])[a-z0-9]{24}(?![\w.-])"),
    (r"[A-Za-z0-9]{14}\.atlasv1\.", r"[\w=-]{20,}"),  # Terraform
    (r"AT(?:ATT|CTT|STT)3", r"[\w=-]{20,}"),  # Atlassian
    (r"AT(?:BB|TA)", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{32,64}(?![A-Za-z0-9])"),  # Bitbucket, Trello
    (r"LS0tLS1CRUdJTi(?!BDRVJU|BQVUJM)", r"[A-Za-z0-9+/_-]{20,}={0,2}"),  # "-----BEGIN ", but no certificate
    (r"MII[A-Za-z0-9+/]{3}IBA", r"[A-Za-z0-9+/]{24,}={0,2}"),  # a private key without its first line
    (r"(?:M[EGH][A-Za-z0-9+/]{1,3}AgE[AB]|MC4CAQAw|b3BlbnNzaC1rZXktdjE)", r"[A-Za-z0-9+/]{24,}={0,2}"),
    (r"[xyztuv]prv", r"[A-HJ-NP-Za-km-z1-9]{100,}"),  # wallets
    (r"(?:5[HJK]|[KL][A-HJ-NP-Za-km-z1-9])", r"(?=[A-Za-z]{0,40}[0-9])[A-HJ-NP-Za-km-z1-9]{49,50}(?![\w/+=-])"),
    (r"AGE-SECRET-KEY-1", r"[A-Z0-9]{20,}"),
    (r"ey[A-Z]", r"[\w-]{10,2000}\.[\w/-]{10,}(?:\.[\w/-]*)*"),  # JSON Web Token
    (r"\$(?:2[abxy]?|5|6|y|apr1|argon2(?:id|i|d)|scrypt)\$", r"[\w./$,=+-]{30,}"),  # what a password is checked by
    (r"ZXlK", r"[A-Za-z0-9+/_-]{40,}={0,2}"),  # the same, encoded once more
)

# Who gives out keys that have no form: known by this name before them, if what follows looks like nothing else.
GIVERS = (
    "adafruit", "adobe", "airtable", "algolia", "alibaba", "artifactory", "asana", "beamer", "bitbucket", "bittrex",
    "cloudflare", "codecov", "cohere", "coinbase", "confluent", "contentful", "datadog", "discord", "droneci",
    "dropbox", "etsy", "facebook", "fastly", "finicity", "finnhub", "flickr", "freshbooks", "gitter", "gocardless",
    "heroku", "hubspot", "intercom", "jfrog", "kraken", "kucoin", "launchdarkly", "linkedin", "looker",
    "mailgun", "mapbox", "mattermost", "meraki", "message[_-]?bird", "netlify", "new[_-]?relic", "nytimes", "okta",
    "plaid", "private-?ai", "rapidapi", "sendbird", "sentry", "snyk", "squarespace", "sumo", "travis", "twitch",
    "twitter", "yandex", "zendesk", "atlassian", "confluence", "jira",
)
# fmt: on
