"""The lab seen by Stethos: the federation that records, or a silent twin with the same methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from torch import Tensor, nn

from stethos.act.action import Treatment
from stethos.federate.federation import federation
from stethos.federate.screening import Screened
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
    def screened(self) -> Screened | None: ...
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


class _Silent:
    """Accepts every report of a federation, a round or a client, and keeps none."""

    path: Path | None = None

    def rounds(self, count: int, /) -> Iterator[Any]:
        return iter([self] * count)

    def client(self, name: str, /) -> AbstractContextManager[Any]:
        return nullcontext(self)

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


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
        return nullcontext(cast(FederationLog, _Silent()))
    opened = federation(
        name, model=model, clients=clients, config=config, dir=dir, run=run, progress=progress, capture=capture,
        capture_bytes=capture_bytes, overhead=overhead,
    )  # fmt: skip
    watch(trained)  # its layers' names need not be searched for
    return opened
