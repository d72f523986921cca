"""What a run says of where it was made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stethos.record.provenance import commit_in_files

COMMIT = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture
def git(tmp_path: Path) -> Path:
    (tmp_path / ".git" / "refs" / "heads").mkdir(parents=True)
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    return tmp_path / ".git"


def test_the_commit_stands_in_a_file_of_its_own_or_in_a_list(git: Path) -> None:
    assert commit_in_files(git.parent) is None
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{COMMIT} refs/heads/main\n", encoding="ascii")
    assert commit_in_files(git.parent / "src") == COMMIT
    (git / "refs/heads/main").write_text(f"{COMMIT[::-1]}\n", encoding="ascii")
    assert commit_in_files(git.parent) == COMMIT[::-1]
    (git / "HEAD").write_text(COMMIT, encoding="ascii")
    assert commit_in_files(git.parent) == COMMIT


@pytest.mark.parametrize("said", ["ref: ../diary", "ref: refs/../../diary", "dear diary", "x" * 3_000_000, "\xff"])
def test_nothing_but_a_commit_is_taken_from_a_repository(git: Path, said: str) -> None:
    """It may be anybody's, and what is taken is stored in the run."""
    (git.parent / "diary").write_text("dear diary", encoding="ascii")
    (git / "HEAD").write_text(said, encoding="latin-1")
    assert commit_in_files(git.parent) is None


def test_a_pipe_in_a_repository_makes_nobody_wait(git: Path) -> None:
    (git / "HEAD").unlink()
    os.mkfifo(git / "HEAD")
    assert commit_in_files(git.parent) is None
