"""Sequences, maps and several terms: bugs in small trainings beside their corrected twins, and what looks like one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from recording import Recording
from torch import Tensor, nn
from torch.nn import functional

from stethos.diagnose.api import diagnose
from stethos.diagnose.finding import Severity
from stethos.observe.gradient_facts import Stillness

Record = Callable[..., Recording]
pytestmark = pytest.mark.usefixtures("unhurried")


def said(recording: Recording) -> set[str]:
    recording.close()
    return {one.kind for one in diagnose(recording.path).findings if one.severity > Severity.INFO}


def train(parameters: nn.Module, loss: Callable[[], Tensor], steps: int = 40, rate: float = 3e-3) -> None:
    optimizer = torch.optim.Adam(parameters.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


class Series(nn.Module):
    """One number of a series of 12 steps, with or without a state that the caller keeps."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, outputs: int = 1, *, first: bool = True) -> None:
        super().__init__()
        self.cell, self.head = kind(3, 8, batch_first=first), nn.Linear(8, outputs)  # type: ignore[call-arg]

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, state = self.cell(x, state)
        return self.head(h[:, -1]), state


@pytest.mark.parametrize(("first", "kinds"), [(True, set()), (False, {"samples-as-sequence"})])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_samples_taken_for_a_sequence_are_noticed_without_a_loader(
    record: Record, kind: type[nn.RNNBase], first: bool, kinds: set[str]
) -> None:
    recording, model = record(), Series(kind, first=first)

    def loss() -> Tensor:
        x = torch.randn(20, 12, 3)
        return ((model(x)[0] - x[:, :, 0].mean(1, keepdim=True)) ** 2).mean()

    train(model, loss)
    assert said(recording) & {"samples-as-sequence"} == kinds


def test_a_single_sentence_with_a_label_for_each_word_is_no_batch(record: Record) -> None:
    recording, cell, head = record(), nn.LSTM(3, 8), nn.Linear(8, 2)

    def loss() -> Tensor:
        words = torch.randn(9, 1, 3)
        return functional.cross_entropy(head(cell(words)[0][:, 0]), (words[:, 0, 0] > 0).long())

    train(nn.ModuleList([cell, head]), loss)
    assert "samples-as-sequence" not in said(recording)


def test_sequences_whose_steps_come_first_are_in_order(record: Record) -> None:
    recording, cell, head = record(), nn.LSTM(3, 8), nn.Linear(8, 1)

    def loss() -> Tensor:
        series = torch.randn(12, 20, 3)
        return functional.mse_loss(head(cell(series)[0])[:, :, 0], series[:, :, 0])

    train(nn.ModuleList([cell, head]), loss)
    assert "samples-as-sequence" not in said(recording)


@pytest.mark.parametrize(
    ("is_kept", "each", "kinds"), [(False, True, set()), (True, True, {"state-carried-over"}), (True, False, set())]
)
def test_a_state_that_is_carried_over_is_noticed_where_each_sequence_has_a_class(
    record: Record, is_kept: bool, each: bool, kinds: set[str]
) -> None:
    """A text that goes on in the next batch has a label for each of its places, and keeps its state on purpose."""
    recording, model = record(), Series(nn.GRU, 2)
    state: list[Tensor | None] = [None]

    def loss() -> Tensor:
        x = torch.randn(16, 12, 3)
        if each:
            outputs, now = model(x, state[0])
            labels = (x[:, :, 0].sum(1) > 0).long()
        else:
            h, now = model.cell(x, state[0])
            outputs, labels = model.head(h).reshape(-1, 2), (x[:, :, 0] > 0).long().reshape(-1)
        state[0] = now.detach() if is_kept else None
        return functional.cross_entropy(outputs, labels)

    train(model, loss)
    assert said(recording) & {"state-carried-over"} == kinds


@pytest.mark.parametrize(("dim", "kinds"), [(-1, set()), (1, {"softmax-over-places"})])
def test_a_softmax_over_the_places_of_a_sequence_is_noticed(record: Record, dim: int, kinds: set[str]) -> None:
    recording, words, head = record(), nn.Embedding(12, 8), nn.Linear(8, 4)

    def loss() -> Tensor:
        tokens = torch.randint(0, 12, (16, 9))
        return functional.nll_loss(
            functional.log_softmax(head(words(tokens)), dim).reshape(-1, 4), (tokens % 4).reshape(-1)
        )

    train(nn.ModuleList([words, head]), loss)
    assert said(recording) & {"softmax-over-places", "no-log-probabilities"} == kinds


