"""Files that are there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stethos.record.border import open_file, sync_directory


@contextmanager
def whole_file(path: Path, *, is_synced: bool = True, is_sole: bool = False) -> Iterator[IO[bytes]]:
    """A file to write into, readable by this user alone, that becomes `path` at the end of a good block.

    Readers see the old or the new content, never a part. After an error, whichever it is, nothing is left behind and
    what was there stays. Without `is_synced` a power cut can leave `path` damaged: for content that has its own check.
    With `is_sole` no other process writes this file, and what a killed one had begun is overwritten.
    """
    temporary = path.with_name(f".{path.name}" if is_sole else f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(descriptor, "wb") as file:
            yield file
            if is_synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if is_synced:
            sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
