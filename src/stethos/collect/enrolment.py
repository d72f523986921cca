"""Who may send rows: the public key of each client, bound to its name with a token that works once.

    KEYS/clients.json   name, key, further names in its rows, and whether it was revoked
    KEYS/tokens.json    digests of tokens that were given out, with their names and when they end

Changed by `stethos enroll` and by the collector, under one lock; the collector sees a change at the next request.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.collect.batch import CLIENT_NAME, BatchError, SignedBatch
from stethos.collect.proof import Bound, Proof, check_proof
from stethos.errors import UsageError
from stethos.record.border import open_file, read_json, version_of
from stethos.record.place import write_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_CLIENTS, _TOKENS, _LOCK = "clients.json", "tokens.json", "enrolment.lock"
TOKEN_S = 7 * 24 * 3600
_TOKEN_LINE = re.compile(r"stethos-enrol ([0-9a-f]{64}) ([0-9a-f]{64})\s*")
_KEY = re.compile(r"[0-9a-f]{64}")


class NotEnrolledError(BatchError):
    """Nobody of that name may send, or the signature is not theirs."""


@dataclass(frozen=True, slots=True)
class EnrolledClient:
    """A client that may send rows of its own."""

    name: str
    key: str
    aliases: tuple[str, ...] = ()
    is_revoked: bool = False
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """What is carried to a site: the certificate's fingerprint and a secret that works once."""

    fingerprint: str
    secret: str

    def line(self) -> str:
        return f"stethos-enrol {self.fingerprint} {self.secret}\n"


def token_in(text: str) -> EnrolmentToken:
    """The token in the text of a file; UsageError if there is none."""
    found = _TOKEN_LINE.fullmatch(text)
    if found is None:
        raise UsageError("not an enrolment token", hint="copy the file that `stethos enroll --new NAME` wrote")
    return EnrolmentToken(found[1], found[2])


class Enrolment:
    """The clients of one collector."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._version: tuple[int, ...] | None = None
        self._clients: dict[str, EnrolledClient] = {}
        self._keys: dict[str, Ed25519PublicKey] = {}

    def clients(self) -> dict[str, EnrolledClient]:
        """By name, as the file says now."""
        version = version_of(self.directory / _CLIENTS)
        if version != self._version:
            self._version, self._keys = version, {}
            self._clients = dict(_clients_in(read_json(self.directory / _CLIENTS)))
        return self._clients

    def check(self, batch: SignedBatch) -> EnrolledClient:
        """Whose batch it is; NotEnrolledError unless it is signed by the client that it names."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        name = batch.header.client
        client = self.clients().get(name)
        if client is None:
            raise NotEnrolledError(f"no client {name!r} is enrolled", hint="`stethos enroll` at the client")
        if client.is_revoked:
            raise NotEnrolledError(f"client {name!r} was revoked")
        if name not in self._keys:
            self._keys[name] = Ed25519PublicKey.from_public_bytes(bytes.fromhex(client.key))
        try:
            self._keys[name].verify(batch.signature, batch.signed)
        except InvalidSignature:
            raise NotEnrolledError(f"the batch is not signed by the key that is enrolled for {name!r}") from None
        return client

    # Changing ----------------------------------------------------------------------------------------

    def invite(
        self, name: str, fingerprint: str, aliases: tuple[str, ...] = (), bound: Bound | None = None
    ) -> EnrolmentToken:
        """A token with which a site may take this name once, within a week; `bound` to a key that it has already."""
        if CLIENT_NAME.fullmatch(name) is None or not all(map(CLIENT_NAME.fullmatch, aliases)):
            raise UsageError(f"{name!r} cannot be a client's name", hint="use letters, digits, '.', '_' and '-'")
        token = EnrolmentToken(fingerprint, secrets.token_hex(32))
        with self._locked():
            tokens = self._live_tokens()
            facts = {"name": name, "until": time.time() + TOKEN_S, "aliases": list(aliases), "bound": bound or {}}
            tokens[_digest(token.secret)] = facts
            write_json(self.directory / _TOKENS, tokens)
        return token

    def enrol(self, secret: str, key: str, proof: Proof | None = None) -> str:
        """Bind a key to the name of a token, which is used up; the name.

        NotEnrolledError if the token is not one, ProofError if it is bound to a key that is not shown.
        """
        if _KEY.fullmatch(key) is None:
            raise NotEnrolledError("the key is not one")
        with self._locked():
            tokens = self._live_tokens()
            found = tokens.pop(_digest(secret), None)
            if found is None:
                raise NotEnrolledError("the token is wrong, was used, or is too old")
            check_proof(found.get("bound"), proof, str(found["name"]), secret, key)
            write_json(self.directory / _TOKENS, tokens)  # first: a token never works twice
            facts = {"key": key, "aliases": found.get("aliases", []), "since_ns": time.time_ns()}
            self._write({**read_json(self.directory / _CLIENTS), str(found["name"]): facts})
        return str(found["name"])

    def add(self, name: str, key: str) -> None:
        """Know a client that was enrolled elsewhere, as a relay does."""
        if _KEY.fullmatch(key) is None or CLIENT_NAME.fullmatch(name) is None:
            raise NotEnrolledError("the name or the key is not one")
        with self._locked():
            facts = {"key": key, "aliases": [], "since_ns": time.time_ns()}
            self._write({**read_json(self.directory / _CLIENTS), name: facts})

    def revoke(self, name: str) -> None:
        """Take nothing more from a client; its tokens that are still to be used are worth nothing."""
        with self._locked():
            content, tokens = read_json(self.directory / _CLIENTS), self._live_tokens()
            left = {digest: facts for digest, facts in tokens.items() if facts.get("name") != name}
            if name not in content and len(left) == len(tokens):
                raise UsageError(f"no client {name!r}", hint=f"clients: {', '.join(sorted(content)) or 'none'}")
            if len(left) < len(tokens):
                write_json(self.directory / _TOKENS, left)
            if name in content:
                self._write({**content, name: {**content[name], "revoked": True}})

    def invited(self) -> dict[str, float]:
        """The names of tokens that are still to be used, and until when."""
        return {str(facts.get("name")): float(facts["until"]) for facts in self._live_tokens().values()}

    def _write(self, content: dict[str, Any]) -> None:
        write_json(self.directory / _CLIENTS, content)

    def _live_tokens(self) -> dict[str, Any]:
        now = time.time()
        found = read_json(self.directory / _TOKENS)
        return {
            digest: facts
            for digest, facts in found.items()
            if isinstance(facts, dict) and isinstance(facts.get("until"), int | float) and facts["until"] > now
        }

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = open_file(self.directory / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _clients_in(content: dict[str, Any]) -> Iterator[tuple[str, EnrolledClient]]:
    for name, facts in content.items():
        if not isinstance(facts, dict) or CLIENT_NAME.fullmatch(name) is None:
            continue
        key, aliases, since = facts.get("key"), facts.get("aliases"), facts.get("since_ns")
        if isinstance(key, str) and _KEY.fullmatch(key):
            others = tuple(one for one in aliases if isinstance(one, str)) if isinstance(aliases, list) else ()
            since_ns = since if type(since) is int else 0
            yield name, EnrolledClient(name, key, others, bool(facts.get("revoked")), since_ns)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