class Reader(nn.Module):
    """Attends over words that may end with padding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.words, self.query = how, nn.Embedding(12, 8), nn.Linear(8, 1)
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h, is_padding = self.words(tokens), tokens == 0
        if self.how.startswith("pool"):
            hidden = ~is_padding if self.how == "pool the padding" else is_padding
            shares = self.query(h).squeeze(-1).masked_fill(hidden, -1e9).softmax(-1)
            return self.head((shares[:, :, None] * h).sum(1))
        return self.head(self.layer(h, src_key_padding_mask=is_padding if self.how == "masked" else None)[:, 0])


@pytest.mark.parametrize(
    ("how", "is_padded", "kinds"),
    [
        ("masked", True, set()), ("bare", True, {"padding-seen"}), ("bare", False, set()), ("pool", True, set()),
        ("pool the padding", True, {"inverted-mask"}),
    ],
)  # fmt: skip
def test_padding_that_attention_sees_is_noticed(record: Record, how: str, is_padded: bool, kinds: set[str]) -> None:
    recording, model = record(), Reader(how)

    def loss() -> Tensor:
        tokens = torch.randint(1, 12, (16, 14))
        if is_padded:
            tokens[torch.arange(14) >= torch.randint(3, 14, (16, 1))] = 0
        return functional.cross_entropy(model(tokens), tokens[:, 0] % 2)

    train(model, loss)
    assert said(recording) & {"padding-seen", "inverted-mask"} == kinds


def _plain(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels)


def _masked(outputs: Tensor, labels: Tensor) -> Tensor:
    mask = (labels > 0).float()
    return (functional.cross_entropy(outputs, labels, reduction="none") * mask).sum() / mask.sum()


def _picked(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")[labels > 0].mean()


def _weighed(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, torch.tensor([0.0, 1.0, 1.0]))


def _at_random(outputs: Tensor, labels: Tensor) -> Tensor:
    mask = (torch.rand(labels.shape) > 0.5).float()
    return (functional.cross_entropy(outputs, labels, reduction="none") * mask).sum() / mask.sum()


@pytest.mark.parametrize(
    ("loss", "kinds"),
    [
        (_plain, set()), (_masked, {"class-left-out"}), (_picked, {"class-left-out"}), (_weighed, {"class-left-out"}),
        (_at_random, set()),
    ],
)  # fmt: skip
def test_a_class_of_a_picture_that_the_loss_leaves_out_is_noticed(
    record: Record, loss: Callable[[Tensor, Tensor], Tensor], kinds: set[str]
) -> None:
    recording, model = record(), nn.Conv2d(1, 3, 3, padding=1)

    def on_a_batch() -> Tensor:
        labels = torch.zeros(8, 8, 8, dtype=torch.long)
        labels[:, :4, :4] = torch.randint(1, 3, (8, 1, 1))
        return loss(model(labels[:, None] + 0.1 * torch.randn(8, 1, 8, 8)), labels)

    train(model, on_a_batch)
    assert said(recording) & {"class-left-out"} == kinds


@pytest.mark.parametrize(
    ("is_trained", "has_labels", "kinds"),
    [
        (False, False, set()), (True, False, {"target-is-trained"}), (True, True, set()),
    ],
)  # fmt: skip
def test_a_teacher_that_a_divergence_trains_along_is_noticed(
    record: Record, is_trained: bool, has_labels: bool, kinds: set[str]
) -> None:
    """Two models that teach each other learn from labels as well."""
    recording, student, teacher = record(), nn.Linear(6, 3), nn.Linear(6, 3)

    def loss() -> Tensor:
        x = torch.randn(32, 6)
        labels = x[:, :3].argmax(1)
        goal = teacher(x) if is_trained else teacher(x).detach()
        outputs = student(x)
        found = functional.kl_div(
            functional.log_softmax(outputs / 2, 1), functional.softmax(goal / 2, 1), reduction="batchmean"
        ) * 4 + functional.cross_entropy(outputs, labels)  # fmt: skip
        return found + functional.cross_entropy(goal, labels) if has_labels else found

    train(nn.ModuleList([student, teacher]), loss)
    assert said(recording) & {"target-is-trained"} == kinds


@pytest.mark.parametrize(
    ("features", "beta", "kinds"),
    [
        (64, 1.0, {"mixed-reductions"}), (64, 0.01, set()), (4, 1.0, set()),
    ],
)  # fmt: skip
def test_a_divergence_that_outweighs_a_mean_error_is_noticed(
    record: Record, features: int, beta: float, kinds: set[str]
) -> None:
    recording, encoder, decoder = record(), nn.Linear(features, 8), nn.Linear(4, features)

    def loss() -> Tensor:
        x = torch.rand(16, features)
        mean, spread = encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = -0.5 * torch.mean(torch.sum(1 + spread - mean.pow(2) - spread.exp(), dim=1))
        return functional.mse_loss(decoder(z), x) + beta * divergence

    train(nn.ModuleList([encoder, decoder]), loss)
    assert said(recording) & {"mixed-reductions"} == kinds


@pytest.mark.parametrize(("reduction", "kinds"), [("batchmean", set()), ("sum", {"mixed-reductions"})])
def test_a_sum_that_is_divided_by_its_samples_is_a_mean(record: Record, reduction: str, kinds: set[str]) -> None:
    recording, student, teacher = record(), nn.Linear(6, 4), nn.Linear(6, 4)

    def loss() -> Tensor:
        x = torch.randn(16, 6)
        outputs, goal = functional.log_softmax(student(x), 1), functional.log_softmax(teacher(x).detach(), 1)
        soft = functional.kl_div(outputs, goal, reduction=reduction, log_target=True)
        return 16 * soft + functional.mse_loss(outputs, goal)

    train(student, loss)
    assert said(recording) & {"mixed-reductions"} == kinds


@pytest.mark.parametrize(("frozen", "kinds"), [(0, set()), (2, {"head-frozen"})])
def test_a_head_that_is_frozen_after_a_first_training_is_noticed(record: Record, frozen: int, kinds: set[str]) -> None:
    recording = record()
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def loss() -> Tensor:
        x = torch.randn(32, 6)
        return functional.cross_entropy(model(x), (x[:, 0] > 0).long())

    train(model, loss, 60)
    for one in (model[4 if frozen else 0]).parameters():
        one.requires_grad_(False)
    train(model, loss, 600)
    assert said(recording) & {"head-frozen"} == kinds


@pytest.mark.parametrize(("sign", "kinds"), [(-1, set()), (1, {"policy-sign"})])
def test_a_policy_that_avoids_its_rewards_is_noticed(record: Record, sign: int, kinds: set[str]) -> None:
    recording, policy = record(), nn.Linear(3, 2)

    def loss() -> Tensor:
        choice = torch.distributions.Categorical(logits=policy(torch.randn(16, 3)))
        action = choice.sample()
        return sign * (choice.log_prob(action) * action.float()).mean()

    optimizer = torch.optim.Adam(policy.parameters(), 0.01)
    for _ in range(40):
        rewarded = loss()
        optimizer.zero_grad()
        rewarded.backward()
        optimizer.step()
    assert said(recording) & {"policy-sign"} == kinds


@pytest.mark.parametrize("keeps", [False, True])
def test_a_teacher_whose_own_optimizer_is_kept_is_not_cut_off(record: Record, keeps: bool) -> None:
    recording, teacher, student = record(), nn.Linear(6, 3), nn.Linear(6, 3)
    before = torch.optim.Adam(teacher.parameters(), 0.01)
    after = torch.optim.Adam(student.parameters(), 0.01)
    for model, optimizer in ((teacher, before), (student, after)):
        if not keeps and model is student:
            before = None  # type: ignore[assignment]
        for _ in range(60):
            x = torch.randn(32, 6)
            goal = x[:, :3].argmax(1) if model is teacher else teacher(x).detach().argmax(1)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), goal).backward()
            optimizer.step()
    assert said(recording) & {"cut-off", "other-model"} == set()


def _of_each(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets)


def _of_means(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.mean() - targets.mean()) ** 2


def _of_means_by_torch(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs.mean(), targets.mean())


def _with_balance(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets) + (outputs.mean() - targets.mean()) ** 2


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (_of_each, set()), (_of_means, {"loss-of-means"}), (_of_means_by_torch, {"loss-of-means"}),
        (_with_balance, set()),
    ],
)  # fmt: skip
def test_an_error_of_means_is_noticed(
    record: Record, error: Callable[[Tensor, Tensor], Tensor], kinds: set[str]
) -> None:
    recording, model = record(), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss() -> Tensor:
        x = torch.randn(32, 6)
        return error(model(x), x[:, :1])

    train(model, loss)
    assert said(recording) & {"loss-of-means"} == kinds


@pytest.mark.parametrize(("is_late", "kinds"), [(False, set()), (True, {"gradients-of-another-loss"})])
def test_gradients_that_another_loss_has_left_are_noticed(record: Record, is_late: bool, kinds: set[str]) -> None:
    recording, maker, critic = record(), nn.Linear(4, 2), nn.Linear(2, 1)
    of_maker, of_critic = (torch.optim.Adam(one.parameters(), 0.01) for one in (maker, critic))
    for _ in range(40):
        made = maker(torch.randn(16, 4))
        if not is_late:
            of_critic.zero_grad()
        (critic(made.detach()).mean() - critic(torch.randn(16, 2) + 1).mean()).backward()
        of_critic.step()
        if is_late:
            of_critic.zero_grad()
        of_maker.zero_grad()
        (-critic(made).mean()).backward()
        of_maker.step()
    assert said(recording) & {"gradients-of-another-loss"} == kinds


class Stacked(nn.Module):
    """Two layers, of which the last one's state is meant."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place, self.cell, self.head = place, nn.LSTM(3, 8, num_layers=2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[1][0][self.place])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("place", "is_found"), [(-1, False), (0, True)])
