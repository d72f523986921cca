"""Names the kind of fault of each client, with a calibrated probability.

Small networks, trained on some thousands of federations of the lab with known faults; `benchmarks/faults/train_*.py`
make them, and say on which data and seeds. The first ones see the traits of a client over a stretch of rounds:
numbers without units, compared with the other clients. The reviewers see what the first ones say of several stretches,
before and after the likely faulty were left out of the comparison, and of the other clients (`opinion.py`). What is
certain (a NaN, an update of zeros, a copy of the last global change) is judged by exact rules instead.
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
class Network:
    """Layers of weights and biases with rectifiers between them."""

    layers: tuple[tuple[Array, Array], ...]

    def shares(self, signal: Array) -> Array:
        """A row per client, a column per kind; rows add up to one."""
        for number, (weight, bias) in enumerate(self.layers):
            signal = signal @ weight.T + bias
            if number < len(self.layers) - 1:
                signal = np.maximum(signal, 0.0)
        signal = np.exp(signal - signal.max(1, keepdims=True))
        shares: Array = signal / signal.sum(1, keepdims=True)
        return shares


@dataclass(frozen=True, eq=False)
class Member:
    """One network of the first ones, and how traits are scaled for it."""

    middle: Array
    scale: Array
    network: Network

    def probabilities(self, values: Array) -> Array:
        """A trait that is not known counts as typical."""
        scaled = (np.where(np.isnan(values), self.middle, values) - self.middle) / self.scale
        return self.network.shares(
            np.concatenate([np.clip(scaled, -_FAR, _FAR), np.isnan(values).astype(float)], axis=1)
        )


@dataclass(frozen=True, eq=False)
class Judge:
    """Networks that began differently, and decide together: their mean is the verdict."""

    kinds: tuple[str, ...]
    names: tuple[str, ...]
    members: tuple[Member, ...]
    reviewers: tuple[Network, ...]

    def probabilities(self, traits: Traits) -> Array:
        """The first opinion: a row per client, a column per kind."""
        values = traits.values[:, [traits.names.index(name) for name in self.names]]
        mean: Array = np.mean([member.probabilities(values) for member in self.members], axis=0)
        return mean

    def reviewed(self, signal: Array) -> Array:
        """The last word, from what `opinion.signal_of` makes of first opinions; rows and columns as above."""
        mean: Array = np.mean([one.shares(signal) for one in self.reviewers], axis=0)
        return mean


@cache
def load_judge() -> Judge:
    """The judge that comes with the package."""
    text = files("stethos.diagnose.federated").joinpath("judge.json").read_text(encoding="utf-8")
    return judge_in(json.loads(text))


def judge_in(value: dict[str, Any]) -> Judge:
    members = tuple(
        Member(np.array(one["middle"]), np.array(one["scale"]), _network_in(one["layers"])) for one in value["members"]
    )
    reviewers = tuple(_network_in(layers) for layers in value.get("reviewers", []))
    return Judge(tuple(value["kinds"]), tuple(value["names"]), members, reviewers)


def _network_in(layers: list[Any]) -> Network:
    return Network(tuple((np.array(weight), np.array(bias)) for weight, bias in layers))
