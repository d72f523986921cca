"""House rules that a reader of the code may rely on."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import stethos

ROOT = Path(stethos.__file__).resolve().parent
# The guard, the callbacks that have its `try` inlined, and the door into other interpreters.
MAY_SWALLOW = {"guard.py", "observe/hotpath.py", "_site/sitecustomize.py"}
MAY_READ_THE_ENVIRONMENT = {"settings.py", "_site/sitecustomize.py"}


@functools.cache
def trees() -> list[tuple[str, ast.Module]]:
    """Every module of the package with its file; parsed once for all rules."""
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(ROOT.rglob("*.py"))
    ]


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package with its file."""
    return ((file, node) for file, tree in trees() for node in ast.walk(tree))


def test_public_names_are_the_promised_ones() -> None:
    assert stethos.__all__ == [
        "Diagnosis", "Run", "archive", "compare", "diagnose", "federation", "log", "open_run", "profile", "runs",
        "span", "watch",
    ]  # fmt: skip
    assert all(callable(getattr(stethos, name)) for name in stethos.__all__)


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and does not raise it again."""
    caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
    is_broad = any(
        name in caught.replace("(", "").replace(")", "").split(", ") for name in ("Exception", "BaseException")
    )
    last = handler.body[-1]
    return is_broad and not (isinstance(last, ast.Raise) and last.exc is None)


def test_only_the_guard_swallows_exceptions() -> None:
    found = {file for file, node in nodes() if isinstance(node, ast.ExceptHandler) and swallows(node)}
    assert found - MAY_SWALLOW == set()


def test_only_the_settings_read_the_environment() -> None:
    words = ("os.environ", "os.getenv", "os.environb", "os.putenv")
    found = {file for file, node in nodes() if isinstance(node, ast.Attribute) and ast.unparse(node) in words}
    assert found - MAY_READ_THE_ENVIRONMENT == set()


def test_only_commands_write_to_stdout() -> None:
    found = {
        file
        for file, node in nodes()
        if isinstance(node, ast.Call)
        and (ast.unparse(node.func) == "print" or ast.unparse(node.func).startswith("sys.stdout.write"))
    }
    assert {file for file in found if not file.startswith("cli/")} == set()


def test_every_module_says_what_it_is_for() -> None:
    assert [file for file, tree in trees() if not ast.get_docstring(tree)] == []


# Who opens files besides the border, and which: none of them belongs to a run that somebody else may have made.
OPENS = {
    "act/alert_sink.py": "the file that alerts are written to",
    "act/alert_state.py": "the user's own state of alerts",
    "act/webhook.py": "a file with a secret",
    "archive/daft_query.py": "objects of an archive",
    "archive/delta.py": "the log of an archive, in which everything was found to be a file of a bounded size",
    "archive/objects.py": "objects in an object store; those in a directory by the border",
    "cli/backtrace.py": "the program that a live process runs",
    "cli/blame.py": "an input that the user names",
    "cli/debug.py": "the user's own history of lines",
    "cli/main.py": "/dev/null",
    "cli/report.py": "what it writes",
    "diagnose/version.py": "our own package",
    "diagnose/configuration.py": "the user's configuration",
    "diagnose/federated/judge.py": "our own package",
    "diagnose/federated/weighing.py": "our own package",
    "export/flame.py": "our own package",
    "export/otlp.py": "what it writes",
    "export/perfetto.py": "what it writes",
    "export/prometheus.py": "what it writes",
    "export/speedscope.py": "what it writes",
    "export/tensorboard.py": "what it writes",
    "federate/site.py": "/proc",
    "live/ask.py": "the registry",
    "live/attach.py": "its own temporary files, /proc",
    "live/attached.py": "its own temporary files",
    "live/checkpoint.py": "a checkpoint that the user names",
    "live/injection.py": "its own temporary files, /proc",
    "live/permission.py": "/proc",
    "live/profiler_trace.py": "its own temporary file",
    "live/pulse.py": "/proc",
    "live/sampling.py": "its own temporary files",
    "live/stack.py": "/proc",
    "live/steer.py": "/proc",
    "live/stuck.py": "/proc",
    "live/watchdog.py": "/proc",
    "live/weights.py": "a checkpoint that the user names",
    "observe/program_line.py": "the user's program",
    "observe/session.py": "the registry",
    "record/border.py": "the border itself",
    "record/place.py": "/proc",
    "record/ring.py": "the ring that this process has just made",
    "store/limit.py": "/proc",
    "web/page_files.py": "our own package",
    "web/commands.py": "its own audit",
    "web/links.py": "the user's own links",
    "web/keys.py": "the server's keys",
}
_OPENING = (
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "memmap", "fromfile", "ParquetFile", "mmap",
    "ZipFile", "TarFile", "FileIO", "OSFile", "memory_map", "safe_open", "getline", "getlines", "copyfile", "copy2",
    "copytree", "DeltaTable", "DictReader", "open_input_file", "open_input_stream", "open_output_stream", "savez",
    "save_file", "read_history_file", "write_history_file",
)  # fmt: skip
_OPENING_OF = (
    "sqlite3.connect", "np.load", "numpy.load", "np.loadtxt", "torch.load", "pq.read_table", "pq.read_metadata",
    "pq.read_schema", "shutil.copy", "shutil.move", "daft.read_parquet", "ds.dataset", "pd.read_parquet",
)  # fmt: skip
_OPENING_SQL = re.compile(
    r"\b(?:read_\w+|parquet_\w+|\w+_scan|sniff_csv|glob)\s*\(|\bATTACH\b|\bCOPY\b[^.]*\b(?:FROM|TO)\b"
)
# DuckDB opens Parquet files by their paths; `store.sealed` has looked at each before, and the engine is shut in there.
OPENS_BY_SQL = {"store/engine.py"}


def opens_by_path(call: ast.Call) -> bool:
    """Whether a call may open a file: by a path, and not by a descriptor or file that the border has opened."""
    name = ast.unparse(call.func)
    if name.rpartition(".")[2] not in _OPENING and name not in _OPENING_OF:
        return False
    given = call.args[0] if call.args else None
    text = ast.unparse(given) if given is not None else ""
    is_opened = text.startswith(("open_file(", "io.BytesIO(")) and name != "os.open"
    is_opened |= name != "os.open" and isinstance(given, ast.Name) and given.id in ("descriptor", "opened", "file")
    is_ours = name in ("webbrowser.open", "session.open", "self.session.open", "self.open")
    return not is_opened and not is_ours


def test_only_the_border_opens_the_files_of_a_run() -> None:
    found = {file for file, node in nodes() if isinstance(node, ast.Call) and opens_by_path(node)}
    found |= {file for file, node in nodes() if isinstance(node, ast.Attribute) and node.attr == "DeltaTable"}
    found -= {file for file in found if file.startswith("lab/")}  # the laboratory's own data
    assert found - {"store/database.py", "store/findings.py"} == set(OPENS)


def test_only_the_engine_opens_files_by_sql() -> None:
    texts = ((file, node.value) for file, node in nodes() if isinstance(node, ast.Constant))
    assert {file for file, text in texts if isinstance(text, str) and _OPENING_SQL.search(text)} == OPENS_BY_SQL


@pytest.mark.parametrize("code", [
    "open(path)", "open(file_name)", "os.open(descriptor)", "path.read_bytes()", "np.load(path)",
    "zipfile.ZipFile(path)", "pq.read_table(path)", "linecache.getline(path, 3)", "sqlite3.connect(path)",
    "gzip.open(path)",
])  # fmt: skip
def test_what_opens_a_file_is_known(code: str) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call) and opens_by_path(call)


@pytest.mark.parametrize("code", ["open(descriptor)", "open(open_file(path), 'rb')", "session.open()", "len(path)"])
def test_what_the_border_has_opened_may_be_read(code: str) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call) and not opens_by_path(call)


def test_programs_of_ours_are_started_without_the_current_directory() -> None:
    """By `wiring.PYTHON`; what the user has us run is started as Python starts it."""
    starts = re.compile(r"sys\.executable,\s*[\"']-|drainer_python\(\),\s*[\"']-(?!P)")
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert {file for file, text in texts.items() if starts.search(text)} == {"cli/run.py", "wiring.py"}


def test_no_two_classes_have_the_same_name() -> None:
    homes: dict[str, list[str]] = {}
    for file, node in nodes():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes.setdefault(node.name, []).append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
