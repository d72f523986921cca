"""One Ray on this machine, and all that runs on it: queries, diagnoses, replays; prints what came out as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from fleet_runs import plain

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
    return found


if __name__ == "__main__":
    print("\n" + json.dumps(outcomes(json.loads(sys.argv[1])), default=str))
