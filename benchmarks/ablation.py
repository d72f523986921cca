"""What each callback costs inside real steps: in one process, pieces on and off in turns.

    python -m benchmarks.ablation            # 400 cycles, about four minutes
    STETHOS_NATIVE=0 python -m benchmarks.ablation

A cycle trains a block of steps with each choice of callbacks, in random order. A block counts by a quick one of its
steps (a fifth is faster), its first ones left out: Python specialises its bytecode to what it has just seen. A
choice counts by the median of its differences from the bare block of the same cycle, so that what else the machine does
hits both alike. All in one process, so that memory lies the same; the benchmark `overhead` compares processes.
Time is the thread's processor time, or what a clock on the wall says (`--wall`, for a machine with nothing else to do).

The last line says what the recording itself counted for a step, and by which number what its last callback sees on its
clock would have to be multiplied to give what all of them cost (`UNSEEN` in `observe/step_recorder.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.optim import optimizer as torch_optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.report import Grid
from benchmarks.workload import WORKLOADS, Training

_WARM, _COUNTED = 40, 100
_CYCLES = 400


class Pieces(NamedTuple):
    """What torch calls."""

    before: dict[int, Any]
    after: dict[int, Any]
    backward: Callable[..., Any]
    next_batch: Callable[..., Any]

    def put_in(self) -> None:
        for found, wanted in (
            (torch_optimizer._global_optimizer_pre_hooks, self.before),
            (torch_optimizer._global_optimizer_post_hooks, self.after),
        ):
            found.clear()
            found.update(wanted)
        torch.autograd.backward = self.backward
        _BaseDataLoaderIter.__next__ = self.next_batch  # type: ignore[assignment, method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--cycles", type=int, default=_CYCLES)
    parser.add_argument("--wall", action="store_true", help="time on the wall instead of the thread's own")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mlp")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = WORKLOADS[arguments.workload]()
    with tempfile.TemporaryDirectory(prefix="stethos-bench-") as directory:
        choices, close = _choices(training, Path(directory))
        clock = time.perf_counter_ns if arguments.wall else time.thread_time_ns
        times, counted = _in_turns(training, choices, arguments.cycles, clock)
        close()
    from stethos.native import described
    from stethos.observe.step_recorder import UNSEEN

    counted_us = counted * statistics.median(times["bare"])
    seen_us, cost_us = counted_us / UNSEEN, statistics.median(_more(times, "all callbacks"))
    note = f"The recording counts {counted_us:.1f} us for a step, {UNSEEN:g} times the {seen_us:.2f} us that the last "
    note += f"callback sees; {cost_us / seen_us:.1f} times would be all."
    print(_grid_of(times, f"Callbacks in {described()} within steps of the {arguments.workload}", note))


class _Books:
    """What the recording says it has cost, as a share of the time in which it ran."""

    def __init__(self) -> None:
        from stethos.observe import boot

        session = boot.current_session()
        assert session is not None and session.ring is not None
        self._ring = session.ring
        self._spent_ns = self._elapsed_ns = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Count what happens here: on the wall both times, as other processes delay callbacks and training alike."""
        from stethos.record.layout import HeaderWord

        spent_ns, start_ns = self._ring.word(HeaderWord.SPENT_NS), time.perf_counter_ns()
        yield
        self._spent_ns += self._ring.word(HeaderWord.SPENT_NS) - spent_ns
        self._elapsed_ns += time.perf_counter_ns() - start_ns

    @property
    def share(self) -> float:
        return self._spent_ns / self._elapsed_ns


def _more(times: dict[str, list[float]], name: str) -> list[float]:
    """What each block of a choice took more than the bare one of its cycle."""
    return sorted(one - other for one, other in zip(times[name], times["bare"], strict=True))


def _choices(training: Training, directory: Path) -> tuple[dict[str, Pieces], Callable[[], None]]:
    """Step rows only: no samples, whose cost would come and go between the blocks."""
    bare = Pieces({}, {}, torch.autograd.backward, _BaseDataLoaderIter.__next__)
    import stethos

    watch = stethos.watch(training.model, name="ablation", dir=directory, preset="light", overhead=0.0)
    hooks = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
    ours = Pieces(*map(dict, hooks), torch.autograd.backward, _BaseDataLoaderIter.__next__)
    nothing = dict.fromkeys(ours.before, lambda *_: None)
    choices = {
        "bare": bare,
        "bare again (the noise)": bare,
        "all callbacks": ours,
        "next batch": bare._replace(next_batch=ours.next_batch),
        "backward": bare._replace(backward=ours.backward),
        "both step hooks": bare._replace(before=ours.before, after=ours.after),
        "two empty step hooks": bare._replace(before=nothing, after=dict.fromkeys(ours.after, lambda *_: None)),
    }

    def close() -> None:
        ours.put_in()
        watch.close()

    return choices, close


def _in_turns(
    training: Training, choices: dict[str, Pieces], cycles: int, clock: Callable[[], int]
) -> tuple[dict[str, list[float]], float]:
    """How long blocks took with each choice, and which share of its time the recording says it cost."""
    batches, books = _endless(training), _Books()
    for pieces in choices.values():
        pieces.put_in()
        _block(training, batches, 300, clock)
    times: dict[str, list[float]] = {name: [] for name in choices}
    for cycle in range(cycles):
        for name in random.Random(cycle).sample(list(choices), len(choices)):
            choices[name].put_in()
            with books.open() if name == "all callbacks" else contextlib.nullcontext():
                _block(training, batches, _WARM, clock)
                block = _block(training, batches, _COUNTED, clock)
            times[name].append(sorted(block)[_COUNTED // 5] / 1e3)
    return times, books.share


def _endless(training: Training) -> Iterator[Any]:
    while True:
        yield from training.loader


def _block(training: Training, batches: Iterator[Any], steps: int, clock: Callable[[], int]) -> list[int]:
    model, optimizer, times = training.model, training.optimizer, []
    for _ in range(steps):
        start = clock()
        inputs, labels = next(batches)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(clock() - start)
    return times


def _grid_of(times: dict[str, list[float]], title: str, note: str) -> Grid:
    bare, rows = times["bare"], []
    for name, found in times.items():
        more = _more(times, name)
        half = 1.96 * len(more) ** 0.5 / 2  # ranks around the median that hold it with 95 %
        low, high = (more[min(max(round(len(more) / 2 + side * half), 0), len(more) - 1)] for side in (-1, 1))
        middle = statistics.median(more)
        rows.append([
            name,
            f"{statistics.median(found):.1f}",
            "" if name == "bare" else f"{middle:+.1f}",
            "" if name == "bare" else f"{low:+.1f} to {high:+.1f}",
            "" if name == "bare" else f"{middle / statistics.median(bare):+.2%}",
        ])  # fmt: skip
    return Grid(title, ["callbacks", "us/step", "more than bare, us", "95 % interval", "share"], rows,
                [f"Medians of {len(bare)} cycles of {_COUNTED} steps each.", note])  # fmt: skip


if __name__ == "__main__":
    main()
