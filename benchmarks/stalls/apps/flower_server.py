"""The ServerApp of the planted stalls."""

import os
import signal
import time

import numpy as np
from flower_plan import PLAN, burn, freeze, planted, say
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from stethos.adapters.flower import observe_strategy

if PLAN["kind"] == "server-import":
    planted()
    raise ModuleNotFoundError("no module named 'segmentation_models'")

app = ServerApp()


class Planting(FedAvg):
    """FedAvg that stands still where the plan says so."""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if server_round == PLAN["round"] and PLAN["kind"] in ("drop", "node-stop"):
            say(PLAN["kind"], "now")
            time.sleep(1.0)
            planted()
        return messages

    def aggregate_train(self, server_round, replies):
        if server_round == PLAN["round"]:
            match PLAN["kind"]:
                case "aggregate-sleep":
                    planted()
                    time.sleep(600)
                case "server-stop":
                    planted()
                    freeze()
                case "server-kill":
                    planted()
                    os.kill(os.getpid(), signal.SIGKILL)
                case "slow-aggregate":
                    burn(45.0)
        return super().aggregate_train(server_round, replies)


@app.main()
def main(grid: Grid, context: Context) -> None:
    counts = {"min_train_nodes": 2, "min_evaluate_nodes": 2, "min_available_nodes": 2}
    strategy = observe_strategy(Planting(fraction_evaluate=0.0, **counts), dir=PLAN["dir"], run="run")
    initial = ArrayRecord([np.zeros(PLAN.get("elements", 1000), np.float32)])
    strategy.start(grid=grid, initial_arrays=initial, num_rounds=PLAN["round"] + 1, timeout=600)
    say("over", "now")
