"""What was inspected in one process, in the order of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Subject
from stethos.diagnose.training import Training, column_of, texts_of, trainings_of
from stethos.diagnose.window import Window
from stethos.schema import INSPECTIONS
from stethos.store.frame import Array, Frame, is_null
from stethos.store.literal import literal

COLUMNS = frozenset({"process", "rank", "client", "step", *(column.name for column in INSPECTIONS.columns)})
_FIRST_STEPS = 8  # what was seen in one of these has been so from the beginning
_PHASES = ("training", "evaluation", "helper", "evaluation inputs", "call")
NEEDS: Needs = {"inspections": frozenset({"step", "phase"})}


@dataclass(frozen=True, slots=True, eq=False)
class Inspected:
    """The inspections of one process. `training` are those of backwards, `evaluation` those of evaluations.

    `helpers` are models that run beside the trained one, `inputs` the data of evaluations, `calls` odd calls of
    torch's functions.
    """

    process: str
    rank: int | None
    is_federated: bool
    training: Frame
    evaluation: Frame
    helpers: Frame
    inputs: Frame
    calls: Frame
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


def inspected_of(window: Window) -> list[Inspected]:
    """What was inspected, by process; made once per window."""
    return window.derive(_inspected_of)


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
    texts = texts_of(frame, "detail").tolist()
    return [json.loads(text) if text else {} for text in texts]


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
        training, evaluation, helpers, inputs, calls = (mine.where(phase == name) for name in _PHASES)
        found.append(
            Inspected(
                process or "", int(rank[0]) if len(rank) else None, is_federated, training, evaluation, helpers,
                inputs, calls, [one for one in trainings if one.process == (process or "")],
            )
        )  # fmt: skip
    return found
