"""`stethos profile` and `stethos compare` on real runs of the lab, and on runs with hardly anything in them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import MS_NS, T0_NS, RunBuilder
from federated_rows import put_row, put_steps
from processes import wait_for_rest

import stethos
from stethos import lab
from stethos.cli.main import main
from stethos.errors import UsageError
from stethos.profile.column import records
from stethos.profile.step_time import INSIDE_SQL, inside_of, read_step_times
from stethos.schema import ROUNDS as ROUNDS_TABLE
from stethos.store.frame import select
from stethos.store.run import open_run

ROUNDS = 12


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Federations of the lab: a reference, others that differ in one thing, and planted bottlenecks."""
    directory = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        options: dict[str, Any] = {"rounds": ROUNDS, "engine": "stacked", "dir": directory, "progress": False}
        lab.federate("digits", run="reference", **{**options, "engine": "loop"})
        for name, more in {
            "other-lr": {"lr": 0.03},
            "lost": {"lr": 1e30},
            "other-seed": {"seed": 1},
            "same": {},
            "link": {"faults": [lab.Fault("slow-link", "c7", strength=6)]},
            "client": {"faults": [lab.Fault("slow-compute", "c2", strength=6)]},
            "server": {"timing": lab.Timing(aggregate_ms=300)},
            "timeouts": {"faults": [lab.Fault("timeout", "c4", strength=0.3)]},
        }.items():
            lab.federate("digits", run=name, **{**options, **more})
        for path in directory.iterdir():
            wait_for_rest(path)
    return directory


