"""Tokens that are bound to a key that a client has already: of an NVFlare kit, or of a Flower SuperNode."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from collecting import CollectorProcess
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from processes import command

from stethos.collect.enrolment import Enrolment
from stethos.collect.proof import ProofError, bound_to_authority, bound_to_key, prove
from stethos.errors import UsageError

KEY = "1" * 64


def pem(key: Any) -> bytes:
    return bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def supernode(path: Path) -> tuple[Path, Path]:
    """A key as `ssh-keygen -t ecdsa -b 384` makes it for a SuperNode: OpenSSH's format, and its public half."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return path, public


class Kit:
    """An NVFlare project's authority, as its provisioning makes one: RSA keys, names as common names."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._key = rsa.generate_private_key(65537, 2048)
        self.root = directory / "rootCA.pem"
        self.root.write_bytes(self._certificate("project", self._key.public_key(), 1).public_bytes(Encoding.PEM))

    def _certificate(self, name: str, key: Any, days: int) -> x509.Certificate:
        def called(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        now = datetime.datetime.now(datetime.UTC)
        made = x509.CertificateBuilder().subject_name(called(name)).issuer_name(called("project")).public_key(key)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(9))
        return made.not_valid_after(now + datetime.timedelta(days)).sign(self._key, hashes.SHA256())

    def client(self, name: str, days: int = 1) -> tuple[Path, Path]:
        """The client's key and certificate."""
        key = rsa.generate_private_key(65537, 2048)
        files = self.directory / f"{name}.key", self.directory / f"{name}.crt"
        files[0].write_bytes(pem(key))
        files[1].write_bytes(self._certificate(name, key.public_key(), days).public_bytes(Encoding.PEM))
        return files


@pytest.fixture
def enrolment(tmp_path: Path) -> Enrolment:
    return Enrolment(tmp_path)


def test_a_token_bound_to_a_supernodes_key_needs_it(tmp_path: Path, enrolment: Enrolment) -> None:
    own, public = supernode(tmp_path / "node")
    other, _ = supernode(tmp_path / "other")
    token = enrolment.invite("a", "0" * 64, bound=bound_to_key(public))
    shown = prove(own, None, token.secret, KEY)
    for proof in (None, {}, {"signature": "zz"}, {"signature": ""}, prove(other, None, token.secret, KEY),
                  prove(own, None, token.secret, "2" * 64), prove(own, None, "0" * 64, KEY)):  # fmt: skip
        with pytest.raises(ProofError):
            enrolment.enrol(token.secret, KEY, proof)
    assert enrolment.enrol(token.secret, KEY, shown) == "a" and enrolment.clients()["a"].key == KEY


def test_a_token_bound_to_an_authority_needs_its_certificate_of_that_name(tmp_path: Path, enrolment: Enrolment) -> None:
    kit, foreign = Kit(tmp_path / "kit"), Kit(tmp_path / "foreign")
    token = enrolment.invite("site-1", "0" * 64, bound=bound_to_authority(kit.root))
    own, other = kit.client("site-1"), kit.client("site-2")
    bad = [other, foreign.client("site-1"), (other[0], own[1]), (own[0], None), kit.client("site-1", days=-1)]
    for key, certificate in bad[:-1]:
        with pytest.raises(ProofError):
            enrolment.enrol(token.secret, KEY, prove(key, certificate, token.secret, KEY))
    with pytest.raises(ProofError, match="not valid now"):
        enrolment.enrol(token.secret, KEY, prove(*bad[-1], token.secret, KEY))
    key, certificate = kit.client("site-1")
    assert enrolment.enrol(token.secret, KEY, prove(key, certificate, token.secret, KEY)) == "site-1"


def test_keys_of_every_kind_and_nothing_else(tmp_path: Path, enrolment: Enrolment) -> None:
    for number, key in enumerate((ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()))):
        own, public = tmp_path / f"{number}.pem", tmp_path / f"{number}.pub"
        own.write_bytes(pem(key))
        public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        token = enrolment.invite(f"c{number}", "0" * 64, bound=bound_to_key(public))
        assert enrolment.enrol(token.secret, KEY, prove(own, None, token.secret, KEY)) == f"c{number}"
    (tmp_path / "text").write_text("not a key")
    for use in (bound_to_key, bound_to_authority, lambda path: prove(path, None, "s", KEY)):
        with pytest.raises(UsageError):
            use(tmp_path / "text")
        with pytest.raises(UsageError, match="no key in"):
            use(tmp_path / "nothing")


def test_an_nvflare_kit_enrols_over_the_wire(tmp_path: Path) -> None:
    collector, kit = CollectorProcess(tmp_path), Kit(tmp_path / "kit")
    made = command(
        "enroll", "--new", "site-1", "--authority", kit.root, "--keys", collector.keys.directory, cwd=tmp_path
    )
    assert made.returncode == 0, made.stderr
    collector.start()
    try:
        words = ("enroll", collector.address, "--token-file", tmp_path / "site-1.token", "--site", tmp_path / "site")
        without = command(*words)
        assert without.returncode != 0 and "needs the key" in without.stderr
        own = kit.client("site-1")
        enrolled = command(*words, "--own-key", own[0], "--own-cert", own[1])
        assert enrolled.returncode == 0 and "this site is site-1" in enrolled.stdout, enrolled.stderr
    finally:
        collector.stop()
    assert set(collector.enrolment.clients()) == {"site-1"}
