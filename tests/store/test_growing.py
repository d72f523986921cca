"""Reading a run in one process while another one writes, seals and retires it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stethos.store.find import find_run
from stethos.store.run import Run

_TESTS = Path(__file__).resolve().parents[1]
_WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from builders import RunBuilder

with RunBuilder(Path({path!r})) as run:
    process = run.process()
    print("ready", flush=True)
    sys.stdin.readline()
    for visit in range(400):
        if visit % 100 == 50:
            sys.stdin.readline()  # not before it has been looked at again
        process.steps(50)
        process.layers(["a", "b", "c"], step=visit)
        process.drain()
        if visit % 7 == 6:
            process.collector.seal()
        if visit % 50 == 49:
            layers = [file for file in process.collector.sealed if file["table"] == "layers"]
            process.collector.retire(layers[0])
    process.finish()
"""


def test_a_growing_run_is_seen_whole_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "grow"
    code = _WRITER.format(tests=str(_TESTS), path=str(path))
    writer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdin and writer.stdout and writer.stdout.readline() == "ready\n"
    opened = Run(find_run(str(path)))
    writer.stdin.write("go\n")
    writer.stdin.flush()
    seen, looks = 0, 0
    is_over = False
    while not is_over:
        is_over = writer.poll() is not None
        count, distinct, last = opened.rows("SELECT count(*), count(DISTINCT step), max(step) FROM steps").values[0]
        assert count == distinct == (0 if last is None else last + 1)  # nothing twice, nothing missing
        assert count >= seen
        opened.rows("SELECT count(*) FROM layers")
        summary = opened.summary()
        assert summary["rows_lost"] == 0
        assert summary["rows_produced"] == summary["rows_stored"] + summary["rows_dropped"]
        seen, looks = count, looks + 1
        if looks <= 4:
            writer.stdin.write("on\n")
            writer.stdin.flush()
    assert writer.returncode == 0
    assert seen == 20_000 and looks > 4
    assert summary["state"] == "ended" and summary["drops"] == {"size_limit": 8 * 21}
    writer.stdin.close()
    writer.stdout.close()
