"""The life of findings: what a diagnosis found becomes rows of `findings`, and those that are over are closed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stethos.diagnose.diagnosis import Diagnosis, diagnosis_from
from stethos.diagnose.finding import Finding
from stethos.store.findings import Change, keep_findings, read_kept_diagnosis


def keep(diagnosis: Diagnosis, directory: Path, now_ns: int | None = None) -> list[Change]:
    """Write a diagnosis into the run's `findings.db`; return what opened, changed or closed.

    RecordingError if that is not possible: the diagnosis itself is none the worse for it.
    """
    rows = {key_text(one): row_of(one, cause) for one, cause in _with_causes(diagnosis.findings)}
    whole = diagnosis.version, json.dumps(_plain(diagnosis.as_dict()), ensure_ascii=False)
    return keep_findings(directory, rows, diagnosis.checked, time.time_ns() if now_ns is None else now_ns, whole)


def read_diagnosis(directory: Path, version: str | None = None) -> Diagnosis | None:
    """The last diagnosis that was kept, or None; with a `version` only one of these very rows."""
    kept = read_kept_diagnosis(directory)
    if kept is None or version not in (None, kept[0]):
        return None
    try:
        return diagnosis_from(json.loads(kept[1]), kept[0])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # by another version, or by a stranger
        return None


def rows_of(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """A diagnosis as rows of `findings` that are kept nowhere, numbered from 1."""
    pairs = enumerate(_with_causes(diagnosis.findings), start=1)
    return [{"finding": number, **row_of(one, cause)} for number, (one, cause) in pairs]


def key_text(finding: Finding) -> str:
    """The finding's key as text."""
    return json.dumps(finding.key)


def row_of(finding: Finding, cause: Finding | None) -> dict[str, Any]:
    """A finding as a row of `findings`, but for its number and its times."""
    facts = _plain(finding.as_dict())
    return {
        "cause": None if cause is None else key_text(cause),
        **{name: facts[name] for name in ("code", "name", "kind", "severity")},
        "state": "open" if finding.is_open else "closed",
        "title": facts["title"],
        **{name: json.dumps(facts[name], ensure_ascii=False) for name in ("clients", "ranks", "layers")},
        **{name: facts[name] for name in ("process", "first", "last", "unit", "confidence")},
        "evidence": json.dumps(facts["evidence"], ensure_ascii=False),
        "next_step": facts["next_step"],
        "detail": json.dumps(facts["detail"], ensure_ascii=False),
    }


def _with_causes(
    findings: tuple[Finding, ...], cause: Finding | None = None
) -> Iterator[tuple[Finding, Finding | None]]:
    for one in findings:
        yield one, cause
        yield from _with_causes(one.consequences, one)


def _plain(value: Any) -> Any:
    """The value as JSON and SQLite have it: texts without lone surrogates, NaN and infinities as strings."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode("utf-8")
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
    return _plain(value.item()) if hasattr(value, "item") else str(value)
