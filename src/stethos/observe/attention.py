"""Whether attention lets a place of a sequence see later ones, as the autograd graph tells."""

from __future__ import annotations

from typing import Any

import torch

from stethos.observe.autograd_graph import is_packed, saved
from stethos.observe.batch_print import is_readable

SOFTMAXES = ("SoftmaxBackward", "SafeSoftmaxBackward")
FUSED = "ScaledDotProduct"
_MOST_ELEMENTS = 1 << 20


def looks_ahead(node: Any, name: str) -> tuple[int, bool] | None:
    """The length of the sequence, and whether its first place sees its last; None where that is no self-attention.

    One number of a mask, or of the softmax's result, is read for each sequence and head.
    """
    if name in SOFTMAXES:
        shares = saved(node, "result")
        if shares is None or shares.dim() < 3 or shares.shape[-1] != shares.shape[-2] or not is_readable(shares):
            return None
        return shares.shape[-1], bool((shares[..., 0, -1] > 0).any())
    query, key = saved(node, "query"), saved(node, "key")
    if query is None or key is None or query.shape[-2] != key.shape[-2]:
        return None
    if getattr(node, "_saved_is_causal", True):
        return query.shape[-2], False
    if is_packed(node, "attn_mask"):
        return None
    mask = saved(node, "attn_mask")
    if mask is None:
        return query.shape[-2], True
    if not is_readable(mask) or mask.dim() < 2:
        return None
    seen = mask[..., 0, -1]
    return query.shape[-2], bool((seen if seen.dtype == torch.bool else seen > -1e4).any())


def keys_seen(node: Any, name: str) -> torch.Tensor | None:
    """Of each sequence (and perhaps head) which places are seen from anywhere; None where nothing is masked."""
    table = saved(node, "result") if name in SOFTMAXES else saved(node, "attn_mask")
    if table is None or not is_readable(table) or table.dim() < 2 or table.numel() > _MOST_ELEMENTS:
        return None
    table = table.detach()
    if name in SOFTMAXES and table.shape[-1] == 1:  # one weight for each place, over which a mean is taken
        table = table.squeeze(-1)
    if table.dim() < 3:
        if name not in SOFTMAXES or table.dim() < 2:
            return None
        table = table.unsqueeze(1)
    is_seen = table if table.dtype == torch.bool else table > (0 if name in SOFTMAXES else -1e4)
    seen = is_seen.flatten(1, -2).any(1)
    return None if bool(seen.all()) else seen
