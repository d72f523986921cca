"""Bugs in fine-tuning, averaging, adapters, quantisation and distillation."""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import digits, wrong


class Backbone(nn.Module):
    """Layers that were trained before, and a head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(),
        )  # fmt: skip
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, epochs: int, batch: int) -> None:
    loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f}")


@bug(
    cause="The optimizer is built before the head is replaced, so it holds the old head and the new one, the only part "
    "that is not frozen, is never updated.",
    must_say="the new head (parameters behind the loss) is in no optimizer",
    symptom="weights do not change, the loss does not fall, or the optimizer's parameters get no gradient",
    source="https://github.com/mosaicml/composer/pull/249",
    good=0.2,
)
def head_swapped_too_late(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = Backbone(5)
    low = labels < 5
    train(model, torch.optim.Adam(model.parameters(), lr=2e-3), images[low], labels[low], epochs=6, batch=32)
    for parameter in model.parameters():
        parameter.requires_grad = False
    if bug:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        model.fc = nn.Linear(64, 5)
    else:
        model.fc = nn.Linear(64, 5)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train(model, optimizer, images[~low], labels[~low] - 5, epochs=80, batch=32)
    model.eval()
    with torch.no_grad():
        high = answers >= 5
        return wrong(model(held[high]), answers[high] - 5)


@bug(
    cause="The checkpoint's names carry the prefix of a wrapper, and strict=False hides that none of them matches, so "
    "fine-tuning starts from random weights.",
    must_say="no (or hardly any) weight was loaded from the checkpoint, its keys do not match",
    symptom="the first loss is that of an untrained model, frozen layers look untrained, or the fit is bad",
    source="https://github.com/pytorch/examples/issues/1029",
    good=0.15,
)
def checkpoint_with_a_prefix(bug: bool) -> float:
    images, labels, held, answers = digits()
    wrapped = nn.DataParallel(Backbone(10))
    train(wrapped, torch.optim.Adam(wrapped.parameters(), lr=2e-3), images[200:], labels[200:], epochs=6, batch=40)
    file = io.BytesIO()
    torch.save({"model": wrapped.state_dict(), "epoch": 6}, file)
    file.seek(0)

    state = torch.load(file)["model"]
    if not bug:
        state = {name.removeprefix("module."): value for name, value in state.items()}
    model = Backbone(2)
    state = {name: value for name, value in state.items() if ".fc" not in name and not name.startswith("fc")}
    model.load_state_dict(state, strict=False)
    for parameter in model.body.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, images[:60], labels[:60] % 2, epochs=200, batch=12)
    with torch.no_grad():
        return wrong(model(held), answers % 2)


class ModelEma:
    """A slow average of a model, which is what gets evaluated."""

    def __init__(self, model: nn.Module, decay: float, with_buffers: bool) -> None:
        self.module = copy.deepcopy(model).eval()
        self.decay, self.with_buffers = decay, with_buffers

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, its in zip(self.module.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 1 - self.decay)
        if self.with_buffers:
            for mine, its in zip(self.module.buffers(), model.buffers(), strict=True):
                mine.copy_(its)


@bug(
    cause="The moving average copies parameters only, so batch normalisation in the averaged model keeps the "
    "statistics of the first moment.",
    must_say="buffers (running statistics) of the averaged model are never updated, unlike its parameters",
    symptom="the averaged model, or validation, is far worse than the trained one",
    source="https://github.com/pytorch/ignite/issues/2590",
    good=0.08,
)
def average_without_statistics(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    ema = ModelEma(model, decay=0.98, with_buffers=not bug)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, epochs=25, steps_per_epoch=35)
    for epoch in range(25):
        model.train()
        for part in torch.randperm(1400).split(40):
            loss = F.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
        with torch.no_grad():
            error = wrong(ema.module(held), answers)
        print(f"epoch {epoch} loss {loss.item():.3f} error of the average {error:.3f}")
    return error


class LoraLinear(nn.Module):
    """A frozen layer with a correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int, both_zero: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        if not both_zero:
            nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.lora_a.t() @ self.lora_b.t() * 2


