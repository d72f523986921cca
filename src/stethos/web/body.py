"""The body of a request: a JSON object, within limits of size and time."""

from __future__ import annotations

import json
from typing import Any

from anyio import fail_after
from starlette.requests import ClientDisconnect, Request

from stethos.errors import UsageError

BODY_S = 10.0


async def read_body(request: Request, most_bytes: int) -> bytes:
    """The body; UsageError if it is too large or comes too slowly."""
    too_large = UsageError(f"the request is larger than {most_bytes >> 10} kB", hint="send less")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 20 or int(length) > most_bytes:
        raise too_large
    body = bytearray()
    try:
        with fail_after(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise too_large
    except (TimeoutError, ClientDisconnect):
        raise UsageError(f"the request did not come whole within {BODY_S:g} s") from None
    return bytes(body)


async def read_object(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object in the body; UsageError if it is anything else, too large, too slow or not Unicode."""
    body = await read_body(request, most_bytes)
    try:
        content = json.loads(body)
        json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair is not a character
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UsageError("the request is not a JSON object")
    return content