def test_a_layer_whose_output_is_not_used_is_noticed(record: Record, place: int, is_found: bool) -> None:
    recording, model = record(), Stacked(place)

    def loss() -> Tensor:
        x = torch.randn(16, 10, 3)
        return functional.cross_entropy(model(x), (x[:, :, 0].sum(1) > 0).long())

    train(model, loss, 60)
    assert bool(said(recording) & {"cut-off", "never-a-gradient", "frozen-layers"}) == is_found


class Rebinding(torch.optim.Optimizer):
    """Changes its weights, or only the names that it has for them."""

    def __init__(self, parameters: object, *, in_place: bool) -> None:
        super().__init__(parameters, {"lr": 0.05})  # type: ignore[arg-type]
        self.in_place = in_place

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for weight in self.param_groups[0]["params"]:
            if self.in_place:
                weight -= 0.05 * weight.grad
            else:
                weight = weight - 0.05 * weight.grad  # the bug


@pytest.mark.parametrize(("in_place", "kinds"), [(True, set()), (False, {"changes-nothing"})])
def test_steps_that_change_nothing_are_noticed(record: Record, in_place: bool, kinds: set[str]) -> None:
    recording, model = record(), nn.Linear(6, 1)
    optimizer = Rebinding(model.parameters(), in_place=in_place)
    for _ in range(60):
        x = torch.randn(32, 6)
        optimizer.zero_grad()
        functional.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()
    assert said(recording) & {"changes-nothing"} == kinds


