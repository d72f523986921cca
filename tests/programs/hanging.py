"""Trains, and stands still in every way in turn, until a byte comes on stdin or a file is let go: hanging.py DIRECTORY

Prints a line when it comes to something new.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stethos

SLOW_S = 2.5
CLIENT = (
    "import os, socket, sys; server = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); server.recv(5); "
    "os.read(0, 1); server.sendall(b'!')"
)


class Rows(Dataset):  # type: ignore[type-arg]
    """Random rows; one of them comes only when it is let."""

    blocked = False
    pause_s = 0.0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.pause_s)
        if self.blocked and index == 3:
            self.blocked = False
            os.read(0, 1)
        return torch.randn(4)


rows = Rows()
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def train(epochs: int = 1) -> None:
    for _ in range(epochs):
        for x in DataLoader(rows, batch_size=1):
            time.sleep(0.01)
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()


def evaluate() -> None:
    """Batches come, slowly."""
    rows.pause_s = 0.3
    end = time.monotonic() + SLOW_S
    with torch.no_grad():
        while time.monotonic() < end:
            for x in DataLoader(rows, batch_size=1):
                model(x)
    rows.pause_s = 0.0


def compute() -> None:
    """Nothing but arithmetic, always in the same line."""
    end = time.monotonic() + SLOW_S
    x = torch.randn(300, 300)
    while time.monotonic() < end:
        x @ x


def checkpoint(directory: Path) -> None:
    """A file that takes long."""
    end = time.monotonic() + SLOW_S
    with (directory / "checkpoint").open("wb") as file:
        while time.monotonic() < end:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.1)


def wait_for_lock() -> None:
    lock = threading.Lock()
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            os.read(0, 1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    lock.acquire()
    thread.join()


def hold_gil() -> None:
    ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)


def open_file(directory: Path) -> None:
    """Somebody else has a lease on it: it opens when that is given back."""
    (directory / "leased").read_bytes()


def start_program(directory: Path) -> None:
    """From a file that does not come; the kernel lets nothing interrupt that."""
    subprocess.run([directory / "program"], check=True)


def wait_for_file_lock(directory: Path) -> None:
    with (directory / "locked").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def wait_for_client() -> None:
    """A server of a federation; its client, a process of its own, has connected and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = subprocess.Popen([sys.executable, "-S", "-E", "-c", CLIENT, str(port)])
        connection, _ = server.accept()
        with connection, stethos.federation("digits", model=model) as federation:
            for turn in federation.rounds(1):
                with turn.client("c3") as site:
                    connection.sendall(b"train")
                    connection.recv(1)
                    site.update(model.state_dict(), samples=1)
        client.wait()


def main() -> None:
    torch.set_num_threads(1)
    train(3)
    for slow in (evaluate, compute, lambda: checkpoint(Path(sys.argv[1]))):
        slow()
        train()
    say("slow")
    os.read(0, 1)
    directory = Path(sys.argv[1])
    for name in ("loader", "lock", "gil", "client", "file", "program", "file lock"):
        train()
        say(name)
        match name:
            case "loader":
                rows.blocked = True
                train()
            case "lock":
                wait_for_lock()
            case "gil":
                hold_gil()
            case "client":
                wait_for_client()
            case "file":
                open_file(directory)
            case "program":
                start_program(directory)
            case "file lock":
                wait_for_file_lock(directory)
    train(20)  # so long that it is seen to go on
    say("end")


main()
