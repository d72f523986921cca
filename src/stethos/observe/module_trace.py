"""Durations and memory of every module during one sampled iteration, in eager mode.

Forward is seen by torch's global module hooks. Backward is seen by pre-hooks on
autograd nodes: `register_full_backward_hook` would break in-place activations.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from stethos.clock import monotonic_ns
from stethos.observe.device_statistic import LateTable, TensorStatistics, gathered, started_column

Stage = Literal["forward", "backward"]
F = TypeVar("F", bound=Callable[..., object])

_NODES_PER_CALL = 8  # inputs watched for the end of one module's backward
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_cuda_used: Any = torch.cuda.is_initialized
_VALUES_PER_CALL = 64  # tensors looked at in one module's arguments or outputs
_CALLS_PER_TRACE = 50_000  # more than an iteration has: it is an evaluation, or no further step will come


class ModuleSpan(NamedTuple):
    """One call of one module in one stage. `start_ns` is `monotonic_ns()`; None means not measured."""

    module: str
    stage: Stage
    start_ns: int
    duration_ns: int
    allocated_bytes: int | None
    alive_bytes: int | None


@dataclass(slots=True)
class _Call:
    """One module call: open between its two forward hooks, then waiting for its backward."""

    module_id: int
    kind: str
    start_ns: int = 0
    duration_ns: int = 0
    own_ns: int = 0
    allocated_bytes: int = 0
    alive_bytes: int = 0
    cuda_bytes: int | None = None
    backward_start_ns: int = 0
    backward_end_ns: int = 0
    backward_bytes: int | None = None
    alive_after_backward_bytes: int | None = None
    input_nodes: list[Any] = field(default_factory=list)
    input_storages: set[int] = field(default_factory=set)
    counted: set[int] = field(default_factory=set)

    def begin_backward(self) -> None:
        if not self.backward_start_ns:
            self.cuda_bytes = _cuda_bytes()
            self.backward_start_ns = monotonic_ns()

    def end_backward(self) -> None:
        if self.backward_start_ns and not self.backward_end_ns:
            self.backward_end_ns = monotonic_ns()
            if self.cuda_bytes is not None:
                self.alive_after_backward_bytes = _cuda_bytes() or 0
                self.backward_bytes = self.alive_after_backward_bytes - self.cuda_bytes

    def forward_span(self, names: Mapping[int, str]) -> ModuleSpan:
        name = names.get(self.module_id, self.kind)
        return ModuleSpan(name, "forward", self.start_ns, self.duration_ns, self.allocated_bytes, self.alive_bytes)

    def backward_span(self, names: Mapping[int, str]) -> ModuleSpan:
        name, duration_ns = names.get(self.module_id, self.kind), self.backward_end_ns - self.backward_start_ns
        memory = (self.backward_bytes, self.alive_after_backward_bytes)
        return ModuleSpan(name, "backward", self.backward_start_ns, duration_ns, *memory)


class ModuleTrace:
    """Watches the modules that the starting thread calls, between `start()` and `stop()`.

    Durations include children and exclude the hooks' own time; on CUDA they are
    the host's, the time to launch. A backward begins when autograd reaches the
    node of the module's output and ends when it reaches the node that made an
    input, so where an input feeds other modules too their backward is included.
    A module none of whose inputs needs a gradient ends with the whole backward.

    `allocated_bytes` includes children. On CUDA it is the change of the memory
    allocated. On CPU it is the size of the storages in the module's outputs that
    were not in its inputs, its parameters or its children's outputs, and it is None
    for backward. `alive_bytes` is the running total of these since `start()` plus
    its `base_bytes`; what is freed in between is not subtracted on CPU.

    The owner sets `in_backward` around backward: forward calls made then are
    recomputations of activation checkpointing and are not counted again. It
    calls `backward_ended()` afterwards.

    Every callback given to torch is passed through `guarded` first; none returns
    a value, draws a random number or keeps a tensor. With `activations` the
    statistics of each leaf module's first output are taken as well; those of
    tensors on a GPU stay there until the trace is taken.
    """

    def __init__(self, guarded: Callable[[F], F], *, activations: bool = False) -> None:
        self.in_backward = False
        self.on_overrun: Callable[[], object] = lambda: None  # no step has come for long
        self._guarded: Callable[[Any], Any] = guarded
        self._activations = activations
        self._thread = 0
        self._handles: list[RemovableHandle] = []
        self._reset(0)

    def _reset(self, base_bytes: int) -> None:
        self._alive_bytes = base_bytes
        self._calls = 0
        self._own_ns = 0
        self._open: list[_Call] = []
        self._done: list[_Call] = []
        self._leaves: list[tuple[int, str]] = []
        self.tops: list[weakref.ref[torch.nn.Module]] = []  # the outermost modules called
        self._columns: list[TensorStatistics] = []

    @property
    def own_ns(self) -> int:
        """Time spent in these hooks since `start()`."""
        return self._own_ns

    @property
    def innermost(self) -> int | None:
        """The id of the module whose forward runs now."""
        return self._open[-1].module_id if self._open else None

    @property
    def is_on(self) -> bool:
        return bool(self._handles)

    def start(self, base_bytes: int = 0) -> bool:
        """Begin a new iteration on this thread; return False if that could disturb compiled code.

        Once `torch.compile` has compiled anything in this process the trace stays
        off: hooks that come and go may be traced into a graph.
        """
        self.stop()
        self._reset(base_bytes)
        if has_compiled():
            return False
        self.in_backward = False
        self._thread = threading.get_ident()
        before, after = self._guarded(self._before_forward), self._guarded(self._after_forward)
        self._handles.append(torch_module.register_module_forward_pre_hook(before))
        hook = torch_module.register_module_forward_hook(after, with_kwargs=True, always_call=True)
        self._handles.append(hook)
        return True

    def stop(self) -> None:
        """Remove every hook, those on autograd nodes included. What was seen is kept for `take`."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
            torch_module._global_forward_hooks_with_kwargs.pop(handle.id, None)  # torch forgets this one
        self._open.clear()

    def backward_ended(self) -> None:
        """End the backward of the modules whose inputs need no gradient."""
        for call in self._done:
            call.end_backward()

    def take(self, names: Mapping[int, str] | None = None) -> list[ModuleSpan]:
        """Return what was seen, forward calls in the order they ended, then backward ones as they began.

        `names` maps `id(module)` to a name; other modules are named by their class.
        """
        names = names or {}
        done, self._done = self._done, []
        spans = [call.forward_span(names) for call in done]
        backward = [call for call in done if call.backward_start_ns and call.backward_end_ns]
        backward.sort(key=lambda call: call.backward_start_ns)
        return spans + [call.backward_span(names) for call in backward]

    def take_activations(self, names: Mapping[int, str] | None = None) -> tuple[list[str], LateTable]:
        """Return the leaf modules' names and the statistics of their first outputs, one column per call."""
        names = names or {}
        leaves, self._leaves = self._leaves, []
        columns, self._columns = self._columns, []
        return [names.get(module_id, kind) for module_id, kind in leaves], gathered(columns)

    def _is_watching(self) -> bool:
        """Whether a forward call seen now counts. Must stay cheap: every module call asks twice.

        A call without gradients is an evaluation, unless it lies inside one with: a reentrant checkpoint.
        """
        return (
            bool(self._handles)
            and not torch.compiler.is_compiling()
            and not self.in_backward
            and (torch.is_grad_enabled() or bool(self._open))
            and threading.get_ident() == self._thread
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
        )

    def _before_forward(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        """Open a call. On the training thread: must not block, raise or return a value."""
        self._calls += 1
        if self._calls > _CALLS_PER_TRACE:
            self.stop()
            self.on_overrun()
        if not self._is_watching():
            return
        began = monotonic_ns()
        if not self._open and is_compiled(module):
            self.stop()
            return
        call = _Call(id(module), type(module).__name__)
        for tensor in _tensors(args):
            call.input_storages.add(_storage(tensor))
            # Taken before forward: an in-place module gives its input a new node.
            if tensor.grad_fn is not None:
                call.input_nodes.append(tensor.grad_fn)
        call.cuda_bytes = _cuda_bytes()
        if not self._open:
            self.tops.append(weakref.ref(module))
        self._open.append(call)
        call.start_ns = monotonic_ns()
        self._own_ns += call.start_ns - began
        call.own_ns = self._own_ns

    def _after_forward(self, module: torch.nn.Module, args: tuple[object, ...], *rest: object) -> None:
        """Close a call. `rest` is (kwargs, output), or (output,) when torch reports an exception."""
        if not self._open or not self._is_watching():
            return
        began = monotonic_ns()
        # A call whose own hooks raised was never closed: drop what lies above this module's.
        depth = next((i for i in reversed(range(len(self._open))) if self._open[i].module_id == id(module)), None)
        if depth is None:
            return
        call = self._open[depth]
        del self._open[depth:]
        call.duration_ns = began - call.start_ns - (self._own_ns - call.own_ns)
        outputs = list(_tensors(rest[-1:]))
        if not call.input_storages and len(rest) == 2:
            # Arguments given by name are not shown to the first hook.
            for tensor in _tensors(rest[:1]):
                call.input_storages.add(_storage(tensor))
                if tensor.grad_fn is not None and all(tensor is not output for output in outputs):
                    call.input_nodes.append(tensor.grad_fn)
        self._count_memory(module, call, outputs)
        self._watch_backward(call, outputs)
        if self._activations and outputs and not module._modules and _is_readable(outputs[0]):
            self._leaves.append((call.module_id, call.kind))
            self._columns.append(started_column(outputs[0]))
        self._done.append(call)
        self._own_ns += monotonic_ns() - began

    def _count_memory(self, module: torch.nn.Module, call: _Call, outputs: list[torch.Tensor]) -> None:
        parent = self._open[-1] if self._open else None
        if call.cuda_bytes is not None and any(output.is_cuda for output in outputs):
            now = _cuda_bytes() or 0
            call.allocated_bytes = now - call.cuda_bytes
            call.alive_bytes = now
            return
        known = call.input_storages | call.counted
        known |= {_storage(parameter) for parameter in module._parameters.values() if parameter is not None}
        for output in outputs:
            storage = _storage(output)
            if storage not in known:
                known.add(storage)
                call.counted.add(storage)
                size = output.untyped_storage().nbytes() if output.layout is torch.strided else 0
                call.allocated_bytes += size
                self._alive_bytes += size
        call.alive_bytes = self._alive_bytes
        if parent is not None:
            parent.counted |= call.counted
            parent.allocated_bytes += call.allocated_bytes

    def _watch_backward(self, call: _Call, outputs: list[torch.Tensor]) -> None:
        """Let autograd tell when it enters and leaves the module. Its nodes hold `call`, which holds no node."""
        nodes, call.input_nodes = call.input_nodes, []
        node = next((output.grad_fn for output in outputs if output.grad_fn is not None), None)
        if node is None or node in nodes:
            return

        def began(_: object) -> None:
            call.begin_backward()

        def ended(_: object) -> None:
            call.end_backward()

        self._handles.append(node.register_prehook(self._guarded(began)))
        for input_node in dict.fromkeys(nodes[:_NODES_PER_CALL]):
            self._handles.append(input_node.register_prehook(self._guarded(ended)))


def _tensors(values: object) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, the first few."""
    waiting, seen = [values], 0
    while waiting and seen < _VALUES_PER_CALL:
        value = waiting.pop()
        seen += 1
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            waiting.extend(reversed(value[:_VALUES_PER_CALL]))
        elif isinstance(value, dict):
            waiting.extend(reversed(list(value.values())[:_VALUES_PER_CALL]))


def _storage(tensor: torch.Tensor) -> int:
    """What two views of one memory share. (An address may return after a free: on CPU that undercounts.)"""
    is_plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if is_plain else id(tensor)


def _cuda_bytes() -> int | None:
    """The bytes allocated on the current CUDA device, read from the allocator's counters without a sync."""
    if not _is_cuda_used():
        return None
    stats = torch.cuda.memory_stats_as_nested_dict()
    return int(stats["allocated_bytes"]["all"]["current"])


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether reading its elements disturbs nobody.

    Nothing may wait for the device while a CUDA graph is captured; and a dispatch mode (selective
    checkpointing, a FLOP counter) would take our operations for the module's own.
    """
    is_capturing = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
    return not is_capturing and not torch._C._len_torch_dispatch_stack()


def has_compiled() -> bool:
    """Whether `torch.compile` has compiled anything in this process."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(frames, "FRAME_COUNTER", 0))


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the module or one inside it runs compiled."""
    return any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in module.modules()
    )
