"""Trainings that are done, kept in the run's directory: a command that was stopped takes them up again."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stethos.record.border import make_directory, open_file, read_file
from stethos.replay.arm import Arm, ArmRunner
from stethos.replay.capture import environment_facts, source_of
from stethos.replay.effect import Flags

DIRECTORY = "proofs"
_LARGEST_FILE = 256 << 20
_HEADER_BYTES = 4096  # of an array in it, at most


def sources_of(functions: Iterable[Callable[..., Any]]) -> list[str]:
    """What a training depends on besides the capture: torch, and the user's own functions."""
    return [str(environment_facts().get("torch")), *(str(source_of(one)["sha256"]) for one in functions)]


def kept_file(run: Path, *names: str) -> Path:
    """Where trainings that depend on these names are kept."""
    return run / DIRECTORY / f"{_digest(names)}.npz"


def _digest(names: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]


def read_kept(file: Path, samples: int) -> dict[str, Flags]:
    """What was trained before; nothing if there is no such file, or it is damaged."""
    try:
        opened = io.BytesIO(read_file(file, _LARGEST_FILE, parts=2))
        with zipfile.ZipFile(opened) as packed:  # it could unfold to any size
            if any(entry.file_size > samples + _HEADER_BYTES for entry in packed.infolist()):
                return {}
        with np.load(opened, allow_pickle=False) as found:
            return {
                key: found[key]
                for key in found.files
                if found[key].dtype == np.bool_ and found[key].shape == (samples,)
            }
    except (OSError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, KeyError, EOFError):
        return {}


def write_kept(file: Path, done: Mapping[str, Flags]) -> None:
    """Whole or not at all; where nothing can be written, the command goes on without."""
    try:
        make_directory(file.parent)
        part = file.with_suffix(".part")
        with open(open_file(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, parts=2), "wb") as out:
            np.savez_compressed(out, **done)  # type: ignore[arg-type]
        part.replace(file)
    except OSError:
        return


def keeping(run_arms: ArmRunner, file: Path, samples: int) -> ArmRunner:
    """Trains only the arms that are not kept in the file, and keeps each as it is done."""
    done = read_kept(file, samples)

    def run(arms: Sequence[Arm], tell: Callable[[Arm, int], None]) -> Iterator[tuple[Arm, Flags]]:
        yield from [(arm, done[_key(arm)]) for arm in arms if _key(arm) in done]
        for arm, flags in run_arms([arm for arm in arms if _key(arm) not in done], tell):
            done[_key(arm)] = flags
            write_kept(file, done)
            yield arm, flags

    return run


def _key(arm: Arm) -> str:
    return _digest([str(arm.first), str(arm.last), str(arm.seed), *sorted(arm.without)])
