"""Tensor memory: by class and by operator as a plain count has it, and the line of a leak."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import PROGRAMS, UNBOUNDED, collected, environment, finish, start_command
from recording import Recording
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from stethos.observe.holder import holder_of
from stethos.observe.memory_trace import MemoryTrace
from stethos.observe.program_line import ProgramLines, filling_line
from stethos.profile.memory_use import read_memory_use

Record = Callable[..., Recording]
FLOAT = 4


@pytest.fixture(autouse=True)
def often(every_step: None) -> None:
    """Samples are considered after every step."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def train(model: nn.Module, steps: int, keep: Callable[[torch.Tensor], object] = id) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(100, 32))
        out.square().mean().backward()
        optimizer.step()
        keep(out)


def test_classes_are_those_of_a_plain_count(record: Record) -> None:
    recording = record(overhead=1.0)
    model = Net()
    train(model, 60)
    classes = {
        name: (size, count)
        for name, size, count in recording.rows(
            "SELECT class, last(bytes ORDER BY step), last(count ORDER BY step) FROM memory "
            "WHERE class IS NOT NULL AND device = 'cpu' GROUP BY class"
        )
    }
    weights = sum(parameter.numel() for parameter in model.parameters()) * FLOAT
    assert classes["model"] == (weights, 6) == classes["gradient"]
    assert classes["optimizer"] == (2 * weights + 6 * FLOAT, 18)
    assert classes["buffer"] == (2 * 64 * FLOAT + 8, 3)
    assert classes["other"] == (0, None)
    inputs, outputs = 100 * 32, 100 * (64 + 64 + 8)
    assert classes["activation"][0] >= (inputs + outputs) * FLOAT
    assert recording.rows("SELECT count(*) FROM memory WHERE line IS NOT NULL") == [(0,)]  # nothing leaks
    peaks = dict(recording.rows("SELECT class, max(peak_bytes) FROM memory WHERE class IS NOT NULL GROUP BY class"))
    together = sum(peaks[name] for name in ("model", "optimizer", "buffer", "activation"))
    used = read_memory_use(recording.close())
    assert used.peak_bytes is not None and together <= used.peak_bytes <= together + peaks["gradient"]


def test_operators_allocate_what_their_results_hold(record: Record) -> None:
    recording = record(overhead=1.0)
    train(Net(), 60)
    ops = {
        (module, op): (allocated, freed, calls)
        for module, op, allocated, freed, calls in recording.rows(
            "SELECT module, op, max(allocated_bytes), max(freed_bytes), max(count) FROM memory "
            "WHERE op IS NOT NULL GROUP BY ALL"
        )
    }
    assert ops["first", "aten.addmm"] == (100 * 64 * FLOAT, 0, 1)
    assert ops["last", "aten.addmm"] == (100 * 8 * FLOAT, 0, 1)
    assert ops["backward", "aten.mm"][0] == (64 * 32 + 8 * 64 + 100 * 64) * FLOAT
    assert any(module == "optimizer" and freed for (module, _), (_, freed, _) in ops.items())
    allocated, freed = (sum(row[index] for row in ops.values()) for index in (0, 1))
    assert 0 < freed <= allocated


def test_the_line_that_makes_and_the_line_that_keeps_a_leak_are_named(record: Record) -> None:
    recording = record(overhead=1.0)
    kept: list[torch.Tensor] = []

    def keep(out: torch.Tensor) -> None:
        kept.append(out)

    train(Net(), 80, keep)
    found = recording.rows(
        "SELECT line, last(holder ORDER BY step), max(bytes), max(count), max(allocated_bytes) FROM memory "
        "WHERE line IS NOT NULL GROUP BY line"
    )
    source, first = inspect.getsourcelines(Net.forward)
    made = first + len(source) - 1
    here = next((row for row in found if row[0].endswith(f"test_memory.py:{made}")), None)
    assert here is not None, found
    _, holder, size, count, step_bytes = here
    source, first = inspect.getsourcelines(test_the_line_that_makes_and_the_line_that_keeps_a_leak_are_named)
    filled = first + next(index for index, text in enumerate(source) if "kept.append" in text)
    assert holder.startswith("kept (list), with its graph at ") and holder.endswith(f"test_memory.py:{filled}")
    assert count >= 2 and size == count * 100 * 8 * FLOAT and step_bytes == 100 * 8 * FLOAT


