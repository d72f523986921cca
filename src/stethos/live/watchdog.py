"""Notices a training that hangs, from outside: the drainer lets it look twice a second.

A process whose counters stand still for longer than its limit is looked at twice,
a second apart, together with all others of the run on this machine. Where its
training went on between the looks, or where a rank that others wait for makes
progress, it is slow and not hung. Otherwise the hang becomes rows of `hangs` and
`stacks`, a finding, and a line for `stethos run` to say.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.errors import StethosError
from stethos.live.pulse import Pulse, SilenceLimits
from stethos.live.stack import ThreadStack, thread_stacks
from stethos.live.stuck import ObservedProcess, StallCause, judge, place_of, training_thread, wait_of
from stethos.record.border import read_json
from stethos.record.drainer import Drainer
from stethos.record.layout import HeaderWord
from stethos.record.place import write_json
from stethos.schema import HANGS
from stethos.store.boards import Delay, RankBoard, board_of, boards_of, delays_of
from stethos.store.stack_file import keep_stacks

if TYPE_CHECKING:
    import psutil

LOOK_S = 0.5
_BETWEEN_S = 1.0
_BUSY_TIMES = 4.0  # one that computes gets so many times the limit
_MOST_AT_ONCE = 8
_MOST_WORKERS = 4
Row = dict[str, Any]


class Watchdog:
    """Watches the processes of one run on this machine."""

    def __init__(self, drainer: Drainer) -> None:
        self._drainer = drainer
        facts = drainer.run.facts().get("hang")
        self._limits = SilenceLimits(**facts) if isinstance(facts, dict) else SilenceLimits()
        self._file = drainer.run.path / f"hang-{drainer.host}.json"
        self._pulses: dict[str, Pulse] = {}
        self._next = 0.0
        self._first: dict[str, tuple[ThreadStack, ...]] = {}
        self._work: dict[str, tuple[float, float]] = {}
        self._first_at = 0.0
        self._hung: dict[str, float] = {}  # processes of the hang that goes on, and when each gave its last sign
        self._rows: list[Row] = []

    def visit(self, now: float) -> None:
        """One look at the counters; called by the drainer, several times a second."""
        if self._limits.at_least_s <= 0 or now < self._next:
            return
        self._next = now + LOOK_S
        boards = {name: board_of(one.place) for name, one in self._drainer.collectors.items()}
        for name, board in boards.items():
            pulse = self._pulses.setdefault(name, Pulse(now))
            pulse.feel(board, now)
        if self._hung:
            self._see_whether_it_is_over(boards)
            return
        if not self._suspects(boards, now):
            self._first = {}
        elif not self._first:
            self._look_first(boards, now)
        elif now - self._first_at >= _BETWEEN_S:
            self._decide(boards, now)

    def _suspects(self, boards: Mapping[str, RankBoard], now: float) -> list[str]:
        found = []
        for name, board in boards.items():
            pulse = self._pulses[name]
            limit_s = pulse.limit_s(self._limits, board)
            is_silent = limit_s is not None and pulse.silent_s(now) > limit_s
            if board.is_running and is_silent and now >= pulse.not_before:
                found.append(name)
        return found

    def _look_first(self, boards: Mapping[str, RankBoard], now: float) -> None:
        watched = {name: board for name, board in boards.items() if _trains(board)}
        self._first = _stacks_by_process(watched)
        self._work = {
            name: _work_of(board.pid, _thread_of(self._first.get(name, ()))) for name, board in watched.items()
        }
        self._first_at = time.monotonic()
        self._next = now + _BETWEEN_S

    # Deciding -----------------------------------------------------------------------------------------

    def _decide(self, boards: Mapping[str, RankBoard], now: float) -> None:
        """The second look: hung, or slow?"""
        watched = {name: board for name, board in boards.items() if _trains(board)}
        later = _stacks_by_process(watched)
        between_s = time.monotonic() - self._first_at
        looks = {
            name: _look(board, self._first.get(name, ()), later.get(name, ()), self._work.get(name), between_s)
            for name, board in watched.items()
        }
        self._first = {}
        suspects = self._suspects(boards, now)
        everybody = boards_of(self._drainer.run)
        delays = delays_of(everybody)
        for name in suspects:
            rows = self._hang_of(watched[name], looks, _by_rank(everybody), delays, now)
            if rows:
                self._report(rows, later)
                return
            limit_s = self._pulses[name].limit_s(self._limits, watched[name]) or self._limits.at_least_s
            self._pulses[name].not_before = now + limit_s / 2

    def _hang_of(
        self,
        board: RankBoard,
        looks: Mapping[str, ObservedProcess],
        ranks: Mapping[int, RankBoard],
        delays: list[Delay],
        now: float,
    ) -> list[Row]:
        """What hangs if this process does; nothing if it is only slow."""
        delay = next((one for one in delays if board.rank in (*one.waiting, *one.missing, *one.mismatched)), None)
        if delay is None:
            if not self._is_still(board, looks, now):
                return []
            verdict = self._judged(board, looks)
            if verdict.cause == "exchange":
                return self._exchange_of(ranks, looks, now)
            return self._rows_of(verdict.cause, [board], [], None, looks, {board.process: verdict}, now)
        culprits = [ranks[rank] for rank in (*delay.missing, *delay.mismatched) if rank in ranks]
        if any(one.is_running and not self._is_still(one, looks, now) for one in culprits):
            return []  # somebody is on the way
        waiting = [ranks[rank] for rank in delay.waiting if rank in ranks]
        verdicts = {one.process: self._judged(one, looks) for one in (*culprits, *waiting) if one.process in looks}
        cause = "missing-rank" if delay.missing or delay.unseen else "mismatch" if delay.mismatched else "unknown"
        return self._rows_of(cause, culprits, waiting, delay, looks, verdicts, now)

    def _exchange_of(
        self, ranks: Mapping[int, RankBoard], looks: Mapping[str, ObservedProcess], now: float
    ) -> list[Row]:
        """Ranks wait for another's send or receive: who does neither is the cause, or they wait for each other."""
        seen = [one for one in ranks.values() if one.process in looks]
        if not all(self._is_still(one, looks, now) for one in seen):
            return []
        verdicts = {one.process: self._judged(one, looks) for one in seen}
        elsewhere = [one for one in seen if verdicts[one.process].cause != "exchange"]
        waiting = [one for one in seen if one not in elsewhere] if elsewhere else []
        culprits = elsewhere or seen
        return self._rows_of(verdicts[culprits[0].process].cause, culprits, waiting, None, looks, verdicts, now)

    def _is_still(self, board: RankBoard, looks: Mapping[str, ObservedProcess], now: float) -> bool:
        """Whether a process makes no progress by any sign; one that computes is given more time."""
        look, pulse = looks.get(board.process), self._pulses.get(board.process)
        if look is None or pulse is None:
            return True
        limit_s = pulse.limit_s(self._limits, board) or self._limits.at_least_s
        silent_s = pulse.silent_s(now)
        if look.is_moving or look.is_at_prompt or silent_s < min(limit_s, self._limits.at_least_s):
            return False
        return not look.is_busy or silent_s > _BUSY_TIMES * limit_s

    def _judged(self, board: RankBoard, looks: Mapping[str, ObservedProcess]) -> StallCause:
        look = looks.get(board.process)
        if look is None:
            return StallCause("unknown", "?", "has ended" if not board.is_running else "cannot be seen")
        return judge(look, self._open_client(board.process), _workers_of(board.pid))

    def _open_client(self, process: str) -> str:
        """The federated client whose turn is open in a process."""
        collector = self._drainer.collectors.get(process)
        number = collector.tap.word(HeaderWord.CLIENT) if collector is not None else 0
        names = collector.names if collector is not None else []
        return names[number] if 0 < number < len(names) else ""

    def _rows_of(
        self, cause: str, culprits: list[RankBoard], waiting: list[RankBoard], delay: Delay | None,
        looks: Mapping[str, ObservedProcess], verdicts: Mapping[str, StallCause], now: float,
    ) -> list[Row]:  # fmt: skip
        """The rows of `hangs`: who caused it, who waits, who else is there."""
        shared: Row = {"hang": len(self._told()) + 1, "cause": cause}
        if delay is not None:
            shared |= {
                "group": delay.group, "seq": delay.seq, "op": delay.op, "members": json.dumps(delay.members),
                "missing": json.dumps([*delay.missing, *delay.unseen]),
            }  # fmt: skip
        rows = []
        seen = {board.process for board in (*culprits, *waiting)}
        beside = [
            board for board in boards_of(self._drainer.run) if board.process in looks and board.process not in seen
        ]
        for role, boards in (("culprit", culprits), ("waiting", waiting), ("beside", beside)):
            for board in boards:
                verdict = verdicts.get(board.process) or self._judged(board, looks)
                words = verdict.words
                if delay is not None and board.rank in delay.mismatched:
                    words = f"called {delay.instead[delay.mismatched.index(board.rank)]} instead, in {verdict.place}"
                elif role == "waiting" and delay is not None:
                    words = f"waits in {delay.op} {delay.seq} of group {delay.group}, in {verdict.place}"
                pulse = self._pulses.get(board.process)
                rows.append({
                    **shared, "role": role, "process": board.process, "rank": board.rank, "step": board.steps,
                    "silent_s": None if pulse is None else now - pulse.last_step,
                    "limit_s": None if pulse is None else pulse.limit_s(self._limits, board),
                    "place": verdict.place, "words": words, "detail": json.dumps({
                        "pid": board.pid, "host": board.host, "own_cause": verdict.cause,
                        "client": self._open_client(board.process) or None,
                        "is_running": board.is_running,
                    }),
                })  # fmt: skip
        return rows

    # Telling -------------------------------------------------------------------------------------------

    def _report(self, rows: list[Row], stacks: Mapping[str, tuple[ThreadStack, ...]]) -> None:
        t_ns = time.time_ns()
        self._rows = [{**row, "t_ns": t_ns} for row in rows]
        self._hung = {
            row["process"]: self._pulses[row["process"]].last_sign
            for row in rows
            if row["process"] in self._pulses and row["role"] != "beside"
        }
        for name in self._hung:
            self._pulses[name].is_hung = True
        for row in rows:
            collector = self._drainer.collectors.get(row["process"])
            if collector is not None:
                collector.add_sample(t_ns, row, HANGS)
        for name in {row["process"] for row in rows} & set(self._drainer.collectors):
            with suppress(OSError):  # the drainer tries again
                self._drainer.collectors[name].drain()  # whoever hears of it finds its rows
        about = {"t_ns": t_ns, "reason": f"hang {rows[0]['hang']}"}
        frames = [
            {**frame, **about, "process": row["process"], "rank": row["rank"]}
            for row in rows
            for frame in _frames_of(stacks.get(row["process"], ()))
        ]
        keep_stacks(self._drainer.run.path, frames)
        self._tell(is_over=False)

    def _see_whether_it_is_over(self, boards: Mapping[str, RankBoard]) -> None:
        moved = [
            name
            for name, since in self._hung.items()
            if name in boards and boards[name].is_running and self._pulses[name].last_sign > since
        ]
        gone = [name for name in self._hung if name not in boards or not boards[name].is_running]
        if moved:
            self._tell(is_over=True)
        if moved or len(gone) == len(self._hung):
            self._hung, self._rows = {}, []

    def _tell(self, *, is_over: bool) -> None:
        """Keep the finding in the run, and leave a line for the launcher."""
        from stethos.diagnose.diagnosis import Diagnosis
        from stethos.diagnose.life import keep
        from stethos.diagnose.system.hang import Hang
        from stethos.diagnose.window import Window
        from stethos.store.frame import Frame

        columns = ("process", "rank", "t_ns", *(column.name for column in HANGS.columns))
        frame = Frame({name: [row.get(name) for row in self._rows] for name in columns})
        later = {
            "process": [row["process"] for row in self._rows],
            "t_ns": [self._rows[0]["t_ns"] + 10**9] * len(self._rows),
        }
        steps = {"steps": Frame({**later, "step": [row["step"] for row in self._rows]})} if is_over else {}
        found = tuple(Hang().check(Window({"hangs": frame, **steps}, is_live=True)))
        told = self._told()
        for finding in found:
            number = int(self._rows[0]["hang"])
            told = [one for one in told if one["hang"] != number]
            told.append({
                "hang": number, "is_over": is_over, "title": finding.title, "next_step": finding.next_step,
                "t_ns": self._rows[0]["t_ns"],
            })  # fmt: skip
        write_json(self._file, {"hangs": told})
        keep(Diagnosis(found), self._drainer.run.path)

    def _told(self) -> list[Row]:
        told = read_json(self._file).get("hangs")
        return list(told) if isinstance(told, list) else []


