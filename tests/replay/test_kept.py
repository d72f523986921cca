"""Trainings that are done are not done again by the next command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from stethos.replay.arm import Arm, ArmRunner
from stethos.replay.effect import Flags
from stethos.replay.kept import keeping, kept_file

ARMS = [Arm(2, 4, frozenset(names)) for names in ((), ("a",), ("a", "b"))] + [Arm(2, 4, frozenset(), 1)]
SAMPLES = 50


def flags_of(arm: Arm) -> Flags:
    return np.random.default_rng(len(arm.without) + 10 * arm.seed).random(SAMPLES) < 0.5


def trainer(trained: list[Arm], most: int = 99) -> ArmRunner:
    """Says what it trains; after so many it is stopped."""

    def run(arms: Sequence[Arm], tell: Callable[[Arm, int], None]) -> Iterator[tuple[Arm, Flags]]:
        for arm in arms:
            if len(trained) == most:
                raise KeyboardInterrupt
            trained.append(arm)
            yield arm, flags_of(arm)

    return run


def results(runner: ArmRunner) -> dict[Arm, bytes]:
    return {arm: flags.tobytes() for arm, flags in runner(ARMS, lambda arm, number: None)}


def test_what_was_trained_before_the_stop_is_taken_up(tmp_path: Path) -> None:
    file = kept_file(tmp_path, "bisect", "torch")
    first: list[Arm] = []
    second: list[Arm] = []
    with pytest.raises(KeyboardInterrupt):
        results(keeping(trainer(first, most=2), file, SAMPLES))
    found = results(keeping(trainer(second), file, SAMPLES))
    assert first == ARMS[:2] and second == ARMS[2:]
    assert found == {arm: flags_of(arm).tobytes() for arm in ARMS}


@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES - 1])
def test_what_is_damaged_or_of_another_test_is_trained_again(tmp_path: Path, samples: int) -> None:
    file = kept_file(tmp_path, "bisect")
    again: list[Arm] = []
    results(keeping(trainer([]), file, SAMPLES))
    if samples == SAMPLES:
        file.write_bytes(b"PK damaged")
    results(keeping(trainer(again), file, samples))
    assert again == ARMS


def test_other_functions_have_another_file(tmp_path: Path) -> None:
    assert kept_file(tmp_path, "bisect", "one") != kept_file(tmp_path, "bisect", "two")
