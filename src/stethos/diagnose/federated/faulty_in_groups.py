"""FED021: a client that spoils every group it is in, where secure aggregation reveals sums alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stethos.diagnose.detector import CannotTell, Needs
from stethos.diagnose.federated.group_test import FEWEST_ROUNDS, QUANTITIES, decode
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.frame import Frame
from stethos.store.literal import literal

# quantity: what it says of the client, what it is called, what to do
_WORDS = {
    "log_norm": ("sends updates of another size", "log length of the update", "have it check its training settings"),
    "log_entry_loss": ("has labels that the model does not agree with", "log loss of the incoming model", "have it check its labels"),  # noqa: E501
    "cos_last": ("trains in another direction", "cosine to the last global change", "have it check its labels and its training"),  # noqa: E501
    "log_sent": ("sends more or less than it trained", "log of sent per trained length", "have it check what it sends"),
    "cos_sent": ("sends other than what it trained", "cosine of sent to trained", "have it check what it sends"),
    "disputed": ("has a class that the model calls another", "share of a class answered as another", "have it check the labels of its classes"),  # noqa: E501
    "log_spread": ("has inputs of another spread", "log spread of the inputs", "have it check its preprocessing"),
    "level": ("has shifted inputs", "mean of the inputs", "have it check its preprocessing"),
    "right": ("has labels that the model does not agree with", "share answered as labelled", "have it check its labels"),  # noqa: E501
    "zero_share": ("leaves other weights alone than the others", "share of weights left alone", "have it check its inputs and what it sends"),  # noqa: E501
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Round:
    round: int
    members: list[npt.NDArray[np.int64]]
    traits: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FaultyInGroups:
    """One client stands out from what its groups have in common, although only sums over groups are known.

    What it looks at: sums that clients reveal under secure aggregation, over groups that change from round to round
    (`group_sums`): how long their updates are, whether they send what they trained, how the incoming model does on
    their data, how their inputs are spread. Over many rounds one client's presence explains what groups differ in.

    Why it matters: under secure aggregation no one sees a client's update, so no one sees that it is faulty.

    Not a fault when: the client's data differ from everyone else's for good reason. Two faulty clients at once are
    rarely told apart.

    Next step: ask the client to run `stethos diagnose` on its own recording.
    """

    code: ClassVar[str] = "FED021"
    name: ClassVar[str] = "faulty-in-groups"
    severity: ClassVar[Severity] = Severity.ERROR
    needs: ClassVar[Needs] = {"group_sums": frozenset({"federation", "round", "clients", "sums"})}
    reads: ClassVar[Needs] = {}
    explains: ClassVar[frozenset[str]] = frozenset({"server-instability", "slow-progress", "plateau"})

    def check(self, window: Window) -> Iterator[Finding]:
        for federation, mine in window.frame("group_sums").groups("federation").items():
            clients, traits, rounds = _rounds_in(mine)
            if len(rounds) < FEWEST_ROUNDS or len(clients) < 3:
                raise CannotTell(f"{len(rounds)} rounds of sums are too few; at least {FEWEST_ROUNDS} are needed")
            verdict = decode(rounds, len(clients), traits)
            if verdict.client is not None:
                first = next(one.round for one in rounds)
                yield self._finding(
                    str(federation), clients[verdict.client], verdict.trait, float(verdict.apart[verdict.client]),
                    float(verdict.scores[verdict.client]), first,
                )  # fmt: skip

    def _finding(self, federation: str, client: str, trait: str, apart: float, score: float, first: int) -> Finding:
        words, label, todo = _WORDS[trait]
        return Finding(
            self.code, self.name, trait, self.severity,
            f"client {client} of {federation} {words}: sums over its groups say so",
            Subject((client,), first=first, federation=federation),
            confidence=0.9,
            evidence=(
                Evidence(
                    f"{label}: {apart:+.2g} against the others ({score:.1f} times the distance that accuses)",
                    f"SELECT round, sums FROM group_sums WHERE federation = {literal(federation)} AND "
                    f"contains(clients, {literal(json.dumps(client))}) ORDER BY round",
                ),
            ),
            next_step=f"{todo}; `stethos diagnose` on its own recording tells it more",
            detail={"trait": trait, "apart": apart, "score": score},
        )  # fmt: skip


def _rounds_in(frame: Frame) -> tuple[list[str], list[str], list[_Round]]:
    """The clients, the quantities that all sums have, and the sums round by round."""
    groups: dict[int, list[tuple[list[str], dict[str, Any]]]] = {}
    for number, clients, sums in zip(
        frame["round"].tolist(), frame["clients"].tolist(), frame["sums"].tolist(), strict=True
    ):
        try:
            names, values = json.loads(clients), json.loads(sums)
        except (TypeError, ValueError):
            continue
        if number == number and isinstance(names, list) and names and isinstance(values, dict):
            groups.setdefault(int(number), []).append(([str(name) for name in names], values))
    listed = sorted({name for ones in groups.values() for names, _ in ones for name in names})
    places = {name: place for place, name in enumerate(listed)}
    traits = [name for name in QUANTITIES if all(_is_number(v.get(name)) for ones in groups.values() for _, v in ones)]
    rounds = [
        _Round(
            number,
            [np.array([places[name] for name in names], np.int64) for names, _ in ones],
            np.array([[float(values[name]) for name in traits] for _, values in ones]),
        )
        for number, ones in sorted(groups.items())
    ]
    return listed, traits, rounds


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))