def _frames_of(threads: Iterable[ThreadStack]) -> list[Row]:
    """Stacks as rows of `stacks`."""
    return [
        {
            "thread": "MainThread" if thread.is_main else thread.thread, "depth": depth, "func": frame.func,
            "file": frame.file, "lineno": frame.lineno or None, "frame_type": "Native" if frame.is_native else "Python",
        }
        for thread in threads
        for depth, frame in enumerate(thread.frames)
    ]  # fmt: skip


def _trains(board: RankBoard) -> bool:
    return board.is_running and (board.steps > 0 or bool(board.groups))


def _by_rank(boards: Iterable[RankBoard]) -> dict[int, RankBoard]:
    return {board.rank: board for board in boards if board.rank is not None}


def _stacks_by_process(boards: Mapping[str, RankBoard]) -> dict[str, tuple[ThreadStack, ...]]:
    """The stacks of these processes, at about the same time; nothing of one that cannot be read."""
    if not boards:
        return {}
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(boards))) as pool:
        return dict(zip(boards, pool.map(lambda board: _stacks_of(board.pid), boards.values()), strict=True))


def _stacks_of(pid: int) -> tuple[ThreadStack, ...]:
    try:
        return thread_stacks(pid)
    except StethosError:
        return ()


def _look(
    board: RankBoard, first: tuple[ThreadStack, ...], later: tuple[ThreadStack, ...],
    before: tuple[float, float] | None, between_s: float,
) -> ObservedProcess:  # fmt: skip
    after = _work_of(board.pid, _thread_of(first))
    worked_s = max((late - early for early, late in zip(before, after, strict=True)), default=0.0) if before else 0.0
    return ObservedProcess(first, later, wait_of(board.pid, _thread_of(later)), worked_s / max(between_s, 1e-3))


def _thread_of(threads: tuple[ThreadStack, ...]) -> int | None:
    thread = training_thread(threads)
    return thread.os_thread_id if thread is not None else None


def _work_of(pid: int, thread: int | None) -> tuple[float, float]:
    """Processor time of a process so far, and the time its training thread has run or wanted to.

    On a machine with more work than cores a thread that computes may hardly get to run.
    """
    import psutil

    try:
        times = psutil.Process(pid).cpu_times()
        words = Path(f"/proc/{pid}/task/{thread or pid}/schedstat").read_text(encoding="ascii").split()
    except psutil.Error:
        return 0.0, 0.0
    except OSError:
        return float(times.user + times.system), 0.0
    return float(times.user + times.system), (int(words[0]) + int(words[1])) / 1e9


def _workers_of(pid: int) -> list[str]:
    """Where the workers of a process's data loader stand."""
    import psutil

    try:
        children: list[psutil.Process] = psutil.Process(pid).children()
    except psutil.Error:
        return []
    places = []
    for child in children[:_MOST_WORKERS]:
        thread = training_thread(_stacks_of(child.pid))
        if thread is not None and any("torch/utils/data/_utils/worker.py" in frame.file for frame in thread.frames):
            places.append(place_of(thread))
    return places
