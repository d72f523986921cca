"""Secrets are taken out of commands, configurations, logs and tracebacks before they are stored.

A secret is known by its own form (`_FORMS`), by where it stands (`_PLACES`), or by the name it is given. One that has
none of these, as a password in a sentence, cannot be known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "[redacted]"

# Forms of keys: what they begin with, and what follows. Kept as a table, so that a new one is a line.
_FORMS = (
    (r"(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA)", r"[0-9A-Z]{16}"),  # AWS
    (r"gh[pousr]_", r"[A-Za-z0-9]{20,}"),  # GitHub
    (r"github_pat_", r"\w{20,}"),
    (r"gl(?:pat|dt|rt|cbt|ptt|agent|oas|ft|imt|soat)-", r"[\w.-]{16,}"),  # GitLab
    (r"AIza", r"[\w-]{30,}"),  # Google
    (r"ya29\.", r"[\w.-]{20,}"),
    (r"GOCSPX-", r"[\w-]{20,}"),
    (r"(?:sk|rk|pk)_(?:live|test)_", r"[A-Za-z0-9]{10,}"),  # Stripe
    (r"whsec_", r"[A-Za-z0-9+/=]{16,}"),
    (r"sk-", r"[\w-]{20,}"),  # OpenAI, Anthropic
    (r"(?:gsk_|xai-|pplx-|nvapi-|tvly-|r8_|lsv2_[ps][tk]_|tgp_v1_|pcsk_)", r"[\w-]{20,}"),  # other models' services
    (r"fw_", r"[A-Za-z0-9]{22,}"),  # Fireworks
    (r"(?:wandb_v1_|aph0_)", r"[\w-]{20,}"),  # Weights & Biases, Anyscale
    (r"a[ks]-", r"(?=[A-Za-z]*[0-9])[A-Za-z0-9]{22}(?![A-Za-z0-9])"),  # Modal
    (r"(?:tskey-[a-z]{3,10}-|fm[12]_)", r"[\w-]{20,}"),  # Tailscale, Fly
    (r"v1\.0-[0-9a-f]{24}-", r"[0-9a-f]{60,}"),  # Cloudflare
    (r"(?:hf_|api_org_)", r"[A-Za-z0-9]{20,}"),  # Hugging Face
    (r"xox[abeoprs]-", r"[A-Za-z0-9-]{10,}"),  # Slack
    (r"xapp-", r"[A-Za-z0-9-]{10,}"),
    (r"hooks\.slack\.com/(?:services|workflows|triggers)/", r"[\w/-]{10,}"),
    (r"discord(?:app)?\.com/api/webhooks/", r"[\w/-]{20,}"),
    (r"[\w-]{1,60}\.webhook\.office\.com/", r"[\w@/-]{20,}"),
    (r"[0-9]{8,10}:AA", r"[\w-]{30,}"),  # Telegram
    (r"SG\.", r"[\w-]{16,100}\.[\w-]{16,}"),  # SendGrid
    (r"(?:SK|AC)", r"[0-9a-f]{32}"),  # Twilio
    (r"key-", r"[0-9a-f]{32}"),  # Mailgun
    (r"[0-9a-f]{32}-us", r"[0-9]{1,2}"),  # Mailchimp
    (r"pypi-", r"[\w-]{16,}"),
    (r"npm_", r"[A-Za-z0-9]{30,}"),
    (r"rubygems_", r"[0-9a-f]{32,}"),
    (r"dckr_pat_", r"[\w-]{20,}"),  # Docker
    (r"do[opr]_v1_", r"[0-9a-f]{32,}"),  # DigitalOcean
    (r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}"),  # Shopify
    (r"sq0[a-z]{3}-", r"[\w-]{20,}"),  # Square
    (r"(?:glsa|glc)_", r"[A-Za-z0-9_=]{20,}"),  # Grafana
    (r"dapi", r"[0-9a-f]{32}"),  # Databricks
    (r"(?:lin_api_|secret_|ntn_|figd_|pscale_tkn_|sbp_|sntry[su]_|dp\.pt\.)", r"[\w-]{20,}"),
    (r"NRAK-", r"[A-Z0-9]{20,}"),  # New Relic
    (r"hv[sbr]\.", r"[\w-]{20,}"),  # Vault
    (r"[A-Za-z0-9]{14}\.atlasv1\.", r"[\w=-]{20,}"),  # Terraform
    (r"ATATT3", r"[\w=-]{20,}"),  # Atlassian
    (r"AGE-SECRET-KEY-1", r"[A-Z0-9]{20,}"),
    (r"eyJ", r"[\w-]{10,2000}\.[\w-]{10,}(?:\.[\w-]*)*"),  # JSON Web Token
    (r"\w{3}[78]Q~", r"[\w.~-]{30,}"),  # Azure Active Directory
)
_KNOWN = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(start + rest for start, rest in _FORMS) + ")")

# Places where a secret stands, and what they become.
_PLACES = (
    (
        re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----).*?(?:-----END [A-Z ]{0,60}-----|\Z)", re.S),
        rf"\1{MASK}",
    ),
    (
        re.compile(r"(?i)\b((?!(?:ssh|sftp|git|git\+ssh)://[a-z]{1,12}@)[a-z][a-z0-9+.-]{0,20}://)[^\s/]+@"),
        rf"\1{MASK}@",
    ),
    (
        re.compile(
            r"(?i)(authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?!bearer\b|basic\b)[a-z-]{2,20}\s+)[^\s,;\"'\\]{8,}"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)((?:^|\s)(?:-u|--user)(?:\s+|=)[\w.@-]{1,60}:)\S+"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?<![\w/])([\w.-]{1,40}:)(?=[^\s:@/]{0,99}[0-9])(?=[^\s:@/]{0,99}[A-Za-z])[^\s:@/]{8,99}"
            r"(@(?:localhost|[\w-]+\.[\w.-]+))"
        ),
        rf"\1{MASK}\2",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(basic\s+)(?=\S*[0-9=])[A-Za-z0-9+/=]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)([?&;](?:sig|(?:x-amz-|x-goog-)?signature|code)=)[^\s&;\"']{8,}"), rf"\1{MASK}"),
)

# Names: always those of a secret, or of one if the value looks like it.
_WORD = (
    r"(?:secret|token(?!i[sz]|_?(?:type|emb|id|len|dim|level|class))|passw(?:or)?d|pass[_-]?(?:phrase|code)|pwd|credentials?|auth(?:orization)?(?!or)|cookie|[cx]srf"
    r"|(?:api|access|account|private|secret|shared|master|signing|encryption|session|license|service|client|storage"
    r"|deploy|ssh|wandb|comet|neptune|mlflow|openai|anthropic|hf|hugging_?face|aws|azure|gcp|google)[ _-]?key)"
)
_MAYBE = r"(?:[_-]key|\bkey|(?<![a-z])pat)"
_OPERATOR = r"\\*[\"']?\s*(?:[=-]>|%3[dD]|[=:])\s*"
_VALUE = r"((?:[brfu]{1,2}(?=\\*[\"']))?(?:\\*\"[^\"]*\"|\\*'[^']*')|[^\s,;&\"'}\]]+)"
_ASSIGNED = re.compile(
    rf"(?i)({_WORD}(?!s?_?(?:count|size|len))(?:[\w-]|(?<=secrets)\.|(?<=credentials)\.){{0,60}}{_OPERATOR})"
    rf"(?:(bearer|basic)\s+)?{_VALUE}"
)
_SAID = re.compile(  # in a sentence, or in a .netrc: only what no word or name of a layer looks like
    rf"((?i:{_WORD}[\w-]{{0,20}}\s+(?:is\s+)?))"
    r"(?=[\w+/=-]{0,99}[0-9])(?=[\w+/=-]{0,99}[a-z])(?=[\w+/=-]{0,99}[A-Z])[\w+/=-]{20,}"
)
_PERHAPS = re.compile(rf"(?i)({_MAYBE}{_OPERATOR})()((?:\\*[\"'])?[\w+/=.~-]{{16,}}(?:\\*[\"'])?)")
_NAMED = re.compile(rf"(?i)[\w-]*{_WORD}[\w-]*")
_MAYBE_NAMED = re.compile(rf"(?i)[\w-]*{_MAYBE}")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_MIXED = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])\S{16,}")
_COUNTED = re.compile(r"(?i)(?<![a-z])tokens(?![a-z])")  # of a text: `max_tokens=4096` is not a secret
_NUMBER = re.compile(r"[\"']?[0-9][0-9_,.]{0,14}[kKMGBT]?[\"']?")
# Cheap first looks: most of what is said has none of these.
_LONG = re.compile(r"[\w+/=.~:-]{18}")
_PLACED = re.compile(r"(?i)://|bearer|basic|authorization|BEGIN|[?&;](?:sig|x-|code)|-u\s|--user|:[^\s:@/]{8,99}@")
_TELLING = re.compile(r"(?i)key|secret|token|pass|pwd|credential|auth|cookie|[cx]srf|\bpat\b")


def redact(text: str) -> str:
    """The text with anything that looks like a secret masked."""
    if _PLACED.search(text):
        for place, instead in _PLACES:
            text = place.sub(instead, text)
    is_long, is_telling = _LONG.search(text), _TELLING.search(text)
    if is_long:
        text = _KNOWN.sub(MASK, text)
    if is_long and is_telling:
        text = _SAID.sub(rf"\1{MASK}", text)
    if is_telling:
        text = _PERHAPS.sub(_masked_mixed, _ASSIGNED.sub(_masked, text))
    return text


def names_secret(name: str, value: str) -> bool:
    """Whether what has this name is a secret; for names as `sort_key` the value says."""
    if _is_count(name, value):
        return False
    return bool(_NAMED.fullmatch(name) or (_MAYBE_NAMED.fullmatch(name) and _MIXED.fullmatch(value)))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line with secrets masked, also where the value is a word of its own."""
    masked: list[str] = []
    flag = ""
    for argument in arguments:
        is_secret = flag and not argument.startswith("-") and names_secret(flag.lstrip("-"), argument)
        is_login = flag in ("-u", "--user") and ":" in argument
        masked.append(MASK if is_secret or is_login else redact(argument))
        flag = argument if _FLAG.fullmatch(argument) else ""
    return masked


def _masked(match: re.Match[str]) -> str:
    return match[0] if _is_count(match[1], match[3]) or match[3] == MASK else match[1] + MASK


def _masked_mixed(match: re.Match[str]) -> str:
    return match[1] + MASK if _MIXED.fullmatch(match[3].strip("\\\"'")) else match[0]


def _is_count(name: str, value: str) -> bool:
    return bool(_COUNTED.search(name) and _NUMBER.fullmatch(value))
