"""What a client's turn shows from inside: the data it trained on, the model's answers to them, and its optimizer's way.

Everything here runs in the client's training thread, through the guard of its session. Nothing is changed and no
random number drawn. Most batches cost nothing: a turn looks at its first ones, and at all of them only while they hold
samples that this client has not shown before.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stethos.federate.batch_rows import BatchRows, repeated_by_chance, rows_of
from stethos.federate.data_sketch import DataSketch
from stethos.federate.loss_batch import Batch, batch_of
from stethos.federate.row import put_row
from stethos.federate.update_check import UpdateCheck, Whose
from stethos.observe import boot
from stethos.observe.context import turn
from stethos.observe.session import Session
from stethos.schema import EVIDENCE
from stethos.turn_facts import packed

Array = npt.NDArray[Any]
_FIRST_BATCHES = 2
_MOST_BATCHES = 64
_MOST_ROWS = 256  # of a batch
_ANSWERED_ROWS = 32  # from so many on the answers are no longer the incoming model's
_MOST_KNOWN = 512  # samples of a client that are recognised
_MOST_CLIENTS = 1024
_MOST_CLASSES = 32
_IN_ORDER, _SURELY = 0.25, 4.0  # neighbours in batches more alike than by chance; standard errors
_SEVERAL = -(1 << 62)  # instead of a label, where equal inputs have several
_KNOWN: OrderedDict[Whose, dict[int, int]] = OrderedDict()  # label by key


class TurnEvidence:
    """Of one turn; made when it begins, written when it ends."""

    def __init__(self, run: str, federation: str, client: str) -> None:
        self._known = _known_of((run, federation, client))
        self._batches = self._rows = self._new = self._odd_batches = 0
        self._labelled: set[int] = set()  # inputs whose label was seen in this turn
        self._changed: set[int] = set()  # those of them that had another label in a turn before
        self._is_settled = False
        self._distinct: list[float] = []
        self._by_chance: list[float] = []  # of what is not distinct
        self._is_negative = False
        self._ordered: list[Array] = []  # labels or targets, batch by batch
        self._is_of_classes = False
        self.samples: Any = None  # as many as the client says that it has
        self._batch = 0  # rows of the first batch
        self._sketch = DataSketch()
        self._answers: list[tuple[Array, Array, Array]] = []
        self._residuals: list[Array] = []
        self._answered = 0
        self._tags = 1  # answers of yes and no that a sample has
        self._last: list[float] = []  # of the last batch: log-probability of its labels, or residual
        self._loss = ""
        self._graph: int | None = None
        self._device = ""
        self.check = UpdateCheck((run, federation, client))

    def before_backward(self, loss: Any) -> None:
        """Look at the batch behind a loss, if this one is looked at."""
        self.check.before_backward(loss)
        if self.check.is_before_last and isinstance(loss, torch.Tensor) and (last := batch_of(loss)) is not None:
            self._note_last(last)
        if self._is_settled:
            return
        self._batches += 1
        if self._batches > _MOST_BATCHES or not isinstance(loss, torch.Tensor):
            self._is_settled = True
            return
        batch = batch_of(loss)
        if batch is None:
            self._is_settled = self._batches >= _FIRST_BATCHES
            return
        self._loss = self._loss or batch.loss
        if self._graph is None:
            self._graph, self._device = batch.graph, loss.device.type
        if self._batches == 1 and loss.numel() == 1 and batch.target is not None and batch.target != "residuals":
            self._is_negative = float(loss.detach()) < 0  # none of these losses is
        self._note_answers(batch)
        rows = rows_of(batch, _MOST_ROWS)
        if rows is None:
            self._is_settled = self._batches >= _FIRST_BATCHES
        else:
            self._note_rows(rows)

    def _note_rows(self, rows: BatchRows) -> None:
        known, keys = self._known, rows.keys.tolist()
        was_full = len(known) >= _MOST_KNOWN
        labels = rows.labels.tolist() if rows.labels is not None else [0] * len(keys)
        if rows.values is not None:
            labels = [hash(value) for value in np.round(rows.values[:, 0], 6).tolist()]
        is_new = np.zeros(len(keys), bool)
        for place, (key, label) in enumerate(zip(keys, labels, strict=True)):
            before = known.get(key)
            if before is None:
                is_new[place] = True
                if len(known) < _MOST_KNOWN:
                    known[key] = label
                    self._labelled.add(key)
            elif before == _SEVERAL:
                continue
            elif before != label:
                if key in self._labelled:  # in this turn: equal inputs have several labels
                    known[key] = _SEVERAL
                    self._changed.discard(key)
                    continue
                is_new[place] = True
                self._changed.add(key)
                known[key] = label
            self._labelled.add(key)
        self._batch = self._batch or len(keys)
        self._rows += len(keys)
        self._new += int(is_new.sum())
        self._note_order(rows)
        self._odd_batches += rows.odd_share > 0
        if len(keys) > 1:
            different = len(set(keys))
            self._distinct.append((different - 1) / (len(keys) - 1))
            self._by_chance.append(repeated_by_chance(rows) if different < len(keys) else 0.0)
        if not was_full or self._changed:
            self._sketch.add(rows, is_new)
        self._is_settled = self._batches >= _FIRST_BATCHES and (was_full or not is_new.any())

    def _note_order(self, rows: BatchRows) -> None:
        """Targets of neighbours in a batch: rows in the order of a file have equal ones."""
        if rows.labels is not None and len(rows.labels) > 1:
            self._ordered.append(rows.labels.astype(np.float64))
            self._is_of_classes = True
        elif rows.values is not None and len(rows.values) > 1:
            self._ordered.append(rows.values[:, 0])

    def _order(self) -> float:
        """How much more alike than any two samples those that follow each other are; 1: quite alike, 0: by chance."""
        pairs = sum(len(one) - 1 for one in self._ordered)
        steps = np.concatenate([np.diff(one) for one in self._ordered])
        if self._is_of_classes:
            labels = [one for one in self._known.values() if one != _SEVERAL]
            shares = np.unique(labels, return_counts=True)[1] / max(len(labels), 1)
            by_chance, found = 1 - float((shares**2).sum()), float((steps != 0).mean())
        else:
            by_chance, found = 2 * float(np.concatenate(self._ordered).var()), float((steps**2).mean())
        if by_chance <= 0 or not math.isfinite(by_chance):
            return 0.0
        spread = (1 - by_chance) / by_chance if self._is_of_classes else 1.0
        order = 1 - found / by_chance
        return order if order > max(_IN_ORDER, _SURELY * math.sqrt(spread / max(pairs, 1))) else 0.0

    def _note_answers(self, batch: Batch) -> None:
        """The incoming model's answers to the first batches."""
        if self._answered >= _ANSWERED_ROWS or batch.labels is None or batch.labels.shape[0] != batch.rows:
            return
        if (apart := _residuals(batch)) is not None:
            self._residuals.append(apart)
        elif (answers := _answers(batch)) is not None:
            self._answers.append(answers)
            self._tags = _several_answers(batch)
        elif batch.answers is None:
            return
        self._answered += batch.rows

    def _note_last(self, batch: Batch) -> None:
        """How well the model answers before the turn's last step."""
        if batch.labels is None or batch.labels.shape[0] != batch.rows:
            return
        if (apart := _residuals(batch)) is not None:
            self._last = [-float(np.abs(apart).mean())]
        elif (answers := _answers(batch)) is not None:
            self._last = [float(np.clip(answers[2], -20, 0).mean())]

    def write(self, session: Session, federation: str, client: str, number: int, t_ns: int) -> None:
        """Rows of `evidence`: one for the turn, one for samples that were new."""
        known = self.facts()
        self._known.update(dict.fromkeys(self._changed, _SEVERAL))  # that its label changed is said once
        if known:
            text = json.dumps(packed(known), separators=(",", ":"))
            values = {"federation": federation, "kind": "turn", "value": text}
            put_row(session, EVIDENCE, values, client=client, round=number, t_ns=t_ns)
        if self._sketch.rows:
            values = {"federation": federation, "kind": "data", "value": self._sketch.text()}
            if not put_row(session, EVIDENCE, values, client=client, round=number, t_ns=t_ns):
                self._known.clear()  # dropped: its next turn shows them again

    def facts(self) -> dict[str, Any]:
        """What is known of the turn, as short as it can be said."""
        known: dict[str, Any] = self.check.facts()
        if self._loss and (self._new or not self._rows):
            known["loss"] = self._loss
        if self._graph is not None and (self._new or not self._rows):
            known["graph"] = self._graph
            if self._device != "cpu":
                known["device"] = self._device
        if self._rows:
            known |= {"rows": self._rows, "new": self._new} | ({"batch": self._batch} if self._new else {})
            if self._changed:
                known["relabelled"] = len(self._changed)
            if self._odd_batches:
                known["odd_batches"] = self._odd_batches
            if self._distinct:
                known["distinct"] = round(float(np.mean(self._distinct)), 3)
                if (chance := round(float(np.mean(self._by_chance)), 3)) > 0:
                    known["by_chance"] = chance
        if self._ordered and (order := round(self._order(), 2)) > 0:
            known["in_order"] = order
        if self._answers:
            labels, said, own = (np.concatenate(parts) for parts in zip(*self._answers, strict=True))
            is_known = (labels >= 0) & (labels < _MOST_CLASSES)
            pairs = np.stack([labels[is_known], said[is_known]], 1)
            cells, counts = np.unique(pairs, axis=0, return_counts=True)
            known["answers"] = np.column_stack([cells, counts]).reshape(-1).tolist()
            if self._tags > 1 and self._new:
                known["tags"] = self._tags
            known["log_p"] = _short(float(np.clip(own, -20, 0).mean()))
        if self._residuals and len({one.shape[1] for one in self._residuals}) == 1:
            apart = np.concatenate(self._residuals)
            known["residual"] = [_short(float(np.abs(apart).mean())), _short(float(apart.mean())), len(apart)]
        if self._new and isinstance(self.samples, int | float) and math.isfinite(self.samples):
            known["samples"] = self.samples
        if self._is_negative:
            known["negative"] = 1
        if self._last:
            known["log_p_last"] = _short(self._last[0])
        return known


