"""Bugs in what a training minimises."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wildtraining.blind import bug
from benchmarks.wildtraining.blind.data import accuracy_gap, curve, split_digits, tabular
from benchmarks.wildtraining.data import loader, mlp


@bug(
    "torch.where hides the division by zero of empty sets in the forward pass but not in the backward pass, where the "
    "branch that was not chosen makes the gradient NaN.",
    "nan", "gradient", "where", "division by zero", "backward",
    source="https://github.com/pytorch/pytorch/issues/23395", good=0.2,
)  # fmt: skip
def the_branch_not_taken(bug: bool) -> float:
    made = torch.Generator().manual_seed(11)
    items = torch.randn(900, 6, 5, generator=made)
    count = torch.randint(1, 7, (900, 1), generator=made)
    count[120::200] = 0  # patients without a visit
    shown = (torch.arange(6) < count).float()[:, :, None]
    labels = ((items[:, :, 0] + items[:, :, 1].abs()) * shown[:, :, 0]).sum(1) / count[:, 0].clamp_min(1) > 0.8
    each, head = mlp(5, 32, 32), nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*each.parameters(), *head.parameters()], lr=3e-3)

    def answers(x: Tensor, kept: Tensor) -> Tensor:
        size = kept.sum(1)
        total = (each(x) * kept).sum(1)
        mean = torch.where(size > 0, total / (size if bug else size.clamp_min(1)), torch.zeros_like(total))
        return head(torch.relu(mean))

    for epoch in range(12):
        for batch, kept, target in loader(items[:760], shown[:760], labels[:760].long()):
            optimizer.zero_grad()
            loss = functional.cross_entropy(answers(batch, kept), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        scores = answers(items[760:], shown[760:])
    return accuracy_gap(scores, labels[760:].long()) if scores.isfinite().all() else float("inf")


@bug(
    "Pairs that do not belong together are labelled 0, but the cosine loss wants -1 and ignores 0, so nothing pushes "
    "embeddings apart and all become the same.",
    "collapse", "labels", "-1", "negative pairs ignored", "same embedding",
    source="https://github.com/pytorch/pytorch/issues/23782", good=0.15,
)  # fmt: skip
def unlike_pairs_labelled_zero(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)
    for epoch in range(8):
        for batch, target in loader(images, labels, batch=64):
            other = torch.randperm(len(batch))
            is_pair = target == target[other]
            wanted = is_pair.float() if bug else is_pair.float() * 2 - 1
            weight = torch.where(is_pair, 5.0, 1.0)
            losses = functional.cosine_embedding_loss(
                encoder(batch), encoder(batch[other]), wanted, margin=0.2, reduction="none"
            )
            loss = (weight * losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        known, asked = functional.normalize(encoder(images), dim=1), functional.normalize(encoder(held), dim=1)
        centres = torch.stack([known[labels == kind].mean(0) for kind in range(10)])
    return accuracy_gap(asked @ functional.normalize(centres, dim=1).t(), answers)


@bug(
    "The hardest triplets are taken at far too high a learning rate, so all embeddings fall into one point and the "
    "loss stays at exactly the margin.",
    "collapse", "margin", "same embedding", "learning rate too high", "stuck",
    source="https://github.com/omoindrot/tensorflow-triplet-loss/issues/6", good=0.25,
)  # fmt: skip
def triplets_stuck_at_the_margin(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    encoder = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.ReLU(),
        nn.Linear(48, 16),
    )  # fmt: skip
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-2 if bug else 1e-3)
    for epoch in range(9):
        for batch, target in loader(images, labels, batch=64):
            far = (torch.cdist(encoder(batch), encoder(batch)).square() + 1e-9).sqrt()
            same = target[:, None] == target[None]
            alike, unlike = (far * same).amax(1), far.masked_fill(same, 1e9).amin(1)
            loss = torch.relu(alike - unlike + 0.5).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")
    with torch.no_grad():
        near = torch.cdist(encoder(held), encoder(images)).argmin(1)
    return float((labels[near] != answers).float().mean())


@bug(
    "The tasks are weighted by learnt variances, but the term that keeps the variances from growing was removed as it "
    "made the loss negative; the weights go to zero and the loss with them, without anything being learnt.",
    "loss goes to zero", "weights", "variance", "regulariser", "log term", "not learning",
    source="https://github.com/yaringal/multi-task-learning-example/issues/6", good=0.45,
)  # fmt: skip
def task_weights_without_their_price(bug: bool) -> float:
    x, y = curve()
    kinds = torch.bucketize(x[:, 4] + 0.5 * x[:, 5], torch.tensor([-0.5, 0.5]))
    body, value, kind = mlp(6, 48, 48), nn.Linear(48, 1), nn.Linear(48, 3)
    spread = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam(
        [{"params": [*body.parameters(), *value.parameters(), *kind.parameters()], "lr": 1e-3},
         {"params": [spread], "lr": 5e-2}]
    )  # fmt: skip
    for epoch in range(14):
        for batch, target, label in loader(x[:800], y[:800], kinds[:800]):
            h = torch.relu(body(batch))
            errors = torch.stack([functional.mse_loss(value(h), target), functional.cross_entropy(kind(h), label)])
            loss = (torch.exp(-spread) * errors).sum()
            if not bug:
                loss = loss + 0.5 * spread.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} of {errors.tolist()}")
    with torch.no_grad():
        h = torch.relu(body(x[800:]))
        wrong = accuracy_gap(kind(h), kinds[800:]) + functional.mse_loss(value(h), y[800:]).item()
    return wrong + float(spread.detach().abs().max() > 5)


class Experts(nn.Module):
    """Four experts, of which a gate picks one for each row."""

    def __init__(self, after: bool) -> None:
        super().__init__()
        self.after = after  # whether shares are normalised over what was picked alone
        self.gate = nn.Linear(12, 4)
        self.experts = nn.ModuleList(mlp(12, 16, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        if self.after:
            top, picked = scores.topk(1, dim=1)
            share = top.softmax(1)
        else:
            share, picked = scores.softmax(1).topk(1, dim=1)
        answers = torch.stack([expert(x) for expert in self.experts], 1)
        return share * answers.gather(1, picked[:, :, None].expand(-1, -1, 4)).squeeze(1)


@bug(
    "The gate's softmax runs over the one expert that was picked and is always 1, so the gate gets a zero gradient and "
    "never learns to route.",
    "gate", "router", "zero gradient", "not trained", "softmax over one",
    source="https://github.com/davidmrau/mixture-of-experts/issues/27", good=0.3,
)  # fmt: skip
def gate_over_one_expert(bug: bool) -> float:
    x, y = tabular(count=1500)
    model = Experts(after=bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(10):
        for batch, target in loader(x[:1300], y[:1300]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(model(x[1300:]), y[1300:])
