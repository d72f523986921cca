"""Collectives of one rank in this very process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from recording import Recording
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.nn.parallel import DistributedDataParallel

from stethos.record.provenance import Relations

Record = Callable[..., Recording]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Begin a job of one rank, which needs no port; torch leaves an excepthook behind."""
    hook = sys.excepthook

    def begin() -> None:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.excepthook = hook


def rows(recording: Recording, columns: str = 'op, "group", via, seq, bytes, done') -> list[tuple[object, ...]]:
    return recording.close().rows(f"SELECT {columns} FROM collectives ORDER BY t_ns, seq").values


def test_every_call_is_a_row_with_its_number_and_size(record: Record, alone: Callable[[], None]) -> None:
    recording = record()
    alone()
    x = torch.ones(10)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather([torch.zeros(10)], x)
    dist.barrier()
    other = dist.new_group([0])
    dist.all_reduce(x, group=other)
    found = rows(recording)
    assert [row[:4] for row in found if row[2] == "python"] == [
        ("all_reduce", "world", "python", 1),
        ("broadcast", "world", "python", 2),
        ("all_gather", "world", "python", 3),
        ("barrier", "world", "python", 4),
        ("all_reduce", "1", "python", 1),
    ]
    assert [row[4] for row in found[:4]] == [40, 40, 80, 0]
    assert all(row[5] == 1 for row in found)


def test_one_that_is_waited_for_later_is_complete_then(record: Record, alone: Callable[[], None]) -> None:
    recording = record()
    alone()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    forgotten = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    while not forgotten.is_completed():
        pass
    awaited, other = rows(recording, "completed_ns >= t_ns, done")
    assert tuple(awaited) == (True, 1)
    assert tuple(other) in ((None, 0), (True, 1))  # nobody waited for it: it may have been seen to end


def test_what_ddp_does_in_c_is_taken_from_the_flight_recorder(record: Record, alone: Callable[[], None]) -> None:
    recording = record()
    alone()
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    recording.collectives.look()
    found = [row for row in rows(recording) if row[2] == "c++" and row[0] == "all_reduce"]
    assert len(found) == 3
    assert {row[4] for row in found} == {4 * (4 * 2 + 2)}


def test_torch_gets_its_own_functions_back(record: Record, alone: Callable[[], None]) -> None:
    before = {name: ProcessGroup.__dict__[name] for name in ("allreduce", "barrier", "send")}
    wait, begin = Work.__dict__["wait"], dist.init_process_group
    recording = record()
    alone()
    assert ProcessGroup.__dict__["allreduce"] is not before["allreduce"]
    recording.close()
    assert {name: ProcessGroup.__dict__[name] for name in before} == before
    assert (Work.__dict__["wait"], dist.init_process_group) == (wait, begin)
    dist.all_reduce(torch.ones(1))


def test_a_failure_of_ours_is_none_of_the_trainings(
    record: Record, alone: Callable[[], None], forgiving: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = record()
    alone()

    def fail(*_: object) -> None:
        raise RuntimeError("ours")

    for name in ("_number_of", "_write", "_sweep"):
        monkeypatch.setattr(recording.collectives, name, fail)
    x = torch.ones(3)
    for _ in range(30):
        dist.all_reduce(x)
    assert x.tolist() == [1.0, 1.0, 1.0]


def test_a_forked_child_forgets_the_groups(record: Record, alone: Callable[[], None]) -> None:
    recording = record()
    alone()
    dist.all_reduce(torch.ones(1))
    watch = recording.collectives
    child = os.fork()
    if child == 0:
        os._exit(0 if not watch._posts and watch._thread is None and watch._ring is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_rank_is_known_without_a_launcher_once_there_are_groups(record: Record, alone: Callable[[], None]) -> None:
    """As with `torch.multiprocessing.spawn`, where no variable tells it."""
    recording = record()
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    alone()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert recording.rows("SELECT rank, world_size FROM processes") == [(0, 1)]
    assert recording.column("SELECT rank FROM steps") == [0]


def test_what_variables_tell_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    relations = Relations()
    assert relations.facts(1) == {"rank": 3, "world_size": 8} and relations.learn(3, 8) == {}
    assert relations.learn(2, 4) == {"rank": 2, "world_size": 4}  # the job was put together anew
    assert relations.facts(1) == {"rank": 2, "world_size": 4}
