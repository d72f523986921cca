"""In a fresh process: the callbacks of one step, called over and over with nothing in between.

torch's own functions are replaced by empty ones before Stethos wraps them, so
that what remains is ours. Inside a real step the same callbacks cost more,
because the step drives their code and data out of the caches.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.child import job_of_child, leave_result

_STEPS = 5_000


def main() -> None:
    path, job = job_of_child()
    batch = [torch.zeros(32, 32), torch.zeros(32)]
    torch.autograd.backward = lambda *_, **__: None
    _BaseDataLoaderIter.__next__ = lambda _: batch  # type: ignore[assignment, method-assign]
    param = torch.nn.Parameter(torch.zeros(10))
    param.grad = torch.zeros(10)
    optimizer = torch.optim.SGD([param], lr=0.1)
    loss = param.sum()
    empty_us = _time_steps(optimizer, loss, job["rounds"], lambda: None)

    import stethos
    from stethos.observe import boot

    stethos.watch(dir=Path(job["directory"]), name="measured", preset="light", overhead=0.0)
    session = boot.current_session()
    assert session is not None

    def let_drain() -> None:
        while session.ring is not None and session.ring.has_backlog():
            time.sleep(0.01)
        time.sleep(0.15)

    ours_us = _time_steps(optimizer, loss, job["rounds"], let_drain)
    assert not session.guard.failures, session.guard.failures
    leave_result(path, {"always_on_us": ours_us - empty_us})


def _time_steps(optimizer: torch.optim.Optimizer, loss: torch.Tensor, rounds: int, pause: Any) -> float:
    before = list(torch_optimizer._global_optimizer_pre_hooks.values())
    after = list(torch_optimizer._global_optimizer_post_hooks.values())
    next_batch, backward, arguments = _BaseDataLoaderIter.__next__, torch.autograd.backward, (optimizer,)
    iterator: Any = SimpleNamespace(_num_yielded=2)
    times = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        for _ in range(_STEPS):
            next_batch(iterator)
            backward(loss)
            for hook in before:
                hook(optimizer, arguments, {})
            for hook in after:
                hook(optimizer, arguments, {})
        times.append((time.thread_time_ns() - start) / _STEPS / 1e3)
        pause()
    return median(times)


if __name__ == "__main__":
    main()
