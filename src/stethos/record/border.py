"""The border: the files of a run are opened here and nowhere else, since the run may come from a stranger.

A file is opened relative to its directory, never through a link and never waiting, and must be a regular one; to
be written it must belong to this user and have no second name. What is read is bounded before memory is taken, and
what JSON says is checked for type and range. Standard library only: the trainer imports this.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import select
import stat
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from stethos.settings import config_dir, registry_dir

LARGEST_JSON = 16 << 20
LARGEST_LINES = 64 << 20
NOT_MAPPED = (errno.ENODEV, errno.EOPNOTSUPP)  # what a file system says that cannot map files
_PIECE_BYTES = 1 << 16
_MOST_REASONS = 100
_LONGEST_POLL_MS = 2**31 - 1
_SAFELY = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_KEY_FILE, _KEY_BYTES = "origin.key", 32
_SCRATCH_NAME = re.compile(r"ring|[0-9]{6,9}\.seg")
_SEALED_NAME = re.compile(r"[0-9]{6,9}\.[a-z_]{1,40}\.parquet")

# Opening ---------------------------------------------------------------------------------------------


def open_file(path: Path, flags: int = os.O_RDONLY, *, parts: int = 1) -> int:
    """A descriptor of a regular file, none of whose last `parts` names is a link.

    OSError if it is anything else, or is to be written and is not this user's alone. What is made is readable by this
    user only, whatever the umask.
    """
    directory = os.open(path.parents[parts - 1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.parts[-parts:-1]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFELY, dir_fd=directory)
            os.close(directory)
            directory = inner
        descriptor = os.open(path.name, flags & ~os.O_TRUNC | _SAFELY, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        facts = os.fstat(descriptor)
        is_written = flags & os.O_ACCMODE != os.O_RDONLY
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if is_written and (facts.st_uid != os.geteuid() or facts.st_nlink > 1):
            raise PermissionError(errno.EPERM, "not a file of this user alone", str(path))
        if flags & os.O_CREAT and stat.S_IMODE(facts.st_mode) != 0o600:
            os.fchmod(descriptor, 0o600)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, most_bytes: int, *, parts: int = 1) -> bytes:
    """A file's content; OSError if it is larger than that."""
    descriptor = open_file(path, parts=parts)
    with open(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
        pieces: list[bytes] = []
        left = most_bytes
        while left and (piece := file.read(min(left, size + 1 if not pieces else _PIECE_BYTES))):  # it may be growing
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


def open_named(path: Path) -> BinaryIO:
    """A file that the user names, or that lies where commands look, to be read: perhaps through a link, never waiting.

    OSError if it is not a regular file: a pipe that a stranger has put in its place would hold the reader up for ever.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def map_file(path: Path, *, parts: int = 1) -> memoryview:
    """A file's bytes as they are now, without reading them where they can be mapped; empty if it has none."""
    descriptor = open_file(path, parts=parts)
    try:
        size = os.fstat(descriptor).st_size
        return memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ)) if size else memoryview(b"")
    except OSError as error:
        if error.errno not in NOT_MAPPED:
            raise
        return memoryview(read_file(path, size, parts=parts))
    finally:
        os.close(descriptor)


def append_file(path: Path, content: bytes) -> None:
    """Add to a file in one write."""
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def version_of(path: Path) -> tuple[int, ...]:
    """Inode, size and time of change of a regular file; empty if there is none."""
    try:
        facts = os.lstat(path)
    except (OSError, ValueError):
        return ()
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns) if stat.S_ISREG(facts.st_mode) else ()


def has_input(source: Any, timeout_s: float) -> bool:
    """Whether a pipe or socket can be read, or has ended, within that time.

    `select.select` knows no descriptor beyond 1,023: a collector has thousands of files open, a trainer may, too.
    """
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(min(timeout_s * 1000.0, _LONGEST_POLL_MS)))


# Directories -----------------------------------------------------------------------------------------


def make_directory(path: Path) -> None:
    """Make a directory and those above it that are missing, for this user only whatever the umask."""
    for parent in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            os.mkdir(parent, 0o700)
            os.chmod(parent, 0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, where its file system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file_system(directory: Path) -> None:
    """Make everything written below a directory survive a power cut: one call for thousands of files."""
    import ctypes

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "cannot sync", str(directory))
    except AttributeError:  # not Linux
        os.sync()
    finally:
        os.close(descriptor)


