"""Flower on Ray, on text: eight clients sort sentences of Python's own documentation, one has two topics mixed up.

The data are those of `examples/text_federation.py`, whose path stands in the environment.
"""

import importlib
import json
import os
import sys
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from stethos.adapters.flower import client_mod, observe_strategy

SETTINGS = json.loads(os.environ["FLOWER_APP"])


def texts() -> Any:
    """The example's module; not at the top, as Ray would take it to the workers by value."""
    sys.path.insert(0, os.path.dirname(SETTINGS["example"]))
    return importlib.import_module("text_federation")


client_app = ClientApp(mods=[client_mod])
server_app = ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    example = texts()
    tokens, topics = example.sites()[f"site-{context.node_config['partition-id']}"]
    model = example.Classifier()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in torch.randperm(len(tokens)).split(32):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens[batch]), topics[batch])
        loss.backward()
        optimizer.step()
    metrics = {"loss": loss.item(), "num-examples": len(tokens)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    example = texts()
    counts = {"min_train_nodes": example.SITES, "min_available_nodes": example.SITES, "fraction_evaluate": 0.0}
    strategy = observe_strategy(FedAvg(**counts), dir=SETTINGS["dir"], run="texts")
    first = ArrayRecord(example.Classifier().state_dict())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=SETTINGS["rounds"])


if __name__ == "__main__":
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"include_dashboard": False, "num_cpus": 2},
    }
    run_simulation(server_app, client_app, texts().SITES, backend_config=resources)
