"""Deletes a run."""

from __future__ import annotations

import os
from pathlib import Path

from stethos.errors import RecordingError
from stethos.record.directories import remove_directory


def delete_run(path: Path) -> None:
    """Move the directory aside, so that it is gone at once for everybody, then delete it; a link only itself."""
    try:
        if path.is_symlink():
            path.unlink()
            return
        doomed = path.with_name(f".{path.name}.deleted-{os.getpid()}")
        path.rename(doomed)
        remove_directory(doomed)
    except OSError as error:
        raise RecordingError(f"cannot delete {path}: {error.strerror or error}", hint="check its permissions") from None
