"""What is read from Flower's messages, without a federation."""

from __future__ import annotations

import io

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from stethos.adapters.flower import observe_strategy
from stethos.adapters.flower.content import bytes_in, numbers_in, state_in, status_of, view_of, words_of
from stethos.errors import UsageError

ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(7),
    np.zeros((0, 3), np.float16),
    np.array([1, 2], ">i4"),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_is_looked_at_where_it_lies(array: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, array)
    found = view_of(file.getvalue())
    assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()
    assert not found.flags.owndata and not found.flags.writeable


def test_arrays_of_objects_are_not_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{}]), allow_pickle=True)
    with pytest.raises(TypeError, match="Python objects"):
        view_of(file.getvalue())


def test_legacy_arrays_get_the_models_names_where_there_are_as_many() -> None:
    record = ArrayRecord([np.zeros(2), np.ones(3)])
    assert list(state_in([record], ["weight", "bias"]) or {}) == ["weight", "bias"]
    assert list(state_in([record], ["weight"]) or {}) == ["0", "1"]
    assert state_in([]) is None


def test_sizes_are_those_of_flower_without_our_record() -> None:
    arrays, config = ArrayRecord([np.zeros(2)]), ConfigRecord({"lr": 0.1, "name": "abc", "list": [1, 2]})
    content = RecordDict({"arrays": arrays, "config": config, "stethos": ConfigRecord({"round": "1"})})
    assert bytes_in(content) == arrays.count_bytes() + config.count_bytes()
    assert bytes_in(RecordDict({"config": ConfigRecord({"name": "", "list": []})})) == len("namelist")


def test_numbers_are_those_of_metrics_and_of_a_legacy_clients_dict() -> None:
    content = RecordDict(
        {
            "metrics": MetricRecord({"loss": 0.5, "many": [1.0, 2.0]}),
            "fitres.metrics": ConfigRecord({"depth": 3, "name": "x"}),
            "config": ConfigRecord({"lr": 0.1}),
        }
    )
    assert numbers_in(content) == {"loss": 0.5, "depth": 3}


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (Error(2, "<class 'ValueError'>:<'it's wrong'>"), "failed", "ValueError: it's wrong (Flower error 2)"),
        (Error(2, "<class 'torch.OutOfMemoryError'>:<'no'>"), "failed", "OutOfMemoryError: no (Flower error 2)"),
        (Error(3, "expired"), "timeout", "expired (Flower error 3)"),
        (Error(5, None), "dropped", "no reason was given (Flower error 5)"),
        (Error(8, ""), "failed", "no reason was given (Flower error 8)"),
    ],
)
def test_errors_are_put_into_words(error: Error, status: str, words: str) -> None:
    assert (status_of(error), words_of(error)) == (status, words)


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(UsageError, match="a dict is not a Flower strategy"):
        observe_strategy({})


@pytest.mark.parametrize("wrong", [{"name": ""}, {"label": ""}, {"preset": "huge"}, {"run": "a/b"}])
def test_choices_that_make_no_sense_are_refused_at_once(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        observe_strategy(FedAvg(), **wrong)


def test_a_strategy_is_observed_once_and_stays_itself() -> None:
    strategy = FedAvg(min_train_nodes=5)
    observed = observe_strategy(strategy)
    assert observed is strategy and isinstance(observed, FedAvg) and observed.min_train_nodes == 5
    kind = type(observed)
    assert type(observe_strategy(observed)) is kind and kind.__name__ == "FedAvg"
