"""Where captures are in a run directory, and the careful way to open them.

    RUN/capture/000/settings.json           what is captured, with which versions, how clients train
    RUN/capture/000/rounds/000012.json      one whole round: which objects it consists of
    RUN/capture/000/objects/DIGEST.safetensors   tensors, named after the SHA-256 of the file
    RUN/capture/000/objects/DIGEST.packed   the same, compressed by the drainer
    RUN/capture/000/dropped.json            what was dropped, and why
    RUN/capture/000/finished                written when no round will follow

Each federation of a run has a number of its own. Names inside are checked: nothing outside is ever opened.
"""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from stethos.errors import CaptureError
from stethos.record.border import directories_in, make_directory, open_file
from stethos.replay.codec import FREE_BYTES, MOST_TIMES, SUFFIX
from stethos.replay.tensorfile import Buffer

DIRECTORY = "capture"
RAW = ".safetensors"
_NUMBER = re.compile(r"[0-9]{3}")
_ROUND = re.compile(r"(-?[0-9]{6,9})\.json")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LARGEST_JSON = 64 << 20
_MOST_VALUES = 5_000_000  # of a JSON file: each takes up to 80 bytes in memory
_LARGEST_FILE = 64 << 30
_BLOCK_BYTES = 512  # as `stat` counts


@dataclass(frozen=True, slots=True)
class CapturePlace:
    """The files of one federation's capture."""

    path: Path

    @classmethod
    def create(cls, run: Path) -> CapturePlace:
        """A new one in a run."""
        base = run / DIRECTORY
        make_directory(base)
        for number in range(1000):
            place = cls(base / f"{number:03d}")
            try:
                place.path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            for directory in (place.path, place.path / "rounds", place.objects):
                directory.mkdir(mode=0o700, exist_ok=True)
                directory.chmod(0o700)  # whatever the umask
            return place
        raise CaptureError(f"{base} holds a thousand captures", hint="record into a new run")

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def dropped(self) -> Path:
        return self.path / "dropped.json"

    @property
    def finished(self) -> Path:
        return self.path / "finished"

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    def round_file(self, number: int) -> Path:
        return self.path / "rounds" / f"{number:06d}.json"

    def rounds(self) -> list[int]:
        """The rounds that are whole, in their order."""
        try:
            names = [entry.name for entry in os.scandir(self.path / "rounds")]
        except OSError:
            return []
        return sorted(int(match[1]) for name in names if (match := _ROUND.fullmatch(name)))

    def raw(self, digest: str) -> Path:
        return self.objects / f"{checked(digest)}{RAW}"

    def packed(self, digest: str) -> Path:
        return self.objects / f"{checked(digest)}{SUFFIX}"


def captures_in(run: Path) -> list[CapturePlace]:
    """The captures of a run, oldest first."""
    if (run / DIRECTORY).is_symlink():
        return []
    found = [path for path in directories_in(run / DIRECTORY) if _NUMBER.fullmatch(path.name)]
    return [CapturePlace(path) for path in found if {"rounds", "objects"} <= {one.name for one in directories_in(path)}]


def checked(digest: Any) -> str:
    """A digest that is one, and so cannot lead anywhere else."""
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise CaptureError(
            f"a capture names the object {str(digest)[:80]!r}", hint="it was damaged, or made to mislead"
        )
    return digest


def read_file(path: Path, most_bytes: int = _LARGEST_FILE) -> Buffer:
    """A regular file's bytes; OSError if it is missing, CaptureError if it is a link or larger than is sane."""
    with _opened(path, most_bytes) as file:
        return np.fromfile(file, np.uint8)


def map_file(path: Path) -> Buffer:
    """A regular file, of which only what is looked at is read."""
    with _opened(path, _LARGEST_FILE) as file:
        if not os.fstat(file.fileno()).st_size:
            raise CaptureError(f"{path} is empty")
        return np.memmap(file, np.uint8, "r")


def _opened(path: Path, most_bytes: int) -> BinaryIO:
    parts = path.parts[::-1].index(DIRECTORY) + 1 if DIRECTORY in path.parts else 1
    try:
        file = open(open_file(path, parts=parts), "rb")  # noqa: SIM115  # the caller closes it
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL):
            raise CaptureError(f"{path} is not a regular file") from None
        raise
    about = os.fstat(file.fileno())
    if about.st_size > most_bytes:
        file.close()
        raise CaptureError(f"{path} is larger than {most_bytes:,} bytes")
    if about.st_size > max(FREE_BYTES, MOST_TIMES * _BLOCK_BYTES * about.st_blocks):
        file.close()
        raise CaptureError(f"{path} is nearly all hole: {about.st_size:,} bytes")
    return file


def read_table(path: Path) -> dict[str, Any]:
    """A JSON object in a file; OSError if it is missing, CaptureError if it is damaged."""
    text = read_file(path, _LARGEST_JSON).tobytes()
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_VALUES:
        raise CaptureError(f"{path} holds more than {_MOST_VALUES:,} values")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise CaptureError(f"{path} is damaged: no JSON") from None
    if not isinstance(content, dict):
        raise CaptureError(f"{path} is damaged: no JSON object")
    return content
