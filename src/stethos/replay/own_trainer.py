"""A captured federation of the user's own: trained, aggregated and evaluated by the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.errors import ReplayError, UsageError
from stethos.replay import chance
from stethos.replay.average import Average, averages_of, median_of
from stethos.replay.corrections import RoundCorrections
from stethos.replay.history import ClientUpdate, Past, State, is_finite
from stethos.replay.own_function import called, threads
from stethos.replay.trainer import ModelEvaluation, evaluation_in

if TYPE_CHECKING:
    from torch import Tensor

    from stethos.replay.bundle import Bundle


class OwnTrainer:
    """A user's own functions, called with generators, threads and global model as they were in the recording.

    `trainer(state, client, round)` returns the state that the client sends, or that and its samples;
    `evaluator(state)` what `evaluation_in` takes; `aggregator(state, states, samples)` the new global state;
    `predictor(state, x)` scores, a row for each input. Without an aggregator the usual averages are tried.
    """

    reach = 0  # a training begins with the global model alone

    def __init__(
        self, bundle: Bundle, *, trainer: Callable[..., Any] | None = None, evaluator: Callable[..., Any] | None = None,
        aggregator: Callable[..., Any] | None = None, predictor: Callable[..., Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        self._bundle = bundle
        self._functions = {"trainer": trainer, "evaluator": evaluator, "aggregator": aggregator, "predictor": predictor}
        self.timeout_s = timeout_s
        self._average: Average | None = None
        self.entrance = trainer  # where a debugger stops
        self.average = ""  # which of the usual averages reproduces the recorded rounds

    @property
    def can_train(self) -> bool:
        return self._functions["trainer"] is not None

    def train(self, round: int, clients: Sequence[str], past: Past, seed: int = 0) -> list[ClientUpdate]:
        return [self._trained(round, client, past, seed) for client in clients]

    def _trained(self, round: int, client: str, past: Past, seed: int) -> ClientUpdate:
        base = {name: value.clone() for name, value in past(round - 1).items()}
        is_recorded = not seed and self._has_random_states(round, client)
        with chance.restored(self._bundle.random_states(round, client) if is_recorded else None):
            if seed:
                import torch

                torch.manual_seed(int(np.random.default_rng([seed, round, *client.encode()]).integers(2**31)))
            made = self._call("trainer", f"the trainer of client {client!r}", base, client, round)
        state, samples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(state, Mapping):
            raise ReplayError(f"the trainer returned a {type(state).__name__}", hint="return a state dict")
        if samples is None and client in self._bundle.clients(round):
            samples = self._bundle.turn(round, client).get("samples")
        return ClientUpdate(client, {name: value.detach() for name, value in state.items()}, samples)

    def aggregate(
        self, round: int, current: State, updates: Sequence[ClientUpdate], memory: State
    ) -> tuple[State, State]:
        """With the corrections of the round; a rollback is repeated if nobody is left out, or the result not finite."""
        corrections = self._bundle.corrections(round)
        is_whole = {one.client for one in updates} >= set(self._bundle.clients(round))
        updates = corrected(corrections, current, updates)
        if not updates:
            return current, memory
        made = median_of(updates) if corrections.is_robust else self._combined(round, current, updates)
        if corrections.is_rolled_back and (is_whole or not is_finite(made)):
            made = current
        return made, memory if corrections.is_robust else {}

    def _combined(self, round: int, current: State, updates: Sequence[ClientUpdate]) -> State:
        if self._functions["aggregator"] is not None:
            states, samples = [one.state for one in updates], [one.samples for one in updates]
            with chance.restored(None):
                made = self._call("aggregator", "the aggregator", dict(current), states, samples)
            if not isinstance(made, Mapping):
                raise ReplayError(f"the aggregator returned a {type(made).__name__}", hint="return a state dict")
            return {name: value.detach() for name, value in made.items()}
        if self._average is None:
            self._find_average(round)
        assert self._average is not None
        return self._average(current, updates)

    def _find_average(self, round: int) -> None:
        """Which of the usual averages gives the recorded global model; the nearest one if none does."""
        from stethos.replay.difference import distance_of

        bundle = self._bundle
        recorded, current = bundle.global_state(round, "after"), bundle.global_state(round)
        sent = [bundle.update(round, client) for client in bundle.clients(round)]
        sent = corrected(bundle.corrections(round), current, sent)
        found = [(distance_of(average(current, sent), recorded), name, average) for name, average in averages_of(sent)]
        _, self.average, self._average = min(found, key=lambda one: one[0])

    def evaluate(self, state: State) -> ModelEvaluation:
        with chance.restored(None):
            return evaluation_in(self._call("evaluator", "the evaluator", dict(state)))

    def scores(self, state: State, x: Tensor) -> Tensor:
        """A row for each input, by the predictor."""
        import torch

        with chance.restored(None), torch.no_grad():
            found = torch.as_tensor(self._call("predictor", "the predictor", dict(state), x))
        if found.ndim != 2 or len(found) != len(x) or not found.is_floating_point():
            raise ReplayError(
                f"the predictor returned {found.dtype} of the shape {tuple(found.shape)}",
                hint=f"scores before the softmax: floats, {len(x)} rows and a column for each class",
            )
        return found.detach().cpu()

    def sample(self, given: int | np.ndarray[Any, Any]) -> Tensor:
        """One input, as the predictor gets it: with a first dimension of 1."""
        import torch

        if isinstance(given, int):
            raise UsageError(f"--input {given}", hint="the number of a test sample is for the lab: give a file")
        if given.dtype.kind not in "fiu" or not np.isfinite(given).all():
            raise UsageError(f"the input is of the type {given.dtype}", hint="finite numbers")
        return torch.from_numpy(np.ascontiguousarray(given))[None]

    def _call(self, what: str, words: str, *args: Any) -> Any:
        function = self._functions[what]
        if function is None:
            raise self._lacks(what)
        with threads(self._bundle.settings.get("threads")):
            return called(words, self.timeout_s, function, *args)

    def _has_random_states(self, round: int, client: str) -> bool:
        turns = self._bundle.manifest(round)["clients"]
        return any(turn["client"] == client and turn.get("random") for turn in turns)

    def _lacks(self, what: str) -> ReplayError:
        known = self._bundle.settings.get(what)
        facts = known if isinstance(known, Mapping) else {}
        name = facts.get("name")
        if isinstance(name, str) and name.startswith("__main__:") and facts.get("file"):
            name = f"{facts['file']}:{name.partition(':')[2]}"
        return ReplayError(
            f"no {what} was given; a capture holds no code",
            hint=f"the run used {name}: --{what} {name}" if name else f"give one with --{what} module:function",
        )


def corrected(
    corrections: RoundCorrections, current: State, updates: Sequence[ClientUpdate]
) -> list[ClientUpdate]:  # fmt: skip
    """The updates as corrections left them in a loop of the user's own: see `stethos.act.aggregate.treated`."""
    found = []
    for one in updates:
        weight, scale = corrections.of(one.client)
        if weight == 0:
            continue
        if scale != 1:
            one = replace(one, state=_scaled(current, one, scale), delta=None)
        if weight != 1:
            one = replace(one, samples=max(1, round((one.samples or 100) * weight)))
        found.append(one)
    return found


def _scaled(current: State, one: ClientUpdate, scale: float) -> State:
    delta = one.delta or {}
    return {
        name: value
        if not value.is_floating_point() or name not in current
        else current[name] + (delta[name] if name in delta else value - current[name]) * scale
        for name, value in one.state.items()
    }
