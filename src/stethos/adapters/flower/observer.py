"""The federation behind a strategy or a grid: its rounds, and what messages and replies tell of them."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from stethos.act.action import Mode, parse_mode
from stethos.act.correction import Correction
from stethos.adapters.flower.content import (
    ACCURACIES,
    KEY,
    LOSSES,
    SAMPLES,
    bytes_in,
    has_odd,
    message_facts,
    numbers_in,
    plain_numbers,
    refusal_in,
    state_in,
    status_of,
    take_first,
    take_ours,
    words_of,
)
from stethos.adapters.flower.legacy_results import take_results
from stethos.adapters.remote_site import RemoteSites
from stethos.collect.ride import ACKS
from stethos.errors import UpdateMismatchError, UsageError
from stethos.federate.federation import Federation, federation
from stethos.federate.invitation import Invitation
from stethos.federate.round import Round
from stethos.federate.site import Site
from stethos.federate.structure import shape_of
from stethos.guard import attempt
from stethos.observe import boot
from stethos.record.place import boot_id, check_name
from stethos.settings import CaptureMode, Preset, parse_capture, parse_preset

logger = logging.getLogger("stethos.flower")
_FEW = 3
Clocks = tuple[int, int]  # monotonic and wall-clock time, ns


@dataclass(frozen=True, slots=True)
class FlowerChoices:
    """What the user chose; as in `stethos.federation`. `layers` are the names of legacy parameters."""

    name: str = "flower"
    dir: str | Path | None = None
    run: str | None = None
    preset: Preset = "standard"
    overhead: float | None = None
    config: Mapping[str, Any] | None = None
    layers: Sequence[str] = ()
    capture: CaptureMode | None = None
    capture_bytes: int | None = None
    correct: Mode = "off"

    def check(self) -> None:
        """UsageError now, and not in the middle of a training."""
        if not self.name:
            raise UsageError("a federation needs a name")
        parse_preset(self.preset)
        parse_mode(self.correct)
        parse_capture(self.capture)
        if self.run is not None:
            check_name(self.run)


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message on its way: to whom, for what, and when it left."""

    client: str
    is_train: bool
    message_bytes: int
    sent_ns: int
    sent_wall_ns: int


@dataclass(slots=True)
class FlowerRound:
    """The round that is open, and what it still waits for."""

    rnd: Round
    stack: ExitStack
    ours: ConfigRecord
    base: dict[str, Any] | None
    arrays: ArrayRecord | None = None
    selected: int = 0
    asked: dict[str, SentMessage] = field(default_factory=dict)
    evaluation: ExitStack = field(default_factory=ExitStack)


