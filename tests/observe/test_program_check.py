"""Bugs in small real trainings, each beside its corrected twin: what is noted and said of them, and of nothing else."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity
from stethos.observe import call_check

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")
Loss = Callable[[Tensor, Tensor], Tensor]

OURS = ("odd-graph", "wrong-call", "odd-schedule", "helper-model", "constant-outputs", "repeated-data", "odd-optimizer",
        "odd-batch", "wrong-loss", "implausible-loss", "unoptimized-parameters", "overfitting",
        "odd-evaluation")  # fmt: skip


def said(recording: Recording) -> set[str]:
    """Kinds of warnings and errors about the program."""
    recording.close()
    found = diagnose(recording.path).findings
    return {one.kind for one in found if one.severity > Severity.INFO and one.name in OURS}


def table(count: int = 256) -> TensorDataset:
    inputs = torch.randn(count, 6)
    return TensorDataset(inputs, (inputs[:, 0] + 0.5 * inputs[:, 1].abs() > 0.2).long())


def net(inputs: int = 6, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def train(
    model: nn.Module, loader: object, loss: Loss = functional.cross_entropy, passes: int = 6,
    after: Callable[[], object] = lambda: None, **options: object,
) -> None:  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), **({"lr": 0.01} | options))  # type: ignore[arg-type]
    for _ in range(passes):
        for batch, answer in loader:  # type: ignore[attr-defined]
            optimizer.zero_grad()
            loss(model(batch), answer).backward()
            optimizer.step()
            after()


class Recurrent(nn.Module):
    """Sums up a sequence with a recurrent layer, and looks at its last states."""

    def __init__(self, *, batch_first: bool = True, views: bool = False) -> None:
        super().__init__()
        self.views = views
        self.body, self.head = nn.GRU(3, 8, batch_first=batch_first, bidirectional=True), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        everything, last = self.body(x)
        if not self.body.batch_first:
            return self.head(everything[:, -1])  # type: ignore[no-any-return]
        return self.head(last.view(len(x), -1) if self.views else last.transpose(0, 1).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [({}, set()), ({"views": True}, {"samples-mixed"}), ({"batch_first": False}, {"samples-as-sequence"})],
)
def test_samples_that_are_mixed_up_are_noticed(record: Record, options: dict[str, bool], kinds: set[str]) -> None:
    recording = record()
    series = torch.randn(160, 5, 3)
    data = TensorDataset(series, (series.sum((1, 2)) > 0).long())
    train(Recurrent(**options), DataLoader(data, 16, shuffle=True))
    assert said(recording) == kinds


class Gated(nn.Module):
    """Two experts, of which a gate picks one; its share is taken before or after."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self.after, self.gate, self.experts = after, nn.Linear(6, 2), nn.ModuleList([net(), net()])

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        share, place = (scores if self.after else scores.softmax(1)).topk(1, dim=1)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        return (share.softmax(1) if self.after else share) * answers.gather(1, place[:, :, None].expand(-1, -1, 2))[
            :, 0
        ]


@pytest.mark.parametrize(("after", "kinds"), [(False, set()), (True, {"softmax-over-one"})])
def test_a_softmax_over_one_element_is_noticed(record: Record, after: bool, kinds: set[str]) -> None:
    recording = record()
    train(Gated(after=after), DataLoader(table(), 32, shuffle=True))
    assert said(recording) == kinds


class Rounded(nn.Linear):
    """Rounds its weights, with or without a way for the gradient."""

    through = True

    def forward(self, x: Tensor) -> Tensor:
        rounded = torch.round(self.weight * 8) / 8
        return functional.linear(x, self.weight + (rounded - self.weight).detach() if self.through else rounded)


@pytest.mark.parametrize(("through", "kinds"), [(True, set()), (False, {"rounding-stops-gradient"})])
def test_rounding_that_stops_the_gradient_is_noticed(record: Record, through: bool, kinds: set[str]) -> None:
    recording = record()
    layer = Rounded(6, 16)
    layer.through = through
    train(nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 2)), DataLoader(table(), 32, shuffle=True))
    assert said(recording) & {"rounding-stops-gradient"} == kinds


def overlap(activation: Callable[[Tensor], Tensor]) -> Loss:
    def loss(outputs: Tensor, answer: Tensor) -> Tensor:
        share, wanted = activation(outputs[:, 1]), answer.float()
        return 1 - (2 * (share * wanted).sum() + 1) / (share.sum() + wanted.sum() + 1)

    return loss


@pytest.mark.parametrize(("activation", "kinds"), [(torch.sigmoid, set()), (torch.Tensor.clone, {"raw-overlap"})])
def test_an_overlap_of_raw_outputs_is_noticed(record: Record, activation: Callable, kinds: set[str]) -> None:
    recording = record()
    train(net(), DataLoader(table(), 32, shuffle=True), overlap(activation), lr=1e-4)
    assert said(recording) & {"raw-overlap"} == kinds


