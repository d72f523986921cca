"""A federation under Flower's SecAgg+, group by group; one client sends the opposite of what it trained.

python flower_secagg.py DIRECTORY

The server sees means over groups alone: of the models, and of what clients find out about themselves.
"""

import sys
from pathlib import Path

import numpy as np
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

import stethos
from stethos.federate.group_sums import GroupedFederation, record_sums
from stethos.federate.own_traits import OwnTurn, own_traits
from stethos.lab.data import load

DIRECTORY = Path(sys.argv[1])
CLIENTS, SIZE, ROUNDS, FAULTY = 12, 4, 7, 5
GROUPS = CLIENTS // SIZE
PIXELS, CLASSES = 64, 10


class Client(NumPyClient):
    """Softmax regression on its part of the digits."""

    def __init__(self, partition: int, node: int) -> None:
        data = load("digits", seed=0)
        self.x = data.train_x.numpy().reshape(-1, PIXELS)[partition::CLIENTS].astype(np.float64)
        self.y = data.train_y.numpy()[partition::CLIENTS]
        self.is_faulty = partition == FAULTY
        if self.is_faulty:
            (DIRECTORY / "faulty").write_text(str(node))

    def fit(self, parameters, config):
        model, last = (one.astype(np.float64) for one in parameters)
        first = self.shares(model)
        trained = model.copy()
        for _ in range(5):
            wrong = self.shares(trained) - np.eye(CLASSES)[self.y]
            trained -= 0.5 * (self.x.T @ wrong / len(self.x)).ravel()
        change = (model - trained) if self.is_faulty else (trained - model)
        loss = float(-np.log(first[np.arange(len(self.y)), self.y] + 1e-9).mean())
        turn = OwnTurn(change, trained - model, last, loss, self.y, first.argmax(1), self.x)
        return [(model + change).astype(np.float32), own_traits(turn).astype(np.float32)], 1, {}

    def shares(self, model):
        logits = self.x @ model.reshape(PIXELS, CLASSES)
        raised = np.exp(logits - logits.max(1, keepdims=True))
        return raised / raised.sum(1, keepdims=True)


class GroupByGroup(FedAvg):
    """Every group takes part in a secure aggregation of its own; after the last one the models are averaged."""

    def __init__(self) -> None:
        super().__init__(initial_parameters=ndarrays_to_parameters([np.zeros(PIXELS * CLASSES, np.float32)]))
        self.model = self.last = np.zeros(PIXELS * CLASSES, np.float32)
        self.federation: GroupedFederation | None = None
        self.means: list[list[np.ndarray]] = []

    def configure_fit(self, server_round, parameters, client_manager):
        client_manager.wait_for(CLIENTS)
        proxies = client_manager.all()
        self.federation = self.federation or GroupedFederation(tuple(sorted(proxies)), SIZE)
        number, place = divmod(server_round - 1, GROUPS)
        self.members = self.federation.groups(number + 1, list(range(CLIENTS)))
        told = FitIns(ndarrays_to_parameters([self.model, self.last]), {})
        return [(proxies[self.federation.clients[one]], told) for one in self.members[place]]

    def aggregate_fit(self, server_round, results, failures):
        assert not failures
        sent = {tuple(array.tobytes() for array in parameters_to_ndarrays(one.parameters)) for _, one in results}
        assert len(sent) == 1, "the server sees what single clients sent"
        self.means.append(parameters_to_ndarrays(results[0][1].parameters))
        if len(self.means) == GROUPS:
            models, traits = zip(*self.means, strict=True)
            new = np.mean(models, axis=0).astype(np.float32)
            self.model, self.last, self.means = new, new - self.model, []
            names = [[self.federation.clients[one] for one in part] for part in self.members]
            record_sums("secagg", (server_round - 1) // GROUPS + 1, names, np.array(traits, float) * SIZE)
        return ndarrays_to_parameters([self.model]), {}

    def configure_evaluate(self, server_round, parameters, client_manager):
        return []


app = ServerApp()


@app.main()
def main(grid, context: Context) -> None:
    strategy = GroupByGroup()
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=ROUNDS * GROUPS), strategy=strategy)
    with stethos.watch(dir=DIRECTORY, name="secagg"):
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(1.0, 0.5, clipping_range=24.0))(grid, legacy)
    np.save(DIRECTORY / "model.npy", strategy.model)


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"]), context.node_id).to_client()


if __name__ == "__main__":
    run_simulation(
        server_app=app,
        client_app=ClientApp(client_fn=client_fn, mods=[secaggplus_mod]),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"include_dashboard": False, "num_cpus": 2},
        },
    )
