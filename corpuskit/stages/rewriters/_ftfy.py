"""ftfy line by line, and only for the lines that it may change."""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from corpuskit.errors import UsageError
from corpuskit.stages.rewriters._forms import ordered

if TYPE_CHECKING:
    from collections.abc import Iterable

SEGMENT_CHARS = 1_000_000
"""ftfy cuts longer lines (TextFixerConfig's `max_decode_length`)."""

_OTHERS = (
    "\x00-\x7f\u0391-\u03ce\u0401\u0403-\u045f"
    "\u2e80-\uf8fe\uf900-\ufb00\ufb03-\ufffc\ufffe-\U0010ffff"
)
SIGNS = re.compile(f"[^{_OTHERS}]+")
"""What ftfy 6.3's test for mojibake needs one of: beyond ASCII, no letter of Greek or Cyrillic (but
U+0402), and below U+2E80 with four exceptions."""

REACH = 4
"""The test sees three characters on either side of it, at most."""

# The one place where that test looks at where a line begins.
_LINE_START = r"(?m:^[\xc3\xc2][ ])"


class Fixer:
    """ftfy.fix_text with a fixed configuration, a few times faster.

    ftfy fixes each line alone, but for one thing that a line hands on: `unescape_html="auto"` is
    over with the first `<`. Lines that hold no character that any step looks for are passed by;
    others are given to ftfy if a step, by its own test, may change them.

    Args:
        options: fields of ftfy's TextFixerConfig.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        import ftfy
        from ftfy import badness, chardata

        self._config = ftfy.TextFixerConfig(**options)
        self._plain = self._config._replace(unescape_html=False)
        self._fix, self._fix_whole = ftfy.fix_and_explain, ftfy.fix_text
        self._form = options["normalization"]
        self._entity = chardata.HTML_ENTITY_RE.search
        singles = _singles(options)
        self._single = re.compile(f"[{re.escape(singles)}]").search if singles else None
        self._is_bad = None
        if options["fix_encoding"]:
            self._is_bad = re.compile(
                f"{_LINE_START}|{badness.BADNESS_RE.pattern}", re.VERBOSE
            ).search
        # Characters without which no step does anything to a line.
        marks = re.escape(singles + ("&" if options["unescape_html"] else ""))
        marks += "\x80-\U0010ffff" if options["fix_encoding"] or self._form else ""
        self._mark = re.compile(f"[{marks}]" if marks else r"(?!)").search

    def __call__(self, text: str) -> str:
        if self._form is not None:
            text = ordered(self._form, text)  # no other step looks at the order of marks
        pieces: list[str] = []
        done = at = 0
        bracket = text.find("<") if self._config.unescape_html == "auto" else -1
        while found := self._mark(text, at):
            begin = max(at, text.rfind("\n", at, found.start()) + 1)
            at = text.find("\n", found.start()) + 1 or len(text)
            if at - begin > SEGMENT_CHARS:
                return self._fix_whole(text, self._config)
            line = text[begin:at]
            config = self._plain if 0 <= bracket < at else self._config
            if self._may_change(line, config):
                pieces += [text[done:begin], self._fix(line, config).text]
                done = at
        return "".join([*pieces, text[done:]]) if pieces else text

    def _may_change(self, line: str, config: Any) -> bool:
        """Return whether a step may change a line; what each looks for is in none but these."""
        if config.unescape_html and "&" in line and self._entity(line):
            return True
        if self._single is not None and self._single(line):
            return True
        if line.isascii():
            return False
        if self._form is not None and not unicodedata.is_normalized(self._form, line):
            return True
        if self._is_bad is None:
            return False
        places = (found.span() for found in SIGNS.finditer(line))
        windows = [line[max(0, begin - REACH) : end + REACH] for begin, end in places]
        return bool(windows) and bool(self._is_bad("\n".join(windows)))


@functools.lru_cache(maxsize=16)
def fixer(options: tuple[tuple[str, Any], ...]) -> Fixer:
    """Return the one fixer of this process for a configuration.

    Raises:
        UsageError: ftfy is not installed.
    """
    try:
        return Fixer(dict(options))
    except ImportError:
        raise UsageError(
            "unicode.fix: ftfy is not installed. Install it, or set fix: none."
        ) from None


def _singles(options: dict[str, Any]) -> str:
    """Return the characters that steps which look at single characters change."""
    from ftfy import chardata

    singles = {
        "remove_terminal_escapes": "\x1b",
        "fix_c1_controls": "".join(map(chr, range(0x80, 0xA0))),
        "fix_line_breaks": "\r\x85\u2028\u2029",
        "uncurl_quotes": "\u02bc\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f",
        "remove_control_chars": _characters(chardata.CONTROL_CHARS),
        "fix_latin_ligatures": _characters(chardata.LIGATURES),
        "fix_character_width": _characters(chardata.WIDTH_MAP),
    }
    return "".join(chars for name, chars in singles.items() if options[name])


def _characters(table: Iterable[int]) -> str:
    return "".join(map(chr, table))