def directories_in(path: Path, *, with_links: bool = False) -> list[Path]:
    """The directories inside one, by name."""
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=with_links))
    except (OSError, ValueError):
        return []


def is_own(path: Path) -> bool:
    """Whether this user made what has this name; not if it is somebody else's link to something of this user."""
    try:
        return os.lstat(path).st_uid == os.geteuid()
    except OSError:
        return False


def is_gone(path: Path) -> bool:
    """Whether there is nothing of that name; not if that cannot be told just now."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def is_scratch(path: Path, process: str) -> bool:
    """Whether it can be what a process made for its ring on local disk: by owner, name and content."""
    try:
        facts = os.lstat(path)
        is_named = path.is_absolute() and path.name.endswith(f"-{process}")
        is_own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
        return is_named and is_own and all(map(_SCRATCH_NAME.fullmatch, os.listdir(path)))
    except (OSError, ValueError):
        return False


# Whose run it is -------------------------------------------------------------------------------------


def origin_of(directory: Path, *, is_new: bool = False) -> str | None:
    """What only this user can know about a directory: kept in `run.json`, it says who recorded here.

    It depends on a key of this user and on the inode, so a copy, however it came here, is not ours. None where no
    key can be kept, or there is none and `is_new` does not ask for one: who only reads makes no key.
    """
    from hashlib import blake2b

    for place in (config_dir, registry_dir):
        with suppress(OSError, RuntimeError):  # a read-only home, or none
            key = _key_in(place()) if is_new else _known_key(place())
            return blake2b(f"run {os.stat(directory).st_ino}".encode(), key=key, digest_size=16).hexdigest()
    return None


def _known_key(directory: Path) -> bytes:
    path = directory / _KEY_FILE
    for one in (directory, path):
        if os.lstat(one).st_uid != os.geteuid():  # somebody was faster, where all may write
            raise PermissionError(errno.EPERM, "not of this user", str(one))
    return read_file(path, _KEY_BYTES)


def _key_in(directory: Path) -> bytes:
    path = directory / _KEY_FILE
    with suppress(FileNotFoundError):
        key = _known_key(directory)
        if len(key) == _KEY_BYTES:
            return key
        path.unlink()  # left behind half written
    make_directory(directory)
    if not is_own(directory):
        raise PermissionError(errno.EPERM, "not a directory of this user", str(directory))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        os.write(descriptor, os.urandom(_KEY_BYTES))
    finally:
        os.close(descriptor)
    with suppress(FileExistsError):  # another process was faster
        os.link(temporary, path)
    temporary.unlink(missing_ok=True)
    return read_file(path, _KEY_BYTES)


# JSON ------------------------------------------------------------------------------------------------


_CHECKSUM = re.compile(rb', "crc32": ([0-9]{1,10})\}\Z')  # of the bytes before it


def checked_json(content: Mapping[str, Any]) -> bytes:
    """An object as JSON that ends with the checksum of what is before it; half a character is a "?"."""
    text = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")[:-1]
    return b'%s, "crc32": %d}' % (text, zlib.crc32(text)) if content else b"{}"


def read_document(path: Path, *, parts: int = 1, is_needed: bool = False) -> tuple[dict[str, Any], bool]:
    """The file's object without its checksum, and whether it is as it was written.

    The object is empty if the file is missing or damaged. One without a checksum, as older versions wrote it, is
    taken as it is. OSError, where `is_needed`, if it is there and cannot be read just now: what is written instead
    would be wrong.
    """
    try:
        text = read_file(path, LARGEST_JSON, parts=parts)
        content = json.loads(text)
    except FileNotFoundError:
        return {}, True
    except (ValueError, RecursionError):
        return {}, False
    except OSError:
        if is_needed:
            raise
        return {}, False
    if not isinstance(content, dict):
        return {}, False
    found = _CHECKSUM.search(text, max(0, len(text) - 32))
    if found is None:
        return content, True
    content.pop("crc32", None)
    return content, int(found[1]) == zlib.crc32(memoryview(text)[: found.start()])


def read_json(path: Path, *, parts: int = 1, is_needed: bool = False) -> dict[str, Any]:
    """The file's object, or an empty one if it is missing or damaged beyond reading; see `read_document`."""
    return read_document(path, parts=parts, is_needed=is_needed)[0]


