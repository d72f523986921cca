"""One forward and backward pass of a module that is going to be repeated: what it began with, and how to repeat it."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _disable_current_modes

from stethos.observe.repeat.execution import Execution, numbers_in, sum_of
from stethos.observe.repeat.graph_part import Edge, GraphPart, edge_of, part_of
from stethos.observe.repeat.module_state import CannotRepeatError, ModuleState, Swap, tensors_in, with_tensors
from stethos.observe.repeat.random_state import random_states

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_OWN_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
_TALKING = ("SyncBatchNorm", "DataParallel", "FullyShardedDataParallel", "PipelineStage")
_DEVICES = ("cpu", "cuda")
_CALL = torch.nn.Module._call_impl.__code__


class RepeatedPass:
    """A call of a module, from just before its forward pass.

    Everything that is needed to repeat it is kept: references to its arguments, the state of the module and of the
    random generators, and checksums of weights and arguments, by which it is known that they have not changed since.
    CannotRepeatError says why a call is not to be repeated.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], names: dict[int, str], ours: set[int]) -> None:
        _check(module, ours)
        self.module = module
        self._args = args
        self._kwargs = _kwargs_of_call()
        self._parameters = {id(one): one for one in module.parameters()}
        self._names = names
        self._random = random_states()
        self._state = ModuleState(module, copies=True)
        self._context = _context()
        self._given = [*tensors_in((args, self._kwargs))]
        self._versions = [one._version for one in self._fixed()]
        self._weight_sums = [sum_of(one) for one in self._parameters.values()]
        self._given_sums = [sum_of(one) for one in self._given]
        self._inputs = [edge for one in self._given if (edge := edge_of(one)) is not None]
        self._places: dict[Edge, int] = {}  # of an output: which of them it is
        self._part: GraphPart | None = None
        self._gradients: dict[int, torch.Tensor] = {}  # by the place of an output
        self._handles: list[Any] = []
        self.training = Execution()  # the training's own

    def _fixed(self) -> Iterator[torch.Tensor]:
        yield from self._parameters.values()
        yield from self._given

    def forward_ended(self, output: object) -> None:
        """The module's forward pass is over."""
        for place, tensor in enumerate(tensors_in(output)):
            edge = edge_of(tensor)
            if edge is not None:
                self._places.setdefault(edge, place)
        if not self._places:
            raise CannotRepeatError("none of its outputs needs a gradient")

    def backward_begins(self, losses: list[torch.Tensor]) -> bool:
        """Read the graph of the loss and listen to what comes back; False if the loss has nothing to do with this."""
        part = part_of(losses, self._inputs, self._places)
        if not part.outputs:
            return False
        self._part = part
        for node in {node for node, _ in part.outputs}:
            places = {number: self._places[edge] for edge in part.outputs for number in [edge[1]] if edge[0] is node}
            self._handles.append(node.register_prehook(self._output_listener(places)))
        for node in part.leaves:
            leaf = node.variable
            if id(leaf) in self._parameters and not leaf._backward_hooks:
                self._handles.append(node.register_prehook(self._leaf_listener(self._name(leaf))))
        return True

    def _output_listener(self, places: dict[int, int]) -> Callable[[Any], None]:
        def listen(gradients: Any) -> None:
            for number, place in places.items():
                if gradients[number] is not None:
                    self._gradients[place] = gradients[number]

        return listen

    def _leaf_listener(self, name: str) -> Callable[[Any], None]:
        def listen(gradients: Any) -> None:
            if gradients[0] is not None:
                with _disable_current_modes():
                    self.training.note("gradient", name, gradients[0])

        return listen

    def backward_ended(self) -> None:
        """The training's own backward is over: nothing of its graph is needed any more."""
        self.release()
        self._places.clear()
        self._inputs.clear()
        self._part = None
        if not self._gradients:
            raise CannotRepeatError("no gradient came back to its outputs")
        for before, one in zip(self._versions, self._fixed(), strict=True):
            if one._version != before:
                is_weight = id(one) in self._parameters
                what = "weights change" if is_weight else "arguments are changed in place"
                raise CannotRepeatError(f"its {what} between the forward pass and the end of the backward pass")
        if _context()[1:] != self._context[1:]:
            raise CannotRepeatError("streams or modes of torch were switched after its forward pass")
        if numbers_in([sum_of(one) for one in self._given]) != numbers_in(self._given_sums):
            raise CannotRepeatError("its arguments were overwritten")

    def changed_weight(self) -> str | None:
        """The first parameter whose bits changed since the forward pass began, though no operation changed it."""
        now = numbers_in([sum_of(one) for one in self._parameters.values()])
        before = numbers_in(self._weight_sums)
        for parameter, old, new in zip(self._parameters.values(), before, now, strict=True):
            if old != new:
                return self._name(parameter)
        return None

    def release(self) -> None:
        """Take all hooks off the training's graph."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def repeat(self, execution: Execution) -> None:
        """Run forward and backward once more, on other parameter objects over the same memory.

        The forward pass is seen by the hook that the owner of this has put on all modules. Whatever it changes in the
        module or in the random generators is put back, also if it raises.
        """
        now, random_now = ModuleState(self.module, copies=False), random_states()
        swap: Swap = self._state.fresh_copies()
        aliases = {key: _alias(one) for key, one in self._parameters.items()}
        listened = [one for one in aliases.values() if one.requires_grad]
        for key, alias in aliases.items():
            if alias.requires_grad:
                _when_accumulated(alias, _drop_after(execution, self._names.get(key, "?")))
        given: Swap = {id(one): one.detach().requires_grad_() for one in self._given if one.requires_grad}
        for one in given.values():
            _when_accumulated(one, _drop)
        try:
            self._state.restore({**swap, **aliases})
            for restore in self._random:
                restore()
            with torch.enable_grad(), contextlib.ExitStack() as stack:
                for (device, enabled, dtype, cache), present in zip(self._context[0], _context()[0], strict=True):
                    if enabled or present[1]:
                        stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache))
                output = self.module(*with_tensors(self._args, given), **with_tensors(self._kwargs, given))
            made = list(tensors_in(output))
            chosen = [(made[place], gradient) for place, gradient in self._gradients.items() if place < len(made)]
            if len(chosen) < len(self._gradients) or any(
                one.shape != gradient.shape or one.grad_fn is None for one, gradient in chosen
            ):
                raise CannotRepeatError("its outputs have another shape when it is repeated")
            _run_backward(chosen, [*listened, *given.values()])
        finally:
            now.restore()
            for restore in random_now:
                restore()

    def _name(self, parameter: torch.Tensor) -> str:
        return self._names.get(id(parameter), "?")


def _run_backward(chosen: list[tuple[torch.Tensor, torch.Tensor]], leaves: list[torch.Tensor]) -> None:
    """Torch's engine itself: what wraps `backward` is not to see this. Nothing but `leaves` gets a gradient."""
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward(
        tuple(one for one, _ in chosen), tuple(gradient for _, gradient in chosen), False, False, tuple(leaves),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def _when_accumulated(leaf: Any, action: Callable[[torch.Tensor], None]) -> None:
    leaf.register_post_accumulate_grad_hook(action)


def _alias(parameter: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)


def _drop_after(execution: Execution, name: str) -> Callable[[torch.Tensor], None]:
    """Takes in a gradient as soon as it is there, and frees it."""

    def drop(alias: torch.Tensor) -> None:
        if alias.grad is not None:
            with _disable_current_modes():
                execution.note("gradient", name, alias.grad)
        alias.grad = None

    return drop


def _drop(alias: torch.Tensor) -> None:
    alias.grad = None


def _check(module: torch.nn.Module, ours: set[int]) -> None:
    """CannotRepeatError where repeating a call of the module could disturb others or would say nothing."""
    if torch._C._len_torch_dispatch_stack():
        raise CannotRepeatError("a dispatch mode of torch is in use")
    is_cuda_used: Any = torch.cuda.is_initialized
    if is_cuda_used() and torch.cuda.is_current_stream_capturing():
        raise CannotRepeatError("a CUDA graph is being captured")
    for name in _GLOBAL_HOOKS:
        if any(key not in ours for key in getattr(torch_module, name)):
            raise CannotRepeatError("hooks on all modules would run again")
    for one in module.modules():
        if isinstance(one, torch.jit.ScriptModule):
            raise CannotRepeatError("parts of it are TorchScript")
        if type(one).__name__ in _TALKING:
            raise CannotRepeatError(f"a {type(one).__name__} talks to others in its forward pass")
        if "forward" in vars(one):
            raise CannotRepeatError(f"the forward of a {type(one).__name__} was replaced")
        for name in _OWN_HOOKS:
            for hook in getattr(one, name).values():
                if not str(getattr(hook, "__module__", "")).startswith("torch."):
                    raise CannotRepeatError(f"hooks on a {type(one).__name__} would run again")
    for parameter in module.parameters():
        if type(parameter) not in _PLAIN or parameter.layout is not torch.strided:
            raise CannotRepeatError(f"its parameters are of type {type(parameter).__name__}")


def _context() -> tuple[Any, ...]:
    """Autocast, and then what has to be the same when a pass is repeated."""
    cache = torch.is_autocast_cache_enabled()
    autocast = [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), cache) for device in _DEVICES
    ]
    is_cuda_used: Any = torch.cuda.is_initialized
    stream = torch.cuda.current_stream().cuda_stream if is_cuda_used() else 0
    return autocast, stream, torch._C._len_torch_function_stack(), torch.get_default_dtype()


def _kwargs_of_call() -> dict[str, Any]:
    """The arguments by name of the module call that this is called for: torch shows global hooks only the others."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CALL:
            return dict(frame.f_locals.get("kwargs") or {})
        frame = frame.f_back
    raise CannotRepeatError("the arguments of its call cannot be seen")
