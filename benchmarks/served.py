"""A dashboard in a process of its own, to be measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.child import environment


@contextmanager
def served(runs: Path) -> Iterator[tuple[str, str, psutil.Process]]:
    """The address of a server over these runs, its token, and its process."""
    words = [sys.executable, "-m", "stethos.cli.main", "serve", "--dir", str(runs), "--port", "0", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as server:
        assert server.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline()
        url, _, token = json.loads(text)["url"].partition("/#token=")
        try:
            yield url, token, psutil.Process(server.pid)
        finally:
            server.terminate()
