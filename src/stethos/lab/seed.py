"""Random numbers of the lab's own: a generator for every purpose, made from the seed and the purpose's name.

No global generator is read or moved, and no generator is shared, so that what
ran before, in which order and in which process makes no difference.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def generator(seed: int, *purpose: str | int) -> np.random.Generator:
    """The generator of one purpose, such as `generator(0, "batches", 3, 12)`."""
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in purpose]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *words])))


def torch_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """The same for torch, on the CPU."""
    made = torch.Generator()
    made.manual_seed(int(generator(seed, *purpose).integers(2**62)))
    return made


@contextmanager
def isolated(seed: int, *purpose: str | int) -> Iterator[None]:
    """Lend torch's global CPU generator numbers of our own, for code of the caller's; then put it back."""
    before = torch.default_generator.get_state()
    torch.default_generator.set_state(torch_generator(seed, *purpose).get_state())
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
