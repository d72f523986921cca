"""Notices that something looks wrong, so that the onset of trouble is sampled.

Cheap enough for every step: a running mean and mean deviation of the loss,
and the previous gradient norms. An alarm asks for samples of this and the
next few steps, and then stays quiet until things have been normal again.
"""

from __future__ import annotations

import math
import struct

from stethos.schema import NULL_F64_BITS

_BITS = struct.Struct("<Q")
_DOUBLE = struct.Struct("<d")
_SAMPLES_PER_ALARM = 8
_WARM_UP = 20
_JUMP = 8.0
_NORM_RATIO = 10.0
_REARM_STEPS = 200


class Alarm:
    """Watches one optimizer's loss and gradient norm."""

    __slots__ = ("_deviation", "_left", "_mean", "_norm", "_quiet", "_seen")

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0
        self._norm = 0.0
        self._seen = 0
        self._left = _SAMPLES_PER_ALARM
        self._quiet = 0

    def wants_sample(self, loss: float) -> bool:
        """Whether the step with this loss should be sampled at once."""
        distance = abs(loss - self._mean)
        is_odd = distance > _JUMP * self._deviation and self._seen > _WARM_UP
        if loss - loss != 0.0:  # NaN or infinite
            is_odd = not _is_null(loss)
        else:
            self._seen += 1
            weight = 1 / self._seen if self._seen < 50 else 0.02
            self._mean += weight * (loss - self._mean)
            self._deviation += weight * (distance - self._deviation)
        return self._ring(is_odd)

    def hears_norm(self, norm: float) -> bool:
        """Whether this gradient norm is out of line with the ones before."""
        if not math.isfinite(norm):
            return self._ring(not _is_null(norm))
        is_odd = self._norm > 0 and norm > _NORM_RATIO * self._norm
        self._norm = norm if self._norm == 0 else self._norm + 0.1 * (norm - self._norm)
        return self._ring(is_odd)

    def _ring(self, is_odd: bool) -> bool:
        if not is_odd:
            self._quiet += 1
            if self._quiet > _REARM_STEPS:
                self._left = _SAMPLES_PER_ALARM
            return False
        self._quiet = 0
        if self._left <= 0:
            return False
        self._left -= 1
        return True


def _is_null(value: float) -> bool:
    """Whether a NaN is our mark for a missing number rather than a real one."""
    return bool(_BITS.unpack(_DOUBLE.pack(value))[0] == NULL_F64_BITS)
