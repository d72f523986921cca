"""Of what a diagnosis was made, as one text: rows, code and detectors. A kept diagnosis holds while it is the same.

Loads no detector, so that a list of clients need not load them all to see that a kept diagnosis holds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from stethos import __version__
from stethos.diagnose.configuration import ENTRY_POINTS, find_configuration

if TYPE_CHECKING:
    from stethos.store.run import Run

_CODE = (".py", ".json", ".npz")
_AS_THEY_COME = "detectors as they come"


def usual_version(run: Run, *, is_set: bool | None = None) -> str | None:
    """That of a diagnosis by Stethos's own detectors with their own thresholds; None where others are wanted.

    Detectors of other packages, and those that `stethos.toml` sets or silences, have to be loaded to be compared.
    `is_set` says whether thresholds are set or detectors silenced, where that is known without the file.
    """
    if is_set is None:
        configuration = find_configuration()
        is_set = bool(configuration.thresholds or configuration.silence)
    return None if is_set or entry_points(group=ENTRY_POINTS) else version_with(run, _AS_THEY_COME)


def version_with(run: Run, detectors: str, modules: tuple[str, ...] = ()) -> str:
    """A text that differs whenever a diagnosis of a run that is over could.

    `detectors` says which there are and how they are set, `modules` are those of other packages' detectors.
    """
    rows = [(row["process"], row["state"], row["rows_stored"], row["rows_lost"]) for row in run.processes()]
    parts = repr((__version__, _code_digest(modules), detectors, rows))
    return hashlib.sha256(parts.encode("utf-8", "replace")).hexdigest()


@functools.cache
def _code_digest(modules: tuple[str, ...]) -> str:
    """Of all that a verdict comes from, these modules of detectors included: a new Stethos shows no old verdict."""
    root = Path(__file__).parents[1]
    files = [root / "schema.py", root / "outlier.py", root / "store" / "view.py"]
    files += [path for part in ("diagnose", "profile") for path in (root / part).rglob("*") if path.suffix in _CODE]
    files += [Path(file) for name in modules if (file := getattr(sys.modules[name], "__file__", None)) is not None]
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        digest.update(path.name.encode())
        with contextlib.suppress(OSError):  # in a zip file: then the version alone must do
            digest.update(path.read_bytes())
    return digest.hexdigest()
