"""`stethos rounds`, `clients` and `compare-clients` over real federations, whole and killed."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import MS_NS, T0_NS, RunBuilder
from federated_rows import put_row
from processes import environment, finish, start, start_program, wait_for_rest, wait_until
from terminal import on_a_terminal

from stethos.cli.main import main
from stethos.cli.rounds import wrongs_of
from stethos.schema import CLIENT_REPORTS, ROUNDS
from stethos.store.run import open_run
from stethos.view.round import RoundView

COMMANDS = (["rounds"], ["clients"], ["compare-clients", "c1", "c7"])
Shown = Callable[..., str]


def _own(directory: Path) -> dict[str, str]:
    runtime = directory / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return environment(XDG_RUNTIME_DIR=str(runtime))


RUNS: dict[str, tuple[str, ...]] = {
    "faulty": (),
    "lonely": ("--rounds", "1", "--clients", "1", "--healthy"),
    "long": ("--rounds", "60", "--clients", "3"),
    "crowd": ("--rounds", "2", "--clients", "300"),
    "two": ("--rounds", "2", "--clients", "3", "--federations", "2"),
}


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with these runs, all of them finished."""
    directory = tmp_path_factory.mktemp("recorded")
    words = [word for name, options in RUNS.items() for word in (str(directory), name, *options, "--")]
    result = finish(start_program("federate.py", *words, env=_own(directory)))
    assert result.returncode == 0, result.stderr
    for name in RUNS:
        wait_for_rest(directory / name)
    return directory


