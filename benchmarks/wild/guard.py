"""A small set of played federations whose figures `tests/diagnose/test_kept_federations.py` guards.

python -m benchmarks.wild.guard    choose and write them again, from what `python -m benchmarks.wild play` has kept
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from benchmarks.wild.kept import kept

PLACE = Path("tests/fixtures/federations.json.gz")
_MOST_BYTES = 1_500_000
_EVERY = 19  # of the federations, whatever came of them


def main() -> int:
    """Evidence rows alone, of every so-many-th federation, as many as fit."""
    chosen, size = [], 0
    for name in ("development", "opened", "held-out", "third"):
        for place, played in enumerate(kept(name)):
            if place % _EVERY:
                continue
            one = {key: played[key] for key in ("case", "faulty", "foreign")} | {"evidence": played["rows"]["evidence"]}
            size += len(gzip.compress(json.dumps(one).encode(), 9))
            if size < _MOST_BYTES:
                chosen.append(one)
    PLACE.write_bytes(gzip.compress(json.dumps(chosen, separators=(",", ":")).encode(), 9, mtime=0))
    print(f"{len(chosen)} federations, {PLACE.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
