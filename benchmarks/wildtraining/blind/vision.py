"""Bugs in models of pictures, in generative models and in learning without labels."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from benchmarks.wildtraining.blind import bug
from benchmarks.wildtraining.blind.data import accuracy_gap, masks, split_digits
from benchmarks.wildtraining.data import loader


class Segmenter(nn.Module):
    """A small net with one skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 16, 3, padding=1)
        self.up, self.head = nn.ConvTranspose2d(16, 12, 2, stride=2), nn.Conv2d(24, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        deep = torch.relu(self.second(functional.max_pool2d(h, 2)))
        return self.head(torch.cat([h, torch.relu(self.up(deep))], 1))


@bug(
    "The Dice loss is given raw logits where it expects probabilities, so its denominator passes zero and the loss is "
    "negative and without bound.",
    "sigmoid", "logits", "probabilities", "negative", "unbounded loss",
    source="https://github.com/ScrollPrize/villa/issues/1488", good=0.25,
)  # fmt: skip
def dice_of_raw_logits(bug: bool) -> float:
    images, inside = masks()
    model = Segmenter()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(10):
        for batch, target in loader(images[:256], inside[:256], batch=16):
            scores = model(batch)
            share = scores if bug else torch.sigmoid(scores)
            overlap = (share * target).sum((1, 2, 3))
            dice = 1 - ((2 * overlap + 1) / (share.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)).mean()
            loss = dice + 0.2 * functional.binary_cross_entropy_with_logits(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        found = (model(images[256:]) > 0).float()
    overlap = (found * inside[256:]).sum()
    return float(1 - 2 * overlap / (found.sum() + inside[256:].sum() + 1e-9))


def _views(images: Tensor) -> Tensor:
    """Pictures moved by up to a pixel, with some noise."""
    moved = torch.roll(images, (int(torch.randint(-1, 2, ())), int(torch.randint(-1, 2, ()))), (2, 3))
    return moved + 0.15 * torch.randn_like(moved)


@bug(
    "The gradient is not stopped on the target branch of the siamese net, so all pictures get the same representation "
    "and the loss falls to its minimum of -1 at once.",
    "collapse", "stop gradient", "detach", "same representation", "constant output",
    source="https://github.com/lightly-ai/lightly/issues/559", good=0.35,
)  # fmt: skip
def siamese_net_without_stop_gradient(bug: bool) -> float:
    images, labels, *_ = split_digits()
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32),
    )  # fmt: skip
    predictor = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 32))
    optimizer = torch.optim.SGD(
        [*encoder.parameters(), *predictor.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4
    )
    for epoch in range(8):
        for (batch,) in loader(images, batch=64, drop_last=True):
            first, second = encoder(_views(batch)), encoder(_views(batch))
            goals = (first, second) if bug else (first.detach(), second.detach())
            loss = -0.5 * (
                functional.cosine_similarity(predictor(first), goals[1]).mean()
                + functional.cosine_similarity(predictor(second), goals[0]).mean()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    encoder.eval()
    with torch.no_grad():
        found = functional.normalize(encoder(images) - encoder(images).mean(0), dim=1)
        nearest = (found[:300] @ found[300:].t()).argmax(1)
    return float((labels[300:][nearest] != labels[:300]).float().mean())


class Coder(nn.Module):
    """A variational autoencoder of small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.middle, self.spread = nn.Linear(64, 64), nn.Linear(64, 6), nn.Linear(64, 6)
        self.out = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.relu(self.into(x.flatten(1)))
        middle, spread = self.middle(h), self.spread(h)
        return self.out(middle + torch.randn_like(middle) * torch.exp(spread / 2)), middle, spread


@bug(
    "The reconstruction error is a mean over pixels while the divergence is a sum over the batch, so the divergence "
    "drowns the error: the code carries nothing and every picture is rebuilt alike.",
    "posterior collapse", "divergence", "KL", "unbalanced terms", "constant output", "latent unused",
    source="https://github.com/zdebruine/MMVAE/pull/19", good=0.6,
)  # fmt: skip
def divergence_summed_error_averaged(bug: bool) -> float:
    images, _, held, _ = split_digits()
    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(14):
        for (batch,) in loader(images, batch=64):
            rebuilt, middle, spread = model(batch)
            divergence = -0.5 * (1 + spread - middle.square() - spread.exp()).sum()
            flat = batch.flatten(1)
            error = functional.mse_loss(rebuilt, flat, reduction="mean" if bug else "sum")
            loss = error + divergence if bug else (error + 0.5 * divergence) / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        flat = held.flatten(1)
        return float((model(held)[0] - flat).square().mean() / (flat - flat.mean(0)).square().mean())


@bug(
    "The loss of the codebook is computed on the straight-through output, in which the codes are detached, so the "
    "codebook gets no gradient and stays as it was drawn.",
    "codebook", "no gradient", "detached", "never trained", "not updated",
    source="https://github.com/showlab/Olaf-World/issues/8", good=0.75,
)  # fmt: skip
def codebook_without_gradient(bug: bool) -> float:
    images, _, held, _ = split_digits()
    encoder = nn.Sequential(nn.Conv2d(1, 16, 2, stride=2), nn.ReLU(), nn.Conv2d(16, 8, 1))
    decoder = nn.Sequential(nn.ConvTranspose2d(8, 16, 2, stride=2), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))
    codebook = nn.Embedding(24, 8)
    nn.init.uniform_(codebook.weight, -0.05, 0.05)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters(), *codebook.parameters()], lr=2e-3)

    def coded(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = encoder(x).permute(0, 2, 3, 1)
        places = torch.cdist(h.reshape(-1, 8), codebook.weight).argmin(1)
        codes = codebook(places).view_as(h)
        return h, codes, h + (codes - h).detach()

    for epoch in range(12):
        for (batch,) in loader(images, batch=64):
            h, codes, through = coded(batch)
            loss = functional.mse_loss(decoder(through.permute(0, 3, 1, 2)), batch)
            loss = loss + functional.mse_loss(through if bug else codes, h.detach())
            loss = loss + 0.25 * functional.mse_loss(h, codes.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        rebuilt = decoder(coded(held)[2].permute(0, 3, 1, 2))
        return float((rebuilt - held).square().mean() / (held - held.mean(0)).square().mean())


def _net(width: int, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(16 * width, 10),
    )  # fmt: skip


@bug(
    "The teacher is left in training mode while it is distilled, so its dropout is active and its targets are noise, "
    "and its batch statistics move with the student's data.",
    "training mode", "eval", "dropout", "teacher", "batch norm",
    source="https://github.com/vrvlive/knowlege-distillation/issues/2", good=0.12,
)  # fmt: skip
def teacher_left_in_training_mode(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    teacher, student = _net(24, dropout=0.8), _net(4)
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for _ in range(6):
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            functional.cross_entropy(teacher(batch), target).backward()
            optimizer.step()
    if not bug:
        teacher.eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    for epoch in range(8):
        student.train()
        for batch, target in loader(images, labels, batch=64):
            with torch.no_grad():
                soft = (teacher(batch) / 3).softmax(1)
            scores = student(batch)
            loss = 9 * functional.kl_div((scores / 3).log_softmax(1), soft, reduction="batchmean")
            loss = 0.9 * loss + 0.1 * functional.cross_entropy(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    student.eval()
    with torch.no_grad():
        return accuracy_gap(student(held), answers)


@bug(
    "The averaged model is evaluated without its batch norm statistics having been computed anew, so they are those of "
    "the untrained model and its answers are worthless.",
    "batch norm", "statistics", "averaged model", "update_bn", "evaluation",
    source="https://github.com/mosaicml/composer/issues/624", good=0.1,
)  # fmt: skip
def averaged_weights_with_old_statistics(bug: bool) -> float:
    images, labels, held, answers = split_digits()
    images, held = 8 * (images + 1), 8 * (held + 1)  # as they come; the batch norm brings them to scale
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    averaged = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = loader(images, labels, batch=64)
    for epoch in range(7):
        model.train()
        for batch, target in data:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        if epoch >= 1:  # of parameters alone; buffers are what they were at the start
            with torch.no_grad():
                for mean, one in zip(averaged.parameters(), model.parameters(), strict=True):
                    mean.lerp_(one, 1 / epoch)
        print(f"epoch {epoch} loss {loss.item():.3f}")
        if not bug:
            update_bn(data, averaged)
        averaged.eval()
        with torch.no_grad():
            scores = averaged(held)
        print(f"averaged: validation loss {functional.cross_entropy(scores, answers).item():.3f}")
    return accuracy_gap(scores, answers)


@bug(
    "Some samples have more letters than the net has time steps, for which the CTC loss is infinite; the weights "
    "become NaN in the first epoch.",
    "inf", "nan", "CTC", "too short", "length", source="https://github.com/k2-fsa/icefall/issues/135", good=0.5,
)  # fmt: skip
def alignment_that_cannot_be(bug: bool) -> float:
    made = torch.Generator().manual_seed(2)
    templates = torch.randn(6, 4, generator=made)
    signals, texts, sizes = [], [], []
    for place in range(420):
        count = int(torch.randint(2, 5, (), generator=made)) if place % 97 or not bug else 14
        text = torch.randint(1, 6, (count,), generator=made)
        frames = templates[text].repeat_interleave(3 if count < 6 else 1, 0)
        frames = functional.pad(frames, (0, 0, 0, 16 - len(frames))) + 0.15 * torch.randn(16, 4, generator=made)
        signals.append(frames)
        texts.append(functional.pad(text, (0, 14 - count)))
        sizes.append(count)
    x, y, size = torch.stack(signals), torch.stack(texts), torch.tensor(sizes)
    body, head = nn.GRU(4, 32, batch_first=True, bidirectional=True), nn.Linear(64, 6)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-2)
    for epoch in range(12):
        for batch, target, length in loader(x, y, size):
            shares = head(body(batch)[0][:, :: 2 if bug else 1]).log_softmax(2).transpose(0, 1)
            steps = torch.full((len(batch),), len(shares))
            loss = functional.ctc_loss(shares, target, steps, length, blank=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return loss.item() if torch.isfinite(loss) else float("inf")


@bug(
    "Weights are rounded in the forward pass without a straight-through gradient, and the gradient of rounding is "
    "zero: the quantised layers never learn.",
    "rounding", "zero gradient", "straight-through", "not trained", "frozen",
    source="https://github.com/Justin-Tan/generative-compression/issues/27", good=0.12,
)  # fmt: skip
def rounded_weights_without_gradient(bug: bool) -> float:
    class Rounded(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            scale = self.weight.detach().abs().max() / 7
            rounded = torch.round(self.weight / scale) * scale
            if not bug:
                rounded = self.weight + (rounded - self.weight).detach()
            return functional.linear(x, rounded, self.bias)

    images, labels, held, answers = split_digits()
    model = nn.Sequential(nn.Flatten(), Rounded(64, 48), nn.ReLU(), Rounded(48, 48), nn.ReLU(), Rounded(48, 10))
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(10):
        for batch, target in loader(images, labels, batch=64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    moved = (model.state_dict()["1.weight"] - start["1.weight"]).norm().item()
    print(f"the first layer moved by {moved:.3f}")
    with torch.no_grad():
        return accuracy_gap(model(held), answers)
