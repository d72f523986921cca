"""The loop of the fourth set: federated training as people write it, with faults of training where a client has one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wild.fourth.data import samples_of
from benchmarks.wild.fourth.draw import REGRESSIONS
from benchmarks.wild.fourth.families import FOURTH
from benchmarks.wild.fourth.fault import OF_DATA, OF_SENDING, Inputs, State, faulty_data, faulty_update
from benchmarks.wild.fourth.model import model_of
from benchmarks.wild.fourth.server import MIME, Arrived, Server
from benchmarks.wild.fourth.split import FEWEST, ONE_UNLIKE, parts_of
from benchmarks.wild.play import Case

_SIZES = (48, 64, 96, 128, 200, 320)  # samples a client
_SAMPLES = 1600  # in a federation, at most
_QUANTILES = (0.1, 0.5, 0.9)
_LR = {"text": 0.6, "values": 0.05, "series": 0.08, "counts": 0.02, "signals": 0.1, "images": 0.05, "tables": 0.15}
_LR_FACTOR = {"soft-tree": 2.0, "prototypes": 0.2, "random-features": 1.0, "cross": 0.4, "gru-attend": 3.0,
              "basis": 0.6, "fourier-mix": 0.8, "elman": 0.7, "hashed-pairs": 1.2, "quantile": 3.0}  # fmt: skip


class Loop:
    """Clients with data, a global model (two where clients are clustered), and rounds."""

    def __init__(self, case: Case) -> None:
        self.case, self.task = case, FOURTH.data[case.data]
        self.draw = np.random.default_rng([41, case.seed])
        found = samples_of(case.data)
        self.classes = 1 if self.task in REGRESSIONS else int(found.targets.max()) + 1
        size = min(int(self.draw.choice(_SIZES)), max(FEWEST + 8, _SAMPLES // case.clients))
        parts = parts_of(case.split, found, case.clients, size, self.draw)
        names = [f"clinic-{place:02d}" for place in self.draw.permutation(len(parts))]
        self.clients = dict(zip(names, parts, strict=True))
        self.foreign = names[0] if case.split in ONE_UNLIKE else None
        candidates = [name for name in names if name != self.foreign and len(self.clients[name]) >= FEWEST]
        self.faulty = sorted(self.draw.choice(candidates, case.faulty, replace=False).tolist())
        self.inputs, self.targets = torch.from_numpy(found.inputs), torch.from_numpy(found.targets)
        axes = {"images": [0, 2, 3], "signals": [0, 2], "series": [0, 1]}.get(self.task, [0])
        self.middle = self.inputs.float().mean(axes, keepdim=True)[0]
        self.scale = self.inputs.float().std(axes, keepdim=True)[0].clamp_min(1e-6)
        words = int(self.inputs.max()) + 1 if self.task == "text" else 0
        self.models = [
            model_of(case.model, tuple(self.inputs.shape[1:]), self.classes, words)
            for _ in range(2 if case.algorithm == "clustered" else 1)
        ]
        self.batch = 16 if size < 100 else 32
        self.epochs = 2 if size < 100 else 1
        if case.algorithm == "alternating":  # each layer is trained in every second round only
            self.epochs = 4 if self.task == "text" else 2
        self.lr = _LR[self.task] * _LR_FACTOR.get(case.model, 1.0)
        self.servers = [Server(case.algorithm, self.lr) for _ in self.models]
        self.before: list[State | None] = [None for _ in self.models]
        self.first = copy.deepcopy(self.models[0].state_dict())

    def shared_state(self) -> State:
        return self.models[0].state_dict()

    def round(self, rnd: Any) -> None:
        """Play a round; `rnd` is a round of `stethos.federation`."""
        case = self.case
        names = sorted(self.clients)
        if case.algorithm == "dropouts":
            names = sorted(self.draw.choice(names, max(5, round(0.7 * len(names))), replace=False).tolist())
        bases = [{key: value.clone() for key, value in model.state_dict().items()} for model in self.models]
        arrived: list[list[Arrived]] = [[] for _ in self.models]
        for place, name in enumerate(names):
            fault = case.fault if name in self.faulty else None
            with rnd.client(name) as site:
                if case.algorithm == "dropouts" and place and self.draw.random() < 0.1:
                    site.drop()
                    continue
                group = self.group_of(name)
                made, loss = self.turn(name, group, bases[group], rnd.number, fault)
                if case.algorithm in ("bfloat16", "clustered"):
                    change = {key: made.state[key] - bases[group][key] for key in made.state}
                    site.update(change, samples=made.samples, loss=loss, delta=True)
                else:
                    site.update(made.state, samples=made.samples, loss=loss)
                arrived[group].append(made)
        with rnd.phase("aggregate"):
            for group, model in enumerate(self.models):
                if arrived[group]:
                    model.load_state_dict(self.servers[group].aggregate(bases[group], arrived[group]))
        self.before = list(bases)
        rnd.evaluate(loss=self.loss())

    def turn(self, name: str, group: int, base: State, number: int, fault: str | None) -> tuple[Arrived, float]:
        """What a client sends in a round, and the mean loss of its steps."""
        made, loss = self.train(name, group, base, number, fault)
        state = made.state
        if fault in OF_SENDING:
            state = faulty_update(fault, state, base, self.before[group], number)
        if self.case.algorithm == "bfloat16":
            state = {key: base[key] + (value - base[key]).bfloat16().float() for key, value in state.items()}
        return made._replace(state=state), loss

    def group_of(self, name: str) -> int:
        """The model that fits a client's data best."""
        if len(self.models) == 1:
            return 0
        x, y = self.clean_data_of(name)
        with torch.no_grad():
            losses = [float(self.goal(model(x[:40]), y[:40], None)) for model in self.models]
        return int(losses[1] < losses[0])

    def clean_data_of(self, name: str) -> tuple[Tensor, Tensor]:
        rows = self.clients[name]
        x, y = self.inputs[rows], self.targets[rows]
        if self.task != "text":
            x = (x - self.middle) / self.scale
        if self.case.split == "gain" and name == self.foreign:
            x = 1.2 * x - 0.25
        return x, y

    def data_of(self, name: str, received: nn.Module, fault: str | None) -> tuple[Tensor, Tensor]:
        """What a client trains on in a round."""
        x, y = self.clean_data_of(name)
        if fault not in OF_DATA:
            return x, y
        raw = self.inputs[self.clients[name]]
        own = Inputs(x, y, raw, self.middle, self.scale, self.classes, self.task)
        return faulty_data(fault, own, received, np.random.default_rng([42, self.case.seed, int(name[-2:])]))

    def epochs_of(self, name: str, fault: str | None) -> int:
        if fault == "overtrained":
            return 10 * self.epochs
        return 3 * self.epochs if self.case.split == "more-epochs" and name == self.foreign else self.epochs

    def train(self, name: str, group: int, base: State, number: int, fault: str | None) -> tuple[Arrived, float]:
        """A client's training in a round."""
        algorithm = self.case.algorithm
        local = copy.deepcopy(self.models[group])
        local.load_state_dict(base)
        local.train()
        x, y = self.data_of(name, local, fault)
        if fault == "head-reset":
            [layer for layer in local.modules() if isinstance(layer, nn.Linear)][-1].reset_parameters()
        if algorithm == "alternating":  # the last layer in even rounds, what is before it in odd ones
            for place, one in enumerate(reversed(list(local.parameters()))):
                one.requires_grad_((place < 2) == (number % 2 == 0))
        wanted = {key: one for key, one in local.named_parameters() if one.requires_grad}
        optimizer, scheduler = self.optimizer_of(list(wanted.values()), fault)
        draw = np.random.default_rng([43, self.case.seed, number, int(name[-2:])])
        losses: list[float] = []
        kept: list[State] = []
        shadow = {key: one.detach().clone() for key, one in wanted.items()}
        for _ in range(self.epochs_of(name, fault)):
            order = torch.from_numpy(draw.permutation(len(x)))
            # Prefetched: the targets belong to the batch before.
            paired = order.roll(self.batch) if fault == "prefetch-skew" else order
            for rows, goals in zip(order.split(self.batch), paired.split(self.batch), strict=True):
                optimizer.zero_grad()
                loss = self.goal(local(x[rows]), y[goals], fault) + self.penalty(wanted, fault)
                loss.backward()
                if algorithm == "sharpness":
                    self.sharpen(local, wanted, x[rows], y[goals], fault)
                self.bend(wanted, group, fault)
                optimizer.step()
                if scheduler is not None:
                    scheduler.step()
                losses.append(float(loss.detach()))
                with torch.no_grad():
                    for key, one in wanted.items():
                        shadow[key].lerp_(one, 0.02)
                if algorithm == "tail-average":
                    kept.append({key: one.detach().clone() for key, one in wanted.items()})
        state = {key: value.detach().clone() for key, value in local.state_dict().items()}
        if kept:  # the mean of the second half of the way
            tail = kept[len(kept) // 2 :]
            state.update({key: torch.stack([one[key] for one in tail]).mean(0) for key in wanted})
        if fault == "ema-sent":
            state.update(shadow)
        samples = len(self.clients[name])
        return Arrived(state, samples, float(np.mean(losses[:4])), len(losses)), float(np.mean(losses))

    def optimizer_of(
        self, wanted: list[nn.Parameter], fault: str | None
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler | None]:
        if self.case.algorithm == "warm-restart":
            optimizer = torch.optim.Adam(wanted, lr=0.02 if self.task == "text" else 0.01)
            return optimizer, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
        if fault == "adam-at-sgd-rate":
            return torch.optim.Adam(wanted, lr=max(self.lr, 0.1)), None
        return torch.optim.SGD(wanted, lr=self.lr), None

    def penalty(self, wanted: dict[str, nn.Parameter], fault: str | None) -> Tensor:
        if fault == "l1-typo":  # 1e-2 for 1e-5
            return 0.01 * torch.stack([one.abs().sum() for one in wanted.values()]).sum()
        if fault == "anchored":  # a proximal term that holds on to the very first model
            return torch.stack([(one - self.first[key]).square().sum() for key, one in wanted.items()]).sum()
        return torch.zeros(())

    def sharpen(
        self, local: nn.Module, wanted: dict[str, nn.Parameter], x: Tensor, y: Tensor, fault: str | None
    ) -> None:
        """Take the gradient where the loss is highest nearby."""
        slopes = [(one, one.grad.clone()) for one in wanted.values() if one.grad is not None]
        length = torch.stack([slope.norm() for _, slope in slopes]).norm().clamp_min(1e-12)
        with torch.no_grad():
            for one, slope in slopes:
                one.add_(0.05 * slope / length)
        local.zero_grad()
        (self.goal(local(x), y, fault) + self.penalty(wanted, fault)).backward()
        with torch.no_grad():
            for one, slope in slopes:
                one.sub_(0.05 * slope / length)

    def bend(self, wanted: dict[str, nn.Parameter], group: int, fault: str | None) -> None:
        """What is done to gradients before a step."""
        momentum = self.servers[group].momentum
        for key, one in wanted.items():
            if one.grad is None:
                continue
            if fault == "half-underflow":  # divided by the scale of the loss, where it should be multiplied
                one.grad = (one.grad / 2**18).half().float() * 2**18
            if key in momentum:
                one.grad = (1 - MIME) * one.grad + MIME * momentum[key]
        if fault == "clip-tiny":
            nn.utils.clip_grad_norm_(wanted.values(), 0.01)

    def goal(self, answers: Tensor, targets: Tensor, fault: str | None) -> Tensor:
        if self.case.model == "quantile":
            gaps = targets.unsqueeze(1) - answers
            levels = torch.tensor(_QUANTILES)
            return torch.maximum(levels * gaps, (levels - 1) * gaps).sum(1).mean()
        if self.task == "counts":
            return functional.poisson_nll_loss(answers[:, 0].clamp(max=5), targets)
        if self.task in REGRESSIONS:
            return functional.smooth_l1_loss(answers[:, 0], targets)
        if fault == "wrong-loss":
            return functional.mse_loss(answers, functional.one_hot(targets, self.classes).float())
        return functional.cross_entropy(answers, targets)

    def loss(self) -> float:
        """The mean loss on some samples of each client."""
        total = 0.0
        for name in sorted(self.clients):
            x, y = self.clean_data_of(name)
            with torch.no_grad():
                total += float(self.goal(self.models[self.group_of(name)](x[:25]), y[:25], None))
        return total / len(self.clients)
