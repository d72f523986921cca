"""Sees losses and steps of programs that call `torch.autograd.grad`, or `torch.func` above it, and never `backward`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from stethos.clock import monotonic_ns
from stethos.observe.autograd_graph import nodes_of, unwrapped_of
from stethos.observe.function_code import look_at_calls

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_functorch = torch._C._functorch
_FRUITLESS = 64  # calls in a row that are no training: the program has another use for gradients
_MOST_NODES = 4096


class GradientCalls:
    """Looks at `torch.autograd.grad` until the first `backward`: from then on gradients come from there."""

    def __init__(self, watch: StepRecorder) -> None:
        self._watch = watch
        self._undo: Callable[[], None] | None = None
        self.note: Callable[[torch.Tensor], object] = lambda _: None  # as a backward on this loss does
        self._seen: Any = None
        self._began_ns = self._fruitless = 0

    def install(self) -> None:
        function = torch.autograd.grad
        if isinstance(function, FunctionType):
            self._undo = look_at_calls(function, self._after, self._before)

    def uninstall(self) -> None:
        if self._undo is not None:
            self._undo()
        self._undo = None

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen = None
        if self._undo is not None and self._watch.is_active:
            with _outside_of_transforms():
                self._seen = self._watch.session.guard.run("inspection", self._look, args)
            self._began_ns = monotonic_ns()

    def _look(self, args: tuple[Any, ...]) -> Any:
        """The gradients of a loss are asked for: note it, and inspect it if that is due."""
        outputs, inputs, gradients, _, has_graph = args[:5]
        loss = _only(outputs)
        given = (
            [inputs] if isinstance(inputs, torch.Tensor) else list(inputs) if isinstance(inputs, list | tuple) else []
        )
        is_loss = gradients is None or (isinstance(gradients, list | tuple) and set(gradients) == {None})
        if loss is None or not is_loss or not _is_training(loss, given, bool(has_graph)):
            self._fruitless += 1
            if self._fruitless > _FRUITLESS:
                self.uninstall()
            return None
        self._fruitless = 0
        inspector = self._watch.inspector
        inspector.hand.before_gradients(given)
        self.note(unwrapped_of(loss).detach())
        return (inspector.gradients_begin(loss),)

    def _after(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._seen is None:
            return
        (seen,), self._seen = self._seen, None
        self._watch.local.iteration.backward_ns += monotonic_ns() - self._began_ns
        gradients = list(result) if isinstance(result, list | tuple) else []
        with _outside_of_transforms():
            self._watch.session.guard.run("inspection", self._watch.inspector.gradients_came, seen, gradients)


def _outside_of_transforms() -> AbstractContextManager[object]:
    """Within `torch.func.grad` whatever is computed is wrapped, and cannot be read."""
    is_inside = _functorch.peek_interpreter_stack() is not None
    return temporarily_clear_interpreter_stack() if is_inside else nullcontext()


def _only(outputs: Any) -> torch.Tensor | None:
    """The loss, if there is one and it is a single number."""
    loss = outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs
    return loss if type(loss) is torch.Tensor and loss.numel() == 1 and loss.grad_fn is not None else None


def _is_training(loss: torch.Tensor, inputs: list[Any], has_graph: bool) -> bool:
    """Whether these are the gradients that weights are trained with: of all leaves that the loss depends on.

    Gradients that are differentiated again, and those of a picture that a model is shown, are for something else.
    `torch.func` always keeps the graph, so there only the innermost of several levels is something else.
    """
    if not inputs or not all(isinstance(one, torch.Tensor) and one.is_leaf for one in inputs):
        return False
    if _functorch.is_functorch_wrapped_tensor(loss):
        plain = _functorch.get_unwrapped(loss) if _functorch.is_gradtrackingtensor(loss) else loss
        return not _functorch.is_functorch_wrapped_tensor(plain)
    if has_graph:
        return False
    leaves = [getattr(node, "variable", None) for node, _ in nodes_of(loss.grad_fn, _MOST_NODES)]
    given = set(map(id, inputs))
    return all(id(leaf) in given for leaf in leaves if leaf is not None)
