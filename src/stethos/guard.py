"""The only place that swallows our own exceptions.

Everything that runs inside the user's training goes through `Guard`. A
failure is counted and reported once per place; after `LIMIT` failures the
place is switched off. `KeyboardInterrupt` and `SystemExit` always pass.
In tests `STETHOS_STRICT=1` lets failures out.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

LIMIT = 10
_logger = logging.getLogger("stethos")


class Guard:
    """Stands between us and the training job.

    `report(place, reason)` is told about the first failure of each place and
    about its being switched off; its own failures are dropped.
    """

    def __init__(self, report: Callable[[str, str], object] | None = None, *, strict: bool = False) -> None:
        self.failures: Counter[str] = Counter()
        self.report = report
        self.strict = strict

    def is_off(self, place: str) -> bool:
        return self.failures[place] >= LIMIT

    def failed(self, place: str, error: Exception) -> None:
        """Count a failure; report the first one and the one that switches the place off."""
        if self.strict:
            raise error
        self.failures[place] += 1
        count = self.failures[place]
        if count not in (1, LIMIT):
            return
        try:
            ending = f"; switched off after {count} failures" if count == LIMIT else ""
            reason = f"{type(error).__name__}: {text_of(error)[:500]}{ending}"
            _logger.debug("%s failed: %s", place, reason)
            if self.report is not None:
                self.report(place, reason)
        except Exception:
            self.failures["guard"] += 1

    def run(self, place: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call `function`; on failure count it and return None."""
        if self.failures and self.is_off(place):
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            self.failed(place, error)
            return None

    def wrap(self, place: str, function: Callable[..., R]) -> Callable[..., R | None]:
        """A callback to hand to somebody else's code: it never raises, and stops working after `LIMIT` failures.

        Takes positional arguments only: this is called several times in every training step.
        """
        is_off = False

        @functools.wraps(function)
        def guarded(*args: Any) -> R | None:
            nonlocal is_off
            if is_off:
                return None
            try:
                return function(*args)
            except Exception as error:
                self.failed(place, error)
                is_off = self.is_off(place)
                return None

        return guarded


def attempt(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """Call something of the user's, such as a `__float__`; if it raises, that is no failure of ours: None."""
    try:
        return function(*args, **kwargs)
    except Exception:
        return None


def tried(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R | None, Exception | None]:
    """Call something of the user's, or with bytes of a stranger's: what it returns, or what it raises."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def text_of(value: object, words: Callable[[Any], str] = str) -> str:
    """A value in words, or that it has none."""
    text = attempt(words, value)
    return text if isinstance(text, str) else f"(a {type(value).__name__} that cannot be put into words)"


def outcome_of(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | BaseException:
    """Call code that somebody typed into a live process: what it returns, or what it raised.

    Ctrl-C is meant for the training and passes; `exit()` is not, and is returned.
    """
    try:
        return function(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
