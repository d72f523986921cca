"""Near misses of the system's detectors, and what they say about culprits and victims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examining import cases, found, of_turns

from stethos.diagnose.detectors import choose_detectors
from stethos.diagnose.finding import Finding, Severity
from stethos.diagnose.window import Window
from stethos.store.frame import Frame

# Stragglers ------------------------------------------------------------------------------------------


def test_a_straggler_is_named_with_its_victims_and_its_slow_part() -> None:
    (one,) = found("SYS001", cases.straggler())
    assert one.subject.clients == ("c3",) and (one.subject.first, one.subject.last) == (4, None)
    assert one.detail["victims"] == ["c0", "c1", "c2", "c4", "c5"] and "its training" in one.title
    assert one.evidence[0].series[-1] > 5 * one.evidence[0].others[-1]


def test_two_slow_rounds_are_no_straggler() -> None:
    slow = {"duration_ms": 6000.0}
    assert not found("SYS001", of_turns(lambda client, number, _: slow if client == "c3" and number in (4, 5) else {}))


def test_a_client_with_more_data_is_no_straggler() -> None:
    more = {"samples": 600, "duration_ms": 5000.0, "compute_ms": 4800.0}
    assert not found("SYS001", of_turns(lambda client, *_: more if client == "c3" else {}))
    without = {"samples": 600, "duration_ms": 5000.0}
    window = of_turns(lambda client, *_: {"compute_ms": None, **(without if client == "c3" else {})})
    assert not found("SYS001", window)


def test_a_client_that_is_fast_again_is_over() -> None:
    slow = {"duration_ms": 6000.0}
    (one,) = found("SYS001", of_turns(lambda client, number, _: slow if client == "c3" and number < 6 else {}))
    assert not one.is_open and one.subject.last == 5


def test_one_client_alone_has_nobody_to_keep_waiting() -> None:
    assert not found("SYS001", of_turns(lambda *_: {}, clients=["c0"]))
    assert not found("SYS001", of_turns(lambda *_: {"duration_ms": 9e9}, clients=["c0", "c1"]))


def test_the_culprit_among_ranks_is_the_one_that_does_not_wait() -> None:
    (one,) = found("SYS002", cases.ranks())
    assert one.subject.ranks == (1,) and one.detail["victims"] == [0] and "its data" in one.evidence[0].text


def arrivals(late_ms: float, ranks: int = 2, hosts: int = 1, since: int = 0) -> Window:
    """Steps of 40 ms whose parts are the same on all ranks; rank 1 comes late to the collective of each."""
    count = 60
    steps = {"rank": [], "step": [], "step_ms": [], "forward_ms": [], "backward_ms": []}  # type: dict[str, list[Any]]
    calls = {"rank": [], "group": [], "seq": [], "op": [], "t_ns": []}  # type: dict[str, list[Any]]
    for rank in range(ranks):
        for step in range(count):
            for name, value in zip(steps, (rank, step, 40.0, 2.0, 36.0), strict=True):
                steps[name].append(value)
            late_ns = late_ms * 1e6 if rank == 1 and step >= since else 0
            at_ns = cases.T0_NS + step * 40_000_000 + late_ns + (rank + step) % 3 * 100_000
            for name, called in zip(calls, (rank, "world", step, "all_reduce", at_ns), strict=True):
                calls[name].append(called)
    processes = {"process": [f"p{rank}" for rank in range(ranks)], "rank": list(range(ranks)),
                 "host": [f"h{rank % hosts}" for rank in range(ranks)]}  # fmt: skip
    return Window({"steps": Frame(steps), "collectives": Frame(calls), "processes": Frame(processes)})


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_slow_inside_backward_is_the_last_to_arrive(ranks: int) -> None:
    (one,) = found("SYS002", arrivals(30.0, ranks))
    assert one.subject.ranks == (1,) and "last to arrive at 60 of 60" in one.evidence[0].text


def test_a_rank_that_becomes_slow_is_told_since_when() -> None:
    (one,) = found("SYS002", arrivals(30.0, since=40))
    assert one.subject.ranks == (1,) and abs(one.detail["since"] - 40) <= 2 and "since about step" in one.title


def test_ranks_that_arrive_together_or_by_other_clocks_are_no_stragglers() -> None:
    assert not found("SYS002", arrivals(1.0))
    assert not found("SYS002", arrivals(30.0, hosts=2))


def test_a_rank_a_little_slower_is_no_straggler() -> None:
    assert not found("SYS002", cases.ranks(slow_ms=4.0))


# Missing updates -------------------------------------------------------------------------------------


REASONS = [("dropout", "dropped"), ("timeout", "timeout"), ("failure", "failed")]


def missing(kind: str, window: Window) -> list[Finding]:
    """What is found of one kind."""
    return [one for one in found("SYS017", window) if one.kind == kind]


@pytest.mark.parametrize(("kind", "status"), REASONS)
def test_a_missing_update_is_of_one_kind_alone(kind: str, status: str) -> None:
    assert [one.kind for one in found("SYS017", cases.absent(status))] == [kind]


@pytest.mark.parametrize("former", ["SYS004", "client-timeout"])
def test_a_former_name_silences_its_kind_and_sets_the_whole(former: str) -> None:
    def chosen(**options: Any) -> Any:
        return next(one for one in choose_detectors(**options) if one.name == "missing-update")

    quiet = chosen(silenced=[former])
    assert not list(quiet.check(cases.absent("timeout"))) and list(quiet.check(cases.absent("dropped")))
    assert quiet.code == "SYS017" and chosen(thresholds={former: {"rounds": 7}}).rounds == 7
    assert "missing-update" not in {one.name for one in choose_detectors(silenced=["missing-update"])}


@pytest.mark.parametrize(("kind", "status"), REASONS)
def test_a_single_missing_update_is_no_finding(kind: str, status: str) -> None:
    assert not missing(kind, cases.absent(status, since=4, until=4))
    (one,) = missing(kind, cases.absent(status, since=9))
    assert one.subject.clients == ("c2",) and one.subject.first == 9


@pytest.mark.parametrize(("kind", "status"), REASONS)
def test_most_clients_missing_in_the_last_round_are_told_at_once(kind: str, status: str) -> None:
    """It may be what ended the training. One client, or an earlier round, is no such matter."""
    bad, last = {"status": status, "error": "ValueError: no"}, max(cases.ROUNDS)
    (one,) = missing(kind, of_turns(lambda client, number, _: bad if number == last and client != "c0" else {}))
    assert one.severity is Severity.ERROR and "c0" not in one.subject.clients and one.subject.first == last
    (one,) = missing(kind, of_turns(lambda *_: bad, clients=("c0",), rounds=(1,)))
    assert one.subject.clients == ("c0",) and one.is_open
    assert not missing(kind, of_turns(lambda client, number, _: bad if number == last and client == "c1" else {}))
    assert not missing(kind, of_turns(lambda _, number, __: bad if number == last - 1 else {}))


@pytest.mark.parametrize(("kind", "status"), REASONS)
def test_a_client_that_came_back_is_over(kind: str, status: str) -> None:
    (one,) = missing(kind, cases.absent(status, since=2, until=4))
    assert not one.is_open and (one.subject.first, one.subject.last) == (2, 4)


def test_an_error_of_the_link_is_no_failure_of_the_client() -> None:
    window = cases.absent("failed", "ConnectionResetError: [Errno 104] Connection reset by peer")
    assert not missing("failure", window) and len(missing("communication", window)) == 1
    window = cases.absent("failed", "IndexError: index 503 is out of bounds in skip connections of the network")
    assert len(missing("failure", window)) == 1 and not missing("communication", window)


def test_where_most_clients_lose_the_connection_it_is_one_finding_about_all() -> None:
    row = {"status": "failed", "error": "grpc.RpcError: StatusCode.UNAVAILABLE"}
    (one,) = missing("communication", of_turns(lambda client, number, _: row if client != "c0" and number > 7 else {}))
    assert one.severity is Severity.ERROR and len(one.subject.clients) == 5 and "most of them" in one.title


# Sizes, time and memory --------------------------------------------------------------------------------


def test_an_update_half_as_large_again_is_not_oversize() -> None:
    assert not found("SYS007", of_turns(lambda client, *_: {"raw_bytes": 6e6} if client == "c5" else {}))


def test_a_short_wait_for_data_is_no_stall() -> None:
    assert not found("SYS008", cases.loader(data_ms=30.0))
    assert not found("SYS008", cases.loader(data_ms=60.0), at_least_ms=100.0)


def test_memory_that_grows_at_the_start_alone_is_no_leak() -> None:
    rss = np.concatenate([np.linspace(1e9, 6e9, 100), np.full(200, 6e9)])
    assert not found("SYS009", cases.host(rss)) and not found("SYS010", cases.host(rss, free=20e9))


def test_memory_that_goes_up_and_down_is_no_leak() -> None:
    assert not found("SYS009", cases.host(4e9 + 2e9 * np.sin(np.arange(300) / 5)))


def test_the_forecast_says_when_memory_runs_out() -> None:
    (one,) = found("SYS010", cases.host(np.linspace(2e9, 6e9, 300), free=8e9))
    assert one.detail["left_s"] == pytest.approx(300, rel=0.1) and one.severity is Severity.ERROR
    assert not found("SYS010", cases.host(np.linspace(2e9, 6e9, 300), free=8e9, is_live=False))
    assert found("SYS010", cases.host([2e9] * 90, free=5e7))[0].title.startswith("memory is short")


def test_a_client_with_twice_the_memory_is_no_finding() -> None:
    assert not found("SYS011", of_turns(lambda client, *_: {"peak_bytes": 1e9} if client == "c1" else {}))


def test_a_client_whose_memory_grows_each_round_is_found() -> None:
    (one,) = found("SYS011", of_turns(lambda c, number, _: {"peak_bytes": 3e8 + 8e7 * number} if c == "c1" else {}))
    assert one.subject.clients == ("c1",) and "each round" in one.title
    assert not found("SYS011", of_turns(lambda client, number, _: {"peak_bytes": 3e8 + 8e7 * number}))


# Processes -----------------------------------------------------------------------------------------


def test_a_pause_is_no_stall() -> None:
    assert not found("SYS012", cases.stalled(silent_s=50))
    assert not found("SYS012", cases.stalled(silent_s=300), at_least_s=600)


def test_a_process_that_hung_before_it_was_killed_is_told() -> None:
    (one,) = found("SYS012", cases.stalled(state="killed"))
    assert "when it was killed" in one.title
    assert not found("SYS012", cases.stalled(state="ended"))


def test_memory_that_grows_before_the_first_step_is_packages_and_data() -> None:
    """Long imports, then a short training: the second half of all samples is still on its way up."""
    rss = np.concatenate([np.linspace(1e8, 3e9, 110), np.full(10, 3e9)])
    window = cases.host(rss)
    assert found("SYS009", window)
    steps = window.frame("steps").where(window.frame("steps")["step"] >= 110)
    assert not found("SYS009", Window({"host": window.frame("host"), "steps": steps}))


def test_a_process_that_somebody_stopped_is_no_warning() -> None:
    (one,) = found("SYS013", cases.processes(cases.process(state="killed", ending="killed by SIGTERM", exit_code=-15)))
    assert one.severity is Severity.INFO
    assert not found("SYS013", cases.processes(cases.process()))


def test_low_utilisation_is_told_where_nothing_is_known_of_the_machine() -> None:
    (one,) = found("SYS014", cases.host([2e9] * 90, cpu_share=0.08, machine_cpu_share=None))
    assert "uses 8% of one core" in one.title


def job(*rows: dict[str, Any]) -> Any:
    """Ranks that failed one after the other, a tenth of a second apart, and their launcher after them."""
    launcher = {"process": "launcher", "steps": 0, "ending": "uncaught ChildFailedError: ... Root Cause"}
    return cases.processes(
        *(
            cases.process(**{"process": f"r{place}", "state": "failed", "ended_ns": cases.T0_NS + place * 10**8, **row})
            for place, row in enumerate([*rows, launcher])
        )
    )


LOST = "uncaught RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3567"


def test_of_a_job_the_rank_that_failed_first_is_told_and_the_others_with_it() -> None:
    disk = {"rank": 2, "ending": "uncaught OSError: no space left on device"}
    (one,) = found("SYS013", job(disk, {"rank": 0, "ending": LOST}, {"rank": 1, "ending": LOST}))
    assert one.title == "rank 2 ended badly: uncaught OSError: no space left on device" and one.subject.ranks == (2,)
    assert one.evidence[1].text == (
        "after it ended rank 0 (lost its connection), rank 1 (lost its connection), its launcher, process launcher"
    )


def test_a_rank_that_was_killed_is_told_before_those_that_lost_it() -> None:
    """Nobody notes the time at which a process is killed: it is found dead a moment later."""
    killed = {"rank": 2, "state": "killed", "ending": "ended without a word: killed, by os._exit"}
    (one,) = found("SYS013", job({"rank": 0, "ending": LOST}, {"rank": 1, "ending": LOST}, killed))
    assert one.subject.ranks == (2,) and "OOM killer" in one.next_step


def test_a_rank_that_ended_while_the_others_needed_it_is_told() -> None:
    ended = {"rank": 1, "state": "ended", "ending": "ended", "steps": 61}
    (one,) = found("SYS013", job(ended, {"rank": 0, "ending": LOST}))
    assert (one.kind, one.subject.ranks) == ("ended-early", (1,)) and "61 steps" in one.title


def test_a_rank_that_lost_its_connection_to_one_that_ended_later_is_told_itself() -> None:
    ended = {"rank": 1, "state": "ended", "ending": "ended", "steps": 61, "ended_ns": cases.T0_NS + 10**10}
    (one,) = found("SYS013", job(ended, {"rank": 0, "ending": LOST}))
    assert (one.kind, one.subject.ranks) == ("lost-peer", (0,))


@pytest.mark.parametrize(("driver", "severity"), [("ended", Severity.INFO), ("failed", Severity.ERROR)])
def test_workers_that_ray_kills_after_a_job_are_no_failure(driver: str, severity: Severity) -> None:
    worker = {"command": "python /x/ray/_private/workers/default_worker.py", "ending": "ended without a word: killed"}
    rows = [
        cases.process(process="driver", state=driver, steps=0, ending=driver, command="python train.py"),
        cases.process(process="worker", rank=1, state="killed", steps=30, **worker),
    ]
    told = [one for one in found("SYS013", cases.processes(*rows)) if one.subject.process == "worker"]
    assert [one.severity for one in told] == [severity]


def test_a_job_that_failed_again_after_a_restart_is_told_twice() -> None:
    first, again = ({"rank": rank, "ending": "uncaught OSError: broken"} for rank in (0, 0))
    assert len(found("SYS013", job(first, {"rank": 1, "ending": LOST}, again))) == 2


def test_processes_without_ranks_that_failed_are_told_one_by_one() -> None:
    rows = (cases.process(process=f"p{place}", state="failed", ending="exit status 3") for place in range(3))
    found_ones = found("SYS013", cases.processes(*rows))
    assert len(found_ones) == 3 and all("printed last" in one.next_step for one in found_ones)


def test_a_long_ending_is_cut_where_that_can_be_seen() -> None:
    (one,) = found("SYS013", cases.processes(cases.process(state="failed", ending="uncaught ValueError: " + "x" * 300)))
    assert one.title.endswith("x…") and len(one.title) < 130


@pytest.mark.parametrize(("told", "severity"), [(1200, Severity.INFO), (1000, Severity.ERROR)])
def test_a_worker_of_clients_that_is_killed_between_turns_is_no_warning(told: int, severity: Severity) -> None:
    """As by Ray at the end of a simulation; in the middle of a turn it has made steps that no report tells of."""
    turns = [{"process": "p0", "side": "client", "steps": steps} for steps in (None, 400, told - 400)]
    reports = Frame({name: [turn[name] for turn in turns] for name in turns[0]})
    dead = cases.process(state="killed", ending="ended without a word", exit_code=None)
    window = Window({"processes": cases.processes(dead).frame("processes"), "client_reports": reports})
    (one,) = found("SYS013", window)
    assert one.severity is severity and ("between their turns" in one.title) == (severity is Severity.INFO)


def test_a_busy_process_or_a_busy_machine_is_no_low_utilisation() -> None:
    assert not found("SYS014", cases.host([2e9] * 90, cpu_share=0.9))
    assert not found("SYS014", cases.host([2e9] * 90, cpu_share=0.1, machine_cpu_share=0.95))


def test_a_few_lost_rows_and_the_size_limit_are_information() -> None:
    (one,) = found("SYS015", cases.processes(cases.process(rows_lost=5)))
    assert one.severity is Severity.INFO
    (one,) = found("SYS015", cases.processes(cases.process(rows_dropped=5000, drops='{"size_limit": 5000}')))
    assert one.severity is Severity.INFO and "size limit" in one.evidence[0].text
    assert not found("SYS015", cases.processes(cases.process()))
    assert found("SYS015", cases.processes(cases.process(rows_dropped=900, drops="not json")))


# Kept memory ---------------------------------------------------------------------------------------


def test_the_line_that_keeps_tensors_is_named() -> None:
    (one,) = found("SYS009", cases.kept(np.linspace(2e9, 4e9, 200), step_bytes=8e6))
    assert "train.py:9" in one.title and "history (list) at train.py:17" in one.title and "a minute" in one.title
    assert one.detail["line"] == "train.py:9" and "train.py:17" in one.next_step and len(one.evidence) == 2


def test_kept_tensors_are_found_before_the_process_was_watched_for_long() -> None:
    (one,) = found("SYS009", cases.kept([2e9] * 5, step_bytes=8e6))
    assert one.title.startswith("tensors made at train.py:9 stay alive") and "1,592 MB" in one.title


def test_a_line_and_half_a_minute_of_growth_are_enough_together() -> None:
    growing = np.linspace(3.5e8, 7.3e8, 31)
    (one,) = found("SYS009", cases.kept(growing, step_bytes=1e6))
    assert "a minute: tensors made at train.py:9 stay alive" in one.title
    assert not found("SYS009", cases.host(growing)) and not found("SYS009", cases.kept(growing, step_bytes=4.0))


def test_a_list_of_small_losses_is_no_leak() -> None:
    assert not found("SYS009", cases.kept([2e9] * 90, step_bytes=4.0))
    (one,) = found("SYS009", cases.kept(np.linspace(2e9, 4e9, 200), step_bytes=4.0))
    assert "train.py" not in one.title and "line" not in one.detail  # something else grows


def test_tensors_that_fill_a_gpu_are_forecast() -> None:
    (one,) = found("SYS010", cases.gpu(np.linspace(20e9, 60e9, 300)))
    assert "GPU" in one.title and one.detail["left_s"] == pytest.approx(155, rel=0.1)
    assert not found("SYS010", cases.gpu([20e9] * 300))
    assert not found("SYS010", cases.gpu(np.linspace(20e9, 60e9, 300), is_live=False))
