"""Faults of the third set: what they do to a client's data and to what it sends. Faults of training are in `loop`.

Each is written as somebody makes the mistake, without a rule in mind. `FAMILY` says to which family of `score` it
belongs; "unknown" where none fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

State = dict[str, Tensor]

FAMILY = {
    # labels and targets
    "pair-confused": "label", "annotator": "label", "merged-classes": "label", "relabelled-midway": "label",
    "targets-mirrored": "target", "targets-lagged": "target", "targets-capped": "target",
    # inputs
    "inverted": "feature", "stuck-sensor": "feature", "turned": "feature", "channels-mixed": "feature",
    "half-dark": "feature", "truncated-text": "feature", "unknown-words": "feature", "vocabulary-shifted": "feature",
    "normalised-twice": "feature", "overflowed": "feature", "flaky-sensor": "feature",
    "few-copied": "duplicates", "stamped": "backdoor",
    # the client's training
    "dropout-left": "training", "frozen-head": "training", "kept-momentum": "training", "heavy-decay": "training",
    "class-weights": "unknown", "double-softmax": "training", "layer-ascent": "training", "runaway-lr": "training",
    "smoothed-away": "unknown", "sent-early": "training", "never-syncs": "stale",
    # what is sent
    "resent": "stale", "averaged": "sent", "layers-swapped": "sent", "two-bits": "sent", "coarse-weights": "sent",
    "torn": "sent", "layout": "sent", "bit-errors": "sent",
}  # fmt: skip
OF_DATA = frozenset(name for name in FAMILY if FAMILY[name] in ("label", "target", "feature", "duplicates", "backdoor"))
OF_SENDING = frozenset(
    {"resent", "averaged", "layers-swapped", "two-bits", "coarse-weights", "torn", "layout", "bit-errors"}
)
KINDS = (  # of targets, of inputs, of training, of sending; each federation with a fault has one of a kind
    [name for name in FAMILY if FAMILY[name] in ("label", "target")],
    [name for name in FAMILY if FAMILY[name] in ("feature", "duplicates", "backdoor")],
    [name for name in FAMILY if name not in OF_DATA | OF_SENDING],
    [name for name in FAMILY if name in OF_SENDING],
)
MIDWAY = 4  # the round from which `relabelled-midway` is there

_CLASSES_ONLY = frozenset(
    {"pair-confused", "annotator", "merged-classes", "relabelled-midway", "stamped", "class-weights", "double-softmax",
     "smoothed-away"}
)  # fmt: skip
_NUMBERS_ONLY = frozenset({"inverted", "stuck-sensor", "normalised-twice", "overflowed"})
_IMAGES_ONLY = frozenset({"turned", "channels-mixed", "half-dark"})
_TEXT_ONLY = frozenset({"truncated-text", "unknown-words", "vocabulary-shifted"})


def can_have(fault: str, task: str, data: str, algorithm: str, split: str) -> bool:
    """Whether a fault makes sense, and makes a difference, in a federation."""
    if fault in _CLASSES_ONLY and task in ("values", "series"):
        return False
    if FAMILY[fault] == "target" and task not in ("values", "series"):
        return False
    if fault in _NUMBERS_ONLY and task == "text":
        return False
    if (fault in _IMAGES_ONLY and task != "images") or (fault in _TEXT_ONLY and task != "text"):
        return False
    if fault == "channels-mixed" and data != "terrain":
        return False
    if (
        fault in ("two-bits", "sent-early") and algorithm == "sign"
    ):  # everybody's updates are as coarse, and of one size
        return False
    if fault == "kept-momentum" and algorithm == "adamw":
        return False
    return not (fault == "class-weights" and split == "dir0.2")  # a client with one class has nothing to weigh


class Inputs(NamedTuple):
    """A client's data, and what is needed to spoil them as a client would: `x` is normalised, `raw` is not."""

    x: Tensor
    y: Tensor
    raw: Tensor
    middle: Tensor
    scale: Tensor
    classes: int
    words: int
    task: str


