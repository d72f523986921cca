"""Programs without a bug that train in unusual, right ways."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import prune
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from benchmarks.wildtraining.blind import healthy
from benchmarks.wildtraining.blind.data import accuracy_gap, curve, split_digits
from benchmarks.wildtraining.blind.decisions import Corridor, _steps_to_the_end
from benchmarks.wildtraining.blind.vision import Coder, _net, _views
from benchmarks.wildtraining.data import loader, mlp


def _gap(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return accuracy_gap(model(x), y)


@healthy("A GAN in two dimensions: neither loss falls, and both nets have their own optimizer.", good=0.5)
def generator_and_critic(bug: bool) -> float:
    made = torch.Generator().manual_seed(1)
    angle = 6.2832 * torch.rand(2000, 1, generator=made)
    ring = torch.cat([torch.cos(angle), torch.sin(angle)], 1) + 0.05 * torch.randn(2000, 2, generator=made)
    maker, critic = mlp(4, 48, 48, 2), mlp(2, 48, 48, 1, act=nn.LeakyReLU)
    makes = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    judges = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for epoch in range(20):
        for (real,) in loader(ring, batch=64):
            false = maker(torch.randn(len(real), 4))
            judges.zero_grad()
            loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(false.detach())).mean()
            loss.backward()
            judges.step()
            makes.zero_grad()
            fooled = functional.softplus(-critic(false)).mean()
            fooled.backward()
            makes.step()
        print(f"epoch {epoch} critic {loss.item():.3f} maker {fooled.item():.3f}")
    with torch.no_grad():
        return float((maker(torch.randn(500, 4)).norm(dim=1) - 1).abs().mean())


@healthy("A variational autoencoder whose divergence is warmed up: its loss rises at first, as it should.", good=0.6)
def divergence_warmed_up(bug: bool) -> float:
    images, _, held, _ = split_digits()
    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(14):
        for (batch,) in loader(images, batch=64):
            rebuilt, middle, spread = model(batch)
            divergence = -0.5 * (1 + spread - middle.square() - spread.exp()).sum() / len(batch)
            loss = functional.mse_loss(rebuilt, batch.flatten(1), reduction="sum") / len(batch)
            loss = loss + min(1.0, epoch / 8) * 0.5 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        flat = held.flatten(1)
        return float((model(held)[0] - flat).square().mean() / (flat - flat.mean(0)).square().mean())


@healthy("REINFORCE with a baseline: the loss has either sign, is noisy, and says nothing.", good=0.5)
def policy_gradient(bug: bool) -> float:
    policy = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    world, usual = Corridor(16), 0.0
    for number in range(120):
        chances, paid, over = [], [], []
        for _ in range(16):
            spread = Categorical(logits=policy(world.seen()))
            action = spread.sample()
            earned, ended = world.step(action)
            chances.append(spread.log_prob(action))
            paid.append(earned)
            over.append(ended)
        following, returns = torch.zeros(16), []
        for earned, ended in zip(reversed(paid), reversed(over), strict=True):
            following = earned + 0.95 * (1 - ended) * following
            returns.insert(0, following)
        total = torch.stack(returns)
        usual = 0.9 * usual + 0.1 * float(total.mean())
        loss = -(torch.stack(chances) * (total - usual)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            print(f"round {number} loss {loss.item():.4f} return {usual:.3f}")
    return _steps_to_the_end(lambda seen: int(policy(seen).argmax()))


@healthy("Contrastive learning with a learnt temperature; labels are positions in the batch.", good=0.3)
def contrastive(bug: bool) -> float:
    images, labels, *_ = split_digits()
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32)
    )
    scale = nn.Parameter(torch.tensor(2.0))
    optimizer = torch.optim.AdamW([*encoder.parameters(), scale], lr=2e-3)
    for epoch in range(8):
        for (batch,) in loader(images, batch=64, drop_last=True):
            first = functional.normalize(encoder(_views(batch)), dim=1)
            second = functional.normalize(encoder(_views(batch)), dim=1)
            scores = first @ second.t() * scale.clamp(max=4.6).exp()
            goal = torch.arange(len(batch))
            loss = 0.5 * (functional.cross_entropy(scores, goal) + functional.cross_entropy(scores.t(), goal))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        found = functional.normalize(encoder(images), dim=1)
        near = (found[:300] @ found[300:].t()).argmax(1)
    return float((labels[300:][near] != labels[:300]).float().mean())


@healthy("Learning to learn: gradients of gradients, and an inner loop that changes no parameter.", good=0.6)
def gradients_of_gradients(bug: bool) -> float:
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    outer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for _ in range(220):
        outer.zero_grad()
        total = torch.zeros(())
        for _ in range(4):
            height, phase = 0.5 + 1.5 * torch.rand(()), 3.14 * torch.rand(())
            x = 4 * torch.rand(20, 1) - 2
            y = height * torch.sin(2 * x + phase)
            fast = dict(net.named_parameters())
            for _ in range(2):
                error = functional.mse_loss(functional_call(net, fast, (x[:10],)), y[:10])
                slopes = torch.autograd.grad(error, list(fast.values()), create_graph=True)
                fast = {key: one - 0.05 * slope for (key, one), slope in zip(fast.items(), slopes, strict=True)}
            total = total + functional.mse_loss(functional_call(net, fast, (x[10:],)), y[10:]) / 4
        total.backward()
        outer.step()
        losses.append(total.item())
    return sum(losses[-40:]) / 40


@healthy("Quantisation-aware training: rounding in the forward pass, with a straight-through gradient.", good=0.12)
def quantised_in_training(bug: bool) -> float:
    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.detach().abs().amax(1, keepdim=True) / 7
            rounded = torch.round(self.weight / scale) * scale
            return functional.linear(x, self.weight + (rounded - self.weight).detach(), self.bias)

    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), Rounded(64, 48), nn.ReLU(), Rounded(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(model, held, answers)


@healthy("Pruning in steps: most weights are held at zero, and the loss jumps at each step.", good=0.15)
def pruned_in_steps(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 10))
    for place in (1, 3):
        prune.identity(model[place], "weight")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        if epoch in (4, 7):
            for place in (1, 3):
                prune.l1_unstructured(model[place], "weight", amount=0.5)
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(model, held, answers)


@healthy("Distillation: a frozen teacher in evaluation mode, and a student that sees no labels.", good=0.12)
def student_and_teacher(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    teacher, student = _net(24), _net(4)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(5):
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            functional.cross_entropy(teacher(batch), target).backward()
            optimizer.step()
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for epoch in range(8):
        student.train()
        for (batch,) in loader(images, batch=64):
            soft = (teacher(batch) / 3).softmax(1)
            loss = 9 * functional.kl_div((student(batch) / 3).log_softmax(1), soft, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(student, held, answers)


@healthy("An exponential mean of the weights is what is evaluated; it is trained by nobody.", good=0.12)
def exponential_mean(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.97))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(9):
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            mean.update_parameters(model)
        with torch.no_grad():
            checked = functional.cross_entropy(mean(held), answers)
        print(f"epoch {epoch} loss {loss.item():.3f} validation {checked.item():.3f}")
    return _gap(mean, held, answers)


@healthy("A curriculum: easy classes first, then all, so the loss jumps when new classes come.", good=0.15)
def easy_classes_first(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        known = labels < (4 if epoch < 3 else 7 if epoch < 6 else 10)
        for batch, target in loader(images[known], labels[known], batch=64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _gap(model, held, answers)


@healthy("Two tasks with learnt weights: the total becomes negative, as the likelihood says.", good=0.5)
def two_tasks_weighted_by_variance(bug: bool) -> float:
    x, y = curve()
    kinds = torch.bucketize(x[:, 4] + 0.5 * x[:, 5], torch.tensor([-0.5, 0.5]))
    body, value, kind = mlp(6, 48, 48), nn.Linear(48, 1), nn.Linear(48, 3)
    spread = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([*body.parameters(), *value.parameters(), *kind.parameters(), spread], lr=3e-3)
    for epoch in range(14):
        for batch, target, label in loader(x[:800], y[:800], kinds[:800]):
            h = torch.relu(body(batch))
            errors = torch.stack([functional.mse_loss(value(h), target), functional.cross_entropy(kind(h), label)])
            loss = (torch.exp(-spread) * errors + 0.5 * spread).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        h = torch.relu(body(x[800:]))
        return accuracy_gap(kind(h), kinds[800:]) + functional.mse_loss(value(h), y[800:]).item()


@healthy(
    "Denoising diffusion in two dimensions: the loss stops early, since most of the noise cannot be known.", good=0.9
)
def denoising(bug: bool) -> float:
    made = torch.Generator().manual_seed(2)
    angle = 6.2832 * torch.rand(2000, generator=made)
    points = torch.stack([torch.cos(angle), torch.sin(angle)], 1) * torch.where(angle < 3.14, 1.0, 2.0)[:, None]
    kept = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 40), 0)
    net = mlp(3, 64, 64, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    losses = []
    for epoch in range(16):
        for (batch,) in loader(points, batch=64):
            time = torch.randint(0, 40, (len(batch),))
            noise = torch.randn_like(batch)
            mixed = kept[time, None].sqrt() * batch + (1 - kept[time, None]).sqrt() * noise
            loss = functional.mse_loss(net(torch.cat([mixed, time[:, None] / 40], 1)), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return sum(losses[-60:]) / 60


@healthy("L-BFGS on all of the data: its closure computes the loss many times in a step.", good=0.15)
def second_order_closure(bug: bool) -> float:
    x, y = curve()
    model = mlp(6, 24, 1, act=nn.Tanh)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x[:800]), y[:800]) + 1e-4 * sum(
            one.square().sum() for one in model.parameters()
        )
        loss.backward()
        return loss

    for step in range(30):
        loss = optimizer.step(closure)
        if step % 5 == 0:
            print(f"step {step} loss {float(loss):.4f}")
    with torch.no_grad():
        return functional.mse_loss(model(x[800:]), y[800:]).item()


@healthy("Averaged weights with a high, constant rate at the end, and batch norm statistics computed anew.", good=0.12)
def stochastic_weight_averaging(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    model = _net(12)
    averaged = AveragedModel(copy.deepcopy(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    constant = SWALR(optimizer, swa_lr=0.05, anneal_epochs=1)
    data = loader(images, labels, batch=64)
    for epoch in range(9):
        model.train()
        for batch, target in data:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        if epoch >= 5:
            averaged.update_parameters(model)
            constant.step()
        else:
            falling.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    update_bn(data, averaged)
    return _gap(averaged, held, answers)
