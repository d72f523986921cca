"""Memory of processes that last as long as a run, or longer: what they free goes back to the machine.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

POOL, SYSTEM = "ARROW_DEFAULT_MEMORY_POOL", "system"  # a variable that Arrow reads as it is imported
# Of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 4 << 20
_MAPPED_BYTES = 1 << 20
_HEAPS = 2


def return_freed_memory() -> None:
    """Have this process keep little of what it has freed; call it before Arrow is imported and threads are started.

    Without it every thread that reads a run keeps a heap of its own, with holes between what lives long, and so does
    Arrow: a server whose threads read a growing run in turn had 137 MB, then 274 MB after eight sealed segments. Does
    nothing where the C library is another one.
    """
    os.environ.setdefault(POOL, SYSTEM)
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, _HEAPS)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
