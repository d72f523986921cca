"""Evidence from inside of clients' turns: what is recorded, what it costs, and that training does not notice."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loop import make_clients, make_model
from torch import nn

import stethos
from stethos.federate.batch_rows import BatchRows
from stethos.federate.turn_evidence import TurnEvidence
from stethos.federate.update_check import UpdateCheck
from stethos.store.run import Run
from stethos.turn_facts import unpacked

State = dict[str, torch.Tensor]
Spoil = Callable[[str, int, State, State], State]


def honest(_name: str, _number: int, state: State, _base: State) -> State:
    return state


def federate(
    directory: Path, *, rounds: int = 4, clients: int = 8, spoil: Spoil = honest, faulty: str = "c3",
    change: Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]] | None = None,
    lr: Callable[[str], float] = lambda _: 0.1, is_delta: bool = False, is_recorded: bool = True,
    is_by_hand: bool = False,
) -> tuple[Run | None, State]:  # fmt: skip
    """A loop with the six lines of the docs; `change` spoils the data of the faulty client.

    `is_by_hand`: weights are changed without an optimizer.
    """
    model = make_model()
    fed = stethos.federation("loop", model=model, dir=directory, run="r", progress=False) if is_recorded else None
    for number in range(1, rounds + 1):
        rnd = fed.round(number).__enter__() if fed is not None else None
        base = {key: value.clone() for key, value in model.state_dict().items()}
        states = []
        for client in make_clients(clients):
            x, y = (
                (client.x, client.y) if change is None or client.name != faulty else change(client.x, client.y, number)
            )
            site = rnd.client(client.name).__enter__() if rnd is not None else None
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=lr(client.name), momentum=0.5)
            for batch in torch.randperm(len(x)).split(16):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(local(x[batch]), y[batch])
                loss.backward()
                if is_by_hand:
                    with torch.no_grad():
                        for one in local.parameters():
                            one -= lr(client.name) * one.grad
                else:
                    optimizer.step()
            state = {key: value.clone() for key, value in local.state_dict().items()}
            state = spoil(client.name, number, state, base) if client.name == faulty else state
            states.append(state)
            if site is not None:
                sent = {key: state[key] - base[key] for key in state} if is_delta else state
                site.update(sent, samples=len(x), delta=is_delta)
                site.__exit__(None, None, None)
        model.load_state_dict({key: sum(one[key] for one in states) / len(states) for key in states[0]})
        if rnd is not None:
            rnd.end()
    if fed is None:
        return None, model.state_dict()
    fed.close()
    return fed.run(), model.state_dict()


def accused_in(run: Run | None) -> dict[str, tuple[str, str]]:
    assert run is not None
    found = [one for one in stethos.diagnose(run).findings if one.name == "faulty-client"]
    return {one.subject.clients[0]: (one.kind, one.detail["guilt"]) for one in found}


def test_weights_that_are_changed_by_hand_are_followed(tmp_path: Path) -> None:
    run, _ = federate(
        tmp_path, spoil=lambda _n, _k, state, base: {key: 2 * base[key] - state[key] for key in state}, is_by_hand=True
    )
    turns = {(row["round"], row["client"]): unpacked(json.loads(row["value"])) for row in rows_of(run, "turn")}
    assert turns and all(facts["steps"] > 0 and "lr" not in facts for facts in turns.values())
    for (_, client), facts in turns.items():  # what left is what was trained, or its opposite
        assert facts["way_sent"] == pytest.approx(-1.0 if client == "c3" else 1.0, abs=1e-3)
    assert accused_in(run) == {"c3": ("sign-flip", "buggy")}


def rows_of(run: Run | None, kind: str) -> list[dict[str, Any]]:
    assert run is not None
    sql = f"SELECT round, client, value FROM evidence WHERE kind = '{kind}' ORDER BY round, client"
    return run.sql(sql).to_pylist()


def test_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(3)
    _, plain = federate(tmp_path, is_recorded=False)
    drawn = torch.get_rng_state()
    torch.manual_seed(3)
    _, observed = federate(tmp_path)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(plain[key], observed[key]) for key in plain)


def test_rows_are_small_and_data_are_sketched_once(tmp_path: Path) -> None:
    run, _ = federate(tmp_path)
    data, turns = rows_of(run, "data"), rows_of(run, "turn")
    assert [(row["round"], row["client"]) for row in data] == [(1, f"c{number}") for number in range(8)]
    assert len(turns) == 4 * 8 and max(len(row["value"]) for row in turns if row["round"] > 1) <= 200
    assert max(len(row["value"]) for row in turns) <= 270
    assert max(len(row["value"]) for row in data) <= 12_000
    facts = unpacked(json.loads(turns[-1]["value"]))
    assert facts["way_sent"] == facts["sent_sent"] == 1.0 and facts["begin"] == 0.0 and facts["new"] == 0
    assert (facts["lr"], facts["steps"]) == (0.1, 8)


def test_nobody_is_accused_without_a_fault(tmp_path: Path) -> None:
    assert accused_in(federate(tmp_path)[0]) == {}


def scaled(_name: str, _number: int, state: State, base: State) -> State:
    return {key: base[key] + 8 * (state[key] - base[key]) for key in state}


def turned(_name: str, _number: int, state: State, base: State) -> State:
    return {key: 2 * base[key] - state[key] for key in state}


def turned_at_times(name: str, number: int, state: State, base: State) -> State:
    return turned(name, number, state, base) if number % 3 == 0 else state


def nothing(_name: str, _number: int, _state: State, base: State) -> State:
    return base


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [(scaled, "scaling"), (turned, "sign-flip"), (turned_at_times, "sign-flip"), (nothing, "free-rider")],
)
def test_what_was_sent_is_compared_with_what_was_done(tmp_path: Path, spoil: Spoil, kind: str) -> None:
    assert accused_in(federate(tmp_path, spoil=spoil)[0]) == {"c3": (kind, "buggy")}


def test_changes_are_compared_as_well_as_weights(tmp_path: Path) -> None:
    assert accused_in(federate(tmp_path, spoil=turned, is_delta=True)[0]) == {"c3": ("sign-flip", "buggy")}


def flipped(x: torch.Tensor, y: torch.Tensor, _number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x, torch.where(y == 0, torch.ones_like(y), y)


def in_other_units(x: torch.Tensor, y: torch.Tensor, _number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([x[:, :1] * 1000, x[:, 1:]], 1), y


def repeated(x: torch.Tensor, y: torch.Tensor, _number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x[:3].repeat(20, 1), y[:3].repeat(20)


def flipped_later(x: torch.Tensor, y: torch.Tensor, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return flipped(x, y, number) if number >= 3 else (x, y)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (flipped, {"label-flip"}),
        (flipped_later, {"label-flip", "label-noise"}),
        (in_other_units, {"feature-fault"}),
        (repeated, {"duplicates"}),
    ],
)
def test_faults_of_data_are_found_where_the_data_are(tmp_path: Path, change: Any, kinds: set[str]) -> None:
    ((client, (kind, guilt)),) = accused_in(federate(tmp_path, change=change)[0]).items()
    assert (client, guilt) == ("c3", "buggy") and kind in kinds


def test_another_learning_rate_is_named(tmp_path: Path) -> None:
    run, _ = federate(tmp_path, lr=lambda name: 1.0 if name == "c3" else 0.1)
    assert accused_in(run) == {"c3": ("wrong-lr", "buggy")}


def test_numbers_of_the_comparison_are_those_of_a_plain_one() -> None:
    model = nn.Linear(5, 2)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    check = UpdateCheck(("r", "f", "c"))
    for _ in range(3):
        model(torch.randn(4, 5)).square().mean().backward()
        check.before_step(optimizer)
        optimizer.step()
        check.after_step(optimizer)
    sent = {key: value + torch.randn_like(value) for key, value in model.state_dict().items()}
    check.compare(sent, start, is_delta=False)
    facts = check.facts()
    way = torch.cat([(model.state_dict()[key] - start[key]).reshape(-1) for key in start]).double().numpy()
    change = torch.cat([(sent[key] - start[key]).reshape(-1) for key in start]).double().numpy()
    assert facts["way_sent"] == pytest.approx(way @ change / (way @ way), rel=1e-4)
    assert facts["sent_sent"] == pytest.approx(change @ change / (way @ way), rel=1e-4)
    assert facts["way"] == pytest.approx(float(np.linalg.norm(way)), rel=1e-4) and facts["steps"] == 3
    assert facts["rest"] == pytest.approx(float(np.linalg.norm(change - way) / np.linalg.norm(way)), rel=1e-2)


@pytest.mark.parametrize("state", [{}, [], {"a": "text"}, {"a": np.zeros((3, 3))}, [torch.zeros(7)]])
def test_what_does_not_fit_is_not_compared(state: Any) -> None:
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    check = UpdateCheck(("r", "f", "c"))
    check.before_step(optimizer)
    check.after_step(optimizer)
    check.compare(state, None, is_delta=False)
    assert "way_sent" not in check.facts()


def second_step(**settings: float) -> dict[str, Any]:
    """What is known of a turn of two steps of SGD with these settings; `clip` shortens gradients."""
    model = make_model()
    clip = settings.pop("clip", None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **settings)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    check = UpdateCheck(("run", "loop", f"c {sorted(settings.items())}"))
    for client in make_clients(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(client.x), client.y)
        check.before_backward(loss)
        loss.backward()
        check.after_backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        check.before_step(optimizer)
        optimizer.step()
        check.after_step(optimizer)
    check.compare(model.state_dict(), before, is_delta=False)
    return check.facts()


def test_a_step_is_compared_with_its_gradient() -> None:
    plain = second_step()
    assert plain["stretch"] == pytest.approx(0.05, rel=1e-3) and plain["gradient"] > 0
    assert not plain.keys() & {"downhill", "given", "rest"}  # nothing to say
    clipped = second_step(clip=1e-3)
    assert clipped["given"] < 0.1 and clipped["stretch"] == pytest.approx(0.05, rel=1e-3)
    decayed = second_step(weight_decay=5.0)
    assert decayed["downhill"] < 0.9 and decayed["outwards"] < plain.get("outwards", 0.0) - 0.3
    assert second_step(momentum=0.9)["stretch"] > 0.06


def uncleared_in(turns: list[list[nn.Module]], *, clears: bool = True) -> int:
    """Two iterations for each of some groups of models, one after the other; a group's models share a loss."""
    check = UpdateCheck(("r", "f", "c"))
    for models in turns:
        optimizers = [
            torch.optim.SGD(model.parameters(), lr=0.1) for model in models
        ]  # may take the ids of those before
        for _ in range(2):
            for optimizer in optimizers if clears else ():
                optimizer.zero_grad()
            loss = torch.stack([model(torch.ones(2, 3)).square().sum() for model in models]).sum()
            check.before_backward(loss)
            loss.backward()
            for optimizer in optimizers:
                check.before_step(optimizer)
                optimizer.step()
                check.after_step(optimizer)
    return int(check.facts().get("uncleared", 0))


