"""How a judge was made: kept in its file, so that a test can say when the code of its traits is no longer that code.

python -m benchmarks.faults.made    write the digest of today's code into the shipped judge, without training it again
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "stethos" / "diagnose" / "federated"
JUDGE = PACKAGE / "judge.json"
OF_TRAITS = ("trait.py", "cohort.py")  # what the networks are given is computed here


def code_digest(texts: Iterable[str]) -> str:
    """Of source code, without comments and the space around lines."""
    lines = (line.strip() for text in texts for line in text.splitlines())
    kept = "\n".join(line for line in lines if line and not line.startswith("#"))
    return hashlib.sha256(kept.encode()).hexdigest()[:16]


def traits_digest() -> str:
    return code_digest((PACKAGE / name).read_text(encoding="utf-8") for name in OF_TRAITS)


def made_from(seeds: NDArray[np.int64], *arrays: NDArray[Any]) -> dict[str, Any]:
    """Seeds, data and versions that a judge is made from, and the code of its traits."""
    data = hashlib.sha256()
    for one in arrays:
        data.update(np.ascontiguousarray(one).tobytes())
    return {
        "traits": traits_digest(),
        "data": data.hexdigest()[:16],
        "federations": len(np.unique(seeds)),
        "seeds": [int(seeds.min()), int(seeds.max())],
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def main() -> int:
    value = json.loads(JUDGE.read_text(encoding="utf-8"))
    value["made"] = {**value.get("made", {}), "traits": traits_digest()}
    JUDGE.write_text(json.dumps(value), encoding="utf-8")
    print(value["made"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
