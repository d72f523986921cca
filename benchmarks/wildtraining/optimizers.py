"""Bugs at the optimizer: what it holds, when it steps, how far."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.wildtraining.case import BLOWN_UP, STUCK, case
from benchmarks.wildtraining.data import blobs, cnn, digits, line, loader, mlp, words


@case("gradients-not-zeroed", symptoms=BLOWN_UP, family="port", source="https://stackoverflow.com/questions/60335387")
def missing_zero_grad(bug: bool) -> None:
    inputs, labels = digits()
    model, criterion = cnn(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(4):
        for batch, target in loader(inputs, labels, batch=64):
            if not bug:
                optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()


@case("gradients-not-zeroed", symptoms=BLOWN_UP)
def zero_grad_once_per_epoch(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(8):
        optimizer.zero_grad()
        for batch, target in loader(points, labels):
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
            if not bug:
                optimizer.zero_grad()


@case("unoptimized-parameters:not-in-optimizer")
def only_the_head_is_optimized(bug: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.trunk, self.head = mlp(20, 32, 32), mlp(32, 32, 32), nn.Linear(32, 5)

        def forward(self, inputs):
            return self.head(self.trunk(self.stem(inputs).relu()).relu())

    model = Net()
    parameters = [*model.head.parameters(), *model.stem.parameters()] if bug else model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(5):
        for batch, target in loader(*blobs()):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case(
    "unoptimized-parameters:replaced-parameters", "unoptimized-parameters:not-in-optimizer",
    family="port", source="https://github.com/huggingface/accelerate/issues/2665",
)  # fmt: skip
def head_replaced_after_the_optimizer(bug: bool) -> None:
    inputs, labels = digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    if bug:
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        model[3] = nn.Linear(32, 10)
    else:
        model[3] = nn.Linear(32, 10)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("unoptimized-parameters:unregistered-parameters", "unoptimized-parameters:not-in-optimizer")
def layers_in_a_plain_list(bug: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(20 if not place else 32, 32) for place in range(3)]
            self.layers = layers if bug else nn.ModuleList(layers)
            self.head = nn.Linear(32, 5)

        def forward(self, inputs):
            for layer in self.layers:
                inputs = torch.relu(layer(inputs))
            return self.head(inputs)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(5):
        for batch, target in loader(*blobs()):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("unoptimized-parameters:other-model", symptoms=(*STUCK, "unoptimized-parameters"))
def optimizer_of_a_copy(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = copy.deepcopy(model) if bug else model
    for _ in range(150):
        chosen = torch.randint(0, len(points), (32,))
        optimizer.zero_grad()
        functional.cross_entropy(trained(points[chosen]), labels[chosen]).backward()
        optimizer.step()


@case("unoptimized-parameters:two-optimizers", symptoms=BLOWN_UP)
def two_optimizers_share_a_layer(bug: bool) -> None:
    inputs, targets = line()
    body, head = mlp(8, 24, 24), nn.Linear(24, 1)
    first = torch.optim.Adam([*body.parameters(), *(head.parameters() if bug else ())], lr=2e-3)
    second = torch.optim.Adam(head.parameters(), lr=2e-3)
    for _ in range(6):
        for batch, target in loader(inputs, targets):
            first.zero_grad()
            second.zero_grad()
            functional.mse_loss(head(body(batch).relu()), target).backward()
            first.step()
            second.step()


@case("odd-optimizer:optimizer-recreated", symptoms=STUCK)
def optimizer_made_in_the_loop(bug: bool) -> None:
    """Adam forgets its moments at every step."""
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(150):
        if bug:
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        chosen = torch.randint(0, len(points), (32,))
        optimizer.zero_grad()
        functional.cross_entropy(model(points[chosen]), labels[chosen]).backward()
        optimizer.step()


@case("learning-rate-too-low", symptoms=STUCK)
def learning_rate_of_zero(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if bug else 0.1)
    for _ in range(6):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("learning-rate-too-low", symptoms=STUCK)
def learning_rate_of_a_typing_error(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7 if bug else 1e-1)
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("learning-rate-too-high", symptoms=BLOWN_UP)
def learning_rate_of_ten(bug: bool) -> None:
    inputs, labels = digits()
    model = nn.Sequential(nn.Flatten(), mlp(64, 64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0 if bug else 0.2)
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("learning-rate-too-high", symptoms=BLOWN_UP)
def adam_with_a_rate_of_one(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if bug else 3e-3)
    for _ in range(8):
        for batch, target in loader(inputs, targets):
            optimizer.zero_grad()
            functional.mse_loss(model(batch), target).backward()
            optimizer.step()


@case("learning-rate-collapse", symptoms=STUCK)
def scheduler_steps_per_batch(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for _ in range(7):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
            if bug:
                schedule.step()
        if not bug:
            schedule.step()


@case("learning-rate-collapse", symptoms=STUCK)
def schedule_for_fewer_steps(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = 6 * 24
    total = steps // 8 if bug else steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    for _ in range(6):
        for batch, target in loader(inputs, targets):
            optimizer.zero_grad()
            functional.mse_loss(model(batch), target).backward()
            optimizer.step()
            schedule.step()


@case("lost-gradients:emptied-before-step", symptoms=STUCK)
def clipped_to_nothing(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.0 if bug else 1.0)
            optimizer.step()


@case("lost-gradients:shrunk-before-step", symptoms=STUCK)
def clipped_before_unscaling(bug: bool) -> None:
    """Gradients that are still multiplied by the scale of mixed precision are clipped to 1."""
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    for _ in range(5):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(batch), target)
            scaler.scale(loss).backward()
            if not bug:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()


@case("lost-gradients:shrunk-before-step", "learning-rate-too-low", symptoms=STUCK)
def clipped_to_a_millionth(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(160):
        chosen = torch.randint(0, len(points), (32,))
        optimizer.zero_grad()
        functional.cross_entropy(model(points[chosen]), labels[chosen]).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1e-6 if bug else 1.0)
        optimizer.step()


@case("lost-gradients:emptied-before-step", symptoms=STUCK)
def zero_grad_after_backward(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(4):
        for batch, target in loader(inputs, labels, batch=48):
            loss = functional.cross_entropy(model(batch), target)
            if bug:
                loss.backward()
                optimizer.zero_grad()
            else:
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()


@case("lost-gradients:emptied-before-step", symptoms=STUCK)
def step_before_backward(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for batch, target in loader(points, labels):
            optimizer.zero_grad(set_to_none=False)
            if bug:
                optimizer.step()
            functional.cross_entropy(model(batch), target).backward()
            if not bug:
                optimizer.step()


@case("lost-gradients:backward-without-step")
def optimizer_never_steps(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            if not bug:
                optimizer.step()


@case("lost-gradients:step-without-backward", "detached-loss:detached-loss", symptoms=STUCK)
def backward_is_forgotten(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(4):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            if not bug:
                loss.backward()
            optimizer.step()


@case("lost-gradients:accumulation-emptied", symptoms=STUCK)
def accumulation_starts_anew_each_time(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        for place, (batch, target) in enumerate(loader(points, labels, batch=16)):
            if bug:
                optimizer.zero_grad()
            (functional.cross_entropy(model(batch), target) / 4).backward()
            if place % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()


@case("learning-rate-too-high", symptoms=(*BLOWN_UP, *STUCK))
def accumulation_without_division(bug: bool) -> None:
    inputs, targets = line()
    model = mlp(8, 32, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        for place, (batch, target) in enumerate(loader(inputs, targets, batch=24)):
            loss = functional.mse_loss(model(batch), target)
            (loss if bug else loss / 16).backward()
            if place % 16 == 15:
                optimizer.step()
                optimizer.zero_grad()


@case("odd-optimizer:weight-decay-too-high", symptoms=STUCK)
def weight_decay_of_one(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0 if bug else 1e-4)
    for _ in range(6):
        for batch, target in loader(points, labels):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("telling-warning:scheduler-before-optimizer", symptoms=())
def scheduler_before_the_optimizer(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, 0.5)
    for _ in range(140):
        chosen = torch.randint(0, len(points), (32,))
        if bug:
            schedule.step()
        optimizer.zero_grad()
        functional.cross_entropy(model(points[chosen]), labels[chosen]).backward()
        optimizer.step()
        if not bug:
            schedule.step()


@case("telling-warning:checkpoint-without-gradient", "unoptimized-parameters:cut-off", symptoms=STUCK)
def checkpoint_cuts_the_gradient(bug: bool) -> None:
    points, labels = blobs()
    body, head = mlp(20, 32, 32), nn.Linear(32, 5)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(4):
        for batch, target in loader(points, labels):
            hidden = checkpoint(body, batch, use_reentrant=bug)
            optimizer.zero_grad()
            functional.cross_entropy(head(hidden.relu()), target).backward()
            optimizer.step()


@case(
    "odd-optimizer:mostly-frozen", "frozen-layers", family="port",
    source="https://discuss.pytorch.org/t/obtaining-abnormal-changes-in-loss-and-accuracy/84911",
)  # fmt: skip
def all_but_the_norms_frozen(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn(norm=True)
    if bug:
        for module in model:
            if not isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(4):
        for batch, target in loader(inputs, labels, batch=48):
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimizer.step()


@case("lost-gradients:no-gradients-since", family="port", source="https://github.com/pytorch/pytorch/issues/115607")
def gradients_missing_from_some_step_on(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 32, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(320):
        chosen = torch.randint(0, len(points), (32,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(points[chosen]), labels[chosen])
        loss.backward()
        if bug and step >= 100:
            optimizer.zero_grad()
        optimizer.step()


@case("lost-gradients:no-gradients-since", symptoms=(*STUCK, "wrong-loss", "process-failure"))
def frozen_after_warm_up(bug: bool) -> None:
    """The base is to be thawed after a warm-up; the loop freezes all of it instead."""
    points, labels = blobs()
    model = mlp(20, 32, 32, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(320):
        if step == 120:
            for parameter in model.parameters():
                parameter.requires_grad_(not bug)
        chosen = torch.randint(0, len(points), (32,))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(points[chosen]), labels[chosen])
        loss = loss + 0 * torch.zeros((), requires_grad=True)
        loss.backward()
        optimizer.step()


@case("growing-graph", symptoms=("memory-growth", "series-anomaly"))
def hidden_state_never_detached(bug: bool) -> None:
    sentences = words(count=16, length=200)
    embedding, cell, head = nn.Embedding(24, 16), nn.GRUCell(16, 24), nn.Linear(24, 24)
    parameters = [*embedding.parameters(), *cell.parameters(), *head.parameters()]
    state = torch.zeros(16, 24)
    losses = []
    for place in range(199):
        state = cell(embedding(sentences[:, place]), state)
        losses.append(functional.cross_entropy(head(state), sentences[:, place + 1]))
        if len(losses) == 2:
            torch.stack(losses).mean().backward(retain_graph=bug)
            for parameter in parameters:
                parameter.data.add_(parameter.grad, alpha=-0.05)
                parameter.grad = None
            losses = []
            if not bug:
                state = state.detach()


@case("growing-graph", symptoms=("memory-growth",))
def losses_kept_with_their_graphs(bug: bool) -> None:
    inputs, labels = digits()
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    total = 0.0
    for _ in range(4):
        for batch, target in loader(inputs, labels):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            total = total + (loss if bug else loss.item())
    print(float(total))


@case("growing-graph", symptoms=("memory-growth",))
def outputs_kept_in_a_list(bug: bool) -> None:
    points, labels = blobs()
    model = mlp(20, 64, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(6):
        for batch, target in loader(points, labels):
            output = model(batch)
            loss = functional.cross_entropy(output, target)
            optimizer.zero_grad()
            loss.backward(retain_graph=bug)
            optimizer.step()
            seen.append(output if bug else output.detach())
    print(len(seen))
