"""Secrets are taken out of commands, logs and tracebacks before they are stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK = "[redacted]"

_WORD = (
    r"(?:api[_-]?key|access[_-]?key|secret|token|passw(?:or)?d|pwd|credentials?|auth(?:orization)?(?!or)"
    r"|private[_-]?key)"
)
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
_COUNTED = re.compile(r"(?i)(?<![a-z])tokens(?![a-z])")  # of a text: `max_tokens=4096` is no secret
_NUMBER = re.compile(r"[\"']?[0-9][0-9_,.]{0,14}[kKMGBT]?[\"']?")
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
    return _ASSIGNED.sub(_masked, text)


def _masked(match: re.Match[str]) -> str:
    return match[0] if _is_count(match[1], match[3]) else match[1] + MASK


def _is_count(name: str, value: str) -> bool:
    return bool(_COUNTED.search(name) and _NUMBER.fullmatch(value))


def redact_command(arguments: Sequence[str]) -> list[str]:
    """A command line with secrets masked, also where the value is a word of its own."""
    masked: list[str] = []
    flag = ""
    for argument in arguments:
        is_secret = flag and not argument.startswith("-") and not _is_count(flag, argument)
        masked.append(MASK if is_secret else redact(argument))
        flag = argument if _FLAG.match(argument) else ""
    return masked
