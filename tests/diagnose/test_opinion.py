"""The second look: the likely faulty are left out of what is typical, and what the others are accused of counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stethos import lab
from stethos.diagnose.federated.cohort import COLUMNS, Cohort
from stethos.diagnose.federated.judge import PERIOD, _others, _some, load_judge, opinions_on, signal_of
from stethos.diagnose.federated.trait import Signals
from stethos.diagnose.federated.verdict import SURE, _company_of, _periods, _stands_out, verdicts_on

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.faults.case import Case, play
from benchmarks.faults.kept import Kept, read_kept, write_kept
from benchmarks.faults.outcome import judged

CLIENTS, ROUNDS = 10, 8


def cohort_with(**changes: Any) -> Cohort:
    """A hand-made cohort: every quantity is drawn, and nobody stands out."""
    chance = np.random.default_rng(3)
    values: dict[str, Any] = {
        name: 0.5 + 0.05 * np.random.default_rng([*name.encode()]).random((ROUNDS, CLIENTS)) for name in COLUMNS
    }
    values |= {
        "odd": np.zeros((ROUNDS, CLIENTS)),
        "confusion": chance.integers(1, 5, (ROUNDS, CLIENTS, 3, 3)) + 20.0 * np.eye(3),
        "bias": 0.01 * chance.normal(size=(ROUNDS, CLIENTS, 3)),
    }
    return Cohort(tuple(range(1, ROUNDS + 1)), tuple(f"c{n}" for n in range(CLIENTS)), values | changes)


def slow_deviation(values: Any, kept: Any, floor: float) -> Any:
    """The mean over rounds of each client's robust deviation from the kept ones, in plain loops."""
    found = np.zeros(values.shape)
    for number, row in enumerate(values):
        middle = np.median(row[kept])
        scale = max(1.4826 * np.median(np.abs(row[kept] - middle)), floor)
        found[number] = np.clip((row - middle) / scale, -12, 12)
    return found.mean(0)


def test_a_stretch_has_the_traits_of_its_rounds_alone() -> None:
    cohort = cohort_with()
    for start, stop in ((0, 8), (2, 6), (5, 6)):
        part, whole = Signals(cohort.part(slice(start, stop))).over(0, stop - start), Signals(cohort).over(start, stop)
        assert np.allclose(part.values, whole.values, equal_nan=True) and (part.pair == whole.pair).all()


@pytest.mark.parametrize("left_out", [(), (0,), (1, 4, 7)])
def test_deviations_are_from_those_who_are_kept(left_out: tuple[int, ...]) -> None:
    cohort, kept = cohort_with(), np.ones(CLIENTS, bool)
    kept[list(left_out)] = False
    traits = Signals(cohort, kept).over(0, ROUNDS)
    assert np.allclose(traits.column("cosine_z"), slow_deviation(cohort.cos_centre, kept, 0.02))
    assert np.allclose(traits.column("entry_z"), slow_deviation(np.log(cohort.entry_loss), kept, 0.03))


def test_those_who_stand_out_together_are_seen_once_they_are_left_out() -> None:
    losses = cohort_with().entry_loss
    losses[:, :3] *= np.array([8.0, 3.0, 1.4])
    cohort, kept = cohort_with(entry_loss=losses), np.arange(CLIENTS) > 2
    together, alone = Signals(cohort).over(0, ROUNDS), Signals(cohort, kept).over(0, ROUNDS)
    assert (alone.column("entry_z")[:3] > together.column("entry_z")[:3] - 1e-9).all()
    assert alone.column("entry_z")[2] > 1.2 * together.column("entry_z")[2]


def test_at_most_two_in_five_are_left_out() -> None:
    assert not _some(np.full(10, 0.7)).any()
    assert _some(np.array([0.9, 0.1, 0.95, 0.2, 0.3])).tolist() == [True, False, True, False, False]
    assert np.flatnonzero(_some(np.linspace(0.85, 0.99, 10))).tolist() == [6, 7, 8, 9]


def test_the_others_do_not_include_oneself() -> None:
    shares = np.random.default_rng(5).random((6, 4))
    found = _others(shares)
    for client in range(6):
        rest = np.delete(shares, client, axis=0)
        assert np.allclose(found[client], [*rest.max(0), *(np.minimum(rest.sum(0), 8) / 4)])


def test_reviewers_see_as_many_numbers_as_they_were_trained_on() -> None:
    judge, cohort = load_judge(), cohort_with()
    signal = signal_of(cohort, *opinions_on(cohort, judge, np.zeros(CLIENTS, bool)))
    assert signal.shape == (CLIENTS, judge.reviewers[0].layers[0][0].shape[1]) and np.isfinite(signal).all()
    assert np.allclose(judge.reviewed(signal).sum(1), 1) and judge.kinds[0] == "honest"


