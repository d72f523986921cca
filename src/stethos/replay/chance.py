"""The states of the random number generators that a client's training may draw from: read, kept, set again.

torch's CPU generator and those of its CUDA devices, NumPy's global one, and
Python's. Reading them draws nothing. A generator of a program's own is not among them.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stethos.errors import CaptureError
from stethos.replay.tensorfile import Buffer, shape_of_file

_PYTHON_VERSION = 3  # of random.getstate
RandomStates = Mapping[str, Any]


def read_states() -> dict[str, Any]:
    """All of them as they are now; immutable, or copies. About 20 microseconds."""
    states: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        states["torch"] = torch.default_generator.get_state()
        if torch.cuda.is_initialized():
            for device, generator in enumerate(torch.cuda.default_generators):
                states[f"cuda.{device}"] = generator.get_state()
    return states


def file_of(states: Mapping[str, Any]) -> Buffer:
    """The states as a safetensors file."""
    _, numbers, gauss = states["python"]
    words = states["numpy"]["state"]
    named: dict[str, Any] = {
        "python.numbers": np.array(numbers, np.uint32),
        "python.gauss": np.array([] if gauss is None else [gauss], np.float64),
        "numpy.key": np.array(words["key"], np.uint32),
        "numpy.rest": np.array([words["pos"], states["numpy"]["has_gauss"]], np.int64),
        "numpy.gauss": np.array([states["numpy"]["gauss"]], np.float64),
        **{name: value.numpy() for name, value in states.items() if name not in ("python", "numpy")},
    }
    return shape_of_file(named).file_of(list(named.values()))


def states_in(named: Mapping[str, Any]) -> dict[str, Any]:
    """What `file_of` wrote, as `read_states` gives it; arrays in."""
    import torch

    try:
        gauss = named["python.gauss"]
        rest = named["numpy.rest"].tolist()
        found: dict[str, Any] = {
            "python": (
                _PYTHON_VERSION, tuple(named["python.numbers"].tolist()), float(gauss[0]) if len(gauss) else None
            ),
            "numpy": {
                "bit_generator": "MT19937", "state": {"key": named["numpy.key"], "pos": rest[0]},
                "has_gauss": rest[1], "gauss": float(named["numpy.gauss"][0]),
            },
        }  # fmt: skip
        found |= {
            name: torch.from_numpy(value)
            for name, value in named.items()
            if name == "torch" or name.startswith("cuda.")
        }
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CaptureError(f"the states of random generators are damaged: {error}") from None
    return found


@contextlib.contextmanager
def restored(states: Mapping[str, Any] | None) -> Iterator[None]:
    """Set the generators to these states for a while; afterwards they are as before. None: leave them."""
    before = read_states()
    try:
        if states is not None:
            _set(states)
        yield
    finally:
        _set(before)


def _set(states: Mapping[str, Any]) -> None:
    import torch

    try:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        if "torch" in states:
            torch.default_generator.set_state(states["torch"])
        for name, state in states.items():
            if name.startswith("cuda.") and torch.cuda.is_available():
                torch.cuda.set_rng_state(state, int(name.partition(".")[2]))
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise CaptureError(f"the recorded states of random generators cannot be set: {error}") from None
