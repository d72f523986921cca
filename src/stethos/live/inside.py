"""Stacks as the process itself sees them, for where nobody may look from outside."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from stethos.live.request import Request

_DEEPEST = 500


def thread_stacks(request: Request) -> dict[str, Any]:
    """`stacks`: every thread with its frames, innermost first; needs the GIL."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    natives = {thread.ident: thread.native_id for thread in threading.enumerate()}
    threads = [
        {
            "thread_id": ident,
            "os_thread_id": natives.get(ident),
            "thread_name": names.get(ident),
            "frames": list(_frames(frame)),
        }
        for ident, frame in sys._current_frames().items()
    ]
    return {"threads": threads}


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        found.append({"name": code.co_qualname, "filename": code.co_filename, "line": frame.f_lineno or 0})
        frame = frame.f_back
    return found
