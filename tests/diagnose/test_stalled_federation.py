"""Which leg of a round stands still, from hand-made signs of life; and that slow ones are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from examining import cases, found

from stethos.diagnose.finding import Finding
from stethos.diagnose.window import Window
from stethos.testing import frame_of

HAS_MODEL = ((-40.0, "received", 3),)


def one(window: Window) -> Finding:
    (finding,) = found("FED017", window)
    return finding


def test_a_message_that_was_not_received_is_the_way_to_the_client() -> None:
    finding = one(cases.legs())
    assert finding.kind == "download" and finding.subject.clients == ("c1",) and finding.subject.first == 3
    assert "42 s ago and was not received" in finding.title and "88 s old (round 2)" in finding.title


@pytest.mark.parametrize(("asked_s", "is_told"), [(41.0, False), (43.0, True)])
def test_a_client_that_was_never_heard_of_is_given_time_to_start(asked_s: float, is_told: bool) -> None:
    """Its program may read the disk for half a minute before it can say that it has the message."""
    window = cases.legs((), asked_s=asked_s, states={cases.WORKER: "ended"})  # another client's, of long ago
    if is_told:
        assert "it has given no sign of life so far" in one(window).title
    else:
        assert not found("FED017", window)


def test_a_client_that_has_the_model_and_does_nothing_is_at_work() -> None:
    finding = one(cases.legs(HAS_MODEL))
    assert finding.kind == "compute" and "computes nothing, and its process gives no sign" in finding.title
    assert "gives no sign" not in one(cases.legs((*HAS_MODEL, (-3.0, "computing", 3)))).title


def test_an_answer_that_has_not_arrived_is_on_its_way_back() -> None:
    finding = one(cases.legs((*HAS_MODEL, (-33.0, "replied", 3))))
    assert finding.kind == "upload" and "answered 33 s ago" in finding.title


def test_a_client_whose_process_died_is_named_at_once() -> None:
    finding = one(cases.legs(((-4.0, "received", 3),), asked_s=5.0, states={cases.WORKER: "killed"}))
    assert finding.kind == "compute" and "died at work: killed by SIGKILL" in finding.title


@pytest.mark.parametrize("stage", ["aggregate", "evaluate"])
def test_a_server_that_stands_still_in_its_own_work_is_named(stage: str) -> None:
    finding = one(cases.legs(stage=stage, asked_s=None))
    assert finding.kind == stage and finding.subject.clients == () and finding.subject.process == cases.SERVER


def test_a_server_without_a_sign_of_life_is_frozen() -> None:
    finding = one(cases.legs(HAS_MODEL, silent_s=30.0))
    assert finding.kind == "server" and "no sign of life for 30 s" in finding.title
    assert any("client c1: received in round 3, 40 s ago" in seen.text for seen in finding.evidence)


def test_a_server_that_died_is_named_and_one_that_was_stopped_on_purpose_is_not() -> None:
    assert "the server died in round 3" in one(cases.legs(states={cases.SERVER: "killed"}, is_live=False)).title
    window = cases.legs(states={cases.SERVER: "killed"}, is_live=False)
    stopped = {"process": cases.SERVER, "state": "killed", "pid": 70, "ending": "stopped by SIGINT"}
    frames = {name: window.frame(name) for name in ("legs", "host")}
    assert not found("FED017", Window({**frames, "processes": frame_of([stopped])}))


def test_a_server_that_waits_for_clients_says_for_how_many() -> None:
    window = cases.legs((), stage="select", asked_s=None)
    logs = frame_of(
        [{"process": cases.SERVER, "message": "round 3 waits: 1 of 2 clients connected", "level": "WARNING"}]
    )
    frames = {name: window.frame(name) for name in ("legs", "host", "processes")}
    finding = one(Window({**frames, "logs": logs}, is_live=True))
    assert finding.kind == "select" and "(1 of 2 clients connected)" in finding.title


@pytest.mark.parametrize(("age_s", "is_told"), [(50.0, True), (40.0, False)])
def test_clients_that_never_fetched_a_task_have_not_started(age_s: float, is_told: bool) -> None:
    """Where clients come for their tasks themselves, as with NVFlare; those that start slowly are given time."""
    row = {"process": cases.SERVER, "federation": "f", "side": "server", "leg": "waiting", "round": 0, "client": None,
           "work": None, "t_ns": 9e10, "age_s": age_s, "words": '{"never_came": ["site-1"]}'}  # fmt: skip
    people = frame_of([{"process": cases.SERVER, "state": "running", "pid": 7}])
    host = frame_of([{"process": cases.SERVER, "t_ns": 9e10, "cpu_share": 0.5}])
    window = Window({"legs": frame_of([row]), "processes": people, "host": host}, is_live=True)
    if is_told:
        finding = one(window)
        assert finding.kind == "never-started" and finding.subject.clients == ("site-1",)
        assert "client site-1 has never fetched a task for 50 s" in finding.title
    else:
        assert not found("FED017", window)


@pytest.mark.parametrize(
    "slow",
    [
        {"heard": HAS_MODEL, "busy": [cases.WORKER]},
        {"heard": ((-20.0, "received", 3),), "asked_s": 22.0},
        {"asked_s": 20.0},
        {"heard": (*HAS_MODEL, (-20.0, "replied", 3))},
        {"stage": "aggregate", "asked_s": None, "busy": [cases.SERVER]},
        {"stage": "aggregate", "asked_s": None, "age_s": 20.0},
        {"stage": "closed", "asked_s": None},
    ],
)
def test_a_slow_round_is_not_accused(slow: dict[str, Any]) -> None:
    assert not found("FED017", cases.legs(**slow))


def test_earlier_rounds_say_how_long_a_leg_may_take() -> None:
    window = cases.legs()
    turn = [
        {"client": "c1", "round": 2, "download_ms": 25_000.0, "compute_ms": 10.0, "upload_ms": 10.0, "duration_ms": 1}
    ]
    frames = {name: window.frame(name) for name in ("legs", "host", "processes")}
    assert not found("FED017", Window({**frames, "client_rounds": frame_of(turn)}, is_live=True))


def test_steps_of_the_client_are_progress() -> None:
    window = cases.legs(HAS_MODEL)
    now_ns = float(window.frame("host")["t_ns"].max())
    steps = frame_of([{"process": cases.WORKER, "client": "c1", "t_ns": now_ns - 3e9}])
    frames = {name: window.frame(name) for name in ("legs", "host", "processes")}
    assert not found("FED017", Window({**frames, "steps": steps}, is_live=True))


def test_a_process_nobody_knows_that_computes_may_work_for_the_client() -> None:
    window = cases.legs(HAS_MODEL)
    now_ns = float(window.frame("host")["t_ns"].max())
    host = frame_of(
        [{"process": one, "t_ns": now_ns, "cpu_share": 0.9 * (one == "99-1")} for one in ("70-1", "71-1", "99-1")]
    )
    people = frame_of([{"process": one, "state": "running"} for one in ("70-1", "71-1", "99-1")])
    assert not found("FED017", Window({"legs": window.frame("legs"), "host": host, "processes": people}, is_live=True))


def test_a_client_cannot_speak_for_the_server() -> None:
    window = cases.legs()
    rows = [{name: window.frame("legs")[name][0] for name in window.frame("legs").names} | {"process": "evil@1-1"}]
    frames = {name: window.frame(name) for name in ("host", "processes")}
    assert not found("FED017", Window({**frames, "legs": frame_of(rows)}, is_live=True))


def test_an_app_that_died_before_its_first_round_never_started() -> None:
    app = {"process": "9-1", "state": "ended", "command": "flwr-serverapp --run 1", "exit_code": 0, "ending": "ended"}
    said = {"process": "9-1", "level": "ERROR", "message": "ServerApp failed", "t_ns": 1, "logger": "flwr",
            "exception": "Traceback\nModuleNotFoundError: no module named 'x'"}  # fmt: skip
    frames = {"processes": frame_of([app]), "logs": frame_of([said])}
    finding = one(Window(frames))
    assert finding.kind == "never-started" and "ServerApp ended before its first round: ModuleNotFound" in finding.title
    assert not found("FED017", Window({"processes": frame_of([app]), "logs": frame_of([{**said, "level": "INFO"}])}))
    assert not found("FED017", Window({**frames, "rounds": frame_of([{"round": 1, "federation": "f"}])}))
    assert not found("FED017", Window({"processes": frame_of([{**app, "command": "python train.py"}])}))
