"""Lines at the bottom of a terminal that are drawn again in place.

The cursor stays visible and behind the last line, so a process that is killed leaves a terminal as
it should be; and what is above is never touched, but when the terminal was made narrower meanwhile
and wraps lines anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

_UP, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[{}A", "\x1b[K", "\x1b[J"


class Screen:
    """Draws lines in place.

    Args:
        console: of a terminal that can move its cursor.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._drawn: list[str] = []

    def draw(self, lines: Sequence[Text]) -> None:
        """Put lines in the place of those drawn before."""
        width = self.console.width
        for line in lines:
            line.truncate(width - 1, overflow="ellipsis")  # the last column would wrap
        home = self._home()
        self._drawn = [line.plain for line in lines]  # before: what interrupts it must close it
        self._write(lines, home)

    def above(self, text: Text) -> None:
        """Print text that stays, and forget what was drawn: the next drawing comes below."""
        self._write([text], self._home())
        self.console.file.write("\n")
        self.console.file.flush()
        self._drawn = []

    def close(self) -> None:
        """Leave what is drawn where it is, and go to the next line."""
        if self._drawn:
            self.console.file.write("\n")
            self.console.file.flush()
        self._drawn = []

    def _home(self) -> str:
        """Return what moves the cursor to where the drawing began."""
        width, height = self.console.size
        # A terminal that was made narrower has wrapped what was drawn.
        rows = sum(max(-(-cell_len(line) // width), 1) for line in self._drawn)
        up = min(rows, height) - 1
        return "\r" + (_UP.format(up) if up > 0 else "")

    def _write(self, lines: Sequence[Text], before: str) -> None:
        shown = []
        for line in lines:
            with self.console.capture() as captured:
                self.console.print(line, end="", soft_wrap=True)
            shown.append(captured.get())
        end = _CLEAR_LINE + "\r\n"
        self.console.file.write(before + end.join(shown) + _CLEAR_LINE + _CLEAR_BELOW)
        self.console.file.flush()
