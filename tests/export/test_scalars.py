"""A run's numbers as TensorBoard's loader and MLflow's client read them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

from stethos.cli.main import main
from stethos.export import tensorboard
from stethos.store.run import Run


def test_tensorboard_loads_every_series(federation: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = tensorboard.write(federation, tmp_path / "logs")
    directories = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert directories == ["client-0", "client-1", "client-2", "wards"] and written.counts["series"] == 4
    rounds = EventAccumulator(str(tmp_path / "logs" / "wards")).Reload()
    losses = [(one.step, one.value) for one in rounds.Scalars("round/loss")]
    assert [step for step, _ in losses] == [1, 2, 3] and math.isnan(losses[1][1]) and losses[0][1] == 1.0
    assert "client/c1/loss" in rounds.Tags()["scalars"]
    steps = EventAccumulator(str(tmp_path / "logs" / "client-0")).Reload()
    assert [one.step for one in steps.Scalars("train/loss")] == list(range(9))
    assert len(steps.Scalars("train/step_ms")) == 6  # the first step of each turn has none: a gap, not a zero


def test_only_files_of_an_earlier_export_are_replaced(federation: Run, federation_path: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    tensorboard.write(federation, logs)
    (logs / "wards" / "mine.txt").write_text("kept")
    (logs / "wards" / "events.out.tfevents.1.elsewhere").write_text("kept")
    words = ["export", "-t", str(federation_path), "--to", "tensorboard", "-o", str(logs)]
    assert main(words) == 2 and main([*words, "--force"]) == 0
    found = sorted(path.name for path in (logs / "wards").iterdir())
    assert found[0] == "events.out.tfevents.1.elsewhere" and found[-1] == "mine.txt" and len(found) == 3
    assert len(list(logs.iterdir())) == 4


def test_a_failure_leaves_no_directory(federation: Run, tmp_path: Path) -> None:
    def fail(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tensorboard.write(federation, tmp_path / "logs", advance=fail)
    assert list(tmp_path.iterdir()) == []


def test_mlflow_reads_every_value(federation: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        from stethos.export import mlflow

        uri = (tmp_path / "mlruns").as_uri()
        written = mlflow.write(federation, uri)
        client = MlflowClient(tracking_uri=uri)
        run = client.get_run(written.details["mlflow_run_id"])
        assert run.info.run_name == "wards-1" and run.info.status == "FINISHED"
        found = client.get_metric_history(run.info.run_id, "round/loss")
        assert sorted((one.step, one.value) for one in found if not math.isnan(one.value)) == [(1, 1.0), (3, 1 / 3)]
        assert len(client.get_metric_history(run.info.run_id, "client-0/train/loss")) == 9
