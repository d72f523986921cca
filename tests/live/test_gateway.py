"""Nobody gets past the gateway without the right: every case for every route, generated from the route table."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import DEADLINE_S, wait_until

from stethos.errors import LiveError, UsageError
from stethos.live import gateway as gateway_module
from stethos.live.gateway import Deadline, Gateway, Guests
from stethos.live.keys import Keys, Token, is_proof, open_keys, proof_of, read_token
from stethos.live.remote import Remote
from stethos.live.routes import LARGEST_TEXT, ROUTES, Asked, asked

READ_ROUTES = sorted(name for name, route in ROUTES.items() if route.right == "read")
ACT_ROUTES = sorted(name for name, route in ROUTES.items() if route.right == "act")


class Served:
    """A gateway whose commands only note what they were."""

    def __init__(self, directory: Path) -> None:
        self.keys: Keys = open_keys(directory / "keys")
        self.done: list[tuple[Asked, str]] = []
        self.gateway = Gateway(self.keys, directory / "runs", command=self._note)
        host, port = self.gateway.listen("127.0.0.1", 0)
        self.address = f"{host}:{port}"
        threading.Thread(target=self.gateway.serve, daemon=True).start()

    def _note(self, one: Asked, who: str) -> dict[str, Any]:
        self.done.append((one, who))
        return {"status": 0, "out": f"{one.name} was here\n", "err": "", "is_cut": False}

    def token(self, right: str) -> Token:
        return read_token(self.keys.directory / f"{right}.token")

    def connect(self) -> ssl.SSLSocket:
        """A connection by hand, for those who do not keep to the rules."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        host, _, port = self.address.rpartition(":")
        return context.wrap_socket(socket.create_connection((host, int(port)), DEADLINE_S))

    def audit(self) -> list[dict[str, Any]]:
        text = (self.keys.directory / "audit.jsonl").read_text(encoding="ascii")
        return [json.loads(line) for line in text.splitlines()]

    def forgive(self) -> None:
        """Wait until all have gone, so that none of them fails afterwards, and forget what they did."""
        wait_until(lambda: not self.gateway._guests.connections, "the guests to go")
        self.gateway._guests.failures.clear()
        self.gateway._guests.requests.clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("gateway"))
    yield one
    one.gateway.stop()


@pytest.fixture(autouse=True)
def _fresh(served: Served) -> None:
    served.forgive()
    served.done.clear()


def body_of(route: str) -> str:
    return json.dumps(
        {"route": route, "target": None, "words": [], "text": "1" if ROUTES[route].words == "text" else None}
    )


def exchange(served: Served, envelope: Any, place: int = 0) -> dict[str, Any]:
    """Send one envelope over a new connection; `envelope` may be made from the gateway's number."""
    with served.connect() as connection:
        line = Deadline(connection)
        hello = json.loads(line.receive(1 << 20, DEADLINE_S) or b"{}")
        line.send(envelope(bytes.fromhex(hello["number"])) if callable(envelope) else envelope)
        return dict(json.loads(line.receive(1 << 26, DEADLINE_S) or b"{}"))


def signed(token: Token, route: str, number: bytes, place: int = 0) -> dict[str, Any]:
    body = body_of(route)
    return {"right": token.right, "body": body, "proof": token.proof(number, place.to_bytes(8, "big"), body.encode())}


# Every route ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_the_act_token_opens_every_route(served: Served, route: str) -> None:
    with Remote(served.address, served.token("act")) as remote:
        assert (
            remote.ask(route, None, [], "1" if ROUTES[route].words == "text" else None)["out"] == f"{route} was here\n"
        )
    assert served.done[0][1] == "gateway act@127.0.0.1"


@pytest.mark.parametrize("route", READ_ROUTES)
def test_the_read_token_opens_what_only_reads(served: Served, route: str) -> None:
    reply = exchange(served, lambda number: signed(served.token("read"), route, number))
    assert reply["ok"] is True


@pytest.mark.parametrize("route", ACT_ROUTES)
def test_the_read_token_does_not_act(served: Served, route: str) -> None:
    with Remote(served.address, served.token("read")) as remote, pytest.raises(LiveError, match="may read, not"):
        remote.ask(route, None, [], "1" if ROUTES[route].words == "text" else None)
    assert served.done == []


