"""What filled the memory when a program ended because there was none left: read once, as it ends.

The frames of the traceback still hold what they held. Tensors that only the graph of a loss holds have no object of
Python's: they are what is left of the allocator's count.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import torch

from stethos.observe.holder import holder_of
from stethos.observe.program_line import ProgramLines

_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "MemoryError")
_MOST_GROUPS = 3
_MANY = 8  # tensors with a graph: more than a program needs at a time
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LEAST_SHARE = 0.05  # of what is counted: a group below it is not told


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory could not be had, on a GPU or on the host."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _WORDS)
    )


def memory_facts(error: BaseException, trace: TracebackType | None) -> dict[str, Any]:
    """Bytes by class and the largest groups of tensors with what holds them; where the last request was made."""
    is_gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in str(error)
    lines = ProgramLines()
    last = trace
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    frame = last.tb_frame if last is not None else None
    facts: dict[str, Any] = {
        "device": "GPU" if is_gpu else "host", "line": _line_of(trace, lines), "error": str(error)[:300],
    }  # fmt: skip
    known = _classes(is_gpu)
    facts |= {f"{name}_bytes": sum(sizes.values()) for name, sizes in known.items()}
    owned = {pointer for sizes in known.values() for pointer in sizes}
    facts["other_bytes"], groups = _groups(owned, is_gpu)
    counted = sum(value for key, value in facts.items() if key.endswith("_bytes"))
    if is_gpu:
        facts["allocated_bytes"] = int(torch.cuda.memory_allocated())
        facts["total_bytes"] = int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
        facts["graph_bytes"] = max(facts["allocated_bytes"] - counted, 0)
    facts["groups"] = []
    for group, one in groups:
        if group["keeps_graphs"] or group["bytes"] >= _LEAST_SHARE * max(counted, 1):
            holder = holder_of(one(), frame, lines)
            facts["groups"].append({**group, "holder": holder.text, "line": holder.line})
    return facts


def _line_of(trace: TracebackType | None, lines: ProgramLines) -> str:
    """The innermost line of the program's own: what asked for the memory that was not there."""
    found = ""
    while trace is not None:
        if lines.is_own(trace.tb_frame.f_code.co_filename):
            found = f"{lines.shown(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_in(tensor: torch.Tensor, is_gpu: bool) -> bool:
    return tensor.is_cuda if is_gpu else tensor.is_cpu


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """The memory of tensors, each storage once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _tensors(is_gpu: bool) -> Iterator[torch.Tensor]:
    """Every plain tensor that Python knows in that memory."""
    for one in gc.get_objects():
        if (
            type(one) in _PLAIN
            and one.layout is torch.strided
            and _is_in(one, is_gpu)
            and one.untyped_storage().nbytes()
        ):
            yield one


def _classes(is_gpu: bool) -> dict[str, dict[int, int]]:
    """Storages of weights, gradients and optimizer state, with their sizes."""
    found: dict[str, dict[int, int]] = {"weight": {}, "gradient": {}, "optimizer": {}}

    def note(kind: str, tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and type(tensor) in _PLAIN and _is_in(tensor, is_gpu):
            found[kind][tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    for one in gc.get_objects():
        if type(one) is torch.nn.Parameter:
            note("weight", one)
            note("gradient", one.grad)
        elif isinstance(type(one), type) and issubclass(type(one), torch.optim.Optimizer):
            for state in list(one.state.values()):
                for value in state.values() if isinstance(state, dict) else ():
                    note("optimizer", value)
    return found


def _groups(owned: set[int], is_gpu: bool) -> tuple[int, list[tuple[dict[str, Any], weakref.ref[torch.Tensor]]]]:
    """Bytes of all other tensors, and the largest groups of alike ones with one of each.

    Nothing here holds a tensor afterwards: what does is looked for next.
    """
    alike: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for tensor in _tensors(is_gpu):
        if tensor.untyped_storage().data_ptr() not in owned:
            alike.setdefault((tuple(tensor.shape), tensor.dtype, tensor.grad_fn is not None), []).append(tensor)
    total = _bytes_of(itertools.chain.from_iterable(alike.values()))
    found: list[tuple[dict[str, Any], weakref.ref[torch.Tensor]]] = []
    for (shape, dtype, has_graph), group in alike.items():
        facts = {
            "bytes": _bytes_of(group), "count": len(group), "shape": list(shape),
            "dtype": str(dtype).removeprefix("torch."), "keeps_graphs": has_graph and len(group) > _MANY,
        }  # fmt: skip
        found.append((facts, weakref.ref(group[-1])))
    found.sort(key=lambda one: (one[0]["keeps_graphs"], one[0]["bytes"]), reverse=True)
    return total, found[:_MOST_GROUPS]
