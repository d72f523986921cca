"""The parts of the watchdog, by hand-made stacks and counters."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import wait_until

from stethos.live.pulse import Pulse, SilenceLimits
from stethos.live.stack import StackFrame, ThreadStack, thread_stacks
from stethos.live.stuck import ObservedProcess, Wait, judge, training_thread, wait_of
from stethos.live.sync import collectives_in, out_of_step
from stethos.live.tree import members_text, merge, odd_ones, tree_lines
from stethos.record.board import GroupState
from stethos.store.boards import RankBoard, delays_of

VERDICT_S = 40.0  # the kernel takes a lease away after 45
TORCH = "/lib/site-packages/torch"


def thread(*frames: tuple[str, str, int], gil: bool = False, main: bool = True) -> ThreadStack:
    """A thread; frames as function, file, line, outermost first."""
    name = "MainThread" if main else "helper"
    return ThreadStack(name, 1, 1, main, gil, False, tuple(StackFrame(*frame) for frame in reversed(frames)))


def still(*threads: ThreadStack, wait: Wait | None = None, cpu: float = 0.0) -> ObservedProcess:
    return ObservedProcess(threads, threads, wait or Wait("S", "futex"), cpu)


TRAIN = ("train", "/home/me/train.py", 10)


# Causes ---------------------------------------------------------------------------------------------------------------


def test_a_frame_of_the_data_loader_is_the_cause_before_the_lock_below_it() -> None:
    stack = thread(
        TRAIN, ("__next__", f"{TORCH}/utils/data/dataloader.py", 7), ("get", "/usr/lib/python3.11/queue.py", 1)
    )
    verdict = judge(still(stack), workers=["load (data.py:3)", "load (data.py:3)"])
    assert (verdict.cause, verdict.place) == ("data-loader", "train (train.py:10)")
    assert verdict.words.endswith("its workers: load (data.py:3)")


def test_a_rank_in_a_blocking_receive_waits_for_another_rank() -> None:
    verdict = judge(still(thread(TRAIN, ("recv", f"{TORCH}/distributed/distributed_c10d.py", 9))))
    assert (verdict.cause, verdict.words) == ("exchange", "waits in `recv` for another rank, in train (train.py:10)")
    assert judge(still(thread(TRAIN, ("recv", "/home/me/mail.py", 9)))).cause != "exchange"


def test_a_file_that_does_not_come_is_the_disk() -> None:
    stack = thread(TRAIN, ("read", "/home/me/data.py", 4))
    verdict = judge(still(stack, wait=Wait("S", "read", "/data/part-7")))
    assert (verdict.cause, verdict.words) == ("disk", "waits for the disk in read (data.py:4) (read of /data/part-7)")
    assert judge(still(stack, wait=Wait("D"))).cause == "disk"
    assert judge(still(stack, wait=Wait("S", "read", "pipe:[7]"))).cause != "disk"
    fifo = judge(still(stack, wait=Wait("S", "read", "the pipe /data/fifo")))
    assert (fifo.cause, fifo.words) == ("unknown", "stands in read (data.py:4) (read of the pipe /data/fifo)")


def test_a_thread_with_the_gil_that_does_nothing_stands_in_c() -> None:
    stacks = thread(TRAIN), thread(("native", "/home/me/io.py", 2), gil=True, main=False)
    verdict = judge(still(*stacks))
    assert (verdict.cause, verdict.place) == ("gil", "native (io.py:2)")
    assert "of thread helper" in verdict.words


def test_one_that_computes_is_busy_and_not_at_a_lock() -> None:
    assert judge(still(thread(TRAIN), cpu=1.0)).cause == "busy"


def test_a_futex_is_a_lock_only_where_the_line_says_so(tmp_path: Path) -> None:
    source = tmp_path / "program.py"
    source.write_text("with my_lock:\n    x = model(y)\n", encoding="utf-8")
    assert judge(still(thread(("f", str(source), 1)))).cause == "lock"
    assert judge(still(thread(("f", str(source), 2)))).cause == "unknown"
    assert judge(still(thread(TRAIN, ("join", "/usr/lib/python3.11/threading.py", 1)))).cause == "lock"


def test_an_open_turn_of_a_client_is_waited_for() -> None:
    assert judge(still(thread(TRAIN)), client="c3").words == "waits for client c3, in train (train.py:10)"
    assert judge(still(thread(TRAIN, ("pull", "/x/site-packages/flwr/server.py", 3)))).cause == "client"


def test_a_stack_that_changes_between_two_looks_moves() -> None:
    assert ObservedProcess((thread(TRAIN),), (thread(("train", "/home/me/train.py", 11)),)).is_moving
    assert not still(thread(TRAIN)).is_moving
    assert ObservedProcess((), ()).is_moving  # what cannot be seen is not accused


def test_a_prompt_is_no_hang_and_a_stopped_process_is_called_so() -> None:
    assert still(thread(TRAIN), wait=Wait("S", "read", "/dev/pts/3")).is_at_prompt
    assert not still(thread(TRAIN), wait=Wait("S", "read", "pipe:[3]")).is_at_prompt
    assert "was stopped by a signal" in judge(still(thread(TRAIN), wait=Wait("T"))).words


def test_the_thread_that_trains_is_found_behind_a_main_one_that_waits() -> None:
    main = thread(("main", "/home/me/a.py", 1), ("join", "/usr/lib/python3.11/threading.py", 1))
    other = thread(("fit", "/home/me/a.py", 9), ("forward", f"{TORCH}/nn/linear.py", 1), main=False)
    assert training_thread((main, other)) is other
    assert training_thread((main,)) is main


# Real processes -------------------------------------------------------------------------------------------------------


@contextmanager
def waiting(directory: Path, code: str, call: str) -> Iterator[int]:
    """A program that runs this code as `wait()`, once it is in that call of the kernel."""
    program = directory / "program.py"
    program.write_text(f"import fcntl\ndef wait():\n    {code}\nwait()\n", encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-S", "-E", program], cwd=directory)
    try:
        wait_until(lambda: wait_of(process.pid, None).call == call, f"the program to come to {call}")
        yield process.pid
    finally:
        process.kill()
        process.wait()


def verdict_of(pid: int) -> tuple[str, str]:
    found = judge(ObservedProcess(thread_stacks(pid), thread_stacks(pid), wait_of(pid, None)))
    return found.cause, found.words


def wait_for_verdict(pid: int, cause: str, words: str) -> None:
    """Being looked at may interrupt a call for a moment, so a look can find the process between two attempts."""
    seen = []
    with contextlib.suppress(AssertionError):
        wait_until(lambda: seen.append(verdict_of(pid)) or seen[-1] == (cause, words), words, VERDICT_S)
    assert seen[-1] == (cause, words)


def test_a_named_pipe_is_no_disk(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with waiting(tmp_path, "open('fifo', 'rb').read(1)", "open") as pid:
        wait_for_verdict(pid, "unknown", f"stands in wait (program.py:3) (open of the pipe {fifo})")
        with fifo.open("wb"):
            wait_until(lambda: wait_of(pid, None).call == "read", "the program to read")
            wait_for_verdict(pid, "unknown", f"stands in wait (program.py:3) (read of the pipe {fifo})")


def test_a_file_that_does_not_open_is_the_disk(tmp_path: Path) -> None:
    """Somebody else has a lease on it, and the kernel lets nobody in before that is given back."""
    file = tmp_path / "part-7"
    file.write_bytes(b"rows")
    previous = signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the kernel asks for it
    leased = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with waiting(tmp_path, "open('part-7', 'rb').read(1)", "open") as pid:
            wait_for_verdict(pid, "disk", f"waits for the disk in wait (program.py:3) (open of {file})")
    finally:
        os.close(leased)
        signal.signal(signal.SIGIO, previous)


@pytest.mark.parametrize("lock", ["flock", "lockf"])
def test_the_lock_of_a_file_is_named(tmp_path: Path, lock: str) -> None:
    file = tmp_path / "shared.lock"
    with file.open("wb") as held:
        getattr(fcntl, lock)(held, fcntl.LOCK_EX)
        with waiting(tmp_path, f"fcntl.{lock}(open('shared.lock', 'wb'), fcntl.LOCK_EX)", "file lock") as pid:
            words = f"waits for the lock of {file} that another process holds, in wait (program.py:3)"
            wait_for_verdict(pid, "lock", words)


# The pulse ------------------------------------------------------------------------------------------------------------


def board(
    rank: int = 0, steps: int = 0, batches: int = 0, groups: tuple[GroupState, ...] = (), **more: object
) -> RankBoard:
    facts = {"last_step_ns": steps * 10**8, **more}
    return RankBoard(f"p{rank}", rank, 2, "here", 0, True, True, steps, batches=batches, groups=groups, **facts)  # type: ignore[arg-type]


def test_steps_batches_and_collectives_are_signs_of_life() -> None:
    pulse = Pulse(0.0)
    signs = [
        board(steps=5),
        board(steps=6),
        board(steps=6, batches=1),
        board(steps=6, batches=1, groups=(state(1, 0),)),
    ]
    for second, one in enumerate(signs, start=1):
        pulse.feel(one, float(second))
        assert pulse.silent_s(float(second)) == 0
    pulse.feel(signs[-1], 9.0)
    assert pulse.silent_s(9.0) == 5.0


def test_the_limit_follows_the_usual_step_and_the_longest_pause() -> None:
    pulse, limits = Pulse(0.0), SilenceLimits(at_least_s=2.0, times=30.0)
    assert pulse.limit_s(limits, board()) is None
    for second in range(10):
        pulse.feel(board(steps=10 * (second + 1)), float(second))  # 0.1 s each
    assert pulse.limit_s(limits, board(steps=100)) == pytest.approx(3.0)
    pulse.feel(board(steps=101), 17.0)  # a pause of 8 s that ended by itself
    assert pulse.limit_s(limits, board(steps=101)) == pytest.approx(16.0)


def test_a_pause_that_was_a_hang_is_not_learned_from() -> None:
    pulse, limits = Pulse(0.0), SilenceLimits(2.0, 0.0)
    pulse.feel(board(steps=10), 0.0)
    pulse.is_hung = True
    pulse.feel(board(steps=11), 500.0)
    assert pulse.limit_s(limits, board(steps=11)) == 2.0


# Who waits for whom ---------------------------------------------------------------------------------------------------


def state(begun: int, complete: int, op: str = "all_reduce", size: int = 4, ranks: int = 2) -> GroupState:
    return GroupState("world", tuple(range(ranks)), ranks, begun, complete, op, size, 7, 6)


def test_the_rank_that_has_not_begun_a_collective_is_missing() -> None:
    (delay,) = delays_of([board(0, groups=(state(4, 3),)), board(1, groups=(state(3, 3),))])
    assert (delay.seq, delay.waiting, delay.missing, delay.mismatched) == (4, (0,), (1,), ())


def test_nobody_waits_where_everything_is_complete() -> None:
    assert delays_of([board(0, groups=(state(4, 4),)), board(1, groups=(state(3, 3),))]) == []


def test_another_operation_or_size_is_a_mismatch() -> None:
    first, second = board(0, groups=(state(4, 3),)), board(1, groups=(state(4, 3, "broadcast"),))
    (delay,) = delays_of([first, second])
    assert (delay.mismatched, delay.instead, delay.waiting) == ((1,), ("broadcast of 4 bytes",), (0,))
    assert delays_of([first, board(1, groups=(state(4, 3, size=8),))])[0].mismatched == (1,)
    assert delays_of([first, board(1, groups=(state(4, 3),))])[0].mismatched == ()


def test_a_rank_on_another_machine_is_unseen() -> None:
    (delay,) = delays_of([board(0, groups=(state(4, 3),))])
    assert (delay.missing, delay.unseen) == ((), (1,))


# The tree -------------------------------------------------------------------------------------------------------------


def test_ranks_are_merged_into_one_tree() -> None:
    same = (thread(("<module>", "/a/t.py", 9), ("main", "/a/t.py", 5), ("all_reduce", "/b/dist.py", 1)),)
    other = (thread(("<module>", "/a/t.py", 9), ("main", "/a/t.py", 4), ("load", "/a/t.py", 2)),)
    root = merge({"0": same, "1": other, "2": same})
    assert tree_lines(root) == [
        "<module> (t.py:9)  [ranks 0-2]",
        "├ main (t.py:5)  [ranks 0, 2]",
        "│ all_reduce (dist.py:1)",
        "└ main (t.py:4)  [rank 1]",
        "  load (t.py:2)",
    ]
    assert odd_ones(root) == {"1": "load (t.py:2)"}
    assert odd_ones(merge({"0": same, "1": other})) == {}  # of two, who could say
    assert odd_ones(merge({"0": same, "1": same})) == {}


def test_ranks_are_named_in_ranges() -> None:
    assert members_text(["0", "1", "2", "5", "10"]) == "ranks 0-2, 5, 10"
    assert members_text(["3"]) == "rank 3"


# Synchronisation ------------------------------------------------------------------------------------------------------


def test_the_rank_that_differs_from_most_is_named() -> None:
    same = {"step": 5, "hashes": {"1": "aa"}}
    assert out_of_step({"0": same, "1": {"step": 5, "hashes": {"1": "bb"}}, "2": same}) == {"1": "parameters"}
    assert out_of_step({"0": same, "1": {"step": 4, "hashes": {"1": "bb"}}, "2": same}) == {"1": "step and parameters"}
    assert out_of_step({"0": same, "1": same}) == {}
    assert out_of_step({"0": same, "1": {"step": 4, "hashes": None}}) == {"0": "step", "1": "step"}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("dist.all_reduce(x)", ["dist.all_reduce"]),
        ("import torch\ntorch.distributed.barrier()", ["torch.distributed.barrier"]),
        ("from torch.distributed import broadcast as b, barrier\nbarrier()", ["barrier"]),
        ("dist.get_rank()", []),
        ("socket.send(x); queue.gather()", []),
        ("def (", []),
    ],
)
def test_evident_collectives_are_seen(code: str, found: list[str]) -> None:
    assert collectives_in(code) == found
