"""When the alarm asks for samples."""

from __future__ import annotations

import math

from stethos.observe.alarm import Alarm
from stethos.schema import NULL_F64


def alarm_after(losses: int) -> Alarm:
    """An alarm that knows losses around 1."""
    alarm = Alarm()
    for index in range(losses):
        alarm.learn(1.0 + 0.01 * (-1) ** index)
    return alarm


def is_outside(alarm: Alarm, loss: float) -> bool:
    """What the hot path asks at every step."""
    return not alarm.low <= loss <= alarm.high


def test_usual_losses_are_inside_and_a_jump_or_nan_is_not() -> None:
    alarm = alarm_after(100)
    assert not is_outside(alarm, 1.02)
    assert is_outside(alarm, 5.0) and is_outside(alarm, math.nan) and is_outside(alarm, math.inf)


def test_a_jump_asks_for_a_few_samples_and_then_for_none() -> None:
    alarm = alarm_after(100)
    assert [alarm.rings_for_loss(5.0) for _ in range(20)] == [True] * 8 + [False] * 12


def test_the_first_nan_rings_after_jumps_used_up_their_samples() -> None:
    alarm = alarm_after(100)
    for _ in range(20):
        alarm.rings_for_loss(1e6)
    assert not alarm.rings_for_loss(1e6) and alarm.rings_for_loss(math.nan)


def test_a_nan_forever_does_not_ring_forever() -> None:
    alarm = alarm_after(100)
    assert sum(alarm.rings_for_loss(math.nan) for _ in range(1000)) == 8


def test_it_is_ready_again_after_a_while_of_normal_losses() -> None:
    alarm = alarm_after(100)
    for _ in range(20):
        alarm.rings_for_loss(5.0)
    for _ in range(60):
        alarm.learn(1.0)
    assert alarm.rings_for_loss(5.0)


def test_a_missing_loss_is_no_nan() -> None:
    alarm = alarm_after(100)
    assert not alarm.rings_for_loss(NULL_F64) and not alarm.rings_for_norm(NULL_F64)


def test_a_norm_ten_times_the_usual_rings() -> None:
    alarm = Alarm()
    assert [alarm.rings_for_norm(norm) for norm in (1.0, 1.1, 5.0, 30.0, math.inf)] == [False, False, False, True, True]
