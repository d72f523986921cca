"""Files that a user names, or that lie where commands look, may be a stranger's: no pipe holds a command up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stethos.cli.blame import _given
from stethos.cli.report import _words
from stethos.errors import UsageError
from stethos.record.border import open_named

READERS = """
import sys
from pathlib import Path
from stethos.act.alert_rule import read_alerts
from stethos.cli.blame import _given
from stethos.cli.report import _words
from stethos.cli.task.saved_trace import read_trace
from stethos.diagnose.configuration import read_configuration
from stethos.errors import StethosError
from stethos.live.weights import read_weights
path = Path(sys.argv[1])
for read in (read_alerts, read_configuration, read_trace, read_weights, _words, lambda path: _given(str(path))):
    try:
        read(path)
    except StethosError as error:
        assert "not a regular file" in str(error), error
    else:
        raise AssertionError(read)
"""


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "named.npy"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
    subprocess.run([sys.executable, "-c", READERS, path], check=True, timeout=120)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("words", encoding="utf-8")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with open_named(tmp_path / "two") as file:
        assert file.read() == b"words"
    assert _words(tmp_path / "two") == "words"


def test_an_array_takes_no_memory_for_what_its_header_claims(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6.0))
    assert _given(str(path)).tolist() == [0, 1, 2, 3, 4, 5]
    path.write_bytes(path.read_bytes().replace(b"(6,)", b"(6000000000000,)"))
    with pytest.raises(UsageError, match="holds no array"):
        _given(str(path))
    np.savez(tmp_path / "several.npz", a=np.zeros(2), b=np.zeros(2))
    with pytest.raises(UsageError, match="several arrays"):
        _given(str(tmp_path / "several.npz"))
