"""Loops of every kind: failing, late, parallel, odd clients; what does not fit is refused by name."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loop import State, make_clients, make_model, run_observed
from processes import DEADLINE_S, wait_for_rest
from recording import Recording, nothing_is_left_behind, touched
from torch import nn

import stethos
from stethos.errors import UpdateMismatchError, UsageError
from stethos.federate.invitation import Invitation
from stethos.federate.site import Site
from stethos.observe import boot
from stethos.record.place import RunPlace, host_key
from stethos.record.spawn import take_lock

Record = Callable[..., Recording]


def moved(model: nn.Module, by: float = 0.01, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + by * torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }


# Failing -----------------------------------------------------------------------------------------


def test_a_failing_client_is_recorded_with_its_traceback_and_then_raised(record: Record) -> None:
    recording, model = record(), make_model()

    def read_ward_7() -> None:
        raise FileNotFoundError("no data in ward 7")

    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(2):
            with rnd.client("good") as site:
                site.update(moved(model))
            if rnd.number == 2:
                with pytest.raises(FileNotFoundError), rnd.client("bad"):
                    read_ward_7()
    ((status, error, traceback),) = recording.rows(
        "SELECT status, error, traceback FROM client_rounds WHERE client = 'bad' AND round = 2"
    )
    assert (status, error) == ("failed", "FileNotFoundError: no data in ward 7")
    assert "read_ward_7" in traceback and "Traceback" in traceback
    assert recording.rows("SELECT selected, reported, failed FROM rounds ORDER BY round") == [(1, 1, 0), (2, 1, 1)]
    assert recording.column("SELECT exception FROM spans WHERE name = 'client' AND NOT ok") == [error]


def test_dropped_and_late_clients_are_told_apart(record: Record) -> None:
    recording, model = record(), make_model()
    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(3):
            rnd.select(["gone", "slow", "late", "good"])
            with rnd.client("gone") as site:
                site.drop("battery empty")
            with rnd.client("slow") as site:
                site.timeout()
            rnd.receive("late", moved(model), samples=10, base_round=rnd.number - 3)
            with rnd.client("good") as site:
                site.update(moved(model, seed=1), samples=10)
    assert recording.rows(
        "SELECT client, status, error, base_round, samples FROM client_rounds WHERE round = 3 ORDER BY client"
    ) == [
        ("gone", "dropped", "battery empty", None, None),
        ("good", "ok", None, None, 10),
        ("late", "ok", None, 0, 10),
        ("slow", "timeout", None, None, None),
    ]
    assert recording.rows("SELECT selected, reported, failed FROM rounds WHERE round = 3") == [(4, 2, 2)]


def test_a_loop_that_is_left_by_an_exception_leaves_its_round_behind(record: Record) -> None:
    recording, model = record(), make_model()
    with pytest.raises(ZeroDivisionError), stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(5):
            with rnd.client("a") as site:
                site.update(moved(model))
            if rnd.number == 2:
                raise ZeroDivisionError
    assert recording.column("SELECT round FROM rounds ORDER BY round") == [1, 2]
    assert recording.column("SELECT ok FROM spans WHERE name = 'round' ORDER BY t_ns") == [True, False]


@pytest.mark.parametrize(("error", "state"), [(ZeroDivisionError, "failed"), (SystemExit, "ended"), (None, "ended")])
def test_a_federation_that_ends_with_an_exception_has_failed(
    tmp_path: Path, error: type[BaseException] | None, state: str
) -> None:
    with contextlib.ExitStack() as stack:
        if error is not None:
            stack.enter_context(pytest.raises(error))
        fed = stack.enter_context(stethos.federation("toy", model=make_model(), dir=tmp_path, progress=False))
        stack.enter_context(fed.round(1))
        if error is not None:
            raise error
    assert fed.path is not None
    wait_for_rest(fed.path)
    with stethos.open_run(fed.path) as run:
        ((found, ending, trace),) = run.rows("SELECT state, ending, traceback FROM processes").values
    assert found == state and (state == "ended" or ("ZeroDivisionError" in ending and "raise error" in trace))


def test_a_client_that_comes_back_in_the_same_round_has_two_rows(record: Record) -> None:
    recording, model = record(), make_model()
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(7) as rnd:
        for _ in range(2):
            with rnd.client("a") as site:
                site.update(moved(model))
    assert recording.rows("SELECT client, round, turn FROM client_rounds ORDER BY turn") == [("a", 7, 0), ("a", 7, 1)]


# Forms of updates --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["delta", "numpy", "list", "parameters", "float64"])
def test_the_same_update_in_another_form_has_the_same_fingerprint(record: Record, form: str) -> None:
    recording, model = record(), make_model(with_norm=True)
    state = moved(model)
    base = model.state_dict()
    parameters = [name for name, _ in model.named_parameters()]
    given: Any = {
        "delta": {name: value - base[name] for name, value in state.items()},
        "numpy": {name: value.numpy() for name, value in state.items()},
        "list": [value.numpy() for value in state.values()],
        "parameters": [state[name].numpy() for name in parameters],
        "float64": {name: value.double() if value.is_floating_point() else value for name, value in state.items()},
    }[form]
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        rnd.receive("plain", state)
        rnd.receive("other", given, delta=form == "delta")
    rows = recording.rows(
        "SELECT layer, any_value(norm) FILTER (client = 'plain') AS a, any_value(norm) FILTER (client = 'other') AS b "
        "FROM updates WHERE client IS NOT NULL GROUP BY layer"
    )
    assert len(rows) == 9
    for layer, plain, other in rows:
        if form == "parameters" and layer and "running" in layer:
            assert other is None  # buffers were not sent
        else:
            assert other == pytest.approx(plain, rel=1e-4), layer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_is(record: Record, dtype: torch.dtype) -> None:
    recording, model = record(), make_model()
    state = {name: value.to(dtype) for name, value in moved(model, 0.5).items()}
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        rnd.receive("half", state)
    base = model.state_dict()
    for name, value in state.items():
        expected = float((value.double() - base[name].double()).norm())
        assert recording.column(f"SELECT norm FROM updates WHERE layer = '{name}' AND client = 'half'") == [
            pytest.approx(expected, rel=1e-3)
        ]


@pytest.mark.parametrize("form", ["int8", "int8 of NumPy", "sparse"])
def test_quantised_and_sparse_changes_are_read_as_the_numbers_they_hold(record: Record, form: str) -> None:
    recording, model = record(), make_model()
    made = torch.Generator().manual_seed(0)
    whole = {
        name: torch.randint(-9, 9, one.shape, generator=made).to(torch.int8) for name, one in model.state_dict().items()
    }
    forms: dict[str, Callable[[torch.Tensor], Any]] = {
        "int8": lambda one: one, "int8 of NumPy": lambda one: one.numpy(),
        "sparse": lambda one: one.float().to_sparse(),
    }  # fmt: skip
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        rnd.receive("a", {name: forms[form](one) for name, one in whole.items()}, delta=True)
    (norm,) = recording.column("SELECT norm FROM updates WHERE client = 'a' AND layer IS NULL")
    weights = [one.double().square().sum() for name, one in whole.items() if name in dict(model.named_parameters())]
    assert norm == pytest.approx(float(sum(weights)) ** 0.5)


def test_updates_are_handed_back_untouched(record: Record) -> None:
    record()
    model = make_model(with_norm=True)
    state = moved(model)
    before, version = copy.deepcopy(state), {name: value._version for name, value in state.items()}
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        with rnd.client("a") as site:
            site.update(state, samples=3, loss=torch.tensor(0.5), f1=0.25)
        (update,) = rnd.updates
    assert update.state is state and (update.client, update.samples, update.metrics) == ("a", 3, {"f1": 0.25})
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert {name: value._version for name, value in state.items()} == version


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: state.pop("2.bias"), ["'c3'", "no layer '2.bias'", "only a part of the model is shared"]),
        (lambda state: state.update({"2.Bias": state.pop("2.bias")}), ["no layer '2.bias'", "it sent '2.Bias'"]),
        (
            lambda state: state.update({"2.bias": torch.zeros(3, dtype=torch.complex64)}),
            ["'2.bias' as torch.complex64"],
        ),
        (lambda state: state.update({"2.bias": torch.zeros(4)}), ["'c3'", "'2.bias'", "(4,)", "(3,)"]),
        (lambda state: state.update({"9.bias": torch.zeros(4)}), ["'c3'", "'9.bias'", "has not"]),
        (lambda state: state.update({"2.bias": ["a", "b", "c"]}), ["'c3'", "'2.bias'"]),
    ],
)
def test_an_update_that_does_not_fit_is_refused_by_client_and_layer(
    record: Record, spoil: Callable[[dict[str, Any]], None], words: list[str]
) -> None:
    recording, model = record(), make_model()
    state: dict[str, Any] = moved(model)
    spoil(state)
    with (
        stethos.federation("toy", model=model, progress=False) as fed,
        fed.round(1) as rnd,
        pytest.raises(UpdateMismatchError) as caught,
        rnd.client("c3") as site,
    ):
        site.update(state)
    assert all(word in str(caught.value) for word in words), caught.value
    assert recording.column("SELECT status FROM client_rounds") == ["failed"]
    assert not rnd.updates and recording.column("SELECT reported FROM rounds") == [0]


def test_a_list_of_the_wrong_length_is_refused(record: Record) -> None:
    record()
    model = make_model()
    with (
        stethos.federation("toy", model=model, progress=False) as fed,
        fed.round(1) as rnd,
        pytest.raises(UpdateMismatchError, match=r"'a' sent 3 arrays, the global model has 4"),
    ):
        rnd.receive("a", [np.zeros(1)] * 3)


def test_without_a_global_model_only_changes_are_compared(record: Record) -> None:
    recording = record()
    model = make_model()
    with stethos.federation("toy", progress=False) as fed, fed.round(1) as rnd:
        rnd.receive("weights", moved(model))
        for seed in range(2):
            rnd.receive(
                f"change-{seed}", {name: value * 0.1 for name, value in moved(model, 1, seed).items()}, delta=True
            )
    assert recording.column("SELECT DISTINCT client FROM updates ORDER BY 1") == ["change-0", "change-1"]
    assert "model=" in recording.column("SELECT reason FROM gaps WHERE what = 'updates'")[0]


# Numbers that are none ---------------------------------------------------------------------------


def test_nan_is_found_with_client_and_layer(record: Record) -> None:
    recording = record()

    def spoil(number: int, client: str, state: State) -> None:
        if (number, client) == (3, "c2"):
            state["2.weight"][1, 4] = math.nan
            state["0.bias"][0] = math.inf

    run_observed(make_model(), make_clients(4), 4, spoil=spoil)
    assert recording.rows(
        "SELECT round, client, layer, nan, inf FROM updates WHERE nan + inf > 0 AND round = 3 AND client IS NOT NULL "
        "ORDER BY layer NULLS FIRST"
    ) == [(3, "c2", None, 1, 1), (3, "c2", "0.bias", 0, 1), (3, "c2", "2.weight", 1, 0)]
    # From then on the global model is spoilt, and so is everything that comes of it.
    assert recording.column("SELECT global_nan + global_inf > 0 FROM rounds ORDER BY round") == [
        False,
        False,
        True,
        True,
    ]
    # The others of that round are compared as if it were not there.
    cosines = recording.column("SELECT cos_centre FROM updates WHERE round = 3 AND layer IS NULL AND client <> 'c2'")
    assert len([value for value in cosines if value is not None]) == 3


def test_nan_everywhere_and_one_client_alone_are_no_trouble(record: Record) -> None:
    recording, model = record(), make_model()
    state = {name: torch.full_like(value, math.nan) for name, value in model.state_dict().items()}
    with stethos.federation("toy", model=model, progress=False) as fed:
        with fed.round(1) as rnd:
            rnd.receive("alone", moved(model))
        with fed.round(2) as rnd:
            for name in "ab":
                rnd.receive(name, state)
    assert recording.rows(
        "SELECT cos_centre, norm_ratio, norm > 0 FROM updates WHERE client = 'alone' AND layer IS NULL"
    ) == [(None, 1.0, True)]
    assert recording.rows(
        "SELECT DISTINCT norm, cos_centre, norm_ratio, nan FROM updates "
        "WHERE round = 2 AND layer IS NULL AND client IS NOT NULL"
    ) == [(None, None, None, 147)]


def test_an_element_that_is_not_read_cannot_hide_a_nan(record: Record) -> None:
    recording = record()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 400), nn.ReLU(), nn.Linear(400, 3))
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        assert fed.plan is not None and fed.plan.parts[0].blocks is not None
        unread = sorted(set(range(600 * 400 // 1024)) - set(fed.plan.parts[0].blocks.tolist()))[0] * 1024
        states = [moved(model, seed=seed) for seed in range(3)]
        states[1]["0.weight"].view(-1)[unread] = math.nan
        states[2]["2.bias"][0] = math.inf  # known at once, and no reason to search no further
        for number, state in enumerate(states):
            rnd.receive(f"c{number}", state)
        model.load_state_dict({name: sum(state[name] for state in states) / 3 for name in states[0]})  # type: ignore[misc]
    assert recording.rows(
        "SELECT client, layer, nan + inf FROM updates WHERE nan + inf > 0 AND client IS NOT NULL ORDER BY ALL"
    ) == [
        ("c1", "0.weight", 1),
        ("c1", None, 1),
        ("c2", "2.bias", 1),
        ("c2", None, 1),
    ]


# Side by side ------------------------------------------------------------------------------------


def test_clients_in_threads_are_told_apart_and_wait_for_the_last(record: Record) -> None:
    recording, model = record(), make_model()
    clients = make_clients(4)
    barrier = threading.Barrier(4)

    def work(rnd: Any, client: Any) -> None:
        with rnd.client(client.name) as site:
            barrier.wait()
            site.update(client.train(model), samples=len(client.x))
            logging.getLogger("hospital").warning("done by %s", client.name)

    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(2):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                for future in [pool.submit(work, rnd, client) for client in clients]:
                    future.result()
    expected = [(number, client.name) for number in (1, 2) for client in clients]
    assert recording.rows("SELECT DISTINCT round, client FROM steps ORDER BY ALL") == expected
    assert (
        recording.rows("SELECT round, client FROM logs WHERE message = 'done by ' || client ORDER BY ALL") == expected
    )
    waits = recording.rows("SELECT round, min(wait_ms), max(wait_ms) FROM client_rounds GROUP BY round")
    assert all(least == 0 and most > 0 for _, least, most in waits)
    assert all(wait > 0 for wait in recording.column("SELECT wait_ms FROM rounds"))
    joined = (
        "SELECT count(*) FROM spans c JOIN spans r ON c.parent = r.span AND c.trace = r.trace WHERE c.name = 'client'"
    )
    assert recording.column(f"{joined} AND r.name = 'round'") == [8]


def test_a_thread_or_task_that_a_client_starts_belongs_to_it(record: Record) -> None:
    recording = record()
    model = make_model()

    async def gather() -> None:
        await asyncio.gather(*(asyncio.create_task(one(number)) for number in range(3)))

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        stethos.log(task=number)

    with stethos.federation("toy", model=model, progress=False) as fed:
        pool = concurrent.futures.ThreadPoolExecutor(1)
        for rnd in fed.rounds(2):
            for name in ("a", "b"):
                with rnd.client(name):
                    thread = threading.Thread(target=lambda: stethos.log(thread=1))
                    thread.start()
                    thread.join()
                    pool.submit(lambda: stethos.log(pool=1)).result()
                    asyncio.run(gather())
            pool.submit(lambda: stethos.log(between=1)).result()
        pool.shutdown()
    for metric, count in (("thread", 1), ("pool", 1), ("task", 3)):
        assert recording.rows(
            f"SELECT round, client, count(*) FROM metrics WHERE name = '{metric}' GROUP BY ALL ORDER BY ALL"
        ) == [(number, client, count) for number in (1, 2) for client in ("a", "b")]
    assert recording.rows("SELECT DISTINCT client FROM metrics WHERE name = 'between'") == [(None,)]


def test_tasks_side_by_side_are_told_apart(record: Record) -> None:
    recording, model = record(), make_model()

    async def turn(rnd: Any, name: str) -> None:
        with rnd.client(name) as site:
            await asyncio.sleep(0.001)
            stethos.log(seen=1)
            site.update(moved(model))

    async def main() -> None:
        with stethos.federation("toy", model=model, progress=False) as fed:
            for rnd in fed.rounds(2):
                await asyncio.gather(*(turn(rnd, name) for name in "abc"))

    asyncio.run(main())
    assert recording.rows("SELECT round, client FROM metrics ORDER BY ALL") == [
        (number, name) for number in (1, 2) for name in "abc"
    ]


def train_elsewhere(invitation: Invitation) -> dict[str, Any]:
    """In another process: the turn of a client that was invited."""
    torch.set_num_threads(1)
    with Site(invitation, side="client") as site:
        (client,) = [one for one in make_clients(3) if one.name == invitation.client]
        client.train(make_model())
        if invitation.client == "c2":
            raise RuntimeError("cannot train here")
    return site.report()


def log_elsewhere(value: int) -> None:
    stethos.log(elsewhere=value)


def test_processes_take_part_and_join_the_rounds_trace(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STETHOS_STRICT", "1")
    model = make_model()
    context = multiprocessing.get_context("spawn")
    with (
        stethos.federation("toy", model=model, dir=tmp_path, run="spread", progress=False) as fed,
        concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool,
    ):
        for rnd in fed.rounds(1):
            futures = {name: pool.submit(train_elsewhere, rnd.invite(name)) for name in ("c0", "c1", "c2")}
            for name, future in futures.items():
                if future.exception() is None:
                    rnd.receive(name, moved(model), samples=5, report=future.result())
                else:
                    rnd.receive(name).note(status="failed", error=str(future.exception()))
            with rnd.client("here"):
                pool.submit(log_elsewhere, 3).result()
    assert fed.path is not None
    with stethos.open_run(fed.path) as run:
        rows = run.rows(
            "SELECT client, status, samples, entry_loss > 0, steps, traceback LIKE '%cannot train here%' "
            "FROM client_rounds ORDER BY client"
        ).values
        assert [tuple(row) for row in rows] == [
            ("c0", "ok", 5, True, 4, None),
            ("c1", "ok", 5, True, 5, None),
            ("c2", "failed", None, True, 5, True),
            ("here", "ok", None, None, None, None),
        ]
        assert run.rows("SELECT DISTINCT client, round FROM steps ORDER BY ALL").values == [
            ("c0", 1), ("c1", 1), ("c2", 1),
        ]  # fmt: skip
        assert run.rows("SELECT client, value FROM metrics WHERE name = 'elsewhere'").values == [("here", 3.0)]
        joined = run.rows(
            "SELECT count(*), count(DISTINCT s.trace), count(DISTINCT s.process) FROM spans s "
            "JOIN spans r ON s.parent = r.span AND s.trace = r.trace WHERE s.name = 'client' AND r.name = 'round'"
        ).values
        assert joined[0][:2] == (4, 1) and joined[0][2] >= 2


def test_a_worker_that_outlives_a_federation_records_into_the_next(tmp_path: Path) -> None:
    places = [RunPlace(tmp_path / name) for name in ("first", "second")]
    with nothing_is_left_behind():
        for place in (*places, places[1]):
            place.create({"run": place.name, "command": [], "started_ns": 1, "limit_bytes": 1 << 30})
            lock = take_lock(place.drainer_lock(host_key()))
            with Site(Invitation("toy", "c0", 1, str(place.path)), side="client"):
                session = boot.current_session()
                assert session is not None and session.settings.run_dir == place.path and session.ring is not None
            if lock is not None:
                os.close(lock)
    assert [len(place.processes()) for place in places] == [1, 1]


def test_a_recording_that_the_program_began_is_not_left_for_an_invitation(record: Record, tmp_path: Path) -> None:
    recording, elsewhere = record(), RunPlace(tmp_path / "elsewhere")
    elsewhere.create({"run": "elsewhere", "command": [], "started_ns": 1, "limit_bytes": 1 << 30})
    with Site(Invitation("toy", "c0", 1, str(elsewhere.path)), side="client"):
        pass
    assert recording.rows("SELECT client, side FROM client_reports") == [("c0", "client")]
    assert elsewhere.processes() == []


def test_a_client_that_cannot_reach_the_run_reports_its_turn(tmp_path: Path) -> None:
    with Site(Invitation("toy", "c0", 1, str(tmp_path / "nowhere")), side="client") as site:
        pass
    report = site.report()
    assert report["status"] == "ok" and float(report["duration_ms"]) > 0 and float(report["peak_bytes"]) > 0


def test_of_a_failure_the_clients_own_words_are_kept(record: Record) -> None:
    recording, model = record(), make_model()
    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(1):
            with pytest.raises(ValueError, match="in ward 7"), Site(rnd.invite("c0"), side="client"):
                raise ValueError("no data in ward 7")
            rnd.receive("c0").note(status="failed", error="a task failed", traceback="somewhere")
    ((error, traceback),) = recording.rows("SELECT error, traceback FROM client_rounds")
    assert error == "ValueError: no data in ward 7" and traceback.startswith("Traceback")


def test_odd_layers_are_told_while_the_round_goes_on(record: Record) -> None:
    record()
    model = make_model()
    state, (layer, *_) = moved(model), model.state_dict()
    state[layer].view(-1)[:2] = torch.tensor([math.nan, math.inf])
    with stethos.federation("toy", model=model, progress=False) as fed:
        for rnd in fed.rounds(1):
            rnd.receive("bad", state)
            rnd.receive("good", moved(model))
            assert rnd.odd_layers("bad") == [(layer, 1, 1)]
            assert rnd.odd_layers("good") == rnd.odd_layers("nobody") == []


# Words for mistakes ------------------------------------------------------------------------------


def test_mistakes_are_told_in_words(record: Record) -> None:
    record()
    with pytest.raises(UsageError, match="needs a name"):
        stethos.federation("")
    model = make_model()
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        with pytest.raises(UsageError, match="no phase 'cook'"), rnd.phase("cook"):  # type: ignore[arg-type]
            pass
        with pytest.raises(UsageError, match="no column 'colour'"):
            rnd.note(colour=3)
        with rnd.client("a") as site:
            with pytest.raises(UsageError, match="no column 'colour'"):
                site.note(colour=3)
            with pytest.raises(UsageError, match="no phase 'aggregate'"), site.phase("aggregate"):
                pass


def test_an_evaluation_that_found_no_number_is_no_reason_to_stop(record: Record) -> None:
    recording = record()
    with stethos.federation("toy", model=make_model(), progress=False) as fed:
        for rnd, loss in zip(fed.rounds(3), (0.5, None, torch.ones(3)), strict=True):
            rnd.evaluate(loss=loss, recall=0.25)  # type: ignore[arg-type]
    assert recording.rows("SELECT round, loss, evaluation FROM rounds ORDER BY round") == [
        (number, loss, '{"recall": 0.25}') for number, loss in ((1, 0.5), (2, None), (3, None))
    ]
    assert recording.column("SELECT reason FROM gaps") == ["the evaluation's loss is not a number: Tensor"]


def test_a_module_in_place_of_its_state_is_refused_with_the_way_out(record: Record) -> None:
    record()
    model = make_model()
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        with pytest.raises(UpdateMismatchError, match="'a' sent a Sequential") as caught, rnd.client("a") as site:
            site.update(model)  # type: ignore[arg-type]
        assert "state_dict()" in str(caught.value.hint)


def test_what_the_caller_knows_better_is_taken_as_it_is(record: Record) -> None:
    recording, model = record(), make_model()
    with stethos.federation("toy", model=model, progress=False) as fed, fed.round(1) as rnd:
        with rnd.client("a", label="ward 7") as site:
            with site.phase("compute"):
                site.confusion(torch.tensor([0, 0, 2]), [0, 1, 2])
            site.note(download_ms=5.0, upload_ms=7.0, peak_bytes=1000, sent_bytes=10, received_bytes=20, entry_loss=0.5)
            site.update(moved(model), samples=3)
        rnd.note(duration_ms=99.0, wait_ms=1.5)
    assert recording.rows(
        "SELECT label, download_ms, compute_ms > 0, upload_ms, peak_bytes, sent_bytes, received_bytes, entry_loss, "
        "confusion FROM client_rounds"
    ) == [("ward 7", 5.0, True, 7.0, 1000, 10, 20, 0.5, "[[1, 1, 0], [0, 0, 0], [0, 0, 1]]")]
    assert recording.rows("SELECT duration_ms, wait_ms FROM rounds") == [(99.0, 1.5)]


def test_nothing_is_patched_when_the_federation_is_over(record: Record) -> None:
    record()
    before = (threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit)
    with stethos.federation("a", progress=False), stethos.federation("b", progress=False):
        assert threading.Thread.start is not before[0]
    assert (threading.Thread.start, concurrent.futures.ThreadPoolExecutor.submit) == before


def test_without_a_recording_the_loop_runs_all_the_same(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    before = touched()
    model = make_model()
    with stethos.federation("toy", model=model, dir=blocked, progress=False) as fed:
        for rnd in fed.rounds(2):
            with rnd.client("a") as site:
                site.update(moved(model), samples=1)
            rnd.evaluate(loss=1.0)
            assert len(rnd.updates) == 1
    assert "not recording" in capfd.readouterr().err
    assert touched() == before


def test_a_trace_ends_with_its_clients_turn(record: Record) -> None:
    """What comes next is the server's work, and the next client's evaluation of the global model."""
    record()
    model, optimizer = make_model(), None
    with stethos.federation("toy", model=model, progress=False) as fed:
        recording = boot.current()
        assert recording is not None and recording.torch_hooks is not None
        tracer = recording.torch_hooks.steps.tracer
        for rnd in fed.rounds(1):
            with rnd.client("c1"):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                deadline = time.monotonic() + DEADLINE_S
                while not tracer.is_tracing():  # on a busy machine the budget may take a while
                    assert time.monotonic() < deadline
                    model(torch.randn(4, next(model.parameters()).shape[1])).sum().backward()
                    optimizer.step()
            assert not tracer.is_tracing()


def test_an_update_after_its_rounds_end_is_no_part_of_the_next(record: Record) -> None:
    recording = record()
    model = make_model()
    with stethos.federation("toy", model=model, progress=False) as fed:
        first, second = fed.round(1), None
        with first, first.client("a") as late:
            late.update(moved(model, seed=1))
        second = fed.round(2)
        with second:
            with second.client("b") as site:
                site.update(moved(model, seed=2))
            late.update(moved(model, seed=3))
    assert recording.rows(
        "SELECT round, client FROM updates WHERE layer IS NULL AND client IS NOT NULL ORDER BY ALL"
    ) == [
        (1, "a"),
        (2, "b"),
    ]


def test_name_is_the_run_as_everywhere(tmp_path: Path) -> None:
    with stethos.federation("wards", name="night-1", dir=tmp_path) as opened:
        assert (opened.name, opened.path.name) == ("wards", "night-1")
    with stethos.federation("wards", run="night-2", dir=tmp_path) as opened:
        assert opened.path.name == "night-2"
    with pytest.raises(UsageError, match="name='a' and run='b'"):
        stethos.federation("wards", name="a", run="b")
