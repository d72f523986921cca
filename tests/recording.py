"""Recordings made by the test process itself, whose rows are collected here instead of by a drainer."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

import stethos
from stethos.observe import boot
from stethos.observe.api import Watch
from stethos.record.collector import Collector
from stethos.record.place import RunPlace, host_key
from stethos.record.spawn import take_lock
from stethos.store.run import Run, open_run


class Recording:
    """One run, watched from its making to the first look at its rows."""

    def __init__(self, path: Path, model: torch.nn.Module | None = None, **options: Any) -> None:
        self.path = path
        place = RunPlace(path)
        place.create({"run": path.name, "command": ["pytest"], "started_ns": time.time_ns(), "limit_bytes": 1 << 30})
        self._lock = take_lock(place.drainer_lock(host_key()))
        self.watch: Watch = stethos.watch(model, dir=path.parent, name=path.name, **options)
        self._collectors: dict[str, Collector] = {}
        self._run: Run | None = None

    @property
    def steps(self) -> Any:
        """The step watch, for tests of what it holds."""
        recording = boot.current()
        assert recording is not None and recording.torch_hooks is not None
        return recording.torch_hooks.steps

    @property
    def collectives(self) -> Any:
        """The watch of collectives, for tests of what it holds."""
        recording = boot.current()
        assert recording is not None and recording.torch_hooks is not None
        return recording.torch_hooks.collectives

    def drain(self) -> None:
        """Store what is in the ring so far, as a drainer would."""
        for process in RunPlace(self.path).processes():
            collector = self._collectors.get(process.name) or Collector(process)
            self._collectors[process.name] = collector
            while collector.tap.has_rows():
                collector.drain()

    def close(self) -> Run:
        """End the recording and collect its rows."""
        if self._run is None:
            self.watch.close()
            self.drain()
            for collector in self._collectors.values():
                collector.finish({"t_ns": time.time_ns()})
            assert self._lock is not None
            os.close(self._lock)
            self._run = open_run(self.path)
        return self._run

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.close().rows(query).values]

    def column(self, query: str) -> list[Any]:
        return [value for (value,) in self.rows(query)]


@contextmanager
def nothing_is_left_behind() -> Iterator[None]:
    """Check that everything a watch touches is afterwards exactly what it was."""
    before = touched()
    try:
        yield
    finally:
        boot.end()
    after = touched()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed == {}, changed


def touched() -> dict[str, object]:
    return {
        "torch.autograd.backward": torch.autograd.backward,
        "torch.Tensor.backward": torch.Tensor.backward,
        "_BaseDataLoaderIter.__next__": _BaseDataLoaderIter.__next__,
        "GradScaler.scale": torch.amp.GradScaler.scale,
        "GradScaler.step": torch.amp.GradScaler.step,
        "torch.compile": torch.compile,
        "ProcessGroup": dict(ProcessGroup.__dict__),
        "Work": dict(Work.__dict__),
        "Logger.callHandlers": logging.Logger.callHandlers,
        "root handlers": list(logging.root.handlers),
        "sys.excepthook": sys.excepthook,
        "sys.meta_path": list(sys.meta_path),
        "step pre hooks": list(torch_optimizer._global_optimizer_pre_hooks.values()),
        "step post hooks": list(torch_optimizer._global_optimizer_post_hooks.values()),
        "forward pre hooks": list(torch_module._global_forward_pre_hooks.values()),
        "forward hooks": list(torch_module._global_forward_hooks.values()),
        "forward hooks with kwargs": dict(torch_module._global_forward_hooks_with_kwargs),
        "forward hooks always called": dict(torch_module._global_forward_hooks_always_called),
        "backward hooks": list(torch_module._global_backward_hooks.values()),
    }
