"""What the simulator does not come to: rounds with answers that are late, missing or misshapen, and jobs on paper."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner
from processes import PROGRAMS, wait_for_rest

import stethos
from stethos.adapters.nvflare import observe_job
from stethos.adapters.nvflare.exchange import HEADER, REPORT, peer_name, take_report, weights_in
from stethos.adapters.nvflare.server import OpenRound
from stethos.errors import UsageError
from stethos.federate.federation import Federation
from stethos.store.run import open_run

BASE = {"w": np.zeros((2, 3), np.float32)}


def answer(number: int, value: float = 1.0, shape: tuple[int, ...] = (2, 3), **model: Any) -> Shareable:
    params = {"w": np.full(shape, value, np.float32)}
    made: Shareable = FLModelUtils.to_shareable(FLModel(params=params, current_round=number, **model))
    return made


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Federation]:
    with stethos.federation("parts", dir=tmp_path, run="run", progress=False) as fed:
        yield fed


@pytest.fixture
def rows(fed: Federation, tmp_path: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    """Close the federation and ask its run."""

    def ask(query: str) -> list[tuple[Any, ...]]:
        fed.close()
        wait_for_rest(tmp_path / "run")
        return [tuple(row) for row in open_run(tmp_path / "run").rows(query).values]

    return ask


def test_a_client_that_does_not_answer_is_late_and_in_the_end_given_up(fed: Federation, rows: Any) -> None:
    for number, is_last in ((4, False), (5, True)):
        rnd = OpenRound(fed, number, BASE)
        for client in ("site-1", "site-2"):
            assert rnd.invite(client)["client"] == client
        rnd.take("site-1", answer(number), {}, 1)
        rnd.end(is_last=is_last)
    found = rows("SELECT round, client, status, wait_ms IS NULL FROM client_rounds ORDER BY 1, 2")
    assert found == [
        (4, "site-1", "ok", False),
        (4, "site-2", "timeout", True),
        (5, "site-1", "ok", False),
        (5, "site-2", "dropped", True),
    ]
    assert rows("SELECT round, selected, reported, failed FROM rounds ORDER BY 1") == [(4, 2, 1, 1), (5, 2, 1, 1)]


def test_the_next_round_s_model_is_the_result_where_the_controller_shows_none(fed: Federation, rows: Any) -> None:
    rnd = OpenRound(fed, 0, BASE)
    rnd.take("site-1", answer(0), {}, 1)
    rnd.end({"w": np.full((2, 3), 2.0, np.float32)})
    assert rows("SELECT drift FROM rounds") == [(pytest.approx(np.sqrt(24)),)]


def test_a_late_update_says_which_model_it_started_from(fed: Federation, rows: Any) -> None:
    rnd = OpenRound(fed, 3, BASE)
    rnd.take("site-1", answer(1), {}, 1)
    rnd.end()
    assert rows("SELECT client, round, base_round FROM client_rounds") == [("site-1", 3, 0)]


def test_an_update_of_another_shape_is_noted_and_not_refused(fed: Federation, rows: Any) -> None:
    rnd = OpenRound(fed, 0, BASE)
    rnd.take("site-1", answer(0, shape=(3, 3)), {}, 1)
    rnd.end()
    ((error,),) = rows("SELECT error FROM client_rounds")
    assert "client 'site-1' sent layer 'w' with shape (3, 3)" in error


def test_a_return_code_is_a_failure_even_without_a_report(fed: Federation, rows: Any) -> None:
    rnd = OpenRound(fed, 0, BASE)
    rnd.invite("site-1")
    rnd.take("site-1", make_reply(ReturnCode.EXECUTION_EXCEPTION), {}, 1)
    rnd.end()
    assert rows("SELECT status, error FROM client_rounds") == [("failed", "NVFlare return code EXECUTION_EXCEPTION")]


def test_metrics_that_are_called_like_columns_do_no_harm(fed: Federation, rows: Any) -> None:
    rnd = OpenRound(fed, 0, BASE)
    metrics = {"loss": 0.5, "status": 3.0, "f1": np.float32(0.25), "curve": [1, 2]}
    rnd.take("site-1", answer(0, metrics=metrics), {}, 1)
    rnd.end()
    ((status, loss, text),) = rows("SELECT status, loss, metrics FROM client_rounds")
    assert (status, loss, json.loads(text)) == ("ok", 0.5, {"metric_status": 3.0, "f1": 0.25})


def test_differences_are_told_from_weights() -> None:
    whole, change = weights_in(answer(0)), weights_in(answer(0, params_type=ParamsType.DIFF))
    assert whole is not None and not whole.is_delta
    assert change is not None and change.is_delta
    assert weights_in(Shareable()) is None
    assert weights_in(FLModelUtils.to_shareable(FLModel(metrics={"loss": 1.0}))) is None


def test_nothing_of_ours_is_left_in_a_result() -> None:
    plain = answer(2)
    peer, context = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=False)
    context.set_peer_context(peer)
    plain.set_peer_props(peer.get_all_public_props())
    before = copy.deepcopy(dict(plain))
    peer.set_prop(REPORT, {"compute_ms": 3.0}, private=False, sticky=False)
    plain.set_peer_props(peer.get_all_public_props())
    plain.set_header(HEADER, {"client": "site-1"})
    assert take_report(plain, context) == {"compute_ms": 3.0}
    np.testing.assert_equal(dict(plain), before)
    assert peer.get_prop(REPORT) is None and peer_name(context) == "site-1"


def test_a_job_with_parts_for_single_sites_gets_its_widget_at_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(PROGRAMS)
    job = FedJob(name="sites")
    for site in ("site-1", "site-2"):
        job.to(ScriptRunner(script="nvflare_train.py"), site)
    path = observe_job(job, dir=tmp_path / "runs", run="sites", tasks=("fit",))
    assert path == tmp_path / "runs" / "sites"
    job.export_job(str(tmp_path / "job"))
    for config in tmp_path.glob("job/**/config_fed_*.json"):
        (widget,) = [part for part in json.loads(config.read_text())["components"] if part["id"] == "stethos"]
        side = config.stem.removeprefix("config_fed_")
        assert widget["path"] == f"stethos.adapters.nvflare.{side}.{side.capitalize()}Watch"
        assert (widget["args"]["run_dir"], widget["args"]["tasks"]) == (str(path), ["fit"])
    assert len(list(tmp_path.glob("job/**/config_fed_client.json"))) == 2
    assert not list(tmp_path.glob("job/**/custom/stethos")), "the installed package must be used"


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(UsageError, match="not an NVFlare job: dict"):
        observe_job({})


def test_a_job_without_clients_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing for its clients yet"):
        observe_job(FedJob(name="empty"), dir=tmp_path)
