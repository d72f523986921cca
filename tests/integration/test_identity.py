"""A training leaves the same behind with and without observation, to the last bit, in all the ways people train.

Each program runs once bare and once under `stethos run` with the deepest preset and a budget of 100 %; it
prints hashes of parameters, buffers, optimizer states and random states.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from processes import PROGRAMS, UNBOUNDED, collected, environment

from stethos.store.run import Run

DEADLINE_S = 900
WHOLE = ("run", "--quiet", "--preset", "deep", "--overhead", "100%")


def cases_of(program: str) -> list[str]:
    return re.findall(r"^@case\ndef (\w+)", (PROGRAMS / program).read_text(encoding="utf-8"), re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pair:
    """What a program printed without and with observation, and the run."""

    bare: list[dict[str, Any]]
    observed: list[dict[str, Any]]
    run: Run

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.run.rows(query).values]


@pytest.fixture(scope="module")
def run_both(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """Run a command bare and under observation, side by side or, to share what is compiled, one after the other."""

    def run_both(
        name: str, *command: str, at_once: bool = True, options: tuple[str, ...] = WHOLE, **variables: str
    ) -> Pair:
        directory = tmp_path_factory.mktemp(name)
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        started = []
        ours = (sys.executable, "-m", "stethos.cli.main", *options, "--dir", str(directory), "--name", name)
        observed = (*ours, *command[command[0] == sys.executable :])
        own = environment(
            PATH=path, XDG_RUNTIME_DIR=str(directory), TORCHINDUCTOR_CACHE_DIR=str(directory / "cache"), **variables
        )
        for words, kind in ((command, "bare"), (observed, "observed")):
            with (directory / kind).open("w") as out, (directory / f"{kind}.err").open("w") as err:
                started.append(subprocess.Popen(words, env=own, stdout=out, stderr=err, cwd=directory))
            if not at_once:
                started[-1].wait(timeout=DEADLINE_S)
        printed = []
        for process, kind in zip(started, ("bare", "observed"), strict=True):
            code = process.wait(timeout=DEADLINE_S)
            assert code == 0, (directory / f"{kind}.err").read_text()[-3000:]
            printed.append([json.loads(line) for line in (directory / kind).read_text().splitlines()])
        run, _ = collected(directory / name)
        return Pair(*printed, run)

    return run_both


@pytest.fixture(scope="module")
def single(run_both: Callable[..., Pair]) -> Pair:
    return run_both("single", sys.executable, str(PROGRAMS / "train.py"))


@pytest.mark.parametrize("case", cases_of("train.py"))
def test_training_leaves_the_same_behind(single: Pair, case: str) -> None:
    assert single.observed[-1][case] == single.bare[-1][case]
    assert len(set(single.bare[-1][case])) == len(single.bare[-1][case]), "seeds must matter"


def test_all_of_it_was_observed(single: Pair) -> None:
    """Nothing was switched off on the way, so the comparison above means something."""
    assert single.rows("SELECT what, reason FROM gaps") == []
    for table in ("steps", "layers", "modules"):
        assert single.rows(f"SELECT count(*) > 100 FROM {table}") == [(True,)]
    assert single.rows("SELECT count(*) > 0 FROM layers WHERE kind = 'activation'") == [(True,)]
    last = single.rows("SELECT max(optimizer) FROM steps GROUP BY process ORDER BY 1 DESC")[0][0]
    sampled = single.rows(f"SELECT count(*) > 0 FROM layers WHERE optimizer > {last - 8}")
    assert sampled == [(True,)]


def test_workers_of_data_loaders_leave_no_rows_and_a_forked_trainer_its_own(single: Pair) -> None:
    """Of all the children only the two that trained are in the run, each counting its steps from 0."""
    steps = single.rows("SELECT count(*), min(step), max(step) FROM steps GROUP BY process ORDER BY 1 DESC")
    assert [row[0] for row in steps[1:]] == [12, 12]
    assert all(first == 0 and last == count - 1 for count, first, last in steps)
    assert len(single.run.processes()) == 3


REPEATED = [case for case in cases_of("train.py") if not case.startswith("workers_")]


@pytest.fixture(scope="module")
def repeated(run_both: Callable[..., Pair]) -> Pair:
    """Every step is repeated and compared."""
    options = ("run", "--quiet", "--sdc", "100%")
    return run_both("repeated", sys.executable, str(PROGRAMS / "train.py"), *REPEATED, options=options)


@pytest.mark.parametrize("case", REPEATED)
def test_training_leaves_the_same_behind_where_its_steps_are_repeated(repeated: Pair, case: str) -> None:
    assert repeated.observed[-1][case] == repeated.bare[-1][case]


def test_repeated_steps_are_equal_and_what_is_not_repeated_is_said(repeated: Pair) -> None:
    outcomes = repeated.rows("SELECT DISTINCT detail->>'outcome' FROM inspections WHERE phase = 'repeated'")
    assert outcomes == [("equal",)]
    assert repeated.rows("SELECT count(*) > 400 FROM inspections WHERE phase = 'repeated'") == [(True,)]
    gaps = repeated.rows("SELECT what, reason FROM gaps")
    assert {what for what, _ in gaps} == {"sdc"}
    for words in ("use_reentrant=True", "a dispatch mode", "weights change", "TorchScript", "hooks on a Linear"):
        assert any(words in reason for _, reason in gaps), words


@pytest.fixture(scope="module")
def compiled(run_both: Callable[..., Pair]) -> Pair:
    return run_both("compiled", sys.executable, str(PROGRAMS / "compiled.py"), at_once=False)


@pytest.mark.parametrize("case", cases_of("compiled.py"))
def test_compiled_training_leaves_the_same_behind(compiled: Pair, case: str) -> None:
    bare, observed = compiled.bare[-1][case], compiled.observed[-1][case]
    assert observed["prints"] == bare["prints"]
    assert len(set(bare["prints"])) == 2


@pytest.mark.parametrize("case", cases_of("compiled.py"))
def test_observation_adds_no_graph_no_break_and_no_recompilation(compiled: Pair, case: str) -> None:
    bare, observed = compiled.bare[-1][case], compiled.observed[-1][case]
    for part in ("graphs", "calls", "recompiles"):
        assert observed[part] == bare[part]
    assert sum(observed["breaks"].values()) <= sum(bare["breaks"].values())


def test_every_step_of_a_compiled_training_is_seen(compiled: Pair) -> None:
    rows = compiled.rows("SELECT optimizer, count(*), count(loss), sum(backwards) FROM steps GROUP BY 1 ORDER BY 1")
    optimizers = 2 * (len(cases_of("compiled.py")) + 2)  # two seeds; two cases have two models
    assert rows == [(number, 12, 12, 12) for number in range(1, optimizers + 1)]


def test_module_traces_are_refused_where_code_is_compiled(compiled: Pair) -> None:
    assert [what for what, _ in compiled.rows("SELECT what, reason FROM gaps")] == ["modules"]
    assert "torch.compile" in compiled.rows("SELECT reason FROM gaps")[0][0]


@pytest.fixture(scope="module")
def distributed(run_both: Callable[..., Pair]) -> Pair:
    program = str(PROGRAMS / "distributed.py")
    return run_both("distributed", "torchrun", "--nproc-per-node", "2", program, PYTHONPATH=UNBOUNDED)


@pytest.mark.parametrize("case", cases_of("distributed.py"))
def test_ranks_end_with_the_same(distributed: Pair, case: str) -> None:
    bare, observed = (
        {line["rank"]: line[case] for line in lines} for lines in (distributed.bare, distributed.observed)
    )
    assert observed == bare
    assert set(bare) == {0, 1}


STEPS_AND_BACKWARDS = {
    "ddp": (8, 8), "ddp_no_sync": (4, 16), "zero_redundancy": (8, 8), "fsdp2": (8, 8), "fsdp1": (8, 8),
    "ddp_compiled": (8, 8),
}  # fmt: skip


def test_every_rank_records_every_step(distributed: Pair) -> None:
    rows = distributed.rows(
        "SELECT rank, optimizer, model, count(*), count(loss), sum(backwards) FROM steps GROUP BY ALL ORDER BY 1, 2"
    )
    expected = []
    for rank in (0, 1):
        for index, case in enumerate(cases_of("distributed.py")):
            steps, backwards = STEPS_AND_BACKWARDS[case]
            expected += [(rank, 2 * index + seed, "Net", steps, steps, backwards) for seed in (1, 2)]
    assert rows == expected


def test_wrapped_and_sharded_models_keep_their_layers_names(distributed: Pair) -> None:
    names = {f"{layer}.{part}" for layer in ("body.0", "body.1", "head") for part in ("weight", "bias")}
    for rank in (0, 1):
        for optimizer in range(1, 2 * len(STEPS_AND_BACKWARDS) + 1):
            seen = distributed.rows(
                f"SELECT DISTINCT layer FROM layers WHERE rank = {rank} AND optimizer = {optimizer} AND kind = 'weight'"
            )
            assert {name for (name,) in seen} == names, (rank, optimizer)
