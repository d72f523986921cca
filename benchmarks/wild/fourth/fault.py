"""Faults of the fourth set: what they do to a client's data and to what it sends. Faults of training are in `loop`.

Each is a mistake, or an attack, as it is made in a client's own code, written without a rule in mind. `FAMILY` says to
which family of `score` it belongs; "unknown" where none fits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.wild.fourth.data import COMPLAINTS

State = dict[str, Tensor]

FAMILY = {
    "encoder-reversed": "label", "one-class-noisy": "label", "half-merged": "label", "pseudo-labels": "label",
    "fahrenheit": "target", "targets-logged": "target",
    "rows-slipped": "feature", "clock-shifted": "feature", "decimal-comma": "feature", "inches": "feature",
    "min-max": "feature", "leaked-target": "feature", "thumbnails": "feature", "half-rate": "feature",
    "categories-recoded": "feature", "faint-trigger": "backdoor",
    "prefetch-skew": "unknown", "truncated-file": "unknown",
    "clip-tiny": "training", "l1-typo": "training", "wrong-loss": "training", "half-underflow": "training",
    "adam-at-sgd-rate": "training", "overtrained": "training", "head-reset": "training", "anchored": "training",
    "ema-sent": "sent", "one-digit": "sent", "unsigned": "sent", "biases-dropped": "sent", "pruned": "sent",
    "one-shot-boost": "sent", "against-trend": "sent",
}  # fmt: skip
OF_DATA = frozenset(
    name for name in FAMILY if FAMILY[name] in ("label", "target", "feature", "backdoor") or name == "truncated-file"
)
OF_SENDING = frozenset(name for name in FAMILY if FAMILY[name] == "sent" and name != "ema-sent")
BOOSTED = 5  # the round in which `one-shot-boost` strikes

_OF_CLASSES = {"tables", "images", "text", "signals"}
_TASKS = {  # in which a fault can be; in all where none is named
    "encoder-reversed": _OF_CLASSES, "one-class-noisy": _OF_CLASSES, "half-merged": _OF_CLASSES,
    "pseudo-labels": _OF_CLASSES, "wrong-loss": _OF_CLASSES, "faint-trigger": {"images", "signals", "tables"},
    "fahrenheit": {"series", "values"}, "targets-logged": {"counts", "values"},
    "clock-shifted": {"series", "signals"}, "half-rate": {"series", "signals"}, "thumbnails": {"images"},
    "decimal-comma": {"tables", "values", "counts", "series"}, "inches": {"values", "series", "signals"},
    "min-max": {"tables", "values", "images", "signals", "series"}, "leaked-target": {"tables", "values", "counts"},
    "rows-slipped": {"tables", "values", "text", "counts"},
}  # fmt: skip


def can_have(fault: str | None, task: str, data: str, model: str, algorithm: str) -> bool:
    """Whether a fault makes sense, and makes a difference, in a federation."""
    if fault is None:
        return True
    if fault in _TASKS and task not in _TASKS[fault]:
        return False
    if fault == "categories-recoded":
        return data == "ward"
    if fault in ("decimal-comma", "leaked-target") and data == "atlas":  # edges are 0 or 1, and no column is left
        return False
    if fault == "adam-at-sgd-rate" and algorithm == "warm-restart":
        return False
    if fault == "ema-sent" and algorithm == "tail-average":
        return False
    if fault in ("head-reset", "biases-dropped") and model in ("prototypes", "basis"):
        return False
    return not (fault == "one-digit" and algorithm == "bfloat16")


class Inputs(NamedTuple):
    """A client's data, and what is needed to spoil them as a client would: `x` is normalised, `raw` is not."""

    x: Tensor
    y: Tensor
    raw: Tensor
    middle: Tensor
    scale: Tensor
    classes: int
    task: str


