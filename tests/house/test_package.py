"""What is in the wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import stethos

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("page_is_built")
def test_the_source_archive_holds_the_page_so_that_nobody_who_installs_it_needs_node(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=PROJECT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    subprocess.run([*build, "-t", "wheel"], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "stethos/web/static/index.html" in zipfile.ZipFile(wheel).namelist()
    assert not (unpacked / "web" / "node_modules").exists()


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"stethos-{stethos.__version__}-")
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "stethos/_site/sitecustomize.py",
        "stethos/py.typed",
        "stethos/cli/main.py",
        "stethos/export/flame_page.html",
    } <= set(names)
    assert {name.split("/")[0] for name in names} == {"stethos", f"stethos-{stethos.__version__}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if "__pycache__" in name]
