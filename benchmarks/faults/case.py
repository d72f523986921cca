"""One federation with known faults, run in the lab, as the cohort that the detector sees."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stethos import lab
from stethos.diagnose.federated.cohort import Cohort
from stethos.federate.cohort import compare
from stethos.federate.fingerprint import fingerprint_of, global_row
from stethos.federate.history import History
from stethos.federate.sketch import Plan
from stethos.federate.structure import Structure
from stethos.lab.cache import read
from stethos.lab.data import Data
from stethos.lab.result import Exchange, LabResult
from stethos.lab.split import Split

_IMAGES = ("mnist", "fashion-mnist")
_QUANTITIES = (
    "norm", "norm_ratio", "first_ratio", "last_ratio", "cos_centre", "sign_agreement", "cos_last", "cos_self",
    "cos_back", "back_rounds", "zero_share", "input_cos", "input_focus", "odd", "entry_loss", "exit_loss", "samples",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained and what goes wrong; `faults` are (kind, client, strength or None)."""

    data: str
    clients: int
    split: Split
    faults: tuple[tuple[str, int, float | None], ...]
    seed: int
    rounds: int = 12
    samples: int = 300  # of a client, where the data set has that many
    options: dict[str, Any] = field(default_factory=lambda: {"local_epochs": 2, "batch": 32, "lr": 0.1})


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


def play(case: Case) -> Played:
    """Run the federation and read every update as the recorder does."""
    watcher = _Watcher()
    faults = [
        lab.Fault(kind, [client], **({} if strength is None else {"strength": strength}))
        for kind, client, strength in case.faults
    ]
    result = lab.federate(
        _data(case), clients=case.clients, rounds=case.rounds, split=case.split, faults=faults, seed=case.seed,
        engine="stacked", observe=False, each_round=watcher.see, **case.options,
    )  # fmt: skip
    return Played(case, watcher.cohort(), result, watcher.bases, watcher.sent, watcher.layout)


@functools.lru_cache(maxsize=2)
def _images(name: str) -> Any:
    return read(name)


def _data(case: Case) -> str | Data:
    """Small data sets as they are; of large ones as many samples as the clients need, chosen by the seed."""
    if case.data not in _IMAGES:
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
        self._plan: Plan | None = None
        self._history = History()
        self._base: NDArray[np.float32] | None = None
        self._prints: list[Any] = []

    def see(self, exchange: Exchange) -> None:
        self.layout = exchange.layout

        def state(vector: Any) -> dict[str, NDArray[np.float32]]:
            entries = exchange.layout.entries
            return {entry.name: vector[entry.start : entry.end].reshape(entry.shape).numpy() for entry in entries}

        base = state(exchange.current)
        plan = self._plan = self._plan or Plan(Structure.of(base))
        row = global_row(plan, base)
        if self._base is not None:
            self._history.add(fingerprint_of(plan, self._base, base, "global").sketch, self._prints)
        self._base = row
        pairs = zip(exchange.clients, exchange.sent, strict=True)
        self._prints = [fingerprint_of(plan, row, state(vector), client) for client, vector in pairs]
        self.bases.append(exchange.current.numpy().copy())
        self.sent.append(exchange.sent.numpy().copy())
        self.rows.append(self._quantities(exchange, plan))

    def _quantities(self, exchange: Exchange, plan: Plan) -> dict[str, Any]:
        compared = compare(plan, self._prints, self._history)
        records = {record.client: record for record in exchange.records}
        matrices = [n for n, layer in enumerate(plan.structure.layers) if not layer.name.endswith("bias")]
        signs = np.stack([one.signs == 0 for one in self._prints]) @ plan.sign_member
        whole = {
            name: getattr(compared, name)[:, -1]
            for name in ("norm_ratio", "cos_centre", "sign_agreement", "cos_last", "cos_self", "cos_back",
                         "back_rounds", "input_cos", "input_focus")
        }  # fmt: skip
        return whole | {
            "round": exchange.round,
            "clients": exchange.clients,
            "norm": np.array([one.norm for one in self._prints]),
            "odd": np.array([one.nan[-1] + one.inf[-1] for one in self._prints]),
            "first_ratio": compared.norm_ratio[:, matrices[0]],
            "last_ratio": compared.norm_ratio[:, matrices[-1]],
            "zero_share": signs[:, -1] / plan.sign_member[:, -1].sum(),
            "entry_loss": np.array([records[one].entry_loss for one in exchange.clients], float),
            "exit_loss": np.array([records[one].exit_loss for one in exchange.clients], float),
            "samples": exchange.samples.numpy().astype(float),
            "bias": np.stack([_bias_of(one) for one in self._prints]),
            "labels": exchange.labels,
            "answers": exchange.answers,
        }

    def cohort(self) -> Cohort:
        rows = self.rows
        clients = tuple(sorted({client for row in rows for client in row["clients"]}, key=lambda name: int(name[1:])))
        place = {client: number for number, client in enumerate(clients)}
        shape = (len(rows), len(clients))
        classes = 1 + max(int(max(label.max(), answer.max())) for row in rows for label, answer in _answered(row))
        classes = max(classes, rows[0]["bias"].shape[1])
        matrices = {name: np.full(shape, np.nan) for name in _QUANTITIES}
        confusion, bias = (
            np.full((*shape, classes, classes), np.nan),
            np.full((*shape, rows[0]["bias"].shape[1]), np.nan),
        )
        for number, row in enumerate(rows):
            places = [place[client] for client in row["clients"]]
            for name in _QUANTITIES:
                matrices[name][number, places] = row[name]
            bias[number, places] = row["bias"]
            for column, (label, answer) in zip(places, _answered(row), strict=True):
                confusion[number, column] = 0
                np.add.at(confusion[number, column], (label, answer), 1)
        return Cohort(
            rounds=tuple(row["round"] for row in rows), clients=clients, confusion=confusion, bias=bias, **matrices
        )


def _bias_of(one: Any) -> NDArray[np.float64]:
    return np.asarray(one.output_rows["bias"] if one.output_rows and "bias" in one.output_rows else [np.nan])


def _answered(row: dict[str, Any]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    return list(zip(row["labels"], row["answers"], strict=True))
