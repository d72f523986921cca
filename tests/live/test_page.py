"""Every command on the page about live debugging works on a live training."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from living import Living
from processes import wait_until

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "live.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```console live\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [line.removeprefix("$ stethos ") for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_works(with_main: Living, line: str) -> None:
    if "torch_trace" in line:
        wait_until(lambda: with_main.rows("SELECT count(*) AS n FROM python.torch_trace")[0]["n"], "a traced step")
    if line.startswith("checkpoint"):
        (with_main.directory / "rescue.safetensors").unlink(missing_ok=True)
    assert with_main.ok(*shlex.split(line))
