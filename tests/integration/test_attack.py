"""The attacks of `make attack`, a few tries of each; the long ones are in docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from attack.__main__ import ATTACKS
from attack.outcome import Outcome
from attack.pieces import do_pieces


@pytest.mark.parametrize("name", [name for name, (_, tries, *_) in ATTACKS.items() if tries])
def test_nothing_breaks(name: str) -> None:
    attack, tries, *_ = ATTACKS[name]
    outcome = attack(tries, 1)
    assert outcome.tries == tries and not outcome.failures, outcome.failures[:5]


def test_an_attack_that_finds_something_says_so() -> None:
    outcome = Outcome("x", "y", tries=3)
    outcome.check(False, "broken")
    assert outcome.failures == ["broken"] and outcome.row() == "| x | 3 | 1 | y |  |"


def test_pieces_are_put_together_and_an_interrupted_one_is_done_again(tmp_path: Path) -> None:
    first = do_pieces("power", 30, 10, tmp_path, jobs=2, ends=None)
    assert first is not None and (first.tries, first.failures) == (30, [])
    contents = {path.name: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    assert sorted(one["seed"] for one in contents.values()) == [1, 2, 3]
    (tmp_path / "10-2.json").unlink()
    found = contents["10-3.json"]
    found["outcome"]["failures"] = ["seen before"]
    (tmp_path / "10-3.json").write_text(json.dumps(found))
    again = do_pieces("power", 30, 10, tmp_path, jobs=2, ends=None)
    assert again is not None and (again.tries, again.failures) == (30, ["seen before"])


def test_a_piece_that_dies_does_not_count_as_good(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert do_pieces("no such attack", 10, 10, tmp_path, jobs=1, ends=None) is None
    assert "a piece ended with 1" in capfd.readouterr().err and not list(tmp_path.glob("*.json"))


def test_pieces_of_what_is_counted_end_with_it(tmp_path: Path) -> None:
    (tmp_path / "10-1.json").write_text(json.dumps({"asked": 10, "seed": 1, "outcome": vars(Outcome("x", "y", 7))}))
    found = do_pieces("bytes", 1_000, 10, tmp_path, jobs=1, ends=None)
    assert found is not None and found.tries == 7
