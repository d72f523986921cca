"""The performance family: near misses, nothing said twice, and nothing in balanced runs."""

from __future__ import annotations

from typing import Any

import pytest
from examining import cases, found

from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.engine import examine
from stethos.diagnose.finding import Severity
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

FAMILY = [code for code in DETECTORS if code.startswith("PRF")]


def slower(client: str, phase: str, more_ms: float) -> Any:
    def change(name: str, number: int, row: dict[str, Any]) -> dict[str, Any]:
        if name != client:
            return {}
        return {"duration_ms": row["duration_ms"] + more_ms, f"{phase}_ms": row[f"{phase}_ms"] + more_ms}

    return change


def test_a_balanced_federation_has_nothing_to_be_said_about() -> None:
    diagnosis = examine(cases.paced(), [detector() for detector in DETECTORS.values()])
    assert diagnosis.findings == () and not [one for one in diagnosis.not_checked if "failed" in one.reason]


def test_a_straggler_is_named_once_and_says_what_it_costs() -> None:
    window = cases.paced(slower("c3", "upload", 5000.0))
    diagnosis = examine(window, [detector() for detector in DETECTORS.values()])
    assert [one.code for one in diagnosis.findings] == ["SYS001"]
    (one,) = diagnosis.findings
    assert (
        one.detail["share"] == pytest.approx(0.83, abs=0.02) and "rounds would be 82% shorter" in one.evidence[0].text
    )


def test_a_client_below_the_threshold_of_a_straggler_is_a_note() -> None:
    window = cases.paced(slower("c3", "upload", 700.0))
    (one,) = found("PRF004", window)
    assert one.subject.clients == ("c3",) and "client c3's upload: rounds would be" in one.title
    assert found("SYS001", window) == [] and found("PRF004", cases.paced(slower("c3", "upload", 60.0))) == []


def test_every_finding_of_the_family_is_a_note() -> None:
    for code in FAMILY:
        (one,) = found(code, cases.CASES[code]())
        assert one.severity is Severity.INFO


@pytest.mark.parametrize(
    ("code", "window"),
    [
        ("PRF001", cases.stepped(forward_ms=20.0, backward_ms=40.0)),
        ("PRF001", cases.stepped(forward_ms=2.0, backward_ms=7.4, step_ms=10.0, data_ms=0.1, optimizer_ms=0.1)),
        ("PRF002", cases.paced()),
        ("PRF003", cases.paced(aggregate_ms=200.0)),
        ("PRF005", cases.stepped(forward_ms=0.4, backward_ms=0.5, optimizer_ms=0.9, step_ms=2.0, samples=32)),
        ("PRF005", cases.stepped(samples=2)),
        ("PRF006", cases.stepped()),
        ("PRF007", cases.stepped(samples=[32, 32])),
        ("PRF007", cases.stepped(samples=[32, 36])),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_near_misses(code: str, window: Window) -> None:
    assert found(code, window) == []


def test_uneven_ranks_say_how_uneven() -> None:
    (one,) = found("PRF007", cases.stepped(samples=[16, 64, 32]))
    assert one.title == "rank 1 handles 64 samples per step, rank 0 only 16"
    assert one.subject.ranks == (1,) and one.detail["times"] == 4
    assert one.evidence[0].text.startswith("4.0 times as many")


def test_code_of_the_programs_own_before_the_model_is_not_computing() -> None:
    """Without a data loader `forward_ms` begins with the last step; sampled modules tell what the model takes."""
    frames = {"steps": cases.CASES["PRF001"]().frame("steps")}
    steps = frames["steps"]
    frames["steps"] = Frame({**{name: steps[name] for name in steps.names}, "model": ["Net"] * len(steps)})
    process = str(steps["process"][0])

    def window(forward_ms: float, device: str = "cpu") -> Window:
        rows = [{"process": process, "step": step, "module": "Net", "stage": "forward", "duration_ms": forward_ms}
                for step in range(5)]  # fmt: skip
        memory = cases.frame_of([{"process": process, "device": device}])
        return Window({**frames, "modules": cases.frame_of(rows), "memory": memory})

    usual = float(steps["forward_ms"][0])
    assert found("PRF001", window(0.9 * usual)) and not found("PRF001", window(0.1 * usual))
    assert found("PRF001", window(0.1 * usual, "cuda:0"))  # there modules are timed while they are launched


def test_a_layer_that_is_most_of_the_update_is_named() -> None:
    updates = cases.frame_of(
        [{"client": "c0", "round": 1, "layer": name, "size": size}
         for name, size in (("big.weight", 9e5), ("a", 5e4), ("b", 5e4))]
    )  # fmt: skip
    window = cases.paced(cases.linked)
    (one,) = found("PRF002", Window({**window._frames, "updates": updates}))
    assert one.kind == "big-layer" and one.subject.layers == ("big.weight",)


def test_an_evaluation_that_takes_long_is_named_as_such() -> None:
    window = cases.paced()
    rounds = window.frame("rounds")
    slow = cases.frame_of(
        [{**{name: rounds[name][at] for name in rounds.names}, "evaluate_ms": 1500.0, "duration_ms": 2600.0}
         for at in range(len(rounds))]
    )  # fmt: skip
    (one,) = found("PRF003", Window({**window._frames, "rounds": slow}))
    assert one.kind == "evaluation-bound" and "evaluation takes 58%" in one.title
