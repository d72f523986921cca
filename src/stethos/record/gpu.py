"""Samples of NVIDIA GPUs, taken from outside the training process through the driver's own library.

NVML is called by `ctypes`: the drainer needs no further package, and where
there is no driver there is nothing to sample.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

from stethos.schema import NULL_F64

_LIBRARY = "libnvidia-ml.so.1"
_OK = 0
_INSUFFICIENT_SIZE = 7
_TEMPERATURE_OF_GPU = 0
_CLOCK_OF_PROCESSORS = 1
_UNKNOWN_BYTES = (1 << 64) - 1
_MOST_PROCESSES = 256


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuSampler:
    """Opens the driver's library at the first sample; without one there are no samples.

    A GPU belongs to the processes that the driver lists on it. Where it lists
    none that we know, as in a container with pids of its own, `sample` is asked
    with `is_alone` for the only training process, which then gets every GPU.
    """

    def __init__(self) -> None:
        self._is_opened = False
        self._library: Any = None
        self._handles: list[ctypes.c_void_p] = []

    def sample(self, pid: int, *, is_alone: bool = False) -> list[dict[str, float]]:
        """The columns of `gpu` for each GPU that the process uses."""
        if not self._is_opened:
            self._is_opened = True
            self._open()
        found, others = [], []
        for index, handle in enumerate(self._handles):
            users = self._users(handle)
            if pid in users:
                found.append(self._columns(index, handle, users[pid]))
            elif is_alone:
                others.append((index, handle))
        if not found:
            found = [self._columns(index, handle, NULL_F64) for index, handle in others]
        return found

    def _open(self) -> None:
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:  # no NVIDIA driver here
            return
        count = ctypes.c_uint()
        if library.nvmlInit_v2() != _OK or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
            return
        self._library = library
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == _OK:
                self._handles.append(handle)

    def _users(self, handle: ctypes.c_void_p) -> dict[int, float]:
        """The processes on a GPU and the bytes each has there."""
        count, processes = ctypes.c_uint(_MOST_PROCESSES), (_Process * _MOST_PROCESSES)()
        status = self._library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes)
        if status not in (_OK, _INSUFFICIENT_SIZE):
            return {}
        listed: Iterator[Any] = iter(processes[: min(count.value, _MOST_PROCESSES)])
        return {
            one.pid: NULL_F64 if one.used_bytes == _UNKNOWN_BYTES else float(one.used_bytes)
            for one in listed
            if one.pid
        }

    def _columns(self, index: int, handle: ctypes.c_void_p, process_bytes: float) -> dict[str, float]:
        ask, library = self._number, self._library
        busy, memory = _Utilisation(), _Memory()
        has_busy = library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy)) == _OK
        has_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == _OK
        return {
            "device": index,
            "busy_share": busy.gpu / 100 if has_busy else NULL_F64,
            "memory_busy_share": busy.memory / 100 if has_busy else NULL_F64,
            "process_bytes": process_bytes,
            "used_bytes": memory.used if has_memory else NULL_F64,
            "total_bytes": memory.total if has_memory else NULL_F64,
            "power_w": ask(library.nvmlDeviceGetPowerUsage, handle, unit=1000),
            "power_limit_w": ask(library.nvmlDeviceGetEnforcedPowerLimit, handle, unit=1000),
            "temperature_c": ask(library.nvmlDeviceGetTemperature, handle, _TEMPERATURE_OF_GPU),
            "clock_mhz": ask(library.nvmlDeviceGetClockInfo, handle, _CLOCK_OF_PROCESSORS),
        }

    def _number(self, function: Callable[..., int], *arguments: Any, unit: int = 1) -> float:
        value = ctypes.c_uint()
        return value.value / unit if function(*arguments, ctypes.byref(value)) == _OK else NULL_F64
