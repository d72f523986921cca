"""Small trainings of many kinds; prints what each left behind.

    python train.py [CASE ...]

The last line of the output is a JSON object: a fingerprint per case and seed.
Nothing in here knows about Stethos.
"""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import random
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch
from fingerprint import fingerprint, seed_all
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.data import DataLoader, Dataset, TensorDataset

CASES: dict[str, Callable[[], object]] = {}
SEEDS = (0, 1)
SLOW = {"workers_spawned"}


def case(function: Callable[[], object]) -> Callable[[], object]:
    """A training: it returns what it leaves behind."""
    CASES[function.__name__] = function
    return function


class Net(nn.Module):
    """Convolution, batch norm, in-place ReLU and dropout; `checkpoint` recomputes the body."""

    def __init__(self, checkpointing: str = "") -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(4 * 36, 16), nn.Dropout(0.3), nn.LayerNorm(16), nn.ReLU(inplace=True)
        )
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        if self.checkpointing:
            x = checkpoint(self.body, x, use_reentrant=self.checkpointing == "reentrant")
        else:
            x = self.body(x)
        return self.head(x)


def images(count: int = 48) -> TensorDataset:
    return TensorDataset(torch.randn(count, 1, 6, 6), torch.randint(0, 3, (count,)))


def batches(steps: int = 12, size: int = 8) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(steps):
        yield torch.randn(size, 1, 6, 6), torch.randint(0, 3, (size,))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12) -> list[float]:
    losses = []
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# The everyday loop ---------------------------------------------------------------------------------


@case
def eager() -> object:
    """Two epochs with a data loader, a scheduler, clipping and an evaluation after each."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    loader, held_out = DataLoader(images(), batch_size=8, shuffle=True), DataLoader(images(16), batch_size=8)
    seen = []
    for _ in range(2):
        model.train()
        for x, y in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            seen.append(loss.item())
        model.eval()
        with torch.no_grad():
            seen += [model(x).argmax(1).eq(y).sum().item() for x, y in held_out]
        with torch.inference_mode():
            seen += [cross_entropy(model(x), y).item() for x, y in held_out]
    return model, optimizer, scheduler.get_last_lr(), seen


@case
def accumulation() -> object:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for index, (x, y) in enumerate(batches(16)):
        (cross_entropy(model(x), y) / 4).backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


@case
def bf16_autocast() -> object:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in batches():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return model, optimizer


@case
def fp16_scaler_with_a_skipped_step() -> object:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for index, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if index == 4:
            next(model.parameters()).grad.fill_(torch.inf)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler.state_dict()


@case
def checkpointing() -> object:
    model = Net("plain")
    optimizer = torch.optim.Adam(model.parameters())
    return train(model, optimizer), model, optimizer


@case
def checkpointing_reentrant() -> object:
    model = Net("reentrant")
    optimizer = torch.optim.Adam(model.parameters())
    return train(model, optimizer), model, optimizer


@case
def checkpointing_selective() -> object:
    """Results of some operations are kept and not computed again: a mode counts operations to find them."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters())
    kept = {torch.ops.aten.addmm.default, torch.ops.aten.view.default, torch.ops.aten.sigmoid.default}

    def policy(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operation in kept else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> object:
        return create_selective_checkpoint_contexts(policy)

    for _ in range(8):
        optimizer.zero_grad()
        checkpoint(model, torch.randn(16, 5), use_reentrant=False, context_fn=contexts).square().sum().backward()
        optimizer.step()
    return model, optimizer


# Optimizers ------------------------------------------------------------------------------------------


@case
def lbfgs() -> object:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=6, line_search_fn="strong_wolfe")
    x, y = torch.randn(32, 5), torch.randn(32, 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(5)], model, optimizer


@case
def built_in_optimizers() -> object:
    left: list[object] = []
    for kind, options in [("Adam", {"foreach": True}), ("AdamW", {"fused": True}), ("Adagrad", {}), ("RMSprop", {}),
                          ("SGD", {"fused": True}), ("NAdam", {}), ("Rprop", {}), ("ASGD", {})]:  # fmt: skip
        model = Net()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, **options)
        left += [train(model, optimizer, 4), model, optimizer]
    return left


class SignDescent(torch.optim.Optimizer):
    """A user's own optimizer, which has no learning rate and draws random numbers."""

    def __init__(self, params: object) -> None:
        super().__init__(params, {"size": 1e-3})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param]["noise"] = torch.rand_like(param)
                    param.add_(param.grad.sign() * self.state[param]["noise"], alpha=-group["size"])


