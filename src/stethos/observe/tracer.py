"""Decides which iterations are traced module by module, and records what the trace saw."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from stethos.clock import monotonic_ns
from stethos.observe.budget import SampleBudget
from stethos.observe.context import turn
from stethos.observe.device_statistic import LateTable
from stethos.observe.late_row import LAST_WAIT_S, alone
from stethos.observe.layer_name import module_names
from stethos.observe.memory_sample import MemorySampler
from stethos.observe.memory_trace import Place
from stethos.observe.module_trace import ModuleSpan, ModuleTrace
from stethos.observe.session import Session
from stethos.observe.statistic import STATISTICS
from stethos.schema import LAYERS, MODULES, NULL_F64, NULL_I64, Kind

if TYPE_CHECKING:
    from stethos.observe.iteration import Iteration
    from stethos.observe.optimizers import Watched

_HOOK_NS = 2500  # what torch spends per module call to reach our hooks, and to run the node hooks; the pace adds to it
_START_NS = 20_000
_TURNS = 4  # of so many traces one is of memory, where both can be paid for
_OPERATOR_NS = 10_000  # what the dispatch mode costs an operator, beside looking at its results
_LAYER_NUMBERS = len(LAYERS.of_kind(Kind.I64, Kind.F64))


class ModuleTracer:
    """At most one iteration of one thread is traced at a time, when the budget has saved up for it."""

    def __init__(self, session: Session, sample_budget: SampleBudget | None, memory: MemorySampler) -> None:
        self._session = session
        self._sample_budget = sample_budget
        self.memory = memory
        self._traces = 0
        self._trace = ModuleTrace(
            lambda callback: session.guard.wrap("modules", callback),
            activations=session.settings.preset == "deep",
        )
        self._trace.on_overrun = memory.stop
        self._thread = 0
        self._owner: threading.Thread | None = None
        self.is_on = False  # asked at every step
        self.is_refused = sample_budget is None
        self.spent_ns = 0
        self.peak_bytes = NULL_I64
        self._late: deque[tuple[LateTable, Callable[[], None]]] = deque()
        self._flushing = threading.Lock()
        self._beginning = threading.Lock()

    def refuse(self, reason: str) -> None:
        """Never trace in this process, and say why in the run."""
        if not self.is_refused:
            self.is_refused = True
            self.stop()
            self._session.note_gap("modules", reason)

    def backward_begins(self) -> None:
        if self._thread == threading.get_ident():
            self._trace.in_backward = True
            self.memory.backward_begins()

    def backward_ended(self) -> None:
        if self._thread == threading.get_ident():
            self._trace.backward_ended()
            self._trace.in_backward = False

    def is_tracing(self) -> bool:
        """Whether this thread is the one that is traced."""
        return self.is_on and self._thread == threading.get_ident()

    def flush(self) -> None:
        """Record the activations that have come from a device; where another thread is at it, leave it to that one."""
        with alone(self._flushing) as is_alone:
            while is_alone and self._late and self._late[0][0].is_there():
                late, write = self._late.popleft()
                late.read()
                write()

    def finish(self) -> None:
        """Recording ends: wait a moment for what is still on its way."""
        self.stop()
        deadline = time.monotonic() + LAST_WAIT_S
        while self._late and time.monotonic() < deadline:
            self.flush()
            time.sleep(0.001)
        self._late.clear()

    def step_ended(self, watched: Watched, iteration: Iteration, optimizer_ns: int, step: int) -> None:
        """Finish the trace of the iteration that ends here, or begin one for the next."""
        self.flush()
        if self._owner is not None and not self._owner.is_alive():
            self.stop()
        if self._thread:
            if self._thread == threading.get_ident():
                self._finish(watched, iteration, optimizer_ns, step)
        elif not self.is_refused:
            with alone(self._beginning) as is_alone:
                if is_alone and not self._thread:
                    self._begin(watched, iteration)

    def _begin(self, watched: Watched, iteration: Iteration) -> None:
        """Trace the next iteration for times or, in turns, for memory: tracing operators makes the times worthless."""
        sample_budget, memory = self._sample_budget, self.memory.sample_budget
        is_modules = sample_budget is not None and sample_budget.can_afford()
        is_memory = self.memory.can_begin() and (self._traces % _TURNS == 1 or not is_modules)
        chosen = memory if is_memory else sample_budget if is_modules else None
        if chosen is None:
            return
        if not self._trace.start(max(watched.allocated_bytes, 0)):
            self.refuse("torch.compile is in use: module hooks would change its graphs")
            return
        self._traces += 1
        self._thread = threading.get_ident()
        self._owner = threading.current_thread()
        self.is_on = True
        iteration.pace.note(chosen)
        if is_memory:
            self.memory.begin(functools.partial(_place_in, iteration, self._trace))

    def stop(self) -> None:
        """End the trace; what it saw is given up."""
        self._unhook()
        self._thread = 0
        self._owner = None

    def _unhook(self) -> None:
        """Take the hooks away. The trace stays this thread's own: another one's would begin by emptying it."""
        self.memory.stop()
        self.is_on = False
        self._trace.stop()

    def _finish(self, watched: Watched, iteration: Iteration, optimizer_ns: int, step: int) -> None:
        try:
            if self.memory.is_on:
                self._finish_memory(watched, iteration, step)
            else:
                self._finish_modules(watched, iteration, optimizer_ns, step)
        finally:
            self.stop()

    def _finish_modules(self, watched: Watched, iteration: Iteration, optimizer_ns: int, step: int) -> None:
        began_ns = monotonic_ns()
        self._unhook()
        names = self._names(watched)
        spans = self._trace.take(names)
        self._record(spans, optimizer_ns, watched, step)
        if self._session.settings.preset == "deep":
            self._record_activations(*self._trace.take_activations(names), watched, step)
        clocked_ns = self._trace.own_ns + _START_NS + _HOOK_NS * len(spans) + monotonic_ns() - began_ns
        if self._sample_budget is not None:
            self.spent_ns += self._sample_budget.pay(clocked_ns)
            iteration.pace.note_price(clocked_ns)

    def _finish_memory(self, watched: Watched, iteration: Iteration, step: int) -> None:
        began_ns = monotonic_ns()
        self.memory.end(watched, step, self._names(watched))
        operators_ns = self.memory.own_ns + _OPERATOR_NS * self.memory.calls
        self._unhook()
        self._trace.take()
        clocked_ns = self._trace.own_ns + _START_NS + operators_ns + monotonic_ns() - began_ns
        if self.memory.sample_budget is not None:
            self.spent_ns += self.memory.sample_budget.pay(clocked_ns)
            iteration.pace.note_price(clocked_ns)

    def _names(self, watched: Watched) -> dict[int, str]:
        """Module names: under the model that owns the parameters, else under the outermost module called first.

        Those of other models in the same step, as a GAN has, begin with their class.
        """
        root = watched.named.root() if watched.named.root is not None else None
        names: dict[int, str] = {}
        for module in filter(None, (root, *(top() for top in self._trace.tops))):
            if id(module) not in names:
                found = module_names(module)
                top, prefix = found[id(module)], f"{found[id(module)]}." if names else ""
                names |= {one: prefix + name for one, name in found.items() if one not in names}
                names[id(module)] = top
        return names

    def _record(self, spans: list[ModuleSpan], optimizer_ns: int, watched: Watched, step: int) -> None:
        name_id = self._session.name_id
        alive = [span.alive_bytes for span in spans if span.alive_bytes is not None]
        after = alive[-1] if alive else watched.allocated_bytes
        self.peak_bytes = max([self.peak_bytes, *alive])
        modules = [name_id(span.module) for span in spans] + [name_id(watched.named.model or "optimizer")]
        stages = [name_id(span.stage) for span in spans] + [name_id("step")]
        rows = len(modules)
        numbers = np.full((3, rows), NULL_F64)
        numbers[0] = [span.duration_ns * 1e-6 for span in spans] + [optimizer_ns * 1e-6]
        for index, span in enumerate(spans):
            if span.allocated_bytes is not None:
                numbers[1, index] = span.allocated_bytes
            if span.alive_bytes is not None:
                numbers[2, index] = span.alive_bytes
        if after != NULL_I64:
            numbers[2, -1] = after
        self._session.put_frame(
            MODULES.number,
            np.array([modules, stages], dtype=np.int32).tobytes(),
            numbers.tobytes(),
            rows=rows,
            optimizer=watched.number,
            step=step,
        )

    def _record_activations(self, modules: list[str], late: LateTable, watched: Watched, step: int) -> None:
        if not modules:
            return
        ids = [self._session.name_id(module) for module in modules]
        kinds = [self._session.name_id("activation")] * len(modules)
        number, whose, t_ns = watched.number, turn()[:2], self._session.now_ns()

        def write() -> None:
            numbers = np.full((_LAYER_NUMBERS, len(modules)), NULL_F64)
            numbers[: len(STATISTICS)] = late.table
            self._session.put_frame(
                LAYERS.number,
                np.array([ids, kinds], dtype=np.int32).tobytes(),
                numbers.tobytes(),
                rows=len(modules),
                optimizer=number,
                step=step,
                whose=whose,
                t_ns=t_ns,
            )

        self._late.append((late, write))
        self.flush()


def _place_in(iteration: Iteration, trace: ModuleTrace) -> Place:
    """Where in its iteration a thread is."""
    if iteration.in_backward:
        return "backward"
    return "optimizer" if iteration.depth else trace.innermost
