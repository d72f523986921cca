"""One planted stall or slow run: start it, ask for a diagnosis again and again, and note what it says when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Finding
from stethos.errors import StethosError

ASK_S = 2.0
CODE = "FED017"


@dataclass(frozen=True, slots=True)
class Planted:
    """What is planted, and what is to be said of it: a leg and a client; no leg for a healthy run.

    With `holds_back` the framework keeps others' answers waiting behind the client's, so that they may be named, too.
    """

    engine: str
    kind: str
    leg: str | None
    client: str | None = None
    holds_back: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the diagnosis said first, and how long after the stall began."""

    planted: Planted
    leg: str | None
    clients: tuple[str, ...] = ()
    after_s: float | None = None
    title: str = ""

    @property
    def is_right(self) -> bool:
        if self.planted.leg is None or self.leg is None:
            return self.planted.leg == self.leg
        whom = self.planted.client
        is_whom = whom is None or self.clients in ((whom,), ()) or (self.planted.holds_back and whom in self.clients)
        return self.leg == self.planted.leg and is_whom


def stalled(run: Path) -> Finding | None:
    """What the diagnosis of a run says about a stall now, also as the consequence of something else."""
    try:
        findings = list(diagnose(run).findings)
    except StethosError:
        return None
    for one in findings:
        findings += one.consequences
    return next((one for one in findings if one.code == CODE), None)


def watch(
    planted: Planted, run: Path, began: Callable[[], float | None], is_over: Callable[[], bool], most_s: float = 60.0
) -> Verdict:
    """Ask until something is said, the stall is `most_s` old, or a healthy run is over. `began` gives its time."""
    while True:
        found = stalled(run) if run.exists() else None
        since = began()
        if found is not None:
            after_s = time.time() - since if since is not None else None
            return Verdict(planted, found.kind, found.subject.clients, after_s, found.title)
        if is_over() or (since is not None and time.time() - since > most_s):
            return Verdict(planted, None)
        time.sleep(ASK_S)


def end_group(pid: int) -> None:
    """End a program that leads a process group, stopped members too."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
