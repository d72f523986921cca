"""A federation of two client processes, or threads, that stalls in one place: `python plain.py SETTINGS`.

The settings are JSON: `dir`, `kind`, `round` in which it happens. When it happens it writes the time to `DIR/planted`.
No torch: a process starts in a moment, and what is tried is the way of messages.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import stethos
from stethos.federate.site import Site

CLIENTS = ("c0", "c1")
VICTIM = "c1"
FOREVER_S = 600.0


def planted(settings: dict[str, Any]) -> None:
    """Say when the stall began."""
    Path(settings["dir"], "planted").write_text(str(time.time()))


def burn(seconds: float, share: float = 1.0) -> None:
    """Compute for so long, in slices, with pauses between them where the share is less than 1."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        slice_end = time.monotonic() + 0.5 * share
        while time.monotonic() < slice_end:
            sum(range(1000))
        time.sleep(0.5 * (1 - share))


def client(name: str, pipe: Connection, settings: dict[str, Any]) -> None:
    """One client's process: takes invitations until there are no more."""
    while True:
        try:
            invitation, state = pipe.recv()
        except EOFError:  # the server is gone
            return
        if invitation is None:
            return
        is_it = invitation.round == settings["round"] and name == VICTIM
        with Site(invitation, side="client") as site:
            site.received(state)
            burn(0.5)
            work(site, settings, is_it)
            state = {layer: value + 0.01 for layer, value in state.items()}
        if is_it and settings["kind"] == "lost-reply":
            planted(settings)
            time.sleep(FOREVER_S)
        pipe.send((state, site.report()))


def work(site: Any, settings: dict[str, Any], is_it: bool) -> None:
    """The client's training, with what is planted in it."""
    match settings["kind"]:
        case "client-sleep" | "thread-sleep" if is_it:
            planted(settings)
            time.sleep(FOREVER_S)
        case "client-stop" if is_it:
            planted(settings)
            os.kill(os.getpid(), signal.SIGSTOP)
        case "client-kill" if is_it:
            planted(settings)
            os.kill(os.getpid(), signal.SIGKILL)
        case "slow-client" if is_it:
            burn(45.0)
        case "slow-client-often-idle" if is_it:
            burn(45.0, share=0.3)


def on_server(kind: str, settings: dict[str, Any], number: int) -> None:
    """What is planted in the server's own work; `kind` is its phase."""
    if number != settings["round"]:
        return
    if settings["kind"] == f"{kind}-sleep":
        planted(settings)
        time.sleep(FOREVER_S)
    elif settings["kind"] == f"slow-{kind}":
        burn(45.0)
    elif kind == "aggregate" and settings["kind"] in ("server-stop", "server-kill"):
        planted(settings)
        os.kill(os.getpid(), signal.SIGSTOP if settings["kind"] == "server-stop" else signal.SIGKILL)


def in_threads(rnd: Any, state: dict[str, Any], settings: dict[str, Any]) -> None:
    def turn(name: str) -> None:
        with rnd.client(name) as site:
            burn(0.5)
            work(site, settings, rnd.number == settings["round"] and name == VICTIM)
            site.update({layer: value + 0.01 for layer, value in state.items()})

    threads = [threading.Thread(target=turn, args=(name,)) for name in CLIENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_processes(rnd: Any, state: dict[str, Any], settings: dict[str, Any], pipes: dict[str, Connection]) -> None:
    is_it = rnd.number == settings["round"]
    for name in CLIENTS:
        invitation = rnd.invite(name)
        if is_it and name == VICTIM and settings["kind"] == "drop":
            planted(settings)
            continue
        if name == VICTIM and settings["kind"] == "slow-link":
            time.sleep(12.0)
        pipes[name].send((invitation, state))
    for name in CLIENTS:
        update, report = _reply(pipes[name])
        rnd.receive(name, update, samples=8, report=report)


def _reply(pipe: Connection) -> Any:
    """A client's answer; like many loops this one waits on where its client is dead."""
    try:
        return pipe.recv()
    except EOFError:
        time.sleep(FOREVER_S)


def main(settings: dict[str, Any]) -> None:
    state = {"weight": np.zeros((4, 4), np.float32)}
    is_threaded = settings["kind"].startswith("thread-")
    pipes: dict[str, Connection] = {}
    context = multiprocessing.get_context("spawn")
    if not is_threaded:
        for name in CLIENTS:
            pipes[name], theirs = context.Pipe()
            context.Process(target=client, args=(name, theirs, settings), daemon=True).start()
            theirs.close()
    with stethos.federation("plain", dir=settings["dir"], run="run", progress=False) as fed:
        for rnd in fed.rounds(settings["round"] + 1):
            if is_threaded:
                in_threads(rnd, state, settings)
            else:
                in_processes(rnd, state, settings, pipes)
            with rnd.phase("aggregate"):
                on_server("aggregate", settings, rnd.number)
            with rnd.phase("evaluate"):
                on_server("evaluate", settings, rnd.number)
    for pipe in pipes.values():
        pipe.send((None, None))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
