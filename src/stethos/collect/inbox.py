"""In the server's drainer: stores batches that came with the federation's messages, as the collector does.

The federation says who sent them, so their rows stand under the name by which it knows the client.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from stethos.collect.aliases import OwnNames
from stethos.collect.batch import CLIENT_NAME, decode_batch
from stethos.collect.ride import entries_in
from stethos.collect.stored_process import StoredProcess
from stethos.errors import RecordingError
from stethos.guard import tried
from stethos.record.border import read_file, sync_file_system, version_of
from stethos.record.place import INBOX_DIR, RunPlace, is_alive

MOST_OPEN = 128
_MOST_BYTES = 16 << 20


class Inbox:
    """The inbox of one run; `visit` is called about once a second."""

    def __init__(self, run: RunPlace) -> None:
        self._run = run
        self._read: dict[str, int] = {}
        self._open: OrderedDict[tuple[str, ...], StoredProcess] = OrderedDict()

    def visit(self) -> None:
        """Store what has come since the last visit. OSError if the disk is full: the rest stays where it is."""
        directory = self._run.path / INBOX_DIR
        files = sorted(path for path in directory.glob("*.in") if path.stem.partition("-")[0].isdigit())
        newest = {path.stem.partition("-")[0]: path for path in files}
        for path in files:
            self._take(path)
            pid = path.stem.partition("-")[0]
            is_over = newest[pid] != path or not is_alive(int(pid), None)
            size = (version_of(path) or (0, 0))[1]
            if is_over and self._read.get(path.name, 0) >= size:
                self._save()
                sync_file_system(directory)  # its client was told that the disk has it
                path.unlink(missing_ok=True)
                self._read.pop(path.name, None)
        self._save()

    def end(self) -> None:
        """The last visit."""
        self.visit()
        while self._open:
            self._open.popitem()[1].close()
        with contextlib.suppress(OSError):
            (self._run.path / INBOX_DIR).rmdir()

    def _take(self, path: Path) -> None:
        at = self._read.get(path.name, 0)
        if (version_of(path) or (0, 0))[1] <= at:
            return
        for client, data, end in entries_in(read_file(path, _MOST_BYTES, parts=2), at):
            _, error = tried(self._store, client, data)
            if isinstance(error, OSError | RecordingError):
                raise error
            self._read[path.name] = end  # what is no batch, or makes us fail, holds up nobody

    def _store(self, client: str, data: bytes) -> None:
        batch = decode_batch(data)
        if CLIENT_NAME.fullmatch(client) is None:
            return
        header = replace(batch.header, client=client, run=self._run.name)
        process = self._open.get(header.key)
        if process is None:
            process = self._open[header.key] = StoredProcess(self._run.path.parent, header)
        self._open.move_to_end(header.key)
        process.store(replace(batch, header=header), OwnNames(client, self._run.path))
        while len(self._open) > MOST_OPEN:
            _, oldest = self._open.popitem(last=False)
            oldest.save()
            oldest.close()

    def _save(self) -> None:
        for process in self._open.values():
            if process.is_dirty:
                process.save()
