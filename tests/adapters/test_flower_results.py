"""A legacy server with proxies of its own: no grid carries what its clients send, as under `start_simulation`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flower_runs import Rows, recorded
from flwr.common import (
    Code,
    DisconnectRes,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetParametersIns,
    GetParametersRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    ReconnectIns,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import Server, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from torch import nn

from stethos.adapters.flower import observe_strategy
from stethos.adapters.flower.observer import observer_of

CLIENTS = ("a", "b", "c", "d", "refusing", "raising")


# NumPy parses the header of an array with `ast`, which Python 3.11.7 lets fail now and then where threads do so while
# somebody hears the garbage collector (gh-106905), as hypothesis does here: one client at a time.
ONE_AT_A_TIME = threading.Lock()


class Direct(ClientProxy):
    """A client in the server's own process."""

    def fit(self, ins: FitIns, timeout: float | None, group_id: int | None) -> FitRes:
        with ONE_AT_A_TIME:
            return self._fit(ins, group_id)

    def _fit(self, ins: FitIns, group_id: int | None) -> FitRes:
        if self.cid == "raising" and group_id == 2:
            raise ValueError("a fault of the client")
        chance = np.random.default_rng([ord(self.cid[0]), group_id or 0])
        arrays = [
            array + (0.01 + 0.01 * chance.standard_normal(array.shape)).astype(np.float32)
            for array in parameters_to_ndarrays(ins.parameters)
        ]
        if self.cid == "b" and group_id == 2:
            arrays[0][0, 0] = np.nan
        status = Status(Code.FIT_NOT_IMPLEMENTED, "not today") if self.cid == "refusing" else Status(Code.OK, "")
        return FitRes(status, ndarrays_to_parameters(arrays), 10, {"loss": 0.5, "depth": 3, "who": self.cid})

    def evaluate(self, ins: EvaluateIns, timeout: float | None, group_id: int | None) -> EvaluateRes:
        return EvaluateRes(Status(Code.OK, ""), 0.25, 5, {"accuracy": 0.75})

    def get_properties(self, ins: GetPropertiesIns, timeout: float | None, group_id: int | None) -> GetPropertiesRes:
        raise NotImplementedError

    def get_parameters(self, ins: GetParametersIns, timeout: float | None, group_id: int | None) -> GetParametersRes:
        raise NotImplementedError

    def reconnect(self, ins: ReconnectIns, timeout: float | None, group_id: int | None) -> DisconnectRes:
        return DisconnectRes("")


class OrderedFedAvg(FedAvg):
    """Adds up in the order of the names: sums of floats depend on it, and results come in any."""

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        return super().aggregate_fit(server_round, sorted(results, key=lambda one: one[0].cid), failures)


def train(model: nn.Module, directory: Path | None) -> Parameters:
    """Three rounds; the last global model."""
    start = ndarrays_to_parameters([value.numpy() for value in model.state_dict().values()])
    strategy = OrderedFedAvg(min_available_clients=len(CLIENTS), min_fit_clients=len(CLIENTS), initial_parameters=start)
    if directory is not None:
        strategy = observe_strategy(strategy, model=model, dir=directory, name="direct", label="direct")
    manager = SimpleClientManager()
    for client in CLIENTS:
        manager.register(Direct(client))
    server = Server(client_manager=manager, strategy=strategy)
    server.fit(num_rounds=3, timeout=None)
    observer = observer_of(strategy)
    if observer is not None:
        observer.close()
    return server.parameters


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    directory = tmp_path_factory.mktemp("direct")
    torch.manual_seed(0)
    train(nn.Linear(4, 3), directory)
    return Rows(recorded(directory / "direct"))


def test_every_client_has_its_turns(rows: Rows) -> None:
    found = rows("SELECT client, count(*), count(*) FILTER (status = 'ok') FROM client_rounds GROUP BY 1 ORDER BY 1")
    assert found == [(name, 3, {"refusing": 0, "raising": 2}.get(name, 3)) for name in sorted(CLIENTS)]
    assert rows(
        "SELECT DISTINCT samples, loss, metrics::json->>'depth', wait_ms FROM client_rounds WHERE status = 'ok'"
    ) == [(10, 0.5, "3", None)]
    assert rows("SELECT round, selected, reported, failed, loss FROM rounds ORDER BY round") == [
        (1, 6, 5, 1, 0.25), (2, 6, 4, 2, 0.25), (3, 6, 5, 1, 0.25),
    ]  # fmt: skip


def test_who_failed_and_who_sent_nan_is_told(rows: Rows) -> None:
    found = rows("SELECT DISTINCT client, error FROM client_rounds WHERE status = 'failed' ORDER BY client")
    assert found == [
        ("raising", "ValueError: a fault of the client"), ("refusing", "status FIT_NOT_IMPLEMENTED: not today"),
    ]  # fmt: skip
    odd = "SELECT client, layer FROM updates WHERE round = 2 AND nan = 1 AND layer IS NOT NULL AND client IS NOT NULL"
    assert rows(odd) == [("b", "weight")]
    assert rows("SELECT count(DISTINCT client) FROM updates WHERE cos_centre IS NOT NULL AND round = 1") == [(5,)]


def test_the_strategy_computes_what_it_would_have_computed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    assert train(model, tmp_path).tensors == train(model, None).tensors
