"""Planted stalls on a Flower deployment: a SuperLink and two SuperNodes on loopback, a new one for each trial."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from flower_runs import BIN, PYPROJECT, flower_environment, is_open
from processes import free_port, wait_until

from benchmarks.stalls.proxy import Proxy
from benchmarks.stalls.trial import Planted, Verdict, end_group, watch

HERE = Path(__file__).resolve().parent / "apps"
CASES = [
    Planted("flower", "drop", "download", "victim"),
    Planted("flower", "node-stop", "download", "victim"),
    Planted("flower", "client-sleep", "compute", "victim"),
    Planted("flower", "client-stop", "compute", "victim"),
    # Flower's server fetches answers one after the other: those behind one that is cut wait with it.
    Planted("flower", "cut-transfer", "upload", "victim", holds_back=True),
    Planted("flower", "aggregate-sleep", "aggregate"),
    Planted("flower", "server-stop", "server"),
    Planted("flower", "server-kill", "server"),
    Planted("flower", "server-import", "never-started"),
    Planted("flower", "slow-client", None),
    Planted("flower", "slow-aggregate", None),
]
START_S = 240.0


def trials(repeat: int, only: str) -> Iterator[Verdict]:
    """All of them, one after the other."""
    for number in range(repeat):
        for planted in CASES:
            if only in planted.kind:
                yield trial(planted, number)


def trial(planted: Planted, number: int) -> Verdict:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory = Path(name)
        federation = Federation(directory, planted.kind, 2 + number % 2)
        try:
            federation.start()
            verdict = watch(planted, directory / "run", federation.began, federation.is_over)
        except AssertionError as error:
            print(federation.said()[-3000:], file=sys.stderr)
            return Verdict(planted, None, title=f"did not start: {error}")
        finally:
            federation.stop()
        victim = directory / "victim"
        whom = victim.read_text() if planted.client and victim.exists() else None
        return replace(verdict, planted=replace(planted, client=whom))


class Federation:
    """One deployment; its processes lead groups of their own."""

    def __init__(self, directory: Path, kind: str, number: int) -> None:
        self._directory = directory
        self._kind = kind
        elements = 500_000 if kind == "cut-transfer" else 1000
        plan = {"dir": str(directory), "kind": kind, "round": number, "elements": elements}
        self._environment = {**flower_environment(directory), "STALL_PLAN": json.dumps(plan)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        is_cut = (directory / ("cut" if kind == "cut-transfer" else "drop")).exists
        self._proxy = Proxy(self._port, is_cut, 1_800_000 if kind == "cut-transfer" else 0)

    def start(self) -> None:
        home = self._directory / "home"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self._port),
                "--disable-runtime-dependency-installation"]  # fmt: skip
        if self._kind == "server-import":
            run = [sys.executable, "-m", "stethos.cli.main", "run", "--quiet", "--dir", str(self._directory)]
            link = [*run, "--name", "run", str(BIN / link[0]), *link[1:]]
        self._begin("link", link)
        wait_until(lambda: is_open(self._port), "a SuperLink that listens", START_S)
        for partition, port in ((1, self._port), (2, self._proxy.port)):
            self._begin(f"node-{partition}", [
                "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1",
                "--port", str(free_port()), "--node-config", f"partition-id={partition} num-partitions=3",
            ])  # fmt: skip
        self._submit()
        wait_until(self._has_begun, "the app's first words", START_S)

    def _has_begun(self) -> bool:
        return (self._directory / "run").exists() or (self._directory / "planted").exists()

    def _submit(self) -> None:
        app = self._directory / "app"
        app.mkdir()
        names = {"flower_app:server_app": "flower_server:app", "flower_app:client_app": "flower_client:app"}
        text = PYPROJECT
        for old, new in names.items():
            text = text.replace(old, new)
        (app / "pyproject.toml").write_text(text)
        for file in ("flower_plan.py", "flower_client.py", "flower_server.py"):
            shutil.copy(HERE / file, app)
        result = subprocess.run(
            ["flwr", "run", str(app), "local"], cwd=self._directory, env=self._environment, capture_output=True,
            text=True, check=False, timeout=START_S,
        )  # fmt: skip
        if result.returncode:
            raise AssertionError(result.stdout + result.stderr)

    def _begin(self, name: str, words: list[str]) -> None:
        with (self._directory / f"{name}.txt").open("wb") as output:
            self._processes[name] = subprocess.Popen(
                words, cwd=self._directory, env=self._environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, start_new_session=True,
            )  # fmt: skip

    def began(self) -> float | None:
        """When the stall began; also does what the apps cannot do themselves."""
        if (self._directory / "node-stop").exists():
            os.killpg(self._processes["node-2"].pid, signal.SIGSTOP)
        marker = self._directory / "planted"
        return float(marker.read_text()) if marker.exists() else None

    def is_over(self) -> bool:
        return (self._directory / "over").exists()

    def said(self) -> str:
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')}" for file in self._directory.glob("*.txt"))

    def stop(self) -> None:
        self._proxy.close()
        for process in self._processes.values():
            end_group(process.pid)
            process.wait()
        for pid in _of(self._directory):
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
        time.sleep(2.0)  # drainers end by themselves


def _of(directory: Path) -> list[int]:
    """Processes that the deployment started and that left its groups: those whose environment names its directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                own = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"FLWR_HOME={directory}/".encode() in own and b"STALL_PLAN=" in own:
                found.append(int(entry.name))
    return found
