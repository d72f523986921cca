"""Back to the last good global model: when a round has spoilt it."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

_JUMP = 3.0  # times the usual: of the loss, and of the step that the global model took
_LEAST = 0.3  # by so much at least must the loss have risen
_USUAL = 5  # good rounds that say what is usual


class RollbackRule:
    """Says of each new global model whether it may stay; needs no data, only what the round reports.

    What is exact counts at once: elements that are not finite. A loss that
    jumped counts only if the model's step did too: the server's evaluation and
    the weights are independent witnesses.
    """

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_USUAL)
        self._drifts: deque[float] = deque(maxlen=_USUAL)

    def complaint(self, *, odd: int, loss: float | None, drift: float | None) -> str:
        """Why the model should not stay, in words; "" if it may. `odd` counts elements that are not finite."""
        if odd:
            return f"{odd} elements of the new global model are NaN or infinite"
        words = ""
        if len(self._losses) >= 2 and loss is not None and drift is not None and self._drifts:
            usual_loss, usual_drift = float(np.median(self._losses)), float(np.median(self._drifts))
            is_worse = not math.isfinite(loss) or (loss > _JUMP * usual_loss and loss > usual_loss + _LEAST)
            if is_worse and drift > _JUMP * usual_drift:
                words = (
                    f"the loss jumped from {usual_loss:.3g} to {loss:.3g} while the model took "
                    f"{drift / usual_drift:.1f} times its usual step"
                )
        if not words:
            if loss is not None and math.isfinite(loss):
                self._losses.append(loss)
            if drift is not None and math.isfinite(drift):
                self._drifts.append(drift)
        return words
