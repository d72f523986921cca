"""The tests here start real processes, and leave none of ours behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
from processes import drainers_of, wait_until


@pytest.fixture(autouse=True, scope="module")
def no_drainer_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Drainers end by themselves, soon after their runs."""
    yield
    directory = tmp_path_factory.getbasetemp()
    try:
        wait_until(lambda: not drainers_of(directory), f"the end of the drainers {drainers_of(directory)}")
    finally:
        for pid in drainers_of(directory):
            with contextlib.suppress(ProcessLookupError):  # gone by itself in this moment
                os.kill(pid, signal.SIGKILL)
