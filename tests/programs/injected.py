"""Breaks every function of the observing side in turn and trains: injected.py DIRECTORY PART PARTS KIND ...

Prints a JSON object per broken function and kind of exception: whether the training left behind what it does
without us, what came out of it, and how often the broken function was called. A function that whole trainings do not
come to is not broken: nothing could be seen of it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import torch
from fingerprint import fingerprint, seed_all
from injection import KINDS, broken, functions_in, modules_under
from ticking import begin_ticking
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import stethos
from stethos.observe import boot, step_recorder
from stethos.record.place import RunPlace, host_key
from stethos.record.spawn import take_lock

BESIDE = ("stethos.record.ring", "stethos.record.spawn", "stethos.record.place",
          "stethos.record.provenance", "stethos.record.whole_file", "stethos.redact")  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


FORKED = (
    "observe.collectives.CollectiveWatch.after_fork",
    "observe.session",
    "observe.optimizers",
    "observe.step_recorder",
    "observe.tracer",
    "observe.module_trace",
    "record.ring",
    "record.spawn",
)


def train(*, is_forking: bool = True) -> str:
    """A bit of everything: data loader, scaler, accumulation, closures, logs, spans, metrics, a thread, a fork."""
    seed_all(0)
    logger = logging.getLogger("program")
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    samples = TensorDataset(torch.randn(32, 5), torch.randint(0, 3, (32,)))
    for index, (x, y) in enumerate(DataLoader(samples, batch_size=4, shuffle=True)):
        optimizer.zero_grad()
        with stethos.span("batch", index=index):
            for _ in range(1 + index % 2):
                scaler.scale(cross_entropy(model(x), y)).backward()
            if index == 3:
                model.head.bias.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
        stethos.log(index=index, text="said by step", odd={1})
        logger.warning("batch %d", index, extra={"index": index, "odd": {1}})
    with contextlib.suppress(ValueError), stethos.span("fails"):
        raise ValueError("as it should")
    for batch in DataLoader(samples, batch_size=16, collate_fn=lambda rows: {"x": torch.stack([x for x, _ in rows])}):
        forward(model, batch["x"]).sum().backward()
        optimizer.step()
    small = nn.Linear(5, 1)
    solver = torch.optim.LBFGS(small.parameters(), max_iter=3)
    x, y = torch.randn(16, 5), torch.randn(16, 1)

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = mse_loss(small(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        solver.step(closure)
    big = nn.Linear(100, 100)
    sparse = nn.Embedding(20, 3, sparse=True)
    simple = torch.optim.SGD([*big.parameters(), *sparse.parameters()], lr=0.1)
    for _ in range(4):
        simple.zero_grad()
        torch.autograd.backward([big(torch.randn(2, 100)).sum(), sparse(torch.tensor([1, 2])).sum()])
        simple.step()
    for _ in range(2):  # two losses go back before their two optimizers step
        optimizer.zero_grad()
        simple.zero_grad()
        forward(model, x).square().mean().backward()
        big(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        simple.step()
    simple.add_param_group({"params": [nn.Parameter(torch.full((2,), torch.nan))]})
    for loss in (1.0, torch.nan, 1.0):
        (big(torch.ones(1, 100)).sum() + loss).backward()
        simple.step()
    thread_model = nn.Linear(5, 1)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(train_plain, thread_model, x, y).result()  # and what came out of it
    child = os.fork() if is_forking else -1
    if child == 0:
        try:
            train_plain(nn.Linear(5, 1), x, y)
        finally:  # Ctrl-C that comes out must not make it a second copy of this program
            os._exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if is_forking else 7
    try:
        raise RuntimeError("shown to the hook")
    except RuntimeError:
        sys.excepthook(*sys.exc_info())
    torch.compile(train_plain, backend="eager")  # not called: only that it is there
    return fingerprint(model, optimizer, scaler.state_dict(), small, solver, big, sparse, simple, thread_model, status)


@stethos.span("forward")
def forward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def train_plain(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


def observed(path: Path, *, is_forking: bool = True) -> str:
    """Train under a watch, with a budget that is too small for layers at every step: the others get a norm alone."""
    with stethos.watch(
        Net(), dir=path.parent, name=path.name, preset="deep", overhead=0.4, config={"token": "a"}
    ) as watch:
        left = train(is_forking=is_forking)
        assert watch.path is None or watch.path == path
    return left


@contextlib.contextmanager
def undrained(path: Path) -> Iterator[None]:
    """No drainer is started for this run."""
    path.mkdir(parents=True)
    lock = take_lock(RunPlace(path).drainer_lock(host_key()))
    assert lock is not None
    try:
        yield
    finally:
        os.close(lock)


@contextlib.contextmanager
def noted_calls() -> Iterator[set[CodeType]]:
    """The code of all functions that are called meanwhile, in any thread."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def freeze_objects() -> None:
    """Let the search for models look at new objects only, which makes it fast."""
    gc.collect()
    gc.freeze()


def main() -> None:
    torch.set_num_threads(1)
    directory, part, parts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sys.orig_argv.append("--token=secret")  # so that something of the command is masked
    step_recorder.ACCOUNT_NS = 0
    os.fsync = lambda _: None  # type: ignore[assignment]  # nothing here has to outlast the machine
    begin_ticking()  # else it would depend on the machine which samples are taken, and so what is reached
    logging.getLogger().addHandler(logging.NullHandler())
    said = io.StringIO()
    with contextlib.redirect_stderr(said), undrained(directory / f"whole-{part}"):
        bare = train()
        freeze_objects()
        with noted_calls() as called:
            assert observed(directory / f"whole-{part}") == bare
    uncalled: set[str] = set()
    for index, (name, function) in enumerate(functions_in([*modules_under("stethos.observe"), *BESIDE]).items()):
        for kind in sys.argv[4:] if index % parts == part else ():
            if name in uncalled:
                continue
            if function.__code__ not in called and not name.startswith(FORKED):  # a child's calls are not noted
                uncalled.add(name)
                print(json.dumps({"function": name, "kind": kind, "is_same": True, "raised": None, "calls": 0}))
                continue
            path = directory / f"{name}-{kind}".replace("<", "").replace(">", "")[-100:].lstrip("._-")
            raised, left = None, ""
            with contextlib.redirect_stderr(said), undrained(path):
                with broken(function, KINDS[kind]) as calls:
                    try:
                        left = observed(path, is_forking=name.startswith(FORKED))
                    except BaseException as error:  # whatever comes out is told
                        raised = type(error).__name__
                boot.end()
            print(json.dumps({"function": name, "kind": kind, "is_same": left == bare, "raised": raised,
                              "calls": len(calls)}), flush=True)  # fmt: skip
            shutil.rmtree(path)
            freeze_objects()
            if not calls:
                uncalled.add(name)
    print(json.dumps({"is_clean": train_cleanly(bare)}))


def train_cleanly(bare: str) -> bool:
    """Whether the process trains as ever after all of this."""
    with contextlib.redirect_stderr(io.StringIO()):
        return train() == bare


if __name__ == "__main__":
    main()
