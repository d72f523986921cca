"""Makes a run of what another tool's files say: one process, ended, with rows of `metrics` and `media`."""

from __future__ import annotations

import platform
import time
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos import __version__
from stethos.record.border import map_file
from stethos.record.layout import State
from stethos.record.place import PROCESS_FILE, ProcessPlace, RunPlace, write_facts
from stethos.record.provenance import plain_facts
from stethos.record.segment import SealedFile, write_parquet
from stethos.redact import redact, redact_under
from stethos.schema import MEDIA, METRICS, Table
from stethos.store.foreign.value import Logged, LoggedMedia, LoggedNumber

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_MEDIA = 2_000
_MOST_SETTINGS = 1_000


@dataclass(slots=True)
class _Rows:
    """Rows by column, with each name once."""

    names: dict[str, int] = field(default_factory=dict)
    ids: array[int] = field(default_factory=lambda: array("i"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def add(self, one: LoggedNumber) -> None:
        self.ids.append(self.names.setdefault(one.name, len(self.names)))
        self.steps.append(min(max(one.step, 0), 2**62))
        self.times.append(one.t_ns)
        self.values.append(one.value)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of an import."""

    run: str
    path: str
    values: int
    names: int
    media: int
    settings: int


def write_run(path: Path, source: Path, told: Iterable[Logged]) -> Written | None:
    """Write a run from what was logged, or nothing if nothing was; `path` must not exist."""
    rows, media, settings = _Rows(), list[LoggedMedia](), dict[str, Any]()
    for one in told:
        if isinstance(one, LoggedNumber):
            rows.add(one)
        elif isinstance(one, LoggedMedia):
            if len(media) < _MOST_MEDIA:
                media.append(one)
        elif len(settings) < _MOST_SETTINGS:
            settings[one.name] = one.value
    if not rows.ids and not media:
        return None
    times = [*(t for t in rows.times if t), *(one.t_ns for one in media if one.t_ns)] or [time.time_ns()]
    place = RunPlace(path)
    facts = {"run": path.name, "command": ["stethos", "import", str(source)], "host": platform.node(),
             "version": __version__, "started_ns": min(times)}  # fmt: skip
    place.create(facts)
    directory = path / "imported"
    directory.mkdir(mode=0o700)
    write_facts(directory / PROCESS_FILE, {"process": "imported", "command": facts["command"], "host": facts["host"],
                                           "started_ns": min(times), "config": plain_facts(settings)})  # fmt: skip
    sealed = [_seal(directory, METRICS, _metrics(rows))] if rows.ids else []
    sealed += [_seal(directory, MEDIA, _media(media))] if media else []
    count = len(rows.ids)
    counters = {"slots": count, "frame_rows": len(media), "state": int(State.ENDED)}
    manifest = {"segment": 2, "rows": count + len(media), "sealed": [asdict(one) for one in sealed],
                "counters": counters, "ended": {"t_ns": max(times)}}  # fmt: skip
    ProcessPlace(directory).write_manifest(manifest)
    return Written(path.name, str(path), count, len(rows.names), len(media), len(settings))


def _seal(directory: Path, table: Table, rows: dict[str, Any]) -> SealedFile:
    import pyarrow as pa

    from stethos.record.arrow import full_schema

    schema = full_schema(table)
    size = len(rows["t_ns"])
    columns = [
        rows[one.name] if one.name in rows else pa.array(["imported"] * size) if one.name == "process"
        else pa.nulls(size, one.type) for one in schema
    ]  # fmt: skip
    path = directory / f"000001.{table.name}.parquet"
    write_parquet(pa.Table.from_arrays(columns, schema=schema), path, table)
    data = map_file(path, parts=2)
    return SealedFile(path.name, table.name, size, len(data), zlib.crc32(data))


def _metrics(rows: _Rows) -> dict[str, pa.Array]:
    import numpy as np

    from stethos.record.arrow import name_array, number_array, text_array
    from stethos.schema import Kind

    return {
        "step": number_array(np.array(rows.steps), Kind.I64),
        "t_ns": number_array(np.array(rows.times), Kind.I64),
        "name": name_array(np.array(rows.ids, np.int32), text_array([redact(name) for name in rows.names])),
        "value": number_array(np.array(rows.values), Kind.F64),
    }


def _media(media: list[LoggedMedia]) -> dict[str, pa.Array]:
    import numpy as np

    from stethos.record.arrow import number_array, text_array
    from stethos.schema import Kind

    texts = [
        one.content if one.kind == "image"
        else redact_under(one.name, one.content) if one.kind == "text"
        else redact(one.content) for one in media
    ]  # fmt: skip
    return {
        "step": number_array(np.array([min(max(one.step, 0), 2**62) for one in media]), Kind.I64),
        "t_ns": number_array(np.array([one.t_ns for one in media]), Kind.I64),
        "name": text_array([redact(one.name) for one in media]),
        "kind": text_array([one.kind for one in media]),
        "content": text_array(texts),
    }
