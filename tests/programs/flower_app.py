"""A small Flower app (Message API): started by hand on the Ray engine, or submitted to a SuperLink.

What it does is read from the environment, which all of its processes inherit.
"""

import copy
import json
import os
import sys
import time
import traceback
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

import stethos
from stethos.adapters.flower import ObservedGrid, client_mod, observe_strategy

SETTINGS = json.loads(os.environ["FLOWER_APP"])
NAN_LAYER, NAN_CLIENT, RAISING_CLIENT, FAULT_ROUND = "3.bias", 1, 2, SETTINGS.get("fault_round", 2)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


client_app = ClientApp(mods=[client_mod])


@client_app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    assert list(message.content) == ["arrays", "config"], list(message.content)
    config, partition = message.content["config"], int(context.node_config["partition-id"])
    number, is_faulty = config["server-round"], config.get("faults") and config["server-round"] >= FAULT_ROUND
    if partition == 0 and "wait_for" in config:
        wait_until(lambda: os.path.exists(config["wait_for"]))
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    chance = torch.Generator().manual_seed(partition)
    inputs = torch.randn(16, 6, generator=chance)
    labels = (inputs.sum(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stethos.span("local training"):
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
    if is_faulty and partition == RAISING_CLIENT and number == FAULT_ROUND:
        refuse()
    state = model.state_dict()
    if is_faulty and partition == NAN_CLIENT:
        state[NAN_LAYER] = torch.full_like(state[NAN_LAYER], float("nan"))
    metrics = {"loss": loss.item(), "num-examples": 16 + partition, "partition": partition}
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": MetricRecord(metrics)}), reply_to=message)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def refuse() -> None:
    raise ValueError("a fault of the client")


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    assert list(message.content) == ["arrays", "config"], list(message.content)
    partition = int(context.node_config["partition-id"])
    if message.content["config"].get("faults") and partition == RAISING_CLIENT:
        raise ArithmeticError("cannot evaluate")
    metrics = {"eval_loss": 0.5, "eval_acc": 0.25 * partition, "num-examples": 4}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


class OrderedFedAvg(FedAvg):
    """Adds up in the order of the partitions: sums of floats depend on the order, and replies come in any."""

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            if reply.has_content():
                assert list(reply.content) == ["arrays", "metrics"], list(reply.content)
        return super().aggregate_train(server_round, sorted(replies, key=_partition))


def _partition(reply: Message) -> float:
    return reply.content["metrics"]["partition"] if reply.has_content() else 99


class FailingFedAvg(FedAvg):
    def aggregate_train(self, server_round, replies):
        raise RuntimeError("a fault of the strategy")


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    try:
        for part in SETTINGS["parts"]:
            globals()[part](grid)
        print("all parts are done", file=sys.stderr)
    except Exception:
        traceback.print_exc()
        raise


def start(strategy: FedAvg, grid: Grid, rounds: int, **config: object) -> dict[str, np.ndarray]:
    """Train; the model after each round, as "round/layer"."""
    given = {"faults": True, **config}
    models: dict[str, np.ndarray] = {}

    def evaluate_fn(number: int, arrays: ArrayRecord) -> MetricRecord:
        models.update({f"{number}/{layer}": array.numpy() for layer, array in arrays.items()})
        return MetricRecord({"loss": 1.0 / (1 + number)})

    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(make_model().state_dict()), num_rounds=rounds, timeout=600,
        train_config=ConfigRecord(given), evaluate_config=ConfigRecord(copy.copy(given)), evaluate_fn=evaluate_fn,
    )  # fmt: skip
    return models


def fedavg(**more: object) -> FedAvg:
    count, share = SETTINGS.get("clients", 3), 1.0 if SETTINGS.get("evaluates", True) else 0.0
    counts = {"min_train_nodes": count, "min_evaluate_nodes": count, "min_available_nodes": count}
    return OrderedFedAvg(**{"fraction_evaluate": share, **counts, **more})


def save(name: str, models: dict[str, np.ndarray]) -> None:
    np.savez(os.path.join(SETTINGS["dir"], name), **models)


def plain(grid: Grid) -> None:
    save("plain", start(fedavg(), grid, SETTINGS["rounds"]))


def observed(grid: Grid) -> None:
    strategy = observe_strategy(fedavg(), dir=SETTINGS["dir"], run="observed", config={"rate": 0.1}, capture="all")
    assert isinstance(strategy, OrderedFedAvg) and type(strategy).__name__ == "OrderedFedAvg"
    save("observed", start(strategy, grid, SETTINGS["rounds"]))


def failing(grid: Grid) -> None:
    strategy = FailingFedAvg(min_train_nodes=3, min_available_nodes=3)
    with pytest.raises(RuntimeError, match="a fault of the strategy") as caught:
        start(observe_strategy(strategy, dir=SETTINGS["dir"], run="failing"), grid, 1)
    assert caught.traceback[-1].name == "aggregate_train"


def unwritable(grid: Grid) -> None:
    assert start(observe_strategy(fedavg(fraction_evaluate=0.0), dir="/proc/runs"), grid, 1, faults=False)


def pull(grid: Grid, missing: set[str], replies: list[Message]) -> list[Message]:
    """Look for replies once; a message that was answered may not be asked for again."""
    found = list(grid.pull_messages(missing))
    missing -= {reply.metadata.reply_to_message_id for reply in found}
    replies += found
    return replies


def own_loop(grid: Grid) -> None:
    """No strategy: messages by hand, and a round that does not wait for its slowest client."""
    observed_grid = ObservedGrid(grid, dir=SETTINGS["dir"], run="own_loop")
    arrays = ArrayRecord(make_model().state_dict())
    over = os.path.join(SETTINGS["dir"], "over")
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 7, "wait_for": over})})
    with observed_grid.round(7, arrays) as rnd:
        messages = [Message(content, node, "train") for node in observed_grid.get_node_ids()]
        missing = set(observed_grid.push_messages(messages))
        replies: list[Message] = []
        wait_until(lambda: pull(observed_grid, missing, replies) and len(missing) == 1)
        with rnd.phase("aggregate"):
            new = replies[0].content["arrays"]
        rnd.result(new.to_torch_state_dict())
    assert list(content) == ["arrays", "config"] and list(replies[0].content) == ["arrays", "metrics"]
    open(over, "w").close()
    wait_until(lambda: pull(observed_grid, missing, []))  # a late reply is nobody's
    assert list(observed_grid.send_and_receive([], timeout=0)) == []
    observed_grid.end()


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    options = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"include_dashboard": False, "num_cpus": 2},
    }
    run_simulation(server_app=server_app, client_app=client_app, num_supernodes=3, backend_config=options)
