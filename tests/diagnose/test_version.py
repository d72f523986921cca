"""A kept diagnosis holds while rows, code and detectors are the same; seeing that loads no detector."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import RunBuilder

from stethos.diagnose.api import configured_detectors, look, version_of
from stethos.diagnose.life import keep
from stethos.diagnose.version import usual_version
from stethos.store.run import Run, open_run

ASK = """
import sys
from pathlib import Path
from stethos.store.run import open_run
from stethos.view.finding import findings_of
with open_run(Path(sys.argv[1])) as run:
    print([one.code for one in findings_of(run).findings], "stethos.diagnose.detectors" in sys.modules)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of this user whose loss was NaN."""
    path = tmp_path / "runs" / "nan"
    with RunBuilder(path) as made:
        process = made.process(is_alive=False)
        process.steps(30, losses=[float("nan")] * 30)
        process.drain()
        process.finish()
    return open_run(path)


def told(run: Run, place: Path) -> str:
    words = [sys.executable, "-c", ASK, str(run.path)]
    return subprocess.run(words, capture_output=True, text=True, check=True, cwd=place).stdout.strip()


def test_a_kept_diagnosis_is_shown_without_loading_a_detector(run: Run, tmp_path: Path) -> None:
    assert told(run, tmp_path).endswith("True")
    keep(look(run, configured_detectors()), run.path)
    assert told(run, tmp_path) == "['NUM001'] False"


def test_other_thresholds_make_it_anew(run: Run, tmp_path: Path) -> None:
    keep(look(run, configured_detectors()), run.path)
    (tmp_path / "stethos.toml").write_text('[diagnose]\nsilence = ["non-finite-loss"]\n')
    assert "NUM001" not in told(run, tmp_path)


def test_the_version_says_which_detectors_looked(run: Run) -> None:
    usual = usual_version(run)
    assert usual is not None and usual == version_of(run, configured_detectors())
    others = configured_detectors({"straggler": {"times": 9.0}}), configured_detectors(silence=["straggler"])
    assert len({usual, *(version_of(run, one) for one in others)}) == 3