@pytest.mark.parametrize(("is_detached", "kinds"), [(True, set()), (False, {"gradient-through-target"})])
def test_a_target_with_a_gradient_is_noticed(record: Record, is_detached: bool, kinds: set[str]) -> None:
    recording = record()
    model = net(6, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(40):
        now, after, earned = torch.randn(32, 6), torch.randn(32, 6), torch.rand(32)
        best = model(after).amax(1)
        goal = earned + 0.9 * (best.detach() if is_detached else best)
        optimizer.zero_grad()
        functional.mse_loss(model(now)[:, 0], goal).backward()
        optimizer.step()
    assert said(recording) & {"gradient-through-target"} == kinds


def signed(pair: Tensor, answer: Tensor, low: float) -> Tensor:
    wanted = torch.where(answer > 0, 1.0, low)
    return functional.cosine_embedding_loss(pair[:, :2], pair[:, 2:], wanted)


@pytest.mark.parametrize(("is_made_anew", "kinds"), [(True, set()), (False, {"replaced-parameters"})])
def test_an_optimizer_of_before_may_hold_a_head_that_was_replaced(
    record: Record, is_made_anew: bool, kinds: set[str]
) -> None:
    recording = record()
    model = net()
    loader = DataLoader(table(), 32)
    before = torch.optim.Adam(model.parameters(), 0.01)
    after = before

    def steps(optimizer: torch.optim.Optimizer) -> None:
        for _ in range(6):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()

    steps(before)
    model[2] = nn.Linear(16, 2)
    if is_made_anew:
        after = torch.optim.SGD(model.parameters(), 0.05)
    else:  # the body is new to this optimizer, its head is the old one
        after = torch.optim.SGD([*model[0].parameters(), *before.param_groups[0]["params"][2:]], 0.05)
    steps(after)
    assert said(recording) & {"replaced-parameters"} == kinds


@pytest.mark.parametrize(("is_other", "kinds"), [(False, {"cut-off"}), (True, {"cut-off", "other-model"})])
def test_an_optimizer_without_gradients_is_told_by_what_cuts_them_off(
    record: Record, is_other: bool, kinds: set[str]
) -> None:
    recording = record()
    encoder, decoder = nn.Linear(6, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 2))
    held = copy.deepcopy(encoder) if is_other else encoder
    first, second = torch.optim.Adam(held.parameters(), 0.01), torch.optim.Adam(decoder.parameters(), 0.01)
    for _ in range(6):
        for x, y in DataLoader(table(), 32):
            first.zero_grad()
            second.zero_grad()
            functional.cross_entropy(decoder(encoder(x).detach()), y).backward()
            first.step()
            second.step()
    assert said(recording) & {"cut-off", "other-model"} == kinds


def _distilled(student: nn.Module, teacher: nn.Module, x: Tensor) -> Tensor:
    return functional.mse_loss(student(x), teacher(x))


def _anchored(student: nn.Module, teacher: nn.Module, x: Tensor) -> Tensor:
    """What the first predicts the second is to know, too; the inputs keep both from agreeing on nothing."""
    return functional.mse_loss(student(x), teacher(x)) + functional.mse_loss(student(x), x[:, :2])


def _coupled(first: nn.Module, second: nn.Module, x: Tensor) -> Tensor:
    """Two unknowns of one system of equations, each a target of the other."""
    return functional.mse_loss(first(x), second(-x)) + functional.mse_loss(second(x), first(-x))


@pytest.mark.parametrize(
    ("loss", "is_trained", "is_shared", "kinds"),
    [
        (_distilled, True, False, {"target-is-trained"}),
        (_distilled, False, False, set()),  # a gradient that nobody uses
        (_distilled, True, True, set()),
        (_anchored, True, False, set()),
        (_coupled, True, False, set()),
    ],
)
def test_a_teacher_that_is_trained_along_is_noticed(
    record: Record, loss: Callable[..., Tensor], is_trained: bool, is_shared: bool, kinds: set[str]
) -> None:
    recording = record()
    student, teacher = net(), net()
    if is_shared:
        student[0] = teacher[0]
    parameters = nn.ModuleList([student, teacher] if is_trained else [student]).parameters()
    optimizer = torch.optim.Adam(dict.fromkeys(parameters), 0.01)
    for _ in range(40):
        optimizer.zero_grad()
        loss(student, teacher, torch.randn(32, 6)).backward()
        optimizer.step()
    assert said(recording) & {"target-is-trained"} == kinds


@pytest.mark.parametrize(("low", "kinds"), [(-1.0, set()), (0.0, {"targets-not-signs"})])
def test_targets_that_should_be_signs_are_noticed(record: Record, low: float, kinds: set[str]) -> None:
    recording = record()
    train(net(6, 4), DataLoader(table(), 32, shuffle=True), lambda a, b: signed(a, b, low), passes=4)
    assert said(recording) & {"targets-not-signs"} == kinds


@pytest.mark.parametrize(("is_swapped", "kinds"), [(False, set()), (True, {"swapped-arguments"})])
def test_swapped_arguments_are_noticed(record: Record, is_swapped: bool, kinds: set[str]) -> None:
    recording = record()
    teacher = net()

    def loss(outputs: Tensor, answer: Tensor) -> Tensor:
        wanted = teacher(torch.randn(len(outputs), 6)).detach()
        if is_swapped:
            return functional.kl_div(wanted.log_softmax(1), outputs.softmax(1), reduction="batchmean")
        return functional.kl_div(outputs.log_softmax(1), wanted.softmax(1), reduction="batchmean")

    train(net(), DataLoader(table(), 32, shuffle=True), loss, passes=4)
    assert said(recording) & {"swapped-arguments"} == kinds


