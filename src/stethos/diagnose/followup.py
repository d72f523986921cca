"""What came after a finding: the proof that `stethos prove` kept of it, and what corrections did about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.finding import ActionTaken, Finding, ProofResult
from stethos.diagnose.life import key_text
from stethos.store.findings import read_proofs

if TYPE_CHECKING:
    from stethos.store.run import Run

ACTIONS_SQL = """\
SELECT action, what, state, mode, client, kind, first, last, unit, times, reason, effect, federation
FROM actions ORDER BY t_ns, action"""


def completed(diagnosis: Diagnosis, run: Run) -> Diagnosis:
    """The diagnosis with the proof and the actions of each finding, and no process named where there is only one."""
    proofs, actions = read_proofs(run.path), actions_of(run)
    is_alone = len(run.processes()) == 1

    def complete(one: Finding) -> Finding:
        row = proofs.get(key_text(one))
        return replace(
            one,
            subject=replace(one.subject, process=None) if is_alone else one.subject,
            proof=None if row is None else _proof(row),
            actions=tuple(action for action in actions if _answers(action, one)),
            consequences=tuple(map(complete, one.consequences)),
        )

    return replace(diagnosis, findings=tuple(map(complete, diagnosis.findings)))


def actions_of(run: Run) -> list[ActionTaken]:
    """What corrections did in a run, oldest first."""
    found = run.rows(ACTIONS_SQL)
    rows = (dict(zip(found.columns, values, strict=True)) for values in found.values)
    return [ActionTaken(**{**row, "reason": row["reason"] or "", "effect": row["effect"] or ""}) for row in rows]


def _answers(action: ActionTaken, finding: Finding) -> bool:
    """Whether a correction is about what was found: the same client, or where it is about all the same kind."""
    federation = finding.subject.federation
    if federation is not None and action.federation not in (None, federation):
        return False
    if action.client is not None:
        return finding.is_problem and action.client in finding.subject.clients
    return action.kind == finding.kind


def _proof(row: Mapping[str, Any]) -> ProofResult:
    try:
        detail = json.loads(row["proof_detail"] or "{}")
    except (ValueError, TypeError, RecursionError):
        detail = {}
    detail = detail if isinstance(detail, dict) else {}

    def interval(name: str) -> tuple[float, ...]:
        found = detail.get(name)
        return tuple(float(found[part]) for part in ("mean", "low", "high")) if isinstance(found, dict) else ()

    measure, words = str(detail.get("measure", "accuracy")), str(detail.get("words", ""))
    return ProofResult(row["proof"], words, measure, interval("before"), interval("without"), interval("control"))
