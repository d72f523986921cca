"""Who can repeat what a federation did: train a client, aggregate, evaluate.

The lab has a workshop for its own runs; a loop of the user's makes one of its own functions (`OwnWorkshop`).
"""

from __future__ import annotations

import bdb
import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stethos.errors import ReplayError, UsageError
from stethos.guard import tried
from stethos.replay import chance
from stethos.replay.average import Average, averages_of, is_finite, median_of

if TYPE_CHECKING:
    from torch import Tensor

    from stethos.replay.bundle import Bundle
    from stethos.replay.remedy import Remedy

State = dict[str, "Tensor"]
Past = Callable[[int], State]  # the global model after a round; 0 is before the first


@dataclass(frozen=True, eq=False, slots=True)
class Sent:
    """What a client sent: by its recorded update, or by a repetition of its training."""

    client: str
    state: State
    samples: int | None = None
    losses: tuple[float, ...] | None = None
    order: str | None = None
    delta: State | None = None  # where it sent a change instead: `state` has it added


class Workshop(Protocol):
    """Repeats a federation's work; `aggregate` also gives what the server remembers for the next round."""

    def train(self, round: int, client: str, past: Past) -> Sent: ...
    def aggregate(
        self, round: int, current: State, sent: Sequence[Sent], memory: State
    ) -> tuple[State, State]: ...  # fmt: skip
    def evaluate(self, state: State) -> Mapping[str, float]: ...


class OwnWorkshop:
    """A user's own functions, called with generators, threads and global model as they were in the recording.

    `trainer(state, client, round)` returns the state that the client sends, or that and its
    samples; `evaluator(state)` returns numbers by name, or one number; `aggregator(state, states, samples)`
    returns the new global state. Without an aggregator the usual averages are tried.
    """

    def __init__(
        self, bundle: Bundle, *, trainer: Callable[..., Any] | None = None, evaluator: Callable[..., Any] | None = None,
        aggregator: Callable[..., Any] | None = None, timeout_s: float | None = None,
    ) -> None:  # fmt: skip
        self._bundle = bundle
        self._trainer = trainer
        self._evaluator = evaluator
        self._aggregator = aggregator
        self.timeout_s = timeout_s
        self._average: Average | None = None
        self.entrance = trainer  # where a debugger stops
        self.average = ""  # which of the usual averages reproduces the recorded rounds

    def train(self, round: int, client: str, past: Past) -> Sent:
        if self._trainer is None:
            raise self._lacks("trainer")
        base = {name: value.clone() for name, value in past(round - 1).items()}
        states = self._bundle.random_states(round, client) if self._has_random_states(round, client) else None
        with chance.restored(states), threads(self._bundle.settings.get("threads")):
            made = called(f"the trainer of client {client!r}", self.timeout_s, self._trainer, base, client, round)
        state, samples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(state, Mapping):
            raise ReplayError(f"the trainer returned a {type(state).__name__}", hint="return a state dict")
        if samples is None and client in self._bundle.clients(round):
            samples = self._bundle.turn(round, client).get("samples")
        return Sent(client, {name: value.detach() for name, value in state.items()}, samples)

    def aggregate(self, round: int, current: State, sent: Sequence[Sent], memory: State) -> tuple[State, State]:
        """With the corrections of the round; a rollback is repeated if nobody is left out, or the result not finite."""
        remedy = self._bundle.remedy(round)
        is_whole = {one.client for one in sent} >= set(self._bundle.clients(round))
        sent = treated(remedy, current, sent)
        if not sent:
            return current, memory
        if remedy.is_robust:
            made, kept = median_of(sent), memory
        else:
            made, kept = self._combined(round, current, sent)
        if remedy.is_rolled_back and (is_whole or not is_finite(made)):
            made = current
        return made, kept

    def _combined(self, round: int, current: State, sent: Sequence[Sent]) -> tuple[State, State]:
        if self._aggregator is not None:
            states, samples = [one.state for one in sent], [one.samples for one in sent]
            with chance.restored(None), threads(self._bundle.settings.get("threads")):
                made = called("the aggregator", self.timeout_s, self._aggregator, dict(current), states, samples)
            if not isinstance(made, Mapping):
                raise ReplayError(f"the aggregator returned a {type(made).__name__}", hint="return a state dict")
            return {name: value.detach() for name, value in made.items()}, {}
        if self._average is None:
            self._find_average(round)
        assert self._average is not None
        return self._average(current, sent), {}

    def _find_average(self, round: int) -> None:
        """Which of the usual averages gives the recorded global model; the nearest one if none does."""
        from stethos.replay.difference import distance_of

        recorded, current = self._bundle.global_state(round, "after"), self._bundle.global_state(round)
        sent = treated(self._bundle.remedy(round), current, recorded_sent(self._bundle, round))
        found = [(distance_of(average(current, sent), recorded), name, average) for name, average in averages_of(sent)]
        _, self.average, self._average = min(found, key=lambda one: one[0])

    def evaluate(self, state: State) -> Mapping[str, float]:
        if self._evaluator is None:
            raise self._lacks("evaluator")
        with chance.restored(None), threads(self._bundle.settings.get("threads")):
            made = called("the evaluator", self.timeout_s, self._evaluator, dict(state))
        if isinstance(made, Mapping):
            return {str(name): float(value) for name, value in made.items()}
        numbers = list(made) if isinstance(made, tuple) else [made]
        names = ("accuracy",) if len(numbers) == 1 else ("loss", "accuracy")
        return dict(zip(names, map(float, numbers), strict=False))

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


