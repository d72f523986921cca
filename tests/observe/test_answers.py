"""What evaluations answer, and whether labels belong to their inputs: as seen in small trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity
from stethos.observe.answers import AnswerTally, answers_of
from stethos.observe.dependence import tie_facts

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")
CLASSES = 5


def said(recording: Recording) -> set[str]:
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


def table(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Five clouds of points, well apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return 3 * torch.eye(CLASSES)[labels] + 0.4 * torch.randn(count, CLASSES, generator=generator), labels


def train(passes: int, data: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor]) -> None:
    model = nn.Sequential(nn.Linear(data[0].shape[1], 16), nn.ReLU(), nn.Linear(16, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(passes):
        model.train()
        for inputs, labels in DataLoader(TensorDataset(*data), 32, shuffle=True):
            loss = functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(held[0]), held[1])


def renamed(labels: Tensor) -> Tensor:
    return (labels + 2) % CLASSES


@pytest.mark.parametrize(
    ("change", "kinds"), [(lambda labels: labels, set()), (renamed, {"classes-renamed", "never-learned"})]
)
def test_classes_that_have_other_names_in_evaluations(
    record: Record, change: Callable[[Tensor], Tensor], kinds: set[str]
) -> None:
    recording = record()
    inputs, labels = table(200, 1)
    train(6, table(320, 0), (inputs, change(labels)))
    found = said(recording)
    assert found <= kinds
    assert ("classes-renamed" in found) == bool(kinds)


@pytest.mark.parametrize(("is_same", "kinds"), [(False, set()), (True, {"evaluated-on-training-data"})])
def test_an_evaluation_on_the_training_labels(record: Record, is_same: bool, kinds: set[str]) -> None:
    recording = record()
    inputs, labels = table(200, 0)
    model = nn.Linear(CLASSES, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trained, held = torch.arange(100), torch.arange(100) if is_same else torch.arange(100, 200)
    for _ in range(60):
        functional.cross_entropy(model(inputs)[trained], labels[trained]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(inputs)[held], labels[held])
        model.train()
    assert said(recording) & {"evaluated-on-training-data"} == kinds


@pytest.mark.parametrize(("is_shuffled", "kinds"), [(False, set()), (True, {"unrelated-labels"})])
def test_labels_that_are_shuffled_apart_from_their_inputs(record: Record, is_shuffled: bool, kinds: set[str]) -> None:
    recording = record()
    inputs, labels = table(640, 0)
    if is_shuffled:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(2))]
    train(4, (inputs, labels), table(200, 1))
    found = said(recording)
    assert found & {"unrelated-labels"} == kinds
    assert "chance-level" not in found


@pytest.mark.parametrize("is_text", [False, True])
def test_chance_explains_what_it_should(is_text: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    measured, chance = [], []
    for _ in range(60):
        inputs = torch.randn(64, 20, generator=generator)
        if is_text:
            inputs = torch.randint(0, 40, (64, 20), generator=generator)
        facts = tie_facts(inputs, torch.randint(0, 4, (64,), generator=generator))
        measured.append(facts["tie"])
        chance.append(facts["tie_by_chance"])
    assert np.mean(measured) == pytest.approx(np.mean(chance), rel=0.05)


def things() -> Iterator[tuple[Tensor | None, Tensor | None]]:
    yield None, None
    yield torch.zeros(0, 3), torch.zeros(0)
    yield torch.randn(4, 3), torch.arange(4)
    yield torch.ones(16, 3), torch.arange(16) % 2
    yield torch.randn(16, 3), torch.zeros(16)
    yield torch.randn(16, 3), torch.arange(16)  # each label once, as of pairs
    yield torch.full((16, 3), float("nan")), torch.arange(16) % 2
    yield torch.randn(16, 3, dtype=torch.complex64), torch.arange(16) % 2
    yield torch.randn(3), torch.tensor(1.0)
    yield torch.arange(16), torch.arange(16) % 2  # numbers of users, say: one alone tells little


def test_nothing_is_said_of_what_cannot_be_told() -> None:
    assert [tie_facts(*pair) for pair in things()] == [{}] * 10
    assert [answers_of(*pair) for pair in ((None, 1), (torch.randn(3, 2), torch.randn(3)), (1, None))] == [None] * 3


def test_answers_are_counted_by_class() -> None:
    tally = AnswerTally()
    outputs = torch.eye(3)[[0, 0, 1, 2]]
    tally.note(outputs, torch.tensor([1, 1, 0, 2]), False)
    tally.note(torch.tensor([1.0, -1.0, 2.0]), torch.tensor([1.0, 0.0, 0.0]), False)
    facts = tally.facts()
    assert (facts["answers"], facts["classes"]) == (7, 3)
    assert facts["hits"] == pytest.approx(3 / 7)
    assert facts["top_answer"] == pytest.approx(3 / 7)
    assert not facts["known"]
    assert AnswerTally().facts() == {}


def calls_said(record: Record, loss: Callable[[], Tensor], steps: int = 6) -> set[str]:
    """Kinds of odd calls in a training of one number by a loss."""
    recording = record()
    optimizer = torch.optim.SGD([WEIGHT], lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.name == "wrong-call"}


WEIGHT = nn.Parameter(torch.ones(1))


def spoken(blank: int = 0, steps: int = 12, *, is_raw: bool = False) -> Tensor:
    scores = WEIGHT * torch.randn(steps, 4, 5, generator=torch.Generator().manual_seed(0))
    letters = torch.tensor([1, 2, 3] * 4)
    return functional.ctc_loss(
        scores if is_raw else scores.log_softmax(2), letters, torch.full((4,), steps), torch.full((4,), 3), blank,
        zero_infinity=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "kinds"),
    [({}, set()), ({"blank": 3}, {"blank-in-targets"}), ({"steps": 2}, {"targets-too-long"}),
     ({"is_raw": True}, {"no-log-probabilities"})],
)  # fmt: skip
def test_letters_without_place_or_shares_are_noticed(record: Record, options: dict[str, int], kinds: set[str]) -> None:
    assert calls_said(record, lambda: spoken(**options)) == kinds


def contrasted(*, is_same: bool = False, is_masked: bool = True, is_itself: bool = False) -> Tensor:
    first = functional.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(5)), dim=1)
    second = first if is_same else functional.normalize(first + 0.3 * torch.randn(16, 8), dim=1)
    views = torch.cat([first, second])
    table = WEIGHT * 5 * views @ views.T
    if is_masked:
        table = table.masked_fill(torch.eye(32, dtype=torch.bool), -1e9)
    labels = torch.arange(32) if is_itself else (torch.arange(32) + 16) % 32
    return functional.cross_entropy(table, labels)


@pytest.mark.parametrize(
    ("options", "kinds"),
    [({}, set()), ({"is_same": True}, {"identical-pairs"}), ({"is_masked": False}, {"similarity-to-itself"}),
     ({"is_itself": True}, {"masked-answers"})],
)  # fmt: skip
def test_pairs_that_tell_nothing_are_noticed(record: Record, options: dict[str, bool], kinds: set[str]) -> None:
    assert calls_said(record, lambda: contrasted(**options)) == kinds


@pytest.mark.parametrize(("is_same", "kinds"), [(False, set()), (True, {"identical-pairs"})])
def test_triplets_whose_positive_is_the_anchor(record: Record, is_same: bool, kinds: set[str]) -> None:
    def loss() -> Tensor:
        anchor, other = WEIGHT * torch.randn(16, 8), WEIGHT * torch.randn(16, 8)
        return functional.triplet_margin_loss(anchor, anchor.clone() if is_same else other, 2 * other)

    assert calls_said(record, loss) == kinds


class Translator(nn.Module):
    """Reads one table of words and continues another."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(12, 16), nn.Embedding(12, 16)
        self.body, self.head = nn.GRU(16, 16, batch_first=True), nn.Linear(16, 12)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        start = self.source(source).mean(1)[None]
        return self.head(self.body(self.target(target), start)[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("first", "kinds"), [(0, set()), (1, {"leaking-labels"})])
def test_a_decoder_that_is_fed_what_it_is_to_say(record: Record, first: int, kinds: set[str]) -> None:
    recording = record()
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        source, target = torch.randint(2, 12, (16, 7)), torch.randint(2, 12, (16, 9))
        fed, wanted = target[:, first : first + 8], target[:, 1:]
        loss = functional.cross_entropy(model(source, fed).flatten(0, 1), wanted.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    recording.close()
    found = diagnose(recording.path).findings
    assert {one.kind for one in found} & {"leaking-labels"} == kinds


@pytest.mark.parametrize(("is_number", "kinds"), [(False, set()), (True, {"cut-off"})])
def test_a_second_loss_that_is_but_a_number(record: Record, is_number: bool, kinds: set[str]) -> None:
    recording = record()
    model = nn.ModuleDict({"body": nn.Linear(6, 32), "a": nn.Linear(32, 1), "b": nn.Linear(32, 1)})
    model["more"] = nn.Sequential(*[nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(12):
        inputs = torch.randn(16, 6)
        features = model["more"](model["body"](inputs).relu())
        first, second = (model[name](features)[:, 0].sub(inputs[:, 0]).square().mean() for name in "ab")
        optimizer.zero_grad()
        (first + (second.item() if is_number else second)).backward()
        optimizer.step()
    assert said(recording) & {"cut-off"} == kinds


def test_a_label_that_the_loss_leaves_out_is_no_answer() -> None:
    """Padding is answered by anything."""
    outputs, labels = torch.eye(4)[[1, 2, 3, 3]], torch.tensor([1, 2, 0, 0])
    for ignored, wanted in ((0, [1, 2]), (None, [1, 2, 0, 0])):
        pair = answers_of(outputs, labels, ignored)
        assert pair is not None
        assert pair[1].tolist() == wanted
