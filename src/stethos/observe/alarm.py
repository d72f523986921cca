"""Notices that something looks wrong, so that the onset of trouble is sampled.

The hot path only compares the loss with two bounds; a NaN fails both. The
bounds follow a running mean and mean deviation. An alarm asks for samples of
this and the next few steps, and then stays quiet until things have been
normal again for a while. The first numbers that are not finite ring even if
the jumps before them have used up their samples: that step is the one people ask for.
"""

from __future__ import annotations

import math
import struct

from stethos.native import AlarmFields, own_slots
from stethos.schema import NULL_F64_BITS

_BITS = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")

_SAMPLES_PER_ALARM = 8
_WARM_UP = 20
_JUMP = 8.0
_NORM_RATIO = 10.0
_REARM_AFTER = 50


class Alarm(AlarmFields):
    """Watches the loss and gradient norm of one kind of model."""

    __slots__ = (
        "_deviation", "_left", "_left_nonfinite", "_mean", "_norm", "_quiet", "_seen",
        *own_slots("Alarm"),
    )  # fmt: skip

    def __init__(self) -> None:
        self._mean = self._deviation = self._norm = 0.0
        self._seen = self._quiet = 0
        self._left = self._left_nonfinite = _SAMPLES_PER_ALARM
        self.low, self.high = -math.inf, math.inf

    def learn(self, loss: float) -> None:
        """Take in a loss that looked normal; called now and then, not at every step."""
        if not math.isfinite(loss):
            return
        self._seen += 1
        self._quiet += 1
        if self._quiet > _REARM_AFTER:
            self._left = self._left_nonfinite = _SAMPLES_PER_ALARM
        weight = 1 / self._seen if self._seen < 50 else 0.02
        distance = abs(loss - self._mean)
        self._mean += weight * (loss - self._mean)
        self._deviation += weight * (distance - self._deviation)
        if self._seen > _WARM_UP:
            self.low = self._mean - _JUMP * self._deviation
            self.high = self._mean + _JUMP * self._deviation

    def rings_for_loss(self, loss: float) -> bool:
        """Whether a loss outside the bounds calls for a sample now."""
        return not is_null(loss) and self._ring(is_finite=math.isfinite(loss))

    def rings_for_norm(self, norm: float) -> bool:
        """Whether this gradient norm is out of line with the ones before, and calls for a sample now."""
        is_finite = math.isfinite(norm)
        is_odd = self._norm > 0 and norm > _NORM_RATIO * self._norm if is_finite else not is_null(norm)
        self.learn_norm(norm)
        return is_odd and self._ring(is_finite=is_finite)

    def learn_norm(self, norm: float) -> None:
        """Take in a gradient norm; a step that was sampled anyway asks for nothing more."""
        if math.isfinite(norm):
            self._norm = norm if self._norm == 0 else self._norm + 0.1 * (norm - self._norm)

    def _ring(self, *, is_finite: bool) -> bool:
        self._quiet = 0
        if is_finite:
            self._left -= 1
            return self._left >= 0
        self._left_nonfinite -= 1
        return self._left_nonfinite >= 0


def is_null(value: float) -> bool:
    """Whether a NaN is our mark for a missing number rather than a real one."""
    return bool(_BITS.unpack(_DOUBLE.pack(value))[0] == NULL_F64_BITS)
