"""An attack in pieces: several processes side by side, each with a seed of its own and a file that says what it found.

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

from attack.outcome import Outcome

_LOOK_EVERY_S = 0.2
_CORES = 2
_SHOWN_CHARS = 2_000


@dataclass
class _Piece:
    seed: int
    process: subprocess.Popen[bytes]
    said: Path


def do_pieces(name: str, tries: int, piece: int, kept: Path, *, jobs: int, ends: float | None) -> Outcome | None:
    """Do whole pieces until there are that many tries, or none is left: what all of them found, the kept ones too."""
    kept.mkdir(parents=True, exist_ok=True)
    piece = min(piece, tries)
    running: dict[int, _Piece] = {}  # by place among the jobs
    seeds = iter(range(1, -(-tries // piece) + 1))
    is_over = False
    died: list[str] = []
    try:
        while True:
            while not is_over and len(running) < jobs and (seed := next(seeds, None)) is not None:
                if not _file(kept, piece, seed).exists():
                    place = next(number for number in range(jobs) if number not in running)
                    running[place] = _started(name, piece, seed, kept, place)
                else:
                    is_over = _is_last(kept, piece, seed)
            if not running or (ends is not None and time.monotonic() > ends):
                break
            for place, one in list(running.items()):
                if one.process.poll() is not None:
                    del running[place]
                    if _file(kept, piece, one.seed).exists():
                        _tell(name, one, kept, piece)
                        is_over |= _is_last(kept, piece, one.seed)
                    else:
                        died.append(_last_words(one))
            time.sleep(_LOOK_EVERY_S)
    finally:
        for one in running.values():
            os.killpg(one.process.pid, signal.SIGTERM)
        for one in running.values():
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


def do_piece(name: str, piece: int, seed: int, path: Path) -> None:
    """Inside the process of a piece."""
    from attack.__main__ import ATTACKS

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which removes what it made
    outcome = ATTACKS[name][0](piece, seed)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"asked": piece, "seed": seed, "outcome": vars(outcome)}), encoding="utf-8")
    part.replace(path)


def _started(name: str, piece: int, seed: int, kept: Path, place: int) -> _Piece:
    cores = sorted(os.sched_getaffinity(0))
    own = {cores[(place + offset) % len(cores)] for offset in range(_CORES)}
    said = kept / f"{piece}-{seed}.said"
    words = [sys.executable, "-m", "attack.pieces", name, str(piece), str(seed), str(_file(kept, piece, seed))]
    with said.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=file, stdin=subprocess.DEVNULL, cwd=Path(__file__).parents[1],
            env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, own),
        )  # fmt: skip
    return _Piece(seed, process, said)


def _tell(name: str, one: _Piece, kept: Path, piece: int) -> None:
    told = json.loads(_file(kept, piece, one.seed).read_text(encoding="utf-8"))["outcome"]
    sys.stderr.write(f"{name}, piece {one.seed}: {told['tries']:,} tries, {len(told['failures'])} failures\n")
    for failure in told["failures"]:
        sys.stderr.write(f"{failure}\n")
    one.said.unlink(missing_ok=True)


def _last_words(one: _Piece) -> str:
    """Of a process that died: a failure of the attack, never a piece that counts as good."""
    words = one.said.read_text(encoding="utf-8", errors="replace")[-_SHOWN_CHARS:]
    return f"piece {one.seed} ended with {one.process.returncode}: {words}"


def _file(kept: Path, piece: int, seed: int) -> Path:
    return kept / f"{piece}-{seed}.json"


def _is_last(kept: Path, piece: int, seed: int) -> bool:
    """Whether that piece found less to try than it was asked for: there is nothing after it."""
    outcome = json.loads(_file(kept, piece, seed).read_text(encoding="utf-8"))["outcome"]
    return bool(outcome["tries"] < piece)


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
    do_piece(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
