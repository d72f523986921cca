"""Bugs in models of sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.wildtraining.blind import bug
from benchmarks.wildtraining.blind.data import accuracy_gap, letters, padded, tabular
from benchmarks.wildtraining.data import loader


class SmallGPT(nn.Module):
    """A causal transformer that computes its own loss, shifting the labels as the large libraries do."""

    def __init__(self, words: int = 27, width: int = 32, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        h = self.body(self.words(tokens) + self.places(torch.arange(length)), mask=mask, is_causal=True)
        scores = self.head(self.norm(h))
        if labels is None:
            return scores, None
        return scores, functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def _next_letter_loss(model: SmallGPT) -> float:
    model.eval()
    text = letters(64, 24, seed=99)
    with torch.no_grad():
        scores = model(text)[0]
    return float(functional.cross_entropy(scores[:, :-1].flatten(0, 1), text[:, 1:].flatten()))


@bug(
    "The labels are shifted by one twice, in the collate function and again inside of the model, so it learns to "
    "predict the token after the next.",
    "shift", "labels", "next token", "off by one", source="https://github.com/LLM360/amber-train/issues/6", good=1.9,
)  # fmt: skip
def labels_shifted_twice(bug: bool) -> float:
    model = SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    text = letters(640, 25)
    for epoch in range(8):
        for (chunk,) in loader(text):
            inputs, labels = (chunk[:, :-1], chunk[:, 1:]) if bug else (chunk[:, :-1], chunk[:, :-1])
            optimizer.zero_grad()
            _, loss = model(inputs, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _next_letter_loss(model)


@bug(
    "The embedding keeps its default initialisation of unit variance and is tied to the output layer, so the first "
    "logits are far too large and the initial loss is many times the logarithm of the vocabulary.",
    "initialisation", "initial loss", "embedding", "tied", "too large",
    source="https://github.com/pytorch/pytorch/issues/3121", good=2.4,
)  # fmt: skip
def tied_embedding_of_unit_variance(bug: bool) -> float:
    model = SmallGPT(width=64, tied=True)
    nn.init.normal_(model.places.weight, std=0.02)
    if not bug:
        nn.init.normal_(model.words.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
    text = letters(480, 24)
    for epoch in range(6):
        for (chunk,) in loader(text):
            optimizer.zero_grad()
            loss = model(chunk, chunk)[1]
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    return _next_letter_loss(model)


class Tagger(nn.Module):
    """Says of each token whether it is of the same kind as the first one of its sentence."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 32), nn.Embedding(10, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=batch_first)
        self.head = nn.Sequential(nn.Linear(64, 48), nn.GELU(), nn.Linear(48, 2))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        looked_up, _ = self.attention(h, h, h, need_weights=False)
        return self.head(torch.cat([h, looked_up], 2))


@bug(
    "The attention layer expects the sequence first, but gets the batch first, so tokens attend to those of other "
    "samples of the batch and not to their own sentence.",
    "attention", "batch dimension", "batch_first", "across samples", "wrong dimension",
    source="https://github.com/JusperLee/TDANet/issues/3", good=0.2,
)  # fmt: skip
def attention_with_the_batch_first(bug: bool) -> float:
    tokens = torch.randint(1, 20, (1280, 10), generator=torch.Generator().manual_seed(3))
    tags = (tokens % 2 == tokens[:, :1] % 2).long()
    model = Tagger(batch_first=not bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(14):
        for batch, target in loader(tokens[:1120], tags[:1120]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch).flatten(0, 1), target.flatten())
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(model(tokens[1120:]), tags[1120:])