@pytest.mark.parametrize(("weights", "kinds"), [([1.0, 9.0], set()), ([9.0, 1.0], {"weights-favour-frequent"})])
def test_weights_of_classes_the_wrong_way_round_are_noticed(
    record: Record, weights: list[float], kinds: set[str]
) -> None:
    recording = record()
    data = table()
    rare = TensorDataset(data.tensors[0], (data.tensors[0][:, 0] > 1.2).long())
    loss = nn.CrossEntropyLoss(weight=torch.tensor(weights))
    train(net(), DataLoader(rare, 64, shuffle=True), loss)
    assert said(recording) & {"weights-favour-frequent"} == kinds


@pytest.mark.parametrize(("is_late", "kinds"), [(False, set()), (True, {"clipped-after-step"})])
def test_clipping_after_the_step_is_noticed(record: Record, is_late: bool, kinds: set[str]) -> None:
    recording = record()
    model, data = net(), table()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch, answer in DataLoader(data, 16):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), answer).backward()
        if not is_late:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if is_late:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert said(recording) == kinds


@pytest.mark.parametrize(("is_own", "kinds"), [(False, set()), (True, {"loads-itself"})])
def test_a_model_that_loads_itself_is_noticed(record: Record, is_own: bool, kinds: set[str]) -> None:
    recording = record()
    model = net()
    target = copy.deepcopy(model)
    source = target if is_own else model
    train(model, DataLoader(table(), 32), after=lambda: target.load_state_dict(source.state_dict()))
    assert said(recording) == kinds


@pytest.mark.parametrize(("prefix", "kinds"), [("", set()), ("module.", {"nothing-loaded"})])
def test_weights_that_are_not_loaded_are_noticed(record: Record, prefix: str, kinds: set[str]) -> None:
    recording = record()
    model = net()
    model.load_state_dict({prefix + name: one for name, one in net().state_dict().items()}, strict=False)
    train(model, DataLoader(table(), 32, shuffle=True))
    assert said(recording) == kinds


@pytest.mark.parametrize(("size", "kinds"), [(32, set()), (512, {"empty-loader"})])
def test_a_loader_without_a_batch_is_noticed(record: Record, size: int, kinds: set[str]) -> None:
    recording = record()
    train(net(), DataLoader(table(), size, shuffle=True, drop_last=True))
    assert said(recording) == kinds


