"""What holds for every detector: its case is found, nothing is found in nothing, and it says what is asked of it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest
from examining import cases, found

from stethos.cli.screen.verdict import WIDTH, report_lines
from stethos.diagnose.detector import CannotTell
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.engine import examine
from stethos.diagnose.finding import Severity
from stethos.diagnose.life import row_of
from stethos.diagnose.page import page_of
from stethos.diagnose.window import Window
from stethos.schema import NULL_F64, TABLES
from stethos.store.engine import Engine
from stethos.store.frame import Frame

ALL = list(DETECTORS.values())


def test_every_detector_has_a_case() -> None:
    assert set(cases.CASES) == set(DETECTORS)


@pytest.mark.parametrize("code", cases.CASES)
def test_the_case_is_found(code: str) -> None:
    (one,) = found(code, cases.CASES[code]())
    detector = DETECTORS[code]
    assert (one.code, one.name) == (code, detector.name)
    assert one.severity == detector.severity or code == "SYS010"  # a live forecast is graver
    assert one.title and one.next_step and one.evidence[0].text and 0 < one.confidence <= 1
    json.dumps(row_of(one, None), allow_nan=False)


@pytest.mark.parametrize("code", cases.CASES)
def test_the_sql_of_the_evidence_runs(code: str, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.require(TABLES)
    for one in found(code, cases.CASES[code]()):
        for evidence in one.evidence:
            engine.rows(engine.check(evidence.sql), set(), limit_rows=None, timeout_s=60)


@pytest.mark.parametrize("code", DETECTORS)
def test_every_threshold_says_what_it_is(code: str) -> None:
    page = page_of(DETECTORS[code])
    assert {name for name, meaning in page.meanings.items() if meaning} == set(page.thresholds)


@pytest.mark.parametrize("code", DETECTORS)
def test_nothing_is_found_in_nothing(code: str) -> None:
    detector = DETECTORS[code]
    empty = {table: Frame({name: [] for name in columns}) for table, columns in detector.needs.items()}
    for window in (Window(), Window(empty)):
        diagnosis = examine(window, [detector()])
        assert diagnosis.findings == () and "no rows in" in diagnosis.not_checked[0].reason


@pytest.mark.parametrize("code", DETECTORS)
def test_nothing_is_found_where_nothing_is_known(code: str) -> None:
    """Rows with nothing but a place: a detector neither fails nor accuses."""
    detector = DETECTORS[code]
    wanted: dict[str, frozenset[str]] = {}
    for source in (detector.needs, detector.reads):
        for table, columns in source.items():
            wanted[table] = wanted.get(table, frozenset()) | columns
    known = {"client": "c0", "process": "p0", "status": "ok", "state": "ended", "step": 1, "round": 1, "t_ns": 1}
    frames = {
        table: Frame({name: [known.get(name, NULL_F64)] * 9 for name in columns}) for table, columns in wanted.items()
    }
    with contextlib.suppress(CannotTell):
        assert [one.title for one in found(code, Window(frames)) if one.severity >= Severity.WARNING] == []


def test_a_healthy_federation_has_nothing() -> None:
    diagnosis = examine(Window({"client_rounds": cases.turns()}), [detector() for detector in ALL])
    assert diagnosis.findings == () and diagnosis.exit_code == 0
    assert not [one for one in diagnosis.not_checked if "failed" in one.reason]


@pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.code)
def test_the_page_is_complete(detector: type) -> None:
    page = page_of(detector)
    openings = [paragraph.partition(":")[0] for paragraph in page.paragraphs]
    assert openings == ["What it looks at", "Why it matters", "Not a fault when", "Next step"]
    assert page.summary.endswith(".") and re.fullmatch(r"[A-Z]{3}\d{3}", page.code)
    for source in (page.needs, page.reads):
        for table, columns in source.items():
            assert set(columns) <= {column.name for column in TABLES[table].all_columns}


def test_what_a_detector_explains_exists() -> None:
    names = {one.name for one in ALL}
    assert {detector.code: detector.explains - names for detector in ALL if detector.explains - names} == {}


@pytest.mark.parametrize("code", cases.CASES)
def test_a_report_of_one_finding_fits_a_screen(code: str) -> None:
    diagnosis = examine(cases.CASES[code](), [DETECTORS[code]()])
    lines = [line.text for line in report_lines(diagnosis, "a-run-of-some-name", "ended")]
    assert len(lines) <= 22 and max(map(len, lines)) <= WIDTH
    assert lines[0].startswith("run a-run-of-some-name (ended): ")


@pytest.mark.parametrize("code", DETECTORS)
def test_a_module_of_detectors_begins_with_their_codes(code: str) -> None:
    words = (sys.modules[DETECTORS[code].__module__].__doc__ or "").partition(":")[0]
    first, _, last = words.partition(" to ")
    assert first <= code <= (last or first)
