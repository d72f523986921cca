"""What a loss's graph tells about its batch, for the ways in which people write models and losses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from stethos.federate.batch_rows import rows_of
from stethos.federate.loss_batch import batch_of

X, Y, V = torch.randn(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), torch.randn(8)
TOKENS = torch.randint(1, 50, (8, 12))
NET = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))
WEIGHT = torch.randn(4, 3, requires_grad=True)


class Words(nn.Module):
    """Embeddings with places, a transformer, a mean: or a recurrent layer instead."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.words, self.places, self.layer, self.head = (
            nn.Embedding(50, 16),
            nn.Embedding(12, 16),
            layer,
            nn.Linear(16, 3),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.layer(self.words(tokens) + self.places(torch.arange(12)))
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(1))


def image_net(images: Tensor) -> Tensor:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))(images)


def deep(x: Tensor) -> Tensor:
    hidden = NET(x)
    for _ in range(400):
        hidden = hidden + torch.tanh(hidden)
    return hidden


FROZEN, DOWN, UP = nn.Linear(4, 3).requires_grad_(False), nn.Linear(4, 2, bias=False), nn.Linear(2, 3, bias=False)
IMAGES = torch.randn(8, 1, 8, 8)
NORMED = nn.Sequential(weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
SPECTRAL = nn.Sequential(spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))
PRUNED = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
prune.random_unstructured(PRUNED[0], "weight", 0.5)
WIDE = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))  # a multiple of the batch's rows, and larger
PULL = [torch.randn_like(one) for one in WIDE.parameters()]
MASK = torch.ones(8, 16)
LOSSES: dict[str, tuple[Callable[[], Tensor], Tensor | None, Tensor | None]] = {
    "cross entropy": (lambda: F.cross_entropy(NET(X), Y), X, Y),
    "proximal": (lambda: F.cross_entropy(NET(X), Y) + sum(((p - 1) ** 2).sum() for p in NET.parameters()), X, Y),
    "smoothed": (lambda: F.cross_entropy(NET(X), Y, label_smoothing=0.1), X, Y),
    "scaled": (lambda: F.cross_entropy(NET(X), Y) * 1024, X, Y),
    "images": (lambda: F.cross_entropy(image_net(IMAGES), Y), IMAGES, Y),
    "adapter": (lambda: F.cross_entropy(FROZEN(X) + UP(DOWN(X)), Y), X, Y),
    "by index": (lambda: -F.log_softmax(X @ WEIGHT, 1)[range(8), Y].mean(), X, Y),
    "by gather": (lambda: -F.log_softmax(X @ WEIGHT, 1).gather(1, Y[:, None]).mean(), X, Y),
    "one-hot": (lambda: -(F.log_softmax(X @ WEIGHT, 1) * F.one_hot(Y, 3)).sum(1).mean(), X, Y),
    "regression": (lambda: F.mse_loss(NET(X)[:, 0], V), X, V),
    "huber": (lambda: F.smooth_l1_loss(NET(X)[:, 0], V), X, V),
    "yes or no": (lambda: F.binary_cross_entropy_with_logits(NET(X)[:, 0], (Y > 0).float()), X, (Y > 0).float()),
    "weight norm": (lambda: F.cross_entropy(NORMED(X), Y), X, Y),
    "spectral norm": (lambda: F.cross_entropy(SPECTRAL(X), Y), X, Y),
    "pruned": (lambda: F.cross_entropy(PRUNED(X), Y), X, Y),
    "linear penalty": (
        lambda: F.cross_entropy(WIDE(X), Y)
        - sum((one * own).sum() for one, own in zip(WIDE.parameters(), PULL, strict=True)),
        X, Y,
    ),
    "masked": (lambda: F.cross_entropy(WIDE[2](WIDE[0](X) * MASK), Y), X, Y),
    "deep": (lambda: F.cross_entropy(deep(X), Y), X, Y),
    "no labels": (lambda: NET(X).square().sum().sqrt(), X, None),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_inputs_and_labels_are_those_that_were_given(name: str) -> None:
    make, inputs, labels = LOSSES[name]
    found = batch_of(make())
    assert found is not None and found.rows == 8
    assert found.inputs is not None and inputs is not None and torch.equal(found.inputs, inputs)
    if labels is None:
        assert found.target in (None, "residuals")
    else:
        assert found.labels is not None and torch.equal(found.labels.reshape(-1), labels)


@pytest.mark.parametrize(
    "layer",
    [
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        nn.LSTM(16, 16, batch_first=True),
        nn.GRU(16, 16, batch_first=True),
    ],
)
def test_tokens_are_found_below_any_layer_and_places_are_not_taken_for_them(layer: nn.Module) -> None:
    found = batch_of(F.cross_entropy(Words(layer)(TOKENS), Y))
    assert found is not None and found.tokens is not None and torch.equal(found.tokens, TOKENS)


@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("is_batch_first", [True, False])
@pytest.mark.parametrize("steps", [6, 8])  # as many steps as samples, too
def test_a_recurrent_layer_has_a_row_per_sample_whatever_order_it_computes_in(
    layer: type[nn.RNN | nn.LSTM | nn.GRU], is_batch_first: bool, steps: int
) -> None:
    series = torch.randn(8, steps, 4)
    hidden, _ = layer(4, 5, batch_first=is_batch_first)(series if is_batch_first else series.transpose(0, 1))
    found = batch_of(F.cross_entropy(nn.Linear(5, 3)(hidden.mean(1 if is_batch_first else 0)), Y))
    assert found is not None and found.inputs is not None and torch.equal(found.inputs.reshape(8, steps, 4), series)


def test_a_bag_of_tokens_comes_with_its_offsets() -> None:
    found = batch_of(F.cross_entropy(nn.EmbeddingBag(50, 3)(TOKENS), Y))
    assert found is not None and found.tokens is not None and found.offsets is not None
    assert torch.equal(found.tokens, TOKENS.reshape(-1)) and found.offsets.tolist() == list(range(0, 96, 12))


def test_a_language_model_has_tokens_and_no_label_per_sample() -> None:
    answers = nn.Linear(16, 50)(nn.Embedding(50, 16)(TOKENS)).reshape(-1, 50)
    found = batch_of(F.cross_entropy(answers, TOKENS.reshape(-1)))
    assert found is not None and found.rows == 8 and found.labels is None


def test_what_a_checkpoint_would_have_to_compute_again_is_left_alone() -> None:
    calls = []
    layer = nn.Linear(4, 3)

    def part(x: Tensor) -> Tensor:
        calls.append(1)
        return layer(x)

    loss = F.cross_entropy(checkpoint(part, X, use_reentrant=False), Y)
    found = batch_of(loss)
    assert len(calls) == 1 and found is not None and found.inputs is None
    loss.backward()
    assert len(calls) == 2 and layer.weight.grad is not None


def test_a_tensor_without_a_graph_is_no_batch() -> None:
    assert batch_of(torch.ones(())) is None and batch_of(3.0) is None


def test_losses_of_the_same_operations_have_the_same_graph_and_others_have_not() -> None:
    plain = batch_of(F.cross_entropy(WIDE(X), Y))
    fewer_rows = batch_of(F.cross_entropy(WIDE(X[:3]), Y[:3]))
    twice = batch_of(F.cross_entropy(torch.softmax(WIDE(X), 1), Y))
    dropped = batch_of(F.cross_entropy(WIDE[2](F.dropout(WIDE[0](X), 0.5)), Y))
    halved = batch_of(F.cross_entropy(WIDE(X).to(torch.bfloat16), Y))
    assert plain is not None and fewer_rows is not None and twice is not None
    assert dropped is not None and halved is not None
    assert plain.graph == fewer_rows.graph == halved.graph
    assert len({plain.graph, twice.graph, dropped.graph}) == 3
    gru, head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)
    lengths = [batch_of(F.cross_entropy(head(gru(torch.randn(8, size, 4))[0][:, -1]), Y)) for size in (5, 9)]
    assert lengths[0] is not None and lengths[1] is not None and lengths[0].graph == lengths[1].graph


