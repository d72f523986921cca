"""Where NaN and infinity came first: in weights, loss or gradients.

Within a step the order is weights (as the step began), loss, gradients: a
weight that is NaN at step 8 makes the loss of step 8 NaN, and that the
gradients of step 8. Whoever is first is the origin; the others follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, details
from stethos.diagnose.training import (
    LAYER_COLUMNS,
    STEP_COLUMNS,
    LayerTrack,
    Training,
    column_of,
    texts_of,
    thinned,
    trainings_of,
)
from stethos.diagnose.window import Window
from stethos.store.frame import is_null

What = Literal["weight", "loss", "gradient"]
_ORDER: tuple[What, ...] = ("weight", "loss", "gradient")
READS: Needs = {"steps": STEP_COLUMNS, "layers": LAYER_COLUMNS, "inspections": COLUMNS}
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
    origin: dict[str, Any] = field(default_factory=dict)  # what was seen when the loss broke
    hazards: frozenset[str] = frozenset()  # operations behind the loss whose gradient may be infinite

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
    origins, hazards = _origins_in(window), _hazards_in(window)
    for one in trainings_of(window):
        is_shared = window.is_federated or one.rank is not None
        found = [
            replace(onset, hazards=hazards.get(one.process, frozenset()))
            for onset in _explained(one, list(_found_in(one)), origins)
        ]
        groups.setdefault("" if is_shared else one.process, []).extend(found)
    listed = []
    for onsets in groups.values():
        firsts: dict[What, Onset] = {}
        for onset in sorted(onsets, key=lambda one: one.when):
            firsts.setdefault(onset.what, onset)
        if firsts:
            listed.append(sorted(firsts.values(), key=lambda one: one.when))
    return listed


def _origins_in(window: Window) -> dict[tuple[str, int], dict[str, Any]]:
    """By process and step what was seen before the backward of a loss that was not finite."""
    frame = window.frame("inspections")
    if not len(frame):
        return {}
    mine = frame.where(texts_of(frame, "phase") == "not finite")
    keys = zip(texts_of(mine, "process").tolist(), column_of(mine, "step").tolist(), strict=True)
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for (process, step), detail in zip(keys, details(mine), strict=True):
        found.setdefault((process or "", int(step)), detail)
    return found


def _hazards_in(window: Window) -> dict[str, frozenset[str]]:
    """By process the operations behind inspected losses whose gradient is infinite somewhere."""
    found: dict[str, frozenset[str]] = {}
    frame = window.frame("inspections")
    for process, row in zip(texts_of(frame, "process").tolist(), details(frame), strict=True) if len(frame) else ():
        found[process or ""] = found.get(process or "", frozenset()) | frozenset(row.get("hazards", ()))
    return found


def _explained(one: Training, found: list[Onset], origins: dict[tuple[str, int], dict[str, Any]]) -> list[Onset]:
    """With the origin of the first broken loss: its step's weights, its own forward pass, or the step before it."""
    loss = next((onset for onset in found if onset.what == "loss"), None)
    origin = origins.get((one.process, int(one.step[loss.place]))) if loss is not None else None
    if loss is None or not origin:
        return found
    kind, layers = origin["kind"], tuple(origin["layers"])
    if kind not in ("gradient", "weight"):
        others = [onset for onset in found if onset.what != "loss"]
        return [*others, replace(loss, layers=layers or loss.layers, origin=origin)]
    place = loss.place - 1 if kind == "gradient" else loss.place
    seen = next((onset for onset in found if onset.what == kind and onset.place <= place), None)
    if seen is not None or place < 0:
        return found
    others = [onset for onset in found if onset.what != kind]
    what: What = "gradient" if kind == "gradient" else "weight"
    return [*others, Onset(what, one, place, layers, 1, loss.is_nan, origin)]


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
            place = one.place_of(step)
            layers = _layers_at(one, kind, step)
            if kind == "gradient" and (np.isfinite(one.loss[place]) or is_null(one.loss[place : place + 1])[0]):
                layers = () if _is_everywhere(one, step) else layers[::-1]  # a backward begins at the last layer
            yield Onset(what, one, place, layers, len(np.unique(found)), bool(at_once))


def _is_bad(track: LayerTrack) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return (np.nan_to_num(track["nan"]) > 0) | (np.nan_to_num(track["inf"]) > 0)


