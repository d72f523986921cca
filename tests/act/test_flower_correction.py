"""Corrections of Flower's replies, with real records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from stethos.act.action import Treatment
from stethos.act.correction import Correction
from stethos.adapters.flower.correct import corrected_replies, median_of

BASE = ArrayRecord({"w": Array(np.zeros(3, np.float32))})


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be made inside a task of Flower's alone."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def reply(node: int, value: float) -> Any:
    records = {
        "arrays": ArrayRecord({"w": Array(np.full(3, value, np.float32))}),
        "metrics": MetricRecord({"num-examples": 40, "loss": 0.5}),
    }
    made = Message(RecordDict(records), dst_node_id=1, message_type="train")
    made.metadata.__dict__["_src_node_id"] = node
    return made


def test_replies_are_dropped_shortened_and_weighed_down() -> None:
    given = [reply(1, 1.0), reply(2, 100.0), reply(3, 1.0), reply(4, 2.0)]
    correction = Correction({"2": Treatment(scale=0.01), "3": Treatment(weight=0.0), "4": Treatment(weight=0.25)})
    kept = corrected_replies(given, BASE, correction)
    assert [one.metadata.src_node_id for one in kept] == [1, 2, 4] and kept[0] is given[0]
    assert kept[1].content["arrays"]["w"].numpy().tolist() == [1.0] * 3
    assert kept[2].content["metrics"]["num-examples"] == 10 and kept[2].content["metrics"]["loss"] == 0.5


def test_the_median_minds_nobody() -> None:
    found = median_of([reply(1, 1.0), reply(2, 1e9), reply(3, 2.0)])
    assert found is not None and found["w"].numpy().tolist() == [2.0] * 3
