"""The model of the GPU's benchmark: 24 Transformer layers, 302 M parameters in 288 tensors, unless told otherwise."""

from __future__ import annotations

import torch
from torch import nn

LAYERS, WIDTH = 24, 1024


def make_model(count: int = LAYERS, width: int = WIDTH) -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        for _ in range(count)
    ]
    return nn.Sequential(*layers).cuda()
