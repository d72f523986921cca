"""What filled the memory when a program ended for lack of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import stethos
from stethos.diagnose.system.out_of_memory import OutOfMemory
from stethos.observe.out_of_memory import is_out_of_memory, memory_facts

PROGRAM = """\
import torch
from torch import nn

model = nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
history = []
for step in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 64)).square().mean()
    loss.backward()
    optimizer.step()
    history.append(loss)
big = torch.empty(1 << 52)
"""


def test_the_container_that_keeps_graphs_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "leak.py").write_text(PROGRAM, encoding="utf-8")
    start = "from stethos.cli.main import console; console()"
    command = [sys.executable, "-c", start, "run", "--name", "oom", "leak.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 1 and b"allocate" in done.stderr
    (finding,) = [one for one in stethos.diagnose(tmp_path / "runs" / "oom").findings if one.code == OutOfMemory.code]
    assert finding.detail == {"line": "leak.py:12", "asked_at": "leak.py:13"}
    assert "history (list) holds" in finding.title and "item()" in finding.next_step
    assert [one.name for one in finding.consequences] == ["process-failure"]


def test_an_exception_about_something_else_is_not_explained() -> None:
    assert not is_out_of_memory(ValueError("out of memory")) and not is_out_of_memory(RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 52)
    assert is_out_of_memory(caught.value)
    facts = memory_facts(caught.value, caught.value.__traceback__)
    assert facts["device"] == "host" and json.dumps(facts)