JOBS, HOMES = torch.randint(6, (8, 2)), nn.ModuleList([nn.Embedding(6, 3), nn.Embedding(6, 2)])


def looked_up() -> list[Tensor]:
    return [home(JOBS[:, place]) for place, home in enumerate(HOMES)]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_numbers_beside_categories_are_seen_with_them(order: tuple[int, ...]) -> None:
    parts = [*looked_up(), X]
    found = batch_of(F.cross_entropy(nn.Linear(9, 3)(torch.cat([parts[one] for one in order], -1)), Y))
    assert found is not None and found.tokens is None and found.inputs is not None and found.labels is not None
    assert torch.equal(found.inputs[:, :4], X)
    assert {tuple(one) for one in found.inputs[:, 4:].T.tolist()} == {tuple(one) for one in JOBS.T.tolist()}


def test_numbers_that_are_normed_first_are_seen_beside_a_category_too() -> None:
    joint = torch.cat([looked_up()[0], nn.BatchNorm1d(4)(X)], 1)
    found = batch_of(F.cross_entropy(nn.Linear(7, 3)(joint), Y))
    assert found is not None and found.inputs is not None
    assert torch.equal(found.inputs, torch.cat([X, JOBS[:, :1].float()], 1))


def test_categories_of_different_columns_are_different_tokens() -> None:
    users, items = nn.Embedding(6, 4), nn.Embedding(6, 4)
    found = batch_of(F.mse_loss((users(JOBS[:, 0]) * items(JOBS[:, 1])).sum(1), V))
    assert found is not None and found.inputs is None and found.tokens is not None
    assert found.tokens.shape == (8, 2) and not set(found.tokens[:, 0].tolist()) & set(found.tokens[:, 1].tolist())
    assert {tuple(one) for one in (found.tokens // 2).T.tolist()} == {tuple(one) for one in JOBS.T.tolist()}


def test_several_answers_of_yes_and_no_are_numbers_to_be_predicted() -> None:
    tags = (torch.randn(8, 3) > 0).float()
    found = batch_of(F.binary_cross_entropy_with_logits(NET(X), tags))
    assert found is not None and (rows := rows_of(found, 8)) is not None
    assert rows.labels is None and rows.values is not None and rows.values.tolist() == tags.tolist()
