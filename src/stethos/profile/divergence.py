"""Where two runs of the same program part: the first step at which something of them differs to the last bit."""

from __future__ import annotations

import struct
from dataclasses import asdict, dataclass
from typing import Any

from stethos.store.literal import literal
from stethos.store.run import Run

# In the order in which a step goes: what is first is the cause of what follows.
_ORDER = ("random state", "inputs", "targets", "weights", "loss", "gradients", "learning rate")
_INSPECTED = {"random_hash": "random state", "input_hash": "inputs", "label_hash": "targets"}
_STEPPED = {"loss": "loss", "lr": "learning rate"}  # `grad_norm` is rounded in one of two ways
_STATISTICS = "norm, mean, std, min, max, nan, inf"

Key = tuple[int, int, int, str]  # step, place in the order, place of the layer, its name
Facts = dict[Key, Any]


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference of two runs; `what` is "" if there is none in the steps that both have."""

    what: str = ""
    step: int | None = None
    layer: str = ""
    rank: int | None = None
    equal_until: int | None = None
    compared_steps: int = 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def sentence(self) -> str:
        if not self.compared_steps:
            return "the runs have no step in common"
        if not self.what:
            return f"no difference in {self.compared_steps:,} steps"
        who = "" if self.rank is None else f" of rank {self.rank}"
        layer = f" of {self.layer}" if self.layer else ""
        since = "from the first step on" if self.equal_until is None else f"all was equal until step {self.equal_until}"
        verb = "differ" if self.what in ("inputs", "targets", "weights", "gradients") else "differs"
        return f"the runs part at step {self.step}: the {self.what}{layer}{who} {verb}; {since}"


def find_parting(first: Run, second: Run) -> Parting:
    """Compare two runs, rank by rank or process by process in the order in which they began."""
    found = [
        _parting_of(_facts_of(first, one), _facts_of(second, other), rank)
        for (one, rank), (other, _) in zip(_processes(first), _processes(second), strict=False)
    ]
    parted = [one for one in found if one.what]
    if parted:
        return min(parted, key=lambda one: (one.step if one.step is not None else 0, _ORDER.index(one.what)))
    return max(found, key=lambda one: one.compared_steps, default=Parting())


def _parting_of(first: Facts, second: Facts, rank: int | None) -> Parting:
    common = sorted(first.keys() & second.keys())
    steps = sorted({key[0] for key in common})
    unlike = next((key for key in common if first[key] != second[key]), None)
    if unlike is None:
        return Parting(rank=rank, compared_steps=len(steps))
    step, order, _, layer = unlike
    before = [one for one in steps if one < step]
    return Parting(_ORDER[order], step, layer, rank, before[-1] if before else None, len(steps))


def _processes(run: Run) -> list[tuple[str, int | None]]:
    rows = run.rows("SELECT process, min(rank) AS rank, min(t_ns) FROM steps GROUP BY process ORDER BY 2, 3").values
    return [(str(process), None if rank is None else int(rank)) for process, rank, _ in rows]


def _facts_of(run: Run, process: str) -> Facts:
    """What is known of a process, bit by bit: a number that is not known is left out."""
    where = f"process = {literal(process)}"
    facts: Facts = {}
    names = ", ".join(_STEPPED)
    for step, *values in run.rows(f"SELECT step, {names} FROM steps WHERE {where} ORDER BY step").values:
        _note(facts, step, values, list(_STEPPED.values()))
    names = ", ".join(_INSPECTED)
    inspected = f"SELECT step, {names} FROM inspections WHERE {where} AND phase = 'training' ORDER BY t_ns"
    for step, *values in run.rows(inspected).values:
        _note(facts, step, values, list(_INSPECTED.values()))
    places: dict[str, int] = {}
    sampled = (
        f"SELECT step, kind, layer, checksum, {_STATISTICS} FROM layers "
        f"WHERE {where} AND kind IN ('weight', 'gradient')"
    )
    for step, kind, layer, checksum, *values in run.rows(sampled).values:
        place = 2 * places.setdefault(str(layer), len(places))
        order = _ORDER.index(f"{kind}s")
        facts[int(step), order, place, str(layer)] = tuple(_bits(value) for value in values)
        if checksum is not None:
            facts[int(step), order, place + 1, str(layer)] = checksum
    return facts


def _note(facts: Facts, step: Any, values: list[Any], kinds: list[str]) -> None:
    """Of several backwards of one step the first counts."""
    for value, kind in zip(values, kinds, strict=True):
        if value is not None and step is not None:
            facts.setdefault((int(step), _ORDER.index(kind), -1, ""), _bits(value))


def _bits(value: Any) -> Any:
    return struct.pack("<d", value) if isinstance(value, float) else value
