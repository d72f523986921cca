"""The profile of a run: everything `stethos profile` shows, as data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.profile.bottleneck import Bottleneck, bottlenecks_of
from stethos.profile.column import records
from stethos.profile.compression import Compression, read_compression
from stethos.profile.memory_use import MemoryUse, read_memory_use
from stethos.profile.module_time import ModuleTime, read_module_times
from stethos.profile.round_time import ROUND_COLUMNS, RoundTime, round_times
from stethos.profile.step_time import COUNT_SQL, SKIPPED_STEPS, Epochs, StepTime, read_epochs, read_step_times, together
from stethos.profile.traffic import LayerSize, Traffic, read_layer_sizes, read_traffic
from stethos.profile.trip import TURN_COLUMNS
from stethos.store.frame import select
from stethos.store.html import table_html

if TYPE_CHECKING:
    from stethos.store.run import Run

ROUND_SQL = (  # of a round that was repeated, the last time
    f"SELECT {', '.join(sorted(ROUND_COLUMNS))} FROM rounds "
    "QUALIFY row_number() OVER (PARTITION BY federation, round ORDER BY t_ns DESC) = 1"
)
# Of a live or killed run, the round that was on.
OPEN_SQL = """\
SELECT max(round) AS round FROM (SELECT round FROM client_rounds UNION ALL SELECT round FROM steps)
WHERE round > (SELECT coalesce(max(round), 0) FROM rounds WHERE duration_ms IS NOT NULL)"""
TURN_SQL = f"SELECT {', '.join(sorted(TURN_COLUMNS))} FROM client_rounds"

_FEWEST_SAMPLED = 3  # steps: with fewer, one that was held up decides


@dataclass(frozen=True)
class Profile:
    """Where a run's time, memory and bytes went. Empty or None is what was not recorded."""

    run: str
    state: str
    rounds: tuple[RoundTime, ...]
    steps: tuple[StepTime, ...]
    epochs: Epochs | None
    modules: tuple[ModuleTime, ...]
    memory: MemoryUse
    traffic: tuple[Traffic, ...]
    layers: tuple[LayerSize, ...]
    compression: tuple[Compression, ...]
    bottlenecks: tuple[Bottleneck, ...]
    cold_steps: int = 0  # recorded, all of them while the process warmed up
    open_round: int | None = None  # begun, and without an end

    @property
    def all_steps(self) -> StepTime | None:
        return together(self.steps)

    @property
    def verdict(self) -> str:
        """The profile in one sentence."""
        if self.bottlenecks:
            return self.bottlenecks[0].verdict
        said = "; ".join(filter(None, (self._round_words(), self._step_words())))
        if not said and self.cold_steps:
            return f"too few steps to tell: {self.cold_steps}, and the first {SKIPPED_STEPS} of a process warm up"
        return said or "nothing that takes time was recorded"

    def _repr_html_(self) -> str:
        rows = [(one.verdict, one.next_step) for one in self.bottlenecks]
        return table_html(("what holds it up", "what to do") if rows else (), rows, f"run {self.run}: {self.verdict}")

    def _round_words(self) -> str:
        if not self.rounds:
            return ""
        one = max(self.rounds, key=lambda time: time.total_ms)
        shares = {"computing": one.share("compute"), "on links": one.share("download", "upload"),
                  "waiting": one.share("wait")}  # fmt: skip
        known = {name: share for name, share in shares.items() if math.isfinite(share)}
        listed = ", ".join(f"{share:.0%} {name}" for name, share in sorted(known.items(), key=lambda item: -item[1]))
        return f"no bottleneck: rounds are {listed}" if listed else ""

    def _step_words(self) -> str:
        steps = self.all_steps
        if steps is None:
            return ""
        share = steps.share("forward", "backward")
        head = "" if self.rounds else "no bottleneck: "
        if not math.isfinite(share):
            return "" if self.rounds else f"{head}forward or backward were not seen, so a step is not split"
        compute = f"{share:.0%} of a step are forward and backward"
        return f"{head}{compute}{'' if self.rounds else self._slowest_words()}"

    def _slowest_words(self) -> str:
        """The module that takes most of forward and backward, where enough steps were sampled to say so."""
        slowest = self.modules[0] if self.modules else None
        if slowest is None or slowest.samples < _FEWEST_SAMPLED:
            return ""
        much = "most" if slowest.share > 0.5 else f"{slowest.share:.0%}"
        return f", {much} of that in module {slowest.short_name}"

    @property
    def missing(self) -> list[str]:
        """What was not recorded, in words."""
        found = []
        if not self.rounds:
            found.append("rounds" if self.traffic else "rounds and clients")
        if not self.steps and self.cold_steps:
            found.append(f"steps beyond the first {SKIPPED_STEPS}, which warm up")
        elif not self.steps:
            found.append("steps")
        if self.open_round is not None:
            found.append(f"the end of round {self.open_round}, which is left out")
        if self.steps and self.epochs is None:
            found.append("epochs (no training data loader was read to its end)")
        if not self.modules:
            found.append("modules")
        if not self.memory.classes:
            found.append("memory by class")
        if self.memory.cpu_share is None:
            found.append("processor and resident memory")
        if not self.memory.gpus:
            found.append("GPU")
        if not self.traffic and self.rounds:
            found.append("clients")
        return found

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        steps = self.all_steps
        return {
            "run": self.run,
            "state": self.state,
            "verdict": self.verdict,
            "bottlenecks": [one.as_dict() for one in self.bottlenecks],
            "rounds": [one.as_dict() for one in self.rounds],
            "steps": None if steps is None else steps.as_dict(),
            "processes": [one.as_dict() for one in self.steps],
            "epochs": None if self.epochs is None else {
                "count": self.epochs.count, "median_ms": self.epochs.median_ms, "min_ms": self.epochs.min_ms,
                "max_ms": self.epochs.max_ms,
            },
            "modules": [one.as_dict() for one in self.modules],
            "memory": self.memory.as_dict(),
            "traffic": [one.as_dict() for one in self.traffic],
            "layers": [
                {"federation": one.federation, "layer": one.layer, "size": one.size, "share": one.share}
                for one in self.layers
            ],
            "compression": [one.as_dict() for one in self.compression],
            "cold_steps": self.cold_steps,
            "open_round": self.open_round,
            "not_recorded": self.missing,
        }  # fmt: skip


