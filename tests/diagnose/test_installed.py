"""Detectors of other packages: the example is built and installed, and found by its real entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from stethos import lab

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "detector_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which the example's wheel has been installed."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory / "dist")]
    subprocess.run(command, cwd=EXAMPLE, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(directory / "site")  # all that pip does with a pure wheel without scripts
    return directory / "site"


def python(*words: object, site: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)


def stethos(*words: object, site: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "stethos.cli.main", *words, site=site)


def test_an_installed_detector_is_listed_and_explained(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(stethos("diagnose", "--list", "--json", site=installed).stdout)
    assert "LATE001" in [one["code"] for one in listed]
    assert "LATE001" not in stethos("diagnose", "--list", "--json", site=tmp_path).stdout
    assert "more time on its upload" in stethos("diagnose", "--explain", "late-client", site=installed).stdout


def test_it_finds_its_fault_in_a_run_and_its_thresholds_can_be_set(installed: Path, tmp_path: Path) -> None:
    fault = lab.Fault("slow-link", clients="c2", strength=20.0)
    path = lab.federate("digits", clients=4, rounds=4, faults=[fault], dir=tmp_path, progress=False).path
    found = stethos("diagnose", "-t", path, "--json", site=installed)
    findings = [one for one in json.loads(found.stdout)["findings"] if one["code"] == "LATE001"]
    assert [one["clients"] for one in findings] == [["c2"]], found.stdout
    for option in (["--set", "late-client.times=1e9"], ["--silence", "LATE001"]):
        assert "LATE001" not in [
            one["code"]
            for one in json.loads(stethos("diagnose", "-t", path, "--json", *option, site=installed).stdout)["findings"]
        ]


def test_the_examples_own_tests_pass(installed: Path) -> None:
    found = python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", EXAMPLE / "tests", site=installed)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise RuntimeError('not today')", "RuntimeError: not today"),
        ("Detector = 7", "not a dataclass"),
        ("from stethos.diagnose.numbers.dead_units import DeadUnits as Detector", "is taken"),
        ("import dataclasses\n@dataclasses.dataclass\nclass Detector:\n    code = 3", "its 'code' is not a str"),
    ],
)
def test_one_that_cannot_be_used_is_left_out_and_named(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "broken_detector.py").write_text(source)
    facts = tmp_path / "broken-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[stethos.detectors]\nbroken = broken_detector:Detector\n")
    found = stethos("diagnose", "--list", site=tmp_path)
    assert found.returncode == 0 and "NUM001" in found.stdout
    assert "detector 'broken' of broken is left out" in found.stderr and words in found.stderr
