"""Saving a training from outside, without pickle: one safetensors file with weights and optimizer state.

Weights are under `model.`, the optimizer's tensors under `optimizer.state.N.` (N as in its `state_dict()`); its
other numbers and the step are in the header, as JSON. `load_checkpoint` gives all of it back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import LiveError, RecordingError, UsageError
from stethos.live.request import Request
from stethos.live.steer import at_step
from stethos.record.whole_file import whole_file

if TYPE_CHECKING:
    import torch

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_ALIGNMENT = 8


def save_checkpoint(request: Request) -> dict[str, Any]:
    """`checkpoint`: save model, optimizer and step to `path` at the next step, before the optimizer acts."""
    path = Path(request.text("path"))
    if not path.is_absolute():
        raise UsageError("the path of a checkpoint is absolute")
    if not path.parent.is_dir():
        raise UsageError(f"no directory {path.parent}", hint="make it first")
    if path.exists() and not request.content.get("force"):
        raise UsageError(f"{path} exists", hint="choose another name, or overwrite it with --force")
    return at_step(request, lambda optimizer: _save(request, optimizer, path))


def _save(request: Request, optimizer: torch.optim.Optimizer, path: Path) -> dict[str, Any]:
    watched = next((one for one in request.watched() if one.optimizer() is optimizer), None)
    root = watched.named.root() if watched is not None and watched.named.root is not None else None
    tensors: dict[str, Any] = {}
    plain: dict[str, Any] = {}
    if root is not None:
        weights = dict(root.state_dict())
    elif watched is not None:
        weights = dict(zip(watched.named.layers, watched.params, strict=True))
    else:
        raise LiveError("the model is not known yet", hint="try again after its first step")
    for name, value in weights.items():
        _sort_in(f"model.{name}", value, tensors, plain)
    state = optimizer.state_dict()
    for index, values in state["state"].items():
        for name, value in values.items():
            _sort_in(f"optimizer.state.{index}.{name}", value, tensors, plain)
    facts = {
        "format": "stethos-checkpoint-1",
        "step": str(request.session.steps),
        "optimizer": type(optimizer).__name__,
        "param_groups": json.dumps(state["param_groups"], default=repr),
        "plain": json.dumps(plain, default=repr),
    }
    size = write_safetensors(path, tensors, facts)
    return {
        "path": str(path), "bytes": size, "tensors": len(tensors), "step": int(facts["step"]),
        "model": type(root).__name__ if root is not None else None,
    }  # fmt: skip


def _sort_in(name: str, value: Any, tensors: dict[str, Any], plain: dict[str, Any]) -> None:
    torch_module = sys.modules["torch"]
    if isinstance(value, torch_module.Tensor) and str(value.dtype).removeprefix("torch.") in DTYPES:
        tensors[name] = value
    else:
        plain[name] = value


def write_safetensors(path: Path, tensors: dict[str, Any], facts: dict[str, str]) -> int:
    """Write tensors of torch in the safetensors format: beside the file first, then in its place."""
    header: dict[str, Any] = {"__metadata__": facts}
    offset = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        kind = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    try:
        with whole_file(path) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(_bytes_of(tensor))
    except OSError as error:
        raise LiveError(f"cannot save to {path}: {error.strerror}", hint="choose another place") from None
    return 8 + len(text) + offset


def _bytes_of(tensor: torch.Tensor) -> Any:
    torch_module = sys.modules["torch"]
    flat = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch_module.uint8)
    return flat.numpy().data


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """`step`, `model` and `optimizer` of a checkpoint: the latter two as `load_state_dict` takes them."""
    import torch

    kinds = {short: getattr(torch, name) for name, short in DTYPES.items() if hasattr(torch, name)}

    def make(data: bytearray, kind: str, shape: list[int]) -> torch.Tensor:
        return (torch.frombuffer(data, dtype=kinds[kind]) if data else torch.empty(0, dtype=kinds[kind])).reshape(shape)

    header, tensors = _read(Path(path), make)
    facts = header.get("__metadata__", {})
    if facts.get("format") != "stethos-checkpoint-1":
        raise RecordingError(f"{path} is no checkpoint of ours", hint="`stethos inspect FILE` shows what it holds")
    values = {**tensors, **json.loads(facts["plain"])}
    state: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith("optimizer.state."):
            index, _, key = name.removeprefix("optimizer.state.").partition(".")
            state.setdefault(int(index), {})[key] = value
    model = {name.removeprefix("model."): value for name, value in values.items() if name.startswith("model.")}
    return {
        "step": int(facts["step"]),
        "model": model,
        "optimizer": {"state": state, "param_groups": json.loads(facts["param_groups"])},
    }


def _read(path: Path, make: Callable[[bytearray, str, list[int]], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        base = file.tell()

        def tensors() -> Iterator[tuple[str, Any]]:
            for name, about in header.items():
                if name != "__metadata__":
                    first, last = about["data_offsets"]
                    file.seek(base + first)
                    yield name, make(bytearray(file.read(last - first)), about["dtype"], about["shape"])

        return header, dict(tensors())
