"""The keys of a server: a certificate made once, and two tokens, one to read and one to act.

A token file is what a client needs: the certificate's fingerprint, which it
compares before it sends anything, and the token, which travels inside TLS alone.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import re
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stethos.errors import LiveError, UsageError
from stethos.record.border import make_directory

# See a run, add rows of one's own to it, label and delete runs, change a training.
Capability = Literal["read", "write", "edit", "act"]
INCLUDED: dict[Capability, frozenset[Capability]] = {
    "read": frozenset({"read"}),
    "write": frozenset({"write"}),
    "edit": frozenset({"read", "edit"}),
    "act": frozenset({"read", "edit", "act"}),
}
HELD: tuple[Capability, ...] = ("read", "act")  # those with a token file
CERTIFICATE, KEY = "certificate.pem", "key.pem"
_TOKEN_LINE = re.compile(r"stethos-token (read|act) ([0-9a-f]{64}) ([0-9a-f]{64})\s*")
_YEARS = 10


@dataclass(frozen=True, slots=True)
class Token:
    """What a token file holds."""

    capability: Capability
    fingerprint: str
    secret: str

    def line(self) -> str:
        return f"stethos-token {self.capability} {self.fingerprint} {self.secret}\n"


@dataclass(frozen=True, slots=True)
class Keys:
    """A server's own side."""

    directory: Path
    fingerprint: str
    tokens: dict[str, Capability]

    def token_path(self, capability: Capability) -> Path:
        return self.directory / f"{capability}.token"

    def server_context(self) -> ssl.SSLContext:
        """TLS 1.3 and nothing older."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.directory / CERTIFICATE, self.directory / KEY)
        return context


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_hex(32)


def open_keys(directory: Path) -> Keys:
    """The keys in a directory, made on the first start; the files are readable by this user alone."""
    make_directory(directory.absolute())
    about = directory.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise LiveError(f"other users can read {directory}", hint=f"chmod 700 {directory}")
    if not (directory / CERTIFICATE).is_file() or not (directory / KEY).is_file():
        _make_certificate(directory)
    fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert((directory / CERTIFICATE).read_text(encoding="ascii")))
    tokens: dict[str, Capability] = {}
    for capability in HELD:
        path = directory / f"{capability}.token"
        if not path.is_file():
            _write_private(path, Token(capability, fingerprint, new_token()).line())
        token = read_token(path)
        if token.fingerprint != fingerprint or token.capability != capability:
            raise LiveError(f"{path} belongs to another certificate", hint=f"delete {path}: a new one is made")
        tokens[token.secret] = capability
    return Keys(directory, fingerprint, tokens)


def read_token(path: Path) -> Token:
    """The token in a file; UsageError if there is none."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UsageError(f"no token in {path}: {error}", hint="copy it from the server's machine") from None
    found = _TOKEN_LINE.fullmatch(text)
    if found is None:
        raise UsageError(f"{path} is not a token file", hint="copy read.token or act.token from the server's machine")
    return Token("act" if found[1] == "act" else "read", found[2], found[3])


def fingerprint_of(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _make_certificate(directory: Path) -> None:
    """A self-signed certificate; clients check its fingerprint, not its name."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise LiveError("TLS needs the package cryptography", hint="pip install 'stethos[gateway]'") from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stethos gateway")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    _write_private(directory / KEY, key.private_bytes(pem, *plain).decode("ascii"))
    _write_private(directory / CERTIFICATE, certificate.public_bytes(pem).decode("ascii"))


def _write_private(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
