"""`stethos diagnose`, as a user runs it: on trouble, on clean runs, on bad input, and on a run that goes on."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import RunBuilder
from examining import cases
from processes import DEADLINE_S, wait_for_rest

import stethos
from stethos import lab
from stethos.cli.main import main
from stethos.cli.screen import follow as following
from stethos.cli.screen.follow import Follower, follow
from stethos.cli.screen.verdict import WIDTH, Line, brief_text, finding_lines, report_lines
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.diagnosis import Diagnosis, NotChecked
from stethos.diagnose.engine import examine
from stethos.diagnose.finding import Evidence, Finding, Severity, Subject
from stethos.record.border import origin_of
from stethos.store.findings import FILE

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "federate.py"
Diagnose = Callable[..., tuple[int, str, str]]


@pytest.fixture
def diagnose(capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """Run the command; its exit status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        status = main(["diagnose", *map(str, words)])
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return status, shown.out, shown.err

    return run


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation in which clients fail and one has a hostile name."""
    directory = tmp_path_factory.mktemp("evil")
    command = [sys.executable, str(PROGRAM), str(directory), "evil", "--clients", "11"]
    source = str(Path(stethos.__file__).resolve().parents[1])
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": source})
    return directory / "evil"


def federate(directory: Path, **options: Any) -> Path:
    defaults: dict[str, Any] = {"clients": 4, "rounds": 4, "engine": "stacked", "progress": False, "dir": directory}
    path = lab.federate(**{"data": "digits", **defaults, **options}).path
    assert path is not None
    wait_for_rest(path)  # until the drainer is done, the run is running
    return path


@pytest.fixture(scope="module")
def recorded_slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federate(
        tmp_path_factory.mktemp("slow"), clients=6, rounds=6, run="slow", faults=[lab.Fault("slow-compute", 3, start=3)]
    )


@pytest.fixture
def slow(recorded_slow: Path, tmp_path: Path) -> Path:
    """A run of one's own in which client c3 becomes slow: a diagnosis leaves its findings there."""
    copy = Path(shutil.copytree(recorded_slow, tmp_path / "runs" / "slow"))
    facts = copy / "run.json"  # a copy is a stranger's: say that it was recorded here
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "origin": origin_of(copy)}))
    return copy


# The report ------------------------------------------------------------------------------------------


