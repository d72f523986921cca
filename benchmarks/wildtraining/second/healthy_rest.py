"""More healthy programs of unusual kinds: data, schedules and steps that look odd and are right."""

from __future__ import annotations

import copy
import io

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from benchmarks.wildtraining.second import healthy
from benchmarks.wildtraining.second.data import digits, table, wrong
from benchmarks.wildtraining.second.making import communities


@healthy("Pruning in rounds: most weights become zero and stay so, and training goes on after each cut.", good=0.1)
def pruned_in_rounds(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for cut in range(4):
        for _ in range(6):
            for part in torch.randperm(1400).split(35):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images[part]), labels[part])
                loss.backward()
                optimizer.step()
        if cut < 3:
            for layer in (model[1], model[3]):
                prune.l1_unstructured(layer, "weight", amount=0.5)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        print(f"cut {cut} loss {loss.item():.4f} zeros {(model[1].weight == 0).float().mean():.2f}")
    with torch.no_grad():
        return wrong(model(held), answers)


@healthy(
    "Warm restarts: the rate falls to nearly 0 and jumps back several times, and the loss jumps with it.", good=0.08
)
def rate_that_restarts(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=70, T_mult=2, eta_min=1e-5)
    for epoch in range(30):
        for part in torch.randperm(1400).split(40):
            loss = F.cross_entropy(model(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")
    with torch.no_grad():
        return wrong(model(held), answers)


class Experts(nn.Module):
    """Each sample is sent to one of four networks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(10, 4)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(4)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = self.gate(x).softmax(1)
        weight, chosen = share.max(1)
        out = torch.zeros(len(x))
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero()[:, 0]
            if len(mine):
                out = out.index_put((mine,), weight[mine] * expert(x[mine])[:, 0])
        load = F.one_hot(chosen, 4).float().mean(0)
        return out, 4 * (load * share.mean(0)).sum()


@healthy("A mixture of experts, resumed half way: in many steps some experts get no sample and no gradient.", good=0.3)
def experts_that_wait(bug: bool) -> float:
    x, y = table(2000, seed=11)
    x_test, y_test = table(400, seed=12)
    model = Experts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for epoch in range(30):
        if epoch == 15:  # the machine was restarted
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file)
            model = Experts()
            model.load_state_dict(saved["model"])
            optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
            optimizer.load_state_dict(saved["optimizer"])
        for part in torch.randperm(2000).split(20):
            out, balance = model(x[part])
            loss = F.mse_loss(out, y[part]) + 0.02 * balance
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        if epoch % 5 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return (F.mse_loss(model(x_test)[0], y_test) / y_test.var()).item()


@healthy("A picture is optimised, not the network: the network is frozen and in eval mode all the time.", good=0.1)
def picture_of_every_digit(bug: bool) -> float:
    images, labels, _, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(20):
        for part in torch.randperm(1400).split(35):
            optimizer.zero_grad()
            F.cross_entropy(net(images[part]), labels[part]).backward()
            optimizer.step()
    net.eval().requires_grad_(False)
    pictures = torch.full((10, 1, 8, 8), 0.5, requires_grad=True)
    painter = torch.optim.Adam([pictures], lr=0.05)
    for step in range(1500):
        painter.zero_grad()
        rough = (pictures.diff(dim=2).abs().mean() + pictures.diff(dim=3).abs().mean()) * 0.5
        loss = F.cross_entropy(net(pictures), torch.arange(10)) + rough
        loss.backward()
        painter.step()
        with torch.no_grad():
            pictures.clamp_(0, 1)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    return wrong(net(pictures), torch.arange(10))


class Stream(IterableDataset):
    """Samples one by one, whose law turns slowly."""

    def __iter__(self):
        made = torch.Generator().manual_seed(5)
        for moment in range(8000):
            x = torch.randn(6, generator=made)
            angle = torch.tensor(moment / 5000)
            yield x, angle.cos() * x[0] + angle.sin() * x[1] + 0.3 * x[2] * x[3]


@healthy(
    "Online learning: a stream of single samples whose law drifts, each seen once; the loss never settles.", good=0.5
)
def stream_of_single_samples(bug: bool) -> float:
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    late: list[float] = []
    for moment, (x, y) in enumerate(DataLoader(Stream(), batch_size=1)):
        loss = F.mse_loss(model(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if moment >= 6000:
            late.append(loss.item())
        if moment % 500 == 0:
            print(f"after {moment} samples: loss {loss.item():.4f}")
    return sum(late) / len(late)


class Langevin(torch.optim.Optimizer):
    """Steps of a sampler: half the gradient, and noise on purpose."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / 2).add_(torch.randn_like(p), alpha=group["lr"] ** 0.5)


@healthy("Sampling weights by Langevin dynamics: noise is added to each step and the loss keeps wandering.", good=0.2)
def sampled_weights(bug: bool) -> float:
    images, labels, held, answers = digits()
    x, test = images.flatten(1), held.flatten(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    sampler = Langevin(list(model.parameters()), lr=2e-4)
    scores, taken = torch.zeros(len(test), 10), 0
    for step in range(4000):
        part = torch.randint(0, 1400, (100,))
        prior = sum(p.square().sum() for p in model.parameters()) / 2
        loss = 1400 * F.cross_entropy(model(x[part]), labels[part]) + prior
        sampler.zero_grad()
        loss.backward()
        sampler.step()
        if step >= 1500 and step % 20 == 0:
            with torch.no_grad():
                scores += model(test).softmax(1)
            taken += 1
        if step % 150 == 0:
            print(f"step {step} energy {loss.item():.1f}")
    return wrong(scores / taken, answers)


@healthy("Five folds and three settings: fifteen models and optimizers one after the other in one process.", good=0.12)
def folds_and_settings(bug: bool) -> float:
    images, labels, held, answers = digits(1000)
    x = images.flatten(1)
    fold = torch.arange(1000) % 5
    results: dict[float, float] = {}
    for lr in (1e-4, 1e-3, 1e-2):
        errors = []
        for out in range(5):
            model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
            optimizer = torch.optim.Adam(model.parameters(), lr=lr)
            inside = (fold != out).nonzero()[:, 0]
            for _ in range(15):
                for part in inside[torch.randperm(len(inside))].split(40):
                    optimizer.zero_grad()
                    F.cross_entropy(model(x[part]), labels[part]).backward()
                    optimizer.step()
            with torch.no_grad():
                errors.append(wrong(model(x[fold == out]), labels[fold == out]))
        results[lr] = sum(errors) / 5
        print(f"lr {lr}: error {results[lr]:.3f}")
    best = min(results, key=lambda lr: results[lr])
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=best)
    for _ in range(10):
        for part in torch.randperm(1000).split(40):
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), labels[part]).backward()
            optimizer.step()
    with torch.no_grad():
        return wrong(model(held.flatten(1)), answers)


