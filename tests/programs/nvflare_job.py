"""An NVFlare job in the simulator: nvflare_job.py DIRECTORY [options].

Prints one JSON object: hashes of the final global model's layers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from nvflare.app_common.executors.client_api_executor import ClientAPIExecutor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_opt.pt.file_model_persistor import PTFileModelPersistor
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from nvflare.recipe import SimEnv
from nvflare_model import Net

HERE = Path(__file__).resolve().parent
TRAIN = "nvflare_train.py"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--observe", action="store_true")
    parser.add_argument("--recipe", action="store_true")
    parser.add_argument("--external", action="store_true", help="without a recipe: own processes for scripts")
    parser.add_argument("--diff", action="store_true", help="of a recipe: send differences")
    parser.add_argument("--faults", default="")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    choice = parser.parse_args()
    os.chdir(HERE)  # NVFlare takes the training script and the model from here
    torch.set_num_threads(1)
    job = recipe_of(choice) if choice.recipe else job_of(choice)
    if choice.observe:
        from stethos.adapters.nvflare import observe_job

        observe_job(job, dir=choice.directory / "runs", run="job", overhead=1.0)
    workspace, threads = choice.directory / "workspace", choice.threads or choice.clients
    if choice.recipe:
        job.execute(SimEnv(num_clients=choice.clients, num_threads=threads, workspace_root=str(workspace)))
    else:
        job.simulator_run(str(workspace), n_clients=choice.clients, threads=threads)
    (saved,) = workspace.rglob("FL_global_model.pt")
    state = torch.load(saved, weights_only=False)["model"]
    print(json.dumps({name: digest(value) for name, value in state.items()}))


def recipe_of(choice: argparse.Namespace) -> FedAvgRecipe:
    return FedAvgRecipe(
        name="digits", model=Net(), min_clients=choice.clients, num_rounds=choice.rounds,
        train_script=TRAIN, train_args=choice.faults,
        params_transfer_type=TransferType.DIFF if choice.diff else TransferType.FULL,
    )  # fmt: skip


def job_of(choice: argparse.Namespace) -> FedJob:
    """The same by hand, with a controller that goes on without clients that failed."""
    job = FedJob(name="digits", min_clients=1)
    job.to_server(PTFileModelPersistor(model=Net()), id="persistor")
    job.to_server(FedAvg(num_clients=choice.clients, num_rounds=choice.rounds, ignore_result_error=True))
    if choice.external:
        job.to_clients(executor_of(choice))
        job.to_clients(TRAIN)
        job.to_clients("nvflare_model.py")
    else:
        job.to_clients(ScriptRunner(script=TRAIN, script_args=choice.faults))
    return job


def executor_of(choice: argparse.Namespace) -> ClientAPIExecutor:
    """The training script in a process of its own; if it fails, NVFlare notices by the heartbeat alone."""
    return ClientAPIExecutor(
        execution_mode="external_process", command=f"{sys.executable} -u custom/{TRAIN} {choice.faults}",
        params_exchange_format=ExchangeFormat.PYTORCH, heartbeat_interval=1.0, heartbeat_timeout=8.0,
    )  # fmt: skip


def digest(value: object) -> str:
    return hashlib.sha256(torch.as_tensor(value).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main()
