"""Chooses the steps whose forward and backward pass is repeated, and records what the comparison says.

Everything here runs on the training thread. On steps that are not chosen one callback counts; on a chosen one hooks
are put on all modules until its backward pass is over, and on a GPU it is waited for the device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules import module as torch_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from stethos.clock import monotonic_ns
from stethos.guard import text_of, tried
from stethos.observe.inspection_row import put_inspection
from stethos.observe.layer_name import module_names, names_under
from stethos.observe.module_trace import has_compiled, is_compiled
from stethos.observe.out_of_memory import is_out_of_memory
from stethos.observe.repeat.execution import Execution, vote
from stethos.observe.repeat.module_state import CannotRepeatError
from stethos.observe.repeat.repeated_pass import RepeatedPass

if TYPE_CHECKING:
    from stethos.observe.step_recorder import StepRecorder

_EXECUTIONS = 5  # of a step whose first two differ: the training's own and its repetitions
_MOST_UNEQUAL = 3  # steps in a row that differ: the program cannot be repeated, and is left alone
_MOST_REASONS = 20


class StepRepeater:
    """Repeats a share of the steps of one process; one per session."""

    def __init__(self, watch: StepRecorder, share: float) -> None:
        self._watch = watch
        self._session = watch.session
        self._guard = watch.session.guard
        self._share = share
        self._credit = 0.0
        self._is_off = False
        self._unequal = 0
        self._failing: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._reasons: set[str] = set()
        self._handles: list[RemovableHandle] = []
        self._thread = 0
        self._names: dict[int, str] = {}
        self._forget()

    def _forget(self) -> None:
        self._pass: RepeatedPass | None = None
        self._execution: Execution | None = None  # that modules are noted in now
        self._is_forward_over = False

    # When ------------------------------------------------------------------------------------------

    def step_ended(self, *_: object) -> None:
        """After an optimizer's step: get ready if the next one is chosen."""
        if self._handles:
            self._disarm()
        self._credit += self._share
        if self._credit < 1 - 1e-9 or self._is_off or not self._watch.is_active:
            return
        self._credit -= 1
        self._guard.run("sdc", self._arm)

    def refuse(self, reason: str) -> None:
        """Repeat nothing more in this process, and say why in the run."""
        self._disarm()
        if not self._is_off:
            self._is_off = True
            self._session.note_gap("sdc", reason)

    def _arm(self) -> None:
        if has_compiled():
            self.refuse("torch.compile is in use: module hooks would change its graphs")
            return
        self._thread = threading.get_ident()
        before = self._guard.wrap("sdc", self._before_forward)
        after = self._guard.wrap("sdc", self._after_forward)
        self._handles.append(torch_module.register_module_forward_pre_hook(before))
        self._handles.append(torch_module.register_module_forward_hook(after))

    def _disarm(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        if self._pass is not None:
            self._pass.release()
        self._forget()

    def uninstall(self) -> None:
        """Recording ends: no further step is repeated."""
        self._is_off = True
        self._disarm()

    # The training's own pass -------------------------------------------------------------------------

    def _is_watching(self) -> bool:
        return (
            torch.is_grad_enabled()
            and threading.get_ident() == self._thread
            and not self._watch.local.iteration.in_backward
            and torch._C._functorch.peek_interpreter_stack() is None
            and torch._C._get_tracing_state() is None
        )

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """A module is called: the first with parameters that is not a wrapper is the one to repeat."""
        if self._pass is not None:
            if self._execution is self._pass.training and module is self._pass.module:
                self._leave_out("it calls itself, or failed before")
            return
        if not self._is_watching() or isinstance(module, DistributedDataParallel) or module in self._failing:
            return
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        start_ns = monotonic_ns()
        if is_compiled(module):
            self.refuse("torch.compile is in use: module hooks would change its graphs")
            return
        if self._watch.tracer.is_tracing():
            self._watch.tracer.stop()  # it would take the repetition for the training's own work
        self._names = self._all_names(module)
        try:
            self._pass = RepeatedPass(module, args, self._names, {handle.id for handle in self._handles})
            self._execution = self._pass.training
        except CannotRepeatError as error:
            self._leave_out(str(error))
        self._charge(start_ns)

    def _after_forward(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """A module has been called, in the training's own pass or in a repetition."""
        execution, one = self._execution, self._pass
        if execution is None or one is None or threading.get_ident() != self._thread:
            return
        start_ns = monotonic_ns()
        try:
            if not torch._C._len_torch_dispatch_stack():  # its owner would take our reading for the module's own work
                execution.note("activation", self._names.get(id(module), type(module).__name__), output)
            if module is one.module:
                self._execution = None
                if execution is one.training:
                    one.forward_ended(output)
                    self._is_forward_over = True
        except CannotRepeatError as error:
            self._leave_out(str(error))
        if execution is one.training:
            self._charge(start_ns)

    def wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.backward`, after which a pass that was watched is repeated."""

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            one = self._pass
            if one is None or not self._is_forward_over or not self._is_watching():
                return original(tensors, *args, **kwargs)
            is_mine = self._guard.run("sdc", self._begin_backward, one, tensors, args, kwargs)
            result = original(tensors, *args, **kwargs)
            if is_mine:
                self._guard.run("sdc", self._check, one)
            return result

        return backward

    def _begin_backward(self, one: RepeatedPass, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        start_ns = monotonic_ns()
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        is_graph_made = kwargs.get("create_graph") or (len(args) > 2 and args[2])
        is_mine = False
        try:
            if is_graph_made:
                raise CannotRepeatError("its backward pass is differentiated itself")
            is_mine = one.backward_begins(losses)
        except CannotRepeatError as error:
            self._leave_out(str(error))
        self._charge(start_ns)
        return is_mine

    # The repetitions -----------------------------------------------------------------------------------

    def _check(self, one: RepeatedPass) -> None:
        start_ns = monotonic_ns()
        try:
            one.backward_ended()
            facts = self._compared(one)
        except CannotRepeatError as error:
            self._leave_out(str(error))
            return
        finally:
            self._charge(start_ns)
        facts |= {"module": self._names.get(id(one.module), ""), "took_ms": (monotonic_ns() - start_ns) * 1e-6}
        self._disarm()
        put_inspection(self._session, {"phase": "repeated", "detail": facts}, [])
        self._unequal = 0 if facts["outcome"] == "equal" else self._unequal + 1
        if self._unequal >= _MOST_UNEQUAL:
            self.refuse(f"{_MOST_UNEQUAL} checked steps in a row were not equal when repeated: no more are checked")

    def _compared(self, one: RepeatedPass) -> dict[str, Any]:
        """Repeat the pass: once if it is equal, else until there is a majority."""
        layer = one.changed_weight()
        if layer is not None:
            return {"outcome": "corrupt", "kind": "weight", "layer": layer, "where": "training", "executions": 1}
        seen = [one.training.numbers()]
        while True:
            self._execution = execution = Execution()
            _, error = tried(one.repeat, execution)
            self._execution = None
            if isinstance(error, CannotRepeatError):
                raise error
            if error is not None:
                self._note_failure(one.module, error)
                raise CannotRepeatError(f"repeating it failed: {type(error).__name__}: {text_of(error)[:300]}")
            seen.append(execution.numbers())
            found = vote(seen)
            facts = {"outcome": "equal", "executions": len(seen), "compared": found.compared}
            if found.is_equal or found.first is None:
                return facts
            if len(seen) == _EXECUTIONS:
                break
        facts |= {"outcome": "differs", "layer": found.first.layer, "kind": found.first.kind}
        if found.odd is not None:
            facts |= {"outcome": "corrupt", "where": "repetition" if found.odd else "training"}
        return facts

    def _note_failure(self, module: torch.nn.Module, error: Exception) -> None:
        """A repetition raised: that module is not tried again, and without memory none is."""
        self._failing.add(module)
        self._is_off = self._is_off or is_out_of_memory(error)

    def _leave_out(self, reason: str) -> None:
        """This step is not checked; each reason is said once."""
        self._disarm()
        if reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            self._session.note_gap("sdc", f"a step was not repeated: {reason}")

    def _all_names(self, module: torch.nn.Module) -> dict[int, str]:
        """Names of modules and parameters: under the model that is trained, else under the module called."""
        names: dict[int, str] = {}
        roots = [named.root() for watched in self._watch.optimizers.seen() if (named := watched.named).root is not None]
        for root in (*roots, module):
            if root is not None and id(module) not in names:
                found = {**module_names(root), **names_under(root)}
                names |= found if id(module) in found else {}
        return names

    def _charge(self, start_ns: int) -> None:
        """What this took is our cost, not the training's."""
        took_ns = monotonic_ns() - start_ns
        self._watch.layers.spent_ns += took_ns
        iteration = self._watch.local.iteration
        if iteration.mark_ns:
            iteration.mark_ns += took_ns
