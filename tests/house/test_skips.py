"""A test may only be skipped for a reason on the suite's list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stethos

PATHS = [str(Path(__file__).resolve().parents[1]), str(Path(stethos.__file__).resolve().parents[1])]
# A test of each kind, and what the suite makes of it.
KINDS = {
    "@pytest.mark.skip(reason='flaky')\ndef test_it(): pass": "ERROR",
    "def test_it(): pytest.skip('too slow here')": "FAILED",
    "@pytest.mark.skipif(True, reason='not today')\ndef test_it(): pass": "ERROR",
    "pytest.importorskip('no_such_module')": "ERROR",
    "def test_it(): pytest.skip('no GPU')": "SKIPPED",
    "@pytest.mark.xfail\ndef test_it(): assert False": "XFAIL",
    "def test_it(): pass": "PASSED",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcome of each kind of test, in one pytest with the suite's conftest as a plug-in."""
    place = tmp_path_factory.mktemp("kinds")
    files = {f"test_{number}.py": test for number, test in enumerate(KINDS)}
    for name, test in files.items():
        (place / name).write_text(f"import pytest\n{test}")
    options = ["-q", "-rA", "-p", "conftest", "-p", "no:cacheprovider", "--continue-on-collection-errors", *files]
    code = f"import sys; sys.path[:0] = {PATHS!r}; import pytest; sys.exit(pytest.main({options!r}))"
    said = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=False).stdout
    summary = said.partition("short test summary info")[2].splitlines()
    return {test: line.split()[0] for name, test in files.items() for line in summary if name in line}


@pytest.mark.parametrize(("test", "outcome"), KINDS.items())
def test_a_skip_needs_an_allowed_reason(outcomes: dict[str, str], test: str, outcome: str) -> None:
    assert outcomes[test] == outcome
