"""One process whose rows leave a site: its spool, its lock and its books, which change together or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from stethos.collect.books import WITHDRAWN, Books
from stethos.collect.policy import Policy
from stethos.collect.spool import POLICY, Spool
from stethos.record.spawn import take_lock

LOCK_FILE = "lock"


class ForwardedProcess:
    """The drainer that has the lock writes it."""

    def __init__(self, path: Path, lock: int) -> None:
        self.lock = lock
        self.spool = Spool.load(path)
        kept = self.spool.kept.get("own", {})
        self.books = Books(**kept) if kept else Books()
        self.next_flush = 0.0
        self.told_in = 0  # number of the last batch that told of the process alone

    def close(self) -> None:
        os.close(self.lock)

    @contextlib.contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """What is taken counts when it is saved; after a failure it is as if it had not been taken."""
        drops, withheld = dict(self.books.drops), dict(self.books.withheld)
        spool, books = self.spool.remembered(), replace(self.books, drops=drops, withheld=withheld)
        try:
            yield
        except BaseException:
            self.spool.go_back_to(spool)
            self.books = books
            raise

    def follow(self, policy: Policy) -> int:
        """Withdraw what waits and may not leave any more; how many rows. OSError if that cannot be written down."""
        kept, stamp = self.spool.kept, policy.stamp
        if kept.get(POLICY) == stamp:
            return 0
        rows = 0 if policy.covers(kept.get(POLICY)) else self.spool.withdraw()
        if rows:
            self.books.withheld[WITHDRAWN] = self.books.withheld.get(WITHDRAWN, 0) + rows
            told = kept.get("books")
            if told is not None:  # of a process that is over nobody makes them anew
                told["withheld"] = {**told["withheld"], WITHDRAWN: told["withheld"].get(WITHDRAWN, 0) + rows}
        kept[POLICY], kept["own"] = stamp, self.books.as_own()
        self.spool.save()
        return rows


def open_forwarded(path: Path) -> ForwardedProcess | None:
    """What leaves of the process with this spool, unless another drainer is at it."""
    lock = take_lock(path / LOCK_FILE)
    if lock is None:
        return None
    try:
        return ForwardedProcess(path, lock)
    except BaseException:
        os.close(lock)
        raise
