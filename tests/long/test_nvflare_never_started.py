"""An NVFlare job whose client apps never start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from flower_runs import DEADLINE_S
from processes import PROGRAMS, environment

from stethos.diagnose.api import diagnose
from stethos.store.run import open_run


def test_clients_whose_app_never_started_are_named(tmp_path: Path) -> None:
    own = environment(TMPDIR=str(tmp_path), XDG_RUNTIME_DIR=str(tmp_path))
    own["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), own["PATH"]))
    own["PYTHONPATH"] = os.pathsep.join((own["PYTHONPATH"], str(PROGRAMS)))
    words = [sys.executable, str(PROGRAMS / "nvflare_broken.py"), str(tmp_path)]
    subprocess.run(words, cwd=tmp_path, env=own, check=False, capture_output=True, timeout=DEADLINE_S)
    with open_run(tmp_path / "run") as run:
        found = run.rows("SELECT client, status, error FROM client_rounds ORDER BY client").values
        assert [row[:2] for row in found] == [("site-1", "dropped"), ("site-2", "dropped")]
        assert all("its app has not started" in row[2] for row in found)
    findings = [one for one in diagnose(tmp_path / "run").findings if one.name == "missing-update"]
    assert [one.subject.clients for one in findings] == [("site-1", "site-2")]
