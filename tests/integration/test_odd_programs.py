"""Programs that do what few do: each trains to the same weights as without Stethos, and its steps are recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import collected, environment

STEPS = 12
TRAINING = """
import torch

class Priced:
    '''A loss that is no tensor but has one.'''
    def __init__(self, inner):
        self.inner = inner
    def backward(self):
        self.inner.backward()

def batches(inputs, targets):
    for _ in range(12):
        yield inputs, targets

def train(wrap=lambda loss: loss, batches=batches):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, targets in batches(torch.randn(16, 4), torch.randn(16, 1)):
        optimizer.zero_grad()
        wrap(torch.nn.functional.mse_loss(model(inputs), targets)).backward()
        optimizer.step()
    print("weights", [value.hex() for value in model[2].weight.flatten().tolist()], flush=True)
"""
PROGRAMS = {
    "plain": "from training import train; train()",
    "a generator of batches, made anew for each pass": (
        "import itertools, training\n"
        "def halves(*data):\n"
        "    yield from (itertools.islice(training.batches(*data), 6))\n"
        "    yield from (itertools.islice(training.batches(*data), 6))\n"
        "training.train(batches=halves)"
    ),
    "a loss that is no tensor": "import training; training.train(training.Priced)",
    "fork": "import os\nfrom training import train\npid = os.fork()\nos.waitpid(pid, 0) if pid else train()",
    "exec": (
        "import os, sys\n"
        "if len(sys.argv) < 2:\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
        "from training import train; train()"
    ),
    "daemon": (
        "import os, sys, time\n"
        "reader, writer = os.pipe()\n"
        "if os.fork():\n"
        "    os.close(writer); os.read(reader, 1); sys.exit()\n"
        "os.setsid()\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "from training import train; train(); os.close(writer)"
    ),
    "torch is imported late, in a thread": (
        "import threading\n"
        "def work():\n"
        "    from training import train; train()\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()"
    ),
    "torch is imported twice": (
        "import sys, torch\n"
        "kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name in ('torch', 'torch.optim')}\n"
        "sys.modules.update(kept)\n"
        "import importlib\n"
        "torch.optim.Adam = importlib.reload(sys.modules['torch.optim.adam']).Adam\n"
        "from training import train; train()"
    ),
    "torch is patched": (
        "import torch\n"
        "backward, step, save = torch.Tensor.backward, torch.optim.Adam.step, torch.autograd.backward\n"
        "torch.Tensor.backward = lambda self, *args, **named: backward(self, *args, **named)\n"
        "torch.optim.Adam.step = lambda self, *args, **named: step(self, *args, **named)\n"
        "torch.autograd.backward = lambda *args, **named: save(*args, **named)\n"
        "from training import train; train()"
    ),
    "a debugger's trace": (
        "import sys\ncalls = []\n"
        "def look(frame, event, arg):\n"
        "    calls.append(event); return None\n"
        "from training import train\nsys.settrace(look); train(); sys.settrace(None)\nassert calls"
    ),
}
TOOLS = {
    "pytest": ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_training.py"],
    "cProfile": ["-m", "cProfile", "-o", "times.prof", "train.py"],
    "pdb": ["-m", "pdb", "-c", "continue", "-c", "quit", "train.py"],
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that the training ends with by itself."""
    here = tmp_path_factory.mktemp("bare")
    (here / "training.py").write_text(TRAINING)
    return weights_of(here, [sys.executable, "-c", PROGRAMS["plain"]])


def weights_of(here: Path, words: list[str]) -> str:
    done = subprocess.run(
        words, capture_output=True, text=True, cwd=here, env=environment(), stdin=subprocess.DEVNULL, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    return line


def check(here: Path, words: list[str], expected: str) -> None:
    (here / "training.py").write_text(TRAINING)
    assert weights_of(here, [sys.executable, "-m", "stethos.cli.main", "run", *words]) == expected
    (path,) = (here / "runs").iterdir()
    run, _ = collected(path)
    assert run.rows("SELECT count(*) FROM steps").values == [(STEPS,)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_odd_program_trains_as_ever_and_is_recorded(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[name])
    check(tmp_path, ["train.py"], expected)


@pytest.mark.parametrize("name", TOOLS)
def test_a_training_under_a_tool_is_recorded(tmp_path: Path, name: str, expected: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS["plain"])
    (tmp_path / "test_training.py").write_text("from training import train\ndef test_it():\n    train()\n")
    check(tmp_path, [sys.executable, *TOOLS[name]], expected)
