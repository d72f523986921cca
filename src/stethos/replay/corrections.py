"""What corrections did in a captured round, so that a repetition does it too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stethos.errors import CaptureError

TREATMENTS, ROBUST, ROLLED_BACK = "treatments", "is_robust", "is_rolled_back"  # in the manifest of a round


@dataclass(frozen=True, slots=True)
class RoundCorrections:
    """By client: the factors of its weight and of its change (both 1 unless named); and what became of the round."""

    treatments: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_robust: bool = False
    is_rolled_back: bool = False

    def of(self, client: str) -> tuple[float, float]:
        return self.treatments.get(client, (1.0, 1.0))


def corrections_in(manifest: Mapping[str, Any]) -> RoundCorrections:
    """The corrections of a round, from its manifest; CaptureError if they make no sense."""
    found = manifest.get(TREATMENTS) or {}
    try:
        treatments = {str(client): (float(pair[0]), float(pair[1])) for client, pair in found.items()}
        is_sane = all(math.isfinite(one) and one >= 0 for pair in treatments.values() for one in pair)
    except (AttributeError, TypeError, ValueError, IndexError, KeyError, OverflowError):
        is_sane, treatments = False, {}
    if not is_sane:
        raise CaptureError(f"round {manifest.get('round')} is damaged: its corrections make no sense")
    return RoundCorrections(treatments, manifest.get(ROBUST) is True, manifest.get(ROLLED_BACK) is True)
