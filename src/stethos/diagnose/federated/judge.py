"""Names the kind of fault of each client, with a calibrated probability.

Small networks, trained on some thousands of federations of the lab with known faults; `benchmarks/faults/train_*.py`
make them, and say on which data and seeds. The first ones see the traits of a client over a stretch of rounds:
numbers without units, compared with the other clients. The reviewers see what the first ones say of several stretches,
before and after the likely faulty were left out of the comparison, and of the other clients (`Opinions`). What is
certain (a NaN, an update of zeros, a copy of the last global change) is judged by exact rules instead.

A backdoor shows best in the first rounds, until the global model has learnt it; a fault that begins late, in the last
ones. Several faulty clients make each other look ordinary, so those that are most likely faulty are
left out of what counts as typical, and everybody is looked at again. And faults seldom come in many kinds at once: what
the others are accused of is part of the evidence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from stethos.diagnose.federated.cohort import Cohort
from stethos.diagnose.federated.trait import Signals, Traits

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
HONEST = "honest"
_FAR = 6.0
PERIOD = 12  # rounds that are looked at together
_WARM_UP = 2  # rounds before the global model can be relied on
_SHORT = 4
_LEFT_OUT = 0.8  # probability from which a client says no longer what is typical
_EARLY_DOUBT = 0.08  # the first rounds must be so much surer
_MOST_LEFT_OUT = 0.4  # of the clients
_LEAST = 1e-3
_MOST_OTHERS = 8.0
_MANY_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Network:
    """Layers of weights and biases with rectifiers between them."""

    layers: tuple[tuple[Array, Array], ...]

    def shares(self, signal: Array) -> Array:
        """A row per client, a column per kind; rows add up to one. Of very many rows, in single precision."""
        precision = np.float32 if len(signal) > _MANY_ROWS else np.float64
        signal = signal.astype(precision, copy=False)
        for number, (weight, bias) in enumerate(self.layers):
            signal = signal @ weight.T.astype(precision, copy=False) + bias.astype(precision, copy=False)
            if number < len(self.layers) - 1:
                signal = np.maximum(signal, 0.0)
        signal = np.exp(signal - signal.max(1, keepdims=True))
        shares: Array = (signal / signal.sum(1, keepdims=True)).astype(np.float64, copy=False)
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
        """The last word, from what `signal_of` makes of first opinions; rows and columns as above."""
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


# What it says over several stretches of a period ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opinions:
    """Probabilities of the kinds, honesty first, a row per client; `shorts` has a table per short stretch, last first.

    `traits` are those of the whole period, and `signals` what they were made of.
    """

    whole: Array
    early: Array
    first: Array
    shorts: Array
    traits: Traits
    signals: Signals

    @property
    def worst(self) -> Array:
        """What the short stretch says in which a client looks worst."""
        worst: Array = self.shorts[self.shorts[:, :, 0].argmin(0), np.arange(self.shorts.shape[1])]
        return worst

    @property
    def usual(self) -> Array:
        usual: Array = np.exp(np.log(self.shorts + _LEAST).mean(0))
        return usual

    @property
    def suspicion(self) -> Array:
        """How likely each client is faulty, by the stretch that says most."""
        settled = np.maximum(1 - self.whole[:, 0], 1 - self.worst[:, 0])
        return np.maximum(settled, 1 - self.early[:, 0] - _EARLY_DOUBT)


def opinions_on(cohort: Cohort, judge: Judge, is_broken: Mask) -> tuple[Opinions, Opinions]:
    """Of all clients against all, and against those that do not look faulty.

    `is_broken` are clients that broke an exact rule; they never say what is typical.
    """
    broken = _some(is_broken.astype(float))
    before = _opinions(Signals(cohort, ~broken), len(cohort), judge)
    left_out = _some(np.where(is_broken, 1.0, before.suspicion))
    if (left_out == broken).all():
        return before, before
    return before, _opinions(Signals(cohort, ~left_out), len(cohort), judge)


def signal_of(cohort: Cohort, before: Opinions, after: Opinions) -> Array:
    """What the reviewers see: a row per client."""
    clients = len(cohort.clients)
    said = [
        np.log(np.maximum(table, _LEAST)) / 3
        for one in (before, after)
        for table in (one.whole, one.worst, one.usual, one.shorts[0], one.early, one.first)
    ]
    of_all = (after.whole + after.worst + after.early + before.worst)[:, 1:] / 4
    context = [np.log(clients) / 3, np.log(len(cohort)) / 3, float(cohort.rounds[0] <= 1)]
    return np.concatenate([*said, _others(of_all), np.tile(context, (clients, 1))], axis=1)


def _opinions(signals: Signals, rounds: int, judge: Judge) -> Opinions:
    settled = min(_WARM_UP, rounds - 1)
    shorts = [(stop - _SHORT, stop) for stop in range(rounds, settled + _SHORT - 1, -_SHORT // 2)]
    stretches = [(settled, rounds), (0, min(_SHORT, rounds)), (0, min(2, rounds)), *(shorts or [(settled, rounds)])]
    traits = [signals.over(*stretch) for stretch in stretches]
    joined = Traits(traits[0].names, np.concatenate([one.values for one in traits]), traits[0].pair)
    tables = judge.probabilities(joined).reshape(len(traits), -1, len(judge.kinds))
    return Opinions(tables[0], tables[1], tables[2], tables[3:], traits[0], signals)


def _some(suspicion: Array) -> Mask:
    """Who is left out of what is typical: the likely faulty, but never so many that few are left."""
    left_out: Mask = suspicion >= _LEFT_OUT
    most = int(_MOST_LEFT_OUT * len(suspicion))
    if left_out.sum() > most:
        left_out = np.zeros(len(suspicion), bool)
        left_out[np.argsort(-suspicion, kind="stable")[:most]] = True
    return left_out


def _others(shares: Array) -> Array:
    """For each client and kind, the surest and the sum among the other clients."""
    ordered = np.sort(shares, axis=0)
    surest = np.where(shares >= ordered[-1], ordered[-2], ordered[-1])
    return np.concatenate([surest, np.minimum(shares.sum(0) - shares, _MOST_OTHERS) / 4], axis=1)
