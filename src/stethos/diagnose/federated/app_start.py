"""Apps of federated frameworks that ended before their first round."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.window import Window
from stethos.store.literal import literal

_APPS = {
    "ServerApp": re.compile(r"flwr-serverapp|flower-superexec.*serverapp|run_serverapp"),
    "ClientApp": re.compile(r"flwr-clientapp|run_clientapp"),
    "NVFlare job": re.compile(r"nvflare[./]private|nvflare simulator|simulator_runner"),
}

_RAISED = re.compile(r"(\w+\.)*\w*(Error|Exception|Exit)\b")


def never_started(window: Window, code: str, name: str, severity: Severity) -> Iterator[Finding]:
    """Server and client apps that ended with an error while no round was ever recorded.

    Frameworks catch what an app raises while it is imported and log it: the process itself may end as if all was well.
    """
    processes, logs = window.frame("processes"), window.frame("logs")
    for place in range(len(processes)):
        row = {column: processes[column][place] for column in processes.names}
        command = str(row.get("command") or "")
        app = next((app for app, words in _APPS.items() if words.search(command)), None)
        if app is None or row["state"] == "running":
            continue
        process = str(row["process"])
        said = _error_in(logs, process)
        exit_code = row.get("exit_code")
        is_bad = row["state"] in ("failed", "killed") or (
            exit_code is not None and exit_code == exit_code and exit_code != 0
        )
        if not said and not is_bad:
            continue
        ending = str(row.get("ending") or row["state"])
        yield Finding(
            code, name, "never-started", severity,
            f"the {app} ended before its first round: {said or ending}",
            Subject(process=process), confidence=0.95 if is_bad else 0.8,
            evidence=(
                Evidence(
                    f"process {process}: {ending}; no round was recorded",
                    f"SELECT level, message, exception FROM logs WHERE process = {literal(process)} ORDER BY t_ns",
                ),
            ),
            next_step=f"fix what the {app} raises when it is imported; the query shows its traceback",
            detail={"leg": "never-started", "app": app},
        )  # fmt: skip


def _error_in(logs: Any, process: str) -> str:
    """The exception that a process logged last, else the last line of its errors; "" if it logged none."""
    if not len(logs) or "level" not in logs:
        return ""
    columns = (logs[name].tolist() for name in ("process", "level", "message", "exception"))
    texts = [
        f"{message or ''}\n{exception or ''}".strip()
        for who, level, message, exception in zip(*columns, strict=True)
        if str(who) == process and level in ("ERROR", "CRITICAL")
    ]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [""])[-1][:200]
