"""Checksums of the weights of a rank, by which it can be compared with the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stethos.observe.checksum import checksums_of


def is_rank() -> bool:
    """Whether this process is one of several ranks."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def replica_facts(
    leaves: list[torch.Tensor], names: dict[int, str], roots: Iterable[torch.nn.Module]
) -> dict[str, Any]:
    """Of a rank: checksums of its weights, and whether DDP promises that all ranks have the same."""
    if not is_rank():
        return {}
    is_replicated = any(
        root.process_group.size() == torch.distributed.get_world_size() and not root.parameters_to_ignore
        for root in roots
        if isinstance(root, torch.nn.parallel.DistributedDataParallel)
    )
    named = (names.get(id(leaf), f"param_{place}") for place, leaf in enumerate(leaves))
    return {"weights": checksums_of(leaves, named)} | ({"replicated": True} if is_replicated else {})
