"""What an update consists of: named layers, brought into one order whatever form they come in.

An update may be a torch state dict, a mapping of NumPy arrays, or a plain
sequence of arrays in the order of the state dict (or of the parameters
alone). Integer entries, such as a batch norm's counter, are no part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stethos.errors import UpdateMismatchError

State = Mapping[str, Any] | Sequence[Any]
LayerKind = Literal["weight", "buffer"]
_TABLE_WORDS = ("embed", "wte.", "wpe.")
_BUFFER_ENDINGS = ("running_mean", "running_var", "num_batches_tracked")  # where no module tells


@dataclass(frozen=True, slots=True)
class Layer:
    """One entry of the state dict; `index` is its place among all entries, integer ones included."""

    name: str
    kind: LayerKind
    shape: tuple[int, ...]
    index: int

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Structure:
    """The layers of a model, weights first; `entries` are the names of all entries in their own order."""

    layers: tuple[Layer, ...]
    entries: tuple[str, ...]
    parameters: tuple[str, ...]
    weights: int  # how many of the layers are weights; they come first
    tables: frozenset[str] = frozenset()  # layers whose rows are looked up, as those of an embedding are

    @classmethod
    def of(cls, state: State, buffers: frozenset[str] = frozenset(), tables: frozenset[str] = frozenset()) -> Structure:
        """The structure of a global model; `buffers` are the names of entries that are not trained, `tables` those of
        embeddings."""
        named = dict(state) if isinstance(state, Mapping) else {str(i): value for i, value in enumerate(state)}
        layers = [
            Layer(name, "buffer" if name in buffers else "weight", shape_of(value), index)
            for index, (name, value) in enumerate(named.items())
            if is_float(value)
        ]
        if not layers:
            raise UpdateMismatchError("the global model has no floating-point weights")
        layers.sort(key=lambda layer: layer.kind == "buffer")
        weights = sum(layer.kind == "weight" for layer in layers)
        return cls(tuple(layers), tuple(named), tuple(name for name in named if name not in buffers), weights, tables)

    def values_of(self, state: State, client: str) -> list[Any]:
        """The values of an update in the order of `layers`; UpdateMismatchError names client and layer.

        Buffers may be missing: many programs send the parameters alone.
        """
        if hasattr(state, "state_dict"):
            raise UpdateMismatchError(f"client {client!r} sent a {type(state).__name__}", hint="send its state_dict()")
        named = state if isinstance(state, Mapping) else self._named(state, client)
        values: list[Any] = []
        for layer in self.layers:
            value = named.get(layer.name)
            if value is None:
                if layer.kind == "buffer":
                    values.append(None)
                    continue
                raise self._missing(f"client {client!r} sent no layer {layer.name!r}", named, layer)
            if value.shape != layer.shape if hasattr(value, "shape") else shape_of(value) != layer.shape:
                raise UpdateMismatchError(
                    f"client {client!r} sent layer {layer.name!r} with shape {shape_of(value)}, "
                    f"the global model has {layer.shape}",
                    hint="the client trains another architecture, or its layers come in another order",
                )
            if not is_float(value) and not is_integer(value):
                kind = getattr(value, "dtype", type(value).__name__)
                raise UpdateMismatchError(
                    f"client {client!r} sent layer {layer.name!r} as {kind}", hint="send real numbers"
                )
            values.append(value.to_dense() if is_sparse(value) else value)
        unknown = [name for name in named if name not in self.entries]
        if unknown:
            raise UpdateMismatchError(
                f"client {client!r} sent layer {unknown[0]!r}, which the global model has not",
                hint=f"it has {', '.join(layer.name for layer in self.layers[:6])}" + ", ..." * (len(self.layers) > 6),
            )
        return values

    def plain_values(self, state: State) -> list[Any] | None:
        """The same, with fewer calls, of an update that is just what the structure says, as plain tensors of single
        precision on the host; None for any other."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(state, Mapping) or len(state) != len(self.entries):
            return None
        values, kinds, dtype, strided = [], (torch.Tensor, torch.nn.Parameter), torch.float32, torch.strided
        for layer in self.layers:
            value: Any = state.get(layer.name)
            if type(value) not in kinds or value.dtype is not dtype or value.shape != layer.shape or not value.is_cpu:
                return None
            if value.layout is not strided:
                return None
            values.append(value)
        if len(values) < len(self.entries) and not all(name in state for name in self.entries):
            return None
        return values

    def _missing(self, message: str, named: Mapping[str, Any], layer: Layer) -> UpdateMismatchError:
        import difflib

        unknown = [str(name) for name in named if name not in self.entries]
        near = difflib.get_close_matches(layer.name, unknown, n=1, cutoff=0.5)
        if near:
            return UpdateMismatchError(message, hint=f"it sent {near[0]!r}")
        if unknown or not named:
            return UpdateMismatchError(message, hint=f"it sent {len(named)} layers")
        return UpdateMismatchError(
            message, hint="where only a part of the model is shared, give that part: federation(model=lambda: ...)"
        )

    def _named(self, arrays: Sequence[Any], client: str) -> dict[str, Any]:
        for names in (self.entries, self.parameters):
            if len(arrays) == len(names):
                return dict(zip(names, arrays, strict=True))
        expected = sorted({len(self.entries), len(self.parameters)})
        raise UpdateMismatchError(
            f"client {client!r} sent {len(arrays)} arrays, the global model has {' or '.join(map(str, expected))}"
        )


