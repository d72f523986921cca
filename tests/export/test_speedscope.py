"""A run as a speedscope file, checked with the schema that speedscope publishes.

`speedscope-schema.json` is `file-format-schema.json` of speedscope 1.25.0 (MIT licence), unchanged.
"""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema

from stethos.export import speedscope
from stethos.store.run import Run

SCHEMA = json.loads((Path(__file__).parent / "speedscope-schema.json").read_text(encoding="utf-8"))


def test_the_file_is_what_speedscope_reads(federation: Run, tmp_path: Path) -> None:
    written = speedscope.write(federation, tmp_path / "run.json")
    content = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    jsonschema.validate(content, SCHEMA)
    assert written.counts["step"] == 27
    opened = 0
    for profile in content["profiles"]:
        stack, last = [], profile["startValue"]
        for event in profile["events"]:
            assert event["at"] >= last
            last = event["at"]
            if event["type"] == "O":
                stack.append(event["frame"])
                opened += 1
            else:
                assert stack.pop() == event["frame"]
        assert stack == [] and profile["endValue"] == last
    assert opened == sum(written.counts.values())
    frames = [frame["name"] for frame in content["shared"]["frames"]]
    assert {"round 1", "aggregate", "client", "forward", "step 0"} <= set(frames)
