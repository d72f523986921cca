"""A run's numbers as TensorBoard's loader and MLflow's client read them."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

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
