"""What `stethos.toml` says about the diagnosis: thresholds, and detectors to leave out.

[diagnose]
silence = ["label-skew"]

[diagnose.thresholds.straggler]
times = 3.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stethos.errors import StethosError, UsageError
from stethos.toml_text import toml_in

FILE = "stethos.toml"
_LARGEST = 1 << 20  # it may lie beside a run that somebody sent
ENTRY_POINTS = "stethos.detectors"  # the group by which other packages add detectors
_KNOWN = ("silence", "thresholds")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Thresholds by detector and name, and silenced detectors; `path` is the file they come from."""

    thresholds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silence: tuple[str, ...] = ()
    path: Path | None = None

    def check(self) -> None:
        """UsageError, with the file's name, if a detector or a threshold does not exist."""
        from stethos.diagnose.detectors import choose_detectors

        try:
            choose_detectors(self.thresholds, self.silence)
        except StethosError as error:
            raise UsageError(f"{self.path}: {error.message}", hint=error.hint) from None


def find_configuration() -> Configuration:
    """What the nearest `stethos.toml` says, in the working directory or above it; empty if there is none."""
    try:
        start = Path.cwd()
    except FileNotFoundError:  # it was deleted
        return Configuration()
    for place in (start, *start.parents):
        if (place / FILE).is_file():
            return read_configuration(place / FILE)
    return Configuration()


def read_configuration(path: Path) -> Configuration:
    """The `diagnose` table of a file, checked; UsageError says what is wrong with it."""
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:,} bytes")
        content = toml_in(text.decode())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="it is written in TOML 1.0") from None
    table = content.get("diagnose", {})
    if not isinstance(table, dict):
        raise UsageError(f"{path}: diagnose is {table!r}", hint="write a table: [diagnose]")
    for key in table:
        if key not in _KNOWN:
            raise UsageError(f"{path}: no setting diagnose.{key}", hint=f"settings: {', '.join(_KNOWN)}")
    silence, thresholds = table.get("silence", []), table.get("thresholds", {})
    if not (isinstance(silence, list) and all(isinstance(name, str) for name in silence)):
        raise UsageError(f"{path}: diagnose.silence is {silence!r}", hint='write a list of names: ["label-skew"]')
    if not (isinstance(thresholds, dict) and all(isinstance(values, dict) for values in thresholds.values())):
        raise UsageError(
            f"{path}: diagnose.thresholds is {thresholds!r}",
            hint="write [diagnose.thresholds.NAME], then THRESHOLD = 3",
        )
    found = Configuration(thresholds, tuple(silence), path)
    found.check()
    return found


def merged(first: Mapping[str, Mapping[str, Any]], more: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Thresholds of both; where both set one, that of `more`. A detector goes by its code or its name."""
    from stethos.diagnose.detectors import DETECTORS

    names = {code: detector.name for code, detector in DETECTORS.items()}
    found: dict[str, dict[str, Any]] = {}
    for source in (first, more):
        for key, values in source.items():
            found.setdefault(names.get(key, key), {}).update(values)
    return found