def test_gradients_of_a_model_that_is_trained_no_more_are_no_fault() -> None:
    shared, personal = nn.Linear(3, 1), nn.Linear(3, 1)
    assert uncleared_in([[shared], [personal]]) == 0
    assert uncleared_in([[shared]]) == 0
    assert uncleared_in([[shared]], clears=False) == 1
    assert uncleared_in([[shared, personal]], clears=False) == 1  # an optimizer for each, one loss


def tagged(directory: Path, *, moves: str = "") -> Run:
    """Clients whose samples have three tags each; one reads each tag from the column beside it."""
    torch.manual_seed(0)
    chance = torch.Generator().manual_seed(4)
    mix, model = torch.randn(6, 3, generator=chance), nn.Linear(6, 3)
    with stethos.federation("tags", model=model, dir=directory, run="r", progress=False) as fed:
        data = {}
        for place in range(8):
            x = torch.randn(80, 6, generator=chance) + torch.linspace(-0.5, 0.5, 8)[place]
            y = (x @ mix > 0.3).float()
            data[f"c{place}"] = (x, y.roll(1, 1) if moves == f"c{place}" else y)
        for rnd in fed.rounds(6):
            for name, (x, y) in data.items():
                with rnd.client(name) as site:
                    local = copy.deepcopy(model)
                    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
                    for at in torch.arange(80).split(16):
                        optimizer.zero_grad()
                        nn.functional.binary_cross_entropy_with_logits(local(x[at]), y[at]).backward()
                        optimizer.step()
                    site.update(local.state_dict(), samples=80)
            model.load_state_dict(rnd.aggregate())
    return fed.run()


