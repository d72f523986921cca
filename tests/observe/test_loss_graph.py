"""What is read from the graph of a loss: each mistake, and its correct twin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from stethos.observe.loss_graph import read_loss_graph

X, Y = torch.randn(8, 5), torch.randint(0, 3, (8,))
THREE, ONE = nn.Linear(5, 3), nn.Linear(5, 1)
ONE_HOT = functional.one_hot(Y, 3).float()
COLUMN, ROW = torch.randn(8, 1), torch.randn(8)

WRONG: dict[str, tuple[str, Callable[[], torch.Tensor]]] = {
    "softmax twice": ("softmax-before-logits", lambda: functional.cross_entropy(THREE(X).softmax(1), Y)),
    "sigmoid twice": (
        "sigmoid-before-logits",
        lambda: functional.binary_cross_entropy_with_logits(ONE(X).sigmoid(), COLUMN.sigmoid()),
    ),
    "relu": ("relu-before-logits", lambda: functional.cross_entropy(functional.relu(THREE(X)), Y)),
    "raw outputs": ("no-log-probabilities", lambda: functional.nll_loss(THREE(X), Y)),
    "no logarithm": ("no-log-probabilities", lambda: functional.nll_loss(THREE(X).softmax(1), Y)),
    "over the batch": ("softmax-over-batch", lambda: functional.nll_loss(functional.log_softmax(THREE(X), 0), Y)),
    "one class": ("one-class", lambda: functional.cross_entropy(ONE(X), torch.zeros(8, dtype=torch.long))),
    "mse": ("broadcast-loss", lambda: functional.mse_loss(ONE(X), ROW)),
    "l1": ("broadcast-loss", lambda: functional.l1_loss(ONE(X), ROW)),
    "by hand": ("broadcast-loss", lambda: ((ONE(X) - ROW) ** 2).mean()),
    "by hand, squeezed": ("broadcast-loss", lambda: ((ONE(X).squeeze(1) - COLUMN) ** 2).mean()),
    "log of softmax": ("log-of-shares", lambda: functional.nll_loss(THREE(X).softmax(1).log(), Y)),
    "log of softmax by hand": ("log-of-shares", lambda: -(ONE_HOT * THREE(X).softmax(1).log()).sum(1).mean()),
    "log of shares by hand": (
        "log-of-shares",
        lambda: -(ONE_HOT * (THREE(X).exp() / THREE(X).exp().sum(1, keepdim=True)).log()).sum(1).mean(),
    ),
    "log of what is left": ("log-of-shares", lambda: -(1 - ONE(X).sigmoid()).log().mean()),
    "leaf": ("loss-is-a-leaf", lambda: torch.tensor(1.0, requires_grad=True)),
    "targets": (
        "targets-out-of-range",
        lambda: functional.binary_cross_entropy_with_logits(ONE(X), COLUMN.abs() + 1.5),
    ),
}
RIGHT: dict[str, Callable[[], torch.Tensor]] = {
    "cross entropy": lambda: functional.cross_entropy(THREE(X), Y),
    "smoothed": lambda: functional.cross_entropy(THREE(X), Y, label_smoothing=0.1),
    "scaled": lambda: 1024 * functional.cross_entropy(THREE(X), Y),
    "log-softmax and nll": lambda: functional.nll_loss(functional.log_softmax(THREE(X), -1), Y),
    "sigmoid and bce": lambda: functional.binary_cross_entropy(ONE(X).sigmoid(), COLUMN.sigmoid()),
    "logits": lambda: functional.binary_cross_entropy_with_logits(ONE(X), COLUMN.sigmoid()),
    "mse": lambda: functional.mse_loss(ONE(X), COLUMN),
    "mse of rows": lambda: functional.mse_loss(ONE(X).squeeze(1), ROW),
    "by hand": lambda: ((ONE(X) - COLUMN) ** 2).mean(),
    "log of softmax, kept from 0": lambda: -(ONE_HOT * (THREE(X).softmax(1) + 1e-8).log()).sum(1).mean(),
    "any": lambda: THREE(X).sum(),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name: str) -> None:
    kind, loss_of = WRONG[name]
    assert [found for found, _ in read_loss_graph(loss_of()).remarks] == [kind]


@pytest.mark.parametrize("name", RIGHT)
def test_a_correct_loss_is_not_remarked_on(name: str) -> None:
    assert read_loss_graph(RIGHT[name]()).remarks == []


def test_inputs_labels_and_leaves_are_found() -> None:
    graph = read_loss_graph(functional.cross_entropy(THREE(X), Y))
    assert graph.inputs is not None and torch.equal(graph.inputs, X)
    assert graph.labels is not None and torch.equal(graph.labels, Y)
    assert {id(leaf) for leaf in graph.leaves} == set(map(id, THREE.parameters()))


def test_words_are_found_where_an_embedding_reads_them() -> None:
    table, words = nn.Embedding(10, 5), torch.randint(0, 10, (8,))
    graph = read_loss_graph(functional.cross_entropy(THREE(table(words)), Y))
    assert graph.inputs is not None and torch.equal(graph.inputs, words)


def test_a_checkpointed_part_is_not_run_again() -> None:
    calls: list[int] = []

    def part(inputs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return THREE(inputs)  # type: ignore[no-any-return]

    loss = functional.cross_entropy(checkpoint(part, X, use_reentrant=False), Y)
    graph = read_loss_graph(loss)
    assert graph.function == "NllLoss" and graph.inputs is None and len(calls) == 1
    loss.backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("is_alone", "loss_of"),
    [
        (True, lambda: functional.cross_entropy(THREE(X), Y)),
        (True, lambda: -3 * ((ONE(X) - COLUMN) ** 2).mean() / 2),
        (True, lambda: functional.mse_loss(ONE(X), COLUMN) + 0.1 * THREE(X).pow(2).sum()),
        (False, lambda: functional.mse_loss(ONE(X), COLUMN) - 0.1 * THREE(X).softmax(1).log().mean()),
        (False, lambda: ((ONE(X) - COLUMN) ** 2 / ONE.weight.exp().sum()).mean() + ONE.weight.sum()),
    ],
    ids=["classes", "scaled, with another sign", "with a penalty", "with an entropy", "a likelihood"],
)
def test_whether_the_loss_is_its_functions_and_nothing_else(
    is_alone: bool, loss_of: Callable[[], torch.Tensor]
) -> None:
    graph = read_loss_graph(loss_of())
    assert graph.function and graph.is_alone is is_alone


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("is_masked", [False, True])
def test_whether_attention_looks_ahead(dropout: float, is_masked: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5) if is_masked else None
    graph = read_loss_graph(layer(torch.randn(3, 5, 8), src_mask=mask).sum())
    assert graph.ahead == [(5, not is_masked)]