@pytest.mark.parametrize(("ahead", "kinds"), [(0, set()), (-1, {"leaking-labels"}), (-12, set())])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_window_that_holds_its_target_is_noticed(
    record: Record, kind: type[nn.RNNBase], ahead: int, kinds: set[str]
) -> None:
    """A smooth series is nearly the same at the next place, which is no leak; to recall the first place is a task."""
    recording, model = record(), nn.ModuleList([kind(1, 8, batch_first=True), nn.Linear(8, 1)])  # type: ignore[call-arg]
    series = (torch.arange(400) * 0.02).sin()

    def loss() -> Tensor:
        first = torch.randint(0, 380, (32, 1))
        windows = series[first + torch.arange(12)][:, :, None]
        return functional.mse_loss(model[1](model[0](windows)[0][:, -1]), series[first + 12 + ahead])

    train(model, loss)
    assert said(recording) & {"leaking-labels"} == kinds


@pytest.mark.parametrize(("dim", "kinds"), [(1, set()), (0, {"softmax-over-samples"})])
@pytest.mark.parametrize("is_product", [False, True])
def test_shares_that_do_not_add_up_over_what_they_weigh_are_noticed(
    record: Record, is_product: bool, dim: int, kinds: set[str]
) -> None:
    recording, score, head = record(), nn.Linear(6, 1), nn.Linear(6, 2)

    def loss() -> Tensor:
        memory = torch.randn(16, 9, 6)
        shares = torch.softmax(score(memory).squeeze(2), dim)
        if is_product:
            context = torch.bmm(shares.unsqueeze(1), memory).squeeze(1)
        else:
            context = (shares.unsqueeze(2) * memory).sum(1)
        return functional.cross_entropy(head(context).repeat(3, 1), (memory[:, 0, 0] > 0).long().repeat(3))

    train(nn.ModuleList([score, head]), loss)
    assert said(recording) & {"softmax-over-samples"} == kinds


