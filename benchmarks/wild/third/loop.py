"""The loop of the third set: federated training as people write it, with faults of training where a client has one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.wild.families import THIRD
from benchmarks.wild.play import Case
from benchmarks.wild.third.data import samples_of
from benchmarks.wild.third.fault import KINDS, OF_DATA, OF_SENDING, Inputs, State, can_have, faulty_data, faulty_update
from benchmarks.wild.third.model import model_of
from benchmarks.wild.third.split import ONE_UNLIKE, parts_of, size_of

_FAULTY = (0, 1, 0, 1, 2, 1, 0, 1, 0, 1, 0, 2, 1, 0, 1, 0, 1, 2, 1, 0)  # clients, in one federation after the other
_SHARES = (0.24, 0.3, 0.24, 0.22)  # of `KINDS`
_OF_VALUES = ("values", "series")
_MORE_THAN_TWO_CLASSES = ("yeast", "glyphs", "terrain", "names", "services", "source")
_DYN = 0.1


def case_of(seed: int) -> Case:
    """Draw a federation."""
    draw = np.random.default_rng([303, seed])

    def one(options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    data = one(sorted(THIRD.data))
    task = THIRD.data[data]
    model, algorithm, split = one(THIRD.models[task]), one(THIRD.algorithms), one(THIRD.splits)
    has_classes = task not in _OF_VALUES
    if (split == "dir0.2" and not has_classes) or (split == "extra" and data not in _MORE_THAN_TWO_CLASSES):
        split = one(["ordered", "populations", "lognormal"])
    faulty = _FAULTY[seed % len(_FAULTY)]
    kinds = [[name for name in kind if can_have(name, task, data, algorithm, split)] for kind in KINDS]
    fault = one(kinds[int(draw.choice(len(kinds), p=_SHARES))]) if faulty else None
    return Case(
        data, model, algorithm, split, fault, faulty, int(draw.integers(8, 13)), int(draw.integers(8, 11)), seed
    )


class Loop:
    """Clients with data, a global model, and rounds."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.draw = np.random.default_rng([31, case.seed])
        self.task = THIRD.data[case.data]
        found = samples_of(case.data)
        self.classes = int(found.targets.max()) + 1 if self.task not in _OF_VALUES else 1
        parts = parts_of(case.split, found, self.classes, case.clients, size_of(self.draw), self.draw)
        order = [f"node-{place:02d}" for place in self.draw.permutation(len(parts))]
        self.clients = dict(zip(order, parts, strict=True))
        self.foreign = order[0] if case.split in ONE_UNLIKE else None
        candidates = [name for name in order if name != self.foreign]
        self.faulty = sorted(self.draw.choice(candidates, case.faulty, replace=False).tolist())
        self.inputs, self.targets = torch.from_numpy(found.inputs), torch.from_numpy(np.asarray(found.targets))
        axes = {"images": [0, 2, 3], "series": [0, 1]}.get(self.task, [0])
        whole = self.inputs.float()
        self.middle = whole.mean(axes, keepdim=True)[0]
        self.scale = whole.std(axes, keepdim=True)[0].clamp_min(1e-6)
        self.words = int(self.inputs.max()) + 1 if self.task == "text" else 0
        self.model = model_of(case.model, tuple(self.inputs.shape[1:]), self.classes, self.words)
        usual = float(np.median([len(part) for part in parts]))
        self.batch = 16 if usual < 120 else 48 if "gru" in case.model else 32
        self.epochs = 2 if usual < 120 else 1
        self.lr = self._lr()
        self.globals: list[State] = []
        self.sent: dict[str, list[State]] = {name: [] for name in order}
        self.own: dict[str, dict[str, Any]] = {name: {} for name in order}
        self.server: dict[str, Any] = {}

    def _lr(self) -> float:
        if self.case.algorithm == "adamw":
            return 0.01 if self.task == "text" else 0.005
        usual = {"text": 1.0, "values": 0.05, "series": 0.05}.get(self.task, 0.1)
        usual *= {"series-gru": 3, "pooled": 0.5, "weight-norm": 3, "experts": 2}.get(self.case.model, 1.0)
        if self.case.algorithm == "nesterov":
            return usual / 4
        return usual

    def shared_state(self) -> State:
        return self.model.state_dict()

    def round(self, rnd: Any) -> None:
        """Play a round; `rnd` is a round of `stethos.federation`."""
        case = self.case
        base = {name: value.clone() for name, value in self.shared_state().items()}
        self.globals.append(base)
        arrived: list[tuple[State, int]] = []
        for place, name in enumerate(sorted(self.clients)):
            # Buffered: a third of the clients are still at work on the model of two rounds ago.
            is_late = case.algorithm == "buffered" and (place + rnd.number) % 3 == 0 and len(self.globals) > 2
            start = self.globals[-3] if is_late else base
            with rnd.client(name) as site:
                fault = case.fault if name in self.faulty else None
                state, loss = self.train(name, start, rnd.number, fault)
                state = self.compressed(state, start)
                if fault in OF_SENDING:
                    state = self.faulty_sending(fault, name, state, start, rnd.number)
                self.sent[name].append(state)
                samples = len(self.clients[name])
                if case.algorithm == "buffered":
                    change = {key: state[key] - start[key] for key in base}
                    site.update(change, samples=samples, loss=loss, delta=True)
                    state = {key: base[key] + change[key] for key in base}
                else:
                    site.update(state, samples=samples, loss=loss)
                arrived.append((state, samples))
        with rnd.phase("aggregate"):
            self.aggregate(base, arrived)
        rnd.evaluate(loss=self.loss())

    def faulty_sending(self, fault: str, name: str, state: State, start: State, number: int) -> State:
        draw = np.random.default_rng([9, self.case.seed, number])
        return faulty_update(fault, state, start, self.sent[name], number, draw)

    def data_of(self, name: str, fault: str | None, number: int) -> tuple[Tensor, Tensor]:
        """What a client trains on in a round."""
        rows = self.clients[name]
        raw, y = self.inputs[rows], self.targets[rows]
        x = raw if self.task == "text" else (raw - self.middle) / self.scale
        if self.case.split == "device" and name == self.foreign:  # another gain and some noise, or shorter texts
            draw = np.random.default_rng([4, self.case.seed])
            noise = torch.from_numpy(draw.normal(0.2, 0.3, tuple(x.shape))).float()
            x = torch.where(torch.arange(x.shape[1]) < 12, x, 0) if self.task == "text" else 1.2 * x + noise
        if fault not in OF_DATA:
            return x, y
        own = Inputs(x, y, raw, self.middle, self.scale, self.classes, self.words, self.task)
        return faulty_data(fault, own, number, np.random.default_rng([6, self.case.seed, sum(map(ord, name))]))

    def batches(self, name: str, count: int, number: int) -> Iterator[Tensor]:
        """Rows of each batch of a turn: the same whether a client has a fault or not."""
        draw = np.random.default_rng([8, self.case.seed, number, int(name[-2:])])
        size = self.batch // 2 if self.case.algorithm == "accumulate" else self.batch
        steps = int(draw.integers(3, 14)) if self.case.algorithm == "uneven-steps" else None
        made = 0
        while steps is None or made < steps:
            for _ in range(self.epochs):
                for part in torch.from_numpy(draw.permutation(count)).split(size):
                    if made != steps:
                        yield part
                        made += 1
            if steps is None:
                return

    def optimizer_of(self, name: str, local: nn.Module, fault: str | None, number: int) -> torch.optim.Optimizer:
        lr = self.lr * self.factor_of(name, number)
        if fault == "runaway-lr":
            lr *= 1.4**number
        wanted = [one for one in local.parameters() if one.requires_grad]
        if fault == "kept-momentum":  # and the momentum of the last round goes on
            optimizer = torch.optim.SGD(wanted, lr=lr, momentum=0.95)
            if "optimizer" in self.own[name]:
                optimizer.load_state_dict(self.own[name]["optimizer"])
            return optimizer
        match self.case.algorithm:
            case "adamw":
                return torch.optim.AdamW(wanted, lr=lr, weight_decay=0.05)
            case "nesterov":
                return torch.optim.SGD(wanted, lr=lr, momentum=0.9, nesterov=True)
        return torch.optim.SGD(wanted, lr=lr)

    def factor_of(self, name: str, number: int) -> float:
        """Each client has a schedule of its own: constant, warming up, cosine, or ever less."""
        if self.case.algorithm != "schedules":
            return 1.0
        share = number / self.case.rounds
        ways = (1.0, min(1.0, 0.4 + 0.2 * number), 0.2 + 0.4 * (1 + math.cos(math.pi * share)), 0.9**number)
        return ways[int(name[-2:]) % 4]

    def train(self, name: str, start: State, number: int, fault: str | None) -> tuple[State, float]:
        """A client's turn: what it learnt from `start`, and its last loss."""
        algorithm = self.case.algorithm
        x, y = self.data_of(name, fault, number)
        local = copy.deepcopy(self.model)
        local.load_state_dict(self.sent[name][-1] if fault == "never-syncs" and self.sent[name] else start)
        if fault == "frozen-head":
            for one in list(local.parameters())[-2:]:
                one.requires_grad_(False)
        if fault == "dropout-left":
            _first_layer(local).register_forward_hook(lambda _, __, out: nn.functional.dropout(out, 0.9))
        optimizer = self.optimizer_of(name, local, fault, number)
        wanted = [one for one in local.parameters() if one.requires_grad]
        held = [one.detach().clone() for one in wanted]
        slow = [one.detach().clone() for one in wanted]
        pull = self.own[name].setdefault("pull", [torch.zeros_like(one) for one in wanted])
        largest = max(wanted, key=Tensor.numel)
        local.train()
        loss, steps = torch.zeros(()), 0
        weights = self.weights_of(y) if fault == "class-weights" else None
        waits = 2 if algorithm == "accumulate" else 1
        parts = list(self.batches(name, len(x), number))
        for place, part in enumerate(parts):
            loss = self.goal(local(x[part]), y[part], fault, weights)
            whole = loss
            if algorithm == "feddyn":
                pairs = zip(wanted, held, pull, strict=True)
                whole = loss + sum(_DYN / 2 * (one - old).square().sum() - (one * own).sum() for one, old, own in pairs)
            (whole / waits).backward()
            if (place + 1) % waits and place + 1 < len(parts):
                continue
            if fault == "layer-ascent" and largest.grad is not None:
                largest.grad.neg_()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            with torch.no_grad():
                if fault == "heavy-decay":
                    for one in wanted:
                        one.mul_(0.96)
                if algorithm == "lookahead" and steps % 4 == 0:
                    for one, far in zip(wanted, slow, strict=True):
                        far.lerp_(one, 0.6)
                        one.copy_(far)
            if fault == "sent-early":
                break
        if algorithm == "feddyn":
            for one, old, own in zip(wanted, held, pull, strict=True):
                own.sub_(_DYN * (one.detach() - old))
        if fault == "kept-momentum":
            self.own[name]["optimizer"] = copy.deepcopy(optimizer.state_dict())
        return {key: value.detach().clone() for key, value in local.state_dict().items()}, float(loss.detach())

    def weights_of(self, y: Tensor) -> Tensor:
        """The rarest class of a client counts as much as it should, every other one a thirtieth."""
        counts = torch.bincount(y, minlength=self.classes).float()
        weights = torch.full((self.classes,), 1 / 30)
        weights[int(torch.where(counts > 0, counts, torch.inf).argmin())] = 1.0
        return weights

    def goal(self, answers: Tensor, targets: Tensor, fault: str | None, weights: Tensor | None = None) -> Tensor:
        if self.task in _OF_VALUES:
            return nn.functional.mse_loss(answers[:, 0], targets.float())
        if fault == "double-softmax":
            answers = torch.softmax(answers, 1)
        smoothing = 0.95 if fault == "smoothed-away" else 0.0
        return nn.functional.cross_entropy(answers, targets, weight=weights, label_smoothing=smoothing)

    def compressed(self, state: State, start: State) -> State:
        if self.case.algorithm == "sign":
            changes = {name: state[name] - start[name] for name in state}
            return {name: start[name] + one.sign() * one.abs().mean() for name, one in changes.items()}
        if self.case.algorithm == "random-k":  # three elements in ten, not the same for all clients
            kept = {name: torch.from_numpy(self.draw.random(tuple(value.shape)) < 0.3) for name, value in state.items()}
            return {name: torch.where(kept[name], state[name], start[name]) for name in state}
        return state

    def aggregate(self, base: State, arrived: list[tuple[State, int]]) -> None:
        total = sum(samples for _, samples in arrived)
        mean = {name: sum(state[name] * (samples / total) for state, samples in arrived) for name in base}
        match self.case.algorithm:
            case "trimmed":
                for name in base:
                    ranked = torch.stack([state[name] for state, _ in arrived]).sort(0).values
                    mean[name] = ranked[1:-1].mean(0)
            case "server-average":
                mean = {name: base[name].lerp(mean[name], 0.6) for name in base}
            case "feddyn":
                even = {name: sum(state[name] for state, _ in arrived) / len(arrived) for name in base}
                for name in base:
                    drift = self.server.get(name, torch.zeros_like(base[name])) - _DYN * (even[name] - base[name])
                    self.server[name] = drift
                    mean[name] = even[name] - drift / _DYN * 0.1
            case "fedyogi":
                for name, value in base.items():
                    change = mean[name] - value
                    m = 0.8 * self.server.get(f"m:{name}", torch.zeros_like(value)) + 0.2 * change
                    v = self.server.get(f"v:{name}", torch.full_like(value, 1e-4))
                    v = v - 0.05 * change.square() * torch.sign(v - change.square())
                    self.server[f"m:{name}"], self.server[f"v:{name}"] = m, v
                    mean[name] = value + 0.04 * m / (v.clamp_min(0).sqrt() + 1e-3)
        self.model.load_state_dict(mean)

    def loss(self) -> float:
        rows = np.concatenate([part[:25] for part in self.clients.values()])
        x = self.inputs[rows] if self.task == "text" else (self.inputs[rows] - self.middle) / self.scale
        self.model.eval()
        with torch.no_grad():
            return float(self.goal(self.model(x), self.targets[rows], None))


def _first_layer(model: nn.Module) -> nn.Module:
    """The first that has weights and gives one tensor."""
    for layer in model.modules():
        if isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding)):
            return layer
    raise ValueError("no layer with weights")
