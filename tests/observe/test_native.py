"""The callbacks in C and in Python do the same, and those in C keep nothing and lose nothing."""

from __future__ import annotations

import copy
import gc
import inspect
import itertools
import json
import math
import mmap
import pickle
import shutil
import struct
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import environment, start_program
from recording import Recording
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from stethos import native
from stethos.native import NATIVE
from stethos.observe.context import TURN, TurnTotals
from stethos.observe.iteration import STEP_ROW, Iteration
from stethos.record.layout import RING_BYTES, SLOT_BYTES, SLOT_PACKERS, SLOTS, SLOTS_BASE, DropReason, HeaderWord
from stethos.record.ring import PlainSlots, Slots, slots_of, writer_to
from stethos.schema import METRICS, NULL_F64, NULL_I32, STEPS, Table
from stethos.store.health import Grade, examine

DEADLINE_S = 900
Record = Callable[..., Recording]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the ring holds after the same trainings, by whether C was allowed."""
    programs = {
        allowed: start_program(
            "step_bytes.py",
            tmp_path_factory.mktemp("bytes"),
            env=environment(STETHOS_NATIVE=allowed, STETHOS_STRICT="1"),
        )
        for allowed in "01"
    }
    found = {}
    for allowed, program in programs.items():
        out, err = program.communicate(timeout=DEADLINE_S)
        assert program.returncode == 0, err[-3000:]
        found[allowed] = json.loads(out)
    return found


def test_where_there_is_a_compiler_the_callbacks_are_those_in_c(reports: dict[str, dict[str, Any]]) -> None:
    has_compiler = shutil.which("cc") is not None and not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert reports["0"]["callbacks"] == "function"
    assert reports["1"]["callbacks"] == ("Backward" if has_compiler else "function"), "build them with `make hot`"


def test_both_leave_the_same_slots_behind(reports: dict[str, dict[str, Any]]) -> None:
    python, c = (reports[allowed]["slots"] for allowed in "01")
    assert len(python) > 180
    assert [at for at, (one, other) in enumerate(itertools.zip_longest(python, c)) if one != other] == []


def test_both_take_the_same_samples_and_keep_the_same_books(reports: dict[str, dict[str, Any]]) -> None:
    python, c = (reports[allowed] for allowed in "01")
    assert len(python["frames"]) > 20
    assert python["frames"] == c["frames"]
    assert (python["frame_bytes"], python["counters"]) == (c["frame_bytes"], c["counters"])
    assert python["dropped"] == c["dropped"]


# Slots -----------------------------------------------------------------------------------------------------


class Both:
    """Slots in Python and in whichever way is used here, over memory of their own."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.maps = mmap.mmap(-1, RING_BYTES), mmap.mmap(-1, RING_BYTES)
        self.slots: tuple[Slots, Slots] = (
            PlainSlots(self.maps[0], lambda: limit),
            slots_of(self.maps[1], lambda: limit),
        )

    def are_equal(self) -> bool:
        return self.maps[0][:] == self.maps[1][:] and self.slots[0].next == self.slots[1].next


STEP = (STEPS.number, 0, -1, 7, NULL_I32, 2**62, 3, 4, 5, 0.5, NULL_F64, math.nan, -3, 0, 2**53 + 1, 1e300, -math.inf,
        1 << 30, 0, 6, -5, 9)  # fmt: skip


def writers(both: Both, table: Table = STEPS) -> list[Callable[..., bool]]:
    pack_into = SLOT_PACKERS[table.number].pack_into
    return [writer_to(slots, mapped, pack_into) for slots, mapped in zip(both.slots, both.maps, strict=True)]


def test_the_structure_in_c_is_the_row_that_python_packs() -> None:
    if NATIVE is None:
        return
    iteration, packer = Iteration(), SLOT_PACKERS[STEPS.number]
    for name, value in zip(STEPS.slot_fields, STEP, strict=True):
        setattr(iteration, name, value)
    assert packer.pack(*STEP_ROW(iteration)) == packer.pack(*STEP)


def test_rows_lie_in_the_same_bytes() -> None:
    both = Both()
    for slots, put_step, put in zip(both.slots, writers(both), writers(both, METRICS), strict=True):
        for step in range(3):
            assert put_step(*STEP) is True
            assert put(METRICS.number, 0, NULL_I32, 3, NULL_I32, step, 2**60, 12, 0.125) is True
        assert slots.take() == 6
        assert put_step(*STEP) is True
    assert both.are_equal()


def test_the_last_slot_is_followed_by_the_first() -> None:
    both = Both()
    for put in writers(both):
        for _ in range(SLOTS + 2):
            put(*STEP)
    assert both.are_equal()
    assert int.from_bytes(both.maps[1][SLOTS_BASE : SLOTS_BASE + 8], "little") == SLOTS + 1


@pytest.mark.parametrize("wrong", [1j, "text", None, 2**64], ids=str)
def test_what_is_no_number_voids_its_slot_and_is_counted(wrong: Any) -> None:
    both = Both()
    for put, mapped in zip(writers(both), both.maps, strict=True):
        for _ in range(2):
            with pytest.raises(struct.error):
                put(*STEP[:5], wrong, *STEP[6:])
        at = 8 * (HeaderWord.DROPPED + DropReason.NOT_A_NUMBER)
        assert int.from_bytes(mapped[at : at + 8], "little") == 2
        for slot in range(2):
            place = SLOTS_BASE + slot * SLOT_BYTES
            assert int.from_bytes(mapped[place : place + 8], "little") == slot + 1
            assert mapped[place + 8 : place + 10] == b"\0\0"


