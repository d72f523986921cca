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
        re.compile(
            r"(?i)\b((?!(?:ssh|sftp|git|git\+ssh)://[a-z]{1,12}@)[a-z][a-z0-9+.-]{0,20}:\\{0,3}/\\{0,3}/)[^\s/]+@"
        ),
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
            r"(?i)((?:(?:Basic|Digest|Proxy|Ntlm|basic_)Auth|\blogin|username_pw_set|\bauthenticate)\(\s*[\"'][^\"'\n]{0,99}[\"'],"
            r"\s*[\"']|\bFernet\(b?[\"'])[^\"'\n]+"
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
            rf"|\bsshpass{_APART}-p(?:{_APART})?[\"']?"
            r"|\b(?:mysql(?:dump|admin)?|mariadb|7z[az]?)\b[^|;\n]{0,99}?[\s\"']-p"
            rf"|\b(?:docker|podman|helm|oras|skopeo)\b[^|;\n]{{0,40}}?\blogin\b[^|;\n]{{0,99}}?[\s\"']-p{_APART}"
            rf"|\b(?:redis-cli|zip)\b[^|;\n]{{0,99}}?[\s\"'](?-i:-a|-P){_APART}|--from-literal(?:=|{_APART})[\w.-]{{1,60}}="
            rf"|\bhtpasswd{_APART}-\w{{0,5}}b\w{{0,5}}{_APART}[^\s\"']{{1,99}}{_APART}[^\s\"']{{1,99}}{_APART}"
            rf"|\B-pass(?:in|out)?{_APART}pass:"
            rf"|\b(?:ssh-keygen\b[^|;\n]{{0,99}}?(?-i:-N)|openssl\b[^|;\n]{{0,99}}?-k|ldap\w{{3,8}}\b[^|;\n]{{0,99}}?-w"
            rf"|az\b[^|;\n]{{0,40}}?\blogin\b[^|;\n]{{0,99}}?-p){_APART}"
            r"|\b(?:smb|rpc)client\b[^|;\n]{0,99}?-U[\s\"']*[^\s%]{1,60}%)[\"']?[^\s\"'-][^\s\"']*"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(\becho\s+[\"']?)[^\s\"'|]+(?=[\"']?\s*\|[^\n]{0,99}(?:\bsudo -S|--with-token|--password-stdin|--stdin))"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\bDigest username=)[^\r\n]+"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)(://[^\s\"'<>]{1,200}?/(?:(?:web)?hooks?|t|tokens?|invit\w{1,6}|reset[\w-]{0,20}|share|verify|confirm"
            r"|activate|magic\w{0,6}|(?:api[_-]?)?keys?|secrets?|unsubscribe)/)"
            r"(?=[^\s/?#\"']{0,99}[0-9])(?=[^\s/?#\"']{0,99}[A-Za-z])[\w.~=-]{20,}"
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(?i)([?&;#](?:[\w.-]{0,40}(?:ticket|invit\w{1,6}|sess(?:ion)?(?:id)?|otp|jwt|hmac|assertion)|sid|sas|saml\w{1,9})"
            r"=)[^\s&;\"'<>]{8,}"
        ),
        rf"\1{MASK}",
    ),
    (  # what no word or number looks like, whatever the name
        re.compile(
            r"(://[^\s\"'<>]{1,200}?[?&#](?!(?i:[\w.-]{0,20}(?:sha|md5|hash|sum|rev|commit|etag|version|digest|name|run)))"
            r"[\w.-]{1,40}=)(?=[\w+=~-]{0,99}[0-9])(?=[\w+=~-]{0,99}[a-z])(?=[\w+=~-]{0,99}[A-Z])[\w+=~-]{24,}"
        ),
        rf"\1{MASK}",
    ),
    (  # a line of a key, logged by itself
        re.compile(
            r"(?m)(^[ \t]{0,20}|[\"'])(?=[A-Za-z+/]{0,76}[0-9])(?=[A-Z0-9+/]{0,76}[a-z])(?=[a-z0-9+/]{0,76}[A-Z])"
            r"(?:[A-Za-z0-9+/]{64}|[A-Za-z0-9+/]{70}|[A-Za-z0-9+/]{76})(?=[ \t\r]*$|(?:\\{1,4}n)?\\{0,4}[\"'])"
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

_FOREIGN = (  # words for a password, in Spanish, Russian, Chinese, Japanese and Korean
    "contrase\u00f1a", "\u043f\u0430\u0440\u043e\u043b\u044c", "\u043f\u0430\u0440\u043e\u043b\u044f",
    "\u5bc6\u7801", "\u5bc6\u78bc", "\u30d1\u30b9\u30ef\u30fc\u30c9", "\ube44\ubc00\ubc88\ud638",
)  # fmt: skip


def _either(word: str) -> str:
    """A pattern for a word, and for how JSON writes it."""
    return f"{word}|" + "".join(letter if letter.isascii() else rf"\\{{1,4}}u{ord(letter):04x}" for letter in word)


# Names: always those of a secret, or of one if the value looks like it.
_WORD = (
    r"(?:secret|token(?!i[sz]|_?(?:type|emb|id|len|dim|level|class))|pass[ _-]?w(?:or)?[dt]"
    r"|passwort|kennwort|wachtwoord|mot de passe|pass[_-]?(?:phrase|code)|pwd|"
    + "|".join(map(_either, _FOREIGN))
    + r"|credentials?|auth(?:orization)?(?!or)|cookie|[cx]srf"
    r"|(?:api|access|account|private|secret|shared|master|signing|encryption|session|license|service|client|storage"
    r"|deploy|ssh|wandb|comet|neptune|mlflow|openai|anthropic|hf|hugging_?face|aws|azure|gcp|google)[ _.-]?key"
    r"|(?<![a-z])(?:db|database|user|admin|root|smtp|mail|ftp|redis|pg|mysql|postgres|mongo|rabbit(?:mq)?|proxy|login"
    r"|registry|docker|ldap|sudo|ssh|vnc|become|bind|key|store|keystore|truststore|cert|my|app|web|http|imap|wifi)[_.-]?pass(?![a-z])"
    r"|(?<![a-z])(?:db|database|user|my|admin|root|smtp|mail|ftp|redis|pg|mysql|ldap|sudo|ssh)[_.-]pw(?![a-z]))"
)
_MAYBE = r"(?:[_-]key|\bkey|(?<![a-z])pat|sess(?:ion)?[_-]?id|\baccount\.key[\w.]{0,60})"
_TYPE = r"(?::\s*(?:str|bytes|[\w.]{0,40}Secret\w{0,20}|Optional\[str\]|str \| None)\s*(?==))?"
_COLOR = r"(?:(?:\x1b|\\{1,4}(?:u001b|x1b|033))\[[0-9;]{0,20}m){0,4}"
_SIGN = (
    r"(?:[=-]>|\u2192|%(?:25)?3[aAdD]|&#(?:6[01]|58);"
    r"|[!=]=(?=\s?\\*[\"'])|:=|::|=(?!=)|[:\uff1a\uff1d]|\\{1,4}u(?:ff1[ad]|2192))"
)
_ENTITY = r"&(?:quot|apos|#3[49]|#x2[27]);"
_OPERATOR = (
    rf"(?:\\*[\"']|%(?:25)?2[27]|{_ENTITY})?{_COLOR}\s*{_TYPE}{_SIGN}"
    rf"(?:\s|%2[027]|%252[027]|\\{{1,4}}[nt](?=[\s-])|\\\n|{_ENTITY})*{_COLOR}"
)
_VALUE = (
    r"([|>][+-]?[ \t]*(?:\n|\\{1,4}n)[ \t]+[^\n\\\"]+"
    r"|-[ \t]+[^\n\\\"]+(?:(?:\n|\\{1,4}n)[ \t]*-[ \t]+[^\n\\\"]+)*"
    r"|\[(?!redacted\])[^\]\n]{0,999}\]|\{[^}\n]{0,999}\}|[\w.]{0,60}\([^)\n]{0,999}\)"
    r"|(?:[brfu]{1,2}(?=\\*[\"']))?(?:\"(?:[^\"\\]|\\{1,4}[^\\])*\"|'(?:[^'\\]|\\{1,4}[^\\])*'|\\*\"[^\"]*\"|\\*'[^']*')"
    r"(?:\s{1,9}(?:\"[^\"]*\"|'[^']*'))*"
    r"|[^\s,;&\"'}\]<\x1b]+(?:[,;&](?![\w.-]{0,60}\s{0,9}[=:]|\s|$)[^\s,;&\"'}\]<\x1b]+){0,99})"
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
_TAGGED = re.compile(  # `<Password Type="...">...</`, `<key>password</key><string>...</`
    rf"(?i)(<[\w:.-]{{0,40}}{_WORD}[\w-]{{0,40}}(?:\s[^<>]{{0,99}})?>|<key>[\w.-]{{0,40}}{_WORD}[\w.-]{{0,40}}</key>\s*<string>)"
    r"()([^<\s][^<]{0,9999})(?=<\\?/)"
)
_DECLARED = re.compile(  # `#define API_KEY "..."`, `ENV PASSWORD ...`, `IDENTIFIED BY '...'`
    rf"((?:#define|\b(?:ENV|ARG|setenv|set -x))\s+[\w.]{{0,40}}(?i:{_WORD})\w{{0,40}}\s+"
    r"|\b(?:PASSWORD|SECRET|IDENTIFIED (?:WITH \S{1,40} )?BY)\s+(?=[\"']))()(\"[^\"]*\"|'[^']*'|\S+)"
)
_LISTED = re.compile(  # `name: DB_PASSWORD` and then its value in YAML, or before it in JSON
    rf"(?i)((?:\bname|\bkey):\s*[\"']?[\w.-]{{0,40}}{_WORD}[\w.-]{{0,40}}[\"']?\s{{0,9}}(?:\n|\\{{1,4}}n)\s{{0,40}}value:\s*)()"
    r"(\"[^\"]*\"|'[^']*'|\S+)"
)
_BEFORE = re.compile(
    r"(?i)(\\*[\"']value\\*[\"']\s*:\s*)()(\\*\"[^\"]*\"|'[^']*')"
    rf"(?=\s*,\s*\\*[\"'](?:name|key)\\*[\"']\s*:\s*\\*[\"'][\w.-]{{0,40}}{_WORD})"
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
    r"((?<![A-Za-z_-])(?:PASS|PW|pw)=[\"']?|(?<![\w -])pass = (?=\w{20})|(?<![\w-])pw\s{0,9}[:=]\s{0,9}[\"']"
    r"|(?<![\w-])pw: (?=\w{8,}(?:[\s\"'\\]|$))|\\*[\"']p(?:ass|w)\\*[\"']\s*:\s*\\*[\"'])()"
    r"(?=[^\s]{0,60}[0-9])(?=[^\s]{0,60}[A-Za-z])([^\s\"',;&]{6,})"
)
_FLAGGED = re.compile(rf"(?i)((?<![\w-])--?[\w.-]{{0,40}}{_WORD}[\w-]{{0,40}}[^\S\n]+)()(?!-)(\S+)")  # in one text
_PASSWORD_SAID = re.compile(
    r"(?i)(\bpass(?:word|wort|phrase|code)\s+(?:is\s+|was\s+)?)(?!\\)(?=[^\s\d]{0,60}\d)(?=[^\sa-z]{0,60}[a-z])[^\s\"'=:]{6,}"
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
_TELLING = (
    "key", "secret", "token", "pass", "pwd", "credential", "auth", "cookie", "csrf", "xsrf", "pw", "sess", "kennwort",
    "wachtw", "identified",
    *(part for word in _FOREIGN for part in (word, "u" + format(ord(max(word)), "04x"))),
)  # fmt: skip
_PLACED = (
    "://", ":\\", "bearer", "basic", "authorization", "begin", "?sig", "&sig", ";sig", "?x-", "&x-", ";x-", "?code",
    "&code", ";code", "sid=", "sas=", "saml", "invit", "ticket=", "otp=", "jwt=", "hmac=", "assertion=", "-u ", "-u'",
    '-u"', "-u\t", "-u=", "--user", "cookie:", "private-l", "login", "sshpass", "mysql",
    '"d"', '"p"', '"q"', '"k"', '"dp"',
    '"dq"', '"qi"', '"d\\', '"p\\', '"q\\', '"k\\', "fernet", "jdbc:", "sqlplus", "resourcekey", "mariadb", "7z",
    "redis-cli", "zip ", "zip'", "from-literal", "mnemonic", "phrase", "keygen", "openssl", "ldap", "client ",
    "client'",
    "echo ", "digest", "_set(", "authenticate(", "az ", "az'",
)  # fmt: skip
_PATTERN = re.compile(r"\bpat\b")
_AT = re.compile(r":[^\s:@/]{8,99}@")
_COLONS = re.compile(r":(?:[0-9]{4,5}|\*):[\w*-]{1,60}:")
_LINE = re.compile(r"(?:^[ \t]{0,20}|[\"'])[A-Za-z0-9+/]{64}")


def _is_telling(folded: str) -> bool:
    """Whether any name of a secret may be in a text, without its case."""
    return any(map(folded.__contains__, _TELLING)) or ("pat" in folded and _PATTERN.search(folded) is not None)


def _is_placed(folded: str) -> bool:
    """Whether any place where a secret stands may be in a text, without its case."""
    if any(map(folded.__contains__, _PLACED)):
        return True
    has_at = "@" in folded and _AT.search(folded)
    has_colons = folded.count(":") > 3 and _COLONS.search(folded)
    return bool(has_at or has_colons or (len(folded) >= 64 and _LINE.search(folded)))


def redact(text: str) -> str:
    """The text with anything that looks like a secret masked."""
    folded = text.casefold()
    is_telling = _is_telling(folded)
    if is_telling or _is_placed(folded):
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
        for form in (_VALUED, _TAGGED, _DECLARED, _LISTED, _BEFORE, _PAIRED, _REFUSED, _TABLED, _SHORTLY, _FLAGGED):
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
        name, sign, value = argument.partition("=")
        if sign and _FLAG.fullmatch(f"-{name.lstrip('+-')}") and value and names_secret(name.lstrip("+-"), value):
            masked.append(f"{name}={MASK}")  # all of it, whatever its letters
        else:
            masked.append(MASK if is_secret or is_login else redact(argument))
        flag = argument if _FLAG.fullmatch(argument.rstrip(" \r\n:")) else ""
    return masked


def _masked(match: re.Match[str]) -> str:
    return match[0] if _is_count(match[1], match[3]) or match[3] in (MASK, MASK[:-1]) else match[1] + MASK


def _masked_mixed(match: re.Match[str]) -> str:
    return match[1] + MASK if _MIXED.fullmatch(match[3].strip("\\\"'")) else match[0]


def _is_count(name: str, value: str) -> bool:
    return bool(_COUNTED.search(name) and _NUMBER.fullmatch(value))