@pytest.mark.parametrize(("count", "kinds"), [(256, set()), (2, {"few-samples"})])
def test_a_sampler_with_too_few_weights_is_noticed(record: Record, count: int, kinds: set[str]) -> None:
    recording = record()
    train(net(), DataLoader(table(), 32, sampler=WeightedRandomSampler(torch.ones(count), 256)))
    assert said(recording) == kinds


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Gives each batch several times in a row, as workers do that do not share."""

    def __init__(self, times: int) -> None:
        self.times, self.data = times, table()

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for first in range(0, 256, 16):
            for _ in range(self.times):
                yield from (self.data[place] for place in range(first, first + 16))


@pytest.mark.parametrize(("times", "kinds"), [(1, set()), (3, {"batches-in-a-row"})])
def test_batches_that_come_in_a_row_are_noticed(record: Record, times: int, kinds: set[str]) -> None:
    recording = record()
    train(net(), DataLoader(Stream(times), 16), passes=1)
    assert said(recording) == kinds


@pytest.mark.parametrize(("is_kept", "kinds"), [(False, set()), (True, {"cached-batches"})])
def test_batches_that_are_kept_are_noticed(record: Record, is_kept: bool, kinds: set[str]) -> None:
    recording = record()
    loader = DataLoader(table(), 32, shuffle=True)
    batches = itertools.cycle(loader) if is_kept else itertools.chain.from_iterable(itertools.repeat(loader))
    train(net(), itertools.islice(batches, 600), passes=1)
    assert said(recording) & {"cached-batches"} == kinds


@pytest.mark.parametrize(("interval", "kinds"), [(1, set()), (8, {"warm-up-unfinished"})])
def test_a_warm_up_that_never_ends_is_noticed(record: Record, interval: int, kinds: set[str]) -> None:
    recording = record()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 40))
    for place, (batch, answer) in enumerate(itertools.islice(itertools.cycle(DataLoader(table(), 32)), 80)):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), answer).backward()
        optimizer.step()
        if place % interval == 0:
            scheduler.step()
    assert said(recording) == kinds


@pytest.mark.parametrize(("scale", "kinds"), [(1.0, set()), (0.01, {"factor-not-rate"})])
def test_a_factor_that_is_a_rate_is_noticed(record: Record, scale: float, kinds: set[str]) -> None:
    recording = record()
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: scale * max(0.1, 1 - step / 100))
    for batch, answer in itertools.chain.from_iterable(itertools.repeat(DataLoader(table(), 32, shuffle=True), 10)):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), answer).backward()
        optimizer.step()
        scheduler.step()
    assert said(recording) & {"factor-not-rate"} == kinds


@pytest.mark.parametrize(("mode", "kinds"), [(False, set()), (True, {"training-mode"})])
def test_a_teacher_in_training_mode_is_noticed(record: Record, mode: bool, kinds: set[str]) -> None:
    recording = record()
    teacher = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2)).train(mode)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for batch, _ in itertools.chain.from_iterable(itertools.repeat(DataLoader(table(), 32, shuffle=True), 6)):
        with torch.no_grad():
            soft = teacher(batch).softmax(1)
        optimizer.zero_grad()
        functional.kl_div(model(batch).log_softmax(1), soft, reduction="batchmean").backward()
        optimizer.step()
    assert said(recording) == kinds


def test_what_only_looks_like_a_bug_is_not_accused(record: Record) -> None:
    """A momentum encoder in training mode, norms of instances, a hinge that is kept, one batch for all steps."""
    recording = record()
    model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.InstanceNorm1d(8), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(32, 1))
    momentum = copy.deepcopy(model[:3])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batch, sign = next(iter(DataLoader(TensorDataset(torch.randn(64, 2, 6), torch.ones(64)), 32, shuffle=True)))
    for _ in range(60):
        with torch.no_grad():
            momentum(batch)
        optimizer.zero_grad()
        torch.clamp(0.1 - sign * (model(batch)[:, 0] + 5), min=0).mean().backward()
        optimizer.step()
    assert said(recording) == set()


@pytest.mark.parametrize(("is_copied", "kinds"), [(True, set()), (False, {"old-statistics"})])
def test_statistics_that_were_not_copied_are_noticed(record: Record, is_copied: bool, kinds: set[str]) -> None:
    recording = record()
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    average = copy.deepcopy(model).eval()
    for _ in range(4):
        train(model, DataLoader(table(), 32, shuffle=True), passes=1)
        with torch.no_grad():
            for mean, one in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(one, 0.5)
            for mean, one in zip(average.buffers(), model.buffers(), strict=True):
                mean.copy_(one) if is_copied else None
            average(torch.randn(32, 6))
    assert said(recording) & {"old-statistics"} == kinds


@pytest.mark.parametrize(("dtype", "kinds"), [(torch.float32, set()), (torch.bfloat16, {"rounded-away"})])
def test_updates_that_are_rounded_away_are_noticed(record: Record, dtype: torch.dtype, kinds: set[str]) -> None:
    recording = record()
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for batch, answer in itertools.chain.from_iterable(itertools.repeat(DataLoader(table(), 32, shuffle=True), 6)):
        optimizer.zero_grad()
        functional.cross_entropy(model(batch.to(dtype)).float(), answer).backward()
        optimizer.step()
    assert said(recording) & {"rounded-away"} == kinds


@pytest.mark.parametrize(
    ("options", "kinds"), [({}, set()), ({"betas": (0.999, 0.9)}, {"swapped-betas"}), ({"maximize": True}, {"ascends"})]
)
def test_odd_settings_are_noticed(record: Record, options: dict[str, object], kinds: set[str]) -> None:
    recording = record()
    train(net(), DataLoader(table(), 32, shuffle=True), passes=2, **options)
    assert said(recording) == kinds


@pytest.mark.parametrize(("is_together", "kinds"), [(False, set()), (True, {"frozen-layers-move"})])
def test_frozen_layers_that_move_are_noticed(record: Record, is_together: bool, kinds: set[str]) -> None:
    """An optimizer that waits while its model is frozen moves nothing; one that goes on with other layers does."""
    recording = record()
    body, head = nn.Linear(6, 8), nn.Linear(8, 2)
    parts = [[*body.parameters(), *head.parameters()]] if is_together else [body.parameters(), head.parameters()]
    optimizers = [torch.optim.SGD(part, lr=0.05, momentum=0.9) for part in parts]
    for step, (x, y) in enumerate([*DataLoader(table(), 32)] * 3):
        if step == 4:
            body.requires_grad_(False)
        functional.cross_entropy(head(body(x).relu()), y).backward()
        for optimizer in optimizers[-1:] if step >= 4 else optimizers:
            optimizer.step()
        head.zero_grad()
    assert said(recording) & {"frozen-layers-move"} == kinds


def test_a_game_of_two_models_is_not_sorted_by_class(record: Record) -> None:
    recording = record()
    maker, critic = net(4, 6), net(6, 1)
    makes, judges = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (maker, critic))
    bce = functional.binary_cross_entropy_with_logits
    for x, _ in [*DataLoader(table(), 32)] * 4:
        made = maker(torch.randn(len(x), 4))
        judges.zero_grad()
        (bce(critic(x), torch.ones(len(x), 1)) + bce(critic(made.detach()), torch.zeros(len(x), 1))).backward()
        judges.step()
        makes.zero_grad()
        critic.requires_grad_(False)
        bce(critic(made), torch.ones(len(x), 1)).backward()
        critic.requires_grad_(True)
        makes.step()
    assert said(recording) == set()


class Words(nn.Module):
    """Predicts a word from the word before it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("shift", "kinds"), [(1, set()), (2, {"wrong-shift"})])
