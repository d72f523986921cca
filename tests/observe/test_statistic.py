"""Statistics against slow plain twins."""

from __future__ import annotations

import math
import struct
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stethos.observe import statistic
from stethos.observe.statistic import STATISTICS, drift_of, norm_of, statistics_of
from stethos.schema import NULL_F64

NAN, INF = math.nan, math.inf
SIZES = [1, 2, 7, 640, statistic._SMALL, statistic._SMALL + 1, statistic._BLOCK, 2 * statistic._BLOCK + 3]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def is_null(value: float) -> bool:
    return struct.pack("<d", value) == struct.pack("<d", NULL_F64)


def twin(tensor: torch.Tensor) -> list[float]:
    """The plain way: one float64 copy, one operation per statistic."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    x = tensor.detach().double().flatten()
    finite = x[x.isfinite()]
    counts = [(x == 0).double().mean(), x.isnan().sum(), x.isinf().sum()]
    if not finite.numel():
        return [NULL_F64] * 5 + [float(count) for count in counts]
    values = [finite.norm(), finite.mean(), finite.std(correction=0), finite.min(), finite.max()]
    return [float(value) for value in values + counts]


def check(tensors: list[torch.Tensor]) -> None:
    table = statistics_of(tensors)
    assert table.shape == (len(STATISTICS), len(tensors))
    assert table.dtype == np.float64
    for column, tensor in zip(table.T, tensors, strict=True):
        expected = twin(tensor)
        rms = expected[0] / math.sqrt(max(tensor.numel(), 1))
        for name, got, want in zip(STATISTICS, column, expected, strict=True):
            if is_null(want):
                assert is_null(got), name
            else:  # a mean that cancels to nothing is compared with the size of what was added
                slack = 1e-6 * rms if name == "mean" else 0.0
                assert got == pytest.approx(want, rel=1e-5, abs=slack), (name, tensor.dtype, tensor.shape)


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_size_and_float_type_agrees_with_the_plain_twin(dtype):
    torch.manual_seed(0)
    check([torch.randn(size).to(dtype) for size in SIZES])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool])
def test_integers_and_booleans_are_read_as_numbers(dtype):
    torch.manual_seed(0)
    check([torch.randint(0, 5, (size,)).to(dtype) for size in SIZES[2:]])


def test_complex_tensors_are_read_as_their_two_parts():
    torch.manual_seed(0)
    tensors = [torch.randn(size, dtype=torch.complex64) for size in (3, 20_000)]
    check([*tensors, tensors[0].conj(), tensors[1].conj(), tensors[0].conj().imag, tensors[1].conj().imag])


def test_views_that_are_not_contiguous_are_read_in_full():
    torch.manual_seed(0)
    image = torch.randn(4, 3, 50, 60).to(memory_format=torch.channels_last)
    check(
        [
            torch.randn(90, 300).t(),
            torch.randn(9, 30).t(),
            image,
            torch.randn(40_000)[::2],
            torch.randn(5, 1).expand(5, 4000),
        ]
    )


def test_a_scalar_is_a_tensor_of_one_element():
    check([torch.tensor(3.5), torch.tensor(0.0), torch.tensor(-2), torch.nn.Parameter(torch.tensor(1.0))])


def test_parameters_are_read_without_their_graph():
    weight = torch.nn.Parameter(torch.randn(20, 3))
    check([weight, weight * 2, torch.nn.Parameter(torch.randn(300, 300))])


def test_sparse_tensors_are_read_by_their_stored_values():
    dense = torch.zeros(500, 4)
    dense[3] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    with warnings.catch_warnings():  # torch calls its sparse tensors experimental
        warnings.simplefilter("ignore")
        twice = torch.sparse_coo_tensor(torch.tensor([[3, 3]]), torch.tensor([1.0, 2.0]), (10,))
        rows = dense.to_sparse_csr()
    got = statistics_of([dense.to_sparse(), rows, twice])
    values = twin(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose(got.T, [values, values, twin(torch.tensor([3.0]))])


class Sharded(torch.Tensor):
    """What matters of a DTensor: it says where its local part is."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)[:2]


def test_a_distributed_tensor_is_read_by_its_local_part():
    whole = torch.arange(6.0).as_subclass(Sharded)
    assert statistics_of([whole])[:, 0].tolist() == pytest.approx(twin(torch.tensor([0.0, 1.0])))
    assert norm_of([whole]) == 1.0


def test_what_cannot_be_read_is_null():
    table = statistics_of([None, torch.empty(0), torch.empty(3, device="meta"), torch.ones(1)])
    assert all(is_null(value) for value in table[:, :3].flatten())
    assert table[:, 3].tolist() == [1, 1, 0, 1, 1, 0, 0, 0]
    assert statistics_of([]).shape == (8, 0)


@pytest.mark.parametrize("size", [5, 30, 9000, 200_000])
@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_elements_are_counted_and_left_out(size, dtype):
    torch.manual_seed(0)
    x = torch.randn(size).to(dtype)
    x[[0, 3]] = NAN
    x[1] = INF
    x[-1] = -INF
    beside = torch.randn(10).to(dtype)
    check([beside, x, beside, torch.full((size,), NAN, dtype=dtype), torch.full((size,), INF, dtype=dtype)])


@pytest.mark.parametrize("size", [10, 70_000])
@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e-19, 1e-12, 1e19, 1e25, 3e38])
def test_float32_extremes_keep_their_digits(size, scale):
    torch.manual_seed(0)
    x = torch.rand(size) * 2 - 1
    x[0] = 1.0
    check([x * scale])
    assert norm_of([x * scale, None]) == pytest.approx(float((x * scale).double().norm()), rel=1e-5)


