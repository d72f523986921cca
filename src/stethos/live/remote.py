"""The client of a gateway: knows its certificate, proves its token, asks."""

from __future__ import annotations

import hmac
import json
import socket
import ssl
from types import TracebackType
from typing import Any

from stethos.errors import LiveError
from stethos.live.gateway import LARGEST_OUTPUT, Deadline, Refused
from stethos.live.keys import Token, fingerprint_of

CONNECT_S = 10.0
ANSWER_S = 150.0
_LARGEST_REPLY = 8 * LARGEST_OUTPUT


class Remote:
    """A connection to a gateway; LiveError where it cannot be had or is refused."""

    def __init__(self, address: str, token: Token) -> None:
        self._address = address
        self._token = token
        self._place = 0
        self._socket = self._connect()
        self._line = Deadline(self._socket)
        hello = self._receive(CONNECT_S)
        try:
            self._number = bytes.fromhex(str(hello.get("number")))
        except ValueError:
            raise LiveError(f"{address} is not a gateway") from None

    def _connect(self) -> ssl.SSLSocket:
        host, _, port = self._address.rpartition(":")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the fingerprint says more than a name
        context.verify_mode = ssl.CERT_NONE
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        except (OSError, ValueError) as error:
            raise LiveError(
                f"no gateway at {self._address}: {error}", hint="start one there: `stethos gateway`"
            ) from None
        try:
            secured = context.wrap_socket(plain)
        except (OSError, ssl.SSLError) as error:
            plain.close()
            raise LiveError(f"{self._address} does not answer as a gateway: {error}") from None
        certificate = secured.getpeercert(binary_form=True) or b""
        if not hmac.compare_digest(fingerprint_of(certificate), self._token.fingerprint):
            secured.close()
            raise LiveError(
                f"{self._address} has another certificate than the one in the token file: it is not that gateway, or "
                "it was set up anew",
                hint="copy its token file again, over a way you trust",
            )
        return secured

    def ask(self, route: str, target: str | None, words: list[str], text: str | None = None) -> dict[str, Any]:
        """The reply to one request: `status`, `out`, `err`. LiveError if it was refused."""
        body = json.dumps({"route": route, "target": target, "words": words, "text": text})
        proof = self._token.proof(self._number, self._place.to_bytes(8, "big"), body.encode())
        self._place += 1
        try:
            self._line.send({"right": self._token.right, "proof": proof, "body": body})
        except OSError as error:
            raise LiveError(f"{self._address} hung up: {error}") from None
        reply = self._receive(ANSWER_S)
        if reply.get("ok") is not True:
            raise LiveError(str(reply.get("message") or "refused"), hint=str(reply.get("hint") or ""))
        return reply

    def _receive(self, wait_s: float) -> dict[str, Any]:
        try:
            message = self._line.receive(_LARGEST_REPLY, wait_s, ANSWER_S)
            content = json.loads(message) if message is not None else None
        except (Refused, ValueError) as error:
            raise LiveError(f"{self._address} answered nonsense: {error}") from None
        if not isinstance(content, dict):
            raise LiveError(f"{self._address} hung up or did not answer within {wait_s:g} s")
        return content

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Remote:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
