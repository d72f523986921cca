"""Real Flower programs, run for the tests; what they recorded is read afterwards."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from processes import PROGRAMS, environment, free_port, wait_for_rest, wait_until

from stethos.errors import StethosError
from stethos.store.run import Run, open_run

BIN = Path(sys.executable).parent
DEADLINE_S = 600.0
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "flower-app"
version = "1.0.0"
description = "a test"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stethos"

[tool.flwr.app.components]
serverapp = "flower_app:server_app"
clientapp = "flower_app:client_app"
"""


def flower_environment(directory: Path, **settings: Any) -> dict[str, str]:
    """Nothing is sent to anybody, nothing is left at home, and failures of ours come out."""
    for name in ("home", "runtime"):
        (directory / name).mkdir(mode=0o700, exist_ok=True)
    return environment(
        FLOWER_APP=json.dumps({"dir": str(directory), **settings}),
        FLWR_HOME=str(directory / "home"),
        FLWR_TELEMETRY_ENABLED="0",
        FLWR_DISABLE_UPDATE_CHECK="1",
        RAY_USAGE_STATS_ENABLED="0",
        STETHOS_STRICT="1",
        XDG_RUNTIME_DIR=str(directory / "runtime"),
        PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}",
    )


def run_on_ray(directory: Path, program: str, *words: str, **settings: Any) -> str:
    """Run a program that simulates a federation; what it wrote to stderr."""
    result = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *words],
        cwd=directory, env=flower_environment(directory, **settings), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-5000:]
    return result.stderr


def recorded(path: Path) -> Run:
    """A run whose processes have all ended, with every row accounted for."""
    wait_for_rest(path)
    run = open_run(path)
    for process in run.processes():
        assert process["rows_produced"] == process["rows_stored"], process
    return run


class Rows:
    """Answers of a run as plain tuples."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __call__(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run.rows(query).values]

    def one(self, query: str) -> tuple[Any, ...]:
        (row,) = self(query)
        return row

    def client(self, label: int) -> str:
        """The node that has a partition."""
        return str(self.one(f"SELECT DISTINCT client FROM client_rounds WHERE label = '{label}'")[0])

    def labels(self, query: str) -> list[tuple[Any, ...]]:
        """A query over `named`: client_rounds by label."""
        return self(f"WITH named AS (SELECT DISTINCT client, label FROM client_rounds WHERE label IS NOT NULL) {query}")


# Deployment -------------------------------------------------------------------------------------------


def make_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """A certificate authority, and a certificate of it for 127.0.0.1 with its key; files of PEM."""
    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(whose: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(name(whose)).issuer_name(name("a test's authority"))
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return made.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(2))

    root_key, own_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = builder("a test's authority", root_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")])
    own = builder("localhost", own_key).add_extension(here, critical=False)
    private = own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = (
        root.sign(root_key, hashes.SHA256()).public_bytes(Encoding.PEM),
        own.sign(root_key, hashes.SHA256()).public_bytes(Encoding.PEM), private,
    )  # fmt: skip
    files = directory / "ca.pem", directory / "server.pem", directory / "server.key"
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)
    return files


class Deployment:
    """A SuperLink and SuperNodes on loopback, each with the processes it starts in a group of its own."""

    def __init__(self, directory: Path, *, tls: bool = False, **settings: Any) -> None:
        self.directory = directory
        self._environment = flower_environment(directory, **settings)
        self._secrets = make_certificates(directory) if tls else None
        self._started: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        address = f"127.0.0.1:{self._port}"
        how = f'root-certificates = "{self._secrets[0]}"' if self._secrets else "insecure = true"
        (directory / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{address}"\n{how}\n'
        )
        self._superlink = address
        secrets = zip(("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile"), self._secrets or (), strict=False)
        words = [str(word) for pair in secrets for word in pair] or ["--insecure"]
        self._start(
            "superlink", "flower-superlink", *words, "--host", "127.0.0.1", "--port", str(self._port),
            "--disable-runtime-dependency-installation",
        )  # fmt: skip

    def add_node(self, partition: int, **environment: str) -> None:
        words = ["--root-certificates", str(self._secrets[0])] if self._secrets else ["--insecure"]
        self._start_in(
            environment, f"node-{partition}", "flower-supernode", *words, "--superlink", self._superlink,
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={partition} num-partitions=3",
        )  # fmt: skip

    def submit(self) -> None:
        """Hand the app in, as a user would."""
        app = self.directory / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(PYPROJECT)
        shutil.copy(PROGRAMS / "flower_app.py", app)
        wait_until(lambda: is_open(self._port), "a SuperLink that listens", DEADLINE_S)
        result = subprocess.run(
            ["flwr", "run", str(app), "local"],
            cwd=self.directory, env=self._environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S,
        )  # fmt: skip
        assert result.returncode == 0 and "Successfully started run" in result.stdout, result.stdout + result.stderr

    def _start(self, name: str, *words: str) -> None:
        self._start_in({}, name, *words)

    def _start_in(self, more: dict[str, str], name: str, *words: str) -> None:
        environment = {**self._environment, **more}
        with (self.directory / f"{name}.txt").open("wb") as output:
            self._started.append(
                subprocess.Popen(
                    words, cwd=self.directory, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                    stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def stop(self) -> None:
        for process in self._started:
            process.terminate()
        deadline = time.monotonic() + 5
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads its own group
            process.wait()

    def what_was_said(self) -> str:
        files = sorted(self.directory.glob("*.txt"))
        return "\n".join(f"{file.name}:\n{file.read_text(errors='replace')[-3000:]}" for file in files)


@contextlib.contextmanager
def deployment(directory: Path, *, tls: bool = False, **settings: Any) -> Iterator[Deployment]:
    deployed = Deployment(directory, tls=tls, **settings)
    try:
        yield deployed
    finally:
        deployed.stop()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def said_so_far(path: Path, words: str) -> bool:
    """Whether a run that still grows has a log row with these words."""
    try:
        with open_run(path) as run:
            return bool(run.rows(f"SELECT 1 FROM logs WHERE message LIKE '%{words}%'").values)
    except StethosError:
        return False
