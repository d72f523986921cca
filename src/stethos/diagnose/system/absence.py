"""What detectors of missing updates share: who was missing how often, alone or with most of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stethos.diagnose.detector import Detector
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Turns, listed, sql_text, turns_of
from stethos.diagnose.window import Array, Window


@dataclass(frozen=True, slots=True)
class Absence:
    """Clients whose updates were missing for one reason, over the rounds from `first` to `last`."""

    clients: tuple[str, ...]
    first: int
    last: int | None
    count: int
    turns: int
    error: str
    is_wide: bool
    evidence: Evidence

    @property
    def share(self) -> float:
        return self.count / max(1, self.turns)

    @property
    def who(self) -> str:
        return f"client {self.clients[0]}" if len(self.clients) == 1 else f"{len(self.clients)} clients"

    @property
    def how_often(self) -> str:
        return f"{self.count} of {self.turns} turns"

    @property
    def confidence(self) -> float:
        return min(0.99, 0.75 + 0.05 * self.count)

    def worse(self, severity: Severity) -> Severity:
        """An error where most clients are concerned, or nothing comes any more."""
        return Severity.ERROR if self.is_wide else severity


class AbsenceDetector(Detector, Protocol):
    """A detector of missing updates: from how many rounds and what share of turns on; `wide` is most of the clients."""

    @property
    def rounds(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def wide(self) -> float: ...


def absent_clients(
    detector: AbsenceDetector, window: Window, is_missing: Callable[[str, str], bool], title: Callable[[Absence], str],
    next_step: str,
) -> Iterator[Finding]:  # fmt: skip
    """The findings of a detector of missing updates; they differ in what counts, and in the words."""
    for turns in turns_of(window):
        for one in absences(turns, is_missing, rounds=detector.rounds, share=detector.share, wide=detector.wide):
            yield Finding(
                detector.code,
                detector.name,
                detector.name,
                one.worse(detector.severity),
                title(one),
                Subject(one.clients, first=one.first, last=one.last),
                confidence=one.confidence,
                evidence=(one.evidence,),
                next_step=next_step,
                detail={"share": one.share, "error": one.error},
                is_open=one.last is None,
            )


def absences(
    turns: Turns, is_missing: Callable[[str, str], bool], *, rounds: int, share: float, wide: float
) -> Iterator[Absence]:
    """Clients missing in at least `rounds` rounds and this share of their turns since; one item where most are.

    `is_missing(status, error)` says which turns count. Where most are missing in the last round one round is enough: it
    may be what ended the training.
    """
    status, error = turns.words("status"), turns.words("error")
    missing = np.array(
        [[_counts(is_missing, s, e) for s, e in zip(*pair, strict=True)] for pair in zip(status, error, strict=True)],
        bool,
    ).reshape(status.shape)
    present = np.asarray(status != None)  # noqa: E711  # elementwise
    hit = [place for place in range(len(status)) if _is_often(missing[place], present[place], rounds, share)]
    last = _missing_last(missing, present, wide)
    if set(hit) <= set(last) and last:
        yield _absence(turns, last, missing, present, error, is_wide=True)
        return
    if len(hit) >= 3 and len(hit) >= wide * len(status):
        yield _absence(turns, hit, missing, present, error, is_wide=True)
        return
    for place in hit:
        yield _absence(turns, [place], missing, present, error, is_wide=False)


def _missing_last(missing: Array, present: Array, wide: float) -> list[int]:
    """The clients missing in the last round, if they are most of those in it: three or more, or all there are."""
    columns = np.flatnonzero(present.any(axis=0))
    if not len(columns):
        return []
    there, gone = present[:, columns[-1]], missing[:, columns[-1]]
    is_wide = gone.sum() >= wide * there.sum() and (gone.sum() >= 3 or gone.sum() == there.sum())
    return np.flatnonzero(gone).tolist() if is_wide and gone.sum() >= min(2, len(missing)) else []


def _counts(is_missing: Callable[[str, str], bool], status: object, error: object) -> bool:
    return isinstance(status, str) and is_missing(status, error if isinstance(error, str) else "")


def _is_often(missing: Array, present: Array, rounds: int, share: float) -> bool:
    if missing.sum() < rounds:
        return False
    since = np.flatnonzero(missing)[0]
    return bool(missing.sum() >= share * present[since:].sum())


def _absence(
    turns: Turns, places: list[int], missing: Array, present: Array, error: Array, *, is_wide: bool
) -> Absence:
    own, there = missing[places], present[places]
    columns = np.flatnonzero(own.any(axis=0))
    while_it_lasted = own[:, columns[0] : columns[-1] + 1].sum() / there[:, columns[0] : columns[-1] + 1].sum()
    quiet = math.ceil(3 / while_it_lasted)  # so many good rounds are no accident
    is_over = not own[:, np.flatnonzero(there.any(axis=0))[-quiet:]].any()
    texts = [str(text) for text in error[places][own].tolist() if text]
    most = max(sorted(set(texts)), key=texts.count) if texts else ""
    names = tuple(turns.clients[place] for place in places)
    first, last = turns.rounds[columns[0]], turns.rounds[columns[-1]]
    among = () if is_wide else (f"client = {sql_text(names[0])}",)
    said = f'; it says "{most[:120]}"' if most else ""
    evidence = Evidence(
        f"{listed(names)}: no update in {int(own.sum())} of {int(there[:, columns[0] :].sum())} turns "
        f"since round {first}{said}",
        "SELECT client, round, status, error FROM client_rounds "
        + turns.where(*among, "status <> 'ok'")
        + "ORDER BY round",
        tuple(float(value) for value in own.mean(axis=0)),
        tuple(float(value) for value in np.delete(missing, places, axis=0).mean(axis=0)) if not is_wide else (),
    )
    count, total = int(own.sum()), int(there[:, columns[0] :].sum())
    return Absence(names, first, last if is_over else None, count, total, most, is_wide, evidence)
