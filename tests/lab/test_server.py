"""Aggregation against slow plain twins."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from stethos import lab
from stethos.errors import UsageError
from stethos.lab.server import FedAdam, FedAvg, FedProx, Median, Memory, TrimmedMean, strategy_of

CURRENT = torch.linspace(-1, 1, 7)
SENT = CURRENT + torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
SAMPLES = torch.tensor([10, 20, 30, 40, 7], dtype=torch.float64)


def mean_of(sent: Tensor) -> list[float]:
    total = sum(SAMPLES.tolist())
    weights = SAMPLES.tolist()
    return [sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in sent.T.tolist()]


@pytest.mark.parametrize("strategy", [FedAvg(), FedProx()])
def test_the_average_is_weighted_by_samples(strategy: FedAvg | FedProx) -> None:
    assert strategy.combine(CURRENT, SENT, SAMPLES, {}).tolist() == pytest.approx(mean_of(SENT), abs=1e-5)


@pytest.mark.parametrize("clients", [5, 4])
def test_the_median_is_that_of_each_coordinate(clients: int) -> None:
    sent = SENT[:clients]
    wanted = [statistics.median(column) for column in sent.T.tolist()]
    assert Median().combine(CURRENT, sent, SAMPLES[:clients], {}).tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_median_survives_a_client_that_sends_nan() -> None:
    sent = SENT.clone()
    sent[0] = float("nan")
    assert torch.isfinite(Median().combine(CURRENT, sent, SAMPLES, {})).all()


def test_the_trimmed_mean_leaves_out_the_extremes() -> None:
    wanted = [statistics.mean(sorted(column)[1:-1]) for column in SENT.T.tolist()]
    assert TrimmedMean(0.2).combine(CURRENT, SENT, SAMPLES, {}).tolist() == pytest.approx(wanted, abs=1e-5)


def test_fedadam_is_adam_on_the_mean_update() -> None:
    strategy, memory, now = FedAdam(lr=0.1), Memory(), CURRENT
    m, v, plain = [0.0] * 7, [1e-6] * 7, CURRENT.tolist()
    for _ in range(3):
        now = strategy.combine(now, SENT, SAMPLES, memory)
        for i, mean in enumerate(mean_of(SENT)):
            change = mean - plain[i]
            m[i] = 0.9 * m[i] + 0.1 * change
            v[i] = 0.99 * v[i] + 0.01 * change**2
            plain[i] += 0.1 * m[i] / (v[i] ** 0.5 + 1e-3)
    assert now.tolist() == pytest.approx(plain, abs=1e-5)


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam", "median", "trimmed-mean"])
def test_every_strategy_learns(strategy: str) -> None:
    result = lab.federate("digits", clients=5, rounds=10, strategy=strategy, observe=False, engine="stacked")
    assert result.accuracy > 0.8 and result.losses[-1] < result.losses[0]


def test_the_proximal_term_holds_clients_back() -> None:
    def moved(strategy: lab.Strategy) -> float:
        seen: list[lab.Exchange] = []
        lab.federate(
            "digits", clients=3, rounds=1, local_epochs=5, strategy=strategy, observe=False, each_round=seen.append
        )
        return float((seen[0].sent - seen[0].current).norm())

    assert moved(FedProx(mu=1.0)) < 0.9 * moved(FedProx(mu=0.01)) < moved(FedAvg())


def test_an_unknown_strategy_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="did you mean fedavg"):
        strategy_of("fedavgg")
    with pytest.raises(UsageError, match="leaves nothing"):
        TrimmedMean(0.5)
