"""Folds findings that follow from another one into it: one root cause, its consequences listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stethos.diagnose.finding import Finding

# What one client does to another, by way of the global model.
_SPREADING = ("non-finite-loss", "non-finite-gradients", "non-finite-weights")


def fold(findings: Iterable[Finding], explains: Mapping[str, frozenset[str]]) -> list[Finding]:
    """Root causes, most severe and surest first, each with what follows from it.

    A finding follows from another if that one's detector explains it, it began
    no earlier, and they do not concern different processes, federations, or clients,
    unless it spreads as NaN does. Chains go to their first cause.
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
    return sorted(roots, key=lambda one: (-one.severity, -one.confidence, _first(one)))


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
    if one.subject.process and cause.subject.process and one.subject.process != cause.subject.process:
        return False
    if one.subject.federation and cause.subject.federation and one.subject.federation != cause.subject.federation:
        return False
    if one.name == cause.name and one.subject.clients == cause.subject.clients:
        return False
    if one.subject.clients and cause.subject.clients and not _shared(one, cause) and one.name not in _SPREADING:
        return False
    return _first(one) >= _first(cause)


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
