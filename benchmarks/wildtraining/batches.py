"""Bugs in the data: what the batches hold, and in which order they come."""

from __future__ import annotations

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.wildtraining.case import BLOWN_UP, STUCK, case
from benchmarks.wildtraining.data import blobs, cnn, digits, line, loader, mlp


def _train(model, data, lr=3e-3, epochs=5, loss_of=functional.cross_entropy) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        for batch, target in data:
            optimizer.zero_grad()
            loss_of(model(batch), target).backward()
            optimizer.step()


@case("repeated-data:same-batch", symptoms=("overfitting", "implausible-loss"))
def data_set_ignores_its_index(bug: bool) -> None:
    points, labels = blobs()

    class Points(Dataset):
        def __len__(self) -> int:
            return len(points)

        def __getitem__(self, index):
            place = index % 8 if bug else index
            return points[place], labels[place]

    _train(mlp(20, 32, 5), DataLoader(Points(), batch_size=32, shuffle=not bug))


@case("repeated-data:same-batch", symptoms=("overfitting", "implausible-loss"))
def first_batch_of_a_new_iterator(bug: bool) -> None:
    """`next(iter(loader))` in the loop begins from the front each time."""
    inputs, labels = digits()
    model = cnn()
    data = loader(inputs, labels, batch=64, shuffle=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batches = iter(data)
    for step in range(120):
        if bug:
            batch, target = next(iter(data))
        else:
            if step % len(data) == 0:
                batches = iter(loader(inputs, labels, batch=64))
            batch, target = next(batches)
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), target).backward()
        optimizer.step()


@case("odd-batch:sorted-labels", symptoms=("oscillation", "series-anomaly", *STUCK))
def sorted_by_class(bug: bool) -> None:
    inputs, labels = digits()
    order = labels.argsort()
    _train(cnn(), loader(inputs[order], labels[order], shuffle=not bug), epochs=4)


