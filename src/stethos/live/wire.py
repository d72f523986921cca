"""What is said on an agent's socket: a length, then that many bytes of JSON.

A request is `{"op": ..., ...}`, a reply `{"ok": true, ...}` or
`{"ok": false, "error": {"kind": ..., "message": ..., "hint": ...}}`.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from stethos import errors
from stethos.errors import LiveError, StethosError

LARGEST_REQUEST = 4 << 20
LARGEST_REPLY = 64 << 20
_LENGTH = struct.Struct(">I")


def send(connection: socket.socket, content: dict[str, Any], limit: int) -> None:
    """Send one message; LiveError if it is larger than `limit` bytes."""
    body = json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
    if len(body) > limit:
        raise LiveError(f"a message of {len(body):,} bytes is more than the {limit:,} allowed", hint="ask for less")
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, limit: int) -> dict[str, Any] | None:
    """The next message; None if the other side has hung up. LiveError if it makes no sense or is too large."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (size,) = _LENGTH.unpack(head)
    if size > limit:
        raise LiveError(f"a message of {size:,} bytes is more than the {limit:,} allowed")
    body = _exactly(connection, size)
    if body is None:
        return None
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise LiveError("a message that is not JSON") from None
    if not isinstance(content, dict):
        raise LiveError("a message that is not a JSON object")
    return content


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def error_reply(error: StethosError) -> dict[str, Any]:
    """An error as the other side gets it."""
    return {"ok": False, "error": {"kind": type(error).__name__, "message": error.message, "hint": error.hint}}


def error_from(reply: dict[str, Any]) -> StethosError:
    """The error in a reply, of its own class."""
    error = reply.get("error")
    error = error if isinstance(error, dict) else {}
    kind = getattr(errors, str(error.get("kind")), LiveError)
    if not (isinstance(kind, type) and issubclass(kind, StethosError)):
        kind = LiveError
    return kind(str(error.get("message") or "it failed without a word"), hint=str(error.get("hint") or ""))