_NUMBER = range(-(2**62), 2**62)
_COUNT = range(2**62)
_INDEX = range(2**31 - 1)
_FACTS: dict[str, range | type] = {
    **dict.fromkeys(("started_ns", "ended_ns", "pid", "child_pid", "start_ticks", "limit_bytes"), _COUNT),
    **dict.fromkeys(("rank", "world_size", "daemon_of"), _INDEX),
    **dict.fromkeys(("run", "process", "host", "host_key", "boot_id", "scratch", "origin", "error", "site"), str),
    **dict.fromkeys(("preset", "python", "torch", "cwd", "traceback", "callbacks", "git_commit", "version"), str),
    "overhead_budget": float,
    "exit_code": _NUMBER,
    "config": dict,
    "versions": dict,
}
_MANIFEST: dict[str, range | type] = {
    **dict.fromkeys(("rows", "host_rows", "slots", "frames", "lost"), _COUNT),
    "segment": range(1, 10**9),
    "sealed": list, "names": list, "groups": list, "counters": dict, "ended": dict, "retired": dict, "collected": dict,
}  # fmt: skip
_SEALED: dict[str, range | type] = {"file": str, "table": str, "rows": _COUNT, "bytes": _COUNT}

_GROUP: dict[str, range | type] = {"name": str, "op": str, **dict.fromkeys(("begun", "complete", "bytes"), _NUMBER)}


def _is(value: Any, wanted: range | type) -> bool:
    return type(value) is int and value in wanted if isinstance(wanted, range) else isinstance(value, wanted)


def _are_counts(table: Mapping[Any, Any]) -> bool:
    return all(_is(value, _COUNT) for value in table.values())


def checked_facts(content: dict[str, Any]) -> dict[str, Any]:
    """What `run.json`, `process.json` or a launcher says, without what cannot be meant: as if it were not there."""
    odd = [name for name, wanted in _FACTS.items() if name in content and not _is(content[name], wanted)]
    return {name: value for name, value in content.items() if name not in odd} if odd else content


def checked_manifest(content: dict[str, Any]) -> dict[str, Any]:
    """A manifest in which everything is what it must be, or an empty one."""
    is_ours = (
        all(_is(content[name], wanted) for name, wanted in _MANIFEST.items() if name in content)
        and all(map(_is_sealed, content.get("sealed", ())))
        and all(isinstance(name, str) for name in content.get("names", ()))
        and all(map(_is_group, content.get("groups", ())))
        and _are_counts(content.get("retired", {}))
        and _are_counters(content.get("counters", {}))
        and _is(content.get("ended", {}).get("t_ns", 0), _COUNT)
    )
    return content if is_ours else {}


def _is_sealed(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(_is(entry.get(name), wanted) for name, wanted in _SEALED.items())
        and (entry.get("crc32") is None or _is(entry["crc32"], range(2**32)))
        and _SEALED_NAME.fullmatch(entry["file"]) is not None
    )


def _is_group(entry: Any) -> bool:
    return isinstance(entry, dict) and all(_is(entry.get(name), wanted) for name, wanted in _GROUP.items())


def _are_counters(counters: dict[str, Any]) -> bool:
    drops = counters.get("drops", {})
    rest = {name: value for name, value in counters.items() if name != "drops"}
    return isinstance(drops, dict) and _are_counts(drops) and all(_is(value, _NUMBER) for value in rest.values())


def checked_counters(content: Any) -> dict[str, Any]:
    """Counters of a process elsewhere, without what cannot be meant."""
    known = ("spent_ns", "started_ns", "last_step_ns", "steps", "state", "t_ns")
    content = content if isinstance(content, dict) else {}
    return {name: content[name] for name in known if _is(content.get(name), _COUNT)}


def checked_books(content: Any) -> dict[str, Any]:
    """What a client says became of its rows, without what cannot be meant; see `collect.books`."""
    content = content if isinstance(content, dict) else {}
    numbers = {name: content.get(name) if _is(content.get(name), _COUNT) else 0 for name in ("produced", "lost")}
    return {**numbers, "drops": _counts_in(content.get("drops")), "withheld": _counts_in(content.get("withheld"))}


def _counts_in(table: Any) -> dict[str, int]:
    if not isinstance(table, dict) or len(table) > _MOST_REASONS:
        return {}
    return {str(name)[:60]: rows for name, rows in table.items() if _is(rows, _COUNT)}
