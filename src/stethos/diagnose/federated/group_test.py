"""Names a faulty client from sums over groups alone; see `federate.group_sums`.

What a group brings along is the mean of what its members do, constant over the rounds, and chance. Honest clients
differ, too. So for each client two explanations are compared: the differences among honest clients and chance, and
these with this client apart from the others (generalised least squares; the spread of honest clients is the one that
explains the sums best).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
AHEAD = 1.2  # as far ahead of the next client
FEWEST_ROUNDS = 6
_SPREADS = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # variance among honest clients per that of chance


@dataclass(frozen=True, slots=True)
class JudgedTrait:
    """How a quantity is judged: which way is bad, what clients may differ by, how far out is too far."""

    sign: int  # 1 high, -1 low, 0 both
    least: float  # spread of honest clients, at least
    far: float  # standard deviations
    first: int = 2  # round from which on it tells something


QUANTITIES = {
    "log_norm": JudgedTrait(0, 0.15, 12.0),  # honest clients with few or odd samples go farther, and their own way
    "log_entry_loss": JudgedTrait(1, 0.10, 6.0, 4),
    "cos_last": JudgedTrait(0, 0.04, 12.0),
    "log_sent": JudgedTrait(0, 0.02, 5.0, 1),
    "cos_sent": JudgedTrait(-1, 0.02, 5.0, 1),
    "disputed": JudgedTrait(1, 0.05, 6.0, 8),
    "log_spread": JudgedTrait(1, 0.05, 4.4),  # few samples, or of one kind, are spread less; noise spreads more
    "level": JudgedTrait(0, 0.03, 5.5),
    "right": JudgedTrait(-1, 0.04, 6.0, 6),
    "zero_share": JudgedTrait(0, 0.02, 6.0),
}
LABELS = ("log_entry_loss", "disputed", "right")  # the answers of the incoming model
DIRECTION = "cos_last"
LABELS_FAR = 4.2


class Sums(Protocol):
    """One round of sums: members by group, and a row of traits per group."""

    @property
    def round(self) -> int: ...
    @property
    def members(self) -> list[npt.NDArray[np.int64]]: ...
    @property
    def traits(self) -> Vector: ...


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """How much each client stands out (1 accuses), and who does so beyond doubt; `trait` says in what.

    `apart` is what each client brings along in that trait beyond the others.
    """

    scores: Vector
    client: int | None
    trait: str
    apart: Vector


def decode(rounds: Sequence[Sums], clients: int, traits: Sequence[str]) -> GroupVerdict:
    """Which client's presence explains what groups differ in."""
    found = standing_out(rounds, clients, traits)
    margins = {name: z / QUANTITIES[name].far for name, (z, _) in found.items() if name not in LABELS}
    margins |= _of_labels(found)
    scores = np.max(list(margins.values()), axis=0) if margins else np.zeros(clients)
    first, second = (*np.argsort(scores)[::-1][:2], 0)[:2]
    is_sure = bool(clients >= 3 and scores[first] > 1 and scores[first] > AHEAD * scores[second])
    trait = max(margins, key=lambda name: float(margins[name][first]), default="")
    return GroupVerdict(scores, int(first) if is_sure else None, trait, found[trait][1] if trait else scores)


def _of_labels(found: Mapping[str, tuple[Vector, Vector]]) -> dict[str, Vector]:
    """How far out each client's labels are, under the name of what says so most; 1 accuses.

    The model answers otherwise than a client's labels say where they are wrong, and where the client has classes that
    the model has not learnt. Wrong labels also pull the update back; new classes do so less. So both have to say it.
    """
    labels = {name: found[name][0] for name in LABELS if name in found}
    if not labels or DIRECTION not in found:
        return {}
    answers = np.sqrt(np.sum(np.square(list(labels.values())), axis=0))
    z, apart = found[DIRECTION]
    joint = np.sqrt(answers * np.where(apart < 0, z, 0.0)) / LABELS_FAR
    strongest = np.max(list(labels.values()), axis=0)
    return {name: np.where(one == strongest, joint, 0.0) for name, one in labels.items()}


def standing_out(rounds: Sequence[Sums], clients: int, traits: Sequence[str]) -> Mapping[str, tuple[Vector, Vector]]:
    """By quantity how far each client is from the others in standard deviations, the bad way, and by how much."""
    found: dict[str, tuple[Vector, Vector]] = {}
    explained: dict[int, list[_Explained]] = {}
    for place, name in enumerate(traits):
        quantity = QUANTITIES.get(name)
        used = [one for one in rounds if quantity is not None and one.round >= quantity.first and len(one.members) > 1]
        if quantity is None or len(used) < FEWEST_ROUNDS:
            continue
        if quantity.first not in explained:
            explained[quantity.first] = _explained(used, clients)
        means = np.concatenate([one.traits[:, place] / [len(part) for part in one.members] for one in used])
        z, apart = _apart(explained[quantity.first], means, quantity.least)
        found[name] = (np.abs(z) if quantity.sign == 0 else np.maximum(quantity.sign * z, 0.0)), apart
    return found


@dataclass(frozen=True, eq=False)
class _Explained:
    """The sums under one spread of honest clients: what makes them independent, and each client's part in them."""

    whiten: Vector
    design: Vector
    log_det: float


def _explained(rounds: Sequence[Sums], clients: int) -> list[_Explained]:
    design = np.concatenate([_design(one, clients) for one in rounds])
    within = _within_rounds([len(one.members) for one in rounds])
    found = []
    for spread in _SPREADS:
        covariance = within.T @ (spread * design @ design.T + np.eye(len(design))) @ within
        lower = np.linalg.cholesky(covariance)
        whiten: Vector = np.linalg.solve(lower, within.T).astype(np.float64)
        found.append(_Explained(whiten, whiten @ design, 2 * float(np.log(np.diag(lower)).sum())))
    return found


def _within_rounds(groups: Sequence[int]) -> Vector:
    """Columns that compare the groups of a round with each other: what a round does to all of them is left out."""
    columns = np.zeros((sum(groups), sum(groups) - len(groups)))
    row = column = 0
    for count in groups:
        if count > 1:
            basis = np.linalg.qr(np.concatenate([np.ones((count, 1)), np.eye(count)[:, : count - 1]], axis=1))[0]
            columns[row : row + count, column : column + count - 1] = basis[:, 1:]
            column += count - 1
        row += count
    return columns


def _apart(explained: Sequence[_Explained], means: Vector, least: float) -> tuple[Vector, Vector]:
    """For each client as the one that is apart: in how many standard deviations, and by how much."""
    best: tuple[float, Vector, Vector] | None = None
    for one in explained:
        values = one.whiten @ means
        size, along = (one.design**2).sum(0) + 1e-12, one.design.T @ values
        apart = along / size
        gained = along * apart
        left = np.maximum(float(values @ values) - gained, 0.0)
        likely = -len(values) / 2 * float(np.log(left.min() + 1e-9)) - one.log_det / 2
        if best is None or likely > best[0]:
            variance = np.maximum(left / len(values), size * least**2)  # an honest client may be off by `least`
            best = likely, np.sign(apart) * np.sqrt(gained / np.maximum(variance, 1e-18)), apart
    assert best is not None
    return best[1], best[2]


def _design(one: Sums, clients: int) -> Vector:
    table = np.zeros((len(one.members), clients))
    for place, part in enumerate(one.members):
        table[place, part] = 1 / len(part)
    return table
