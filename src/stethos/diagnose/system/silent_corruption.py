"""SYS019: a device that computes something else when it is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.program.inspected import COLUMNS, details
from stethos.diagnose.training import column_of, texts_of
from stethos.diagnose.window import Window
from stethos.store.frame import is_null
from stethos.store.literal import literal

_WORDS = {"activation": "the output", "gradient": "the gradient", "weight": "the weights"}


class _Check(NamedTuple):
    """A step that was repeated."""

    process: str
    rank: int | None
    step: int
    facts: dict[str, Any]

    @property
    def outcome(self) -> str:
        return str(self.facts.get("outcome", ""))

    @property
    def layer(self) -> str:
        return str(self.facts.get("layer", ""))


@dataclass(frozen=True, slots=True)
class SilentCorruption:
    """A step gave different bits when repeated on the same batch: something computed or stored a wrong number.

    What it looks at: steps that `stethos run --sdc SHARE` repeats on the same batch, weights and random state. Outputs
    of modules and gradients of parameters are compared to the last bit. If two executions differ, three more follow:
    one that differs from four equal ones is corrupt. Steps that differ in other ways, or too often, are reported as not
    repeatable, which accuses no device.

    Why it matters: a wrong number raises no error; it spreads to all weights and, by averaging, to all ranks.

    Not a fault when: an operation is not deterministic and differs rarely. `torch.use_deterministic_algorithms(True)`
    tells.

    Next step: run the device's own tests (`dcgmi diag -r 3`, a memory test), and train from the last checkpoint before.
    """

    code: ClassVar[str] = "SYS019"
    name: ClassVar[str] = "silent-corruption"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"inspections": frozenset({"step", "phase", "detail"})}
    reads: ClassVar[Needs] = {"inspections": COLUMNS}
    explains: ClassVar[frozenset[str]] = frozenset({"replica-divergence"})

    least_equal: int = threshold(3, "repeated steps that gave the same bits")
    most_share: float = threshold(
        0.1, "share of repeated steps that differ, at most: else the program varies by itself"
    )

    def check(self, window: Window) -> Iterator[Finding]:
        checks = _checks_of(window)
        equal = sum(one.outcome == "equal" for one in checks)
        unequal = [one for one in checks if one.outcome in ("corrupt", "differs")]
        often = {
            layer
            for layer, count in Counter(one.layer for one in unequal).items()
            if equal < self.least_equal or count > max(1.0, self.most_share * len(checks))
        }
        often |= {one.layer for one in unequal if one.outcome == "differs"}
        for process in dict.fromkeys(one.process for one in unequal):
            mine = [one for one in unequal if one.process == process and one.layer not in often]
            if mine:
                yield self._corrupt(mine, len(checks))
        rest = [one for one in unequal if one.layer in often]
        if rest:
            yield self._not_repeatable(rest, len(checks))

    def _corrupt(self, mine: list[_Check], checked: int) -> Finding:
        first = mine[0]
        who = f"process {first.process}" if first.rank is None else f"rank {first.rank}"
        what = _WORDS.get(str(first.facts.get("kind")), "a result")
        where = str(first.facts.get("where", ""))
        if first.facts.get("kind") == "weight":
            title = f"{who}: {what} {first.layer} changed during step {first.step}, though no operation changed them"
        else:
            title = f"{who} computed {what} of {first.layer} wrongly in step {first.step}"
            title += ", in a repetition: the training's own step was right" if where == "repetition" else ""
        text = f"{len(mine)} of {checked} checked steps differ in one of {first.facts.get('executions', 1)} executions"
        return Finding(
            self.code, self.name, str(first.facts.get("kind")), self.severity, title,
            Subject(
                process=first.process, ranks=() if first.rank is None else (first.rank,), layers=(first.layer,),
                first=first.step, unit="step",
            ),
            0.9 if checked >= 20 else 0.75, (Evidence(text, _sql(first.process)),),
            "test the device and its memory, and go on from a checkpoint before that step",
            {"step": first.step, "where": where, "steps": [one.step for one in mine][:20]},
        )  # fmt: skip

    def _not_repeatable(self, rest: list[_Check], checked: int) -> Finding:
        first = rest[0]
        layers = tuple(dict.fromkeys(one.layer for one in rest if one.layer))
        text = f"{len(rest)} of {checked} checked steps were not equal when repeated, the first is step {first.step}"
        return Finding(
            self.code, self.name, "not-repeatable", Severity.INFO,
            f"steps cannot be checked for corruption: {', '.join(layers[:2])} is not the same when repeated",
            Subject(process=first.process, layers=layers[:1], first=first.step, unit="step"),
            0.6, (Evidence(text, _sql(first.process)),),
            "call `torch.use_deterministic_algorithms(True)`, and look for state outside of the modules",
            {"step": first.step},
        )  # fmt: skip


def _checks_of(window: Window) -> list[_Check]:
    frame = window.frame("inspections")
    if not len(frame):
        return []
    told = frame.where(texts_of(frame, "phase") == "repeated").sorted_by("step")
    process, step = texts_of(told, "process").tolist(), column_of(told, "step").tolist()
    rank = column_of(told, "rank") if "rank" in told else None
    unknown = is_null(rank).tolist() if rank is not None else []
    return [
        _Check(str(process[at]), None if rank is None or unknown[at] else int(rank[at]), int(step[at]), facts)
        for at, facts in enumerate(details(told))
    ]


def _sql(process: str) -> str:
    return (
        "SELECT step, rank, detail FROM inspections WHERE phase = 'repeated' AND detail->>'outcome' <> 'equal' "
        f"AND process = {literal(process)} ORDER BY step"
    )