def test_labels_that_are_shifted_twice_are_noticed(record: Record, shift: int, kinds: set[str]) -> None:
    recording = record()
    text = torch.randint(0, 9, (128, 12))

    def loss(scores: Tensor, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(scores[:, :-shift].flatten(0, 1), tokens[:, shift:].flatten())

    train(Words(), DataLoader(TensorDataset(text, text), 16, shuffle=True), loss, passes=3)
    assert said(recording) & {"wrong-shift"} == kinds


@pytest.mark.parametrize(("scale", "kinds"), [(0.0, set()), (20.0, {"high-at-start"})])
def test_a_loss_that_begins_too_high_is_noticed(record: Record, scale: float, kinds: set[str]) -> None:
    recording = record()
    model = net()
    with torch.no_grad():
        model[2].bias[1] += scale
    train(model, DataLoader(table(), 32, shuffle=True), passes=20, lr=0.1)
    assert said(recording) & {"high-at-start"} == kinds


class Reader(nn.Module):
    """Attends over words that are padded with 0."""

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.words, self.head = nn.Embedding(9, 8), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        h, is_padding = self.words(tokens), tokens == 0
        seen = self.attention(h, h, h, key_padding_mask=~is_padding if self.inverted else is_padding)[0]
        return self.head(seen[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("inverted", "kinds"), [(False, set()), (True, {"inverted-mask"})])
def test_an_inverted_mask_is_noticed(record: Record, inverted: bool, kinds: set[str]) -> None:
    recording = record()
    tokens = torch.randint(1, 9, (160, 10))
    tokens[torch.arange(10) >= torch.randint(3, 9, (160, 1))] = 0
    train(Reader(inverted=inverted), DataLoader(TensorDataset(tokens, tokens[:, 0] % 2), 16, shuffle=True))
    assert said(recording) & {"inverted-mask"} == kinds


@pytest.mark.parametrize(("scale", "kinds"), [(1.0, set()), (20.0, {"evaluation-inputs-differ"})])
def test_inputs_of_another_scale_in_evaluations_are_noticed(record: Record, scale: float, kinds: set[str]) -> None:
    recording = record()
    model = net()
    for _ in range(4):
        train(model, DataLoader(table(), 32, shuffle=True), passes=1)
        model.eval()
        with torch.no_grad():
            model(scale * torch.randn(64, 6))
        model.train()
    assert said(recording) & {"evaluation-inputs-differ"} == kinds


class Scaled(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are scaled as they are taken; what is stored stays as it is."""

    def __init__(self) -> None:
        self.data, self.scale = table(), 1.0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        sample, answer = self.data[place]
        return sample * self.scale, answer


@pytest.mark.parametrize(("factor", "kinds"), [(1.0, set()), (0.5, {"inputs-drift"})])
def test_inputs_that_are_scaled_more_at_each_pass_are_noticed(record: Record, factor: float, kinds: set[str]) -> None:
    recording = record()
    data, model = Scaled(), net()
    for _ in range(6):
        train(model, DataLoader(data, 32, shuffle=True), passes=1)
        data.scale *= factor
    assert said(recording) & {"inputs-drift", "data-changed"} == kinds


def test_inputs_that_are_scaled_in_place_at_each_pass_have_one_cause(record: Record) -> None:
    recording = record()
    data, model = table(), net()
    for _ in range(6):
        train(model, DataLoader(data, 32, shuffle=True), passes=1)
        data.tensors[0].mul_(0.5)
    assert said(recording) & {"inputs-drift", "data-changed"} == {"data-changed"}


@pytest.mark.parametrize(("is_same", "kinds"), [(False, set()), (True, {"same-layer-again"})])
def test_a_layer_that_is_listed_several_times_is_noticed(record: Record, is_same: bool, kinds: set[str]) -> None:
    recording = record()
    block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    blocks = [block] * 3 if is_same else [copy.deepcopy(block) for _ in range(3)]
    train(nn.Sequential(nn.Sequential(*blocks), nn.Linear(6, 2)), DataLoader(table(), 32, shuffle=True))
    assert said(recording) == kinds


@pytest.mark.parametrize(("price", "kinds"), [(0.0, set()), (1.0, {"collapsed"})])
def test_outputs_that_are_all_the_same_are_noticed(record: Record, price: float, kinds: set[str]) -> None:
    """A term that pulls all outputs to one point outweighs the error."""
    recording = record()

    def loss(outputs: Tensor, answer: Tensor) -> Tensor:
        wanted = functional.one_hot(answer, 2).float() - 0.5
        return (1 - price) * functional.mse_loss(outputs, wanted) + price * functional.mse_loss(outputs + 3, 0 * wanted)

    train(net(), DataLoader(table(), 32, shuffle=True), loss, passes=33, lr=0.02)
    assert said(recording) & {"collapsed"} == kinds


@pytest.mark.parametrize(("beta", "kinds"), [(0.1, set()), (0.0, {"factor-of-zero"})])
def test_a_loss_times_zero_is_noticed(record: Record, beta: float, kinds: set[str]) -> None:
    recording = record()
    data = DataLoader(table(), 32, shuffle=True)
    train(net(), data, lambda outputs, _: -functional.logsigmoid(beta * (outputs[:, 0] - outputs[:, 1])).mean())
    assert said(recording) & {"factor-of-zero"} == kinds


@pytest.mark.parametrize(("parts", "kinds"), [(4, set()), (1, {"accumulated-sum"})])
def test_gradients_that_are_added_up_are_noticed(record: Record, parts: int, kinds: set[str]) -> None:
    recording = record()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    passes = itertools.chain.from_iterable(itertools.repeat(DataLoader(table(), 16, shuffle=True), 6))
    for place, (batch, answer) in enumerate(passes):
        loss = functional.cross_entropy(model(batch), answer)
        (loss / parts if parts > 1 else loss).backward()
        if place % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert said(recording) & {"accumulated-sum"} == kinds


@pytest.mark.parametrize(("is_copy", "kinds"), [(False, set()), (True, {"other-model"})])
def test_an_optimizer_whose_parameters_get_no_gradient_is_noticed(
    record: Record, is_copy: bool, kinds: set[str]
) -> None:
    recording = record()
    model = net()
    outer = torch.optim.Adam(model.parameters(), 1e-3)
    for batch, answer in itertools.chain.from_iterable(itertools.repeat(DataLoader(table(), 32), 6)):
        learner = copy.deepcopy(model) if is_copy else model
        inner = torch.optim.SGD(learner.parameters(), 0.01)
        outer.zero_grad()
        functional.cross_entropy(learner(batch), answer).backward()
        inner.step()
        outer.step()
    assert said(recording) & {"other-model"} == kinds


@pytest.mark.parametrize(("steps", "kinds"), [(True, set()), (False, {"never-stepped"})])
def test_a_scheduler_that_never_steps_is_noticed(record: Record, steps: bool, kinds: set[str]) -> None:
    recording = record()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(8):
        for batch, answer in DataLoader(table(), 32, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), answer).backward()
            optimizer.step()
        if steps:
            scheduler.step()
    assert said(recording) == kinds


@pytest.mark.parametrize(("is_shuffled", "kinds"), [(False, set()), (True, {"never-learned"})])
def test_held_out_data_that_are_never_learned_are_noticed(record: Record, is_shuffled: bool, kinds: set[str]) -> None:
    recording = record()
    data, held = table(128), table(128)
    answers = held.tensors[1].roll(1) if is_shuffled else held.tensors[1]
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    for _ in range(20):
        for batch, answer in DataLoader(data, 32, shuffle=True):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), answer).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(held.tensors[0]), answers)
        model.train()
    found = said(recording) & {"never-learned", "no-better-than-guessing"}  # the second explains the first
    assert bool(found) == bool(kinds)


@pytest.mark.parametrize(("sizes", "kinds"), [([16], set()), ([32, 16], {"norm-over-samples"})])
def test_a_layer_norm_over_the_batch_is_noticed(record: Record, sizes: list[int], kinds: set[str]) -> None:
    recording = record()
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(sizes), nn.ReLU(), nn.Linear(16, 2))
    train(model, DataLoader(table(), 32, shuffle=True))
    assert said(recording) == kinds


@pytest.mark.parametrize(("high", "kinds"), [(50.0, set()), (-50.0, {"clamped-outputs"})])
def test_outputs_beyond_a_clamp_are_noticed(record: Record, high: float, kinds: set[str]) -> None:
    recording = record()
    data = DataLoader(table(), 32, shuffle=True)
    train(net(6, 1), data, lambda outputs, answer: functional.mse_loss(outputs[:, 0].clamp(-90, high), answer.float()))
    assert said(recording) & {"clamped-outputs"} == kinds


@pytest.mark.parametrize(("is_tied", "kinds"), [(False, set()), (True, {"tied-by-memory"})])
def test_weights_that_are_tied_by_their_memory_are_noticed(record: Record, is_tied: bool, kinds: set[str]) -> None:
    recording = record()
    model = Words()
    if is_tied:
        model.head.weight.data = model.words.weight.data
    text = torch.randint(0, 9, (128, 12))
    data = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), 16, shuffle=True)
    train(model, data, lambda scores, wanted: functional.cross_entropy(scores.flatten(0, 1), wanted.flatten()))
    assert said(recording) & {"tied-by-memory"} == kinds


@pytest.mark.parametrize(("is_copied", "kinds"), [(True, set()), (False, {"few-samples"})])
def test_samples_that_are_stored_without_a_copy_are_noticed(record: Record, is_copied: bool, kinds: set[str]) -> None:
    """A state that is changed in place, and kept many times."""
    recording = record()
    model, state = net(6, 1), torch.randn(6)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    memory: list[Tensor] = []
    for _ in range(60):
        state.normal_()
        memory.append(state.clone() if is_copied else state)
        if len(memory) >= 20:
            batch = torch.stack(memory[-20:])
            optimizer.zero_grad()
            functional.mse_loss(model(batch)[:, 0], batch.sum(1)).backward()
            optimizer.step()
    assert said(recording) & {"few-samples"} == kinds


def test_torchs_functions_have_their_own_code_again_after_a_recording(record: Record) -> None:
    looked_at = functional.cross_entropy, nn.utils.clip_grad_norm_, nn.Module.load_state_dict
    own, script = [one.__code__ for one in looked_at], torch.jit.script
    recording = record()
    train(net(), DataLoader(table(), 32), passes=1)
    assert nn.Module.load_state_dict.__code__ is not own[2]
    recording.close()
    assert [one.__code__ for one in looked_at] == own
    assert torch.jit.script is script


def test_nothing_of_ours_is_left_in_a_loss_function_after_its_first_calls(record: Record) -> None:
    own = functional.cross_entropy.__code__
    record()
    assert functional.cross_entropy.__code__ is not own
    train(net(), DataLoader(table(), 32), passes=7)
    assert functional.cross_entropy.__code__ is own


def test_a_loss_function_that_is_looked_at_stays_the_function_that_it_is(record: Record) -> None:
    before, signature, text = functional.cross_entropy, *_facts_of(functional.cross_entropy)
    record()
    assert functional.cross_entropy is before
    assert _facts_of(before) == (signature, text)
    assert pickle.loads(pickle.dumps(before)) is before
    with pytest.raises(TypeError, match=r"^cross_entropy\(\) missing 1 required positional argument: 'target'$"):
        before(torch.zeros(2, 3))  # type: ignore[call-arg]


def _facts_of(function: Callable[..., object]) -> tuple[object, str]:
    return inspect.signature(function), inspect.getsource(function)


class Handled(Tensor):
    """A tensor that has its own way of doing some functions, which it knows by what they are."""

    own: ClassVar[dict[object, str]] = {functional.cross_entropy: "own"}

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> object:
        return cls.own.get(func, "another function")


def test_a_tensor_subclass_recognises_a_loss_function_that_is_looked_at(record: Record) -> None:
    record()
    outputs = torch.zeros(2, 3).as_subclass(Handled)
    assert functional.cross_entropy(outputs, torch.tensor([0, 1])) == "own"  # type: ignore[comparison-overlap]


def test_a_loss_function_that_was_imported_earlier_is_looked_at(record: Record) -> None:
    taken = functional.cosine_embedding_loss
    recording = record()
    model, data = net(outputs=4), table()
    pairs = DataLoader(TensorDataset(data.tensors[0], data.tensors[1].float()), 32)
    train(model, pairs, lambda out, sign: taken(out[:, :2], out[:, 2:], sign))
    assert "targets-not-signs" in said(recording)


def test_what_was_compiled_as_one_graph_before_a_recording_runs_in_it(record: Record) -> None:
    """Dynamo reads the code of what a graph calls, and refuses a graph in several parts where one was asked for."""

    def clipped(outputs: Tensor, labels: Tensor, weights: list[Tensor]) -> Tensor:
        return functional.cross_entropy(outputs, labels) + nn.utils.clip_grad_norm_(weights, 1.0)

    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    compiled = torch.compile(clipped, backend="eager", fullgraph=True)
    record()
    with torch.no_grad():
        value = compiled(torch.zeros(2, 3), torch.tensor([0, 1]), [weight])
    assert float(value) == pytest.approx(1.0986 + 3**0.5, abs=1e-3)


def test_two_recordings_after_each_other_and_calls_between_them_do_no_harm(record: Record) -> None:
    own = functional.nll_loss.__code__
    for _ in range(2):
        recording = record()
        train(net(), DataLoader(table(), 32), lambda out, y: functional.nll_loss(out.log_softmax(1), y), passes=1)
        recording.close()
        assert functional.nll_loss.__code__ is own


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_script_is_made_of_torchs_own_functions(record: Record) -> None:
    class Scripted(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(x, y)

    recording = record()
    made = torch.jit.script(Scripted())
    recording.close()
    assert float(made(torch.zeros(2, 3), torch.tensor([0, 1]))) == pytest.approx(1.0986, abs=1e-3)


def test_weights_and_random_numbers_are_the_same_as_without_a_recording(record: Record) -> None:
    def outcome() -> list[Tensor]:
        torch.manual_seed(3)
        model = Recurrent(views=True)
        series = torch.randn(96, 5, 3)
        train(model, DataLoader(TensorDataset(series, (series.sum((1, 2)) > 0).long()), 16, shuffle=True))
        return [*model.state_dict().values(), torch.get_rng_state()]

    bare = outcome()
    recording = record()
    observed = outcome()
    recording.close()
    assert all(map(torch.equal, bare, observed))


def test_a_loss_function_that_a_program_keeps_is_pickled_after_many_calls(record: Record) -> None:
    record()
    kept = functional.cross_entropy
    for _ in range(100):
        kept(torch.randn(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.long)).backward()
    assert pickle.loads(pickle.dumps(kept)) is kept


def threefold(x: int) -> int:
    return 3 * x


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_class_is_scripted_with_the_names_of_its_module(record: Record) -> None:
    """`torch.jit.script` looks names up in the frame that calls it."""
    record()

    @torch.jit.script
    class Tripled:
        def __init__(self, x: int) -> None:
            self.value = threefold(x)

    assert Tripled(2).value == 6


def everything_said(recording: Recording) -> set[str]:
    """Kinds of warnings and errors, whatever they are about."""
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


def test_weights_that_move_between_two_backwards_are_not_an_accumulation(record: Record) -> None:
    recording = record()
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        for batch, answer in DataLoader(table(), 32, shuffle=True):
            functional.cross_entropy(model(batch), answer).backward()
            moves = [0.05 * weight.grad for weight in model.parameters() if weight.grad is not None]
            with torch.no_grad():
                torch._foreach_add_(list(model.parameters()), moves)
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), answer).backward()
            with torch.no_grad():
                torch._foreach_sub_(list(model.parameters()), moves)
            optimizer.step()
            optimizer.zero_grad()
    assert "accumulation-emptied" not in everything_said(recording)


def test_a_teacher_trained_before_does_not_put_its_student_into_evaluation_mode(record: Record) -> None:
    recording = record()
    teacher, student = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.Linear(16, 2)), net()
    train(teacher, DataLoader(table(), 32, shuffle=True), passes=4)
    teacher.eval()

    def loss(scores: Tensor, batch: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch).softmax(1)
        return functional.cross_entropy(scores, wanted)

    inputs = table().tensors[0]
    train(student, DataLoader(TensorDataset(inputs, inputs), 32, shuffle=True), loss, passes=8)
    assert "evaluation-mode-in-training" not in everything_said(recording)


def test_the_loss_of_another_task_does_not_make_a_classification_begin_too_high(record: Record) -> None:
    recording = record()

    def loss(scores: Tensor, answer: Tensor) -> Tensor:
        return functional.cross_entropy(scores[:, :2], answer) + functional.mse_loss(scores[:, 2], 5.0 * answer)

    train(net(outputs=3), DataLoader(table(), 32, shuffle=True), loss, passes=20)
    assert said(recording) == set()


def test_the_right_answer_may_always_stand_first(record: Record) -> None:
    recording = record()
    others = functional.normalize(torch.randn(64, 4), dim=1)

    def loss(codes: Tensor, batch: Tensor) -> Tensor:
        own, other = functional.normalize(codes, dim=1), functional.normalize(batch[:, :4], dim=1)
        scores = torch.cat([(own * other).sum(1, keepdim=True), own @ others.t()], 1)
        return functional.cross_entropy(scores, torch.zeros(len(codes), dtype=torch.long))

    inputs = table().tensors[0]
    train(net(outputs=4), DataLoader(TensorDataset(inputs, inputs), 32, shuffle=True), loss, passes=8)
    assert "sorted-labels" not in said(recording)


def test_an_easy_task_is_not_accused_of_seeing_the_answer(record: Record) -> None:
    recording = record()
    answers = torch.arange(512) % 2
    inputs = 2.0 * (2 * answers[:, None] - 1) + 0.3 * torch.randn(512, 6)
    train(net(), DataLoader(TensorDataset(inputs, answers), 32, shuffle=True), passes=10, lr=0.1)
    assert said(recording) == set()


def test_numbers_beyond_all_bounds_bring_no_warning_of_ours(record: Record) -> None:
    """NumPy warns of an overflow, which would be shown and recorded as a warning of the program's."""
    recording = record()
    model = nn.Linear(6, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    own = torch.eye(16, dtype=torch.bool)
    for step in range(6):
        given = torch.randn(16, 6, dtype=torch.float64) * 1e200
        given[0, 0] = torch.inf if step % 2 else 0.0
        outputs = model(given.clamp(-1, 1).float())
        likeness = (outputs @ outputs.T).masked_fill(own, -torch.inf)  # as of views of images: none is its own pair
        optimizer.zero_grad()
        functional.cross_entropy(likeness, torch.arange(16).roll(1)).backward()
        optimizer.step()
    alike = torch.ones(8, 8, requires_grad=True)
    functional.cross_entropy(alike, torch.arange(8).roll(1))
    scores = torch.full((20, 4, 5), 2000.0, requires_grad=True)
    functional.ctc_loss(scores, torch.ones(4, 3, dtype=torch.long), torch.full((4,), 20), torch.full((4,), 3))
    with torch.no_grad():
        functional.mse_loss(model(torch.full((16, 6), torch.inf)), torch.zeros(16, 16))
    recording.close()
    assert not recording.rows("SELECT message FROM logs WHERE logger = 'py.warnings'")
    assert not recording.rows("SELECT what, reason FROM gaps")


def test_lengths_that_lie_elsewhere_are_not_looked_at() -> None:
    given = {"input_lengths": torch.empty(2, device="meta"), "target_lengths": torch.ones(2), "targets": torch.ones(2)}
    assert not list(call_check._on_alignment(given))


def test_losses_within_transforms_of_functions_are_left_alone(record: Record) -> None:
    recording = record()
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    given, answers = torch.randn(5, 8, 6), torch.randint(0, 3, (5, 8))

    def loss(weight: Tensor, given: Tensor, answers: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(given, weight), answers)

    for _ in range(3):
        weight = model.weight.detach()
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weight, given, answers)
        assert gradients.shape == (5, 3, 6)
        optimizer.zero_grad()
        functional.cross_entropy(model(given[0]), answers[0]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(given[0])
            losses = torch.func.vmap(loss, in_dims=(None, 0, 0))(weight, given, answers)
            assert losses.shape == (5,)
        model.train()
    recording.close()
    assert not recording.rows("SELECT what, reason FROM gaps")


def test_layers_of_two_models_that_have_the_same_names_are_told_apart(record: Record) -> None:
    """An actor and a critic, each with an optimizer and a loss of its own: no loss reaches both."""
    recording = record()
    actor, critic = (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs)) for outputs in (4, 1))
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (actor, critic)]
    for _ in range(20):
        state = torch.randn(32, 8)
        choice = torch.distributions.Categorical(logits=actor(state))
        action = choice.sample()
        reward = (action == (state[:, 0] > 0).long()).float()
        gain = (reward - critic(state).squeeze(1)).detach()
        for optimizer, loss in zip(
            optimizers,
            (-(choice.log_prob(action) * gain).mean(), functional.mse_loss(critic(state).squeeze(1), reward)),
            strict=True,
        ):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert said(recording) == set()


@pytest.mark.parametrize(("dropped", "kinds"), [(0.5, set()), (0.9, {"dropout-too-strong"})])
def test_a_dropout_that_leaves_next_to_nothing_is_noticed(record: Record, dropped: float, kinds: set[str]) -> None:
    recording = record()
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Dropout(dropped), nn.Linear(32, 2))
    train(model, DataLoader(table(), 32, shuffle=True))
    assert said(recording) == kinds
