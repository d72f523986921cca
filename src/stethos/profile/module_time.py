"""Which modules a step's time goes to, each without its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stethos.profile.column import records

if TYPE_CHECKING:
    from stethos.store.run import Run

# A module that is called several times in a step has a row for each call: gradient accumulation, shared modules.
MODULE_SQL = """\
SELECT model, module, stage, avg(step_ms) AS duration_ms, max(most_bytes) AS allocated_bytes, count(*) AS samples
FROM (SELECT model, module, stage, sum(duration_ms) AS step_ms, max(allocated_bytes) AS most_bytes
      FROM modules LEFT JOIN (SELECT process, step, model FROM steps) USING (process, step)
      WHERE stage IN ('forward', 'backward') AND duration_ms >= 0 GROUP BY process, step, model, module, stage)
GROUP BY model, module, stage ORDER BY duration_ms DESC"""
_LONGEST = 48  # characters of a name on a screen
_ROOTS_SQL = "SELECT DISTINCT model FROM steps WHERE model IS NOT NULL"


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module: mean ms of a sampled step, its children's not included; None for a stage that was not seen."""

    module: str
    forward_ms: float | None
    backward_ms: float | None
    share: float
    allocated_bytes: int | None
    samples: int

    @property
    def short_name(self) -> str:
        """The end of a long name, which tells it from its neighbours."""
        return self.module if len(self.module) <= _LONGEST else f"…{self.module[1 - _LONGEST :]}"

    @property
    def self_ms(self) -> float:
        return (self.forward_ms or 0.0) + (self.backward_ms or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "module": self.module, "forward_ms": self.forward_ms, "backward_ms": self.backward_ms,
            "share": self.share, "allocated_bytes": self.allocated_bytes, "samples": self.samples,
        }  # fmt: skip


def read_module_times(run: Run) -> list[ModuleTime]:
    """All modules that were sampled, the slowest first."""
    rows = records(run, MODULE_SQL)
    roots = {name for (name,) in run.rows(_ROOTS_SQL).values} if rows else set()
    return module_times(rows, roots)


def module_times(rows: list[dict[str, Any]], roots: set[str]) -> list[ModuleTime]:
    """From means per module and stage, with children, to means without them; each over the steps that called it.

    Where a run trains several models, the names of a model's modules begin with its class.
    """
    models = {row["model"] for row in rows if row.get("model") is not None}
    own: dict[str, dict[str, float]] = {}
    outputs: dict[str, int] = {}
    samples: dict[str, int] = {}
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        name, stage = _qualified(row["module"], row.get("model"), models), row["stage"]
        stages = own.setdefault(name, {})
        stages[stage] = stages.get(stage, 0.0) + float(row["duration_ms"]) * row["samples"]
        counts[name, stage] = counts.get((name, stage), 0) + row["samples"]
        if row["allocated_bytes"] is not None:  # of the forward; a backward has none
            outputs[name] = max(outputs.get(name, 0), row["allocated_bytes"])
        samples[name] = max(samples.get(name, 0), counts[name, stage])
    inner = {name: dict(stages) for name, stages in own.items()}
    for name, stages in own.items():
        for parent in _parents(name, own, roots):
            for stage, duration in stages.items():
                if stage in inner[parent]:
                    inner[parent][stage] = max(0.0, inner[parent][stage] - duration)
    total = sum(sum(stages.values()) for stages in inner.values()) or 1.0
    mean = {name: {stage: ms / counts[name, stage] for stage, ms in stages.items()} for name, stages in inner.items()}
    found = [
        ModuleTime(
            name,
            mean[name].get("forward"),
            mean[name].get("backward"),
            sum(stages.values()) / total,
            outputs.get(name),
            samples[name],
        )
        for name, stages in inner.items()
    ]
    return sorted(found, key=lambda one: -one.share)


def _qualified(name: str, model: str | None, models: set[str]) -> str:
    """The module's name, with its model in front where there are several and it has not one."""
    is_plain = len(models) < 2 or model is None or name.partition(".")[0] in models or _is_loss(name)
    return name if is_plain else f"{model}.{name}"


def _is_loss(name: str) -> bool:
    """Whether it is the class of a loss, which is called on what the model returned: attributes are named otherwise."""
    return name.endswith("Loss") and name[0].isupper() and "." not in name


def _parents(name: str, known: dict[str, dict[str, float]], roots: set[str]) -> list[str]:
    """The nearest module around this one that was sampled; for the outermost ones the root, except for losses."""
    if name in roots or _is_loss(name):
        return []
    above = name.rpartition(".")[0]
    while above:
        if above in known:
            return [above]
        above = above.rpartition(".")[0]
    found = [root for root in roots if root in known]
    return found if len(found) == 1 else []
