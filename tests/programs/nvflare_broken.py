"""An NVFlare job whose clients' executor cannot be built where the job runs: nvflare_broken.py DIRECTORY."""

from __future__ import annotations

import os
import sys

from nvflare.apis.executor import Executor
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob

from stethos.adapters.nvflare import observe_job


class Broken(Executor):
    def __init__(self) -> None:
        super().__init__()
        if "MAKING_THE_JOB" not in os.environ:
            raise ModuleNotFoundError("No module named 'my_data'")

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return shareable


def main(directory: str) -> None:
    os.environ["MAKING_THE_JOB"] = "1"
    job = FedJob(name="broken", min_clients=2)
    job.to_server(NPModelPersistor(), id="persistor")
    job.to_server(FedAvg(num_clients=2, num_rounds=2))
    job.to_clients(Broken(), tasks=["train"])
    observe_job(job, dir=directory, run="run")
    del os.environ["MAKING_THE_JOB"]
    job.simulator_run(f"{directory}/workspace", n_clients=2, threads=2)


if __name__ == "__main__":
    import nvflare_broken  # the job names its classes by their module

    nvflare_broken.main(sys.argv[1])