def test_a_leak_in_a_real_run_is_diagnosed_with_its_line(tmp_path: Path) -> None:
    lines = (PROGRAMS / "leak.py").read_text(encoding="utf-8").splitlines()
    made, filled = (next(n for n, text in enumerate(lines, 1) if word in text) for word in ("# made", "# kept"))
    words = ("run", "--dir", tmp_path, "--name", "leak", PROGRAMS / "leak.py", "600")
    recorded = finish(start_command(*words, env=environment(PYTHONPATH=UNBOUNDED)))
    assert recorded.returncode == 0, recorded.stderr
    collected(tmp_path / "leak")
    said = json.loads(finish(start_command("diagnose", "-t", tmp_path / "leak", "--json")).stdout)
    every = [one for found in said["findings"] for one in (found, *found["consequences"])]
    (title,) = [one["title"] for one in every if one["name"] == "memory-growth"]
    assert f"leak.py:{made} stay alive, kept by history (list)" in title and f"leak.py:{filled}" in title


# Beside other modes ------------------------------------------------------------------------------


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_no_trace_begins_under_a_mode_of_the_programs(record: Record) -> None:
    recording = record(overhead=1.0)
    with Counting() as mode:
        train(Net(), 30)
    assert mode.calls > 100 and recording.rows("SELECT count(*) FROM memory") == [(0,)]


def test_a_mode_put_on_ours_stays_where_it_is() -> None:
    ours, theirs = MemoryTrace(lambda callback: callback, lambda: None, ProgramLines()), Counting()
    ours.switch_on()
    with theirs:
        assert not ours.switch_off()
        torch.ones(3).add(1)
    assert theirs.calls and not ours.totals
    assert ours.switch_off() and torch._C._len_torch_dispatch_stack() == 0


def test_a_mode_entered_in_one_step_and_left_in_the_next_is_unharmed(record: Record) -> None:
    recording = record(overhead=1.0)
    mode = Counting()
    with contextlib.ExitStack() as stack:
        train(Net(), 33, lambda _: stack.enter_context(mode) if mode.calls == 0 else None)
    train(Net(), 30)
    assert mode.calls > 10 and torch._C._len_torch_dispatch_stack() == 0
    recording.close()


def test_a_trace_that_could_not_be_taken_away_is_taken_away_later(record: Record) -> None:
    MemoryTrace(lambda callback: callback, lambda: None, ProgramLines()).switch_on()
    recording = record(overhead=1.0)
    train(Net(), 30)
    assert recording.rows("SELECT count(*) > 0 FROM memory") == [(True,)]
    assert torch._C._len_torch_dispatch_stack() == 0


# Lines and holders -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("seen.append(x)", True), ("seen += [x]", True), ("seen['a'] = x", True), ("self.seen.append(x)", True),
        ("seen[0].append(x)", True), ("seen.pop()", False), ("other.append(seen)", False), ("seen = []", False),
    ],
)  # fmt: skip
def test_the_line_that_fills_a_container(tmp_path: Path, statement: str, is_found: bool) -> None:
    file = tmp_path / "program.py"
    file.write_text(f"import os\n\n{statement}\n", encoding="utf-8")
    assert filling_line(str(file), "seen", 1, 99) == (3 if is_found else None)
    assert filling_line(str(file), "seen", 4, 99) is None


def test_a_file_that_cannot_be_read_has_no_line(tmp_path: Path) -> None:
    assert filling_line(str(tmp_path / "none.py"), "seen", 1, 9) is None
    (tmp_path / "bad.py").write_text("def (:", encoding="utf-8")
    assert filling_line(str(tmp_path / "bad.py"), "seen", 1, 9) is None


class Trainer:
    def __init__(self) -> None:
        self.outputs: dict[str, list[torch.Tensor]] = {"all": []}

    def keep(self, out: torch.Tensor) -> None:
        self.outputs["all"].append(out)


def test_an_attribute_is_a_holder() -> None:
    trainer, out = Trainer(), torch.ones(3)
    trainer.keep(out)
    found = holder_of(out, inspect.currentframe(), ProgramLines())
    _, first = inspect.getsourcelines(Trainer.keep)
    assert found.text == "Trainer.outputs (dict)" and found.line.endswith(f"test_memory.py:{first + 1}")


class Outputs:
    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []


def test_a_list_of_an_object_without_a_dict_is_a_holder() -> None:
    outputs, out = Outputs(), torch.ones(3)
    outputs.seen.append(out)
    found = holder_of(out, inspect.currentframe(), ProgramLines())
    assert found.text == "Outputs.seen (list)" and ":" in found.line


def test_what_nobody_holds_has_no_holder() -> None:
    def frames() -> Iterator[None]:
        yield None

    assert holder_of(torch.ones(2), next(frames()), ProgramLines()).text == ""
