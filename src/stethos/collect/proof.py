"""A key that a client has already, as proof at its enrolment: an NVFlare kit's certificate, a Flower SuperNode's key.

A token may be bound to such a key, or to the authority that signed a kit's certificates. Then whoever enrols with it
signs the token's secret and the new key with the private key that belongs to it, so the token alone is of no use.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethos.collect.batch import BatchError
from stethos.collect.site import NEEDS_CRYPTOGRAPHY
from stethos.errors import UsageError
from stethos.record.border import read_file

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_MOST_BYTES = 32 << 10
Bound = dict[str, str]  # {"key": PEM} or {"authority": PEM}
Proof = dict[str, str]  # {"signature": hex} and, for an authority, {"certificate": PEM}


class ProofError(BatchError):
    """The key that a token is bound to was not shown."""


def bound_to_key(path: Path) -> Bound:
    """A token for whoever has the private key of this public key or certificate; UsageError if it is none."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = _public_key_in(_content(path), path)
    return {"key": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()}


def bound_to_authority(path: Path) -> Bound:
    """A token for whoever has a certificate of this authority that bears the token's name."""
    content = _content(path)
    if _certificate_in(content) is None:
        raise UsageError(f"{path} is not a certificate", hint="an NVFlare kit has it as startup/rootCA.pem")
    return {"authority": content.decode()}


def prove(key_file: Path, certificate_file: Path | None, secret: str, key: str) -> Proof:
    """What is shown at the enrolment of `key`; UsageError if the file has no private key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    private, message = _private_key_in(_content(key_file), key_file), _message(secret, key)
    if isinstance(private, rsa.RSAPrivateKey):
        signature = private.sign(message, padding.PKCS1v15(), hashes.SHA256())
    elif isinstance(private, ec.EllipticCurvePrivateKey):
        signature = private.sign(message, ec.ECDSA(hashes.SHA256()))
    elif isinstance(private, ed25519.Ed25519PrivateKey):
        signature = private.sign(message)
    else:
        raise UsageError(f"{key_file} has a key of a kind that is not known", hint="RSA, ECDSA and Ed25519 are")
    proof = {"signature": signature.hex()}
    if certificate_file is not None:
        proof["certificate"] = _content(certificate_file).decode("ascii", "replace")
    return proof


def check_proof(bound: Any, proof: Any, name: str, secret: str, key: str) -> None:
    """ProofError unless the proof is by the key that the token is bound to."""
    if not isinstance(bound, dict) or not bound:
        return
    if not isinstance(proof, dict) or not isinstance(proof.get("signature"), str):
        raise ProofError("this token needs the key that it is bound to", hint="`stethos enroll --own-key FILE`")
    content = str(bound.get("key", "")).encode()
    if "authority" in bound:
        content = _certified(str(bound["authority"]), str(proof.get("certificate", "")), name)
    try:
        _verify(content, bytes.fromhex(proof["signature"]), _message(secret, key))
    except ValueError:
        raise ProofError("the proof is not by the key that this token is bound to") from None


def _certified(authority: str, shown: str, name: str) -> bytes:
    """The certificate that was shown, if the authority has given it to this name and it is valid now."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.x509.oid import NameOID

    issuer, certificate = _certificate_in(authority.encode()), _certificate_in(shown.encode())
    if issuer is None or certificate is None:
        raise ProofError("this token needs a certificate", hint="`stethos enroll --own-key FILE --own-cert FILE`")
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        raise ProofError("the certificate is not of the authority that this token is bound to") from None
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise ProofError("the certificate is not valid now")
    names = [one.value for one in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if names != [name]:
        raise ProofError(f"the certificate is not of {name!r}")
    return shown.encode()


def _verify(content: bytes, signature: bytes, message: bytes) -> None:
    """ValueError unless the signature is by this public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

    public = _public_key_in(content, Path("the key"))
    try:
        if isinstance(public, rsa.RSAPublicKey):
            public.verify(signature, message, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(signature, message)
        else:
            raise ValueError("another kind of key")
    except InvalidSignature:
        raise ValueError("another key") from None


def _message(secret: str, key: str) -> bytes:
    return f"stethos-enrol {secret} {key}".encode()


def _content(path: Path) -> bytes:
    try:
        return read_file(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"no key in {path}: {error.strerror}") from None


def _certificate_in(content: bytes) -> Certificate | None:
    try:
        from cryptography.x509 import load_pem_x509_certificate
    except ImportError:
        raise UsageError("a proof needs the package cryptography", hint=NEEDS_CRYPTOGRAPHY) from None
    try:
        return load_pem_x509_certificate(content)
    except ValueError:
        return None


def _public_key_in(content: bytes, path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key, load_ssh_public_key

    certificate = _certificate_in(content)
    if certificate is not None:
        return certificate.public_key()
    for load in (load_pem_public_key, load_ssh_public_key):
        try:
            return load(content)
        except (ValueError, UnsupportedAlgorithm):
            continue
    raise UsageError(f"{path} is neither a public key nor a certificate", hint="PEM or OpenSSH, as KEY.pub")


def _private_key_in(content: bytes, path: Path) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    for load in (load_pem_private_key, load_ssh_private_key):
        try:
            return load(content, None)
        except TypeError:
            raise UsageError(f"the key in {path} needs a password", hint="give a copy without one") from None
        except (ValueError, UnsupportedAlgorithm):
            continue
    raise UsageError(f"{path} is not a private key", hint="PEM or OpenSSH")
