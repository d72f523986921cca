"""What is recorded in a run and what is not, why, at what cost, and whether rows were lost."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from stethos.record.border import read_document
from stethos.record.place import MANIFEST_COPY, MANIFEST_FILE, PROCESS_FILE, RUN_FILE, RunPlace, is_network_file_system
from stethos.record.spawn import is_drained
from stethos.schema import (
    ACTION_EVENTS,
    AUDIT,
    CLIENT_REPORTS,
    COLLECTIVES,
    COMPRESSION,
    EVIDENCE,
    GAPS,
    GPU,
    GROUP_SUMS,
    HANGS,
    HISTOGRAMS,
    HOST,
    INSPECTIONS,
    LAYERS,
    LEGS,
    LOGS,
    MEDIA,
    MEMORY,
    METRICS,
    MODULES,
    RECORDED,
    ROUNDS,
    SPANS,
    STEPS,
    UPDATES,
    Table,
)
from stethos.store.catalogue import Row
from stethos.store.ledger import Ledger, total
from stethos.store.run import Run

_SAMPLED = (LAYERS, HISTOGRAMS, MODULES, MEMORY)
_UNUSED = {
    METRICS.name: "the program did not call stethos.log(name=value)",
    LOGS.name: "the program logged nothing through Python's logging",
    SPANS.name: "the program opened no stethos.span",
    GAPS.name: "no gap is known",
    COLLECTIVES.name: "the program called no collectives of torch.distributed",
    HANGS.name: "the watchdog saw no hang",
    LEGS.name: "no federation ran for a second",
    GPU.name: "no training process here uses an NVIDIA GPU",
    ROUNDS.name: "no federated round was run",
    UPDATES.name: "no federated client's update was seen",
    CLIENT_REPORTS.name: "no federated client's turn was seen",
    EVIDENCE.name: "no client of a federation trained with PyTorch in a recorded process",
    GROUP_SUMS.name: "no federation with secure aggregation asked for sums of groups",
    MEDIA.name: "the program logged no text, image or histogram through TensorBoard or W&B",
    COMPRESSION.name: "not asked for: federation(measure_compression=True)",
    ACTION_EVENTS.name: "no correction was set up",
    AUDIT.name: "no code was run in the training, and nothing was changed or saved",
}
_DROP_REASONS = {
    "ring_full": "the drainer fell behind or was not running, or the disk was full",
    "too_large": "one frame was larger than the ring takes",
    "reentrant": "logged while a row was being written",
    "not_a_number": "the value could not be stored as a number",
    "spool_full": "from a client elsewhere: its spool was full; bulk tables were dropped first",
    "refused": "from a client elsewhere: its collector or a relay refused them; SITE/audit.jsonl says why",
    "too_large_to_send": "from a client elsewhere: one row was larger than a batch may be",
    "not_allowed": "from a client elsewhere: tables that only the server writes, or that are not known here",
    "unreadable": "from a client elsewhere: rows that could not be read",
    "size_limit": "the run reached its size limit, or the disk was full; the oldest bulk rows were deleted first",
}

_LITTLE_BYTES = 64 << 20


class Grade(Enum):
    """How bad something is."""

    OK = "ok"
    INFO = "info"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: what was found, and what to do about it."""

    what: str
    grade: Grade
    found: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One table: its rows, or why there are none."""

    table: str
    rows: int
    why_empty: str = ""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that was not recorded, why, and how often."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Health:
    """What `stethos doctor` says about a run."""

    run: str
    path: str
    state: str
    tables: tuple[Recorded, ...]
    gaps: tuple[Gap, ...]
    checks: tuple[Check, ...]

    @property
    def has_problem(self) -> bool:
        return any(check.grade is Grade.PROBLEM for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        checks = [{**asdict(check), "grade": check.grade.value} for check in self.checks]
        return {**asdict(self), "checks": checks, "has_problem": self.has_problem}


def examine(run: Run, *, verify: bool = False) -> Health:
    """Look at a run; with `verify` every checksum is compared first."""
    damaged = run.verify() if verify else []
    summary, processes = run.summary(), run.processes()
    ledger = total(reader.ledger(run.examiner) for reader in run.readers())
    checks = [
        _overhead(summary, processes),
        _lost(ledger),
        _dropped(ledger),
        *_losses(run, summary["rows"][STEPS.name]),
        *_waiting(ledger, summary["state"]),
        *_unaccounted(ledger),
        *_elsewhere(ledger),
        *_unlisted(run, summary["state"]),
        *_altered(run),
        _drainer(run, summary["state"]),
        *_callbacks(run),
        _place(run),
        *_disk(run, summary["state"]),
    ]
    if verify:
        names = ", ".join(f"{file.path.parent.name}/{file.path.name}" for file in damaged)
        checks.append(
            Check("checksums", Grade.PROBLEM, f"{len(damaged)} damaged: {names}") if damaged
            else Check("checksums", Grade.OK, f"{_files(run)} files whole")
        )  # fmt: skip
    rows, withholding = summary["rows"], run.withholds()
    return Health(
        run=summary["run"],
        path=summary["path"],
        state=summary["state"],
        tables=tuple(
            Recorded(
                table.name,
                rows[table.name],
                ""
                if rows[table.name]
                else _why_withheld(table, withholding) or _why_empty(table, processes, summary["state"]),
            )
            for table in RECORDED.values()
        ),
        gaps=_gaps(run) if rows[GAPS.name] else (),
        checks=tuple(checks),
    )


def _why_withheld(table: Table, withholding: dict[str, dict[str, list[str]]]) -> str:
    """That the policies of sites elsewhere keep a table back; "" if none does."""
    clients = sorted(client for client, kept in withholding.items() if kept.get(table.name) == ["*"])
    if not clients:
        return ""
    return f"withheld by the site of client {clients[0]}" if len(clients) == 1 else f"withheld by {len(clients)} sites"


def _why_empty(table: Table, processes: list[Row], state: str) -> str:
    so_far = " yet" if state == "running" else ""
    if not processes:
        return f"no process has recorded anything{so_far}: none trained, or none is a Python program"
    if table is HOST:
        return f"no sample{so_far}: one is taken each second"
    if table.name in _UNUSED:
        return _UNUSED[table.name]
    if all(process["torch"] is None for process in processes):
        return "torch was not imported"
    if not any(process["steps"] for process in processes):
        return "no optimizer step was seen"
    if table in _SAMPLED and all(process["preset"] == "light" for process in processes):
        return "the light preset leaves it out; use --preset standard"
    if table in _SAMPLED:
        return f"no step was sampled within the overhead budget{so_far}"
    if table is INSPECTIONS:
        return f"no `backward()` was inspected{so_far}"
    return f"the step rows have not been collected{so_far}"


def _gaps(run: Run) -> tuple[Gap, ...]:
    found = run.rows("SELECT what, reason, count(*) FROM gaps GROUP BY ALL ORDER BY 3 DESC, 1, 2", limit_rows=100)
    return tuple(Gap(what or "", reason or "", count) for what, reason, count in found.values)


def _overhead(summary: dict[str, Any], processes: list[Row]) -> Check:
    share = summary["overhead_share"]
    if share is None and any(process["steps"] for process in processes):
        return Check("overhead", Grade.INFO, "not known here: see `stethos doctor` at the clients' sites")
    if share is None:
        return Check("overhead", Grade.INFO, "not measured: no optimizer step was seen")
    budgets = [process["overhead_budget"] for process in processes if process["overhead_budget"] is not None]
    budget = max(budgets, default=None)
    said = f"{share:.2%} of the training time" + (f"; {budget:.2%} allowed for samples" if budget is not None else "")
    if budget is not None and share > 2 * budget + 0.02:  # the always-on rows come on top of the samples
        return Check("overhead", Grade.INFO, said, "steps are short: --preset light costs less")
    return Check("overhead", Grade.OK, said)


def _lost(ledger: Ledger) -> Check:
    if ledger.lost:
        return Check(
            "lost rows",
            Grade.PROBLEM,
            f"{ledger.lost:,} of {ledger.produced:,} rows lost in a crash or in damaged blocks",
            "find them with `stethos doctor --verify`",
        )
    return Check("lost rows", Grade.OK, f"none of {ledger.produced:,}")


def _dropped(ledger: Ledger) -> Check:
    if not ledger.dropped:
        return Check("dropped rows", Grade.OK, "none")
    reasons = "; ".join(
        f"{rows:,} {reason} ({_DROP_REASONS.get(reason, '?')})" for reason, rows in ledger.drops.items()
    )
    return Check("dropped rows", Grade.INFO, reasons)


def _losses(run: Run, steps: int) -> list[Check]:
    """Whether any step has a loss: where none has, half of what is diagnosed cannot be. Sites may keep theirs back."""
    if not steps:
        return []
    elsewhere = {reader.name for reader in run.readers() if reader.is_collected}
    found = run.rows("SELECT process, count(*), count(loss) FROM steps GROUP BY process").values
    counts = [(rows, losses) for process, rows, losses in found if process not in elsewhere]
    here = sum(rows for rows, _ in counts)
    if not here or any(losses for _, losses in counts):
        return []
    said = f"none in {here:,} step{'s' * (here > 1)}: no `backward()` of a single number came before any of them"
    hint = "`torch.func`, `autograd.grad` and `backward(gradient=...)` give none: stethos.log(loss=...) records yours"
    return [Check("losses", Grade.INFO, said, hint)]


def _waiting(ledger: Ledger, state: str) -> list[Check]:
    if not ledger.waiting or state == "running":
        return []
    found = f"{ledger.waiting:,} rows are still in a ring and cannot be read yet"
    return [Check("waiting rows", Grade.PROBLEM, found, "make the directory writable, on the machine that ran it")]


def _unaccounted(ledger: Ledger) -> list[Check]:
    if not ledger.unaccounted:
        return []
    found = f"{ledger.unaccounted:,} rows are neither stored nor dropped nor lost: an error in Stethos"
    return [Check("books", Grade.PROBLEM, found, "please report it with the run's manifest.json files")]


def _elsewhere(ledger: Ledger) -> list[Check]:
    """What clients on other machines have not sent."""
    found = []
    if ledger.withheld:
        said = f"{ledger.withheld:,} rows stay at clients' sites, as their policies say"
        found.append(Check("withheld rows", Grade.INFO, said))
    if ledger.pending:
        said = f"{ledger.pending:,} rows of clients elsewhere are still waiting there or on their way"
        found.append(Check("pending rows", Grade.INFO, said, "at the client: `stethos collect --send SITE`"))
    return found


def _unlisted(run: Run, state: str) -> list[Check]:
    """Files that cannot be read since what lists them is gone. (In a live run the list may be about to be written.)"""
    listed = {reader.place.path for reader in run.readers() if reader.manifest}
    files = [file for file in run.path.glob("*/*.parquet") if file.parent not in listed]
    if not files or state == "running":
        return []
    names = ", ".join(sorted({file.parent.name for file in files}))
    found = f"{len(files)} files of {names} cannot be read: manifest.json or process.json there is damaged or missing"
    return [Check("manifests", Grade.PROBLEM, found, "restore both from a copy; the rows are in the Parquet files")]


def _altered(run: Run) -> list[Check]:
    """Files that say what the rows are, and are not as they were written."""
    files = [run.path / RUN_FILE, *sorted(run.path.glob("launcher-*.json"))]
    files += [reader.place.path / name for reader in run.readers() for name in (PROCESS_FILE, MANIFEST_FILE)]
    found = [str(file.relative_to(run.path)) for file in files if not read_document(file)[1]]
    if not found:
        return []
    said = f"{', '.join(found)}: not as written"
    if any(name.endswith(MANIFEST_FILE) for name in found):
        said += f"; where {MANIFEST_FILE} is damaged, {MANIFEST_COPY} is read"
    return [Check("damaged files", Grade.PROBLEM, said, "ranks, commands and states may be wrong: restore a copy")]


def _drainer(run: Run, state: str) -> Check:
    try:
        is_at_work = is_drained(run.place)
    except OSError:
        return Check("drainer", Grade.INFO, "unknown: the directory is read-only")
    if is_at_work:
        return Check("drainer", Grade.OK, "at work")
    if state == "running" and any(reader.is_here and reader.is_running for reader in run.readers()):
        return Check(
            "drainer",
            Grade.PROBLEM,
            "none at work on this machine",
            "any reading command starts one; see drainer.log in the run's directory",
        )
    return Check("drainer", Grade.OK, "none needed")


def _callbacks(run: Run) -> list[Check]:
    """Which callbacks the steps went through: those in C cost less."""
    found = Counter(str(reader.facts["callbacks"]) for reader in run.readers() if reader.facts.get("callbacks"))
    if not found:
        return []
    said = ", ".join(f"in {way}" + (f": {count} processes" if len(found) > 1 else "") for way, count in found.items())
    if set(found) == {"C"}:
        return [Check("callbacks", Grade.OK, said)]
    return [Check("callbacks", Grade.INFO, said, "to build those in C, install Stethos where there is a C compiler")]


def _place(run: Run) -> Check:
    if not RunPlace(run.path).is_ours():
        found = "a copy, or recorded by another user: Stethos only reads it"
        return Check("directory", Grade.INFO, found, "findings and proofs are shown but not kept in it")
    if not is_network_file_system(run.path):
        return Check("directory", Grade.OK, "on a local file system")
    scratch = sum(1 for reader in run.readers() if reader.facts.get("scratch"))
    return Check("directory", Grade.INFO, f"on a network file system; {scratch} rings are on local disk")


def _disk(run: Run, state: str) -> list[Check]:
    """Whether rows still find room: a ring is lost to a full disk within minutes."""
    disk = os.statvfs(run.path)
    free = disk.f_bavail * disk.f_frsize
    if free >= _LITTLE_BYTES or state != "running":
        return []
    found = f"only {free / 1e6:,.1f} MB are free on the disk of {run.path}"
    return [Check("disk", Grade.PROBLEM, found, "rows are dropped when it is full: free some space")]


def _files(run: Run) -> int:
    return sum(len(reader.sealed) for reader in run.readers())
