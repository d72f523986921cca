"""The asking side: one question to the agent of a live process."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from stethos.errors import LiveError
from stethos.live.registry import LiveProcess
from stethos.live.wire import LARGEST_REPLY, LARGEST_REQUEST, error_from, receive, send
from stethos.settings import asked_by

DEFAULT_TIMEOUT_S = 30.0
_LONGEST_ADDRESS = 100


def ask(process: LiveProcess, op: str, timeout_s: float = DEFAULT_TIMEOUT_S, **arguments: Any) -> dict[str, Any]:
    """The agent's answer to one request; a StethosError says why there is none.

    `timeout_s` is for the whole of it: an agent cannot answer while its process holds the GIL in C or is stopped.
    """
    with AgentConnection(process, timeout_s) as conversation:
        return conversation.ask(op, **arguments)


class AgentConnection:
    """Several requests over one connection, between which the agent keeps what `eval` has named."""

    def __init__(self, process: LiveProcess, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._process = process
        self._timeout_s = timeout_s
        self._socket = _connect(process, timeout_s)

    def ask(self, op: str, timeout_s: float | None = None, **arguments: Any) -> dict[str, Any]:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self._socket.settimeout(timeout_s)
        try:
            who = asked_by()
            send(self._socket, {"op": op, **arguments, **({"who": who} if who else {})}, LARGEST_REQUEST)
            reply = receive(self._socket, LARGEST_REPLY)
        except TimeoutError:
            raise silence(self._process, timeout_s) from None
        except OSError as error:
            raise _gone(self._process, error) from None
        if reply is None:
            raise _gone(self._process, None)
        if reply.get("ok") is not True:
            raise error_from(reply)
        return reply

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> AgentConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A socket's address; a path too long for one is reached through its directory."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _connect(process: LiveProcess, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        with address_of(process.socket) as address:
            connection.connect(address)
    except FileNotFoundError:
        connection.close()
        raise LiveError(
            f"process {process.pid} has no agent",
            hint="it was started with STETHOS_AGENT=0, or its agent has ended; "
            f"`stethos {process.pid} backtrace` works without one",
        ) from None
    except TimeoutError:
        connection.close()
        raise silence(process, timeout_s) from None
    except ConnectionRefusedError:
        connection.close()
        raise LiveError(
            f"nothing is listening at {process.socket}: the agent of process {process.pid} has ended",
            hint=f"`stethos {process.pid} backtrace` works without one",
        ) from None
    except OSError as error:
        connection.close()
        raise LiveError(f"cannot reach the agent of process {process.pid}: {error.strerror or error}") from None
    return connection


def silence(process: LiveProcess, timeout_s: float) -> LiveError:
    """The agent is there and does not answer."""
    return LiveError(
        f"process {process.pid} did not answer within {timeout_s:g} s: it is stopped, or something in C holds the GIL",
        hint=f"`stethos {process.pid} backtrace` shows where it is without asking it",
    )


def _gone(process: LiveProcess, error: OSError | None) -> LiveError:
    why = f" ({error.strerror or error})" if error is not None else ""
    return LiveError(
        f"the agent of process {process.pid} hung up{why}: the process has ended, or other clients are in its way",
        hint="`stethos ls` lists what is alive",
    )
