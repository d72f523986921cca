"""The commands, as a user runs them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from builders import RunBuilder
from federated_rows import build_federation
from terminal import Terminal, on_a_terminal

from stethos.cli.main import COMMANDS, GROUPS, main
from stethos.cli.task.complete import completions
from stethos.schema import NULL_F64, TABLES, Source

EVIL = "\x1b[31mred\x1b[0m\nsecond line\x07"


@pytest.fixture
def demo(run: RunBuilder) -> RunBuilder:
    process = run.process()
    process.steps(12, losses=[float("nan"), *[1.0] * 11])
    process.layers(["fc1.weight", "fc2.weight"])
    process.log(EVIL)
    process.seal()
    process.steps(3)
    process.drain()
    return run


def stethos(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stethos.cli.main", *words], input=stdin, capture_output=True, text=True, check=False
    )


def drawn_by(*words: str) -> str:
    return on_a_terminal(*words, STETHOS_DIR=os.environ["STETHOS_DIR"])


@pytest.mark.parametrize(
    "words", [("-t", "demo", "query"), ("query", "-t", "demo"), ("PATH", "query"), ("--target=demo", "query")]
)
def test_the_target_stands_before_or_after_the_command(demo: RunBuilder, words: tuple[str, ...]) -> None:
    sql = "SELECT count(*) AS n FROM steps"
    result = stethos(*(str(demo.path) if word == "PATH" else word for word in words), sql, "--json")
    assert (result.returncode, result.stderr, json.loads(result.stdout)) == (0, "", [{"n": 15}])


def test_json_is_one_array_of_objects_with_what_json_cannot_say_as_text(demo: RunBuilder) -> None:
    sql = "SELECT step, loss, grad_norm FROM steps ORDER BY step LIMIT 2"
    rows = json.loads(stethos("query", sql, "--json").stdout)
    assert rows == [{"step": 0, "loss": "NaN", "grad_norm": None}, {"step": 1, "loss": 1.0, "grad_norm": None}]
    assert json.loads(stethos("query", "SELECT 1 WHERE false", "--json").stdout) == []


def test_csv_has_a_header_and_keeps_quotes_and_lines(demo: RunBuilder) -> None:
    text = stethos("query", "SELECT 'a,\"b\"' AS x, NULL AS y, message FROM logs", "--csv").stdout
    assert list(csv.reader(io.StringIO(text))) == [["x", "y", "message"], ['a,"b"', "", "red\nsecond line"]]


def test_sql_is_read_from_stdin(demo: RunBuilder) -> None:
    assert stethos("query", "-", "--csv", stdin="SELECT 42 AS n").stdout == "n\n42\n"
    assert stethos("query", "--csv", stdin="SELECT 42 AS n").stdout == "n\n42\n"


def test_a_long_table_is_cut_and_says_so(demo: RunBuilder) -> None:
    cut = stethos("query", "SELECT * FROM range(1500)")
    assert len(cut.stdout.splitlines()) == 1001 and "only the first 1,000 rows" in cut.stderr
    assert len(stethos("query", "SELECT * FROM range(1500)", "--limit", "0").stdout.splitlines()) == 1501
    assert len(json.loads(stethos("query", "SELECT * FROM range(1500)", "--json").stdout)) == 1500
    assert len(json.loads(stethos("query", "SELECT * FROM range(1500)", "--json", "--limit", "3").stdout)) == 3


def test_text_from_a_run_does_not_reach_the_terminal_raw(demo: RunBuilder) -> None:
    plain = stethos("query", "SELECT message FROM logs").stdout
    assert plain.splitlines()[1] == "red second line"
    assert "\x1b" not in stethos("query", "SELECT message FROM logs", "--json").stdout
    drawn = drawn_by("query", "SELECT message FROM logs")
    assert "red second line" in drawn and "\x1b[31m" not in drawn and "\x07" not in drawn


def test_rows_too_wide_for_the_terminal_are_shown_one_below_the_other(demo: RunBuilder) -> None:
    drawn = drawn_by("query", "SELECT * FROM steps ORDER BY step LIMIT 2")
    assert "row 2" in drawn and "optimizer_ms" in drawn
    assert "row 1" not in drawn_by("query", "SELECT step, loss FROM steps")


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e400", "soon"])
@pytest.mark.parametrize(
    "words", [("query", "SELECT 1"), ("eval", "1"), ("prove",), ("replay",)], ids=lambda words: words[0]
)
def test_a_time_that_is_none_is_refused(words: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--timeout", value]) == 2
    assert "seconds" in capsys.readouterr().err


def test_more_rows_than_anybody_can_count_are_all_rows(demo: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "SELECT 7 AS x", "--limit", "9" * 30, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"x": 7}]


def test_errors_have_a_hint_an_exit_status_and_no_traceback(demo: RunBuilder) -> None:
    for words, status, said in (
        (("query", "SELECT los FROM steps"), 4, "did you mean loss?"),
        (("query", "SELECT * FROM stepz"), 4, "did you mean steps?"),
        (("query", "DROP VIEW steps"), 4, "DROP is not allowed"),
        (("query", "SELECT 1", "-t", "dmo"), 3, "did you mean demo?"),
        (("query", "SELECT 1", "--limit", "x"), 2, "hint: see `stethos query --help`"),
        (("qurey", "SELECT 1"), 2, "did you mean query"),
        (("tables", "stepz"), 2, "did you mean steps?"),
        (("ls", "-t", "demo"), 2, "hint: see `stethos ls --help`"),
        (("-t",), 2, "needs a target"),
        (("rm", "demo"), 2, "still going"),
        (("query", "SELECT * FROM \x1b[31mevil"), 4, "syntax error"),
    ):
        result = stethos(*words)
        assert (result.returncode, result.stdout) == (status, ""), result
        assert said in result.stderr and "hint: " in result.stderr
        assert "Traceback" not in result.stderr and "\x1b" not in result.stderr


def test_a_closed_pipe_is_no_error(demo: RunBuilder) -> None:
    command = f"'{sys.executable}' -m stethos.cli.main query 'SELECT * FROM range(200000)' --limit 0 | head -1"
    result = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "range" and result.stderr == ""


def test_ls_lists_runs_with_their_totals(demo: RunBuilder, runs_dir: Path) -> None:
    listed = json.loads(stethos("ls", "--json").stdout)
    assert [(one["run"], one["state"], one["steps"], one["rows_stored"]) for one in listed] == [
        ("demo", "running", 15, 18)
    ]
    lines = stethos("ls").stdout.splitlines()
    assert lines[0].split()[:3] == ["run", "state", "what"] and lines[1].split()[:2] == ["demo", "running"]
    drawn = drawn_by("ls")  # 80 columns
    table, _, left_out = drawn.partition("a wider terminal also shows")
    assert "demo" in table and "last loss" in table and "size" not in table and "size" in left_out
    assert "no runs in" in stethos("ls", "--dir", str(runs_dir / "nowhere")).stdout


def test_tables_work_without_a_run_and_count_rows_with_one(demo: RunBuilder, tmp_path: Path) -> None:
    without = json.loads(stethos("tables", "--json", "--dir", str(tmp_path / "empty")).stdout)
    assert [one["table"] for one in without] == list(TABLES) and all(one["rows"] is None for one in without)
    counted = {one["table"]: one["rows"] for one in json.loads(stethos("tables", "--json").stdout)}
    assert counted["steps"] == 15 and counted["layers"] == 2 and counted["spans"] == 0
    assert "learning rate" in stethos("tables", "steps").stdout
    assert json.loads(stethos("tables", "torch_trace", "--json").stdout)[0]["column"] == "process"


@pytest.mark.parametrize("to", ["parquet", "csv"])
def test_export_writes_one_file_per_table_and_replaces_none_unasked(demo: RunBuilder, tmp_path: Path, to: str) -> None:
    output = tmp_path / "out"
    first = stethos("export", "--to", to, "-o", str(output))
    assert first.returncode == 0, first.stderr
    names = {f"{table.name}.{to}" for table in TABLES.values() if table.source not in (Source.VIEW, Source.LIVE)}
    assert {path.name for path in output.iterdir()} == names
    read = pq.read_table if to == "parquet" else pyarrow.csv.read_csv
    assert read(output / f"steps.{to}").num_rows == 15
    again = stethos("export", "--to", to, "-o", str(output))
    assert again.returncode == 2 and "--force" in again.stderr
    assert stethos("export", "--to", to, "-o", str(output), "--force").returncode == 0


def test_doctor_says_what_is_missing_and_why(run: RunBuilder) -> None:
    process = run.process(preset="light")
    process.steps(5)
    process.gap("modules", "torch.compile is in use")
    process.unpackable()
    process.drain()
    result = stethos("doctor", "--json", "--verify")
    health = json.loads(result.stdout)
    reasons = {one["table"]: one["why_empty"] for one in health["tables"]}
    assert reasons["steps"] == "" and "light preset" in reasons["layers"] and "stethos.log" in reasons["metrics"]
    assert health["gaps"] == [{"what": "modules", "reason": "torch.compile is in use", "count": 1}]
    checks = {one["what"]: one for one in health["checks"]}
    assert "not_a_number" in checks["dropped rows"]["found"] and checks["drainer"]["found"] == "at work"
    assert checks["overhead"]["found"].startswith("0.01%") and checks["checksums"]["grade"] == "ok"
    assert result.returncode == 0
    assert "known to be missing" in stethos("doctor").stdout


def test_doctor_says_that_no_step_has_a_loss(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3, losses=[NULL_F64] * 3)
    process.drain()
    (found,) = [one for one in json.loads(stethos("doctor", "--json").stdout)["checks"] if one["what"] == "losses"]
    assert found["grade"] == "info" and found["found"].startswith("none in 3 steps")
    process.steps(1)
    process.drain()
    assert "losses" not in {one["what"] for one in json.loads(stethos("doctor", "--json").stdout)["checks"]}


def test_doctor_reports_damage_and_exits_with_1(demo: RunBuilder) -> None:
    path = next(demo.path.glob("p0/*.steps.parquet"))
    path.write_bytes(path.read_bytes()[:-50])
    result = stethos("doctor", "--verify")
    assert result.returncode == 1
    assert "12 of 18 rows lost" in result.stdout and "000001.steps.parquet" in result.stdout


def test_doctor_explains_an_empty_run(run: RunBuilder) -> None:
    health = json.loads(stethos("doctor", "--json").stdout)
    assert {one["rows"] for one in health["tables"]} == {0}
    assert "no process" in health["tables"][0]["why_empty"]
    run.process(torch=None).drain()
    assert json.loads(stethos("doctor", "--json").stdout)["tables"][0]["why_empty"] == "torch was not imported"


def test_rm_deletes_a_finished_run_after_a_yes(run: RunBuilder, runs_dir: Path) -> None:
    process = run.process(is_alive=False)
    process.steps(1)
    process.finish()
    refused = stethos("rm", "demo")
    assert refused.returncode == 2 and "--yes" in refused.stderr and run.path.exists()
    assert stethos("rm", "demo", "--yes").returncode == 0
    assert list(runs_dir.iterdir()) == []


def test_rm_of_a_link_leaves_what_it_points_to(run: RunBuilder, runs_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    run.path.rename(target)
    (runs_dir / "link").symlink_to(target)
    assert stethos("rm", "link", "--yes").returncode == 0
    assert not (runs_dir / "link").is_symlink() and (target / "run.json").exists()


def test_rm_asks_on_a_terminal(run: RunBuilder) -> None:
    for answer, status in (("n", 1), ("y", 0)):
        with Terminal("rm", "demo", STETHOS_DIR=str(run.path.parent)) as terminal:
            terminal.expect(r"\? ")
            assert run.path.exists()
            terminal.send(answer + "\n")
            assert terminal.wait() == status and run.path.exists() == (answer == "n")
    assert "deleted demo" in terminal.text


def test_every_command_has_help_with_a_first_line_that_says_what_it_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["help", "--all"]) == 0
    overview = capsys.readouterr().out
    for name, module in COMMANDS.items():
        summary = (import_module(module).__doc__ or "").partition("\n")[0]
        assert summary.endswith(".") and f"  {name:15} {summary[:80]}" in overview
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])
        assert caught.value.code == 0
        assert summary in " ".join(capsys.readouterr().out.split())


def test_a_run_named_like_a_command_is_asked_for_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STETHOS_DIR", str(tmp_path))
    with RunBuilder(tmp_path / "query") as run:
        run.process().finish()
        result = stethos("query", "doctor")
        assert result.returncode == 2
        assert result.stderr.splitlines() == [
            "'query' is a command, and also the name of a run",
            "hint: for the run say `stethos -t query doctor`; for the command give its target with -t RUN",
        ]
        assert stethos("-t", "query", "query", "SELECT 7 AS x", "--json").stdout == '[\n{"x": 7}\n]\n'
    with RunBuilder(tmp_path / "data") as run:  # the name of a group
        run.process().finish()
        assert stethos("data", "doctor").stderr.splitlines() == [
            "'data' is a command, and also the name of a run",
            "hint: for the run say `stethos -t data doctor`; for the command say `stethos doctor`",
        ]
        assert stethos("help", "data").returncode == 0
    assert stethos("run", "--name", "all", "true").stderr.startswith("a run cannot be called 'all'\n")
    said = stethos("run", "--name", "lr", "true").stderr
    assert "'lr' is also a command: reach this run with `stethos -t lr COMMAND`" in said


def test_ctrl_c_ends_a_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("stethos.cli.ls.run", interrupt)
    assert main(["ls"]) == 130


def run_in_a_process_of_its_own(code: str) -> None:
    code = f"import sys\nfrom stethos.cli.main import main\n{code}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_reading_commands_do_not_import_what_they_do_not_need(run: RunBuilder) -> None:
    process = run.process()
    process.steps(3)
    process.finish()
    run_in_a_process_of_its_own(
        "assert main(['tables', 'steps']) == 0 and main(['tables']) == 0\n"
        "assert 'duckdb' not in sys.modules\n"
        "assert main(['query', 'SELECT count(*) FROM steps']) == 0\n"
        "assert not {'torch', 'pyarrow', 'pandas', 'rich', 'numpy'} & set(sys.modules), sys.modules.keys()\n"
    )


def test_a_query_of_a_growing_run_imports_no_more_than_arrow(demo: RunBuilder) -> None:
    run_in_a_process_of_its_own(
        "assert main(['query', 'SELECT count(*) FROM python.backtrace']) == 0\n"
        "assert 'pyarrow' not in sys.modules\n"
        "assert main(['query', 'SELECT process, rank, step FROM steps ORDER BY step DESC LIMIT 1']) == 0\n"
        "assert not {'pyarrow.compute', 'pandas', 'sqlite3', 'rich'} & set(sys.modules), sys.modules.keys()\n"
    )


# Groups, help and completion -------------------------------------------------------------------------


def test_the_front_page_is_short_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (75, 100, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main([]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 45 and max(map(len, lines)) <= columns
    named = [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]
    assert named[:9] == list(GROUPS[""]) and set(named[9:]) == set(GROUPS) - {""}
    assert all(len((import_module(module).__doc__ or "").partition("\n")[0]) <= 60 for module in GROUPS[""].values())


def test_the_help_of_every_command_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in (name for group in GROUPS.values() for name in group):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_a_group_is_a_prefix(demo: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["data", "tables"], ["tables"], ["-t", str(demo.path), "data", "tables"]):
        assert main([*words, *(["-t", str(demo.path)] if words[0] != "-t" else [])]) == 0
        assert "updates" in capsys.readouterr().out
    assert main(["live"]) == 0 and "backtrace" in capsys.readouterr().out
    assert main(["live", "tables"]) == 2 and "say `stethos tables`" in capsys.readouterr().err
    assert main(["live", "backtrac"]) == 2 and "did you mean backtrace?" in capsys.readouterr().err
    assert main(["rounds", "--jsn"]) == 2 and "did you mean --json?" in capsys.readouterr().err


def test_a_shell_completes_what_is_typed(demo: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STETHOS_DIR", str(demo.path.parent))
    for words, expected in (
        (["dia"], "diagnose"),
        (["live", "back"], "backtrace"),
        (["fed", "di"], "diff"),
        (["diagnose", "--sil"], "--silence"),
        (["diagnose", "--silence", "strag"], "straggler"),
        (["rounds", demo.path.name[:2]], demo.path.name),
        (["rounds", "-t", ""], demo.path.name),
        (["-t", ""], demo.path.name),
        (["tables", "up"], "updates"),
        (["report", "--format", ""], "md"),
        (["query", '"SELECT los'], "SELECT loss"),
    ):
        assert expected in completions(words), words
    assert completions(["nonsense", ""]) == [] and completions([]) and completions(["rm", "--force", ""])


def test_bash_completes(demo: RunBuilder) -> None:
    script = stethos("completion", "bash").stdout
    command = f"""
