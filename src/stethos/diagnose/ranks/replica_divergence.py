"""RNK001: replicas of one model that are no longer equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, details
from stethos.diagnose.ranks.rank_steps import ByRank, Numbers, RankSteps, by_rank, differs, minority
from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import Frame
from stethos.store.literal import literal

_SHARDING = ("all_gather", "reduce_scatter", "allgather")  # collectives of models that no rank holds whole
_STATISTICS = ("norm", "mean", "min", "max", "nan", "inf", "checksum", "size")


class Place(NamedTuple):
    """Where ranks can be compared: by checksums of inspected steps, or by statistics of sampled ones."""

    step: int
    layer: str
    source: str


Compared = dict[Place, ByRank]


@dataclass(frozen=True, slots=True)
class ReplicaDivergence:
    """Ranks that train copies of one model no longer hold the same weights.

    What it looks at: checksums of all weights at inspected steps (in CPU memory), and statistics of sampled layers with
    their checksums (on a GPU), at equal steps of all ranks: copies that start equal and apply the same gradients stay
    equal to the last bit. Layers count as copies under DistributedDataParallel, if they were once equal after a step,
    or if all ranks apply the same gradients at every step. Sharded tensors are left out.
    Why it matters: the ranks train different models; what is saved at the end is one of them.
    Not a fault when: the ranks train different models on purpose, or average their weights now and then (local SGD).
    Next step: the finding says what differs first: the start, the learning rates, the number of steps, the gradients or
    their scale, or the weights despite equal gradients.
    """

    code: ClassVar[str] = "RNK001"
    name: ClassVar[str] = "replica-divergence"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"processes": frozenset({"process", "rank"})}
    reads: ClassVar[Needs] = {
        "layers": frozenset({"process", "rank", "step", "layer", "kind", *_STATISTICS}),
        "collectives": frozenset({"rank", "op"}),
        "inspections": COLUMNS,
        "steps": frozenset({"rank", "step", "grad_norm", "lr"}),
        "processes": frozenset({"process", "rank", "state"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset(
        {"overfitting", "oscillation", "implausible-loss", "plateau", "slow-progress", "learning-rate-too-low"}
    )

    least: int = threshold(2, "layers and steps that differ, where no majority tells who is wrong")
    least_steps: int = threshold(4, "inspected steps at which buffers differ")

    def check(self, window: Window) -> Iterator[Finding]:
        inspections = window.frame("inspections")
        rows = details(inspections) if len(inspections) else []
        is_replicated = any(row.get("replicated") for row in rows)
        unexchanged = self._unexchanged(inspections, rows)
        if unexchanged is not None:
            yield unexchanged
            return
        yield from self._buffers(inspections, rows)
        steps = RankSteps.of(window, is_replicated)
        weights = {**_checksums(inspections, rows), **_statistics(window, is_replicated)}
        common = sorted(place for place, ranks in weights.items() if len(ranks) > 1)
        copies = _copied(common, weights, is_replicated or bool(steps.shared_scale()))
        unlike = [place for place in copies if differs(weights[place])]
        is_voted = is_replicated and len(minority([weights[place] for place in unlike])) == 1
        if len(unlike) < (1 if is_voted else self.least) or _are_equal_again(unlike, copies, weights):
            return
        yield self._finding(copies, unlike, weights, steps)

    def _unexchanged(self, frame: Frame, rows: list[dict[str, Any]]) -> Finding | None:
        """Parameters that came into the model after it was wrapped."""
        where = by_rank(frame) if len(frame) else ()
        found = {rank: rows[at]["unexchanged"] for at, _, rank in where if rows[at].get("unexchanged")}
        if not found:
            return None
        names = next(iter(found.values()))
        title = f"DistributedDataParallel does not exchange the gradients of {_few(names)}: it came after wrapping"
        return Finding(
            self.code, self.name, "parameters-not-exchanged", self.severity, title,
            Subject(ranks=tuple(sorted(found)), layers=tuple(names[:1]), first=0, unit="step"), 0.96,
            (Evidence(
                f"{len(names)} trained parameters inside the wrapped model are not among those it was built with",
                "SELECT step, rank, detail FROM inspections WHERE phase = 'training' ORDER BY step, rank",
            ),),
            "replace layers before the model is wrapped in DistributedDataParallel",
        )  # fmt: skip

    def _buffers(self, frame: Frame, rows: list[dict[str, Any]]) -> Iterator[Finding]:
        """Buffers that never change and are not the same on all ranks; those that do are statistics."""
        seen: dict[str, dict[int, set[object]]] = {}
        steps: set[int] = set()
        for at, step, rank in by_rank(frame) if len(frame) else ():
            steps.add(step)
            for name, number in (rows[at].get("buffers") or {}).items():
                seen.setdefault(name, {}).setdefault(rank, set()).add(number)
        unlike = {
            name: {rank: next(iter(numbers)) for rank, numbers in ranks.items()}
            for name, ranks in seen.items()
            if len(ranks) > 1 and all(len(numbers) == 1 for numbers in ranks.values())
        }
        unlike = {name: ranks for name, ranks in unlike.items() if differs(ranks)}
        if not unlike or len(steps) < self.least_steps:
            return
        names = list(unlike)
        yield Finding(
            self.code, self.name, "buffers-differ", self.severity,
            f"the ranks hold different values in {_few(names)}, which nothing trains or exchanges",
            Subject(ranks=minority(list(unlike.values())), layers=tuple(names[:1]), first=0, unit="step"), 0.93,
            (Evidence(
                f"{len(names)} buffers stay as they are at {len(steps)} inspected steps, each rank has its own",
                "SELECT step, rank, detail FROM inspections WHERE phase = 'training' ORDER BY step, rank",
            ),),
            "make them the same on all ranks: seed all ranks alike before the model is made, or leave `init_sync` and "
            "`broadcast_buffers` on",
        )  # fmt: skip

    def _finding(self, copies: list[Place], unlike: list[Place], weights: Compared, steps: RankSteps) -> Finding:
        first = unlike[0].step
        layers = tuple(dict.fromkeys(place.layer for place in unlike if place.step == first))
        ranks = minority([weights[place] for place in unlike])
        before = [place.step for place in copies if place.step < first]
        since = before[-1] if before else first
        who = f"rank {ranks[0]}" if len(ranks) == 1 else "the ranks"
        if not before:
            kind, title = "different-start", "the ranks began with different weights"
            advice = "broadcast the weights before training: do not switch off `init_sync`; seed all ranks alike"
        elif (lazy := steps.behind()) and steps.is_shifted(first):
            kind, ranks = "steps-skipped", lazy
            title = f"{_names(lazy)} left out an optimizer step that the others made, at about step {since} to {first}"
            advice = "decide on all ranks together whether a step is left out: `all_reduce` the condition"
        elif slow := steps.other_rates(first):
            kind, ranks = "rates-differ", slow
            title = f"{_names(slow)} trains with another learning rate than the other ranks, since step {since}"
            title = title if len(slow) < len(steps.ranks) else f"the ranks have different learning rates since {since}"
            advice = "set the rate on all ranks alike; give schedulers a loss that is averaged over the ranks"
        elif len({round(math.log(times), 4) for times in steps.shared_scale().values()}) > 1:
            scale = steps.shared_scale()
            most, least = max(scale, key=scale.__getitem__), min(scale, key=scale.__getitem__)
            kind, ranks = "gradients-scaled", minority([{rank: round(math.log(x), 4) for rank, x in scale.items()}])
            title = (
                f"rank {most} applies {scale[most] / scale[least]:.3g} times the gradients that rank {least} applies"
            )
            advice = "divide the sum of the gradients by the number of ranks on every rank, or on none"
        elif any(differs(hashes) for step, hashes in steps.exchanged.items() if step >= first):
            kind = "gradients-not-exchanged"
            title = f"the ranks do not exchange their gradients any more, since step {since} to {first}"
            advice = "call the wrapped model in every step, not `model.module`; leave `no_sync()` for the last backward"
            if beside := _beside(copies, unlike):
                layers = beside
                title = (
                    f"the ranks do not exchange the gradients of {_few(list(beside))}, since step {since} to {first}"
                )
                advice = "put these layers into the wrapped model, or `all_reduce` their gradients"
        elif any(_are_apart(norms.values()) for step, norms in steps.applied.items() if step >= since):
            kind, ranks = "gradients-differ", _changing(steps.made, steps.applied) or ranks
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
                "SELECT step, rank, norm, checksum FROM layers WHERE kind = 'weight' "
                f"AND layer = {literal(layers[0])} ORDER BY step, rank"
            )
        subject = Subject(ranks=ranks, layers=layers[:1], first=first, unit="step")
        return Finding(
            self.code, self.name, kind, self.severity, title, subject, 0.97 if len(unlike) > 2 else 0.85,
            (Evidence(text, sql),), advice, {"equal_until": since if before else None},
        )  # fmt: skip


def _names(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _beside(copies: list[Place], unlike: list[Place]) -> tuple[str, ...]:
    """The layers that differ, if others stay equal all the time: they are beside the model that is exchanged."""
    last = max(place.step for place in unlike)
    apart = {place.layer for place in unlike}
    equal = {place.layer for place in copies if place.step == last} - apart
    return tuple(dict.fromkeys(place.layer for place in unlike if place.step == last)) if equal else ()


def _are_apart(norms: Collection[float]) -> bool:
    """Whether norms differ by more than the order in which their squares were added up."""
    return not math.isclose(min(norms), max(norms), rel_tol=1e-4)


def _copied(common: list[Place], weights: Compared, is_replicated: bool) -> list[Place]:
    """The places of layers that are meant to be copies; without DDP's word those that were equal after a step."""
    equal = Counter(place.layer for place in common if place.step and not differs(weights[place]))
    return [place for place in common if is_replicated or equal[place.layer] > 1]


