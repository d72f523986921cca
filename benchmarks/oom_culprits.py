"""Runs programs on a GPU that run out of memory, and sees whether the line to blame is named.

python -m benchmarks.oom_culprits
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import stethos

_START = "from stethos.cli.main import console; console()"
_HEAD = """\
import collections
import torch
from torch import nn
torch.cuda.set_per_process_memory_fraction(0.03)
model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept, cache, recent = [], {}, collections.deque()
def step(inputs):
    optimizer.zero_grad()
    output = model(inputs)
    loss = (output - inputs).square().mean()
    loss.backward()
    optimizer.step()
    return output, loss
"""
# The line with the word is the one to name: that fills a container, or that asks for too much.
PROGRAMS = {
    "outputs in a list": """
for number in range(10**6):
    output, _ = step(torch.randn(4096, 1024, device="cuda"))
    kept.append(output.detach())  # culprit
""",
    "graphs in a list": """
total = 0
for number in range(10**6):
    output = model(torch.randn(4096, 1024, device="cuda"))
    kept.append(output.square().mean())  # culprit
""",
    "a cache in a dict": """
for number in range(10**6):
    output, _ = step(torch.randn(4096, 1024, device="cuda"))
    cache[number] = output.detach()  # culprit
""",
    "a deque": """
for number in range(10**6):
    inputs = torch.randn(4096, 1024, device="cuda")
    recent.append(inputs)  # culprit
    step(inputs)
""",
    "an attribute of an object": """
class Logger:
    def __init__(self):
        self.outputs = []
    def note(self, output):
        self.outputs.append(output)  # culprit
logger = Logger()
for number in range(10**6):
    output, _ = step(torch.randn(4096, 1024, device="cuda"))
    logger.note(output.detach())
""",
    "one block that is too large": """
step(torch.randn(64, 1024, device="cuda"))
scores = torch.empty(200000, 200000, device="cuda")  # culprit
""",
    "a batch that is too large": """
step(torch.randn(64, 1024, device="cuda"))
hidden = model[1](model[0](torch.randn(200000, 1024, device="cuda")))  # culprit
""",
    "a model that is too large": """
step(torch.randn(64, 1024, device="cuda"))
big = nn.Linear(40000, 40000, device="cuda")  # culprit
""",
    "optimizer state": """
big = nn.Linear(18000, 18000, bias=False, device="cuda")
optimizer = torch.optim.AdamW(big.parameters())
big.weight.grad = torch.ones_like(big.weight)
optimizer.step()  # culprit
""",
    "gradients kept in a list": """
for number in range(10**6):
    step(torch.randn(512, 1024, device="cuda"))
    kept.append([parameter.grad.clone() for parameter in model.parameters()])  # culprit
""",
}


def main() -> None:
    right = 0
    for name, body in PROGRAMS.items():
        source = _HEAD + body
        wanted = next(at for at, line in enumerate(source.splitlines(), 1) if "# culprit" in line)
        with tempfile.TemporaryDirectory(prefix="stethos-oom-", ignore_cleanup_errors=True) as scratch:
            (Path(scratch) / "train.py").write_text(source, encoding="utf-8")
            command = [sys.executable, "-c", _START, "run", "--quiet", "--name", "oom", "train.py"]
            done = subprocess.run(command, cwd=scratch, capture_output=True, check=False)
            found = [one for one in stethos.diagnose(Path(scratch) / "runs" / "oom").findings if one.code == "SYS018"]
        line = found[0].detail["line"] if found else "-"
        is_right = line == f"train.py:{wanted}"
        right += is_right
        print(f"{name:30} {line:13} {'right' if is_right else f'NOT {wanted}':8} exit {done.returncode}", flush=True)
        print(f"    {found[0].title if found else done.stderr[-300:]}", flush=True)
        if found:
            print(f"    {found[0].next_step}", flush=True)
    print(f"{right} of {len(PROGRAMS)} named by line")


if __name__ == "__main__":
    main()
