"""`stethos demo` ends with the right verdict on the hidden client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stethos


def test_the_demo_names_the_hidden_client(tmp_path: Path) -> None:
    source = str(Path(stethos.__file__).resolve().parents[1])
    result = subprocess.run(
        [sys.executable, "-m", "stethos.cli.main", "demo", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert result.returncode == 0, result.stderr
    assert "labels class 1 as class 2" in result.stdout and "label-flip" in result.stdout
    assert "PROVED: without client c5: accuracy" in result.stdout
    assert "the diagnosis named it (exit status 1)" in result.stdout
    assert f"serve --dir {tmp_path}" in result.stdout
