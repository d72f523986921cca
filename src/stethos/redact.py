"""Secrets are taken out of commands, logs and tracebacks before they are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "[redacted]"

_WORD = r"(?:api[_-]?key|access[_-]?key|secret|token|passw(?:or)?d|pwd|credentials?|auth(?:orization)?|private[_-]?key)"
_ASSIGNED = re.compile(
    rf"(?i)([\w-]*{_WORD}[\w-]*[\"']?\s*[=:]\s*)(?:(bearer|basic)\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;&\"'}}]+)"
)
_URL_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+@")
_KNOWN = re.compile(
    r"\b(?:AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}"
    r"|xox[abprs]-[A-Za-z0-9-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}")
_FLAG = re.compile(rf"(?i)^--?[\w-]*{_WORD}[\w-]*$")
# A cheap first look: without one of these nothing above can match.
_HINT = re.compile(
    r"(?i)key|secret|token|passw|pwd|credential|auth|bearer|://|ghp_|gho_|ghu_|ghs_|ghr_|hf_|sk-|xox|eyJ|AKIA"
)


def redact(text: str) -> str:
    """The text with anything that looks like a secret masked."""
    if not _HINT.search(text):
        return text
    text = _URL_LOGIN.sub(rf"\1{MASK}@", text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _KNOWN.sub(MASK, text)
    return _ASSIGNED.sub(lambda match: match[1] + MASK, text)


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line with secrets masked, also where the value is a word of its own."""
    masked: list[str] = []
    hide_next = False
    for argument in arguments:
        masked.append(MASK if hide_next and not argument.startswith("-") else redact(argument))
        hide_next = bool(_FLAG.match(argument))
    return masked
