"""Memory that is freed goes back to the machine: seen in a process of its own, as the kernel counts it."""

from __future__ import annotations

import json

from processes import finish, start

# Threads that take turns, as those of a server do. Each fills 24 MB with small and large pieces, keeps one of a
# hundred, as caches do, and frees the rest.
PROGRAM = """
import ctypes, json, os, sys, threading
from stethos.record.memory import return_freed_memory
if sys.argv[1] == "returns":
    return_freed_memory()
import pyarrow as pa

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
turns = [threading.Event() for _ in range(9)]
ends = threading.Event()

def work(number):
    turns[number].wait()
    taken = []
    for index in range(480):
        size = 2_000 if index % 2 else 100_000
        taken.append(library.malloc(size))
        ctypes.memset(taken[-1], 1, size)
    for index, pointer in enumerate(taken):
        if index % 100:
            library.free(pointer)
    turns[number + 1].set()
    ends.wait()  # a thread of a pool lives on

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before = resident()
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
turns[0].set()
turns[8].wait()
grown = resident() - before
ends.set()
print(json.dumps({"pool": pa.default_memory_pool().backend_name, "grown_mb": grown / 2**20}))
"""


def _found(how: str) -> dict[str, object]:
    done = finish(start("-c", PROGRAM, how))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_threads_that_take_turns_share_what_was_freed() -> None:
    kept, returned = _found("keeps"), _found("returns")
    assert returned["pool"] == "system" != kept["pool"]
    assert float(str(returned["grown_mb"])) < 0.6 * float(str(kept["grown_mb"])), (returned, kept)
