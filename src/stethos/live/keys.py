"""The keys of a gateway: a certificate made once, and two tokens, one to read and one to act.

A token file is what a client needs: the certificate's fingerprint, which it
compares before it says anything, and the token, which never travels. Both
sides prove that they have it (HMAC over a number the other side chose).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import os
import re
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stethos.errors import LiveError, UsageError

Right = Literal["read", "act"]
RIGHTS: tuple[Right, ...] = ("read", "act")
CERTIFICATE, KEY = "certificate.pem", "key.pem"
_TOKEN_LINE = re.compile(r"stethos-token (read|act) ([0-9a-f]{64}) ([0-9a-f]{64})\s*")
_YEARS = 10


@dataclass(frozen=True, slots=True)
class Token:
    """What a token file holds."""

    right: Right
    fingerprint: str
    secret: bytes

    def line(self) -> str:
        return f"stethos-token {self.right} {self.fingerprint} {self.secret.hex()}\n"

    def proof(self, *parts: bytes) -> str:
        """That whoever sends these bytes has the token."""
        return proof_of(self.secret, *parts)


@dataclass(frozen=True, slots=True)
class Keys:
    """A gateway's own side."""

    directory: Path
    fingerprint: str
    secrets: dict[Right, bytes]

    def token_path(self, right: Right) -> Path:
        return self.directory / f"{right}.token"

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.directory / CERTIFICATE, self.directory / KEY)
        return context


def proof_of(secret: bytes, *parts: bytes) -> str:
    """The HMAC of these parts, each with its length."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.hexdigest()


def is_proof(given: object, secret: bytes, *parts: bytes) -> bool:
    """Whether the proof is right; takes as long when it is wrong."""
    text = given if isinstance(given, str) and given.isascii() else ""
    return hmac.compare_digest(text, proof_of(secret, *parts))


def open_keys(directory: Path) -> Keys:
    """The keys in a directory, made on the first start; the files are the user's alone."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = directory.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise LiveError(f"{directory} is not this user's alone", hint=f"chmod 700 {directory}")
    if not (directory / CERTIFICATE).is_file() or not (directory / KEY).is_file():
        _make_certificate(directory)
    fingerprint = fingerprint_of(ssl.PEM_cert_to_DER_cert((directory / CERTIFICATE).read_text(encoding="ascii")))
    held: dict[Right, bytes] = {}
    for right in RIGHTS:
        path = directory / f"{right}.token"
        if not path.is_file():
            _write_private(path, Token(right, fingerprint, secrets.token_bytes(32)).line())
        token = read_token(path)
        if token.fingerprint != fingerprint or token.right != right:
            raise LiveError(f"{path} belongs to another certificate", hint=f"delete {path}: a new one is made")
        held[right] = token.secret
    return Keys(directory, fingerprint, held)


def read_token(path: Path) -> Token:
    """The token in a file; UsageError if there is none."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise UsageError(f"no token in {path}: {error}", hint="copy it from the gateway's machine") from None
    found = _TOKEN_LINE.fullmatch(text)
    if found is None:
        raise UsageError(f"{path} is not a token file", hint="copy read.token or act.token from the gateway's machine")
    return Token("act" if found[1] == "act" else "read", found[2], bytes.fromhex(found[3]))


def fingerprint_of(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _make_certificate(directory: Path) -> None:
    """A self-signed certificate; nobody checks its name, all check its fingerprint."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise LiveError("a gateway needs the package cryptography", hint="pip install 'stethos[gateway]'") from None
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
