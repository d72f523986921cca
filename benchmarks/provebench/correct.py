"""Corrections on the federations of the fault benchmark: what is left of a fault's damage, and of a clean run."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.faults.case import Case
from benchmarks.provebench.memory import played
from stethos.act.correction import Corrector


@dataclass(frozen=True, slots=True)
class Mended:
    """One federation; accuracies of the final models. Without a fault, `faulty` is that of the clean run."""

    data: str
    clients: int
    split: str
    fault: str
    clean: float
    faulty: float
    corrected: float
    actions: int
    wrongly: int
    seed: int


def mended(case: Case) -> Mended:
    """Play the case clean, faulty, and with corrections."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    clean = played(replace(case, faults=()))[1].accuracy
    faulty = played(case)[1].accuracy if case.faults else clean
    corrector = Corrector("on")
    corrected = played(case, correct=corrector)[1].accuracy
    guilty = {f"c{client}" for _, client, _ in case.faults}
    acted = [one for one in corrector.actions if one.state != "refused"]
    wrongly = {one.client for one in acted if one.client is not None} - guilty
    fault = " ".join(dict.fromkeys(f"{kind} {strength or ''}".strip() for kind, _, strength in case.faults)) or "none"
    return Mended(
        case.data_name, case.clients, str(case.split), fault, clean, faulty, corrected, len(acted), len(wrongly),
        case.seed,
    )  # fmt: skip
