"""The inside of attaching: beginning to record in a process that runs already, and leaving it as it was."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from stethos.live.steer import Steering
from stethos.observe import boot
from stethos.observe.boot import Recording
from stethos.settings import from_environment, parse_preset

_PATIENCE_S = 10.0
_HOOK_FILE = "torch/optim/optimizer.py"


def begin_recording(run_dir: str, preset: str, overhead: float, note: str) -> None:
    """Begin in a thread of its own; `note` is a file that says how it went. Called by injected code."""
    threading.Thread(target=_begin, args=(run_dir, preset, overhead, note), name="stethos-attach", daemon=True).start()


def _begin(run_dir: str, preset: str, overhead: float, note: str) -> None:
    text = "failed"
    try:
        if boot.current() is not None:
            text = "recording already"
            return
        settings = replace(
            from_environment(), run_dir=Path(run_dir), preset=parse_preset(preset), overhead=overhead, is_main=True
        )
        wait_for_quiet_hooks()
        recording = boot.begin(settings)
        text = "ok" if recording.session.ring is not None else recording.session.why_closed or "no ring"
    finally:
        path = Path(note)
        path.with_suffix(".part").write_text(text, encoding="utf-8")
        path.with_suffix(".part").replace(path)


def end_recording(recording: Recording, steering: Steering) -> list[str]:
    """Stop and undo everything but what somebody set on purpose; what could not be undone is named."""
    left = []
    watch = recording.torch_hooks
    if watch is not None:
        watch.steps.is_active = False
        if not wait_for_quiet_hooks():
            watch.steps.on_off()
            left.append("an optimizer step has not ended: our callbacks stay in torch and do nothing")
            recording.session.on_close = [one for one in recording.session.on_close if one != watch.uninstall]
        else:
            steering.release()
    boot.end()
    return left


def wait_for_quiet_hooks() -> bool:
    """Wait until no thread goes through the hooks of an optimizer step, which may not change meanwhile.

    Having slept, this thread has just been given the GIL and keeps it for the switch interval (5 ms): enough for the
    caller to put hooks in or take them out before anybody looks.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.001)
        if not any(_is_stepping(frame) for frame in sys._current_frames().values()):
            return True
    return False


def _is_stepping(frame: object) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith(_HOOK_FILE):  # type: ignore[attr-defined]
            return True
        frame = frame.f_back  # type: ignore[attr-defined]
    return False