class Observer:
    """Turns what Flower does into rounds; nothing here raises, and without a recording nothing happens.

    Called by the server's main thread, and for legacy strategies by one thread per client.
    """

    def __init__(self, choices: FlowerChoices) -> None:
        choices.check()
        self._choices = choices
        self._federation: Federation | None = None
        self._turn: FlowerRound | None = None
        self.connected: int | None = None
        self.asked: list[str] = []  # clients of a legacy strategy
        self.has_central_evaluation = False
        self._sites = RemoteSites()

    @property
    def current_round(self) -> Round | None:
        return self._turn.rnd if self._turn is not None else None

    # Beginning and ending --------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the recording, or join that of `stethos run`."""
        if self._federation is None:
            choices = self._choices
            self._federation = attempt(
                federation, choices.name, dir=choices.dir, run=choices.run, preset=choices.preset,
                overhead=choices.overhead, config=choices.config, progress=False, correct=choices.correct,
                capture=choices.capture, capture_bytes=choices.capture_bytes,
            )  # fmt: skip

    def close(self, error: BaseException | None = None) -> None:
        """End the open round and the recording, if it began here. Later calls do nothing."""
        self.close_round(error)
        if self._federation is not None:
            attempt(self._federation.close)
            self._federation = None

    def open_round(self, number: int, arrays: Iterable[ArrayRecord] | ArrayRecord | None) -> None:
        self.begin()
        self.close_round()
        self._guarded(self._open_round, number, arrays)

    def _open_round(self, number: int, arrays: Iterable[ArrayRecord] | ArrayRecord | None) -> None:
        session = boot.current_session()
        if self._federation is None or session is None or session.ring is None:
            return
        records = [arrays] if isinstance(arrays, ArrayRecord) else list(arrays or ())
        base = state_in(records, self._choices.layers)
        stack = ExitStack()
        rnd = stack.enter_context(self._federation.round(number, base=base))
        ours = ConfigRecord(dict(rnd.invite("").to_fields()))
        self._turn = FlowerRound(rnd, stack, ours, base, records[0] if len(records) == 1 else None)

    def close_round(self, error: BaseException | None = None) -> None:
        """The round is over; whoever has not answered did not do so in time."""
        turn, self._turn = self._turn, None
        if turn is not None:
            self._guarded(self._note_silent, turn)
            self._guarded(turn.evaluation.close)
            self._guarded(_leave, turn.stack, error)

    def _note_silent(self, turn: FlowerRound) -> None:
        for asked in turn.asked.values():
            if asked.is_train:
                site = turn.rnd.receive(asked.client)
                site.arrived_ns = None
                site.timeout(f"no reply within {(time.monotonic_ns() - asked.sent_ns) * 1e-9:.1f} s")
                site.note(received_bytes=asked.message_bytes)

    # Messages --------------------------------------------------------------------------------------

    def invite(self, messages: Sequence[Message]) -> None:
        """Put our record into messages that are about to leave."""
        if self._turn is not None:
            self._guarded(self._invite, self._turn, messages)

    def _invite(self, turn: FlowerRound, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.has_content():  # a strategy gives all of its messages the same content: ours is a new one
                acks = self._sites.acks(str(message.metadata.dst_node_id))
                ours = ConfigRecord({**turn.ours, ACKS: acks}) if acks else turn.ours
                message.content = RecordDict({**message.content, KEY: ours})

    @staticmethod
    def clocks() -> Clocks:
        return time.monotonic_ns(), time.time_ns()

    def note_sent(self, messages: Sequence[Message], sent_at: Clocks) -> None:
        """Messages have left; only now do they have their ids."""
        if self._turn is not None:
            self._guarded(self._note_sent, self._turn, messages, sent_at)

    def _note_sent(self, turn: FlowerRound, messages: Sequence[Message], sent_at: Clocks) -> None:
        sizes: dict[tuple[int, ...], int] = {}
        for message in messages:
            is_train = message.metadata.message_type.startswith("train")
            records = tuple(map(id, message.content.values()))
            if records not in sizes:
                sizes[records] = bytes_in(message.content)
            client = str(message.metadata.dst_node_id)
            turn.asked[message.metadata.message_id] = SentMessage(client, is_train, sizes[records], *sent_at)
            turn.rnd.asked(client, "train" if is_train else "evaluate")
            turn.selected += is_train
            capture = self._federation.capture if self._federation is not None else None
            if is_train and capture is not None:
                capture.note_turn(client, {"message": message_facts(message)})
        turn.rnd.select(turn.selected)

    def take_reply(self, reply: Message) -> None:
        """A reply has arrived: take our record out of it and note the rest."""
        arrived = self.clocks()
        report = attempt(take_ours, reply.content) if reply.has_content() else None
        if report:
            self._guarded(self._sites.take, str(reply.metadata.src_node_id), report)
        turn = self._turn
        asked = turn.asked.pop(reply.metadata.reply_to_message_id, None) if turn is not None else None
        if turn is not None and asked is not None:
            turn.rnd.answered(asked.client, "train" if asked.is_train else "evaluate")
            take = self._take_update if asked.is_train else self._take_evaluation
            self._guarded(take, turn, asked, reply, dict(report or {}), arrived)

    def _take_update(
        self, turn: FlowerRound, asked: SentMessage, reply: Message, report: dict[str, Any], arrived: Clocks
    ) -> None:
        site = turn.rnd.receive(asked.client, report=report, arrived_ns=arrived[0])
        site.note(received_bytes=asked.message_bytes)
        if reply.has_error():
            reason = reply.error.reason or ""
            trace = reason if "\n" in reason.strip() else None
            site.note(status=status_of(reply.error), error=words_of(reply.error), traceback=trace)
            return
        numbers = numbers_in(reply.content)
        site.tell(
            samples=take_first(numbers, SAMPLES), loss=take_first(numbers, LOSSES),
            accuracy=take_first(numbers, ACCURACIES),
        )  # fmt: skip
        site.note(sent_bytes=bytes_in(reply.content), **_transfer(asked, report, arrived, numbers))
        site.note(metrics=numbers)
        refusal = refusal_in(reply.content)
        if refusal is not None:
            site.note(status="failed", error=refusal)
            return
        state = state_in(reply.content.array_records.values(), self._choices.layers)
        if state is not None:
            self._take_state(turn, site, state)
        site.arrived_ns = arrived[0]

    def take_results(self, results: Sequence[Any], failures: Sequence[Any], records_of: Any) -> None:
        """What a legacy server hands to its strategy, where no grid has carried it."""
        turn = self._turn
        if turn is not None and not turn.selected:
            take = functools.partial(self._take_state, turn)
            self._guarded(take_results, turn.rnd, self.asked, results, failures, self._choices.layers, records_of, take)

    def _take_state(self, turn: FlowerRound, site: Site, state: dict[str, Any]) -> None:
        with _as_client(site.client, turn.rnd.number):
            try:
                site.update(state)
            except UpdateMismatchError as error:  # whether it can be aggregated is for the strategy to say
                logger.warning("round %d: %s", turn.rnd.number, error)
            odd = turn.rnd.odd_layers(site.client)
            if odd:
                counts = ", ".join(f"{nan + inf} of layer {layer}" for layer, nan, inf in odd[:_FEW])
                more = f" and {len(odd) - _FEW} more layers" if len(odd) > _FEW else ""
                given = (
                    "; the model it was given had some, too"
                    if has_odd(turn.base, [layer for layer, _, _ in odd])
                    else ""
                )
                logger.warning(
                    "round %d: client %s sent NaN or infinite values: %s%s%s",
                    turn.rnd.number, site.client, counts, more, given,
                )  # fmt: skip

    def _take_evaluation(
        self, turn: FlowerRound, asked: SentMessage, reply: Message, report: dict[str, Any], arrived: Clocks
    ) -> None:
        session = boot.current_session()
        with _as_client(asked.client, turn.rnd.number):
            if reply.has_error():
                logger.warning(
                    "round %d: client %s did not evaluate: %s", turn.rnd.number, asked.client, words_of(reply.error)
                )
            elif session is not None:
                for name, number in numbers_in(reply.content).items():
                    session.put_metric(name, number)

    # Phases ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def phase(self, name: Literal["select", "aggregate", "evaluate"]) -> Iterator[None]:
        """Time a part of the open round."""
        rnd = self.current_round
        with self.recorded_error(), rnd.phase(name) if rnd is not None else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def recorded_error(self) -> Iterator[None]:
        """An error of the strategy ends the round, then passes on."""
        try:
            yield
        except BaseException as error:
            self.close_round(error)
            raise

    def correction(self) -> tuple[Correction, ArrayRecord] | None:
        """What to do about the replies of the open round, and the model they started from; None if nothing."""
        turn = self._turn
        correcting = self._federation.correcting if self._federation is not None else None
        if turn is None or turn.arrays is None or correcting is None:
            return None
        made = correcting.correction_of(turn.rnd)
        if made is None or not made.is_applied:
            return None
        turn.rnd.note_correction(made.treatments)
        return made, turn.arrays

    def note_median(self) -> None:
        """The median took the place of the strategy's own model."""
        if self._turn is not None:
            self._turn.rnd.note_correction(is_robust=True)

    def is_spoilt(self, arrays: ArrayRecord) -> bool:
        """Whether the strategy's new model must give way to the one before it."""
        turn = self._turn
        correcting = self._federation.correcting if self._federation is not None else None
        state = attempt(state_in, [arrays], self._choices.layers)
        return correcting.must_roll_back(turn.rnd, state) if turn and correcting and state else False

    def open_evaluation(self) -> None:
        if self._turn is not None:
            self._guarded(self._turn.evaluation.enter_context, self._turn.rnd.phase("evaluate"))

    def close_evaluation(self) -> None:
        if self._turn is not None:
            self._guarded(self._turn.evaluation.close)

    def result(self, arrays: Iterable[ArrayRecord] | None) -> None:
        """The new global model; None if the round made none and the old one stays."""
        if self._turn is not None:
            self._guarded(self._result, self._turn, arrays)

    def _result(self, turn: FlowerRound, arrays: Iterable[ArrayRecord] | None) -> None:
        state = turn.base if arrays is None else state_in(arrays, self._choices.layers)
        if state is not None and _shapes(state) == _shapes(turn.base or {}):
            turn.rnd.result(state)

    def evaluated(self, numbers: Mapping[str, object] | None, *, is_central: bool) -> None:
        """Numbers of the new global model, found by the server itself or averaged over clients."""
        if self._turn is not None and numbers:
            self._guarded(self._evaluated, self._turn, numbers, is_central)

    def _evaluated(self, turn: FlowerRound, numbers: Mapping[str, object], is_central: bool) -> None:
        left = plain_numbers(numbers.items())
        loss, accuracy = take_first(left, LOSSES), take_first(left, ACCURACIES)
        known = {"loss": loss, "accuracy": accuracy, **left}
        self.has_central_evaluation |= is_central
        prefix = "clients_" if self.has_central_evaluation and not is_central else ""
        turn.rnd.evaluate(**{f"{prefix}{name}": number for name, number in known.items() if number is not None})

    def _guarded(self, function: Any, *args: Any) -> None:
        session = boot.current_session()
        if session is not None:
            session.guard.run("flower", function, *args)


def observer_of(strategy: object) -> Observer | None:
    """The observer of an observed strategy."""
    observer = getattr(strategy, "stethos_observer", None)
    return observer if isinstance(observer, Observer) else None


@contextlib.contextmanager
def _as_client(client: str, number: int) -> Iterator[None]:
    """Rows in here are marked with a client, though it is the server that writes them."""
    with Invitation("", client, number).marked():
        yield


def _transfer(
    asked: SentMessage, report: Mapping[str, Any], arrived: Clocks, numbers: dict[str, float]
) -> dict[str, float]:
    """Times on the way: apart where both ends read the same clock, else together, among the further numbers."""
    if not {"start_ns", "end_ns"} <= set(report):
        return {}
    at_client_ns = report["end_ns"] - report["start_ns"]
    numbers["transfer_ms"] = (arrived[0] - asked.sent_ns - at_client_ns) * 1e-6
    if not report.get("host") or report["host"] != boot_id():
        return {}
    return {
        "download_ms": max(report["start_ns"] - asked.sent_wall_ns, 0) * 1e-6,
        "upload_ms": max(arrived[1] - report["end_ns"], 0) * 1e-6,
    }


def _shapes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: shape_of(value) for name, value in state.items()}


def _leave(stack: ExitStack, error: BaseException | None) -> None:
    stack.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
