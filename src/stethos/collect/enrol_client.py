"""A site's side of the enrolment: makes its key, shows the token, and writes down what it is called."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from stethos.collect.enrolment import EnrolmentToken
from stethos.collect.proof import Proof, prove
from stethos.collect.site import SiteHome, check_address, known_site, make_site, own_key, public_hex
from stethos.errors import LiveError
from stethos.record.border import make_directory
from stethos.web.remote import PinnedConnection, headers_for

ENROL_PATH = "/api/collect/enrol"
_HINT = "ask for a new token; one that is bound to a key needs --own-key FILE, and --own-cert FILE for a certificate"
_MOST_ANSWER_BYTES = 4096


def enrol_site(
    path: Path, address: str, token: EnrolmentToken, own: tuple[Path, Path | None] | None = None
) -> SiteHome:
    """Take the name of a token at the collector there; LiveError if it refuses.

    `own` are the files of a private key that the token is bound to, and of its certificate.
    """
    check_address(address)
    known = known_site(path)
    make_directory(path)
    key = public_hex(own_key(path))
    proof = prove(*own, token.secret, key) if own is not None else None
    try:
        name = ask_to_enrol(address, token.fingerprint, token.secret, key, proof)
    except LiveError as error:
        if known is None:
            raise
        hint = f"{path} is the site of {known.name} already; {error.hint}"
        raise LiveError(error.message, hint=hint) from None
    return make_site(path, name, address, token.fingerprint)


def ask_to_enrol(address: str, fingerprint: str, secret: str, key: str, proof: Proof | None = None) -> str:
    """The name that the collector, or a relay on the way to it, binds to a key; LiveError if it refuses."""
    check_address(address)
    host, _, port = address.rpartition(":")
    connection = PinnedConnection(host.strip("[]"), int(port), fingerprint)
    body = json.dumps({"token": secret, "key": key, "proof": proof or {}})
    try:
        connection.connect()
        connection.request("POST", ENROL_PATH, body, headers_for({"Content-Type": "application/json"}))
        reply = connection.getresponse()
        answer = json.loads(reply.read(_MOST_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LiveError(f"no collector at {address}: {error}", hint="start one there: `stethos collect`") from None
    finally:
        connection.close()
    if reply.status != 200 or not isinstance(answer, dict):
        why = answer.get("error") if isinstance(answer, dict) else None
        raise LiveError(f"the collector refuses: {why or reply.status}", hint=_HINT)
    return str(answer.get("name"))
