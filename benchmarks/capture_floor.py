"""How far consecutive global models can be compressed without loss: what is left is noise, and noise stays."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from benchmarks.report import Grid
from stethos import lab
from stethos.replay.codec import pack
from stethos.replay.tensorfile import shape_of_file

Vector = npt.NDArray[np.float32]
_ROUNDS = 24


def floor_grid() -> Grid:
    """Models of a federation in four conditions: ratio reached, and that of an ideal coder of the same differences."""
    quick, slow = _models(lr=0.1), _models(lr=0.002)
    half = len(quick[0]) // 2
    frozen = [np.concatenate([quick[0][:half], one[half:]]) for one in quick]
    rows = [
        ["float32, first rounds", *_float32(quick[:8])],
        ["float32, last rounds", *_float32(quick[-8:])],
        ["float32, small steps", *_float32(slow[-8:])],
        ["float32, half of it frozen", *_float32(frozen[-8:])],
        ["bfloat16, last rounds", *_bfloat16(quick[-8:])],
        ["bfloat16, small steps", *_bfloat16(slow[-8:])],
    ]
    notes = [
        "digits, mlp: each model predicted from the two after it. `Noise`: bits of the difference, of a weight's 32, "
        "that an ideal coder must keep when it knows how differences of each exponent are spread. "
        "`Not foreseen`: mean size of the difference over that of the weights. "
        "Half of the bytes would be 16 bits: for that it must be below 0.2 %.",
    ]
    headings = ["models", "change of a round", "not foreseen", "noise", "x raw, ideal", "x raw, reached"]
    return Grid("Captures: how far models can be compressed", headings, rows, notes)


def _models(*, lr: float) -> list[Vector]:
    found: list[Vector] = []
    lab.federate(
        "digits", model="mlp", clients=10, rounds=_ROUNDS, lr=lr, engine="stacked", observe=False,
        each_round=lambda exchange: found.append(exchange.current.numpy().copy()),
    )  # fmt: skip
    return found


def _float32(models: list[Vector]) -> list[str]:
    moved, missed, bits, ideal, reached = [], [], [], [], []
    for wanted, first, second in zip(models, models[1:], models[2:], strict=False):
        way, apart = (first - second).astype(float), wanted.astype(float) - first
        predicted = first + (first - second) * np.float32((apart * way).sum() / max(float((way**2).sum()), 1e-30))
        steps = _places(wanted) - _places(predicted)
        folded = np.where(steps < 0, -2 * steps - 1, 2 * steps)
        length = np.where(folded > 0, np.floor(np.log2(np.maximum(folded, 1))) + 1, 0).astype(int)
        exponent = ((predicted.view(np.uint32) >> 23) & 255).astype(int)
        told = sum((exponent == one).mean() * _entropy(length[exponent == one]) for one in np.unique(exponent))
        noise = told + np.maximum(length - 1, 0).mean()
        size = float(np.abs(wanted).mean())
        moved.append(np.abs(wanted - first).mean() / size)
        missed.append(np.abs(wanted - predicted).mean() / size)
        bits.append(noise)
        ideal.append(noise / 32)
        reached.append(_ratio(wanted, first, second))
    return [
        f"{np.mean(moved):.2%}", f"{np.mean(missed):.2%}", f"{np.mean(bits):.1f} bits", f"{np.mean(ideal):.2f}",
        f"{np.mean(reached):.2f}",
    ]  # fmt: skip


def _bfloat16(models: list[Vector]) -> list[str]:
    """Rounded to bfloat16, as a model of that type has it; the ratio is to its own two bytes a weight."""
    short = [((one.view(np.uint32) + 0x8000) >> 16).astype(np.uint16) for one in models]
    moved = np.mean([(one != two).mean() for one, two in itertools.pairwise(short)])
    reached = [_ratio(*three) for three in zip(short, short[1:], short[2:], strict=False)]
    return [f"{moved:.0%} of weights", "", "", "", f"{np.mean(reached):.2f}"]


def _ratio(wanted: npt.NDArray[np.generic], *bases: npt.NDArray[np.generic]) -> float:
    files = [shape_of_file({"w": one}).file_of([one]) for one in (wanted, *bases)]
    packed = pack(files[0], [(str(place), base) for place, base in enumerate(files[1:])])
    return (len(files[0]) if packed is None else len(packed)) / len(files[0])


def _places(values: Vector) -> npt.NDArray[np.int64]:
    bits = values.view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def _entropy(values: npt.NDArray[np.int64]) -> float:
    shares = np.bincount(values) / len(values)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())
