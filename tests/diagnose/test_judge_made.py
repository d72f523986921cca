"""The judge's networks learnt from numbers; the code that computes those numbers must still be the same."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.faults.made import JUDGE, OF_TRAITS, PACKAGE, code_digest, made_from, traits_digest


def test_the_traits_of_the_shipped_judge_are_computed_as_when_it_was_pinned() -> None:
    made = json.loads(JUDGE.read_text(encoding="utf-8"))["made"]
    hint = "its traits changed: train the judge again (`make judge`), or show that no trait changes and pin the code"
    assert made["traits"] == traits_digest(), hint


def test_a_changed_trait_changes_the_digest_and_a_comment_does_not() -> None:
    texts = [(PACKAGE / name).read_text(encoding="utf-8") for name in OF_TRAITS]
    assert code_digest([texts[0] + "\n    # a remark\n", texts[1]]) == code_digest(texts)
    assert code_digest([texts[0].replace("nanmedian", "nanmean", 1), texts[1]]) != code_digest(texts)


def test_seeds_data_and_versions_are_kept() -> None:
    seeds, traits = np.array([3, 3, 9]), np.ones((3, 2), np.float32)
    made, other = made_from(seeds, traits), made_from(seeds, 2 * traits)
    assert (
        made["federations"] == 2 and made["seeds"] == [3, 9] and set(made["versions"]) == {"python", "torch", "numpy"}
    )
    assert made["data"] != other["data"] and made["traits"] == other["traits"]