def buffers_of(model: Any, state: State) -> frozenset[str]:
    """Names of entries of a state dict that are not trained."""
    if not isinstance(state, Mapping):
        return frozenset()
    if hasattr(model, "named_parameters"):
        trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        return frozenset(name for name in state if name not in trained)
    return frozenset(name for name in state if str(name).endswith(_BUFFER_ENDINGS))


def tables_of(model: Any, state: State) -> frozenset[str]:
    """Names of the weights of embeddings; where no module tells, by what they are mostly called."""
    if not isinstance(state, Mapping):
        return frozenset()
    if hasattr(model, "named_modules"):
        owners = [name for name, module in model.named_modules() if hasattr(module, "num_embeddings")]
        return frozenset(f"{name}.weight" if name else "weight" for name in owners)
    return frozenset(name for name in state if any(word in str(name).lower() for word in _TABLE_WORDS))


# Values: torch tensors or anything NumPy takes ------------------------------------------------------


def is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def shape_of(value: Any) -> tuple[int, ...]:
    return tuple(int(side) for side in (value.shape if hasattr(value, "shape") else np.shape(value)))


def element_count(value: Any) -> int:
    """How many elements a tensor or array has."""
    return int(value.numel()) if hasattr(value, "numel") else int(np.size(value))


def copied(state: Mapping[str, Any]) -> dict[str, Any]:
    """Named tensors or arrays that no longer follow the caller's."""
    return {
        name: value.detach().clone() if hasattr(value, "detach") else np.array(value) for name, value in state.items()
    }


def is_float(value: Any) -> bool:
    return bool(value.is_floating_point()) if is_tensor(value) else _dtype(value).kind == "f" or _is_half(value)


def is_integer(value: Any) -> bool:
    """Whether it holds whole numbers, as a quantised change does."""
    if not is_tensor(value):
        return _dtype(value).kind in "iu"
    return (
        not (value.is_floating_point() or value.is_complex() or value.is_quantized) and str(value.dtype) != "torch.bool"
    )


def is_sparse(value: Any) -> bool:
    return is_tensor(value) and value.layout is not sys.modules["torch"].strided


def bytes_of(value: Any) -> int:
    return int(value.nbytes) if hasattr(value, "nbytes") else int(np.asarray(value).nbytes)


def _dtype(value: Any) -> np.dtype[Any]:
    return value.dtype if isinstance(value, np.ndarray) else np.asarray(value).dtype


def _is_half(value: Any) -> bool:
    return str(_dtype(value)) == "bfloat16"  # as packages beside NumPy define it


def flat_of(value: Any) -> npt.NDArray[Any]:
    """A value's elements in a row on the host, as floats; memory is looked at, not copied, where that can be."""
    if is_tensor(value):
        torch = sys.modules["torch"]
        flat = value.detach().reshape(-1)
        if flat.dtype not in (torch.float32, torch.float64) or flat.is_neg():
            flat = flat.float()
        return flat.cpu().numpy()  # type: ignore[no-any-return]
    array = np.asarray(value).reshape(-1)
    return array.astype(np.float32) if array.dtype.itemsize < 4 or array.dtype.kind != "f" else array


def _looked_at(value: Any) -> npt.NDArray[Any]:
    """`flat_of`, with fewer calls for a plain tensor on the host."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or not value.is_cpu:
        return flat_of(value)
    return flat_of(value) if value.is_neg() else value.detach().numpy().reshape(-1)


def copy_flat(value: Any, blocks: npt.NDArray[np.int64] | None, block: int, out: npt.NDArray[np.float32]) -> None:
    """Copy a value's elements, or with `blocks` these blocks of `block` elements, to `out`."""
    if blocks is not None and is_tensor(value) and not (value.is_cpu and value.dtype is sys.modules["torch"].float32):
        index = sys.modules["torch"].from_numpy(blocks).to(value.device)  # choose before copying to the host
        flat = value.detach().reshape(-1)
        out[:] = flat_of(flat[: flat.numel() // block * block].reshape(-1, block).index_select(0, index))
        return
    array = _looked_at(value) if type(value) is not np.ndarray else flat_of(value)
    if blocks is None:
        out[:] = array
    elif array.dtype == np.float32:
        table = array[: array.size // block * block].reshape(-1, block)
        np.take(table, blocks, axis=0, out=out.reshape(-1, block), mode="clip")  # unchecked: they are in range
    else:
        out[:] = array[: array.size // block * block].reshape(-1, block)[blocks].reshape(-1)