def test_the_report_names_the_client_and_fits_a_screen(
    slow: Path, diagnose: Diagnose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STETHOS_DIR", str(slow.parent))
    status, shown, _ = diagnose("-t", "slow")
    lines = shown.splitlines()
    assert status == 1 and lines[0] == "run slow (ended): 1 problem"
    assert len(lines) <= 24 and max(map(len, lines)) <= WIDTH and "\x1b" not in shown
    for part in (
        "client c3 takes",
        "since    round 3",
        "sure     ",
        "sql      stethos query",
        "next     ",
        "--client c3",
    ):
        assert part in shown
    assert "█" in shown and "\nnot checked: " in shown


def test_the_sql_of_the_report_runs(slow: Path, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(diagnose("-t", slow, "--json")[1])["findings"][0]
    assert main(["query", "-t", str(slow), found["evidence"][0]["sql"], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 24


def test_findings_are_kept_once(slow: Path, diagnose: Diagnose, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        diagnose("-t", slow)
    main(["query", "-t", str(slow), "SELECT code, state FROM findings", "--json"])
    assert json.loads(capsys.readouterr().out) == [{"code": "SYS001", "state": "open"}]
    diagnose("-t", slow, "--set", "straggler.times=100")
    main(["query", "-t", str(slow), "SELECT code, state FROM findings", "--json"])
    assert json.loads(capsys.readouterr().out) == [{"code": "SYS001", "state": "closed"}]


def test_silence_and_thresholds_change_the_verdict(slow: Path, diagnose: Diagnose) -> None:
    assert diagnose("-t", slow, "--silence", "straggler")[0] == 0
    assert diagnose("-t", slow, "--set", "SYS001.times=100")[0] == 0


def test_one_client_against_the_others(slow: Path, diagnose: Diagnose) -> None:
    status, shown, _ = diagnose("-t", slow, "--client", "c3")
    assert status == 1 and "1 finding" in shown and "duration of its turn" in shown and "1 of 6" in shown
    status, shown, _ = diagnose("-t", slow, "--client", "c1")
    assert status == 0 and "nothing found against it" in shown
    found = json.loads(diagnose("-t", slow, "--client", "c3", "--json")[1])
    assert found["turns"] == {"ok": 6} and found["findings"][0]["code"] == "SYS001"


def test_further_findings_are_shorter_and_consequences_stand_below_their_cause() -> None:
    def finding(number: int, **more: Any) -> Finding:
        subject = Subject((f"c{number}",), first=number)
        return Finding(f"XYZ{number:03}", "x", "x", Severity.ERROR, f"trouble {number} " * 20, subject, **more)

    effects = [finding(number) for number in range(50, 60)]
    findings = tuple(finding(number).with_consequences(*effects) for number in range(40))
    missing = tuple(NotChecked(f"A{number}", f"name-{number}", f"reason {number}") for number in range(40))
    lines = [line.text for line in report_lines(Diagnosis(findings, ("A",), missing), "RUN")]
    assert len(lines) < 50 and max(map(len, lines)) <= WIDTH
    assert any("and 31 more" in line for line in lines) and any("6 more that follow" in line for line in lines)
    assert sum(line.endswith("… (XYZ050)") for line in lines) == 1  # what it is called stays, whatever is cut


def test_remarks_with_nothing_worse_beside_them_are_told_whole_with_what_to_do() -> None:
    window = cases.CASES["FED020"]()
    found = examine(window, [DETECTORS["FED020"]()])
    (remark,) = found.findings
    other = Finding("XYZ001", "x", "x", Severity.INFO, "another remark", Subject(), next_step="do that")
    both = Diagnosis((other, remark), ("A",))
    told = " ".join(" ".join(line.text for line in report_lines(both, "RUN")).split())
    for line in (
        "stethos.federation(",
        "fed.rounds(",
        "rnd.client(",
        "site.update(",
        "rnd.aggregate()",
        "rnd.evaluate(",
    ):
        assert line in told
    assert "do that" in told and "Flower needs two lines" in told and "…" not in told
    assert brief_text(both) == f"nothing found by 1 detector, 2 info: another remark; {remark.title}"
    worse = Finding("XYZ002", "x", "x", Severity.ERROR, "trouble", Subject())
    assert "do that" not in " ".join(line.text for line in report_lines(Diagnosis((worse, other), ("A",)), "RUN"))


def test_everything_at_once_is_still_readable() -> None:
    frames: dict[str, Any] = {}
    for case in cases.CASES.values():
        window = case()
        for table in ("client_rounds", "updates", "rounds", "processes", "host"):
            if len(window.frame(table)):
                frames[table] = window.frame(table)
    diagnosis = examine(cases.Window(frames), [detector() for detector in DETECTORS.values()])
    assert not [one for one in diagnosis.not_checked if "failed" in one.reason]
    assert all(len(line.text) <= WIDTH for line in report_lines(diagnosis, "RUN"))


# Options that need no run ----------------------------------------------------------------------------


def test_explain_prints_the_page(diagnose: Diagnose) -> None:
    status, shown, _ = diagnose("--explain", "sys001")
    assert status == 0 and shown.startswith("SYS001 straggler (warning)") and "times=2.5" in shown
    assert diagnose("--explain", "straggler")[1] == shown
    assert json.loads(diagnose("--explain", "straggler", "--json")[1])["thresholds"]["times"] == 2.5


def test_list_has_every_detector(diagnose: Diagnose) -> None:
    assert len(json.loads(diagnose("--list", "--json")[1])) == len(DETECTORS)
    assert "straggler" in diagnose("--list")[1]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--explain", "stragler"], "did you mean straggler"),
        (["--silence", "nothing-like-it"], "no detector 'nothing-like-it'"),
        (["--set", "straggler.time=3"], "straggler has no threshold 'time'"),
        (["--set", "straggler=3"], "hint: write --set"),
        (["-t", "no-such-run"], "no-such-run"),
        (["--client", "c17"], "no client 'c17'"),
    ],
)
def test_a_mistake_is_an_error_with_a_hint(slow: Path, diagnose: Diagnose, words: list[str], complaint: str) -> None:
    status, _, error = diagnose(*([] if "-t" in words else ["-t", slow]), *words)
    assert status >= 2 and complaint in error and "hint: " in error


# Clean runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "split",
    [lab.IID(), lab.Dirichlet(0.3), lab.Shards(2), lab.QuantitySkew(0.5)],
    ids=lambda split: type(split).__name__,
)
def test_a_clean_federation_has_no_warning(tmp_path: Path, split: lab.Split, seed: int) -> None:
    diagnosis = stethos.diagnose(federate(tmp_path, clients=10, rounds=8, split=split, seed=seed))
    assert [one.title for one in diagnosis.findings if one.severity >= Severity.WARNING] == []
    assert diagnosis.exit_code == 0 and not [one for one in diagnosis.not_checked if "failed" in one.reason]


# Bad input -------------------------------------------------------------------------------------------


def test_an_empty_run_says_that_nothing_could_be_checked(run: RunBuilder, diagnose: Diagnose) -> None:
    status, shown, _ = diagnose()
    assert status == 0 and "nothing could be checked" in shown and "no rows in" in shown


def test_a_run_without_clients_has_none_to_show(run: RunBuilder, diagnose: Diagnose) -> None:
    process = run.process()
    process.steps(5)
    process.drain()
    assert diagnose()[0] == 0
    status, _, error = diagnose("--client", "c1")
    assert status == 2 and "has no clients" in error


@pytest.mark.parametrize("options", [{"clients": 1}, {"rounds": 1}, {"clients": 1, "rounds": 1}, {"clients": 2}])
def test_one_client_or_one_round_is_enough_to_look(tmp_path: Path, diagnose: Diagnose, options: dict[str, int]) -> None:
    status, shown, error = diagnose("-t", federate(tmp_path, **options))
    assert (status, error) == (0, "") and ": nothing found by" in shown and "itself failed" not in shown


@pytest.mark.parametrize("kind", ["nan", "crash", "slow-compute", "dropout", "free-rider-zero", "scaling"])
def test_a_federation_in_which_all_clients_are_faulty(tmp_path: Path, diagnose: Diagnose, kind: str) -> None:
    path = federate(tmp_path, rounds=5, faults=[lab.Fault(kind, range(4))])
    status, shown, error = diagnose("-t", path)
    assert error == "" and "itself failed" not in shown
    if kind in ("crash", "dropout"):
        assert status == 1 and "4 clients" in shown


def test_identical_clients_have_nothing_against_each_other(tmp_path: Path, diagnose: Diagnose) -> None:
    points = np.random.default_rng(0).normal(size=(60, 5))
    data = lab.Data.of(np.tile(points, (4, 1)), np.tile(points[:, 0] > 0, 4), name="same")

    def same(labels: Any, clients: int, made: Any) -> list[Any]:
        return np.array_split(np.arange(len(labels)), clients)

    path = federate(tmp_path, data=data, model="logistic", split=same, timing=lab.Timing(spread=0, jitter=0))
    status, shown, _ = diagnose("-t", path)
    assert status == 0 and "itself failed" not in shown


def test_hostile_names_reach_no_terminal(evil: Path, diagnose: Diagnose) -> None:
    status, shown, _ = diagnose("-t", evil)
    assert status == 1 and not any(mark in shown for mark in ("\x1b", "\x07", "\r"))
    with stethos.open_run(evil) as one:
        names = [row[0] for row in one.rows("SELECT DISTINCT client FROM client_rounds").values]
    (name,) = (name for name in names if "\x1b" in name)
    shown = diagnose("-t", evil, "--client", name)[1]
    assert "\x1b" not in shown and "evil's" in shown
    assert "\x1b" not in diagnose("-t", evil, "--client", name + "x")[2]


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_damaged_run_is_diagnosed_from_what_is_whole(tmp_path: Path, diagnose: Diagnose, share: float) -> None:
    path = federate(tmp_path, clients=6, rounds=6)
    for file in path.glob("*/*.parquet"):
        content = file.read_bytes()
        file.write_bytes(content[: int(len(content) * share)])
    status, shown, _ = diagnose("-t", path)
    assert status in (0, 1) and "itself failed" not in shown and "not checked: " in shown
    assert "rows of process" in shown


def test_a_damaged_file_of_findings_is_a_note(slow: Path, diagnose: Diagnose) -> None:
    (slow / FILE).write_bytes(b"no database" * 100)
    status, shown, note = diagnose("-t", slow)
    assert status == 1 and "client c3" in shown and "note: findings are not kept" in note


# Following -------------------------------------------------------------------------------------------


def finding(**more: Any) -> Finding:
    facts = {"code": "SYS001", "name": "straggler", "kind": "x", "severity": Severity.WARNING, "title": "slow"}
    return Finding(**{**facts, "subject": Subject(("c1",), first=3), **more})


class Script:
    """Diagnoses to be given one after the other, for a run that grows with each look."""

    def __init__(self, *findings: tuple[Finding, ...]) -> None:
        self.left = list(findings)
        self.looks = 0

    @property
    def is_live(self) -> bool:
        return len(self.left) > 1

    def processes(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [{"process": "p", "state": "running", "rows_stored": self.looks, "rows_lost": 0}]

    def look(self, run: object, detectors: object) -> Diagnosis:
        return Diagnosis(self.left.pop(0), ("SYS001",))


def followed(script: Script, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Diagnosis]:
    monkeypatch.setattr(following, "look", script.look)
    said: list[Line] = []
    follower = Follower(script, [], said.append)  # type: ignore[arg-type]
    diagnosis = follow(script, follower, lambda _: None, sleep=lambda _: None)  # type: ignore[arg-type]
    return [" ".join(line.text.split()[1:3]) for line in said], diagnosis


def test_a_finding_is_told_when_it_opens_changes_and_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    one, worse = finding(), finding(severity=Severity.ERROR)
    said, last = followed(Script((), (one,), (one,), (worse,), (), (one,)), monkeypatch)
    assert said == ["opened WARNING", "changed ERROR", "over ERROR", "opened WARNING"]
    assert last.findings == (one,)


def test_a_finding_that_was_over_when_first_seen_is_told_as_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed(Script((finding(is_open=False),), ()), monkeypatch)[0] == ["over WARNING"]


def test_what_goes_on_comes_before_what_is_over() -> None:
    over = finding(severity=Severity.ERROR, title="over", is_open=False, subject=Subject(("c2",), first=1, last=2))
    lines = [line.text for line in report_lines(Diagnosis((over, finding()), ("SYS001",)), "RUN")]
    assert lines[0] == "run RUN: 1 problem, 1 more over since round 2" and lines[2].startswith("WARNING  slow")
    assert any(line.endswith("rounds 1 to 2 · 100 % sure") for line in lines)


def test_a_finding_that_becomes_a_consequence_is_not_over(monkeypatch: pytest.MonkeyPatch) -> None:
    cause = finding(title="cause", subject=Subject(("c2",), first=1)).with_consequences(finding())
    assert followed(Script((finding(),), (cause,)), monkeypatch)[0] == ["opened WARNING", "opened WARNING"]


def test_ctrl_c_ends_with_the_last_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script((finding(),), (), ())
    monkeypatch.setattr(following, "look", script.look)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    follower = Follower(script, [], lambda _: None)  # type: ignore[arg-type]
    assert follow(script, follower, lambda _: None, sleep=interrupted).exit_code == 1  # type: ignore[arg-type]


def test_a_run_that_does_not_grow_is_not_examined_again(run: RunBuilder) -> None:
    process = run.process()
    process.steps(5)
    process.drain()
    with stethos.open_run(run.path) as one:
        follower = Follower(one, [], lambda _: None)
        assert follower.look() and not follower.look()
        process.steps(1)
        process.drain()
        assert follower.look()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), str(tmp_path), "live", "--rounds", "9", "--hang-in", "8"]
    source = str(Path(stethos.__file__).resolve().parents[1])
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source})
    with program:
        yield program
        program.kill()


