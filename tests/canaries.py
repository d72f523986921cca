"""Secrets of every form that is known, made up: what is searched for in the bytes of a run."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable

_LETTERS = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


def canaries(seed: int = 1) -> dict[str, tuple[str, str]]:
    """By a name: a text as a program may say it, and the part of it that must not be kept."""
    chance = random.Random(seed)

    def some(size: int, alphabet: str = _LETTERS) -> str:
        return "".join(chance.choice(alphabet) for _ in range(size - 2)) + "9z"[-2:]

    def hexed(size: int) -> str:
        return "".join(chance.choice(_HEX) for _ in range(size))

    def upper(size: int) -> str:
        return "".join(chance.choice(string.ascii_uppercase + string.digits) for _ in range(size))

    bare = {
        "aws": "AKIA" + upper(16), "aws temporary": "ASIA" + upper(16), "github": "ghp_" + some(36),
        "github oauth": "gho_" + some(36), "github app": "ghs_" + some(36), "github user": "ghu_" + some(36),
        "github refresh": "ghr_" + some(36), "github fine": "github_pat_" + some(22) + "_" + some(59),
        "gitlab": "glpat-" + some(20), "gitlab runner": "glrt-" + some(20), "google": "AIza" + some(35),
        "google oauth": "ya29." + some(60), "google client": "GOCSPX-" + some(28), "stripe": "sk_live_" + some(24),
        "stripe restricted": "rk_live_" + some(24), "stripe webhook": "whsec_" + some(32), "openai": "sk-" + some(48),
        "openai project": "sk-proj-" + some(48), "anthropic": "sk-ant-api03-" + some(80), "groq": "gsk_" + some(52),
        "nvidia": "nvapi-" + some(60), "replicate": "r8_" + some(37), "hugging face": "hf_" + some(34),
        "slack bot": "xoxb-" + "123456789012-" + some(24), "slack user": "xoxp-" + some(40),
        "slack app": "xapp-1-" + upper(11) + "-" + some(40), "sendgrid": "SG." + some(22) + "." + some(43),
        "twilio": "SK" + hexed(32), "mailgun": "key-" + hexed(32), "mailchimp": hexed(32) + "-us14",
        "pypi": "pypi-AgEIcHlwaS5vcmc" + some(60), "npm": "npm_" + some(36), "docker": "dckr_pat_" + some(27),
        "digital ocean": "dop_v1_" + hexed(64), "shopify": "shpat_" + hexed(32), "grafana": "glsa_" + some(32),
        "databricks": "dapi" + hexed(32), "vault": "hvs." + some(90), "new relic": "NRAK-" + upper(27),
        "atlassian": "ATATT3" + some(60), "age": "AGE-SECRET-KEY-1" + upper(58), "telegram": "123456789:AA" + some(33),
        "weights and biases": "wandb_v1_" + some(77), "pinecone": "pcsk_" + some(60), "together": "tgp_v1_" + some(43),
        "fireworks": "fw_" + some(24), "anyscale": "aph0_" + some(40), "modal": "as-4" + some(21),
        "tailscale": "tskey-auth-" + some(12) + "-" + some(32), "fly": "fm2_" + some(80),
        "cloudflare": "v1.0-" + hexed(24) + "-" + hexed(146), "jwt": "eyJ" + some(33) + "." + some(40) + "." + some(43),
        "bedrock": "ABSK" + some(120), "alibaba": "LTAI" + some(20), "heroku": "HRKU-AA" + some(58),
        "dropbox": "sl." + some(140), "airtable": "pat" + some(14) + "." + hexed(64),
        "planetscale": "pscale_pw_" + some(43), "clickhouse": "4b1d" + some(38),
        "gitlab runner of old": "GR1348941" + some(20),
        "clojars": "CLOJARS_" + some(60).lower(), "artifactory": "AKCp" + some(69), "sonar": "sqp_" + some(40),
        "sourcegraph": "sgp_local_" + hexed(40), "pulumi": "pul-" + hexed(40), "prefect": "pnu_" + some(36),
        "openshift": "sha256~" + some(43), "octopus": "API-" + upper(26),
        "postman": "PMAK-" + hexed(24) + "-" + hexed(34),
        "discord bot": "MT" + some(24) + "." + some(6) + "." + some(38),
        "brevo": "xkeysib-" + hexed(64) + "-" + some(16),
        "facebook": "EAAC" + some(120), "twitter": "A" * 22 + some(80),
        "flutterwave": "FLWSECK_TEST-" + hexed(32) + "-X",
        "plaid": "access-production-" + "-".join(map(hexed, (8, 4, 4, 4, 12))), "shippo": "shippo_live_" + hexed(40),
        "easypost": "EZAK" + some(54), "grafana of old": "eyJrIjoi" + some(90), "new relic insert": "NRII-" + some(32),
        "dynatrace": "dt0c01." + upper(24) + "." + upper(64), "sentry": "sntrys_eyJ" + some(90),
        "readme": "rdme_" + some(70),
        "typeform": "tfp_" + some(44), "infracost": "ico-" + some(32), "42": "s-s4t2ud-" + hexed(64),
        "mapbox": "sk.eyJ" + some(40) + "." + some(22),
        "1password": "A3-" + upper(6) + "-" + upper(6) + "-" + upper(26),
        "1password service": "ops_eyJ" + some(250), "vault of old": "s." + some(24).lower(),
        "encoded jwt": "ZXlK" + some(80),
        "firebase": "AAAA" + some(7) + ":APA91b" + some(134), "azure": some(3) + "8Q~" + some(31),
        "lob": "live_" + hexed(35),
    }  # fmt: skip
    bare |= _newer(some, hexed, upper)
    found = {name: (f"failed for {secret} at 10:00", secret) for name, secret in bare.items()}
    slack, discord = f"T{upper(8)}/B{upper(8)}/{some(24)}", f"{chance.randrange(10**17, 10**18)}/{some(68)}"
    word, body, account = some(20), "\n".join(some(64) for _ in range(4)), some(86) + "=="
    login = base64.b64encode(f"me:{some(14)}1".encode()).decode()
    found |= {
        "slack webhook": (f"POST https://hooks.slack.com/services/{slack}", slack),
        "discord webhook": (f"POST https://discord.com/api/webhooks/{discord}", discord),
        "pem": (f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----", body[:64]),
        "pem cut off": (f"loaded -----BEGIN OPENSSH PRIVATE KEY-----\n{body[:200]}", body[66:120]),
        "gcp": (f'"private_key": "-----BEGIN PRIVATE KEY-----\\n{body[:64]}\\n-----END PRIVATE KEY-----"', body[:64]),
        "azure": (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={account};", account),
        "azure signature": (f"https://a.blob.core.windows.net/c?sv=2022&sig={some(43)}%3D", ""),
        "database": (f"postgres://me:{word}@db/x", word),
        "database with a slash": (f"mysql://me:{word}@{word}@db/x", word),
        "token in url": (f"git clone https://{some(40)}@host.example/repo", ""),
        "bearer": (f"Authorization: Bearer {some(40)}", ""),
        "basic": (f"Authorization: Basic {login}", login),
        "assigned": (f"password={word}", word),
        "quoted": (f'"client_secret": "{word} and more"', word),
        "escaped": (f'{{\\"api_key\\": \\"{word}\\"}}', word),
        "passphrase": (f"passphrase: {word}", word),
        "wandb": (f"WANDB_API_KEY={hexed(40)}", ""),
        "some key": (f"encoder_key={hexed(40)}", ""),
        "other scheme": (f"Authorization: ApiKey {word}", word),
        "scheme in quotes": (f"{{'Authorization': 'token {word}'}}", word),
        "bytes": (f"token=b'{word}'", word),
        "section": (f"+secrets.openai={word}", word),
        "login": (f"curl -u me:{word} http://h/", word),
        "user and host": (f"connect to me:{word}@db.example/x", word),
        "netrc": (f"machine h login me password {word}Aa1", word),
        "said": (f"the api key is {word}Aa1", word),
        "in an address": (f"/callback%3Ftoken%3D{word}", word),
        "arrow": (f"secret -> {word}", word),
        "forgery": (f"csrf={word}", word),
        "pass": (f"DB_PASS={word}", word),
        "cookies": (f"Cookie: a={some(20)}; session={word}", word),
        "beside its id": (f"AKIA{upper(16)},{some(38)}/+", ""),
        "digest": (f'Authorization: Digest username="me", response="{word}"', word),
        "putty": (f"PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 4\n{body}\nPrivate-MAC: {hexed(40)}", body[:64]),
        "ssh2": (f"---- BEGIN SSH2 PRIVATE KEY ----\n{body}\n---- END SSH2 PRIVATE KEY ----", body[:64]),
        "pgp": (f"-----BEGIN PGP PRIVATE KEY BLOCK-----\n{body}\n-----END PGP PRIVATE KEY BLOCK-----", body[:64]),
        "jwk": (f'{{"kty": "RSA", "d": "{some(80)}"}}', ""),
        "lower netrc": (f"machine h login me password {word.lower()}", word.lower()),
        "yaml block": (f"password: >-\n  {word}", word),
        "xml": (f"<password>{word}</password>", word),
        "xml attribute": (f'<add key="Password" value="{word}"/>', word),
        "form": (f'<input type="password" value="{word}">', word),
        "name and value": (f'{{"name": "DB_PASSWORD", "value": "{word}"}}', word),
        "typed": (f"TOKEN: str = '{word}'", word),
        "quoted login": (f"curl -u 'me:{word}' http://h/", word),
        "sshpass": (f"sshpass -p {word} ssh h", word),
        "mysql": (f"mysql -u root -p{word} x", word),
        "said password": (f"the password is {word}", word),
        "german": (f"Passwort: {word}", word),
        "of somebody": (f"Password for me: {word}", word),
        "quoted in an address": (f"password%22%3A%22{word}", word),
        "logged in": (f"wandb login {hexed(40)}", ""),
        "ifttt": (f"https://maker.ifttt.com/trigger/x/with/key/{word}", word),
        "zapier": (f"https://hooks.zapier.com/hooks/catch/123/{word}/", word),
        "bearer and colon": (f"bearer: {word}", word),
        "option in a line": (f"started with --hub-password {word} --lr 1", word),
        "who gave it": (f"DATADOG={hexed(28)}0123", ""),
        "uuid": (f"heroku: {'-'.join(map(hexed, (8, 4, 4, 4, 12)))}", ""),
        "redis": (f"redis://:{word}@host:6379/0", word),
        "jdbc": (f"jdbc:postgresql://db/x?user=me&password={word}", word),
        "service bus": (f"Endpoint=sb://x.net/;SharedAccessKey={account}", account),
        "npmrc": (f"//host.example/:_authToken={word}", word),
        "docker": (f'{{"auths":{{"r.io":{{"auth":"{login}"}}}}}}', login),
    }  # fmt: skip
    found |= _shown(word, "ghp_" + some(36)) | _elsewhere(word, some)
    return {name: (text, secret or max(_runs(text), key=len)) for name, (text, secret) in found.items()}


def _newer(some: Callable[..., str], hexed: Callable[[int], str], upper: Callable[[int], str]) -> dict[str, str]:
    """Keys of services that the list of gitleaks does not have, or has in another form."""
    uuid = "-".join(map(hexed, (8, 4, 4, 4, 12)))
    return {
        "hugging face login": "hf_oauth_" + some(60), "neon": "napi_" + some(60).lower(), "vercel": "vcp_" + some(56),
        "vercel blob": "vercel_blob_rw_" + some(16) + "_" + some(30), "netlify": "nfp_" + some(36),
        "render": "rnd_" + some(32), "resend": "re_" + some(8) + "_" + some(24), "posthog": "phx_" + some(43),
        "doppler service": "dp.st.dev." + some(40), "linear login": "lin_oauth_" + hexed(64),
        "cerebras": "csk-" + some(48).lower(), "voyage": "pa-" + some(43), "jina": "jina_" + some(60),
        "elevenlabs": "sk_" + hexed(46) + "a1", "cartesia": "sk_car_" + some(22), "firecrawl": "fc-" + hexed(32),
        "runpod": "rpa_" + upper(44), "kaggle": "KGAT_" + hexed(32), "neptune": "eyJhcGlfYWRkcmVzcyI6" + some(120),
        "atlassian group": "ATCTT3xFfGN0" + some(160), "bitbucket": "ATBB" + some(32), "trello": "ATTA" + hexed(64),
        "aws session": "IQoJb3JpZ2luX2VjE" + some(300),
        "aws older session": "FwoGZXIvYXdzE" + some(300),
        "azure openai": some(52) + "JQQJ99" + some(26), "azure functions": some(44) + "AzFu" + some(6) + "==",
        "contentful": "CFPAT-" + some(43), "hubspot": f"pat-na1-{uuid}", "axiom": f"xaat-{uuid}",
        "honeycomb": "hcaik_01" + some(56).lower(), "logfire": "pylf_v1_us_" + some(43),
        "infisical": "st." + hexed(8) + "." + hexed(32) + "." + hexed(32), "mongo atlas": "mdb_sa_sk_" + some(40),
        "nuget": "oy2" + some(43).lower(), "crates": "cio" + some(32), "packagist": "packagist_uut_" + hexed(68),
        "buildkite": "bkua_" + hexed(40), "circle": "CCIPAT_" + some(22) + "_" + hexed(40), "jenkins": "11" + hexed(32),
        "snyk": "snyk_uat." + hexed(8) + "." + some(60), "e2b": "e2b_" + hexed(40), "daytona": "dtn_" + hexed(64),
        "llama cloud": "llx-" + some(48), "razorpay": "rzp_live_" + some(14), "okta": "00" + some(40),
        "telnyx": "KEY0" + hexed(28).upper() + "_" + some(22), "dagshub": "dhp_" + some(36),
        "ngrok": "2" + some(26) + "_" + some(21), "cloudflare user": "cfut_" + some(40) + hexed(8),
        "cloudflare tunnel": "eyJhIjoi" + some(100), "cockroach": "CCDB1_" + some(22) + "_" + some(40),
        "elastic": "essu_" + some(60), "bitwarden": f"0.{uuid}.{some(30)}:{some(22)}==",
        "braintree": f"access_token$production${hexed(16)}${hexed(32)}", "pagerduty": "u+" + some(14) + "A1bc",
        "asana": f"2/1200123456789012/1200123456789012:{hexed(32)}", "depot": "depot_org_" + some(60),
        "polar": "polar_oat_" + some(43), "prefect bot": "pnb_" + some(36), "gitlab workspace": "glwt-" + some(20),
        "adyen": f"AQE{some(70)}-{some(40)}=-{some(16)}", "zuplo": f"zpka_{hexed(32)}_{hexed(8)}",
        "stytch": "secret-live-" + some(36), "xata": "xau_" + some(34), "snowflake": "ver:1-hint:1234-" + some(150),
        "supabase": "sb_secret_" + some(22) + "_" + some(8), "bcrypt": "$2b$12$" + some(53),
        "argon": "$argon2id$v=19$m=65536,t=3,p=4$" + some(22) + "$" + some(43),
        "apache": "$apr1$" + some(8) + "$" + some(22), "shadow": "$6$" + some(16) + "$" + some(86),
    }  # fmt: skip


def _shown(word: str, key: str) -> dict[str, tuple[str, str]]:
    """Secrets as programs show them: in lists and calls, in colors, in what a library says of a wrong value."""
    texts = {
        "list": f"tokens: ['{word}', 'x']", "list of one": f'"passwords": ["{word}"]', "set": f"secrets={{'{word}'}}",
        "dictionary": f"credentials: {{'user': 'me', 'value': '{word}'}}", "call": f"token=SecretStr('{word}')",
        "tuple": f"auth=('me', '{word}')", "login object": f"HTTPBasicAuth('me', '{word}')",
        "header in a tuple": f"[('X-Auth-Token', '{word}')]", "header in bytes": f"[(b'x-api-key', b'{word}')]",
        "command shown": f"Command '['x', '--password', '{word}']' failed", "json words": f'["--api-key", "{word}"]',
        "mysql shown": f"Command '['mysql', '-u', 'root', '-p{word}']' failed",
        "sshpass shown": f"Command '['sshpass', '-p', '{word}', 'ssh']' failed",
        "curl shown": f"Command '['curl', '-u', 'me:{word}', 'h']' failed",
        "docker login": f"docker login -u me -p {word} r.io", "redis command": f"redis-cli -h h -a {word} ping",
        "7z": f"7z x -p{word} a.7z", "zip": f"zip -P {word} a.zip b", "openssl": f"openssl rsa -passin pass:{word}",
        "htpasswd": f"htpasswd -b file me {word}", "kubectl": f"kubectl create secret x --from-literal=k={word}",
        "color": f"\x1b[36mpassword\x1b[0m=\x1b[35m{word}\x1b[0m", "color of a key": f"\x1b[32m{key}\x1b[0m",
        "escape before": f"'line\\n{key}'", "quoted before": f"https://h/?x%3D{key}", "escaped before": f"\\u003d{key}",
        "slash in an address": f"postgresql://me:{word}/{word}@db:5432/x", "pgpass": f"db:5432:x:me:{word}",
        "oracle": f"jdbc:oracle:thin:me/{word}@//h:1521/x", "telegram address": f"/bot123456789:AA{word}{word}/x",
        "infura": f"https://rpc.infura.io/v3/{word}{word}", "fernet": f"Fernet(b'{word}{word}abc=')",
        "argparse": f"error: argument --token: invalid int value: '{word}'",
        "pydantic": f"1 error\napi_key\n  Input should be a number [type=int, input_value='{word}', input_type=str]",
        "compared": f"AssertionError: token != '{word}'", "assigned in passing": f"password := '{word}'",
        "table": f"| password | {word} |", "drawn table": f"\u2502 password \u2502 {word} \u2502",
        "fullwidth": f"password\uff1d{word}", "yaml list": f"tokens:\n  - {word}\n  - b\n",
        "prompt": f"Paste an API key: {word}", "pgpass elsewhere": f"db.example:6543:x:me:{word}",
        "mega": f"https://mega.nz/file/aB3dE6gH#{word}{word}", "shared file": f"https://h/d/x?resourcekey=0-{word}",
        "feishu": f"https://open.feishu.cn/open-apis/bot/v2/hook/{word}{word}",
        "mnemonic": f"mnemonic: {'abandon ' * 11}about", "ansible": f"become_pass: {word}", "short": f"PASS={word}",
    }  # fmt: skip
    secrets = {name: key if key in text else word for name, text in texts.items()}
    return {name: (text, "abandon" if name == "mnemonic" else secrets[name]) for name, text in texts.items()}


def _elsewhere(word: str, some: Callable[..., str]) -> dict[str, tuple[str, str]]:
    """Secrets in other languages, formats and commands, in addresses whose parameters say nothing, without a frame."""
    long, pem = some(40), "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    packed = base64.b64encode(f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{some(60)}".encode()).decode()
    coin = "".join(letter for letter in some(160) if letter not in "0OIl_")
    texts = {
        "environment of an image": f"ENV DB_PASSWORD {word}", "shell of old": f"setenv API_TOKEN {word}",
        "defined in C": f'#define API_KEY "{word}"', "user of a database": f"CREATE USER me IDENTIFIED BY '{word}'",
        "role of a database": f"ALTER ROLE me WITH PASSWORD '{word}'", "DuckDB": f"(TYPE s3, SECRET '{word}')",
        "spanish": f"contrase\u00f1a: {word}", "french": f"mot de passe : {word}", "german too": f"Kennwort: {word}",
        "chinese": f"\u5bc6\u7801: {word}", "russian": f"\u043f\u0430\u0440\u043e\u043b\u044c: {word}",
        "japanese": f"\u30d1\u30b9\u30ef\u30fc\u30c9: {word}", "korean": f"\ube44\ubc00\ubc88\ud638={word}",
        "login call": f"smtp.login('me@x.org', '{word}')", "mqtt": f"client.username_pw_set('me', '{word}')",
        "quoted pass": f"{{'db': {{'pass': '{word}'}}}}", "quoted pw": f'{{"pw": "{word}"}}', "pw": f"pw: {word}",
        "pw in Python": f"pw = '{word}'", "name of pw": f"db_pw={word}", "option with a dot": f"--db.pass={word}",
        "store of keys": f"keytool -storepass {word}", "ssh-keygen": f"ssh-keygen -N {word} -f x",
        "openssl": f"openssl enc -aes-256-cbc -k {word}", "ldap": f"ldapsearch -D cn=x -w {word} h",
        "samba": f"smbclient //h/s -U me%{word}", "azure login": f"az login --service-principal -u x -p {word}",
        "piped": f"echo {word} | sudo -S ls", "piped elsewhere": f"echo {word} | gh auth login --with-token",
        "sshpass quoted": f"sshpass -p'{word}' ssh h", "tag with a space": f"<w:Password Type='x'>{word}</w:Password>",
        "property list": f"<key>password</key><string>{word}</string>", "tag": f"<token>{word},a b</token>",
        "kubernetes": f"- name: DB_PASSWORD\n  value: {word}",
        "value before name": f'{{"value": "{word}", "name": "PASSWORD"}}',
        "session": f"PHPSESSID={word}", "session elsewhere": f"jsessionid: {word}", "ticket": f"https://h/login?ticket={word}",
        "invitation": f"https://h/?invite={word}", "hook": f"https://h.example/hooks/{word}{word}",
        "reset": f"https://h/reset-password/{word}{word}", "conda": f"https://conda.anaconda.org/t/{word}{word}/channel",
        "unknown parameter": f"https://h/x?hdnts={long}Aa1", "slashes escaped": f'"https:\\/\\/me:{word}@h.example"',
        "arrow in a table": f"password \u2192 {word}", "entity": f"password&#61;{word}",
        "entities": f"&quot;password&quot;:&quot;{word}&quot;", "quoted twice": f"password%253D{word}",
        "next line": f"password=\\\n{word}", "two parts": f"password = 'abc' '{word}'",
        "digest said": f'Digest username="me", response="{word}"',
        "spark": f"fs.azure.account.key.x.dfs.core.windows.net={long}==", "key without a frame": f"{pem}{long}{long}",
        "key of ssh without a frame": f"b3BlbnNzaC1rZXktdjEAAAAA{long}{long}", "packed key": f"key {packed}",
        "line of a key": f"{some(64)}", "wallet": f"xprv9s21{coin[:104]}", "escaped quote": f"password='a\\'b{word}'",
        "comma in it": f"password=ab1,{word}", "short and said": "the password is hunt4r2",
    }  # fmt: skip
    secrets = {
        "packed key": packed[30:60],
        "wallet": coin[:60],
        "line of a key": texts["line of a key"],
        "short and said": "hunt4r2",
    }
    return {name: (text, secrets.get(name, word if word in text else long)) for name, text in texts.items()}


def _runs(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in text).split()
