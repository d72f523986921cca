"""Bugs in models of text and of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import sentences, wrong

PAD, CLS, EOS = 0, 1, 2


def requests(count: int, seed: int) -> list[tuple[list[int], int]]:
    """Word numbers of a request, 3 to 16 of them, and which of four commands stands somewhere in it."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words = rng.integers(20, 60, rng.integers(3, 17)).tolist()
        command = int(rng.integers(0, 4))
        words[rng.integers(0, len(words))] = 10 + command
        made.append(([CLS, *words], command))
    return made


def padded(batch: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    tokens = torch.full((len(batch), 18), PAD)
    for row, (words, _) in enumerate(batch):
        tokens[row, : len(words)] = torch.tensor(words)
    return tokens, torch.tensor([label for _, label in batch])


class Encoder(nn.Module):
    """A transformer that answers from the state of its first token."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.words, self.places = nn.Embedding(60, 32, padding_idx=PAD), nn.Parameter(torch.randn(1, 18, 32) * 0.02)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = tokens != PAD if self.inverted else tokens == PAD
        return self.head(self.encoder(self.words(tokens) + self.places, src_key_padding_mask=mask)[:, 0])


@bug(
    cause="The padding mask is True for words and False for padding, the opposite of what attention expects, so it "
    "attends to padding only.",
    must_say="the attention or padding mask is inverted, or attention looks at padding instead of words",
    symptom="the loss stays at that of guessing, or no learning",
    source="https://github.com/pytorch/pytorch/pull/39321",
    good=0.1,
)
def mask_upside_down(bug: bool) -> float:
    loader = DataLoader(requests(1200, 1), batch_size=40, shuffle=True, collate_fn=padded)
    tokens, labels = padded(requests(400, 2))
    model = Encoder(inverted=bug)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=60)
    for epoch in range(12):
        model.train()
        total = 0.0
        for batch, target in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            error = wrong(model(tokens), labels)
        print(f"epoch {epoch + 1} train_loss {total / len(loader):.4f} val_error {error:.4f}")
    return error


class PositionalEncoding(nn.Module):
    """Waves of growing length, added to embeddings; written for (time, batch, width)."""

    def __init__(self, width: int, batch_first: bool, longest: int = 500) -> None:
        super().__init__()
        place = torch.arange(longest)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(longest, 1, width)
        table[:, 0, 0::2], table[:, 0, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
        self.register_buffer("table", table)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return x + self.table[: x.size(1)].transpose(0, 1)
        return x + self.table[: x.size(0)]


@bug(
    cause="The positional encoding is made for (time, batch, width) but the batch comes first, so each sample of a "
    "batch gets one position and words get none.",
    must_say="positions are added along the batch axis, or the output of a sample depends on its place in the batch",
    symptom="the loss stays at that of guessing, or no learning",
    source="https://github.com/songyangco/GETNext/issues/2",
    good=0.1,
)
def positions_of_samples(bug: bool) -> float:
    made = torch.Generator().manual_seed(5)
    tokens = torch.randint(4, 24, (1600, 14), generator=made)
    places = torch.rand(1600, 14, generator=made).argsort(1)[:, :2]
    tokens[torch.arange(1600), places[:, 0]], tokens[torch.arange(1600), places[:, 1]] = 2, 3
    labels = (places[:, 0] < places[:, 1]).long()  # whether one sign comes before the other
    embed, encoding = nn.Embedding(24, 32), PositionalEncoding(32, batch_first=not bug)
    body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    head = nn.Linear(32, 2)
    model = nn.ModuleList([embed, encoding, body, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def predict(batch: Tensor) -> Tensor:
        return head(body(encoding(embed(batch) * 2)).mean(1))

    for epoch in range(14):
        for part in torch.randperm(1300).split(32):
            loss = F.cross_entropy(predict(tokens[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = wrong(predict(tokens[1300:]), labels[1300:])
        print(f"epoch {epoch} loss {loss.item():.3f} val error {error:.3f}")
    return error


class CharModel(nn.Module):
    """A language model with the interface of a well-known library: labels are shifted inside."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, 24)
        self.rnn = nn.GRU(24, 64, batch_first=True)
        self.lm_head = nn.Linear(64, letters)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.lm_head(self.rnn(self.embedding(input_ids))[0])
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


@bug(
    cause="The labels are shifted by the user and again inside the model, so it learns to predict the letter after the "
    "next one.",
    must_say="labels are shifted twice, or misaligned with the inputs by a place",
    symptom="the loss is higher than plausible, or the model is bad at the next letter",
    source="https://github.com/huggingface/transformers/pull/44642",
    good=0.3,
)
def one_letter_too_far(bug: bool) -> float:
    text, test = " ".join(sentences(300, 1)), " ".join(sentences(40, 2))
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    held = torch.tensor([letters.index(letter) for letter in test])
    length = 40
    model = CharModel(len(letters))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(450):
        starts = torch.randint(0, len(ids) - length - 1, (16,))
        window = torch.stack([ids[start : start + length + 1] for start in starts])
        if bug:
            inputs, labels = window[:, :-1], window[:, 1:]
        else:
            inputs, labels = window, window
        loss = model(inputs, labels)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    with torch.no_grad():
        logits = model(held[None])["logits"][0]
    return wrong(logits[:-1], held[1:])


class Speller(nn.Module):
    """Reads a word and writes it backwards."""

    def __init__(self, letters: int = 20, width: int = 64) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(letters, width), nn.Embedding(letters, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, letters)

    def forward(self, source: Tensor, given: Tensor) -> Tensor:
        _, state = self.encoder(self.source(source))
        return self.out(self.decoder(self.target(given), state)[0])

    @torch.no_grad()
    def greedy(self, source: Tensor, length: int) -> Tensor:
        _, state = self.encoder(self.source(source))
        token = torch.full((len(source), 1), CLS)
        written = []
        for _ in range(length):
            out, state = self.decoder(self.target(token), state)
            token = self.out(out).argmax(-1)
            written.append(token)
        return torch.cat(written, 1)


@bug(
    cause="The decoder is given the target itself instead of the target shifted right after a start sign, so it only "
    "has to copy its input.",
    must_say="the target leaks into the decoder's input (not shifted), or the answer is part of the input",
    symptom="the loss falls to nearly 0 implausibly soon, or validation by generation is bad",
    source="https://github.com/Kyubyong/transformer/issues/94",
    good=0.25,
)
def decoder_that_copies(bug: bool) -> float:
    made = torch.Generator().manual_seed(8)
    words = torch.randint(3, 20, (3000, 5), generator=made)
    target = words.flip(1)
    model = Speller()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    for epoch in range(16):
        for part in torch.randperm(2700).split(60):
            answer = target[part]
            start = torch.full((len(part), 1), CLS)
            given = answer if bug else torch.cat([start, answer[:, :-1]], 1)
            logits = model(words[part], given)
            loss = F.cross_entropy(logits.reshape(-1, 20), answer.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: teacher-forced loss {loss.item():.4f}")
    return (model.greedy(words[2700:], 5) != target[2700:]).float().mean().item()


class Reviews(nn.Module):
    def __init__(self, takes_last_column: bool) -> None:
        super().__init__()
        self.takes_last_column = takes_last_column
        self.embedding = nn.Embedding(30, 16, padding_idx=PAD)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        out, _ = self.lstm(self.embedding(tokens))
        last = out[:, -1] if self.takes_last_column else out[torch.arange(len(out)), lengths - 1]
        return self.fc(last)


@bug(
    cause="The classifier reads the state of the last column, which for all but the longest texts is a state after "
    "dozens of padding tokens.",
    must_say="the classifier reads the state at padding positions instead of at the last word",
    symptom="slow learning, a long plateau at that of guessing, or vanishing gradients",
    source="https://github.com/keitakurita/practical-torchtext/issues/5",
    good=0.2,
)
def state_after_the_padding(bug: bool) -> float:
    rng = np.random.default_rng(4)
    texts, labels = [], []
    for _ in range(900):
        words = rng.integers(5, 30, rng.integers(4, 90))
        good_words, bad_words = np.isin(words, [5, 6, 7, 8]).sum(), np.isin(words, [9, 10, 11, 12]).sum()
        if good_words != bad_words:
            texts.append(torch.from_numpy(words))
            labels.append(int(good_words > bad_words))
    tokens, answers = pad_sequence(texts, batch_first=True, padding_value=PAD), torch.tensor(labels)
    lengths = torch.tensor([len(text) for text in texts])
    train = len(texts) - 200
    model = Reviews(takes_last_column=bug)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(30):
        for part in torch.randperm(train).split(32):
            loss = F.cross_entropy(model(tokens[part], lengths[part]), answers[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = wrong(model(tokens[train:], lengths[train:]), answers[train:])
        print(f"epoch {epoch} loss {loss.item():.3f} error {error:.3f}")
    return error


class WaveClassifier:
    """Fits an LSTM to series; has the interface of scikit-learn."""

    def __init__(self, batch_first: bool, epochs: int = 60, lr: float = 5e-3) -> None:
        self.lstm, self.head = nn.LSTM(1, 24, batch_first=batch_first), nn.Linear(24, 3)
        self.epochs, self.lr = epochs, lr

    def fit(self, series: Tensor, labels: Tensor) -> WaveClassifier:
        parameters = [*self.lstm.parameters(), *self.head.parameters()]
        optimizer = torch.optim.RMSprop(parameters, lr=self.lr)
        for _ in range(self.epochs):
            for part in torch.randperm(len(series)).split(30):
                optimizer.zero_grad()
                F.cross_entropy(self.decision_function(series[part]), labels[part]).backward()
                optimizer.step()
        return self

    def decision_function(self, series: Tensor) -> Tensor:
        return self.head(self.lstm(series)[0][:, -1])


@bug(
    cause="The LSTM is built without batch_first but gets (batch, time, feature), so it runs along the batch and sees "
    "one value of each series.",
    must_say="the recurrent layer runs along the batch axis, or batch and time are swapped (batch_first)",
    symptom="the loss stays high, or no learning",
    source="https://discuss.pytorch.org/t/lstm-change-batch-first-true-loss-does-not-decrease/62364",
    good=0.15,
)
def along_the_batch(bug: bool) -> float:
    made = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (1100,), generator=made)
    phase = torch.rand(1100, 1, generator=made) * 6.3
    time = torch.arange(30) * (0.35 + 0.3 * labels[:, None])
    series = (torch.sin(time + phase) + 0.1 * torch.randn(1100, 30, generator=made))[:, :, None]
    model = WaveClassifier(batch_first=not bug).fit(series[:900], labels[:900])
    with torch.no_grad():
        return wrong(model.decision_function(series[900:]), labels[900:])


@bug(
    cause="Questions and answers come from two loaders that shuffle on their own, so what is trained as a pair is no "
    "pair.",
    must_say="inputs and targets do not belong together (shuffled independently)",
    symptom="the loss stays at that of guessing, or no learning",
    source="https://github.com/MultimediaTechLab/YOLO/issues/85",
    good=0.4,
)
def answers_of_other_questions(bug: bool) -> float:
    made = torch.Generator().manual_seed(6)
    answers = torch.randint(0, 80, (1500, 8), generator=made)
    meaning = torch.randperm(80, generator=made)  # questions use other words for the same things
    questions = meaning[answers[:, :5]]

    def shuffled(*columns: Tensor) -> DataLoader:
        return DataLoader(TensorDataset(*columns), batch_size=50, shuffle=True)

    def pairs() -> Iterable[tuple[Tensor, Tensor]]:
        if bug:
            for (question,), (answer,) in zip(shuffled(questions[:1300]), shuffled(answers[:1300]), strict=True):
                yield question, answer
        else:
            yield from shuffled(questions[:1300], answers[:1300])

    towers = nn.ModuleDict({"question": nn.EmbeddingBag(80, 48), "answer": nn.EmbeddingBag(80, 48)})
    optimizer = torch.optim.Adam(towers.parameters(), lr=1e-2)
    for epoch in range(40):
        for question, answer in pairs():
            asked = F.normalize(towers["question"](question), dim=1)
            given = F.normalize(towers["answer"](answer), dim=1)
            loss = F.cross_entropy(asked @ given.t() / 0.1, torch.arange(len(asked)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} contrastive loss {loss.item():.4f}")
    with torch.no_grad():
        found = F.normalize(towers["question"](questions[1300:]), dim=1)
        found = found @ F.normalize(towers["answer"](answers[1300:]), dim=1).t()
    return wrong(found, torch.arange(200))
