"""A server that somebody else runs, or has taken over: the command that asks it ends, and prints text."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stethos.cli.task.remote import run_remote
from stethos.errors import LiveError
from stethos.web import remote
from stethos.web.keys import open_keys, read_token
from stethos.web.remote_command import checked_call

Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def answering(directory: Path, answer: Answer, times: int = 1) -> Iterator[str]:
    """The address of a server that has our keys and answers as it likes."""
    context = open_keys(directory / "keys").server_context()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(times):
                plain, _ = listener.accept()
                with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
                    asked = b""
                    while b'"text"' not in asked:
                        asked += secured.recv(1 << 16)
                    answer(secured)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)


def saying(body: bytes, status: str = "200 OK", *more: str) -> Answer:
    head = "\r\n".join([f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *more, "", ""])
    return lambda connection: connection.sendall(head.encode() + body)


def dripping(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    for _ in range(600):
        connection.sendall(b" ")
        time.sleep(0.05)


def without_end(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(64):
        connection.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")


REFUSED = {
    "a redirect": saying(b"", "302 Found", "Location: http://169.254.169.254/"),
    "not HTTP": lambda connection: connection.sendall(b"\x00" * 100),
    "a header without end": lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17)),
    "a length that is none": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "an error that is a list": saying(b'{"error": ["\\ud800", {"a": 1}]}', "500 Oops"),
    "a byte now and then": dripping,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED.keys())
def test_an_answer_that_is_none_is_an_error(answer: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ANSWER_S", 1.0)
    with answering(tmp_path, answer) as address, pytest.raises(LiveError):
        remote.call_remote(address, read_token(tmp_path / "keys" / "read.token"), checked_call("ls", None, []))


def test_an_answer_without_end_is_read_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "LARGEST_ANSWER", 1 << 20)
    with answering(tmp_path, without_end) as address:
        token = read_token(tmp_path / "keys" / "read.token")
        assert remote.call_remote(address, token, checked_call("ls", None, [])) == {}


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({"status": 10**30, "out": "\x1b]52;c;x\x07a\ud800b\u202e", "err": "\x1b[2Jc"}, 1),
        ({"status": -1, "out": ["\x1b[2J"], "err": {"a": "\x9b2J"}}, 1),
        ({"status": True, "out": "[" * 100_000}, 1),
        ({"status": 0, "out": None}, 0),
        ([], 1),
    ],
)
def test_what_it_says_is_text(told: object, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = str(tmp_path / "keys" / "read.token")
    for words, times in (([], 1), (["--json"], 2)):
        with answering(tmp_path, saying(json.dumps(told).encode()), times) as address:
            assert run_remote([(address, None)] * times, "ls", words, token) == status
    said = capsys.readouterr()
    assert not {"\x1b", "\x9b", "\x07", "\ud800", "\u202e"} & set(said.out + said.err)
