"""Hand-made runs, written with the real writer's side: ring, collector, manifest.

    with RunBuilder(tmp_path / "runs" / "demo") as run:
        process = run.process()
        process.steps(10)
        process.drain()

The builder holds the drainer's lock, so no real drainer takes over.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from stethos.record.collector import Collector
from stethos.record.layout import SLOT_PACKERS, TABLE_END, TABLE_NAME, HeaderWord, State
from stethos.record.place import ProcessPlace, RunPlace, host_key, start_ticks, write_facts
from stethos.record.ring import Ring, create_ring_file
from stethos.record.spawn import take_lock
from stethos.schema import GAPS, HISTOGRAMS, LAYERS, LOGS, METRICS, MODULES, NULL_F64, NULL_I32, STEPS

T0_NS = 1_700_000_000_000_000_000
MS_NS = 1_000_000


def dead_pid() -> int:
    """The pid of a process that has just ended."""
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    return child.pid


class RunBuilder:
    """A run directory in the making."""

    def __init__(self, path: Path, **facts: Any) -> None:
        self.place = RunPlace(path)
        self.place.create(
            {"run": path.name, "command": ["stethos", "run", "train.py"], "host": "testhost", "git_commit": "abc123",
             "version": "0.1.0", "started_ns": T0_NS, "limit_bytes": 1 << 30, **facts}
        )  # fmt: skip
        self._lock = take_lock(self.place.drainer_lock(host_key()))
        self._processes: list[ProcessBuilder] = []

    @property
    def path(self) -> Path:
        return self.place.path

    def __enter__(self) -> RunBuilder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for process in self._processes:
            process.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def process(self, name: str | None = None, *, is_alive: bool = True, **facts: Any) -> ProcessBuilder:
        """A process of the run: this very test process while it is alive, else one that has ended."""
        pid = os.getpid() if is_alive else dead_pid()
        process = ProcessBuilder(self.place.path / (name or f"p{len(self._processes)}"), pid, facts)
        self._processes.append(process)
        return process

    def launcher(self, child_pid: int, exit_code: int | None, *, pid: int | None = None) -> None:
        """A `stethos run` that is part of the run; without an exit code it is still at work."""
        pid = os.getpid() if pid is None else pid
        facts: dict[str, Any] = {
            "pid": pid,
            "start_ticks": start_ticks(pid),
            "host_key": host_key(),
            "child_pid": child_pid,
            "command": ["train.py"],
            "started_ns": T0_NS,
        }
        if exit_code is not None:
            facts |= {"exit_code": exit_code, "ended_ns": T0_NS + 60_000 * MS_NS}
        write_facts(self.place.path / f"launcher-{pid}.json", facts)


class ProcessBuilder:
    """One observed process: its ring, and the collector that a drainer would have."""

    def __init__(self, path: Path, pid: int, facts: dict[str, Any]) -> None:
        path.mkdir(parents=True)
        self.place = ProcessPlace(path)
        create_ring_file(path / "ring")
        self.ring = Ring(path / "ring")
        self.ring.set_word(HeaderWord.STARTED_NS, T0_NS)
        self.pid = pid
        write_facts(
            path / "process.json",
            {"pid": pid, "start_ticks": start_ticks(pid), "host_key": host_key(), "host": "testhost", "rank": None,
             "world_size": None, "command": ["python", "train.py"], "cwd": "/work", "python": "3.11.2",
             "torch": "2.9.0", "versions": {"numpy": "2.4.6"}, "config": {"lr": 0.1}, "preset": "standard",
             "overhead_budget": 0.01, "started_ns": T0_NS, **facts},
        )  # fmt: skip
        self._collector: Collector | None = None
        self._names: dict[str, int] = {}
        self._steps = 0

    @property
    def collector(self) -> Collector:
        if self._collector is None:
            self._collector = Collector(self.place)
        return self._collector

    def name_id(self, text: str | None) -> int:
        if text is None:
            return NULL_I32
        if text not in self._names:
            self._names[text] = len(self._names) + 1
            self.ring.put_frame(TABLE_NAME, 0, b"", (text.encode("utf-8", "surrogatepass"),), step=self._names[text])
        return self._names[text]

    def steps(
        self, count: int, *, losses: Sequence[float] | None = None, spent_ns: int = 1000, step_ns: float = 10.0
    ) -> None:
        """That many optimizer steps, one each 10 ms; the times of their parts are a few ns."""
        pack, model = SLOT_PACKERS[STEPS.number].pack_into, self.name_id("Net")
        for index in range(count):
            step = self._steps
            loss = losses[index] if losses is not None else 1.0 / (step + 1)
            t_ns = T0_NS + (step + 1) * 10 * MS_NS
            self.ring.put(pack, STEPS.number, 0, NULL_I32, NULL_I32, 1, step, t_ns, step, model, loss, 0.1, NULL_F64,
                          step_ns, 1.0, 4.0, 4.0, 1.0, 32, 1, 0, 4096, 8192)  # fmt: skip
            self._steps += 1
            self.ring.set_word(HeaderWord.STEPS, self._steps)
            self.ring.set_word(HeaderWord.LAST_STEP_NS, t_ns)
            self.ring.set_word(HeaderWord.SPENT_NS, self._steps * spent_ns)

    def metric(self, name: str, value: float) -> None:
        self.ring.put(SLOT_PACKERS[METRICS.number].pack_into, METRICS.number, 0, NULL_I32, NULL_I32, NULL_I32,
                      self._steps, T0_NS, self.name_id(name), value)  # fmt: skip

    def unpackable(self) -> None:
        """A row that cannot be packed: a void slot, counted as dropped."""
        with contextlib.suppress(struct.error):
            self.ring.put(SLOT_PACKERS[METRICS.number].pack_into, METRICS.number, 0, 0, 0, 0, 0, 0, 0, "text")  # type: ignore[arg-type]

    def layers(
        self, layers: Sequence[str], kind: str = "gradient", *, step: int = 0, norm: float = 1.0, nan: int = 0,
        drift: float = NULL_F64,
    ) -> None:  # fmt: skip
        """One sampled step's statistics, one row per layer."""
        count = len(layers)
        names = np.array([[self.name_id(layer) for layer in layers], [self.name_id(kind)] * count], "<i4")
        numbers = np.zeros((10, count), "<f8")
        numbers[0] = NULL_F64 if nan else norm
        numbers[6] = nan
        numbers[8] = drift
        numbers[9] = 64
        self.ring.put_frame(LAYERS.number, count, names.tobytes() + numbers.tobytes(), optimizer=1, step=step,
                            t_ns=T0_NS + step * 10 * MS_NS)  # fmt: skip

    def histogram(
        self, layer: str, low: float, high: float, counts: Sequence[int], kind: str = "gradient", *, step: int = 0
    ) -> None:
        """One layer's elements at one sampled step, in 16 buckets."""
        names = np.array([self.name_id(layer), self.name_id(kind)], "<i4")
        numbers = np.array([low, high, *counts], "<f8")
        self.ring.put_frame(HISTOGRAMS.number, 1, names.tobytes() + numbers.tobytes(), optimizer=1, step=step,
                            t_ns=T0_NS + step * 10 * MS_NS)  # fmt: skip

    def modules(self, modules: Sequence[str], stage: str = "forward", *, step: int = 0) -> None:
        count = len(modules)
        names = np.array([[self.name_id(module) for module in modules], [self.name_id(stage)] * count], "<i4")
        numbers = np.array([np.arange(count) + 2.0, np.full(count, 1e6), np.full(count, 5e6) + step * 1e6], "<f8")
        self.ring.put_frame(MODULES.number, count, names.tobytes() + numbers.tobytes(), optimizer=1, step=step,
                            t_ns=T0_NS + step * 10 * MS_NS)  # fmt: skip

    def log(self, message: str, level: str = "INFO") -> None:
        names = np.array([self.name_id(level), self.name_id("root")], "<i4").tobytes()
        self.ring.put_frame(LOGS.number, 1, names, (message.encode("utf-8", "surrogatepass"), b"{}", b""), t_ns=T0_NS)

    def gap(self, what: str, reason: str) -> None:
        self.ring.put_frame(GAPS.number, 1, self.name_id(what).to_bytes(4, "little"), (reason.encode(),), t_ns=T0_NS)

    def host_sample(self) -> None:
        names = ("cpu_share", "rss_bytes", "threads", "read_bytes", "written_bytes", "machine_cpu_share",
                 "machine_cores", "machine_free_bytes", "net_sent_bytes", "net_received_bytes")  # fmt: skip
        self.collector.add_sample(T0_NS, dict.fromkeys(names, 1.0))

    def fail(self, error: str) -> None:
        notes = json.dumps({"error": error, "traceback": f"Traceback (most recent call last):\n{error}"})
        self.ring.put_frame(TABLE_END, 0, b"", (notes.encode(),))
        self.ring.close(State.FAILED)

    def drain(self) -> None:
        self.collector.drain()

    def seal(self) -> None:
        self.drain()
        self.collector.seal()

    def finish(self, state: State | None = State.ENDED) -> None:
        """End as a drainer would end it; `state` None leaves what the process said itself."""
        if state is not None:
            self.ring.close(state)
        self.drain()
        self.collector.finish({"t_ns": time.time_ns()})
        self._collector = None

    def restart(self) -> None:
        """Let the collector end as a killed one does; the next one begins from the files."""
        self.collector.close()
        self._collector = None

    @property
    def segment(self) -> Path:
        return self.place.segment(self.collector.number)

    def close(self) -> None:
        if self._collector is not None:
            self._collector.close()
            self._collector = None
