"""Captured files: what goes in comes out, bit by bit; what is hostile is refused before it costs anything."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stethos.errors import CaptureError
from stethos.replay.codec import bases_of, pack, unpack
from stethos.replay.tensorfile import Buffer, parse, shape_of_file, tensor_in

BITS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40)


def file_of(**named: object) -> Buffer:
    return shape_of_file(named).file_of(list(named.values()))


def floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


@settings(max_examples=60, deadline=None)
@given(BITS, BITS, BITS)
def test_any_bits_come_back_whatever_they_are_predicted_from(a: list[int], b: list[int], c: list[int]) -> None:
    count = min(len(a), len(b), len(c))
    files = [file_of(w=np.tile(floats(one[:count]), 50)) for one in (a, b, c)]
    for bases in (files[:0], files[1:2], files[1:]):
        packed = pack(files[0], [(f"base-{number}", base) for number, base in enumerate(bases)])
        if packed is not None:
            packed = np.frombuffer(packed, np.uint8)
            assert np.array_equal(unpack(packed, bases), files[0])
            assert len(bases_of(packed)) == len(bases)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_every_type_comes_back(dtype: torch.dtype) -> None:
    values = (torch.arange(600).reshape(20, 30) % 7).to(dtype)
    base = file_of(a=torch.zeros_like(values), none=torch.zeros(0, 3))
    file = file_of(a=values, none=torch.zeros(0, 3))
    packed = pack(file, [("base", base)])
    assert packed is not None
    again = unpack(np.frombuffer(packed, np.uint8), [base])
    entries, _ = parse(again)
    assert torch.equal(tensor_in(again, entries["a"]), values)
    assert tensor_in(again, entries["none"]).shape == (0, 3)


def test_views_and_scalars_are_captured_as_they_look() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    negative = torch.tensor([1 + 2j]).conj().imag
    file = file_of(turned=values.T, part=values[:, 1], one=torch.tensor(3), negative=negative)
    entries, _ = parse(file)
    assert torch.equal(tensor_in(file, entries["turned"]), values.T)
    assert torch.equal(tensor_in(file, entries["part"]), values[:, 1])
    assert tensor_in(file, entries["one"]) == 3 and tensor_in(file, entries["negative"]) == -2


def test_the_files_are_safetensors() -> None:
    from safetensors.torch import load

    values = {"a.weight": torch.randn(3, 5), "a.bias": torch.randn(5).bfloat16(), "steps": torch.tensor(7)}
    loaded = load(shape_of_file(values).file_of(list(values.values())).tobytes())
    assert all(torch.equal(loaded[name], value) for name, value in values.items())


def test_close_states_are_smaller_than_distant_ones() -> None:
    state = torch.randn(20_000)
    near, far = file_of(w=state * 1.001), file_of(w=torch.randn(20_000))
    sizes = [len(pack(file_of(w=state), [("b", base)]) or b"") for base in (near, far)]
    assert sizes[0] < 0.6 * 80_000 < sizes[1]


def bytes_of(header: object, payload: bytes = b"") -> Buffer:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return np.frombuffer(len(text).to_bytes(8, "little") + text + payload, np.uint8)


@pytest.mark.parametrize(
    "file",
    [
        np.frombuffer(b"", np.uint8),
        np.frombuffer(pickle.dumps({"a": 1}) * 9, np.uint8),
        np.frombuffer((1 << 60).to_bytes(8, "little") + b"{}", np.uint8),
        bytes_of(b"not json"),
        bytes_of(b"[" * 5000),
        bytes_of([1, 2]),
        bytes_of({"a": 3}),
        bytes_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
        bytes_of({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 1 << 82]}}),
        bytes_of({"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, -16]}}, b"x" * 16),
        bytes_of({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"x" * 16),
        bytes_of({"a": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, b"x" * 16),
        bytes_of({"a": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}}, b"x" * 16),
    ],
)
def test_what_is_no_file_of_tensors_is_refused(file: Buffer) -> None:
    with pytest.raises(CaptureError):
        parse(file)


@pytest.mark.parametrize(
    "lie",
    [
        {"bytes": str(1 << 50)},
        {"bytes": "-1"},
        {"bytes": "many"},
        {"head": "[0, 0]"},
        {"head": "[900000, 10]"},
        {"plan": "[]"},
        {"plan": "[[0, 1, 1, 1, 1]]"},
        {"plan": '[["x", -900, -900, -900, -900]]'},
        {"format": "another"},
        {"bases": '{"a": 1}'},
    ],
)
def test_a_packed_file_that_lies_is_refused(lie: dict[str, str]) -> None:
    packed = np.frombuffer(pack(file_of(w=np.zeros(900, np.float32))) or b"", np.uint8)
    entries, metadata = parse(packed)
    payload = packed[entries["payload"].start : entries["payload"].end]
    forged = shape_of_file({"payload": payload}, {**metadata, **lie}).file_of([payload])
    with pytest.raises(CaptureError):
        bases_of(forged)
        unpack(forged, [])


def test_complex_tensors_are_refused_by_name() -> None:
    with pytest.raises(CaptureError, match="complex64"):
        file_of(a=torch.zeros(3, dtype=torch.complex64))


def test_a_file_that_unfolds_a_thousandfold_is_refused_before_memory_is_taken() -> None:
    """32 kB that claim a gigabyte of zeros; the same against a base of that size is how frozen layers look."""
    zeros = np.zeros(300 << 20, np.uint8)
    file = shape_of_file({"w": zeros}).file_of([zeros])
    packed = pack(file)
    assert packed is not None and len(packed) < 1 << 20
    with pytest.raises(CaptureError, match="unfold to"):
        unpack(np.frombuffer(packed, np.uint8), [])
    against = pack(file, [("base", file)])
    assert against is not None
    assert np.array_equal(unpack(np.frombuffer(against, np.uint8), [file]), file)