@pytest.mark.parametrize(
    ("how", "is_padded", "kinds"),
    [("last", True, {"last-step-is-padding"}), ("last", False, set()), ("own", True, set())],
)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_last_step_that_is_padding_is_noticed(
    record: Record, kind: type[nn.RNNBase], how: str, is_padded: bool, kinds: set[str]
) -> None:
    recording, words, head = record(), nn.Embedding(12, 8), nn.Linear(8, 2)
    cell = kind(8, 8, batch_first=True)  # type: ignore[call-arg]

    def loss() -> Tensor:
        tokens, lengths = torch.randint(1, 12, (16, 14)), torch.randint(3, 14, (16,))
        if is_padded:
            tokens[torch.arange(14) >= lengths[:, None]] = 0
        states = cell(words(tokens))[0]
        last = states[:, -1] if how == "last" else states[torch.arange(16), lengths - 1]
        return functional.cross_entropy(head(last), tokens[:, 0] % 2)

    train(nn.ModuleList([words, cell, head]), loss)
    assert said(recording) & {"last-step-is-padding", "padding-seen"} == kinds


@pytest.mark.parametrize(("momentum", "kinds"), [(0.1, set()), (0.99, {"statistics-of-last-batch"}), (None, set())])
def test_norms_that_forget_all_but_the_last_batch_are_noticed(
    record: Record, momentum: float | None, kinds: set[str]
) -> None:
    recording = record()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU(), nn.Linear(8, 2))

    def loss() -> Tensor:
        x = torch.randn(32, 6)
        return functional.cross_entropy(model(x), (x[:, 0] > 0).long())

    train(model, loss)
    assert said(recording) & {"statistics-of-last-batch"} == kinds


@pytest.mark.parametrize(("every", "kinds"), [(0, set()), (1, {"seeded-each-step"}), (10, set())])
def test_a_seed_that_is_set_at_every_step_is_noticed(record: Record, every: int, kinds: set[str]) -> None:
    recording, model, step = record(), nn.Linear(6, 2), [0]

    def loss() -> Tensor:
        step[0] += 1
        if every and step[0] % every == 0:
            torch.manual_seed(3)
        x = torch.randn(32, 6)
        return functional.cross_entropy(model(x), (x[:, 0] > 0).long())

    train(model, loss)
    found = said(recording)
    assert found & {"seeded-each-step"} == kinds
    assert "unrelated-labels" not in found


@pytest.mark.parametrize(("is_kept", "kinds"), [(False, set()), (True, {"evaluated-on-training-data"})])
def test_a_model_that_goes_on_from_fold_to_fold_is_noticed(record: Record, is_kept: bool, kinds: set[str]) -> None:
    """Each fold is scaled by its own statistics, so no sample is the same again."""
    recording = record()
    x = torch.randn(320, 6)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    for fold in range(4):
        held = torch.arange(320) % 4 == fold
        if not is_kept:
            model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        scaled = (x - x[~held].mean(0)) / x[~held].std(0)
        for _ in range(12):
            model.train()
            for part in torch.randperm(240).split(40):
                optimizer.zero_grad()
                functional.cross_entropy(model(scaled[~held][part]), y[~held][part]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                functional.cross_entropy(model(scaled[held]), y[held])
    assert said(recording) & {"evaluated-on-training-data"} == kinds


def test_only_a_weight_of_the_same_size_is_taken_for_itself() -> None:
    """An id may be another weight's, once the first one is gone."""
    still, weight = Stillness(), torch.zeros(16, requires_grad=True)
    weight.grad = torch.ones(16)
    assert (still.note([], 0), still.note([weight], 1), still.note([weight], 2)) == (None, None, True)
    still._known = {id(weight): still._known[id(weight)][:4]}
    assert still.note([weight], 3) is None
    weight.data += 1
    assert still.note([weight], 4) is False
