"""Batches that travel in the federation's own messages: a client's side, and the server's.

At the client, a reply carries what waits in the spool of a site that has no collector, as much as fits; the server's
next message says what arrived. At the server, batches are put aside in the run directory, and its drainer stores them
under the name by which the federation knows the client. Standard library only: training processes import this.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stethos.collect.batch import CLIENT_NAME, BatchError, decode_batch
from stethos.collect.policy import NOTHING, Policy, parse_policy
from stethos.collect.report import filtered_report
from stethos.collect.site import SiteHome, open_site
from stethos.collect.spool import ACKS_FILE, peek, read_spool, spools_in
from stethos.errors import UsageError
from stethos.record.border import make_directory, open_file, read_file
from stethos.record.place import INBOX_DIR, write_json
from stethos.settings import MOST_RIDE_BYTES, ride_bytes, site_dir

BATCHES, ACKS, SITE = "batches", "acks", "site"  # fields of our record in messages
_ROLL_BYTES = 4 << 20
_MOST_POLICY_BYTES = 1 << 20
_MOST_ACKS = 1000
_ENTRY = struct.Struct("<HII")  # bytes of the name, of the batch, checksum


def own_site() -> SiteHome | None:
    """The site at which this process records; None if there is none. UsageError if it is damaged."""
    directory = site_dir()
    return open_site(directory) if directory is not None else None


def own_policy(site: SiteHome) -> Policy:
    """What the site's file says; nothing leaves where it is gone or cannot be understood."""
    try:
        return parse_policy(read_file(site.policy_path, _MOST_POLICY_BYTES).decode())
    except (UsageError, OSError, ValueError):
        return NOTHING


# A client ------------------------------------------------------------------------------------------------


def reply_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a reply may carry for us: the report of the turn by the site's policy, and batches that wait."""
    directory = site_dir()
    if directory is None:
        return dict(report)
    try:
        site = open_site(directory)
    except UsageError:
        return {}  # it was meant to have a policy: nothing leaves
    policy = own_policy(site)
    if policy.level == "L0" and not policy.tables:
        return {}
    told = filtered_report(policy, report)
    told[SITE] = site.name
    if not site.address:
        waiting = peek(site.spool, ride_bytes(), policy.stamp)
        if waiting:
            told[BATCHES] = waiting
    return told


def take_acks(text: Any) -> None:
    """What the server's message says has arrived: noted beside the spools, whose drainer lets it go."""
    site = own_site()
    if site is None or site.address or text is None:
        return
    try:
        told = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        if text != "":
            site.note(what="server", outcome="refused", asked=repr(text)[:300])
        return
    for path in spools_in(site.spool):
        epoch = read_spool(path).epoch
        if epoch and isinstance(told.get(epoch), dict):
            write_json(path / ACKS_FILE, {epoch: told[epoch]})


# The server ----------------------------------------------------------------------------------------------


class InboxWriter:
    """Puts batches of replies aside in a run directory; one per server process."""

    def __init__(self, run: Path) -> None:
        self.directory = run / INBOX_DIR
        self._number = 0
        self._size = _ROLL_BYTES
        self._acks: dict[str, dict[str, dict[str, int]]] = {}  # by client and epoch
        self._unsynced: set[Path] = set()

    def put(self, client: str, batches: Any) -> None:
        """Take the batches of a client's reply; what is none is left out, and what is more than any client may send."""
        if not isinstance(batches, list) or CLIENT_NAME.fullmatch(client) is None:
            return
        room = MOST_RIDE_BYTES
        for data in batches:
            if not isinstance(data, bytes) or len(data) > room:
                break  # in order: what is acknowledged stands for all before it
            room -= len(data)
            try:
                header = decode_batch(data).header
            except BatchError:
                continue
            self._append(client, data)
            epochs = self._acks.setdefault(client, {})
            lanes = epochs.setdefault(header.epoch, {})
            lanes[str(header.lane)] = max(lanes.get(str(header.lane), 0), header.number)
            if len(epochs) > _MOST_ACKS:
                epochs.pop(next(iter(epochs)))

    def acks(self, client: str) -> str:
        """What to tell a client has arrived, once the disk has it, for the next message to it; "" for nothing."""
        self._sync()
        found = self._acks.get(client)
        return json.dumps(found) if found else ""

    def _append(self, client: str, data: bytes) -> None:
        name = client.encode("ascii")
        entry = _ENTRY.pack(len(name), len(data), zlib.crc32(name + data)) + name + data
        if self._size >= _ROLL_BYTES:
            make_directory(self.directory)
            self._number, self._size = self._number + 1, 0
        path = self.directory / f"{os.getpid()}-{self._number:06d}.in"
        descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, parts=2)
        try:
            if os.write(descriptor, entry) < len(entry):  # the disk is full
                os.ftruncate(descriptor, self._size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)
        self._size += len(entry)
        self._unsynced.add(path)

    def _sync(self) -> None:
        """Once for all that came since the last time: a round's replies share it."""
        for path in list(self._unsynced):
            with suppress(FileNotFoundError):  # the drainer has stored it
                descriptor = open_file(path, os.O_WRONLY, parts=2)
                try:
                    os.fdatasync(descriptor)
                finally:
                    os.close(descriptor)
            self._unsynced.discard(path)


def entries_in(content: bytes, at: int) -> Iterator[tuple[str, bytes, int]]:
    """The whole entries of an inbox file from a place on: client, batch, and the place behind it."""
    while at + _ENTRY.size <= len(content):
        name_bytes, data_bytes, checksum = _ENTRY.unpack_from(content, at)
        end = at + _ENTRY.size + name_bytes + data_bytes
        whole = content[at + _ENTRY.size : end]
        if len(whole) != name_bytes + data_bytes or zlib.crc32(whole) != checksum:
            return
        yield whole[:name_bytes].decode("ascii", "replace"), whole[name_bytes:], end
        at = end
