"""One Ray on this machine, and all that runs on it: queries, diagnoses, replays; prints what came out as JSON."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fleet_runs import plain
from processes import command, free_port

import stethos
from stethos.cli.main import main
from stethos.cluster import ClusterError, connect, run_calls


def die_once(marker: str) -> int:
    """The first time the worker is lost."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), 9)
    return 42


def wait(seconds: float) -> None:
    time.sleep(seconds)


def printed(words: list[str]) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(words)
    return json.loads(out.getvalue())


class Door:
    """Ray's own server for clients, before the Ray of this process: a cluster elsewhere, for those who come by it.

    It has no process for each client, as that of `ray start` has: those need more of a machine than tests have. The
    next clients are turned away in the words of one whose process has died, as often as `failures` says. `asked` is
    what clients have said about themselves.
    """

    def __init__(self) -> None:
        from ray.core.generated import ray_client_pb2
        from ray.util.client.server.dataservicer import DataServicer
        from ray.util.client.server.server import serve

        self.failures = 0
        self.asked: list[bytes] = []
        serves = DataServicer.Datapath

        def answer(servicer: Any, requests: Iterator[Any], context: Any) -> Iterator[Any]:
            if dict(context.invocation_metadata()).get("reconnecting") == "True":  # and asks for nothing at first
                yield from serves(servicer, requests, context)
                return
            first = next(requests)
            self.asked.append(first.SerializeToString())
            if self.failures:
                self.failures -= 1
                reason = "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err"
                init = ray_client_pb2.InitResponse(ok=False, msg=f"Traceback:\n{reason}")
                yield ray_client_pb2.DataResponse(init=init, req_id=first.req_id)
                next(requests, None)  # the client has read it and leaves; else it may find the connection gone
            else:
                yield from serves(servicer, itertools.chain([first], requests), context)

        DataServicer.Datapath = answer
        port = free_port()
        self._served = serve("127.0.0.1", port)
        self._served.data_servicer.num_clients += 1  # else Ray ends with the last one that leaves
        self.address = f"ray://127.0.0.1:{port}"

    def close(self) -> None:
        self._served.stop(0)


def from_elsewhere(job: dict[str, Any]) -> dict[str, Any]:
    """What commands say that reach this Ray by an address: one in vain at first, one at once, one always in vain."""
    door = Door()
    query = ("query", "--over", job["archive"], "--engine", door.address, job["queries"][0], "--json")
    look = ("diagnose", "--over", job["archive"], "--on", door.address, "--json")
    found = {}
    for name, words, failures in (("asked", query, 1), ("looked", look, 0), ("refused", look, 99)):
        door.failures = failures
        ended = command(*words, env=dict(os.environ))
        found[name] = [ended.returncode, ended.stdout, ended.stderr, door.failures]
    door.close()
    return {**found, "sent": [one.decode(errors="replace") for one in door.asked]}


def outcomes(job: dict[str, Any]) -> dict[str, Any]:
    connect("local")
    archive = stethos.archive(job["archive"])
    found: dict[str, Any] = {
        "verdicts": {row["run"]: row["verdict"] for row in archive.diagnose(on="local", timeout_s=900).runs},
        "tables": [plain(archive.sql(sql, engine="ray")) for sql in job["queries"]],
        "commands": [printed([*words, "--on", "local"]) for words in job["commands"]],
        "lost": list(run_calls(die_once, [(job["marker"],)], "local")),
    }
    try:
        list(run_calls(wait, [(600.0,)], "local", timeout_s=1.0))
    except ClusterError as error:
        found["late"] = error.message
    return found | {"elsewhere": from_elsewhere(job)}


if __name__ == "__main__":
    print("\n" + json.dumps(outcomes(json.loads(sys.argv[1])), default=str))