def _is_everywhere(one: Training, step: float) -> bool:
    """Whether every element of several layers is NaN: clipping spreads one over all, and no layer can be named."""
    tracks = [track for track in one.layers.get("gradient", ()) if (track.step == step).any()]
    return len(tracks) > 1 and all((track["nan"] >= track["size"])[track.step == step].all() for track in tracks)


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


def _series(onset: Onset) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
    """The very series that is not finite, without others to compare, and its name."""
    one = onset.training
    if onset.what == "loss":
        return thinned(one.losses), (), ("loss",)
    tracks = [track for track in one.layers.get(onset.what, ()) if track.layer in onset.layers[:1]]
    if not tracks:
        return thinned(one.grad_norm[~is_null(one.grad_norm)]), (), ("norm of all gradients",)
    broken = np.where(np.nan_to_num(tracks[0]["nan"]) > 0, np.nan, np.inf)
    norms = np.where(_is_bad(tracks[0]), broken, tracks[0]["norm"])
    return thinned(norms), (), (f"{onset.what} norm of {tracks[0].layer}",)


_LOSS_ORIGINS = {
    "input": "the inputs of that batch are not finite",
    "label": "the targets of that batch are not finite",
    "activation": "it begins in {layer}{operation}",
    "loss": "it begins in the loss function{operation}",
}


def _where(onset: Onset) -> str:
    """The layers of an onset, or for a loss what made it, as a part of a title."""
    kind = onset.origin.get("kind")
    if onset.what == "loss" and kind in _LOSS_ORIGINS:
        operation = f" ({onset.origin['operation']})" if onset.origin.get("operation") else ""
        layer = onset.layers[0] if onset.layers else "the forward pass"
        if kind in ("input", "label") and onset.origin.get("rows") == 1:
            return f": what the batch of one sample is given is {onset.word}, as a deviation of one number is"
        return f": {_LOSS_ORIGINS[kind].format(layer=layer, operation=operation)}"
    if onset.what == "gradient" and "where" in onset.hazards:
        return ": a `where` hides a division by 0 from the loss, but not from its gradient"
    layers = f" in {onset.layers[0]}" if onset.layers else ""
    return layers + (f" and {len(onset.layers) - 1} more layers" if len(onset.layers) > 1 else "")


def _evidence(onset: Onset) -> Evidence:
    one = onset.training
    step = int(one.step[onset.place])
    if onset.origin and onset.what != "loss":
        text = f"{onset.word} at step {step}: seen when the loss of the next step broke"
        if onset.what == "weight":
            text = f"{onset.word} as step {step} began, and the optimizer's own numbers are finite"
        where = f"process = '{one.process}' AND phase = 'not finite'"
        return Evidence(text, f"SELECT step, detail FROM inspections WHERE {where} ORDER BY step", *_series(onset))
    sampled = "step" if onset.what == "loss" else "sampled step"
    count = f"{onset.count:,} {sampled}{'' if onset.count == 1 else 's'}"
    if onset.what == "loss":
        sql = f"SELECT step, round, client, loss FROM steps WHERE {one.where} AND NOT isfinite(loss) ORDER BY step"
    else:
        sql = (
            f"SELECT step, layer, nan, inf FROM layers WHERE {one.where} AND kind = '{onset.what}' "
            "AND (nan > 0 OR inf > 0) ORDER BY step"
        )
    return Evidence(f"{onset.word} in {count}, first at step {step}", sql, *_series(onset))


def _finding(onset: Onset, code: str, name: str, advice: str) -> Finding:
    one, subject = onset.training, onset.subject
    client = f" (client {subject.clients[0]})" if subject.clients else ""
    if onset.is_inherited:
        client = ", as a turn began: it came with the global model"
    elif one.is_relay and not client:
        turns = one.turn_starts[0]
        turn = 1 + int(np.searchsorted(turns, one.optimizer[onset.place]))
        client = f", in turn {turn} of {len(turns)} (optimizer {int(one.optimizer[onset.place])})"
    at, where = f"from {subject.unit} {subject.first} on", _where(onset)
    verb = "is" if onset.what == "loss" else "are"
    title = f"{_WORDS[onset.what]} {verb} {onset.word}"
    detail = {"step": int(one.step[onset.place]), "optimizer": int(one.optimizer[onset.place]), "count": onset.count}
    return Finding(
        code, name, name, Severity.ERROR,
        f"{title} {at}{client}{where}" if where.startswith(":") else f"{title}{where} {at}{client}",
        subject,
        0.98,
        (_evidence(onset),),
        advice,
        detail | ({"origin": onset.origin["kind"]} if onset.origin else {}),
    )  # fmt: skip
