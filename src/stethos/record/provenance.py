"""What produced a run: command, machine, version and commit. Standard library only."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stethos import __version__
from stethos.record.border import read_file
from stethos.redact import MASK, names_secret, redact, redact_command
from stethos.settings import Settings, clean_environment, rank_and_world

_LONGEST_VALUE = 2000
_DEEPEST = 30
_MOST_BITS = 10_000
_LARGEST_GIT_FILE = 16 << 20
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_NAMING = ("name", "key", "header")  # `{"name": "DB_PASSWORD", "value": "..."}`
_NUMERIC = re.compile(r"(?i)(?:passw(?:or)?d|pass[_-]?(?:phrase|code)|pwd|secret|(?<![a-z])pin)$")


def run_facts(run: str, command: Sequence[str], settings: Settings, git_commit: str | None) -> dict[str, Any]:
    """The content of `run.json`."""
    return {
        "run": run,
        "command": redact_command(command),
        "host": platform.node(),
        "git_commit": git_commit,
        "version": __version__,
        "started_ns": time.time_ns(),
        "limit_bytes": settings.limit_bytes,
        "preset": settings.preset,
        "overhead": settings.overhead,
        "hang": {"at_least_s": settings.hang_after_s, "times": settings.hang_times},
        **({"site": str(settings.site)} if settings.site else {}),
    }


def plain_facts(facts: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    """Facts as JSON can hold them, with secrets masked, also those that only their key gives away.

    What lies too deep, as in a mapping that holds itself, is left out.
    """
    facts = {key.decode("utf-8", "replace") if isinstance(key, bytes) else key: value for key, value in facts.items()}
    named = next((facts[key] for key in _NAMING if isinstance(facts.get(key), str)), "") if "value" in facts else ""
    return {
        redact(str(key)): _plain(value, named if named and key == "value" else str(key), depth + 1)
        for key, value in facts.items()
    }


def _plain(value: Any, key: str, depth: int) -> Any:
    match value:
        case int() if _NUMERIC.search(key):
            return MASK
        case int() if value.bit_length() > _MOST_BITS:  # which JSON cannot tell
            return "..."
        case None | bool() | int() | float():
            return value
        case Mapping() | list() | tuple() | set() | frozenset() if depth > _DEEPEST:
            return "..."
        case Mapping() if names_secret(key, ""):  # whatever it calls its parts
            return {redact(str(part)): _plain(each, key, depth + 1) for part, each in value.items()}
        case Mapping():
            return plain_facts(value, depth)
        case tuple() if hasattr(value, "_asdict"):  # whose items have names
            return _plain(value._asdict(), key, depth)
        case [str() as name, str() as text] if names_secret(name, text):
            return [name, MASK]
        case list() | tuple() | set() | frozenset():
            items = list(value)
            is_command = all(isinstance(each, str) for each in items)
            return [_plain(each, key, depth + 1) for each in (redact_command(items) if is_command else items)]
    text = value if isinstance(value, str) else str(value)[:_LONGEST_VALUE]
    return MASK if names_secret(key, text) else redact(text)


def commit_in_files(directory: Path) -> str | None:
    """The commit checked out around a directory, read from git's files: cheap enough for a trainer."""
    for parent in (directory, *directory.parents):
        git = parent / ".git"
        if git.is_dir():
            return _commit_of(git)
    return None


def _commit_of(git: Path) -> str | None:
    """What a repository says, which may be anybody's: nothing but a commit is taken from it."""
    said = _said_in(git / "HEAD")
    if said.startswith("ref: refs/"):
        name = said.removeprefix("ref: ")
        packed = (line.split() for line in _said_in(git / "packed-refs").splitlines())
        said = _said_in(git / name) or next((words[0] for words in packed if words[1:] == [name]), "")
    return said if _COMMIT.fullmatch(said) else None


def _said_in(file: Path) -> str:
    try:
        return read_file(file, _LARGEST_GIT_FILE).decode().strip()
    except (OSError, ValueError):
        return ""


def commit_by_git(directory: Path) -> str | None:
    """The commit, with `+` if the working tree has changes; without git, as `commit_in_files`."""
    commit = commit_in_files(directory)
    if commit is None:
        return None
    try:
        status = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=directory, capture_output=True, timeout=2, check=False, env=clean_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return commit
    return commit + "+" if status.returncode == 0 and status.stdout.strip() else commit


class Relations:
    """What this process is to others: its rank in a job, and whose daemon it is; facts for `process.json`.

    A launcher tells ranks by variables. Where the program does so by itself, as with `torch.multiprocessing.spawn`,
    they are known once process groups exist.
    """

    def __init__(self) -> None:
        self._learned: tuple[int, int] | None = None

    def learn(self, rank: int, world_size: int) -> dict[str, Any]:
        """The process groups' own word, which counts more than variables; the facts that are new by it."""
        known = self._learned or rank_and_world()
        self._learned = rank, world_size
        return {} if known == self._learned else {"rank": rank, "world_size": world_size}

    def facts(self, parent: int) -> dict[str, Any]:
        rank, world_size = self._learned or rank_and_world()
        found: dict[str, Any] = {"rank": rank, "world_size": world_size}
        return found | ({"daemon_of": parent} if _is_daemon() else {})


def _is_daemon() -> bool:
    """Whether this is a daemon of `multiprocessing`, such as a pool's worker: its parent stops it by a signal."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None and bool(process.current_process().daemon)
