"""A real Flower simulation on text, in which one client has labels of one class flipped."""

from __future__ import annotations

from pathlib import Path

from flower_runs import Rows, recorded, run_on_ray

import stethos

EXAMPLE = Path(__file__).parents[2] / "examples" / "text_federation.py"


def test_the_client_with_flipped_labels_is_named(tmp_path: Path) -> None:
    run_on_ray(tmp_path, "flower_text.py", example=str(EXAMPLE), rounds=4)
    run = recorded(tmp_path / "texts")
    found = [one for one in stethos.diagnose(run).findings if one.name == "faulty-client"]
    assert [(one.subject.clients, one.kind, one.detail["guilt"]) for one in found] == [
        ((Rows(run).client(5),), "label-flip", "buggy")
    ]
    assert (found[0].detail["source"], found[0].detail["target"]) == (0, 2)
