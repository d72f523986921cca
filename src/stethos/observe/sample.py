"""Takes the statistics of all layers of one optimizer and puts them into the ring as one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from stethos.observe.session import Session
from stethos.observe.statistic import STATISTICS, drift_of, statistics_of
from stethos.schema import LAYERS, NULL_F64, NULL_F64_BITS, NULL_I32, Kind

if TYPE_CHECKING:
    from stethos.observe.stepwatch import Watched

SMALL_MODEL_BYTES = 16 << 20
_ROWS_PER_FRAME = 4096
_NUMBERS = [column.name for column in LAYERS.of_kind(Kind.I32, Kind.I64, Kind.F64, Kind.BOOL)]
assert [*STATISTICS, "drift", "size"] == _NUMBERS


class LayerSampler:
    """Gradient and weight statistics; `spent_ns` is what samples cost since it was last set to 0."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.spent_ns = 0

    def copy_of_start(self, params: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """The weights to measure drift from: of small models always, of others in the deep preset."""
        preset = self._session.settings.preset
        size = sum(param.numel() * param.element_size() for param in params)
        if preset == "light" or (preset == "standard" and size > SMALL_MODEL_BYTES):
            return None
        with _disable_current_modes():
            return [param.detach().clone() for param in params]

    def take(self, watched: Watched, step: int) -> float:
        """Record gradients and weights now; return the norm of all gradients."""
        params = watched.params
        gradients = statistics_of([param.grad for param in params])
        weights = statistics_of(list(params))
        count = len(params)
        numbers = np.full((len(_NUMBERS), 2 * count), NULL_F64)
        numbers[: len(STATISTICS), :count] = gradients
        numbers[: len(STATISTICS), count:] = weights
        if watched.start is not None:
            numbers[-2, count:] = drift_of(params, watched.start)
        numbers[-1] = [param.numel() for param in params] * 2
        self.put(
            np.array(watched.layer_ids * 2, dtype=np.int32),
            np.repeat(np.array([self._kind("gradient"), self._kind("weight")], dtype=np.int32), count),
            numbers,
            watched.number,
            step,
        )
        return _total_norm(gradients)

    def put(
        self, layers: np.ndarray[tuple[int], np.dtype[np.int32]], kinds: np.ndarray[tuple[int], np.dtype[np.int32]],
        numbers: np.ndarray[tuple[int, int], np.dtype[np.float64]], optimizer: int, step: int,
    ) -> None:  # fmt: skip
        """Rows of `layers` as whole vectors, in frames of bounded size."""
        for first in range(0, len(layers), _ROWS_PER_FRAME):
            part = slice(first, first + _ROWS_PER_FRAME)
            self._session.put_frame(
                LAYERS.number,
                layers[part].tobytes() + kinds[part].tobytes(),
                np.ascontiguousarray(numbers[:, part]).tobytes(),
                rows=len(layers[part]),
                optimizer=optimizer,
                step=step,
            )

    def _kind(self, name: str) -> int:
        return self._session.name_id(name)


def put_weights(session: Session, named: Mapping[str, torch.Tensor]) -> None:
    """Rows of `layers` for weights that no optimizer has stepped yet, as of a global model."""
    weights = list(named.values())
    numbers = np.full((len(_NUMBERS), len(weights)), NULL_F64)
    numbers[: len(STATISTICS)] = statistics_of(weights)
    numbers[-1] = [weight.numel() for weight in weights]
    ids = np.array([session.name_id(name) for name in named], dtype=np.int32)
    LayerSampler(session).put(ids, np.full(len(ids), session.name_id("weight"), np.int32), numbers, NULL_I32, 0)


def _total_norm(gradients: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The norm over all layers; NaN or infinite if any element is, NULL without gradients."""
    norms, nan, inf = gradients[0], gradients[-2], gradients[-1]
    known = gradients[-1].view(np.int64) != NULL_F64_BITS
    if not known.any():
        return NULL_F64
    if nan[known].sum() > 0:
        return math.nan
    if inf[known].sum() > 0:
        return math.inf
    return float(np.sqrt(np.square(norms[known]).sum()))


def tensor_bytes_of(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> int:
    """Tensor memory: on CUDA what the allocator holds, else parameters, gradients and optimizer state."""
    if params and params[0].is_cuda:
        return int(torch.cuda.memory_allocated(params[0].device))
    total = sum(_bytes_of(param) + _bytes_of(param.grad) for param in params)
    for state in optimizer.state.values():
        if isinstance(state, dict):
            total += sum(map(_bytes_of, state.values()))
    return total


def _bytes_of(value: object) -> int:
    """A tensor's elements in bytes, of a sparse one those that are stored."""
    if not isinstance(value, torch.Tensor):
        return 0
    if value.layout is torch.strided:
        return value.nbytes
    return value._nnz() * math.prod(value.shape[value.sparse_dim() :]) * value.element_size() if value.is_sparse else 0
