"""Whole objects below an address: read, put, listed and deleted; none is ever seen half-written."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stethos.archive.address import Address
from stethos.errors import ArchiveError
from stethos.record.border import make_directory, map_file, read_file, version_of
from stethos.record.whole_file import whole_file
from stethos.redact import redact

_LONGEST_REASON = 300
_LARGEST_OBJECT = 256 << 20  # of those that are read as a whole
LATER = "try again later"
_ANSWER = re.compile(r"status code: (\d{3}(?: [A-Za-z]+)*)(?:.*?<Code>(\w+)</Code>)?")
_BACKTRACE = re.compile(r"\n\s+0: .*", re.DOTALL)  # of Rust
_ARROW = re.compile(r"\s*\x1b\[\d+m↳\x1b\[0m")  # before the cause of an error


class _Known(NamedTuple):
    """An error that is known by words in it: what is wrong, and what to do about it."""

    words: tuple[str, ...]
    reason: str
    hint: str


_KNOWN = (
    _Known(
        ("No credential", "CredentialsNotLoaded", "no providers in chain", "InstanceMetadata", "169.254.169.254",
         "169.254.170.2"),
        "there are no credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    _Known(
        ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID",
         "EXPIRED_TOKEN", "InvalidAccessKeyId", "SignatureDoesNotMatch", "HTTP status 403", "HTTP status 401",
         "Forbidden", "status: 403", "status: 401", "lacked the necessary privileges", "lacked valid authentication"),
        "access is denied", "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they are allowed to do",
    ),
    _Known(
        ("NO_SUCH_BUCKET", "NoSuchBucket", "does not exist"), "there is no such bucket",
        "check the bucket's name and the endpoint",
    ),
    _Known(
        ("NETWORK_CONNECTION", "onnection refused", "onnect error", "dns error", "curlCode", "error sending request"),
        "the store does not answer", "check the network and AWS_ENDPOINT_URL",
    ),
)  # fmt: skip


class Listed(NamedTuple):
    """An object below an address: its path there, and its size."""

    path: str
    bytes: int


@contextmanager
def explained(address: Address, doing: str) -> Iterator[None]:
    """Turn an object store's errors into ours; nothing secret is repeated. FileNotFoundError passes."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise trouble(address, doing, error) from None


def trouble(address: Address, doing: str, error: Exception) -> ArchiveError:
    """What went wrong with an archive, in one line, and what to check."""
    text = redact(" ".join(_ARROW.sub(":", _BACKTRACE.sub("", str(error))).split()))
    if address.is_local and isinstance(error, OSError):
        text, hint = error.strerror or text, "check the directory and its permissions"
    else:
        known = next((one for one in _KNOWN if any(word in text for word in one.words)), None)
        answer = None if address.is_local else _ANSWER.search(text)
        if known is not None and not address.is_local:
            text, hint = known.reason, known.hint
        elif answer is not None:
            text, hint = f"the store answers {' '.join(filter(None, answer.groups()))}", "try again; is this store up?"
        else:
            hint = LATER
    return ArchiveError(f"cannot {doing} {address}: {text[:_LONGEST_REASON]}", hint=hint)


class Objects:
    """The objects below one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        with explained(address, "reach"):
            self._files = address.file_system()

    def _full(self, path: str) -> str:
        return f"{self.address.path}/{path}" if path else self.address.path

    def read(self, path: str) -> bytes:
        """A small object's content; FileNotFoundError if there is none."""
        with explained(self.address, "read"):
            if self.address.is_local:
                return read_file(Path(self._full(path)), _LARGEST_OBJECT)
            with self._files.open_input_file(self._full(path)) as file:
                if file.size() > _LARGEST_OBJECT:
                    raise ValueError(f"{path} is larger than {_LARGEST_OBJECT >> 20} MB")
                return bytes(file.read(_LARGEST_OBJECT))

    def size_of(self, path: str) -> int | None:
        """An object's size; None if there is none."""
        import pyarrow.fs as fs

        with explained(self.address, "read"):
            found = self._files.get_file_info(self._full(path))
        return int(found.size) if found.type == fs.FileType.File else None

    def put(self, path: str, content: bytes | memoryview) -> None:
        """Write an object as a whole: after any failure or kill, it is not there."""
        full = self._full(path)
        with explained(self.address, "write to"):
            if self.address.is_local:
                make_directory(Path(full).parent)
                with whole_file(Path(full)) as file:
                    file.write(content)
                return
            with self._files.open_output_stream(full) as stream:
                stream.write(content)
        if self.size_of(path) != len(content):
            raise ArchiveError(f"{self.address} has not kept {path} as it was written", hint=LATER)

    def put_file(self, path: str, source: Path) -> None:
        """As `put`, from a file of a run."""
        with explained(self.address, "archive to"):
            content = map_file(source, parts=2)
        self.put(path, content)

    def link(self, path: str, target: Path) -> bool:
        """Have a file of an archive in a directory under another name, too, which costs no space.

        False on another file system, or if the file is somebody else's.
        """
        with suppress(OSError):
            if self.address.is_local and version_of(Path(self._full(path))):
                target.unlink(missing_ok=True)
                os.link(self._full(path), target, follow_symlinks=False)
                return True
        return False

    def fetch(self, path: str, target: Path) -> None:
        """Copy an object into a file, whole or not at all; FileNotFoundError if there is none."""
        full = self._full(path)
        with explained(self.address, "read"):
            if self.address.is_local and not version_of(Path(full)):
                raise FileNotFoundError(full)  # a link or a device is not a file of an archive
            with whole_file(target, is_synced=False) as file, self._files.open_input_stream(full) as stream:
                shutil.copyfileobj(stream, file, 4 << 20)

    def listed(self, path: str = "", *, deep: bool = True) -> list[Listed]:
        """The objects below a path, by name."""
        return sorted(Listed(name, size) for name, size, is_file in self._entries(path, deep=deep) if is_file)

    def directories(self) -> list[str]:
        """The names right below that have something below themselves."""
        return sorted(name for name, _, is_file in self._entries("", deep=False) if not is_file)

    def _entries(self, path: str, *, deep: bool) -> Iterator[tuple[str, int, bool]]:
        import pyarrow.fs as fs

        root = self.address.path
        with explained(self.address, "list"):
            try:
                found = self._files.get_file_info(fs.FileSelector(self._full(path), recursive=deep))
            except FileNotFoundError:
                return
        for one in found:
            yield one.path[len(root) + 1 :], int(one.size or 0), one.type == fs.FileType.File

    def delete(self, path: str) -> None:
        """Delete an object; it is no error if it is gone."""
        with explained(self.address, "delete from"), suppress(FileNotFoundError):
            self._files.delete_file(self._full(path))

    def delete_below(self, path: str) -> None:
        """Delete everything below a path."""
        with explained(self.address, "delete from"), suppress(FileNotFoundError):
            self._files.delete_dir(self._full(path))
