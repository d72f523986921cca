"""Every command that reads says of an archived run what it says of the run's directory."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders import T0_NS
from fleet_runs import DOCUMENTED, archive_fleet

import stethos
from stethos.archive.address import parse_address
from stethos.cli.main import main

RUNS = ("single", "fed")
COMMANDS = {
    "single": ["diagnose --json --no-keep", "top --once --json", "profile --json", "tables --json"],
    "fed": [
        "diagnose --no-keep", "diagnose --client c1 --json --no-keep", "rounds --json", "clients --json",
        "compare-clients c1 c2 --json", "top --once --json", "actions --json",
    ],
}  # fmt: skip
FORMATS = ("parquet", "perfetto", "prometheus", "otlp", "otlp-logs")
REPORTS = {"single": "report.md", "fed": "report.html"}
# When a page was made; how much a run takes: in the page before the time it began, and as a metric.
_ODD = re.compile(rb'"made_ns":"?\d+"?|\[\d+\](?=,\["%d"\])|size_bytes{[^}]*} \d+' % T0_NS)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Where the two runs were recorded, and where they are archived."""
    root = tmp_path_factory.mktemp("same")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        archive_fleet(root / "runs", parse_address(root / "archive"))
        yield root / "runs", root / "archive"


def said(words: list[str], places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> list[object]:
    """What a command says of a run here and there, places made one."""
    found: list[object] = []
    for place in places:
        capsys.readouterr()
        status = main([word.replace("PLACE", str(place)) for word in words])
        out, err = capsys.readouterr()
        found.append((status, out.replace(str(place), "PLACE"), err.replace(str(place), "PLACE")))
    return found


@pytest.mark.parametrize("name", RUNS)
def test_commands_say_the_same_of_an_archived_run(
    name: str, places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for text in COMMANDS[name]:
        here, there = said([*text.split(), "-t", f"PLACE/{name}"], places, capsys)
        assert there == here, text


def test_two_archived_runs_are_compared_as_their_directories_are(
    places: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("compare", "diverge"):
        here, there = said([command, "PLACE/single", "PLACE/fed", "--json"], places, capsys)
        assert there == here and len(str(here)) > 200, command


@pytest.mark.parametrize("name", RUNS)
def test_a_query_gives_the_same_rows_of_an_archived_run(name: str, places: tuple[Path, Path]) -> None:
    documented = DOCUMENTED if name == "fed" else []
    tables = [f"SELECT * FROM {table} ORDER BY ALL" for table in ("steps", "client_rounds", "processes", "layers")]
    tables.append("SELECT * EXCLUDE (path, size_bytes) FROM runs")
    with stethos.open_run(places[0] / name) as here, stethos.open_run(str(places[1] / name)) as there:
        for sql in [*tables, *documented]:
            assert str(there.sql(sql).to_pylist()) == str(here.sql(sql).to_pylist()), sql  # NaN is not NaN


@pytest.mark.parametrize("name", RUNS)
def test_exports_and_reports_of_an_archived_run_are_the_same(
    name: str, places: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for place in places:
        output, target = tmp_path / place.name, str(place / name)
        output.mkdir()
        for form in FORMATS:
            assert main(["export", "--to", form, "-o", str(output / form), "-t", target]) == 0
        assert main(["report", "-o", str(output / REPORTS[name]), "-t", target]) in (0, 1)
        files = [path for path in output.rglob("*") if path.is_file() and path.stem != "runs"]  # path and size, too
        plain = {str(path.relative_to(output)): _plain(path) for path in files}
        made.append({file: content.replace(str(place).encode(), b"PLACE") for file, content in plain.items()})
    here, there = made
    capsys.readouterr()
    assert len(here) > 30 and here.keys() == there.keys()
    assert [file for file in here if here[file] != there[file]] == []


def _plain(path: Path) -> bytes:
    """A file's content without when it was made, and without how much is there: Parquet files, or the directory."""
    content = path.read_bytes()
    if path.name == "perfetto":
        content = gzip.decompress(content)
    return _ODD.sub(b"", content)
