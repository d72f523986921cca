"""An NVFlare job in the simulator that stands still: `python nvflare_job.py DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare_planting import Adding, Planting, plan

from stethos.adapters.nvflare import observe_job


def main(directory: Path) -> None:
    job = FedJob(name="stall", min_clients=2)
    job.to_server(NPModelPersistor(), id="persistor")
    job.to_server(FedAvg(num_clients=2, num_rounds=plan()["round"] + 2))
    job.to_clients(Adding(), tasks=["train"])
    observe_job(job, dir=directory, run="run")
    job.to_server(Planting("server"), id="planting")
    job.to_clients(Planting("client"), id="planting")
    job.simulator_run(str(directory / "workspace"), n_clients=2, threads=2)
    (directory / "over").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
