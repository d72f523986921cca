"""The docs tell the truth: generated pages are up to date, and every command, query and program in them runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import wait_for_rest

import stethos
from stethos.cli.main import main

PROJECT = Path(__file__).resolve().parents[2]
DETECTOR_PAGES = sorted((PROJECT / "docs" / "detectors").glob("*.md"))
BENCHMARK_PAGES = sorted((PROJECT / "docs" / "benchmarks").glob("*.md"))
CONTRIBUTING = PROJECT / "CONTRIBUTING.md"
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_TIMEOUT_S = 600
TRAIN = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(32, 8)).square().mean().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `kind` is what stands behind the fence."""

    page: Path
    kind: str
    body: str
    line: int

    def __str__(self) -> str:
        return f"{self.page.relative_to(PROJECT)}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    found = []
    for page in [*PAGES, *BENCHMARK_PAGES, CONTRIBUTING]:
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match["kind"] in kinds:
                found.append(Block(page, match["kind"], match["body"], text.count("\n", 0, match.start()) + 1))
    return found


def commands(block: Block) -> Iterator[str]:
    """The commands of a block: lines behind `$ `, to the end of what they quote; in a script our own lines."""
    lines = iter(block.body.splitlines())
    for line in lines:
        if line.startswith("$ ") or (block.kind == "bash" and line.startswith("stethos ")):
            command = line.removeprefix("$ ")
            while command.count('"') % 2:
                command += "\n" + next(lines)
            yield command


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a reader of the docs may have it: programs, a federated run, a short run of the demo."""
    directory = tmp_path_factory.mktemp("workshop")
    demo = (PROJECT / "examples" / "demo.py").read_text(encoding="utf-8").replace("default=20", "default=10")
    for script, text in (("train.py", TRAIN), ("package/train.py", TRAIN), ("examples/demo.py", demo)):
        (directory / script).parent.mkdir(exist_ok=True)
        (directory / script).write_text(text, encoding="utf-8")
    (directory / "words.md").write_text("# What we saw\n")
    (directory / "question.sql").write_text("SELECT count(*) AS steps FROM steps")
    federated = f"python {PROJECT / 'tests' / 'programs' / 'federate.py'} runs fed-1 --clients 9"
    for command in (federated, "stethos run --name digits-1 examples/demo.py"):  # the demo is the newest
        recorded = shell(directory, command)
        assert recorded.returncode == 0, recorded.stderr
    for path in (directory / "runs").iterdir():  # what is copied must hold still
        wait_for_rest(path)
    return directory


@pytest.fixture
def copy(workshop: Path, tmp_path: Path) -> Path:
    """A workshop of one's own."""
    return Path(shutil.copytree(workshop, tmp_path / "workshop"))


