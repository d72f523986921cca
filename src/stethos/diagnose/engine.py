"""Runs detectors over a window, folds what belongs together, and says what could not be checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stethos.diagnose.detector import CannotTell, Detector
from stethos.diagnose.diagnosis import Diagnosis, NotChecked
from stethos.diagnose.finding import Evidence, Finding
from stethos.diagnose.window import Window
from stethos.errors import ArchiveError
from stethos.guard import Guard

# What is there without any training.
_SURROUNDINGS = frozenset({"processes", "host", "gpu"})
# What one client does to another, by way of the global model.
_SPREADING = ("non-finite-loss", "non-finite-gradients", "non-finite-weights")
_WITHOUT_NAN = frozenset({"unrelated-labels"})  # kinds from which no number that is not finite follows
_WHENEVER = ("PRG", "RNK")  # a mistake in the program explains what follows from it, whenever it was noticed
_ENDED_BY_OTHERS = ("killed", "stopped", "lost-peer")  # kinds of `process-failure` that another rank may have caused


def _checked(detector: Detector, window: Window) -> list[Finding] | str:
    """What a detector finds, or why it cannot tell. ArchiveError if rows cannot be fetched: that is not its failure."""
    reason = ["the detector itself failed"]

    def check() -> list[Finding] | str | ArchiveError:
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # NaN and infinities are what we are here for
                return list(detector.check(window))
        except CannotTell as answer:
            return str(answer)
        except ArchiveError as error:
            return error

    found = Guard(lambda _, words: reason.append(words)).run(detector.code, check)
    if isinstance(found, ArchiveError):
        raise found
    return ": ".join(reason) if found is None else found


def needs_of(detectors: Iterable[Detector]) -> dict[str, frozenset[str]]:
    """All tables and columns that some detector reads."""
    needs: dict[str, frozenset[str]] = {}
    for detector in detectors:
        for source in (detector.needs, detector.reads):
            for table, columns in source.items():
                needs[table] = needs.get(table, frozenset()) | columns
    return needs


def examine(window: Window, detectors: Sequence[Detector]) -> Diagnosis:
    """Let each detector look at the window. One that fails is reported as not checked, with its error.

    ArchiveError if the run is archived and its rows cannot be fetched.
    """
    findings: list[Finding] = []
    checked: list[str] = []
    not_checked: list[NotChecked] = []
    has_training = False
    for detector in detectors:
        reason = next(filter(None, (window.missing(table, columns) for table, columns in detector.needs.items())), "")
        if reason:
            not_checked.append(NotChecked(detector.code, detector.name, reason))
            continue
        found = _checked(detector, window)
        if isinstance(found, str):
            not_checked.append(NotChecked(detector.code, detector.name, found))
            continue
        checked.append(detector.code)
        has_training |= bool(detector.needs.keys() - _SURROUNDINGS)
        findings.extend(replace(one, evidence=tuple(sorted(one.evidence, key=_plainness))) for one in found)
    explains = {detector.name: detector.explains for detector in detectors}
    return Diagnosis(tuple(fold(findings, explains)), tuple(checked), tuple(not_checked), has_training)


def _plainness(evidence: Evidence) -> float:
    """A key that puts the evidence first whose two curves are furthest apart, relative to what they span.

    Those about as far apart stay as the detector has them.
    """
    count = min(len(evidence.series), len(evidence.others))
    mine, theirs = np.array(evidence.series[:count], float), np.array(evidence.others[:count], float)
    both = np.concatenate([mine, theirs])
    gaps = np.abs(mine - theirs)
    if not np.isfinite(gaps).any():
        return 0.0
    span = float(np.nanmax(both[np.isfinite(both)]) - np.nanmin(both[np.isfinite(both)]))
    return -round(float(gaps[np.isfinite(gaps)].mean()) / span, 1) if span > 0 else 0.0


# Causes and consequences --------------------------------------------------------------------------------


def fold(findings: Iterable[Finding], explains: Mapping[str, frozenset[str]]) -> list[Finding]:
    """Root causes, most severe and surest first, each with what follows from it.

    A finding follows from another if that one's detector explains it, it began
    no earlier (mistakes in the program count from the start), and they do not
    concern different processes, federations, or clients, unless it spreads as
    NaN does. Chains go to their first cause.
    """
    listed = sorted(_merged(findings), key=lambda one: _first(one))
    parent: dict[int, int] = {}
    for place, one in enumerate(listed):
        causes = [
            cause
            for cause, other in enumerate(listed)
            if cause != place and _follows(one, other, explains) and _root(parent, cause) != place
        ]
        if causes:
            parent[place] = min(causes, key=lambda cause: not _shared(one, listed[cause]))
    consequences: dict[int, list[Finding]] = {}
    for place in parent:
        consequences.setdefault(_root(parent, place), []).append(listed[place])
    roots = [_with(one, consequences.get(place, [])) for place, one in enumerate(listed) if place not in parent]
    broken = min((_first(one) for one in roots if one.name in _SPREADING and one.is_open), default=float("inf"))

    def order(one: Finding) -> tuple[float, ...]:
        is_later = one.name == "process-failure" and _first(one) >= broken  # it may have stopped because of that
        return -one.severity, is_later, -one.confidence, _first(one)

    return sorted(roots, key=order)


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once: the surest of those with the same key."""
    best: dict[tuple[object, ...], Finding] = {}
    for one in findings:
        known = best.get(one.key)
        if known is None or one.confidence > known.confidence:
            best[one.key] = one
    return list(best.values())


def _shared(one: Finding, other: Finding) -> bool:
    return bool(set(one.subject.clients) & set(other.subject.clients))


def _follows(one: Finding, cause: Finding, explains: Mapping[str, frozenset[str]]) -> bool:
    if one.name not in explains.get(cause.name, frozenset()) or one.subject.unit != cause.subject.unit:
        return False
    if cause.kind in _WITHOUT_NAN and one.name.startswith("non-finite"):
        return False
    is_of_job = bool(one.subject.ranks and cause.subject.ranks)
    is_elsewhere = one.subject.process and cause.subject.process and one.subject.process != cause.subject.process
    if is_elsewhere and not (is_of_job and one.kind in _ENDED_BY_OTHERS):
        return False
    if one.subject.federation and cause.subject.federation and one.subject.federation != cause.subject.federation:
        return False
    if one.name == cause.name and one.subject.clients == cause.subject.clients:
        return False
    if one.subject.clients and cause.subject.clients and not _shared(one, cause) and one.name not in _SPREADING:
        return False
    return _first(one) >= _first(cause) or cause.code.startswith(_WHENEVER) or (cause.name == "hang" and is_of_job)


def _with(one: Finding, effects: list[Finding]) -> Finding:
    """A cause with what follows from it: as grave as the gravest of that, and not over while some of it goes on."""
    is_open = one.is_open or any(effect.is_open for effect in effects)
    severity = max((one.severity, *(effect.severity for effect in effects)))
    return replace(one.with_consequences(*effects), is_open=is_open, severity=severity)


def _first(one: Finding) -> float:
    return float("-inf") if one.subject.first is None else float(one.subject.first)


def _root(parent: Mapping[int, int], place: int) -> int:
    while place in parent:
        place = parent[place]
    return place
