"""The state of the random generators that a forward pass may draw from."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Restore = Callable[[], object]


def random_states() -> list[Restore]:
    """Ways back to the present state of torch's generators, on the CPU and on CUDA devices, NumPy's and Python's."""
    cpu, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    back: list[Restore] = [
        lambda: torch.set_rng_state(cpu),
        lambda: np.random.set_state(numpy_state),
        lambda: random.setstate(python_state),
    ]
    is_cuda_used: Any = torch.cuda.is_initialized
    if is_cuda_used():
        states = torch.cuda.get_rng_state_all()
        back.append(lambda: torch.cuda.set_rng_state_all(states))
    return back


def generator_state(value: object) -> Restore | None:
    """The way back to the present state of a generator that a program has made; None for what is not one."""
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state)
    if isinstance(value, random.Random):
        own = value.getstate()
        return lambda: value.setstate(own)
    if isinstance(value, np.random.RandomState):
        legacy = value.get_state()
        return lambda: value.set_state(legacy)
    if isinstance(value, np.random.Generator):
        bits, inner = value.bit_generator, value.bit_generator.state
        return lambda: setattr(bits, "state", inner)
    return None
