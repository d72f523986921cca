"""Every test here leaves no process of ours behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import drainers_of, wait_until


@pytest.fixture(autouse=True)
def no_drainer_is_left_behind(tmp_path: Path) -> Iterator[None]:
    """Drainers end by themselves, soon after their runs."""
    yield
    try:
        wait_until(lambda: not drainers_of(tmp_path), f"the end of the drainers {drainers_of(tmp_path)}")
    finally:
        for pid in drainers_of(tmp_path):
            os.kill(pid, signal.SIGKILL)
