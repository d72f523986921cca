"""Each fault does what it says, to whom and when it says, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stethos import lab
from stethos.errors import UsageError
from stethos.lab.apply_fault import triggered
from stethos.lab.client_data import ClientData
from stethos.lab.data import load
from stethos.lab.fault import KINDS, Fault, resolved
from stethos.lab.flat import FlatState
from stethos.lab.local import LocalTrainer, LocalTraining, TrainingTurn
from stethos.lab.model import recipe_of
from stethos.lab.seed import generator
from stethos.lab.split import IID

DATA = load("digits")
PARTS = IID()(DATA.train_y.numpy(), 4, generator(0, "split"))
LABELS = {f"c{client}": DATA.train_y.numpy()[part] for client, part in enumerate(PARTS)}


def data_with(*faults: Fault) -> ClientData:
    return ClientData(DATA, PARTS, resolved(faults, LABELS, DATA.classes), seed=0)


def before_and_after(fault: Fault) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and labels of client c1, honest and in round 5."""
    honest, spoilt = data_with().samples(1, 5), data_with(fault).samples(1, 5)
    return *honest, *spoilt


@pytest.mark.parametrize("kind", [kind for kind, known in KINDS.items() if known.acts_on == "data"])
def test_data_are_spoilt_only_for_the_client_and_in_the_rounds_named(kind: str) -> None:
    honest, client_data = data_with(), data_with(Fault(kind, "c1", start=3, end=5))
    for client in range(4):
        for number in range(1, 8):
            is_same = all(map(torch.equal, honest.samples(client, number), client_data.samples(client, number)))
            assert is_same == (client != 1 or not 3 <= number <= 5), (client, number)
    assert client_data.samples(1, 3)[0] is client_data.samples(1, 5)[0]


def test_a_label_flip_takes_all_of_one_class_and_no_other() -> None:
    x, y, spoilt_x, spoilt_y = before_and_after(Fault("label-flip", "c1", source=3, target=8))
    assert torch.equal(x, spoilt_x) and torch.equal(spoilt_y, torch.where(y == 3, 8, y))


def test_a_label_flip_takes_the_most_frequent_class_unless_told() -> None:
    (truth,) = resolved([Fault("label-flip", "c1")], LABELS, 10)
    most = int(np.bincount(LABELS["c1"]).argmax())
    assert (truth.source, truth.target) == (most, (most + 1) % 10)


def test_half_a_label_flip_takes_half_of_the_class() -> None:
    _, y, _, spoilt = before_and_after(Fault("label-flip", "c1", source=3, target=8, strength=0.5))
    assert int((spoilt != y).sum()) == round(0.5 * int((y == 3).sum()))


@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_label_noise_changes_its_share_of_the_labels_to_all_classes(strength: float) -> None:
    x, y, spoilt_x, spoilt_y = before_and_after(Fault("label-noise", "c1", strength=strength))
    assert torch.equal(x, spoilt_x) and int((spoilt_y != y).sum()) == round(strength * len(y))
    assert len(set(spoilt_y[spoilt_y != y].tolist())) == 10


def test_feature_noise_has_the_size_it_says() -> None:
    x, y, spoilt_x, spoilt_y = before_and_after(Fault("feature-noise", "c1", strength=2))
    noise = (spoilt_x - x) / DATA.train_x.std()
    assert torch.equal(y, spoilt_y)
    assert float(noise.std()) == pytest.approx(2, rel=0.02) and float(noise.mean()) == pytest.approx(0, abs=0.05)


def test_a_feature_shift_is_the_same_everywhere() -> None:
    x, y, spoilt_x, spoilt_y = before_and_after(Fault("feature-shift", "c1"))
    assert torch.equal(y, spoilt_y)
    assert torch.allclose(spoilt_x - x, DATA.train_x.std().expand_as(x), atol=1e-5)


def test_a_backdoor_marks_a_fifth_of_the_samples_and_labels_them_with_the_target() -> None:
    x, y, spoilt_x, spoilt_y = before_and_after(Fault("backdoor", "c1", target=7))
    changed = (x != spoilt_x).any(dim=1)
    assert int(changed.sum()) == round(0.2 * len(y))
    assert (spoilt_y[changed] == 7).all() and (y[changed] != 7).all() and torch.equal(y[~changed], spoilt_y[~changed])
    corner = spoilt_x[changed].view(-1, 8, 8)
    assert (corner[:, -2:, -2:] == DATA.train_x.max()).all()
    assert torch.equal(corner[:, :-2], x[changed].view(-1, 8, 8)[:, :-2])


def test_a_trigger_on_a_table_is_in_the_last_features() -> None:
    marked = triggered(torch.zeros(2, 30), 5.0)
    assert marked[0].tolist() == [0.0] * 29 + [5.0]


