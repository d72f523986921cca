"""Files that are there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from stethos.record.whole_file import whole_file


@pytest.mark.parametrize("is_synced", [True, False])
def test_a_file_appears_when_it_is_whole(tmp_path: Path, is_synced: bool) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with whole_file(path, is_synced=is_synced) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(error), whole_file(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["a"]


def test_what_a_killed_sole_writer_began_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".a").write_bytes(b"left behind by another process")
    with whole_file(tmp_path / "a", is_sole=True) as file:
        file.write(b"new")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"a": b"new"}
