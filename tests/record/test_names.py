"""Names looked up once are the names looked up every time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from stethos.record import arrow as arrow
from stethos.record.arrow import Names

TEXTS = ["?", "layer.0", "", "Gewicht ß", None, "gradient"]
IDS = np.array([1, 5, 3, -1, 2, 99, 4, 1], np.int32)
MEANT = ["layer.0", "gradient", "Gewicht ß", None, "", "?", None, "layer.0"]


def stored(array: pa.Array) -> list[str | None]:
    """As it comes back from a segment, where a slice must not bring more than itself."""
    batch = pa.RecordBatch.from_arrays([array], names=["name"])
    message = batch.serialize()
    whole = pa.RecordBatch.from_arrays([pa.array(array.to_pylist(), pa.string())], names=["name"])
    assert message.size <= whole.serialize().size + 64
    return list(pa.ipc.read_record_batch(message, batch.schema).column(0).to_pylist())


def test_ids_become_texts() -> None:
    assert stored(Names(TEXTS).of(IDS)) == MEANT


def test_a_vector_that_comes_again_has_the_same_texts() -> None:
    names = Names(TEXTS)
    for count in (1, 3, 2, 1, 7, 7, 5):
        assert stored(names.repeated(IDS, count)) == MEANT * count


def test_vectors_of_which_one_begins_like_the_other_are_told_apart() -> None:
    names = Names(TEXTS)
    assert stored(names.repeated(IDS[:4], 2)) == MEANT[:4] * 2
    assert stored(names.repeated(IDS, 1)) == MEANT
    assert stored(names.repeated(IDS[:1], 3)) == MEANT[:1] * 3


def test_a_vector_of_nothing_but_null_is_null() -> None:
    nothing = np.full(3, -1, np.int32)
    assert stored(Names(TEXTS).repeated(nothing, 2)) == [None] * 6


def test_what_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_MOST_ROWS", 20)
    names = Names(TEXTS)
    for number in range(50):
        ids = np.array([number % 6, number], np.int32)
        assert stored(names.repeated(ids, 4)) == stored(names.of(np.tile(ids, 4)))
        names.repeated(ids, 11)
        assert len(names._kept) <= arrow._MOST_KEPT
        assert all(len(array) <= 20 for array in names._kept.values())
