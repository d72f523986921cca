"""Models that run beside the one that is trained: teachers, targets, averages, copies that are evaluated."""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from typing import Any

import torch

from stethos.observe.batch_print import is_readable, numbers_of

Facts = dict[str, Any]

_MOST_MODELS = 16
_MOST_ELEMENTS = 256
_MOST_LAYERS = 8


class HelperModels:
    """Knows such models by number, in the order of their first forward pass."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[torch.nn.Module]] = []

    def facts(self, module: torch.nn.Module, roots: list[torch.nn.Module]) -> Facts | None:
        """Of a model that is not trained: its mode, its statistics, and a checksum of its weights; None: too many."""
        number = next((place for place, ref in enumerate(self._known) if ref() is module), None)
        if number is None:
            if len(self._known) >= _MOST_MODELS:
                return None
            number = len(self._known)
            self._known.append(weakref.ref(module))
        shapes = [tuple(one.shape) for one in module.parameters()]
        trained = Counter(tuple(one.shape) for root in roots for one in root.parameters())
        twin = next((root for root in roots if [tuple(one.shape) for one in root.parameters()] == shapes), None)
        return {
            "helper": number,
            "kind": type(module).__name__,
            "weights": weights_print(module),
            "parameters": len(shapes),
            "is_part": not Counter(shapes) - trained,  # as of a momentum encoder, which lacks the last layers
            "is_copy": bool(shapes) and twin is not None,
            "like": weights_print(twin) if twin is not None and shapes else None,
        }


def weights_print(module: torch.nn.Module) -> int | None:
    """A checksum of some weights of a model; None where they cannot be read."""
    total = 0
    for place, parameter in enumerate(module.parameters()):
        if place >= _MOST_LAYERS:
            break
        if not is_readable(parameter):
            return None
        total = zlib.crc32(numbers_of(parameter.detach().reshape(-1)[:_MOST_ELEMENTS]).tobytes(), total)
    return total
