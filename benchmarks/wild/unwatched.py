"""A round of a federation that nobody records: the loops of the sets are tried in it without Stethos."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Unwatched:
    """A round that nobody records."""

    def __init__(self, number: int) -> None:
        self.number = number

    @contextlib.contextmanager
    def client(self, name: str) -> Iterator[Unwatched]:
        yield self

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        yield

    def update(self, state: Any, **_: Any) -> None: ...

    def drop(self) -> None: ...

    def evaluate(self, loss: float) -> None: ...
