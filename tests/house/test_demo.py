"""`stethos demo` ends with the right verdict on the hidden client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import stethos

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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


def test_the_federation_on_text_names_who_has_labels_mixed_up(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "text_federation.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(stethos.__file__).resolve().parents[1])},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("client site-5 labels class 0 as class 2 (confidence 0.9")
