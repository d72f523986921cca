"""Sends traces, metrics and logs to an OTLP endpoint over HTTP."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence

from stethos.errors import UsageError

_TIMEOUT_S = 30.0


def endpoint_of(url: str, signal: str) -> str:
    """The address a signal goes to: the usual path is added where there is none."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not an endpoint", hint="for example -o http://localhost:4318")
    return urllib.parse.urlunsplit(parts._replace(path=f"/v1/{signal}")) if parts.path in ("", "/") else url


def headers_of(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` words as headers."""
    pairs = [word.partition("=") for word in given]
    wrong = [name for name, sign, value in pairs if not sign or not name or "\n" in value]
    if wrong:
        raise UsageError(
            f"--header {wrong[0]!r} is not NAME=VALUE", hint="for example --header 'Authorization=Bearer ...'"
        )
    return {name: value for name, _, value in pairs}


def post(endpoint: str, body: bytes, headers: dict[str, str]) -> None:
    """Send one request; UsageError with the endpoint's own words if it does not take it."""
    request = urllib.request.Request(
        endpoint, data=body, headers={**headers, "Content-Type": "application/x-protobuf"}, method="POST"
    )
    hint = "is a collector with an OTLP/HTTP receiver listening there?"
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        said = error.read(200).decode("utf-8", "replace").strip()
        raise UsageError(f"{endpoint} answered {error.code} {error.reason} {said}".strip(), hint=hint) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(f"cannot send to {endpoint}: {reason}", hint=hint) from None
