"""A capture, opened for reading: global models, updates and random states, verified bit by bit.

    bundle = open_bundle("runs/digits-1")
    bundle.global_state(12, when="after")
    bundle.update(12, "c7").state

What is missing, was dropped or is damaged is a CaptureError that says which and
why. Nothing of a capture is executed; sizes are checked before memory is taken.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from stethos.errors import CaptureError, RunNotFoundError
from stethos.replay import chance
from stethos.replay.codec import FREE_BYTES, MOST_TIMES, bases_of, unpack
from stethos.replay.corrections import RoundCorrections, corrections_in
from stethos.replay.history import ClientUpdate, State
from stethos.replay.place import DIRECTORY, CapturePlace, captures_in, checked, map_file, read_file, read_table
from stethos.replay.tensorfile import Buffer, array_in, parse, tensor_in

When = Literal["before", "after"]
_CACHE_BYTES = 256 << 20
_LONGEST_CHAIN = 2000
_MOST_HELD = 8  # objects of one size, while one is unpacked
_HINT = "capture a run with `stethos run --capture all`, federation(capture='all') or lab.federate(capture='all')"


def open_bundle(run_directory: str | Path, federation: str | int | None = None) -> Bundle:
    """The capture of a run: of the federation named or numbered, else the last one.

    Can be opened while the run goes on; every call sees the rounds that are whole by then.
    """
    run = Path(run_directory)
    if not run.is_dir():
        raise RunNotFoundError(f"no run at {run}", hint="list runs with `stethos ls`")
    places = [CapturePlace(run)] if (run / "rounds").is_dir() and run.parent.name == DIRECTORY else captures_in(run)
    if not places:
        raise CaptureError(f"run {run.name} has no captures", hint=_HINT)
    bundles = [Bundle(place) for place in places]
    if federation is None:
        return bundles[-1]
    if isinstance(federation, int):
        if 0 <= federation < len(bundles):
            return bundles[federation]
    else:
        for bundle in reversed(bundles):
            if bundle.settings.get("federation") == federation:
                return bundle
    names = ", ".join(f"{number} ({one.settings.get('federation')})" for number, one in enumerate(bundles))
    raise CaptureError(f"run {run.name} has no capture of federation {federation!r}", hint=f"it has {names}")


class Bundle:
    """Reads one federation's capture."""

    def __init__(self, place: CapturePlace) -> None:
        self.place = place
        self._files: OrderedDict[str, Buffer] = OrderedDict()
        self._cached = 0
        self._seen: set[str] = set()
        self._stored_bytes = 0
        self._manifests: dict[int, dict[str, Any]] = {}
        self._settings: dict[str, Any] | None = None

    # What there is ------------------------------------------------------------------------------------

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds that are whole on disk now."""
        return tuple(self.place.rounds())

    @property
    def is_finished(self) -> bool:
        """Whether the recording has ended in order, and no round will follow."""
        return self.place.finished.exists()

    @property
    def settings(self) -> Mapping[str, Any]:
        """How the federation was set up: `config`, versions, threads, and `lab` where it is one of the lab's."""
        if self._settings is None:
            try:
                self._settings = read_table(self.place.settings)
            except OSError as error:
                raise CaptureError(f"{self.place.settings} cannot be read: {error.strerror}") from None
        return self._settings

    @property
    def dropped(self) -> Mapping[str, Any]:
        """`rounds`: first, last and reason of each range that was dropped; `states`: how many, by reason."""
        try:
            found = read_table(self.place.dropped)
        except (OSError, CaptureError):
            return {"rounds": [], "states": {}}
        return {"rounds": _ranges(found.get("rounds")), "states": _numbers(found.get("states"))}

    def manifest(self, round: int) -> Mapping[str, Any]:
        """Everything about a round but its tensors: selected, clients with their facts, evaluation."""
        if round not in self._manifests:
            try:
                found = read_table(self.place.round_file(round))
            except OSError:
                raise self._no_round(round) from None
            clients = found.get("clients")
            if not isinstance(clients, list) or not all(
                isinstance(one, dict) and isinstance(one.get("client"), str) for one in clients
            ):
                raise CaptureError(f"{self.place.round_file(round)} is damaged: no list of clients")
            evaluation = _numbers(found.get("evaluation"))
            self._manifests[round] = {**found, "clients": [*map(_checked_turn, clients)], "evaluation": evaluation}
        return self._manifests[round]

    def clients(self, round: int) -> tuple[str, ...]:
        """Those that were selected and sent an update, kept or not, in the order in which they came."""
        turns = self.manifest(round)["clients"]
        return tuple(dict.fromkeys(turn["client"] for turn in turns if turn.get("reported")))

    def kept(self, round: int) -> tuple[str, ...]:
        """Those whose update can be read."""
        turns = self.manifest(round)["clients"]
        found = [turn["client"] for turn in turns if isinstance(turn.get("state"), dict) and turn["state"].get("parts")]
        return tuple(dict.fromkeys(found))

    def turn(self, round: int, client: str) -> Mapping[str, Any]:
        """The facts of a client's turn; of its last one in that round."""
        turns = [turn for turn in self.manifest(round)["clients"] if turn["client"] == client]
        if not turns:
            known = dict.fromkeys(turn["client"] for turn in self.manifest(round)["clients"])
            raise CaptureError(
                f"client {client!r} took no part in round {round}", hint=f"these did: {', '.join(list(known)[:20])}"
            )
        found: Mapping[str, Any] = turns[-1]
        return found

    def corrections(self, round: int) -> RoundCorrections:
        """What corrections did in a round; nothing if there were none."""
        return corrections_in(self.manifest(round))

    # States -------------------------------------------------------------------------------------------

    def global_state(self, round: int, when: When = "before") -> State:
        """The global model before or after a round."""
        return self._state(self.manifest(round).get(when), f"the global model {when} round {round}")

    def server_state(self, round: int) -> State:
        """What the server remembered besides the global model before it aggregated; empty if nothing was told."""
        piece = self.manifest(round).get("server")
        return {} if piece is None else self._state(piece, f"the server's memory in round {round}")

    def update(self, round: int, client: str) -> ClientUpdate:
        """What a client sent in a round."""
        turn = self.turn(round, client)
        what = f"the update of client {client!r} in round {round}"
        if "state" not in turn:
            raise self._no_update(turn, what)
        state = self._state(turn["state"], what)
        delta = None
        if turn.get("is_delta"):
            delta, base = state, self.global_state(round)
            try:
                state = {name: value + delta[name] if name in delta else value for name, value in base.items()}
            except (RuntimeError, TypeError):
                raise CaptureError(f"{what} is damaged: its tensors do not fit the global model") from None
        losses = turn.get("losses")
        return ClientUpdate(
            client, state, samples=turn.get("samples"), weight=turn.get("weight"), loss=turn.get("loss"),
            base_round=turn.get("base_round"), metrics=turn.get("metrics") or {},
            losses=tuple(losses) if isinstance(losses, list) else None, order=turn.get("order"), delta=delta,
        )  # fmt: skip

    def random_states(self, round: int, client: str) -> chance.RandomStates:
        """The random generators when the client's turn began, for `chance.restored`."""
        piece = self.turn(round, client).get("random")
        what = f"the random states of client {client!r} in round {round}"
        if piece is None:
            raise CaptureError(f"{what} were not captured", hint="its turn ran in another process, or was not opened")
        files = self._files_of(piece, what)
        if len(files) != 1:
            raise CaptureError(f"{what} are damaged: they lie in {len(files)} objects")
        entries, _ = parse(files[0])
        return chance.states_in({name: array_in(files[0], entry) for name, entry in entries.items()})

    def _no_update(self, turn: Mapping[str, Any], what: str) -> CaptureError:
        if not turn.get("reported"):
            return CaptureError(f"{what} does not exist: it {turn.get('status') or 'sent none'}")
        return CaptureError(
            f"{what} was not captured: capture={self.settings.get('mode')!r} keeps none", hint="use capture='all'"
        )

    def _no_round(self, round: int) -> CaptureError:
        for first, last, reason in self.dropped["rounds"]:
            if first <= round <= last:
                link = " " if reason.startswith("to ") else ": "
                return CaptureError(
                    f"round {round} was dropped{link}{reason}", hint="a larger capture_bytes keeps more rounds"
                )
        known = self.rounds
        if not known:
            return CaptureError("no round was captured", hint="none has ended yet, or the run was killed in its first")
        missing = f"round {round} was not captured"
        return CaptureError(missing, hint=f"there are rounds {known[0]} to {known[-1]}")

    def _state(self, piece: Any, what: str) -> State:
        found: State = {}
        for file in self._files_of(piece, what):
            entries, _ = parse(file)
            found.update({name: tensor_in(file, entry) for name, entry in entries.items()})
        return found

    # Objects ------------------------------------------------------------------------------------------

    def _files_of(self, piece: Any, what: str) -> list[Buffer]:
        if not isinstance(piece, dict):
            raise CaptureError(f"{what} was not captured")
        if piece.get("missing"):
            raise CaptureError(f"{what} was not kept: {str(piece['missing'])[:300]}")
        parts = piece.get("parts")
        if not isinstance(parts, list):
            raise CaptureError(f"{what} is damaged: its objects are not listed")
        try:
            if len(set(map(checked, parts))) < len(parts):
                raise CaptureError("an object is listed twice")
            return self._files_together(parts)
        except CaptureError as error:
            raise CaptureError(f"{what} cannot be read: {error.message}", hint=error.hint) from None

    def _files_together(self, digests: list[str]) -> list[Buffer]:
        """The objects of one state, which together may unfold as far as one alone: all lie in memory at once."""
        files: list[Buffer] = []
        for digest in digests:
            files.append(self.file(digest))
            if sum(map(len, files)) > max(FREE_BYTES, MOST_TIMES * self._stored_bytes):
                raise CaptureError("its objects unfold to much more than they are")
        return files

    def file(self, digest: str) -> Buffer:
        """An object's bytes, whichever way it is stored, checked against its name."""
        chain: list[tuple[str, Buffer, tuple[str, ...]]] = []  # what must be unpacked
        todo, planned = [checked(digest)], {digest}
        while todo:
            one = todo.pop()
            if one in self._files:
                continue
            raw, packed = self._load(one)
            if raw is not None:
                self._keep(one, raw)
                continue
            assert packed is not None
            bases = tuple(checked(base) for base in bases_of(packed))
            chain.append((one, packed, bases))
            if len(chain) > _LONGEST_CHAIN:
                raise CaptureError(f"object {digest[:12]} is built on more than {_LONGEST_CHAIN} others")
            todo += [base for base in bases if base not in planned]
            planned.update(bases)
        while chain:
            ready = [one for one in chain if all(base in self._files for base in one[2])]
            if not ready:
                raise CaptureError(f"object {digest[:12]} is built on itself", hint="the capture is damaged")
            for one, packed, bases in ready:
                file = unpack(packed, [self._files[base] for base in bases])
                self._check(one, file)
                self._keep(one, file)
                chain = [left for left in chain if left[0] != one]
                self._shrink({digest, *(base for left in chain for base in left[2])})
                if self._cached > max(_CACHE_BYTES, _MOST_HELD * len(file)):
                    raise CaptureError(f"object {digest[:12]} is built on too many others at once")
        found = self._files[digest]
        self._files.move_to_end(digest)
        self._shrink({digest})
        return found

    def ancestry(self, digest: str) -> set[str]:
        """An object and all that it is packed against."""
        found, todo = {digest}, [digest]
        while todo:
            try:
                bases = bases_of(map_file(self.place.packed(todo.pop())))
            except OSError:
                continue  # it stands alone
            todo += [base for base in bases if base not in found]
            found.update(bases)
        return found

    def unpacked(self, digest: str) -> Buffer:
        """An object from its packed file alone, though the raw one may still be there."""
        try:
            packed = read_file(self.place.packed(digest))
        except OSError as error:
            raise CaptureError(f"object {digest[:12]} cannot be read: {error.strerror}") from None
        return unpack(packed, [self.file(base) for base in bases_of(packed)])

    def _load(self, digest: str) -> tuple[Buffer | None, Buffer | None]:
        """The object as it is, or packed; it may be packed between two looks."""
        for path, is_raw in ((self.place.raw(digest), True), (self.place.packed(digest), False)) * 2:
            try:
                file = read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise CaptureError(f"object {digest[:12]} cannot be read: {error.strerror}") from None
            self._stored_bytes += 0 if digest in self._seen else len(file)
            self._seen.add(digest)
            if is_raw:
                self._check(digest, file)
                return file, None
            return None, file
        raise CaptureError(f"object {digest[:12]} is missing", hint="files of the capture were deleted")

    def _check(self, digest: str, file: Buffer) -> None:
        if hashlib.sha256(file.data).hexdigest() != digest:
            raise CaptureError(f"object {digest[:12]} is damaged: its bytes are not those that were captured")

    def _keep(self, digest: str, file: Buffer) -> None:
        self._files[digest] = file
        self._cached += len(file)

    def _shrink(self, needed: Collection[str]) -> None:
        """Forget what was used longest ago and is not needed."""
        for digest in [one for one in self._files if one not in needed]:
            if self._cached > _CACHE_BYTES:
                self._cached -= len(self._files.pop(digest))


