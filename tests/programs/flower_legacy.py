"""A legacy Flower app on the Ray engine: a strategy of `flwr.server` and NumPy clients.

python flower_legacy.py DIRECTORY
"""

import sys

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from torch import nn

from stethos.adapters.flower import client_mod, observe_strategy

DIRECTORY = sys.argv[1]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def arrays_of(model: nn.Module) -> list[np.ndarray]:
    return [value.numpy() for value in model.state_dict().values()]


class Client(NumPyClient):
    def __init__(self, partition: int) -> None:
        self.partition = partition

    def fit(self, parameters, config):
        assert config == {}
        if self.partition == 2 and parameters[1].any() and parameters[0][0, 0] > 100:
            raise ValueError("a fault of the client")
        sent = [array + np.float32(100 + self.partition) for array in parameters]
        if self.partition == 1:
            sent[2][0, 1] = np.nan
        return sent, 10 + self.partition, {"loss": 0.5, "depth": 3}

    def evaluate(self, parameters, config):
        return 0.25, 5, {"accuracy": 0.75}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


def server_fn(context: Context) -> ServerAppComponents:
    strategy = FedAvg(
        min_fit_clients=3, min_evaluate_clients=3, min_available_clients=3,
        initial_parameters=ndarrays_to_parameters(arrays_of(make_model())),
        evaluate_metrics_aggregation_fn=lambda metrics: {"accuracy": metrics[0][1]["accuracy"]},
    )  # fmt: skip
    strategy = observe_strategy(strategy, dir=DIRECTORY, run="legacy", model=make_model())
    assert type(strategy).__name__ == "FedAvg" and isinstance(strategy, FedAvg)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))


if __name__ == "__main__":
    run_simulation(
        server_app=ServerApp(server_fn=server_fn),
        client_app=ClientApp(client_fn=client_fn, mods=[client_mod]),
        num_supernodes=3,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"include_dashboard": False, "num_cpus": 2},
        },
    )
