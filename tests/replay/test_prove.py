"""Proofs, provenance and bisection on captured runs of the lab."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from processes import drainers_of, wait_until

from stethos import lab
from stethos.cli.main import main
from stethos.errors import CaptureError
from stethos.lab.replay import trainer_of
from stethos.record.border import origin_of
from stethos.record.place import RunPlace, write_json
from stethos.replay.bisection import fewest, first_bad_round
from stethos.replay.bundle import open_bundle
from stethos.replay.counterfactual import trained_again
from stethos.replay.effect import difference, noise_of, share_of
from stethos.replay.history import recorded_rounds
from stethos.replay.proof import Accusation, Proof, controls_of
from stethos.replay.prover import Prover
from stethos.replay.trainer import aggregated
from stethos.store.findings import read_findings

GUILTY, START, ROUNDS = "c5", 6, 10
SETUP = {"clients": 10, "rounds": ROUNDS, "split": lab.Dirichlet(0.7), "seed": 49, "progress": False, "capture": "all"}


class Quiet:
    def __init__(self, stop_after: int | None = None) -> None:
        self.trainings: list[int] = []
        self.stop_after = stop_after

    def __call__(self, done: int, total: int, words: str) -> None:
        self.trainings.append(done)
        if self.stop_after is not None and done >= self.stop_after:
            raise KeyboardInterrupt

    def end(self) -> None:
        pass


def quietly(proof: Proof) -> None:
    pass


def prover_of(path: Path, **options: int) -> Prover:
    bundle = open_bundle(path)
    return Prover(path, bundle, trainer_of(bundle, is_fast=True), **options)


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured run whose client c5 turns the sign of its updates from round 6 on."""
    directory = tmp_path_factory.mktemp("runs")
    fault = lab.Fault("sign-flip", clients=GUILTY, start=START, strength=4.0)
    path = lab.federate("digits", faults=[fault], dir=directory, run="turned", **SETUP).path
    assert path is not None
    return path


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    fault = lab.Fault("label-flip", clients=GUILTY)
    path = lab.federate("digits", faults=[fault], dir=directory, run="flipped", **SETUP).path
    assert path is not None
    return path


def test_training_again_with_the_first_seed_repeats_the_run(turned: Path) -> None:
    bundle = open_bundle(turned)
    made = trained_again(bundle, trainer_of(bundle, is_fast=True), START, ROUNDS)
    recorded = bundle.global_state(ROUNDS, "after")
    assert all(np.allclose(made[name], recorded[name], atol=1e-5) for name in recorded)


def test_aggregating_again_repeats_the_round_and_leaving_out_changes_it(turned: Path) -> None:
    bundle = open_bundle(turned)
    trainer = trainer_of(bundle, is_fast=True)
    (one,) = recorded_rounds(bundle, 7, 7)
    after = bundle.global_state(7, "after")
    assert all(aggregated(trainer, one)[name].equal(after[name]) for name in after)
    without = aggregated(trainer, one, frozenset({GUILTY}))
    samples = np.array([weight for name, weight in one.weights.items() if name != GUILTY])
    states = [update.state for update in one.updates if update.client != GUILTY]
    plain = sum(
        float(share) * state["out.bias"].double() for share, state in zip(samples / samples.sum(), states, strict=True)
    )
    assert np.allclose(without["out.bias"], plain, atol=1e-6)
    assert aggregated(trainer, one, frozenset(one.clients)) is one.base


def test_the_guilty_is_proved_and_the_innocent_refuted(turned: Path) -> None:
    prover = prover_of(turned, most_seeds=4)
    guilty = prover.prove(Accusation((GUILTY,), first=START), quietly, Quiet())
    assert guilty.verdict == "proved" and guilty.excess.low > 0 and guilty.gain.mean > 0.05
    assert f"without client {GUILTY}: accuracy" in guilty.words and "random other client" in guilty.words
    innocent = prover.prove(Accusation(("c2",), first=START, others=(GUILTY,)), quietly, Quiet())
    assert innocent.verdict == "refuted"


def test_a_proof_that_was_stopped_is_taken_up_again(turned: Path, tmp_path: Path) -> None:
    run, _ = moved(turned, tmp_path)
    accusation = Accusation((GUILTY,), first=START)
    with pytest.raises(KeyboardInterrupt):
        prover_of(run).prove(accusation, quietly, Quiet(stop_after=3))
    assert not (run / "proofs").exists()  # nothing is kept in a copy
    write_json(run / "run.json", {**RunPlace(run).facts(), "origin": origin_of(run)})  # as if it were recorded here
    with pytest.raises(KeyboardInterrupt):
        prover_of(run).prove(accusation, quietly, Quiet(stop_after=3))
    again = Quiet()
    assert prover_of(run).prove(accusation, quietly, again).verdict == "proved"
    assert min(again.trainings) == 3
    (kept,) = (run / "proofs").glob("*.npz")
    kept.write_bytes(b"PK damaged")
    assert prover_of(run).prove(accusation, quietly, Quiet()).verdict == "proved"


