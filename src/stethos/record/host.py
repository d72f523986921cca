"""Samples of a process and its machine, taken from outside it."""

from __future__ import annotations

import time

import psutil

from stethos.schema import NULL_F64

_MACHINE_S = 0.25


class HostSampler:
    """Keeps what psutil needs between two samples of the same process."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._machine_share = NULL_F64
        self._machine_s = -_MACHINE_S

    def sample(self, pid: int) -> dict[str, float] | None:
        """The columns of `host` for one process; None if it is gone."""
        try:
            process = self._processes.get(pid)
            is_first = process is None
            if process is None:
                process = self._processes[pid] = psutil.Process(pid)
            with process.oneshot():
                cpu = process.cpu_percent() / 100
                if is_first:  # psutil has nothing to compare with yet and says 0
                    cpu = self._cores_so_far(process)
                rss, threads = process.memory_info().rss, process.num_threads()
                read, written = self._disk(process)
        except psutil.Error:
            self._processes.pop(pid, None)
            return None
        network = psutil.net_io_counters()
        return {
            "cpu_share": cpu,
            "rss_bytes": rss,
            "threads": threads,
            "read_bytes": read,
            "written_bytes": written,
            "machine_cpu_share": self._machine(),
            "machine_cores": psutil.cpu_count() or NULL_F64,
            "machine_free_bytes": psutil.virtual_memory().available,
            "net_sent_bytes": network.bytes_sent if network else NULL_F64,
            "net_received_bytes": network.bytes_recv if network else NULL_F64,
        }

    def _machine(self) -> float:
        """How busy the machine is; asked once for all processes that are sampled together, as it counts since it was
        asked last."""
        now_s = time.monotonic()
        if now_s - self._machine_s >= _MACHINE_S:
            self._machine_share, self._machine_s = psutil.cpu_percent() / 100, now_s
        return self._machine_share

    def _cores_so_far(self, process: psutil.Process) -> float:
        """Cores in use since the process was started; NULL where a stepped clock makes nonsense of that."""
        used, lived_s = process.cpu_times(), time.time() - process.create_time()
        cores = (used.user + used.system) / lived_s if lived_s > 0 else NULL_F64
        return cores if cores <= (psutil.cpu_count() or 1) else NULL_F64

    def _disk(self, process: psutil.Process) -> tuple[float, float]:
        try:
            io = process.io_counters()
        except (psutil.Error, AttributeError):  # not on every system, not for every user
            return NULL_F64, NULL_F64
        return io.read_bytes, io.write_bytes
