"""Saving a training from outside, without pickle: one safetensors file with weights and optimizer state.

Weights are under `model.`, the optimizer's tensors under `optimizer.state.N.` (N as in its `state_dict()`); its
other numbers and the step are in the header, as JSON. `load_checkpoint` gives all of it back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import LiveError, RecordingError, UsageError
from stethos.live.request import Request
from stethos.live.steer import at_step
from stethos.record.whole_file import whole_file

if TYPE_CHECKING:
    import torch


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
    size = _write(path, tensors, facts)
    return {
        "path": str(path), "bytes": size, "tensors": len(tensors), "step": int(facts["step"]),
        "model": type(root).__name__ if root is not None else None,
    }  # fmt: skip


def _sort_in(name: str, value: Any, tensors: dict[str, Any], plain: dict[str, Any]) -> None:
    from stethos.replay.tensorfile import DTYPES

    torch_module = sys.modules["torch"]
    if isinstance(value, torch_module.Tensor) and str(value.dtype).removeprefix("torch.") in DTYPES:
        tensors[name] = value
    else:
        plain[name] = value


def _write(path: Path, tensors: dict[str, Any], facts: dict[str, str]) -> int:
    """Write tensors beside the file first, then in its place; one at a time is copied to the host."""
    from stethos.replay.tensorfile import bytes_in, shape_of_file  # NumPy is not loaded before torch is

    shape = shape_of_file(tensors, facts)
    try:
        with whole_file(path) as file:
            file.write(shape.head)
            for tensor in tensors.values():
                if tensor.numel():
                    file.write(bytes_in(tensor).data)
    except OSError as error:
        raise LiveError(f"cannot save to {path}: {error.strerror}", hint="choose another place") from None
    return shape.total_bytes


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """`step`, `model` and `optimizer` of a checkpoint: the latter two as `load_state_dict` takes them.

    RecordingError if it is not one, or is damaged.
    """
    try:
        return _loaded(Path(path))
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError):
        raise RecordingError(
            f"{path} is not a Stethos checkpoint, or is damaged", hint="`stethos inspect FILE` shows what it holds"
        ) from None


def _loaded(path: Path) -> dict[str, Any]:
    import numpy as np

    from stethos.replay.tensorfile import parse, tensor_in

    file = np.memmap(path, np.uint8, "r")
    entries, facts = parse(file)
    if facts.get("format") != "stethos-checkpoint-1":
        raise ValueError("another format")
    values = {name: tensor_in(file, entry) for name, entry in entries.items()} | json.loads(facts["plain"])
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
