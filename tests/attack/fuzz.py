"""Each parser is given what atheris thinks of, guided by the lines of it that were reached."""

from __future__ import annotations

import os
import subprocess
import sys

from processes import environment

from attack.outcome import Outcome, place
from attack.parsers import PARSERS


def attack(tries: int, seed: int = 1) -> Outcome:
    """So often for each parser; needs `pip install atheris`, which has no wheels for every Python."""
    outcome = Outcome("any bytes, to each parser", "only our own errors; <= 10 s, <= 1 GB")
    outcome.notes["parsers"] = len(PARSERS)
    with place() as base:
        for name in PARSERS:
            around = environment(PYTHONPATH=os.pathsep.join(map(str, sys.path)))
            words = [sys.executable, "-m", "attack.parsers", name, str(tries), str(base / name)]
            told = subprocess.run(
                words, env=around, capture_output=True, text=True, errors="replace", check=False, cwd=base
            )
            outcome.tries += tries
            outcome.check(told.returncode == 0, f"{name}: {told.stdout[-600:]} {told.stderr[-300:]}")
    return outcome