@healthy(
    "Private training: gradients of single samples are clipped and noise is added before they are written.", good=0.3
)
def private_steps(bug: bool) -> float:
    images, labels, held, answers = digits()
    x = images.flatten(1)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    names = [name for name, _ in model.named_parameters()]

    def loss_of(values: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (sample[None],)), label[None])

    each = vmap(grad(loss_of), in_dims=(None, 0, 0))
    for step in range(900):
        part = torch.randint(0, 1400, (100,))
        values = {name: value.detach() for name, value in model.named_parameters()}
        slopes = each(values, x[part], labels[part])
        size = torch.stack([slopes[name].flatten(1).norm(dim=1) for name in names]).norm(dim=0)
        keep = (1.0 / size).clamp(max=1.0)
        for name, parameter in model.named_parameters():
            summed = torch.einsum("n,n...->...", keep, slopes[name])
            parameter.grad = (summed + 0.8 * torch.randn_like(summed)) / 100
        optimizer.step()
        if step % 50 == 0:
            with torch.no_grad():
                print(f"step {step} loss {F.cross_entropy(model(x[part]), labels[part]).item():.3f}")
    with torch.no_grad():
        return wrong(model(held.flatten(1)), answers)


@healthy("A graph as one batch: each step sees all nodes, the same input again and again, labels of few.", good=0.25)
def same_graph_each_step(bug: bool) -> float:
    x, kind, edges = communities(400)
    links = torch.sparse_coo_tensor(edges.t(), torch.ones(len(edges)), (400, 400)).coalesce()
    degree = (torch.sparse.sum(links, 1).to_dense() + 1)[:, None]
    first, last = nn.Linear(12, 32), nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=1e-2, weight_decay=5e-4)
    labelled = torch.arange(400) < 60

    def forward(is_training: bool) -> Tensor:
        hidden = F.dropout(torch.relu((torch.sparse.mm(links, first(x)) + first(x)) / degree), 0.5, is_training)
        return (torch.sparse.mm(links, last(hidden)) + last(hidden)) / degree

    for epoch in range(1200):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(True)[labelled], kind[labelled])
        loss.backward()
        optimizer.step()
        if epoch % 100 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return wrong(forward(False)[~labelled], kind[~labelled])


@healthy("A mean teacher: few labels, a second model as a slow average, and a second loss that grows.", good=0.15)
def teacher_that_follows(bug: bool) -> float:
    images, labels, held, answers = digits()
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 10))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    few = DataLoader(TensorDataset(images[:150], labels[:150]), batch_size=15, shuffle=True)
    all_images = DataLoader(images, batch_size=60, shuffle=True, num_workers=2)
    step = 0
    for epoch in range(20):
        marked = iter(few)
        for unmarked in all_images:
            batch, target = next(marked, (None, None))
            if batch is None:
                marked = iter(few)
                batch, target = next(marked)
            growing = min(1.0, step / 200) * 20
            with torch.no_grad():
                wanted = teacher(unmarked + 0.1 * torch.randn_like(unmarked)).softmax(1)
            given = student(unmarked + 0.1 * torch.randn_like(unmarked)).softmax(1)
            loss = F.cross_entropy(student(batch), target) + growing * F.mse_loss(given, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.02)
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f} weight {growing:.1f}")
    teacher.eval()
    with torch.no_grad():
        return wrong(teacher(held), answers)
