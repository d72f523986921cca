"""A collector and its clients for tests: real ones in processes, and clients made by hand."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from processes import environment, finish, free_port, start_command

from stethos.collect.batch import BatchHeader, compress, digest_of, encode_batch
from stethos.collect.enrol_client import enrol_site
from stethos.collect.enrolment import Enrolment
from stethos.collect.receiver import Receiver
from stethos.collect.site import SiteHome, public_hex
from stethos.record.arrow import segment_schema, serialize_batch
from stethos.record.segment import FLAG_LAST, FLAG_SCHEMA, encode_block
from stethos.schema import METRICS, Table
from stethos.store.run import open_run
from stethos.web.keys import Keys, open_keys
from stethos.web.remote import PinnedConnection, headers_for


class CollectorProcess:
    """`stethos collect` at one address, started again as often as a test likes; with `upstream` a relay."""

    def __init__(self, directory: Path, upstream: Path | None = None) -> None:
        self._more = ("--upstream", upstream) if upstream is not None else ()
        self.runs, self.address = directory / "collected", f"127.0.0.1:{free_port()}"
        self.keys: Keys = open_keys(directory / "keys")
        self.enrolment = Enrolment(self.keys.directory)
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = ("collect", "--dir", self.runs, "--keys", self.keys.directory, "--listen", self.address)
        self.process = start_command(*words, *self._more, env=environment(), stdout=subprocess.DEVNULL)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "collecting on" in line, line + self.process.stderr.read()
        self._token = self.process.stderr.readline().strip().partition("#token=")[2]

    def dashboard(self, run: str, query: str) -> Any:
        """What the collector's own dashboard answers to a query of a run."""
        host, _, port = self.address.rpartition(":")
        connection = PinnedConnection(host, int(port), self.keys.fingerprint)
        try:
            connection.connect()
            headers = headers_for({"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"})
            connection.request("POST", f"/api/runs/{run}/sql", json.dumps({"sql": query}), headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def enrol(self, path: Path, name: str, policy: str = "") -> SiteHome:
        """A site with a key of its own, over the wire."""
        site = enrol_site(path, self.address, self.enrolment.invite(name, self.keys.fingerprint))
        if policy:
            site.policy_path.write_text(policy)
        return site

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        finish(self.process)
        self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            finish(self.process)
            self.process = None


EVERYTHING = 'level = "L4"\nuntil = {}\n'


def everything() -> str:
    """A policy that lets everything through for an hour."""
    return EVERYTHING.format(time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600)))


class HandMadeClient:
    """A client with a key, whose batches a test writes itself."""

    def __init__(self, enrolment: Enrolment, name: str) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.name = name
        enrolment.enrol(enrolment.invite(name, "0" * 64).secret, public_hex(self.key))

    def batch(self, number: int, values: list[int], table: Table = METRICS, **header: Any) -> bytes:
        """Metrics with these values, one row each."""
        raw = blocks_of(table, metric_rows(values))
        return self.signed(raw, len(values), number, **header)

    def signed(self, raw: bytes, rows: int, number: int, body: bytes | None = None, **header: Any) -> bytes:
        body = compress(raw) if body is None else body
        plain = BatchHeader(
            client=self.name, run="r", process="p1", epoch="e1", lane=1, number=number, rows=rows,
            raw_bytes=len(raw), digest=digest_of(body), t_ns=time.time_ns(), books={"produced": rows * number},
        )  # fmt: skip
        return encode_batch(replace(plain, **header), body, self.key.sign)


def metric_rows(values: list[int], **columns: list[Any]) -> pa.RecordBatch:
    given: Mapping[str, Any] = {"name": ["i"] * len(values), "value": [float(value) for value in values], **columns}
    schema = segment_schema(METRICS)
    empty = [None] * len(values)
    return pa.RecordBatch.from_pydict({field.name: given.get(field.name, empty) for field in schema}, schema=schema)


def blocks_of(table: Table, rows: pa.RecordBatch) -> bytes:
    schema = encode_block(table.number, FLAG_SCHEMA, 0, 0, 0, 0, rows.schema.serialize().to_pybytes())
    return b"".join((*schema, *encode_block(table.number, FLAG_LAST, rows.num_rows, 0, 0, 0, serialize_batch(rows))))


def send(receiver: Receiver, *batches: bytes) -> list[Any]:
    """What becomes of batches that are sent at once."""

    async def all_of_them() -> list[Any]:
        found = await asyncio.gather(*(receiver.take(one) for one in batches), return_exceptions=True)
        if receiver._committing is not None:
            await receiver._committing  # it may still begin a new file
        return found

    return asyncio.run(all_of_them())


def leave_behind(receiver: Receiver) -> None:
    """As if its process had been killed: nothing is written any more, and its directory is free."""
    assert receiver._lock is not None
    os.close(receiver._lock)
    receiver._lock = None


def rows_after(receiver: Receiver, query: str = "SELECT value FROM metrics ORDER BY value") -> list[Any]:
    """What a run holds once everything is written."""
    receiver.close()
    with open_run(receiver.directory / "r") as run:
        return [row[0] if len(row) == 1 else tuple(row) for row in run.rows(query).values]


STORED = {"stored": True}
