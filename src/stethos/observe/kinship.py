"""What this process is to others: its rank in a job, and whose daemon it is."""

from __future__ import annotations

import sys
from typing import Any

from stethos.settings import rank_and_world


class Kinship:
    """Facts for `process.json`; one per session.

    A launcher tells ranks by variables. Where the program does so by itself, as with `torch.multiprocessing.spawn`,
    they are known once process groups exist.
    """

    def __init__(self) -> None:
        self._learned: tuple[int, int] | None = None

    def learn(self, rank: int, world_size: int) -> dict[str, Any]:
        """The process groups' own word, which counts more than variables; the facts that are new by it."""
        known = self._learned or rank_and_world()
        self._learned = rank, world_size
        return {} if known == self._learned else {"rank": rank, "world_size": world_size}

    def facts(self, parent: int) -> dict[str, Any]:
        rank, world_size = self._learned or rank_and_world()
        found: dict[str, Any] = {"rank": rank, "world_size": world_size}
        return found | ({"daemon_of": parent} if _is_daemon() else {})


def _is_daemon() -> bool:
    """Whether this is a daemon of `multiprocessing`, such as a pool's worker: its parent stops it by a signal."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None and bool(process.current_process().daemon)
