"""Bugs in the training loop itself: gradients, schedules, precision, and when to stop."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import digits, table, wrong


def conv_net(classes: int = 10) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, classes),
    )  # fmt: skip


class Trainer:
    """A trainer of one's own, with hooks for what differs."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, clears: bool = True) -> None:
        self.model, self.optimizer, self.clears = model, optimizer, clears
        self.global_step = 0

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.model(inputs), targets)

    def fit(self, loader: DataLoader, epochs: int) -> None:
        self.model.train()
        for epoch in range(epochs):
            for batch in loader:
                if self.clears:
                    self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
                self.global_step += 1
            print(f"epoch {epoch} step {self.global_step} loss {loss.item():.4f}")

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor) -> float:
        self.model.eval()
        return wrong(self.model(inputs), targets)


@bug(
    cause="Gradients are never set to zero, so each step uses the sum of the gradients of all batches so far.",
    must_say="gradients are not cleared between steps (zero_grad is missing), or accumulate",
    symptom="gradients grow, the loss oscillates or diverges",
    source="https://github.com/pytorch/pytorch/issues/47175",
    good=0.08,
)
def sum_of_all_gradients(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = conv_net()
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), clears=not bug)
    trainer.fit(DataLoader(TensorDataset(images, labels), batch_size=40, shuffle=True), epochs=40)
    return trainer.evaluate(held, answers)


@bug(
    cause="To silence an error about gradients the loss is wrapped into a new tensor, which cuts it off from the "
    "model: no parameter gets a gradient.",
    must_say="the loss is cut off from the model (a new leaf tensor), so no parameter gets a gradient",
    symptom="weights do not change, or the loss does not fall",
    source="https://github.com/huggingface/torchMoji/issues/21",
    good=0.1,
)
def loss_made_anew(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(100):
        order = torch.randperm(len(images))
        for i in range(0, len(images), 35):
            chosen = order[i : i + 35]
            scores = model(images[chosen])
            loss = F.cross_entropy(scores, labels[chosen])
            if bug:
                loss = torch.tensor(loss.item(), requires_grad=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}, mean loss {sum(losses[-40:]) / 40:.4f}")
    with torch.no_grad():
        return wrong(model(held), answers)


@bug(
    cause="The scheduler that waits for a plateau is told the accuracy but watches for a minimum, so it cuts the "
    "learning rate while all is improving.",
    must_say="the learning rate is cut by the plateau scheduler though training improves, or its mode is wrong",
    symptom="the learning rate fell by orders of magnitude, or learning stalls",
    source="https://github.com/md-mohaiminul/ViS4mer/issues/4",
    good=0.12,
)
def plateau_of_something_rising(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mode = "min" if bug else "max"
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode, factor=0.1, patience=0)
    loader = DataLoader(TensorDataset(images, labels), batch_size=100, shuffle=True)
    for epoch in range(30):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = 1 - wrong(model(held), answers)
        scheduler.step(accuracy)
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy:.3f}, lr {optimizer.param_groups[0]['lr']}")
    return 1 - accuracy


@bug(
    cause="The best weights are kept as a reference to the live state_dict instead of a copy, so what is restored in "
    "the end are the last weights, which are overfitted.",
    must_say="the weights kept or restored as the best are those of the last step (state_dict not copied)",
    symptom="overfitting: validation gets worse while training gets better",
    source="https://github.com/pytorch/tutorials/pull/188",
    good=0.25,
)
def best_weights_follow_along(bug: bool) -> float:
    images, labels, held, answers = digits(350)
    made = torch.Generator().manual_seed(1)
    noisy = torch.where(torch.rand(350, generator=made) < 0.4, torch.randint(0, 10, (350,), generator=made), labels)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion, best_loss, best = nn.CrossEntropyLoss(), float("inf"), {}
    for epoch in range(120):
        model.train()
        for part in torch.randperm(350).split(25):
            optimizer.zero_grad()
            loss = criterion(model(images[part]), noisy[part])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val_loss = criterion(model(held[:150]), answers[:150]).item()
        if val_loss < best_loss:
            best_loss = val_loss
            best = model.state_dict() if bug else copy.deepcopy(model.state_dict())
            print(f"epoch {epoch}: new best {best_loss:.4f}")
    model.load_state_dict(best)
    with torch.no_grad():
        return wrong(model(held[150:]), answers[150:])