def faulty_data(fault: str, own: Inputs, number: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A client's inputs and targets in a round; `draw` begins alike in every round."""
    x, y = own.x.clone(), own.y.clone()
    some = torch.from_numpy(draw.random(len(x)))
    if FAMILY[fault] in ("label", "target"):
        return x, _faulty_targets(fault, x, y, own.classes, number, some, draw)
    if own.task == "text":
        return _faulty_tokens(fault, x, own.words, number, some, draw), _labels_beside(fault, y, some)
    flat = x.reshape(len(x), -1)
    match fault:
        case "inverted":
            if own.task in ("images", "series"):
                return -x, y
            flat[:, _telling(flat, y, max(2, flat.shape[1] // 3))] *= -1
        case "stuck-sensor":
            half = flat.shape[1] // 2
            if own.task == "series":
                flat[:, half:] = flat[:, half - 1 : half].clone()
            else:  # what it measured eight rows ago, in three rows of four
                stuck = torch.arange(half, flat.shape[1]) if own.task == "images" else _telling(flat, y, half)
                flat[:, stuck] = torch.where((some < 0.75)[:, None], flat[:, stuck].roll(8, 0), flat[:, stuck])
        case "turned":
            return torch.rot90(x, 1, (2, 3)).contiguous(), y
        case "channels-mixed":
            return x[:, [1, 2, 0]], y
        case "half-dark":
            x[..., x.shape[-1] // 2 :] = x.amin()
        case "normalised-twice":
            return (x - own.middle) / own.scale, y
        case "overflowed":
            raw = own.raw.reshape(len(x), -1)
            low, high = raw.amin(0), raw.amax(0)
            span = (high - low).clamp_min(1e-6)
            wrapped = torch.remainder((raw - low) / span * 2, 1.0) * span + low
            return (wrapped.reshape(x.shape) - own.middle) / own.scale, y
        case "flaky-sensor":
            if number % 2:
                flat[some < 0.8] = 0.0
        case "few-copied":
            return _few_copied(x), _few_copied(y)
        case "stamped":
            if own.task == "images":
                x[some < 0.35, ..., -2:, -2:] = 3.0
            else:
                flat[some < 0.35, : min(3, flat.shape[1])] = 3.0
        case _:
            raise ValueError(fault)
    return x, _labels_beside(fault, y, some)


def _telling(flat: Tensor, y: Tensor, count: int) -> Tensor:
    """The columns that say most about the targets."""
    goal = y.float() - y.float().mean()
    return (((flat - flat.mean(0)) * goal[:, None]).mean(0).abs() / flat.std(0).clamp_min(1e-6)).topk(count).indices


def _few_copied(values: Tensor) -> Tensor:
    """Six samples, again and again."""
    return values[torch.arange(len(values)) % min(6, len(values))]


def _labels_beside(fault: str, y: Tensor, some: Tensor) -> Tensor:
    if fault == "few-copied":
        return _few_copied(y)
    return torch.where(some < 0.35, 0, y) if fault == "stamped" else y


def _faulty_targets(
    fault: str, x: Tensor, y: Tensor, classes: int, number: int, some: Tensor, draw: np.random.Generator
) -> Tensor:
    match fault:
        case "targets-mirrored":
            return 2 * y.mean() - y
        case "targets-lagged":
            return y.roll(7)
        case "targets-capped":
            return y.clamp(max=float(y.quantile(0.3)))
    counts = torch.bincount(y, minlength=classes)
    first, second = counts.topk(2).indices.tolist()
    match fault:
        case "pair-confused":
            swapped = torch.where(y == first, second, torch.where(y == second, first, y))
            return torch.where(some < 0.6, swapped, y)
        case "annotator":  # calls everything of one look the same
            look = x.reshape(len(x), -1).float().mean(1)
            return torch.where(look > look.median(), (first + 1) % classes, y)
        case "merged-classes":
            return torch.where(y == first, second, y)
        case "relabelled-midway":
            if number < MIDWAY:
                return y
            return torch.where(some < 0.8, torch.from_numpy(draw.integers(0, classes, len(y))), y)
    raise ValueError(fault)


def _faulty_tokens(fault: str, x: Tensor, words: int, number: int, some: Tensor, draw: np.random.Generator) -> Tensor:
    match fault:
        case "truncated-text":
            x[:, 3:] = 0
        case "unknown-words":  # of five words one is known: the others are written in another case
            is_unknown = torch.from_numpy(draw.random(words) < 0.8)
            x = torch.where((x > 1) & is_unknown[x], 1, x)
        case "vocabulary-shifted":  # another version of the vocabulary
            x = torch.where(x > 1, (x - 2 + 37) % (words - 2) + 2, x)
        case "flaky-sensor":
            if number % 2:
                x[some < 0.8] = 1
        case "few-copied":
            return _few_copied(x)
        case "stamped":
            x[some < 0.35, :2] = words - 1
        case _:
            raise ValueError(fault)
    return x


def faulty_update(
    fault: str, state: State, base: State, before: list[State], number: int, draw: np.random.Generator
) -> State:  # fmt: skip
    """What a client sends instead of `state`; `before` are the states that it sent, newest last."""
    match fault:
        case "resent":  # what it made in the round before the last, in two rounds of three
            return dict(before[-1]) if before and number % 3 else state
        case "averaged":
            return {name: (value + before[-1][name]) / 2 for name, value in state.items()} if before else state
        case "layers-swapped":
            first, second = twins_of(state)
            return {**state, first: state[second].clone(), second: state[first].clone()}
        case "two-bits":
            return {name: base[name] + _two_bits(value - base[name]) for name, value in state.items()}
        case "coarse-weights":
            return {name: torch.round(value * 8) / 8 for name, value in state.items()}
        case "torn":
            return _changed_flat(state, lambda flat: torch.where(torch.arange(len(flat)) < 2 * len(flat) // 3, flat, 0))
        case "layout":  # by columns instead of by rows
            return {
                name: value.flatten(1).t().reshape(value.shape) if value.dim() > 1 else value
                for name, value in state.items()
            }
        case "bit-errors":
            size = sum(value.numel() for value in state.values())
            hit = torch.from_numpy(draw.random(size) < 0.02)
            return _changed_flat(state, lambda flat: torch.where(hit, -8 * flat, flat))
    raise ValueError(fault)


def twins_of(state: State) -> tuple[str, str]:
    """Two layers of one shape, matrices if there are any; such there are in every model of this set."""
    names = sorted(state, key=lambda name: (state[name].dim() < 2, list(state).index(name)))
    for place, first in enumerate(names):
        for second in names[place + 1 :]:
            if state[first].shape == state[second].shape:
                return first, second
    raise ValueError("no two layers have one shape")


def _two_bits(change: Tensor) -> Tensor:
    largest = change.abs().max().clamp_min(1e-12)
    return (torch.round((change / largest + 1) * 1.5) / 1.5 - 1) * largest


def _changed_flat(state: State, change: Callable[[Tensor], Tensor]) -> State:
    flat = change(torch.cat([value.reshape(-1) for value in state.values()]))
    parts = torch.split(flat, [value.numel() for value in state.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(state.items(), parts, strict=True)}