def _are_equal_again(unlike: list[Place], copies: list[Place], weights: Compared) -> bool:
    """Whether a layer that differed was equal later: its ranks average their weights now and then."""
    first: dict[tuple[str, str], int] = {}
    for place in unlike:
        first.setdefault((place.layer, place.source), place.step)
    return any(
        place.step > first.get((place.layer, place.source), place.step) and not differs(weights[place])
        for place in copies
    )


def _checksums(frame: Frame, rows: list[dict[str, Any]]) -> Compared:
    found: Compared = {}
    for at, step, rank in by_rank(frame) if len(frame) else ():
        weights = rows[at].get("weights")
        for layer, number in weights.items() if isinstance(weights, dict) else ():
            found.setdefault(Place(step, layer, "inspections"), {})[rank] = number
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


def _statistics(window: Window, is_replicated: bool) -> Compared:
    """What is known of layers on a device; nothing where models are sharded, as every rank has other parts then.

    DDP itself gathers the shapes of all parameters once, when it is made.
    """
    operations = {str(op) for op in texts_of(window.frame("collectives"), "op").tolist() if op}
    is_sharded = not operations or any(word in op for op in operations for word in _SHARDING)
    frame = window.frame("layers")
    found: Compared = {}
    if (is_sharded and not is_replicated) or not len(frame):
        return found
    mine = frame.where(texts_of(frame, "kind") == "weight")
    columns = [column_of(mine, name).tolist() for name in _STATISTICS]
    layer = texts_of(mine, "layer")
    sizes: dict[str, set[float]] = {}
    for at, step, rank in by_rank(mine):
        sizes.setdefault(str(layer[at]), set()).add(columns[-1][at])
        values = tuple("nan" if column[at] != column[at] else column[at] for column in columns)
        found.setdefault(Place(step, str(layer[at]), "layers"), {})[rank] = values
    return {place: ranks for place, ranks in found.items() if len(sizes[place.layer]) == 1}
