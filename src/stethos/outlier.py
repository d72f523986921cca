"""How far from the other clients is far: the one place for these limits.

A limit says what follows from it. The surer one must be, the larger it is: keeping an update costs some
disk, naming or changing it touches a client. Detectors take theirs as the default of an option.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

STANDS_OUT_DEVIATIONS = 3.5  # robust standard deviations: a client's update is captured
PLAIN_DEVIATIONS = 6.0  # anybody would see it: a size is corrected, a doubtful verdict is spoken
PLAIN_TIMES = 4.0  # of the median size, beside those deviations, for a correction
LEVEL_TIMES = 10.0  # of a client's own swing: its reported numbers have changed their level
_FEWEST = 3


def deviations(values: npt.NDArray[Any], least_spread: float) -> npt.NDArray[np.float64]:
    """How many robust standard deviations each value lies above the median; 0 for what is not known.

    Infinite where a value is; where fewer than three are known nothing else is far.
    """
    known = values[np.isfinite(values)]
    found = np.where(np.isinf(values), values, 0.0)
    if len(known) < _FEWEST:
        return found
    middle = float(np.median(known))
    spread = max(1.4826 * float(np.median(np.abs(known - middle))), least_spread)
    return np.where(np.isfinite(values), (values - middle) / spread, found)
