"""A place in a captured federation: a round, a client in it, a step of its training; and what shall be different."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stethos.errors import CaptureError, QueryError, UsageError
from stethos.replay.bundle import Bundle
from stethos.replay.counterfactual import ChangedRound, Edit, HistoryChange, carry_on, evaluation_of
from stethos.replay.history import ClientUpdate, State, past_of
from stethos.replay.repeat import losses_in
from stethos.replay.steps import model_after_step
from stethos.replay.trainer import Trainer

if TYPE_CHECKING:
    from stethos.store.run import Run

_TABLES = ("rounds", "client_rounds", "updates", "steps")  # a condition is about the first that has its columns


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where to stop: at a round, where a client takes part, or where rows of a table fulfil a condition."""

    round: int | None = None
    client: str | None = None
    condition: str | None = None
    table: str | None = None

    def __str__(self) -> str:
        if self.condition is not None:
            return f"if {self.condition}  (of {self.table})"
        parts = [f"round {self.round}"] if self.round is not None else []
        return " ".join(parts + ([f"client {self.client}"] if self.client is not None else []))


class Cursor:
    """Walks over the rounds of a bundle. A live run is looked at anew with every move."""

    def __init__(self, bundle: Bundle, run: Run, make_trainer: Callable[[], Trainer]) -> None:
        self.bundle = bundle
        self.run = run
        self.round = 0
        self.client: str | None = None
        self.step: int | None = None
        self.breaks: list[Breakpoint] = []
        self.change = HistoryChange()
        self.edits: dict[str, str] = {}  # in words
        self._make_trainer = make_trainer
        self._trainer: Trainer | None = None

    # Where --------------------------------------------------------------------------------------------

    @property
    def words(self) -> str:
        parts = [f"round {self.round}"]
        if self.client is not None:
            parts.append(self.client)
        if self.step is not None:
            parts.append(f"step {self.step}")
        return " ".join(parts)

    def first(self) -> int:
        rounds = self.bundle.rounds
        if not rounds:
            self.bundle.manifest(1)  # says why there is none
            raise CaptureError("no round was captured")
        return rounds[0]

    def clients(self) -> tuple[str, ...]:
        """Those that take part in this round, removed ones too."""
        return self.bundle.clients(self.round)

    def all_clients(self) -> list[str]:
        """Those of any round so far."""
        return list(dict.fromkeys(client for number in self.bundle.rounds for client in self.bundle.clients(number)))

    def goto(self, number: int) -> None:
        self.bundle.manifest(number)
        self.round, self.client, self.step = number, None, None

    def move(self, count: int) -> bool:
        """So many rounds, clients or steps on, or back; False at the end of what there is."""
        if self.step is not None:
            return self._move_step(count)
        if self.client is not None:
            clients = list(self.clients())
            place = clients.index(self.client) + count
            if 0 <= place < len(clients):
                self.client = clients[place]
                return True
            return False
        rounds = self.bundle.rounds
        place = rounds.index(self.round) + count if self.round in rounds else -1
        if 0 <= place < len(rounds):
            self.goto(rounds[place])
            return True
        return False

    def _move_step(self, count: int) -> bool:
        assert self.step is not None
        step = self.step + count
        if 1 <= step <= max(len(self.losses()), 1):
            self.step = step
            return True
        return False

    def enter(self, name: str | None) -> None:
        """From a round to a client, from a client to a step."""
        if self.client is None:
            clients = self.clients()
            if not clients:
                raise UsageError(f"no client sent an update in round {self.round}")
            self.client = self.named(name) if name else clients[0]
        elif self.step is None:
            steps = len(self.losses())
            step = _whole(name, "step") if name else 1
            if steps and not 1 <= step <= steps:
                raise UsageError(f"no step {step}", hint=f"client {self.client} takes {steps} steps")
            self.step = step
        else:
            raise UsageError("a step is as far in as it goes", hint="`pdb` goes on from here")

    def leave(self) -> None:
        if self.step is not None:
            self.step = None
        elif self.client is not None:
            self.client = None
        else:
            raise UsageError("a round is as far out as it goes")

    def named(self, name: str) -> str:
        """A client of this round by its name, or its end."""
        clients = self.clients()
        if name in clients:
            return name
        near = [client for client in clients if client.lstrip("c") == name or client.endswith(name)]
        if len(near) == 1:
            return near[0]
        raise UsageError(f"no client {name!r} in round {self.round}", hint=f"its clients: {', '.join(clients[:20])}")

    # Breaks -------------------------------------------------------------------------------------------

    def add_break(self, text: str) -> Breakpoint:
        """`12`, `c7`, `12 c7`, or `if CONDITION` over the tables."""
        kind, _, rest = text.partition(" ")
        if kind == "if":
            made = Breakpoint(condition=rest.strip(), table=self._table_of(rest.strip()))
        else:
            words = text.split()
            numbers = [word for word in words if word.lstrip("-").isdecimal() and word not in self.all_clients()]
            names = [word for word in words if word not in numbers]
            if not words or len(numbers) > 1 or len(names) > 1:
                raise UsageError(
                    f"no place to break: {text!r}", hint="break 12, break c7, break 12 c7, break if loss > 2"
                )
            known = self.all_clients()
            if names and names[0] not in known and self.bundle.is_finished:
                raise UsageError(f"no client {names[0]!r}", hint=f"clients: {', '.join(known[:20])}")
            made = Breakpoint(round=int(numbers[0]) if numbers else None, client=names[0] if names else None)
        self.breaks.append(made)
        return made

    def _table_of(self, condition: str) -> str:
        if not condition:
            raise UsageError("a condition is missing", hint="break if accuracy < 0.8")
        failures = []
        for table in _TABLES:
            try:
                self.run.rows(f"SELECT round FROM {table} WHERE round = -1 AND ({condition})")
            except QueryError as error:
                failures.append(error)
                continue
            return table
        raise UsageError(f"not a condition: {failures[0].message}", hint="an SQL condition, such as accuracy < 0.8")

    def stops_here(self) -> Breakpoint | None:
        """The first break that this round fulfils; a client's also moves to the client."""
        for one in self.breaks:
            if one.condition is not None:
                if self._is_fulfilled(one):
                    return one
            elif one.round in (None, self.round) and (one.client is None or one.client in self.clients()):
                if one.client is not None:
                    self.client = one.client
                return one
        return None

    def _is_fulfilled(self, one: Breakpoint) -> bool:
        columns = "client" if one.table in ("client_rounds", "updates", "steps") else "NULL"
        query = f"SELECT {columns} FROM {one.table} WHERE round = {self.round} AND ({one.condition}) LIMIT 1"
        rows = self.run.rows(query).values
        if rows and rows[0][0] in self.clients():
            self.client = rows[0][0]
        return bool(rows)

    # What is there ------------------------------------------------------------------------------------

    def evaluation(self) -> Mapping[str, float]:
        return evaluation_of(self.bundle, self.round)

    def losses(self) -> tuple[float, ...]:
        """Of the client's steps."""
        assert self.client is not None
        known = self.bundle.turn(self.round, self.client).get("losses")
        return tuple(known) if isinstance(known, list) else losses_in(self.run, self.round, self.client)

    def names(self) -> dict[str, Any]:
        """What expressions may name here."""
        import numpy as np
        import torch

        found: dict[str, Any] = {
            "np": np, "torch": torch, "round": self.round, "client": self.client, "step": self.step,
            "bundle": self.bundle,
        }  # fmt: skip
        found["before"] = self.bundle.global_state(self.round)
        found["after"] = self.bundle.global_state(self.round, "after")
        found["model"] = found["before"]
        found["updates"] = {
            client: self.bundle.update(self.round, client).state for client in self.bundle.kept(self.round)
        }
        if self.client is not None:
            found["update"] = found["updates"].get(self.client)
        if self.step is not None:
            found["model"], found["gradients"] = self.at_step()
        return found

    def at_step(self) -> tuple[State, State]:
        """The client's weights after this step, and its gradients: trained again up to here."""
        assert self.client is not None and self.step is not None
        return model_after_step(self.trainer, self.round, self.client, past_of(self.bundle), self.step)

    def client_rows(self) -> Iterator[dict[str, Any]]:
        """The clients of the round: what they reported, the length of their update and its direction."""
        kept = set(self.bundle.kept(self.round))
        base = flat(self.bundle.global_state(self.round) if kept else {})
        moves = {client: flat(self.bundle.update(self.round, client).state) - base for client in kept} if kept else {}
        for turn in self.bundle.manifest(self.round)["clients"]:
            client, row = turn["client"], {"client": turn["client"], "status": turn.get("status") or "ok"}
            row |= {"samples": turn.get("samples"), "loss": turn.get("loss")}
            if client in moves and len(moves[client]) == len(base):
                others = [move for name, move in moves.items() if name != client and len(move) == len(base)]
                row["norm"] = float(moves[client].norm())
                row["cosine"] = _cosine(moves[client], sum(_unit(move) for move in others)) if others else math.nan
            marks = ["removed"] if client in self.change.without else []
            marks += [f"edited: {self.edits[client]}"] if client in self.edits else []
            marks += ["suspect"] if client in (self.bundle.manifest(self.round).get("suspects") or ()) else []
            yield row | {"marks": ", ".join(marks)}

    # What if ------------------------------------------------------------------------------------------

    @property
    def trainer(self) -> Trainer:
        if self._trainer is None:
            self._trainer = self._make_trainer()
        return self._trainer

    def remove(self, client: str) -> None:
        self.change = replace(self.change, without=self.change.without | {self.named(client)})

    def restore(self, client: str) -> None:
        name = self.named(client)
        edits = {other: edit for other, edit in self.change.edits.items() if other != name}
        self.change = HistoryChange(self.change.without - {name}, edits)
        self.edits.pop(name, None)

    def edit(self, client: str, kind: str, amount: str | None) -> str:
        """HistoryChange what a client sends: `scale 0.5`, `clip 2.0`, `zero`, `negate`."""
        name = self.named(client)
        made, words = edit_of(kind, amount)
        self.change = replace(self.change, edits={**self.change.edits, name: made})
        self.edits[name] = words
        return words

    def aggregate(self, clients: list[str]) -> tuple[State, Mapping[str, float]]:
        """The recorded updates of these clients alone, with the edits; if none is named, of all that are left."""
        names = [self.named(client) for client in clients] or [
            client for client in self.clients() if client not in self.change.without
        ]
        current = self.bundle.global_state(self.round)
        sent = [self.bundle.update(self.round, client) for client in self.bundle.clients(self.round) if client in names]
        sent = replace(self.change, without=frozenset()).applied(current, sent)
        state, _ = self.trainer.aggregate(self.round, current, sent, self.bundle.server_state(self.round))
        return state, self.trainer.evaluate(state).numbers

    def carried_on(self) -> Iterator[ChangedRound]:
        """From this round to the last captured one with the changes."""
        yield from carry_on(self.bundle, self.trainer, self.round, self.change)

    def train(self) -> ClientUpdate:
        """The client's training of this round, again."""
        assert self.client is not None
        return self.trainer.train(self.round, [self.client], past_of(self.bundle))[0]


