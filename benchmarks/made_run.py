"""Runs without a training: rows go through the real ring and the real collector, in this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np

from stethos.record.collector import Collector
from stethos.record.layout import SLOT_PACKERS, TABLE_NAME, HeaderWord
from stethos.record.place import PROCESS_FILE, RING_FILE, ProcessPlace, RunPlace, host_key, start_ticks, write_facts
from stethos.record.ring import Ring, create_ring_file
from stethos.record.spawn import take_lock
from stethos.schema import LAYERS, METRICS, NULL_F64, NULL_I32, STEPS, Kind

LAYER_NAMES = [f"encoder.layers.{index // 5}.linear{index % 5}.weight" for index in range(100)]
_T0_NS = 1_700_000_000_000_000_000
_DISTINCT = 20_000  # rows before values come again: more than Parquet compresses together
_VALUES = np.random.default_rng(0).normal(size=_DISTINCT).tolist()
_NUMBERS = len(LAYERS.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL))


class MadeRun:
    """One live run of this process; it holds the drainer's lock, so that no drainer takes part."""

    def __init__(self, path: Path) -> None:
        self.place = RunPlace(path)
        now_ns = time.time_ns()
        self.place.create({"run": path.name, "command": sys.argv, "host": "here", "started_ns": now_ns})
        self._lock = take_lock(self.place.drainer_lock(host_key()))
        directory = path / "process"
        directory.mkdir()
        create_ring_file(directory / RING_FILE)
        self.ring = Ring(directory / RING_FILE)
        self.ring.set_word(HeaderWord.STARTED_NS, now_ns)
        facts = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "host_key": host_key(), "host": "here",
                 "rank": None, "command": sys.argv, "preset": "standard", "started_ns": now_ns}  # fmt: skip
        write_facts(directory / PROCESS_FILE, facts)
        self._names: dict[str, int] = {}
        self.collector = Collector(ProcessPlace(directory))

    def name_id(self, text: str) -> int:
        if text not in self._names:
            self._names[text] = len(self._names) + 1
            self.ring.put_frame(TABLE_NAME, 0, b"", (text.encode(),), step=self._names[text])
        return self._names[text]

    def metric_writer(self) -> Callable[[int], None]:
        """Writes that many rows of `metrics`, one by one."""
        put, name = self.ring.writer(SLOT_PACKERS[METRICS.number].pack_into), self.name_id("loss")

        def write(rows: int) -> None:
            for step, value in zip(range(rows), _VALUES, strict=False):
                put(METRICS.number, 0, NULL_I32, NULL_I32, NULL_I32, step, _T0_NS + step, name, value)

        return write

    def step_writer(self) -> Callable[[int], None]:
        """Writes that many rows of `steps`, one by one, as a training does."""
        put, model = self.ring.writer(SLOT_PACKERS[STEPS.number].pack_into), self.name_id("Net")

        def write(rows: int) -> None:
            for step, loss in zip(range(rows), _VALUES, strict=False):
                put(
                    STEPS.number, 0, NULL_I32, NULL_I32, 1, step, _T0_NS + step, step, model, loss, 0.1, NULL_F64,
                    400_000 + step, 90_000, 100_000, 120_000 - step, 60_000, 32, 1, 0, 4096, 8192,
                )  # fmt: skip

        return write

    def layer_writer(self, rows_per_frame: int) -> Callable[[int], None]:
        """Writes that many rows of `layers`, in vectors."""
        vectors = (layer_vector(rows_per_frame, self.name_id, seed) for seed in range(_DISTINCT // rows_per_frame))
        bodies = cycle([names + numbers for names, numbers in vectors])

        def write(rows: int) -> None:
            for step, body in zip(range(rows // rows_per_frame), bodies, strict=False):
                self.ring.put_frame(LAYERS.number, rows_per_frame, body, optimizer=1, step=step, t_ns=_T0_NS + step)

        return write

    def drain(self) -> None:
        """What the drainer does with a ring, sealing included."""
        self.collector.drain()
        if self.collector.wants_seal:
            self.collector.seal()

    def close(self) -> None:
        self.collector.close()
        if self._lock is not None:
            os.close(self._lock)

    def finish(self) -> None:
        """End the run as if its process had ended."""
        self.collector.drain()
        self.ring.close()
        self.collector.finish({"t_ns": time.time_ns()})
        if self._lock is not None:
            os.close(self._lock)


def layer_vector(rows: int, name_id: Callable[[str], int], seed: int = 0) -> tuple[bytes, bytes]:
    """Name ids and numbers of one sample: half gradients, half weights, which alone have a drift."""
    half = rows // 2
    layers = [name_id(LAYER_NAMES[index % half % len(LAYER_NAMES)]) for index in range(rows)]
    kinds = [name_id("gradient")] * half + [name_id("weight")] * (rows - half)
    numbers = np.random.default_rng(seed).normal(size=(_NUMBERS, rows))
    numbers[6:8] = 0
    numbers[8, :half] = NULL_F64
    numbers[9] = 4096
    return np.array([layers, kinds], "<i4").tobytes(), numbers.tobytes()
