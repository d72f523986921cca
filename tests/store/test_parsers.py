"""Every parser of what comes from outside, with bytes that mean nothing and with such that nearly do."""

from __future__ import annotations

import pytest
from attack.parsers import PARSERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PIECES = (b"[" * 3000, b"{", b"null", b"-1", b"1e999", b"\xff", b"0" * 40)


@st.composite
def nearly(draw: st.DrawFn, seed: bytes) -> bytes:
    """What a parser understands, cut, with bytes changed, put in and repeated; or anything at all."""
    if draw(st.booleans()) and draw(st.booleans()):
        return draw(st.binary(max_size=300))
    data = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 9))
        piece = draw(
            st.binary(max_size=9) | st.sampled_from([b"[" * 3000, b"{", b"null", b"-1", b"1e999", b"\xff", b"0" * 40])
        )
        data[place : place + size] = piece
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 3)) == 0 else data)


@pytest.mark.parametrize("name", PARSERS)
def test_only_our_own_errors_come_out(name: str) -> None:
    parser, seed = PARSERS[name]

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(nearly(seed))
    def try_it(data: bytes) -> None:
        parser(data)

    try_it()
