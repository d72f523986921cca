"""Evidence from inside where batches, labels or clients are not what a classifier's are: nobody is accused of that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import stethos
from stethos.store.run import Run

Step = Callable[[nn.Module, int], Tensor]  # the loss of a batch of a client


def chance(client: int, number: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * number + client)


def federate(
    directory: Path, model: nn.Module, step: Step, *, clients: int = 6, rounds: int = 3,
    present: Callable[[int, int], bool] = lambda _client, _round: True, reports: bool = True,
) -> Run:  # fmt: skip
    with stethos.federation("odd", model=model, dir=directory, run="r", progress=False) as fed:
        for rnd in fed.rounds(rounds):
            states = []
            for client in range(clients):
                if not present(client, rnd.number):
                    continue
                with rnd.client(f"c{client}") as site:
                    local = copy.deepcopy(model)
                    optimizer = torch.optim.SGD(local.parameters(), lr=0.05)
                    for _ in range(3):
                        optimizer.zero_grad()
                        step(local, client).backward()
                        optimizer.step()
                    if reports:
                        site.update(local.state_dict(), samples=24)
                        states.append(local.state_dict())
            if states:
                model.load_state_dict({key: sum(one[key] for one in states) / len(states) for key in states[0]})
    return fed.run()


def data(client: int, width: int = 5) -> Tensor:
    return torch.randn(24, width, generator=chance(client))


def regression(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    return nn.functional.mse_loss(model(x)[:, 0], x.sum(1))


def residuals_by_hand(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    return ((model(x)[:, 0] - x.sum(1)) ** 2).mean()


def one_class(model: nn.Module, client: int) -> Tensor:
    return nn.functional.cross_entropy(model(data(client)), torch.ones(24, dtype=torch.long))


def one_feature(model: nn.Module, client: int) -> Tensor:
    x = data(client, 1)
    return nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())


def soft_labels(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    return nn.functional.cross_entropy(model(x), torch.softmax(x[:, :3], 1))


def float_labels(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], torch.sigmoid(x[:, 0]))


def several_losses(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    said = model(x)
    return nn.functional.cross_entropy(said[:, :2], (x[:, 0] > 0).long()) + nn.functional.mse_loss(said[:, 2], x[:, 1])


def no_labels(model: nn.Module, client: int) -> Tensor:
    x = data(client)
    return (model(x) ** 2).sum(1).log1p().mean()


def stream(model: nn.Module, client: int) -> Tensor:
    """Samples that never come again."""
    x = torch.randn(24, 5)
    return nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())


@pytest.mark.parametrize(
    ("step", "width", "outputs"),
    [
        (regression, 5, 1), (residuals_by_hand, 5, 1), (one_class, 5, 3), (one_feature, 1, 2), (soft_labels, 5, 3),
        (float_labels, 5, 1), (several_losses, 5, 3), (no_labels, 5, 3), (stream, 5, 2),
    ],
)  # fmt: skip
def test_whatever_is_learnt_nobody_is_accused_and_nothing_fails(
    tmp_path: Path, step: Step, width: int, outputs: int
) -> None:
    torch.manual_seed(3)
    run = federate(tmp_path, nn.Linear(width, outputs), step)
    check(run)


class Words(nn.Module):
    """Next tokens: a label for every token, and none for a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.next = nn.Embedding(12, 6), nn.Linear(6, 12)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.next(self.words(tokens))


def language(model: nn.Module, client: int) -> Tensor:
    tokens = torch.randint(0, 12, (8, 7), generator=chance(client))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])


def test_a_label_for_every_token_is_no_fault(tmp_path: Path) -> None:
    torch.manual_seed(3)
    check(federate(tmp_path, Words(), language))


class Bag(nn.Module):
    """Classifies bags of tokens, or what a dict of them holds."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.size, self.head = nn.EmbeddingBag(40, 6), nn.Linear(2, 6), nn.Linear(6, 2)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        hidden = self.words(batch["tokens"], batch["offsets"])
        return self.head(hidden + self.size(batch["size"]) if "size" in batch else hidden)


def ragged(samples: list[list[int]]) -> dict[str, Tensor]:
    lengths = torch.tensor([0, *map(len, samples)])
    return {"tokens": torch.tensor([one for sample in samples for one in sample]), "offsets": lengths.cumsum(0)[:-1]}


def few_words(client: int, words: int = 3) -> list[list[int]]:
    """Samples of one or two of a few words: most of them come again and again, the fewer the words the more."""
    draw = chance(client)
    lengths = torch.randint(1, 3, (24,), generator=draw).tolist()
    return [torch.randint(0, words, (length,), generator=draw).tolist() for length in lengths]


def lists(model: nn.Module, client: int) -> Tensor:
    samples = few_words(client)
    return nn.functional.cross_entropy(model(ragged(samples)), torch.tensor([one[0] % 2 for one in samples]))


def lists_of_a_site_with_fewer_words(model: nn.Module, client: int) -> Tensor:
    samples = few_words(client, 2 if client == 3 else 12)
    return nn.functional.cross_entropy(model(ragged(samples)), torch.tensor([one[0] % 2 for one in samples]))


def dicts(model: nn.Module, client: int) -> Tensor:
    samples = few_words(client)
    sizes = torch.tensor([[float(len(one)), float(sum(one))] for one in samples])
    batch = ragged(samples) | {"size": sizes}
    return nn.functional.cross_entropy(model(batch), torch.tensor([one[0] % 2 for one in samples]))


def strings(model: nn.Module, client: int) -> Tensor:
    texts = ["yes" if one[0] else "no thanks" for one in few_words(client)]
    tokens = ragged([[len(word) + ord(word[0]) % 20 for word in text.split()] for text in texts])
    return nn.functional.cross_entropy(model(tokens), torch.tensor([text == "yes" for text in texts]).long())


def several_labels(model: nn.Module, client: int) -> Tensor:
    """Equal inputs with either label, half and half, as where people answer differently to the same questions."""
    samples = few_words(client, 2 if client == 3 else 12)
    return nn.functional.cross_entropy(model(ragged(samples)), torch.randint(0, 2, (24,), generator=chance(client, 9)))


@pytest.mark.parametrize("step", [lists, lists_of_a_site_with_fewer_words, dicts, strings, several_labels])
def test_samples_that_are_equal_are_no_fault(tmp_path: Path, step: Step) -> None:
    torch.manual_seed(3)
    check(federate(tmp_path, Bag(), step))


def test_clients_that_join_and_leave_are_no_fault(tmp_path: Path) -> None:
    torch.manual_seed(3)
    check(federate(
        tmp_path, nn.Linear(5, 1), regression, clients=8, rounds=5,
        present=lambda client, number: client < 4 or number % 2 == client % 2,
    ))  # fmt: skip


def test_three_clients_and_rounds_in_which_nobody_reports(tmp_path: Path) -> None:
    torch.manual_seed(3)
    check(federate(tmp_path / "three", nn.Linear(5, 1), regression, clients=3))
    check(federate(tmp_path / "silent", nn.Linear(5, 1), regression, reports=False))
    check(federate(tmp_path / "empty", nn.Linear(5, 1), regression, present=lambda _client, number: number == 2))


def check(run: Run) -> None:
    found = [one.title for one in stethos.diagnose(run).findings if one.name in ("faulty-client", "detector-failed")]
    assert found == []
    assert run.rows("SELECT what, reason FROM gaps WHERE what = 'evidence'").values == []
