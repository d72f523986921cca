"""A federation of the lab as plain JSON, and back: only names that the lab knows, so nothing else is ever called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from stethos.errors import CaptureError, UsageError
from stethos.lab.clock import Timing
from stethos.lab.data import DATASETS, Data
from stethos.lab.fault import Fault
from stethos.lab.model import MODELS, Factory
from stethos.lab.prepare import LabChoices, Prepared
from stethos.lab.server import FedAdam, FedAvg, FedProx, Median, Strategy, TrimmedMean, strategy_of
from stethos.lab.split import IID, Dirichlet, QuantitySkew, Shards, Split, split_of

_SPLITS: dict[str, type] = {kind.__name__: kind for kind in (IID, Dirichlet, Shards, QuantitySkew)}
_STRATEGIES: dict[str, type] = {kind.__name__: kind for kind in (FedAvg, FedProx, FedAdam, Median, TrimmedMean)}
_PLAIN = ("clients", "rounds", "participation", "local_epochs", "batch", "lr", "optimizer", "seed", "engine")
_OWN = "own"
_MOST = 100_000  # clients, rounds, epochs or samples of a batch that a capture may ask for


def spec_of(choices: LabChoices, made: Prepared) -> dict[str, Any]:
    """The choices as JSON; the caller's own data, splits, models and strategies by name alone."""
    return {
        **{name: getattr(choices, name) for name in _PLAIN},
        "data": choices.data if isinstance(choices.data, str) else {_OWN: choices.data.name},
        "data_digest": digest_of(made.task),
        "model": choices.model if isinstance(choices.model, str) else {_OWN: _name(choices.model)},
        "split": _part(split_of(choices.split), _SPLITS),
        "strategy": _part(strategy_of(choices.strategy), _STRATEGIES),
        "timing": asdict(choices.timing),
        "faults": [asdict(fault) for fault in made.faults],
    }


def config_of(choices: LabChoices, task: Data) -> dict[str, Any]:
    """The choices as the run's configuration, for people to read and to compare runs by."""
    return {
        "data": task.name, "clients": choices.clients, "rounds": choices.rounds, "split": str(choices.split),
        "strategy": str(choices.strategy),
        "model": choices.model if isinstance(choices.model, str) else _name(choices.model),
        "participation": choices.participation, "local_epochs": choices.local_epochs, "batch": choices.batch,
        "lr": choices.lr, "optimizer": choices.optimizer, "engine": choices.engine, "seed": choices.seed,
        "timing": asdict(choices.timing),
    }  # fmt: skip


def choices_in(
    spec: Mapping[str, Any], *, data: Data | None = None, model: Factory | None = None, split: Split | None = None,
    strategy: Strategy | None = None,
) -> LabChoices:  # fmt: skip
    """The choices again; what was the caller's own must be given."""
    try:
        for name in ("clients", "rounds", "local_epochs", "batch"):
            if type(spec[name]) is not int or not 0 < spec[name] <= _MOST:
                raise ValueError(f"{name} {str(spec[name])[:80]}")
        return LabChoices(
            data=data or _known("data", spec["data"], DATASETS),
            model=model or _known("model", spec["model"], MODELS),
            split=split or _made("split", spec["split"], _SPLITS),
            strategy=strategy or _made("strategy", spec["strategy"], _STRATEGIES),
            timing=Timing(**spec["timing"]),
            faults=tuple(Fault(**fault) for fault in spec["faults"]),
            **{name: spec[name] for name in _PLAIN},
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, UsageError) as error:
        raise CaptureError(
            f"the settings of the lab cannot be read: {error}", hint="another version wrote them, or they are damaged"
        ) from None


def digest_of(data: Data) -> str:
    """Of every sample and label, to notice other data."""
    digest = hashlib.sha256()
    for tensor in (data.train_x, data.train_y, data.test_x, data.test_y):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _name(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__name__))


def _part(value: object, known: Mapping[str, type]) -> dict[str, Any]:
    kind = type(value).__name__
    if known.get(kind) is not type(value) or not is_dataclass(value):
        return {_OWN: _name(value)}
    return {"kind": kind, **{field.name: getattr(value, field.name) for field in fields(value)}}


def _known(what: str, value: Any, table: Mapping[str, Any]) -> str:
    if isinstance(value, dict) and _OWN in value:
        raise _not_ours(what, value[_OWN])
    if not isinstance(value, str) or value not in table:
        raise ValueError(f"{what} {str(value)[:80]!r}")
    return value


def _made(what: str, value: Any, known: Mapping[str, type]) -> Any:
    if _OWN in value:
        raise _not_ours(what, value[_OWN])
    if value["kind"] not in known:
        raise ValueError(f"{what} {str(value['kind'])[:80]!r}")
    return known[value["kind"]](**{name: number for name, number in value.items() if name != "kind"})


def _not_ours(what: str, name: object) -> CaptureError:
    return CaptureError(
        f"the federation had {what} of its own, {str(name)[:80]!r}, which a capture does not hold",
        hint=f"in Python: stethos.lab.replay.trainer_of(bundle, {what}=...)",
    )
