"""The model of the GPU's benchmark: 24 Transformer layers, 302 M parameters in 288 tensors."""

from __future__ import annotations

import torch
from torch import nn

LAYERS, WIDTH = 24, 1024


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        for _ in range(LAYERS)
    ]
    return nn.Sequential(*layers).cuda()
