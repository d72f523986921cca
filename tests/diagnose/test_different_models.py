"""Clients of one round that were given different models."""

from __future__ import annotations

import numpy as np
import torch
from examining import cases, found

from stethos.federate.model_digest import digest_of


def test_the_client_with_another_model_is_named() -> None:
    (one,) = found("FED018", cases.given_models())
    assert one.subject.clients == ("c2",) and (one.subject.first, one.subject.last) == (4, 4) and not one.is_open
    assert "client c2 was given another model than the 5 others in round 4" in one.title


def test_it_goes_on_while_the_last_round_has_it() -> None:
    last = max(cases.ROUNDS)
    (one,) = found("FED018", cases.given_models({("c1", last): "f", ("c1", last - 1): "e"}))
    assert one.is_open and one.subject.last is None and "in 2 rounds" in one.title


def test_the_same_model_for_all_is_no_finding() -> None:
    assert not found("FED018", cases.given_models({}))


def test_models_of_their_own_and_two_clients_are_left_alone() -> None:
    own = {(client, number): f"{client}-{number}" for client in cases.CLIENTS for number in cases.ROUNDS}
    assert not found("FED018", cases.given_models(own))
    assert not found("FED018", cases.given_models({("c1", 4): "x"}, clients=["c0", "c1"]))


def test_a_digest_is_that_of_names_and_bytes() -> None:
    model = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}
    as_torch = {name: torch.from_numpy(value.copy()) for name, value in reversed(model.items())}
    assert digest_of(model) == digest_of(as_torch) is not None
    changed = {**model, "b": np.array([1, np.nextafter(np.float32(1), np.float32(2))], np.float32)}
    renamed = {"a": model["a"], "c": model["b"]}
    assert len({digest_of(one) for one in (model, changed, renamed)}) == 3
    assert digest_of({"a": torch.ones(2, dtype=torch.bfloat16), "n": torch.tensor(3)}) is not None
    assert digest_of({}) is None and digest_of({"a": object()}) is None


def test_a_model_of_gigabytes_is_looked_at_in_pieces() -> None:
    large = {"a": bytes(200 << 20)}
    changed = bytearray(200 << 20)
    changed[0] = 1
    assert digest_of(large) != digest_of({"a": changed})
