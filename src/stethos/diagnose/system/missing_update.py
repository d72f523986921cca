"""SYS017: clients from which no update comes, with the reason named."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import Turns, listed, turns_of
from stethos.diagnose.window import Window
from stethos.store.frame import Array, is_known
from stethos.store.literal import literal

_LINK = re.compile(
    r"connect(?:ion)?(?: |\w*error)|unreachable|broken ?pipe|econn|etimedout|\bsockets?\b|\bssl\b|"
    r"\btls\b|certificate|handshake|name or service|getaddrinfo|\bdns\b|grpc|\brpc\b|(?:service|code\.?) ?unavail|"
    r"deadline.?exceeded|network is|network err|no route to host|incompleteread|remote end closed|bad gateway|"
    r"(?:http|status|code)\D{0,6}50[234]",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Absence:
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
    def who(self) -> str:
        return f"client {self.clients[0]}" if len(self.clients) == 1 else f"{len(self.clients)} clients"

    @property
    def how_often(self) -> str:
        return f"{self.count} of {self.turns} turns"


def _lost_connection(one: _Absence) -> str:
    if one.is_wide:
        return f"{len(one.clients)} clients, so most of them, lose the connection in {one.how_often}: {one.error[:60]}"
    return f"the connection of {one.who} failed in {one.how_often}: {one.error[:60]}"


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which turns count, by status and error; the title of the finding; what to do."""

    is_missing: Callable[[str, str], bool]
    title: Callable[[_Absence], str]
    next_step: str


_KINDS = {
    "dropout": _Kind(
        lambda status, error: status == "dropped" and not _LINK.search(error),
        lambda one: f"{one.who} dropped out in {one.how_often}",
        "check that it is up and can reach the server; leave it out of the selection until it is",
    ),
    "timeout": _Kind(
        lambda status, error: status == "timeout",
        lambda one: f"{one.who} missed the deadline in {one.how_often}",
        "compare its times with the others'; raise the deadline, or give it fewer steps",
    ),
    "failure": _Kind(
        lambda status, error: status == "failed" and not _LINK.search(error),
        lambda one: f"{one.who} failed in {one.how_often}" + (f": {one.error[:80]}" if one.error else ""),
        "read the traceback: SELECT traceback FROM client_rounds WHERE status = 'failed' LIMIT 1",
    ),
    "communication": _Kind(
        lambda status, error: status != "ok" and bool(_LINK.search(error)),
        _lost_connection,
        "try the connection from the client's machine; check firewall and certificate",
    ),
}


@dataclass(frozen=True, slots=True)
class MissingUpdate:
    """A client is asked to take part but repeatedly sends no update; the kind of the finding says why.

    What it looks at: client turns that did not succeed, as a share of the client's turns since the first one. The kinds
    are `dropout` (no reply), `timeout` (the deadline was missed), `failure` (the local training raised an exception),
    and `communication`: the error is about the link, such as a refused or reset connection, name resolution, TLS,
    gRPC's UNAVAILABLE and DEADLINE_EXCEEDED, a broken pipe.

    Why it matters: the client's data are missing from the model. If the clients that stay away have something in common
    (old phones, one hospital), the model is biased against them. A client that misses the deadline works for nothing
    while the round waits; an exception does not go away by itself; where most clients lose the connection, the server
    or its network is to blame, and the finding is an error.

    Not a fault when: clients come and go by design, as phones do, or the deadline is tight on purpose. Raise `share`,
    or silence the detector.

    Next step: for a failure read the traceback, which is recorded beside the error. For a timeout compare the client's
    times with the others'. Otherwise check that the client is up, and try the connection from its machine.
    """

    code: ClassVar[str] = "SYS017"
    name: ClassVar[str] = "missing-update"
    severity: ClassVar[Severity] = Severity.WARNING
    needs: ClassVar[Needs] = {"client_rounds": frozenset({"client", "round", "status"})}
    reads: ClassVar[Needs] = {"client_rounds": frozenset({"federation", "t_ns", "error"})}
    explains: ClassVar[frozenset[str]] = frozenset()
    kinds: ClassVar[tuple[str, ...]] = tuple(_KINDS)

    rounds: int = threshold(2, "rounds without an update")
    share: float = threshold(0.2, "share of the rounds in which it was asked")
    wide: float = threshold(0.5, "share of the clients from which on all are named together")

    def check(self, window: Window) -> Iterator[Finding]:
        for turns in turns_of(window):
            for name in self.kinds:
                kind = _KINDS[name]
                for one in _absences(turns, kind.is_missing, rounds=self.rounds, share=self.share, wide=self.wide):
                    yield Finding(
                        self.code,
                        self.name,
                        name,
                        Severity.ERROR if one.is_wide else self.severity,
                        kind.title(one),
                        Subject(one.clients, first=one.first, last=one.last),
                        confidence=min(0.99, 0.75 + 0.05 * one.count),
                        evidence=(one.evidence,),
                        next_step=kind.next_step,
                        detail={"share": one.count / max(1, one.turns), "error": one.error},
                        is_open=one.last is None,
                    )


def _absences(
    turns: Turns, is_missing: Callable[[str, str], bool], *, rounds: int, share: float, wide: float
) -> Iterator[_Absence]:
    """Clients missing in at least `rounds` rounds and this share of their turns since; one item where most are.

    `is_missing(status, error)` says which turns count. Where most are missing in the last round one round is enough: it
    may be what ended the training.
    """
    status, error = turns.words("status"), turns.words("error")
    present = is_known(status)
    missing = np.zeros(status.shape, bool)
    for at in zip(*np.nonzero(present & ~turns.is_ok), strict=True):
        missing[at] = is_missing(str(status[at]), str(error[at] or ""))
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


def _is_often(missing: Array, present: Array, rounds: int, share: float) -> bool:
    if missing.sum() < rounds:
        return False
    since = np.flatnonzero(missing)[0]
    return bool(missing.sum() >= share * present[since:].sum())


def _absence(
    turns: Turns, places: list[int], missing: Array, present: Array, error: Array, *, is_wide: bool
) -> _Absence:
    own, there = missing[places], present[places]
    columns = np.flatnonzero(own.any(axis=0))
    while_it_lasted = own[:, columns[0] : columns[-1] + 1].sum() / there[:, columns[0] : columns[-1] + 1].sum()
    quiet = math.ceil(3 / while_it_lasted)  # so many good rounds are no accident
    is_over = not own[:, np.flatnonzero(there.any(axis=0))[-quiet:]].any()
    texts = [str(text) for text in error[places][own].tolist() if text]
    most = max(sorted(set(texts)), key=texts.count) if texts else ""
    names = tuple(turns.clients[place] for place in places)
    first, last = turns.rounds[columns[0]], turns.rounds[columns[-1]]
    among = () if is_wide else (f"client = {literal(names[0])}",)
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
    return _Absence(names, first, last if is_over else None, count, total, most, is_wide, evidence)
