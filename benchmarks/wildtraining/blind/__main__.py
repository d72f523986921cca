"""Run the programs of this package without Stethos: python -m benchmarks.wildtraining.blind [NAME ...]

A line for each: the measure of the program with its bug, that of its twin and what the twin has to stay below, and the
time that both take.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
import traceback
import warnings

import torch

from benchmarks.wildtraining.blind import BlindCase
from benchmarks.wildtraining.table import BLIND


def measured(case: BlindCase, has_bug: bool, seed: int = 7) -> tuple[float, float]:
    """The measure of a program, inf where it fails, and its time."""
    torch.manual_seed(seed)
    start = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            measure = float(case.program(has_bug))  # type: ignore[arg-type]
        except ValueError:
            if not has_bug:
                raise
            measure = float("inf")  # some bugs end a program
    return measure, time.process_time() - start


def main() -> int:
    torch.set_num_threads(1)
    failed = 0
    for name in sys.argv[1:] or BLIND:
        case = BLIND[name]
        try:
            measures = [measured(case, has_bug) for has_bug in ((True, False) if case.family == "blind" else (False,))]
        except Exception:
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
            failed += 1
            continue
        is_good = measures[-1][0] < case.good
        failed += not is_good
        told = ", ".join(f"{measure:.3f} in {spent_s:.1f} s" for measure, spent_s in measures)
        print(f"{name}: {told}; good below {case.good}{'' if is_good else '  NOT GOOD'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
