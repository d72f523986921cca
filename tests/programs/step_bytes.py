"""Trainings of many kinds under a clock that ticks; prints what the ring holds afterwards, and which callbacks ran.

With `STETHOS_NATIVE=0` the callbacks are those in Python. Every look at the clock is a tick, so that equal bytes mean
that both looked, counted and sampled alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from stethos import clock
from stethos.native import NATIVE

START_NS, TICK_NS = 10**12, 30_011
if NATIVE is not None:
    NATIVE.let_tick(START_NS, TICK_NS)
    clock.monotonic_ns = NATIVE.now_ns
else:
    clock.monotonic_ns = itertools.count(START_NS + TICK_NS, TICK_NS).__next__
clock.wall_offset_ns = lambda: 7

import stethos  # noqa: E402
from stethos.observe import boot, inspection, spans, step_recorder  # noqa: E402
from stethos.observe.context import TURN, TurnTotals  # noqa: E402
from stethos.record.layout import FRAMES_BASE, SLOT_BYTES, SLOTS_BASE, TABLE_NAME, HeaderWord  # noqa: E402
from stethos.record.tap import Tap  # noqa: E402

inspection.thread_time_ns = lambda: 0  # what an inspection has taken decides about the next one


class Lookahead(torch.optim.Optimizer):
    """An optimizer that steps another one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups[0]["params"], {"lr": 0.5})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.inner.step()


class Failing(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise RuntimeError("no step")


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no gradient")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def loss_of(model: nn.Module, size: int = 8) -> torch.Tensor:
    return mse_loss(model(torch.randn(size, 4)), torch.randn(size, 2))


def simple(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def batches() -> Iterator[list[torch.Tensor]]:
    yield from DataLoader(TensorDataset(torch.randn(22, 4), torch.randn(22, 2)), batch_size=8)


def main(directory: Path) -> None:
    torch.manual_seed(1)
    step_recorder.UNSEEN = 3.5  # by which the books of the two differ, and so their samples
    spans.os = types.SimpleNamespace(urandom=bytes)  # type: ignore[attr-defined]
    watch = stethos.watch(name="bytes", dir=directory)
    model = net()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):  # long enough for samples of every kind
        for x, y in batches():
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in batches():
                model(x)
    for odd in (torch.randn(9), [], [torch.tensor(1.0)], {"x": torch.randn(5, 4)}, (torch.randn(3, 4), 1), "text"):
        loader = DataLoader([0, 1], batch_size=1, collate_fn=lambda _, odd=odd: odd)  # type: ignore[arg-type, misc]
        for _ in loader:
            simple(model, optimizer, 1)
    for scale in (1.0, float("nan"), float("inf"), 1e30, 1.0):  # an alarm, and numbers that are none
        optimizer.zero_grad()
        (loss_of(model) * scale).backward()
        optimizer.step()
    model, other = net(), net()
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.2)
    for _ in range(4):  # accumulation, and two optimizers
        loss_of(model).backward()
        loss_of(model).backward()
        first.step()
        loss_of(other).backward()
        second.step()
        second.step()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        lbfgs.step(closure)  # type: ignore[no-untyped-call]
    simple(model, Lookahead(torch.optim.SGD(model.parameters(), lr=0.1)))
    for attempt in range(3):
        failing = Failing(model.parameters(), lr=0.1)
        loss_of(model).backward()
        with contextlib.suppress(RuntimeError):
            failing.step()
        simple(model, first, attempt + 1)
    with contextlib.suppress(RuntimeError):
        Refuses.apply(loss_of(model)).backward()  # type: ignore[no-untyped-call]
    with contextlib.suppress(RuntimeError):
        model(torch.randn(3, 4)).backward()
    simple(model, first)
    out = model(torch.randn(3, 4))
    torch.autograd.backward(out, grad_tensors=torch.ones_like(out))
    first.step()
    torch.autograd.backward([loss_of(model), loss_of(model)])
    first.step()
    torch.autograd.backward(tensors=loss_of(model), retain_graph=True)
    first.step(closure=None)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for gradient in (1.0, float("inf"), 1.0):
        first.zero_grad()
        scaler.scale(loss_of(model) * gradient).backward()  # type: ignore[no-untyped-call]
        scaler.step(first)
        scaler.update()
    for odd_loss in (
        lambda loss: loss.double(), lambda loss: loss.half(), lambda loss: loss.reshape(1, 1),
        lambda loss: torch.stack([loss, loss])[1], torch._neg_view, lambda loss: torch.complex(loss, loss).conj().imag,
    ):  # fmt: skip
        odd_loss(loss_of(model)).backward()  # type: ignore[no-untyped-call]
        first.step()
    simple(model, torch.optim.SGD(model.parameters(), lr=torch.tensor(0.25)))
    simple(model, torch.optim.SGD(model.parameters(), lr=1))
    session = boot.current_session()
    assert session is not None
    token = TURN.set((session.name_id("c7"), 4, TurnTotals()))
    simple(model, first)
    stethos.log(accuracy=0.5)
    TURN.reset(token)
    thread = threading.Thread(target=simple, args=(other, second))
    thread.start()
    thread.join()
    for value in (0.5, 0.25, float("nan"), 3, torch.tensor(1.5), "none"):
        stethos.log(accuracy=value)  # type: ignore[arg-type]
    stethos.log(step=3, accuracy=0.75)
    report(session)
    watch.close()


def report(session: stethos.observe.session.Session) -> None:  # type: ignore[name-defined]
    ring, place = session.ring, session.place
    assert ring is not None and place is not None
    content = place.ring().read_bytes()
    slots = [content[SLOTS_BASE + SLOT_BYTES * at :][:SLOT_BYTES].hex() for at in range(ring.slots.next)]
    tap = Tap(place.ring())
    tap.frames_tail = 0
    frames, _ = tap.read_frames()
    kept = [frame for frame in frames if frame.table < TABLE_NAME - 8]
    tap.close()
    head = ring.word(HeaderWord.FRAMES_HEAD)
    counters = (HeaderWord.STEPS, HeaderWord.SPENT_NS, HeaderWord.LAST_STEP_NS, HeaderWord.BATCHES)
    print(json.dumps({
        "callbacks": type(getattr(torch.autograd.backward, "__wrapped__", torch.autograd.backward)).__name__,
        "slots": slots,
        "frames": [[*frame[:-2], hashlib.sha256(frame.body).hexdigest(), frame.texts] for frame in kept],
        "frame_bytes": hashlib.sha256(content[FRAMES_BASE : FRAMES_BASE + head]).hexdigest(),
        "counters": [ring.word(word) for word in counters],
        "dropped": ring.dropped(),
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
