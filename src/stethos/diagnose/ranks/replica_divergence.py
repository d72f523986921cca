"""RNK001: replicas of one model that are no longer equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from stethos.diagnose.detector import Needs
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, details
from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame, is_null
from stethos.store.literal import literal

_SHARDING = ("all_gather", "reduce_scatter", "allgather")  # collectives of models that no rank holds whole
_STATISTICS = ("norm", "mean", "min", "max", "nan", "inf", "size")


class Place(NamedTuple):
    """Where ranks can be compared: by checksums of inspected steps, or by statistics of sampled ones."""

    step: int
    layer: str
    source: str


ByRank = dict[int, Hashable]
Compared = dict[Place, ByRank]
Numbers = dict[int, dict[int, float]]  # by step and rank


@dataclass(frozen=True, slots=True)
class ReplicaDivergence:
    """Ranks that train copies of one model no longer hold the same weights.

    What it looks at: checksums of all weights at inspected steps (in CPU memory), and sampled statistics of layers,
    at equal steps of all ranks: copies that begin alike and apply the same gradients stay equal to the last bit. Layers
    count as copies under DistributedDataParallel, else if they were equal after a step. Sharded tensors are left out.
    Why it matters: the ranks train different models; what is saved at the end is one of them.
    Not a fault when: the ranks train different models on purpose, or average their weights now and then (local SGD).
    Next step: the finding says what differs first: the start, the gradients, or weights in spite of equal gradients.
    """

    code: ClassVar[str] = "RNK001"
    name: ClassVar[str] = "replica-divergence"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "rank"})}
    reads: ClassVar[Needs] = {
        "layers": frozenset({"process", "rank", "step", "layer", "kind", *_STATISTICS}),
        "collectives": frozenset({"rank", "op"}),
        "inspections": COLUMNS,
        "steps": frozenset({"rank", "step", "grad_norm"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset({"overfitting", "oscillation", "implausible-loss", "plateau"})

    least: int = 2

    def check(self, window: Window) -> Iterator[Finding]:
        inspections = window.frame("inspections")
        rows = details(inspections) if len(inspections) else []
        is_replicated = any(row.get("replicated") for row in rows)
        weights = {**_checksums(inspections, rows), **_statistics(window)}
        common = sorted(place for place, ranks in weights.items() if len(ranks) > 1)
        copies = _copied(common, weights, is_replicated)
        unlike = [place for place in copies if _differs(weights[place])]
        if len(unlike) < self.least or _are_equal_again(unlike, copies, weights):
            return
        exchanged = _of_steps(inspections, "gradient_hash") if is_replicated else {}
        applied = _of_steps(window.frame("steps"), "grad_norm")
        made = _of_steps(inspections, "gradient_norm") if is_replicated else {}
        yield self._finding(copies, unlike, weights, exchanged, applied, made)

    def _finding(
        self, copies: list[Place], unlike: list[Place], weights: Compared, exchanged: Numbers,
        applied: Numbers, made: Numbers,
    ) -> Finding:  # fmt: skip
        first = unlike[0].step
        layers = tuple(dict.fromkeys(place.layer for place in unlike if place.step == first))
        ranks = _minority([weights[place] for place in unlike])
        before = [place.step for place in copies if place.step < first]
        since = before[-1] if before else first
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "the ranks"
        if not before:
            kind, title = "different-start", "the ranks began with different weights"
            advice = "broadcast the weights before training: do not switch off `init_sync`; seed all ranks alike"
        elif any(_differs(hashes) for step, hashes in exchanged.items() if step >= first):
            kind = "gradients-not-exchanged"
            title = f"the ranks do not exchange their gradients any more, since step {since} to {first}"
            advice = "call the wrapped model in every step, not `model.module`; leave `no_sync()` for the last backward"
        elif any(_are_apart(norms.values()) for step, norms in applied.items() if step >= since):
            kind, ranks = "gradients-differ", _changing(made, applied) or ranks
            who = f"rank {ranks[0]} alone" if len(ranks) == 1 else "each rank"
            title = f"{who} changes the gradients before it applies them, since step {since} to {first}"
            advice = "change gradients (clipping, scaling, freezing) on all ranks alike"
        else:
            kind = "weights-changed"
            title = f"the weights of {who} differ since step {since} to {first}, though the gradients are the same"
            if len(ranks) == 2 and len(weights[unlike[0]]) == 2:  # no majority
                title = f"one of the two ranks has wrong weights since step {since} to {first}, with equal gradients"
            advice = "look for code that changes weights or gradients on one rank only; else suspect its memory"
        text = (
            f"{len(unlike)} of {len(copies)} compared layers differ, at {len({place.step for place in unlike})} steps, "
            f"first {', '.join(layers[:3])} at step {first}; equal before: {f'step {since}' if before else 'never'}"
        )
        sql = f"SELECT step, rank, detail, gradient_hash FROM inspections WHERE step >= {since} ORDER BY step, rank"
        if unlike[0].source == "layers":
            sql = (
                "SELECT step, rank, norm, mean, min, max FROM layers WHERE kind = 'weight' "
                f"AND layer = {literal(layers[0])} ORDER BY step, rank"
            )
        subject = Subject(ranks=ranks, layers=layers[:1], first=first, unit="step")
        return Finding(
            self.code, self.name, kind, self.severity, title, subject, 0.97 if len(unlike) > 2 else 0.85,
            (Evidence(text, sql),), advice, {"equal_until": since if before else None},
        )  # fmt: skip


def _differs(ranks: Mapping[int, Hashable]) -> bool:
    return len(set(ranks.values())) > 1


def _are_apart(norms: Collection[float]) -> bool:
    """Whether norms differ by more than the order in which their squares were added up."""
    return not math.isclose(min(norms), max(norms), rel_tol=1e-4)


def _copied(common: list[Place], weights: Compared, is_replicated: bool) -> list[Place]:
    """The places of layers that are meant to be copies; without DDP's word those that were equal after a step."""
    equal = Counter(place.layer for place in common if place.step and not _differs(weights[place]))
    return [place for place in common if is_replicated or equal[place.layer] > 1]