@pytest.fixture
def faulty(recorded: Path) -> Path:
    """8 rounds of 10 clients: c2 fails in 3 and 5, c4 drops out in 2, c6 sends NaN in 6, c7 turns its update around."""
    return recorded / "faulty"


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A federation that has come to c5 in round 4 and goes no further."""
    process = start_program("federate.py", tmp_path, "run", "--hang-in", "4", env=_own(tmp_path))
    assert process.stdout is not None and process.stdout.readline() == "hanging\n"
    try:
        yield tmp_path / "run", process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Shown:
    """What a command prints about a run."""

    def run(path: Path, *words: str, status: int | None = 0) -> str:
        assert main([*words, "-t", str(path)]) == status or status is None
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


def line_of(text: str, begin: str) -> str:
    (found,) = [line for line in text.splitlines() if line.split()[: len(begin.split())] == begin.split()]
    return found


def rows_of(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    assert isinstance(found, list) and all(isinstance(row, dict) for row in found)
    return found


# Rounds ----------------------------------------------------------------------------------------------


def test_rounds_say_what_went_wrong_and_with_whom(faulty: Path, show: Shown) -> None:
    text = show(faulty, "rounds")
    lines = text.splitlines()
    assert lines[0] == "blobs: 8 rounds, 10 clients a round, ended, ✗ trouble in 4 rounds"
    assert lines[1].startswith("loss      █") and lines[2].startswith("accuracy  ▁")
    assert "10/10" in line_of(text, "1") and "✗" not in line_of(text, "1")
    assert "9/10" in line_of(text, "2") and line_of(text, "2").endswith("✗ dropped: c4")
    assert line_of(text, "3").endswith("✗ failed: c2")
    assert line_of(text, "6").endswith("✗ NaN from c6")
    assert "wait" not in text  # one after the other: nobody waits, so there is no column


def test_rounds_in_json_are_the_rows_of_the_table(faulty: Path, show: Shown) -> None:
    rows = rows_of(show(faulty, "rounds", "--json"))
    recorded = open_run(faulty).rows("SELECT round, loss, drift, duration_ms FROM rounds ORDER BY round").values
    assert [(row["round"], row["loss"], row["drift"], row["duration_ms"]) for row in rows] == recorded
    assert {row["state"] for row in rows} == {"ended"}
    assert rows[1]["failures"] == [{"client": "c4", "status": "dropped", "error": "battery empty"}]
    assert rows[5]["nan_clients"] == ["c6"] and rows[5]["client_loss"] == "NaN"
    assert [row["round"] for row in rows_of(show(faulty, "rounds", "--json", "--last", "2"))] == [7, 8]


def test_the_last_rounds_alone(faulty: Path, show: Shown) -> None:
    text = show(faulty, "rounds", "--last", "2")
    assert [line.split()[0] for line in text.splitlines()[-2:]] == ["7", "8"]
    assert text.startswith("blobs: 8 rounds")
    assert "at least 1 is needed" in show(faulty, "rounds", "--last", "0", status=2)


def test_a_long_run_is_cut_in_the_middle_but_for_troubles(recorded: Path, show: Shown) -> None:
    path = recorded / "long"
    numbers = [line.split()[0] for line in show(path, "rounds").splitlines()[5:-1]]
    assert numbers == ["1", "2", "3", "4", "5", "⋮", "20", "⋮", *map(str, range(41, 61))]
    assert "26 of 60 rounds are shown; --all" in show(path, "rounds")
    assert len(show(path, "rounds", "--all").splitlines()) == 65
    assert len(rows_of(show(path, "rounds", "--json"))) == 60


def test_one_client_and_one_round(recorded: Path, show: Shown) -> None:
    lonely = recorded / "lonely"
    text = show(lonely, "rounds")
    assert text.splitlines()[0] == "blobs: 1 round, 1 client a round, ended"
    assert "1/1" in line_of(text, "1") and "✗" not in text
    clients = show(lonely, "clients")
    assert clients.splitlines()[0] == "blobs: 1 client, 1 round, ended, none of them accused"
    assert "cosine" not in clients  # there are no others


def test_a_round_that_runs_and_one_that_was_killed_name_who_is_missing(
    hanging: tuple[Path, subprocess.Popen[str]], show: Shown
) -> None:
    path, process = hanging

    def last() -> dict[str, Any]:
        rows = rows_of(show(path, "rounds", "--json"))
        return rows[-1] if rows else {"at_work": [], "ok": 0}  # nothing has been collected yet

    wait_until(lambda: last()["at_work"] == ["c5"] and last()["ok"] == 5, "round 4 at c5")
    running = last()
    assert (running["round"], running["state"], running["selected"]) == (4, "running", 10)
    assert running["not_heard_of"][:3] == ["c6", "c7", "c8"] and len(running["not_heard_of"]) == 4
    text = show(path, "rounds")
    assert text.startswith("blobs: 3 rounds, 10 clients a round, running")
    assert "running; at work: c5; not heard of: c6, c7, c8 and 1 more" in line_of(text, "4")
    process.kill()
    process.communicate()
    wait_for_rest(path)
    assert last()["state"] == "unfinished" and set(last()) == set(rows_of(show(path, "rounds", "--json"))[0])
    assert "✗ never ended; at work: c5" in line_of(show(path, "rounds"), "4")
    assert "killed" in show(path, "clients").splitlines()[0]


def test_the_first_round_is_seen_before_it_ends(tmp_path: Path, show: Shown) -> None:
    process = start_program("federate.py", tmp_path, "run", "--hang-in", "1", env=_own(tmp_path))
    assert process.stdout is not None and process.stdout.readline() == "hanging\n"
    try:
        path = tmp_path / "run"
        wait_until(lambda: "at work: c5" in show(path, "rounds"), "round 1 at c5")
        assert show(path, "rounds").startswith("run: 0 rounds, 6 clients a round, running")
        assert "no federated round has ended yet" in show(path, "clients")
    finally:
        process.kill()
        process.communicate()


ROUND: dict[str, Any] = {
    "federation": "blobs", "round": 1, "state": "ended", "t_ns": T0_NS, "duration_ms": 1.0, "selected": 9, "ok": 9,
    "failed": 0, "loss": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, []),
        ({"global_nan": 3, "loss": math.nan}, ["✗ NaN in the global model"]),
        ({"global_inf": 1}, ["✗ NaN in the global model"]),
        ({"loss": math.inf}, ["✗ the loss is not a number"]),
        ({"ok": 6, "failed": 1}, ["✗ 2 did not answer"]),
        ({"selected": None, "ok": None}, []),
        ({"nan_clients": [f"c{number}" for number in range(12)]}, ["✗ NaN from c0, c1, c2 and 9 more"]),
    ],
)
def test_what_went_wrong_in_a_round_is_said_in_words(facts: dict[str, Any], words: list[str]) -> None:
    assert wrongs_of(RoundView(**{**ROUND, **facts})) == words


# Clients ---------------------------------------------------------------------------------------------


def test_clients_that_findings_name_come_first_as_diagnose_names_them(faulty: Path, show: Shown) -> None:
    text = show(faulty, "clients")
    lines = text.splitlines()
    assert lines[0] == "blobs: 10 clients, 8 rounds, ended, ✗ 2 accused, 1 more, over now"
    names = [line.split()[0] for line in lines[3:13]]
    assert names == ["c7", "c2", "c6", "c0", "c1", "c3", "c4", "c5", "c8", "c9"]
    found = json.loads(show(faulty, "diagnose", "--json", status=None))["findings"]
    wrong = [one for one in found if one["severity"] != "info"]
    assert {client for one in wrong for client in one["clients"]} == set(names[:3])
    assert "✗ sign-flip, 97 %, since round 1" in line_of(text, "c7")
    assert "✗ nan" in line_of(text, "c6") and "round 6 only" in line_of(text, "c6")
    assert "6/8" in line_of(text, "c2") and "2 failed (ValueError: corrupt shard 17)" in line_of(text, "c2")
    assert "7/8" in line_of(text, "c4") and "1 dropped (battery empty)" in line_of(text, "c4")
    assert "█·" in line_of(text, "c4")  # the round it missed
    assert all("✗" not in line_of(text, name) for name in ("c0", "c1", "c3", "c4", "c5"))  # a fact is not a mark


def test_a_silenced_detector_marks_nobody(
    faulty: Path, show: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stethos.toml").write_text('[diagnose]\nsilence = ["faulty-client", "client-failure"]\n')
    monkeypatch.chdir(tmp_path)
    assert "accused" in show(faulty, "clients").splitlines()[0] and "sign-flip" not in show(faulty, "clients")


def test_clients_in_json_agree_with_plain_sql(faulty: Path, show: Shown) -> None:
    rows = {row["client"]: row for row in rows_of(show(faulty, "clients", "--json"))}
    with open_run(faulty) as run:
        sql = "SELECT client, cos_centre, norm_ratio FROM updates WHERE layer IS NULL AND client = 'c7' AND round = 4"
        expected = run.rows(sql).values
        values = run.rows("SELECT cos_centre FROM updates WHERE layer IS NULL AND client = 'c2'").values
        losses = run.rows("SELECT entry_loss FROM client_rounds WHERE client = 'c2' ORDER BY round").values
    fourth = rows_of(show(faulty, "clients", "--round", "4", "--json"))
    assert [(one["client"], one["cosine"], one["norm_ratio"]) for one in fourth if one["client"] == "c7"] == expected
    assert rows["c2"]["cosine"] == pytest.approx(statistics.median(value for (value,) in values))
    assert [turn["entry_loss"] for turn in rows["c2"]["course"]] == [loss for (loss,) in losses]
    assert rows["c2"]["entry_loss"] == pytest.approx(statistics.median(loss for (loss,) in losses if loss is not None))
    assert (rows["c2"]["failed"], rows["c2"]["ok"]) == (2, 6)
    assert rows["c6"]["non_finite"] > 0 and rows["c1"]["non_finite"] == 0
    assert rows["c7"]["is_accused"] and not rows["c1"]["is_accused"] and rows["c1"]["mark"] is None


def test_clients_of_one_round(faulty: Path, show: Shown) -> None:
    text = show(faulty, "clients", "--round", "6")
    assert text.startswith("blobs: 10 clients, round 6, ended, ✗ 2 accused, 1 more, over now")
    assert " NaN " in line_of(text, "c6") and "1/1" in line_of(text, "c2")
    assert "it has rounds 1 to 8" in show(faulty, "clients", "--round", "99", status=2)


@pytest.mark.parametrize(
    ("column", "first"), [("client", "c0"), ("cosine", "c7"), ("norm", "c7"), ("ok", "c2"), ("samples", "c4")]
)
def test_clients_are_sorted_by_a_column_the_worst_first(faulty: Path, show: Shown, column: str, first: str) -> None:
    assert show(faulty, "clients", "--sort", column).splitlines()[3].split()[0] == first


def test_an_unknown_column_is_refused_with_those_there_are(faulty: Path, show: Shown) -> None:
    assert "cosine" in show(faulty, "clients", "--sort", "nonsense", status=2)


def test_many_clients_are_cut_with_a_hint(recorded: Path, show: Shown) -> None:
    path = recorded / "crowd"
    text = show(path, "clients")
    assert [line.split()[0] for line in text.splitlines()[3:5]] == ["c7", "c0"] and len(text.splitlines()) == 35
    assert "270 more clients, none of them accused; --all shows every one" in text
    assert len(show(path, "clients", "--all").splitlines()) == 304
    assert len(rows_of(show(path, "clients", "--json"))) == 300
    assert "299/300" in line_of(show(path, "rounds"), "2")


# Two clients -----------------------------------------------------------------------------------------


def test_two_clients_side_by_side_with_what_differs(faulty: Path, show: Shown) -> None:
    text = show(faulty, "compare-clients", "c1", "c7")
    assert line_of(text, "turns").split()[1:] == ["8", "ok", "8", "ok"]
    whole = line_of(text, "all weights")
    assert "✗ cosine -" in whole and "norm" in whole and "signs -" in whole
    names = [line.split()[0] for line in text.splitlines() if line.startswith(("0.", "2."))]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]  # as in the model
    assert "output layer: change of the bias of each class" in text and "│" in text
    alike = show(faulty, "compare-clients", "c1", "c3")
    assert "✗" not in line_of(alike, "all weights")


def test_one_round_of_two_clients(faulty: Path, show: Shown) -> None:
    text = show(faulty, "compare-clients", "c6", "c3", "--round", "6")
    assert "✗ NaN" in line_of(text, "last loss") and "1 |      0" in line_of(text, "2.weight")
    failed = show(faulty, "compare-clients", "c2", "c3", "--round", "5")
    assert "0 ok, 1 failed" in line_of(failed, "turns") and "✗ failures" in line_of(failed, "turns")
    assert "ValueError: corrupt shard 17" in line_of(failed, "last error")
    assert "- |" in line_of(failed, "all weights") and "output layer" not in failed


def test_a_comparison_in_json_holds_both_and_what_differs(faulty: Path, show: Shown) -> None:
    rows = rows_of(show(faulty, "compare-clients", "c1", "c7", "--round", "4", "--json"))
    assert [row["what"] for row in rows] == ["totals", *["layer"] * 5, "output rows: mean", "output rows: bias"]
    assert (rows[0]["a"]["client"], rows[0]["b"]["client"]) == ("c1", "c7")
    sql = "SELECT norm, cos_centre FROM updates WHERE client = 'c7' AND round = 4 AND layer = '2.bias'"
    (expected,) = open_run(faulty).rows(sql).values
    (layer,) = [row for row in rows if row["layer"] == "2.bias"]
    assert (layer["b"]["norm"], layer["b"]["cosine"]) == expected
    assert len(rows[-1]["a"]) == 4 and rows[1]["differs"][0].startswith("cosine -")


def test_an_unknown_client_gets_the_nearest_names(faulty: Path, show: Shown) -> None:
    assert "did you mean c7" in show(faulty, "compare-clients", "c1", "c77", status=2)
    assert "compared with itself" in show(faulty, "compare-clients", "c1", "c1", status=2)


# Any of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_run_without_a_federation_gets_clear_words(run: RunBuilder, show: Shown, words: list[str]) -> None:
    process = run.process(is_alive=False)
    process.steps(3)
    process.finish()
    text = show(run.path, *words)
    assert "run demo has no federated rounds" in text and "hint: `stethos.federation(...)`" in text
    assert show(run.path, *words, "--json") == "[]\n"


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_sql_behind_a_table_can_be_asked_by_itself(faulty: Path, show: Shown, words: list[str]) -> None:
    statements = show(faulty, *words, "--sql").split(";\n")[:-1]
    with open_run(faulty) as run:
        results = [run.rows(statement) for statement in statements]
    assert results[0].values and "{where}" not in statements[0]
    shown = rows_of(show(faulty, *words, "--json"))
    assert set(results[0].columns) <= set(shown[0] if words[0] != "compare-clients" else shown[0]["a"])


@pytest.mark.parametrize(
    "words", [*COMMANDS, ["compare-clients", "c1", "c9 evil's"]], ids=lambda words: " ".join(words)
)
def test_names_and_errors_from_a_run_cannot_command_the_terminal(faulty: Path, show: Shown, words: list[str]) -> None:
    for text in (show(faulty, *words), show(faulty, *words, "--json")):
        assert "\x1b" not in text and "\x07" not in text
    drawn = on_a_terminal(*words, "-t", faulty, columns=200, NO_COLOR="1")
    assert "\x1b[31m" not in drawn and "\x1b[2J" not in drawn and "\x07" not in drawn


@pytest.mark.parametrize("width", [50, 80, 140])
@pytest.mark.parametrize("words", COMMANDS[:2], ids=lambda words: words[0])
def test_a_narrow_terminal_leaves_out_columns_and_keeps_what_is_wrong(
    faulty: Path, words: list[str], width: int
) -> None:
    drawn, _, left_out = on_a_terminal(*words, "-t", faulty, columns=width, NO_COLOR="1").partition("a wider terminal")
    wrong = ("✗ NaN", "✗ failed") if words == ["rounds"] else ("✗ nan", "✗ sign-flip")
    assert "row 1" not in drawn and all(one in drawn for one in wrong)
    is_wide = width == 140 or (words == ["rounds"] and width == 80)
    assert ("duration" in drawn, "duration" in left_out) == (is_wide, not is_wide)


def test_several_federations_of_a_run_are_kept_apart(recorded: Path, show: Shown) -> None:
    path = recorded / "two"
    heads = [line.partition(":")[0] for line in show(path, "rounds").splitlines() if " a round" in line]
    assert heads == ["blobs", "more blobs"]
    assert len(rows_of(show(path, "clients", "--json"))) == 6
    assert show(path, "clients", "--federation", "more blobs").startswith("more blobs: 3 clients, 2 rounds")
    assert "it has blobs, more blobs" in show(path, "rounds", "--federation", "nonsense", status=2)
    assert "--federation" in show(path, "compare-clients", "c0", "c1", status=2)
    assert show(path, "compare-clients", "c0", "c1", "--federation", "blobs").startswith("c0 and c1")


@pytest.fixture
def edges(tmp_path: Path) -> Path:
    """Two federations without a client in common, and a third without any."""
    with RunBuilder(tmp_path / "edges") as run:
        server = run.process(is_alive=False)
        for federation, clients in {"east": ("a", "b"), "west": ("c", "d"), "empty": ()}.items():
            for client in clients:
                put_row(server, CLIENT_REPORTS, T0_NS, client=client, round=1, side="server", federation=federation,
                        turn=0, status="ok", samples=8)  # fmt: skip
            put_row(server, ROUNDS, T0_NS, round=1, federation=federation, duration_ms=5.0)
        server.drain()
        server.finish()
    return tmp_path / "edges"


def test_two_clients_are_compared_where_they_meet(edges: Path, show: Shown) -> None:
    assert show(edges, "compare-clients", "c", "d").startswith("c and d")
    assert "'a' and 'd' take part in no federation together" in show(edges, "compare-clients", "a", "d", status=2)
    assert "--federation east" in show(edges, "compare-clients", "a", "nobody", status=2)


def test_rounds_without_clients_have_none_to_show(edges: Path, show: Shown) -> None:
    assert "no client took part" in show(edges, "clients", "--federation", "empty")
    assert rows_of(show(edges, "clients", "--federation", "empty", "--json")) == []


def test_of_a_round_that_another_server_repeated_the_last_time_counts(tmp_path: Path, show: Shown) -> None:
    """A server that crashed in its third round and begins again with the second, in a process of its own."""
    path = tmp_path / "again"
    with RunBuilder(path) as run:
        client = run.process("client", is_alive=False)
        for place, (name, rounds) in enumerate({"first": (1, 2, 3), "second": (2, 3, 4)}.items()):
            server = run.process(name, is_alive=False)
            for number in rounds:
                at_ns = T0_NS + (100 * place + 10 * number) * MS_NS
                is_lost = name == "first" and number == 3
                common = {"client": "a", "round": number, "federation": "wards", "turn": 0}
                put_row(client, CLIENT_REPORTS, at_ns + MS_NS, side="client", steps=number + 10 * place,
                        status="failed" if is_lost else "ok", error="ValueError: no" if is_lost else "",
                        traceback="there" if is_lost else "", **common)  # fmt: skip
                put_row(server, CLIENT_REPORTS, at_ns + 5 * MS_NS, side="server", samples=100 + place,
                        status="failed" if is_lost else "ok", error="lost" if is_lost else "", **common)  # fmt: skip
                put_row(server, ROUNDS, at_ns, round=number, federation="wards", duration_ms=8.0, loss=1.0 + place,
                        selected=1, reported=int(not is_lost), failed=int(is_lost))  # fmt: skip
            server.drain()
            server.finish()
        client.drain()
        client.finish()
    with open_run(path) as one:
        query = "SELECT round, status, error, traceback, samples, steps FROM client_rounds ORDER BY round"
        assert one.rows(query).values == [
            (1, "ok", None, None, 100, 1), (2, "ok", None, None, 101, 12), (3, "ok", None, None, 101, 13),
            (4, "ok", None, None, 101, 14),
        ]  # fmt: skip
    rows = rows_of(show(path, "rounds", "--json"))
    assert [(row["round"], row["state"], row["loss"]) for row in rows] == [
        (1, "ended", 1.0), (2, "repeated", 1.0), (2, "ended", 2.0), (3, "repeated", 1.0), (3, "ended", 2.0),
        (4, "ended", 2.0),
    ]  # fmt: skip
    shown = show(path, "rounds")
    assert shown.startswith("wards: 4 rounds") and shown.count("was repeated") == 2 and "✗" not in shown


@pytest.mark.parametrize(("server", "client", "told"), [
    ("dropped", "failed", "failed"), ("timeout", "failed", "failed"), ("ok", "failed", "ok"),
    ("dropped", "ok", "dropped"), (None, "failed", "failed"), ("failed", None, "failed"),
])  # fmt: skip
def test_a_client_that_says_how_it_failed_has_failed(
    tmp_path: Path, server: str | None, client: str | None, told: str
) -> None:
    """Whatever its server takes it for, unless that has its update."""
    with RunBuilder(tmp_path / "one") as run:
        process = run.process(is_alive=False)
        for side, status in {"server": server, "client": client}.items():
            if status is not None:
                trace = "Traceback" if side == "client" and status == "failed" else ""
                put_row(process, CLIENT_REPORTS, T0_NS, client="a", round=1, side=side, federation="f", turn=0,
                        status=status, traceback=trace)  # fmt: skip
        process.drain()
        process.finish()
    with open_run(tmp_path / "one") as one:
        assert one.rows("SELECT status FROM client_rounds").values == [(told,)]


def test_a_client_of_two_federations_is_compared_in_each(recorded: Path, show: Shown) -> None:
    path = recorded / "two"
    shown = show(path, "diagnose", "--client", "c0", status=0)
    heads = [line.partition(":")[0] for line in shown.splitlines() if line.startswith("client c0")]
    assert heads == [f"client c0 of federation {name} in run two" for name in ("blobs", "more blobs")]
    assert "of 6" not in shown and shown.count("of 3") >= 8
    found = json.loads(show(path, "diagnose", "--client", "c0", "--json"))
    assert found["turns"] == {"ok": 4} and found["federations"] == {"blobs": {"ok": 2}, "more blobs": {"ok": 2}}
    assert {one["of"] for one in found["measures"]} == {3} and {one["federation"] for one in found["measures"]} == {
        "blobs", "more blobs"
    }  # fmt: skip
    assert all(len(one["course"]) == 2 for one in found["measures"])


def test_output_that_cannot_draw_gets_question_marks(faulty: Path) -> None:
    command = [sys.executable, "-m", "stethos.cli.main", "rounds", "-t", str(faulty)]
    result = subprocess.run(
        command, capture_output=True, check=False, env=environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    )
    assert result.returncode == 0 and b"? failed: c2" in result.stdout and result.stderr == b""


def test_reading_federations_needs_no_torch_and_no_pyarrow(faulty: Path) -> None:
    """But for `clients`, which diagnoses a run unless that has been done."""
    code = (
        "import sys\nfrom stethos.cli.main import main\n"
        f"for words in {COMMANDS[::2]!r}:\n    assert main([*words, '-t', {str(faulty)!r}]) == 0\n"
        "assert not {'torch', 'pandas', 'rich', 'numpy', 'pyarrow'} & set(sys.modules)\n"
    )
    result = finish(start("-c", code))
    assert (result.returncode, result.stderr) == (0, "")


def test_a_kept_diagnosis_is_shown_without_detectors_and_numpy(faulty: Path) -> None:
    for words, unwanted in (
        (["diagnose", "-t", str(faulty)], {"torch", "pandas", "pyarrow.compute"}),
        (["clients", "-t", str(faulty)], {"stethos.diagnose.detectors", "torch", "pandas", "rich", "numpy", "pyarrow"}),
        (["ls", "--dir", str(faulty.parent)], {"stethos.diagnose.detectors", "torch", "pandas", "numpy", "pyarrow"}),
    ):
        code = (
            f"import sys\nfrom stethos.cli.main import main\nassert main({words!r}) in (0, 1)\n"
            f"assert not {unwanted!r} & set(sys.modules), {unwanted!r} & set(sys.modules)"
        )
        result = finish(start("-c", code))
        assert (result.returncode, result.stderr) == (0, "")
