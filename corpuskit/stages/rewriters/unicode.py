"""Unicode: mojibake, normal forms, control characters, line ends."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Bytes, frozen
from corpuskit.kernels.utf8 import hold_any
from corpuskit.stage import Example, Outcome, Spans, StreamingStage, View

CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]")
"""What ftfy 6.3's remove_control_chars removes: no tabs, line feeds, form feeds, returns."""

INVISIBLE = re.compile(
    "[\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069]"
)
"""No width, or a direction: soft hyphen, zero-width space, marks and overrides of direction, word
joiner, invisible operators. Not the joiners U+200C and U+200D: Persian, Indic scripts and emoji
need them."""

LINE_ENDS = re.compile("\r\n?")

_ESCAPES = {"auto": "auto", "always": True, "never": False}


class Unicode(StreamingStage):
    r"""Repair wrongly decoded text (mojibake) and bring Unicode into one form.

    Use it early, before filters count words. By default it does what FineWeb2's recipe does: ftfy
    repairs encodings, HTML entities (in texts without `<`), terminal escapes and control
    characters, and leaves quotes, ligatures, widths and normal forms as they are. In this order:
    ftfy (normal form included), or without it control characters and normal form; line ends;
    invisible characters.

    A changed text has a row in the ledger: the first step that changed it, and one span from its
    first changed byte to the last. Only texts in which ftfy's own test finds something to repair go
    through ftfy; plain ASCII without `&` never does.

    Source: Speer 2019, ftfy; equals datatrove 0.10.1's FTFYFormatter with the same parameters
    (which has no line ends and invisible characters).
    """

    rules: ClassVar[tuple[str, ...]] = (
        "fixed",
        "control_chars",
        "normalized",
        "line_ends",
        "invisible",
    )
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Nothing to repair: \u201cna\xefve\u201d & \u65e5\u672c\u8a9e."),
        Example("It\xe2\u20ac\u2122s broken.", "fixed", becomes="It\u2019s broken."),
        Example("1 &lt; 2\x00", "fixed", becomes="1 < 2"),
        Example("a\x00b", "control_chars", {"fix": "none"}, becomes="ab"),
        Example("e\u0301", "normalized", {"fix": "none", "form": "NFC"}, becomes="\xe9"),
        Example("one\r\ntwo\r", "line_ends", {"line_ends": "lf"}, becomes="one\ntwo\n"),
        Example("a\u200bb\u200d", "invisible", {"invisible": "remove"}, becomes="ab\u200d"),
    )

    fix: Literal["ftfy", "none"] = "ftfy"
    """Repair by ftfy; its options follow, down to `form`."""
    unescape_html: Literal["auto", "always", "never"] = "auto"
    """Entities become characters; `auto`: up to the first line that holds `<` (ftfy)."""
    fix_encoding: bool = True
    """Repair text that was decoded in the wrong encoding, line by line (ftfy)."""
    restore_byte_a0: bool = True
    """Take a space for the byte A0 where that makes mojibake readable (ftfy)."""
    replace_lossy_sequences: bool = True
    """Repair mojibake with lost bytes to U+FFFD (ftfy)."""
    decode_inconsistent_utf8: bool = True
    """Repair mojibake within text that is none (ftfy)."""
    fix_c1_controls: bool = True
    """Read U+0080 to U+009F as Windows-1252 does (ftfy)."""
    fix_latin_ligatures: bool = False
    """Ligatures become letters (ftfy)."""
    fix_character_width: bool = False
    """Full-width and half-width forms become usual ones; wrong for Chinese and Japanese (ftfy)."""
    uncurl_quotes: bool = False
    """Curly quotation marks become straight (ftfy)."""
    fix_line_breaks: bool = False
    """All line and paragraph separators become line feeds (ftfy)."""
    remove_terminal_escapes: bool = True
    """Remove sequences that colour terminals (ftfy)."""
    remove_control_chars: bool = True
    """Remove control characters that are no blanks, byte order marks and a few deprecated ones;
    without ftfy, too."""
    form: Literal["none", "NFC", "NFD", "NFKC", "NFKD"] = "none"
    """Normal form; the compatibility forms NFKC and NFKD change what text says (superscripts)."""
    line_ends: Literal["keep", "lf"] = "keep"
    """`lf`: carriage returns, alone or before a line feed, become line feeds."""
    invisible: Literal["keep", "remove"] = "keep"
    """`remove`: soft hyphens, zero-width spaces, marks and overrides of direction."""

    def libraries(self) -> tuple[str, ...]:
        return ("ftfy",) if self.fix == "ftfy" else ()

    def apply(self, view: View) -> Outcome:
        text = view.text
        suspects = np.flatnonzero(hold_any(text.offsets, text.data, self._bytes()))
        steps = self._steps()
        replacements: dict[int, tuple[int, bytes]] = {}
        for row in suspects.tolist():
            old_text = text.row(row).decode()
            code, new_text = _run(steps, old_text)
            if code:
                replacements[row] = code, new_text.encode()
        if not replacements:
            return Outcome()
        return Outcome(text=_replaced(text, replacements), spans=_spans(text, replacements))

    def _options(self) -> dict[str, Any]:
        """Return the fields of ftfy's configuration."""
        names = (
            "remove_terminal_escapes", "fix_encoding", "restore_byte_a0", "fix_c1_controls",
            "replace_lossy_sequences", "decode_inconsistent_utf8", "fix_latin_ligatures",
            "fix_character_width", "uncurl_quotes", "fix_line_breaks", "remove_control_chars",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            "unescape_html": _ESCAPES[self.unescape_html],
            "normalization": None if self.form == "none" else self.form,
        }

    def _steps(self) -> list[tuple[int, Callable[[str], str]]]:
        """Return the steps in order, each with the code of its rule."""
        steps: list[tuple[int, Callable[[str], str]]] = []
        if self.fix == "ftfy":
            steps.append((1, fixer(tuple(self._options().items()))))
        else:
            if self.remove_control_chars:
                steps.append((2, functools.partial(CONTROLS.sub, "")))
            if self.form != "none":
                steps.append((3, functools.partial(normalize, self.form)))
        if self.line_ends == "lf":
            steps.append((4, functools.partial(LINE_ENDS.sub, "\n")))
        if self.invisible == "remove":
            steps.append((5, functools.partial(INVISIBLE.sub, "")))
        return steps

    def _bytes(self) -> Bytes:
        """Return a mask of bytes, (256,): only texts that hold one of them may change."""
        is_fixed = self.fix == "ftfy"
        byte_mask = np.zeros(256, np.uint8)
        byte_mask[0x80:] = 1
        if self.remove_control_chars:
            byte_mask[[*range(9), 0x0B, *range(0x0E, 0x20), 0x7F]] = 1
        if is_fixed and self.unescape_html != "never":
            byte_mask[ord("&")] = 1
        if is_fixed and self.remove_terminal_escapes:
            byte_mask[0x1B] = 1
        if self.line_ends == "lf" or (is_fixed and self.fix_line_breaks):
            byte_mask[ord("\r")] = 1
        return frozen(byte_mask)


