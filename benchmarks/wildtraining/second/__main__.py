"""Run the programs of this package without Stethos: python -m benchmarks.wildtraining.second [--write] [NAME ...]

A line for each: the measure of the program with its bug, that of its twin and what the twin has to stay below, and the
time that both take, with the seeds that runs under Stethos get. With --write the measures are kept in `plain.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.wildtraining.blind.__main__ import measured
from benchmarks.wildtraining.case import seed_of
from benchmarks.wildtraining.second.every import SECOND

_KEPT = Path(__file__).with_name("plain.json")


def main() -> int:
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if name != "--write"]
    failed, harmed = 0, 0
    for name in names or SECOND:
        case = SECOND[name]
        variants = ("bug", "fixed") if case.family == "blind" else ("fixed",)
        runs = {variant: measured(case, variant == "bug", seed_of(f"{name}-{variant}")) for variant in variants}
        is_good = runs["fixed"][0] < case.good
        failed += not is_good
        harmed += "bug" in runs and not runs["bug"][0] < case.good
        told = ", ".join(f"{variant} {measure:.3f} in {spent_s:.1f} s" for variant, (measure, spent_s) in runs.items())
        print(f"{name}: {told}; good below {case.good}{'' if is_good else '  NOT GOOD'}", flush=True)
        if "--write" in sys.argv:
            _keep(name, {variant: round(measure, 4) for variant, (measure, _) in runs.items()})
    print(f"{harmed} of {sum(SECOND[name].family == 'blind' for name in names or SECOND)} bugs miss what is good")
    return failed


def _keep(name: str, measures: dict[str, float]) -> None:
    kept = json.loads(_KEPT.read_text(encoding="utf-8")) if _KEPT.exists() else {}
    kept[name] = measures
    lines = ",\n".join(f'  "{name}": {json.dumps(kept[name])}' for name in SECOND if name in kept)
    _KEPT.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
