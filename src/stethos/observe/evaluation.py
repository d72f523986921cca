"""Sees evaluations: the model runs inside a `no_grad` block of the program, and perhaps a loss is computed there.

Only while such a block is open are loss functions and dropout wrapped, and is a hook on modules there. A place in the
program whose blocks never hold a forward pass, such as an update of weights by hand, is left alone after a few times.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from stethos.observe.answers import AnswerTally, is_telling, is_zero_or_one
from stethos.observe.batch_print import is_readable, print_of
from stethos.observe.helper_model import HelperModels
from stethos.observe.inspection_row import put_inspection
from stethos.observe.labels_near import labels_near
from stethos.observe.mode_facts import mode_details, mode_facts

if TYPE_CHECKING:
    from stethos.observe.inspection import Inspector
    from stethos.observe.session import Session

_TORCH = str(Path(torch.__file__).parent)
_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
_NAME = "eval_loss (seen)"
_MOST_LOSSES = 10_000  # of one evaluation
_FRUITLESS = 4
_PAUSE = 16  # steps, at least, until a fruitless place is looked at again
_MOST_ROWS = 96  # about helpers and inputs of evaluations
_CLASSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits")


class Evaluations:
    """Watches blocks without gradients, on the main thread, from the first optimizer step on."""

    def __init__(self, session: Session, inspector: Inspector) -> None:
        self.session = session
        self._inspector = inspector
        self._undo: list[Callable[[], object]] = []
        self.opened: Any = None  # the block that is being watched
        self._place: tuple[object, int] = (None, 0)
        self._fruitless: dict[tuple[object, int], int] = {}
        self._again_at: dict[tuple[object, int], int] = {}  # the step at which a fruitless place is looked at again
        self._helpers = HelperModels()
        self._parts: set[int] = set()  # ids of the model that runs, and of its modules
        self._noted: set[tuple[str, int]] = set()  # of the block that is open
        self._rows = self._helpers_seen = 0
        self._inputs_at = 0  # the step at which inputs are looked at next: ever more seldom
        self._losses: list[float] = []
        self._at = 0  # the step of these losses
        self._answers: AnswerTally | None = None
        self._given = 0  # where in memory the model's last input lies
        self._has_loss = False  # whether evaluations compute a loss, which is given the labels
        self._root_ids: set[int] = set()
        self._answers_at = 0  # the step at which answers are counted next: ever more seldom
        self.functional_dropouts = 0
        self.is_off = False  # compiled code must not meet our hooks

    def entered(self, block: object) -> None:
        """The program switches gradients off."""
        is_elsewhere = threading.get_ident() != threading.main_thread().ident
        if self.opened is not None or not self.session.steps or is_elsewhere or self.is_off:
            return
        frame: FrameType | None = sys._getframe(3)
        if frame is not None and frame.f_code.co_name == "decorate_context":
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(_TORCH):
            return
        place = frame.f_code, frame.f_lineno
        if self._fruitless.get(place, 0) >= _FRUITLESS:
            if self.session.steps < self._again_at.setdefault(place, 2 * self.session.steps + _PAUSE):
                return
            self._again_at[place] = 2 * self.session.steps + _PAUSE
        if self._at != self.session.steps:
            self.flush()
            self._at = self.session.steps
        self.opened, self._place = block, place
        self._fruitless[place] = self._fruitless.get(place, 0) + 1
        self._parts, self._noted = set(), set()
        self._wrap()

    def left(self, block: object) -> None:
        if self.opened is block:
            self.opened = None
            while self._undo:
                self._undo.pop()()

    def flush(self) -> None:
        """Write the mean loss of the last evaluation."""
        if self._losses:
            self.session.put_metric(_NAME, sum(self._losses) / len(self._losses), self._at)
            self._losses = []
        facts = self._answers.facts() if self._answers is not None else {}
        self._answers = None
        if facts:
            put_inspection(self.session, {"phase": "evaluation answers", "detail": facts | {"at": self._at}}, [])

    def _wrap(self) -> None:
        for name in _LOSSES:
            self._replace(name, functools.partial(self._seen_loss, name))
        self._replace("dropout", self._seen_dropout)
        handle = torch.nn.modules.module.register_module_forward_pre_hook(
            lambda module, inputs: self.session.guard.run("evaluation", self._note_forward, module, inputs)
        )
        self._undo.append(handle.remove)
        if self._at >= self._answers_at or self._answers is not None:
            self._root_ids = {id(root) for root in self._inspector.roots()}
            outer = torch.nn.modules.module.register_module_forward_hook(
                lambda module, inputs, outputs: (
                    self.session.guard.run("evaluation", self._note_answers, inputs, outputs)
                    if id(module) in self._root_ids
                    else None
                )
            )
            self._undo.append(outer.remove)

    @np.errstate(all="ignore")
    def _note_answers(self, inputs: Any, outputs: Any) -> None:
        """A trained model has answered without gradients: if no loss function is given its answers, look for labels."""
        given = inputs[0] if inputs else None
        self._given = given.data_ptr() if isinstance(given, torch.Tensor) and is_readable(given) else 0
        if torch.is_grad_enabled() or not isinstance(given, torch.Tensor) or not given.dim():
            return
        if not isinstance(outputs, torch.Tensor) or not is_readable(outputs) or not outputs.dim():
            return
        is_full = self._answers is not None and self._answers.is_full
        if self._has_loss or is_full or not outputs.is_floating_point() or len(outputs) != len(given):
            return
        classes = self._inspector.check.answer_size
        if classes and classes not in outputs.shape[1:]:
            return  # a layer in between, where the parts of a model are modules of their own
        labels = labels_near(given, outputs)
        if labels is not None:
            answers = self._tally()
            if labels.is_floating_point() and not is_zero_or_one(labels):
                answers.note_numbers(outputs, labels)
            else:
                answers.note(outputs, labels, False, self._inspector.check.ignored)

    def _tally(self) -> AnswerTally:
        if self._answers is None:
            self._answers, self._answers_at = AnswerTally(), self._at + 1 + self._at // 8
        return self._answers

    def _replace(self, name: str, note: Callable[..., None]) -> None:
        original = getattr(functional, name)
        run = self.session.guard.run

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            run("evaluation", note, result, args, kwargs)
            return result

        setattr(functional, name, wrapper)

        def restore() -> None:
            if getattr(functional, name) is wrapper:
                setattr(functional, name, original)

        self._undo.append(restore)

    @np.errstate(all="ignore")
    def _note_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        """A forward pass begins: of what is trained note its mode, once per evaluation, and what it is given."""
        if torch.is_grad_enabled():
            return
        inspector = self._inspector
        is_trained = inspector.is_trained(module)
        if is_trained:
            self._fruitless[self._place] = 0
            inspector.evaluating()
        if not is_trained and id(module) not in self._parts and self._helpers_seen < _MOST_ROWS:
            self._helpers_seen += 1
            self._parts = set(map(id, module.modules()))
            self._note_helper(module)
        weight = getattr(module, "weight", None)
        if weight is not None and id(weight) == inspector.check.first_weight and inputs:
            self._note_inputs(inputs[0])

    def _note_helper(self, module: torch.nn.Module) -> None:
        """A row for a model that runs beside the one that is trained, once per block."""
        inspector = self._inspector
        if ("helper", id(module)) in self._noted or self._rows >= _MOST_ROWS or inspector.holds_trained(module):
            return
        self._noted.add(("helper", id(module)))
        detail = self._helpers.facts(module, inspector.roots())
        if detail is not None and detail["parameters"]:
            self._rows += 1
            facts = {"phase": "helper", **mode_facts([module]), "detail": detail | mode_details([module])}
            put_inspection(self.session, facts, [])

    def _note_inputs(self, inputs: Any) -> None:
        """A row for the data of an evaluation, as the first layer gets them; at most once per step."""
        steps = self.session.steps
        if steps < self._inputs_at or self._rows >= _MOST_ROWS or not isinstance(inputs, torch.Tensor):
            return
        self._inputs_at = steps + 1 + steps // 8
        self._rows += 1
        taken = print_of(inputs)._asdict() if inputs.is_floating_point() else {}
        facts: dict[str, Any] = {f"input_{key}": value for key, value in taken.items()}
        detail = self._inspector.check.rows.overlap(inputs) | {"shape": list(inputs.shape)}
        put_inspection(self.session, {"phase": "evaluation inputs", **facts, "detail": detail}, [])

    @np.errstate(all="ignore")
    def _seen_loss(self, name: str, result: Any, args: Any, kwargs: Any) -> None:
        is_number = type(result) is torch.Tensor and result.numel() == 1 and is_readable(result)
        is_wanted = len(self._losses) < _MOST_LOSSES and not torch.is_grad_enabled()
        if not is_number or not is_wanted or not self._inspector.is_evaluated():
            return
        outputs = args[0] if args else kwargs.get("input")
        labels = args[1] if len(args) > 1 else kwargs.get("target")
        is_sum = kwargs.get("reduction") == "sum" and isinstance(labels, torch.Tensor) and labels.numel()
        self._losses.append(float(result) / (labels.numel() if is_sum else 1))
        is_table = isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)
        if is_table and (self._answers is not None or self._at >= self._answers_at):
            if not self._has_loss:
                self._has_loss, self._answers = True, None
            if name in _CLASSES:
                ignored = kwargs.get("ignore_index", self._inspector.check.ignored)
                self._tally().note(outputs, labels, self._is_trained_on(labels), ignored)
                return
            are_numbers = outputs.shape == labels.shape and is_readable(outputs) and is_readable(labels)
            if are_numbers and labels.numel() and labels.data_ptr() != self._given:  # an anomaly is not to be rebuilt
                self._tally().note_numbers(outputs, labels)

    def _is_trained_on(self, labels: Any) -> bool:
        """Whether these are the labels, one by one, of a batch that was trained on."""
        return (
            isinstance(labels, torch.Tensor)
            and is_telling(labels)
            and print_of(labels).hash in self._inspector.check.labels
        )

    def _seen_dropout(self, result: Any, args: Any, kwargs: Any) -> None:
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        is_on = kwargs.get("training", args[2] if len(args) > 2 else True)
        if is_on and share > 0 and not torch.is_grad_enabled() and self._inspector.is_evaluated():
            self.functional_dropouts += 1


def wrap_enter(watch: Evaluations, original: Callable[..., Any]) -> Callable[..., Any]:
    run = watch.session.guard.run

    def enter(block: Any) -> Any:
        run(
            "evaluation", watch.entered, block
        )  # first: what comes out of it, as Ctrl-C does, finds gradients as they were
        return original(block)

    return enter


def wrap_exit(watch: Evaluations, original: Callable[..., Any]) -> Callable[..., Any]:
    run = watch.session.guard.run

    def leave(block: Any, *error: Any) -> Any:
        try:
            if watch.opened is block:
                run("evaluation", watch.left, block)
        finally:  # gradients come back, whatever happens
            result = original(block, *error)
        return result

    return leave
