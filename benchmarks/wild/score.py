"""Tables of the wild benchmark: whom `faulty-client` accuses, by axis, beside plain rules on the same federations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.wild.families import OF_LABELS
from benchmarks.wild.fifth.fault import FAMILY as FIFTH_FAMILY
from benchmarks.wild.fourth.fault import FAMILY as FOURTH_FAMILY
from benchmarks.wild.kept import kept, window_of
from benchmarks.wild.third.fault import FAMILY
from stethos.diagnose.detector import CannotTell
from stethos.diagnose.federated.cohort import Cohort, cohorts_of
from stethos.diagnose.federated.faulty_client import FaultyClient
from stethos.diagnose.window import Frame, Window

Array = npt.NDArray[np.float64]
KIND_OF = {
    "label-flip": "label", "label-noise": "label", "third-label-noise": "label", "off-by-one": "label",
    "one-label": "label", "labels-late": "label", "feature-noise": "feature", "missing": "feature", "units": "feature",
    "unnormalised": "feature", "imputed": "feature", "columns-shifted": "feature", "reversed": "feature",
    "rounded": "feature", "duplicates": "duplicates", "backdoor": "backdoor", "target-units": "target",
    "sign-flip": "sent", "third-sign-flip": "sent", "scaling": "sent", "update-noise": "sent", "int8-wrap": "sent",
    "half-trained": "sent", "free-rider-zero": "sent", "free-rider-delta": "sent", "free-rider-noise": "sent",
    "nan": "nan", "inf": "nan", "wrong-lr": "training", "stale": "stale", "no-zero-grad": "training",
    "sum-loss": "training", "second-of-two": "sent", "double": "sent", "echo": "sent", "one-layer-turned": "sent",
    "swapped-columns": "feature", "saturated": "feature", "log-scale": "feature", "filled": "feature",
    "labels-swapped": "label", "frozen-body": "training", "slow-lr": "training", "stuck-batch": "duplicates",
    **{fault: family for fault, family in (FAMILY | FOURTH_FAMILY | FIFTH_FAMILY).items() if family != "unknown"},
    "ascent": "training", "shuffled": "label",
}  # fmt: skip
_FAMILY = {
    "label-flip": "label", "label-noise": "label", "feature-fault": "feature", "duplicates": "duplicates",
    "backdoor": "backdoor", "target-fault": "target", "sign-flip": "sent", "scaling": "sent", "update-noise": "sent",
    "free-rider": "sent", "nan": "nan", "wrong-lr": "training", "unknown": "training", "stale": "stale",
}  # fmt: skip


class Outcome(NamedTuple):
    """What came of one federation; `accused` holds kind and confidence by client."""

    case: dict[str, Any]
    faulty: frozenset[str]
    foreign: str | None
    accused: dict[str, tuple[str, float]]
    updates_only: dict[str, tuple[str, float]]
    farthest: str
    highest_loss: str
    far: frozenset[str]  # by a cut that is told no number
    long: frozenset[str]

    @property
    def is_exact(self) -> bool:
        return set(self.accused) == self.faulty


def accused_in(window: Window) -> dict[str, tuple[str, float]]:
    found: dict[str, tuple[str, float]] = {}
    try:
        for finding in FaultyClient().check(window):
            if len(finding.subject.clients) == 1:  # "all clients ..." accuses nobody
                found[finding.subject.clients[0]] = (finding.kind, finding.confidence)
    except CannotTell:
        pass
    return found


def outcome_of(played: dict[str, Any]) -> Outcome:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    window = window_of(played)
    outside = Window({name: Frame(columns) for name, columns in played["rows"].items() if name != "evidence"})
    _, cohort = next(iter(cohorts_of(window)))
    return Outcome(
        played["case"], frozenset(played["faulty"]), played["foreign"], accused_in(window), accused_in(outside),
        _top(cohort, 1 - cohort.cos_centre), _top(cohort, cohort.entry_loss),
        _beyond(cohort, 1 - cohort.cos_centre), _beyond(cohort, np.abs(np.log(cohort.norm_ratio))),
    )  # fmt: skip


def _top(cohort: Cohort, values: Array) -> str:
    """Whom a plain rule names that is told that it is one."""
    return cohort.clients[int(np.nan_to_num(np.nanmean(values, axis=0), nan=-np.inf).argmax())]


def _beyond(cohort: Cohort, values: Array) -> frozenset[str]:
    """Whom a plain rule names that is told no number: those beyond 3.5 robust standard deviations."""
    mean = np.nanmean(values, axis=0)
    middle = np.nanmedian(mean)
    spread = 1.4826 * np.nanmedian(np.abs(mean - middle)) + 1e-9
    return frozenset(name for name, far in zip(cohort.clients, (mean - middle) / spread, strict=True) if far > 3.5)


def wilson(good: int, total: int) -> str:
    if not total:
        return "-"
    z, p = 1.96, good / total
    middle, half = p + z * z / (2 * total), z * np.sqrt(p * (1 - p) / total + z * z / (4 * total * total))
    low, high = (middle - half) / (1 + z * z / total), (middle + half) / (1 + z * z / total)
    return f"{100 * p:.0f} % of {total} ({100 * low:.0f} to {100 * high:.0f})"


def share(results: Iterable[bool]) -> str:
    listed = list(results)
    return wilson(sum(listed), len(listed))


def show(name: str, *, lists_misses: bool) -> None:
    outcomes = [outcome_of(one) for one in kept(name)]
    for line in lines_of(outcomes):
        print(line)
    if lists_misses:
        for one in outcomes:
            if not one.is_exact:
                case = " ".join(str(one.case[key]) for key in ("seed", "data", "model", "algorithm", "split", "fault"))
                print(f"- {case}: faulty {sorted(one.faulty)}, foreign {one.foreign}, accused {one.accused}")


def lines_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Markdown."""
    clean = [one for one in outcomes if not one.faulty]
    single = [one for one in outcomes if len(one.faulty) == 1]
    several = [one for one in outcomes if len(one.faulty) > 1]
    foreign = [one for one in outcomes if one.foreign is not None]
    right = [
        (client in one.faulty, sure) for one in outcomes for client, (_, sure) in one.accused.items()
    ]  # fmt: skip
    kinds = [
        _FAMILY[one.accused[client][0]] == KIND_OF[one.case["fault"]]
        for one in outcomes for client in one.faulty if client in one.accused and one.case["fault"] in KIND_OF
    ]  # fmt: skip
    lines = [
        "| | with evidence from inside | updates alone |", "|---|---|---|",
        f"| one faulty: exactly it accused | {share(one.is_exact for one in single)} "
        f"| {share(set(one.updates_only) == one.faulty for one in single)} |",
        f"| one faulty: it is among the accused | {share(one.faulty <= set(one.accused) for one in single)} "
        f"| {share(one.faulty <= set(one.updates_only) for one in single)} |",
        f"| one faulty in its labels: exact | {share(o.is_exact for o in single if o.case['fault'] in OF_LABELS)} | |",
        f"| two faulty: exact | {share(one.is_exact for one in several)} "
        f"| {share(set(one.updates_only) == one.faulty for one in several)} |",
        f"| clean: somebody accused | {share(bool(one.accused) for one in clean)} "
        f"| {share(bool(one.updates_only) for one in clean)} |",
        f"| the honest foreign client accused | {share(one.foreign in one.accused for one in foreign)} "
        f"| {share(one.foreign in one.updates_only for one in foreign)} |",
        f"| accusations that are right | {share(good for good, _ in right)}, "
        f"mean confidence {np.mean([sure for _, sure in right] or [0]):.2f} | |",
        f"| family of fault right, of those found | {share(kinds)} | |",
        f"| told that it is one: farthest from the centre | {share({o.farthest} == o.faulty for o in single)} | |",
        f"| told that it is one: highest entry loss | {share({o.highest_loss} == o.faulty for o in single)} | |",
        *(
            f"| not told: {words}, 3.5 robust deviations | {share(set(getattr(o, name)) == o.faulty for o in single)}, "
            f"clean {share(bool(getattr(o, name)) for o in clean)} | |"
            for name, words in (("far", "far from the centre"), ("long", "long or short updates"))
        ),
    ]  # fmt: skip
    for title, key in (
        ("fault", "fault"), ("split", "split"), ("algorithm", "algorithm"), ("model", "model"), ("data", "data"),
    ):  # fmt: skip
        lines += ["", *_by(title, single, clean, lambda one, key=key: str(one.case[key]))]
    return lines


def _by(
    title: str, single: Sequence[Outcome], clean: Sequence[Outcome], key: Callable[[Outcome], str]
) -> list[str]:  # fmt: skip
    names = sorted({key(one) for one in (*single, *clean)} - {"None"})
    lines = [f"| {title} | one faulty: exact | clean: accuses |", "|---|---|---|"]
    for name in names:
        mine = [one.is_exact for one in single if key(one) == name]
        alarms = [bool(one.accused) for one in clean if key(one) == name]
        lines.append(f"| {name} | {share(mine)} | {share(alarms) if title != 'fault' else ''} |")
    return lines
