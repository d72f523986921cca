"""Alerts reach real receivers, once, in groups, again after a failure and a restart, and when it is over."""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from processes import command, finish, start_command, wait_until

import stethos
from stethos.act.alert_rule import Alerts, LogSink, MailSink, Rule, WebhookSink, read_alerts
from stethos.act.alert_sink import AlertItem, AlertMessage, deliver
from stethos.act.alert_state import AlertState
from stethos.act.alerter import Alerter
from stethos.act.webhook import DeliveryError, _is_public, post
from stethos.cli.main import main
from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.finding import Finding, Severity, Subject
from stethos.errors import UsageError
from stethos.store.run import Run
from stethos.web.keys import open_keys


class Receiver(ThreadingHTTPServer):
    """A real HTTP server that keeps what it gets, and answers as told."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.location = ""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status < 300:
                    receiver.bodies.append(json.loads(body))
                    receiver.headers.append(dict(self.headers))
                self.send_response(status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Smtp(socketserver.ThreadingTCPServer):
    """Enough of SMTP to take a mail."""

    allow_reuse_address = daemon_threads = True

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.logins: list[str] = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                def answer(line: str) -> None:
                    self.wfile.write(f"{line}\r\n".encode())

                answer("220 here")
                while line := self.rfile.readline().decode().strip():
                    if line.upper() == "DATA":
                        answer("354 go on")
                        lines = iter(lambda: self.rfile.readline().decode().rstrip("\r\n"), ".")
                        server.mails.append("\n".join(lines))
                        answer("250 taken")
                    elif line.upper().startswith("EHLO"):
                        answer("250-here")
                        answer("250 AUTH PLAIN")
                    elif line.upper().startswith("AUTH PLAIN "):
                        server.logins.append(base64.b64decode(line.split()[2]).decode())
                        answer("235 welcome")
                    elif line.upper() == "QUIT":
                        answer("221 bye")
                        break
                    else:
                        answer("250 fine")

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def smtp() -> Iterator[Smtp]:
    server = Smtp()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text(json.dumps({"format": 1, "name": "r", "created_ns": 1}))
    with stethos.open_run(tmp_path / "r") as opened:
        yield opened


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def finding(client: str = "c7", severity: Severity = Severity.ERROR, **changes: Any) -> Finding:
    one = Finding("FED001", "faulty-client", "label-flip", severity, f"client {client} has flipped labels",
                  Subject((client,), first=5), next_step="leave it out")  # fmt: skip
    return replace(one, **changes)


def seen(*findings: Finding) -> Diagnosis:
    return Diagnosis(findings=findings, checked=("FED001",))


def alerts_to(url: str, **rule: Any) -> Alerts:
    sink = WebhookSink(url, allow_private=True)
    return Alerts((Rule("faults", ("hook",), **{"repeat_s": 100.0, **rule}),), {"hook": sink}, group_s=0.0)


def test_a_finding_is_told_once_again_later_and_when_it_is_over(run: Run, receiver: Receiver) -> None:
    clock = Hand()
    alerter = Alerter(alerts_to(receiver.url), run, clock=clock)
    for _ in range(3):
        alerter.look(seen(finding()))
        assert alerter.send() == 0
    assert [body["items"][0]["state"] for body in receiver.bodies] == ["new"]
    clock.now_s += 101
    alerter.look(seen(finding()))
    alerter.send()
    alerter.look(seen())
    alerter.send()
    assert [body["items"][0]["state"] for body in receiver.bodies] == ["new", "again", "over"]
    first = receiver.bodies[0]
    assert first["run"] == "r" and first["items"][0]["next_step"] == "leave it out"
    assert first["items"][0]["clients"] == ["c7"]


def test_what_comes_together_goes_in_one_message(run: Run, receiver: Receiver) -> None:
    clock = Hand()
    alerter = Alerter(replace(alerts_to(receiver.url), group_s=5.0), run, clock=clock)
    alerter.look(seen(finding("c1")))
    assert alerter.send() == 1  # it waits for company
    clock.now_s += 3
    alerter.look(seen(finding("c1"), finding("c2")))
    clock.now_s += 3
    assert alerter.send() == 0
    (body,) = receiver.bodies
    assert body["count"] == 2 and "and 1 more" in body["subject"]


def test_a_failed_delivery_is_repeated_with_growing_pauses_and_survives_a_restart(run: Run, receiver: Receiver) -> None:
    clock, said = Hand(), []
    receiver.answers = [500, 503]
    alerter = Alerter(alerts_to(receiver.url), run, clock=clock, say=said.append)
    alerter.look(seen(finding()))
    assert alerter.send() == 1 and "answered 500" in said[0]
    assert alerter.send() == 1 and len(said) == 1  # not yet
    clock.now_s += 2
    assert alerter.send() == 1 and "again in 4 s" in said[1]
    clock.now_s += 4
    again = Alerter(alerts_to(receiver.url), run, clock=clock)
    again.look(seen(finding()))
    assert again.send() == 0 and len(receiver.bodies) == 1
    assert AlertState(run.path).delivered()[0][0] == "hook"


def test_a_detector_that_was_not_checked_says_nothing_about_the_end(run: Run, receiver: Receiver) -> None:
    alerter = Alerter(alerts_to(receiver.url, code="faulty-client"), run, clock=Hand())
    alerter.look(seen(finding()))
    alerter.look(Diagnosis())
    alerter.send()
    assert [body["items"][0]["state"] for body in receiver.bodies] == ["new"]


@pytest.mark.parametrize(
    ("rule", "is_told"),
    [({"severity": "error"}, True), ({"client": "c7"}, True), ({"client": "c8"}, False), ({"code": "FED001"}, True),
     ({"code": "straggler"}, False)],
)  # fmt: skip
def test_a_rule_is_narrowed_down(rule: dict[str, Any], is_told: bool, run: Run, receiver: Receiver) -> None:
    alerter = Alerter(alerts_to(receiver.url, **rule), run, clock=Hand())
    alerter.look(seen(finding()))
    alerter.send()
    assert bool(receiver.bodies) is is_told


def test_an_info_is_not_told_by_default(run: Run, receiver: Receiver) -> None:
    alerter = Alerter(alerts_to(receiver.url), run, clock=Hand())
    alerter.look(seen(finding(severity=Severity.INFO), finding("c1", is_open=False)))
    assert alerter.send() == 0 and not receiver.bodies


def test_a_query_tells_when_its_number_crosses_the_limit(run: Run, receiver: Receiver) -> None:
    said: list[str] = []
    alerts = alerts_to(receiver.url, query="SELECT 4.5", above=3.0)
    Alerter(alerts, run, clock=Hand()).look(seen())
    Alerter(alerts, run, clock=Hand()).send()
    assert receiver.bodies[0]["items"][0]["title"] == "faults: 4.5, above 3"
    fine = Alerter(alerts_to(receiver.url, query="SELECT 2.5", above=3.0), run, clock=Hand())
    fine.look(seen())
    fine.send()
    assert receiver.bodies[1]["items"][0]["state"] == "over"
    Alerter(alerts_to(receiver.url, query="SELECT nonsense", above=3.0), run, say=said.append).look(seen())
    assert "nonsense" in said[0]


def test_slack_and_discord_get_text_as_text(receiver: Receiver) -> None:
    message = AlertMessage(
        "r", (AlertItem("k", "rule", "new", "error", "client <!channel> & @everyone [x](http://h)"),)
    )
    for form in ("slack", "discord"):
        deliver(WebhookSink(receiver.url, format=form, allow_private=True), message)
    slack, discord = receiver.bodies
    assert "<!channel>" not in slack["text"] and "&lt;!channel&gt; &amp;" in slack["text"]
    assert discord["allowed_mentions"] == {"parse": []} and discord["embeds"][0]["color"]
    assert r"\[x\]\(http" in discord["embeds"][0]["description"] and "](" not in discord["embeds"][0]["title"]


def test_a_mail_arrives(smtp: Smtp) -> None:
    sink = MailSink("127.0.0.1", "stethos@example.org", ("a@example.org",), port=smtp.server_address[1])
    deliver(
        sink, AlertMessage("r", (AlertItem("k", "rule", "new", "error", "client x\nBcc: evil@example.org", "go home"),))
    )
    (mail,) = smtp.mails
    header, _, body = mail.partition("\n\n")
    assert "Subject: [error] r: client x Bcc: evil@example.org" in header and "\nBcc:" not in header
    assert "next: go home" in body


TITLE = AlertMessage("r", (AlertItem("k", "rule", "new", "error", "title"),))


def with_password(smtp: Smtp, file: Path, encryption: str = "none") -> MailSink:
    return MailSink(
        "127.0.0.1", "s@example.org", ("a@example.org",), smtp.server_address[1], encryption=encryption, user="me",
        password_file=str(file),
    )  # fmt: skip


def test_a_mail_is_sent_with_the_password_of_a_file(smtp: Smtp, tmp_path: Path) -> None:
    file = tmp_path / "password"
    sink = with_password(smtp, file)
    with pytest.raises(DeliveryError, match="password"):
        deliver(sink, TITLE)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(DeliveryError, match="it is not text"):
        deliver(sink, TITLE)
    file.write_text("secret\n")
    deliver(sink, TITLE)
    assert smtp.logins == ["\0me\0secret"] and len(smtp.mails) == 1


@pytest.mark.parametrize(("encryption", "said"), [("tls", "certificate verify failed"), ("starttls", "STARTTLS")])
def test_no_password_goes_to_a_mail_server_that_cannot_prove_its_name(
    smtp: Smtp, tmp_path: Path, encryption: str, said: str
) -> None:
    """One has a certificate that nobody vouches for, the other cannot encrypt at all."""
    (tmp_path / "password").write_text("secret")
    if encryption == "tls":
        smtp.socket = open_keys(tmp_path / "keys").server_context().wrap_socket(smtp.socket, server_side=True)
    with pytest.raises(DeliveryError, match=said):
        deliver(with_password(smtp, tmp_path / "password", encryption), TITLE)
    assert smtp.logins == [] and smtp.mails == []


def test_a_webhook_gets_the_header_of_a_file(receiver: Receiver, tmp_path: Path) -> None:
    file = tmp_path / "header"
    sink = WebhookSink(receiver.url, allow_private=True, header_file=str(file))
    for content, said in (
        (None, "cannot be read"),
        ("secret", "a header"),
        ("A: b\nHost: evil", "a header"),
    ):
        if content is not None:
            file.write_text(content)
        with pytest.raises(DeliveryError, match=said):
            post(sink, {})
    file.write_text("X-Secret: 17\n")
    post(sink, {})
    (headers,) = receiver.headers
    assert headers["X-Secret"] == "17" and headers["Host"] != "evil"


def test_a_message_about_thousands_of_clients_arrives_whole(receiver: Receiver) -> None:
    clients = tuple(f"client {number:04d} of a hospital far away" for number in range(5000))
    item = AlertItem("k", "rule", "new", "error", "5000 clients", clients=clients)
    deliver(WebhookSink(receiver.url, allow_private=True), AlertMessage("r", (item,) * 30))
    (body,) = receiver.bodies
    assert body["count"] == 30 and body["items"][-1]["clients"] == list(clients[:100])


def test_a_command_gets_json_and_its_failure_is_told(tmp_path: Path) -> None:
    from stethos.act.alert_rule import CommandSink

    message = AlertMessage("r", (AlertItem("k", "rule", "new", "error", "title"),))
    code = f"import sys, pathlib; pathlib.Path({str(tmp_path / 'got')!r}).write_text(sys.stdin.read())"
    deliver(CommandSink((sys.executable, "-c", code)), message)
    assert json.loads((tmp_path / "got").read_text())["items"][0]["title"] == "title"
    with pytest.raises(DeliveryError, match="ended with 3"):
        deliver(CommandSink((sys.executable, "-c", "import sys; sys.exit(3)")), message)
    with pytest.raises(DeliveryError, match="longer than"):
        deliver(CommandSink((sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.2), message)
    deliver(LogSink(str(tmp_path / "log")), message)
    deliver(LogSink(str(tmp_path / "log")), message)
    assert len((tmp_path / "log").read_text().splitlines()) == 2


def test_a_recorded_program_is_watched_by_itself(receiver: Receiver, tmp_path: Path) -> None:
    file, script = tmp_path / "a.toml", tmp_path / "job.py"
    text = FILE.replace("https://example.org/x", receiver.url)
    text = text.replace('type = "webhook"', 'type = "webhook"\nallow_private = true')
    file.write_text(text.replace('sinks = ["hook"]', 'sinks = ["hook"]\nquery = "SELECT 5"\nabove = 1'))
    script.write_text("print(7)")
    result = command("run", "--dir", tmp_path / "runs", "--name", "r", "--alerts", file, script)
    assert result.stdout == "7\n"
    wait_until(lambda: bool(receiver.bodies), "the alert to arrive")
    assert receiver.bodies[0]["run"] == "r"


def test_all_live_runs_of_a_directory_are_watched(receiver: Receiver, tmp_path: Path) -> None:
    file, script = tmp_path / "a.toml", tmp_path / "job.py"
    text = FILE.replace("https://example.org/x", receiver.url)
    text = "every_s = 0.1\n" + text.replace('type = "webhook"', 'type = "webhook"\nallow_private = true')
    file.write_text(text.replace('sinks = ["hook"]', 'sinks = ["hook"]\nquery = "SELECT 5"\nabove = 1'))
    script.write_text("input()")
    watching = start_command("alert", "watch", file, "--all", "--dir", tmp_path / "runs")
    job = start_command("run", "--dir", tmp_path / "runs", "--name", "r", script)
    try:
        wait_until(lambda: bool(receiver.bodies), "the alert to arrive")
        assert watching.poll() is None
    finally:
        watching.terminate()
        finish(watching)
        finish(job, "\n")
    assert [body["run"] for body in receiver.bodies] == ["r"]


# A webhook cannot be turned against the network it is sent from --------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/latest",
     "http://0.0.0.0/", "http://[::ffff:127.0.0.1]/", "http://2130706433/", "http://0x7f.1/", "http://192.168.1.1:80/",
     "http://100.64.0.1/", "http://[fe80::1]/", "http://[fd00::1]/", "http://224.0.0.1/", "http://127.1/"],
)  # fmt: skip
def test_private_addresses_are_refused(url: str) -> None:
    with pytest.raises(DeliveryError, match=r"not a public address|cannot be resolved"):
        post(WebhookSink(url), {})


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://example.org", "http://", "nonsense", "http://x:port/", "http://[::1"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(DeliveryError, match="not a webhook address"):
        post(WebhookSink(url), {})


def test_public_is_told_from_private() -> None:
    assert _is_public("1.1.1.1") and _is_public("2606:4700::1111")
    assert not any(map(_is_public, ("127.0.0.1", "::1", "::ffff:10.0.0.1", "2002:7f00:1::", "169.254.169.254")))


def embedded(ipv4: str) -> dict[str, str]:
    """An IPv4 address in every form in which IPv6 carries one."""
    number = int(ipaddress.IPv4Address(ipv4))
    low, flipped = f"{number >> 16:x}:{number & 0xFFFF:x}", number ^ 0xFFFF_FFFF
    return {
        "mapped": f"::ffff:{low}", "NAT64": f"64:ff9b::{low}", "6to4": f"2002:{low}::1",
        "compatible": f"::{low}", "SIIT": f"::ffff:0:{low}", "local NAT64": f"64:ff9b:1::{low}",
        "ISATAP": f"2606:4700::5efe:{low}", "ISATAP global": f"2606:4700::200:5efe:{low}",
        "Teredo server": f"2001:0:{low}::1", "Teredo client": f"2001::{flipped >> 16:x}:{flipped & 0xFFFF:x}",
    }  # fmt: skip


@pytest.mark.parametrize(
    "ipv4",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.0.1", "100.64.0.1", "0.0.0.0", "224.0.0.1", "192.88.99.1"],
)
def test_a_private_address_inside_ipv6_is_refused(ipv4: str) -> None:
    assert [form for form, address in embedded(ipv4).items() if _is_public(address)] == []


def test_a_public_address_passes_only_in_forms_that_are_routed() -> None:
    passed = [form for form, address in embedded("1.1.1.1").items() if _is_public(address)]
    assert passed == ["mapped", "NAT64", "6to4", "ISATAP", "ISATAP global"]


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.8",
        "192.88.99.1",
        "224.0.0.1",
        "240.0.0.1",
        "5f00::1",
        "3fff::1",
        "2001:db8::1",
        "fec0::1",
        "100::1",
        "ff0e::1",
        "::",
        "fe80::1%lo",
        "4000::1",
    ],
)
def test_reserved_addresses_are_not_public(address: str) -> None:
    assert not _is_public(address)


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    receiver.answers, receiver.location = [302], receiver.url
    with pytest.raises(DeliveryError, match="redirects are not followed"):
        post(WebhookSink(receiver.url, allow_private=True), {})
    assert receiver.bodies == []


@pytest.mark.parametrize("drip", [b"", b"x"])
def test_a_server_that_hangs_or_drips_is_left(drip: bytes) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hold() -> None:
            client, _ = server.accept()
            with client:
                while not stop.wait(0.05):
                    try:
                        client.sendall(drip)
                    except OSError:
                        return

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            with pytest.raises(DeliveryError):
                post(WebhookSink(f"http://127.0.0.1:{server.getsockname()[1]}/", allow_private=True, timeout_s=0.3), {})
        finally:
            stop.set()
            thread.join()


# The file ------------------------------------------------------------------------------------------

FILE = """
[[rule]]
name = "faults"
sinks = ["hook"]
[sink.hook]
type = "webhook"
url = "https://example.org/x"
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('sinks = ["hook"]', 'sinks = ["nobody"]', "no sink 'nobody'"),
        ('name = "faults"', "", "name is missing"),
        ('name = "faults"', 'name = "faults"\nquery = "SELECT 1"', "needs above or below"),
        ('name = "faults"', 'name = "faults"\nseverity = "bad"', "severity is 'bad'"),
        ('name = "faults"', 'name = "faults"\ncode = "nope"', "no detector 'nope'"),
        ('name = "faults"', 'name = "faults"\nrepeat_s = "1h"', "repeat_s is '1h'"),
        ('type = "webhook"', 'type = "pigeon"', "type is 'pigeon'"),
        ('type = "webhook"', 'type = "webhook"\nformat = "teams"', "format is 'teams'"),
        ('type = "webhook"', 'type = "webhook"\nurls = "x"', "no setting 'urls'"),
        ("[[rule]]", "[[rules]]", "no setting 'rules'"),
        ("[[rule]]", "[[rule]", "cannot be read"),
        ("[[rule]]", f"{'a.' * 30_000}b = 1\n[[rule]]", "more than 100 parts"),
    ],
)
def test_a_mistake_in_the_file_is_named(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert FILE.count(old) == 1
    (tmp_path / "a.toml").write_text(FILE.replace(old, new))
    with pytest.raises(UsageError, match=words):
        read_alerts(tmp_path / "a.toml")


def test_the_command_tests_the_sinks_and_tells_of_a_run(
    run: Run, receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.toml"
    text = FILE.replace("https://example.org/x", receiver.url)
    text = text.replace('type = "webhook"', 'type = "webhook"\nallow_private = true')
    file.write_text(text.replace('sinks = ["hook"]', 'sinks = ["hook"]\nquery = "SELECT 5"\nabove = 1'))
    assert main(["alert", "test", str(file)]) == 0
    assert "hook: delivered" in capsys.readouterr().out
    assert main(["alert", "watch", str(file), "-t", str(run.path)]) == 0  # it has ended: one look
    assert main(["alert", "once", str(file), "-t", str(run.path)]) == 0
    assert [body["items"][0]["title"] for body in receiver.bodies[1:]] == ["faults: 5, above 1"]
    assert main(["alert", "status", "-t", str(run.path)]) == 0
    assert "delivered  hook: [warning] r: faults: 5, above 1" in capsys.readouterr().out
    file.write_text(text.replace(receiver.url, "http://127.0.0.1:9/").replace("allow_private = true", ""))
    assert main(["alert", "test", str(file), "--json"]) == 1
    assert "not a public address" in capsys.readouterr().out
