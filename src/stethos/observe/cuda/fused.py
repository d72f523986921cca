"""Compiles the kernel beside the training and launches it over lists of tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any, ClassVar

import torch

from stethos.guard import attempt
from stethos.observe.cuda.plan import head_of, plan_of

DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})
ROWS = 9
_BLOCK = {2: 8192, 4: 8192, 8: 4096}  # elements of a chunk by the bytes of an element: 16 to 32 KiB
_TILE, _WIDTH, _WARPS = 1024, 128, 4  # measured on an H200: 8192 x 4 reads at 0.93 of a plain sum's rate
_MOST_PLANS = 8


class Kernels:
    """The kernel for each type of element, compiled in a thread of its own: none of a type until it is there.

    The thread makes no call of CUDA's: while the training captures a graph, one
    from any thread would spoil the capture. What it compiles Triton keeps on
    disk, so the next process finds it at once.
    """

    _ready: ClassVar[dict[torch.dtype, Callable[..., Any]]] = {}  # of the process, as Triton's own are

    def __init__(self, run: Callable[..., object]) -> None:
        self._run = run  # guarded: its failure is noted in the run, and all goes on without the kernel
        self._threads: dict[torch.dtype, Thread] = {}

    def of(self, dtype: torch.dtype) -> Callable[..., Any] | None:
        """The kernel, if it is there."""
        return self._ready.get(dtype)

    def is_coming(self, dtype: torch.dtype) -> bool:
        """Whether the kernel is being compiled, from the first time it is asked for; not if that has failed."""
        if dtype in self._ready or dtype not in DTYPES:
            return False
        thread = self._threads.get(dtype)
        if thread is None:
            thread = Thread(target=self._run, args=("triton", self.compile, dtype), name="stethos-triton", daemon=True)
            self._threads[dtype] = thread
            thread.start()
        return thread.is_alive()

    def wait(self, seconds: float) -> None:
        """The process ends: a compiler that is torn down at its work would abort it."""
        for thread in self._threads.values():
            thread.join(seconds)

    def compile(self, dtype: torch.dtype) -> None:
        """Compile now, in the calling thread; Triton may be missing, or find no C compiler."""
        import triton
        import triton.language as tl

        from stethos.observe.cuda.kernel import reduce_all

        element = {
            torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float64: tl.float64
        }[dtype]  # fmt: skip
        is_double = dtype is torch.float64
        word = {2: tl.int16, 4: tl.int32, 8: tl.int64}[dtype.itemsize]
        constants = (element, tl.float64 if is_double else tl.float32, word, 1e-300 if is_double else 1e-37,
                     _BLOCK[dtype.itemsize], _TILE, _WIDTH)  # fmt: skip
        types = (torch.int64, torch.int64, torch.int64, torch.int32, torch.float64, torch.float64)
        compiled = reduce_all.warmup(*types, 1, 1, *constants, grid=(1,), num_warps=_WARPS)
        # Its launcher is a C extension, which would else be built at the first launch. Triton's insides may change.
        attempt(lambda: triton.runtime.driver.active.launcher_cls(compiled.src, compiled.metadata))

        def launch(chunks: int, *arguments: Any) -> None:
            reduce_all[(chunks,)](*arguments, *constants, num_warps=_WARPS)

        self._ready[dtype] = launch


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What a list of sizes needs on the device; launches on one stream, which wait for each other, share it."""

    pointers: torch.Tensor
    chunks: torch.Tensor
    spans: torch.Tensor
    finished: torch.Tensor
    partials: torch.Tensor
    results: torch.Tensor


class Fused:
    """Launches the kernel; the plans of the last few lists are kept."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._plans: OrderedDict[tuple[object, ...], _Prepared] = OrderedDict()

    def reduce(self, tensors: Sequence[torch.Tensor], pinned: torch.Tensor) -> torch.Tensor | None:
        """Queue the reduction of tensors of one type on one device; return nine rows that will hold it.

        `pinned` takes the addresses on their way to the device: it must not be touched before the work is done.
        None while the kernel is not compiled.
        """
        launch = self.prepare(tensors, pinned)
        return None if launch is None else launch()

    def prepare(self, tensors: Sequence[torch.Tensor], pinned: torch.Tensor) -> Callable[[], torch.Tensor] | None:
        """Send the addresses to the device; what is returned launches the kernel over them, at each call."""
        first = tensors[0]
        launch = self._kernels.of(first.dtype)
        if launch is None:
            return None
        addresses = [tensor.data_ptr() for tensor in tensors]
        heads = tuple(head_of(address, first.element_size()) for address in addresses)
        sizes = tuple(tensor.numel() for tensor in tensors)
        prepared = self._prepare(first, sizes, heads)
        pinned.numpy()[:] = addresses
        prepared.pointers.copy_(pinned, non_blocking=True)
        chunks = prepared.chunks.shape[0]
        arguments = (
            chunks, prepared.pointers, prepared.chunks, prepared.spans, prepared.finished, prepared.partials,
            prepared.results, chunks, len(sizes),
        )  # fmt: skip

        def start() -> torch.Tensor:
            launch(*arguments)
            return prepared.results

        return start

    def _prepare(self, like: torch.Tensor, sizes: tuple[int, ...], heads: tuple[int, ...]) -> _Prepared:
        device = like.device
        key = (device, torch.cuda.current_stream(device).cuda_stream, like.dtype, sizes, heads)
        found = self._plans.get(key)
        if found is not None:
            self._plans.move_to_end(key)
            return found
        plan = plan_of(sizes, heads, _BLOCK[like.element_size()])
        chunks, spans = (torch.from_numpy(array).pin_memory() for array in (plan.chunks, plan.spans))
        count = len(sizes)
        self._plans[key] = found = _Prepared(
            pointers=torch.empty(count, dtype=torch.int64, device=device),
            chunks=chunks.to(device, non_blocking=True),
            spans=spans.to(device, non_blocking=True),
            finished=torch.zeros(count, dtype=torch.int32, device=device),
            partials=torch.empty((ROWS, len(chunks)), dtype=torch.float64, device=device),
            results=torch.empty((ROWS, count), dtype=torch.float64, device=device),
        )
        if len(self._plans) > _MOST_PLANS:
            self._plans.popitem(last=False)
        return found
