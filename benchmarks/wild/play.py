"""Plays one federation of the wild benchmark with a loop as users write them, and keeps what Stethos recorded."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import stethos
from benchmarks.wild.data import samples_of
from benchmarks.wild.families import DEVELOPMENT, HELD_OUT, NOT_OF_VALUES, OF_NUMBERS, OF_VALUES, OPENED, Families
from benchmarks.wild.fault import State, faulty_data, faulty_update
from benchmarks.wild.model import model_of

TASKS = {**DEVELOPMENT.data, **OPENED.data, **HELD_OUT.data}
_ONE_UNLIKE = ("foreign", "sensor", "tiny", "mix")  # the first client is honest, and unlike the others
_SIZES = (40, 60, 90, 150, 250)


class Case(NamedTuple):
    """One federation: everything that it depends on. `fault` is None in a clean one; `faulty` how many have it."""

    data: str
    model: str
    algorithm: str
    split: str
    fault: str | None
    faulty: int
    clients: int
    rounds: int
    seed: int


def case_of(seed: int, families: list[Families], clean_share: float) -> Case:
    """Draw a federation. Members of several families may meet in it."""
    draw = np.random.default_rng([77, seed])

    def one(options: list[Any]) -> Any:
        return options[int(draw.integers(len(options)))]

    data = one(sorted({name for family in families for name in family.data}))
    task = TASKS[data]
    model = one(sorted({name for family in families for name in family.models[task]}))
    if model == "transformer" and draw.random() < 0.5:  # a slow one
        model = "bag"
    algorithm = one(sorted({name for family in families for name in family.algorithms}))
    if algorithm == "fedbn" and model != "batchnorm":
        algorithm = "fedavg"
    if algorithm == "personal" and model in ("linear", "squared"):
        algorithm = "fedavg"
    split = one(sorted({name for family in families for name in family.splits}))
    if task == "values" and split.startswith(("dir", "pairs", "mix")):
        split = "iid"
    faults = sorted({name for family in families for name in family.faults})
    faults = [name for name in faults if name not in (NOT_OF_VALUES if task == "values" else OF_VALUES)]
    faults = [name for name in faults if not (task == "text" and name in OF_NUMBERS)]
    fault = None if draw.random() < clean_share else one(faults)
    faulty = 0 if fault is None else 2 if draw.random() < 0.15 else 1
    clients = 24 if algorithm == "partial" else int(draw.integers(8, 11))
    return Case(data, model, algorithm, split, fault, faulty, clients, int(draw.integers(7, 10)), seed)


def play(cases: list[Case], loop_of: Callable[[Case], Any] | None = None) -> Iterator[dict[str, Any]]:
    """Play federations one after the other in one run; yield what was recorded of each, and whom to accuse.

    `loop_of` makes the loop of a federation: a `Loop`, unless a set of federations brings its own.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        played = []
        with stethos.watch(dir=place, name="one") as handle:
            for case in cases:
                torch.manual_seed(case.seed)
                loop = (loop_of or Loop)(case)
                with stethos.federation(f"f{case.seed}", model=loop.shared_state, progress=False) as fed:
                    for rnd in fed.rounds(case.rounds):
                        loop.round(rnd)
                played.append(loop)
        run = handle.run()
        for loop in played:
            yield {
                "case": loop.case._asdict(), "faulty": loop.faulty, "foreign": loop.foreign,
                "rows": recorded(run, f"f{loop.case.seed}"),
            }  # fmt: skip


def recorded(run: Any, federation: str) -> dict[str, dict[str, list[Any]]]:
    """The columns that federated detectors read, of one federation."""
    from stethos.diagnose.federated.cohort import NEEDS, READS

    tables = {"updates": NEEDS["updates"] | READS["updates"] | {"sketch"}, "client_rounds": READS["client_rounds"]}
    tables["evidence"] = frozenset({"federation", "round", "client", "kind", "value"})
    return {
        name: run.sql(
            f"SELECT {', '.join(sorted(columns))} FROM {name} WHERE federation = '{federation}' ORDER BY round, client"
        ).to_pydict()
        for name, columns in tables.items()
    }


