"""Steps and modules: the engine's sums and plain ones agree; bottlenecks inside of steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from builders import T0_NS, RunBuilder
from made import columns

from stethos.profile.bottleneck import (
    batch_bottleneck,
    bottlenecks_of,
    input_bottleneck,
    launch_bottleneck,
    leak_bottleneck,
    own_code_bottleneck,
)
from stethos.profile.memory_use import Growth, KeptByLine, MemoryUse, growth_of, read_growth
from stethos.profile.module_time import module_times
from stethos.profile.report import Profile, profile_of
from stethos.profile.step_time import STEP_COLUMNS, StepTime, inside_of, read_step_times, step_times, together
from stethos.profile.traffic import read_own_layers
from stethos.store.frame import select
from stethos.store.run import open_run


def steps_of(count: int = 200, ranks: int = 1, **more: object) -> list[StepTime]:
    rows = [
        {"process": f"p{rank}", "rank": rank if ranks > 1 else None, "step": step, "local_step": step, "step_ms": 100.0,
         "data_ms": 5.0, "forward_ms": 30.0, "backward_ms": 50.0, "optimizer_ms": 5.0, "samples": 32,
         **{name: value(rank, step) if callable(value) else value for name, value in more.items()}}
        for step in range(count)
        for rank in range(ranks)
    ]  # fmt: skip
    return step_times(columns(rows))


def test_the_engine_and_plain_sums_agree(run: RunBuilder) -> None:
    process = run.process()
    process.steps(50)
    for step_ns in (-4e6, math.inf, math.nan):  # a clock that was set, or ran away
        process.steps(1, step_ns=step_ns)
    process.finish()
    with open_run(run.path) as opened:
        assert opened.rows("SELECT count(*) FROM steps").values == [(53,)]
        by_engine = read_step_times(opened)
        by_hand = step_times(select(opened, f"SELECT {', '.join(sorted(STEP_COLUMNS))} FROM steps"))
    (one,), (two,) = by_engine, by_hand
    assert (one.process, one.rank, one.steps, one.samples) == (two.process, two.rank, two.steps, two.samples)
    assert one.steps == 45 and one.parts["data"] == pytest.approx(one.mean_ms / 10)
    assert (one.mean_ms, one.median_ms, one.samples_per_s) == pytest.approx(
        (two.mean_ms, two.median_ms, two.samples_per_s)
    )
    assert one.parts == pytest.approx(two.parts, abs=1e-12)


def test_parts_add_up_and_what_is_missing_is_none() -> None:
    (one,) = steps_of(data_ms=None)
    assert one.parts == {"data": None, "forward": 30.0, "backward": 50.0, "optimizer": 5.0, "other": 15.0}
    assert np.isnan(one.share("data")) and one.share("forward", "backward") == pytest.approx(0.8)


def test_processes_together_count_by_their_steps_and_what_one_did_not_measure_is_in_the_rest() -> None:
    one, two = steps_of(ranks=2, data_ms=lambda rank, step: 5.0 if rank else None)
    whole = together([replace(one, steps=30), replace(two, steps=10, mean_ms=140.0)])
    assert whole is not None and (whole.steps, whole.mean_ms) == (40, pytest.approx(110.0))
    assert whole.parts == {"data": None, "forward": 30.0, "backward": 50.0, "optimizer": 5.0, "other": 25.0}


def test_steps_of_a_stepped_clock_are_left_out() -> None:
    (one,) = steps_of(step_ms=lambda rank, step: -4e6 if step == 50 else float("inf") if step == 60 else 100.0)
    assert (one.steps, one.mean_ms) == (193, 100.0)


def test_the_first_step_of_an_optimizer_is_left_out() -> None:
    (one,) = steps_of(
        local_step=lambda rank, step: step % 10, step_ms=lambda rank, step: 100.0 if step % 10 else 9999.0
    )
    assert one.mean_ms == 100.0


def test_parts_never_exceed_the_step() -> None:
    (one,) = steps_of(forward_ms=90.0, backward_ms=90.0)
    assert one.parts["other"] == 0.0 and sum(value or 0.0 for value in one.parts.values()) == pytest.approx(100.0)


def test_no_steps_are_no_times() -> None:
    assert step_times(columns([])) == [] and together([]) is None and bottlenecks_of([], []) == []


def test_a_slow_loader_is_named_with_what_it_costs() -> None:
    found = input_bottleneck(steps_of(data_ms=60.0, step_ms=155.0))
    assert found is not None and found.share == pytest.approx(60 / 155) and "39% shorter" in found.verdict
    assert input_bottleneck(steps_of()) is None


def test_a_slow_rank_is_named_with_its_slow_part() -> None:
    times = steps_of(
        ranks=3, step_ms=120.0, forward_ms=lambda rank, step: 50.0 if rank == 2 else 30.0,
        backward_ms=lambda rank, step: 50.0 if rank == 2 else 70.0,
    )  # fmt: skip
    (named,) = bottlenecks_of([], times)
    assert (named.kind, named.ranks, named.detail["part"]) == ("slow-rank", (2,), "forward")
    assert bottlenecks_of([], steps_of(ranks=3)) == []


def test_small_batches_are_a_hint_only() -> None:
    times = steps_of(samples=2, forward_ms=10.0, backward_ms=20.0, optimizer_ms=40.0)
    found = batch_bottleneck(times)
    assert found is not None and found.is_hint
    assert batch_bottleneck(steps_of(samples=64, forward_ms=10.0, backward_ms=20.0, optimizer_ms=40.0)) is None


def test_an_idle_gpu_with_short_steps_is_launch_bound() -> None:
    short = steps_of(step_ms=8.0, data_ms=0.1, forward_ms=3.0, backward_ms=3.0, optimizer_ms=1.0)
    assert launch_bottleneck(short, [{"busy_share": 0.2}]) is not None
    assert launch_bottleneck(short, [{"busy_share": 0.9}]) is None
    assert launch_bottleneck(short, []) is None and launch_bottleneck(short, [{"busy_share": None}]) is None


def test_modules_are_counted_without_their_children() -> None:
    rows = [
        {"module": name, "stage": stage, "duration_ms": duration, "allocated_bytes": 10, "samples": 3}
        for name, stage, duration in (
            ("Net", "forward", 10.0), ("body", "forward", 7.0), ("body.0", "forward", 5.0), ("head", "forward", 2.0),
            ("body.0", "backward", 4.0), ("MSELoss", "forward", 0.5),
        )
    ]  # fmt: skip
    found = {one.module: (one.forward_ms, one.backward_ms) for one in module_times(rows, {"Net"})}
    assert found == {
        "Net": (1.0, None),
        "body": (2.0, None),
        "body.0": (5.0, 4.0),
        "head": (2.0, None),
        "MSELoss": (0.5, None),
    }
    assert module_times(rows, {"Net"})[0].module == "body.0" and module_times([], set()) == []


def test_a_module_that_some_steps_do_not_call_has_its_share_of_all_steps() -> None:
    rows = [
        {"module": name, "stage": "forward", "duration_ms": duration, "allocated_bytes": 0, "samples": samples}
        for name, duration, samples in (("Net", 10.0, 4), ("body", 6.0, 4), ("seldom", 8.0, 1))
    ]
    found = {one.module: (one.forward_ms, one.share) for one in module_times(rows, {"Net"})}
    assert found == {"body": (6.0, 0.6), "seldom": (8.0, 0.2), "Net": (2.0, 0.2)}


def test_modules_of_several_models_are_told_apart() -> None:
    """A GAN: the maker runs in the judge's steps too, under its own name; each model has a module called 0."""
    rows = [
        {"model": model, "module": name, "stage": "forward", "duration_ms": ms, "allocated_bytes": 0, "samples": 2}
        for model, name, ms in (
            ("Judge", "Judge", 10.0), ("Judge", "0", 7.0), ("Judge", "Maker", 4.0), ("Judge", "Maker.0", 3.0),
            ("Maker", "Maker", 6.0), ("Maker", "0", 5.0), ("Maker", "Judge", 12.0), ("Maker", "Judge.0", 9.0),
        )
    ]  # fmt: skip
    found = {one.module: (one.forward_ms, one.samples) for one in module_times(rows, {"Judge", "Maker"})}
    assert found == {"Judge.0": (8.0, 4), "Maker.0": (4.0, 4), "Judge": (3.0, 4), "Maker": (1.0, 4)}


