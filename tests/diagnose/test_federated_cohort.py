"""Skew is told apart from faults; one client that rules the average, a server that undoes the clients' work."""

from __future__ import annotations

import pytest
from examining import cases, found, of_turns

from stethos.diagnose.finding import Severity
from stethos.diagnose.window import Window


def test_label_skew_names_the_client_that_alone_holds_a_class() -> None:
    (one,) = found("FED010", cases.labels())
    assert one.severity is Severity.INFO and one.detail["alone"]["3"] == "c3"
    assert len(one.detail["heat"]["cells"]) == 6


def test_a_mild_mixture_is_no_label_skew() -> None:
    assert not found("FED010", cases.labels(share=0.3))


@pytest.mark.parametrize("text", ["not json", "[1, 2]", "[[1], [2, 3]]", "{}", '[["a"]]', "[]"])
def test_a_confusion_that_is_none_is_left_out(text: str) -> None:
    assert not found("FED010", of_turns(lambda *_: {"confusion": text}))


def test_twice_the_samples_is_no_quantity_skew() -> None:
    assert not found("FED011", cases.amounts(largest=200))


def test_a_client_that_rules_by_its_norm_is_a_warning_and_by_its_samples_is_not() -> None:
    (one,) = found("FED012", cases.dominated())
    assert one.severity is Severity.WARNING and one.subject.clients == ("c1",) and one.kind == "norm"
    (one,) = found("FED012", cases.dominated(norm=1.0, samples=2000))
    assert one.severity is Severity.INFO and one.kind == "samples"
    assert not found("FED012", cases.dominated(norm=2.0))


def test_a_small_group_that_makes_the_model_is_named() -> None:
    (one,) = found("FED012", cases.ruled())
    assert (
        one.subject.clients == ("c0", "c1", "c2") and one.kind == "norm" and "3 clients, c0, c1, c2 have" in one.title
    )
    assert not found("FED012", cases.ruled(group=8))  # two in five clients are no small group
    assert not found("FED012", cases.ruled(norm=5.0))


def test_a_client_that_leaves_the_others_is_named_with_its_round() -> None:
    (one,) = found("FED014", cases.changed())
    assert one.subject.clients == ("c5",) and one.subject.first == 7
    assert not found("FED014", cases.changed(times=1.3))
    assert not found("FED014", cases.changed(since=1))  # it was always so: skew, not a change
    everybody = cases.turns(lambda client, number, row: {"entry_loss": row["entry_loss"] * (9 if number >= 7 else 1)})
    assert not found("FED014", Window({"client_rounds": everybody}))


def test_a_logged_number_is_compared_with_the_other_clients() -> None:
    rows = [
        {"client": client, "round": number, "name": "auc", "value": 0.1 if client == "c1" and number > 6 else 0.9}
        for number in cases.ROUNDS
        for client in cases.CLIENTS
    ]
    (one,) = found("FED014", Window({"client_rounds": cases.turns(), "metrics": cases.frame_of(rows)}))
    assert one.subject.clients == ("c1",) and one.subject.first == 7 and "`auc`" in one.title


def test_a_round_that_comes_out_differently_is_told() -> None:
    (one,) = found("FED015", cases.repeated())
    assert one.subject.clients == ("c2",) and (one.subject.first, one.subject.last) == (4, 6)
    assert "3 of 18 repeated" in one.title
    assert not found("FED015", cases.repeated(second=1.2))
    assert not found("FED015", cases.repeated(base=3.1))  # another model: another update


def test_a_global_model_of_nan_is_told_with_those_who_sent_it() -> None:
    (one,) = found("FED016", cases.broken_model())
    assert one.subject.clients == ("c2", "c4") and one.subject.first == 6 and one.is_open
    assert one.title == "the global model has 40 NaN or infinite elements after round 6, sent by c2, c4"
    (one,) = found("FED016", cases.broken_model(senders=()))
    assert "and no client sent any" in one.title and "aggregation" in one.next_step
    (one,) = found("FED016", cases.broken_model(senders=cases.CLIENTS))
    assert "sent by all 6 clients" in one.title and one.subject.clients == ()
    assert not found("FED016", cases.broken_model(since=99))
    losses = [{"round": number, "loss": float("nan") if number == 3 else 1.0} for number in cases.ROUNDS]
    (one,) = found("FED016", Window({"rounds": cases.frame_of(losses)}))
    assert "has a loss of nan after round 3" in one.title and not one.is_open
    unknown = [{"round": number, "loss": None} for number in cases.ROUNDS]  # not evaluated is no NaN
    assert not found("FED016", Window({"rounds": cases.frame_of(unknown)}))


def test_a_loss_that_falls_or_wobbles_is_no_instability() -> None:
    assert not found("FED013", cases.unstable(growth=0.9))
    assert not found("FED013", cases.unstable(growth=1.02))


def test_clients_that_do_not_learn_are_no_fault_of_the_server() -> None:
    rising = cases.Window(
        {"client_rounds": cases.turns(lambda c, n, r: {"entry_loss": 0.5 * 1.4**n, "exit_loss": 0.6 * 1.4**n})}
    )
    assert not found("FED013", rising)
