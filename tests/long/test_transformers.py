"""Hugging Face `Trainer` tells its epochs and evaluations; install `transformers` and `accelerate` to run this."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from stethos.store.run import open_run

PROGRAM = Path(__file__).parents[1] / "programs" / "trainer.py"
BESIDE = Path(sys.executable).parent


def test_the_trainer_tells_epochs_evaluations_and_accumulation(tmp_path: Path) -> None:
    alone = subprocess.run([sys.executable, PROGRAM, tmp_path], capture_output=True, text=True, check=True).stdout
    command = [BESIDE / "stethos", "run", "--quiet", "--dir", tmp_path, "--name", "job", sys.executable, PROGRAM]
    beside = subprocess.run([*command, tmp_path], capture_output=True, text=True, check=True).stdout
    assert beside.splitlines()[-1] == alone.splitlines()[-1]
    with open_run(tmp_path / "job") as run:
        spans = run.rows("SELECT name, fields FROM spans ORDER BY t_ns").values
        (config,) = run.rows("SELECT config FROM processes WHERE steps > 0").values[0]
    epochs = [json.loads(fields) for name, fields in spans if name == "epoch"]
    assert [(one["number"], one["steps"]) for one in epochs] == [(0, 6), (1, 6), (2, 6)]
    assert [name for name, _ in spans].count("evaluation") == 3
    assert json.loads(config)["gradient_accumulation_steps"] == 2
