"""The course of a federation: who is asked, who trains from what, what is sent, and the new global model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stethos.act.correction import Correction
from stethos.lab.apply_fault import Sending, apply_update_fault
from stethos.lab.client_data import ClientData
from stethos.lab.clock import VirtualClock
from stethos.lab.corrected import Reply, Reviewer, review, settle
from stethos.lab.data import Data
from stethos.lab.engine import TrainingEngine
from stethos.lab.fault import ClientCrash, Fault
from stethos.lab.flat import FlatState, Layout
from stethos.lab.local import Trained, TrainingTurn
from stethos.lab.observed import RoundLog, SiteLog
from stethos.lab.result import ClientRecord, Exchange, RoundRecord
from stethos.lab.round_outcome import ClientOutcome, round_outcome
from stethos.lab.seed import generator
from stethos.lab.server import Memory, Strategy


@dataclass(frozen=True, eq=False)
class Setup:
    """All that stays as it is from round to round. `faults` are resolved: one client each."""

    data: Data
    client_data: ClientData
    faults: tuple[Fault, ...]
    strategy: Strategy
    participation: float
    epochs: int
    copies: int
    clock: VirtualClock
    seed: int
    each_round: Callable[[Exchange], None] | None
    order: Callable[[int, int, int], Sequence[NDArray[np.int64]]]


class _Past(dict[int, FlatState]):
    """Global models by the round after which they were, fetched when they are asked for."""

    def __init__(self, fetch: Callable[[int], FlatState]) -> None:
        super().__init__()
        self._fetch = fetch

    def __missing__(self, number: int) -> FlatState:
        self[number] = self._fetch(number)
        return self[number]


class Course:
    """Plays round after round with one engine; `state` is the global model, which `model` follows."""

    def __init__(
        self, setup: Setup, model: nn.Module, engine: TrainingEngine, reviewer: Reviewer | None = None
    ) -> None:  # fmt: skip
        self._setup = setup
        self.reviewer = reviewer
        self._correction: Correction | None = None  # of the last round
        self._model = model
        self._engine = engine
        self.layout = Layout.of(model)
        self.state = self.layout.read(model)
        self._state_bytes = self.layout.bytes_of(self.state.counters)
        self._trained = self.layout.parameters
        self._memory: Memory = {}
        self._past: dict[int, FlatState] = {0: self.state}  # by the round after which it was the global model
        self.reach = 1 + max((int(fault.strength) for fault in setup.faults if fault.acts_on == "base"), default=0)

    def play(self, number: int, log: RoundLog) -> RoundRecord:
        """Play one round and report it as it goes."""
        setup = self._setup
        self._correction = None
        chosen = self._chosen(number)
        log.select([f"c{client}" for client in chosen])
        outcome = round_outcome(setup.clock, setup.faults, chosen, number, setup.seed)
        turns = {one.client: self._turn_of(one.client, number, log) for one in outcome.clients if one.status == "ok"}
        self._engine.begin(list(turns.values()))
        records, replies = [], []
        for one in outcome.clients:
            reply = self._turn(one, number, turns.get(one.client), log)
            records.append(reply.record if reply is not None else self._record(one, number))
            if reply is not None:
                replies.append(reply)
        log.server_state(self._memory)
        with log.phase("aggregate"):
            if replies:
                self.state = self._combined(number, replies, log)
                self.layout.write(self.state, self._model)
        self._tell_correction(log)
        self._past[number] = self.state
        self._past.pop(number - 1 - self.reach, None)
        aggregate_ms = setup.clock.timing.aggregate_ms
        log.note(duration_ms=outcome.duration_ms, wait_ms=outcome.wait_ms, aggregate_ms=aggregate_ms)
        loss, accuracy = evaluated(self._model, setup.data.test_x, setup.data.test_y)
        if self.reviewer is not None and replies:
            good = self._past[number - 1]
            settled = settle(self.reviewer, number, good, self.state, loss)
            if settled is not self.state:
                self.state = self._past[number] = settled
                log.note_correction(is_rolled_back=True)
                self.layout.write(settled, self._model)
                loss, accuracy = evaluated(self._model, setup.data.test_x, setup.data.test_y)
        log.evaluate(loss=loss, accuracy=accuracy)
        return RoundRecord(number, loss, accuracy, outcome.duration_ms, outcome.wait_ms, tuple(records))

    # Again --------------------------------------------------------------------------------------------

    def sent_by(
        self, clients: Sequence[int], number: int, past: Callable[[int], FlatState]
    ) -> list[tuple[FlatState, Trained]]:  # fmt: skip
        """What clients send in a round, and how they trained; `past` gives the global model after a round.

        Depends on nothing else: the rounds before need not have been played. Where clients train together, all that
        replied in the round do, so that the bits are the same whoever is asked for.
        """
        self._past = _Past(past)
        self.state = past(number - 1)
        outcome = round_outcome(self._setup.clock, self._setup.faults, self._chosen(number), number, self._setup.seed)
        asked = [one.client for one in outcome.clients if one.status == "ok"]
        if not self._engine.trains_together or not set(clients) <= set(asked):
            asked = list(clients)  # some perhaps for what they would have sent
        turns = {one: TrainingTurn(one, number, self._past[self._base_round(one, number)]) for one in asked}
        self._engine.begin(list(turns.values()))
        found = []
        for client in clients:
            trained = self._engine.result(turns[client])
            found.append((self._sent(turns[client], trained, self._active(client, number)), trained))
        return found

    def combined(
        self, number: int, current: FlatState, sent: Sequence[tuple[int, FlatState]], memory: Memory
    ) -> tuple[FlatState, Memory]:
        """The new global model, and what the server remembers after it."""
        self.state, self._memory = current, dict(memory)
        replies = [
            Reply(ClientRecord(f"c{client}", "ok"), state, self._setup.client_data.labels(client).numpy(), None)
            for client, state in sent
        ]
        new = self._combined(number, replies)
        if self.reviewer is not None:
            new = settle(self.reviewer, number, current, new, math.nan)
        return new, self._memory

    # Parts of a round ---------------------------------------------------------------------------------

    def _tell_correction(self, log: RoundLog) -> None:
        made = self._correction
        if made is not None and made.is_applied:
            log.note_correction(made.treatments, is_robust=made.is_robust)

    def _chosen(self, number: int) -> list[int]:
        everybody = len(self._setup.client_data)
        count = max(1, round(self._setup.participation * everybody))
        draw = generator(self._setup.seed, "participation", number)
        return sorted(draw.permutation(everybody)[:count].tolist())

    def _turn_of(self, client: int, number: int, log: RoundLog) -> TrainingTurn:
        invited = log.invite(f"c{client}") if self._engine.is_elsewhere else None
        base = self._past[self._base_round(client, number)]
        return TrainingTurn(client, number, base, invited.to_fields() if invited is not None else None)

    def _active(self, client: int, number: int) -> list[tuple[int, Fault]]:
        name = f"c{client}"
        return [(place, fault) for place, fault in enumerate(self._setup.faults) if fault.is_active(name, number)]

    def _base_round(self, client: int, number: int) -> int:
        """After which round the model was global that the client starts from; 0 is the initial one."""
        late = [int(fault.strength) for _, fault in self._active(client, number) if fault.acts_on == "base"]
        return max(0, number - 1 - max(late, default=0))

    def _record(self, one: ClientOutcome, number: int) -> ClientRecord:
        kinds = tuple(fault.kind for _, fault in self._active(one.client, number))
        return ClientRecord(f"c{one.client}", one.status, kinds)

    def _turn(self, one: ClientOutcome, number: int, turn: TrainingTurn | None, log: RoundLog) -> Reply | None:
        """A client's turn; None if no update came of it."""
        name = f"c{one.client}"
        try:
            with log.client(name) as site:
                if turn is not None:
                    return self._trained_turn(one, turn, site)
                site.note(peak_bytes=None)  # not this process's memory
                if one.status == "dropped":
                    site.drop("no reply")
                elif one.status == "timeout":
                    site.timeout(f"no reply within {self._setup.clock.deadline_ms:.0f} ms")
                else:
                    raise ClientCrash(f"client {name} crashed in round {number}, as instructed")
        except ClientCrash:
            return None  # recorded where it passed through
        return None

    def _trained_turn(self, one: ClientOutcome, turn: TrainingTurn, site: SiteLog) -> Reply:
        trip = one.trip
        assert trip is not None
        trained = self._engine.result(turn)
        x, y = self._setup.client_data.samples(turn.client, turn.number)
        labels = y.numpy()
        active = self._active(turn.client, turn.number)
        hog = sum(int(fault.strength) for _, fault in active if fault.acts_on == "memory")
        record = ClientRecord(
            client=f"c{turn.client}",
            status="ok",
            faults=tuple(fault.kind for _, fault in active),
            samples=len(labels),
            loss=trained.loss,
            accuracy=trained.accuracy,
            entry_loss=trained.entry_loss,
            exit_loss=trained.exit_loss,
            download_ms=trip.download_ms,
            compute_ms=trip.compute_ms,
            upload_ms=trip.upload_ms,
            wait_ms=one.wait_ms,
            peak_bytes=self._setup.copies * self._state_bytes + x.nbytes + y.nbytes + hog,
            base_round=self._base_round(turn.client, turn.number),
        )
        state = self._sent(turn, trained, active)
        self._report(site, record, trained, labels, trip.total_ms)
        site.trace(losses=trained.losses, order=lambda: self._setup.order(turn.client, turn.number, len(labels)))
        site.update(self.layout.as_dict(state), samples=len(labels), loss=trained.loss, accuracy=trained.accuracy)
        return Reply(record, state, labels, trained.answers, x, trained.state.vector)

    def _report(
        self, site: SiteLog, record: ClientRecord, trained: Trained, labels: NDArray[np.int64], duration_ms: float
    ) -> None:  # fmt: skip
        assert record.samples is not None and record.compute_ms is not None
        if trained.answers is not None:
            site.confusion(labels, trained.answers)
        site.note(
            entry_loss=record.entry_loss,
            exit_loss=record.exit_loss,
            steps=len(trained.losses),
            duration_ms=duration_ms,
            download_ms=record.download_ms,
            compute_ms=record.compute_ms,
            upload_ms=record.upload_ms,
            wait_ms=record.wait_ms,
            samples_per_s=1e3 * record.samples * self._setup.epochs / record.compute_ms if record.compute_ms else None,
            peak_bytes=record.peak_bytes,
            received_bytes=self._state_bytes,
            sent_bytes=self._state_bytes,
            raw_bytes=self._state_bytes,
            base_round=record.base_round,
        )

    def _sent(self, turn: TrainingTurn, trained: Trained, active: Sequence[tuple[int, Fault]]) -> FlatState:
        """What the client sends: its trained state, unless a fault changes it."""
        vector = trained.state.vector
        sending = Sending(self.state.vector, self._past[max(0, turn.number - 2)].vector, self.layout)
        for place, fault in active:
            if fault.acts_on == "update":
                draw = generator(self._setup.seed, "update fault", place, turn.client, turn.number)
                vector = apply_update_fault(fault, vector, sending, draw)
        return FlatState(vector, trained.state.counters)

    def _combined(self, number: int, replies: Sequence[Reply], log: RoundLog | None = None) -> FlatState:
        """The new global state: the strategy's for what is trained, the mean for buffers, the largest counters."""
        sent = torch.stack([reply.state.vector for reply in replies])
        samples = torch.tensor([len(reply.labels) for reply in replies], dtype=torch.float64)
        if self._setup.each_round is not None:
            self._setup.each_round(self._exchange(number, replies, sent, samples))
        strategy = self._setup.strategy
        if self.reviewer is not None:
            screened = log.screened() if log is not None else None
            (sent, samples, strategy), self._correction = review(
                self.reviewer, number, self.layout, self.state.vector, replies, (sent, samples, strategy), screened
            )
            if not len(sent):
                return self.state
        if bool(self._trained.all()):
            vector = strategy.combine(self.state.vector, sent, samples, self._memory)
        else:
            vector = (samples / samples.sum()).to(sent.dtype) @ sent
            vector[self._trained] = strategy.combine(
                self.state.vector[self._trained], sent[:, self._trained], samples, self._memory
            )
        counters = {
            name: torch.stack([reply.state.counters[name] for reply in replies]).amax(dim=0)
            for name in self.state.counters
        }
        return FlatState(vector, counters)

    def _exchange(self, number: int, replies: Sequence[Reply], sent: Tensor, samples: Tensor) -> Exchange:
        return Exchange(
            number,
            tuple(reply.record.client for reply in replies),
            self.state.vector,
            sent,
            samples,
            self.layout,
            tuple(reply.record for reply in replies),
            tuple(reply.labels for reply in replies),
            tuple(reply.answers for reply in replies),
            tuple(reply.inputs for reply in replies),
            tuple(reply.trained for reply in replies),
        )


@torch.no_grad()
def evaluated(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy of the model on these samples."""
    model.eval()
    loss = right = 0.0
    for part, labels in zip(torch.split(x, 4096), torch.split(y, 4096), strict=True):
        scores = model(part)
        loss += float(cross_entropy(scores, labels, reduction="sum"))
        right += float((scores.argmax(dim=1) == labels).sum())
    return loss / len(y), right / len(y)
