"""Under which names a client's rows may stand in a run.

A federation has names of its own for its clients, such as Flower's node numbers. A client may use such a name if it was
granted at enrolment, or if the server of the federation has seen, in the federation's own messages, that they are one;
the server writes that into the run. What a client says of itself does not count.
"""

from __future__ import annotations

import re
from pathlib import Path

from stethos.collect.batch import CLIENT_NAME
from stethos.collect.enrolment import EnrolledClient
from stethos.record.border import read_json, version_of
from stethos.record.place import write_json

ALIASES_FILE = "aliases.json"
_RANDOM = re.compile(r"[0-9]{15,20}")
_known: dict[Path, tuple[tuple[int, ...], dict[str, str]]] = {}
_MOST_KNOWN = 1000
_MOST_OWN = 32  # names of one client in one run that nobody but itself vouches for


class OwnNames:
    """All names that rows of a client may have in a run.

    A number as long as Flower's random ones is known to its client alone until the server has seen it: the first who
    uses it has it, unless the server says otherwise. Nobody needs many of them.
    """

    def __init__(self, client: EnrolledClient | str, run: Path) -> None:
        self.client = client if isinstance(client, str) else client.name
        self._given = {self.client, *(() if isinstance(client, str) else client.aliases)}
        self._run = run
        self._known: dict[str, str] | None = None
        self._claims_left = 0

    def __contains__(self, name: str) -> bool:
        if name in self._given:
            return True
        if self._known is None:  # once for all rows of a batch: they may have a name each
            self._known = aliases_in(self._run)
            self._claims_left = _MOST_OWN - sum(owner == self.client for owner in self._known.values())
        owner = self._known.get(name)
        if owner is None and self._claims_left > 0 and _RANDOM.fullmatch(name) is not None:
            note_alias(self._run, name, self.client)
            self._known, self._claims_left = aliases_in(self._run), self._claims_left - 1
            owner = self.client
        return owner == self.client


def aliases_in(run: Path) -> dict[str, str]:
    """The federation's name of each client, and the name under which it is enrolled."""
    path = run / ALIASES_FILE
    version = version_of(path)
    known = _known.get(path)
    if known is None or known[0] != version:
        content = read_json(path) if version else {}
        found = {alias: name for alias, name in content.items() if isinstance(name, str)}
        if len(_known) > _MOST_KNOWN:
            _known.clear()
        known = _known[path] = version, found
    return known[1]


def note_alias(run: Path, alias: str, name: str) -> None:
    """The server has seen that its client `alias` is enrolled as `name`."""
    known = aliases_in(run)
    if known.get(alias) != name and CLIENT_NAME.fullmatch(name) and CLIENT_NAME.fullmatch(alias):
        write_json(run / ALIASES_FILE, {**known, alias: name})
