"""Rows on their way from a site to a collector, with real processes on both sides."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collecting import CollectorProcess, everything
from processes import command, drainers_of, environment, finish, metric_values, start_program, wait_until

from stethos.collect.site import SiteHome, open_site
from stethos.collect.spool import spools_in
from stethos.errors import StethosError
from stethos.store.run import open_run


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[CollectorProcess]:
    made = CollectorProcess(tmp_path)
    made.start()
    yield made
    made.stop()


class Client:
    """A program at a site that logs rows when it is asked to."""

    def __init__(self, site: SiteHome, name: str) -> None:
        self.path = site.runs / name
        (site.path / "rt").mkdir(mode=0o700, exist_ok=True)
        mine = environment(STETHOS_SITE=str(site.path), XDG_RUNTIME_DIR=str(site.path / "rt"))
        self.process: subprocess.Popen[str] = start_program("rows_on_demand.py", site.runs, name, env=mine)

    def log(self, rows: int) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{rows}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def end(self) -> None:
        assert finish(self.process, "").returncode == 0


def test_a_second_collector_at_an_address_is_told_so(collector: CollectorProcess, tmp_path: Path) -> None:
    ended = command("collect", "--dir", tmp_path / "other", "--keys", tmp_path / "keys", "--listen", collector.address)
    assert ended.returncode and f"cannot listen at {collector.address}: Address already in use" in ended.stderr
    assert "hint: choose another port with --listen\n" in ended.stderr  # `serve` has `--port`


def send_rest(site: SiteHome) -> None:
    """What a drainer could not send before it ended, since the machine was busy."""
    wait_until(lambda: not drainers_of(site.runs), "the end of the drainer")
    sent = command("collect", "--send", site.path)
    assert sent.returncode == 0 and "everything is sent" in sent.stdout, sent.stderr


def books(path: Path) -> dict[str, Any]:
    """What became of the rows of the only process of a run, or nothing where there is no run yet."""
    try:
        with open_run(path) as run:
            rows = run.rows(
                "SELECT rows_produced AS produced, rows_stored AS stored, rows_dropped AS dropped, rows_lost AS lost, "
                "rows_withheld AS withheld, rows_pending AS pending, state FROM processes"
            )
            return dict(zip(rows.columns, rows.values[0], strict=True)) if rows.values else {}
    except StethosError:
        return {}


def stored(path: Path) -> int:
    return int(books(path).get("stored", 0))


def test_a_collector_that_is_killed_loses_nothing_and_stores_nothing_twice(
    collector: CollectorProcess, tmp_path: Path
) -> None:
    site = collector.enrol(tmp_path / "site", "hospital-a", everything())
    client, path = Client(site, "r"), collector.runs / "r"
    client.log(1000)
    wait_until(lambda: stored(path) >= 1000, "the first rows at the collector")
    collector.kill()
    client.log(1000)
    wait_until(lambda: spools_in(site.spool), "a spool")
    collector.start()
    wait_until(lambda: stored(path) >= 2000, "what was recorded while it was away")
    client.log(500)
    collector.kill()
    collector.start()
    client.end()
    send_rest(site)
    wait_until(lambda: books(path).get("state") == "ended" and books(path)["pending"] == 0, "everything")
    with open_run(path) as run, open_run(client.path) as local:
        assert metric_values(run) == list(range(2500)) == metric_values(local)
        assert {row[0] for row in run.rows("SELECT DISTINCT process FROM metrics").values} == {
            f"hospital-a@{local.processes()[0]['process']}"
        }
    here, there = books(client.path), books(path)
    assert there == {**here, "withheld": 0, "pending": 0} and there["dropped"] == there["lost"] == 0
    assert not spools_in(site.spool)


def test_what_the_policy_keeps_back_is_counted_on_both_ends(collector: CollectorProcess, tmp_path: Path) -> None:
    site = collector.enrol(tmp_path / "site", "hospital-a")
    client, path = Client(site, "r"), collector.runs / "r"
    client.log(300)
    client.end()
    send_rest(site)
    wait_until(lambda: books(path).get("state") == "ended" and books(path)["pending"] == 0, "everything")
    there, here = books(path), books(client.path)
    assert there["withheld"] >= 300 and there["produced"] == here["produced"] == there["stored"] + there["withheld"]
    with open_run(path) as run:
        assert run.rows("SELECT count(*) FROM metrics").values == [(0,)]
        process = run.processes()[0]
        assert process["host"] == "hospital-a" and process["command"] is None and process["cwd"] is None
    shown = json.loads(command("policy", "--site", site.path, "--json").stdout)
    assert shown["level"] == "L1" and shown["withholds"]["metrics"] == ["*"]
    (account,) = shown["left"].values()  # what the site says when nothing of it waits any more
    assert account == {
        "produced": there["produced"], "left": there["stored"], "withheld": there["withheld"],
        "dropped": there["dropped"], "lost": there["lost"], "waiting": 0,
    }  # fmt: skip
    said = command("doctor", "--target", client.path).stdout
    assert f"hospital-a, level L1: {there['stored']} rows left, {there['withheld']} stay; none wait" in said


def test_a_collector_that_is_gone_delays_nothing_and_the_rest_is_sent_later(
    collector: CollectorProcess, tmp_path: Path
) -> None:
    site = collector.enrol(tmp_path / "site", "hospital-a", everything())
    collector.stop()
    client = Client(site, "r")
    client.log(200)
    client.end()
    wait_until(lambda: not drainers_of(site.runs), "the end of the drainer")
    assert books(client.path)["stored"] >= 200 and spools_in(site.spool)
    collector.start()
    send_rest(site)
    wait_until(lambda: stored(collector.runs / "r") >= 200, "the rows at the collector")
    with open_run(collector.runs / "r") as run:
        assert metric_values(run) == list(range(200))


def test_a_relay_passes_on_what_it_cannot_change(collector: CollectorProcess, tmp_path: Path) -> None:
    """The client reaches the relay alone; the collector comes back after the client has ended."""
    upstream = collector.enrol(tmp_path / "upstream", "relay-1")
    upstream.policy_path.write_text(everything())
    (tmp_path / "relay").mkdir()
    relay = CollectorProcess(tmp_path / "relay", upstream.path)
    relay.start()
    try:
        given = tmp_path / "hospital-a.token"
        given.write_text(collector.enrolment.invite("hospital-a", collector.keys.fingerprint).line())
        command("enroll", "--through", given, "--keys", relay.keys.directory)
        site_path, token = tmp_path / "site", tmp_path / "hospital-a.relay.token"
        enrolled = command("enroll", relay.address, "--token-file", token, "--site", site_path)
        assert "this site is hospital-a" in enrolled.stdout, enrolled.stderr
        site = open_site(site_path)
        site.policy_path.write_text(everything())
        collector.kill()
        client = Client(site, "r")
        client.log(100)
        client.end()
        send_rest(site)
        relay.kill()
        relay.start()
        collector.start()
        wait_until(lambda: stored(collector.runs / "r") >= 100, "the rows at the collector")
    finally:
        relay.stop()
    with open_run(collector.runs / "r") as run:
        assert metric_values(run) == list(range(100))
        assert str(run.processes()[0]["process"]).startswith("hospital-a@")


def test_a_revoked_client_keeps_its_rows_and_is_told_why(collector: CollectorProcess, tmp_path: Path) -> None:
    site = collector.enrol(tmp_path / "site", "hospital-a", everything())
    collector.enrolment.revoke("hospital-a")
    client = Client(site, "r")
    client.log(50)
    client.end()
    wait_until(lambda: not drainers_of(site.runs), "the end of the drainer")
    shown = command("policy", "--site", site.path).stdout
    assert "waiting: r/" in shown and "not taken, the last time: 403: client 'hospital-a' was revoked" in shown
    assert books(client.path)["stored"] >= 50 and not (collector.runs / "r").exists()
    doctor = command("doctor", "--target", client.path)
    assert doctor.returncode == 1 and "rows wait" not in doctor.stdout
    assert f"wait to leave to {collector.address}" in doctor.stdout and "'hospital-a' was revoked" in doctor.stdout


def test_a_site_is_not_made_into_another_by_mistake(collector: CollectorProcess, tmp_path: Path) -> None:
    site = collector.enrol(tmp_path / "site", "hospital-a")
    other = command("enroll", "--local", "riding", "--site", site.path)
    assert other.returncode == 2 and "is the site of hospital-a already" in other.stderr
    token = tmp_path / "used.token"
    token.write_text(collector.enrolment.invite("hospital-b", collector.keys.fingerprint).line())
    address = command("enroll", f"https://{collector.address}", "--token-file", token, "--site", tmp_path / "new")
    assert address.returncode == 2 and "HOST:PORT" in address.stderr and not (tmp_path / "new").exists()
    enrolled = command("enroll", collector.address, "--token-file", token, "--site", tmp_path / "new")
    assert f"its key is {collector.enrolment.clients()['hospital-b'].key[:16]}..." in enrolled.stdout
    again = command("enroll", collector.address, "--token-file", token, "--site", site.path)
    assert again.returncode != 0 and "is the site of hospital-a already" in again.stderr
    assert open_site(site.path) == site
