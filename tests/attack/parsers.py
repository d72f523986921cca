"""Everything that parses bytes from outside, each as a function of bytes from which only our own errors may come.

`python -m attack.parsers NAME RUNS` searches one of them with atheris, where that is installed.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType

import duckdb
import numpy as np
import pyarrow as pa
from builders import RunBuilder

from stethos.act.alert_rule import read_alerts
from stethos.cli.screen.markdown import escape
from stethos.cli.screen.text import clean
from stethos.collect.batch import decode_batch, decompress
from stethos.collect.policy import parse_policy
from stethos.diagnose.configuration import read_configuration
from stethos.errors import StethosError
from stethos.export.csv_text import plain_text
from stethos.live.weights import read_weights
from stethos.record.arrow import checked_batch, checked_schema, segment_schema
from stethos.record.border import checked_facts, checked_json, checked_manifest, read_document, read_json
from stethos.record.layout import FRAMES_BASE, SLOT_BYTES, SLOTS_BASE
from stethos.record.segment import SegmentRows
from stethos.redact import redact
from stethos.replay.bundle import open_bundle
from stethos.replay.codec import bases_of, pack, unpack
from stethos.replay.tensorfile import array_in, parse, shape_of_file
from stethos.schema import METRICS, RECORDED
from stethos.store.findings import read_findings
from stethos.store.foreign.event_file import _masked_crc, read_events
from stethos.store.foreign.value import Damage
from stethos.store.foreign.wandb_file import read_wandb
from stethos.store.labels import read_labels
from stethos.store.process import read_ring
from stethos.store.silences import read_silences
from stethos.store.stack_file import read_stacks
from stethos.store.statement import check_statement
from stethos.web.own_panels import read_own
from stethos.web.remote_command import checked_call

SLOWEST_S = 10.0
_SCRATCH = tempfile.TemporaryDirectory(prefix="stethos-parsers-")
_PLACE = Path(_SCRATCH.name)
_DATABASE = duckdb.connect(":memory:")
_STATE = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.zeros(3, np.float32)}
_TENSORS = shape_of_file(_STATE).file_of(list(_STATE.values())).tobytes()


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """A parser of a file as one of bytes; `read` gets the directory that it lies in."""

    def parse_bytes(data: bytes) -> None:
        path = _PLACE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        with suppress(StethosError):
            read(_PLACE)

    return parse_bytes


def _tensors(data: bytes) -> None:
    file = np.frombuffer(data, np.uint8)
    for read in (parse, bases_of, lambda one: unpack(one, []), lambda one: unpack(one, [one])):
        with suppress(StethosError):
            read(file)
    with suppress(StethosError):
        for entry in parse(file)[0].values():
            array_in(file, entry)


def _manifest(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        content = json.loads(data)
        if isinstance(content, dict):
            checked_manifest(content)
            checked_facts(content)


def _segment(data: bytes) -> None:
    rows = SegmentRows(0, data)
    for table in list(rows.rows_by_table):
        with suppress(StethosError):
            rows.arrow(RECORDED[table], "100-200", None)


def _arrow(data: bytes) -> None:
    for read in (lambda: checked_schema(memoryview(data)), lambda: checked_batch(memoryview(data), _SCHEMA, 3)):
        with suppress(pa.ArrowException, OSError, ValueError, EOFError):  # as whoever reads a segment
            read()


def _sql(data: bytes) -> None:
    with suppress(StethosError):
        check_statement(_DATABASE, data.decode("utf-8", "surrogateescape"))


def _call(data: bytes) -> None:
    words = data.decode("utf-8", "surrogateescape").split("|")
    with suppress(StethosError):
        checked_call(words[0], words[1] if len(words) > 1 else None, words[2:])


def _capture(directory: Path) -> None:
    (directory / "run" / "capture" / "000" / "objects").mkdir(exist_ok=True)
    bundle = open_bundle(directory / "run")
    for number in bundle.rounds:
        bundle.corrections(number)
        for client in bundle.clients(number):
            with suppress(StethosError):
                bundle.update(number, client)


def _batch(data: bytes) -> None:
    with suppress(StethosError):
        decompress(decode_batch(data))


def _event_record(data: bytes) -> None:
    """Behind a right length and checksum, which no fuzzer guesses."""
    head = struct.pack("<Q", len(data))
    path = _PLACE / "record"
    path.write_bytes(head + struct.pack("<I", _masked_crc(head)) + data + struct.pack("<I", _masked_crc(data)))
    list(read_events(path, Damage()))


def _wandb_record(data: bytes) -> None:
    path = _PLACE / "record.wandb"
    head = struct.pack("<IHB", zlib.crc32(data, zlib.crc32(b"\x01")), len(data), 1)
    path.write_bytes(b":W&B\0\0\0" + head + data)
    list(read_wandb(path, Damage()))


def _text(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape" if len(data) % 2 else "replace")
    for plain in (clean(redact(text)), plain_text(text), escape(text)):
        plain.encode("utf-8", "surrogateescape")
        assert not set(plain) & set("\x00\x1b\x9b\u202e"), plain


def _policy(data: bytes) -> None:
    with suppress(StethosError):
        parse_policy(data.decode("utf-8", "replace"))


# Where the given bytes go in a ring: into its header, its first slots and its frames.
_RING_PARTS = ((0, 72 * 8), (SLOTS_BASE, 2 * SLOT_BYTES), (FRAMES_BASE, 2_000))


def _ring_path() -> Path:
    """A ring with steps, metrics, names and logs in it."""
    process = _PLACE / "ringed" / "100-200"
    if not process.exists():
        with RunBuilder(process.parent) as run:
            builder = run.process("100-200", is_alive=False)
            builder.steps(3)
            builder.layers(["a", "b"], step=1)
            builder.metric("m", 1.5)
            builder.log("a message")
    return process / "ring"


def _ring_parts(path: Path) -> bytes:
    content = path.read_bytes()
    return b"".join(content[at : at + size] for at, size in _RING_PARTS)


def _write_ring(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        for at, size in _RING_PARTS:
            file.seek(at)
            file.write(data[:size])
            data = data[size:]


def _ring(data: bytes) -> None:
    path = _ring_path()
    before = _ring_parts(path)
    _write_ring(path, data)
    try:
        read_ring(path, [], SegmentRows(0))
    except (OSError, ValueError, RecursionError, KeyError, IndexError, TypeError):  # as whoever reads a ring
        pass
    finally:
        _write_ring(path, before)


def _whole_segment() -> bytes:
    """What a drainer wrote of three steps."""
    with RunBuilder(_PLACE / "written") as run:
        process = run.process("100-200", is_alive=False)
        process.steps(3)
        process.drain()
        process.collector.sync()
        return (process.place.path / "000001.seg").read_bytes()


_SCHEMA = segment_schema(METRICS)
_ROUND = {"round": 1, "clients": [{"client": "c0", "reported": True, "samples": 3, "state": {"parts": ["0" * 64]}}]}
# Each with something that it understands, to begin with.
PARSERS: dict[str, tuple[Callable[[bytes], None], bytes]] = {
    "manifest": (_manifest, b'{"sealed": [], "rows": 1, "segment": 2, "names": ["a"], "counters": {"drops": {}}}'),
    "facts": (in_file("x.json", lambda place: checked_facts(read_json(place / "x.json"))), b'{"rank": 0, "pid": 7}'),
    "segment": (_segment, _whole_segment()),
    "ring": (_ring, _ring_parts(_ring_path())),
    "arrow": (_arrow, _SCHEMA.serialize().to_pybytes()),
    "findings": (in_file("findings.db", read_findings), b"SQLite format 3\0"),
    "stacks": (in_file("stacks.jsonl", read_stacks), b'{"process": "1-2", "depth": 0}\n'),
    "tensors": (_tensors, _TENSORS),
    "packed": (_tensors, pack(np.frombuffer(_TENSORS * 1, np.uint8)) or _TENSORS),
    "round": (in_file("run/capture/000/rounds/000001.json", _capture), json.dumps(_ROUND).encode()),
    "weights": (in_file("w.pt", lambda place: read_weights(place / "w.pt")), _TENSORS),
    "alerts": (in_file("a.toml", lambda place: read_alerts(place / "a.toml")), b'[[rule]]\nname = "a"\nsinks = []\n'),
    "settings": (in_file("s.toml", lambda place: read_configuration(place / "s.toml")), b"[hang]\nleast_s = 3\n"),
    "policy": (_policy, b'level = "L1"\n[tables.steps]\nloss = "keep"\n'),
    "batch": (_batch, b"STETHBT1" + bytes(68) + b"{}"),
    "document": (in_file("x.json", lambda place: read_document(place / "x.json")), checked_json({"rank": 0})),
    "labels": (in_file("labels.json", read_labels), b'{"version": 1, "tags": ["a"], "note": "b", "title": "c"}'),
    "silences": (in_file("silences.json", read_silences), b'{"k": {"state": "silenced", "note": "n", "t_ns": 1}}'),
    "panels": (in_file("p.toml", lambda place: read_own(place / "p.toml")), b'[[panel]]\ntitle = "a"\nsql = "x"\n'),
    "text": (_text, b"\x1b[31mtoken=abc\x1b[0m https://u:p@h =1+1 `x` <b>"),
    "event record": (_event_record, b"\x10\x01*\x0b\n\t\n\x01a\x15\0\0\x80?"),
    "wandb record": (_wandb_record, b"\x12\x0b\n\t\n\x01a\x82\x01\x031.5"),
    "event file": (in_file("e", lambda place: list(read_events(place / "e", Damage()))), b"\x18" + bytes(11)),
    "wandb file": (in_file("w", lambda place: list(read_wandb(place / "w", Damage()))), b":W&B\x00" + bytes(7)),
    "sql": (_sql, b"SELECT step FROM steps WHERE loss > 1"),
    "call": (_call, b"query|small|--limit|5|SELECT 1"),
}


def main() -> None:
    import atheris

    name, runs, directory = sys.argv[1:4]
    for module in [one for one in sys.modules.values() if one.__name__.startswith("stethos.")]:
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                atheris.instrument_func(function)
    parser, seed = PARSERS[name][0], PARSERS[name][1]

    def within_ten_seconds(data: bytes) -> None:
        began = time.process_time()
        parser(data)
        assert time.process_time() - began < SLOWEST_S

    corpus = Path(directory)
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "seed").write_bytes(seed)
    atheris.Setup(
        [
            sys.argv[0],
            f"-runs={runs}",
            "-max_len=4096",
            "-rss_limit_mb=1024",
            "-timeout=300",
            f"-artifact_prefix={corpus.parent}/",
            str(corpus),
        ],
        within_ten_seconds,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
