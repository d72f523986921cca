"""One federation with known faults, run in the lab, as the cohort that the detector sees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stethos import lab
from stethos.diagnose.federated.cohort import Cohort, cohort_of
from stethos.federate.screening import Screening
from stethos.federate.site import Update
from stethos.lab.cache import place_of, read
from stethos.lab.data import Data
from stethos.lab.result import Exchange, LabResult
from stethos.lab.split import Split

_IMAGES = ("mnist", "fashion-mnist")


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained and what goes wrong, from round `start` on; `faults` are (kind, client, strength or None)."""

    data: str | Data
    clients: int
    split: Split
    faults: tuple[tuple[str, int, float | None], ...]
    seed: int
    rounds: int = 12
    samples: int = 300  # of a client, where the data set has that many
    options: dict[str, Any] = field(default_factory=lambda: {"local_epochs": 2, "batch": 32, "lr": 0.1})
    start: int = 1

    @property
    def data_name(self) -> str:
        return self.data if isinstance(self.data, str) else self.data.name


@dataclass(frozen=True, eq=False)
class Played:
    """The case as the server saw it; `sent` and `bases` are the last rounds' weights, for the baselines."""

    case: Case
    cohort: Cohort
    result: LabResult
    bases: list[NDArray[np.float32]]
    sent: list[NDArray[np.float32]]
    layout: Any

    def flip_share(self, client: str) -> float:
        """The share of a client's data that its label flip concerns; 1 for other faults."""
        for fault in self.result.faults:
            if fault.names == (client,) and fault.kind == "label-flip" and fault.source is not None:
                counts = np.array(self.result.label_counts[client])
                return float(counts[fault.source] / counts.sum())
        return 1.0


def play(case: Case, each_round: Callable[[Exchange], None] | None = None) -> Played:
    """Run the federation and read every update as the recorder does; `each_round` is shown the same."""
    watcher = _Watcher()

    def see(exchange: Exchange) -> None:
        watcher.see(exchange)
        if each_round is not None:
            each_round(exchange)

    faults = [
        lab.Fault(kind, [client], start=case.start, **({} if strength is None else {"strength": strength}))
        for kind, client, strength in case.faults
    ]
    result = lab.federate(
        data_of(case), clients=case.clients, rounds=case.rounds, split=case.split, faults=faults, seed=case.seed,
        engine="stacked", observe=False, each_round=see, **case.options,
    )  # fmt: skip
    return Played(case, watcher.cohort(), result, watcher.bases, watcher.sent, watcher.layout)


@functools.lru_cache(maxsize=2)
def _images(name: str) -> Any:
    return read(name)


def is_here(case: Case) -> bool:
    """Whether the data of a federation are on this machine."""
    return isinstance(case.data, Data) or case.data not in _IMAGES or place_of(case.data).exists()


def data_of(case: Case) -> str | Data:
    """Small data sets as they are; of large ones as many samples as the clients need, chosen by the seed."""
    if isinstance(case.data, Data) or case.data not in _IMAGES:
        return case.data
    images = _images(case.data)
    x, y = images["x"], images["y"]
    count = min(len(y), case.clients * case.samples + 1000)
    chosen = np.random.default_rng([case.seed, 5]).permutation(len(y))[:count]
    scaled = (x[chosen].astype(np.float32) / 255 - 0.29) / 0.33
    return Data.of(scaled, y[chosen].astype(np.int64), name=case.data, test_share=1000 / count, seed=case.seed)


class _Watcher:
    """Turns what the lab's server sees into a cohort, round by round."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.bases: list[NDArray[np.float32]] = []
        self.sent: list[NDArray[np.float32]] = []
        self.layout: Any = None
        self._screening = Screening()

    def see(self, exchange: Exchange) -> None:
        self.layout = exchange.layout

        def state(vector: Any) -> dict[str, NDArray[np.float32]]:
            entries = exchange.layout.entries
            return {entry.name: vector[entry.start : entry.end].reshape(entry.shape).numpy() for entry in entries}

        self.bases.append(exchange.current.numpy().copy())
        self.sent.append(exchange.sent.numpy().copy())
        pairs = zip(exchange.clients, exchange.sent, strict=True)
        updates = [Update(client, state(vector)) for client, vector in pairs]
        self._screening.screen(exchange.round, state(exchange.current), updates, facts_of(exchange))
        self.rows.append(self._screening.history.recent[-1])

    def cohort(self) -> Cohort:
        return cohort_of(self.rows)


def facts_of(exchange: Exchange) -> dict[str, dict[str, Any]]:
    """What each client reports."""
    records = {record.client: record for record in exchange.records}
    told = zip(exchange.clients, exchange.samples.tolist(), exchange.labels, exchange.answers, strict=True)
    return {
        client: {
            "entry_loss": records[client].entry_loss,
            "exit_loss": records[client].exit_loss,
            "samples": samples,
            "confusion": _confusion(labels, answers),
        }
        for client, samples, labels, answers in told
    }


def _confusion(labels: NDArray[np.int64], answers: NDArray[np.int64] | None) -> NDArray[np.float64] | None:
    if answers is None:
        return None
    size = 1 + int(max(labels.max(), answers.max()))
    matrix = np.zeros((size, size))
    np.add.at(matrix, (labels, answers), 1)
    return matrix
