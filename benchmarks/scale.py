"""How much is measured: the full benchmark, or a quick look that only shows that everything works."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers of rounds and rows; a `*_s` is the time after which no further round is begun."""

    is_quick: bool
    least_rounds: int
    most_rounds: int
    overhead_s: dict[str, float]
    chunks: dict[str, int]
    memory_steps: int
    import_rounds: int
    row_rounds: int
    steady_s: float
    group_by_rows: int
    group_by_rounds: int
    command_rounds: int
    without: frozenset[str] = frozenset()  # variants of the overhead's that are left out


FULL = Scale(
    is_quick=False,
    least_rounds=4,
    most_rounds=12,
    overhead_s={"mlp": 200, "cnn": 120, "transformer": 180},
    chunks={"mlp": 6, "cnn": 6, "transformer": 1},
    memory_steps=100_000,
    import_rounds=20,
    row_rounds=40,
    steady_s=20,
    group_by_rows=5_000_000,
    group_by_rounds=15,
    command_rounds=11,
)
QUICK = Scale(
    is_quick=True,
    least_rounds=1,
    most_rounds=2,
    overhead_s={"mlp": 20, "cnn": 10, "transformer": 10},
    chunks={"mlp": 2, "cnn": 2, "transformer": 1},
    memory_steps=5_000,
    import_rounds=5,
    row_rounds=10,
    steady_s=5,
    group_by_rows=500_000,
    group_by_rounds=5,
    command_rounds=3,
)
