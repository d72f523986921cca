"""Whether the ranks of a job are in step: the steps each has made, and a hash of its parameters at one of them."""

from __future__ import annotations

import ast
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from stethos.errors import LiveError
from stethos.live.boundary import StepTask
from stethos.live.namespace import parsed
from stethos.live.request import Request

_WAIT_S = 5.0
COLLECTIVE_NAMES = frozenset({
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "new_group", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
    "send_object_list",
})  # fmt: skip
_PACKAGES = ("dist", "distributed", "distributed_c10d", "c10d", "torch.distributed")


def parameter_hash(request: Request) -> dict[str, Any]:
    """`sync`: the step and a hash of the parameters, at the boundary of `at_step` or of the next one."""
    watch = request.recording.torch_hooks
    if watch is None or not watch.steps.is_active:
        raise LiveError("no optimizer step can be seen in this process")
    found: dict[str, Any] = {}

    def take(optimizer: Any) -> None:
        found["step"] = request.session.steps
        found["hashes"] = hashes_of([one for one in request.watched() if one.optimizer() is not None])

    task = StepTask(take, at_step=request.at_step, steps=lambda: request.session.steps)
    wait_s = request.seconds("wait_s", _WAIT_S)
    if not request.boundary.leave(watch.steps, task, wait_s, request.has_hung_up):
        return {"step": request.session.steps, "hashes": None, "why": f"no optimizer step came within {wait_s:g} s"}
    task.done.wait(wait_s)
    return {"step": found.get("step", request.session.steps), "hashes": found.get("hashes"), "why": ""}


def hashes_of(watched: list[Any]) -> dict[str, str]:
    """A hash of each optimizer's parameters; of sharded ones that they are."""
    found = {}
    for one in watched:
        checksum = 0
        for param in one.params:
            if type(param).__name__ == "DTensor" or hasattr(param, "_local_tensor"):
                checksum = -1
                break
            local = param.detach()
            raw = local.cpu().contiguous().flatten().view(dtype=_bytes_type())
            checksum = zlib.crc32(memoryview(raw.numpy()), checksum)
        found[str(one.number)] = "sharded" if checksum < 0 else f"{checksum:08x}"
    return found


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def out_of_step(replies: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The ranks that differ from most, and in what. Of two that differ both are named."""
    found: dict[str, str] = {}
    for what, key in (("step", "step"), ("parameters", "hashes")):
        values = {name: repr(reply.get(key)) for name, reply in replies.items() if reply.get(key) is not None}
        if not values or len(set(values.values())) == 1:
            continue
        usual, count = Counter(values.values()).most_common(1)[0]
        odd = [name for name, value in values.items() if value != usual] if 2 * count > len(values) else list(values)
        for name in odd:
            found[name] = f"{found[name]} and {what}" if name in found else what
    return found


def collectives_in(code: str) -> list[str]:
    """The collectives of `torch.distributed` that a piece of code evidently calls."""
    try:
        module = parsed(code, "<code>")
    except (SyntaxError, ValueError):
        return []
    imported = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("torch.distributed")
        for alias in node.names
    }
    found = []
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        package, _, name = called.rpartition(".")
        is_ours = package.endswith(_PACKAGES) if package else called in imported
        if name in COLLECTIVE_NAMES and is_ours:
            found.append(called)
    return list(dict.fromkeys(found))
