"""A test may only be skipped for a reason on the suite's list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stethos

PATHS = [str(Path(__file__).resolve().parents[1]), str(Path(stethos.__file__).resolve().parents[1])]


def outcome_of(tmp_path: Path, test: str) -> str:
    """The last line of a pytest run over one test file, with the suite's conftest as a plug-in."""
    (tmp_path / "test_one.py").write_text(f"import pytest\n{test}")
    options = ["-q", "-p", "conftest", "-p", "no:cacheprovider", "test_one.py"]
    code = f"import sys; sys.path[:0] = {PATHS!r}; import pytest; sys.exit(pytest.main({options!r}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    return result.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "test",
    [
        "@pytest.mark.skip(reason='flaky')\ndef test_it(): pass",
        "def test_it(): pytest.skip('too slow here')",
        "@pytest.mark.skipif(True, reason='not today')\ndef test_it(): pass",
    ],
)
def test_a_skip_without_an_allowed_reason_is_a_failure(tmp_path: Path, test: str) -> None:
    assert outcome_of(tmp_path, test).startswith(("1 failed", "1 error"))


def test_a_skipped_file_is_an_error(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, "pytest.importorskip('no_such_module')").startswith("1 error")


def test_an_allowed_reason_skips(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, "def test_it(): pytest.skip('no GPU')").startswith("1 skipped")


def test_expected_failures_stay_what_they_are(tmp_path: Path) -> None:
    assert outcome_of(tmp_path, "@pytest.mark.xfail\ndef test_it(): assert False").startswith("1 xfailed")
