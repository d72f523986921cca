"""The client of a server on another machine: HTTPS to one certificate, known by its fingerprint."""

from __future__ import annotations

import contextlib
import hmac
import http.client
import json
import socket
import ssl
import threading
from typing import Any

from stethos.errors import LiveError
from stethos.web.keys import Token, fingerprint_of
from stethos.web.remote_command import CommandCall

CONNECT_S = 10.0
ANSWER_S = 180.0
LARGEST_ANSWER = 256 << 20
_NAME = "localhost"  # a name to which every server answers


class PinnedConnection(http.client.HTTPSConnection):
    """Sends nothing before the other side has shown the certificate with this fingerprint."""

    def __init__(
        self, host: str, port: int, fingerprint: str, connect_s: float = CONNECT_S, answer_s: float = ANSWER_S
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the fingerprint says more than a name
        context.verify_mode = ssl.CERT_NONE
        super().__init__(host, port, timeout=connect_s, context=context)
        self._fingerprint = fingerprint
        self._answer_s = answer_s

    def connect(self) -> None:
        super().connect()
        certificate = self.sock.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(fingerprint_of(certificate), self._fingerprint):
            self.close()
            raise LiveError(
                f"{self.host}:{self.port} has another certificate than the one in the token file: it is another "
                "server, or its keys were made anew",
                hint="copy its token file again, over a way you trust",
            )
        self.sock.settimeout(self._answer_s)
        self._socket = self.sock  # which is let go of when the answer begins

    def cut(self) -> None:
        """End it now, from another thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def call_remote(address: str, token: Token, call: CommandCall) -> dict[str, Any]:
    """What came of a command on the server: `status`, `out`, `err`, `is_cut`; LiveError if it was refused."""
    host, _, port = address.rpartition(":")
    connection = PinnedConnection(host.strip("[]"), int(port), token.fingerprint)
    try:
        connection.connect()
    except OSError as error:
        raise LiveError(f"no server at {address}: {error}", hint="start one there: `stethos gateway`") from None
    headers = headers_for({"Authorization": f"Bearer {token.secret}"})
    body = json.dumps({"target": call.target, "words": call.options, "text": call.text})
    at_deadline = threading.Timer(ANSWER_S, connection.cut)  # a server that sends a byte now and then
    at_deadline.daemon = True
    at_deadline.start()
    try:
        connection.request("POST", f"/api/commands/{call.name}", body, headers)
        reply = connection.getresponse()
        content = reply.read(LARGEST_ANSWER)
        if reply.length and len(content) < LARGEST_ANSWER:
            raise http.client.IncompleteRead(content[:0], reply.length)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LiveError(f"{address} did not answer: {error!r}") from None
    finally:
        at_deadline.cancel()
        connection.close()
    answer = _object_in(content)
    if reply.status != 200:
        message = str(answer.get("error") or f"{address} answered {reply.status}")
        raise LiveError(message, hint=str(answer.get("hint") or ""))
    return answer


def headers_for(more: dict[str, str]) -> dict[str, str]:
    """What every request to a server of ours has, and more."""
    return {"Host": _NAME, "Origin": f"https://{_NAME}", **more}


def _object_in(content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {}
