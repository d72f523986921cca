"""Try the wheel of a directory in an empty environment: python tools/try_wheel.py DIST [--torch].

Makes a virtual environment, installs the wheel with what it depends on, and runs away from the sources what a newcomer
runs: help, the table of runs, a query, a report and the dashboard. With --torch also the recording of a training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(50):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""
EVENTS = """
from pathlib import Path
from stethos.store.foreign.run_writer import write_run
from stethos.store.foreign.value import LoggedNumber
write_run(Path("runs/made"), Path("made"), [LoggedNumber("loss", n, 10**18 + n, 1 / (n + 1)) for n in range(20)])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--torch", action="store_true", help="install torch too, and record a training")
    choice = parser.parse_args()
    (wheel,) = choice.dist.resolve().glob("*.whl")
    with tempfile.TemporaryDirectory(prefix="stethos-wheel-") as scratch:
        place = Path(scratch)
        venv.create(place / "venv", with_pip=True)
        bin = place / "venv" / "bin"
        more = ["torch"] if choice.torch else []
        run(bin / "pip", "install", "-qq", "--constraint", ROOT / "constraints.txt", wheel, *more, cwd=place)
        try_out(bin, place)
        if choice.torch:
            (place / "train.py").write_text(TRAINING, encoding="utf-8")
            run(bin / "stethos", "run", "--name", "trained", "train.py", cwd=place)
            assert '"steps": 50' in run(bin / "stethos", "query", "-t", "trained", "--json", COUNT, cwd=place)
    sys.stdout.write(f"{wheel.name} works in an empty environment\n")


COUNT = "SELECT count(*) AS steps FROM steps"


def try_out(bin: Path, place: Path) -> None:
    """What a newcomer runs first."""
    stethos = bin / "stethos"
    assert "diagnose" in run(stethos, "--help", cwd=place)
    run(bin / "python", "-c", EVENTS, cwd=place)
    assert "made" in run(stethos, "ls", cwd=place)
    asked = "SELECT count(*) AS values FROM metrics"
    assert json.loads(run(stethos, "query", "-t", "made", "--json", asked, cwd=place)) == [{"values": 20}]
    run(stethos, "diagnose", "-t", "made", cwd=place, statuses=(0, 1))
    run(stethos, "report", "-t", "made", "-o", "report.html", cwd=place)
    assert (place / "report.html").stat().st_size > 50_000
    words = [str(stethos), "serve", "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=place, env=clean()) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline() or sys.exit("the dashboard did not start")
        try:
            url = json.loads(text)["url"].partition("#")[0]
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert b"<script" in answer.read()
        finally:
            server.terminate()


def run(*words: str | Path, cwd: Path, statuses: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=clean(), check=False, capture_output=True, text=True)
    if done.returncode not in statuses:
        sys.exit(
            f"{' '.join(map(str, words[:4]))} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


def clean() -> dict[str, str]:
    """The environment without whatever points at the sources."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STETHOS_", "VIRTUAL"))}


if __name__ == "__main__":
    main()