@pytest.mark.parametrize("size", [10, 70_000])
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_float64_extremes_are_scaled_before_they_are_squared(size, scale):
    torch.manual_seed(0)
    x = torch.rand(size, dtype=torch.float64) + 0.5
    got = statistics_of([x * scale])[:, 0]
    want = np.array(twin(x))
    want[:5] *= scale
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert norm_of([x * scale]) == pytest.approx(want[0], rel=1e-9)


@pytest.mark.parametrize("size", [64, 100_000])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3, 0.1, 0.3])
def test_the_spread_of_weights_around_one_survives_cancellation(size, spread):
    torch.manual_seed(0)
    check([1 + spread * torch.randn(size), -1000 * (1 + spread * torch.randn(size))])


@given(
    st.lists(
        st.lists(st.floats(width=32, allow_subnormal=False) | st.sampled_from([0.0, -0.0, NAN, INF]), max_size=20),
        max_size=6,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_floats_agree_with_the_plain_twin(rows):
    table = statistics_of([torch.tensor(row) for row in rows])
    for column, row in zip(table.T, rows, strict=True):
        if row:
            want = twin(torch.tensor(row))
            rms = 0.0 if is_null(want[0]) else want[0]
            np.testing.assert_allclose(column, want, rtol=1e-5, atol=1e-6 * rms)
        else:
            assert all(map(is_null, column))


def test_other_devices_are_reduced_there_with_the_same_result():
    torch.manual_seed(0)
    tensors = [
        torch.randn(50),
        torch.tensor([1.0, NAN, INF, 0.0]),
        torch.full((3,), NAN),
        1 + 1e-4 * torch.randn(300),
        torch.randn(30).bfloat16(),
        torch.arange(5),
        torch.randn(3) * 1e30,
        torch.randn(3) * 1e-30,
        torch.zeros(4),
    ]
    table = np.full((len(STATISTICS), len(tensors)), NULL_F64)
    statistic._put_device(table, list(enumerate(tensors)))
    for column, tensor in zip(table.T, tensors, strict=True):
        np.testing.assert_allclose(column, twin(tensor), rtol=1e-5, atol=1e-9)


def test_reading_leaves_the_tensors_resizable_and_unchanged():
    tensors = [torch.randn(10), torch.randn(20_000)]
    before = [tensor.clone() for tensor in tensors]
    versions = [tensor._version for tensor in tensors]
    statistics_of(tensors)
    norm_of(tensors)
    drift_of(tensors, before)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert [tensor._version for tensor in tensors] == versions
    for tensor in tensors:
        tensor.untyped_storage().resize_(0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64])
def test_the_global_norm_agrees_with_the_norm_of_everything(dtype):
    torch.manual_seed(0)
    tensors = [(3 * torch.randn(shape)).to(dtype) for shape in [(32, 64), (64,), (), (300, 300), (0,)]]
    want = torch.cat([tensor.flatten() for tensor in tensors])
    want = want.to(torch.complex128 if dtype.is_complex else torch.float64).norm()
    assert norm_of([None, *tensors]) == pytest.approx(float(want), rel=1e-6)


def test_the_global_norm_tells_nan_from_inf():
    for size in (3, 20_000):
        x = torch.ones(size)
        x[1] = INF
        assert norm_of([torch.ones(2), x]) == INF
        x[0] = NAN
        assert math.isnan(norm_of([torch.ones(2), x]))


def test_the_global_norm_of_zeros_is_zero():
    assert norm_of([torch.zeros(3), torch.zeros(20_000)]) == 0.0


def test_the_global_norm_is_null_without_elements_or_away_from_the_cpu():
    assert is_null(norm_of([]))
    assert is_null(norm_of([None, torch.empty(0)]))
    assert is_null(norm_of([torch.ones(2), torch.empty(3, device="meta")]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_drift_is_the_norm_of_the_difference(dtype):
    torch.manual_seed(0)
    start = [torch.randn(shape).to(dtype) for shape in [(3, 5), (), (8,), (400, 500), (64, 64)]]
    now = [(tensor + 0.1 * torch.randn(tensor.shape)).to(dtype) for tensor in start]
    want = [float((a.double() - b.double()).norm()) for a, b in zip(now, start, strict=True)]
    np.testing.assert_allclose(drift_of(now, start), want, rtol=1e-5)


def test_drift_pairs_elements_whatever_their_layout():
    torch.manual_seed(0)
    for shape in ((6, 7), (300, 400)):
        start = torch.randn(shape)
        now = start.t().contiguous().t() + 1.0
        np.testing.assert_allclose(drift_of([now], [start]), math.sqrt(start.numel()), rtol=1e-5)


def test_drift_keeps_tiny_and_huge_differences():
    for size in (4, 70_000):
        zeros = torch.zeros(size)
        for value in (0.0, 1e-30, 1e30):
            want = float(torch.full((size,), value).double().norm())
            np.testing.assert_allclose(drift_of([torch.full((size,), value)], [zeros]), want, rtol=1e-6)


def test_drift_of_what_cannot_be_compared_is_null():
    drifts = drift_of(
        [torch.ones(2), torch.empty(2, device="meta"), torch.ones(0)], [torch.ones(3), torch.ones(2), torch.ones(0)]
    )
    assert all(map(is_null, drifts))
    assert math.isnan(drift_of([torch.tensor([NAN])], [torch.ones(1)])[0])
