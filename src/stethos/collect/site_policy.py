"""The policy that a site's file says now; whoever changes the file changes what leaves, within a minute at most."""

from __future__ import annotations

import time

from stethos.collect.policy import NOTHING, Policy, parse_policy
from stethos.collect.site import SiteHome
from stethos.errors import UsageError
from stethos.record.border import read_file, version_of

_AGAIN_S = 60.0  # a grant ends without a change of the file
_MOST_BYTES = 1 << 20


class SitePolicy:
    """Read again when the file changes."""

    def __init__(self, site: SiteHome) -> None:
        self._site = site
        self._policy = NOTHING
        self._version: tuple[int, ...] | None = None
        self._until = 0.0

    def current(self) -> Policy:
        """Nothing leaves while the file is gone or cannot be understood."""
        path, now = self._site.policy_path, time.monotonic()  # a clock that is put back makes no grant longer
        version = version_of(path)
        if version != self._version or now >= self._until:
            self._version, self._until = version, now + _AGAIN_S
            try:
                self._policy = parse_policy(read_file(path, _MOST_BYTES).decode())
            except (UsageError, OSError, ValueError) as error:
                self._policy = NOTHING
                self._site.note(what="policy", outcome="nothing leaves", why=str(error))
        return self._policy
