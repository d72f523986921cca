"""A finding is opened once, updated, closed when it has passed, and opened anew when it comes back."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from builders import RunBuilder
from processes import DEADLINE_S

import stethos
from stethos.diagnose.diagnosis import Diagnosis
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.diagnose.life import keep, rows_of
from stethos.errors import QueryError, RecordingError
from stethos.store.findings import FILE, read_findings


def finding(client: str = "c1", **more: object) -> Finding:
    facts = {"code": "SYS001", "name": "straggler", "kind": "straggler", "severity": Severity.WARNING, "title": "slow"}
    return Finding(**{**facts, "subject": Subject((client,), first=3), **more})  # type: ignore[arg-type]


def diagnosis(*findings: Finding, checked: tuple[str, ...] = ("SYS001",)) -> Diagnosis:
    return Diagnosis(findings, checked)


def whats(changes: list) -> list[str]:  # type: ignore[type-arg]
    return [change.what for change in changes]


def test_the_life_of_a_finding(tmp_path: Path) -> None:
    assert whats(keep(diagnosis(finding()), tmp_path, 10)) == ["opened"]
    assert whats(keep(diagnosis(finding()), tmp_path, 20)) == []
    assert whats(keep(diagnosis(finding(title="slower")), tmp_path, 30)) == ["updated"]
    assert whats(keep(diagnosis(), tmp_path, 40)) == ["closed"]
    assert whats(keep(diagnosis(), tmp_path, 50)) == []
    assert whats(keep(diagnosis(finding()), tmp_path, 60)) == ["opened"]
    first, second = read_findings(tmp_path)
    assert (first["state"], first["opened_ns"], first["updated_ns"], first["closed_ns"]) == ("closed", 10, 30, 40)
    assert (second["state"], second["opened_ns"], second["closed_ns"], second["title"]) == ("open", 60, None, "slow")


def test_findings_that_are_kept_nowhere_are_numbered_from_1() -> None:
    rows = rows_of(diagnosis(finding("c1"), finding("c2")))
    assert [(row["finding"], json.loads(row["clients"])) for row in rows] == [(1, ["c1"]), (2, ["c2"])]


def test_a_finding_whose_detector_did_not_look_stays_open(tmp_path: Path) -> None:
    keep(diagnosis(finding()), tmp_path)
    assert whats(keep(diagnosis(checked=("SYS002",)), tmp_path)) == []


def test_a_finding_that_is_over_is_kept_once_as_closed(tmp_path: Path) -> None:
    over = finding(is_open=False)
    assert whats(keep(diagnosis(over), tmp_path)) == ["opened", "closed"]
    assert whats(keep(diagnosis(over), tmp_path)) == []
    keep(diagnosis(finding("c2")), tmp_path)
    assert whats(keep(diagnosis(finding("c2", is_open=False)), tmp_path)) == ["closed"]


def test_consequences_point_to_their_cause(tmp_path: Path) -> None:
    keep(diagnosis(finding().with_consequences(finding("c2", code="SYS004"))), tmp_path)
    cause, effect = read_findings(tmp_path)
    assert (cause["cause"], effect["cause"]) == (None, cause["finding"])


def test_odd_numbers_and_names_are_kept(tmp_path: Path) -> None:
    evidence = Evidence("seen", "SELECT 1", (float("nan"), float("inf"), 1.0))
    keep(diagnosis(finding("\x1b[31m\ud800'\"\0", evidence=(evidence,), detail={"x": float("nan")})), tmp_path)
    (row,) = read_findings(tmp_path)
    assert json.loads(row["evidence"])[0]["series"] == ["nan", "inf", 1.0]


def test_findings_are_a_table_of_the_run(run: RunBuilder) -> None:
    run.process().drain()
    with stethos.open_run(run.path) as one:
        assert one.rows("SELECT count(*) FROM findings").values == [(0,)]
        keep(diagnosis(finding()), run.path, 10)
        rows = one.rows("SELECT code, state, clients, first FROM findings").values
        assert rows == [("SYS001", "open", '["c1"]', 3)]
        assert one.tables()["findings"] == 1


def test_diagnosing_in_python_leaves_the_run_alone_unless_asked(run: RunBuilder) -> None:
    run.process().fail("ValueError: no")
    stethos.diagnose(run.path)
    assert not (run.path / FILE).exists()
    assert stethos.diagnose(run.path, keep=True).exit_code in (0, 1)
    assert (run.path / FILE).exists()


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\0" + b"\xff" * 5000, b"\0" * 100])
def test_a_damaged_file_is_said_and_nothing_else_breaks(run: RunBuilder, content: bytes) -> None:
    run.process().drain()
    (run.path / FILE).write_bytes(content)
    with pytest.raises(RecordingError, match="findings are not kept"):
        keep(diagnosis(finding()), run.path)
    with stethos.open_run(run.path) as one:
        assert one.tables()["findings"] == 0
        with pytest.raises(QueryError, match="cannot be read"):
            one.rows("SELECT * FROM findings")
        assert one.rows("SELECT count(*) FROM steps").values == [(0,)]


def _keep_many(directory: Path, own: str) -> None:
    for number in range(20):
        keep(diagnosis(finding(f"{own}-{number}"), checked=()), directory)


def test_several_diagnoses_may_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_keep_many, args=(tmp_path, str(number))) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(DEADLINE_S)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len({row["clients"] for row in read_findings(tmp_path)}) == 60


def test_a_directory_that_cannot_be_written_to_can_be_read(tmp_path: Path) -> None:
    keep(diagnosis(finding()), tmp_path)
    for file in tmp_path.glob(f"{FILE}-*"):
        file.unlink()
    tmp_path.chmod(0o500)
    try:
        assert len(read_findings(tmp_path)) == 1
        if os.geteuid() != 0:
            with pytest.raises(RecordingError):
                keep(diagnosis(finding("c9")), tmp_path)
    finally:
        tmp_path.chmod(0o700)
