"""What is wrong in a whole archive: every run, every detector, here or as tasks of a Ray cluster."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from stethos.archive.address import Address, parse_address
from stethos.archive.cache import open_archived
from stethos.archive.catalogue import Row
from stethos.cluster import run_calls
from stethos.errors import StethosError

_HOSTS = (
    "SELECT host, median(step_ms), count(*) FROM steps JOIN processes USING (process) "
    "WHERE step_ms IS NOT NULL AND host IS NOT NULL GROUP BY host"
)


@dataclass(frozen=True, slots=True)
class FleetDiagnosis:
    """The runs with what was found in each, and what they have in common, most frequent first.

    `detectors`: code, name and in how many runs it fired. `clients`: who is accused, and in how many runs.
    `hosts`: host, median of its steps in ms, in how many runs; the slowest first. `failed` runs could not be read.
    """

    runs: tuple[Row, ...]
    detectors: tuple[tuple[str, str, int], ...]
    clients: tuple[tuple[str, int], ...]
    hosts: tuple[tuple[str, float, int], ...]
    failed: tuple[tuple[str, str], ...]


def diagnose_archived(address: str) -> Row:
    """One run of an archive: conclusion, findings and hosts, as plain values. Runs on any worker."""
    from stethos.diagnose.life import rows_of
    from stethos.store.run import Run
    from stethos.view.finding import findings_of

    place = parse_address(address)
    try:
        with Run(open_archived(place)) as run:
            diagnosis = findings_of(run)
            hosts = [(str(host), float(ms), int(steps)) for host, ms, steps in run.rows(_HOSTS).values]
    except StethosError as error:  # one run must not end the others
        return {"run": place.name, "error": error.message}
    conclusion = diagnosis.conclusion
    return {
        "run": place.name, "state": conclusion.state, "verdict": conclusion.text, "colour": conclusion.colour,
        "problems": conclusion.problems, "findings": rows_of(diagnosis), "hosts": hosts,
    }  # fmt: skip


def diagnose_fleet(
    archive: Address, names: Sequence[str], where: str | None = None, *, timeout_s: float | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> FleetDiagnosis:  # fmt: skip
    """Diagnose these runs; the result does not depend on where. `tell` hears of runs done and to do."""
    found: dict[int, Row] = {}
    for number, row in run_calls(
        diagnose_archived, [(str(archive / name),) for name in names], where, timeout_s=timeout_s
    ):
        found[number] = row
        tell(len(found), len(names))
    rows = [found[number] for number in sorted(found)]
    read = [row for row in rows if "error" not in row]
    return FleetDiagnosis(
        tuple(read), _detectors(read), _clients(read), _hosts(read),
        tuple((row["run"], row["error"]) for row in rows if "error" in row),
    )  # fmt: skip


def _detectors(rows: Sequence[Row]) -> tuple[tuple[str, str, int], ...]:
    counts = Counter(key for row in rows for key in {(one["code"], one["name"]) for one in row["findings"]})
    return tuple((code, name, count) for (code, name), count in sorted(counts.items(), key=_by_count))


def _clients(rows: Sequence[Row]) -> tuple[tuple[str, int], ...]:
    """Clients that a problem names, and in how many runs."""
    accused: Counter[str] = Counter()
    for row in rows:
        grave = [one for one in row["findings"] if one["severity"] in ("warning", "error", "critical")]
        accused.update({client for one in grave for client in json.loads(one["clients"] or "[]")})
    return tuple(sorted(accused.items(), key=_by_count))


def _hosts(rows: Sequence[Row]) -> tuple[tuple[str, float, int], ...]:
    times: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for host, step_ms, _ in row["hosts"]:
            times[host].append(step_ms)
    found = [(host, median(values), len(values)) for host, values in times.items()]
    return tuple(sorted(found, key=lambda one: (-one[1], one[0])))


def _by_count(item: tuple[Any, int]) -> tuple[int, Any]:
    return -item[1], item[0]
