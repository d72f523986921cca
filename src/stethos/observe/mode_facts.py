"""In which mode modules are that act otherwise in training: dropout, statistics of batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from stethos.observe.batch_print import is_readable
from stethos.observe.replica import unwrapped

Facts = dict[str, Any]


def mode_facts(roots: list[torch.nn.Module]) -> Facts:
    """Columns of `inspections` about modes; empty without a model."""
    if not roots:
        return {}
    stateful = [module for root in roots for module in root.modules() if _depends_on_mode(module)]
    return {
        "root_training": float(all(unwrapped(root).training for root in roots)),
        "stateful": float(len(stateful)),
        "stateful_training": float(sum(module.training for module in stateful)),
        "dropouts": float(sum(isinstance(module, _DropoutNd) and module.training for module in stateful)),
    }


def mode_details(roots: list[torch.nn.Module]) -> Facts:
    """Norms that no batch has reached, norms of frozen layers that still learn statistics, the strongest dropout."""
    modules = [module for root in roots for module in root.modules()]
    norms = [module for module in modules if isinstance(module, _NormBase)]
    return {
        "untouched": sum(map(_is_untouched, norms)),
        "drifting": sum(map(_is_drifting, norms)),
        "norms": len(norms),
        "norm_momentum": max((one.momentum or 0.0 for one in norms if _learns_statistics(one)), default=0.0),
        "dropout": max((module.p for module in modules if isinstance(module, _DropoutNd)), default=0.0),
    }


def _is_untouched(module: torch.nn.Module) -> bool:
    """Whether a norm uses running statistics that no batch has ever changed."""
    counter = getattr(module, "num_batches_tracked", None)
    return not module.training and is_readable(counter) and counter is not None and not int(counter)


def _learns_statistics(module: _NormBase) -> bool:
    """Whether each batch moves its statistics by a share, the momentum."""
    return module.training and module.track_running_stats


def _is_drifting(module: _NormBase) -> bool:
    """Whether a norm is frozen, weights and all, but still takes its statistics from each batch."""
    weight = module.weight
    return module.training and module.track_running_stats and weight is not None and not weight.requires_grad


def _depends_on_mode(module: torch.nn.Module) -> bool:
    """Whether a module acts otherwise in training: dropout that drops something, statistics of batches."""
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, _NormBase) and module.track_running_stats