@case
def custom_optimizer() -> object:
    model = Net()
    optimizer = SignDescent(model.parameters())
    return train(model, optimizer), model, optimizer


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer: its step calls the inner one's."""

    def __init__(self, inner: torch.optim.Optimizer, every: int = 3) -> None:
        self.inner, self.every, self.count = inner, every, 0
        super().__init__([p for g in inner.param_groups for p in g["params"]], {"lr": inner.param_groups[0]["lr"]})
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.inner.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            with torch.no_grad():
                for slow, fast in zip(self.slow, (p for g in self.param_groups for p in g["params"]), strict=True):
                    slow.lerp_(fast, 0.5)
                    fast.copy_(slow)


@case
def lookahead() -> object:
    model = Net()
    optimizer = Lookahead(torch.optim.Adam(model.parameters()))
    return train(model, optimizer), model, optimizer.inner, optimizer.slow


@case
def step_in_backward() -> object:
    """Every parameter has an optimizer of its own, which steps as soon as the gradient is there."""
    model = Net()
    optimizers = {p: torch.optim.SGD([p], lr=0.05, momentum=0.9) for p in model.parameters()}

    def apply(param: torch.Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in model.parameters():
        param.register_post_accumulate_grad_hook(apply)
    for x, y in batches(8):
        cross_entropy(model(x), y).backward()
    return model, list(optimizers.values())


@case
def two_optimizers() -> object:
    """A generator and a discriminator, each with its own optimizer."""
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(inplace=True), nn.Dropout(0.2), nn.Linear(16, 1))
    make, judge = torch.optim.Adam(generator.parameters()), torch.optim.RMSprop(critic.parameters())
    for _ in range(8):
        judge.zero_grad()
        fake = generator(torch.randn(8, 4))
        (critic(fake.detach()).mean() - critic(torch.randn(8, 8)).mean()).backward()
        judge.step()
        make.zero_grad()
        (-critic(fake).mean()).backward()
        make.step()
    return generator, critic, make, judge


@case
def growing_groups_and_frozen_layers() -> object:
    """A group is added on the way, as when layers are unfrozen."""
    model = Net()
    model.stem.requires_grad_(False)
    optimizer = torch.optim.SGD([{"params": model.head.parameters(), "lr": 0.1}], lr=0.01, momentum=0.9)
    losses = train(model, optimizer, 4)
    optimizer.add_param_group({"params": list(model.body.parameters()), "lr": 0.05})
    return losses, train(model, optimizer, 4), model, optimizer


# Gradients by other means ----------------------------------------------------------------------------


@case
def autograd_grad() -> object:
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    params = list(model.parameters())
    for x, y in batches():
        grads = torch.autograd.grad(cross_entropy(model(x), y), params)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
    return model, optimizer


@case
def gradient_penalty() -> object:
    """A second backward through the first; and several losses in one call of backward."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(16, 5, requires_grad=True)
        out = model(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        torch.autograd.backward([out.square().mean(), (slope.norm(dim=1) - 1).square().mean()])
        optimizer.step()
        optimizer.zero_grad()
        model(x.detach()).backward(torch.ones(16, 1))
        optimizer.step()
    return model, optimizer


@case
def functional() -> object:
    """Gradients per sample with vmap; no backward, and no optimizer for the second half."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss_of(params: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(torch.func.functional_call(model, params, (x,)), y)

    for _ in range(8):
        x, y = torch.randn(16, 5), torch.randn(16, 1)
        per_sample = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        for name, param in model.named_parameters():
            param.grad = per_sample[name].mean(0)
        optimizer.step()
    for _ in range(8):
        x, y = torch.randn(16, 5), torch.randn(16, 1)
        grads, _ = torch.func.grad_and_value(loss_of)(params, x, y)
        params = {name: value - 0.1 * grads[name] for name, value in params.items()}
    return model, optimizer, params


# Models ------------------------------------------------------------------------------------------------


@case
def jit_script() -> object:
    model = torch.jit.script(nn.Sequential(nn.Linear(5, 8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 3)))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(8):
        optimizer.zero_grad()
        cross_entropy(model(torch.randn(16, 5)), torch.randint(0, 3, (16,))).backward()
        optimizer.step()
    return model, optimizer


@case
def averaged_weights() -> object:
    """Stochastic weight averaging, an exponential moving average, and batch norm statistics updated at the end."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mean = torch.optim.swa_utils.AveragedModel(model)
    moving = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    scheduler = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for x, y in batches():
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        mean.update_parameters(model)
        moving.update_parameters(model)
        scheduler.step()
    torch.optim.swa_utils.update_bn(DataLoader(images(), batch_size=8), mean)
    return model, mean, moving, optimizer


@case
def transformer() -> object:
    """Attention, whose fast path in evaluation looks at hooks; weight tying; spectral norm; channels last."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    embed, out = nn.Embedding(11, 16), nn.Linear(16, 11, bias=False)
    out.weight = embed.weight
    mix = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    model = nn.ModuleList([embed, encoder, mix, out])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = []
    for _ in range(6):
        tokens = torch.randint(0, 11, (4, 7))
        optimizer.zero_grad()
        cross_entropy(out(mix(encoder(embed(tokens)))).transpose(1, 2), tokens).backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            seen.append(encoder(embed(tokens)).clone())
        model.train()
    return model, optimizer, seen


