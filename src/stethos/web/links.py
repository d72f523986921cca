"""Read-only links that last: each has a token of its own, outlives the server, and can be revoked.

Only a digest of a token is written down, so nobody learns a token from the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stethos.errors import UsageError
from stethos.record.border import make_directory, read_file, version_of
from stethos.record.place import write_json
from stethos.settings import config_dir
from stethos.web.keys import Capability, new_token

_LARGEST = 1 << 20
_MOST = 500
_LONGEST_NOTE = 200
_changing = threading.Lock()


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that was given to somebody; `digest` is of its token."""

    id: str
    digest: str
    note: str
    made_ns: int

    def as_dict(self) -> dict[str, Any]:
        return {"id": self.id, "note": self.note, "made_ns": str(self.made_ns)}


class Links:
    """The links of one directory of runs. Thread-safe; what another process revokes is revoked here, too."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_of: tuple[int, ...] | None = None
        self._known: tuple[SharedLink, ...] = ()

    @classmethod
    def of(cls, directory: Path) -> Links:
        name = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:24]
        return cls(config_dir() / "links" / f"{name}.json")

    def all(self) -> tuple[SharedLink, ...]:
        """Those that hold now."""
        version = version_of(self._file)
        if version != self._read_of:
            self._known, self._read_of = _read(self._file), version
        return self._known

    def allows(self, token: bytes) -> Capability | None:
        """`read` if the token is one of a link that holds."""
        digest = hashlib.sha256(token).hexdigest()
        held = [one for one in self.all() if secrets.compare_digest(one.digest, digest)]
        return "read" if held else None

    def add(self, note: str) -> tuple[SharedLink, str]:
        """A new link and its token, which nobody can tell again."""
        if len(note) > _LONGEST_NOTE:
            raise UsageError("the note is too long", hint=f"at most {_LONGEST_NOTE} characters")
        token = new_token()
        digest = hashlib.sha256(token.encode()).hexdigest()
        link = SharedLink(secrets.token_hex(4), digest, note, time.time_ns())
        with _changing:
            known = self.all()
            if len(known) >= _MOST:
                raise UsageError(f"there are {_MOST} links already", hint="revoke some")
            self._write((*known, link))
        return link, token

    def revoke(self, id: str) -> SharedLink:
        """From now on its token is as good as none; UsageError if there is no such link."""
        with _changing:
            known = self.all()
            found = next((one for one in known if one.id == id), None)
            if found is None:
                raise UsageError(f"no link {id!r}", hint="see `stethos link`")
            self._write(tuple(one for one in known if one.id != id))
        return found

    def _write(self, links: tuple[SharedLink, ...]) -> None:
        try:
            make_directory(self._file.parent)
            write_json(self._file, {"links": [asdict(one) for one in links]})
        except OSError as error:
            raise UsageError(f"cannot write {self._file}: {error.strerror}") from None
        self._read_of = None


def token_in(file: Path) -> str:
    """The token that a file holds, made on the first start; UsageError if it is none, or others can read it."""
    try:
        if not file.exists():
            make_directory(file.parent.absolute())
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w", encoding="ascii") as opened:
                opened.write(f"{new_token()}\n")
        about = os.stat(file)
        if about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise UsageError(f"other users can read {file}", hint=f"chmod 600 {file}")
        token = read_file(file, 4096).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"no token in {file}: {error}", hint="name a file that can be made") from None
    if len(token) < 32 or not token.isalnum():
        raise UsageError(f"{file} holds no token", hint="delete it: a new one is made")
    return token


def _read(file: Path) -> tuple[SharedLink, ...]:
    try:
        content = json.loads(read_file(file, _LARGEST))
        return tuple(_link(one) for one in content["links"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def _link(told: Mapping[str, Any]) -> SharedLink:
    return SharedLink(str(told["id"]), str(told["digest"]), str(told["note"]), int(told["made_ns"]))
