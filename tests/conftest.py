"""Shared fixtures; `builders` is importable from every test."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from builders import RunBuilder

pytest_plugins = ["recorded"]

# What a script starts in its background ignores Ctrl-C, and so would every program of the tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing that a slow machine could fail, and the same examples everywhere.
hypothesis.settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

# The only reasons for which a test may be skipped; any other skip is a failure.
ALLOWED_SKIPS = ("no GPU", "no browser")

# Files that take a minute and more: begun first, so that none of them is alone at the end.
LONGEST = (
    "house/test_docs.py", "integration/test_injected_failures.py", "live/test_hangs.py", "web/test_browser.py",
    "integration/test_kill.py", "integration/test_identity.py", "adapters/test_flower_ray.py",
    "adapters/test_nvflare.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    """What thousands of tests are made of stays until the end: collections of garbage need not look at it."""
    gc.collect()
    gc.freeze()


class _AtOnce:
    """Says what failed when it fails: a run of the suite that is stopped has no summary."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._reporter.write_line(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext}")


def pytest_sessionstart(session: pytest.Session) -> None:
    plugins = session.config.pluginmanager
    if not hasattr(session.config, "workerinput") and (reporter := plugins.get_plugin("terminalreporter")):
        plugins.register(_AtOnce(reporter))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_excuses((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_excuses((yield))


def _without_excuses(report: Report) -> Report:
    """The report, failed if it is a skip for a reason that is not on the list."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if reason.removeprefix("Skipped: ") not in ALLOWED_SKIPS:
            report.outcome = "failed"
            report.longrepr = f"skipped for a reason that is not on the suite's list: {reason}"
    return report


@pytest.fixture(autouse=True)
def own_registry(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees, or leaves, registered processes of anybody else."""
    directory = tmp_path_factory.mktemp("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    return directory / "stethos"


@pytest.fixture
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for runs, which commands use by default."""
    directory = tmp_path / "runs"
    directory.mkdir()
    monkeypatch.setenv("STETHOS_DIR", str(directory))
    return directory


@pytest.fixture
def run(runs_dir: Path) -> Iterator[RunBuilder]:
    """A run named `demo` without processes yet."""
    with RunBuilder(runs_dir / "demo") as builder:
        yield builder


@pytest.fixture(scope="session")
def page_is_built() -> None:
    """`make test` builds the page; a bare pytest builds it here."""
    from stethos.web.page_files import PageFiles

    if not PageFiles().is_built:
        project = Path(__file__).resolve().parents[1]
        subprocess.run([sys.executable, str(project / "hatch_build.py")], check=True, timeout=300)
