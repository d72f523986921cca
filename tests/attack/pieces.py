"""An attack in pieces, each with a seed of its own and a file that says what it found; several processes side by side.

A piece that was interrupted has no file and is done again. Each process has two cores, so that libraries which start a
thread for every core do what they do on a small machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from attack.outcome import KEPT_RUN, Outcome

_CORES = 2
_SHOWN_CHARS = 2_000


@dataclass
class _Job:
    """A process that does one piece after the other."""

    process: subprocess.Popen[bytes]
    said: Path


def do_pieces(name: str, tries: int, piece: int, kept: Path, *, jobs: int, ends: float | None) -> Outcome | None:
    """Do whole pieces until there are that many tries, or none is left: what all of them found, the kept ones too.

    No piece begins after `ends`, by the clock that only goes on.
    """
    kept.mkdir(parents=True, exist_ok=True)
    piece = min(piece, tries)
    last = -(-tries // piece)
    running = [_started(name, piece, range(place + 1, last + 1, jobs), kept, ends) for place in range(min(jobs, last))]
    died: list[str] = []
    try:
        for one in running:
            if one.process.wait() != 0:
                died.append(_last_words(one))
    finally:
        for one in running:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGTERM)
        for one in running:
            one.process.wait()
            with suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)
            one.said.unlink(missing_ok=True)
    whole = _together(kept, piece)
    if whole is not None:
        whole.failures += died
    for failure in died:
        sys.stderr.write(f"{name}: {failure}\n")
    return whole


def do_job(name: str, piece: int, seeds: range, kept: Path, ends: float | None) -> None:
    """Inside the process."""
    from attack.__main__ import ATTACKS

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes what it made
    for seed in seeds:
        path = kept / f"{piece}-{seed}.json"
        if not path.exists():
            if ends is not None and time.monotonic() > ends:
                return
            outcome = ATTACKS[name][0](piece, seed)
            part = path.with_suffix(".part")
            part.write_text(json.dumps({"asked": piece, "seed": seed, "outcome": vars(outcome)}), encoding="utf-8")
            part.replace(path)
        if json.loads(path.read_text(encoding="utf-8"))["outcome"]["tries"] < piece:
            return  # there was less to try than it was asked for, so there is nothing after it


def _started(name: str, piece: int, seeds: range, kept: Path, ends: float | None) -> _Job:
    cores = sorted(os.sched_getaffinity(0))
    own = {cores[(seeds.start - 1 + offset) % len(cores)] for offset in range(_CORES)}
    said = kept / f"{piece}-{seeds.start}.said"
    span = [str(seeds.start), str(seeds.stop), str(seeds.step)]
    words = [sys.executable, "-m", "attack.pieces", name, str(piece), *span, str(kept), str(ends or "")]
    with said.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1", KEPT_RUN: str(kept.parent / "run")}, start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
        )  # fmt: skip
    return _Job(process, said)


def _last_words(one: _Job) -> str:
    """Of a process that died: a failure of the attack, never a piece that counts as good."""
    words = one.said.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARS:]
    return f"a piece ended with {one.process.returncode}: {words}"


def _together(kept: Path, piece: int) -> Outcome | None:
    whole = None
    for path in sorted(kept.glob(f"{piece}-*.json")):
        part = Outcome(**json.loads(path.read_text(encoding="utf-8"))["outcome"])
        if whole is None:
            whole = part
        else:
            whole.add(part)
    return whole


if __name__ == "__main__":
    told = sys.argv[1:]
    do_job(told[0], int(told[1]), range(*map(int, told[2:5])), Path(told[5]), float(told[6]) if told[6] else None)