@case
def odd_dtypes_and_layouts() -> object:
    left: list[object] = []
    for dtype in (torch.float64, torch.bfloat16):
        model = nn.Linear(5, 1).to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 5, dtype=dtype)).square().mean().backward()
            optimizer.step()
        left += [model, optimizer]
    phase = nn.Parameter(torch.randn(6, dtype=torch.complex64))
    optimizer = torch.optim.Adam([phase])
    table = nn.Embedding(50, 4, sparse=True)
    sparse = torch.optim.SparseAdam(table.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        sparse.zero_grad()
        (phase * torch.randn(6, dtype=torch.complex64)).abs().sum().backward()
        table(torch.randint(0, 50, (9,))).square().sum().backward()
        optimizer.step()
        sparse.step()
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    flat = torch.optim.SGD(conv.parameters(), lr=0.1)
    for _ in range(4):
        conv(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)).mean().backward()
        flat.step()
    return [*left, phase, optimizer, table, sparse, conv, flat, [p.stride() for p in conv.parameters()]]


@case
def nan_everywhere() -> object:
    """The loss, the gradients and in the end all weights are NaN."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, optimizer, 4)
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    return losses, train(model, optimizer, 12), model, optimizer


@case
def saved_and_loaded() -> object:
    """A checkpoint in the middle: the copies are loaded into new objects that train on."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    copied = copy.deepcopy(model)
    train(copied, torch.optim.SGD(copied.parameters(), lr=0.1), 3)
    file.seek(0)
    saved = torch.load(file)
    model = Net()
    model.load_state_dict(saved["model"])
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(saved["optimizer"])
    return losses, train(model, optimizer, 5), model, optimizer, copied


@case
def own_hooks() -> object:
    """The program has hooks of its own, on modules, tensors and optimizers, and looks for anomalies."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls: list[str] = []
    model[0].register_forward_hook(lambda *_: calls.append("forward"))
    model[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    model[2].weight.register_hook(lambda grad: grad * 2)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before step"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after step"))
    with torch.autograd.set_detect_anomaly(True):
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
    return model, optimizer, calls


class Operations(torch.utils._python_dispatch.TorchDispatchMode):
    """Lists every operation, as profilers and FLOP counters do."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@case
def dispatch_mode() -> object:
    """A mode that sees every operation of a training step sees only the training's own."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    with Operations() as operations:
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
    return model, optimizer, operations.seen


# Processes and threads ------------------------------------------------------------------------------------


class Noise(Dataset):
    """Every sample is made with the worker's random numbers, through a module as transforms often are."""

    def __init__(self) -> None:
        self.transform = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.1)).requires_grad_(False)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(torch.randn(5)) + np.random.rand() + random.random(), index % 3


def with_workers(method: str) -> object:
    model = nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Noise(), batch_size=4, shuffle=True, num_workers=2, multiprocessing_context=method)
    losses = []
    for _ in range(2 if method == "fork" else 1):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model, optimizer


@case
def workers_forked() -> object:
    return with_workers("fork")


@case
def workers_spawned() -> object:
    return with_workers("spawn")


def train_plain(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    for _ in range(10):
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()


@case
def two_threads() -> object:
    models = [nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    x, y = torch.randn(16, 5), torch.randn(16, 1)
    threads = [
        threading.Thread(target=train_plain, args=(model, optimizer, x, y))
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return models, optimizers


def train_and_tell(queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    seed_all(7)  # Python gives every forked child other random numbers
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    queue.put(fingerprint(train(model, optimizer), model, optimizer))


@case
def forked_trainer() -> object:
    """A child made by fork trains, and so does its parent."""
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    losses = train(model, optimizer, 3)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=train_and_tell, args=(queue,))
    child.start()
    told = queue.get(timeout=60)
    child.join()
    return told, child.exitcode, losses, train(model, optimizer, 3), model, optimizer


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:] or list(CASES)
    found: dict[str, list[str]] = {}
    for name in wanted:
        found[name] = []
        for seed in SEEDS if name not in SLOW else SEEDS[:1]:
            seed_all(seed)
            found[name].append(fingerprint(CASES[name]()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