def test_a_live_run_is_followed_to_its_end(growing: subprocess.Popen[str], tmp_path: Path) -> None:
    assert growing.stdout is not None and "hanging" in growing.stdout.readline()
    command = [sys.executable, "-m", "stethos.cli.main", "diagnose", "--live", "-t", str(tmp_path / "live")]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert follower.stdout is not None
    shown = [follower.stdout.readline(), follower.stdout.readline()]
    growing.kill()
    rest, _ = follower.communicate(timeout=DEADLINE_S)
    assert shown[0].startswith("following run live") and ("opened" in shown[1] or "over" in shown[1])
    follower.stdout.close()
    assert follower.returncode == 1 and "run live (killed): " in rest and "ended badly" in rest


def test_commands_in_a_report_can_be_pasted() -> None:
    """Lines end inside the SQL only: not before it, not in a name, and it is never cut."""
    target, client = f"/data/{'long ' * 20}/run", "ward 7 north of the river"
    sql = f"SELECT round, any_value(cos_centre) FILTER (client = '{client}') AS client FROM updates WHERE layer IS NULL"
    one = Finding(
        "FED001", "faulty-client", "stale", Severity.ERROR, "old", Subject((client,)), evidence=(Evidence("seen", sql),)
    )
    text = "\n".join(line.text for line in finding_lines(one, target))
    query = shlex.split(text[text.index("stethos query") : text.index("stethos diagnose")])
    assert query[:4] == ["stethos", "query", "-t", target] and " ".join(query[4].split()) == sql and client in query[4]
    shown = text[text.index("stethos diagnose") :].splitlines()[0]
    assert shlex.split(shown) == ["stethos", "diagnose", "-t", target, "--client", client]
    long = replace(one, evidence=(Evidence("seen", sql + " AND round > 1" * 60),))
    assert "--json" in "\n".join(line.text for line in finding_lines(long, target))