def recorded_sent(bundle: Bundle, round: int, without: frozenset[str] = frozenset()) -> list[Sent]:
    """The updates of a round as they were sent."""
    found = []
    for client in bundle.clients(round):
        if client not in without:
            update = bundle.update(round, client)
            found.append(Sent(client, update.state, update.samples, update.losses, update.order, update.delta))
    return found


def treated(remedy: Remedy, current: State, sent: Sequence[Sent]) -> list[Sent]:
    """The updates as corrections left them in a loop of the user's own: see `stethos.act.aggregate.treated`."""
    found = []
    for one in sent:
        weight, scale = remedy.of(one.client)
        if weight == 0:
            continue
        if scale != 1:
            one = replace(one, state=_scaled(current, one, scale), delta=None)
        if weight != 1:
            one = replace(one, samples=max(1, round((one.samples or 100) * weight)))
        found.append(one)
    return found


def _scaled(current: State, one: Sent, scale: float) -> State:
    delta = one.delta or {}
    return {
        name: value
        if not value.is_floating_point() or name not in current
        else current[name] + (delta[name] if name in delta else value - current[name]) * scale
        for name, value in one.state.items()
    }


def past_of(bundle: Bundle) -> Past:
    """The recorded global models."""

    def past(number: int) -> State:
        rounds = bundle.rounds
        return bundle.global_state(number + 1) if number + 1 in rounds else bundle.global_state(number, "after")

    return past


def function_named(text: str) -> Callable[..., Any]:
    """`module:function`, imported from where the user is; a file's path may stand for the module."""
    place, _, name = text.partition(":")
    if not place or not name:
        raise UsageError(f"not a function: {text!r}", hint="write module:function, such as train:local_training")
    if place.endswith(".py"):
        path = Path(place).absolute()
        sys.path.insert(0, str(path.parent))
        place = path.stem
    elif "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(place)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot import {text}: {error}", hint="the module must be importable from here") from None
    if not callable(found):
        raise UsageError(f"{text} is a {type(found).__name__}", hint="name a function")
    made: Callable[..., Any] = found
    return made


@contextlib.contextmanager
def threads(count: Any) -> Iterator[None]:
    """Sums depend on how many threads share them: as many as in the recording."""
    import torch

    before = torch.get_num_threads()
    if isinstance(count, int) and 0 < count <= 1024:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def called(what: str, timeout_s: float | None, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's; ReplayError with its last line if it raises, or if it takes too long."""
    with _deadline(what, timeout_s):
        made, error = tried(function, *args)
    if error is not None:
        raise error if isinstance(error, ReplayError | bdb.BdbQuit) else failure_of(what, error) from error
    return made


def failure_of(what: str, error: Exception) -> ReplayError:
    """The error of a function of the user's, with the line that raised it."""
    import traceback

    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" at {last[0].filename}:{last[0].lineno}" if last else ""
    words = f"{what} raised {type(error).__name__}: {str(error)[:500]}{where}"
    return ReplayError(words, hint="look at it in `stethos debug` with the commands in and pdb")


@contextlib.contextmanager
def _deadline(what: str, timeout_s: float | None) -> Iterator[None]:
    """Raise out of code that does not come back; only the main thread can be told."""
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise ReplayError(f"{what} did not come back within {timeout_s:g} s", hint="allow more with --timeout SECONDS")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
