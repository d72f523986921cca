"""A dashboard in a process of its own, as tests see it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

PATIENCE_MS = 180_000
GO_ON = "go-on"  # a file; the training that is watched waits for it
FLAGS = (
    "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A server in a process of its own."""

    url: str
    token: str
    directory: Path
    process: subprocess.Popen[str]

    def page(self, address: str) -> str:
        """Where a browser goes, token included."""
        return f"{self.url}/#token={self.token}&to={address}"
