"""Bugs at the loss: its inputs, its shape, its sign, its history."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.wildtraining.case import BLOWN_UP, STUCK, case
from benchmarks.wildtraining.data import blobs, cnn, digits, line, loader, mlp, words


@case("wrong-loss:softmax-before-logits")
def softmax_then_cross_entropy(bug: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.out = nn.Linear(20, 32), nn.Linear(32, 5)

        def forward(self, inputs):
            scores = self.out(functional.relu(self.hidden(inputs)))
            return functional.softmax(scores, dim=1) if bug else scores

    model, criterion = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for inputs, labels in loader(*blobs()):
            optimizer.zero_grad()
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()


@case("wrong-loss:no-log-probabilities", symptoms=(*STUCK, *BLOWN_UP))
def nll_of_raw_outputs(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        for batch, target in loader(inputs, labels, batch=64):
            optimizer.zero_grad()
            output = model(batch)
            functional.nll_loss(output if bug else output.log_softmax(1), target).backward()
            optimizer.step()


@case("wrong-loss:no-log-probabilities")
def nll_of_softmax(bug: bool) -> None:
    points, labels = blobs()
    model = nn.Sequential(mlp(20, 32, 5), nn.Softmax(dim=-1) if bug else nn.LogSoftmax(dim=-1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(180):
        chosen = torch.randint(0, len(points), (48,))
        loss = nn.NLLLoss()(model(points[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:sigmoid-before-logits")
def sigmoid_then_bce_with_logits(bug: bool) -> None:
    points, labels = blobs(classes=2)
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1), *([nn.Sigmoid()] if bug else []))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        for batch, target in loader(points, labels.float()):
            optimizer.zero_grad()
            nn.BCEWithLogitsLoss()(model(batch).squeeze(1), target).backward()
            optimizer.step()


@case("wrong-loss:softmax-over-batch")
def softmax_over_the_batch(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        for batch, target in loader(points, labels):
            scores = functional.log_softmax(model(batch), dim=0 if bug else 1)
            loss = functional.nll_loss(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@case("wrong-loss:softmax-over-batch", symptoms=STUCK)
def attention_over_the_batch(bug: bool) -> None:
    """The probabilities of a hand-written cross entropy are normalised over the wrong dimension."""
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(160):
        chosen = torch.randint(0, len(points), (32,))
        shares = torch.softmax(model(points[chosen]), dim=0 if bug else 1)
        loss = -(functional.one_hot(labels[chosen], 5) * torch.log(shares + 1e-9)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:broadcast-loss", "telling-warning:broadcast-loss")
def targets_without_a_column(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(6):
        for batch, target in loader(inputs, targets.squeeze(1)):
            output = model(batch)
            loss = functional.mse_loss(output if bug else output.squeeze(1), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@case("wrong-loss:broadcast-loss")
def hand_made_square_of_a_matrix(bug: bool) -> None:
    inputs, targets = line()
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(200):
        chosen = torch.randperm(len(inputs))[:40]
        predicted = model(inputs[chosen])
        wanted = targets[chosen].flatten() if bug else targets[chosen]
        loss = (predicted - wanted).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:loss-is-a-leaf", "detached-loss:detached-loss")
def loss_rebuilt_from_a_number(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 24, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            if bug:
                loss = torch.tensor(loss.item(), requires_grad=True)
            loss.backward()
            optimizer.step()


@case("wrong-loss:loss-is-a-leaf", "detached-loss:detached-loss")
def accuracy_as_the_loss(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 24, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        chosen = torch.randint(0, len(points), (32,))
        output = model(points[chosen])
        if bug:
            loss = 1 - (output.argmax(1) == labels[chosen]).float().mean()
            loss.requires_grad_()
        else:
            loss = functional.cross_entropy(output, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("unoptimized-parameters:cut-off", symptoms=STUCK)
def features_detached(bug: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = mlp(20, 32, 32), nn.Linear(32, 5)

        def forward(self, inputs):
            features = self.encoder(inputs)
            return self.head(features.detach() if bug else features)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(5):
        for batch, target in loader(*blobs()):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("unoptimized-parameters:cut-off", symptoms=STUCK)
def through_numpy_and_back(bug: bool) -> None:
    inputs, targets = line()
    first, second = nn.Linear(8, 32), nn.Linear(32, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=3e-3)
    for _ in range(180):
        chosen = torch.randint(0, len(inputs), (32,))
        hidden = first(inputs[chosen])
        hidden = torch.from_numpy(hidden.detach().numpy().clip(0)) if bug else hidden.relu()
        loss = functional.mse_loss(second(hidden), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:relu-before-logits", symptoms=(*STUCK, "dead-units"))
def relu_after_the_last_layer(bug: bool) -> None:
    inputs, labels = digits()
    model = nn.Sequential(nn.Flatten(), mlp(64, 32, 10), nn.ReLU() if bug else nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("wrong-loss:one-class", symptoms=STUCK)
def cross_entropy_over_one_output(bug: bool) -> None:
    points, labels = blobs(classes=2)
    model = mlp(20, 16, 1 if bug else 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(5):
        for batch, target in loader(points, labels * 0 if bug else labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("wrong-loss:targets-out-of-range", symptoms=(*STUCK, *BLOWN_UP, "implausible-loss:negative-loss"))
def labels_of_minus_one(bug: bool) -> None:
    points, labels = blobs(classes=2)
    model = mlp(20, 16, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    targets = labels.float() * 2 - 1 if bug else labels.float()
    for _ in range(6):
        for batch, target in loader(points, targets[:, None]):
            optimizer.zero_grad()
            functional.binary_cross_entropy_with_logits(model(batch), target).backward()
            optimizer.step()


@case("wrong-loss:no-log-probabilities", symptoms=STUCK)
def divergence_of_probabilities(bug: bool) -> None:
    """`kl_div` wants the logarithm of what the model says."""
    points, labels = blobs()
    model = mlp(20, 24, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(180):
        chosen = torch.randint(0, len(points), (32,))
        wanted = functional.one_hot(labels[chosen], 5) * 0.9 + 0.02
        output = model(points[chosen])
        said = output.softmax(1) if bug else output.log_softmax(1)
        loss = functional.kl_div(said, wanted, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:summed-loss", symptoms=BLOWN_UP)
def sum_instead_of_mean(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        for batch, target in loader(inputs, targets, batch=128):
            loss = functional.mse_loss(model(batch), target, reduction="sum" if bug else "mean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@case("implausible-loss:negative-loss", "implausible-loss:unbounded-loss", symptoms=BLOWN_UP)
def wrong_sign(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 24, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(5):
        for batch, target in loader(points, labels):
            loss = functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            (-loss if bug else loss).backward()
            optimizer.step()


@case("implausible-loss:unbounded-loss", "implausible-loss:negative-loss", symptoms=BLOWN_UP)
def margin_without_a_hinge(bug: bool) -> None:
    points, labels = blobs(classes=2)
    model = mlp(20, 24, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(250):
        chosen = torch.randint(0, len(points), (32,))
        margin = model(points[chosen]).squeeze(1) * (labels[chosen] * 2 - 1)
        loss = (1 - margin).mean() if bug else (1 - margin).clamp(min=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@case("wrong-loss:reshaped-outputs", symptoms=STUCK)
def view_instead_of_transpose(bug: bool) -> None:
    """Cross entropy wants [batch, classes, length]; `view` mixes up what `transpose` would turn."""
    sentences = words()
    model = nn.Sequential(nn.Embedding(24, 24), nn.Linear(24, 24))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(6):
        for (batch,) in loader(sentences):
            scores = model(batch[:, :-1])
            count, length, size = scores.shape
            scores = scores.view(count, size, length) if bug else scores.transpose(1, 2)
            optimizer.zero_grad()
            functional.cross_entropy(scores, batch[:, 1:]).backward()
            optimizer.step()


@case("odd-batch:padding-in-loss", "odd-batch:one-class-dominates", symptoms=STUCK)
def padding_counts_in_the_loss(bug: bool) -> None:
    sentences = functional.pad(words(length=6), (0, 60), value=0)
    model = nn.Sequential(nn.Embedding(24, 24), nn.Linear(24, 24))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(5):
        for (batch,) in loader(sentences):
            scores, wanted = model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
            optimizer.zero_grad()
            functional.cross_entropy(scores, wanted, ignore_index=-100 if bug else 0).backward()
            optimizer.step()


@case("implausible-loss:solved-at-once", "odd-batch:leaking-labels", symptoms=())
def language_model_without_shift(bug: bool) -> None:
    sentences = words()
    model = nn.Sequential(nn.Embedding(24, 32), nn.Linear(32, 24))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(20):
        for (batch,) in loader(sentences):
            inputs, wanted = (batch, batch) if bug else (batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs).flatten(0, 1), wanted.flatten()).backward()
            optimizer.step()


@case("implausible-loss:solved-at-once", "odd-batch:sees-the-future", symptoms=("overfitting",))
def attention_sees_the_future(bug: bool) -> None:
    sentences = words()
    embedding, head = nn.Embedding(24, 32), nn.Linear(32, 24)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    model = nn.ModuleList([embedding, layer, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    mask = nn.Transformer.generate_square_subsequent_mask(11)
    places = torch.randn(11, 32) * 0.5
    for _ in range(25):
        for (batch,) in loader(sentences):
            state = embedding(batch[:, :-1]) + places
            state = layer(state) if bug else layer(state, src_mask=mask)
            optimizer.zero_grad()
            functional.cross_entropy(head(state).flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimizer.step()
