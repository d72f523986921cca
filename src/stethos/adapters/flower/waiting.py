"""Says that a round waits for clients, where Flower would wait in silence."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger("stethos.flower")
FIRST_S = 5.0
SELDOM_S = 300.0


@contextlib.contextmanager
def said(words: Callable[[], str | None]) -> Iterator[None]:
    """While this takes long, warn of what it waits for: after a few seconds, when that changes, and then seldom.

    `words` is called on a thread of ours, with the caller's context; None if there is nothing to say.
    """
    is_over = threading.Event()
    context = contextvars.copy_context()

    def watch() -> None:
        last, last_s = "", 0.0
        while not is_over.wait(FIRST_S):
            text = context.run(words)
            if text and not is_over.is_set() and (text != last or time.monotonic() - last_s > SELDOM_S):
                last, last_s = text, time.monotonic()
                context.run(logger.warning, "%s", text)

    threading.Thread(target=watch, name="stethos-flower-waiting", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