def edit_of(kind: str, amount: str | None) -> tuple[Edit, str]:
    """An edit by its name, and in words."""
    if kind == "scale":
        factor = _real(amount, "scale 0.5")
        return lambda base, sent: _moved(base, sent, factor), f"update times {factor:g}"
    if kind == "clip":
        longest = _real(amount, "clip 2.0")
        return lambda base, sent: _clipped(base, sent, longest), f"update no longer than {longest:g}"
    if kind == "zero":
        return lambda base, sent: dict(base), "the global model sent back"
    if kind == "negate":
        return lambda base, sent: _moved(base, sent, -1.0), "update negated"
    raise UsageError(f"no edit {kind!r}", hint="scale FACTOR, clip LENGTH, negate, zero")


def _moved(base: State, sent: State, factor: float) -> State:
    return {
        name: base[name] + factor * (value - base[name]) if value.is_floating_point() else value
        for name, value in sent.items()
    }


def _clipped(base: State, sent: State, longest: float) -> State:
    length = float((flat(sent) - flat(base)).norm())
    return _moved(base, sent, longest / length) if length > longest else dict(sent)


def flat(state: State) -> Any:
    """All floating-point entries of a state in one row."""
    import torch

    parts = [value.reshape(-1).double() for value in state.values() if value.is_floating_point()]
    return torch.cat(parts) if parts else torch.empty(0)


def _unit(move: Any) -> Any:
    """Of length 1, so that a long one does not outvote the others."""
    length = float(move.norm())
    return move / length if length and math.isfinite(length) else move.new_zeros(move.shape)


def _cosine(a: Any, b: Any) -> float:
    length = float(a.norm()) * float(b.norm())
    return float(a @ b) / length if length else math.nan


def _whole(text: str, what: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"no {what} {text!r}", hint=f"a {what} is a whole number")
    return int(text)


def _real(text: str | None, example: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"not a number: {text!r}", hint=f"such as: {example}")
    return value
