"""The server's side of clients that record elsewhere: what their replies carry for the run, and what they are told."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from stethos.collect.aliases import note_alias
from stethos.collect.batch import CLIENT_NAME
from stethos.collect.ride import BATCHES, SITE, InboxWriter
from stethos.observe import boot


class RemoteSites:
    """Takes batches and names out of replies; one per federation. Without a recording it does nothing."""

    def __init__(self) -> None:
        self._inbox: InboxWriter | None = None
        self._named: set[tuple[str, str]] = set()

    def take(self, client: str, report: MutableMapping[str, Any]) -> None:
        """Store what a reply carries beside the report, and take it out of it; a site's name stands as the label."""
        batches, name = report.pop(BATCHES, None), report.pop(SITE, None)
        if isinstance(name, str) and name != client and CLIENT_NAME.fullmatch(name):
            report.setdefault("label", name)
        run = self._run_dir()
        if run is None:
            return
        if isinstance(name, str) and (client, name) not in self._named:
            self._named.add((client, name))
            note_alias(run, client, name)
        if batches:
            self._writer(run).put(client, batches)

    def acks(self, client: str) -> str:
        """What the next message tells a client has arrived; "" for nothing."""
        return self._inbox.acks(client) if self._inbox is not None else ""

    def _writer(self, run: Path) -> InboxWriter:
        if self._inbox is None or self._inbox.directory.parent != run:
            self._inbox = InboxWriter(run)
        return self._inbox

    @staticmethod
    def _run_dir() -> Path | None:
        session = boot.current_session()
        return session.settings.run_dir if session is not None and session.ring is not None else None
