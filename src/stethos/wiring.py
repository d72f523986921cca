"""Modules that a package loads by name or starts as a program, because an import statement would point upward.

This is the whole list: the import test reads it and finds no other module name in a string. Standard library only.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple


class Link(NamedTuple):
    """A module, what is called in it, and the modules that may use this link."""

    users: tuple[str, ...]
    module: str
    name: str

    def load(self) -> Any:
        """Import the module and return the function or class."""
        return getattr(import_module(self.module), self.name)


# The drainer keeps watch over hung processes and packs captured models.
WATCHDOG = Link(("record.drainer",), "stethos.live.watchdog", "Watchdog")
PACKER = Link(("record.drainer",), "stethos.replay.pack", "Packer")
# It also stores what came with a federation's messages, and sends rows on where the run was recorded at a site.
INBOX = Link(("record.drainer",), "stethos.collect.inbox", "Inbox")
FORWARDER = Link(("record.drainer",), "stethos.collect.forward", "start_forwarding")
# A recorded process answers live questions, and adapters act when a framework of theirs is imported.
AGENT = Link(("observe.boot",), "stethos.live.agent", "start_agent")
NVFLARE_CLIENT = Link(("observe.boot",), "stethos.adapters.nvflare.script", "watch_module")
# The command line, in a process of its own: `[*command_line(), "diagnose", ...]`.
COMMAND_LINE = Link(("web.examine", "web.commands"), "stethos.cli.main", "console")


class CallablePackage(ModuleType):
    """A package with the name of the function that everybody uses: calling it calls that function of its `api`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = getattr(import_module(f"{self.__name__}.api"), self.__name__.rpartition(".")[2])
        return function(*args, **kwargs)


# The interpreter for programs of our own: `-P`, since the current directory may be a stranger's run, and a `json.py` in
# it would be imported.
PYTHON = (sys.executable, "-P")


def command_line() -> tuple[str, ...]:
    """The words that start `stethos` with this interpreter."""
    return *PYTHON, "-m", COMMAND_LINE.module
