"""Logs a run's numbers to MLflow, through its own client: a directory, a database or a tracking server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stethos.errors import UsageError
from stethos.export.output import DEFAULT_LIMIT, ExportResult, no_progress
from stethos.view.scalar import Scalars
from stethos.view.stream import Advance

if TYPE_CHECKING:
    from stethos.store.run import Run

EXPERIMENT = "stethos"
_BATCH = 1000  # MLflow takes no more at once
_ENDINGS = {"ended": "FINISHED", "failed": "FAILED", "killed": "KILLED", "running": "RUNNING"}


def write(run: Run, uri: str, *, limit: int = DEFAULT_LIMIT, advance: Advance = no_progress) -> ExportResult:
    """Make a run in the experiment `stethos` at a tracking URI; needs the package's extra `mlflow`.

    MLflow keeps names of few characters: in metric names others become `_`. A failure in between leaves the MLflow
    run with the status FAILED.
    """
    try:
        from mlflow.entities import Metric, Param, RunTag
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise UsageError("this export needs the package mlflow", hint='pip install "stethos[mlflow]"') from None
    try:
        return _log(run, MlflowClient(tracking_uri=uri), uri, limit, advance, (Metric, Param, RunTag))
    except ImportError as error:  # what a kind of tracking URI needs, mlflow-skinny does not bring
        raise UsageError(f"MLflow cannot open {uri}: {error}", hint="pip install mlflow") from None
    except MlflowException as error:
        raise UsageError(
            f"MLflow refuses {uri}: {error.message}", hint="give a tracking URI, for example -o sqlite:///mlflow.db"
        ) from None


def _log(run: Run, client: Any, uri: str, limit: int, advance: Advance, entities: tuple[Any, Any, Any]) -> ExportResult:
    metric_of, param_of, tag_of = entities
    scalars = Scalars(run, limit)
    summary = run.summary()
    experiment = client.get_experiment_by_name(EXPERIMENT)
    number = experiment.experiment_id if experiment is not None else client.create_experiment(EXPERIMENT)
    started_ms = (summary["started_ns"] or 0) // 1_000_000
    made = client.create_run(number, start_time=started_ms, run_name=run.name).info.run_id
    status, count = "FAILED", 0
    try:
        facts = [("command", summary["command"]), ("processes", summary["processes"]), ("steps", summary["steps"])]
        params = [param_of(name, str(value)[:500]) for name, value in facts if value is not None]
        client.log_batch(
            made, params=params, tags=[tag_of("stethos.run", run.name), tag_of("stethos.path", str(run.path))]
        )
        batch: list[Any] = []
        has_many = len({row["process"] for row in run.processes()}) > 1
        for one in scalars.values(advance):
            is_shared = one.tag.startswith(("round/", "client/")) or not has_many
            key = _key(one.tag if is_shared else f"{one.series}/{one.tag}")
            batch.append(metric_of(key, one.value, one.t_ns // 1_000_000, one.step))
            count += 1
            if len(batch) == _BATCH:
                client.log_batch(made, metrics=batch)
                batch = []
        client.log_batch(made, metrics=batch)
        status = _ENDINGS.get(summary["state"], "FINISHED")
    finally:
        client.set_terminated(made, status)
    return ExportResult(uri, {"values": count}, tuple(scalars.notes), {"mlflow_run_id": made})


def _key(tag: str) -> str:
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-. /") else "_" for letter in tag)
    return safe.strip("/ ")[:250] or "_"
