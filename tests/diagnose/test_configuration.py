"""Thresholds and silenced detectors: in Python, on the command line and in stethos.toml."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stethos.cli.diagnose import thresholds_of
from stethos.diagnose.api import configured_detectors
from stethos.diagnose.configuration import Configuration, find_configuration
from stethos.diagnose.detectors import DETECTORS
from stethos.diagnose.system.straggler import Straggler
from stethos.errors import UsageError


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory two levels below where stethos.toml may be."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def straggler(**options: object) -> Straggler:
    (one,) = (one for one in configured_detectors(**options) if isinstance(one, Straggler))  # type: ignore[arg-type]
    return one


def test_without_a_file_the_defaults_hold(inside: Path) -> None:
    assert straggler() == Straggler() and len(configured_detectors()) == len(DETECTORS)


def test_the_nearest_file_holds_and_the_caller_has_the_last_word(inside: Path) -> None:
    (inside / "stethos.toml").write_text("[diagnose]\nsilence = ['SYS002']")
    (inside / "a" / "stethos.toml").write_text(
        "[other]\nx = 1\n[diagnose]\nsilence = ['label-skew']\n[diagnose.thresholds.straggler]\ntimes = 4\nrounds = 5"
    )
    assert (straggler().times, straggler().rounds) == (4, 5)
    assert straggler(thresholds={"SYS001": {"times": 7}}) == Straggler(times=7, rounds=5)
    codes = {detector.code for detector in configured_detectors(silence=["SYS007"])}
    assert set(DETECTORS) - codes == {"FED010", "SYS007"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[diagnose", "cannot be read"),
        ("a." * 30_000 + "b = 1", "more than 100 parts"),
        ("diagnose = 3", "diagnose is 3"),
        ("[diagnose]\nsilent = []", "no setting diagnose.silent"),
        ("[diagnose]\nsilence = 'straggler'", "diagnose.silence is"),
        ("[diagnose]\nsilence = ['stragler']", "no detector 'stragler'"),
        ("[diagnose]\nthresholds = 3", "diagnose.thresholds is 3"),
        ("[diagnose.thresholds.stragler]\ntimes = 3", "no detector 'stragler'"),
        ("[diagnose.thresholds.straggler]\ntime = 3", "straggler has no threshold 'time'"),
        ("[diagnose.thresholds.straggler]\ntimes = 'three'", "straggler.times is a number"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_name(inside: Path, text: str, complaint: str) -> None:
    path = inside / "stethos.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        find_configuration()
    assert str(path) in caught.value.message and caught.value.hint


def test_a_file_of_a_terabyte_is_refused_and_a_link_is_followed(inside: Path) -> None:
    path = inside / "stethos.toml"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(UsageError, match="larger than"):
        find_configuration()
    path.unlink()
    (inside / "mine.toml").write_text("[diagnose]\nsilence = ['label-skew']")
    path.symlink_to(inside / "mine.toml")
    assert find_configuration().silence == ("label-skew",)


def test_thresholds_on_the_command_line() -> None:
    assert thresholds_of(["straggler.times=4", "straggler.share=0.5", "SYS003.rounds=2"]) == {
        "straggler": {"times": 4, "share": 0.5},
        "SYS003": {"rounds": 2},
    }


@pytest.mark.parametrize("setting", ["straggler", "straggler.times", "times=4", "straggler.times=many"])
def test_a_setting_that_is_none(setting: str) -> None:
    with pytest.raises(UsageError):
        thresholds_of([setting])


def test_a_deleted_working_directory_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert find_configuration() == Configuration()
