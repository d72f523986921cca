"""Programs that log to other tools are heard without a change, and their files can be imported."""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy
import PIL.Image
import pytest
import torch
from processes import DEADLINE_S, checked_books, command, environment, wait_for_rest
from recording import Recording
from torch.utils.tensorboard import SummaryWriter

import stethos
from stethos.cli.main import main
from stethos.observe.media import MOST_ROWS
from stethos.store.foreign.find import foreign_runs
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import Damage, LoggedNumber
from stethos.store.run import Run, open_run

PROGRAMS = Path(__file__).parents[1] / "programs"
Values = dict[str, list[tuple[int, float]]]


def recorded_by_program(tmp_path: Path, program: str, *words: str | Path) -> Run:
    quiet = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_MODE": "offline"}
    done = command(
        "run", "--dir", tmp_path, "--name", "one", PROGRAMS / program, *words,
        env=environment(XDG_RUNTIME_DIR=str(tmp_path), **quiet), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wait_for_rest(tmp_path / "one")
    return open_run(tmp_path / "one")


def values_of(run: Run) -> Values:
    found: Values = {}
    for name, step, value in run.rows("SELECT name, step, value FROM metrics ORDER BY t_ns, step").values:
        found.setdefault(name, []).append((step, value))
    return found


def config_of(run: Run) -> dict[str, Any]:
    return dict(json.loads(run.rows("SELECT config FROM processes").values[0][0]))


def at_own_steps(values: Values) -> Values:
    """As W&B counts calls, from 0; we count the optimizer's steps that were made before, unless told."""
    own = {name: [(index, value) for index, (_, value) in enumerate(rows)] for name, rows in values.items()}
    return own | {"accuracy": values["accuracy"], "nothing": values["nothing"]}


def is_same(one: Values, other: Values) -> bool:
    """Event files hold numbers of four bytes."""
    return one.keys() == other.keys() and all(
        len(one[name]) == len(other[name])
        and all(
            a[0] == b[0] and (math.isclose(a[1], b[1], rel_tol=1e-6) or (math.isnan(a[1]) and math.isnan(b[1])))
            for a, b in zip(one[name], other[name], strict=True)
        )
        for name in one
    )


@pytest.mark.timeout(DEADLINE_S)
def test_a_program_with_a_summary_writer_is_heard_and_its_event_files_say_the_same(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    run = recorded_by_program(tmp_path, "summary_writer.py", "--logs", logs, "--width", "6")
    heard = values_of(run)
    assert [step for step, _ in heard["train/loss"]] == list(range(12))
    assert heard["val/<b>accuracy</b>"] == [(0, 0.0), (1, 0.25), (2, 0.5)]
    wanted = {"lr": 0.01, "optimizer": "AdamW", "weight_decay": 0.1, "scheduler": "CosineAnnealingLR",
              "batch_size": 16, "dataset_size": 64, "width": 6, "parameters": 37}  # fmt: skip
    assert config_of(run) | wanted == config_of(run)
    kinds = run.rows(
        "SELECT kind, count(*), max(length(content)) < 65536 FROM media GROUP BY kind ORDER BY kind"
    ).values
    assert [tuple(row) for row in kinds] == [("histogram", 3, True), ("image", 3, True), ("text", 3, True)]
    checked_books(run)

    assert main(["import", str(logs), "--dir", str(tmp_path), "--name", "again"]) == 0
    imported = open_run(tmp_path / "again")
    assert is_same(values_of(imported), heard)
    assert imported.rows("SELECT content FROM media WHERE kind = 'text' ORDER BY step").values[1][0] == "epoch 1"
    assert imported.summary()["state"] == "ended"
    checked_books(imported)


@pytest.mark.timeout(DEADLINE_S)
def test_a_program_with_wandb_offline_is_heard_and_its_offline_run_says_the_same(tmp_path: Path) -> None:
    run = recorded_by_program(tmp_path, "wandb_offline.py", tmp_path)
    heard = values_of(run)
    assert heard["eval.top1"] == [(index + 1, index / 12) for index in range(12)]
    assert heard["accuracy"] == [(30, 0.5)] and "curve" not in heard
    wanted = {"lr": 0.5, "net": {"depth": 3}, "batch": 16, "optimizer": "SGD", "momentum": 0.9, "parameters": 5}
    assert config_of(run) | wanted == config_of(run)
    media = {(name, kind): content for name, kind, content in run.rows(
        "SELECT name, kind, arg_max(content, t_ns) FROM media GROUP BY name, kind").values}  # fmt: skip
    assert set(media) == {
        ("say", "text"), ("curve", "histogram"), ("seen/0", "image"), ("seen/1", "image"), ("rows", "table")
    }  # fmt: skip
    curve = json.loads(media["curve", "histogram"])
    assert (curve["low"], curve["high"], sum(curve["counts"])) == pytest.approx((1, 2, 2))
    assert json.loads(media["rows", "table"]) == {
        "columns": ["a", "b"],
        "rows": [["1", "<x>"], ["2", "y"]],
        "all_rows": 2,
    }
    assert run.rows("SELECT * FROM gaps WHERE what IN ('media', 'loggers')").values == []

    assert main(["import", str(tmp_path / "wandb"), "--dir", str(tmp_path), "--name", "again"]) == 0
    imported = open_run(tmp_path / "again")
    again = values_of(imported)
    assert is_same(again | {"accuracy": heard["accuracy"], "nothing": heard["nothing"]}, at_own_steps(heard))
    assert again["accuracy"] == [(30, 0.5)] and math.isnan(again["nothing"][0][1])
    assert not [name for name in imported.rows("SELECT name FROM media").values if name[0] != "say"]
    assert config_of(imported)["net"] == {"depth": 3}

    (original,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    whole = list(foreign_runs(original)[0].read(Damage()))
    for damaged in damaged_copies(original, tmp_path / "damaged.wandb"):
        damage = Damage()
        read = list(foreign_runs(damaged)[0].read(damage))
        assert len(read) <= len(whole) and set(map(repr, read)) <= set(map(repr, whole))
        assert len(read) == len(whole) or damage.bytes or damage.records or is_cut(damaged, original)


def damaged_copies(original: Path, copy: Path) -> Any:
    """The same file with a few bytes changed, or cut."""
    content = original.read_bytes()
    chance = random.Random(1)
    for _ in range(25):
        changed = bytearray(content)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] ^= chance.randrange(1, 256)
        copy.write_bytes(changed)
        yield copy
    for size in (0, 1, 7, 11, len(content) // 2, len(content) - 1):
        copy.write_bytes(content[:size])
        yield copy


def is_cut(damaged: Path, original: Path) -> bool:
    """A file that was cut between two records does not show it."""
    return damaged.stat().st_size < original.stat().st_size


def test_damaged_event_files_lose_no_more_than_what_is_damaged(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(60):
            writer.add_scalar("loss", step / 3, step)
    (original,) = (tmp_path / "logs").iterdir()
    whole = list(foreign_runs(original)[0].read(Damage()))
    assert whole[-1] == LoggedNumber("loss", 59, whole[-1].t_ns, pytest.approx(59 / 3))  # type: ignore[union-attr]
    for damaged in damaged_copies(original, tmp_path / "logs" / "damaged.tfevents.1"):
        damage = Damage()
        read = list(foreign_runs(damaged)[0].read(damage))
        assert set(read) <= set(whole)
        assert len(read) == len(whole) or damage.bytes or damage.records or is_cut(damaged, original)


def test_what_cannot_be_imported_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.tfevents.1").write_bytes(b"nonsense" * 100)
    assert main(["import", str(tmp_path), "--dir", str(tmp_path / "runs"), "--name", "x"]) == 1
    assert "nothing to import: 800 damaged bytes" in capsys.readouterr().out
    assert not (tmp_path / "runs" / "x").exists()
    assert main(["import", str(tmp_path / "none"), "--dir", str(tmp_path)]) == 2
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_hundred_thousand_names_are_imported(tmp_path: Path) -> None:
    told = (LoggedNumber(f"layer{index}/<i>norm</i>", 1, 10**18, math.inf) for index in range(100_000))
    written = write_run(tmp_path / "many", tmp_path, told)
    assert written is not None and written.names == 100_000
    assert open_run(tmp_path / "many").rows("SELECT count(DISTINCT name) FROM metrics").values[0][0] == 100_000


def test_mlflow_is_heard_once(
    record: Callable[..., Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    recording = record()
    with mlflow.start_run():
        mlflow.log_metric("auc", 0.75, step=3)
        mlflow.log_metrics({"loss": 2.0, "f1": 0.5}, step=4)
        mlflow.log_param("depth", 4)
    assert recording.rows("SELECT name, step, value FROM metrics") == [
        ("auc", 3, 0.75),
        ("loss", 4, 2.0),
        ("f1", 4, 0.5),
    ]
    assert config_of(recording.close()) == {"depth": 4}


def test_arguments_that_were_parsed_before_are_found(record: Callable[..., Recording]) -> None:
    options = argparse.Namespace(depth=3, device=torch.device("cpu"), password="hunter2", call=print)  # noqa: F841
    recording = record(config={"depth": 5})
    stethos.watch()
    config = config_of(recording.close())
    assert (
        config == {"depth": 5, "device": "cpu", "password": config["password"]} and "hunter" not in config["password"]
    )


def test_the_functions_of_a_logger_are_given_back(record: Callable[..., Recording], tmp_path: Path) -> None:
    before = SummaryWriter.__dict__["add_scalar"]
    recording = record()
    assert SummaryWriter.__dict__["add_scalar"] is not before
    recording.close()
    assert SummaryWriter.__dict__["add_scalar"] is before


def test_media_have_caps_and_values_that_are_no_media_are_told(
    record: Callable[..., Recording], tmp_path: Path, forgiving: None
) -> None:
    recording = record()
    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(MOST_ROWS + 5):
            writer.add_text("much", f"<b>{step}</b>", step)
            if step % 500 == 0:
                recording.drain()
    assert recording.column("SELECT count(*) FROM media") == [MOST_ROWS]
    assert recording.column("SELECT reason FROM gaps WHERE what = 'media'") == [f"much: more than {MOST_ROWS:,} rows"]


def test_texts_images_tables_and_arrays_are_logged_by_name(record: Callable[..., Recording], forgiving: None) -> None:
    recording = record()
    rows = [{"input": f"<b>{place}</b>", "score": place / 2} for place in range(130)]
    picture = PIL.Image.new("RGB", (30, 20))
    stethos.log(
        {"eval/says": "a <b>text</b>", "seen": torch.rand(3, 8, 9), "photo": numpy.zeros((8, 9, 3), numpy.uint8)},
        step=7,
    )
    stethos.log(
        pil=picture, rows=rows, lists={"a": [1, 2], "b": [3, 4]}, weights=torch.randn(50, 4), odd=[1, 2], loss=0.5
    )
    kinds = dict(recording.rows("SELECT name, kind FROM media ORDER BY name"))
    assert kinds == {
        "eval/says": "text", "lists": "table", "photo": "image", "pil": "image", "rows": "table", "seen": "image",
        "weights": "histogram",
    }  # fmt: skip
    assert recording.rows("SELECT name, value FROM metrics WHERE value IS NOT NULL") == [("loss", 0.5)]
    assert recording.column("SELECT step FROM media WHERE name = 'seen'") == [7]
    table = json.loads(recording.column("SELECT content FROM media WHERE name = 'rows'")[0])
    assert (len(table["rows"]), table["all_rows"], table["columns"]) == (100, 130, ["input", "score"])
    assert recording.column("SELECT reason FROM gaps WHERE what = 'metrics'") == [
        "odd: list cannot be recorded as a number"
    ]


def test_a_table_keeps_no_secret_that_its_columns_or_cells_name(record: Callable[..., Recording]) -> None:
    recording = record()
    stethos.log(
        users=[{"user": "me", "password": "Xy7Word"}], tokens=[{"token": "cat", "loss": 0.5}],
        settings=[{"key": "api_key", "value": "Xy7Word"}, {"key": "lr", "value": 0.1}],
    )  # fmt: skip
    tables = dict(recording.rows("SELECT name, content FROM media"))
    assert json.loads(tables["users"])["rows"] == [["me", "[redacted]"]]
    assert json.loads(tables["tokens"])["rows"] == [["cat", "0.5"]]
    assert json.loads(tables["settings"])["rows"] == [["api_key", "[redacted]"], ["lr", "0.1"]]


@pytest.mark.filterwarnings("ignore:For backward compatibility")  # mlflow's table asks pandas in an old way
def test_batches_of_images_and_what_mlflow_is_given_are_heard(
    record: Callable[..., Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    recording = record()
    with SummaryWriter(str(tmp_path / "logs")) as writer:
        writer.add_images("batch", torch.rand(6, 3, 8, 9), 5)
    with mlflow.start_run():
        mlflow.log_text("hello", "note.txt")
        mlflow.log_image(numpy.zeros((8, 9, 3), numpy.uint8), key="seen", step=3)
        mlflow.log_table({"a": [1, 2], "b": ["x", "y"]}, "rows.json")
    assert recording.rows("SELECT name, kind FROM media ORDER BY name") == [
        *((f"batch/{number}", "image") for number in range(4)),
        ("note.txt", "text"), ("rows.json", "table"), ("seen", "image"),
    ]  # fmt: skip


def test_a_value_that_cannot_be_kept_costs_nothing_but_itself(record: Callable[..., Recording]) -> None:
    """Numbers beside it are recorded to the end, and it is named once."""

    class Odd:
        shape, dtype = (3,), "float"

        def __array__(self, *_: object, **__: object) -> None:
            raise ValueError("not to be read")

    recording = record()
    for step in range(30):
        stethos.log(
            step=step, loss=1 / (step + 1), near=numpy.array([1.0, 1.0 + 2.3e-16]), odd=Odd(), one=[{"a": 1}, 2]
        )
        stethos.log(
            step=step, wide=numpy.array([-1.7e308, 1.7e308]), same=numpy.full(4, 1e300), text=numpy.array(["a"])
        )
        stethos.log(step=step, half=torch.ones(3, dtype=torch.bfloat16), thin=torch.eye(3).to_sparse())
    recording.close()
    assert recording.rows("SELECT count(*) FROM metrics WHERE name = 'loss'") == [(30,)]
    named = dict(recording.rows("SELECT split_part(reason, ':', 1), count(*) FROM gaps GROUP BY 1"))
    assert named == {"odd": 2, "one": 1, "text": 1}
    kept = recording.rows("SELECT name, count(*) FROM media WHERE kind = 'histogram' GROUP BY 1 ORDER BY 1")
    assert kept == [(name, 30) for name in ("half", "near", "same", "thin", "wide")]
    told = json.loads(recording.rows("SELECT content FROM media WHERE name = 'half' LIMIT 1")[0][0])
    assert (told["low"], told["high"], told["counts"][8]) == (0.5, 1.5, 3)


def test_a_tensor_that_is_logged_can_be_resized_as_before(record: Callable[..., Recording]) -> None:
    """FSDP frees the memory of gathered weights so."""
    record()
    weights = torch.randn(64, 8)
    stethos.log(weights=weights)
    weights.untyped_storage().resize_(0)
    assert weights.untyped_storage().nbytes() == 0
