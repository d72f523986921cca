"""What was inspected in one process, in the order of its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Subject
from stethos.diagnose.training import Training, column_of, texts_of, trainings_of
from stethos.diagnose.window import Window
from stethos.schema import INSPECTIONS
from stethos.store.frame import Array, Frame, is_null, object_in
from stethos.store.literal import literal

COLUMNS = frozenset({"process", "rank", "client", "step", *(column.name for column in INSPECTIONS.columns)})
_GUESSED = 0.6  # the commonest label, by which a guess is told from an answer
_ANSWERS, _EVALUATIONS = 50, 3  # at least
_FIRST_STEPS = 8  # what was seen in one of these has been so from the beginning
_PHASES = ("training", "evaluation", "helper", "evaluation inputs", "call", "evaluation answers")
NEEDS: Needs = {"inspections": frozenset({"step", "phase"})}


@dataclass(frozen=True, slots=True, eq=False)
class Inspected:
    """The inspections of one process. `training` are those of backwards, `evaluation` those of evaluations.

    `helpers` are models that run beside the trained one, `inputs` the data of evaluations, `answers` what the model
    made of them, `calls` odd calls of torch's functions.
    """

    process: str
    rank: int | None
    is_federated: bool
    training: Frame
    evaluation: Frame
    helpers: Frame
    inputs: Frame
    calls: Frame
    answers: Frame
    trainings: list[Training]  # what the steps of this process tell

    def subject(self, first: float | None = None, layers: tuple[str, ...] = ()) -> Subject:
        ranks = () if self.rank is None else (self.rank,)
        step = None if first is None or not np.isfinite(first) else 0 if first < _FIRST_STEPS else int(first)
        return Subject(process=self.process or None, ranks=ranks, layers=layers, first=step, unit="step")

    def evidence(self, text: str, columns: str, phase: str = "training") -> Evidence:
        sql = f"SELECT step, {columns} FROM inspections WHERE phase = '{phase}' AND process = {literal(self.process)}"
        return Evidence(text, sql)

    @property
    def has_learned(self) -> bool:
        """Whether a loss of this process fell by half or more, and, among classes, well below the level of guessing."""
        outputs = known(self.training, "outputs")
        chance = float(np.log(np.median(outputs))) if len(outputs) and np.median(outputs) > 1 else np.inf
        last = [float(np.median(one.losses[-20:])) for one in self.trainings if len(one.losses)]
        return any(one.fall >= 0.5 for one in self.trainings) and min(last, default=np.inf) < 0.6 * chance

    @property
    def is_weighted(self) -> bool:
        """Whether its loss is not the plain mean or sum of a loss function: terms are weighed, as a focal loss does."""
        rows = details(self.training)
        return bool(rows) and not any(row.get("is_alone") for row in rows)

    def has_fixed_place(self, least: float = 0.1) -> bool:
        """Whether all labels ever seen are one number that a bias alone does not learn: the place of the right answer.

        So it is where a pair is told from others (InfoNCE): the right one stands first among the outputs. How hard that
        is depends on the others, so the loss need not fall. `least` is a share of the level of guessing.
        """
        means, outputs = known(self.training, "label_mean"), known(self.training, "outputs")
        if not len(means) or len(set(means.tolist())) > 1 or not (known(self.training, "classes") == 1).all():
            return False
        losses = [training.losses[np.isfinite(training.losses)] for training in self.trainings]
        late = [float(np.median(each[len(each) // 2 :])) for each in losses if len(each) >= 30]
        return bool(late and len(outputs)) and min(late) > least * float(np.log(max(np.median(outputs), 2)))


def inspected_of(window: Window) -> list[Inspected]:
    """What was inspected, by process; made once per window."""
    return window.derive(_inspected_of)


def is_guess(row: dict[str, Any]) -> bool:
    """Whether the answers of an evaluation are no better than always naming the commonest class of several."""
    return bool(row["top_label"] <= _GUESSED and row["hits"] <= 1.15 * row["top_label"])


def are_guesses(one: Inspected) -> bool:
    """Whether that is so of all evaluations of a process."""
    rows = [row for row in details(one.answers) if row.get("answers", 0) >= _ANSWERS]
    return len(rows) >= _EVALUATIONS and all(map(is_guess, rows))


def last_start(trainings: list[Training]) -> float:
    """The step at which the last of several trainings begins, when the others are over; else 0."""
    spans = sorted((float(one.step[0]), float(one.step[-1])) for one in trainings)
    return spans[-1][0] if all(end < spans[-1][0] for _, end in spans[:-1]) else 0.0


def is_usual(one: Inspected, steps: Array, share: float) -> bool:
    """Whether a share of all inspected backwards, or of the last training's, are at these steps."""
    start = last_start(one.trainings)
    every = np.unique(one.training["step"])
    pairs = [(every, np.unique(steps)), *([(every[every >= start], np.unique(steps[steps >= start]))] if start else [])]
    return any(len(seen) >= share * len(looked) and len(seen) > 0 for looked, seen in pairs)


def merge_ranks(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for a mistake that several ranks share: they run the same program."""
    first: dict[str, Finding] = {}
    for one in findings:
        if not one.subject.ranks:
            yield one
            continue
        known_one = first.setdefault(one.kind, one)
        if known_one is not one:
            ranks = tuple(sorted({*known_one.subject.ranks, *one.subject.ranks}))
            subject = replace(known_one.subject, ranks=ranks, process=None)
            first[one.kind] = replace(known_one, subject=subject)
    yield from first.values()


def known(frame: Frame, name: str) -> Array:
    """A numeric column without its NULLs."""
    values = column_of(frame, name)
    return values[~is_null(values)]


def details(frame: Frame) -> list[dict[str, Any]]:
    """The JSON detail of each row; empty where there is none."""
    return [object_in(text) for text in texts_of(frame, "detail").tolist()]


def _inspected_of(window: Window) -> list[Inspected]:
    frame = window.frame("inspections")
    if not len(frame):
        return []
    found = []
    processes = texts_of(frame, "process")
    trainings = trainings_of(window)
    for process in dict.fromkeys(processes.tolist()):
        mine = frame.where(processes == process).sorted_by("step")
        phase, rank = texts_of(mine, "phase"), known(mine, "rank")
        is_federated = any(client is not None for client in texts_of(mine, "client").tolist())
        training, evaluation, helpers, inputs, calls, answers = (mine.where(phase == name) for name in _PHASES)
        found.append(
            Inspected(
                process or "", int(rank[0]) if len(rank) else None, is_federated, training, evaluation, helpers,
                inputs, calls, answers, [one for one in trainings if one.process == (process or "")],
            )
        )  # fmt: skip
    return found
