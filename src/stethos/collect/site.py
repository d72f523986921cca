"""A site: the directory in which a client keeps its name, its key, its policy and what waits to be sent.

    SITE/site.json      its name, the collector's address and the fingerprint of the collector's certificate
    SITE/key.pem        its private key, made here; it never leaves
    SITE/policy.toml    what may leave, see `collect.policy`
    SITE/spool/         what the policy lets through and nobody has acknowledged yet
    SITE/audit.jsonl    what the collector asked for and did not get

The collector's answers carry numbers that say what it has stored and how long to wait. Whatever else they carry is
written down and not done.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.collect.batch import CLIENT_NAME
from stethos.collect.policy import DEFAULT_LEVEL
from stethos.errors import UsageError
from stethos.record.border import append_file, make_directory, open_file, read_file, read_json
from stethos.record.place import write_json
from stethos.record.whole_file import whole_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SITE_FILE, _KEY_FILE, POLICY_FILE, _AUDIT_FILE = "site.json", "key.pem", "policy.toml", "audit.jsonl"
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_MOST_AUDIT_BYTES = 4 << 20
_POLICY = f"""# What may leave this site; see docs/privacy.md. `stethos policy --site DIR` shows what comes of it.
level = "{DEFAULT_LEVEL}"
"""
NEEDS_CRYPTOGRAPHY = "pip install 'stethos[gateway]'"


@dataclass(frozen=True, slots=True)
class SiteHome:
    """A site's directory and what stands in its `site.json`; `address` is "" where batches ride along only."""

    path: Path
    name: str
    address: str = ""
    fingerprint: str = ""

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def policy_path(self) -> Path:
        return self.path / POLICY_FILE

    def note(self, **facts: Any) -> None:
        """Write down what was asked of this site and not done; the file is bounded."""
        path = self.path / _AUDIT_FILE
        line = json.dumps({"t_ns": time.time_ns(), **facts}, default=str)[:4000] + "\n"
        if not path.exists() or path.stat().st_size < _MOST_AUDIT_BYTES:
            append_file(path, line.encode("ascii", "replace"))

    def last_failure(self) -> str:
        """Why a batch was not taken when that was last written down; "" if it never was."""
        path = self.path / _AUDIT_FILE
        lines = read_file(path, 2 * _MOST_AUDIT_BYTES).decode("ascii", "replace").splitlines() if path.exists() else []
        for line in reversed(lines):
            try:
                told = json.loads(line)
            except ValueError:  # too long, or cut off by a kill
                continue
            if told.get("what") == "send":
                return str(told.get("why", ""))
        return ""

    def signer(self) -> Callable[[bytes], bytes] | None:
        """What signs this site's batches; None where it has no key."""
        path = self.path / _KEY_FILE
        if not path.exists():
            return None
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(read_file(path, 4096), None)
        return key.sign  # type: ignore[union-attr,return-value,call-arg,unused-ignore]


def open_site(path: Path) -> SiteHome:
    """The site in a directory; UsageError if there is none."""
    facts = read_json(path / _SITE_FILE)
    name, address, fingerprint = (str(facts.get(word) or "") for word in ("name", "address", "fingerprint"))
    if CLIENT_NAME.fullmatch(name) is None:
        raise UsageError(f"no site in {path}", hint="make one with `stethos enroll`")
    if address and (_ADDRESS.fullmatch(address) is None or _FINGERPRINT.fullmatch(fingerprint) is None):
        raise UsageError(f"{path / _SITE_FILE} is damaged", hint="enrol again with `stethos enroll`")
    return SiteHome(path.absolute(), name, address, fingerprint)


def known_site(path: Path) -> SiteHome | None:
    """The site in a directory; None if there is none that can be understood."""
    try:
        return open_site(path)
    except UsageError:
        return None


def check_address(address: str) -> None:
    """UsageError unless it is HOST:PORT."""
    if _ADDRESS.fullmatch(address) is None:
        raise UsageError(f"{address!r} is not an address", hint="write HOST:PORT, as in server:7468")


def make_site(path: Path, name: str, address: str = "", fingerprint: str = "") -> SiteHome:
    """Write a site's directory, readable by this user alone, with a policy to begin with unless it has one."""
    if CLIENT_NAME.fullmatch(name) is None:
        raise UsageError(f"{name!r} cannot be a client's name", hint="use letters, digits, '.', '_' and '-'")
    if address:
        check_address(address)
    make_directory(path)
    if os.lstat(path).st_uid != os.geteuid() or os.lstat(path).st_mode & 0o077:
        raise UsageError(f"other users can read {path}", hint=f"choose a directory of its own, or chmod 700 {path}")
    write_json(path / _SITE_FILE, {"name": name, "address": address, "fingerprint": fingerprint})
    site = SiteHome(path.absolute(), name, address, fingerprint)
    if not site.policy_path.exists():
        with whole_file(site.policy_path) as file:
            file.write(_POLICY.encode())
    return site


def own_key(path: Path) -> Ed25519PrivateKey:
    """The private key in a site's directory, made now if it has none."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise UsageError("a site's key needs the package cryptography", hint=NEEDS_CRYPTOGRAPHY) from None
    make_directory(path)
    file = path / _KEY_FILE
    if not file.exists():
        key = Ed25519PrivateKey.generate()
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        descriptor = open_file(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(descriptor, "wb") as written:
            written.write(text)
    found = serialization.load_pem_private_key(read_file(file, 4096), None)
    if not isinstance(found, Ed25519PrivateKey):
        raise UsageError(f"{file} is not an Ed25519 key", hint="remove it: a new one is made")
    return found


def public_hex(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes_raw().hex()
