"""Secrets are taken out of commands, configurations, logs and tracebacks before they are stored.

A secret is known by its own form (`FORMS`), by where it stands (`_PLACES`), or by the name it is given. One that has
none of these, as a password in a sentence, cannot be known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stethos.secret_forms import FORMS, GIVERS

MASK = "[redacted]"

_FORMS = "(?:" + "|".join(start + rest for start, rest in FORMS) + ")"
_KNOWN = re.compile(r"(?<![A-Za-z0-9])" + _FORMS)
_WRITTEN = (
    re.compile(  # after the letter that ends a written escape (`\\n`), a quoted byte (`%3D`) or a terminal's color
        r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=\\x[0-9a-f][0-9a-f])|(?<=\\u00[0-9a-f][0-9a-f])"
        r"|(?<=%[0-9A-Fa-f][0-9A-Fa-f])|(?<=[\[0-9]m))" + _FORMS
    )
)
_ESCAPE = re.compile(r"\\|%|\[[0-9;]*m")
_APART = r"(?:\s+|\\{0,3}[\"'],\s*\\{0,3}[\"'])"  # two words of a command, as it is typed or as a list is shown

# Places where a secret stands, and what they become.
_PLACES = (
    (
        re.compile(
            r"(-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-{4,5}).*?(?:-{4,5} ?END [A-Z0-9 ]{0,60}-{4,5}|\Z)",
            re.S,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(Private-Lines: [0-9]{1,3}(?:\s|\\{1,4}n)).*?(?:Private-MAC: \w+|\Z)", re.S), rf"\1{MASK}"),
    (
        re.compile(r"(?i)((?<![\w-])(?:set-)?cookie:\s*|authorization:\s*(?:digest|aws4-\S{1,30}|hawk|mac)\s)[^\r\n]+"),
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
    (
        re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,60}:)(?![0-9]{1,5}/)[^\s@\"'<>]{1,99}@(?=[\w\[])"),
        rf"\1{MASK}@",  # a password with a slash in it
    ),
    (re.compile(rf"(?i)((?:^|[\s\"'])(?:-u|--user)(?:{_APART}|=)[\"']?[\w.@-]{{1,60}}:)[^\s\"']+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(\bjdbc:oracle:\w{1,10}:[^\s/@]{1,60}/|\bsqlplus\s+[^\s/@]{1,60}/)[^\s@/]+@"), rf"\1{MASK}@"),
    (
        re.compile(r"((?<![^\s\"'])[\w.*-]{1,99}:(?:[0-9]{4,5}|\*):[\w*-]{1,60}:[\w.*-]{1,60}:)[^\s\"']+"),
        rf"\1{MASK}",
    ),  # .pgpass
    (
        re.compile(
            r"(?i)((?:Basic|Digest|Proxy|Ntlm)Auth\(\s*[\"'][^\"'\n]{0,99}[\"'],\s*[\"']|\bFernet\(b?[\"'])[^\"'\n]+"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?<![\w/])([\w.-]{1,40}:)(?=[^\s:@/]{0,99}[0-9])(?=[^\s:@/]{0,99}[A-Za-z])[^\s:@/]{8,99}"
            r"(@(?:localhost|[\w-]+\.[\w.-]+))"
        ),
        rf"\1{MASK}\2",
    ),
    (re.compile(r"(?i)\b(bearer[\s:=]+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)\b(basic\s+)(?=\S*[0-9=])[A-Za-z0-9+/=]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(?i)([?&;](?:sig|(?:x-amz-|x-goog-)?signature|code|resourcekey)=)[^\s&;\"']{8,}"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)(\blogin\s+\S{1,99}\s+password\s+"
            rf"|\bsshpass{_APART}-p(?:{_APART})?"
            r"|\b(?:mysql(?:dump|admin)?|mariadb|7z[az]?)\b[^|;\n]{0,99}?[\s\"']-p"
            rf"|\b(?:docker|podman|helm|oras|skopeo)\b[^|;\n]{{0,40}}?\blogin\b[^|;\n]{{0,99}}?[\s\"']-p{_APART}"
            rf"|\b(?:redis-cli|zip)\b[^|;\n]{{0,99}}?[\s\"'](?-i:-a|-P){_APART}|--from-literal(?:=|{_APART})[\w.-]{{1,60}}="
            rf"|\bhtpasswd{_APART}-\w{{0,5}}b\w{{0,5}}{_APART}[^\s\"']{{1,99}}{_APART}[^\s\"']{{1,99}}{_APART}"
            rf"|\B-pass(?:in|out)?{_APART}pass:)[^\s\"'-][^\s\"']*"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)(\bapi[ _-]?key\b[^:\n]{0,60}:\s*)(?=[a-z_-]{0,99}[0-9])[\w-]{20,}"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)(\b(?:mnemonic|(?:seed|recovery)[ _-]?phrase)\W{1,6})(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8}"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(r"(?i)(\b(?:wandb|comet|neptune|huggingface-cli|hf)\s+login\s+(?:--relogin\s+)?)[\w-]{20,}"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\"(?:d|p|q|dp|dq|qi|k)\\*\"\s*:\s*\\*\")[\w-]{20,}"), rf"\1{MASK}"),  # JSON Web Key
)

# Names: always those of a secret, or of one if the value looks like it.
_WORD = (
    r"(?:secret|token(?!i[sz]|_?(?:type|emb|id|len|dim|level|class))|pass[ _-]?w(?:or)?[dt]"
    r"|passwort|pass[_-]?(?:phrase|code)|pwd"
    r"|credentials?|auth(?:orization)?(?!or)|cookie|[cx]srf"
    r"|(?:api|access|account|private|secret|shared|master|signing|encryption|session|license|service|client|storage"
    r"|deploy|ssh|wandb|comet|neptune|mlflow|openai|anthropic|hf|hugging_?face|aws|azure|gcp|google)[ _.-]?key"
    r"|(?<![a-z])(?:db|database|user|admin|root|smtp|mail|ftp|redis|pg|mysql|postgres|mongo|rabbit(?:mq)?|proxy|login"
    r"|registry|docker|ldap|sudo|ssh|vnc|become|bind|keystore|truststore|cert)[_-]?pass(?![a-z]))"
)
_MAYBE = r"(?:[_-]key|\bkey|(?<![a-z])pat)"
_TYPE = r"(?::\s*(?:str|bytes|[\w.]{0,40}Secret\w{0,20}|Optional\[str\]|str \| None)\s*(?==))?"
_COLOR = r"(?:(?:\x1b|\\{1,4}(?:u001b|x1b|033))\[[0-9;]{0,20}m){0,4}"
_SIGN = r"(?:[=-]>|%3[aAdD]|[!=]=(?=\s?\\*[\"'])|:=|::|=(?!=)|[:\uff1a\uff1d]|\\{1,4}uff1[ad]|>(?=\S))"
_OPERATOR = rf"(?:\\*[\"']|%2[27])?{_COLOR}\s*{_TYPE}{_SIGN}(?:\s|%2[027]|\\{{1,4}}[nt](?=[\s-]))*{_COLOR}"
_VALUE = (
    r"([|>][+-]?[ \t]*(?:\n|\\{1,4}n)[ \t]+[^\n\\\"]+"
    r"|-[ \t]+[^\n\\\"]+(?:(?:\n|\\{1,4}n)[ \t]*-[ \t]+[^\n\\\"]+)*"
    r"|\[(?!redacted\])[^\]\n]{0,999}\]|\{[^}\n]{0,999}\}|[\w.]{0,60}\([^)\n]{0,999}\)"
    r"|(?:[brfu]{1,2}(?=\\*[\"']))?(?:\\*\"[^\"]*\"|\\*'[^']*')|[^\s,;&\"'}\]<\x1b]+)"
)
_ASSIGNED = re.compile(
    rf"(?i)({_WORD}(?!s?_?(?:count|size|len))(?:[\w-]|(?<=secrets)\.|(?<=credentials)\.){{0,60}}(?: for \S{{1,60}})?"
    rf"{_OPERATOR})(?:(bearer|basic)\s+)?{_VALUE}"
)
_SAID = re.compile(  # in a sentence, or in a .netrc: only what no word or name of a layer looks like
    rf"((?i:{_WORD}[\w-]{{0,20}}\s+(?:is\s+)?))"
    r"(?=[\w+/=-]{0,99}[0-9])(?=[\w+/=-]{0,99}[a-z])(?=[\w+/=-]{0,99}[A-Z])[\w+/=-]{20,}"
)
_PERHAPS = re.compile(rf"(?i)({_MAYBE}{_OPERATOR})()((?:\\*[\"'])?[\w+/=.~-]{{16,}}(?:\\*[\"'])?)")
_GIVEN = re.compile(
    rf"(?i)(?<![a-z])((?:{'|'.join(GIVERS)})(?:[_.-][\w.-]{{0,40}}| (?:api |access )?(?:key|token|id))?{_OPERATOR})"
    r"(\\*[\"']?)(?:(?=[a-z]*[0-9][a-z]*[0-9][a-z]*[0-9])[a-z0-9]{16,}[\w=+/-]*|[0-9]{5,20}-[a-z0-9]{20,}"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})(?![\w])"
)
_VALUED = re.compile(  # `<add key="Password" value="...">`, `{"name": "PASSWORD", "value": "..."}`
    rf"(?i)({_WORD}[\w-]{{0,40}}\\{{0,9}}[\"'](?:\s|,\s{{0,9}})\\*[\"']?value\\*[\"']?\s*[=:]\s*)()"
    r"(\\*\"[^\"]*\"|\\*'[^']*'|[^\s>}]+)"
)
_PAIRED = re.compile(  # `("X-Auth-Token", "...")`, `"--password", "..."`
    rf"(?i)((?:\(b?\\*[\"'][\w-]{{0,40}}?|(?<![\w-])--?[\w.-]{{0,40}}){_WORD}[\w-]{{0,40}}\\*[\"'],\s*[bu]?\\*[\"'])()"
    r"(?!-)([^\"'\\]+)"
)
_REFUSED = re.compile(  # what argparse and pydantic say of a value
    rf"(?i)(\bargument [^\s:]{{0,60}}{_WORD}[^\s:]{{0,40}}:\s[^\n'\":]{{0,60}}:\s"
    rf"|(?:^|\n|\\n)[\w.]{{0,60}}{_WORD}[\w.]{{0,40}}(?:\n|\\n)[^\n]{{0,300}}?\binput_value=)()(\"[^\"]*\"|'[^']*'|[^\s,\]]+)"
)
_TABLED = re.compile(  # a row of a table that is drawn
    rf"(?i)({_WORD}[\w-]{{0,40}}\s{{0,40}}(?:[|\u2502\u2503]|\\{{1,4}}u250[23])\s{{0,40}})()(?=[^\s|]{{0,60}}[0-9])(?=[^\s|]{{0,60}}[a-z])([^\s|]{{8,}})"
)
_SHORTLY = re.compile(  # what is said like this about a pass over the data has no letters and digits
    r"((?<![A-Za-z_-])(?:PASS|PW|pw)=[\"']?|(?<![\w -])pass = (?=\w{20}))()"
    r"(?=[^\s]{0,60}[0-9])(?=[^\s]{0,60}[A-Za-z])([^\s\"',;&]{6,})"
)
_FLAGGED = re.compile(rf"(?i)((?<![\w-])--?[\w.-]{{0,40}}{_WORD}[\w-]{{0,40}}\s+)()(?!-)(\S+)")  # in one text
_PASSWORD_SAID = re.compile(
    r"(?i)(\bpass(?:word|wort|phrase|code)\s+(?:is\s+|was\s+)?)(?=[^\s\d]{0,60}\d)(?=[^\sa-z]{0,60}[a-z])[^\s\"'=:]{8,}"
)
_NAMED = re.compile(rf"(?i)[\w.-]*{_WORD}[\w.-]*|pass|pw")
_MAYBE_NAMED = re.compile(rf"(?i)[\w.-]*{_MAYBE}")
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_MIXED = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])\S{16,}")
_OF_TEXT = ("token", "tokens")  # more often parts of a text than secrets
_COUNTED = re.compile(r"(?i)(?<![a-z])tokens(?![a-z])")  # of a text: `max_tokens=4096` is not a secret
_NUMBER = re.compile(r"[\"']?[0-9][0-9_,.]{0,14}[kKMGBT]?[\"']?|[\[(][0-9_,.\s]*[\])]")
# Cheap first looks: most of what is said has none of these.
_LONG = re.compile(r"[\w+/=.~:-]{18}")
_HANDED = re.compile(r"(?:[=:>]|%3[dD])\s*\\*[\"']?[A-Za-z0-9-]{16}")
_PLACED = re.compile(
    r"(?i)://|bearer|basic|authorization|BEGIN|[?&;](?:sig|x-|code)|-u[\s\"']|--user|:[^\s:@/]{8,99}@"
    r"|cookie:|Private-L|login[\s\"']|sshpass|mysql|\"(?:[dpqk]|d[pq]|qi)\\*\"\s*:"
    r"|fernet|jdbc:|sqlplus|:[0-9]{4,5}:[\w*-]{1,60}:|:\*:|resourcekey|mariadb|7z|redis-cli|zip -|zip'|from-literal"
    r"|mnemonic|phrase"
)
_TELLING = re.compile(r"(?i)key|secret|token|pass|pwd|credential|auth|cookie|[cx]srf|\bpat\b|\bpw=")


def redact(text: str) -> str:
    """The text with anything that looks like a secret masked."""
    is_telling = _TELLING.search(text)
    if is_telling or _PLACED.search(text):
        for place, instead in _PLACES:
            text = place.sub(instead, text)
    is_long = _LONG.search(text)
    if is_long:
        text = (_WRITTEN if _ESCAPE.search(text) else _KNOWN).sub(MASK, text)
        if _HANDED.search(text):
            text = _GIVEN.sub(rf"\1\2{MASK}", text)
    if is_long and is_telling:
        text = _SAID.sub(rf"\1{MASK}", text)
    if is_telling:
        for form in (_VALUED, _PAIRED, _REFUSED, _TABLED, _SHORTLY, _FLAGGED):
            text = form.sub(_masked, text)
        text = _PASSWORD_SAID.sub(rf"\1{MASK}", text)
        text = _PERHAPS.sub(_masked_mixed, _ASSIGNED.sub(_masked, text))
    return text


def names_secret(name: str, value: str) -> bool:
    """Whether what has this name is a secret; for names as `sort_key` the value says."""
    name = name.strip(" \t\r\n:=")
    if _is_count(name, value):
        return False
    return bool(_NAMED.fullmatch(name) or (_MAYBE_NAMED.fullmatch(name) and _MIXED.fullmatch(value)))


def redact_under(name: str, text: str) -> str:
    """A text that was logged under a name, which may say that it is a secret; of `token` only if it is no sentence."""
    last = re.split(r"[/.\\]", name)[-1]
    is_sample = "token" in last.lower() and len(text.split()) > 2
    return MASK if not is_sample and last.lower() not in _OF_TEXT and names_secret(last, text) else redact(text)


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line with secrets masked, also where the value is a word of its own."""
    masked: list[str] = []
    flag = ""
    for argument in arguments:
        is_value = not argument.startswith("-") or (not argument.startswith("--") and _MIXED.fullmatch(argument))
        is_secret = flag and is_value and names_secret(flag.lstrip("-"), argument)
        is_login = flag in ("-u", "--user") and ":" in argument
        masked.append(MASK if is_secret or is_login else redact(argument))
        flag = argument if _FLAG.fullmatch(argument.rstrip(" \r\n:")) else ""
    return masked


def _masked(match: re.Match[str]) -> str:
    return match[0] if _is_count(match[1], match[3]) or match[3] in (MASK, MASK[:-1]) else match[1] + MASK


def _masked_mixed(match: re.Match[str]) -> str:
    return match[1] + MASK if _MIXED.fullmatch(match[3].strip("\\\"'")) else match[0]


def _is_count(name: str, value: str) -> bool:
    return bool(_COUNTED.search(name) and _NUMBER.fullmatch(value))