def find_bottlenecks(run: Run) -> list[Bottleneck]:
    """Only what holds a run up."""
    rounds = round_times(select(run, ROUND_SQL), select(run, TURN_SQL))
    memory = read_memory_use(run)
    sizes = [(one.layer, one.share) for one in read_layer_sizes(run)]
    return bottlenecks_of(rounds, read_step_times(run), sizes, memory.growth, memory.gpus, memory.kept)


def profile_of(run: Run) -> Profile:
    """Read a run, live or finished, and say where its time, memory and bytes went."""
    rounds = round_times(select(run, ROUND_SQL), select(run, TURN_SQL))
    steps, memory, layers = read_step_times(run), read_memory_use(run), read_layer_sizes(run)
    sizes = [(one.layer, one.share) for one in layers]
    found = bottlenecks_of(rounds, steps, sizes, memory.growth, memory.gpus, memory.kept)
    return Profile(
        run.name,
        str(run.rows("SELECT state FROM runs").values[0][0]),
        tuple(rounds),
        tuple(steps),
        read_epochs(run),
        tuple(read_module_times(run)),
        memory,
        tuple(read_traffic(run)),
        tuple(layers),
        tuple(read_compression(run)),
        tuple(found),
        0 if steps else int(records(run, COUNT_SQL)[0]["steps"]),
        records(run, OPEN_SQL)[0]["round"],
    )
