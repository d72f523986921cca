"""Compresses captures beside the training, in the drainer's process.

Each global model is predicted from the two that came after it, so that the oldest rounds can be dropped
without touching the others; each update from the models before and after its round. Every so often
a model stands alone, which bounds how many files a reading needs and what a damaged one takes along.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stethos.errors import CaptureError
from stethos.guard import Guard
from stethos.record.whole_file import whole_file
from stethos.replay.bundle import Bundle
from stethos.replay.codec import pack
from stethos.replay.place import CapturePlace, captures_in
from stethos.replay.tensorfile import Buffer

ALONE_EVERY = 16
_POLL_S = 0.5


class Packer:
    """A thread that packs the captures of a run as their rounds end."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._stop = threading.Event()
        self._is_last = False
        self._guard = Guard()
        self._done: dict[Path, set[int]] = {}
        self._thread = threading.Thread(target=self._serve, name="stethos-packer", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float | None = None) -> None:
        """No round will follow: pack what is left."""
        self._is_last = True
        self._stop.set()
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while not self._stop.wait(_POLL_S):
            self._guard.run("pack", self.visit, is_last=False)
        if self._run.is_dir():
            self._guard.run("pack", self.visit, is_last=True)

    def visit(self, *, is_last: bool) -> None:
        """Pack every round that is followed by another; the last one too when nothing follows any more."""
        for place in captures_in(self._run):
            done = self._done.setdefault(place.path, set())
            rounds = place.rounds()
            ripe = rounds if is_last or place.finished.exists() else rounds[:-1]
            for number in ripe:
                if number not in done and not (self._stop.is_set() and not self._is_last):
                    done.add(number)
                    pack_round(place, number, is_last=number == rounds[-1])


def pack_round(place: CapturePlace, number: int, *, is_last: bool = False) -> None:
    """Pack the objects of one round; those that are, or cannot be, stay as they are."""
    bundle = Bundle(place)
    try:
        manifest = bundle.manifest(number)
        following = bundle.manifest(number + 1) if number + 1 in bundle.rounds else {}
    except CaptureError:
        return  # dropped meanwhile
    before, after, later = _parts(manifest.get("before")), _parts(manifest.get("after")), _parts(following.get("after"))
    for turn in manifest["clients"]:
        _pack_all(bundle, number, _parts(turn.get("state")), before, after)
    if number % ALONE_EVERY:
        _pack_all(bundle, number, before, after, later)
    else:
        _pack_all(bundle, number, before)
    if is_last:
        _pack_all(bundle, number, after)


def _pack_all(bundle: Bundle, number: int, objects: Sequence[str], *bases: Sequence[str]) -> None:
    for index, digest in enumerate(objects):
        if bundle.place.raw(digest).exists():
            near = [parts[index] for parts in bases if len(parts) == len(objects)]
            with contextlib.suppress(CaptureError):  # dropped meanwhile, or damaged: readers will say so
                _pack_object(bundle, number, digest, [base for base in near if base != digest])


def _pack_object(bundle: Bundle, number: int, digest: str, bases: Sequence[str]) -> None:
    place = bundle.place
    free = [base for base in dict.fromkeys(bases) if digest not in bundle.ancestry(base)]
    file = bundle.file(digest)
    packed = pack(file, [(base, bundle.file(base)) for base in free])
    if packed is None:
        return
    target = place.packed(digest)
    with whole_file(target) as out:
        out.write(packed)
    if not place.round_file(number).exists():
        target.unlink(missing_ok=True)  # the round was dropped meanwhile
    elif _is_sound(place, digest, file):
        place.raw(digest).unlink(missing_ok=True)


def _is_sound(place: CapturePlace, digest: str, file: Buffer) -> bool:
    """Whether the packed file gives back what was captured; else the raw one stays, and the packed one goes."""
    fresh = Bundle(place)
    try:
        restored = fresh.unpacked(digest)
    except CaptureError:
        place.packed(digest).unlink(missing_ok=True)
        return False
    return hashlib.sha256(restored.data).hexdigest() == digest and len(restored) == len(file)


def _parts(piece: Any) -> list[str]:
    parts = piece.get("parts") if isinstance(piece, Mapping) else None
    return [part for part in parts if isinstance(part, str)] if isinstance(parts, list) else []