def test_a_full_ring_takes_no_row_and_a_released_one_neither() -> None:
    both = Both(limit=-1)
    for slots, put in zip(both.slots, writers(both), strict=True):
        assert put(*STEP) is False
        slots.release()
    assert not any(both.maps[1][:])
    if NATIVE is not None:
        assert both.slots[1].take() == -1
        both.slots[1].commit(3)
        both.slots[1].leave_void(3)
        with pytest.raises(ValueError, match="below 0"):
            both.slots[1].commit(-1)
        both.maps[1].close()  # nothing holds it any more


# Objects ---------------------------------------------------------------------------------------------------


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    data = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 2)), batch_size=8)
    for _ in range(steps):
        for x, y in data:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()


def odd_turns(model: nn.Module, optimizer: torch.optim.Optimizer, other: torch.optim.Optimizer) -> None:
    """The turns that leave the straight way: accumulation, errors, closures, several losses, a client's turn."""
    x, y = torch.randn(8, 4), torch.randn(8, 2)
    mse_loss(model(x), y).backward()
    mse_loss(model(x), y).backward()
    optimizer.step(lambda: 0.0)
    with pytest.raises(RuntimeError):
        model(x).backward()
    torch.autograd.backward([mse_loss(model(x), y), mse_loss(model(x), y)])
    token = TURN.set((1, 2, TurnTotals()))
    optimizer.step()
    TURN.reset(token)
    other.step()


def blocks_left(action: Callable[[], object], times: int) -> int:
    """How many more blocks of memory are in use after doing something so often: the least of several rounds, as a
    leak shows in each and the growth of a cache does not."""
    counts = []
    for _ in range(6):
        for _ in range(times):
            action()
        gc.collect()
        counts.append(sys.getallocatedblocks())
    return min(after - before for before, after in itertools.pairwise(counts))


def test_steps_leave_no_objects_behind(record: Record) -> None:
    record(preset="light", overhead=0.0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, 5)
    counted = sys.getrefcount(optimizer), sys.getrefcount(model)
    assert blocks_left(lambda: train(model, optimizer, 1), 100) < 50
    other = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    assert blocks_left(lambda: odd_turns(model, optimizer, other), 50) < 50
    assert (sys.getrefcount(optimizer), sys.getrefcount(model)) == counted


@pytest.mark.usefixtures("forgiving")
def test_a_failing_callback_leaves_no_objects_behind(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record(preset="light", overhead=0.0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, 1)
    monkeypatch.setattr(recording.steps.session.guard, "is_off", lambda _: False)
    monkeypatch.setattr(recording.steps, "number_of", lambda _: 1 / 0)
    optimizer.param_groups[0]["lr"] = 1  # no float: `number_of` is asked
    assert blocks_left(lambda: train(model, optimizer, 1), 200) < 100
    assert recording.steps.session.guard.failures["steps"] == 2400


def test_a_wrapped_function_still_passes_for_the_one_it_stands_for(record: Record) -> None:
    bare = torch.autograd.backward
    record()
    wrapped = torch.autograd.backward
    assert wrapped is not bare
    assert pickle.loads(pickle.dumps(wrapped)) is wrapped
    assert copy.deepcopy(wrapped) is wrapped
    assert (wrapped.__name__, wrapped.__module__, wrapped.__doc__) == (bare.__name__, bare.__module__, bare.__doc__)
    assert inspect.signature(wrapped) == inspect.signature(bare)
    with pytest.raises(TypeError):
        wrapped()


@pytest.mark.usefixtures("forgiving")
def test_ctrl_c_in_a_callback_comes_out_and_nothing_else(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = record()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("account", "enter", "reopen", "add_loss", "samples_in"):
        with monkeypatch.context() as patch:
            patch.setattr(recording.steps, name, interrupted)
            patch.setattr(recording.steps.local.iteration, "account_at_ns", 0)
            fresh = torch.optim.SGD(model.parameters(), lr=0.01)
            recording.steps.ring = None if name == "reopen" else recording.steps.ring
            loss = model(torch.randn(8, 4)).sum() + model(torch.randn(8, 4)).sum()
            with pytest.raises(KeyboardInterrupt):
                next(iter(DataLoader([0], collate_fn=lambda _: "text")))
                loss.backward(retain_graph=True)
                loss.backward()
                fresh.step()
    train(model, optimizer, 3)


# Choosing --------------------------------------------------------------------------------------------------


def test_a_run_says_which_callbacks_it_went_through(record: Record) -> None:
    recording = record(preset="light")
    train(model := nn.Linear(4, 2), torch.optim.SGD(model.parameters(), lr=0.01), 1)
    (check,) = [check for check in examine(recording.close()).checks if check.what == "callbacks"]
    assert check.found == f"in {native.described()}"
    assert (check.grade is Grade.OK) == (NATIVE is not None)


def test_without_a_built_module_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(native.importlib, "import_module", missing)
    assert native._load() == (None, "not built here: no C compiler")
    monkeypatch.setenv("STETHOS_NATIVE", "0")
    assert native._load() == (None, "STETHOS_NATIVE=0")


def test_a_module_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = type(sys)("other")
    other.INTERFACE = -1  # type: ignore[attr-defined]
    monkeypatch.setattr(native.importlib, "import_module", lambda _: other)
    monkeypatch.setenv("STETHOS_NATIVE", "1")
    assert native._load() == (None, "built from another version: install Stethos again")


def test_a_compiler_that_fails_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location("hatch_build", Path(__file__).resolve().parents[2] / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    source = tmp_path / "_hot.c"
    source.write_text("no C\n", encoding="utf-8")
    monkeypatch.setattr(build, "HOT", source)
    assert build.build_hot() is None
    assert sorted(tmp_path.iterdir()) == [source, source.with_suffix(".h")]
    if shutil.which("cc"):
        assert "could not be built" in capsys.readouterr().err
