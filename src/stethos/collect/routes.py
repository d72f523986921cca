"""The collector's routes: a batch of rows, and the enrolment of a client.

They need no token: a batch is signed by its client, and an enrolment shows its own token, which works once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from stethos.collect.batch import MOST_BATCH_BYTES, BatchError
from stethos.collect.enrol_client import ENROL_PATH, ask_to_enrol
from stethos.collect.enrolment import Enrolment, NotEnrolledError
from stethos.collect.receiver import Receiver
from stethos.collect.relay import Relay
from stethos.collect.sender import BATCH_PATH
from stethos.collect.shares import BusyError
from stethos.errors import LiveError, StethosError, UsageError
from stethos.web.access import GuardedRoute
from stethos.web.body import read_body, read_object

_MOST_ENROL_BYTES = 16 << 10
_LONGEST_WAIT_S = 300.0


class CollectRoutes:
    """What clients reach of a collector."""

    def __init__(
        self,
        receiver: Receiver | Relay,
        enrolment: Enrolment,
        on_taken: Callable[[tuple[str, int]], None] | None = None,
    ) -> None:
        """`on_taken` is called with the peer of each batch that was taken."""
        self._receiver = receiver
        self._enrolment = enrolment
        self._on_taken = on_taken

    def routes(self) -> list[GuardedRoute]:
        return [
            GuardedRoute(BATCH_PATH, self._batch, None, "POST"),
            GuardedRoute(ENROL_PATH, self._enrol, None, "POST"),
        ]

    async def _batch(self, request: Request) -> Response:
        try:
            answer = await self._receiver.take(await read_body(request, MOST_BATCH_BYTES))
            if self._on_taken is not None and request.client is not None:
                self._on_taken((request.client.host, request.client.port))
            return JSONResponse(answer)
        except BusyError as error:
            return _complaint(error, error.status, error.wait_s, ends=error.ends)
        except NotEnrolledError as error:
            self._receiver.refused += 1
            return _complaint(error, 403)
        except BatchError as error:
            self._receiver.refused += 1
            return _complaint(error, 400)
        except UsageError as error:  # too large, or too slow
            return _complaint(error, 413 if "larger" in error.message else 408)

    async def _enrol(self, request: Request) -> Response:
        content = await read_object(request, _MOST_ENROL_BYTES)
        token, key, proof = content.get("token"), content.get("key"), content.get("proof")
        if not isinstance(token, str) or not isinstance(key, str):
            raise UsageError("an enrolment has a token and a key")
        try:
            return JSONResponse({"name": await to_thread.run_sync(self._enrol_anywhere, token, key, proof)})
        except (BatchError, LiveError) as error:
            return _complaint(error, 403)

    def _enrol_anywhere(self, token: str, key: str, proof: Any) -> str:
        """Bind a key to a name: a relay asks the collector to, and learns who may send through it."""
        if not isinstance(self._receiver, Relay):
            return self._enrolment.enrol(token, key, proof)
        upstream = self._receiver.site
        name = ask_to_enrol(upstream.address, upstream.fingerprint, token, key, proof)
        self._enrolment.add(name, key)
        return name


def _complaint(error: StethosError, status: int, wait_s: float = 0.0, *, ends: bool = False) -> Response:
    content: dict[str, object] = {"error": error.message, "hint": error.hint}
    headers = {"connection": "close"} if ends else {}
    if wait_s:
        wait_s = min(max(wait_s, 0.05), _LONGEST_WAIT_S)
        content["wait_s"], headers["retry-after"] = round(wait_s, 2), str(math.ceil(wait_s))
    return JSONResponse(content, status, headers)
