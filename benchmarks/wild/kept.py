"""Federations that were played, kept as files: what Stethos recorded, and whom it should accuse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.wild.data import CACHE
from stethos.diagnose.window import Frame, Window


def place_of(name: str) -> Path:
    return CACHE / name


def keep(name: str, played: dict[str, Any]) -> None:
    place = place_of(name)
    place.mkdir(parents=True, exist_ok=True)
    with gzip.open(place / f"{played['case']['seed']}.json.gz", "wt", compresslevel=4) as file:
        json.dump(played, file)


def kept(name: str) -> Iterator[dict[str, Any]]:
    for path in sorted(place_of(name).glob("*.json.gz"), key=lambda path: int(path.name.split(".")[0])):
        with gzip.open(path, "rt") as file:
            yield json.load(file)


def seeds(name: str) -> set[int]:
    return {int(path.name.split(".")[0]) for path in place_of(name).glob("*.json.gz")}


def window_of(played: dict[str, Any]) -> Window:
    """What detectors look at."""
    return Window({name: Frame(columns) for name, columns in played["rows"].items()})
