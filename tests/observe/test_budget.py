"""How often samples may be taken, and what makes them urgent, with hand-made numbers."""

from __future__ import annotations

import math

import pytest

from stethos.observe.alarm import Alarm, is_null
from stethos.observe.budget import NEVER, Budget, Pace, SampleBudget
from stethos.schema import NULL_F64

MS = 1e6
SHARES = {"norm": 0.3, "layers": 0.45, "modules": 0.25}


def samples_taken(
    budget: Budget, costs: dict[str, float], steps: int, step_ns: float, always_on_ns: float = 0.0
) -> dict[str, list[int]]:
    """Which steps of a training are sampled by each sample_budget."""
    taken: dict[str, list[int]] = {name: [] for name in budget.by_kind}
    for step in range(steps):
        for name, sample_budget in budget.by_kind.items():
            if sample_budget.is_due(step, 1) if name != "modules" else sample_budget.can_afford():
                sample_budget.pay(costs[name])
                taken[name].append(step)
        budget.earn(step_ns, always_on_ns)
    return taken


def test_an_empty_budget_affords_the_first_sample():
    assert SampleBudget(1.0).can_afford()


def test_the_first_payment_is_free_and_the_second_sets_the_price():
    sample_budget = SampleBudget(1.0, saved_ns=100.0)
    sample_budget.pay(1000.0)
    assert (sample_budget.saved_ns, sample_budget.cost_ns) == (100.0, 500.0)
    sample_budget.pay(400.0)
    assert (sample_budget.saved_ns, sample_budget.cost_ns) == (-300.0, 400.0)
    assert not sample_budget.can_afford()


def test_the_expected_price_follows_what_samples_cost():
    sample_budget = SampleBudget(1.0)
    for spent in (100.0, 100.0, 200.0):
        sample_budget.pay(spent)
    assert 100.0 < sample_budget.cost_ns < 200.0


def test_a_debt_has_a_limit():
    sample_budget = SampleBudget(1.0)
    sample_budget.pay(1.0)
    sample_budget.pay(1e15)
    assert sample_budget.saved_ns == -2e9


@pytest.mark.parametrize("overhead", [0.001, 0.01, 0.05, 0.5])
def test_samples_cost_no_more_than_the_budget(overhead: float):
    costs = {"norm": 0.05 * MS, "layers": 2 * MS, "modules": 3 * MS}
    steps, step_ns = 20_000, 10 * MS
    taken = samples_taken(Budget(overhead, SHARES), costs, steps, step_ns)
    spent = sum(len(taken[name]) * cost for name, cost in costs.items())
    first_two = 2 * sum(costs.values())
    assert spent <= overhead * steps * step_ns + first_two
    assert spent >= min(0.75 * overhead * steps * step_ns, 0.9 * steps * sum(costs.values())) - first_two


def test_samples_are_spread_evenly():
    costs = {"norm": 0.05 * MS, "layers": 2 * MS, "modules": 3 * MS}
    taken = samples_taken(Budget(0.01, SHARES), costs, 20_000, 10 * MS)
    for name in ("layers", "modules"):
        gaps = [after - before for before, after in zip(taken[name][3:], taken[name][4:], strict=False)]
        assert max(gaps) <= 2 * min(gaps)


def test_ranks_of_different_speed_are_sampled_at_the_same_steps():
    costs = {"norm": 0.05 * MS, "layers": 2 * MS, "modules": 3 * MS}
    fast = samples_taken(Budget(0.01, SHARES), costs, 20_000, 10 * MS)
    slow = samples_taken(Budget(0.01, SHARES), {name: 1.7 * cost for name, cost in costs.items()}, 20_000, 11 * MS)
    for kind in ("norm", "layers"):
        settled = [{step for step in rank[kind] if step > 2_000} for rank in (fast, slow)]
        few, many = sorted(settled, key=len)
        assert few and few <= many
        strides = {math.gcd(*steps) for steps in settled}
        assert all(stride & (stride - 1) == 0 for stride in strides), "powers of two"


def test_optimizers_that_take_turns_are_all_sampled():
    budget = SampleBudget(1.0, saved_ns=100.0, cost_ns=30.0, earned_ns=4.0)
    assert budget.stride() == 8
    assert [step for step in range(20) if budget.is_due(step, 2)] == [0, 1, 8, 9, 16, 17]
    assert [budget.next_step(step, 2) for step in (0, 1, 7, 8, 9)] == [1, 8, 8, 9, 16]


def test_no_sample_is_planned_that_cannot_be_afforded():
    assert SampleBudget(1.0, saved_ns=1.0, cost_ns=30.0, earned_ns=4.0).next_step(3, 1) == NEVER


def test_what_one_kind_of_sample_does_not_need_flows_to_the_next():
    costs = {"norm": 0.001 * MS, "layers": 2 * MS, "modules": 3 * MS}
    taken = samples_taken(Budget(0.01, SHARES), costs, 20_000, 10 * MS)
    assert len(taken["norm"]) == 20_000, "cheap enough for every step"
    alone = 20_000 * 10 * MS * 0.01 * SHARES["layers"] / costs["layers"]
    assert len(taken["layers"]) > 1.3 * alone


def test_the_always_on_part_is_paid_first_but_a_quarter_is_left_for_samples():
    costs = {"norm": 0.05 * MS, "layers": 2 * MS, "modules": 3 * MS}
    free, half, none = (
        len(samples_taken(Budget(0.01, SHARES), costs, 20_000, 10 * MS, always_on_ns=share * 0.085 * MS)["layers"])
        for share in (0.0, 0.5, 5.0)
    )
    assert half == pytest.approx(free / 2, rel=0.1)
    assert none == pytest.approx(free / 4, rel=0.1)


