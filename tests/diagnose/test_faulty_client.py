"""Faulty clients are found with their kind in federations of the lab; honest, few and odd ones are left alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import stethos
from stethos import lab
from stethos.diagnose.detector import CannotTell
from stethos.diagnose.engine import examine, needs_of
from stethos.diagnose.federated.cohort import Cohort, cohorts_of
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.federated.trait import Signals
from stethos.diagnose.federated.verdict import verdicts_on
from stethos.diagnose.finding import Finding
from stethos.diagnose.window import RunWindow, Window
from stethos.store.frame import Frame

CLIENTS, ROUNDS = 8, 6
FAULTS = [
    (lab.Fault("label-flip", [3], source=7, target=1), "label-flip"),
    (lab.Fault("label-noise", [3]), "label-noise"),
    (lab.Fault("sign-flip", [3]), "sign-flip"),
    (lab.Fault("scaling", [3]), "scaling"),
    (lab.Fault("update-noise", [3]), "update-noise"),
    (lab.Fault("stale", [3]), "stale"),
    (lab.Fault("free-rider-zero", [3]), "free-rider"),
    (lab.Fault("free-rider-delta", [3]), "free-rider"),
    (lab.Fault("nan", [3], start=4), "nan"),
]


def federation(directory: Path, *faults: lab.Fault, **options: Any) -> Path | None:
    given: dict[str, Any] = {
        "clients": 10, "rounds": 10, "local_epochs": 2, "engine": "stacked", "seed": 4242, "dir": directory,
        "progress": False,
    }  # fmt: skip
    return lab.federate("digits", faults=faults, **(given | options)).path


def findings_of(path: Path | None) -> list[Finding]:
    detector = FaultyClient()
    with stethos.open_run(path) as run:
        found = list(examine(RunWindow(run, needs_of([detector])), [detector]).findings)
        assert all(run.sql(one.sql).num_rows for finding in found for one in finding.evidence)
    return found


@pytest.mark.parametrize(("fault", "kind"), FAULTS, ids=[fault.kind for fault, _ in FAULTS])
def test_a_faulty_client_is_found_with_its_kind(tmp_path: Path, fault: lab.Fault, kind: str) -> None:
    (found,) = findings_of(federation(tmp_path, fault))
    assert (found.kind, found.subject.clients) == (kind, ("c3",)) and found.is_open and found.confidence >= 0.75
    assert found.evidence and found.next_step
    if kind == "label-flip":
        assert (
            found.detail == {"guilt": "hostile", "source": 7, "target": 1}
            and "labels class 7 as class 1" in found.title
        )
    if kind == "nan":
        assert found.subject.first == 4


def test_the_round_in_which_it_began_is_named(tmp_path: Path) -> None:
    (found,) = findings_of(federation(tmp_path, lab.Fault("sign-flip", [2], start=6), rounds=12))
    assert found.subject.clients == ("c2",) and found.subject.first is not None and abs(found.subject.first - 6) <= 1


@pytest.mark.parametrize("split", [lab.IID(), lab.Dirichlet(0.3), lab.QuantitySkew()], ids=str)
def test_a_clean_federation_is_not_accused(tmp_path: Path, split: Any) -> None:
    assert findings_of(federation(tmp_path, split=split)) == []


def honest(**changes: Any) -> Cohort:
    """A hand-made cohort in which nobody stands out."""
    chance = np.random.default_rng(0)
    around = {
        "norm": (1, 0.05), "norm_ratio": (1, 0.05), "first_ratio": (1, 0.05), "last_ratio": (1, 0.05),
        "cos_centre": (0.8, 0.02), "sign_agreement": (0.8, 0.01), "cos_last": (0.8, 0.02), "cos_self": (0.9, 0.02),
        "cos_back": (-0.8, 0.02), "back_rounds": (3, 0.1), "zero_share": (0.05, 0.001), "input_cos": (0.95, 0.005),
        "input_focus": (0.01, 0.001), "input_tail": (0, 0.1), "entry_loss": (0.5, 0.02), "exit_loss": (0.4, 0.02),
        "samples": (63, 0),
    }  # fmt: skip
    values: dict[str, Any] = {
        name: middle + spread * chance.normal(size=(ROUNDS, CLIENTS)) for name, (middle, spread) in around.items()
    }
    values["odd"] = np.zeros((ROUNDS, CLIENTS))
    values["confusion"] = np.zeros((ROUNDS, CLIENTS, 3, 3)) + np.diag([20.0, 20, 20]) + 1
    values["bias"] = 0.01 * chance.normal(size=(ROUNDS, CLIENTS, 3))
    clients = changes.pop("clients", tuple(f"c{n}" for n in range(CLIENTS)))
    return Cohort(tuple(range(1, ROUNDS + 1)), clients, values | changes)


def test_nan_is_the_fault_of_who_sent_it_first() -> None:
    odd = np.zeros((ROUNDS, CLIENTS))
    odd[2, 5] = 3
    odd[3:, :] = 100  # from then on everybody has it, from the global model
    (verdict,) = [one for one in verdicts_on(honest(odd=odd), 0.9) if one.is_certain]
    assert (verdict.client, verdict.kind, verdict.first, verdict.last) == ("c5", "nan", 3, None)
    norm = honest().norm.copy()
    norm[3:, :] = 0  # no finite element is left to measure: that is no free rider
    (verdict,) = [one for one in verdicts_on(honest(odd=odd, norm=norm), 0.9) if one.is_certain]
    assert (verdict.client, verdict.kind) == ("c5", "nan")


def test_a_copy_of_the_last_change_is_no_work_but_a_likeness_is() -> None:
    copies, alike = honest().cos_last.copy(), honest().cos_last.copy()
    copies[1:, 2], alike[1:, 2] = 1.0, 0.95
    (verdict,) = [one for one in verdicts_on(honest(cos_last=copies), 0.9) if one.is_certain]
    assert (verdict.client, verdict.kind) == ("c2", "free-rider")
    assert not [one for one in verdicts_on(honest(cos_last=alike), 0.9) if one.is_certain]
    few_weights = np.full_like(copies, 0.97)
    few_weights[1:, 2] = 0.9999
    assert not [one for one in verdicts_on(honest(cos_last=few_weights), 0.9) if one.is_certain]


def test_missing_answers_and_losses_are_no_trouble() -> None:
    nothing = np.full((ROUNDS, CLIENTS), math.nan)
    cohort = honest(entry_loss=nothing, exit_loss=nothing, confusion=np.full((ROUNDS, CLIENTS, 0, 0), math.nan))
    assert Signals(cohort).over(0, ROUNDS).values.shape[0] == CLIENTS
    assert verdicts_on(cohort, 0.9) == []


def test_nan_everywhere_is_blamed_on_all_or_nobody() -> None:
    nothing = np.full((ROUNDS, CLIENTS), math.nan)
    unknown = dict.fromkeys(("norm", "norm_ratio", "cos_centre", "cos_last", "entry_loss"), nothing)
    assert len(verdicts_on(honest(**unknown, odd=np.full((ROUNDS, CLIENTS), 9.0)), 0.9)) in (0, CLIENTS)


def window_of(clients: int, rounds: int = 3) -> Window:
    names = [f"c{n}" for _ in range(rounds) for n in range(clients)]
    size = len(names)
    columns = {
        "round": [number for number in range(1, rounds + 1) for _ in range(clients)], "client": names,
        "layer": [None] * size, "norm": [1.0] * size, "norm_ratio": [1.0] * size, "cos_centre": [0.5] * size,
    }  # fmt: skip
    return Window({"updates": Frame(columns)})


@pytest.mark.parametrize(
    ("column", "value", "words"), [("nan", 27.0, "send NaN"), ("norm", 0.0, "send updates without training")]
)
def test_what_all_clients_do_is_told_once(column: str, value: float, words: str) -> None:
    """Sizes and cosines are NULL then; that nothing can be compared is no reason to say nothing."""
    size = 5 * 3
    rows: dict[str, Any] = {
        "round": [1 + place // 5 for place in range(size)], "client": [f"c{place % 5}" for place in range(size)],
        "layer": [None] * size, "norm": [None] * size, "norm_ratio": [None] * size, "cos_centre": [None] * size,
        "nan": [0.0] * size, "zero_share": [1.0] * size,
    }  # fmt: skip
    rows[column] = [value] * size
    diagnosis = examine(Window({"updates": Frame(rows)}), [FaultyClient()])
    (finding,) = diagnosis.findings
    assert finding.title.startswith(f"all 5 clients {words}") and len(finding.subject.clients) == 5
    assert "what they share" in finding.next_step and finding.evidence


def test_few_clients_cannot_be_compared_and_that_is_said() -> None:
    with pytest.raises(CannotTell, match="2 clients are too few"):
        list(FaultyClient().check(window_of(2)))
    (reason,) = examine(window_of(3), [FaultyClient()]).not_checked
    assert "3 clients are too few" in reason.reason


def test_few_of_many_clients_in_a_round_cannot_be_compared_either(tmp_path: Path) -> None:
    """Three of twenty, each with a few classes: the ones differ from the others by what they hold."""
    path = federation(
        tmp_path, clients=20, participation=0.15, rounds=24, split=lab.Shards(per_client=2), engine="loop"
    )
    with stethos.open_run(path) as run, pytest.raises(CannotTell, match="3 clients in a round are too few"):
        list(FaultyClient().check(RunWindow(run, needs_of([FaultyClient()]))))


@pytest.mark.parametrize(("faults", "accused"), [((), []), ((lab.Fault("stale", [1]),), [("c1",)])], ids=str)
def test_where_few_of_many_clients_meet_only_who_stands_out_is_accused(
    tmp_path: Path, faults: tuple[lab.Fault, ...], accused: list[tuple[str, ...]]
) -> None:
    """Five of ten in each round: others are compared with others each time, which the judge never saw."""
    path = federation(
        tmp_path, *faults, participation=0.5, rounds=20, batch=32, lr=0.1, seed=777_005, split=lab.Dirichlet(0.3)
    )
    assert [one.subject.clients for one in findings_of(path)] == accused


def test_identical_clients_and_empty_windows_give_nothing() -> None:
    assert list(FaultyClient().check(window_of(6))) == []
    (reason,) = examine(Window(), [FaultyClient()]).not_checked
    assert reason.reason == "no rows in `updates`"


def test_a_hostile_name_stays_inside_its_quotes() -> None:
    name = "c'; DROP TABLE updates; --\x1b[31m"
    odd = np.zeros((ROUNDS, CLIENTS))
    odd[0, 0] = 1
    cohort = honest(odd=odd, clients=(name, *(f"c{n}" for n in range(1, CLIENTS))))
    verdict = next(one for one in verdicts_on(cohort, 0.9) if one.client == name)
    finding = FaultyClient()._finding(cohort, verdict)
    assert finding.evidence and all("''; DROP" in one.sql for one in finding.evidence)


def test_the_cohort_of_a_run_has_every_number(tmp_path: Path) -> None:
    with stethos.open_run(federation(tmp_path, rounds=4, split=lab.Dirichlet(0.5))) as run:
        ((name, cohort),) = cohorts_of(RunWindow(run, needs_of([FaultyClient()])))
    assert name is None
    assert cohort.rounds == (1, 2, 3, 4) and len(cohort.clients) == 10
    for name in ("norm", "norm_ratio", "first_ratio", "last_ratio", "cos_centre", "sign_agreement", "zero_share",
                 "input_cos", "input_focus", "input_tail", "entry_loss", "exit_loss", "samples", "bias"):  # fmt: skip
        assert np.isfinite(getattr(cohort, name)).all(), name
    assert cohort.confusion.shape[-1] == cohort.bias.shape[-1] == 10
    assert np.allclose(cohort.confusion.sum((2, 3)), cohort.samples)
    assert np.isnan(cohort.cos_last[0]).all() and np.isfinite(cohort.cos_last[1:]).all()


def test_a_client_without_samples_need_not_move() -> None:
    norm, ratio, samples = np.ones((ROUNDS, CLIENTS)), np.ones((ROUNDS, CLIENTS)), np.full((ROUNDS, CLIENTS), 60.0)
    norm[:, 2], ratio[:, 2], samples[:, 2] = 0, 0, 0
    assert not [one for one in verdicts_on(honest(norm=norm, norm_ratio=ratio, samples=samples), 0.9) if one.is_certain]
    samples[:, 2] = 60
    (verdict,) = [
        one for one in verdicts_on(honest(norm=norm, norm_ratio=ratio, samples=samples), 0.9) if one.is_certain
    ]
    assert (verdict.client, verdict.kind) == ("c2", "free-rider")


def test_where_most_look_faulty_against_each_other_nobody_is_accused_and_that_is_said(tmp_path: Path) -> None:
    """Updates under masks that cancel out in their sum: each points away from that of the others."""
    chance, model = np.random.default_rng(0), {"w": np.zeros((4, 12), np.float32), "b": np.zeros(4, np.float32)}
    with stethos.federation("masked", model=lambda: model, dir=tmp_path, progress=False) as fed:
        for rnd in fed.rounds(5):
            masks = [{name: 10 * chance.normal(size=one.shape) for name, one in model.items()} for _ in range(8)]
            for number in range(8):
                change = {name: masks[number][name] - masks[number - 1][name] + 0.01 for name in model}
                rnd.receive(f"c{number}", change, delta=True, samples=10, loss=1 / rnd.number)
            assert rnd.screen() == []
            model = {name: one + np.float32(0.01) for name, one in model.items()}
    diagnosis = stethos.diagnose(str(fed.path))
    (reason,) = (one.reason for one in diagnosis.not_checked if one.name == "faulty-client")
    assert "clients look faulty against each other" in reason and not diagnosis.findings


def test_a_text_classifier_has_no_inputs_to_be_called_faulty(tmp_path: Path) -> None:
    """The rows of an embedding are its inputs, not the columns; and honest clients with few texts differ."""
    made = torch.Generator().manual_seed(0)
    topics = (1.5 * torch.randn(4, 500, generator=made)).softmax(1)
    labels = torch.randint(4, (10, 60), generator=made)
    texts = [
        torch.stack([torch.multinomial(topics[y], 20, replacement=True, generator=made) for y in one]) for one in labels
    ]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.EmbeddingBag(500, 16), nn.Linear(16, 4))
    with stethos.federation("text", model=model, dir=tmp_path, progress=False, correct="on") as fed:
        for rnd in fed.rounds(12):
            states = []
            for number, (x, y) in enumerate(zip(texts, labels, strict=True)):
                with rnd.client(f"c{number}") as site:
                    local = copy.deepcopy(model)
                    site.confusion(y, model(x).argmax(1))
                    optimizer = torch.optim.SGD(local.parameters(), lr=1.0)
                    for batch in range(0, 120, 15):
                        part = slice(batch % 60, batch % 60 + 15)
                        optimizer.zero_grad()
                        nn.functional.cross_entropy(local(x[part]), y[part]).backward()
                        optimizer.step()
                    states.append(local.state_dict())
                    site.update(local.state_dict(), samples=60)
            assert rnd.corrected() == rnd.updates
            screened = rnd.screened()
            assert screened is not None and np.isnan(screened.cohort.input_cos).all()  # nor for corrections
            model.load_state_dict({key: sum(state[key] for state in states) / 10 for key in states[0]})
    assert findings_of(fed.path) == []
    with stethos.open_run(fed.path) as run:
        assert run.rows("SELECT count(input_cos), count(output_rows) > 0 FROM updates").values == [(0, True)]


def test_two_federations_of_a_run_are_judged_each_by_itself(tmp_path: Path) -> None:
    """They have clients of the same names and rounds of the same numbers, as those of a sweep do."""
    with stethos.watch(name="sweep", dir=tmp_path) as watch:
        for data, faults in (("digits", [lab.Fault("sign-flip", [3])]), ("breast-cancer", [])):
            lab.federate(data, clients=8, rounds=6, engine="stacked", faults=faults, progress=False)
    (finding,) = findings_of(watch.path)
    assert finding.title == "client c3 of digits sends its update with the sign flipped"
    assert finding.subject.federation == "digits" and finding.as_dict()["federation"] == "digits"
    with stethos.open_run(watch.path) as run:
        for evidence in finding.evidence:
            shown = [math.nan if row[1] is None else row[1] for row in run.rows(evidence.sql).values]
            assert shown == pytest.approx(evidence.series, nan_ok=True), evidence.sql
