"""A real S3 server in a process of its own, and a proxy before it that fails as it is told."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BUCKET = "stethos-test"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing-secret", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
_START_S = 120.0


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def s3_server() -> Iterator[str]:
    """The URL of an S3 server with an empty bucket."""
    for attempt in range(3):
        port = _free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            if _answers(url, process):
                make_bucket(url)
                yield url
                return
            assert attempt < 2, "the S3 server does not start"
        finally:
            process.kill()
            process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/moto-api/", timeout=5):
                return True
        except OSError:
            time.sleep(0.05)
    return False


def make_bucket(url: str, name: str = BUCKET) -> None:
    request = urllib.request.Request(f"{url}/{name}", method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


@contextmanager
def failing_proxy(url: str, answer: Callable[[int, str, str], int | None]) -> Iterator[str]:
    """A proxy before the server: `answer(number, method, path)` gives a status to fail with, 0 to hang up, or None."""
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