@pytest.mark.parametrize("route", sorted(ROUTES))
@pytest.mark.parametrize(
    "spoil",
    [
        lambda envelope: {**envelope, "proof": None},
        lambda envelope: {name: value for name, value in envelope.items() if name != "proof"},
        lambda envelope: {**envelope, "proof": "0" * 64},
        lambda envelope: {**envelope, "proof": "é" * 64},
        lambda envelope: {**envelope, "right": "root"},
        lambda envelope: {**envelope, "right": None},
        lambda envelope: {**envelope, "right": ["act"]},
        lambda envelope: {**envelope, "right": "read"},
        lambda envelope: {**envelope, "body": envelope["body"] + " "},
        lambda envelope: {"body": envelope["body"]},
        lambda envelope: [],
    ],
)
def test_a_missing_or_wrong_token_opens_nothing(served: Served, route: str, spoil: Any) -> None:
    reply = exchange(served, lambda number: spoil(signed(served.token("act"), route, number)))
    assert (reply["ok"], reply["message"]) == (False, "the gateway refused: no valid token")
    assert served.done == []


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_a_token_of_another_gateway_opens_nothing(served: Served, route: str) -> None:
    stranger = Token("act", served.keys.fingerprint, bytes(32))
    assert exchange(served, lambda number: signed(stranger, route, number))["ok"] is False
    assert served.done == []


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_what_was_sent_once_is_worth_nothing_again(served: Served, route: str) -> None:
    kept: list[dict[str, Any]] = []

    def make(number: bytes) -> dict[str, Any]:
        kept.append(signed(served.token("act"), route, number))
        return kept[0]

    assert exchange(served, make)["ok"] is True
    assert exchange(served, kept[0])["ok"] is False  # over another connection
    with served.connect() as connection:  # and twice over one
        line = Deadline(connection)
        number = bytes.fromhex(json.loads(line.receive(1 << 20, DEADLINE_S) or b"{}")["number"])
        twice = signed(served.token("act"), route, number)
        line.send(twice)
        assert json.loads(line.receive(1 << 26, DEADLINE_S) or b"{}")["ok"] is True
        line.send(twice)
        assert json.loads(line.receive(1 << 26, DEADLINE_S) or b"{}")["ok"] is False
    assert len(served.done) == 2


@pytest.mark.parametrize("route", ["run", "rm", "attach", "repl", "inspect", "export", "", "__init__", "ls; rm"])
def test_what_is_not_in_the_table_is_refused(served: Served, route: str) -> None:
    with Remote(served.address, served.token("act")) as remote, pytest.raises(LiveError, match="a gateway has no"):
        remote.ask(route, None, [])
    assert served.done == []


# Targets and options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    ["../x", "/etc", "a/b/c", "a/..", ".hidden", "a\\b", "a b", "-t", "%2e%2e", "a/rank:x", "rank:1/all\n", "é"],
)
def test_a_target_is_a_name_and_never_a_path(target: str) -> None:
    with pytest.raises(UsageError):
        asked("query", target, [], "SELECT 1")


@pytest.mark.parametrize(
    "words", [["--dir", "/"], ["--dir=/"], ["-t", "x"], ["--limit", "../x"], ["--limit"], ["--help"]]
)
def test_only_the_options_of_a_route_are_allowed(words: list[str]) -> None:
    with pytest.raises(UsageError):
        asked("query", None, words, "SELECT 1")


@pytest.mark.parametrize("word", ["/etc/x", "../x", "~/x", "-rf", ".x", "a b", "$(x)"])
def test_a_plain_word_is_no_path(word: str) -> None:
    with pytest.raises(UsageError):
        asked("checkpoint", None, [word])


def test_a_command_is_built_from_words_and_its_text_goes_by_stdin() -> None:
    one = asked("query", "fed-1/all", ["--json", "--limit", "5", "SELECT", "1"])
    assert one.command() == ["-t", "fed-1/all", "query", "--json", "--limit=5", "-"]
    assert one.text == "SELECT 1"


# Limits -----------------------------------------------------------------------------------------------------


def test_a_text_that_is_too_long_is_refused(served: Served) -> None:
    with pytest.raises(UsageError, match="too long"):
        asked("query", None, [], "x" * (LARGEST_TEXT + 1))
    body = json.dumps({"route": "query", "words": [], "text": "x" * (LARGEST_TEXT + 1)})
    token = served.token("read")
    reply = exchange(
        served, lambda number: {"right": "read", "body": body, "proof": token.proof(number, bytes(8), body.encode())}
    )
    assert reply["ok"] is False
    assert served.done == []


def test_a_message_that_says_it_is_huge_is_refused_unread(served: Served) -> None:
    with served.connect() as connection:
        line = Deadline(connection)
        line.receive(1 << 20, DEADLINE_S)
        connection.sendall((10 << 30 & 0xFFFF_FFFF | 0x8000_0000).to_bytes(4, "big"))
        assert "more than the" in json.loads(line.receive(1 << 20, DEADLINE_S) or b"{}")["message"]
        assert line.receive(1 << 20, DEADLINE_S) is None


