"""Healthy programs of unusual kinds: optimizers, losses and loops that look odd and are right."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.wildtraining.second import healthy
from benchmarks.wildtraining.second.data import digits, wrong


@healthy("A network solves a differential equation: LBFGS, derivatives of the output in the loss, no data.", good=0.05)
def equation_without_data(bug: bool) -> float:
    time = torch.linspace(0, 3, 60)[:, None].requires_grad_()
    net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        u = net(time)
        (slope,) = torch.autograd.grad(u.sum(), time, create_graph=True)
        loss = ((slope + u - time.sin()) ** 2).mean() + (u[0] - 1).square().sum()
        loss.backward()
        return loss

    for step in range(40):
        loss = optimizer.step(closure)
        if step % 10 == 0:
            print(f"iteration {step} residual {loss.item():.2e}")
    exact = 1.5 * torch.exp(-time) + (time.sin() - time.cos()) / 2
    return (net(time) - exact).abs().max().item()


@healthy("Evolution: weights are perturbed and moved by hand, without gradients and without an optimizer.", good=0.3)
@torch.no_grad()
def evolution_by_hand(bug: bool) -> float:
    images, labels, held, answers = digits()
    x, test = images.flatten(1), held.flatten(1)
    weights, spread, rate = torch.zeros(65, 10), 0.1, 0.3
    best_loss = float("inf")
    for generation in range(900):
        part = torch.randint(0, 1400, (300,))
        noise = torch.randn(40, 65, 10)
        noise = torch.cat([noise, -noise])
        tried = weights + spread * noise
        scores = torch.einsum("nf,pfc->pnc", x[part], tried[:, :64]) + tried[:, None, 64]
        losses = F.cross_entropy(scores.permute(1, 2, 0), labels[part, None].expand(-1, 80), reduction="none").mean(0)
        rank = losses.argsort().argsort().float() / 79 - 0.5
        weights -= rate * (rank[:, None, None] * noise).mean(0) / spread
        best_loss = min(best_loss, losses.min().item())
        if generation % 50 == 0:
            print(f"generation {generation} best {best_loss:.3f}")
    return wrong(test @ weights[:64] + weights[64], answers)


@healthy("Ratings by sparse embeddings: SparseAdam, most rows get no gradient in a step.", good=0.5)
def ratings_of_few_users(bug: bool) -> float:
    made = torch.Generator().manual_seed(3)
    users, films = torch.randn(300, 4, generator=made), torch.randn(200, 4, generator=made)
    who = torch.randint(0, 300, (9000,), generator=made)
    what = torch.randint(0, 200, (9000,), generator=made)
    stars = (users[who] * films[what]).sum(1) + 0.1 * torch.randn(9000, generator=made)
    left, right = nn.Embedding(300, 6, sparse=True), nn.Embedding(200, 6, sparse=True)
    for embedding in (left, right):
        nn.init.normal_(embedding.weight, std=0.3)
    optimizer = torch.optim.SparseAdam([*left.parameters(), *right.parameters()], lr=2e-2)
    loader = DataLoader(TensorDataset(who[:8000], what[:8000], stars[:8000]), batch_size=100, shuffle=True)
    for epoch in range(12):
        for user, film, rating in loader:
            optimizer.zero_grad()
            loss = F.mse_loss((left(user) * right(film)).sum(1), rating)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        rest = F.mse_loss((left(who[8000:]) * right(what[8000:])).sum(1), stars[8000:])
    return (rest / stars.var()).item()


@healthy(
    "Learning to learn sines: gradients of gradients, fast weights beside the model, a new task each step.", good=1.2
)
def learning_to_learn(bug: bool) -> float:
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def adapted(x: Tensor, y: Tensor, steps: int) -> dict[str, Tensor]:
        fast = dict(net.named_parameters())
        for _ in range(steps):
            loss = F.mse_loss(functional_call(net, fast, (x,)), y)
            slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: value - 0.05 * slope for (name, value), slope in zip(fast.items(), slopes, strict=True)}
        return fast

    def task() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        height, phase = torch.rand(()) * 3 + 1, torch.rand(()) * math.pi
        seen, asked = torch.rand(10, 1) * 10 - 5, torch.rand(20, 1) * 10 - 5
        return seen, height * (seen + phase).sin(), asked, height * (asked + phase).sin()

    for step in range(500):
        optimizer.zero_grad()
        total = torch.zeros(())
        for _ in range(3):
            seen, there, asked, wanted = task()
            total = total + F.mse_loss(functional_call(net, adapted(seen, there, 2), (asked,)), wanted) / 3
        total.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss after adapting {total.item():.3f}")
    losses, plain = [], []
    for _ in range(20):
        seen, there, asked, wanted = task()
        losses.append(F.mse_loss(functional_call(net, adapted(seen, there, 5), (asked,)), wanted).item())
        plain.append(wanted.var().item())
    return sum(losses) / sum(plain)


@healthy(
    "A Gaussian process by its marginal likelihood: three parameters, all data in each step, loss below 0.", good=0.1
)
def three_parameters(bug: bool) -> float:
    made = torch.Generator().manual_seed(1)
    x = torch.rand(120, generator=made).sort().values * 6
    y = (2 * x).sin() * x.cos() + 0.05 * torch.randn(120, generator=made)
    logs = nn.Parameter(torch.tensor([0.0, 0.0, -1.0]))  # length, height, noise
    optimizer = torch.optim.Adam([logs], lr=0.05)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (2 * logs[1]).exp() * torch.exp(-0.5 * ((a[:, None] - b[None]) / logs[0].exp()) ** 2)

    seen, held = torch.arange(120) % 4 != 0, torch.arange(120) % 4 == 0
    for step in range(1500):
        root = torch.linalg.cholesky(kernel(x[seen], x[seen]) + (2 * logs[2]).exp() * torch.eye(90))
        alpha = torch.cholesky_solve(y[seen, None], root)[:, 0]
        loss = (0.5 * (y[seen] * alpha).sum() + root.diag().log().sum()) / 90
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} negative log likelihood {loss.item():.3f}")
    with torch.no_grad():
        guess = kernel(x[held], x[seen]) @ alpha
    return (F.mse_loss(guess, y[held]) / y.var()).item()


class Coupling(nn.Module):
    def __init__(self, flip: bool) -> None:
        super().__init__()
        self.flip, self.net = flip, nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 2))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fixed, moved = (x[:, 1:], x[:, :1]) if self.flip else (x[:, :1], x[:, 1:])
        scale, shift = self.net(fixed).chunk(2, 1)
        scale = torch.tanh(scale)
        moved = moved * scale.exp() + shift
        return torch.cat([moved, fixed] if self.flip else [fixed, moved], 1), scale[:, 0]


@healthy("A normalising flow of two moons: last layers start at zero, the loss is a likelihood of any sign.", good=2.0)
def flow_of_moons(bug: bool) -> float:
    points = torch.tensor(make_moons(2400, noise=0.05, random_state=0)[0], dtype=torch.float32)
    layers = nn.ModuleList([Coupling(flip=bool(i % 2)) for i in range(6)])
    optimizer = torch.optim.Adam(layers.parameters(), lr=2e-3)

    def surprise(z: Tensor) -> Tensor:
        log_det = torch.zeros(len(z))
        for layer in layers:
            z, change = layer(z)
            log_det = log_det + change
        return (0.5 * z.square().sum(1) + math.log(2 * math.pi) - log_det).mean()

    for step in range(700):
        loss = surprise(points[torch.randint(0, 2000, (200,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} nll {loss.item():.3f}")
    with torch.no_grad():
        return surprise(points[2000:]).item()


@healthy("A critic with a gradient penalty and a generator, five steps against one; losses of any sign.", good=0.9)
def critic_with_penalty(bug: bool) -> float:
    made = torch.Generator().manual_seed(2)
    real = torch.randn(2000, 2, generator=made) * 0.3 + torch.tensor([1.5, 1.0])
    generator = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    for step in range(800):
        for _ in range(5):
            batch, fake = real[torch.randint(0, 2000, (64,))], generator(torch.randn(64, 3)).detach()
            between = (batch + torch.rand(64, 1) * (fake - batch)).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            loss_c = critic(fake).mean() - critic(batch).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
            opt_c.zero_grad()
            loss_c.backward()
            opt_c.step()
        critic.requires_grad_(False)
        loss_g = -critic(generator(torch.randn(64, 3))).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        critic.requires_grad_(True)
        if step % 50 == 0:
            print(f"step {step} critic {loss_c.item():.3f} generator {loss_g.item():.3f}")
    with torch.no_grad():
        drawn = generator(torch.randn(2000, 3))
    return ((drawn.mean(0) - real.mean(0)).norm() + (drawn.std(0) - real.std(0)).norm()).item()


@healthy("Stochastic weight averaging: a constant high rate at the end, statistics recomputed afterwards.", good=0.06)
def averaged_at_the_end(bug: bool) -> float:
    images, labels, held, answers = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 10)
    )
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    swa = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=35, shuffle=True)
    for epoch in range(40):
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        if epoch >= 20:
            averaged.update_parameters(model)
            swa.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    torch.optim.swa_utils.update_bn(loader, averaged)
    averaged.eval()
    with torch.no_grad():
        return wrong(averaged(held), answers)


@healthy("A policy for slot machines by REINFORCE: the loss is noise around 0 and does not fall.", good=0.3)
def policy_of_a_gambler(bug: bool) -> float:
    made = torch.Generator().manual_seed(6)
    taste = torch.randn(5, 4, generator=made)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 5))
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    baseline = 0.0
    for step in range(1500):
        context = torch.randn(32, 4)
        choice = torch.distributions.Categorical(logits=policy(context))
        arm = choice.sample()
        reward = (context * taste[arm]).sum(1) + 0.5 * torch.randn(32)
        loss = -((reward - baseline) * choice.log_prob(arm)).mean() - 0.01 * choice.entropy().mean()
        baseline = 0.95 * baseline + 0.05 * reward.mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 150 == 0:
            print(f"step {step} reward {baseline:.3f}")
    context = torch.randn(2000, 4)
    worth = context @ taste.t()
    with torch.no_grad():
        got = worth.gather(1, policy(context).argmax(1, keepdim=True)).mean()
    return 1 - (got / worth.max(1).values.mean()).item()


@healthy("An echo state network: a random recurrent layer stays frozen, only the readout learns.", good=0.25)
def only_the_readout(bug: bool) -> float:
    made = torch.Generator().manual_seed(4)
    signal = (torch.arange(1500) * 0.2).sin() * (torch.arange(1500) * 0.031).cos()
    signal = signal + 0.02 * torch.randn(1500, generator=made)
    reservoir = nn.RNN(1, 120, batch_first=True).requires_grad_(False)
    reservoir.weight_hh_l0.mul_(0.9 / torch.linalg.eigvals(reservoir.weight_hh_l0).abs().max())
    readout = nn.Linear(120, 1)
    optimizer = torch.optim.Adam(readout.parameters(), lr=5e-3)
    states = reservoir(signal[None, :-1, None])[0][0]
    for step in range(4000):
        part = torch.randint(50, 1200, (100,))
        loss = F.mse_loss(readout(states[part])[:, 0], signal[part + 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.5f}")
    with torch.no_grad():
        rest = F.mse_loss(readout(states[1200:])[:, 0], signal[1201:])
    return (rest / signal.var()).item()
