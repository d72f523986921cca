"""Bugs in the loop around a model: loaders, schedules, precision, and what is resumed."""

from __future__ import annotations

import copy
import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler, get_worker_info

from benchmarks.wildtraining.blind import bug
from benchmarks.wildtraining.blind.data import accuracy_gap, curve, split_digits, tabular
from benchmarks.wildtraining.data import loader, mlp


def _net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(192, 10),
    )


def _gap(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return accuracy_gap(model(x), y)


@bug(
    "itertools.cycle keeps the batches of the first epoch, so each later epoch repeats them in the same order and with "
    "the same augmentation, and memory grows by the whole data set.",
    "same batches", "same order", "repeated", "augmentation", "memory",
    source="https://github.com/pytorch/pytorch/issues/23900", good=0.15,
)  # fmt: skip
def loader_in_a_cycle(bug: bool) -> float:
    images, labels, held, answers = split_digits()

    class Augmented(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            image, label = super().__getitem__(index)
            return image + 0.3 * torch.randn_like(image), label

    data = DataLoader(Augmented(images[:600], labels[:600]), batch_size=50, shuffle=True)
    batches = itertools.cycle(data) if bug else itertools.chain.from_iterable(itertools.repeat(data))
    model = _net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(180):
        batch, target = next(batches)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    return _gap(model, held, answers)


@bug(
    "The sampler is given one weight for each class instead of one for each sample, so it draws the first few samples "
    "of the data set over and over.",
    "same samples", "sampler", "repeated", "few samples", "duplicates",
    source="https://github.com/deep-voice/soundbay/pull/49", good=0.25,
)  # fmt: skip
def sampler_with_a_weight_per_class(bug: bool) -> float:
    x, y = tabular(count=1400)
    x, y, held, answers = x[:1200], y[:1200], x[1200:], y[1200:]
    per_class = 1.0 / torch.bincount(y, minlength=4).clamp_min(1).float()
    weights = per_class if bug else per_class[y]
    data = DataLoader(TensorDataset(x, y), batch_size=32, sampler=WeightedRandomSampler(weights, len(y)))
    model = mlp(12, 48, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(8):
        for batch, target in data:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    return _gap(model, held, answers)


class Stream(IterableDataset):
    """Rows in a new order at each epoch; workers share them out unless they forget to."""

    def __init__(self, x: Tensor, y: Tensor, shares: bool) -> None:
        self.x, self.y, self.shares, self.epoch = x, y, shares, 0

    def __iter__(self):
        worker = get_worker_info()
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        if worker is not None and self.shares:
            order = order[worker.id :: worker.num_workers]
        for place in order:
            yield self.x[place], self.y[place]


@bug(
    "Each worker of the loader goes through the whole stream, so every batch comes as often as there are workers, one "
    "after the other.",
    "duplicate", "repeated", "same batch", "workers", "IterableDataset",
    source="https://github.com/huggingface/datasets/issues/3423", good=0.25,
)  # fmt: skip
def workers_that_do_not_share(bug: bool) -> float:
    x, y = tabular(count=1400)
    stream = Stream(x[:1200], y[:1200], shares=not bug)
    model = mlp(12, 48, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(5):
        stream.epoch = epoch
        for batch, target in DataLoader(stream, batch_size=32, num_workers=3):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(model, x[1200:], y[1200:])


@bug(
    "The data set is smaller than a batch and the loader drops the last incomplete one, so an epoch has no batches and "
    "the model is never trained, only evaluated.",
    "no batches", "empty", "drop_last", "no steps", "never trained",
    source="https://github.com/RasmussenLab/vamb/pull/425", good=0.35,
)  # fmt: skip
def every_batch_is_dropped(bug: bool) -> float:
    x, y = tabular(count=400)
    model = mlp(12, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = loader(x[:200], y[:200], batch=256 if bug else 64, drop_last=True)
    for epoch in range(40):
        model.train()
        for batch, target in data:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            checked = functional.cross_entropy(model(x[200:]), y[200:])
        print(f"epoch {epoch} validation loss {checked.item():.3f}")
    return _gap(model, x[200:], y[200:])


@bug(
    "The plateau scheduler minimises although it is told the accuracy, so it takes progress for a plateau and cuts the "
    "learning rate to nothing while the model still learns.",
    "learning rate", "decays", "too early", "collapse", "plateau", "mode",
    source="https://github.com/md-mohaiminul/ViS4mer/issues/4", good=0.25,
)  # fmt: skip
def plateau_told_the_accuracy(bug: bool) -> float:
    x, y = tabular(count=1400)
    model = mlp(12, 64, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, mode="min" if bug else "max", factor=0.2, patience=1
    )
    for epoch in range(16):
        for batch, target in loader(x[:1200], y[:1200]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        accuracy = 1 - _gap(model, x[1200:], y[1200:])
        model.train()
        scheduler.step(accuracy)
        print(f"epoch {epoch} accuracy {accuracy:.3f} rate {optimizer.param_groups[0]['lr']:.1e}")
    return 1 - accuracy


@bug(
    "The function given to LambdaLR returns the learning rate itself and not a factor, so the rate is the product of "
    "both and a thousand times too low.",
    "learning rate", "too low", "factor", "LambdaLR", "tiny updates",
    source="https://runebook.dev/en/docs/pytorch/generated/torch.optim.lr_scheduler.lambdalr", good=0.25,
)  # fmt: skip
def lambda_returns_the_rate(bug: bool) -> float:
    peak, warm, total = 3e-3, 20, 300

    def rate(step: int) -> float:
        share = min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / total))
        return peak * share if bug else share

    x, y = tabular(count=1400)
    model = mlp(12, 64, 64, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=peak)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for epoch in range(8):
        for batch, target in loader(x[:1200], y[:1200]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(model, x[1200:], y[1200:])


@bug(
    "The warm-up counts steps but the trainer advances the scheduler once an epoch, so the learning rate stays near "
    "zero for the whole training.",
    "learning rate", "warm-up", "too low", "interval", "epoch",
    source="https://github.com/ace-step/ACE-Step/pull/198", good=0.15,
)  # fmt: skip
def warm_up_counted_in_epochs(bug: bool) -> float:
    import lightning

    images, labels, held, answers = split_digits()

    class Digits(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def training_step(self, batch, index):
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
            if bug:
                return {"optimizer": optimizer, "lr_scheduler": scheduler}
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    module = Digits()
    trainer = lightning.Trainer(
        max_epochs=9, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader(images, labels, batch=64))
    return _gap(module.net, held, answers)


@bug(
    "After a restart the scheduler is made anew and puts the learning rate back to its first, high value, so the loss "
    "jumps up in the middle of the training.",
    "learning rate", "reset", "resume", "jump", "checkpoint", "scheduler",
    source="https://github.com/ultralytics/yolov5/issues/292", good=0.22,
)  # fmt: skip
def rate_reset_after_a_restart(bug: bool) -> float:
    x, y = tabular(count=1400)
    model = mlp(12, 64, 64, 4)

    def made(net: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30 * 38, eta_min=1e-3)

    optimizer, scheduler = made(model)
    for epoch in range(30):
        if epoch == 22:  # the job was stopped here, and goes on
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), scheduler.state_dict()))
            model = mlp(12, 64, 64, 4)
            optimizer, scheduler = made(model)
            model.load_state_dict(saved[0])
            if not bug:
                optimizer.load_state_dict(saved[1])
                scheduler.load_state_dict(saved[2])
        for batch, target in loader(x[:1200], y[:1200]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.3f} rate {scheduler.get_last_lr()[0]:.4f}")
    return _gap(model, x[1200:], y[1200:])


@bug(
    "Gradients are clipped after the optimizer has stepped, so clipping has no effect and large gradients blow the "
    "recurrent net up.",
    "clipping", "no effect", "after step", "exploding gradients", "diverges",
    source="https://github.com/VGraphRNN/VGRNN/issues/4", good=0.5,
)  # fmt: skip
def clipped_after_the_step(bug: bool) -> float:
    made = torch.Generator().manual_seed(5)
    series = torch.randn(320, 30, 2, generator=made)
    goal = series[:, :, :1].sum(1)
    goal = goal / goal.std() + 0.5 * series[:, -1:, 1]
    body, head = nn.RNN(2, 48, nonlinearity="relu", batch_first=True), nn.Linear(48, 1)
    nn.init.eye_(body.weight_hh_l0)
    body.weight_hh_l0.data.mul_(1.03)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.8)
    for epoch in range(16):
        for batch, target in loader(series, goal):
            optimizer.zero_grad()
            loss = functional.mse_loss(head(body(batch)[0][:, -1]), target)
            loss.backward()
            if not bug:
                nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
            if bug:
                nn.utils.clip_grad_norm_(parameters, 0.5)
        print(f"epoch {epoch} loss {loss.item():.4g}")
    return loss.item() / float(goal.var()) if torch.isfinite(loss) else float("inf")


@bug(
    "Weights are kept in bfloat16 without a copy in full precision, so most updates at this small learning rate are "
    "rounded away.",
    "bfloat16", "precision", "rounded away", "updates lost", "weights do not change",
    source="https://github.com/pytorch/ao/pull/1124", good=0.3,
)  # fmt: skip
def updates_lost_in_bfloat16(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    if bug:
        model = model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=4e-3)
    for epoch in range(24):
        for batch, target in loader(images, labels, batch=32):
            optimizer.zero_grad()
            if bug:
                loss = functional.cross_entropy(model(batch.bfloat16()).float(), target)
            else:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = functional.cross_entropy(model(batch).float(), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(model(held.bfloat16() if bug else held), answers)


@bug(
    "The parameters are float16, in which Adam's epsilon of 1e-8 is zero, so weights without a gradient are divided by "
    "zero and become NaN in the first step.",
    "nan", "half precision", "float16", "epsilon", "optimizer",
    source="https://github.com/afiaka87/glide-finetune/pull/6", good=0.2,
)  # fmt: skip
def epsilon_lost_in_float16(bug: bool) -> float:
    x, y = curve()
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    if bug:
        model, x, y = model.half(), x.half(), y.half()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-8, foreach=False)
    for epoch in range(10):
        for batch, target in loader(x[:800], y[:800]):
            optimizer.zero_grad()
            loss = functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        error = functional.mse_loss(model(x[800:]).float(), y[800:].float())
    return error.item() if torch.isfinite(error) else float("inf")
