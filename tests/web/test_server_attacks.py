"""Attacks on a real server process with keys: TLS, tokens, slow and half-open connections, odd and huge requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import ssl
import stat
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import RunBuilder
from processes import DEADLINE_S, commands_under, environment, finish, start_command, wait_until

from stethos.errors import LiveError, UsageError
from stethos.web import connections
from stethos.web.commands import LARGEST_OUTPUT
from stethos.web.connections import BoundedListener, network_of
from stethos.web.keys import Token, open_keys, read_token
from stethos.web.remote import call_remote
from stethos.web.remote_command import LARGEST_TEXT, REMOTE_COMMANDS, checked_call

MOST = 450  # connections of an attacker


class Server:
    """`stethos gateway` in a process of its own, over one small run."""

    def __init__(self, directory: Path) -> None:
        self.keys_dir = directory / "keys"
        self.errors = directory / "stderr"
        variables = {"XDG_RUNTIME_DIR": str(directory), "HOME": str(directory)}
        with self.errors.open("w", encoding="utf-8") as stderr:
            self.process = start_command(
                "gateway", "--listen", "127.0.0.1:0", "--keys", self.keys_dir, "--dir", directory / "runs",
                env=environment(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        found = wait_until(lambda: re.search(r"gateway on 127\.0\.0\.1:(\d+)", self.said()), "the gateway")
        self.port = int(found[1])
        self.address = f"127.0.0.1:{self.port}"

    def said(self) -> str:
        return self.errors.read_text(encoding="utf-8")

    def token(self, capability: str) -> Token:
        return read_token(self.keys_dir / f"{capability}.token")

    def call(self, name: str, *words: str, token: str = "read", target: str | None = None) -> dict[str, Any]:
        return call_remote(self.address, self.token(token), checked_call(name, target, words))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

    def secured(self, **limits: ssl.TLSVersion) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for name, version in limits.items():
            setattr(context, name, version)
        return context.wrap_socket(self.connect())

    def answer(self, raw: bytes) -> bytes:
        """What comes back for these very bytes, inside TLS, until the server hangs up or has answered."""
        with self.secured() as connection:
            connection.sendall(raw)
            found = b""
            with contextlib.suppress(OSError):
                while part := connection.recv(1 << 16):
                    found += part
            return found

    def request(self, body: bytes, *more: str, name: str = "query", token: str = "read") -> bytes:
        """A request by hand with a valid token; further header lines stand last."""
        lines = [
            f"POST /api/commands/{name} HTTP/1.1", "Host: localhost", "Origin: https://localhost", "Connection: close",
            f"Authorization: Bearer {self.token(token).secret}", *(more or (f"Content-Length: {len(body)}",)),
        ]  # fmt: skip
        return "\r\n".join([*lines, "", ""]).encode() + body

    def audit(self) -> list[dict[str, Any]]:
        text = (self.keys_dir / "audit.jsonl").read_text(encoding="ascii")
        return [json.loads(line) for line in text.splitlines()]

    def asked(self) -> int:
        return sum(row["outcome"] == "asked" for row in self.audit())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("attacked")
    directory.chmod(0o700)
    with RunBuilder(directory / "runs" / "small") as builder:
        process = builder.process(is_alive=False)
        process.steps(5)
        process.finish()
    one = Server(directory)
    try:
        one.call("ls")
        yield one
        assert one.process.poll() is None
        assert len(one.said().splitlines()) == 2, one.said()  # where it listens, and where the tokens are
    finally:
        one.process.terminate()
        finish(one.process)


def status_of(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(found[1]) if found else 0


def is_served(server: Server) -> bool:
    rows = json.loads(server.call("query", "--json", "SELECT count(*) AS n FROM steps", target="small")["out"])
    return bool(rows == [{"n": 5}])


# TLS --------------------------------------------------------------------------------------------------------


def test_only_the_newest_tls_is_spoken(server: Server) -> None:
    with server.secured() as connection:
        assert connection.version() == "TLSv1.3"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.secured(maximum_version=ssl.TLSVersion.TLSv1_2)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"\x00" * 400,  # a record that says it is huge
        b"\x80\x2e\x01\x00\x02" + b"\x00" * 60,  # SSL 2
        b"\x16\x03\x00\x00\x05\x01\x00\x00\x01\x03",  # SSL 3
        b"\x15\x03\x03\x00\x02\x02\x28",  # an alert first
        random.Random(7).randbytes(2_000),
    ],
)
def test_what_is_not_tls_is_hung_up_on(server: Server, hello: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(hello)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert b"HTTP/1.1 2" not in connection.recv(1 << 16)
    assert is_served(server)


def test_what_was_overheard_is_worth_nothing_again(server: Server) -> None:
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:

        def carry() -> None:
            near, _ = relay.accept()
            with near, server.connect() as far:
                back = threading.Thread(target=pump, args=(far, near, bytearray()))
                back.start()
                pump(near, far, heard)
                back.join()

        carrier = threading.Thread(target=carry)
        carrier.start()
        reply = call_remote(f"127.0.0.1:{relay.getsockname()[1]}", server.token("act"), checked_call("gc", None, []))
        carrier.join()
    assert "no process" in reply["err"]  # the run is over; the command was run all the same
    before = server.asked()
    assert len(heard) > 500 and server.token("act").secret.encode() not in heard
    with server.connect() as again, contextlib.suppress(ConnectionError):
        again.sendall(heard)
        again.shutdown(socket.SHUT_WR)
        while again.recv(1 << 16):
            pass
    assert is_served(server) and server.asked() == before + 1  # that of `is_served` alone


def pump(source: socket.socket, sink: socket.socket, heard: bytearray) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(1 << 16):
            heard += part
            sink.sendall(part)
        sink.shutdown(socket.SHUT_WR)


def test_another_certificate_is_noticed_before_anything_is_sent(server: Server) -> None:
    before = len(server.audit())
    with pytest.raises(LiveError, match="another certificate"):
        call_remote(server.address, Token("act", "0" * 64, server.token("act").secret), checked_call("gc", None, []))
    assert len(server.audit()) == before


# Tokens -----------------------------------------------------------------------------------------------------


def test_a_read_token_does_not_act_and_that_is_written_down(server: Server) -> None:
    for name, command in REMOTE_COMMANDS.items():
        if command.needs == "act":
            with pytest.raises(LiveError, match="may read, not act"):
                call_remote(server.address, server.token("read"), checked_call(name, None, []))
            assert (server.audit()[-1]["outcome"], server.audit()[-1]["path"]) == ("refused", f"/api/commands/{name}")


def test_guesses_get_nowhere_and_the_owner_is_served_meanwhile(server: Server) -> None:
    before = server.asked()

    def guess(number: int) -> str:
        stranger = Token("act", server.token("act").fingerprint, f"{number:064x}")
        with pytest.raises(LiveError) as refusal:
            call_remote(server.address, stranger, checked_call("eval", None, ["1"]))
        return refusal.value.message

    with ThreadPoolExecutor(8) as pool:
        guesses = [pool.submit(guess, number) for number in range(40)]
        assert is_served(server)
        assert {one.result() for one in guesses} == {"the token is missing or wrong"}
    assert server.asked() == before + 1
    noted = [row["guesses"] for row in server.audit() if row.get("guesses")]
    assert sorted(noted) == [1, 2, 4, 8, 16, 32]  # not one line for each


def test_who_asked_what_is_written_down_before_it_is_done(server: Server) -> None:
    server.call("eval", "password='hunter2secret'\x1b[2J", token="act", target="small")
    asked, done = server.audit()[-2:]
    assert (asked["outcome"], done["outcome"]) == ("asked", "done")
    assert (asked["peer"], asked["capability"], asked["command"]) == ("127.0.0.1", "act", "eval")
    assert "hunter2secret" not in json.dumps(asked)


def test_what_cannot_be_written_down_is_not_done(server: Server) -> None:
    log, aside = server.keys_dir / "audit.jsonl", server.keys_dir / "aside"
    log.rename(aside)
    log.symlink_to(aside)
    try:
        with pytest.raises(LiveError, match="audit could not be written"):
            server.call("gc", token="act")
    finally:
        log.unlink()
        aside.rename(log)
    assert is_served(server)


def test_the_keys_are_readable_by_their_user_alone_and_stay_the_same(server: Server, tmp_path: Path) -> None:
    for path in server.keys_dir.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(server.keys_dir.stat().st_mode) == 0o700
    assert open_keys(server.keys_dir) == open_keys(server.keys_dir)
    tmp_path.chmod(0o755)
    with pytest.raises(LiveError, match="other users"):
        open_keys(tmp_path)
    mask = os.umask(0)
    try:
        open_keys(tmp_path / "config" / "keys")
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "config").rglob("*")}
    assert modes.pop("keys") == stat.S_IMODE((tmp_path / "config").stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}


def test_the_dashboard_is_behind_the_same_tokens(server: Server) -> None:
    for token, status in ((server.token("read").secret, 200), (server.token("act").secret, 200), ("0" * 64, 401)):
        lines = [
            "GET /api/runs HTTP/1.1",
            "Host: localhost",
            "Connection: close",
            f"Authorization: Bearer {token}",
            "",
            "",
        ]
        answer = server.answer("\r\n".join(lines).encode())
        assert (status_of(answer), b'"small"' in answer) == (status, status == 200)


# Slow and half-open connections -----------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_half_a_handshake_four_hundred_times_does_not_keep_the_owner_out(server: Server, sent: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(MOST):
            with contextlib.suppress(OSError):
                held.enter_context(server.connect()).sendall(sent)
        assert is_served(server)
        files = psutil.Process(server.process.pid).num_fds()
        assert files < connections.MOST_UNKNOWN + connections.MOST_KNOWN


@pytest.mark.parametrize("sent", [b"", b"POST /api/commands/query HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_half_a_request_inside_tls_does_not_keep_the_owner_out(server: Server, sent: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(connections.MOST_UNKNOWN + 30):
            with contextlib.suppress(OSError):
                held.enter_context(server.secured()).sendall(sent)
        assert is_served(server)


def test_a_connection_that_shows_no_token_is_ended(server: Server) -> None:
    with server.connect() as silent, server.secured() as dripping:
        dripping.sendall(b"GET / HT")
        assert silent.recv(1) == b""
        with contextlib.suppress(OSError):
            assert dripping.recv(1) == b""


def test_many_may_knock_at_once_before_the_first_is_let_in() -> None:
    """More than asyncio lets in at a time: one that the kernel turns away would try again after seconds."""
    with contextlib.ExitStack() as held:
        listener = held.enter_context(BoundedListener(socket.AF_INET))
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        for _ in range(200):
            held.enter_context(socket.create_connection(listener.getsockname(), 0.9))


def test_who_sends_what_is_signed_keeps_the_connection() -> None:
    with contextlib.ExitStack() as held:
        listener = held.enter_context(BoundedListener(socket.AF_INET))
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        silent, signing = (
            held.enter_context(socket.create_connection(listener.getsockname(), DEADLINE_S)) for _ in range(2)
        )
        accepted = [held.enter_context(listener.accept()[0]) for _ in range(2)]
        for one in accepted:
            one.since -= 2 * connections.UNKNOWN_S
        listener.renew(signing.getsockname())
        asyncio.run(listener.cut_late())
        assert silent.recv(1) == b""
        signing.setblocking(False)
        with pytest.raises(BlockingIOError):
            signing.recv(1)


def test_the_address_with_the_most_connections_loses_its_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_UNKNOWN", 3)
    listener = BoundedListener(socket.AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with listener, contextlib.ExitStack() as held:

        def come(host: str) -> socket.socket:
            caller = held.enter_context(socket.create_connection(listener.getsockname(), DEADLINE_S, (host, 0)))
            held.enter_context(listener.accept()[0])
            return caller

        alone, oldest, proven = come("127.0.0.2"), come("127.0.0.1"), come("127.0.0.1")
        come("127.0.0.1")
        assert oldest.recv(1) == b""
        listener.trust(proven.getsockname())
        for _ in range(5):
            come("127.0.0.1")
        for one in (alone, proven):
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("fe80::1%eth0") == "fe80::/64"


# Odd and huge requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000, b'{"text":' * 60_000, b'{"text": "\\ud800"}', b'{"text": "\xff"}', b"", b"null", b"[]", b"7",
        b"9" * 5_000, b"\x00", b'{"words": "--json"}', b'{"words": [7]}', b'{"target": ["small"]}', b'{"text": {}}',
        b'{"words": ["--dir=/"], "text": "SELECT 1"}', b'{"target": "../small", "text": "SELECT 1"}',
        b'{"target": "/etc", "text": "SELECT 1"}',
    ],
)  # fmt: skip
def test_an_odd_body_is_answered_400(server: Server, body: bytes) -> None:
    before = server.asked()
    assert status_of(server.answer(server.request(body))) == 400
    assert server.asked() == before


@pytest.mark.parametrize(
    "more",
    [
        ["Content-Length: 1000000000000000"], ["Content-Length: " + "9" * 30], ["Content-Length: -1"],
        ["Content-Length: 1, 2"], ["Content-Length: 0x10"], ["Content-Length: 5", "Content-Length: 6"],
        ["Transfer-Encoding: chunked", "X: " + "y" * 100_000], ["Transfer-Encoding: gzip"],
    ],
)  # fmt: skip
def test_huge_and_doubtful_lengths_are_refused_unread(server: Server, more: list[str]) -> None:
    before, memory = server.asked(), psutil.Process(server.process.pid).memory_info().rss
    assert status_of(server.answer(server.request(b"{}", *more))) in (0, 400, 413, 431, 501)
    assert server.asked() == before
    assert psutil.Process(server.process.pid).memory_info().rss < memory + (64 << 20)


def test_a_body_without_an_end_is_refused_at_its_limit(server: Server) -> None:
    head = server.request(b"", "Transfer-Encoding: chunked")
    with server.secured() as connection:
        connection.sendall(head)
        with contextlib.suppress(OSError):
            for _ in range(64):
                connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
        with contextlib.suppress(OSError):
            assert status_of(connection.recv(1 << 16)) in (0, 400)
    assert is_served(server)


def test_random_bytes_do_no_harm(server: Server) -> None:
    draw, before = random.Random(7), server.asked()
    lines = [
        b"POST /api/commands/eval HTTP/1.1", b"Host: localhost", b"", b"\x00" * 9, b"GET \xff\xfe HTTP/1.1",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n", b"Authorization: Bearer \xff", b"Upgrade: websocket", b"Connection: close",
        b"Expect: 100-continue", b"GET http://evil/ HTTP/1.1", b"OPTIONS * HTTP/1.1", b"Transfer-Encoding: chunked",
        b"ffffffffffffffff", b"GET /%ff%00/../.. HTTP/1.1",
    ]  # fmt: skip
    for _ in range(60):
        raw = b"\r\n".join(draw.choices(lines, k=draw.randrange(1, 9))) + draw.randbytes(draw.randrange(40))
        with server.secured() as connection, contextlib.suppress(OSError):
            connection.sendall(raw)
            connection.unwrap()
    assert server.asked() == before and is_served(server)


def test_a_query_is_bounded_in_memory_and_output(server: Server) -> None:
    sql = "SELECT list_sum(range(1000000000))"
    try:
        reply = server.call("query", sql, target="small")
        told = reply["err"]
        assert reply["status"] != 0
    except LiveError as refusal:
        told = str(refusal)
    assert "memory" in told.lower()
    reply = server.call("query", "--csv", "--limit=60", "SELECT repeat('x', 500000) FROM range(60)", target="small")
    assert reply["is_cut"] and len(reply["out"]) == LARGEST_OUTPUT
    assert is_served(server)


def commands_of(server: Server) -> list[psutil.Process]:
    """The processes of commands; those that read for the pages stay."""
    return [one for one, words in commands_under(server.process.pid).items() if "stethos.web.reading" not in words]


def test_a_command_ends_with_the_connection_of_its_caller(server: Server) -> None:
    sql = "SELECT sum(hash(a.range * b.range)) FROM range(10000000) a, range(10000000) b"
    body = json.dumps({"target": "small", "words": ["--timeout=100"], "text": sql}).encode()
    before = server.asked()
    with server.secured() as connection:
        connection.sendall(server.request(body))
        wait_until(lambda: server.asked() > before, "the command")
        wait_until(lambda: commands_of(server), "its process")
    wait_until(lambda: "hung up" in str(server.audit()[-1].get("why")), "its end")
    wait_until(lambda: not commands_of(server), "the end of its process")


# What a command may be --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "rm", "attach", "repl", "inspect", "export", "", "__init__", "ls; rm"])
def test_what_is_not_in_the_table_is_refused(server: Server, name: str) -> None:
    with pytest.raises(UsageError, match="does not work through a gateway"):
        checked_call(name, None, [])
    before = server.asked()
    assert status_of(server.answer(server.request(b"{}", name=name.replace(" ", "%20"), token="act"))) in (404, 405)
    assert server.asked() == before


@pytest.mark.parametrize(
    "target",
    ["../x", "/etc", "a/b/c", "a/..", ".hidden", "a\\b", "a b", "-t", "%2e%2e", "a/rank:x", "rank:1/all\n", "é"],
)
def test_a_target_is_a_name_and_never_a_path(target: str) -> None:
    with pytest.raises(UsageError):
        checked_call("query", target, [], "SELECT 1")


@pytest.mark.parametrize(
    "words", [["--dir", "/"], ["--dir=/"], ["-t", "x"], ["--limit", "../x"], ["--limit"], ["--help"]]
)
def test_only_the_options_of_a_command_are_allowed(words: list[str]) -> None:
    with pytest.raises(UsageError):
        checked_call("query", None, words, "SELECT 1")


@pytest.mark.parametrize("word", ["/etc/x", "../x", "~/x", "-rf", ".x", "a b", "$(x)"])
def test_a_plain_word_is_never_a_path(word: str) -> None:
    with pytest.raises(UsageError):
        checked_call("checkpoint", None, [word])


def test_a_command_is_built_from_words_and_its_text_goes_by_stdin() -> None:
    call = checked_call("query", "fed-1/all", ["--json", "--limit", "5", "SELECT", "1"])
    assert call.command_line() == ["-t", "fed-1/all", "query", "--json", "--limit=5", "-"]
    assert call.text == "SELECT 1"
    with pytest.raises(UsageError, match="too long"):
        checked_call("query", None, [], "x" * (LARGEST_TEXT + 1))