def _are_equal_again(unlike: list[Place], copies: list[Place], weights: Compared) -> bool:
    """Whether a layer that differed was equal later: its ranks average their weights now and then."""
    first: dict[tuple[str, str], int] = {}
    for place in unlike:
        first.setdefault((place.layer, place.source), place.step)
    return any(
        place.step > first.get((place.layer, place.source), place.step) and not _differs(weights[place])
        for place in copies
    )


def _by_rank(frame: Frame) -> Iterator[tuple[int, int, int]]:
    """The place, step and rank of the rows that have a rank."""
    rank, step = column_of(frame, "rank"), column_of(frame, "step")
    for at in np.flatnonzero(~is_null(rank) & ~is_null(step)).tolist():
        yield at, int(step[at]), int(rank[at])


def _checksums(frame: Frame, rows: list[dict[str, object]]) -> Compared:
    found: Compared = {}
    for at, step, rank in _by_rank(frame) if len(frame) else ():
        weights = rows[at].get("weights")
        for layer, number in weights.items() if isinstance(weights, dict) else ():
            found.setdefault(Place(step, layer, "inspections"), {})[rank] = number
    return found


def _of_steps(frame: Frame, column: str) -> Numbers:
    """A column by step and rank; of several inspected backwards of one step the last."""
    found: Numbers = {}
    if len(frame) and "rank" in frame and column in frame:
        values = column_of(frame, column)
        is_known = ~is_null(values)
        for at, step, rank in _by_rank(frame):
            if is_known[at]:
                found.setdefault(step, {})[rank] = float(values[at])
    return found


def _changing(made: Numbers, applied: Numbers) -> tuple[int, ...]:
    """The ranks whose optimizer got gradients of another norm than backward had made."""
    return tuple(
        sorted(
            {
                rank
                for step, norms in made.items()
                for rank, norm in norms.items()
                if not math.isclose(norm, applied.get(step, {}).get(rank, norm), rel_tol=1e-3)
            }
        )
    )


def _statistics(window: Window) -> Compared:
    """What is known of layers on a device; nothing where models are sharded, as every rank has other parts then."""
    operations = {str(op) for op in texts_of(window.frame("collectives"), "op").tolist() if op}
    frame = window.frame("layers")
    found: Compared = {}
    if not operations or any(word in op for op in operations for word in _SHARDING) or not len(frame):
        return found
    mine = frame.where(texts_of(frame, "kind") == "weight")
    columns = [column_of(mine, name).tolist() for name in _STATISTICS]
    layer = texts_of(mine, "layer")
    sizes: dict[str, set[float]] = {}
    for at, step, rank in _by_rank(mine):
        sizes.setdefault(str(layer[at]), set()).add(columns[-1][at])
        values = tuple("nan" if column[at] != column[at] else column[at] for column in columns)
        found.setdefault(Place(step, str(layer[at]), "layers"), {})[rank] = values
    return {place: ranks for place, ranks in found.items() if len(sizes[place.layer]) == 1}


def _minority(places: list[ByRank]) -> tuple[int, ...]:
    """The ranks that differ from what most ranks have; all of them where there is no majority."""
    odd: Counter[int] = Counter()
    everybody: set[int] = set()
    for ranks in places:
        everybody |= set(ranks)
        value, count = Counter(ranks.values()).most_common(1)[0]
        if count > len(ranks) / 2:
            odd.update(rank for rank, mine in ranks.items() if mine != value)
    most = [rank for rank, count in odd.items() if count > len(places) / 2]
    return tuple(sorted(most or everybody))