def _run(steps: list[tuple[int, Callable[[str], str]]], text: str) -> tuple[int, str]:
    """Return the code of the first step that changed a text (0: none), and the text."""
    original, first = text, 0
    for code, step in steps:
        result = step(text)
        if not first and result != text:
            first = code
        text = result
    return (first, text) if text != original else (0, original)


def _replaced(text: Utf8, replacements: dict[int, tuple[int, bytes]]) -> Utf8:
    """Return texts with some of them changed; all rows between two of these are copied at once."""
    pieces: list[bytes] = []
    sizes = text.sizes().copy()
    copied_rows = 0
    for row, (_, content) in replacements.items():
        pieces += [text.data[text.offsets[copied_rows] : text.offsets[row]].tobytes(), content]
        sizes[row] = len(content)
        copied_rows = row + 1
    pieces.append(text.data[text.offsets[copied_rows] : text.offsets[-1]].tobytes())
    offsets = np.zeros(len(text) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return Utf8(frozen(offsets), np.frombuffer(b"".join(pieces), np.uint8))


def _spans(text: Utf8, replacements: dict[int, tuple[int, bytes]]) -> Spans:
    edges = [_edges(text.row(row), content) for row, (_, content) in replacements.items()]
    return Spans(
        np.fromiter(replacements, np.int64, len(replacements)),
        np.array([start for start, _ in edges], np.int64),
        np.array([end for _, end in edges], np.int64),
        np.array([code for code, _ in replacements.values()], np.uint8),
        "replace",
    )


def _edges(before: bytes, after: bytes) -> tuple[int, int]:
    """Return the range of changed bytes of `before`: whole characters, at least one."""
    size = min(len(before), len(after))
    old, new = np.frombuffer(before, np.uint8), np.frombuffer(after, np.uint8)
    start = _common(old[:size], new[:size])
    tail = size - start
    end = len(before) - _common(old[len(old) - tail :][::-1], new[len(new) - tail :][::-1])
    if start == end:  # an insertion: the character after it, or at the end the one before
        start, end = (start, end + 1) if end < len(before) else (start - 1, end)
    while start > 0 and start < len(before) and before[start] & 0xC0 == 0x80:
        start -= 1
    while end < len(before) and before[end] & 0xC0 == 0x80:
        end += 1
    return start, end


def _common(left: Bytes, right: Bytes) -> int:
    differing = np.flatnonzero(left != right)
    return int(differing[0]) if len(differing) else len(left)


# ----------------------------------------------------------------------
# ftfy line by line, and only for the lines that it may change.

SEGMENT_CHARS = 1_000_000
"""ftfy cuts longer lines (TextFixerConfig's `max_decode_length`)."""

_OTHERS = (
    "\x00-\x7f\u0391-\u03ce\u0401\u0403-\u045f"
    "\u2e80-\uf8fe\uf900-\ufb00\ufb03-\ufffc\ufffe-\U0010ffff"
)
SIGNS = re.compile(f"[^{_OTHERS}]+")
"""ftfy 6.3's test for mojibake finds nothing in a text without one of these: beyond ASCII, no Greek
or Cyrillic letter (except U+0402), and below U+2E80 with four exceptions."""

REACH = 4
"""Characters around one of SIGNS that are tested; the test reads at most three on either side."""

# The only part of that test that depends on where a line begins.
_LINE_START = r"(?m:^[\xc3\xc2][ ])"


class Fixer:
    """ftfy.fix_text with a fixed configuration, a few times faster.

    ftfy fixes each line independently, except that `unescape_html="auto"` ends with the first `<`
    of the text. Lines without any character that a step looks for are skipped; others go through
    ftfy if a step's own test says that it may change them.

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
        # A line without any of these characters is not changed by any step.
        marks = re.escape(singles + ("&" if options["unescape_html"] else ""))
        marks += "\x80-\U0010ffff" if options["fix_encoding"] or self._form else ""
        self._mark = re.compile(f"[{marks}]" if marks else r"(?!)").search

    def __call__(self, text: str) -> str:
        if self._form is not None:
            text = ordered(self._form, text)  # no other step depends on the order of marks
        pieces: list[str] = []
        copied_to = pos = 0
        bracket = text.find("<") if self._config.unescape_html == "auto" else -1
        while match := self._mark(text, pos):
            begin = max(pos, text.rfind("\n", pos, match.start()) + 1)
            pos = text.find("\n", match.start()) + 1 or len(text)
            if pos - begin > SEGMENT_CHARS:
                return self._fix_whole(text, self._config)
            line = text[begin:pos]
            config = self._plain if 0 <= bracket < pos else self._config
            if self._may_change(line, config):
                pieces += [text[copied_to:begin], self._fix(line, config).text]
                copied_to = pos
        return "".join([*pieces, text[copied_to:]]) if pieces else text

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
        spans = (match.span() for match in SIGNS.finditer(line))
        windows = [line[max(0, begin - REACH) : end + REACH] for begin, end in spans]
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


# ----------------------------------------------------------------------
# Normal forms of texts with any number of combining marks on one letter.

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

RUN_CHARS = 100
"""Shorter runs of marks are left to the library, whose time grows with their square."""

STRIDE = 10

MARKS = (0x300, 0x1EA00)
"""The range of code points that holds all which are, or decompose into, marks alone."""


def normalize(form: Form, text: str) -> str:
    """Return `unicodedata.normalize(form, text)`, in time that grows with the length alone.

    Source: Unicode Standard, D108 and D109: the canonical order is a stable sort of each run of
    marks by combining class, so sorting runs before changes no normal form.
    """
    return unicodedata.normalize(form, ordered(form, text))


def ordered(form: Form, text: str) -> str:
    """Return a text with the same normal form whose long runs of marks are in canonical order."""
    if len(text) < RUN_CHARS or text.isascii():
        return text
    runs, samples = _runs(form)
    if not samples.search(text[::STRIDE]):
        return text
    return runs.sub(functools.partial(_sorted, form), text)


def _sorted(form: Form, run: re.Match[str]) -> str:
    marks = "".join(unicodedata.normalize(_decomposed(form), mark) for mark in run[0])
    return "".join(sorted(marks, key=unicodedata.combining))


def _decomposed(form: Form) -> Literal["NFD", "NFKD"]:
    return "NFKD" if form in {"NFKC", "NFKD"} else "NFD"


@functools.lru_cache(maxsize=4)
def _runs(form: Form) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what long runs of marks match, and what every STRIDE-th character of one matches."""
    chars = "".join(char for char in map(chr, range(*MARKS)) if is_mark(form, char))
    marks = f"[{re.escape(chars)}]"
    # A run is tried where it begins only, so short ones cost no more than their length.
    runs = re.compile(f"{marks}(?<!{marks}{marks}){marks}{{{RUN_CHARS - 1},}}")
    return runs, re.compile(f"{marks}{{{RUN_CHARS // STRIDE}}}")


def is_mark(form: Form, char: str) -> bool:
    """Return whether a character is, or decomposes into, nothing but marks."""
    return all(map(unicodedata.combining, unicodedata.normalize(_decomposed(form), char)))
