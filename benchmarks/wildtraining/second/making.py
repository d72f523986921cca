"""Bugs in generative models, representations, decisions, graphs and several tasks at once."""

from __future__ import annotations

import random
from collections import deque

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import digits, wrong


class DigitVae(nn.Module):
    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_var).exp()), mean, log_var


@bug(
    cause="The reconstruction loss is a mean over pixels and samples, the divergence a sum, so the divergence "
    "outweighs the pictures and the code says nothing about them (posterior collapse).",
    must_say="one term of the loss outweighs the other, or posterior collapse (the latent code is ignored)",
    symptom="the loss stalls early, gradients of the encoder vanish, or all outputs are the same",
    source="https://github.com/pytorch/examples/pull/226",
    good=0.5,
)
def pictures_outweighed(bug: bool) -> float:
    images, _, held, _ = digits()
    x, test = images.flatten(1), held.flatten(1)
    model = DigitVae()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(80):
        for part in torch.randperm(1400).split(50):
            out, mean, log_var = model(x[part])
            reconstruction = F.mse_loss(out, x[part], reduction="mean" if bug else "sum")
            divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
            loss = reconstruction + 0.3 * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f} reconstruction {reconstruction.item():.4f}")
    model.eval()
    with torch.no_grad():
        mean = model.encoder(test).chunk(2, 1)[0]
        return (F.mse_loss(model.decoder(mean), test) / test.var(0).mean()).item()


@bug(
    cause="The generator's loss is computed from detached samples, so the generator never gets a gradient.",
    must_say="the generator gets no gradient, its optimizer steps without effect (its output is detached)",
    symptom="one of the losses falls to 0 or diverges, or weights do not change without saying whose",
    source="https://github.com/nikhilsinghmus/image2reverb/issues/37",
    good=0.8,
)
def generator_cut_off(bug: bool) -> float:
    made = torch.Generator().manual_seed(4)
    real = torch.randn(2000, 2, generator=made) * torch.tensor([0.5, 0.2]) + torch.tensor([2.0, -1.0])

    def mlp(width: int, out: int) -> nn.Sequential:
        leaky = nn.LeakyReLU(0.2)
        return nn.Sequential(nn.Linear(width, 32), leaky, nn.Linear(32, 32), leaky, nn.Linear(32, out))

    generator, critic = mlp(4, 2), mlp(2, 1)
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    bce = nn.BCEWithLogitsLoss()
    yes, no = torch.ones(64, 1), torch.zeros(64, 1)
    for step in range(3000):
        batch = real[torch.randint(0, 2000, (64,))]
        fake = generator(torch.randn(64, 4))
        loss_d = bce(critic(batch), yes) + bce(critic(fake.detach()), no)
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()

        loss_g = bce(critic(fake.detach() if bug else fake), yes)
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        if step % 100 == 0:
            print(f"step {step} D {loss_d.item():.3f} G {loss_g.item():.3f}")
    with torch.no_grad():
        drawn = generator(torch.randn(2000, 4))
    return ((drawn.mean(0) - real.mean(0)).norm() + (drawn.std(0) - real.std(0)).norm()).item()


