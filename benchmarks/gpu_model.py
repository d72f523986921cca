"""The trainings of the GPU's benchmarks: Transformer layers, two GPT-2, a CNN, a ResNet with a gradient scaler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH = 24, 1024
_WORDS, _LENGTH = 50257, 1024


def make_model(count: int = LAYERS, width: int = WIDTH) -> nn.Module:
    """302 M parameters in 288 tensors, unless told otherwise."""
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        for _ in range(count)
    ]
    return nn.Sequential(*layers).cuda()


def make_training(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    """A model and what trains it for one step; `job` names it and says its sizes."""
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    return _TRAININGS[job.get("model", "layers")](job)


def _layers(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    model = make_model(job["layers"], job["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(job["batch"], job["length"], job["width"], device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()

    return model, step


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + functional.dropout(self.c_proj(attended), 0.1, self.training)
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + functional.dropout(self.mlp["c_proj"](hidden), 0.1, self.training)


class Gpt(nn.Module):
    """GPT-2 with 124 M parameters, in plain torch."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(_WORDS, width), nn.Embedding(_LENGTH, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.wte(words) + self.wpe.weight[: words.shape[1]]
        for block in self.h:
            x = block(x)
        scores = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def _gpt(job: dict[str, Any], *, is_compiled: bool = False) -> tuple[nn.Module, Callable[[], None]]:
    model = Gpt().cuda()
    forward = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    words = torch.randint(0, _WORDS, (job["batch"], _LENGTH), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(words)
        loss.backward()
        optimizer.step()

    return model, step


def _hugging_face(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    """GPT-2 as Hugging Face's transformers have it: with this batch the host is hardly ahead of the GPU."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        words = torch.randint(0, _WORDS, (job["batch"], _LENGTH), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()

    return model, step


def _cnn(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    """Small kernels, so that every step waits for the host."""
    parts: list[nn.Module] = []
    for place in range(12):
        parts += [nn.Conv2d(3 if not place else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images, labels = torch.randn(32, 3, 32, 32, device="cuda"), torch.randint(0, 10, (32,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return model, step


def _resnet(job: dict[str, Any]) -> tuple[nn.Module, Callable[[], None]]:
    """float16 with a gradient scaler, images with channels last."""
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=1 << 20)  # skips no step
    images = torch.randn(job["batch"], 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (job["batch"],), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


_TRAININGS: dict[str, Callable[[dict[str, Any]], tuple[nn.Module, Callable[[], None]]]] = {
    "layers": _layers,
    "gpt2": _gpt,
    "gpt2-compiled": lambda job: _gpt(job, is_compiled=True),
    "hugging-face": _hugging_face,
    "cnn": _cnn,
    "resnet50": _resnet,
}
