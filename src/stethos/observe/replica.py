"""Checksums of the weights of a rank, by which it can be compared with the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from stethos.observe.checksum import checksums_of

_MOST_BUFFER_BYTES = 8 << 20
_MOST_NAMES = 8


def is_rank() -> bool:
    """Whether this process is one of several ranks."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def unwrapped(root: torch.nn.Module) -> torch.nn.Module:
    """The model inside a wrapper for several ranks or devices: programs switch its mode and evaluate it alone."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    return root.module if isinstance(root, wrappers) else root


def replica_facts(
    leaves: list[torch.Tensor], names: dict[int, str], roots: Iterable[torch.nn.Module]
) -> dict[str, Any]:
    """Of a rank: checksums of its weights, and whether DDP promises that all ranks have the same."""
    if not is_rank():
        return {}
    roots = list(roots)
    wrappers = [root for root in roots if isinstance(root, torch.nn.parallel.DistributedDataParallel)]
    is_replicated = any(
        root.process_group.size() == torch.distributed.get_world_size() and not root.parameters_to_ignore
        for root in wrappers
    )
    named = (names.get(id(leaf), f"param_{place}") for place, leaf in enumerate(leaves))
    facts: dict[str, Any] = {"weights": checksums_of(leaves, named)}
    if is_replicated:
        buffers = dict(pair for root in wrappers for pair in root.named_buffers())
        facts |= {"replicated": True, "buffers": checksums_of(list(buffers.values()), buffers, _MOST_BUFFER_BYTES)}
        alone = _unexchanged(leaves, names, wrappers)
        if alone:
            facts["unexchanged"] = alone
    return facts


def _unexchanged(leaves: list[torch.Tensor], names: dict[int, str], wrappers: list[Any]) -> list[str]:
    """Parameters inside of DDP that it does not know, as they came after it."""
    known = {id(parameter) for root in wrappers for parameter in getattr(root, "_module_parameters", ())}
    inside = {id(parameter) for root in wrappers for parameter in root.parameters()}
    alone = [names.get(id(leaf), "?") for leaf in leaves if id(leaf) in inside and id(leaf) not in known]
    return alone[:_MOST_NAMES] if known else []
