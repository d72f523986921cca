"""Plants NaN and infinity into trainings, and sees whether layer, step and kind of the origin are named.

python -m benchmarks.nan_origins [--device cuda] [--only NAME]

With STETHOS_EXPLAIN_NAN=1 as `stethos run --explain-nan` would.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import stethos
from stethos.guard import Guard
from stethos.observe.cuda.fused import Kernels

AT, STEPS = 37, 45  # no power of two: no sample falls on it by chance
_NAMES = {"non-finite-gradients": "gradient", "non-finite-weights": "weight"}
_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "momentum": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=1e-4),
}


class Net(nn.Module):
    """Layers of several kinds; `trouble` makes one of them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.body = nn.ModuleList(nn.Linear(8 * 64 if not place else 64, 64) for place in range(4))
        self.scale = nn.LayerNorm(64)
        self.head = nn.Linear(64, 10)
        self.trouble = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.stem(x))).flatten(1)
        for place, layer in enumerate(self.body):
            x = torch.tanh(layer(x))
            if self.trouble == f"log-{place}":
                x = torch.log(x)
            if self.trouble == f"divide-{place}":
                x = x / (x - x)
            if self.trouble == f"overflow-{place}":
                x = torch.exp(x * 1e4 + 1e3) / torch.exp(x * 1e4 + 1e3)
            if self.trouble == f"root-{place}":
                x = x + torch.sqrt((x[:, :1] * 0).clamp(min=0)) * 0 + 0 * x[:, 1:2]
        return self.head(self.scale(x))


class Planted(NamedTuple):
    """What is done at step `AT`, and what is to be named: kind, layer (a part of its name) and step."""

    name: str
    kind: str
    layer: str
    step: int = AT
    optimizer: str = "adamw"


PLANTED = (
    Planted("gradient body.2.weight NaN", "gradient", "body.2.weight"),
    Planted("gradient stem.weight NaN", "gradient", "stem.weight"),
    Planted("gradient head.bias NaN", "gradient", "head.bias", optimizer="momentum"),
    Planted("gradient body.0.weight inf", "gradient", "body.0.weight"),
    Planted("gradient scale.weight inf", "gradient", "scale.weight", optimizer="momentum"),
    Planted("gradient norm.bias NaN", "gradient", "norm.bias", optimizer="rmsprop"),
    Planted("weight body.1.weight NaN", "weight", "body.1.weight"),
    Planted("weight head.weight inf", "weight", "head.weight"),
    Planted("weight stem.bias NaN", "weight", "stem.bias", optimizer="momentum"),
    Planted("weight scale.bias NaN", "weight", "scale.bias", optimizer="rmsprop"),
    Planted("input NaN", "input", ""),
    Planted("input inf", "input", "", optimizer="momentum"),
    Planted("label NaN", "label", ""),
    Planted("activation log-1", "activation", "body.1"),
    Planted("activation divide-2", "activation", "body.2", optimizer="momentum"),
    Planted("activation overflow-0", "activation", "body.0"),
    Planted("activation log-3", "activation", "body.3"),
    Planted("loss log", "loss", ""),
    Planted("loss divide", "loss", "", optimizer="momentum"),
    Planted("backward root-1", "gradient", "body.1", optimizer="adamw"),
)


def train(planted: Planted, device: str) -> None:
    """A short training in which something breaks; it goes on for a few steps, as a program does that does not look."""
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = _OPTIMIZERS[planted.optimizer](model.parameters())
    what, _, rest = planted.name.partition(" ")
    where, _, how = rest.rpartition(" ")
    bad = math.inf if how == "inf" else math.nan
    named = dict(model.named_parameters())
    for step in range(STEPS):
        is_now = step == AT
        inputs, targets = torch.randn(16, 1, 8, 8, device=device), torch.randn(16, 10, device=device)
        model.trouble = rest if is_now and what in ("activation", "backward") else ""
        if is_now and what == "weight":
            with torch.no_grad():
                named[where].view(-1)[3] = bad
        if is_now and what == "input":
            inputs[2, 0, 3, 3] = bad
        if is_now and what == "label":
            targets[2, 3] = bad
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        if is_now and what == "loss":
            loss = loss + torch.log(loss * 0 - 1) if rest == "log" else loss * 0 / (loss * 0)
        loss.backward()
        if is_now and what == "gradient":
            gradient = named[where].grad
            assert gradient is not None
            gradient.view(-1)[3] = bad
        optimizer.step()
        if device == "cuda":
            time.sleep(0.03)  # as long as steps are on a GPU: short ones are read rarely


def said(path: Path) -> tuple[str, str, int, str]:
    """Kind, layer and step of the origin as the diagnosis names them, and its title."""
    found = [one for one in stethos.diagnose(path).findings if one.name.startswith("non-finite")]
    if not found:
        return "nothing", "", -1, ""
    first = found[0]
    kind = first.detail.get("origin") or _NAMES.get(first.name, "loss")
    return kind, first.subject.layers[0] if first.subject.layers else "", first.detail["step"], first.title


def tried(device: str, only: str = "") -> Iterator[tuple[Planted, tuple[str, str, int, str], bool]]:
    for planted in PLANTED:
        if only and only not in planted.name:
            continue
        with tempfile.TemporaryDirectory(prefix="stethos-nan-", ignore_cleanup_errors=True) as scratch:
            with stethos.watch(dir=scratch, name="planted") as watch:
                train(planted, device)
            assert watch.path is not None
            answer = said(Path(watch.path))
        kind, layer, step, _ = answer
        yield planted, answer, kind == planted.kind and step == planted.step and planted.layer in layer


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nan_origins", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", default="", help="a part of a name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.device == "cuda":
        Kernels(Guard(strict=True).run).compile(torch.float32)  # the trainings are shorter than that takes
    right = 0
    for planted, (kind, layer, step, title), is_right in tried(arguments.device, arguments.only):
        right += is_right
        mark = "" if is_right else f"   expected {planted.kind} {planted.layer} at step {planted.step}: {title}"
        print(f"{planted.name:28} {planted.optimizer:9} {kind:10} {layer:15} step {step}{mark}", flush=True)
    print(f"{right} right", file=sys.stderr)


if __name__ == "__main__":
    main()