stethos() {{ {sys.executable} -m stethos.cli.main "$@"; }}
{script}
COMP_WORDS=(stethos rounds -t ""); COMP_CWORD=3; _stethos; echo "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "STETHOS_DIR": str(demo.path.parent)}
    shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=environment)
    assert shown.stdout.split() == [demo.path.name]


def test_a_name_that_a_shell_would_run_is_not_completed(demo: RunBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell puts what completes a word into its line as it is: a copied run, or a client, may be called `$(...)`."""
    for name in ("$(touch owned)", "a`id`", "a;id", "-rf", "*", "a b", "a\nb", "~", "!!", "a>b", "a\x1b[2J"):
        (demo.path.parent / name).symlink_to(demo.path)
    build_federation(demo.path.parent / "federated", 1, ("$(id)", "c 1", "zürich-1"))
    monkeypatch.setenv("STETHOS_DIR", str(demo.path.parent))
    assert set(completions(["rounds", ""])) == {demo.path.name, "federated"}
    assert completions(["diagnose", "-t", "federated", "--client", ""]) == ["zürich-1"]


def test_a_run_that_cannot_be_read_hides_no_other(demo: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(demo.path, demo.path.parent / os.fsdecode(b"\xff\x1b[2J"))
    assert main(["ls", "--json", "--dir", str(demo.path.parent)]) == 0
    told = capsys.readouterr()
    assert [row["run"] for row in json.loads(told.out)] == [demo.path.name]
    assert "cannot be read" in told.err and "\x1b" not in told.err


@pytest.mark.parametrize(("shell", "status", "said"), [
    (f"{sys.executable} -m stethos.cli.main ls --dir . > /dev/full", 74, "no space left"),
    (f"{sys.executable} -m stethos.cli.main query -t demo 'SELECT * FROM range(9999)' --csv --dir . > /dev/full",
     74, "no space left"),
    (f"{sys.executable} -m stethos.cli.main ls --dir . >&-", 0, ""),
    (f"{sys.executable} -m stethos.cli.main query -t demo - --dir . <&-", 2, ""),
    (f"{sys.executable} -m stethos.cli.main ls --dir . 2>&-", 0, ""),
    (f"ln -s one two; ln -s two one; {sys.executable} -m stethos.cli.main ls --dir one", 0, ""),
    (f"mkdir x; cd x; rmdir ../x; {sys.executable} -m stethos.cli.main run true", 2, "was deleted"),
])  # fmt: skip
def test_a_full_or_closed_stream_or_a_deleted_directory_is_no_traceback(
    demo: RunBuilder, shell: str, status: int, said: str
) -> None:
    told = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False, cwd=demo.path.parent)
    assert told.returncode == status or (status == 2 and told.returncode)
    assert "Traceback" not in told.stderr and said in told.stderr


@pytest.mark.parametrize("target", ["a" * 5000, "\u00b2", "9" * 5000, "\u0663", "\0", "\udcff", "\x1b[2J", "[::1%x]:9"])
def test_a_target_that_nobody_means_is_an_error_in_words(
    demo: RunBuilder, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["query", "-t", target, "SELECT 1"], ["diagnose", target], ["import", target]):
        assert main([*words, "--dir", str(demo.path.parent)]) in (2, 3), words
    assert main(["ls", "--dir", target]) in (0, 2)
    assert "\x1b" not in capsys.readouterr().err
