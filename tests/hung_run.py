"""A run of three ranks, made by hand: collectives, GPUs, and a hang in which rank 2 is missing."""

from __future__ import annotations

from pathlib import Path

from builders import MS_NS, T0_NS, ProcessBuilder, RunBuilder

from stethos.record.layout import SLOT_PACKERS
from stethos.schema import COLLECTIVES, GPU, HANGS, NULL_I32
from stethos.store.stack_file import keep_stacks

RANKS = 3
ODD = 2  # stands in its evaluation while the others wait in all_reduce 9
CALLS = 8
_SHARED = [("<module>", "/home/me/train.py", 40), ("main", "/home/me/train.py", 31)]
_WAITING = [("step", "/home/me/train.py", 22), ("all_reduce", "/lib/torch/distributed.py", 2806)]
_MISSING = [("evaluate", "/home/me/train.py", 12)]


def make_hung_run(path: Path) -> None:
    """The run as it is on disk when it has been given up."""
    with RunBuilder(path) as run:
        for rank in range(RANKS):
            process = run.process(f"rank{rank}", is_alive=False, rank=rank, world_size=RANKS)
            process.steps(CALLS)
            _collectives(process, rank)
            for second in range(5):
                process.collector.add_sample(T0_NS + second * 10**9, _gpu(rank, second), GPU)
            process.collector.add_sample(T0_NS + 10**9, _hang(rank), HANGS)
            process.drain()
            process.finish(None)
        keep_stacks(path, [row for rank in range(RANKS) for row in _stack(rank)])


def _collectives(process: ProcessBuilder, rank: int) -> None:
    """The rank that is missing comes last to every collective, and so waits least."""
    pack = SLOT_PACKERS[COLLECTIVES.number].pack_into
    last = CALLS if rank == ODD else CALLS + 1
    for seq in range(1, last + 1):
        called_ns = T0_NS + seq * 10 * MS_NS + (4 * MS_NS if rank == ODD else 0)
        is_done = seq <= CALLS
        completed_ns = T0_NS + seq * 10 * MS_NS + 5 * MS_NS if is_done else -(2**63)
        names = (process.name_id(word) for word in ("all_reduce", "world", "python"))
        process.ring.put(pack, COLLECTIVES.number, 0, NULL_I32, NULL_I32, NULL_I32, seq, called_ns, *names, seq, 4096,
                         completed_ns, int(is_done))  # fmt: skip


def _gpu(rank: int, second: int) -> dict[str, float]:
    return {
        "device": rank, "busy_share": 0.9 if second < 4 else 0.0, "memory_busy_share": 0.5, "process_bytes": 2**30,
        "used_bytes": 2**31, "total_bytes": 2**33, "power_w": 300.0, "power_limit_w": 700.0, "temperature_c": 55.0,
        "clock_mhz": 1900.0,
    }  # fmt: skip


def _hang(rank: int) -> dict[str, object]:
    role, words = ("culprit", "is missing") if rank == ODD else ("waiting", "waits in all_reduce 9 of group world")
    return {
        "hang": 1, "role": role, "cause": "missing-rank", "silent_s": 31.0, "limit_s": 30.0, "step": CALLS,
        "place": "evaluate (train.py:12)", "group": "world", "seq": 9, "op": "all_reduce", "members": "[0, 1, 2]",
        "missing": "[2]", "words": words, "detail": "{}",
    }  # fmt: skip


def _stack(rank: int) -> list[dict[str, object]]:
    frames = [*_SHARED, *(_MISSING if rank == ODD else _WAITING)]
    return [
        {
            "t_ns": T0_NS + 10**9, "reason": "hang 1", "process": f"rank{rank}", "rank": rank, "thread": "MainThread",
            "depth": len(frames) - 1 - place, "func": func, "file": file, "lineno": lineno, "frame_type": "Python",
        }
        for place, (func, file, lineno) in enumerate(frames)
    ]  # fmt: skip
