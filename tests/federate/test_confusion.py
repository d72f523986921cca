"""Counts of labels and answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from stethos.federate.confusion import Confusion


def test_pairs_are_counted_over_several_calls_of_any_kind() -> None:
    counts = Confusion()
    assert not counts
    counts.add([0, 1, 1], torch.tensor([0, 1, 0]))
    counts.add(np.array([2, 0], np.int32), [1, 1])
    assert counts and json.loads(counts.text()) == [[1, 1, 0], [1, 1, 0], [0, 1, 0]]


def test_a_label_below_zero_is_left_out() -> None:
    counts = Confusion()
    counts.add([-100, 1, 0], [0, 1, -1])
    assert json.loads(counts.text()) == [[0, 0], [0, 1]]


def test_a_vocabulary_is_not_counted() -> None:
    counts = Confusion()
    counts.add([40_000, 3], [2, 3])
    counts.add([], [])
    assert not counts


def test_as_many_answers_as_labels_are_needed() -> None:
    with pytest.raises(ValueError, match="2 labels and 1 answers"):
        Confusion().add([0, 1], [0])


def test_what_the_caller_does_to_its_arrays_later_changes_nothing() -> None:
    labels, counts = np.array([0, 1]), Confusion()
    counts.add(labels, labels)
    labels[:] = 0
    assert json.loads(counts.text()) == [[1, 0], [0, 1]]


def test_many_pairs_are_counted_as_they_come() -> None:
    counts = Confusion()
    for _ in range(3):
        counts.add(np.zeros(10_000, int), np.ones(10_000, int))
    assert not counts._waiting[1:] and json.loads(counts.text()) == [[0, 30_000], [0, 0]]
