"""What smaller updates would lose, against plain ways to compute it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import wait_for_rest

import stethos
from stethos.federate.compression import METHODS, RANK, TOP_SHARE, to_low_rank
from stethos.profile.column import records
from stethos.profile.compression import read_compression


def plain_fp16(update: torch.Tensor) -> torch.Tensor:
    return update.half().float()


def plain_int8(update: torch.Tensor) -> torch.Tensor:
    scale = float(update.abs().max()) / 127
    return torch.round(update / scale).clamp(-127, 127).to(torch.int8).float() * scale


def plain_top(update: torch.Tensor) -> torch.Tensor:
    count = max(1, math.ceil(TOP_SHARE * update.numel()))
    flat, kept = update.flatten(), torch.zeros(update.numel())
    places = flat.abs().topk(count).indices
    kept[places] = flat[places]
    return kept.reshape(update.shape)


def plain_rank(update: torch.Tensor) -> torch.Tensor:
    matrix = update.reshape(update.shape[0], -1)
    if RANK * sum(matrix.shape) >= matrix.numel():
        return update
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return ((left[:, :RANK] * values[:RANK]) @ right[:RANK]).float().reshape(update.shape)


PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fp16": plain_fp16, "int8": plain_int8, "top-1%": plain_top, "rank-4": plain_rank,
}  # fmt: skip
SHAPES = [(64, 48), (16, 8, 3, 3), (300,), (3, 2), (1,)]


@pytest.mark.parametrize("method", PLAIN)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_error_is_that_of_the_plain_way(method: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    update = 0.01 * torch.randn(shape) * torch.rand(shape)
    lost = float((update.double() - PLAIN[method](update).double()).square().sum())
    found = METHODS[method](update.flatten().numpy(), shape)
    assert math.sqrt(found.lost) == pytest.approx(math.sqrt(lost), rel=1e-3, abs=1e-7)
    assert 0 < found.bytes <= max(8, update.numel() * 8)


def test_a_large_matrix_is_measured_nearly_exactly_without_its_whole_spectrum() -> None:
    chance = np.random.default_rng(0)
    left, right = chance.normal(size=(700, 6)), chance.normal(size=(6, 900))
    matrix = (left * (9, 8, 7, 6, 1, 0.5)) @ right + 0.1 * chance.normal(size=(700, 900))
    exact = np.linalg.svd(matrix, compute_uv=False)
    found = to_low_rank(matrix.astype(np.float32).ravel(), matrix.shape)
    assert math.sqrt(found.lost) == pytest.approx(math.sqrt(float((exact[RANK:] ** 2).sum())), rel=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_loses_nothing(method: str) -> None:
    assert METHODS[method](np.zeros(4000, np.float32), (50, 80)).lost == 0.0


def test_a_federation_measures_one_update_a_round_and_changes_nothing(tmp_path: Path) -> None:
    def play(measure: bool) -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 3))
        with stethos.federation(
            "f", model=model, dir=tmp_path, run=f"measured-{measure}", progress=False, measure_compression=measure
        ) as fed:
            for rnd in fed.rounds(3):
                states = []
                for client in range(4):
                    with rnd.client(f"c{client}") as site:
                        state = copy.deepcopy(model.state_dict())
                        for value in state.values():
                            if value.is_floating_point():
                                value += 0.01 * torch.randn_like(value)
                        if client == 1 and rnd.number == 2:
                            state["0.weight"][0, 0] = torch.nan
                        site.update(state, samples=10)
                        states.append(state)
                first = states[0]
                model.load_state_dict(
                    {
                        k: torch.stack([s[k].nan_to_num() for s in states]).float().mean(0).to(first[k].dtype)
                        for k in first
                    }
                )
        return model

    plain, watched = play(False), play(True)
    for left, right in zip(plain.state_dict().values(), watched.state_dict().values(), strict=True):
        assert torch.equal(left, right)
    for path in tmp_path.iterdir():
        wait_for_rest(path)
    with stethos.open_run(tmp_path / "measured-True") as run:
        rows = records(
            run, "SELECT round, count(DISTINCT client) AS clients, count(*) AS n FROM compression GROUP BY round"
        )
        found = {(one.layer, one.method): one for one in read_compression(run)}
    assert rows and all(row["clients"] == 1 and row["n"] == 4 * (6 + 1) for row in rows)
    assert found[None, "fp16"].ratio == pytest.approx(2.0) and found[None, "int8"].ratio > 3.5
    assert (
        0 < (found[None, "fp16"].error or 0) < (found[None, "int8"].error or 0) < (found[None, "top-1%"].error or 0) < 1
    )
    assert found["0.weight", "int8"].raw_bytes == len(rows) * 40 * 30 * 4
    with stethos.open_run(tmp_path / "measured-False") as run:
        assert read_compression(run) == []
