"""The client's mod on its own, with real messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore.task_identity import TaskIdentity

from stethos.adapters.flower import client_mod
from stethos.federate.invitation import Invitation
from stethos.observe import boot


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be made inside a task of Flower's alone."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def context(**node_config: int) -> Context:
    return Context(run_id=1, node_id=7, node_config=dict(node_config), state=RecordDict(), run_config={})


def message(kind: str, directory: Path | None = None) -> Message:
    content = RecordDict({"config": ConfigRecord({"lr": 0.1})})
    if directory is not None:
        content["stethos"] = ConfigRecord(dict(Invitation("flower", "", 3, str(directory)).to_fields()))
    sent = Message(content, dst_node_id=7, message_type=kind)
    sent.metadata.__dict__["_message_id"] = "1"
    return sent


def answer(asked: Message, given: Context) -> Message:
    assert list(asked.content) == ["config"]
    return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=asked)


def test_without_an_invitation_nothing_is_added() -> None:
    assert list(client_mod(message("train"), context(), answer).content) == ["metrics"]


def test_a_client_that_cannot_reach_the_run_still_reports(tmp_path: Path) -> None:
    reply = client_mod(message("train", tmp_path / "elsewhere"), context(**{"partition-id": 4}), answer)
    report = reply.content["stethos"]
    assert isinstance(report, ConfigRecord) and boot.current() is None
    assert (report["status"], report["label"]) == ("ok", "4")
    assert report["peak_bytes"] > 0 and 0 < report["compute_ms"] <= report["duration_ms"]
    assert report["start_ns"] < report["end_ns"]


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_other_messages_come_back_as_they_are(tmp_path: Path, kind: str) -> None:
    assert list(client_mod(message(kind, tmp_path), context(), answer).content) == ["metrics"]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_an_error_of_the_client_passes_unchanged(tmp_path: Path, kind: str) -> None:
    error = ValueError("a fault of the client")

    def fail(asked: Message, given: Context) -> Message:
        raise error

    with pytest.raises(ValueError, match="a fault of the client") as caught:
        client_mod(message(kind, tmp_path), context(), fail)
    assert caught.value is error


def test_two_mods_observe_once(tmp_path: Path) -> None:
    def inner(asked: Message, given: Context) -> Message:
        reply = client_mod(asked, given, answer)
        assert list(reply.content) == ["metrics"]
        return reply

    assert list(client_mod(message("train", tmp_path), context(), inner).content) == ["metrics", "stethos"]


def test_privacy_mods_inside_of_ours_are_named(tmp_path: Path) -> None:
    def fixedclipping_mod(asked: Message, given: Context, call_next: ClientAppCallable) -> Message:
        return call_next(asked, given)

    def size_mod(asked: Message, given: Context, call_next: ClientAppCallable) -> Message:
        return call_next(asked, given)

    app = make_ffn(answer, [client_mod, size_mod, fixedclipping_mod])
    report = app(message("train", tmp_path / "elsewhere"), context()).content["stethos"]
    assert isinstance(report, ConfigRecord) and report["filters"] == "fixedclipping_mod"
    plain = make_ffn(answer, [client_mod, size_mod])(message("train", tmp_path / "elsewhere"), context())
    assert "filters" not in plain.content["stethos"]