_TURN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("samples", "base_round", "steps"), (int,)),
    **dict.fromkeys(("weight", "loss"), (int, float)),
    **dict.fromkeys(("status", "error", "order", "label"), (str,)),
    **dict.fromkeys(("reported", "is_delta"), (bool,)),
    "metrics": (dict,),
    "losses": (list,),
}


def _numbers(told: Any) -> dict[str, float]:
    """What is a number in what ought to be a table of them."""
    pairs = told.items() if isinstance(told, dict) else ()
    return {str(key): value for key, value in pairs if isinstance(value, int | float)}


def _checked_turn(turn: dict[str, Any]) -> dict[str, Any]:
    """A client's turn without what cannot be meant: as if it were not there."""

    def is_meant(name: str, value: Any) -> bool:
        wanted = _TURN.get(name)
        if wanted is None or value is None:
            return True
        numbers = value.values() if name == "metrics" and type(value) is dict else value if name == "losses" else ()
        is_number = type(value) is not int or abs(value) < 2**53
        return type(value) in wanted and is_number and all(type(one) in (int, float) for one in numbers)

    return {name: value for name, value in turn.items() if is_meant(name, value)}


def _ranges(found: Any) -> list[tuple[int, int, str]]:
    if not isinstance(found, list):
        return []
    return [
        (one[0], one[1], str(one[2])[:300])
        for one in found
        if isinstance(one, list) and len(one) == 3 and isinstance(one[0], int) and isinstance(one[1], int)
    ]