def shell(directory: Path, command: str, *, has_verdict: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command line with `stethos`, `python` and `torchrun` on the path; `stethos run` diagnoses only if asked."""
    tools = directory / ".tools"
    if not tools.exists():
        tools.mkdir()
        (tools / "stethos").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stethos.cli.main "$@"\n')
        (tools / "stethos").chmod(0o755)
        for private in (".runtime", ".home"):
            (directory / private).mkdir(mode=0o700)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("STETHOS_")},
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(Path(stethos.__file__).resolve().parents[1]),
        "XDG_RUNTIME_DIR": str(directory / ".runtime"),
        "HOME": str(directory / ".home"),  # commands may add to files there, as those that set up completion
        "OMP_NUM_THREADS": "1",
        "STETHOS_VERDICT": str(int(has_verdict)),
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=directory, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=_TIMEOUT_S,
    )  # fmt: skip


def test_generated_pages_are_up_to_date() -> None:
    result = subprocess.run(
        [sys.executable, str(PROJECT / "tools" / "make_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


# Examples with something that only the reader has; tests of their own run these commands.
READERS_OWN = ("s3://", "stethos diverge first second", "stethos import lightning", "stethos import wandb",
               "stethos completion fish", "--revoke ID")  # fmt: skip


# Commands that only read run inside this process, which is quicker and just as true.
READING = {
    "clients", "collectives", "compare", "compare-clients", "diagnose", "doctor", "export", "ls", "profile", "query",
    "report", "rounds", "tables", "top",
}  # fmt: skip


def words_for_here(command: str) -> list[str] | None:
    """The words of a command that needs no process of its own; None if it does, or a shell."""
    if not command.startswith("stethos ") or "--over" in command:
        return None
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)[1:]
    return words if READING & set(words) and not any(set(word) <= set("();<>|&") for word in words) else None


@pytest.mark.parametrize("block", blocks("console", "bash"), ids=str)
def test_commands_run(
    block: Block, copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(copy / ".runtime"))
    monkeypatch.setenv("HOME", str(copy / ".home"))
    for name in [name for name in os.environ if name.startswith("STETHOS_")]:
        monkeypatch.delenv(name)
    for command in commands(block):
        if "stethos" in command and not any(own in command for own in READERS_OWN):
            if (words := words_for_here(command)) is not None:
                status, said = main(words), "".join(capsys.readouterr())
            else:
                result = shell(copy, command, has_verdict=block.page.name == "README.md")
                status, said = result.returncode, result.stdout + result.stderr
            allowed = (0, 1) if "stethos diagnose" in command else (0,)  # 1: something is wrong with the run
            assert status in allowed, f"{command}\n{said}"


def test_commands_change_nothing_in_the_home_of_whoever_runs_the_tests(copy: Path) -> None:
    assert shell(copy, "echo ~").stdout.strip() == str(copy / ".home")


def test_what_needs_a_shell_gets_one() -> None:
    assert words_for_here('stethos query "SELECT 1 > 0"  # why') == ["query", "SELECT 1 > 0"]
    for command in ("stethos query - < file", "stethos query x --csv > y", "stethos run train.py", "python query"):
        assert words_for_here(command) is None


@pytest.mark.parametrize("block", blocks("console fails"), ids=str)
def test_commands_that_fail_do_so_with_the_words_shown(block: Block, copy: Path) -> None:
    (command,) = commands(block)
    result = shell(copy, command)
    shown = [line.removesuffix("...").strip() for line in block.body.splitlines() if not line.startswith("$ ")]
    assert result.returncode != 0 and all(line in result.stderr for line in shown), result.stderr


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_programs_run(block: Block, copy: Path) -> None:
    (copy / "program.py").write_text(block.body)
    result = shell(copy, "python -W error program.py")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("block", blocks("sql"), ids=str)
def test_queries_run_and_find_something(block: Block, workshop: Path) -> None:
    with stethos.open_run(workshop / "runs" / "digits-1") as run:
        assert run.sql(block.body).num_rows


@pytest.mark.parametrize("page", [*PAGES, CONTRIBUTING, *BENCHMARK_PAGES, *DETECTOR_PAGES], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"docs/{page.name}" not in readme] == []


def test_every_page_of_benchmarks_is_reached_from_the_short_one() -> None:
    short = (PROJECT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert len(BENCHMARK_PAGES) > 1
    assert [page.name for page in BENCHMARK_PAGES if f"](benchmarks/{page.name}" not in short] == []


def test_tables_are_written_onto_the_page_that_has_their_markers(tmp_path: Path) -> None:
    from benchmarks.report import write_section

    (tmp_path / "first.md").write_text("# First\n\nWords.\n")
    (tmp_path / "second.md").write_text(
        "# Second\n\n<!-- benchmark: store -->\n\nold\n\n<!-- end of benchmark: store -->\n\nMore.\n"
    )
    write_section(tmp_path, "store", "new\n")
    write_section(tmp_path, "another", "its own\n")
    assert (tmp_path / "first.md").read_text() == "# First\n\nWords.\n"
    written = "# Second\n\n<!-- benchmark: store -->\n\nnew\n\n<!-- end of benchmark: store -->\n\nMore.\n"
    assert (tmp_path / "second.md").read_text() == written
    assert "its own" in (tmp_path / "another.md").read_text()


def test_no_section_of_the_benchmarks_stands_on_two_pages() -> None:
    pages = [PROJECT / "docs" / "benchmarks.md", *BENCHMARK_PAGES]
    names = [name for page in pages for name in re.findall(r"<!-- benchmark: (\S+) -->", page.read_text("utf-8"))]
    assert len(names) > 10
    assert sorted(names) == sorted(set(names))


def test_every_dependency_has_its_line() -> None:
    import tomllib

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    page = (PROJECT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    assert [name for one in listed if (name := re.split(r"[<>=;\s\[]", one)[0]) not in page] == []


def test_the_changelog_has_the_version() -> None:
    assert f"## [{stethos.__version__}]" in (PROJECT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_site_builds_and_every_page_and_link_is_in_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "docs/images" not in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert '"title":"Start here"' in (tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8")


def test_the_cells_of_the_notebook_run(copy: Path) -> None:
    notebook = json.loads((PROJECT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (copy / "cells.py").write_text("\n".join(cells), encoding="utf-8")
    result = shell(copy, "python -W error cells.py")
    assert result.returncode == 0, result.stderr