def test_who_sends_byte_by_byte_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadline.receive, "__defaults__", (0.3,))
    with served.connect() as connection:
        line = Deadline(connection)
        line.receive(1 << 20, DEADLINE_S, DEADLINE_S)
        connection.sendall(b"\0\0\1")
        reply = json.loads(line.receive(1 << 20, DEADLINE_S, DEADLINE_S) or b"{}")
        assert "too slow" in reply["message"]


def test_who_says_nothing_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "MESSAGE_S", 0.3)
    plain = socket.create_connection(("127.0.0.1", int(served.address.rpartition(":")[2])), DEADLINE_S)
    with plain:
        assert plain.recv(1) == b""  # no TLS came: it hangs up


def test_requests_come_at_a_rate(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "RATE_PER_S", 0.001)
    with Remote(served.address, served.token("read")) as remote:
        for _ in range(gateway_module.BURST):
            remote.ask("ls", None, [])
        with pytest.raises(LiveError, match="too many requests"):
            remote.ask("ls", None, [])
    assert len(served.done) == gateway_module.BURST


def test_who_guesses_tokens_is_not_let_in_again_for_a_while() -> None:
    guests = Guests()
    for _ in range(gateway_module.MOST_FAILURES):
        assert guests.come("10.0.0.1")
        guests.failed("10.0.0.1")
        guests.go("10.0.0.1")
    assert not guests.come("10.0.0.1")
    assert guests.come("10.0.0.2")


def test_one_peer_has_few_connections() -> None:
    guests = Guests()
    assert [guests.come("10.0.0.1") for _ in range(gateway_module.MOST_PER_PEER + 1)].count(
        True
    ) == gateway_module.MOST_PER_PEER
    guests.go("10.0.0.1")
    assert guests.come("10.0.0.1")


# Keys and the audit -----------------------------------------------------------------------------------------


def test_the_keys_are_the_users_alone_and_stay_the_same(served: Served) -> None:
    for path in served.keys.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(served.keys.directory.stat().st_mode) == 0o700
    assert open_keys(served.keys.directory) == served.keys


def test_a_directory_that_others_can_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(LiveError, match="alone"):
        open_keys(tmp_path)


def test_another_certificate_is_noticed_before_anything_is_said(served: Served) -> None:
    token = served.token("act")
    with pytest.raises(LiveError, match="another certificate"):
        Remote(served.address, Token("act", "0" * 64, token.secret))
    assert served.done == []


def test_a_proof_holds_for_these_very_parts() -> None:
    proof = proof_of(b"secret", b"ab", b"c")
    assert is_proof(proof, b"secret", b"ab", b"c")
    assert not is_proof(proof, b"secret", b"a", b"bc")
    assert not is_proof(None, b"secret", b"ab", b"c")


def test_who_asked_what_is_written_down_before_it_is_done(served: Served) -> None:
    with Remote(served.address, served.token("act")) as remote:
        remote.ask("eval", None, [], "password='hunter2secret'\x1b[2J")
    asked_line, done_line = served.audit()[-2:]
    assert (asked_line["outcome"], done_line["outcome"], done_line["status"]) == ("asked", "done", 0)
    assert (asked_line["peer"], asked_line["right"], asked_line["route"]) == ("127.0.0.1", "act", "eval")
    assert "hunter2secret" not in json.dumps(asked_line)
    with Remote(served.address, served.token("read")) as remote, pytest.raises(LiveError):
        remote.ask("eval", None, [], "1")
    assert served.audit()[-1]["outcome"] == "refused"


def test_what_cannot_be_written_down_is_not_done(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.gateway._audit, "path", served.keys.directory / "no" / "such" / "file")
    with Remote(served.address, served.token("act")) as remote, pytest.raises(LiveError, match="written down"):
        remote.ask("gc", None, [])
    assert served.done == []


def test_strange_messages_do_no_harm(served: Served) -> None:
    from random import Random

    random = Random(7)
    pieces = [b"", b"{}", b"[]", b"null", b'{"right":"act"}', b"\xff" * 20, b"[" * 5000, b'{"body":"{}","proof":1}']
    for _ in range(60):
        served.forgive()
        with served.connect() as connection:
            message = random.choice(pieces) + random.randbytes(random.randrange(3))
            connection.sendall(len(message).to_bytes(4, "big") + message)
    served.forgive()
    assert served.done == []
    with Remote(served.address, served.token("read")) as remote:
        assert remote.ask("ls", None, [])["status"] == 0
