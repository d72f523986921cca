"""Adds the observing widgets to a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nvflare.apis.job_def import ALL_SITES, SERVER_SITE_NAME
from nvflare.app_common.app_constant import AppConstants
from nvflare.job_config.api import FedJob

from stethos.adapters.nvflare.client import ClientWatch
from stethos.adapters.nvflare.server import ServerWatch
from stethos.errors import UsageError
from stethos.observe import boot
from stethos.record.place import check_name, readable_name
from stethos.settings import DEFAULT_OVERHEAD, Preset, default_runs_dir, from_environment, parse_preset

_ID = "stethos"


def observe_job(
    job: Any,
    *,
    dir: str | Path | None = None,
    run: str | None = None,
    preset: Preset = "standard",
    overhead: float | None = None,
    tasks: tuple[str, ...] = (AppConstants.TASK_TRAIN,),
) -> Path:
    """Have a `FedJob` or a `Recipe` recorded when it runs; return the directory of its run.

    Call it when the job has its clients' parts. `dir`, `run`, `preset` and
    `overhead` are those of `stethos.watch`, `run` being the run's name; under
    `stethos run` the job joins that run. `tasks` are the names of the tasks that train.
    Stethos itself is not shipped with the job: it must be installed where the
    job runs. A client that cannot reach the directory still sends back what it saw of its turn.
    """
    recipe, fed_job = _parts(job)
    preset = parse_preset(preset)
    overhead = DEFAULT_OVERHEAD[preset] if overhead is None else overhead
    path = _outer_run() or ((Path(dir) if dir is not None else default_runs_dir()) / check_name(run or readable_name()))
    path = path.absolute()  # NVFlare changes the working directory
    names = list(tasks)
    client = ClientWatch(run_dir=str(path), preset=preset, overhead=overhead, tasks=names)
    sites = _client_sites(recipe, fed_job)
    fed_job.to_server(
        ServerWatch(federation=fed_job.name, run_dir=str(path), preset=preset, overhead=overhead, tasks=names), id=_ID
    )
    for site in sites:
        fed_job.to(client, site, id=_ID)
    # Else NVFlare copies our source, with all it imports, into the job, where it hides the package that is installed.
    packages = getattr(fed_job.job, "app_packages", None) or []
    fed_job.set_app_packages([*packages, "stethos"])
    return path


def _parts(job: Any) -> tuple[Any, Any]:
    """The recipe, if it is one, and the job."""
    if isinstance(job, FedJob):
        return None, job
    inner = getattr(job, "_job", None) or getattr(job, "job", None)  # private since 2.9
    if isinstance(inner, FedJob):
        return job, inner
    raise UsageError(
        f"not an NVFlare job: {type(job).__name__}", hint="pass a nvflare.job_config.api.FedJob or a nvflare Recipe"
    )


def _client_sites(recipe: Any, job: Any) -> list[str]:
    """The targets that clients' parts were sent to: all sites at once, or each by its name."""
    prepare = getattr(recipe, "_ensure_client_apps_prepared", None)
    if prepare is not None:
        prepare()
    sites = [site for site in job._deploy_map if site != SERVER_SITE_NAME]
    if not sites:  # a widget for all sites would make NVFlare drop parts for single ones
        raise UsageError(
            f"job {job.name!r} has nothing for its clients yet", hint="call observe_job after adding the executors"
        )
    return [ALL_SITES] if ALL_SITES in sites else sites


def _outer_run() -> Path | None:
    """The run that this process already belongs to."""
    session = boot.current_session()
    return session.settings.run_dir if session is not None else from_environment().run_dir
