"""Planted stalls in NVFlare's simulator: a server and two clients in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from processes import environment

from benchmarks.stalls.trial import Planted, Verdict, end_group, watch

HERE = Path(__file__).resolve().parent / "apps"
CASES = [
    Planted("nvflare", "drop", "download", "site-2"),
    Planted("nvflare", "client-sleep", "compute", "site-2"),
    Planted("nvflare", "client-stop", "compute", "site-2"),
    Planted("nvflare", "client-kill", "compute", "site-2"),
    Planted("nvflare", "lost-result", "upload", "site-2"),
    Planted("nvflare", "aggregate-sleep", "aggregate"),
    Planted("nvflare", "server-stop", "server"),
    Planted("nvflare", "slow-client", None),
    Planted("nvflare", "slow-aggregate", None),
]


def trials(repeat: int, only: str) -> Iterator[Verdict]:
    """All of them, one after the other."""
    for number in range(repeat):
        for planted in CASES:
            if only in planted.kind:
                yield trial(planted, number)


def trial(planted: Planted, number: int) -> Verdict:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory = Path(name)
        plan = {"dir": name, "kind": planted.kind, "round": 1 + number % 2}
        own = environment(
            STALL_PLAN=json.dumps(plan), HOME=name, TMPDIR=name, XDG_RUNTIME_DIR=name,
            PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        )  # fmt: skip
        own["PYTHONPATH"] = os.pathsep.join((own["PYTHONPATH"], str(HERE)))
        with (directory / "out.txt").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "nvflare_job.py"), name], cwd=name, env=own, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        marker, over = directory / "planted", directory / "over"
        try:
            verdict = watch(
                planted, directory / "run", lambda: float(marker.read_text() or 0) if marker.exists() else None,
                lambda: over.exists() or process.poll() is not None,
            )  # fmt: skip
            if not verdict.is_right:
                print((directory / "out.txt").read_text(errors="replace")[-1500:], file=sys.stderr)
            return verdict
        finally:
            end_group(process.pid)
            process.wait()
            for pid in _of(name):
                for signal_number in (signal.SIGCONT, signal.SIGKILL):
                    try:
                        os.kill(pid, signal_number)
                    except ProcessLookupError:
                        break
            time.sleep(2.0)  # drainers end by themselves


def _of(directory: str) -> list[int]:
    """Processes of the job that left its group: those whose environment names its directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                own = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"TMPDIR={directory}\0".encode() in own and b"STALL_PLAN=" in own:
                found.append(int(entry.name))
    return found
