"""Flower's SecAgg+: the server sees means over groups alone, and the faulty client is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flower_runs import recorded, run_on_ray

import stethos
from stethos.lab.data import load


def test_a_faulty_client_is_named_from_what_secagg_reveals(tmp_path: Path) -> None:
    run_on_ray(tmp_path, "flower_secagg.py", str(tmp_path))
    run = recorded(tmp_path / "secagg")
    rounds = run.rows("SELECT round, count(*) FROM group_sums GROUP BY round ORDER BY round").values
    assert [tuple(row) for row in rounds] == [(number, 3) for number in range(1, 8)]
    found = stethos.diagnose(run).findings
    faulty = (tmp_path / "faulty").read_text()
    assert [(one.name, one.subject.clients) for one in found] == [("faulty-in-groups", (faulty,))]
    data, model = load("digits", seed=0), np.load(tmp_path / "model.npy").reshape(64, 10)
    assert ((data.test_x.numpy().reshape(-1, 64) @ model).argmax(1) == data.test_y.numpy()).mean() > 0.7
