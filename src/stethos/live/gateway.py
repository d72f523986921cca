"""Serves the processes of one machine to others: TLS, a token for every request, and nothing outside `ROUTES`.

On a connection the gateway says a number that it has never said before. Every
request carries a proof over that number, its own place in the connection and its
content, so that what was overheard or sent once is worth nothing. A request runs as
a command of its own, which is killed at its time limit; the trainer has no port.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stethos.errors import LiveError, StethosError, UsageError
from stethos.live.keys import RIGHTS, Keys, is_proof
from stethos.live.routes import Asked, asked
from stethos.redact import redact
from stethos.settings import gateway_environment

LARGEST_REQUEST = 1 << 20
LARGEST_OUTPUT = 16 << 20
MESSAGE_S = 10.0  # for a whole message, however slowly it comes
IDLE_S = 60.0
COMMAND_S = 120.0
MOST_CONNECTIONS = 32
MOST_PER_PEER = 8
RATE_PER_S, BURST = 10.0, 20
MOST_FAILURES, FAILURES_S = 10, 60.0
_LENGTH = 4
_REFUSED = "refused"
_DUMMY = secrets.token_bytes(32)


class Refused(Exception):  # noqa: N818  # an answer, not a failure
    """The request is not for whoever sent it; the connection ends."""


class Deadline:
    """A connection whose messages have to come and go within a time, byte by byte or not."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def receive(self, limit: int, wait_s: float, message_s: float = MESSAGE_S) -> bytes | None:
        """The next message; None if the other side hung up or was silent for `wait_s`. Refused if too large or slow."""
        self._connection.settimeout(wait_s)
        try:
            first = self._connection.recv(1)
        except (TimeoutError, OSError):
            return None
        if not first:
            return None
        deadline = time.monotonic() + message_s
        size = int.from_bytes(first + self._exactly(_LENGTH - 1, deadline), "big")
        if size > limit:
            raise Refused(f"a message of {size:,} bytes is more than the {limit:,} allowed")
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise Refused("too slow")
            self._connection.settimeout(left_s)
            try:
                part = self._connection.recv(min(size - len(parts), 1 << 16))
            except TimeoutError:
                raise Refused("too slow") from None
            except OSError:
                part = b""
            if not part:
                raise Refused("hung up in the middle of a message")
            parts += part
        return bytes(parts)

    def send(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode("ascii")
        self._connection.settimeout(MESSAGE_S)
        self._connection.sendall(len(body).to_bytes(_LENGTH, "big") + body)


@dataclass(eq=False)
class Guests:
    """Who is there, how often they ask, and who guesses tokens."""

    connections: dict[str, int] = field(default_factory=dict)
    requests: dict[str, tuple[float, float]] = field(default_factory=dict)
    failures: dict[str, deque[float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def come(self, peer: str) -> bool:
        with self.lock:
            if self._has_failed_often(peer) or sum(self.connections.values()) >= MOST_CONNECTIONS:
                return False
            if self.connections.get(peer, 0) >= MOST_PER_PEER:
                return False
            self.connections[peer] = self.connections.get(peer, 0) + 1
            return True

    def go(self, peer: str) -> None:
        with self.lock:
            self.connections[peer] -= 1
            if not self.connections[peer]:
                del self.connections[peer]

    def may_ask(self, peer: str, now: float) -> bool:
        """A bucket of `BURST` requests that fills again at `RATE_PER_S`."""
        with self.lock:
            left, since = self.requests.get(peer, (float(BURST), now))
            left = min(float(BURST), left + (now - since) * RATE_PER_S)
            if len(self.requests) > 10_000:
                self.requests.clear()
            self.requests[peer] = (left - 1 if left >= 1 else left), now
            return left >= 1

    def failed(self, peer: str) -> None:
        with self.lock:
            if len(self.failures) > 10_000:
                self.failures.clear()
            self.failures.setdefault(peer, deque(maxlen=MOST_FAILURES)).append(time.monotonic())

    def _has_failed_often(self, peer: str) -> bool:
        times = self.failures.get(peer)
        return times is not None and len(times) >= MOST_FAILURES and time.monotonic() - times[0] < FAILURES_S


class AuditLog:
    """Who asked what, as lines of JSON in a file that is the user's alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()

    def write(self, **facts: Any) -> None:
        """One line, on disk when this returns; OSError if that is not possible."""
        line = json.dumps({"t_ns": time.time_ns(), **facts}, default=str) + "\n"
        with self._lock:
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                os.write(descriptor, line.encode("ascii"))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


class Gateway:
    """Listens on one address until `stop`."""

    def __init__(
        self, keys: Keys, runs_dir: Path, *, command: Callable[[Asked, str], dict[str, Any]] | None = None
    ) -> None:
        self._keys = keys
        self._runs_dir = runs_dir.absolute()
        self._context = keys.server_context()
        self._guests = Guests()
        self._audit = AuditLog(keys.directory / "audit.jsonl")
        self._command = command or self._run
        self._listener: socket.socket | None = None
        self.is_stopping = False

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Take the address; the port is a free one if 0 was given."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(MOST_CONNECTIONS)
        except OSError as error:
            listener.close()
            raise LiveError(f"cannot listen on {host}:{port}: {error.strerror}") from None
        self._listener = listener
        return listener.getsockname()[0], listener.getsockname()[1]

    def serve(self) -> None:
        """Answer until `stop`."""
        assert self._listener is not None
        while not self.is_stopping:
            try:
                connection, address = self._listener.accept()
            except OSError:
                break
            peer = str(address[0])
            if not self._guests.come(peer):
                connection.close()
                continue
            threading.Thread(target=self._host, args=(connection, peer), name="stethos-gateway", daemon=True).start()

    def stop(self) -> None:
        self.is_stopping = True
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    # One connection -------------------------------------------------------------------------------------

    def _host(self, connection: socket.socket, peer: str) -> None:
        try:
            connection.settimeout(MESSAGE_S)
            with self._context.wrap_socket(connection, server_side=True) as secured:
                self._talk(Deadline(secured), peer)
        except (OSError, ssl.SSLError, Refused):
            pass  # no TLS, hung up, too slow
        finally:
            connection.close()
            self._guests.go(peer)

    def _talk(self, line: Deadline, peer: str) -> None:
        number = secrets.token_bytes(32)
        line.send({"stethos": 1, "number": number.hex()})
        for place in range(1 << 20):
            wait_s = MESSAGE_S if place == 0 else IDLE_S
            try:
                message = line.receive(LARGEST_REQUEST, wait_s)
                if message is None:
                    return
                right, content = self._admitted(message, number, place)
            except Refused as why:
                self._guests.failed(peer)
                self._note(peer=peer, outcome=_REFUSED, why=str(why))
                line.send(_failure(LiveError(f"the gateway refused: {_public(why)}", hint="see --token-file")))
                return
            if not self._guests.may_ask(peer, time.monotonic()):
                self._note(peer=peer, right=right, outcome=_REFUSED, why="too many requests")
                line.send(_failure(LiveError("too many requests", hint=f"at most {RATE_PER_S:g} per second")))
                continue
            line.send(self._answer(content, right, peer))

    def _admitted(self, message: bytes, number: bytes, place: int) -> tuple[str, dict[str, Any]]:
        """The right that a message proves, and its content; Refused if it proves none."""
        try:
            envelope = json.loads(message)
        except (ValueError, RecursionError):
            raise Refused("not a request") from None
        envelope = envelope if isinstance(envelope, dict) else {}
        right, body = envelope.get("right"), envelope.get("body")
        secret = self._keys.secrets.get(right, _DUMMY) if right in RIGHTS else _DUMMY
        text = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else b""
        if not is_proof(envelope.get("proof"), secret, number, place.to_bytes(8, "big"), text) or secret is _DUMMY:
            raise Refused("no valid token")
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise Refused("not a request") from None
        return str(right), content if isinstance(content, dict) else {}

    def _answer(self, content: dict[str, Any], right: str, peer: str) -> dict[str, Any]:
        began = time.monotonic()
        about: dict[str, Any] = {"peer": peer, "right": right, "route": str(content.get("route"))[:50]}
        try:
            one = _checked(content)
            about |= {"target": one.target, "options": list(one.options), "text": redact(one.text or "")[:4000]}
            if one.right == "act" and right != "act":
                raise LiveError(f"this token may read, not {one.name}", hint="use the gateway's act.token")
            self._note(**about, outcome="asked", must=True)
            reply = self._command(one, f"gateway {right}@{peer}")
        except StethosError as error:
            self._note(**about, outcome=_REFUSED, why=error.message)
            return _failure(error)
        self._note(**about, outcome="done", status=reply.get("status"), ms=round((time.monotonic() - began) * 1e3))
        return {"ok": True, **reply}

    def _note(self, *, must: bool = False, **facts: Any) -> None:
        try:
            self._audit.write(**facts)
        except OSError as error:
            if must:
                raise LiveError(f"not done: it could not be written down first ({error.strerror})") from None

    # One command ----------------------------------------------------------------------------------------

    def _run(self, one: Asked, who: str) -> dict[str, Any]:
        """Run the command beside us; it is killed at its time limit."""
        words = [sys.executable, "-m", "stethos.cli.main", *one.command()]
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=gateway_environment(who, self._runs_dir), start_new_session=True,
        )  # fmt: skip
        outputs = [_Gathered(stream, process) for stream in (process.stdout, process.stderr)]
        with contextlib.suppress(OSError):  # it has ended without reading
            assert process.stdin is not None
            process.stdin.write((one.text or "").encode("utf-8", "replace"))
            process.stdin.close()
        try:
            process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            raise LiveError(f"{one.name} took longer than {COMMAND_S:g} s behind the gateway") from None
        finally:
            process.kill()
            process.wait()
            out, err = (output.text() for output in outputs)
        is_cut = any(output.is_cut for output in outputs)
        return {"status": process.returncode, "out": out, "err": err, "is_cut": is_cut}


class _Gathered:
    """The output of a command, up to a limit, at which the command is killed."""

    def __init__(self, stream: IO[bytes] | None, process: subprocess.Popen[bytes]) -> None:
        assert stream is not None
        self._stream = stream
        self._process = process
        self._parts = bytearray()
        self.is_cut = False
        self._thread = threading.Thread(target=self._gather, daemon=True)
        self._thread.start()

    def _gather(self) -> None:
        with self._stream:
            while part := self._stream.read1(1 << 16):  # type: ignore[attr-defined]
                self._parts += part[: LARGEST_OUTPUT - len(self._parts)]
                if len(self._parts) >= LARGEST_OUTPUT:
                    self.is_cut = True
                    self._process.kill()
                    return

    def text(self) -> str:
        self._thread.join(MESSAGE_S)
        return self._parts.decode("utf-8", "replace")


def _checked(content: dict[str, Any]) -> Asked:
    words, target, text = content.get("words", []), content.get("target"), content.get("text")
    if not (
        isinstance(words, list)
        and all(isinstance(word, str) for word in words)
        and (target is None or isinstance(target, str))
        and (text is None or isinstance(text, str))
    ):
        raise UsageError("not a request")
    return asked(str(content.get("route")), target, words, text)


def _failure(error: StethosError) -> dict[str, Any]:
    return {"ok": False, "message": error.message, "hint": error.hint, "status": error.exit_code}


def _public(why: Refused) -> str:
    """What a stranger is told: not whether a token, a route or a number was wrong."""
    text = str(why)
    return text if text.startswith(("a message of", "too slow")) else "no valid token"
