"""torchrun: which attempt of the job this process is, as the launcher tells its workers in their environment."""

from __future__ import annotations

from collections.abc import Mapping

from stethos.observe.frameworks.told import Facts

_NAMES = {"TORCHELASTIC_RESTART_COUNT": "restart", "TORCHELASTIC_MAX_RESTARTS": "max_restarts"}


def attempt_of(environment: Mapping[str, str]) -> Facts:
    """The number of restarts so far and how many are allowed; nothing where the launcher allows none."""
    found = {name: int(environment[key]) for key, name in _NAMES.items() if environment.get(key, "").isdecimal()}
    return found if found.get("max_restarts") else {}
