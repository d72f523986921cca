"""A small federation on made-up data, in which clients fail, drop out, send NaN, flip signs and carry hostile names.

python federate.py DIR RUN [--rounds N] [--clients N] [--hang-in ROUND] [--healthy] [--federations N]

Several such lists of words, with `--` between them, record several runs. With `--hang-in` it prints `hanging` in the
middle of that round, half of whose clients are done, and waits to be killed.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stethos

CLASSES = 4
FEATURES = 8
EVIL = "\x1b[31mc9\x1b[0m\n\x07evil's"

State = dict[str, torch.Tensor]


def data_of(client: int, centres: torch.Tensor) -> TensorDataset:
    made = torch.Generator().manual_seed(client)
    labels = torch.randint(CLASSES, (40 + 8 * (client % 5),), generator=made)
    return TensorDataset(centres[labels] + torch.randn(len(labels), FEATURES, generator=made), labels)


def train(model: nn.Module, data: TensorDataset, hang: bool) -> tuple[State, float]:
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for number, (inputs, labels) in enumerate(DataLoader(data, batch_size=16)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(local(inputs), labels)
        loss.backward()
        optimizer.step()
        if hang and number == 1:
            print("hanging", flush=True)
            time.sleep(600)
    return local.state_dict(), loss.item()


def average(states: list[State]) -> State:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("run")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--hang-in", type=int, default=0)
    parser.add_argument("--healthy", action="store_true")
    parser.add_argument("--federations", type=int, default=1)
    torch.set_num_threads(1)
    for is_border, words in itertools.groupby(sys.argv[1:], lambda word: word == "--"):
        if not is_border:
            given = parser.parse_args(list(words))
            with stethos.watch(dir=given.dir, name=given.run):
                for name in ("blobs", "more blobs")[: given.federations]:
                    federate(name, given)


def federate(federation: str, given: argparse.Namespace) -> None:
    torch.manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES)
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    names = [EVIL if client == 9 else f"c{client}" for client in range(given.clients)]
    datasets = [data_of(client, centres) for client in range(given.clients)]
    inputs, labels = data_of(1_000_003, centres).tensors
    with stethos.federation(federation, model=model, clients=given.clients) as fed:
        for rnd in fed.rounds(given.rounds):
            for client, name in enumerate(names):
                is_last = given.hang_in == rnd.number and client == given.clients // 2
                fault = "" if given.healthy else fault_of(client, rnd.number)
                try:
                    with rnd.client(name) as site:
                        if fault == "drop":
                            site.drop("battery empty")
                            continue
                        state, loss = train(model, datasets[client], hang=is_last)
                        if fault == "crash":
                            raise ValueError("corrupt shard 17 \x1b[2J")
                        with torch.no_grad():
                            if fault == "nan":
                                state["2.weight"][1, 3] = float("nan")
                            if fault == "flip":
                                state = {
                                    key: 3 * (base - state[key]) + base for key, base in model.state_dict().items()
                                }
                        site.update(state, samples=len(datasets[client]), loss=float("nan") if fault == "nan" else loss)
                except ValueError:
                    pass
            with rnd.phase("aggregate"):
                usable = [one.state for one in rnd.updates if not bool(torch.isnan(one.state["2.weight"]).any())]
                if usable:
                    model.load_state_dict(average(usable))
            with torch.no_grad():
                answers = model(inputs)
            correct = (answers.argmax(1) == labels).float().mean()
            rnd.evaluate(loss=nn.functional.cross_entropy(answers, labels), accuracy=correct)


def fault_of(client: int, number: int) -> str:
    """What goes wrong with a client in a round."""
    return {
        (2, 3): "crash", (2, 5): "crash", (2, 20): "crash", (4, 2): "drop", (6, 6): "nan",
        (7, number): "flip",
    }.get((client, number), "")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
