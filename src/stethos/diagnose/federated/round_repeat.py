"""FED015: a round that was run twice from the same model, and came out differently."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from stethos.diagnose.detector import Needs, threshold
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.turn import listed
from stethos.diagnose.window import Window


@dataclass(frozen=True, slots=True)
class RoundRepeat:
    """A client trained twice in the same round from the same global model, and sent two different updates.

    What it looks at: runs in which rounds are repeated, after `--resume` or a restart from a checkpoint. The global
    model's norm shows whether both began from the same model, the update's norm whether they ended the same.

    Why it matters: what cannot be repeated cannot be debugged. A replay, a proof and a comparison of two runs all
    rest on it.

    Not a fault when: the program uses a new seed at each start on purpose.

    Next step: seed every generator by round and client, set torch.use_deterministic_algorithms(True), fix the number
    of threads; then run `stethos replay` on the round.
    """

    code: ClassVar[str] = "FED015"
    name: ClassVar[str] = "non-reproducible-round"
    severity: ClassVar[Severity] = Severity.INFO
    needs: ClassVar[Needs] = {"updates": frozenset({"process", "client", "round", "norm", "base_norm"})}
    reads: ClassVar[Needs] = {"updates": frozenset({"layer", "federation"})}
    explains: ClassVar[frozenset[str]] = frozenset()

    tolerance: float = threshold(1e-6, "difference of the norms of both updates, as a share")

    def check(self, window: Window) -> Iterator[Finding]:
        frame = window.frame("updates")
        if len(set(frame["process"].tolist())) < 2:  # nobody repeated anything
            return
        layers = frame["layer"].tolist() if "layer" in frame else [None] * len(frame)
        names = ("process", "client", "round", "norm", "base_norm")
        seen: dict[tuple[str, int], dict[str, tuple[float, float]]] = {}
        for layer, process, client, number, norm, base in zip(
            layers, *(frame[name].tolist() for name in names), strict=True
        ):
            if layer is None and client is not None and process is not None and _is_number(number, norm, base):
                seen.setdefault((str(client), int(number)), {}).setdefault(str(process), (norm, base))
        apart = {key: values for key, tries in seen.items() if (values := self._apart(list(tries.values())))}
        if not apart:
            return
        clients = tuple(sorted({client for client, _ in apart}))
        rounds = sorted({number for _, number in apart})
        (client, number), (one, other) = next(iter(sorted(apart.items(), key=lambda item: item[0][1])))
        repeated = sum(len(tries) > 1 for tries in seen.values())
        yield Finding(
            self.code,
            self.name,
            "round",
            self.severity,
            f"{len(apart)} of {repeated} repeated client turns came out differently: {listed(clients)}",
            Subject(clients, first=rounds[0], last=rounds[-1]),
            confidence=0.95,
            evidence=(
                Evidence(
                    f"round {number}, client {client}: norm {one:.6g} the first time, {other:.6g} the second, from the "
                    "same global model",
                    "SELECT round, client, process, norm, base_norm FROM updates WHERE layer IS NULL "
                    "AND client IS NOT NULL QUALIFY count(*) OVER (PARTITION BY round, client) > 1 "
                    "ORDER BY round, client, process",
                ),
            ),
            next_step="seed every generator by round and client and use deterministic kernels; "
            f"then `stethos replay --round {number} --client {client}`",
            detail={"turns": len(apart), "repeated": repeated},
            is_open=False,
        )

    def _apart(self, tries: list[tuple[float, float]]) -> tuple[float, float] | None:
        for place, (norm, base) in enumerate(tries):
            for other, other_base in tries[place + 1 :]:
                is_same_start = math.isclose(base, other_base, rel_tol=1e-9)
                if is_same_start and not math.isclose(norm, other, rel_tol=self.tolerance, abs_tol=1e-12):
                    return norm, other
        return None


def _is_number(*values: Any) -> bool:
    return all(isinstance(value, int | float) and math.isfinite(value) for value in values)
