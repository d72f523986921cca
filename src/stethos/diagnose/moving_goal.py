"""Trainings whose goal follows the model, so that their loss is no measure of how good it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from stethos.diagnose.window import Window
from stethos.store.frame import Array, Frame, object_in

_LEAST = 3  # looks at a helper
_APART = 4  # steps between two of them, at most, at the beginning: it runs in the training, not in evaluations


def moving_goals(window: Window) -> frozenset[str]:
    """The processes where a copy of the trained model runs beside it at each step and is brought up to date.

    So do the target network of Q-learning, the teacher of BYOL and the keys' encoder of MoCo: what they answer is the
    goal, and it moves as the model learns. A teacher that never changes is a goal like any other. The loss of a policy
    weighs actions by how much better than expected they were, which says nothing about how good they are.
    """
    return window.derive(_moving_goals)


def _moving_goals(window: Window) -> frozenset[str]:
    frame = window.frame("inspections")
    if not len(frame) or not {"phase", "process", "step", "detail"} <= set(frame.names):
        return frozenset()
    looks: dict[tuple[str, Any], list[tuple[float, Any]]] = {}
    for place in np.flatnonzero(_texts(frame, "phase") == "helper").tolist():
        row = object_in(frame["detail"][place])
        if row.get("is_copy") or row.get("is_part"):
            key = str(frame["process"][place] or ""), row.get("helper")
            looks.setdefault(key, []).append((float(frame["step"][place]), row.get("weights")))
    texts, phases = frame["detail"].tolist(), _texts(frame, "phase")
    policies = {
        str(frame["process"][place] or "")
        for place in np.flatnonzero(phases == "training").tolist()
        if texts[place] and '"is_policy": true' in texts[place]
    }
    return frozenset(policies) | frozenset(process for (process, _), seen in looks.items() if _moves(seen))


def _moves(seen: list[tuple[float, Any]]) -> bool:
    steps = sorted({step for step, _ in seen})
    gaps = np.diff(steps[: _LEAST + 1])
    return len(steps) >= _LEAST and float(np.median(gaps)) <= _APART and len({weights for _, weights in seen}) > 1


def _texts(frame: Frame, name: str) -> Array:
    return np.array([str(value) for value in frame[name].tolist()])
