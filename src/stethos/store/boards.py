"""What every rank of a live run does, read from the headers of the rings: also of a rank that hangs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stethos.record.board import GroupState, read_board
from stethos.record.layout import HeaderWord, State
from stethos.record.place import RING_FILE, ProcessPlace, RunPlace, host_key, is_alive
from stethos.store.header import header_words


class RankBoard(NamedTuple):
    """One process of a run as its ring shows it; without groups if it has ended or runs on another machine."""

    process: str
    rank: int | None
    world_size: int | None
    host: str
    pid: int
    is_here: bool
    is_running: bool
    steps: int = 0
    last_step_ns: int = 0
    batches: int = 0
    rows: int = 0
    groups: tuple[GroupState, ...] = ()

    def group(self, name: str) -> GroupState | None:
        return next((one for one in self.groups if one.name == name), None)


class Delay(NamedTuple):
    """A collective that some ranks wait in: who waits, who has not come, whose call does not fit the others'."""

    group: str
    seq: int
    op: str
    bytes: int
    members: tuple[int, ...]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unseen: tuple[int, ...]
    mismatched: tuple[int, ...]
    since_ns: int
    instead: tuple[str, ...] = ()  # what those called


def boards_of(run: RunPlace) -> list[RankBoard]:
    """Every process of a run, by rank; of several with one rank the newest."""
    found = [board_of(place) for place in run.processes()]
    ranked = {board.rank: board for board in found if board.rank is not None}
    kept = [board for board in found if board.rank is None or ranked[board.rank] is board]
    return sorted(kept, key=lambda board: (board.rank is None, board.rank or 0, board.process))


def board_of(place: ProcessPlace) -> RankBoard:
    """What a process does, as its ring says; of one whose ring is gone, what it was."""
    facts = place.facts()
    is_here = facts.get("host_key") == host_key()
    pid = int(facts.get("pid") or 0)
    board = RankBoard(
        place.name, facts.get("rank"), facts.get("world_size"), str(facts.get("host") or ""), pid, is_here,
        is_here and is_alive(pid, facts.get("start_ticks")),
    )  # fmt: skip
    words = header_words(place.scratch(facts) / RING_FILE)
    if words is None:
        return board
    return board._replace(
        is_running=board.is_running and words[HeaderWord.STATE] == State.RUNNING,
        steps=words[HeaderWord.STEPS], last_step_ns=words[HeaderWord.LAST_STEP_NS], batches=words[HeaderWord.BATCHES],
        rows=words[HeaderWord.FRAME_ROWS], groups=tuple(read_board(words.__getitem__)),
    )  # fmt: skip


def delays_of(boards: Iterable[RankBoard]) -> list[Delay]:
    """The collectives in which ranks wait, each with those who are missing; the longest wait first."""
    ranked = {board.rank: board for board in boards if board.rank is not None}
    names = dict.fromkeys(state.name for board in ranked.values() for state in board.groups)
    delays = [delay for name in names if (delay := _delay_in(name, ranked)) is not None]
    return sorted(delays, key=lambda delay: delay.since_ns)


def _delay_in(name: str, ranked: dict[int, RankBoard]) -> Delay | None:
    states = {rank: state for rank, board in ranked.items() if (state := board.group(name))}
    waiting = [rank for rank, state in states.items() if state.is_waiting]
    if not waiting:
        return None
    seq = min(states[rank].complete for rank in waiting) + 1
    first = next((states[rank] for rank in waiting if states[rank].begun == seq), states[waiting[0]])
    members = first.members or tuple(range(first.size))
    missing = [rank for rank in members if rank in states and states[rank].begun < seq]
    missing += [rank for rank in members if rank in ranked and rank not in states and ranked[rank].is_here]
    at_it = [rank for rank, state in states.items() if state.begun == seq and state.op != "(c++)"]
    odd = _odd_ones(at_it, states) if len(at_it) == len(members) else ()
    if odd:
        first = next(states[rank] for rank in at_it if rank not in odd)
    return Delay(
        name, seq, first.op, first.bytes, members,
        tuple(sorted(rank for rank in waiting if states[rank].begun >= seq and rank not in odd)),
        tuple(sorted(missing)),
        tuple(rank for rank in members if rank not in states and rank not in missing),
        odd,
        min(states[rank].begun_ns for rank in waiting),
        tuple(f"{states[rank].op} of {states[rank].bytes:,} bytes" for rank in odd),
    )  # fmt: skip


def _odd_ones(ranks: Sequence[int], states: dict[int, GroupState]) -> tuple[int, ...]:
    """Ranks whose call is another operation, or of another size, than that of most (of two: of the lower rank)."""
    calls = {rank: (states[rank].op, states[rank].bytes if states[rank].op == "all_reduce" else 0) for rank in ranks}
    counts = list(calls.values())
    usual = max(calls, key=lambda rank: (counts.count(calls[rank]), -rank))
    return tuple(sorted(rank for rank in ranks if calls[rank] != calls[usual]))