class Loop:
    """Clients with data, a global model, and rounds."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.draw = np.random.default_rng([13, case.seed])
        self.task = TASKS[case.data]
        found = samples_of(case.data)
        self.classes = int(found.targets.max()) + 1 if self.task != "values" else 1
        parts = self._parts(found)
        order = [f"site-{place:02d}" for place in self.draw.permutation(case.clients)]
        self.clients = dict(zip(order, parts, strict=True))
        self.foreign = order[0] if case.split in _ONE_UNLIKE else None
        candidates = [name for name in order if name != self.foreign]
        self.faulty = sorted(self.draw.choice(candidates, case.faulty, replace=False).tolist())
        whole = torch.from_numpy(found.inputs).float()
        axes = [0] if self.task != "images" else [0, 1, 2, 3]
        self.middle, self.scale = whole.mean(axes), whole.std(axes).clamp_min(1e-6)
        self.inputs, self.targets = torch.from_numpy(found.inputs), torch.from_numpy(np.asarray(found.targets))
        self.model = model_of(case.model, tuple(self.inputs.shape[1:]), self.classes, int(self.inputs.max()) + 1)
        self.own: dict[str, dict[str, Any]] = {name: {} for name in order}
        self.old: list[State] = []
        self.steps = 1
        self.server: dict[str, Tensor] = {}
        self.lr = 0.02 if case.algorithm == "adam" else 0.1 if self.task != "values" else 0.05
        if case.model in ("transformer", "gru", "text-cnn", "bag"):
            self.lr *= 3 if case.algorithm != "adam" else 0.5
        self.kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}.get(case.algorithm, torch.optim.SGD)
        if case.algorithm == "rmsprop":
            self.lr *= 0.1
        self.batch = int(self.draw.choice([16, 32]))
        self.epochs = 1 if TASKS[case.data] == "text" or "transformer" in case.model else int(self.draw.integers(1, 3))

    def _parts(self, found: Any) -> list[np.ndarray[Any, Any]]:
        case, draw = self.case, self.draw
        size = int(draw.choice(_SIZES))
        size = min(size, len(found.inputs) // case.clients)
        order = draw.permutation(len(found.inputs))
        if case.split == "quantity":
            sizes = np.maximum((size * draw.lognormal(0, 0.6, case.clients)).astype(int), 16)
            sizes = (sizes * min(1, len(order) / sizes.sum())).astype(int)
            return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])
        if case.split.startswith("dir"):
            pools = [list(order[found.targets[order] == label]) for label in range(self.classes)]
            parts = []
            for _ in range(case.clients):
                shares = draw.dirichlet([float(case.split[3:])] * self.classes)
                taken = [pools[label].pop() for label in draw.choice(self.classes, size, p=shares) if pools[label]]
                while len(taken) < 12:
                    taken.append(max(pools, key=len).pop())
                parts.append(np.array(taken))
            return parts
        if case.split == "pairs":
            pools = [list(order[found.targets[order] == label]) for label in range(self.classes)]
            parts = []
            for _ in range(case.clients):
                two = draw.choice(self.classes, 2, replace=False)
                taken = [pools[label].pop() for label in draw.choice(two, size) if pools[label]]
                while len(taken) < 12:
                    taken.append(max(pools, key=len).pop())
                parts.append(np.array(taken))
            return parts
        if case.split == "sorted":
            flat = found.inputs[order].reshape(len(order), -1).astype(float)
            flat = (flat - flat.mean(0)) / (flat.std(0) + 1e-6)
            along = flat @ draw.normal(size=flat.shape[1]) + draw.normal(0, 2 * np.sqrt(flat.shape[1]), len(flat))
            return np.split(order[np.argsort(along)][: size * case.clients], case.clients)
        if case.split == "tiny":
            return np.split(order[: 16 + size * (case.clients - 1)], 16 + size * np.arange(case.clients - 1))
        if case.split == "mix":  # the first has three in four of one class
            label = int(draw.integers(self.classes))
            mine, rest = order[found.targets[order] == label], order[found.targets[order] != label]
            first = np.concatenate([mine[: 3 * size // 4], rest[: size - 3 * size // 4]])
            others = order[~np.isin(order, first)]
            size = min(size, len(others) // (case.clients - 1))
            return [first, *np.split(others[: size * (case.clients - 1)], case.clients - 1)]
        if case.split == "foreign":
            other, usual = order[found.groups[order] == 1], order[found.groups[order] == 0]
            size = min(size, len(usual) // (case.clients - 1))
            return [other[:size], *np.split(usual[: size * (case.clients - 1)], case.clients - 1)]
        return np.split(order[: size * case.clients], case.clients)

    def shared_state(self) -> State:
        state = self.model.state_dict()
        if self.case.algorithm == "fedbn":
            return {name: value for name, value in state.items() if ".2." not in f".{name}"}
        if self.case.algorithm == "personal":
            last = list(state)[-1].rsplit(".", 1)[0]
            return {name: value for name, value in state.items() if not name.startswith(last)}
        return state

    def round(self, rnd: Any) -> None:
        case = self.case
        names = sorted(self.clients)
        if case.algorithm == "partial":
            names = sorted(self.draw.choice(names, 8, replace=False).tolist())
        base = {name: value.clone() for name, value in self.shared_state().items()}
        sent: list[tuple[State, int]] = []
        late = names[rnd.number % len(names)] if case.algorithm == "late" and self.old else None
        for name in names:
            with rnd.client(name) as site:
                local, loss = self.train(name, self.old[-1] if name == late else base, rnd.number)
                whole = local.state_dict()
                state = {key: whole[key].detach().clone() for key in base}
                if name in self.faulty and case.fault is not None:
                    state = faulty_update(case.fault, state, base, self.old, rnd.number, self.draw)
                    if case.fault == "echo" and sent:
                        state = dict(sent[0][0])
                state = self.compressed(state, base)
                samples = len(self.clients[name])
                if case.algorithm == "fednova":  # the mean step; the server takes as many as clients do on average
                    change = {k: (state[k] - base[k]) / self.steps for k in base if base[k].is_floating_point()}
                    site.update(change, samples=samples, loss=loss, delta=True)
                elif case.algorithm == "deltas":
                    change = {key: state[key] - base[key] for key in base if base[key].is_floating_point()}
                    site.update(change, samples=samples, loss=loss, delta=True)
                else:
                    site.update(state, samples=samples, loss=loss)
                sent.append((state, samples))
        self.old.append(base)
        self.aggregate(base, sent)
        rnd.evaluate(loss=self.loss())

    def train(self, name: str, base: State, number: int) -> tuple[nn.Module, float]:
        case, fault = self.case, self.case.fault if name in self.faulty else None
        x, y = self.data_of(name, fault, number)
        local = copy.deepcopy(self.model)
        start = self.old[-3] if fault == "stale" and len(self.old) >= 3 else base
        local.load_state_dict(start, strict=False)
        local.load_state_dict(self.own[name], strict=False)
        lr = self.lr * (30 if fault == "wrong-lr" else 1)
        lr = lr / 30 if fault == "slow-lr" else lr
        if fault == "frozen-body":
            for one in list(local.parameters())[:-2]:
                one.requires_grad_(False)
        wanted = [one for one in local.parameters() if one.requires_grad]
        momentum = {"momentum": 0.9} if case.algorithm == "momentum" else {}
        optimizer = self.kind(wanted, lr=lr, **momentum)
        held = [one.detach().clone() for one in wanted]
        correction = self.own.setdefault(f"c:{name}", {"c": [torch.zeros_like(one) for one in wanted]})["c"]
        mean = self.server.setdefault("c", [torch.zeros_like(one) for one in wanted])
        local.train()
        steps, loss = 0, torch.zeros(())
        epochs = 1 + sum(map(ord, name)) % 3 if case.algorithm == "epochs" else self.epochs
        for _ in range(epochs):
            for part in torch.from_numpy(self.draw.permutation(len(x))).split(self.batch):
                if len(part) < 2 and case.model == "batchnorm":
                    continue
                if fault == "stuck-batch":
                    part = torch.arange(min(self.batch, len(x)))
                if fault != "no-zero-grad":
                    optimizer.zero_grad()
                loss = self.goal(local(x[part]), y[part], fault)
                if case.algorithm == "fedprox":
                    loss = loss + 0.05 * sum((one - old).square().sum() for one, old in zip(wanted, held, strict=True))
                (-loss if fault == "ascent" else loss).backward()
                if case.algorithm == "clipped":
                    nn.utils.clip_grad_norm_(wanted, 0.5)
                if case.algorithm == "scaffold":
                    for one, own, all_of in zip(wanted, correction, mean, strict=True):
                        one.grad += all_of - own
                optimizer.step()
                steps += 1
        if case.algorithm == "scaffold":
            for one, old, own, all_of in zip(wanted, held, correction, mean, strict=True):
                change = (old - one.detach()) / (steps * lr) - all_of
                all_of += change / len(self.clients)
                own += change
        self.steps = steps
        personal = [key for key in local.state_dict() if key not in base]
        self.own[name] = {key: local.state_dict()[key].clone() for key in personal}
        return local, float(loss.detach())

    def data_of(self, name: str, fault: str | None, number: int) -> tuple[Tensor, Tensor]:
        places = self.clients[name]
        raw, y = self.inputs[places], self.targets[places]
        x = raw if self.task == "text" else (raw - self.middle) / self.scale
        if self.case.split == "sensor" and name == self.foreign:  # longer gain, or shorter texts
            x = torch.where(torch.arange(x.shape[1]) < 10, x, 0) if self.task == "text" else 1.4 * x + 0.5
        if fault is None:
            return x, y
        same = np.random.default_rng([5, self.case.seed])
        return faulty_data(fault, x, y, raw, self.classes, number, same)

    def goal(self, answers: Tensor, targets: Tensor, fault: str | None) -> Tensor:
        way = "sum" if fault == "sum-loss" else "mean"
        if self.task == "values":
            return nn.functional.mse_loss(answers[:, 0], targets.float(), reduction=way)
        return nn.functional.cross_entropy(answers, targets, reduction=way)

    def compressed(self, state: State, base: State) -> State:
        if self.case.algorithm not in ("top-k", "int8", "dp", "qsgd"):
            return state
        names = [name for name in state if state[name].is_floating_point()]
        change = torch.cat([(state[name] - base[name]).reshape(-1) for name in names])
        if self.case.algorithm == "top-k":
            limit = change.abs().nan_to_num(nan=0.0).kthvalue(int(0.9 * len(change)) or 1)[0]
            change = torch.where((change.abs() >= limit) | ~torch.isfinite(change), change, torch.zeros(()))
        elif self.case.algorithm == "int8":
            scale = change.nan_to_num().abs().max().clamp_min(1e-12) / 127
            change = torch.round(change / scale) * scale
        elif self.case.algorithm == "qsgd":
            scale = change.nan_to_num().norm().clamp_min(1e-12) / 15
            change = torch.floor(change / scale + torch.from_numpy(self.draw.random(len(change))).float()) * scale
        else:
            change = change * min(1.0, 0.5 / max(float(change.norm()), 1e-9))
            change = change + torch.from_numpy(self.draw.normal(0, 0.1 / math.sqrt(len(change)), len(change))).float()
        parts = torch.split(change, [state[name].numel() for name in names])
        return {**state, **{n: base[n] + part.reshape(base[n].shape) for n, part in zip(names, parts, strict=True)}}

    def aggregate(self, base: State, sent: list[tuple[State, int]]) -> None:
        total = sum(samples for _, samples in sent)
        mean = {
            name: sum(state[name] * (samples / total) for state, samples in sent)
            if value.is_floating_point()
            else value
            for name, value in base.items()
        }
        if self.case.algorithm == "fedavgm":
            for name, value in base.items():
                if value.is_floating_point():
                    old = self.server.get(f"m:{name}", torch.zeros_like(value))
                    self.server[f"m:{name}"] = 0.7 * old + mean[name] - value
                    mean[name] = value + self.server[f"m:{name}"]
        if self.case.algorithm == "fedadam":
            for name, value in base.items():
                if not value.is_floating_point():
                    continue
                change = mean[name] - value
                m = self.server[f"m:{name}"] = (
                    0.9 * self.server.get(f"m:{name}", torch.zeros_like(value)) + 0.1 * change
                )
                v = self.server[f"v:{name}"] = (
                    0.99 * self.server.get(f"v:{name}", torch.zeros_like(value)) + 0.01 * change**2
                )
                mean[name] = value + 0.03 * m / (v.sqrt() + 1e-3)
        self.model.load_state_dict(mean, strict=False)

    def loss(self) -> float:
        places = np.concatenate(list(self.clients.values()))[:200]
        x = self.inputs[places] if self.task == "text" else (self.inputs[places] - self.middle) / self.scale
        self.model.eval()
        with torch.no_grad():
            return float(self.goal(self.model(x), self.targets[places], None))