@pytest.mark.parametrize("rounds", [1, 2, 5, PERIOD, PERIOD + 1, 40, 101])
def test_periods_cover_every_round(rounds: int) -> None:
    periods = _periods(rounds)
    assert {at for start, stop in periods for at in range(start, stop)} == set(range(rounds))
    assert all(0 < stop - start <= PERIOD for start, stop in periods) and periods[0][1] == rounds


@pytest.mark.parametrize("kind", ["label-noise", "feature-noise", "backdoor"])
def test_three_of_ten_with_the_same_fault_are_all_found(kind: str) -> None:
    case = Case("digits", 10, lab.IID(), tuple((kind, client, None) for client in (1, 4, 8)), seed=77)
    cohort, named = play(case).cohort, kind.replace("feature-noise", "feature-fault")
    found = verdicts_on(cohort, SURE)
    assert {one.client: one.kind for one in found} == dict.fromkeys(("c1", "c4", "c8"), named)
    surest = found[0].probability
    assert [one.client for one in verdicts_on(cohort, surest)] == [found[0].client]
    assert verdicts_on(cohort, surest, in_company=SURE) == found
    assert verdicts_on(cohort, 1.1, in_company=SURE) == []


def shares_with(**faults: tuple[int, float]) -> Any:
    """Shares of three kinds, honest first, for ten clients: `c4=(1, 0.9)` has the first fault with that probability."""
    shares = np.tile([0.98, 0.01, 0.01], (CLIENTS, 1))
    for client, (kind, sure) in faults.items():
        shares[int(client[1:])] = [1 - sure, 0, 0]
        shares[int(client[1:]), kind] = sure
    return shares


def company(*tables: Any) -> list[int]:
    looks = [(shares, Signals(cohort_with()).over(0, ROUNDS)) for shares in tables]
    accused = {place: look for look in reversed(looks) for place in range(CLIENTS) if 1 - look[0][place, 0] >= SURE}
    sure = {place: (shares[place], traits) for place, (shares, traits) in accused.items()}
    return sorted(_company_of(sure, looks, SURE, 0.5))


def test_who_probably_has_the_fault_that_another_surely_has_is_in_company() -> None:
    assert company(shares_with(c4=(1, 0.9), c6=(1, 0.6), c7=(1, 0.4))) == [6]


def test_another_fault_is_no_company() -> None:
    assert company(shares_with(c4=(1, 0.9), c6=(2, 0.8))) == []


def test_without_a_sure_accusation_there_is_no_company() -> None:
    assert company(shares_with(c4=(1, 0.8), c6=(1, 0.8))) == []


def test_company_must_last_as_long_as_the_fault_is_sure() -> None:
    often, once = shares_with(c4=(1, 0.9), c6=(1, 0.7)), shares_with(c4=(1, 0.9))
    assert company(often, often, once) == [] and company(often, often, shares_with(c4=(1, 0.9), c6=(1, 0.3))) == [6]
    assert company(often, shares_with()) == [6]  # nobody has it there


@pytest.mark.parametrize(("name", "factor", "is_far"), [
    ("entry_loss", 8.0, True), ("entry_loss", 0.1, False), ("norm_ratio", 8.0, False),
])  # fmt: skip
def test_unseen_inputs_are_faulty_where_the_loss_is_far_above(name: str, factor: float, is_far: bool) -> None:
    values = getattr(cohort_with(), name)
    values[:, 6] *= factor
    assert _stands_out(cohort_with(**{name: values}), 6, ("entry_loss",)) is is_far
    assert name == "entry_loss" or _stands_out(cohort_with(**{name: values}), 6, ("norm_ratio",))


def test_a_federation_that_was_kept_is_judged_as_it_was(tmp_path: Path) -> None:
    losses = cohort_with().entry_loss
    losses[:, 6] *= 30
    cohort = cohort_with(entry_loss=losses)
    kept = Kept("hand-made", CLIENTS, ROUNDS, "IID()", "none", 1, 1, {"c6": "label-noise"}, {"c6": 1.0}, {}, cohort)
    write_kept(kept, tmp_path / "00001.npz")
    before, after = judged(kept), judged(read_kept(tmp_path / "00001.npz"))
    assert before.truth == after.truth and before.suspected.keys() == after.suspected.keys()
    assert before.accused == after.accused
    for client, (kind, sure, rounds) in before.suspected.items():
        assert after.suspected[client] == (kind, pytest.approx(sure, abs=1e-3), rounds)
