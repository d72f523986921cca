"""Inputs of several kinds, as models of tables have them: categories that are looked up, and numbers beside those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stethos.observe.autograd_graph import name_of, saved, shape_of

_PRODUCTS = {"AddmmBackward": "mat1", "MmBackward": "self", "LinearBackward": "input"}
_LAST = (1, (1 << 64) - 1)  # of two axes


def numbers_beside(node: Any) -> torch.Tensor | None:
    """What a layer is given, joined to something computed, that comes from outside of the model; None: nothing."""
    if (attribute := _PRODUCTS.get(name_of(node))) is None:
        return None
    joint = next((one for one, _ in node.next_functions if one is not None and name_of(one) == "CatBackward"), None)
    if joint is None or joint._saved_dim not in _LAST:
        return None
    parts = [one for one, _ in joint.next_functions]
    outside = [place for place, one in enumerate(parts) if one is None]
    whole = saved(node, attribute) if outside else None
    shapes = [shape_of(one) for one in parts if one is not None]
    if whole is None or whole.dim() != 2 or any(len(shape) != 2 for shape in shapes):
        return None
    if outside[-1] - outside[0] + 1 != len(outside):  # how wide each is cannot be told
        return None
    start = sum(shape[1] for shape in shapes[: outside[0]])
    end = whole.shape[1] - sum(shape[1] for shape in shapes[outside[0] :])
    return whole.detach()[:, start:end] if start < end else None


def joined(
    rows: int, indices: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """One table of numbers, or of tokens, a row per sample; neither unless each index is one per sample.

    Beside numbers categories are numbers, too. Where all are categories, equal ones of different columns are different
    tokens.
    """
    own = {(one.data_ptr(), one.stride(), one.dtype): one.detach().reshape(-1) for one in indices}
    tables = [one.detach() for one in numbers if one.dim() == 2 and len(one) == rows]
    if any(len(one) != rows for one in own.values()) or len(own) + len(tables) < 2:
        return None, None
    codes = torch.stack(list(own.values()), 1)
    if tables:
        return torch.cat([*(one.to(torch.float32) for one in tables), codes.to(torch.float32)], 1), None
    return None, codes * len(own) + torch.arange(len(own), device=codes.device)
