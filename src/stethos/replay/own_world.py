"""A captured federation of the user's own as a world: examined, aggregated and trained by the user's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stethos.errors import ReplayError, UsageError
from stethos.replay import chance
from stethos.replay.bundle import Bundle
from stethos.replay.past import Flags, State
from stethos.replay.workshop import OwnWorkshop, Sent, called

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "give an evaluator that returns, for each test sample, whether the answer is right (or that and the labels)"


class OwnWorld:
    """`evaluator(state)` returns booleans, one per test sample, or these and the true classes; `predictor(state, x)`
    scores, a row for each input; the others are those of `OwnWorkshop`."""

    def __init__(
        self, bundle: Bundle, *, evaluator: Callable[..., Any] | None = None,
        trainer: Callable[..., Any] | None = None, aggregator: Callable[..., Any] | None = None,
        predictor: Callable[..., Any] | None = None, timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        self._bundle = bundle
        self._evaluator = evaluator
        self._trainer = trainer
        self._timeout_s = timeout_s
        self._predictor = predictor
        self.workshop = OwnWorkshop(bundle, trainer=trainer, aggregator=aggregator, timeout_s=timeout_s)
        self._labels: np.ndarray[Any, np.dtype[np.int64]] | None = None

    reach = 0  # a training begins with the global model alone

    @property
    def can_train(self) -> bool:
        return self._trainer is not None

    @property
    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The true classes; all -1 where the evaluator does not tell them."""
        if self._labels is None:
            self.right(self._bundle.global_state(self._bundle.rounds[0]))
        assert self._labels is not None
        return self._labels

    def right(self, state: State) -> Flags:
        if self._evaluator is None:
            raise ReplayError("no evaluator was given; a capture holds no code", hint=_HINT)
        with chance.restored(None):
            made = called("the evaluator", self._timeout_s, self._evaluator, dict(state))
        flags, labels = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        found = np.asarray(flags).reshape(-1)
        if found.dtype != np.bool_ or len(found) < 2:
            raise ReplayError(f"the evaluator returned {type(made).__name__}: no booleans, one per sample", hint=_HINT)
        if labels is not None:
            self._labels = np.asarray(labels, np.int64).reshape(-1)
        if self._labels is None or len(self._labels) != len(found):
            self._labels = np.full(len(found), -1, np.int64)
        return found

    def scores(self, state: State, x: Tensor) -> Tensor:
        """A row for each input, by the predictor."""
        import torch

        if self._predictor is None:
            raise ReplayError(
                "no predictor was given; a capture holds no code",
                hint="--predictor module:function: from a state dict and inputs to scores, a row for each input",
            )
        with chance.restored(None), torch.no_grad():
            made = called("the predictor", self._timeout_s, self._predictor, dict(state), x)
        found = torch.as_tensor(made)
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

    def combined(
        self, number: int, base: State, clients: Sequence[str], sent: Sequence[State], samples: Sequence[float]
    ) -> State:
        replies = [Sent(*one) for one in zip(clients, sent, map(round, samples), strict=True)]
        return self.workshop.aggregate(number, base, replies, self._bundle.server_state(number))[0]

    def trained(
        self, first: int, last: int, without: frozenset[str], seed: int, tell: Callable[[int], None]
    ) -> State | None:
        """Seed 0 trains with the captured random states, others with fresh ones."""
        if self._trainer is None:
            return None
        models = {first - 1: self._bundle.global_state(first)}
        memory = self._bundle.server_state(first)
        for number in range(first, last + 1):
            clients = [client for client in self._bundle.clients(number) if client not in without]
            sent = [self._sent(number, client, seed, models[number - 1]) for client in clients]
            current = models[number - 1]
            made, memory = self.workshop.aggregate(number, current, sent, memory) if sent else (current, memory)
            models = {number: made}
            tell(number)
        return models[last]

    def _sent(self, number: int, client: str, seed: int, current: State) -> Sent:
        if not seed:
            return self.workshop.train(number, client, lambda one: current)
        import torch

        with chance.restored(None):
            torch.manual_seed(int(np.random.default_rng([seed, number, *client.encode()]).integers(2**31)))
            base = {name: value.clone() for name, value in current.items()}
            made = called(f"the trainer of client {client!r}", self._timeout_s, self._trainer, base, client, number)  # type: ignore[arg-type]
        state, samples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(state, dict | type(current)) and not hasattr(state, "items"):
            raise ReplayError(f"the trainer returned a {type(state).__name__}", hint="return a state dict")
        samples = samples if samples is not None else self._bundle.turn(number, client).get("samples")
        return Sent(client, {name: value.detach() for name, value in state.items()}, samples)