def test_the_command_keeps_its_verdict_with_the_finding(turned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "-t", str(turned)]) == 0
    assert "PROVED: without client c5" in capsys.readouterr().out
    assert {row["proof"] for row in read_findings(turned) if row["code"] == "FED001"} == {"proved"}
    assert main(["diagnose", "-t", str(turned)]) == 1
    assert "proof    PROVED: without client c5" in capsys.readouterr().out
    assert main(["prove", "c2", "--fast", "--json", "-t", str(turned)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["way"], found["finding"]) == ("undecided", "re-aggregation", None)


def test_mistakes_are_named(turned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["prove", "c99"], "c99 sent nothing"),
        (["prove", "77"], "no finding 77"),
        (["blame", "--input", "nowhere.npy"], "no file nowhere.npy"),
        (["blame", "--input", "99999"], "no test sample 99999"),
        (["blame", "--input", "3", "--output", "12"], "the classes are 0 to 9"),
        (["bisect", "--round", "99"], "round 99 was not captured"),
        (["bisect", "--metric", "beauty"], "--metric beauty"),
    ):
        assert main([*words, "-t", str(turned)]) != 0
        assert said in capsys.readouterr().err


def test_an_input_file_that_could_run_code_is_refused(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evil.npy"
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert main(["blame", "--input", str(file), "-t", str(turned)]) == 2
    assert "holds no array" in capsys.readouterr().err


def test_a_run_without_captures_says_so(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no captures"):
        prover_of(tmp_path)


def test_the_flipped_client_is_blamed_for_the_answers_it_taught(
    flipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = open_bundle(flipped)
    trainer = trainer_of(bundle)
    fault = trainer.made.faults[0]
    answers = trainer.scores(bundle.global_state(ROUNDS, "after"), trainer.test_x).argmax(1)
    wrong = [
        place
        for place in range(len(answers))
        if trainer.test_y[place] == fault.source and answers[place] == fault.target
    ]
    assert wrong
    np.save(tmp_path / "input.npy", trainer.test_x[wrong[0]].numpy())
    for given in (str(wrong[0]), str(tmp_path / "input.npy")):
        assert main(["blame", "--input", given, "--output", str(fault.target), "--json", "-t", str(flipped)]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["shares"][0]["client"] == GUILTY and found["answer"] == fault.target
        assert found["shares"][0]["effect"] > 0 and len(found["shares"]) == 10
    assert main(["blame", "--input", str(wrong[0]), "-t", str(flipped)]) == 0
    assert "most responsible: client c5" in capsys.readouterr().out


def test_a_model_of_nan_has_a_bad_round_and_answers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its largest score seems to be class 0, which is right now and then; and nobody taught it that."""
    fault = lab.Fault("nan", clients="c1")
    path = lab.federate("digits", clients=4, rounds=2, faults=[fault], dir=tmp_path, capture="all", progress=False).path
    assert main(["bisect", "--json", "-t", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bad_round"]["number"] == 1 and found["bad_round"]["after"] == 0
    assert found["guilty"]["clients"] == ["c1"] and [one["round"] for one in found["accuracies"]] == [1, 2]
    assert main(["blame", "--input", "3", "-t", str(path)]) == 7
    assert "its weights are not finite" in capsys.readouterr().err


def test_an_accuracy_lies_between_0_and_1() -> None:
    found = share_of([np.array([True] * 19 + [False]), np.array([True] * 20)])
    assert found.high == 1.0 and 0 < found.low < found.mean


def test_bisection_finds_the_round_the_client_and_that_its_data_are_sound(
    turned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", "--json", "-t", str(turned)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bad_round"]["number"] in (6, 7) and found["guilty"]["clients"] == [GUILTY]
    (inside,) = found["inside"]
    assert not inside["is_sent_as_trained"]
    assert main(["bisect", "-t", str(turned)]) == 0
    shown = capsys.readouterr().out
    assert "guilty     c5" in shown and "something other than what it trained" in shown


def test_bisection_inside_a_client_names_the_label(flipped: Path) -> None:
    from stethos.lab.inside import look_inside

    bundle = open_bundle(flipped)
    trainer = trainer_of(bundle, is_fast=True)
    found = look_inside(trainer, recorded_rounds(bundle)[-1], GUILTY)
    assert found.is_sent_as_trained and found.label == trainer.made.faults[0].target
    assert found.disputed and found.without_samples > found.accuracy


def test_the_fewest_are_found_and_cannot_be_spared() -> None:
    asked: list[list[int]] = []

    def is_enough(some: object) -> bool:
        asked.append(list(some))  # type: ignore[call-overload]
        return {3, 11} <= set(asked[-1])

    assert fewest(range(16), is_enough) == [3, 11]
    assert len(asked) < 60
    assert fewest([7], lambda some: True) == [7]


def test_a_dip_that_passes_is_no_bad_round() -> None:
    def flags(right: int) -> np.ndarray:
        return np.arange(200) < right

    steady = [(number, flags(180)) for number in range(1, 8)]
    assert first_bad_round(steady) is None
    dip = [*steady[:3], (4, flags(120)), *steady[4:]]
    assert first_bad_round(dip) is None
    fallen = [*steady[:3], *((number, flags(120)) for number in range(4, 8))]
    found = first_bad_round(fallen)
    assert found is not None and (found.number, found.after) == (4, 0.6)


def test_intervals_hold_what_they_promise() -> None:
    """Of 95 % intervals of a difference that is 0.1 on average, nearly all contain it."""
    chance = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        shared = chance.normal(size=200) * 0.3
        repetitions = [0.1 + shared + 0.05 * chance.normal() + 0.3 * chance.normal(size=200) for _ in range(4)]
        interval = difference(repetitions)
        hits.append(interval.low <= 0.1 <= interval.high)
    assert 0.94 <= np.mean(hits) <= 1.0
    assert noise_of([np.ones(100, bool)]) == pytest.approx(0.01)


def test_controls_are_innocent_and_alike() -> None:
    weights = {f"c{place}": float(10 * place + 1) for place in range(8)}
    accusation = Accusation(("c4",), others=("c5",))
    controls = controls_of(weights, accusation)
    assert controls[0] == frozenset({"c3"}) and all(not group & {"c4", "c5"} for group in controls)
    assert all(len(group) == 2 for group in controls_of(weights, Accusation(("c1", "c2"))))
    assert controls_of({"c1": 1.0}, Accusation(("c1",))) == []


def moved(path: Path, directory: Path) -> tuple[Path, Path]:
    """A copy of a run, and where the rounds of its capture are."""
    wait_until(lambda: not drainers_of(path), "the end of packing")
    run = directory / path.name
    shutil.copytree(path, run, ignore=shutil.ignore_patterns("proofs"))
    return run, run / "capture" / "000" / "rounds"


def test_rounds_that_were_dropped_are_told_and_done_without(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, rounds = moved(turned, tmp_path)
    for number in range(1, START + 2):
        (rounds / f"{number:06d}.json").unlink()
    assert main(["prove", GUILTY, "--seeds", "3", "-t", str(run)]) in (0, 1)
    shown = capsys.readouterr()
    assert f"re-aggregation  rounds {START + 2} to {ROUNDS}" in shown.out
    assert f"re-training     rounds {START + 3} to {ROUNDS}" in shown.out
    assert f"the capture with round {START + 2}: what was done before stays in the model" in shown.err


def test_without_captured_updates_the_rounds_are_trained_again(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, rounds = moved(turned, tmp_path)
    for file in rounds.iterdir():
        manifest = json.loads(file.read_text())
        for turn in manifest["clients"]:
            turn.pop("state")
        file.write_text(json.dumps(manifest))
    assert main(["prove", GUILTY, "--seeds", "3", "-t", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "re-aggregation" not in shown and "PROVED" in shown
    assert main(["prove", GUILTY, "--fast", "-t", str(run)]) == CaptureError.exit_code
    assert "no round was captured with all of its updates" in capsys.readouterr().err


def test_what_cannot_be_kept_is_proved_all_the_same(
    turned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = moved(turned, tmp_path)
    (run / "findings.db").unlink(missing_ok=True)
    (run / "findings.db").mkdir()
    assert main(["prove", GUILTY, "--fast", "-t", str(run)]) in (0, 1)
    shown = capsys.readouterr()
    assert "without client c5: accuracy" in shown.out and "note: findings are not kept in" in shown.err


def test_a_diagnosis_tries_what_it_is_not_sure_of_before_it_shows_it(
    flipped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "-t", str(flipped), "--prove", "--no-keep"]) >= 2
    main(["diagnose", "-t", str(flipped), "--prove", "--below", "99%", "--json"])
    (shown,) = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["code"] == "FED001"]
    assert shown["confidence"] < 0.99
    (row,) = [one for one in read_findings(flipped) if one["code"] == "FED001"]
    assert row["proof"] == shown["proof"]["verdict"] and json.loads(row["proof_detail"])["way"] == "re-aggregation"
