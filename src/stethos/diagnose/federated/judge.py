"""Names the kind of fault of each client, with a calibrated probability, from its traits.

Three small networks (two hidden layers each), trained on some thousands of
federations of the lab with known faults; `benchmarks/faults/train_judge.py`
makes them, and says on which data and seeds. They see traits only:
numbers without units, compared with the other clients. What is certain (a NaN, an update of
zeros, a copy of the last global change) is judged by exact rules instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.trait import Traits

Array = npt.NDArray[np.float64]
HONEST = "honest"
_FAR = 6.0


@dataclass(frozen=True, eq=False)
class Member:
    """One network: how traits are scaled, and its weights."""

    middle: Array
    scale: Array
    layers: tuple[tuple[Array, Array], ...]

    def probabilities(self, values: Array) -> Array:
        """A row per client, a column per kind; a trait that is not known counts as typical."""
        scaled = (np.where(np.isnan(values), self.middle, values) - self.middle) / self.scale
        signal = np.concatenate([np.clip(scaled, -_FAR, _FAR), np.isnan(values).astype(float)], axis=1)
        for number, (weight, bias) in enumerate(self.layers):
            signal = signal @ weight.T + bias
            if number < len(self.layers) - 1:
                signal = np.maximum(signal, 0.0)
        signal = np.exp(signal - signal.max(1, keepdims=True))
        shares: Array = signal / signal.sum(1, keepdims=True)
        return shares


@dataclass(frozen=True, eq=False)
class Judge:
    """Networks that began differently, and decide together: their mean is the verdict."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    members: tuple[Member, ...]

    def probabilities(self, traits: Traits) -> Array:
        """A row per client, a column per kind."""
        values = traits.values[:, [traits.names.index(name) for name in self.names]]
        mean: Array = np.mean([member.probabilities(values) for member in self.members], axis=0)
        return mean


@cache
def load_judge() -> Judge:
    """The judge that comes with the package."""
    text = files("stethos.diagnose.federated").joinpath("judge.json").read_text(encoding="utf-8")
    return judge_in(json.loads(text))


def judge_in(value: dict[str, Any]) -> Judge:
    members = tuple(
        Member(
            middle=np.array(one["middle"]),
            scale=np.array(one["scale"]),
            layers=tuple((np.array(weight), np.array(bias)) for weight, bias in one["layers"]),
        )
        for one in value["members"]
    )
    return Judge(tuple(value["kinds"]), tuple(value["names"]), members)