@bug(
    cause="Gradients are clipped while they are still multiplied by the loss scale, so after unscaling they are tens "
    "of thousands of times too small.",
    must_say="gradients are clipped before they are unscaled, or are tiny at the optimizer because of the loss scale",
    symptom="weights hardly change, updates are tiny, or the loss does not fall",
    source="https://github.com/Lightning-AI/pytorch-lightning/issues/9330",
    good=0.12,
)
def clipped_while_scaled(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = conv_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader(TensorDataset(images, labels), batch_size=50, shuffle=True, drop_last=True)
    for epoch in range(25):
        for batch, target in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(batch), target)
            scaler.scale(loss).backward()
            if not bug:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")
    with torch.no_grad():
        return wrong(model(held), answers)


class EarlyStopping:
    def __init__(self, patience: int, best: float) -> None:
        self.patience, self.best, self.waited = patience, best, 0

    def should_stop(self, val_loss: float) -> bool:
        if val_loss < self.best:
            self.best, self.waited = val_loss, 0
        else:
            self.waited += 1
        return self.waited >= self.patience


@bug(
    cause="Early stopping starts from a best loss of 0, which no loss can beat, so training stops after its patience "
    "while the validation loss is still falling.",
    must_say="training stopped while the validation loss was still improving (early stopping is wrong)",
    symptom="training is short or unfinished, or the loss was still falling at the end",
    source="https://github.com/microsoft/qlib/issues/263",
    good=0.08,
)
def stopped_while_improving(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = conv_net()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
    stopping = EarlyStopping(patience=5, best=0.0 if bug else float("inf"))
    loader = DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True)
    for epoch in range(40):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            val_loss = F.cross_entropy(model(held), answers).item()
        print(f"epoch {epoch} train {loss.item():.3f} val {val_loss:.3f}")
        if stopping.should_stop(val_loss):
            print("early stopping")
            break
    with torch.no_grad():
        return wrong(model(held), answers)


class HeavyBall(torch.optim.Optimizer):
    """Gradient descent with momentum, written by hand."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, copies: bool) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.copies = copies

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "velocity" not in state:
                    state["velocity"] = p.grad.clone() if self.copies else p.grad
                else:
                    state["velocity"].mul_(group["momentum"]).add_(p.grad)
                p.sub_(state["velocity"], alpha=group["lr"])


@bug(
    cause="The optimizer written by hand keeps the gradient tensor itself as its momentum instead of a copy, so "
    "clearing the gradients clears the momentum.",
    must_say="the optimizer's momentum shares memory with the gradient, or is lost at each step",
    symptom="updates are smaller than they should be, or learning is slow",
    source="https://github.com/jettify/pytorch-optimizer/pull/57",
    good=0.06,
)
def velocity_forgotten(bug: bool) -> float:
    x, y = table(1600, seed=5)
    x_test, y_test = table(400, seed=6)
    net = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = HeavyBall(list(net.parameters()), lr=2e-3, momentum=0.97, copies=not bug)
    for epoch in range(60):
        for part in torch.randperm(1600).split(50):
            optimizer.zero_grad(set_to_none=False)
            loss = F.mse_loss(net(x[part])[:, 0], y[part])
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return (F.mse_loss(net(x_test)[:, 0], y_test) / y_test.var()).item()


@bug(
    cause="The model itself is converted to bfloat16, whose 8 bits round most of the small updates away.",
    must_say="updates are lost to rounding in half precision weights (bfloat16), no copy in float32 is kept",
    symptom="weights hardly change, updates are tiny against the weights, or learning stalls",
    source="https://github.com/pytorch/ao/pull/1124",
    good=0.2,
)
def too_coarse_for_small_steps(bug: bool) -> float:
    x, y = table(1600, seed=7)
    x_test, y_test = table(400, seed=8)
    kind = torch.bfloat16 if bug else torch.float32
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for epoch in range(60):
        for part in torch.randperm(1600).split(32):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = net(x[part].to(kind))[:, 0]
            loss = F.mse_loss(out.float(), y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return (F.mse_loss(net(x_test.to(kind))[:, 0].float(), y_test) / y_test.var()).item()
