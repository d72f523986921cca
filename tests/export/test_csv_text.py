"""What stands in a CSV file is text to a spreadsheet, never a formula or a command to a terminal."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest
from builders import RunBuilder
from processes import command

from stethos.export.csv_text import plain_batch, plain_text

HOSTILE = [
    "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\n=1", "\x07=HYPERLINK(\"http://x\")", "\x1b[31mred", "\x9b31m",
    "a\u202eb", "\uff1d1+1", "\x00", "\r=1", "a\u061cb", "\u200b=1+1", "\U000e0041", "\ufeff=1",
    "\u00ad=1", "\u200d=1", "lo\u3164ss",
]  # fmt: skip
PLAIN = ["ok", "-1.5", "+2", "1e5", "a=b", "x@y", "", "layer.0.weight", "-", "two\nlines"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_formula_and_a_control_character_are_taken_out(text: str) -> None:
    plain = plain_text(text)
    assert (plain[:1] not in ("=", "+", "-", "@", "\t", "\uff1d") and plain.isprintable()) or plain.startswith("'")
    assert not set(plain) & set("\x00\x07\x1b\x9b\u202e\r\u061c\u200b\U000e0041\ufeff\u00ad\u3164")


def test_what_is_no_danger_stays() -> None:
    assert [plain_text(text) for text in PLAIN if text != "-"] == [text for text in PLAIN if text != "-"]


def test_a_whole_column_is_as_its_cells() -> None:
    texts = [*HOSTILE, *PLAIN, "لا\u200c\ufe0f\u200cb", None]
    batch = pa.RecordBatch.from_arrays([pa.array(texts), pa.array(range(len(texts)))], names=["text", "number"])
    plain = plain_batch(batch)
    assert plain.column(0).to_pylist() == [None if text is None else plain_text(text) for text in texts]
    assert plain.column(1).to_pylist() == list(range(len(texts))) and plain.schema == batch.schema


def test_both_commands_write_plain_cells(tmp_path: Path) -> None:
    with RunBuilder(tmp_path / "runs" / "run") as run:
        process = run.process()
        for text in ("=cmd|' /C calc'!A0", "@x \x1b]52;c;eA==\x07 end", "fine", "a;=1+1", 'b\t"=2"'):
            process.log(text)
        process.finish()
    command("export", "-t", run.path, "--to", "csv", "-o", tmp_path / "out")
    with (tmp_path / "out" / "logs.csv").open(newline="", encoding="utf-8") as file:
        exported = [row["message"] for row in csv.DictReader(file)]
    shown = command("-t", run.path, "query", "--csv", "SELECT message FROM logs").stdout
    assert [text[:2] for text in exported] == ["'=", "'@", "fi", "a;", "b\t"] and "\x1b" not in "".join(exported)
    assert "'=cmd" in shown and "'@x" in shown and "\x1b" not in shown and "fine" in shown
    assert list(csv.reader(shown.splitlines()))[-2:] == [["a;=1+1"], ['b\t"=2"']]
    assert shown.splitlines()[-2:] == ['"a;=1+1"', '"b\t""=2"""']
