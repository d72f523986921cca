"""House rules that a reader of the code may rely on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import stethos

ROOT = Path(stethos.__file__).resolve().parent
# The guard, the callbacks that have its `try` inlined, and the door into other interpreters.
MAY_SWALLOW = {"guard.py", "observe/hotpath.py", "_site/sitecustomize.py"}
MAY_READ_THE_ENVIRONMENT = {"settings.py", "_site/sitecustomize.py"}


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package with its file."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(ROOT).as_posix(), node


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
    without = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.rglob("*.py"))
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert without == []


# Who opens files besides the border, and which: none of them belongs to a run that somebody else may have made.
OPENS = {
    "act/alert_rule.py": "the user's rules",
    "act/alert_sink.py": "the file that alerts are written to",
    "act/alert_state.py": "the user's own state of alerts",
    "act/webhook.py": "a file with a secret",
    "cli/main.py": "/dev/null",
    "cli/report.py": "what it writes",
    "cli/task/saved_trace.py": "a trace that the user names",
    "diagnose/api.py": "our own package",
    "diagnose/configuration.py": "the user's configuration",
    "diagnose/federated/judge.py": "our own package",
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
    "live/registry.py": "the registry",
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
    "record/provenance.py": "the user's repository",
    "record/ring.py": "the ring that this process has just made",
    "store/limit.py": "/proc",
    "web/page_files.py": "our own package",
    "web/commands.py": "its own audit",
    "web/keys.py": "the server's keys",
}
_OPENING = ("open", "read_text", "read_bytes", "write_text", "write_bytes", "memmap", "fromfile", "ParquetFile", "mmap")


def opens_by_path(call: ast.Call) -> bool:
    """Whether a call may open a file: by a path, and not by a descriptor or file that the border has opened."""
    name = ast.unparse(call.func)
    if name.rpartition(".")[2] not in _OPENING and name != "sqlite3.connect":
        return False
    given = ast.unparse(call.args[0]) if call.args else ""
    is_opened = given.startswith(("open_file(", "descriptor", "opened", "file")) and name != "os.open"
    is_ours = name in ("webbrowser.open", "session.open", "self.session.open", "self.open")
    return not is_opened and not is_ours


def test_only_the_border_opens_the_files_of_a_run() -> None:
    found = {file for file, node in nodes() if isinstance(node, ast.Call) and opens_by_path(node)}
    found -= {file for file in found if file.startswith("lab/")}  # the laboratory's own data
    assert found - {"store/database.py", "store/findings.py"} == set(OPENS)


def test_no_two_classes_have_the_same_name() -> None:
    homes: dict[str, list[str]] = {}
    for file, node in nodes():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes.setdefault(node.name, []).append(file)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
