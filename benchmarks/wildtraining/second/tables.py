"""Bugs with tables: columns, targets, classes and samplers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import digits, table, wrong


class TableNet:
    """A small network with fit and predict, as people wrap it for a notebook."""

    def __init__(self, hidden: int = 32, classes: int = 2, epochs: int = 40, lr: float = 1e-2) -> None:
        self.hidden, self.classes, self.epochs, self.lr = hidden, classes, epochs, lr
        self.history: list[float] = []

    def fit(self, x: np.ndarray, y: np.ndarray) -> TableNet:
        columns, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long)
        self.net = nn.Sequential(
            nn.Linear(columns.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, self.hidden), nn.ReLU(),
            nn.Linear(self.hidden, self.classes),
        )  # fmt: skip
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=0.9)
        for _ in range(self.epochs):
            for part in torch.randperm(len(columns)).split(16):
                optimizer.zero_grad()
                loss = F.cross_entropy(self.net(columns[part]), labels[part])
                loss.backward()
                optimizer.step()
            self.history.append(loss.item())
        return self

    @torch.no_grad()
    def scores(self, x: np.ndarray) -> Tensor:
        return self.net(torch.tensor(x, dtype=torch.float32))


@bug(
    cause="A handful of rows have missing values, which reach the network as NaN because nothing fills them in.",
    must_say="the inputs contain NaN (missing values), before weights and loss do",
    symptom="loss, gradients or weights become NaN, without the inputs being named",
    source="https://github.com/pytorch-tabular/pytorch_tabular/issues/173",
    good=0.1,
)
def blanks_in_the_table(bug: bool) -> float:
    frame = load_breast_cancer(as_frame=True).frame
    rng = np.random.default_rng(6)
    for row in rng.choice(400, 6, replace=False):
        frame.iloc[row, rng.integers(0, 30)] = np.nan
    columns = frame.drop(columns="target")
    columns = (columns - columns.mean()) / columns.std()
    if not bug:
        columns = columns.fillna(0.0)
    x, y = columns.to_numpy(), frame["target"].to_numpy()
    model = TableNet(lr=5e-3, epochs=250).fit(x[:430], y[:430])
    return wrong(model.scores(x[430:]), torch.from_numpy(y[430:]))


@bug(
    cause="The columns are not scaled: one of them is in the thousands and others below 1.",
    must_say="inputs are not normalised, or features have very different scales",
    symptom="the loss stays at that of guessing, units die, or gradients are huge",
    source="https://github.com/ageron/handson-ml3/pull/20",
    good=0.12,
)
def columns_in_their_own_units(bug: bool) -> float:
    x, y = load_wine(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.33, stratify=y, random_state=0)
    if not bug:
        scaler = StandardScaler().fit(x_train)
        x_train, x_test = scaler.transform(x_train), scaler.transform(x_test)
    model = TableNet(classes=3, epochs=500).fit(x_train, y_train)
    print("final loss", model.history[-1])
    return wrong(model.scores(x_test), torch.from_numpy(y_test))


def customers(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(count, 6)), columns=["age", "visits", "spent", "calls", "delay", "region"])
    frame["left"] = (frame["calls"] + frame["delay"] * frame["visits"] + rng.normal(0, 0.4, count) > 0).astype(int)
    frame["refund"] = frame["left"] * 1.0  # paid out after a customer has left
    return frame


@bug(
    cause="A column that is only known after the event, and equals the label, is left among the features.",
    must_say="a feature equals or gives away the label (leak)",
    symptom="the loss is near 0 implausibly soon, or validation is far worse than training",
    source="https://github.com/dotnet/machinelearning/issues/737",
    good=0.2,
)
def known_only_afterwards(bug: bool) -> float:
    frame = customers(1500, 1)
    today = customers(400, 2)
    today["refund"] = 0.0  # nobody has left yet
    dropped = ["left"] if bug else ["left", "refund"]
    x, y = (torch.tensor(frame.drop(columns=dropped).to_numpy(), dtype=torch.float32), torch.tensor(frame["left"]))
    loader = DataLoader(TensorDataset(x, y.float()), batch_size=50, shuffle=True)
    model = nn.Sequential(nn.Linear(x.shape[1], 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(80):
        hits = 0
        for batch, target in loader:
            optimizer.zero_grad()
            out = model(batch).squeeze(1)
            loss = criterion(out, target)
            loss.backward()
            optimizer.step()
            hits += ((out > 0) == (target > 0.5)).sum().item()
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {hits / len(x):.4f}")
    with torch.no_grad():
        answers = model(torch.tensor(today.drop(columns=dropped).to_numpy(), dtype=torch.float32)).squeeze(1) > 0
    return (answers != torch.tensor(today["left"].to_numpy() > 0)).float().mean().item()


@bug(
    cause="The prediction is a column (N, 1) and the target a row (N), so the loss compares each prediction with each "
    "target and the model learns the mean.",
    must_say="prediction and target have different shapes and are broadcast against each other",
    symptom="the loss stays at the variance of the target, or predictions are constant",
    source="https://github.com/pytorch/pytorch/issues/16045",
    good=0.3,
)
def column_against_row(bug: bool) -> float:
    x, y = table(1500, seed=1)
    x_test, y_test = table(400, seed=2)
    net = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=24 * 100)
    for epoch in range(100):
        for part in torch.randperm(1500).split(64):
            predicted = net(x[part]) if bug else net(x[part])[:, 0]
            loss = ((predicted - y[part]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch:02d} mse {loss.item():.4f}")
    with torch.no_grad():
        rest = (net(x_test)[:, 0] - y_test).var()
    return (rest / y_test.var()).item()


@bug(
    cause="The class weights are the shares of the classes instead of their inverse, so the rare classes count even "
    "less.",
    must_say="classes are imbalanced and the weights of the loss favour the common ones (weights upside down)",
    symptom="imbalanced classes, or rare classes are never predicted, without the weights",
    source="https://github.com/janghyuncho/PiCIE/issues/28",
    good=0.35,
)
def weights_upside_down(bug: bool) -> float:
    made = torch.Generator().manual_seed(3)
    labels = torch.multinomial(torch.tensor([0.86, 0.09, 0.05]), 3000, replacement=True, generator=made)
    centres = torch.randn(3, 8, generator=made) * 0.7
    x = centres[labels] + torch.randn(3000, 8, generator=made)
    counts = torch.bincount(labels[:2200]).float()
    weights = counts / counts.sum() if bug else counts.sum() / (3 * counts)
    criterion = nn.CrossEntropyLoss(weight=weights)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(80):
        model.train()
        for part in torch.randperm(2200).split(64):
            loss = criterion(model(x[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{epoch=} loss={loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        predicted, truth = model(x[2200:]).argmax(1), labels[2200:]
    return sum((predicted[truth == kind] != kind).float().mean().item() for kind in range(3)) / 3


@bug(
    cause="The weighted sampler got a weight for each class instead of one for each sample, so it draws the first ten "
    "samples over and over.",
    must_say="the same few samples are drawn again and again, or the sampler uses only a few samples",
    symptom="the loss is near 0 implausibly soon, overfitting, or validation is far worse than training",
    source="https://github.com/deep-voice/soundbay/pull/49",
    good=0.1,
)
def ten_samples_again_and_again(bug: bool) -> float:
    images, labels, held, answers = digits()
    keep = (labels != 3) | (torch.arange(len(labels)) % 6 == 0)  # few threes
    images, labels = images[keep].flatten(1), labels[keep]
    per_class = 1.0 / torch.bincount(labels).float()
    weights = per_class if bug else per_class[labels]
    sampler = WeightedRandomSampler(weights.tolist(), num_samples=len(labels), replacement=True)
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, sampler=sampler)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(60):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"Epoch {epoch + 1}: train loss {loss.item():.5f}")
    model.eval()
    with torch.no_grad():
        return wrong(model(held.flatten(1)), answers)
