"""Kill a collector at random times while clients send to it, and compare what is stored with their own ledger.

    python -m attack.collector KILLS [SEED]

The server is the real one, over TLS, in a process of its own that a timer kills. A batch that was acknowledged must be
there once; one that was not, at most once. Every other server begins a new file of its journal after a few batches and
lets go of the old ones at once, so that it is killed there, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collecting import HandMadeClient
from processes import free_port

from stethos.collect import journal, run_writer
from stethos.collect.enrolment import Enrolment
from stethos.collect.receiver import Receiver
from stethos.collect.routes import CollectRoutes
from stethos.collect.sender import BATCH_PATH
from stethos.errors import LiveError
from stethos.store.run import open_run
from stethos.web.keys import Keys, open_keys
from stethos.web.remote import PinnedConnection, headers_for
from stethos.web.serve import listen, serve

CLIENTS = 4
SHORTEST_S, LONGEST_S = 0.02, 1.0


class Ledger:
    """What the clients know: which values they have sent, and which of them were acknowledged."""

    def __init__(self) -> None:
        self.acked: set[int] = set()
        self.sent: set[int] = set()


def serve_until_killed(directory: Path, keys: Keys, port: int, ready: int, delay_s: float, is_hasty: bool) -> None:
    """In a child: a collector that ends without warning."""
    if is_hasty:
        journal.ROLL_BYTES, run_writer.SAVE_S = 10_000, 0.02

    def begin(_: str) -> None:
        os.write(ready, b"1")
        signal.setitimer(signal.ITIMER_REAL, delay_s)  # nobody catches it: the process is gone

    enrolment = Enrolment(keys.directory)
    receiver = Receiver(directory, enrolment)
    routes = CollectRoutes(receiver, enrolment).routes()
    serve(directory, listen("127.0.0.1", port), keys=keys, ready=begin, routes=routes)


def start(directory: Path, keys: Keys, port: int, delay_s: float, is_hasty: bool) -> int:
    """A collector that answers; its pid."""
    heard, ready = os.pipe()
    said = directory.with_name("said.txt")
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        with said.open("w") as file:
            os.dup2(file.fileno(), 2)
        try:
            serve_until_killed(directory, keys, port, ready, delay_s, is_hasty)
        finally:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    os.close(ready)
    if not os.read(heard, 1):
        raise AssertionError(f"no collector: status {os.waitpid(pid, 0)[1]}, {said.read_text()[-2000:]}")
    os.close(heard)
    return pid


def send_until_gone(clients: list[HandMadeClient], numbers: list[int], keys: Keys, port: int, ledger: Ledger) -> None:
    """Send batches of all clients in turn, each until it is acknowledged, until nobody answers any more."""
    connection = PinnedConnection("127.0.0.1", port, keys.fingerprint, 5.0, 5.0)
    try:
        while True:
            for place, client in enumerate(clients):
                number = numbers[place]
                values = [place * 10**7 + 10 * number + i for i in range(3)]
                ledger.sent |= set(values)
                connection.request("POST", BATCH_PATH, client.batch(number, values), headers_for({}))
                reply = connection.getresponse()
                content = json.loads(reply.read())
                if reply.status == 200 and content == {"stored": True}:
                    ledger.acked |= set(values)
                    numbers[place] += 1
                elif reply.status == 429:
                    time.sleep(0.05)
                else:
                    raise AssertionError(f"{reply.status} {content}")
    except (OSError, http.client.HTTPException, LiveError, ValueError):
        return
    finally:
        connection.close()


def import_all(keys: Keys, directory: Path) -> None:
    """Load what a request needs, so that the children, which are forked, do not take their short time for it."""
    import uvicorn.protocols.http.h11_impl  # noqa: F401

    receiver = Receiver(directory, Enrolment(keys.directory))
    asyncio.run(receiver.take(HandMadeClient(receiver.enrolment, "first").batch(1, [1])))
    receiver.close()


def attack(kills: int, seed: int = 0) -> tuple[int, int, int, int]:
    """So many kills: batches' rows acknowledged, lost, doubled, and stored without having been acknowledged."""
    chance, ledger = random.Random(seed), Ledger()
    with tempfile.TemporaryDirectory(prefix="stethos-kills-") as scratch:
        directory, keys, port = Path(scratch) / "runs", open_keys(Path(scratch) / "keys"), free_port()
        enrolment = Enrolment(keys.directory)
        clients = [HandMadeClient(enrolment, f"c{place}") for place in range(CLIENTS)]
        numbers = [1] * CLIENTS
        import_all(keys, Path(scratch) / "first")
        for done in range(kills):
            pid = start(directory, keys, port, chance.uniform(SHORTEST_S, LONGEST_S), done % 2 == 1)
            send_until_gone(clients, numbers, keys, port, ledger)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), status
            if (done + 1) % 25 == 0:
                sys.stderr.write(f"{done + 1} kills, {len(ledger.acked)} rows acknowledged\n")
        Receiver(directory, enrolment).close()
        with open_run(directory / "r") as run:
            stored = Counter(int(value) for (value,) in run.rows("SELECT value FROM metrics").values)
    lost = len(ledger.acked - set(stored))
    doubled = sum(count > 1 for count in stored.values())
    assert set(stored) <= ledger.sent, "rows that nobody has sent"
    return len(ledger.acked), lost, doubled, len(set(stored) - ledger.acked)


def main() -> int:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    began = time.monotonic()
    acked, lost, doubled, beyond = attack(kills, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    titles = ("kills", "rows acknowledged", "of these lost", "stored twice", "stored, not acknowledged", "s")
    print(f"| {' | '.join(titles)} |\n" + "|---" * len(titles) + "|")
    print(f"| {kills} | {acked} | {lost} | {doubled} | {beyond} | {time.monotonic() - began:.0f} |")
    return 1 if lost or doubled else 0


if __name__ == "__main__":
    sys.exit(main())