@pytest.mark.parametrize(
    ("steps", "modules", "said"),
    [
        (2, ["a", "b"], ""),
        (3, ["a", "b"], ", most of that in module b"),
        (3, ["a", "b", "c", "x" * 90], f", 36% of that in module …{'x' * 47}"),
    ],
)
def test_a_module_is_only_said_to_take_most_where_it_does(
    run: RunBuilder, steps: int, modules: list[str], said: str
) -> None:
    process = run.process()
    process.steps(20)
    for step in range(steps):
        process.modules(modules, step=step)
    process.finish()
    with open_run(run.path) as opened:
        assert profile_of(opened).verdict == f"no bottleneck: 80% of a step are forward and backward{said}"


def test_memory_that_keeps_growing_is_a_leak_and_memory_that_settles_is_none() -> None:
    t_ns = np.arange(60) * 1e9
    assert growth_of("p", t_ns, np.linspace(3e8, 9e8, 60)) is not None
    settling = 3e8 + 6e8 * (1 - np.exp(-np.arange(60) / 5))
    assert growth_of("p", t_ns, settling) is None
    assert growth_of("p", t_ns, np.full(60, 3e8)) is None
    assert growth_of("p", t_ns[:10], np.linspace(3e8, 9e8, 10)) is None
    backwards = growth_of("p", t_ns[::-1], np.linspace(3e8, 9e8, 60)[::-1])
    assert backwards is not None and backwards.bytes_per_s > 0
    paused = growth_of("p", np.where(t_ns > 55e9, t_ns + 30e9, t_ns), np.linspace(3e8, 9e8, 60))  # a late last sample
    assert paused is not None and paused.bytes_per_s == pytest.approx(6e8 / 59, rel=0.05)


