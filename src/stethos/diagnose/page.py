"""A detector's page: what it looks at, why it matters, when it is no fault, what to do, and its thresholds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from stethos.diagnose.detector import Detector
from stethos.diagnose.detectors import detector_named

# A paragraph begins after an empty line, or with one of the words that every page has.
_PARAGRAPH = re.compile(r"\n\s*\n|\n(?=(?:What it looks at|Why it matters|Not a fault when|Next step):)")


@dataclass(frozen=True, slots=True)
class Page:
    """One detector, described."""

    code: str
    name: str
    severity: str
    summary: str
    paragraphs: tuple[str, ...]
    thresholds: Mapping[str, Any]
    meanings: Mapping[str, str]  # of the thresholds that have one
    needs: Mapping[str, list[str]]
    reads: Mapping[str, list[str]]
    explains: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def page_named(key: str) -> Page:
    """The page of a detector, by code or name; UsageError if there is none."""
    return page_of(detector_named(key))


def page_of(detector: type[Detector]) -> Page:
    """The page of a detector, from its docstring and fields."""
    thresholds = fields(detector)  # type: ignore[arg-type]
    parts = [" ".join(part.split()) for part in _PARAGRAPH.split(inspect.cleandoc(detector.__doc__ or ""))]
    return Page(
        detector.code,
        detector.name,
        detector.severity.word,
        parts[0],
        tuple(part for part in parts[1:] if part),
        {field.name: field.default for field in thresholds},
        {field.name: field.metadata["meaning"] for field in thresholds if "meaning" in field.metadata},
        {table: sorted(columns) for table, columns in detector.needs.items()},
        {table: sorted(columns) for table, columns in detector.reads.items() if columns},
        tuple(sorted(detector.explains)),
    )