def _residuals(batch: Batch) -> Array | None:
    """What a regression's answers are off by."""
    assert batch.labels is not None
    labels, answers = batch.labels[:_MOST_ROWS], batch.answers
    if batch.target == "residuals":
        return labels.reshape(len(labels), -1).to(torch.float64).cpu().numpy()
    if batch.target == "values" and answers is not None and answers.shape == batch.labels.shape:
        return (answers[:_MOST_ROWS] - labels).reshape(len(labels), -1).to(torch.float64).cpu().numpy()
    return None


def _several_answers(batch: Batch) -> int:
    """How many answers of yes and no a sample has, if each is told apart: two classes for each; else one."""
    several = batch.labels.numel() // max(batch.rows, 1) if batch.labels is not None and batch.target == "binary" else 1
    return several if 1 < several <= _MOST_CLASSES // 2 else 1


def _answers(batch: Batch) -> tuple[Array, Array, Array] | None:
    """Labels, what the model says instead, and the log-probability that it gives the labels."""
    assert batch.labels is not None
    labels, answers = batch.labels[:_MOST_ROWS], batch.answers
    if answers is None:
        return None
    if batch.target == "classes" and answers.dim() == 2 and answers.shape[1] <= _MOST_CLASSES:
        shown = answers[:_MOST_ROWS].detach()
        own = shown.gather(1, labels.reshape(-1, 1).clamp(0, shown.shape[1] - 1))[:, 0]
        return labels.reshape(-1).cpu().numpy(), shown.argmax(1).cpu().numpy(), own.cpu().numpy()
    if batch.target == "binary" and answers.numel() == labels.numel():
        said = answers[:_MOST_ROWS].reshape(-1)
        is_logit = bool(((said < 0) | (said > 1)).any())
        yes = torch.sigmoid(said) if is_logit else said
        goal = labels.reshape(-1) > 0
        own = torch.where(goal, yes, 1 - yes).clamp_min(1e-6).log()
        several = _several_answers(batch)
        first = torch.arange(len(goal), device=goal.device) % several * 2
        return (first + goal).cpu().numpy(), (first + (yes > 0.5)).cpu().numpy(), own.cpu().numpy()
    return None


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _known_of(whose: Whose) -> dict[int, int]:
    known = _KNOWN.setdefault(whose, {})
    _KNOWN.move_to_end(whose)
    while len(_KNOWN) > _MOST_CLIENTS:
        _KNOWN.popitem(last=False)
    return known


