"""Sees the collectives of `torch.distributed` without taking part in them.

The methods of `ProcessGroup` are wrapped, through which every call from Python
goes; `torch.distributed`'s own functions stay as they are, because dynamo knows
them by identity. What C++ begins by itself (DDP's gradient buckets) passes no
Python: a thread asks torch's flight recorder for its counters twice a second, and
now and then for what it holds, at most a thousandth of the time.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from stethos.clock import monotonic_ns
from stethos.observe.context import turn
from stethos.observe.flight import Flight, flights, last_flights
from stethos.observe.session import Session
from stethos.record.board import MOST_GROUPS, GroupPost
from stethos.record.layout import SLOT_PACKERS
from stethos.record.ring import Ring
from stethos.schema import COLLECTIVES, NULL_I32, NULL_I64

# Methods of ProcessGroup, and the name under which `torch.distributed` knows what they do.
OPS = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all_gather", "_allgather_base": "all_gather", "all_gather_single": "all_gather",
    "allgather_coalesced": "all_gather", "allgather_into_tensor_coalesced": "all_gather",
    "all_gather_single_coalesced": "all_gather", "gather": "gather", "scatter": "scatter",
    "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter", "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter", "alltoall": "all_to_all", "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all", "barrier": "barrier", "monitored_barrier": "monitored_barrier",
    "send": "send", "recv": "recv", "recv_anysource": "recv",
}  # fmt: skip
_TO_ONE = {"send", "recv"}
_MOST_PENDING = 4096
_SWEEP = 64
_LOOK_S = 0.5
_LEAST_DUMP_S = 2.0
_SHARE = 1000  # between two looks into the recorder so many times as long as one takes
_PACK = SLOT_PACKERS[COLLECTIVES.number].pack_into


class _Call(NamedTuple):
    """One call on its way."""

    op: str
    group: str
    sequence: int
    bytes: int
    begun_ns: int
    step: int
    client: int
    round: int


class CollectiveWatch:
    """Everything installed into `torch.distributed` for one session; `uninstall` undoes it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_active = False
        self._undo: list[Callable[[], object]] = []
        self._ring: Ring | None = None
        self._put: Callable[..., bool] | None = None
        self._posts: dict[str, GroupPost] = {}
        self._to_one: dict[str, int] = {}  # sends and receives, which gloo counts among the collectives
        self._pending: dict[int, tuple[Callable[[], Any], _Call]] = {}
        self._by_python: dict[str, deque[int]] = {}
        self._names: dict[str, str] = {}  # of groups, by their local number in the flight recorder
        self._last_record = -1
        self._since_ns = session.now_ns()
        self._next_dump_ns = 0
        self._last_status: dict[str, tuple[int, int]] = {}
        self._stuck_at: dict[str, tuple[int, int]] = {}  # where it was looked at more closely, once
        self._flying: dict[tuple[str, int], Flight] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # Putting it in and taking it out ------------------------------------------------------------------

    def install(self) -> None:
        import torch.distributed

        if self._undo or not torch.distributed.is_available():
            return
        from torch._C._distributed_c10d import ProcessGroup, Work
        from torch.distributed import distributed_c10d

        self.is_active = True
        self.session.on_close.append(self.uninstall)
        self.session.on_fork.append(self.after_fork)
        for method, op in OPS.items():
            if method in ProcessGroup.__dict__:
                self._replace(ProcessGroup, method, functools.partial(self._wrap_call, op))
        self._replace(Work, "wait", self._wrap_wait)
        for owner in (torch.distributed, distributed_c10d):
            self._replace(owner, "init_process_group", self._wrap_init)
        if torch.distributed.is_initialized():
            self._start()

    def uninstall(self) -> None:
        """Give torch its own functions back; what is still on its way is written down as such."""
        self.is_active = False
        while self._undo:
            self.session.guard.run("close", self._undo.pop())
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)
        self.session.guard.run("collectives", self._finish)

    def after_fork(self) -> None:
        """In a forked child: its parent's groups, works and thread are not its own."""
        self._ring = self._put = self._thread = None
        self._stop = threading.Event()
        for known in (self._posts, self._to_one, self._pending, self._by_python, self._names, self._flying):
            known.clear()

    def _replace(self, owner: Any, name: str, wrapper_of: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        raw, original = owner.__dict__[name], getattr(owner, name)
        wrapper = functools.wraps(original)(wrapper_of(original))
        setattr(owner, name, wrapper)

        def restore() -> None:
            if owner.__dict__.get(name) is wrapper:
                setattr(owner, name, raw)

        self._undo.append(restore)

    # In the training ----------------------------------------------------------------------------------

    def _wrap_call(self, op: str, original: Callable[..., Any]) -> Callable[..., Any]:
        begins = self.session.guard.wrap("collectives", self._begins)
        begun = self.session.guard.wrap("collectives", self._begun)

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_active:
                return original(group, *args, **kwargs)
            one = begins(op, group, args, kwargs)
            work = original(group, *args, **kwargs)
            if one is not None:
                begun(one, work)
            return work

        return call

    def _wrap_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        waited = self.session.guard.wrap("collectives", self._waited)

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if self.is_active:
                waited(work)
            return result

        return wait

    def _wrap_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        start = self.session.guard.wrap("collectives", self._start)

        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.is_active:
                start()
            return result

        return init_process_group

    def _begins(self, op: str, group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """A call is about to be made: its number, its size, and a note on the board."""
        if self._ring is None or self.session.ring is not self._ring:
            self._open()
        name = name_of(group)
        size = sum(map(_bytes_in, args)) + sum(map(_bytes_in, kwargs.values()))
        now_ns = self.session.now_ns()
        if op in _TO_ONE:
            self._to_one[name] = self._to_one.get(name, 0) + 1
            sequence = NULL_I64
        else:
            sequence = self._number_of(group, name) + 1
            post = self._post_of(name, group)
            if post is not None:
                post.begin(sequence, op, size, now_ns)
            self._by_python.setdefault(name, deque(maxlen=_MOST_PENDING)).append(sequence)
        if len(self._pending) > _SWEEP:
            self._sweep()
        client, round_, _ = turn()
        return _Call(op, name, sequence, size, now_ns, self.session.steps, client, round_)

    def _begun(self, one: _Call, work: Any) -> None:
        if work is None:  # as of `monitored_barrier`: it was waited for inside
            self._write(one, self.session.now_ns(), 1)
        elif len(self._pending) < _MOST_PENDING:
            self._pending[id(work)] = weakref.ref(work), one
        else:
            self._write(one, NULL_I64, NULL_I32)

    def _waited(self, work: Any) -> None:
        """Somebody waited for a call; on a device that may only mean that later work comes after it."""
        found = self._pending.get(id(work))
        is_complete = found is not None and found[0]() is work and work.is_completed()
        if found is not None and is_complete and self._pending.pop(id(work), None) is not None:  # else the thread has
            self._write(found[1], self.session.now_ns(), 1)

    def _number_of(self, group: Any, name: str) -> int:
        """How many collectives the group has begun."""
        number = int(group._get_sequence_number_for_group())
        sent = self._to_one.get(name, 0)
        return number - sent if sent and "gloo" in str(group.name()).lower() else number

    def _sweep(self) -> None:
        """Calls nobody waits for: those that are complete by now, and those whose work is gone."""
        for identity, (reference, one) in list(self._pending.items()):
            work = reference()
            if work is None:
                if self._pending.pop(identity, None) is not None:
                    self._write(one, NULL_I64, NULL_I32)
            elif work.is_completed() and self._pending.pop(identity, None) is not None:
                self._write(one, self.session.now_ns(), 1)

    # Rows ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._ring = self.session.open()
        self._put = self._ring.writer(_PACK) if self._ring is not None else None
        self._posts = {}

    def _post_of(self, name: str, group: Any) -> GroupPost | None:
        post = self._posts.get(name)
        if post is None and self._ring is not None and len(self._posts) < MOST_GROUPS:
            post = self._posts[name] = GroupPost(self._ring.set_word, len(self._posts), name, members_of(group))
        return post

    def _write(self, one: _Call, completed_ns: int, done: int, via: str = "python") -> None:
        if one.sequence != NULL_I64 and done == 1:
            post = self._posts.get(one.group)
            if post is not None:
                post.end(one.sequence, completed_ns if completed_ns != NULL_I64 else self.session.now_ns())
        if self._put is not None:
            name_id = self.session.name_id
            self._put(
                COLLECTIVES.number, 0, one.client, one.round, NULL_I32, one.step, one.begun_ns, name_id(one.op),
                name_id(one.group), name_id(via), one.sequence, one.bytes, completed_ns, done,
            )  # fmt: skip

    # Beside the training ------------------------------------------------------------------------------

    def _start(self) -> None:
        """Process groups exist: so the rank is known; look after what C++ does with them."""
        from torch.distributed import distributed_c10d

        facts = self.session.relations.learn(distributed_c10d.get_rank(), distributed_c10d.get_world_size())
        if self.session.open() is not None and facts:
            self.session.note_facts(facts)
        if self._thread is None and self.is_active:
            self._open()
            self._thread = threading.Thread(target=self._watch, name="stethos-collectives", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        look = self.session.guard.wrap("collectives", self.look)
        while not self._stop.wait(_LOOK_S) and self.is_active:
            look()

    def look(self) -> None:
        """Bring the board up to date, and take from the flight recorder what is new if that is affordable."""
        from torch.distributed import distributed_c10d

        if self._ring is None or self.session.ring is not self._ring:
            self._open()
        for group in list(distributed_c10d._world.pg_map):
            self._post_of(name_of(group), group)
        self._sweep()
        status = last_flights()
        is_stuck = status == self._last_status != self._stuck_at and any(a > b for a, b in status.values())
        if is_stuck:
            self._stuck_at = status
        self._last_status = status
        if is_stuck or monotonic_ns() >= self._next_dump_ns or not status.keys() <= self._names.keys():
            began_ns = monotonic_ns()
            self._take_flights()
            spent_ns = monotonic_ns() - began_ns
            self._next_dump_ns = monotonic_ns() + max(int(_LEAST_DUMP_S * 1e9), _SHARE * spent_ns)
        now_ns = self.session.now_ns()
        for number, (begun, complete) in status.items():
            post = self._posts.get(self._names.get(number, ""))
            if post is not None:
                if begun > post.begun:
                    post.begin(begun, "(c++)", 0, now_ns)
                post.end(complete, now_ns)
        self._land(status)

    def _take_flights(self) -> None:
        """New entries of the recorder; those that Python made are known better."""
        last = self._last_record
        for one in flights():
            name = shown_name(one.group, one.description)
            self._names[one.group_id] = name
            if one.record <= last or one.begun_ns < self._since_ns:  # the recorder is older than this session
                continue
            self._last_record = one.record
            if one.sequence not in self._by_python.get(name, ()):
                self._flying[name, one.sequence] = one
                post = self._posts.get(name)
                if post is not None:
                    post.begin(one.sequence, one.op, one.bytes, one.begun_ns)

    def _land(self, status: dict[str, tuple[int, int]]) -> None:
        """Write down the calls of C++ that are complete."""
        for (name, sequence), one in list(self._flying.items()):
            is_complete = sequence <= status.get(one.group_id, (0, 0))[1]
            if is_complete and self._flying.pop((name, sequence), None) is not None:  # else another thread has
                self._write_flight(name, one, 1)

    def _write_flight(self, name: str, one: Flight, done: int) -> None:
        completed_ns = NULL_I64 if one.complete_ns is None else one.complete_ns
        call = _Call(one.op, name, one.sequence, one.bytes, one.begun_ns, self.session.steps, NULL_I32, NULL_I32)
        self._write(call, completed_ns, done, "c++")

    def _finish(self) -> None:
        """Recording ends: a last look at the recorder, and the calls that are still on their way."""
        if self._last_record >= 0 or self._names:
            self._take_flights()
            self._land(last_flights())
        while self._pending:
            _, one = self._pending.popitem()[1]
            self._write(one, NULL_I64, 0)
        while self._flying:
            (name, _), flight = self._flying.popitem()
            self._write_flight(name, flight, 0)


def name_of(group: Any) -> str:
    """The group's name, the same on all its ranks."""
    return shown_name(group.group_name, group.group_desc)


def shown_name(name: str, description: str) -> str:
    """What torch calls a group, in words that people use: "world" for the first."""
    if description == "default_pg":
        return "world"
    return f"{name} ({description})" if description and description != "undefined" else name


def members_of(group: Any) -> list[int]:
    """The global ranks of a group."""
    from torch.distributed import distributed_c10d

    ranks = distributed_c10d._world.pg_group_ranks.get(group)
    return sorted(ranks) if ranks else list(range(group.size()))


def _bytes_in(value: Any) -> int:
    """The size of the tensors in an argument, which may stand in lists."""
    if isinstance(value, list | tuple):
        return sum(map(_bytes_in, value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
