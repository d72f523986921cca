"""Addresses of archives and of runs in them: a directory, `file://`, or `s3://BUCKET/PATH`.

Credentials never stand in an address: they come from the environment or from AWS's own files, so what is printed or
stored has none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from stethos.errors import UsageError
from stethos.settings import object_store_settings

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MISTYPED = re.compile(r"(s3a?|gs|az|https?|file):/?(?!/)", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_ENDPOINT = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?")
_PARAMETERS = ("endpoint", "region")
_CONNECT_S, _ATTEMPTS = 5, 4
_SILENT_S = 20  # so long nothing comes: the call is repeated
_REPEATED_S = 40  # calls of a log are repeated for so long


@dataclass(frozen=True, slots=True)
class Address:
    """A place in an object store or a file system. `str()` of it has no secrets, and means the same again."""

    scheme: str  # "s3" or "file"
    path: str  # bucket and key, or an absolute directory; no slash at the end
    endpoint: str | None = None
    region: str | None = None

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.path or "/"
        given = {name: value for name in _PARAMETERS if (value := getattr(self, name)) is not None}
        return f"s3://{self.path}" + (f"?{urlencode(given, safe=':/')}" if given else "")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Address:
        return replace(self, path=self.path.rpartition("/")[0])

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    def __truediv__(self, name: str) -> Address:
        return replace(self, path=f"{self.path}/{name}")

    # What the libraries want ---------------------------------------------------------------------

    def endpoint_url(self) -> str | None:
        """Where the store answers; UsageError if that cannot be."""
        endpoint = self.endpoint or object_store_settings().endpoint
        return None if endpoint is None else _checked_endpoint(endpoint)

    def region_name(self) -> str:
        return self.region or object_store_settings().region or "us-east-1"

    def file_system(self) -> Any:
        """pyarrow's file system for this place."""
        import pyarrow.fs as fs

        if self.is_local:
            return fs.LocalFileSystem()
        options: dict[str, Any] = {}
        endpoint = self.endpoint_url()
        if endpoint is not None:
            parts = urlsplit(endpoint)
            options = {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        return fs.S3FileSystem(
            region=self.region_name(), connect_timeout=_CONNECT_S, request_timeout=_SILENT_S,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            allow_delayed_open=True, **options,
        )  # fmt: skip

    def delta_location(self) -> tuple[str, dict[str, str]]:
        """The table's URI and the storage options for deltalake."""
        if self.is_local:
            return self.path, {}
        options = {
            "AWS_REGION": self.region_name(), "timeout": f"{_SILENT_S}s", "connect_timeout": f"{_CONNECT_S}s",
            "max_retries": str(_ATTEMPTS - 1), "retry_timeout": f"{_REPEATED_S}s",
        }  # fmt: skip
        endpoint = self.endpoint_url()
        if endpoint is not None:
            options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http:")).lower()}
            if not object_store_settings().has_key:  # with an endpoint it would not look into AWS's own files
                options["AWS_FORCE_CREDENTIAL_LOAD"] = "true"
        return f"s3://{self.path}", options


def parse_address(text: str | Path) -> Address:
    """The place that is meant; UsageError, which does not repeat the text, if it is none."""
    text = str(text)
    if not text.strip():  # of a variable of the shell that is not set: not the directory one is in
        raise UsageError("the address is empty", hint="write s3://BUCKET/PATH or a directory")
    if _MISTYPED.match(text) and not Path(text).exists():
        raise UsageError("an address has two slashes after its scheme", hint="write s3://BUCKET/PATH")
    address = _parsed(text)
    if "%" in address.path:  # the libraries differ in what they take it for
        raise UsageError("an archive cannot be at a place with % in its name", hint="choose another directory or path")
    return address


def _parsed(text: str) -> Address:
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Address("file", str(Path(text).absolute()).rstrip("/"))
    kind = scheme[1].lower()
    if kind not in ("s3", "s3a", "file"):
        raise UsageError(f"{kind}:// is not supported", hint="use s3://BUCKET/PATH or a directory")
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.password:
        raise UsageError(
            "an address must not contain credentials",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, and leave them out of the address",
        )
    if kind == "file":
        if parts.netloc not in ("", "localhost"):
            raise UsageError("a file:// address names a directory of this machine", hint="write file:///PATH")
        return Address("file", unquote(parts.path).rstrip("/") or "/")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    odd = sorted(set(given) - set(_PARAMETERS))
    if odd or parts.fragment:
        raise UsageError(
            f"an address has no parameter {', '.join(map(repr, odd)) or 'after #'}",
            hint=f"allowed: {', '.join(_PARAMETERS)}; credentials come from the environment",
        )
    if "endpoint" in given:
        _checked_endpoint(given["endpoint"])
    path = re.sub(r"/+", "/", parts.path).strip("/")
    if not _BUCKET.fullmatch(parts.netloc) or ".." in path.split("/"):
        raise UsageError("not an address of an object store", hint="write s3://BUCKET/PATH")
    return Address("s3", f"{parts.netloc}/{path}".rstrip("/"), given.get("endpoint"), given.get("region"))


def _checked_endpoint(text: str) -> str:
    """The endpoint of a store; UsageError, which does not repeat it, if it is none: the libraries would panic."""
    if "@" in text:
        raise UsageError("an endpoint must not contain credentials", hint="set AWS_ACCESS_KEY_ID and so on")
    if not _ENDPOINT.fullmatch(text):
        raise UsageError(
            "the endpoint of the object store is not a URL",
            hint="write http://HOST:PORT or https://HOST into AWS_ENDPOINT_URL, or after ?endpoint=",
        )
    return text