# Where torch calls us --------------------------------------------------------------------------------


def watch_turns(session: Session) -> None:
    """From now on, until the session ends, turns see their batches and optimizer steps. Once per session is enough."""
    if session.sees_turns:
        return
    session.sees_turns = True
    original, grad = torch.autograd.backward, torch.autograd.grad
    guard = session.guard

    def looked(tensors: Any) -> None:
        tally = turn()[2]
        if tally is not None and tally.evidence is not None:
            loss = tensors[0] if isinstance(tensors, tuple | list) and tensors else tensors
            guard.run("evidence", tally.evidence.before_backward, loss)

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        looked(tensors)
        original(tensors, *args, **kwargs)
        tally = turn()[2]
        if tally is not None and tally.evidence is not None:
            guard.run("evidence", tally.evidence.check.after_backward)

    def gradients(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        looked(outputs)
        return grad(outputs, *args, **kwargs)

    def step_begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        tally = turn()[2]
        if tally is not None and tally.evidence is not None:
            guard.run("evidence", tally.evidence.check.before_step, optimizer)

    def step_ended(optimizer: Any, args: Any, kwargs: Any) -> None:
        tally = turn()[2]
        if tally is not None and tally.evidence is not None:
            guard.run("evidence", tally.evidence.check.after_step, optimizer)

    torch.autograd.backward, torch.autograd.grad = backward, gradients
    before = register_optimizer_step_pre_hook(step_begins)
    after = register_optimizer_step_post_hook(step_ended)

    def stop() -> None:
        before.remove()
        after.remove()
        if torch.autograd.backward is backward:
            torch.autograd.backward = original
        if torch.autograd.grad is gradients:
            torch.autograd.grad = grad

    session.on_close.insert(0, stop)


def begin_turn(federation: str, client: str) -> TurnEvidence | None:
    """The evidence of a turn that begins; None where nothing is recorded."""
    session = boot.current_session()
    if session is None or session.settings.preset == "light":
        return None
    session.guard.run("evidence", watch_turns, session)
    return TurnEvidence(str(session.settings.run_dir), federation, client)
