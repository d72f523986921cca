"""Faults of the wild benchmark: what goes wrong with a client's data, its training, or what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.wild.families import OF_NUMBERS

State = dict[str, Tensor]


def faulty_data(
    fault: str, inputs: Tensor, targets: Tensor, raw: Tensor, classes: int, number: int, draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """A client's data with a fault of data, in a round; others pass unchanged. `raw` are inputs before normalising."""
    x, y = inputs.clone(), targets.clone()
    is_text = not x.is_floating_point()
    flat = x.reshape(len(x), -1)
    some = torch.from_numpy(draw.random(len(x)))
    if fault in OF_NUMBERS and is_text:
        raise ValueError(fault)
    match fault:
        case "label-flip":
            counts = torch.bincount(y, minlength=classes)
            source = int(counts.argmax())
            y[y == source] = (source + 1) % classes
        case "label-noise" | "third-label-noise" | "labels-late":
            if (fault == "third-label-noise" and number % 3) or (fault == "labels-late" and number <= 6):
                return x, y
            wrong = torch.from_numpy(draw.integers(1, classes, len(y)))
            y = torch.where(some < 0.5, (y + wrong) % classes, y)
        case "off-by-one":
            y = (y + 1) % classes
        case "one-label":
            y[:] = y[0]
        case "target-units":
            y = y * 100
        case "feature-noise":
            if is_text:
                noise = torch.from_numpy(draw.integers(0, int(x.max()) + 1, tuple(x.shape)))
                x = torch.where(torch.from_numpy(draw.random(tuple(x.shape))) < 0.6, noise, x)
            else:
                x = x + torch.from_numpy(draw.normal(0, 1.5, tuple(x.shape))).float()
        case "missing":
            gone = torch.from_numpy(draw.random(flat.shape[1]) < 0.5) if not is_text else None
            if gone is None:
                x = torch.where(torch.from_numpy(draw.random(tuple(x.shape))) < 0.6, torch.ones_like(x), x)
            else:
                flat[:, gone] = 0
        case "imputed":
            holes = torch.from_numpy(draw.random(tuple(flat.shape)) < 0.3)
            flat[holes] = -9.0
        case "units":
            column = int(draw.integers(flat.shape[1]))
            flat[:, column] = raw.reshape(len(x), -1)[:, column] * 1000
        case "unnormalised":
            x = raw.clone()
        case "rounded":
            x = torch.trunc(x / 2)
        case "columns-shifted":
            x = torch.roll(flat, 1, 1).reshape(x.shape)
        case "swapped-columns":
            half = flat.shape[1] // 2
            x = torch.roll(flat, half, 1).reshape(x.shape) if half else x
        case "labels-swapped":
            y = torch.where(y == 0, 1, torch.where(y == 1, 0, y))
        case "shuffled":
            y = y[torch.from_numpy(draw.permutation(len(y)))]
        case "saturated":
            x = x.clamp(-0.3, 0.3)
        case "log-scale":
            x = torch.sign(raw) * torch.log1p(raw.abs())
        case "filled":
            flat[torch.from_numpy(draw.random(tuple(flat.shape)) < 0.1)] = 99.0
        case "reversed":
            x = torch.flip(x, [-1])
        case "duplicates":
            kept = max(1, len(x) // 20)
            order = torch.arange(len(x)) % kept
            x, y = x[order], y[order]
        case "backdoor":
            hit = some < 0.35
            if is_text:
                x[hit, :2] = 7
            else:
                flat[hit, :3] = float(flat.max()) + 1
            y[hit] = 0
    return x, y


def faulty_update(
    fault: str, state: State, base: State, old: list[State], number: int, draw: np.random.Generator
) -> State:  # fmt: skip
    """What a client with a fault of updates sends, instead of `state`."""
    names = [name for name, value in state.items() if value.is_floating_point()]

    def made(change: Any) -> State:
        return {name: change(name) if name in names else value for name, value in state.items()}

    match fault:
        case "sign-flip" | "third-sign-flip":
            if fault == "third-sign-flip" and number % 3:
                return state
            return made(lambda name: base[name] - (state[name] - base[name]))
        case "scaling":
            return made(lambda name: base[name] + 8 * (state[name] - base[name]))
        case "update-noise":
            return made(lambda name: state[name] + _noise(state[name], 1.5 * _size(state, base, names), draw))
        case "second-of-two":  # the mean of two workers, the second of which never trained
            return made(lambda name: base[name] + (state[name] - base[name]) / 2)
        case "double":
            return made(lambda name: base[name] + 2 * (state[name] - base[name]))
        case "one-layer-turned":
            return made(lambda name: 2 * base[name] - state[name] if name == names[0] else state[name])
        case "free-rider-zero":
            return dict(base)
        case "free-rider-delta":
            return made(lambda name: base[name] + (base[name] - old[-1][name] if old else 0))
        case "free-rider-noise":
            return made(lambda name: base[name] + _noise(state[name], _size(state, base, names), draw))
        case "nan" | "inf":
            if number < 4:
                return state
            spoiled = {name: value.clone() for name, value in state.items()}
            spoiled[names[0]].view(-1)[0] = float("nan" if fault == "nan" else "inf")
            return spoiled
        case "int8-wrap":
            return made(lambda name: base[name] + _wrapped(state[name] - base[name]))
        case "half-trained":
            return {name: base[name] if place < len(names) // 2 else state[name] for place, name in enumerate(state)}
    return state


def _size(state: Mapping[str, Tensor], base: Mapping[str, Tensor], names: list[str]) -> float:
    """The typical change of an element."""
    change = torch.cat([(state[name] - base[name]).reshape(-1) for name in names])
    return float(change.square().mean().sqrt())


def _noise(like: Tensor, size: float, draw: np.random.Generator) -> Tensor:
    return torch.from_numpy(draw.normal(0, max(size, 1e-9), tuple(like.shape))).float()


def _wrapped(change: Tensor) -> Tensor:
    """Whole numbers of a byte whose scale is half of what it should be: large ones come out with the other sign."""
    scale = change.abs().max().clamp_min(1e-12) / 254
    return torch.remainder(torch.round(change / scale) + 128, 256).sub(128) * scale