def test_each_of_several_answers_of_yes_and_no_is_compared_with_its_own(tmp_path: Path) -> None:
    run = tagged(tmp_path, moves="c3")
    facts = unpacked(json.loads(rows_of(run, "turn")[0]["value"]))
    cells = np.array(facts["answers"]).reshape(-1, 3)
    assert facts["tags"] == 3 and cells[:, 0].max() == 5 and (cells[:, 0] // 2 == cells[:, 1] // 2).all()
    assert set(accused_in(run)) == {"c3"}
    assert not accused_in(tagged(tmp_path / "clean"))


def facts_of_batches(labels: list[list[int]]) -> dict[str, Any]:
    """What a turn says of batches with these labels; every sample is another one."""
    turn, chance = TurnEvidence("run", f"{labels[0][:3]}{len(labels)}", "c"), np.random.default_rng(0)
    for batch in labels:
        x = chance.normal(size=(len(batch), 4))
        keys = chance.integers(1, 1 << 60, len(batch))
        turn._note_rows(BatchRows("numbers", x, x.astype(np.float32), keys, 0.0, 4, np.array(batch)))
    return turn.facts()


def test_rows_in_the_order_of_their_labels_are_told() -> None:
    chance = np.random.default_rng(1)
    mixed = [chance.integers(0, 3, 16).tolist() for _ in range(6)]
    ordered = sorted(label for batch in mixed for label in batch)
    assert facts_of_batches([ordered[at : at + 16] for at in range(0, 96, 16)])["in_order"] > 0.9
    assert "in_order" not in facts_of_batches(mixed)
    assert "in_order" not in facts_of_batches([[1] * 16] * 6)  # it has one class
    assert "in_order" not in facts_of_batches([[1] * 15 + [2]] * 2)  # too few of the other to say
