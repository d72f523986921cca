"""Commands at a real terminal: what they show, and what they make of keys and Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Self

from processes import DEADLINE_S, environment

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`stethos WORDS` at a terminal of its own, which it controls, and everything it has shown so far."""

    def __init__(self, *words: str | Path, columns: int = 80, rows: int = 30, **variables: str) -> None:
        self._leader, self._follower = pty.openpty()
        fcntl.ioctl(self._follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        modes = termios.tcgetattr(self._follower)
        modes[3] |= termios.NOFLSH  # else the terminal throws away what is shown while it sends a signal
        termios.tcsetattr(self._follower, termios.TCSANOW, modes)
        self.modes_before = self.modes()
        self.process = subprocess.Popen(  # `setsid` makes it the terminal of a new session, then becomes the program
            ["setsid", "--ctty", sys.executable, "-m", "stethos.cli.main", *map(str, words)],
            stdin=self._follower, stdout=self._follower, stderr=self._follower,
            env=environment(**{"TERM": "xterm-256color", **variables}),
        )  # fmt: skip
        self._drawn = b""
        self._seen = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._read_the_rest()
        os.close(self._leader)

    def _read_the_rest(self) -> None:
        """Once nobody can show anything any more."""
        if self._reader.is_alive():
            os.close(self._follower)
            self._reader.join()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._leader, 65536)
            except OSError:  # the other end is closed
                return
            self._drawn += data

    @property
    def raw(self) -> str:
        """All that was shown, with what steers the terminal."""
        return self._drawn.decode(errors="replace")

    @property
    def text(self) -> str:
        """All that was shown, as one reads it."""
        return _ESCAPES.sub("", self.raw)

    def expect(self, pattern: str) -> str:
        """What comes after the last expectation, up to and with this pattern."""

        deadline = time.monotonic() + DEADLINE_S
        while (found := re.search(pattern, self.text[self._seen :])) is None:
            assert self._reader.is_alive(), f"it ended before {pattern!r}: {self.text!r}"
            assert time.monotonic() < deadline, f"waited in vain for {pattern!r}: {self.text!r}"
            if self.process.poll() is not None:
                self._read_the_rest()
            else:
                time.sleep(0.005)
        self._seen += found.end()
        return found.string[: found.end()]

    def send(self, text: str) -> None:
        """Press keys."""
        os.write(self._leader, text.encode())

    def say(self, line: str, prompt: str) -> str:
        """A command, and what it answers before the next prompt."""
        self.send(line + "\n")
        return self.expect(re.escape(prompt))

    def modes(self) -> list[object]:
        """How the terminal is set: what it echoes, which keys it takes for itself."""
        return list(termios.tcgetattr(self._follower))

    def wait(self) -> int:
        """The exit status, once the program has ended by itself."""
        return self.process.wait(DEADLINE_S)


def on_a_terminal(*words: str | Path, columns: int = 80, **variables: str) -> str:
    """All that a command shows, with what steers the terminal; it ends well, and by itself."""
    with Terminal(*words, columns=columns, **variables) as terminal:
        status = terminal.wait()
    assert status == 0, terminal.text
    return terminal.raw
