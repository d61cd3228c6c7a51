"""Lines that are nothing but symbols, such as what is left of tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.spans import replace_spans
from corpuskit.kernels.utf8 import PUNCTUATION, TERMINAL
from corpuskit.stage import Example, Outcome, Spans, StreamingStage, View


class SymbolLines(StreamingStage):
    r"""Cut lines that consist of symbols and spaces alone.

    Use it after the filters, as FineWeb2 does to cut what is left of tables. Lines are those of
    str.splitlines; blank ones stay. The lines that stay are joined with \n, and nothing follows the
    last, so other line ends, and that of the last line, change too: spans of `whitespace`.

    Source: Penedo et al. 2025 (FineWeb2), `symbols: ["|"]` and `replacement: "\n"`, which leaves
    two blank lines; equals datatrove 0.10.1's SymbolLinesFormatter byte for byte.
    """

    rules: ClassVar[tuple[str, ...]] = ("symbol_line", "whitespace")
    text_speed: ClassVar[float] = 80e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example("| no | rule |\n| of a | table |"),
        Example("A line.\n|||\n| |\nAnother.", "symbol_line", {}, "A line.\nAnother."),
        Example("A line.\n||\nB.", "symbol_line", {"replacement": "\n"}, "A line.\n\n\nB."),
        Example("A line.\n* * *\n- -", "symbol_line", {"symbols": None}, "A line."),
        Example("A line.\r\nAnother.\n", "whitespace", {}, "A line.\nAnother."),
    )

    symbols: tuple[Annotated[str, Field(min_length=1, max_length=1)], ...] | None = ("|",)
    """Characters that count as symbols; `null`: punctuation and sentence marks, as datatrove's."""
    replacement: str = ""
    """What replaces a run of removed lines; FineWeb2 has a newline."""

    def apply(self, view: View) -> Outcome:
        text = view.text
        symbols = PUNCTUATION | TERMINAL if self.symbols is None else frozenset(self.symbols)
        changes = [
            (row, *change)
            for row in range(view.num_docs)
            for change in _changes(text.row(row).decode(), symbols, self.replacement != "")
        ]
        rows, starts, ends, codes, kinds = np.array(changes, np.int64).reshape(-1, 5).T.copy()
        piece = self.replacement.encode()
        pieces = [b"", b"\n", piece, b"\n" + piece, piece + b"\n", b"\n" + piece + b"\n"]
        new_text = Utf8(*replace_spans(*text, rows, starts, ends, kinds.astype(np.uint8), pieces))
        spans = Spans(rows, starts, ends, codes.astype(np.uint8), "replace")
        return Outcome(text=new_text, spans=spans)


def _changes(
    text: str, symbols: frozenset[str], has_piece: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and end in bytes, rule, and the replacement of each change (see `apply`).

    A change replaces the bytes between two lines that stay, unless they are one newline.
    """
    lines, size_of = text.splitlines(), len if text.isascii() else _size
    if len(symbols) < 8 and not any(symbol in text for symbol in symbols):
        joined_lines = "\n".join(lines)
        if len(text) - len(joined_lines) < 2 and text.startswith(joined_lines):
            if len(joined_lines) < len(text):  # the last line end, as most texts have it
                yield size_of(joined_lines), size_of(text), 2, 0
            return
    symbols |= {" "}
    pos = gap = 0  # where this line begins, and where the last one that stays ended
    has_prior, is_cut, line_end = False, False, ""  # is_cut: the gap has lines of symbols
    for content, line in zip(lines, text.splitlines(keepends=True), strict=True):
        size = size_of(content)
        if symbols.issuperset(content) and content.strip():
            is_cut = True
        else:
            if is_cut or (has_prior and line_end != "\n"):
                kind = 4 * (is_cut and has_piece) + has_prior
                yield gap, pos, 1 if is_cut else 2, kind
            gap, has_prior, is_cut = pos + size, True, False
        line_end = line[len(content) :]
        pos += size + size_of(line_end)
    if pos > gap:
        yield gap, pos, 1 if is_cut else 2, 2 + has_prior if is_cut and has_piece else 0


def _size(text: str) -> int:
    return len(text.encode())
