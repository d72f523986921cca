"""The server's side, where rounds are made: any strategy, observed."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from stethos.act.action import Mode
from stethos.adapters.flower.correct import corrected_replies, corrected_results, median_of
from stethos.adapters.flower.grid import ObservedGrid
from stethos.adapters.flower.observer import FlowerChoices, Observer, observer_of
from stethos.adapters.flower.waiting import said
from stethos.errors import UsageError
from stethos.guard import attempt
from stethos.settings import CaptureMode, Preset

S = TypeVar("S")
_CentralEvaluation = Callable[[int, ArrayRecord], MetricRecord | None]


def observe_strategy(
    strategy: S,
    *,
    name: str | None = None,
    model: Any = None,
    dir: str | Path | None = None,
    run: str | None = None,
    preset: Preset = "standard",
    overhead: float | None = None,
    config: Mapping[str, Any] | None = None,
    correct: Mode = "off",
    capture: CaptureMode | None = None,
    capture_bytes: int | None = None,
    label: str = "flower",
) -> S:
    """Observe the rounds that a strategy makes; return it, of a class that is a child of its own.

    For strategies of the Message API and for legacy ones. The strategy computes
    what it would have computed, unless `correct` is "on"; where nothing can be recorded it runs as ever. `model` gives
    legacy parameters, which have no names, those of its state dict. The other arguments are those
    of `stethos.federation`; `label` is what the federation is called. Where strategies are wrapped in
    each other, observe the outermost.
    """
    layers = tuple(model.state_dict()) if hasattr(model, "state_dict") else ()
    choices = FlowerChoices(
        label, dir, run if name is None else name, preset, overhead, config, layers, capture, capture_bytes, correct
    )
    observer = Observer(choices)
    if observer_of(strategy) is not None:
        return strategy
    kind: Any = type(strategy)
    if isinstance(strategy, Strategy):
        members = _message_members(kind, observer)
    elif isinstance(strategy, LegacyStrategy):
        members = _legacy_members(kind, observer)
        atexit.register(observer.close)
    else:
        raise UsageError(f"a {kind.__name__} is not a Flower strategy", hint="pass the strategy, such as FedAvg()")
    members.update(stethos_observer=observer, __module__=kind.__module__, __doc__=kind.__doc__)
    strategy.__class__ = type(kind.__name__, (kind,), members)
    return strategy


# Message API ------------------------------------------------------------------------------------------


def _message_members(kind: Any, observer: Observer) -> dict[str, Any]:
    @functools.wraps(kind.start)
    def start(self: Any, grid: Grid, *args: Any, **kwargs: Any) -> Result:
        observer.begin()
        given = _named_arguments(args, kwargs)
        if given.get("evaluate_fn") is not None:
            given["evaluate_fn"] = _observed_evaluation(given["evaluate_fn"], observer)
            observer.has_central_evaluation = True
        try:
            result: Result = kind.start(self, ObservedGrid(grid, self), **given)
        except BaseException as error:
            observer.close(error)
            raise
        observer.close()
        return result

    @functools.wraps(kind.configure_train)
    def configure_train(
        self: Any, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        observer.open_round(server_round, arrays)
        with observer.phase("select"), said(lambda: _waiting(observer, self, "train", server_round)):
            return list(kind.configure_train(self, server_round, arrays, config, grid))

    @functools.wraps(kind.aggregate_train)
    def aggregate_train(
        self: Any, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        with observer.phase("aggregate"):
            correction = observer.correction()
            if correction is not None:
                replies = corrected_replies(list(replies), correction[1], correction[0])
            made: tuple[ArrayRecord | None, MetricRecord | None] = kind.aggregate_train(self, server_round, replies)
            if correction is not None and correction[0].is_robust and (median := median_of(list(replies))) is not None:
                made = (median, made[1])
                observer.note_median()
            if correction is not None and made[0] is not None and observer.is_spoilt(made[0]):
                made = (correction[1], made[1])
        observer.result([made[0]] if made[0] is not None else None)
        return made

    @functools.wraps(kind.configure_evaluate)
    def configure_evaluate(
        self: Any, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        observer.open_evaluation()
        with observer.recorded_error(), said(lambda: _waiting(observer, self, "evaluate", server_round)):
            return list(kind.configure_evaluate(self, server_round, arrays, config, grid))

    @functools.wraps(kind.aggregate_evaluate)
    def aggregate_evaluate(self: Any, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        with observer.recorded_error():
            metrics: MetricRecord | None = kind.aggregate_evaluate(self, server_round, replies)
        observer.close_evaluation()
        observer.evaluated(metrics, is_central=False)
        return metrics

    functions = (start, configure_train, aggregate_train, configure_evaluate, aggregate_evaluate)
    return {function.__name__: function for function in functions}


def _named_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = ("initial_arrays", "num_rounds", "timeout", "train_config", "evaluate_config", "evaluate_fn")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _observed_evaluation(evaluate: _CentralEvaluation, observer: Observer) -> _CentralEvaluation:
    @functools.wraps(evaluate)
    def observed(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        with observer.phase("evaluate"):
            metrics = evaluate(server_round, arrays)
        observer.evaluated(metrics, is_central=True)
        return metrics

    return observed


# Legacy -------------------------------------------------------------------------------------------------


def _legacy_members(kind: Any, observer: Observer) -> dict[str, Any]:
    """A legacy server does not say when it is done: a round ends after evaluation, the recording with the process."""

    @functools.wraps(kind.configure_fit)
    def configure_fit(self: Any, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        observer.open_round(server_round, attempt(_records_of, parameters))
        with observer.phase("select"), said(lambda: _waiting(observer, self, "fit", server_round, client_manager)):
            asked = list(kind.configure_fit(self, server_round, parameters, client_manager))
        _observe_proxies(asked, self)
        observer.asked = [str(proxy.cid) for proxy, _ in asked]
        return asked

    @functools.wraps(kind.aggregate_fit)
    def aggregate_fit(self: Any, server_round: int, results: Any, failures: Any) -> tuple[Any, dict[str, Any]]:
        observer.take_results(results, failures, _records_of)
        with observer.phase("aggregate"):
            correction = observer.correction()
            if correction is not None:
                results = corrected_results(results, correction[1], correction[0])
            made: tuple[Any, dict[str, Any]] = kind.aggregate_fit(self, server_round, results, failures)
        observer.result(attempt(_records_of, made[0]) if made[0] is not None else None)
        return made

    @functools.wraps(kind.evaluate)
    def evaluate(self: Any, server_round: int, parameters: Any) -> tuple[float, dict[str, Any]] | None:
        with observer.phase("evaluate"):
            found: tuple[float, dict[str, Any]] | None = kind.evaluate(self, server_round, parameters)
        if found is not None:
            observer.evaluated({**found[1], "loss": found[0]}, is_central=True)
        return found

    @functools.wraps(kind.configure_evaluate)
    def configure_evaluate(self: Any, server_round: int, parameters: Any, client_manager: Any) -> list[Any]:
        observer.open_evaluation()
        with (
            observer.recorded_error(),
            said(lambda: _waiting(observer, self, "evaluate", server_round, client_manager)),
        ):
            asked = list(kind.configure_evaluate(self, server_round, parameters, client_manager))
        _observe_proxies(asked, self)
        if not asked:
            observer.close_round()
        return asked

    @functools.wraps(kind.aggregate_evaluate)
    def aggregate_evaluate(
        self: Any, server_round: int, results: Any, failures: Any
    ) -> tuple[float | None, dict[str, Any]]:
        with observer.recorded_error():
            made: tuple[float | None, dict[str, Any]] = kind.aggregate_evaluate(self, server_round, results, failures)
        observer.close_evaluation()
        observer.evaluated({**made[1], **({"loss": made[0]} if made[0] is not None else {})}, is_central=False)
        observer.close_round()
        return made

    functions = (configure_fit, aggregate_fit, evaluate, configure_evaluate, aggregate_evaluate)
    return {function.__name__: function for function in functions}


def _records_of(parameters: Any) -> list[ArrayRecord]:
    """Legacy parameters, which are arrays as `numpy.save` writes them."""
    return [ArrayRecord({str(n): Array("", (), "numpy.ndarray", data) for n, data in enumerate(parameters.tensors)})]


def _observe_proxies(asked: list[Any], strategy: object) -> None:
    """The server sends through its proxies of the clients: put an observed grid into them."""
    for proxy, _ in asked:
        grid = getattr(proxy, "grid", None)
        if isinstance(grid, Grid) and not isinstance(grid, ObservedGrid):
            proxy.grid = ObservedGrid(grid, strategy)


# Waiting ------------------------------------------------------------------------------------------------


def _waiting(observer: Observer, strategy: Any, phase: str, number: int, client_manager: Any = None) -> str | None:
    """What a strategy that does not come back from choosing clients waits for; None if for nothing we know."""
    connected = attempt(client_manager.num_available) if client_manager is not None else observer.connected
    connected = connected or 0
    inner = getattr(strategy, "strategy", strategy)  # as strategies that add privacy to another call it
    kind = "clients" if client_manager is not None else "nodes"
    names = (f"min_available_{kind}", f"min_{phase}_{kind}")
    needed = max((value for name in names if isinstance(value := getattr(inner, name, None), int)), default=None)
    if needed is None:
        return f"round {number} waits for clients: {connected} connected"
    return f"round {number} waits: {connected} of {needed} clients connected" if connected < needed else None
