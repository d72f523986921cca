"""The loop of these tests is importable from each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True)
def known_start() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
