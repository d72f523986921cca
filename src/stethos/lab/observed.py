"""The lab seen by Stethos: the federation that records, or a silent twin with the same methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from stethos.act.action import Treatment
from stethos.federate.federation import federation
from stethos.observe.api import watch
from stethos.settings import CaptureMode


class SiteLog(Protocol):
    """Where a client's turn is reported."""

    def confusion(self, labels: Any, predictions: Any, /) -> object: ...
    def note(self, **columns: Any) -> object: ...
    def update(self, state: Mapping[str, Tensor], /, *, samples: int, loss: float, accuracy: float) -> object: ...
    def trace(self, *, losses: Sequence[float], order: Callable[[], Sequence[Any]]) -> object: ...
    def drop(self, reason: str, /) -> object: ...
    def timeout(self, reason: str, /) -> object: ...


class Invited(Protocol):
    """What another process needs to report on a client's turn."""

    def to_fields(self) -> dict[str, str]: ...


class RoundLog(Protocol):
    """Where a round is reported."""

    def invite(self, name: str, /) -> Invited | None: ...
    def select(self, clients: Sequence[str], /) -> object: ...
    def client(self, name: str, /) -> AbstractContextManager[SiteLog]: ...
    def phase(self, name: Literal["aggregate", "evaluate"], /) -> AbstractContextManager[object]: ...
    def note(self, **columns: Any) -> object: ...
    def server_state(self, state: Mapping[str, Tensor], /) -> object: ...
    def note_correction(
        self, treatments: Mapping[str, Treatment] | None = None, *, is_robust: bool = False,
        is_rolled_back: bool = False,
    ) -> object: ...  # fmt: skip
    def evaluate(self, *, loss: float, accuracy: float) -> object: ...


class FederationLog(Protocol):
    """Where a federation is reported; `path` is the run's directory."""

    @property
    def path(self) -> Path | None: ...
    def rounds(self, count: int, /) -> Iterator[RoundLog]: ...
    def note_settings(self, facts: Mapping[str, Any], /) -> object: ...


class _SilentSite:
    def confusion(self, labels: Any, predictions: Any, /) -> None:
        pass

    def note(self, **columns: Any) -> None:
        pass

    def update(self, state: Mapping[str, Tensor], /, *, samples: int, loss: float, accuracy: float) -> None:
        pass

    def trace(self, *, losses: Sequence[float], order: Callable[[], Sequence[Any]]) -> None:
        pass

    def drop(self, reason: str, /) -> None:
        pass

    def timeout(self, reason: str, /) -> None:
        pass


class _SilentRound:
    def invite(self, name: str, /) -> None:
        return None

    def select(self, clients: Sequence[str], /) -> None:
        pass

    def client(self, name: str, /) -> AbstractContextManager[SiteLog]:
        return nullcontext(_SilentSite())

    def phase(self, name: Literal["aggregate", "evaluate"], /) -> AbstractContextManager[None]:
        return nullcontext()

    def note(self, **columns: Any) -> None:
        pass

    def server_state(self, state: Mapping[str, Tensor], /) -> None:
        pass

    def note_correction(
        self, treatments: Mapping[str, Treatment] | None = None, *, is_robust: bool = False,
        is_rolled_back: bool = False,
    ) -> None:  # fmt: skip
        pass

    def evaluate(self, *, loss: float, accuracy: float) -> None:
        pass


def silent_round() -> RoundLog:
    """A round that nobody records."""
    return _SilentRound()


class _SilentFederation:
    path: Path | None = None

    def rounds(self, count: int, /) -> Iterator[RoundLog]:
        return iter([_SilentRound()] * count)

    def note_settings(self, facts: Mapping[str, Any], /) -> None:
        pass


def opened(
    name: str,
    *,
    observe: bool,
    model: nn.Module,
    trained: nn.Module | None,
    clients: int,
    config: Mapping[str, Any],
    dir: str | Path | None,
    run: str | None,
    progress: bool | None,
    capture: CaptureMode | None,
    capture_bytes: int | None,
    overhead: float | None = None,
) -> AbstractContextManager[FederationLog]:
    """A federation to report to: recorded if `observe`. `trained` is the model that clients train, if it is here."""
    if not observe:
        return nullcontext(_SilentFederation())
    opened = federation(
        name, model=model, clients=clients, config=config, dir=dir, run=run, progress=progress, capture=capture,
        capture_bytes=capture_bytes, overhead=overhead,
    )  # fmt: skip
    watch(trained)  # its layers' names need not be searched for
    return opened
