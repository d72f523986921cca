"""The attacks of `make attack`, a few tries of each; the long ones are in docs/reliability.md."""

from __future__ import annotations

import pytest
from attack.__main__ import ATTACKS
from attack.outcome import Outcome


@pytest.mark.parametrize("name", [name for name, (_, tries, *_) in ATTACKS.items() if tries])
def test_nothing_breaks(name: str) -> None:
    attack, tries, *_ = ATTACKS[name]
    outcome = attack(tries, 1)
    assert outcome.tries == tries and not outcome.failures, outcome.failures[:5]


def test_an_attack_that_finds_something_says_so() -> None:
    outcome = Outcome("x", "y", tries=3)
    outcome.check(False, "broken")
    assert outcome.failures == ["broken"] and outcome.row() == "| x | 3 | 1 | y |  |"
