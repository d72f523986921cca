"""FED020: a loop that looks federated, of whose rounds and clients nothing was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

_NEXT = (
    'mark rounds and clients with six lines: `with stethos.federation("mine", model=model) as fed:`, '
    "`for rnd in fed.rounds(20):`, `with rnd.client(name) as site:`, `site.update(local.state_dict(), samples=n)`, "
    "`model.load_state_dict(rnd.aggregate())`, `rnd.evaluate(loss=loss)`. "
    "Flower needs two lines, NVFlare one: see docs/federated.md"
)


@dataclass(frozen=True, slots=True)
class UnseenFederation:
    """The program trains one model in many short turns, each with an optimizer of its own, as a federation does.

    What it looks at: optimizers that follow each other in one process, all on the same model, about as many steps each,
    and the first loss of each turn, which falls from the first third of the turns to the last. Turns that all begin at
    the same loss are separate runs, as in a search over settings.

    Why it matters: Stethos sees steps, but not whose they are. It cannot say which client is slow, odd or faulty.

    Not a fault when: always. It says what more could be seen.

    Next step: add the six lines of [federated training](../federated.md): `with stethos.federation(NAME, model=model)
    as fed`, `for rnd in fed.rounds(N)`, `with rnd.client(NAME) as site`, `site.update(state, samples=N)`,
    `model.load_state_dict(rnd.aggregate())`, `rnd.evaluate(loss=loss, accuracy=accuracy)`.
    """

    code: ClassVar[str] = "FED020"
    name: ClassVar[str] = "unseen-federation"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"steps": frozenset({"process", "optimizer", "step", "loss", "model"})}
    reads: ClassVar[Needs] = {
        "steps": frozenset({"client"}),
        "rounds": frozenset({"round"}),
        "client_rounds": frozenset({"client"}),
    }
    explains: ClassVar[frozenset[str]] = frozenset()

    turns: int = threshold(12, "turns with an optimizer of their own")
    unevenness: float = threshold(4.0, "times the median number of steps, of the longest turn")
    fall: float = threshold(0.95, "share of the first turn's loss that is left")

    def check(self, window: Window) -> Iterator[Finding]:
        steps = window.frame("steps")
        if window.is_federated or ("client" in steps and steps.groups("client")):
            return
        for of_process in steps.groups("process").values():
            for model, of_model in of_process.groups("model").items():
                yield from self._in_model(of_model.sorted_by("step"), str(model))

    def _in_model(self, steps: Frame, model: str) -> Iterator[Finding]:
        optimizers, first, counts = np.unique(steps["optimizer"], return_index=True, return_counts=True)
        if len(optimizers) < self.turns or counts.max() > self.unevenness * np.median(counts):
            return
        changes = np.count_nonzero(np.diff(steps["optimizer"]))
        if changes != len(optimizers) - 1:  # two take turns, as in adversarial training
            return
        losses = steps["loss"][np.sort(first)]
        third = len(losses) // 3
        begin, end = float(np.median(losses[:third])), float(np.median(losses[-third:]))
        if not (np.isfinite([begin, end]).all() and 0 < end < self.fall * begin):
            return
        yield Finding(
            self.code,
            self.name,
            self.name,
            self.severity,
            f"this looks like a federated loop: {len(optimizers):,} turns of about {np.median(counts):.0f} steps "
            f"train one {model}, and Stethos cannot tell whose they are",
            Subject(first=int(steps["step"][0]), unit="step"),
            confidence=0.8,
            evidence=(
                Evidence(
                    f"first loss of each turn: {begin:.3g} in the first third, {end:.3g} in the last",
                    "SELECT optimizer, min(step) AS step, arg_min(loss, step) AS first_loss, count(*) AS steps "
                    "FROM steps GROUP BY optimizer ORDER BY optimizer",
                    tuple(map(float, losses)),
                    names=("first loss of a turn",),
                ),
            ),
            next_step=_NEXT,
            detail={"turns": len(optimizers)},
        )
