"""What both apps of the planted stalls know: the plan, which they inherit, and files by which they tell."""

import json
import os
import signal
import time
from pathlib import Path

PLAN = json.loads(os.environ["STALL_PLAN"])
VICTIM = 2  # partition


def say(name: str, text: str) -> None:
    path = Path(PLAN["dir"], name)
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def planted() -> None:
    say("planted", str(time.time()))


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def burn(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