@case("repeated-data:same-random-numbers", symptoms=("overfitting",))
def seeded_in_the_loop(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 48, 5, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = loader(points, labels)
    for _ in range(5):
        for batch, target in data:
            if bug:
                torch.manual_seed(42)
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("repeated-data:same-random-numbers", "repeated-data:same-order", symptoms=("overfitting",))
def seeded_at_each_epoch(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 48, 5, dropout=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(8):
        if bug:
            torch.manual_seed(0)
        for batch, target in loader(points, labels, batch=48):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case(
    "repeated-data:same-augmentation", "repeated-data:same-random-numbers", symptoms=("overfitting",), family="port",
    source="https://stackoverflow.com/questions/67180955",
)  # fmt: skip
def workers_draw_the_same_noise(bug: bool) -> None:
    """Each worker draws from a copy of one state, as NumPy did in all workers before torch 1.9."""
    points, labels = blobs()

    def seed(worker: int) -> None:
        numpy.random.seed(0 if bug else torch.initial_seed() % 2**32)

    class Noisy(Dataset):
        def __len__(self) -> int:
            return 512

        def __getitem__(self, index):
            noise = torch.from_numpy(numpy.random.randn(20)).float()
            return points[index] * 0.0 + noise if index % 2 else points[index] + noise, labels[index]

    _train(mlp(20, 32, 5), DataLoader(Noisy(), batch_size=32, num_workers=2, worker_init_fn=seed), epochs=4)


@case("odd-batch:unscaled-inputs", symptoms=BLOWN_UP)
def raw_sensor_values(bug: bool) -> None:
    points, labels = blobs()
    scale = torch.logspace(2, 4, 20)
    inputs = points * scale + 5 * scale if bug else points
    model = mlp(20, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("odd-batch:unscaled-inputs", symptoms=(*STUCK, "dead-units"))
def divided_by_255_twice(bug: bool) -> None:
    inputs, labels = digits()
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for batch, target in loader(inputs / 255 / 255 if bug else inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("odd-batch:unscaled-targets", symptoms=(*STUCK, *BLOWN_UP))
def prices_in_cents(bug: bool) -> None:
    inputs, targets = line()
    _train(mlp(8, 32, 1), loader(inputs, targets * 2e5 + 1e6 if bug else targets), epochs=6,
           loss_of=functional.mse_loss)  # fmt: skip


@case("odd-batch:one-class-dominates", symptoms=())
def one_class_in_a_hundred(bug: bool) -> None:
    points, labels = blobs(count=2400, classes=2)
    if bug:
        chosen = torch.cat([(labels == 0).nonzero()[:, 0], (labels == 1).nonzero()[:16, 0]])
        points, labels = points[chosen], labels[chosen]
    model = mlp(20, 16, 2)
    _train(model, loader(points, labels, batch=64), lr=1e-3)


@case("odd-batch:lost-batch-dimension", symptoms=("slow-progress", "oscillation", "small-batches"))
def only_the_first_sample(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        for batch, target in loader(points, labels):
            if bug:
                batch, target = batch[0:1], target[0:1]
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("odd-batch:leaking-labels", symptoms=("implausible-loss:solved-at-once",))
def the_label_is_a_feature(bug: bool) -> None:
    points, labels = blobs()
    if bug:
        points = torch.cat([points[:, :19], labels[:, None].float()], 1)
    _train(mlp(20, 32, 5), loader(points, labels))


@case("odd-batch:constant-inputs", symptoms=STUCK)
def buffer_never_filled(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    buffer = torch.zeros(32, 1, 8, 8)
    for _ in range(4):
        for batch, target in loader(inputs, labels, drop_last=True):
            if not bug:
                buffer = buffer.copy_(batch)
            optimizer.zero_grad()
            functional.cross_entropy(model(buffer), target).backward()
            optimizer.step()


@case("implausible-loss:chance-level", "odd-batch:unrelated-labels", symptoms=("overfitting", *STUCK))
def labels_shifted_by_one(bug: bool) -> None:
    inputs, labels = digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    inputs, labels = inputs[order], labels[order]
    _train(cnn(), loader(inputs, labels.roll(1) if bug else labels), epochs=5, lr=1e-3)


@case("odd-batch:nan-inputs", "telling-warning:bad-arithmetic", symptoms=BLOWN_UP)
def divided_by_a_spread_of_zero(bug: bool) -> None:
    points, labels = blobs()
    table = points.numpy().copy()
    table[:, 3] = 1.0
    with numpy.errstate(all="ignore"):
        spread = table.std(0)
        table = (table - table.mean(0)) / (spread if bug else spread + 1e-6)
    _train(mlp(20, 32, 5), loader(torch.from_numpy(table).float(), labels))


@case("odd-batch:nan-inputs", symptoms=BLOWN_UP)
def a_missing_value_in_one_row(bug: bool) -> None:
    points, labels = blobs()
    if bug:
        points[500, 7] = torch.nan
    _train(mlp(20, 32, 5), loader(points, labels))


@case("odd-batch:sorted-labels", "odd-batch:one-class-dominates", symptoms=("implausible-loss:solved-at-once",))
def all_labels_the_same(bug: bool) -> None:
    points, labels = blobs()
    _train(mlp(20, 32, 5), loader(points, (labels > 99).long() if bug else labels))


@case("odd-batch:ignored-labels", "odd-batch:no-labels", symptoms=BLOWN_UP)
def every_label_is_ignored(bug: bool) -> None:
    points, labels = blobs()
    _train(mlp(20, 32, 5), loader(points, torch.full_like(labels, -100) if bug else labels))


@case("repeated-data:same-order", symptoms=("overfitting",))
def a_generator_made_once_per_epoch(bug: bool) -> None:
    """A loader whose own generator starts from the same seed at each epoch."""
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        made = torch.Generator().manual_seed(0 if bug else epoch)
        for batch, target in loader(inputs, labels, batch=64, generator=made):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("odd-evaluation:classes-renamed", symptoms=("overfitting", "odd-evaluation"))
def test_classes_in_another_order(bug: bool) -> None:
    """Numbers are given to the names as they come, once for the training and once for the evaluation."""
    inputs, labels = digits()
    last = list(dict.fromkeys(labels[-400:].tolist())) if bug else list(range(10))
    first, held = (
        loader(inputs[:-400], labels[:-400]),
        torch.tensor([last.index(one) for one in labels[-400:].tolist()]),
    )
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        model.train()
        for batch, target in first:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            functional.cross_entropy(model(inputs[-400:]), held)
