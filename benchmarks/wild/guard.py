"""A small set of played federations whose figures `tests/diagnose/test_kept_federations.py` guards.

python -m benchmarks.wild.guard    choose and write them again, from what `python -m benchmarks.wild play` has kept

Of all federations the numbers that are weighed; of a few, easy or hard, all that was recorded.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from benchmarks.wild.fit import SETS, Judged, judged_in
from benchmarks.wild.kept import place_of, seeds

PLACE = Path("tests/fixtures/federations.json.gz")
_MOST_BYTES = 1_200_000
_MOST_OF_ONE = 100_000
_EVERY = 19  # of the federations, whatever came of them


def main() -> int:
    whole: list[dict[str, Any]] = []
    size = 0
    for name in SETS:
        for seed in sorted(seeds(name))[::_EVERY]:
            with gzip.open(place_of(name) / f"{seed}.json.gz", "rt") as file:
                played = json.load(file)
            one = {key: played[key] for key in ("case", "faulty", "foreign")} | {"rows": _needed(played["rows"])}
            own = len(gzip.compress(json.dumps(one).encode(), 9))
            if own < _MOST_OF_ONE and size + own < _MOST_BYTES:
                whole.append(one)
                size += own
    chosen = {"whole": whole, "numbers": [_numbers(one) for name in SETS for one in judged_in(name)]}
    PLACE.write_bytes(gzip.compress(json.dumps(chosen, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{len(whole)} and {len(chosen['numbers'])} federations, {PLACE.stat().st_size:,} bytes")
    return 0


def _needed(rows: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
    """Without sketches of updates, which only baselines read."""
    updates = {name: values for name, values in rows["updates"].items() if name != "sketch"}
    return {**rows, "updates": updates}


def _numbers(one: Judged) -> dict[str, Any]:
    faulty = [client for client, is_faulty in zip(one.clients, one.is_faulty, strict=True) if is_faulty]
    numbers = {name: values.round(2).tolist() for name, values in one.numbers.items()}
    return {"set": one.name, "case": one.case, "clients": one.clients, "faulty": faulty, "foreign": one.foreign,
            "numbers": numbers}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