def test_a_budget_of_nothing_takes_the_first_samples_only():
    taken = samples_taken(Budget(0.0, SHARES), {"norm": MS, "layers": MS, "modules": MS}, 1000, 10 * MS)
    assert all(steps == [0] for steps in taken.values())


def test_accounting_becomes_rarer_until_it_takes_a_tenth_of_the_budget():
    usual, generous, nothing = (Budget(overhead, SHARES) for overhead in (0.01, 0.5, 0.0))
    pauses = [usual.pause_ns(0.09 * MS, int(20 * MS)) for _ in range(1000)]
    assert pauses[0] == 20 * MS and pauses[50] == 40 * MS and pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(90 * MS)
    assert {generous.pause_ns(0.09 * MS, int(20 * MS)) for _ in range(1000)} == {20 * MS}
    assert max(nothing.pause_ns(0.09 * MS, int(20 * MS)) for _ in range(1000)) == 200 * MS
    assert usual.pause_ns(0.09 * MS, 0) == 0


# Alarm ---------------------------------------------------------------------------------------------------


def calm(count: int = 60) -> Alarm:
    alarm = Alarm()
    for index in range(count):
        alarm.learn(1.0 + 0.01 * (index % 5))
    return alarm


def is_odd(alarm: Alarm, loss: float) -> bool:
    """What the hot path asks."""
    return not alarm.low <= loss <= alarm.high


def test_a_new_alarm_finds_every_number_normal_but_not_a_nan():
    alarm = Alarm()
    assert not is_odd(alarm, 1e30) and not is_odd(alarm, -1e30) and not is_odd(alarm, 0.0)
    assert is_odd(alarm, math.nan)


def test_bounds_hold_what_was_seen_and_not_a_jump():
    alarm = calm()
    assert not any(is_odd(alarm, 1.0 + 0.01 * index) for index in range(5))
    assert is_odd(alarm, 2.0) and is_odd(alarm, 0.5) and is_odd(alarm, math.inf) and is_odd(alarm, math.nan)


def test_a_missing_loss_is_odd_but_rings_no_alarm():
    alarm = calm()
    assert is_odd(alarm, NULL_F64)
    assert not alarm.rings_for_loss(NULL_F64)
    assert is_null(NULL_F64) and not is_null(math.nan)


def test_an_alarm_rings_a_few_times_and_is_then_quiet():
    alarm = calm()
    assert [alarm.rings_for_loss(9.0) for _ in range(20)] == [True] * 8 + [False] * 12


def test_the_first_nan_rings_even_after_the_jumps_before_it_were_sampled():
    alarm = calm()
    for _ in range(20):
        alarm.rings_for_loss(9.0)
    assert alarm.rings_for_loss(math.nan)


def test_an_alarm_rings_again_after_a_while_of_calm():
    alarm = calm()
    for _ in range(20):
        alarm.rings_for_loss(9.0)
    for _ in range(40):
        alarm.learn(1.0)
    assert not alarm.rings_for_loss(9.0)
    for _ in range(60):
        alarm.learn(1.0)
    assert alarm.rings_for_loss(9.0)


def test_nothing_is_learned_from_numbers_that_are_not_finite():
    alarm = calm()
    before = (alarm.low, alarm.high)
    for loss in (math.nan, math.inf, -math.inf, NULL_F64):
        alarm.learn(loss)
    assert (alarm.low, alarm.high) == before


def test_a_gradient_norm_out_of_line_rings():
    alarm = Alarm()
    assert not any(alarm.rings_for_norm(norm) for norm in (1.0, 1.2, 0.8, 3.0))
    assert alarm.rings_for_norm(100.0)
    assert alarm.rings_for_norm(math.inf) and alarm.rings_for_norm(math.nan)
    assert not alarm.rings_for_norm(NULL_F64)


def sampled_training(unseen_ns: float, *, kinds: int = 1, rest_ns: float = 0.0) -> SampleBudget:
    """Stretches of ten steps of 0.4 ms; every fifth has a sample of 30 us that delays it and the next stretch."""
    pace, by_kind = Pace(), [SampleBudget(1.0) for _ in range(kinds)]
    for stretch in range(500):
        if stretch % 5 == 4:
            for sample_budget in by_kind:
                pace.note(sample_budget, 30e3)
            pace.end_stretch(4 * MS + 30e3 + unseen_ns / 2, 10)
        else:
            pace.end_stretch(4 * MS + (unseen_ns / 2 + rest_ns if stretch % 5 == 0 else 0), 10)
    return by_kind[0]


def test_a_sample_pays_for_what_the_steps_after_it_lose():
    sample_budget = sampled_training(unseen_ns=80e3)
    assert sample_budget.unseen_ns == pytest.approx(80e3, rel=0.1)
    assert sample_budget.pay(30e3) == pytest.approx(110e3, rel=0.1)


def test_without_delay_a_sample_costs_what_its_clock_saw():
    assert sampled_training(unseen_ns=0.0).pay(30e3) == pytest.approx(30e3, rel=0.01)


def test_a_pause_behind_a_sample_is_charged_only_in_part():
    assert sampled_training(unseen_ns=0.0, rest_ns=10e9).unseen_ns <= 230e3


def test_two_kinds_of_sample_at_once_teach_nothing():
    assert sampled_training(unseen_ns=80e3, kinds=2).unseen_ns == 0


def test_a_training_that_speeds_up_by_chance_earns_no_discount():
    assert sampled_training(unseen_ns=-80e3).pay(30e3) == 30e3
