"""Rounds, clients and updates of any federated loop: `stethos.federation`.

    with stethos.federation("digits", model=global_model) as fed:
        for rnd in fed.rounds(30):
            for client in chosen:
                with rnd.client(client.id) as site:
                    state = client.train(global_model)
                    site.update(state, samples=len(client.data), loss=loss)
            with rnd.phase("aggregate"):
                global_model.load_state_dict(average(rnd.updates))
            rnd.evaluate(loss=test_loss, accuracy=test_accuracy)

Nothing here changes an update or the model, draws a random number, or raises,
but for arguments that make no sense and updates that do not fit the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from stethos.errors import StethosError, UpdateMismatchError, UsageError
from stethos.federate.comparison import History
from stethos.federate.compression import Compressor
from stethos.federate.correcting import Correcting
from stethos.federate.fingerprint import global_row
from stethos.federate.legs import ServerLegs
from stethos.federate.naming import place_of
from stethos.federate.progress import Progress
from stethos.federate.round import Round
from stethos.federate.row import UpdateRows
from stethos.federate.sketch import SketchPlan
from stethos.federate.structure import State, Structure, buffers_of, tables_of
from stethos.federate.thread_patch import THREAD_PATCH
from stethos.observe import boot
from stethos.observe.api import Watch, watch
from stethos.observe.session import Session
from stethos.settings import CaptureMode, Preset, parse_capture

if TYPE_CHECKING:
    from stethos.federate.response import Responder
    from stethos.replay.capture import Capture
    from stethos.store.run import Run


_Function = TypeVar("_Function", bound=Callable[..., Any])


def federation(
    label: str,
    /,
    *,
    name: str | None = None,
    model: Any = None,
    clients: int | None = None,
    config: Mapping[str, Any] | None = None,
    dir: str | Path | None = None,
    run: str | None = None,
    preset: Preset = "standard",
    overhead: float | None = None,
    progress: bool | None = None,
    seed: int = 0,
    read_everything: bool = False,
    respond_to: Sequence[int] | None = None,
    correct: Literal["off", "dry-run", "on"] = "off",
    capture: CaptureMode | None = None,
    capture_bytes: int | None = None,
    measure_compression: bool = False,
) -> Federation:
    """Record a federated training, called `label` in its rows; a context manager.

    `model` is the global model (a module, or a callable that returns its
    state): updates are compared with what it holds when a round begins. `clients` is
    how many there are, if known. `name` (the run's), `dir`, `preset`, `overhead` and `config` are those of
    `watch`; `run` is an older word for `name`. `read_everything` reads every element of large layers
    instead of a thirty-second. `respond_to` is the shape of one input: then each update's answers to inputs
    made from the global model are recorded (`updates.response`). `measure_compression` measures on one update a
    round what smaller ones would save and lose (`compression`). The progress bar shows on terminals
    unless `progress` says otherwise. `correct` is "off", "dry-run" or "on": what `Round.corrected` and
    `Round.aggregate` do about updates that are not what they should be. `capture` keeps
    models bit by bit, for `stethos replay`: "rounds" the global ones, "all" also every update, "suspects" those of
    odd clients and a sample of the others; `capture_bytes` is how much disk that may take.
    """
    if not isinstance(label, str) or not label:
        raise UsageError(f"a federation needs a name, not {label!r}")
    if name is not None and run not in (None, name):
        raise UsageError(f"name={name!r} and run={run!r}", hint="both are the name of the run: give one")
    mode = parse_capture(capture)
    if capture_bytes is not None and capture_bytes < 1:
        raise UsageError(f"capture_bytes={capture_bytes!r}", hint="a number of bytes, such as 1 << 30")
    handle = watch(
        _module(model), name=run if name is None else name, dir=dir, preset=preset, overhead=overhead, config=config,
        correct=correct,
    )  # fmt: skip
    return Federation(
        label, handle, model=model, clients=clients, progress=Progress(label, is_on=progress), seed=seed,
        correct=correct, read_everything=read_everything, respond_to=respond_to, capture=mode,
        capture_bytes=capture_bytes, config=config,
        measure_compression=measure_compression,
    )  # fmt: skip


class Federation:
    """A federated training that is being recorded; see `federation`."""

    def __init__(
        self, name: str, handle: Watch, *, model: Any = None, clients: int | None = None,
        progress: Progress, seed: int = 0, read_everything: bool = False, respond_to: Sequence[int] | None = None,
        correct: str = "off",
        capture: CaptureMode | None = None, capture_bytes: int | None = None,
        config: Mapping[str, Any] | None = None,
        measure_compression: bool = False,
    ) -> None:  # fmt: skip
        self.name, self._rounds_before = place_of(name)
        self.clients = clients
        self.progress = progress
        self._handle = handle
        self._model = model
        self._seed = seed
        self._read_everything = read_everything
        self._plan: SketchPlan | None = None
        self._rows: UpdateRows | None = None
        self.history = History()
        self._open: Round | None = None
        self._last = 0  # round, as rows count them
        self.turns: dict[int, int] = {}  # that each round has had of one client at most
        self._is_open = True
        self.legs = ServerLegs(self.name)
        self.registered: dict[str, Callable[..., Any]] = {}
        self.compressor = Compressor(self.name) if measure_compression else None
        self.responder: Responder | None = None
        if respond_to is not None:
            self.responder = self._make_responder(respond_to)
        self.correcting = Correcting(correct, self.name, handle.path) if correct != "off" else None
        if self.session is not None:
            self.session.guard.run("layers", self._write_start, self.session)
        self.capture: Capture | None = None
        if self.session is not None:
            self.session.guard.run("capture", self._begin_capture, self.session, capture, capture_bytes, config)
        THREAD_PATCH.install()

    @property
    def path(self) -> Path | None:
        """The run's directory; None if nothing is recorded."""
        return self._handle.path

    @property
    def session(self) -> Session | None:
        return boot.current_session()

    def run(self) -> Run:
        """The run as seen by readers; it may be queried while it grows."""
        return self._handle.run()

    # Rounds ----------------------------------------------------------------------------------------

    def rounds(self, count: int, start: int | None = None) -> Iterator[Round]:
        """So many rounds one after the other, with a progress bar.

        They are numbered from `start`, or from 1. Where rounds went before and no `start` is given, as at an edge
        server that is asked again and again, rows count on from them.
        """
        if start is None and self._last:
            self._rounds_before = self._last
        if self.session is not None and isinstance(count, int):
            last = self._rounds_before + (start or 1) + count - 1
            self.session.guard.run("config", self.session.note_config, "found", {"rounds": last})
        return _Rounds(self, range(start or 1, (start or 1) + count))

    def round(self, number: int, *, of: int | None = None, base: State | None = None) -> Round:
        """One round, for `with`, in loops that count themselves; `base` is the global model it begins with, if not
        `model`."""
        self.end_round()
        recorded = number + self._rounds_before
        self._last = max(self._last, recorded)
        if self.session is not None:
            self.session.federations[self.name] = max(self.session.federations.get(self.name, 0), recorded)
        self._open = Round(self, number, of, base, recorded)
        return self._open

    def end_round(self, error: BaseException | None = None) -> None:
        """End the round that is open, if any."""
        if self._open is not None:
            self._open.end(error)
        self._open = None

    def _make_responder(self, shape: Sequence[int]) -> Responder:
        from stethos.federate.response import Responder

        if _module(self._model) is None:
            raise UsageError("respond_to needs a module", hint="give the global model as federation(model=...)")
        return Responder(self._model, shape, self._seed)

    def _write_start(self, session: Session) -> None:
        """The global model's weights before the first round, as rows of `layers`."""
        model = _module(self._model)
        if model is None:
            return
        from stethos.observe.sample import put_weights

        put_weights(session, dict(model.named_parameters()))

    # Captures --------------------------------------------------------------------------------------

    def _begin_capture(
        self, session: Session, mode: CaptureMode | None, limit_bytes: int | None, config: Mapping[str, Any] | None
    ) -> None:
        """Begin to keep models, if this call or the command line asked for it."""
        mode = mode or session.settings.capture
        if mode is None or self.path is None or session.open() is None:
            return
        from stethos.replay.capture import Capture

        try:
            self.capture = Capture(
                self.path, federation=self.name, mode=mode, seed=self._seed, config=config,
                limit_bytes=session.settings.capture_bytes if limit_bytes is None else limit_bytes,
            )  # fmt: skip
        except (OSError, StethosError) as error:
            session.note_gap("capture", f"nothing is captured: {error}")
            return
        session.on_close.append(self.capture.close)

    def trainer(self, function: _Function) -> _Function:
        """Register how a client trains, for `stethos replay`; also a decorator. Its name is captured, not its code.

        It is called with the global state, the client's name and the round; it returns the state that is sent.
        """
        return self._register("trainer", function)

    def evaluator(self, function: _Function) -> _Function:
        """Register how the global model is judged: called with a state, it returns numbers by name."""
        return self._register("evaluator", function)

    def aggregator(self, function: _Function) -> _Function:
        """Register how the server aggregates: called with the global state, the clients' states and their samples."""
        return self._register("aggregator", function)

    def _register(self, what: str, function: _Function) -> _Function:
        if not callable(function):
            raise UsageError(f"a {what} is a function, not a {type(function).__name__}")
        self.registered[what] = function
        if self.session is not None:
            self.session.guard.run("capture", self._note_function, what, function)
        return function

    def _note_function(self, what: str, function: Callable[..., Any]) -> None:
        from stethos.replay.capture import source_of

        self.note_settings({what: source_of(function)})

    def note_settings(self, facts: Mapping[str, Any]) -> None:
        """Add to what a capture says about itself."""
        if self.capture is not None:
            self.capture.settings.update(facts)
            self.capture.write_settings()

    # What a round needs ----------------------------------------------------------------------------

    def global_state(self) -> State | None:
        """The global model as it is now; None if it was not given."""
        if self._model is None:
            return None
        if hasattr(self._model, "state_dict"):
            state: State = self._model.state_dict()
            return state
        if callable(self._model):
            made: State = self._model()
            return made
        given: State = self._model
        return given

    def named(self, state: State) -> Mapping[str, Any]:
        """A state by the names of its layers, whatever form it came in."""
        if isinstance(state, Mapping):
            return state
        structure = self._plan.structure if self._plan is not None else None
        for names in (structure.entries, structure.parameters) if structure is not None else ():
            if len(names) == len(state):
                return dict(zip(names, state, strict=True))
        return {str(number): value for number, value in enumerate(state)}

    def plan_for(self, state: State) -> SketchPlan:
        """How updates of this federation are read; made when the first model or update is seen."""
        if self._plan is None:
            structure = Structure.of(state, buffers_of(self._model, state), tables_of(self._model, state))
            self._plan = SketchPlan(structure, self._seed, read_everything=self._read_everything)
        return self._plan

    @property
    def plan(self) -> SketchPlan | None:
        return self._plan

    def update_rows(self, session: Session, plan: SketchPlan) -> UpdateRows:
        """The writer of `updates`, made once for a session."""
        if self._rows is None or self._rows.session is not session or self._rows.plan is not plan:
            self._rows = UpdateRows(session, plan, self.name)
        return self._rows

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Put the global model back to a state; False if it was not given as a module."""
        model = _module(self._model)
        if model is None:
            return False
        model.load_state_dict(state)
        return True

    def base_row(self, state: State | None) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
        """The elements of the global model that a round begins with.

        It may have other layers than the one before it: then comparisons begin anew.
        """
        if state is None:
            return None
        try:
            return global_row(self.plan_for(state), state)
        except UpdateMismatchError:
            self._begin_anew()
            return global_row(self.plan_for(state), state)

    def end_row(self, state: State | None) -> np.ndarray[tuple[int], np.dtype[np.float32]] | None:
        """The elements of the global model that a round ends with; None if it has other layers than at its begin."""
        if state is None:
            return None
        try:
            return global_row(self.plan_for(state), state)
        except UpdateMismatchError:
            return None

    def _begin_anew(self) -> None:
        """The global model has other layers from now on: what was kept of earlier ones cannot be compared with it."""
        self._plan = None
        self.history = History()
        if self.session is not None:
            self.session.note_gap(
                "updates", "the global model has other layers than before: updates are not compared with earlier ones"
            )

    # Ending ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the recording, if it began with this federation. Safe to call twice."""
        if self._is_open:
            self._is_open = False
            self.legs.close()
            if self.capture is not None and self.session is not None:
                self.session.guard.run("capture", self.capture.close)
            THREAD_PATCH.remove()
            self.progress.end()
            self._handle.close()

    def __enter__(self) -> Federation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_round(error)  # if the loop was left in the middle of one
        self._handle.note_error(error)
        self.close()


class _Rounds:
    """Goes through rounds: asking for the next one ends the last. No generator: those do not hear of exceptions."""

    def __init__(self, federation: Federation, numbers: range) -> None:
        self._federation = federation
        self._numbers = iter(numbers)
        self._last = numbers[-1] if numbers else None
        self._round: Round | None = None

    def __iter__(self) -> _Rounds:
        return self

    def __next__(self) -> Round:
        self._federation.end_round()
        self._round = None
        self._round = self._federation.round(next(self._numbers), of=self._last).__enter__()
        return self._round

    def __del__(self) -> None:
        if self._round is not None:
            self._round.pause()


def _module(model: Any) -> Any:
    return model if hasattr(model, "named_modules") else None
