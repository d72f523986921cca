"""The loop of the fifth set: federated training as people write it, with faults of training where a client has one."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wild.fifth.data import samples_of
from benchmarks.wild.fifth.families import FIFTH
from benchmarks.wild.fifth.fault import OF_DATA, OF_SENDING, faulty_data, faulty_update
from benchmarks.wild.fifth.model import model_of
from benchmarks.wild.fifth.server import aggregate, largest, low_rank
from benchmarks.wild.fifth.split import ONE_UNLIKE, parts_of
from benchmarks.wild.fourth.draw import REGRESSIONS
from benchmarks.wild.fourth.fault import Inputs
from benchmarks.wild.fourth.server import Arrived, State
from benchmarks.wild.play import Case

_SIZES = (60, 80, 120, 180, 260, 400)  # samples a client
_SAMPLES = {"images": 900, "text": 1000}  # in a federation, about
_MOST_SAMPLES = 1500
_LR = {"text": 0.5, "values": 0.08, "series": 0.05, "counts": 0.03, "signals": 0.1, "images": 0.1, "tables": 0.15}
_LR_FACTOR = {"spread": 0.5, "waves": 0.7, "decomposed": 0.6, "local": 0.5, "recurrence": 1.6}
_LION = 0.004


class Loop:
    """Clients with data, a global model, and rounds."""

    def __init__(self, case: Case) -> None:
        self.case, self.task = case, FIFTH.data[case.data]
        self.draw = np.random.default_rng([51, case.seed])
        found = samples_of(case.data)
        self.classes = 1 if self.task in REGRESSIONS else int(found.targets.max()) + 1
        size = min(
            int(self.draw.choice(_SIZES)), max(_SIZES[0], _SAMPLES.get(self.task, _MOST_SAMPLES) // case.clients)
        )
        parts = parts_of(case.split, found, case.clients, size, self.draw)
        names = [f"branch-{place:02d}" for place in self.draw.permutation(len(parts))]
        self.clients = dict(zip(names, parts, strict=True))
        self.foreign = names[0] if case.split in ONE_UNLIKE else None
        candidates = [name for name in names if name != self.foreign]
        self.faulty = sorted(self.draw.choice(candidates, case.faulty, replace=False).tolist())
        self.often = {name: 0.7 if name in self.faulty else self.draw.uniform(0.3, 1) for name in sorted(names)}
        self.inputs, self.targets = torch.from_numpy(found.inputs), torch.from_numpy(found.targets)
        axes = {"images": [0, 2, 3], "signals": [0, 2], "series": [0, 1]}.get(self.task, [0])
        self.middle = self.inputs.float().mean(axes, keepdim=True)[0]
        self.scale = self.inputs.float().std(axes, keepdim=True)[0].clamp_min(1e-6)
        words = int(self.inputs.max()) + 1 if self.task == "text" else 0
        shape = tuple(self.inputs.shape[1:])
        self.models = [model_of(case.model, shape, self.classes, words)]
        self.fresh = model_of(case.model, shape, self.classes, words).state_dict()
        self.batch, self.epochs = (16, 2) if size < 150 else (32, 2)
        if self.task == "text":
            self.epochs = 3
        self.lr = _LR[self.task] * _LR_FACTOR.get(case.model, 1.0)
        self.kept: dict[str, dict[str, Any]] = {name: {"turn": 0} for name in names}
        self.next: dict[str, dict[str, Any]] = {}  # what a client will have kept, once its turn counts

    def shared_state(self) -> State:
        return self.models[0].state_dict()

    def taking_part(self, number: int) -> list[str]:
        """Who trains in a round."""
        case, names = self.case, sorted(self.clients)
        if case.algorithm == "phones":
            chances = np.array([self.often[name] for name in names])
            names = sorted(self.draw.choice(names, 10, replace=False, p=chances / chances.sum()).tolist())
        elif case.algorithm == "day-and-night":
            names = [name for place, name in enumerate(names) if place % 3 != number % 3]
        elif case.algorithm == "joining":
            names = names[: len(names) // 2 + number]
        if case.split == "newcomer" and number <= case.rounds // 3:
            names = [name for name in names if name != self.foreign]
        if case.split == "every-third" and number % 3 != 1:
            names = [name for name in names if name != self.foreign]
        return names

    def round(self, rnd: Any) -> None:
        """Play a round; `rnd` is a round of `stethos.federation`."""
        case = self.case
        base = {key: value.clone() for key, value in self.shared_state().items()}
        arrived: list[Arrived] = []
        for name in self.taking_part(rnd.number):
            with rnd.client(name) as site:
                made, loss = self.turn(name, 0, base, rnd.number, case.fault if name in self.faulty else None)
                self.kept[name] = self.next.pop(name)
                if case.algorithm in ("error-feedback", "low-rank", "extrapolated"):
                    change = {key: made.state[key] - base[key] for key in base}
                    site.update(change, samples=made.samples, loss=loss, delta=True)
                else:
                    site.update(made.state, samples=made.samples, loss=loss)
                arrived.append(made)
        with rnd.phase("aggregate"):
            self.models[0].load_state_dict(aggregate(case.algorithm, base, arrived))
        rnd.evaluate(loss=self.loss())

    def turn(self, name: str, group: int, base: State, number: int, fault: str | None) -> tuple[Arrived, float]:
        """What a client sends in a round, and the mean loss of its steps."""
        kept = self.kept[name]
        state, losses = self.train(name, base, number, fault)
        mine = {"turn": kept["turn"] + 1, "own": state, "first": kept.get("first", state)}
        mine["change"] = {key: state[key] - base[key] for key in base}
        if fault in OF_SENDING:
            draw = np.random.default_rng([52, self.case.seed, number])
            state = faulty_update(fault, state, base, kept, self.fresh, kept["turn"], draw)
        if self.case.algorithm in ("error-feedback", "low-rank"):
            left = kept.get("left", {})
            change = {key: state[key] - base[key] + left.get(key, 0) for key in base}
            sent = largest(change, 0.2) if self.case.algorithm == "error-feedback" else low_rank(change)
            mine["left"] = {key: (change[key] - sent[key]).nan_to_num(0, 0, 0) for key in base}
            state = {key: base[key] + sent[key] for key in base}
        self.next[name] = mine
        made = Arrived(state, len(self.clients[name]), float(np.mean(losses[:4])), len(losses))
        return made, float(np.mean(losses))

    def group_of(self, name: str) -> int:
        return 0

    def clean_data_of(self, name: str) -> tuple[Tensor, Tensor]:
        rows = self.clients[name]
        x, y = self.inputs[rows], self.targets[rows]
        return x if self.task == "text" else (x - self.middle) / self.scale, y

    def data_of(self, name: str, fault: str | None) -> tuple[Tensor, Tensor]:
        """What a client trains on in a round."""
        x, y = self.clean_data_of(name)
        if fault not in OF_DATA:
            return x, y
        raw = self.inputs[self.clients[name]]
        own = Inputs(x, y, raw, self.middle, self.scale, self.classes, self.task)
        draw = np.random.default_rng([53, self.case.seed, int(name[-2:])])
        return faulty_data(fault, own, self.kept[name]["turn"], draw)

    def begun(self, name: str, base: State, number: int, fault: str | None) -> nn.Module:
        """The model that a client begins with."""
        local = copy.deepcopy(self.models[0])
        local.load_state_dict(base)
        own = self.kept[name].get("own")
        if own is not None and fault == "skips-download" and number % 3:
            local.load_state_dict(own)
        if own is not None and fault == "layer-not-loaded":  # its name does not fit, and nobody is strict
            first = next(key for key in base if base[key].dim() > 1)
            local.load_state_dict({**base, first: own[first]})
        local.train()
        return local

    def batches(self, name: str, count: int, number: int) -> list[Tensor]:
        draw = np.random.default_rng([54, self.case.seed, number, int(name[-2:])])
        batch = self.batch
        if name == self.foreign:
            batch = {"small-batches": 4, "whole-batch": count}.get(self.case.split, batch)
        if self.case.algorithm == "fixed-steps":
            return [torch.from_numpy(draw.integers(0, count, batch)) for _ in range(16)]
        return [rows for _ in range(self.epochs) for rows in torch.from_numpy(draw.permutation(count)).split(batch)]

    def train(self, name: str, base: State, number: int, fault: str | None) -> tuple[State, list[float]]:
        """A client's training in a round: its new model, and the loss of each step."""
        x, y = self.data_of(name, fault)
        local = self.begun(name, base, number, fault)
        teacher = copy.deepcopy(self.models[0])
        teacher.load_state_dict(base)
        if fault == "adapter-mode":
            for one in local.parameters():
                one.requires_grad_(one.dim() == 1)
        wanted = {key: one for key, one in local.named_parameters() if one.requires_grad}
        lr = (_LION if self.case.algorithm == "lion" else self.lr) * (
            0.5 ** self.kept[name]["turn"] if fault == "schedule-exhausted" else 1.0
        )
        draw = torch.Generator().manual_seed(1000 * number + int(name[-2:]))
        masks = self.masks(wanted, draw)
        momentum = {key: torch.zeros_like(one) for key, one in wanted.items()}
        losses: list[float] = []
        for rows in self.batches(name, len(x), number):
            local.zero_grad()
            loss = self.step_loss(local, teacher, self.seen(name, x[rows], fault, draw), y[rows], y, fault, draw)
            loss.backward()
            with torch.no_grad():
                for key, one in wanted.items():
                    if one.grad is None:
                        continue
                    slope = one.grad * masks.get(key, 1)
                    if self.case.algorithm == "lion":
                        slope, momentum[key] = (
                            torch.sign(0.9 * momentum[key] + 0.1 * slope), 0.98 * momentum[key] + 0.02 * slope
                        )  # fmt: skip
                    one.sub_(lr * slope)
                    if fault == "decay-sign":  # weights grow where they should shrink
                        one.mul_(1.005)
                    if fault == "weights-clamped":  # left over from a critic
                        one.clamp_(-0.15, 0.15)
                    if self.case.split == "other-hardware" and name == self.foreign:
                        one.copy_(one.bfloat16().float())
            losses.append(float(loss.detach()))
        return {key: value.detach().clone() for key, value in local.state_dict().items()}, losses

    def masks(self, wanted: dict[str, nn.Parameter], draw: torch.Generator) -> dict[str, Tensor]:
        """Of sub-networks: which rows of a matrix a client trains in this round."""
        if self.case.algorithm != "sub-networks":
            return {}
        return {
            key: (torch.rand(len(one), *[1] * (one.dim() - 1), generator=draw) < 0.7).float()
            for key, one in list(wanted.items())[:-2]
            if one.dim() > 1
        }

    def seen(self, name: str, x: Tensor, fault: str | None, draw: torch.Generator) -> Tensor:
        """A batch as the client's augmentation leaves it."""
        noise = 1.3 if fault == "over-augmented" else 0.0
        if self.case.split == "augmenter" and name == self.foreign:
            noise = 0.15
        if not noise:
            return x
        if self.task == "text":
            return torch.where(torch.rand(x.shape, generator=draw) < 0.5, torch.ones_like(x), x)
        return x + noise * torch.randn(x.shape, generator=draw)

    def step_loss(
        self, local: nn.Module, teacher: nn.Module, x: Tensor, y: Tensor, all_y: Tensor, fault: str | None,
        draw: torch.Generator,
    ) -> Tensor:  # fmt: skip
        """What a step makes smaller."""
        algorithm = self.case.algorithm
        if algorithm == "mixup":
            share = float(torch.rand((), generator=draw)) * 0.3
            other = torch.randperm(len(x), generator=draw)
            answers = local((1 - share) * x + share * x[other])
            return (1 - share) * self.goal(answers, y, fault) + share * self.goal(answers, y[other], fault)
        answers = local(x)
        if algorithm == "prior-adjusted":
            counts = torch.bincount(all_y, minlength=self.classes) + 1.0
            return self.goal(answers + (counts / counts.sum()).log(), y, fault)
        loss = self.goal(answers, y, fault)
        if algorithm == "distilled":
            with torch.no_grad():
                wanted = teacher(x)
            if self.task in REGRESSIONS:
                return loss + 0.2 * functional.mse_loss(answers, wanted)
            return loss + 0.3 * functional.kl_div(answers.log_softmax(1), wanted.softmax(1), reduction="batchmean")
        return loss

    def goal(self, answers: Tensor, targets: Tensor, fault: str | None) -> Tensor:
        if self.task not in REGRESSIONS:
            return functional.cross_entropy(answers, targets)
        said = answers[:, 0]
        if fault == "broadcast-loss":  # a column against a row: every answer against every target
            said, targets = said[:, None].expand(-1, len(targets)), targets[None].expand(len(said), -1)
        if self.case.model == "spread":
            spread = answers[:, 1].clamp(-4, 3)
            spread = spread[:, None] if fault == "broadcast-loss" else spread
            return (0.5 * (targets - said).square() * torch.exp(-2 * spread) + spread).mean()
        if self.task == "counts":
            return functional.poisson_nll_loss(said.clamp(max=4), targets)
        return functional.smooth_l1_loss(said, targets)

    def loss(self) -> float:
        """The mean loss on some samples of each client."""
        total = 0.0
        for name in sorted(self.clients):
            x, y = self.clean_data_of(name)
            with torch.no_grad():
                total += float(self.goal(self.models[0](x[:25]), y[:25], None))
        return total / len(self.clients)