def test_steps_without_a_backward_are_not_called_nothing() -> None:
    """As of optimizers that step inside backward, or gradients from `torch.func`."""
    nothing = MemoryUse((), None, None, None, None, None, None, (), None)
    steps = tuple(steps_of(backward_ms=None))
    found = Profile("r", "ended", (), steps, None, (), nothing, (), (), (), ())
    assert found.verdict == "no bottleneck: forward or backward were not seen, so a step is not split"


def test_without_a_federation_the_layers_are_those_of_the_model(run: RunBuilder) -> None:
    process = run.process()
    process.layers(["a", "b"], "weight", norm=1.0)
    process.layers(["a", "b"], "weight", step=5, norm=2.0)
    process.layers(["a", "b"], "gradient", step=5, norm=9.0)
    process.finish()
    with open_run(run.path) as opened:
        assert [(one.layer, one.size, one.share, one.norm) for one in read_own_layers(opened)] == [
            ("a", 64, 0.5, 2.0),
            ("b", 64, 0.5, 2.0),
        ]


@pytest.mark.parametrize(("steps", "grows"), [(0, True), (200, False)])
def test_what_is_loaded_before_the_first_step_is_no_leak(run: RunBuilder, steps: int, grows: bool) -> None:
    """A process that never steps, a federation's server, is judged by all of its time."""
    process = run.process()
    process.steps(steps)
    for second, rss in enumerate([*np.linspace(1e8, 5e8, 66), *[5e8] * 4]):
        process.collector.add_sample(T0_NS + (second - 66) * 10**9, {"rss_bytes": float(rss)})
    process.finish()
    with open_run(run.path) as opened:
        assert (read_growth(opened, "p0") is not None) == grows


