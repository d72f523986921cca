"""The training's side of a capture: copies states as they come, and leaves the writing to `Writer`.

Everything here is called through the federation's guard, on the training
thread: nothing blocks, no random number is drawn, and what cannot be captured is named in the round's manifest.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stethos.errors import CaptureError
from stethos.guard import attempt
from stethos.record.place import write_json
from stethos.record.provenance import plain_facts
from stethos.redact import redact, redact_command
from stethos.replay import chance
from stethos.replay.place import CapturePlace
from stethos.replay.tensorfile import Buffer, Shape, shape_of_file
from stethos.replay.writer import Draft, Piece, Writer
from stethos.settings import CaptureMode

FORMAT = 1
GROUP_BYTES = 256 << 10
SAMPLED_SHARE = 0.2  # of the clients that are not suspect, with capture="suspects"
_CLOSE_S = 20.0


@dataclass(frozen=True, slots=True)
class _Layout:
    """How states of one structure are cut into files: layers one after the other, large ones alone."""

    groups: tuple[tuple[tuple[str, ...], Shape], ...]
    bytes: int


class Capture:
    """One federation's capture. `settings` may be added to until the first round."""

    def __init__(
        self, run: Path, *, federation: str, mode: CaptureMode, limit_bytes: int, seed: int = 0,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.keeps_updates = mode != "rounds"
        self.place = CapturePlace.create(run)
        self.settings: dict[str, Any] = {
            "format": FORMAT, "federation": redact(federation), "mode": mode, "capture_bytes": limit_bytes,
            "seed": seed, "config": plain_facts(dict(config or {})), **environment_facts(),
        }  # fmt: skip
        self._seed = seed
        self._pid = os.getpid()
        self._layouts: dict[Any, _Layout] = {}
        self._lock = threading.Lock()
        self._last: Piece | None = None
        self._last_files: list[Buffer] = []
        self._random: tuple[Any, Piece] | None = None
        self._writer: Writer | None = None
        self._limit_bytes = limit_bytes
        self._manifest: dict[str, Any] = {}
        self._turns: dict[str, list[dict[str, Any]]] = {}
        self._is_closed = False
        self.write_settings()

    def write_settings(self) -> None:
        write_json(self.place.settings, self.settings)

    # A round ------------------------------------------------------------------------------------------

    def begin_round(self, number: int, state: Mapping[str, Any] | None) -> None:
        """The global model before the round; None if it is not known."""
        if not self._is_mine():
            return
        self._turns = {}
        self._manifest = {"format": FORMAT, "round": number, "t_ns": time.time_ns(), "before": self._global(state)}

    def begin_turn(self, client: str) -> None:
        """A client's turn begins in this process: the generators are as they are now."""
        if self._is_mine() and self.keeps_updates:
            states = chance.read_states()
            key = (states["python"], _numpy_key(states["numpy"]), *map(_tensor_key, _tensors(states)))
            if self._random is None or self._random[0] != key:
                piece = Piece(make=lambda: [chance.file_of(states)])
                self._writer_now().put(piece)
                self._random = key, piece
            self._turn(client, is_new=True)["random"] = self._random[1]

    def update(self, client: str, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """What a client sent, copied now: the caller may use its memory again."""
        if self._is_mine():
            turn = self._turn(client)
            turn.update(facts)
            if self.keeps_updates:
                turn["state"] = self._piece(state)

    def note_turn(self, client: str, facts: Mapping[str, Any]) -> None:
        """More about a client's turn: its status, the losses of its steps, a digest of its data's order."""
        if self._is_mine():
            self._turn(client).update(facts)

    def note_round(self, facts: Mapping[str, Any]) -> None:
        if self._is_mine():
            self._manifest.update(facts)

    def server_state(self, state: Mapping[str, Any]) -> None:
        """What the server remembers between rounds besides the global model, before it aggregates."""
        if self._is_mine() and state:
            self._manifest["server"] = self._piece(state)

    def end_round(self, state: Mapping[str, Any] | None, suspects: Sequence[str], facts: Mapping[str, Any]) -> None:
        """The global model after the round; the round is written, and can be read when that is done."""
        if not self._is_mine() or not self._manifest:
            return
        turns = [turn for turns in self._turns.values() for turn in turns]
        unwanted: list[Piece] = []
        if self.mode == "suspects":
            kept = self._kept(suspects)
            for turn in turns:
                piece = turn.get("state")
                if turn["client"] not in kept and isinstance(piece, Piece) and not piece.missing:
                    unwanted.append(piece)
                    turn["state"] = {"missing": "capture='suspects' keeps odd clients and a sample of the others"}
        manifest = {
            **self._manifest, "after": self._global(state), "clients": turns, "suspects": list(suspects), **facts
        }  # fmt: skip
        self._writer_now().end_round(Draft(self._manifest["round"], manifest, tuple(unwanted)))
        self._manifest, self._turns = {}, {}

    def _kept(self, suspects: Sequence[str]) -> set[str]:
        """The suspects, and a fifth of the others, chosen by the seed, the round and their name."""
        number = self._manifest["round"]
        others = sorted(
            (client for client in self._turns if client not in suspects),
            key=lambda client: hashlib.sha256(f"{self._seed} {number} {client}".encode()).digest(),
        )
        return {*suspects, *others[: max(1, round(SAMPLED_SHARE * len(others)))]}

    def _turn(self, client: str, *, is_new: bool = False) -> dict[str, Any]:
        with self._lock:
            turns = self._turns.setdefault(client, [])
            if not turns or is_new:
                turns.append({"client": client})
            return turns[-1]

    # States -------------------------------------------------------------------------------------------

    def _global(self, state: Mapping[str, Any] | None) -> Piece:
        """A global model; mostly it is the one that the last round ended with, and need not be written again."""
        if state is None:
            return Piece(missing="the federation was not given its global model")
        piece = self._copied(state)
        if piece.missing:
            return piece
        if self._last is not None and _are_equal(self._last_files, piece.files) and not self._last.missing:
            return self._last
        self._last, self._last_files = piece, list(piece.files)
        self._writer_now().put(piece)
        return piece

    def _piece(self, state: Mapping[str, Any]) -> Piece:
        """A copy of a state, on its way to disk; or why there is none."""
        piece = self._copied(state)
        if not piece.missing:
            self._writer_now().put(piece)
        return piece

    def _copied(self, state: Mapping[str, Any]) -> Piece:
        piece = Piece()
        writer = self._writer_now()
        try:
            values = {str(name): _array(value) for name, value in state.items()}
            layout = self._layout(values)
            if writer.has_room(layout.bytes):
                piece.files = [shape.file_of([values[name] for name in names]) for names, shape in layout.groups]
            else:
                writer.note_missing(piece, "too much was waiting to be written")
        except CaptureError as error:
            writer.note_missing(piece, error.message)
        except MemoryError:
            writer.note_missing(piece, "out of memory")
        return piece

    def _layout(self, values: Mapping[str, Any]) -> _Layout:
        key = tuple((name, value.dtype, value.shape) for name, value in values.items())
        known = self._layouts.get(key)
        if known is None:
            known = self._layouts[key] = _layout_of(values)
        return known

    def _writer_now(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self.place, self._limit_bytes)
        return self._writer

    def _is_mine(self) -> bool:
        """Not after the end, and not in a forked child, where the writer's thread is missing."""
        return not self._is_closed and os.getpid() == self._pid

    # The end ------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until every round so far can be read."""
        return self._writer is None or self._writer.flush(timeout_s)

    def close(self) -> None:
        """Write the rest; safe to call twice."""
        if self._is_mine():
            self._is_closed = True
            if self._writer is not None:
                self._writer.close(_CLOSE_S)
            else:
                write_json(self.place.finished, {})

    @property
    def dropped(self) -> dict[str, int]:
        """How many states were dropped, by reason."""
        return dict(self._writer.dropped) if self._writer is not None else {}


def source_of(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function of the user's is called, where it stands, and a digest of that file as it is now."""
    file = attempt(inspect.getsourcefile, function)
    text = attempt(Path(file).read_bytes) if file else None
    return {
        "name": f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}",
        "file": file,
        "sha256": hashlib.sha256(text).hexdigest() if text is not None else None,
    }


def environment_facts() -> dict[str, Any]:
    """What a repetition must have in common with the recording."""
    from stethos import __version__

    facts: dict[str, Any] = {
        "stethos": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processor": _processor(),
        "command": redact_command(sys.orig_argv[:50]),
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        facts |= {
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_initialized() else None,
        }
    return facts


def _processor() -> str:
    """The processor's name: kernels choose their instructions by it."""
    text = attempt(Path("/proc/cpuinfo").read_text) or ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _layout_of(values: Mapping[str, Any]) -> _Layout:
    groups: list[tuple[tuple[str, ...], Shape]] = []
    open_group: dict[str, Any] = {}
    size = 0
    for name, value in values.items():
        is_large = int(value.nbytes) >= GROUP_BYTES
        if open_group and (is_large or size + int(value.nbytes) > GROUP_BYTES):
            groups.append((tuple(open_group), shape_of_file(open_group)))
            open_group, size = {}, 0
        open_group[name] = value
        size += int(value.nbytes)
    groups.append((tuple(open_group), shape_of_file(open_group)))
    return _Layout(tuple(groups), sum(shape.total_bytes for _, shape in groups))


def _array(value: Any) -> Any:
    return value if hasattr(value, "dtype") and hasattr(value, "shape") else np.asarray(value)


def _are_equal(files: Sequence[Buffer], others: Sequence[Buffer]) -> bool:
    return len(files) == len(others) and all(map(np.array_equal, files, others))


def _tensors(states: Mapping[str, Any]) -> list[Any]:
    return [value for name, value in states.items() if name not in ("python", "numpy")]


def _tensor_key(state: Any) -> bytes:
    return bytes(state.numpy().tobytes())


def _numpy_key(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
