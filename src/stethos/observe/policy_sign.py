"""Whether a loss makes chosen actions likelier or rarer, as weighed by their rewards; read off its graph alone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from stethos.observe.autograd_graph import name_of, nodes_of, saved
from stethos.observe.batch_print import is_readable

_MOST_VISITED = 512
_NOT_THEIRS = (str(Path(torch.__file__).parent), str(Path(np.__file__).parent), str(Path(__file__).parents[1]))
_PASSED = frozenset((
    "MeanBackward", "SumBackward", "AddBackward", "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward",
    "SelectBackward", "SliceBackward", "IndexBackward", "GatherBackward", "StackBackward", "CatBackward",
    "SqueezeBackward",
    "UnsqueezeBackward", "CloneBackward", "ToCopyBackward", "DivBackward", "MulBackward", "MinimumBackward",
    "ClampBackward", "ExpBackward", "ExpandBackward", "AliasBackward", "UnbindBackward",
))  # fmt: skip
PICKS = ("GatherBackward", "IndexBackward")
_NORMALISED = ("LogSoftmaxBackward", "LogsumexpBackward", "LogBackward")
_REWARDED = re.compile(r"reward|return|advantage|^adv|^(R|G|A)$|^gains?$")
_COSTLY = re.compile(r"cost|tour|distance|energy|penalt|regret|latency")


def policy_sign(root: Any) -> int:
    """1 if minimising makes chosen actions rarer, -1 if likelier, for weights above 0; 0: there is no choice in it.

    Weights are taken as they are: what is good has to be above what is bad.
    """
    signs, waiting = [], [(root, 1, False)]
    for visited, (node, sign, is_weighed) in enumerate(waiting):  # grows while it is read
        name = name_of(node)
        parents = [edge[0] for edge in node.next_functions]
        if visited > _MOST_VISITED:
            return 0
        if name == "NllLossBackward":  # less the logarithm of a share
            signs += [-sign] if is_weighed else []
        elif name in PICKS and _is_normalised(node):
            signs += [sign] if is_weighed else []
        elif name in ("NegBackward", "RsubBackward"):
            waiting += [(one, -sign, is_weighed) for one in parents[:1] if one is not None]
        elif name == "SubBackward":
            signed = zip(parents, (sign, -sign), strict=False)
            waiting += [(one, part, is_weighed) for one, part in signed if one is not None]
        elif name in _PASSED:
            factor = _factor(node) if name in ("MulBackward", "DivBackward") else None
            turned = -sign if factor is not None and factor.numel() == 1 and float(factor) == -1 else sign
            is_weighed = is_weighed or (name == "MulBackward" and factor is not None)
            waiting += [(one, turned, is_weighed) for one in parents if one is not None]
    total = sum(signs)
    return (total > 0) - (total < 0) if abs(total) > 0.8 * len(signs) else 0


def has_rewards() -> bool:
    """Whether the program speaks of rewards or returns where it calls for gradients, and not of costs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THEIRS):
        frame = frame.f_back
    names = [*frame.f_code.co_varnames, *frame.f_code.co_names] if frame is not None else []
    return any(map(_REWARDED.search, names)) and not any(map(_COSTLY.search, names))


def _factor(node: Any) -> torch.Tensor | None:
    """What the operation multiplies by, where that is no function of the weights."""
    kept = [one for name in ("other", "self") if (one := saved(node, name)) is not None]
    plain = [one for one in kept if is_readable(one) and not one.requires_grad]
    return plain[0] if plain and sum(edge[0] is not None for edge in node.next_functions) == 1 else None


def _is_normalised(node: Any) -> bool:
    """Whether what is picked from are logarithms of shares, not values of actions."""
    behind = (name_of(one) for one, depth in nodes_of(node, 24) if 0 < depth <= 6)
    return any(name in _NORMALISED for name in behind)
