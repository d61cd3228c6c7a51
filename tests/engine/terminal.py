"""A pseudo-terminal that a command runs in, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from typing import TYPE_CHECKING

from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PARTS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Picture:
    """What lies on a terminal that wraps lines and scrolls; `rows` has what scrolled off, too."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.others: set[str] = set()
        """Control sequences besides those that move up, clear, and set colours."""

    def feed(self, text: str) -> None:
        for number, code, move, plain in _PARTS.findall(text):
            if plain:
                self._put(plain)
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self._down()
            elif code == "A":
                self.row = max(self.row - int(number or 1), 0)
            elif code == "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif code == "J":
                self.rows = [*self.rows[: self.row], self.rows[self.row][: self.column]]
            elif code != "m":
                self.others.add(f"{number}{code}")

    def _put(self, plain: str) -> None:
        for character in plain:
            if self.column == self.columns:
                self._down()
                self.column = 0
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")


class Terminal:
    """A command in a pseudo-terminal of a given size.

    Args:
        variables: of the environment, besides those that this process has.
    """

    def __init__(self, command: Sequence[str], columns: int, lines: int, **variables: str) -> None:
        self.columns, self.text = columns, ""
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **variables}
        environment = {name: value for name, value in environment.items() if value}
        self.process, self._handle = pty.fork()
        if self.process == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            os.execvpe(command[0], list(command), environment)

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, size)

    def type(self, keys: str) -> None:
        os.write(self._handle, keys.encode())

    def wait_for(self, is_there: Callable[[str], bool], seconds: float = HANG_SECONDS) -> bool:
        """Read until the text is as it should be; return whether that came to be."""
        end = time.monotonic() + seconds
        while not is_there(self.text) and time.monotonic() < end:
            if not self._read(0.2):
                break
        return is_there(self.text)

    def ended(self, seconds: float = HANG_SECONDS) -> int:
        """Read to the end; return the exit code."""
        end = time.monotonic() + seconds
        while self._read(0.5):
            if time.monotonic() > end:
                os.kill(self.process, signal.SIGKILL)
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])

    def picture(self) -> Picture:
        """Return what is to be seen, all that scrolled off included."""
        found = Picture(self.columns)
        found.feed(self.text)
        return found

    def _read(self, seconds: float) -> bool:
        """Read what is there; return whether there may be more."""
        if not select.select([self._handle], [], [], seconds)[0]:
            return True
        try:
            chunk = os.read(self._handle, 1 << 16)
        except OSError:  # Linux says so at the end of a pseudo-terminal
            return False
        self.text += chunk.decode("utf-8", "replace")
        return bool(chunk)
