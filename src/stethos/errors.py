"""The whole error tree, with the exit code of each class.

A message says what happened with the values; `hint` names a command or an
option that helps. The command line prints both without a traceback.
"""

from __future__ import annotations


class StethosError(Exception):
    """A mistake the user can mend."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class UsageError(StethosError):
    """The command line cannot be understood."""


class RunNotFoundError(StethosError):
    """No run at the place, or by the name or pid, that was given."""

    exit_code = 3


class QueryError(StethosError):
    """The SQL is wrong, not allowed, or took too long."""

    exit_code = 4


class CommandNotFoundError(StethosError):
    """The program to observe does not exist or cannot be executed."""

    exit_code = 127


class UpdateMismatchError(StethosError):
    """A client's update does not fit the global model; the message names client and layer."""


class RecordingError(StethosError):
    """The run directory cannot be used."""

    exit_code = 5


class LiveError(StethosError):
    """A live process cannot be reached, does not answer, or refuses."""

    exit_code = 6


class CaptureError(StethosError):
    """A captured state is missing, was dropped, or is damaged; the message says which and why."""

    exit_code = 7


class ReplayError(StethosError):
    """Something that was recorded cannot be repeated; the message says why."""

    exit_code = 7


class ArchiveError(StethosError):
    """An archive cannot be reached, read or written; the message says which and why."""

    exit_code = 8