@bug(
    cause="Both factors of the low-rank adapter start at zero, so the gradient of each is zero forever.",
    must_say="adapter weights are all zero and so are their gradients, or both factors start at zero",
    symptom="some layers do not learn, or gradients are zero, without saying why",
    source="https://github.com/Guitaricet/relora/issues/18",
    good=0.15,
)
def adapter_of_zeros(bug: bool) -> float:
    images, labels, held, answers = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    train(net, torch.optim.Adam(net.parameters(), lr=2e-3), images, labels, epochs=8, batch=40)
    turned, turned_held = images.rot90(1, (2, 3)), held.rot90(1, (2, 3))  # the camera was mounted sideways
    for place in (1, 3, 5):
        net[place] = LoraLinear(net[place], rank=4, both_zero=bug)
    trainable = [parameter for parameter in net.parameters() if parameter.requires_grad]
    print(f"{sum(parameter.numel() for parameter in trainable)} trainable parameters")
    train(net, torch.optim.AdamW(trainable, lr=5e-3), turned, labels, epochs=50, batch=40)
    with torch.no_grad():
        return wrong(net(turned_held), answers)


class QuantLinear(nn.Linear):
    """A layer whose weights are rounded to four bits in each forward pass."""

    passes_gradient = True

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight.detach().abs().max() / 7
        rounded = torch.round(self.weight / scale) * scale
        if self.passes_gradient:
            rounded = self.weight + (rounded - self.weight).detach()
        return F.linear(x, rounded, self.bias)


class StuckQuantLinear(QuantLinear):
    passes_gradient = False


@bug(
    cause="Quantisation-aware layers round their weights without passing the gradient through, and the gradient of "
    "rounding is zero, so only biases learn.",
    must_say="weights get a gradient of exactly zero because of rounding (no straight-through estimator)",
    symptom="layers do not learn, or their gradients are zero, without saying why",
    source="https://github.com/facebookresearch/fairseq/issues/3195",
    good=0.12,
)
def rounding_stops_learning(bug: bool) -> float:
    images, labels, held, answers = digits()
    layer = StuckQuantLinear if bug else QuantLinear
    model = nn.Sequential(
        nn.Flatten(), layer(64, 64), nn.BatchNorm1d(64), nn.ReLU(), layer(64, 48), nn.ReLU(), layer(48, 10)
    )
    train(model, torch.optim.Adam(model.parameters(), lr=2e-3), images, labels, epochs=50, batch=40)
    model.eval()
    with torch.no_grad():
        return wrong(model(held), answers)


@bug(
    cause="The divergence of the distillation loss gets probabilities where it expects logarithms, so it rewards "
    "certainty instead of agreement with the teacher.",
    must_say="kl_div got probabilities instead of log-probabilities, or the loss is negative where it cannot be",
    symptom="the loss is implausible or flat, the student is far from the teacher, or learning stalls",
    source="https://github.com/microsoft/ProDA/issues/20",
    good=0.35,
)
def student_of_raw_probabilities(bug: bool) -> float:
    images, labels, held, answers = digits()
    teacher = Backbone(10)
    train(teacher, torch.optim.Adam(teacher.parameters(), lr=2e-3), images, labels, epochs=8, batch=40)
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)
    heat = 3.0
    for epoch in range(30):
        for part in torch.randperm(1400).split(40):
            soft = F.softmax(teacher(images[part]) / heat, dim=1)
            scores = student(images[part]) / heat
            mine = F.softmax(scores, dim=1) if bug else F.log_softmax(scores, dim=1)
            loss = F.kl_div(mine, soft, reduction="batchmean") * heat**2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} distillation loss {loss.item():.4f}")
    with torch.no_grad():
        return F.cross_entropy(student(held), answers).item()