def test_a_leak_names_its_line_what_is_left_and_never_a_list_of_losses() -> None:
    growth = Growth("p", 5.5e8, 7.4e8, 12.5e6, 1.0, free_bytes=20e9)
    kept = KeptByLine("p", "train.py:9", "history (list) at train.py:17", 1e6, 172, 1)
    one = leak_bottleneck(growth, kept)
    assert one is not None and one.verdict == (
        "memory of process p grows by 750 MB a minute: tensors made at train.py:9 stay alive"
    )
    assert "(+35%)" in one.evidence and "20.0 GB free on the machine last 27 minutes" in one.evidence
    assert "train.py:17" in one.next_step and one.detail["left_s"] == 1600
    for other in (replace(kept, step_bytes=4.0), replace(kept, process="q"), None):
        plain = leak_bottleneck(growth, other)
        assert plain is not None and plain.verdict.endswith("a minute") and plain.detail["line"] is None
    assert leak_bottleneck(None, kept) is None  # one sample of a line alone is too little
    assert leak_bottleneck(None, replace(kept, samples=3)) is not None


def test_the_outputs_of_a_module_are_those_of_its_forward() -> None:
    rows = [
        {"module": "0", "stage": "backward", "duration_ms": 4.0, "allocated_bytes": None, "samples": 2},
        {"module": "0", "stage": "forward", "duration_ms": 1.0, "allocated_bytes": 640, "samples": 3},
    ]
    (one,) = module_times(rows, set())
    assert (one.allocated_bytes, one.samples) == (640, 3)


def test_code_around_the_model_is_not_called_computing() -> None:
    """A loop without a data loader: what it does before the model counts as forward; sampled modules tell."""
    steps = columns([{"process": "p", "step": step, "model": "Net", "forward_ms": 4.0} for step in range(20)])
    rows = [{"process": "p", "step": step, "module": module, "stage": "forward", "duration_ms": ms}
            for step in (1, 5, 9, 99) for module, ms in (("Net", 0.4), ("body", 0.3))]  # fmt: skip
    assert inside_of(steps, columns(rows)) == {"p": pytest.approx(0.1)}
    assert inside_of(steps, columns(rows[:4])) == {}  # too few
    assert inside_of(steps, columns(rows * 4)) == {"p": pytest.approx(0.4)}  # four batches in a step
    assert inside_of(steps, columns(rows[:2] * 4)) == {}
    (time,) = steps_of()
    slow = replace(time, mean_ms=50.0, inside=0.1, parts={**time.parts, "forward": 44.0})
    named = own_code_bottleneck([slow])
    assert named is not None and named.is_hint and "only 4.4 ms of them in the model" in named.evidence
    assert own_code_bottleneck([replace(slow, inside=0.9)]) is None and own_code_bottleneck([]) is None
    sleepy = replace(slow, inside=None, parts={**time.parts, "other": 40.0})
    named = own_code_bottleneck([sleepy])
    assert named is not None and "40.0 ms of 50.0 ms" in named.evidence
    both = replace(slow, inside=0.5, parts={**time.parts, "forward": 30.0, "other": 16.0})
    named = own_code_bottleneck([both])
    assert named is not None and "62%" in named.verdict and "31.0 ms of 50.0 ms" in named.evidence


def test_a_loader_that_is_slow_on_one_rank_is_named_once() -> None:
    times = steps_of(ranks=2, data_ms=lambda rank, _: 60.0 if rank else 2.0,
                     backward_ms=lambda rank, _: 5.0 if rank else 63.0, forward_ms=20.0)  # fmt: skip
    assert [one.kind for one in bottlenecks_of([], times)] == ["input-bound"]