def exchanges(*faults: Fault, rounds: int = 5, **options: object) -> list[lab.Exchange]:
    seen: list[lab.Exchange] = []
    lab.federate(
        "digits", clients=4, rounds=rounds, model="logistic", engine="stacked", observe=False,
        faults=faults, each_round=seen.append, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    return seen


def sign_flipped(honest: Tensor, current: Tensor, previous: Tensor) -> Tensor:
    return current - (honest - current)


def scaled(honest: Tensor, current: Tensor, previous: Tensor) -> Tensor:
    return current + 10 * (honest - current)


def copied(honest: Tensor, current: Tensor, previous: Tensor) -> Tensor:
    return current


def repeated(honest: Tensor, current: Tensor, previous: Tensor) -> Tensor:
    return current + (current - previous)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sign-flip", sign_flipped),
        ("scaling", scaled),
        ("free-rider-zero", copied),
        ("free-rider-delta", repeated),
    ],
)
def test_the_update_is_what_the_fault_makes_of_the_honest_one(
    kind: str, expected: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> None:
    honest, spoilt = exchanges(rounds=3), exchanges(Fault(kind, "c2", start=3), rounds=3)
    for one, other in zip(honest[:2], spoilt[:2], strict=True):
        assert torch.equal(one.sent, other.sent)
    assert torch.equal(honest[2].sent[[0, 1, 3]], spoilt[2].sent[[0, 1, 3]])
    wanted = expected(honest[2].sent[2], honest[2].current, honest[1].current)
    assert torch.allclose(spoilt[2].sent[2], wanted, atol=1e-6)


def test_update_noise_is_as_large_as_the_update() -> None:
    honest, spoilt = exchanges(rounds=1)[0], exchanges(Fault("update-noise", "c2"), rounds=1)[0]
    noise, update = spoilt.sent[2] - honest.sent[2], honest.sent[2] - honest.current
    assert float(noise.norm()) == pytest.approx(float(update.norm()), rel=1e-4)
    assert abs(float(torch.cosine_similarity(noise, update, dim=0))) < 0.2
    assert torch.equal(spoilt.sent[[0, 1, 3]], honest.sent[[0, 1, 3]])


@pytest.mark.parametrize(("kind", "is_it"), [("nan", torch.isnan), ("inf", torch.isinf)])
def test_one_tensor_is_not_finite(kind: str, is_it: Callable[[Tensor], Tensor]) -> None:
    sent = exchanges(Fault(kind, "c2", layer="out.bias"), rounds=1)[0].sent
    assert is_it(sent[2, -10:]).all() and torch.isfinite(sent[2, :-10]).all() and torch.isfinite(sent[[0, 1, 3]]).all()
    one = exchanges(Fault(kind, "c2", strength=0.001), rounds=1)[0].sent
    assert int(is_it(one[2, :640]).sum()) == 1


def test_a_nan_goes_into_the_average_as_it_would_in_reality() -> None:
    result = lab.federate("digits", clients=4, rounds=2, observe=False, faults=[Fault("nan", "c2", start=2)])
    assert math.isfinite(result.losses[0]) and math.isnan(result.losses[1])


def test_a_stale_client_trains_from_the_model_of_some_rounds_ago() -> None:
    seen = exchanges(Fault("stale", "c2", start=5, strength=3), rounds=6)
    training = LocalTraining(epochs=1, batch=32, lr=0.1, optimizer="sgd", proximal=0, seed=0, wants_answers=False)
    trainer = LocalTrainer(recipe_of("logistic", DATA, 0), data_with(), training)
    for number, base in ((4, 4), (5, 2), (6, 3)):
        sent = trainer.train(TrainingTurn(2, number, FlatState(seen[base - 1].current, {}))).state.vector
        assert torch.allclose(seen[number - 1].sent[2], sent, atol=1e-5)
    assert [one.records[2].base_round for one in seen] == [0, 1, 2, 3, 1, 2]


def test_a_stale_client_of_the_first_rounds_has_the_initial_model() -> None:
    seen = exchanges(Fault("stale", "c2", strength=3), rounds=3)
    assert [one.records[2].base_round for one in seen] == [0, 0, 0]


@pytest.mark.parametrize(("kind", "status"), [("crash", "failed"), ("dropout", "dropped"), ("timeout", "timeout")])
def test_a_client_that_does_not_reply_is_left_out(kind: str, status: str) -> None:
    seen: list[lab.Exchange] = []
    result = lab.federate(
        "digits", clients=4, rounds=3, observe=False, faults=[Fault(kind, [2], 2, 2)], each_round=seen.append
    )
    assert [one.clients[2].status for one in result.history] == ["ok", status, "ok"]
    assert [one.clients for one in seen] == [("c0", "c1", "c2", "c3"), ("c0", "c1", "c3"), ("c0", "c1", "c2", "c3")]
    assert result.history[1].clients[2].faults == (kind,) and result.history[0].clients[2].faults == ()


def test_a_probability_of_replying_is_kept() -> None:
    result = lab.federate(
        "digits", clients=4, rounds=60, observe=False, engine="stacked", faults=[Fault("dropout", 0, strength=0.5)]
    )
    dropped = sum(one.clients[0].status == "dropped" for one in result.history)
    assert 15 < dropped < 45


def test_when_nobody_replies_the_global_model_stays() -> None:
    result = lab.federate("digits", clients=3, rounds=2, observe=False, faults=[Fault("dropout", [0, 1, 2], start=2)])
    assert result.losses[0] == result.losses[1]


def test_a_memory_hog_reports_its_bytes_and_allocates_none() -> None:
    honest, hog = (
        exchanges(*faults, rounds=1)[0].records for faults in ((), (Fault("memory-hog", 2, strength=2**40),))
    )
    assert hog[2].peak_bytes == (honest[2].peak_bytes or 0) + 2**40 and hog[1] == honest[1]


def test_several_faults_of_one_client_add_up() -> None:
    honest, spoilt = exchanges(rounds=1)[0], exchanges(Fault("scaling", 2), Fault("sign-flip", 2), rounds=1)[0]
    assert torch.allclose(spoilt.sent[2] - honest.current, -10 * (honest.sent[2] - honest.current), atol=1e-6)
    assert spoilt.records[2].faults == ("scaling", "sign-flip")


def test_clients_are_named_or_numbered_one_or_several() -> None:
    numbered = Fault("nan", np.array([1, 3, 1]))  # type: ignore[arg-type]
    assert Fault("nan", ["c1", "c3"]) == Fault("nan", [1, 3]) == numbered
    assert Fault("nan", np.int64(1)).names == Fault("nan", 1).names == ("c1",)  # type: ignore[arg-type]


def test_the_truth_names_each_client_with_its_classes() -> None:
    result = lab.federate("digits", clients=4, rounds=1, observe=False, faults=[Fault("label-flip", [0, "c3"], 1)])
    assert [fault.names for fault in result.faults] == [("c0",), ("c3",)]
    for fault in result.faults:
        counts = result.label_counts[fault.names[0]]
        assert fault.source == counts.index(max(counts))


def test_every_default_strength_is_the_published_one() -> None:
    assert {kind: known.strength for kind, known in KINDS.items() if known.acts_on in ("data", "update", "base")} == {
        "label-flip": 1.0, "label-noise": 1.0, "feature-noise": 1.0, "feature-shift": 1.0, "backdoor": 0.2,
        "sign-flip": 1.0, "scaling": 10.0, "update-noise": 1.0, "nan": 1.0, "inf": 1.0,
        "free-rider-zero": 1.0, "free-rider-delta": 1.0, "stale": 3.0,
    }  # fmt: skip


def test_every_kind_is_in_the_docs_with_its_strength() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab.md").read_text(encoding="utf-8")
    listed = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    found = {kind.strip(" `"): strength.strip() for kinds, strength in listed for kind in kinds.split(",")}
    shown = {kind: "8 GiB" if known.measure == "bytes" else str(known.strength) for kind, known in KINDS.items()}
    assert {kind: found.get(kind) for kind in KINDS} == shown


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Fault("lable-flip", 1), "unknown kind of fault 'lable-flip'\nhint: did you mean label-flip"),
        (lambda: Fault("zzz", 1), "choose one of backdoor, crash"),
        (lambda: Fault("nan", []), "has no clients"),
        (lambda: Fault("nan", 1, start=0), "from round 0"),
        (lambda: Fault("nan", 1, start=4, end=3), "from round 4 to 3"),
        (lambda: Fault("label-noise", 1, strength=1.5), "at most 1"),
        (lambda: Fault("scaling", 1, strength=math.inf), "strength inf"),
        (lambda: Fault("stale", 1, strength=1.5), "whole rounds"),
        (lambda: Fault("label-flip", 1, source=3, target=3), "flipped to 3"),
        (lambda: resolved([Fault("nan", "c9")], LABELS, 10), "the clients are c0 to c3"),
        (lambda: resolved([Fault("label-flip", "c1", source=10)], LABELS, 10), "the classes are 0 to 9"),
        (lambda: resolved([Fault("label-flip", "a", source=1)], {"a": np.array([0, 2])}, 3), "no samples of class 1"),
        (lambda: exchanges(Fault("nan", 1, layer="fc")), "the model has out.weight, out.bias"),
    ],
)  # fmt: skip
def test_a_fault_that_makes_no_sense_is_a_clear_error(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()
