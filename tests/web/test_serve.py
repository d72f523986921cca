"""Starting and ending the server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest
from builders import RunBuilder
from processes import DEADLINE_S, command, finish, start_command, wait_until

from stethos.errors import UsageError
from stethos.web.keys import new_token
from stethos.web.serve import DEFAULT_PORT, address_of, is_open_to_others, listen


def test_a_taken_port_is_told() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="cannot listen") as refusal:
        taken.listen()
        listen("127.0.0.1", taken.getsockname()[1])
    assert "--port" in refusal.value.hint


def test_without_a_port_any_free_one_will_do() -> None:
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", DEFAULT_PORT))
            other.listen()
        except OSError:
            pass  # somebody else has it already
        with listen("127.0.0.1", None) as found:
            assert found.getsockname()[1] != DEFAULT_PORT
            assert address_of(found) == f"127.0.0.1:{found.getsockname()[1]}"


def test_who_can_connect() -> None:
    assert not is_open_to_others("127.0.0.1") and is_open_to_others("0.0.0.0")


def test_tokens_differ_and_are_long() -> None:
    assert len({new_token() for _ in range(100)}) == 100 and len(new_token()) >= 40


@pytest.mark.parametrize("port", ["70000", "-1", "x"])
def test_what_is_no_port_is_refused(tmp_path: Path, port: str) -> None:
    result = command("serve", "--dir", tmp_path, f"--port={port}")
    assert result.returncode == 2 and "hint:" in result.stderr


def start_server(directory: Path, *words: object) -> tuple[subprocess.Popen[str], str]:
    """A server, and the address that it has printed."""
    process = start_command("serve", "--dir", directory, "--port", "0", "--json", *words)
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, "the server did not start"
        text += line
    return process, str(json.loads(text)["url"])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_interrupt_ends_it_quietly(tmp_path: Path, scheme: str) -> None:
    words = ("--tls", "--keys", tmp_path / "keys") if scheme == "https" else ()
    process, url = start_server(tmp_path / "nothing-here", *words)
    assert url.startswith(f"{scheme}://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.returncode, result.stderr) == (130, "")


def test_an_interrupt_in_the_middle_of_an_answer_ends_it_quietly(run: RunBuilder) -> None:
    run.process("p0", is_alive=False).finish()
    process, url = start_server(run.path.parent)
    place, _, token = url.partition("/#token=")
    host = place.removeprefix("http://")
    with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=DEADLINE_S) as asker:
        body = json.dumps({"sql": "SELECT count(*) FROM range(100000000000) AS a(i) WHERE sin(i) > 2"})
        head = f"POST /api/runs/demo/sql HTTP/1.1\r\nHost: {host}\r\nOrigin: {place}\r\n"
        asker.sendall(f"{head}Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        wait_until(lambda: len(psutil.Process(process.pid).children()) > 0, "the process that asks")
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert (result.returncode, result.stderr) == (130, "")


def test_it_ends_quietly_after_it_has_answered(run: RunBuilder) -> None:
    member = run.process("p0", is_alive=False)
    member.steps(5)
    member.finish()
    process, url = start_server(run.path.parent)
    place, _, token = url.partition("/#token=")
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.get(f"{place}/api/runs/demo/panels/summary", headers=headers, timeout=DEADLINE_S)
    assert answer.status_code == 200
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.returncode, result.stderr) == (130, "")
