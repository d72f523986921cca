"""Evidence of real federations that were played once: what is made of it must not get worse unseen."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from stethos.diagnose.federated.inside import inside_margins, inside_verdicts
from stethos.diagnose.federated.inside_evidence import inside_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

KEPT = Path(__file__).parent.parent / "fixtures" / "federations.json.gz"


def accused_in(one: dict[str, Any]) -> set[str]:
    (inside,) = inside_of(Window({"evidence": Frame(one["evidence"])})).values()
    return {verdict.client for verdict in inside_verdicts(inside, inside_margins(inside), 0.01)}


def test_faulty_clients_of_kept_federations_are_accused_and_honest_ones_are_not() -> None:
    kept = json.loads(gzip.decompress(KEPT.read_bytes()))
    found = [(set(one["faulty"]), accused_in(one)) for one in kept]
    faulty = [accused == truth for truth, accused in found if truth]
    assert len(faulty) == 23 and sum(faulty) >= 17  # every 19th federation of all four sets, easy or hard
    assert sum(len(accused - truth) for truth, accused in found) <= 1