def profiled(runs: Path, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["profile", "-t", str(runs / name), "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("name", "kind", "clients"),
    [
        ("link", "slow-link", ["c7"]), ("client", "slow-client", ["c2"]), ("server", "aggregation-bound", []),
        ("timeouts", "missing-clients", ["c4"]),
    ],
)  # fmt: skip
def test_the_planted_bottleneck_is_named(
    runs: Path, name: str, kind: str, clients: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = profiled(runs, name, capsys)
    first = found["bottlenecks"][0]
    assert (first["kind"], first["clients"]) == (kind, clients) and found["verdict"] == first["verdict"]
    assert 0.1 < first["share"] < 1
    assert main(["query", "-t", str(runs / name), first["sql"]]) == 0


@pytest.mark.parametrize("name", ["reference", "other-seed", "other-lr"])
def test_nothing_is_named_in_a_balanced_run(runs: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = profiled(runs, name, capsys)
    if name == "reference" and [one["kind"] for one in found["bottlenecks"]] == ["own-code"]:
        return  # its steps take real time, of which a busy machine takes a part
    assert found["bottlenecks"] == [] and found["verdict"].startswith("no bottleneck: rounds are ")


def test_the_parts_of_a_round_add_up(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rounds,) = profiled(runs, "link", capsys)["rounds"]
    known = [value for value in rounds["parts_ms"].values() if value is not None]
    assert sum(known) == pytest.approx(rounds["mean_ms"]) and min(known) >= 0
    assert rounds["parts_ms"]["evaluate"] is None and rounds["rounds"] == ROUNDS


def test_the_engine_and_plain_sums_agree_on_what_is_inside_the_model(runs: Path) -> None:
    with open_run(runs / "reference") as one:
        (row,) = records(one, INSIDE_SQL)
        (time,) = read_step_times(one)
        plain = inside_of(*(select(one, f"SELECT * FROM {table}") for table in ("steps", "modules")))
    known = {row["process"]: pytest.approx(row["inside"])} if row["samples"] >= 3 else {}
    assert 0 < row["inside"] <= 1 and plain == known and time.inside == known.get(time.process)


def test_the_screen_has_the_verdict_first_and_fits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "-t", str(runs / "link")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("run link (ended): client c7's link: rounds would be ")
    pasted = next(line for line in lines if line.startswith("sql"))  # its target is one word, however long
    assert len(lines) <= 30 and max(len(line) for line in lines if line is not pasted) <= 80
    text = "\n".join(lines)
    assert "wait" in text and "not recorded: select, evaluate" in text and "c7 12x" in text
    assert "kB up a round" in text and "100.0% of those asked answered" in text


@pytest.mark.parametrize(
    ("by", "words"), [("client", "came last"), ("layer", "hidden.weight"), ("module", "hidden"), ("rank", "forward")]
)
def test_tables(runs: Path, by: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "-t", str(runs / "reference"), "--by", by]) == 0
    assert words in capsys.readouterr().out
    assert main(["profile", "-t", str(runs / "reference"), "--by", by, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("by", [None, "client", "layer", "module", "rank"])
def test_the_sql_behind_it_runs(runs: Path, by: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--sql", *(["--by", by] if by else [])]) == 0
    for statement in capsys.readouterr().out.split(";\n"):
        if statement.strip():
            assert main(["query", "-t", str(runs / "reference"), statement]) == 0


def test_a_setting_that_differs_is_named_and_gated(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "reference", "other-lr", "--dir", str(runs)]
    assert main(words) == 0 and main([*words, "--gate", "10%"]) == 1
    text = capsys.readouterr().out
    words = " ".join(text.split())
    assert "they differ in lr: 0.1 -> 0.03" in words and "final loss" in text
    assert main(["compare", "same", "other-lr", "--dir", str(runs), "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert {one["name"]: one["values"] for one in pair["differ_in"]}["lr"] == [0.1, 0.03]
    verdicts = {one["quantity"]: one["verdict"] for one in pair["quantities"]}
    assert verdicts["final loss"] == "worse" and verdicts["round time"] == "no difference shown"


def test_runs_that_differ_in_their_seed_only_say_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "same", "other-seed", "--dir", str(runs)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("other-seed against same: no difference shown") and "differ in the seed only" in text


def test_the_same_again_shows_no_difference_and_passes_any_gate(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab_same = ["compare", "same", "same", "--dir", str(runs), "--gate", "0"]
    assert main(lab_same) == 0
    text = capsys.readouterr().out
    assert "no difference shown" in text and "nothing that was recorded" in text and "gate 0.0%: passed" in text


def test_what_no_setting_explains_is_named_by_its_bottleneck(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "same", "link", "--dir", str(runs), "--gate", "0.5"]) == 1
    text = capsys.readouterr().out
    assert "round time" in text and "only in the second: client c7's link" in text and "gate 50.0%: failed" in text
    assert main(["compare", "same", "server", "--dir", str(runs)]) == 0
    assert "timing.aggregate_ms: 5.0 -> 300" in capsys.readouterr().out


def test_a_training_that_ends_in_nan_is_worse_and_fails_any_gate(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "same", "lost", "--dir", str(runs), "--gate", "1e9"]) == 1
    text = capsys.readouterr().out
    assert "lost against same: final loss not finite" in text and "failed: final loss not finite" in text
    assert main(["compare", "lost", "same", "--dir", str(runs), "--gate", "0", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    (loss,) = [one for one in pair["quantities"] if one["quantity"] == "final loss"]
    assert (loss["verdict"], loss["first"], loss["change"], loss["low"]) == ("better", None, None, None)
    assert main(["compare", "lost", "lost", "--dir", str(runs), "--gate", "0"]) == 0
    assert "the last losses of both are not finite" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["compare", "same"], ["compare", "a", "b", "--gate", "x"], ["profile", "--by", "x"]])
def test_a_wrong_command_line_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == UsageError.exit_code and "hint: " in capsys.readouterr().err


def test_a_run_with_steps_alone_says_what_is_missing(run: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    process = run.process()
    process.steps(40)
    process.finish()
    assert main(["profile"]) == 0
    text = capsys.readouterr().out
    assert "a step: " in text and "not recorded: rounds and clients, epochs" in text and "a round" not in text
    assert main(["compare", "demo", "demo"]) == 0
    assert "step time" in capsys.readouterr().out


def test_steps_that_all_warm_up_are_not_called_unrecorded(run: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    process = run.process()
    process.steps(3)
    process.finish()
    assert main(["profile"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "too few steps to tell: 3" in text and "steps beyond the first 5, which warm up" in text


def test_a_round_without_an_end_is_left_out_and_that_is_said(
    run: RunBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was killed in its third round; the clocks of its rounds were set back in between."""
    process = run.process()
    for number, t_ns in ((1, T0_NS), (2, T0_NS - 3_600 * 1000 * MS_NS)):
        put_row(process, ROUNDS_TABLE, t_ns, round=number, federation="f", duration_ms=500.0, aggregate_ms=20.0)
    put_steps(process, 20, T0_NS + 1000 * MS_NS, client="a", round=3, first=0)
    process.finish()
    assert main(["profile"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "a round: 500 ms (2 rounds" in text and "the end of round 3, which is left out" in text


def test_a_run_with_nothing_says_so(run: RunBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    run.process().finish()
    assert main(["profile"]) == 0
    assert "nothing that takes time was recorded" in capsys.readouterr().out
    for by in ("client", "layer", "module", "rank"):
        assert main(["profile", "--by", by]) == 0
        assert f"nothing was recorded by {by}" in capsys.readouterr().out
    assert main(["compare", "demo", "demo", "--gate", "0.1"]) == 0
    assert "too little was recorded to compare" in capsys.readouterr().out


def test_odd_rows_break_nothing_and_are_said_to_be_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(4, 2)
    with stethos.federation(
        "odd", model=model, dir=tmp_path, run="odd", progress=False, measure_compression=True
    ) as fed:  # fmt: skip
        for rnd in fed.rounds(2):
            for client in ("we'ird\x1b[31m", "b\nc", "c"):
                with rnd.client(client) as site:
                    site.note(upload_ms=-5.0, download_ms=float("inf"), compute_ms=3.0, duration_ms=-1.0)
                    site.update(copy.deepcopy(model.state_dict()), samples=0, loss=float("nan"))
            rnd.note(duration_ms=-4.0, wait_ms=1.0)
    wait_for_rest(tmp_path / "odd")
    target = ["-t", str(tmp_path / "odd")]
    for words in ([], ["--by", "client"], ["--by", "layer"], ["--json"]):
        assert main(["profile", *target, *words]) == 0
    text = capsys.readouterr().out
    assert "2 impossible durations of rounds" in text and "impossible times of clients" in text
    assert "\x1b" not in text and "change nothing" in text and " -1" not in text.split("{")[0]
    assert main(["compare", str(tmp_path / "odd"), str(tmp_path / "odd")]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trace-steps", "0"], "--trace-steps 0 is out of range"),
        (["--trace-steps", "1000"], "give 1 to 100 steps"),
        (["--trace-steps", "3", "--trace-limit", "10"], "--trace-limit is too small"),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == UsageError.exit_code and said in capsys.readouterr().err