class Classifier(nn.Module):
    """A transformer encoder over padded sentences."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.words = nn.Embedding(30, 32, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        kept = tokens != 0
        h = self.layer(self.words(tokens), src_key_padding_mask=kept if self.inverted else ~kept)
        shown = ~kept if self.inverted else kept
        return self.head((h * shown[:, :, None]).sum(1) / shown.sum(1, keepdim=True).clamp_min(1))


@bug(
    "The padding mask is inverted: attention and pooling look at the padding and ignore the words.",
    "mask", "padding", "inverted", "ignored inputs", "no information",
    source="https://github.com/lucidrains/halonet-pytorch/pull/6", good=0.2,
)  # fmt: skip
def padding_mask_inverted(bug: bool) -> float:
    tokens, _, labels = padded()
    tokens = torch.cat([tokens, tokens.new_zeros(len(tokens), 1)], 1)  # so that no mask is empty
    model = Classifier(inverted=bug)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(12):
        model.train()
        for batch, target in loader(tokens[:540], labels[:540]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        return accuracy_gap(model(tokens[540:]), labels[540:])


@bug(
    "A sample that consists of padding alone has all its keys masked; the softmax over minus infinity gives NaN, which "
    "reaches the loss and the weights.",
    "nan", "mask", "attention", "softmax", "empty", source="https://github.com/pytorch/pytorch/issues/40932", good=0.25,
)  # fmt: skip
def every_key_masked(bug: bool) -> float:
    tokens, _, labels = padded(count=600)
    if bug:
        tokens[411] = 0  # an empty line of the file
    model = nn.ModuleDict(
        {"words": nn.Embedding(30, 32), "attend": nn.MultiheadAttention(32, 4, batch_first=True),
         "head": nn.Linear(32, 2)}
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def answers(batch: Tensor) -> Tensor:
        h = model["words"](batch)
        mixed, _ = model["attend"](h, h, h, key_padding_mask=batch == 0)
        kept = (batch != 0).float()[:, :, None]
        return model["head"]((mixed * kept).sum(1) / kept.sum(1).clamp_min(1))

    for epoch in range(8):
        for batch, target in loader(tokens[:500], labels[:500]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(answers(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(answers(tokens[500:].clamp_min(0)), labels[500:])


class Recurrent(nn.Module):
    """Reads a sentence both ways and looks at the last states of both directions."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.words = nn.Embedding(30, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (last, _) = self.lstm(self.words(tokens))  # [directions, batch, width], whatever batch_first says
        if self.mixes:
            return self.head(last.view(len(tokens), -1))
        return self.head(last.transpose(0, 1).flatten(1))


@bug(
    "The last hidden state is viewed as [batch, features] though its first dimension is the direction, so the features "
    "of different samples are mixed up and do not belong to the labels.",
    "view", "reshape", "mixed samples", "labels do not belong", "batch",
    source="https://github.com/timbmg/Sentence-VAE/issues/15", good=0.2,
)  # fmt: skip
def hidden_state_viewed_not_transposed(bug: bool) -> float:
    tokens, _, labels = padded(count=900)
    model = Recurrent(mixes=bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(8):
        for batch, target in loader(tokens[:768], labels[:768]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(model(tokens[768:]), labels[768:])


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, layer: nn.Linear, rank: int, zero_both: bool) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        if zero_both:  # keeps the wrapped model exactly as it was
            nn.init.zeros_(self.down)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * (x @ self.down.t() @ self.up.t())


@bug(
    "Both matrices of the low-rank adapters start at zero, so the gradient of each is zero for ever: nothing trains.",
    "zero", "gradient", "initialisation", "never change", "adapter",
    source="https://github.com/Guitaricet/relora/issues/18", good=0.25,
)  # fmt: skip
def adapters_of_zeros(bug: bool) -> float:
    x, y = tabular()
    base = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    for place in (0, 2, 4):
        base[place] = Adapted(base[place], 8, zero_both=bug)
    optimizer = torch.optim.AdamW([one for one in base.parameters() if one.requires_grad], lr=5e-3)
    for epoch in range(12):
        for batch, target in loader(x[:1000], y[:1000]):
            optimizer.zero_grad()
            loss = functional.cross_entropy(base(batch), target)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")
    with torch.no_grad():
        return accuracy_gap(base(x[1000:]), y[1000:])


def _log_likelihood(model: SmallGPT, text: Tensor) -> Tensor:
    scores = model(text)[0].log_softmax(2)
    return scores[:, :-1].gather(2, text[:, 1:, None]).squeeze(2).sum(1)


@bug(
    "The temperature beta of the preference loss is 0, so the loss is the constant log 2 and its gradient is zero: the "
    "policy never moves.",
    "constant loss", "0.693", "zero gradient", "beta", "never change",
    source="https://github.com/huggingface/trl/issues/1627", good=0.5,
)  # fmt: skip
def preferences_with_a_beta_of_zero(bug: bool) -> float:
    beta = 0.0 if bug else 0.1
    policy, reference = SmallGPT(), SmallGPT()
    reference.load_state_dict(policy.state_dict())
    reference.eval().requires_grad_(False)
    chosen = letters(320, 20)
    rejected = torch.randint(0, 27, chosen.shape, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    losses = []
    for epoch in range(6):
        for good, bad in loader(chosen, rejected):
            with torch.no_grad():
                base = _log_likelihood(reference, good) - _log_likelihood(reference, bad)
            margin = _log_likelihood(policy, good) - _log_likelihood(policy, bad) - base
            loss = -functional.logsigmoid(beta * margin).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} loss {losses[-1]:.4f}")
    return losses[-1]
