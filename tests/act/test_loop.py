"""Corrections in a loop of the user's own: what it averages, what is recorded, how it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import wait_until
from torch import nn

import stethos
from stethos.act.correction import Corrector
from stethos.act.recording import request_undo, undo_requests
from stethos.cli.main import main
from stethos.errors import UsageError
from stethos.observe import boot

CLIENTS, ROUNDS = 6, 5


def loop(directory: Path, mode: str, *, spoil: str = "nan", undo_before: int | None = None) -> tuple[nn.Module, Path]:
    """A loop whose client c4 is spoilt from round 2 on; actions can be taken back before a round."""
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    chance = torch.Generator().manual_seed(1)
    target = torch.randn(3, 8, generator=chance)
    with stethos.federation("wards", model=model, dir=directory, run="loop", progress=False, correct=mode) as fed:
        for rnd in fed.rounds(ROUNDS):
            if rnd.number == undo_before and fed.path is not None:
                request_undo(fed.path, 1)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            for number in range(CLIENTS):
                with rnd.client(f"c{number}") as site:
                    weight = state["weight"] + 0.3 * (target - state["weight"])
                    weight = weight + 0.01 * torch.randn(3, 8, generator=chance)
                    if number == 4 and rnd.number >= 2:
                        weight = weight * float("nan") if spoil == "nan" else weight + 1000
                    site.update({**state, "weight": weight}, samples=10 + number)
            model.load_state_dict(rnd.aggregate())
            rnd.evaluate(loss=float((model.weight.detach() - target).square().mean()))
        path = fed.path
    assert path is not None
    return model, path


def test_the_loop_survives_and_the_run_tells_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, path = loop(tmp_path, "on")
    assert bool(model.weight.isfinite().all())
    with stethos.open_run(path) as run:
        rows = run.sql("SELECT what, client, state, first, last, times, reason FROM actions").to_pylist()
    assert rows == [
        {"what": "drop-update", "client": "c4", "state": "active", "first": 2, "last": 5, "times": 4,
         "reason": "24 elements of its update are NaN or infinite"},
    ]  # fmt: skip
    assert main(["actions", "-t", str(path)]) == 0
    assert "drop-update c4" in capsys.readouterr().out
    with stethos.open_run(path) as run:
        wait_until(lambda: not run.is_live, "the drainer's last word")
    assert main(["actions", "-t", str(path), "--undo", "1"]) == 2
    assert main(["actions", "-t", str(path), "--undo", "9"]) == 2
    assert "has no action 9" in capsys.readouterr().err


def test_off_and_dry_run_average_what_was_sent(tmp_path: Path) -> None:
    plain, first = loop(tmp_path / "a", "off")
    dry, second = loop(tmp_path / "b", "dry-run")
    assert not bool(plain.weight.isfinite().all()) and not bool(dry.weight.isfinite().all())
    with stethos.open_run(first) as off, stethos.open_run(second) as run:
        assert off.sql("SELECT * FROM actions").num_rows == 0
        states = {row["state"] for row in run.sql("SELECT state FROM actions").to_pylist()}
        assert states == {"proposed", "refused"}  # refused: the fourth rollback


def test_an_action_is_taken_back_while_the_loop_runs(tmp_path: Path) -> None:
    _, path = loop(tmp_path, "on", spoil="large", undo_before=4)
    with stethos.open_run(path) as run:
        (row,) = run.sql("SELECT what, state, first, last FROM actions WHERE what = 'clip-update'").to_pylist()
    assert row == {"what": "clip-update", "state": "undone", "first": 2, "last": 4}


def test_a_request_that_says_nothing_sensible_is_none(tmp_path: Path) -> None:
    assert undo_requests(tmp_path) == set()
    (tmp_path / "undo").write_bytes(b"\xff\xfe 3 x -1 99999999999999\n4\n")
    assert undo_requests(tmp_path) == set()
    (tmp_path / "undo").write_text("3 x -1 99999999999999\n4\n")
    assert undo_requests(tmp_path) == {3, 4}


def test_a_mode_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dry-run"):
        stethos.federation("wards", dir=tmp_path, correct="maybe")


def test_a_correction_that_fails_itself_leaves_the_updates_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("our own fault")

    plain, _ = loop(tmp_path / "a", "off", spoil="large")
    monkeypatch.setattr(Corrector, "decide", fail)
    monkeypatch.setattr(Corrector, "settle", fail)
    kept, path = loop(tmp_path / "b", "on", spoil="large")
    assert kept.weight.equal(plain.weight)
    with stethos.open_run(path) as run:
        assert run.sql("SELECT reason FROM gaps WHERE what = 'actions' AND reason LIKE '%our own fault%'").num_rows


@pytest.mark.parametrize("layer", ["0.weight", "1.running_mean"])
def test_a_nan_is_dropped_in_a_buffer_and_in_a_part_of_a_large_layer_that_is_not_read(
    tmp_path: Path, layer: str
) -> None:
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
    chance = torch.Generator().manual_seed(2)
    with stethos.federation("wards", model=model, dir=tmp_path, progress=False, correct="on") as fed:
        for rnd in fed.rounds(2):
            for number in range(5):
                state = {
                    name: value + 0.01 * torch.randn(value.shape, generator=chance)
                    if value.is_floating_point()
                    else value
                    for name, value in model.state_dict().items()
                }
                assert fed.plan is not None
                blocks = fed.plan.parts[0].blocks
                assert blocks is not None
                unread = next(block for block in range(80) if block not in blocks.tolist())
                if number == 3 and rnd.number == 2:
                    state[layer].view(-1)[unread * 1024 if layer == "0.weight" else 0] = torch.nan
                with rnd.client(f"c{number}") as site:
                    site.update(state, samples=10)
            kept = [update.client for update in rnd.corrected()]
            assert kept == [f"c{number}" for number in range(5) if rnd.number == 1 or number != 3]
    assert fed.path is not None
    with stethos.open_run(fed.path) as run:
        assert run.rows("SELECT what, client, first FROM actions").values == [("drop-update", "c3", 2)]
        assert run.rows("SELECT reason FROM gaps WHERE what = 'actions'").values == []


def test_corrections_need_no_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, _ = loop(tmp_path, "on", spoil="large")
    monkeypatch.setattr(boot, "current_session", lambda: None)
    model, _ = loop(tmp_path / "b", "on", spoil="large")
    assert model.weight.equal(recorded.weight)
