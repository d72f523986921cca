"""Every number of `rounds`, `client_rounds` and `updates` against a slow, plain twin."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from loop import State, Story, make_clients, make_model, run_observed, run_plain
from recording import Recording

Record = Callable[..., Recording]
ROUNDS, CLIENTS = 4, 5


def flat(state: State, base: State, names: list[str]) -> torch.Tensor:
    return torch.cat([(state[name].double() - base[name].double()).reshape(-1) for name in names])


def geometric_median_weights(points: torch.Tensor) -> torch.Tensor:
    """The plain Weiszfeld iteration, one point at a time."""
    centre = points.mean(0)
    for _ in range(300):
        inverse = torch.stack([1 / (point - centre).norm().clamp_min(1e-12) for point in points])
        centre = (inverse[:, None] * points).sum(0) / inverse.sum()
    inverse = torch.stack([1 / (point - centre).norm().clamp_min(1e-12) for point in points])
    return inverse / inverse.sum()


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


@pytest.fixture
def told(record: Record) -> tuple[Recording, Story, dict[str, int]]:
    recording = record()
    clients = make_clients(CLIENTS)
    story = run_observed(make_model(with_norm=True), clients, ROUNDS)
    return recording, story, {client.name: len(client.x) for client in clients}


def test_every_number_of_updates_is_that_of_a_plain_computation(
    told: tuple[Recording, Story, dict[str, int]],
) -> None:
    recording, story, _ = told
    weights = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    buffers = ["1.running_mean", "1.running_var"]
    columns = (
        "round, client, layer, kind, norm, base_norm, norm_ratio, cos_centre, cos_error, sign_agreement, cos_last, "
        "cos_self, cos_back, back_rounds, input_tail, nan, inf, zero_share, size, coverage"
    )
    rows = {
        (row[0], row[1], row[2]): dict(zip(columns.split(", ")[3:], row[3:], strict=True))
        for row in recording.rows(f"SELECT {columns} FROM updates")
    }
    assert len(rows) == ROUNDS * (CLIENTS + 1) * (1 + len(weights) + len(buffers))
    changes: list[torch.Tensor] = []
    previous: dict[str, torch.Tensor] = {}
    after = [*story.bases[1:], None]
    for number in range(1, ROUNDS + 1):
        base, sent = story.bases[number - 1], story.sent[number - 1]
        names = sorted(sent)
        whole = {name: flat(sent[name], base, weights) for name in names}
        median = geometric_median_weights(torch.stack([whole[name] for name in names]))
        for place, name in enumerate(names):
            for layer in (None, *weights, *buffers):
                row = rows[number, name, layer]
                inside = weights if layer is None else [layer]
                mine = flat(sent[name], base, inside)
                everyone = torch.stack([flat(sent[other], base, inside) for other in names])
                others = (median[:, None] * everyone).sum(0) - median[place] * everyone[place]
                origin = {key: torch.zeros_like(value) for key, value in base.items()}
                assert row["kind"] == ("buffer" if layer in buffers else "weight")
                assert row["size"] == len(mine) and row["coverage"] == 1
                assert row["norm"] == pytest.approx(float(mine.norm()), rel=1e-4)
                assert row["base_norm"] == pytest.approx(float(flat(base, origin, inside).norm()), rel=1e-5)
                ratio = float(mine.norm() / everyone.norm(dim=1).quantile(0.5))
                assert row["norm_ratio"] == pytest.approx(ratio, rel=1e-3, nan_ok=True) or (
                    row["norm_ratio"] is None and float(everyone.norm(dim=1).quantile(0.5)) == 0
                )
                assert (row["nan"], row["inf"]) == (0, 0)
                if mine.norm() > 0:
                    assert row["cos_centre"] == pytest.approx(cosine(mine, others), abs=2e-3)
                    assert row["cos_error"] == 0  # a small model is its own sketch
                if layer not in buffers:
                    moved = (mine.sign() != 0) & (majority(sent, base, inside, median, place) != 0)
                    agrees = mine.sign() == majority(sent, base, inside, median, place)
                    if moved.any():
                        assert row["sign_agreement"] == pytest.approx(float(agrees[moved].double().mean()), abs=1e-9)
                    assert row["zero_share"] == pytest.approx(float((mine == 0).double().mean()), abs=1e-9)
                if layer is not None:
                    assert row["cos_last"] is row["cos_self"] is row["cos_back"] is None
            row = rows[number, name, None]
            check_past(row, whole[name], changes, previous.get(name))
            assert row["input_tail"] == pytest.approx(input_tail(sent, base, median, place), abs=1e-3)
        previous = whole
        following = after[number - 1]
        if following is not None:
            change = flat(following, base, weights)
            assert rows[number, None, None]["norm"] == pytest.approx(float(change.norm()), rel=1e-4)
            changes.append(change)


def majority(sent: dict[str, State], base: State, inside: list[str], weights: torch.Tensor, place: int) -> torch.Tensor:
    signs = torch.stack([flat(sent[name], base, inside).sign() for name in sorted(sent)])
    total = (weights[:, None] * signs).sum(0) - weights[place] * signs[place]
    return torch.where(total.abs() > 1e-12, total.sign(), torch.zeros_like(total))


def input_tail(sent: dict[str, State], base: State, weights: torch.Tensor, place: int) -> float:
    grams = []
    for name in sorted(sent):
        table = (sent[name]["0.weight"] - base["0.weight"]).double()
        grams.append(table.T @ table / table.square().sum())
    others = [number for number in range(len(grams)) if number % 5 != place % 5]
    centre = sum(weights[n] * grams[n] for n in others) / sum(weights[n] for n in others)
    strength, directions = torch.linalg.eigh(centre)
    low = len(strength) // 2
    own = sum(float(directions[:, d] @ grams[place] @ directions[:, d]) for d in range(low))
    return math.log(own / float(strength[:low].sum()))


def check_past(
    row: dict[str, float], mine: torch.Tensor, changes: list[torch.Tensor], own: torch.Tensor | None
) -> None:
    if not changes:
        assert row["cos_last"] is row["cos_back"] is row["back_rounds"] is None
    else:
        assert row["cos_last"] == pytest.approx(cosine(mine, changes[-1]), abs=1e-4)
        ways = [-sum(changes[-back:], torch.zeros_like(mine)) for back in range(1, min(len(changes), 5) + 1)]
        back = [cosine(mine, way) for way in ways]
        assert row["cos_back"] == pytest.approx(max(back), abs=1e-4)
        assert row["back_rounds"] == 1 + back.index(max(back))
    assert row["cos_self"] == (None if own is None else pytest.approx(cosine(mine, own), abs=1e-4))


def test_every_number_of_client_rounds_is_what_the_loop_knows(
    told: tuple[Recording, Story, dict[str, int]],
) -> None:
    recording, story, samples = told
    rows = recording.rows(
        "SELECT round, client, status, samples, loss, entry_loss, exit_loss, steps, raw_bytes, turn, federation, "
        "error, download_ms, compute_ms, upload_ms, wait_ms, duration_ms, base_round "
        "FROM client_rounds ORDER BY round, client"
    )
    assert len(rows) == ROUNDS * CLIENTS
    for row in rows:
        number, client = row[:2]
        losses = story.losses[number - 1][client]
        size = sum(value.nbytes for value in story.sent[number - 1][client].values())
        assert row[2:4] == ("ok", samples[client])
        assert row[4] == pytest.approx(losses[-1])
        assert row[5] == pytest.approx(float(np.mean(losses[:4])), rel=1e-6)
        assert row[6] == pytest.approx(float(np.mean(losses[-4:])), rel=1e-6)
        assert row[7:12] == (len(losses), size, 0, "toy", None)
        assert row[12:16] == (None,) * 4 and row[16] > 0 and row[17] is None


def test_every_number_of_rounds_is_what_the_loop_knows(told: tuple[Recording, Story, dict[str, int]]) -> None:
    recording, story, _ = told
    weights = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    rows = recording.rows(
        "SELECT round, federation, selected, reported, failed, loss, accuracy, evaluation, drift, start_drift, "
        "global_norm, global_nan, aggregate_ms > 0, select_ms, wait_ms, duration_ms FROM rounds ORDER BY round"
    )
    assert [row[0] for row in rows] == list(range(1, ROUNDS + 1))
    zero = {key: torch.zeros_like(value) for key, value in story.bases[0].items()}
    for row, base, following in zip(rows, story.bases, story.bases[1:], strict=False):
        assert row[1:5] == ("toy", CLIENTS, CLIENTS, 0)
        assert row[5] == pytest.approx(1 / row[0]) and row[6] == 0.5 and json.loads(row[7]) == {"auc": 0.75}
        assert row[8] == pytest.approx(float(flat(following, base, weights).norm()), rel=1e-4)
        assert row[9] == pytest.approx(float(flat(following, story.bases[0], weights).norm()), rel=1e-3)
        assert row[10] == pytest.approx(float(flat(following, zero, weights).norm()), rel=1e-5)
        assert row[11:15] == (0, True, None, None) and row[15] > 0


def test_steps_logs_and_metrics_carry_client_and_round(told: tuple[Recording, Story, dict[str, int]]) -> None:
    recording, story, _ = told
    counted = recording.rows("SELECT round, client, count(*) FROM steps GROUP BY ALL ORDER BY ALL")
    assert counted == [
        (number, client, len(losses))
        for number, by_client in enumerate(story.losses, 1)
        for client, losses in sorted(by_client.items())
    ]
    assert recording.rows("SELECT DISTINCT round, client FROM metrics WHERE name = 'auc' ORDER BY ALL") == [
        (number, None) for number in range(1, ROUNDS + 1)
    ]


def test_the_output_rows_are_those_of_the_last_matrix(told: tuple[Recording, Story, dict[str, int]]) -> None:
    recording, story, _ = told
    (text,) = recording.column("SELECT output_rows FROM updates WHERE round = 1 AND client = 'c1' AND layer IS NULL")
    change = story.sent[0]["c1"]["3.weight"].double() - story.bases[0]["3.weight"].double()
    bias = story.sent[0]["c1"]["3.bias"].double() - story.bases[0]["3.bias"].double()
    told_rows = json.loads(text)
    assert told_rows["layer"] == "3.weight"
    assert told_rows["norm"] == pytest.approx(change.norm(dim=1).tolist(), rel=1e-4)
    assert told_rows["mean"] == pytest.approx(change.mean(1).tolist(), rel=1e-3, abs=1e-7)
    assert told_rows["bias"] == pytest.approx(bias.tolist(), rel=1e-3, abs=1e-7)


def test_the_stored_sketch_is_the_direction_of_the_update(told: tuple[Recording, Story, dict[str, int]]) -> None:
    recording, story, _ = told
    texts = recording.rows(
        "SELECT client, sketch FROM updates WHERE round = 2 AND layer IS NULL AND client IS NOT NULL"
    )
    weights = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"]
    for client, text in texts:
        sketch = np.frombuffer(base64.b64decode(text), "<f2").astype(float)
        assert np.linalg.norm(sketch) == pytest.approx(1, abs=1e-2)
        change = flat(story.sent[1][client], story.bases[1], weights)
        assert abs(float(sketch @ (change / change.norm()).numpy()) - 1) < 1e-2  # small: its own sketch


def test_the_training_does_not_notice(record: Record) -> None:
    plain, observed = make_model(3, with_norm=True), make_model(3, with_norm=True)
    torch.manual_seed(5)
    run_plain(plain, make_clients(CLIENTS), ROUNDS)
    random_after = torch.get_rng_state()
    recording = record()
    torch.manual_seed(5)
    story = run_observed(observed, make_clients(CLIENTS), ROUNDS)
    assert torch.equal(torch.get_rng_state(), random_after)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, observed.state_dict()[name]), name
    assert len(story.sent) == ROUNDS
    assert recording.column("SELECT count(*) FROM gaps") == [0]
    assert not math.isnan(recording.column("SELECT max(norm) FROM updates")[0])