class Denoiser(nn.Module):
    def __init__(self, steps: int, whole_division: bool) -> None:
        super().__init__()
        self.steps, self.whole_division = steps, whole_division
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU())
        self.net = nn.Sequential(nn.Linear(34, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        share = (t // self.steps).float() if self.whole_division else t / self.steps
        waves = share[:, None] * 2.0 ** torch.arange(8)
        return self.net(torch.cat([x, self.time(torch.cat([waves.sin(), waves.cos()], 1))], 1))


@bug(
    cause="The time of the diffusion is divided by whole numbers, so the network always sees time 0 and cannot tell "
    "how noisy its input is.",
    must_say="the time input is constant (always 0), or the layer that reads it always sees the same",
    symptom="the loss stays high or stalls, or units or weights of that layer do nothing",
    source="https://github.com/ArchiMickey/Just-a-DiT/pull/9",
    good=0.35,
)
def clock_that_stands_still(bug: bool) -> float:
    steps = 60
    made = torch.Generator().manual_seed(9)
    angle = torch.rand(3000, generator=made) * 6.2832
    ring = torch.stack([angle.cos(), angle.sin()], 1) * 1.5
    beta = torch.linspace(1e-3, 0.15, steps)
    kept = (1 - beta).cumprod(0)
    model = Denoiser(steps, whole_division=bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(2500):
        x, t = ring[torch.randint(0, 3000, (128,))], torch.randint(0, steps, (128,))
        noise = torch.randn_like(x)
        noisy = kept[t].sqrt()[:, None] * x + (1 - kept[t]).sqrt()[:, None] * noise
        loss = F.mse_loss(model(noisy, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 250 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    x = torch.randn(800, 2)
    with torch.no_grad():
        for t in reversed(range(steps)):
            guess = model(x, torch.full((800,), t))
            x = (x - beta[t] / (1 - kept[t]).sqrt() * guess) / (1 - beta[t]).sqrt()
            x = x + beta[t].sqrt() * torch.randn_like(x) * (t > 0)
    return (x.norm(dim=1) - 1.5).abs().mean().item()


def two_views(images: Tensor) -> tuple[Tensor, Tensor]:
    def view() -> Tensor:
        shifted = torch.roll(images, int(torch.randint(-1, 2, ())), dims=-1)
        return (shifted + 0.25 * torch.randn_like(shifted)) * (torch.rand_like(shifted) > 0.15)

    return view(), view()


@bug(
    cause="The target branch is not detached, so both branches are pulled together and all pictures get the same "
    "representation (collapse).",
    must_say="representations collapse to one point, or the gradient has to be stopped in the target branch",
    symptom="the loss reaches its minimum implausibly soon, or gradients vanish",
    source="https://github.com/lightly-ai/lightly/issues/559",
    good=0.25,
)
def both_branches_give_way(bug: bool) -> float:
    images, labels, held, answers = digits()
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.BatchNorm1d(32)
    )
    predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.1, momentum=0.9)

    def likeness(predicted: Tensor, target: Tensor) -> Tensor:
        return F.cosine_similarity(predicted, target if bug else target.detach(), dim=1).mean()

    for epoch in range(60):
        for part in torch.randperm(1400).split(70):
            one, other = two_views(images[part])
            z1, z2 = encoder(one), encoder(other)
            loss = -0.5 * (likeness(predictor(z1), z2) + likeness(predictor(z2), z1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    encoder.eval()
    with torch.no_grad():
        known, asked = F.normalize(encoder(images), dim=1), F.normalize(encoder(held), dim=1)
    probe = nn.Linear(32, 10)
    optimizer = torch.optim.Adam(probe.parameters(), lr=1e-2)
    for _ in range(400):
        part = torch.randint(0, 1400, (70,))
        optimizer.zero_grad()
        F.cross_entropy(probe(known[part]), labels[part]).backward()
        optimizer.step()
    with torch.no_grad():
        return wrong(probe(asked), answers)


class Tightrope:
    """A walker who drifts; each step on the rope is worth 1, and beyond its edges all is over."""

    def reset(self) -> list[float]:
        self.place, self.speed, self.time = random.uniform(-1, 1), 0.0, 0
        return [self.place, self.speed]

    def step(self, action: int) -> tuple[list[float], float, bool]:
        self.speed = 0.9 * self.speed + (0.25 if action else -0.25) + random.gauss(0, 0.12)
        self.place += self.speed
        self.time += 1
        return [self.place, self.speed], 1.0, abs(self.place) > 2.5


@bug(
    cause="The target of Q-learning adds the value of the next state also where the episode has ended, so falling "
    "costs nothing.",
    must_say="values are bootstrapped across the end of episodes (done is not masked), or targets grow without bound",
    symptom="the loss or the values grow or diverge, or the return does not improve",
    source="https://github.com/navneet-nmk/pytorch-rl/issues/2",
    good=0.5,
)
def falling_costs_nothing(bug: bool) -> float:
    random.seed(torch.initial_seed())
    env, memory = Tightrope(), deque(maxlen=5000)
    policy, target = (nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)) for _ in range(2))
    target.load_state_dict(policy.state_dict())
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    state, lengths = env.reset(), []
    for step in range(4000):
        greedy = random.random() > max(0.1, 1 - step / 2000)
        action = int(policy(torch.tensor(state)).argmax()) if greedy else random.randrange(2)
        after, reward, done = env.step(action)
        memory.append((state, action, reward, after, float(done)))
        state = after
        if done or env.time == 100:
            lengths.append(env.time)
            state = env.reset()
        if step >= 200 and step % 2 == 0:
            states, actions, rewards, nexts, dones = map(torch.tensor, zip(*random.sample(memory, 32), strict=True))
            with torch.no_grad():
                future = target(nexts).max(1).values
            wanted = rewards + 0.95 * future * (1.0 if bug else 1 - dones)
            loss = F.smooth_l1_loss(policy(states).gather(1, actions[:, None])[:, 0], wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 100 == 0:
            target.load_state_dict(policy.state_dict())
    total = 0
    for _ in range(20):
        state, done = env.reset(), False
        while not done and env.time < 100:
            state, _, done = env.step(int(policy(torch.tensor(state)).argmax()))
        total += env.time
    return 1 - total / 2000


def communities(count: int = 240) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes of four communities, with features that hardly tell, and edges (E, 2) mostly within a community."""
    made = torch.Generator().manual_seed(7)
    kind = torch.arange(count) % 4
    features = torch.randn(count, 12, generator=made) + 0.6 * F.one_hot(kind, 12)
    chance = torch.where(kind[:, None] == kind[None], 0.12, 0.008)
    upper = (torch.rand(count, count, generator=made) < chance).triu(1)
    return features, kind, (upper | upper.t()).nonzero()


@bug(
    cause="The list of edges (E, 2) is reshaped to (2, E) instead of transposed, which links nodes at random.",
    must_say="the edges are scrambled, or the index tensor is reshaped where it had to be transposed",
    symptom="the fit or validation is bad, or overfitting",
    source="https://pytorch-geometric.readthedocs.io/en/latest/get_started/introduction.html",
    good=0.25,
)
def edges_at_random(bug: bool) -> float:
    x, kind, edges = communities()
    source, goal = edges.reshape(2, -1) if bug else edges.t().contiguous()
    degree = torch.ones(len(x)).index_add_(0, goal, torch.ones(len(goal)))
    first, second = nn.Linear(12, 32), nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=1e-2, weight_decay=5e-4)

    def gather(h: Tensor) -> Tensor:
        return h.clone().index_add_(0, goal, h[source]) / degree[:, None]

    def forward(dropout: float) -> Tensor:
        hidden = F.dropout(F.relu(gather(first(x))), dropout, training=dropout > 0)
        return gather(second(hidden))

    is_train = torch.arange(len(x)) % 3 == 0
    for epoch in range(2000):
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(0.3)[is_train], kind[is_train])
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return wrong(forward(0.0)[~is_train], kind[~is_train])


@bug(
    cause="Two tasks share a trunk and their losses are added as they are; the target of one is in the hundreds, so "
    "its loss drowns the other and the class is not learnt.",
    must_say="one term of the loss (or one head's gradient) dwarfs the other, or a target is not scaled",
    symptom="gradients or loss are huge, are clipped all the time, or learning stalls",
    source="https://github.com/deepset-ai/FARM/pull/220",
    good=0.15,
)
def one_task_drowns_the_other(bug: bool) -> float:
    images, labels, held, answers = digits()
    ink = images.flatten(1).sum(1) * 40  # hundreds of milligrams
    middle, spread = ink.mean(), ink.std()
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
    heads = nn.ModuleDict({"digit": nn.Linear(48, 10), "ink": nn.Linear(48, 1)})
    parameters = [*trunk.parameters(), *heads.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    for epoch in range(80):
        for part in torch.randperm(1400).split(40):
            shared = trunk(images[part])
            losses = {
                "digit": F.cross_entropy(heads["digit"](shared), labels[part]),
                "ink": F.mse_loss(heads["ink"](shared)[:, 0], ink[part] if bug else (ink[part] - middle) / spread),
            }
            loss = sum(losses.values())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        print(f"epoch {epoch}", {name: round(value.item(), 3) for name, value in losses.items()})
    with torch.no_grad():
        return wrong(heads["digit"](trunk(held)), answers)


class DeepNet(nn.Module):
    def __init__(self, width: int, depth: int, registered: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        blocks = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks) if registered else blocks

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        for block in self.blocks:
            h = block(h)
        return self.last(h)


@bug(
    cause="The blocks are kept in a plain list, so the model does not know their parameters and no optimizer updates "
    "them.",
    must_say="parameters behind the loss are in no optimizer (blocks in a plain list are not registered)",
    symptom="learning is slow or stalls, or vanishing gradients",
    source="https://github.com/pytorch/pytorch/issues/715",
    good=0.1,
)
def blocks_in_a_plain_list(bug: bool) -> float:
    images, labels, held, answers = digits()
    x = images.flatten(1)
    model = DeepNet(width=32, depth=6, registered=not bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(50):
        for part in torch.randperm(1400).split(35):
            loss = F.cross_entropy(model(x[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        return wrong(model(held.flatten(1)), answers)