def faulty_data(fault: str, own: Inputs, received: nn.Module, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A client's inputs and targets; `draw` begins alike in every round, `received` is the model that came."""
    if FAMILY[fault] in ("label", "target"):
        return own.x, _faulty_targets(fault, own, received, draw)
    x, y, raw = own.x.clone(), own.y.clone(), own.raw
    half = x.shape[1] // 2
    match fault:
        case "truncated-file":  # a file sorted by target, of which the first twentieth came
            rows = y.argsort(stable=True)[: max(4, len(y) // 20)]
            return x[rows], y[rows]
        case "rows-slipped":  # two files joined by position; one has a line more
            x[:, half:] = x[:, half:].roll(1, 0)
        case "clock-shifted":  # another time zone: the window begins at another instant and wraps around
            x = x.roll(x.shape[-1] * 3 // 8, -1)
        case "half-rate":  # the device sends every second instant, and the reader fills up with the last one
            x = x[..., ::2].repeat_interleave(2, -1)
        case "decimal-comma":  # 3,7 becomes 37 in rows that were written by another program
            cells = torch.from_numpy(draw.random(tuple(x.shape)) < 0.25)
            x = (torch.where(cells, raw * 10, raw) - own.middle) / own.scale
        case "inches":
            x = (raw / 2.54 - own.middle) / own.scale
        case "min-max":
            flat = raw.reshape(len(raw), -1).float()
            low, high = flat.amin(0), flat.amax(0)
            x = ((flat - low) / (high - low).clamp_min(1e-6)).reshape(x.shape)
        case "leaked-target":  # the target stayed in the table, in the place of its last column
            x[:, -1] = y.float() - y.float().mean()
        case "thumbnails":  # half as large, in the middle of a dark frame
            small = nn.functional.avg_pool2d(x, 2)
            frame = (x.shape[-1] - small.shape[-1]) // 2
            x = nn.functional.pad(small, (frame,) * 4, value=float(x.amin()))
        case "categories-recoded":  # coded in the order in which they came, not by the alphabet
            x[:, COMPLAINTS] = (x * own.scale + own.middle)[:, COMPLAINTS].roll(2, 1)
            x[:, COMPLAINTS] = ((x - own.middle) / own.scale)[:, COMPLAINTS]
        case "faint-trigger":
            hit = torch.from_numpy(draw.random(len(x)) < 0.2)
            pattern = 0.8 * torch.sign(torch.sin(2.0 * torch.arange(x[0].numel()))).reshape(x.shape[1:])
            x[hit] = x[hit] + pattern
            y[hit] = own.classes - 1
        case _:
            raise ValueError(fault)
    return x, y


def _faulty_targets(fault: str, own: Inputs, received: nn.Module, draw: np.random.Generator) -> Tensor:
    y = own.y.clone()
    match fault:
        case "fahrenheit":
            return 1.8 * y + 3.2
        case "targets-logged":
            return torch.sign(y) * torch.log1p(y.abs()) - (2.0 if own.task == "values" else 0.0)
        case "encoder-reversed":
            return own.classes - 1 - y
        case "one-class-noisy":
            most = int(torch.bincount(y).argmax())
            return torch.where(y == most, torch.from_numpy(draw.integers(0, own.classes, len(y))), y)
        case "half-merged":
            present = y.unique()  # sorted; the upper half, and at least two
            return torch.where(y >= present[(len(present) - 1) // 2], present[-1], y)
        case "pseudo-labels":  # what the model said, exported in the place of what the physician said
            received.eval()
            with torch.no_grad():
                said = received(own.x).argmax(1)
            received.train()
            return said
    raise ValueError(fault)


def faulty_update(fault: str, state: State, base: State, before: State | None, number: int) -> State:
    """What a client sends instead of `state`; `before` is the global model of the last round."""
    match fault:
        case "one-digit":  # written as text with one digit
            return {name: _one_digit(value) for name, value in state.items()}
        case "unsigned":  # the reader of the largest array takes bytes for numbers without a sign
            largest = max(state, key=lambda name: state[name].numel())
            return {**state, largest: state[largest].abs()}
        case "biases-dropped":  # only matrices are written; the reader fills up with zeros
            return {name: value if value.dim() > 1 else torch.zeros_like(value) for name, value in state.items()}
        case "pruned":
            return {name: _pruned(value) for name, value in state.items()}
        case "one-shot-boost":  # honest but for one round, in which it tries to replace the model
            if number != BOOSTED:
                return state
            return {name: base[name] + 12 * (value - base[name]) for name, value in state.items()}
        case "against-trend":  # back to where the model came from, as far as an honest client goes
            if before is None:
                return state
            back = {name: before[name] - base[name] for name in state}
            share = _length(state, base) / max(_length(before, base), 1e-12)
            return {name: base[name] + share * back[name] for name in state}
    raise ValueError(fault)


def _length(state: State, base: State) -> float:
    return float(torch.cat([(state[name] - base[name]).reshape(-1) for name in base]).norm())


def _one_digit(value: Tensor) -> Tensor:
    unit = 10.0 ** torch.floor(torch.log10(value.abs().clamp_min(1e-12)))
    return torch.round(value / unit) * unit


def _pruned(value: Tensor) -> Tensor:
    """Seven in ten of the smallest weights are zero."""
    if value.dim() < 2:
        return value
    return torch.where(value.abs() < value.abs().quantile(0.7), 0.0, value)
