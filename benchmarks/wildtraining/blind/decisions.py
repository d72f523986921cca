"""Bugs in reinforcement learning and in learning to learn."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.func import functional_call
from torch.nn import functional

from benchmarks.wildtraining.blind import bug


class Corridor:
    """Many walkers on a line of nine places; the last one pays 1, a step costs a little, an episode has 24 steps."""

    def __init__(self, walkers: int) -> None:
        self.place = torch.randint(0, 6, (walkers,))
        self.time = torch.zeros(walkers)

    def seen(self) -> Tensor:
        return functional.one_hot(self.place, 9).float()

    def step(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """What was earned, and whose episode ended; those begin anew."""
        self.place = (self.place + torch.where(action == 1, 1, -1)).clamp(0, 8)
        self.time += 1
        won = self.place == 8
        ended = won | (self.time >= 24)
        earned = won.float() - 0.02
        self.place = torch.where(ended, torch.randint(0, 6, self.place.shape), self.place)
        self.time = torch.where(ended, 0.0, self.time)
        return earned, ended.float()


def _steps_to_the_end(policy) -> float:
    """How many steps a policy needs from the first place, as a share of the most that there are."""
    place = 0
    for steps in range(24):
        with torch.no_grad():
            place = max(0, min(8, place + (1 if policy(functional.one_hot(torch.tensor([place]), 9).float()) else -1)))
        if place == 8:
            return (steps + 1) / 24
    return 1.0


@bug(
    "The target network loads its own weights instead of those of the online network, so it is never updated and the "
    "values are learnt from a random net.",
    "target network", "never updated", "not synchronised", "stale", "frozen",
    source="https://github.com/thesouther/MARL/issues/8", good=0.5,
)  # fmt: skip
def target_network_loads_itself(bug: bool) -> float:
    net = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2))
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    world, memory = Corridor(16), []
    for step in range(700):
        seen = world.seen()
        with torch.no_grad():
            best = net(seen).argmax(1)
        action = torch.where(torch.rand(16) < max(0.1, 1 - step / 300), torch.randint(0, 2, (16,)), best)
        earned, ended = world.step(action)
        memory.append((seen, action, earned, world.seen(), ended))
        memory = memory[-200:]
        chosen = [memory[int(place)] for place in torch.randint(0, len(memory), (4,))]
        before, taken, paid, after, over = (torch.cat(part) for part in zip(*chosen, strict=True))
        goal = paid + 0.95 * (1 - over) * target(after).amax(1)
        loss = functional.smooth_l1_loss(net(before).gather(1, taken[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            target.load_state_dict((target if bug else net).state_dict())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} earned {earned.mean().item():.3f}")
    with torch.no_grad():
        truth = 0.95 ** (8 - torch.arange(8.0) - 1)
        wrong = (net(torch.eye(9)[:8]).amax(1) - truth).abs().mean()
    return float(wrong) + _steps_to_the_end(lambda seen: int(net(seen).argmax()))


def _advantage(paid: list[Tensor], over: list[Tensor], values: list[Tensor], last: Tensor) -> tuple[Tensor, Tensor]:
    following, returns = last, []
    for earned, ended in zip(reversed(paid), reversed(over), strict=True):
        following = earned + 0.95 * (1 - ended) * following
        returns.insert(0, following)
    total = torch.stack(returns)
    return total - torch.stack(values).detach(), total


def _actor(bug_in: str | None, rounds: int, batch: int, bonus: float = 0.05) -> tuple[float, float]:
    """Actor and critic with clipped steps, on the corridor; how far it walks, and how sure it is."""
    actor, critic = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 2)), nn.Linear(9, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=5e-3)
    world = Corridor(8)
    for number in range(rounds):
        kept = [[] for _ in range(6)]
        for _ in range(12):
            seen = world.seen()
            with torch.no_grad():
                chances = Categorical(logits=actor(seen))
                action = chances.sample()
                value = critic(seen).squeeze(1)
            earned, ended = world.step(action)
            for place, one in enumerate((seen, action, chances.log_prob(action), earned, ended, value)):
                kept[place].append(one)
        with torch.no_grad():
            advantage, total = _advantage(kept[3], kept[4], kept[5], critic(world.seen()).squeeze(1))
        flat = [torch.cat(part) for part in kept[:3]] + [advantage.flatten(), total.flatten()]
        # Of whole episodes only: what comes after a walker's last end is left out.
        whole = torch.stack(kept[4]).flip(0).cummax(0)[0].flip(0).flatten() > 0
        flat = [part[whole] for part in flat]
        for rows in torch.randperm(len(flat[0])).split(batch):
            seen, action, before, gain, goal = (part[rows] for part in flat)
            if bug_in == "spread" or len(gain) > 1:
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            chances = Categorical(logits=actor(seen))
            ratio = torch.exp(chances.log_prob(action) - before)
            policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            sign = 1 if bug_in == "entropy" else -1
            loss = policy + 0.5 * functional.mse_loss(critic(seen).squeeze(1), goal)
            loss = loss + sign * bonus * chances.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()
        if number % 10 == 0:
            print(f"round {number} earned {torch.stack(kept[3]).mean().item():.3f}")
    with torch.no_grad():
        entropy = Categorical(logits=actor(torch.eye(9)[:8])).entropy().mean()
    finite = all(one.isfinite().all() for one in actor.parameters())
    return (_steps_to_the_end(lambda seen: int(actor(seen).argmax())) if finite else float("inf")), float(entropy)


@bug(
    "The last minibatch of a rollout has one sample, whose standard deviation is NaN; normalising advantages with it "
    "makes the weights NaN.",
    "nan", "standard deviation", "one sample", "advantage", "batch of size 1",
    source="https://github.com/DLR-RM/stable-baselines3/issues/325", good=0.5,
)  # fmt: skip
def advantage_of_one_sample(bug: bool) -> float:
    return _actor("spread" if bug else None, rounds=60, batch=20)[
        0
    ]  # now and then one sample is left for the last batch


@bug(
    "The entropy bonus is added to the loss with the wrong sign, so entropy is minimised and the policy becomes "
    "deterministic before it has explored.",
    "entropy", "sign", "deterministic", "exploration", "policy collapse",
    source="https://github.com/Kaixhin/ACER/pull/2", good=0.5,
)  # fmt: skip
def entropy_with_the_wrong_sign(bug: bool) -> float:
    steps, entropy = _actor("entropy" if bug else None, rounds=60, batch=24, bonus=1.0)
    return steps if entropy > 0.02 else steps + 0.5


@bug(
    "The inner loop adapts a deep copy and the outer loss is taken of the copy, so the parameters that the outer "
    "optimizer holds never get a gradient.",
    "no gradient", "copy", "never updated", "meta parameters", "not trained",
    source="https://github.com/facebookresearch/higher/issues/58", good=0.6,
)  # fmt: skip
def outer_gradient_goes_to_a_copy(bug: bool) -> float:
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    outer = torch.optim.Adam(net.parameters(), lr=3e-3)
    losses = []
    for step in range(250):
        outer.zero_grad()
        total = 0.0
        for _ in range(4):
            height, phase = 0.5 + 1.5 * torch.rand(()), 3.14 * torch.rand(())
            x = 4 * torch.rand(20, 1) - 2
            y = height * torch.sin(2 * x + phase)
            if bug:
                learner = copy.deepcopy(net)
                inner = torch.optim.SGD(learner.parameters(), lr=0.05)
                for _ in range(2):
                    inner.zero_grad()
                    functional.mse_loss(learner(x[:10]), y[:10]).backward()
                    inner.step()
                loss = functional.mse_loss(learner(x[10:]), y[10:]) / 4
            else:
                fast = dict(net.named_parameters())
                for _ in range(2):
                    error = functional.mse_loss(functional_call(net, fast, (x[:10],)), y[:10])
                    slopes = torch.autograd.grad(error, list(fast.values()), create_graph=True)
                    fast = {key: one - 0.05 * slope for (key, one), slope in zip(fast.items(), slopes, strict=True)}
                loss = functional.mse_loss(functional_call(net, fast, (x[10:],)), y[10:]) / 4
            loss.backward()
            total += loss.item()
        outer.step()
        losses.append(total)
        if step % 50 == 0:
            print(f"step {step} query loss {total:.3f}")
    return sum(losses[-40:]) / 40
