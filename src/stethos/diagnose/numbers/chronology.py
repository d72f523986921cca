"""Where NaN and infinity came first: in weights, loss or gradients.

Within a step the order is weights (as the step began), loss, gradients: a
weight that is NaN at step 8 makes the loss of step 8 NaN, and that the
gradients of step 8. Whoever is first is the origin; the others follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.training import Track, Training, thinned, trainings_of, until_broken
from stethos.diagnose.window import Window, is_null

What = Literal["weight", "loss", "gradient"]
_ORDER: tuple[What, ...] = ("weight", "loss", "gradient")
_WORDS = {"weight": "weights", "loss": "the loss", "gradient": "gradients"}


@dataclass(frozen=True, slots=True, eq=False)
class Onset:
    """The first time that something was not finite in a training."""

    what: What
    training: Training
    place: int
    layers: tuple[str, ...]
    count: int
    is_nan: bool

    @property
    def when(self) -> tuple[float, float, int]:
        round_ = self.training.round[self.place]
        return (
            float(round_) if np.isfinite(round_) else -1.0,
            float(self.training.step[self.place]),
            _ORDER.index(self.what),
        )

    @property
    def word(self) -> str:
        return "NaN" if self.is_nan else "infinite"

    @property
    def is_inherited(self) -> bool:
        """Whether a client's turn began with it: then it came with the global model and the client is not to blame."""
        one = self.training
        if not one.is_relay or one.since[self.place] > 0:
            return False
        if self.what == "weight":
            return True
        mates = (one.round == one.round[self.place]) & (one.since == 0) & ~is_null(one.loss)
        return int(mates.sum()) > 1 and not np.isfinite(one.loss[mates]).any()

    @property
    def subject(self) -> Subject:
        subject = self.training.subject(self.place, layers=self.layers[:8])
        return replace(subject, clients=()) if self.is_inherited else subject


def onsets_of(window: Window) -> list[list[Onset]]:
    """For each group of trainings that share weights, what was not finite and since when, the origin first."""
    return window.derive(_onsets_of)


def _onsets_of(window: Window) -> list[list[Onset]]:
    groups: dict[str, list[Onset]] = {}
    for one in trainings_of(window):
        is_shared = window.is_federated or one.rank is not None
        groups.setdefault("" if is_shared else one.process, []).extend(_found_in(one))
    listed = []
    for onsets in groups.values():
        firsts: dict[What, Onset] = {}
        for onset in sorted(onsets, key=lambda one: one.when):
            firsts.setdefault(onset.what, onset)
        if firsts:
            listed.append(sorted(firsts.values(), key=lambda one: one.when))
    return listed


def _found_in(one: Training) -> Iterator[Onset]:
    bad = ~np.isfinite(one.loss) & ~is_null(one.loss)
    if bad.any():
        place = int(np.argmax(bad))
        yield Onset("loss", one, place, _layers_at(one, "activation", float(one.step[place])), int(bad.sum()),
                    bool(np.isnan(one.loss[place])))  # fmt: skip
    for kind in ("weight", "gradient"):
        what: What = "weight" if kind == "weight" else "gradient"
        steps = [track.step[_is_bad(track)] for track in one.layers.get(kind, ())]
        found = np.concatenate(steps) if steps else np.array([])
        if kind == "gradient":
            norm_bad = ~np.isfinite(one.grad_norm) & ~is_null(one.grad_norm)
            found = np.concatenate([found, one.step[norm_bad]])
        if len(found):
            step = float(found.min())
            at_once = [track for track in one.layers.get(kind, ()) if (track["nan"][track.step == step] > 0).any()]
            yield Onset(
                what, one, one.place_of(step), _layers_at(one, kind, step), len(np.unique(found)), bool(at_once)
            )


def _is_bad(track: Track) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (np.nan_to_num(track["nan"]) > 0) | (np.nan_to_num(track["inf"]) > 0)


def _layers_at(one: Training, kind: str, step: float) -> tuple[str, ...]:
    """The layers that were not finite at a step, in the order of the model; none if all were."""
    tracks = one.layers.get(kind, [])
    bad = [track.layer for track in tracks if _is_bad(track)[track.step == step].any()]
    if kind == "activation":
        return tuple(bad[:1])
    return tuple(bad)


def findings_of(window: Window, what: What, code: str, name: str, advice: Callable[[Onset], str]) -> Iterator[Finding]:
    """One finding per group in which `what` came first, with the others as its consequences."""
    for onsets in onsets_of(window):
        if onsets[0].what != what:
            continue
        first = onsets[0]
        finding = _finding(first, code, name, advice(first))
        later = [_finding(onset, _CODES[onset.what], _NAMES[onset.what], "") for onset in onsets[1:]]
        yield finding.with_consequences(*(replace(one, confidence=0.98) for one in later))


_NAMES: dict[What, str] = {
    "loss": "non-finite-loss",
    "gradient": "non-finite-gradients",
    "weight": "non-finite-weights",
}
_CODES: dict[What, str] = {"loss": "NUM001", "gradient": "NUM002", "weight": "NUM003"}


def _finding(onset: Onset, code: str, name: str, advice: str) -> Finding:
    one, subject = onset.training, onset.subject
    layers = f" in {onset.layers[0]}" if onset.layers else ""
    more = f" and {len(onset.layers) - 1} more layers" if len(onset.layers) > 1 else ""
    client = f" (client {subject.clients[0]})" if subject.clients else ""
    if onset.is_inherited:
        client = ", as a turn began: it came with the global model"
    elif one.is_relay and not client:
        turns = one.turn_starts[0]
        turn = 1 + int(np.searchsorted(turns, one.optimizer[onset.place]))
        client = f", in turn {turn} of {len(turns)} (optimizer {int(one.optimizer[onset.place])})"
    at = f"{subject.unit} {subject.first}"
    table = "steps" if onset.what == "loss" else "layers"
    if onset.what == "loss":
        sql = f"SELECT step, round, client, loss FROM steps WHERE {one.where} AND NOT isfinite(loss) ORDER BY step"
    else:
        sql = (
            f"SELECT step, layer, nan, inf FROM layers WHERE {one.where} AND kind = '{onset.what}' "
            "AND (nan > 0 OR inf > 0) ORDER BY step"
        )
    verb = "is" if onset.what == "loss" else "are"
    return Finding(
        code, name, name, Severity.ERROR,
        f"{_WORDS[onset.what]} {verb} {onset.word}{layers}{more} from {at} on{client}",
        subject,
        0.98,
        (Evidence(f"{onset.count} rows of `{table}`, the first at step {int(one.step[onset.place])}", sql,
                  thinned(until_broken(one.losses))),),
        advice,
        {"step": int(one.step[onset.place]), "optimizer": int(one.optimizer[onset.place]), "count": onset.count},
    )  # fmt: skip
