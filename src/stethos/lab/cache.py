"""Where fetched data sets are kept, and how they are read; `fetch` puts them there."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stethos.errors import StethosError
from stethos.settings import cache_dir

Images = dict[str, NDArray[np.uint8]]


def place_of(name: str) -> Path:
    """The file of a data set."""
    return cache_dir() / "lab" / f"{name}.npz"


def read(name: str) -> Images:
    """The images of a data set that was fetched before."""
    place = place_of(name)
    if not place.exists():
        raise StethosError(
            f"{name} is not on this machine: no {place}",
            hint=f"fetch it once with: python -m stethos.lab.fetch {name}",
        )
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise StethosError(
            f"{place} cannot be read: {error}",
            hint=f"delete it, and fetch it again with: python -m stethos.lab.fetch {name}",
        ) from None
