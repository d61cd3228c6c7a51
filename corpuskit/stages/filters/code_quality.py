"""Rules for source code: long lines, data, markup, generated files."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from corpuskit.formats.batch import Utf8
from corpuskit.kernels.arrays import Float64s
from corpuskit.kernels.filters.code import BASE64, ESCAPES, HEXADECIMAL, MEASURES, measure_code
from corpuskit.stage import Example, Known, View
from corpuskit.stages._numbers import check_numbers, check_strings, to_numbers, to_strings
from corpuskit.stages.filters._measured import MeasuredFilter, Rule

_ENCODED = {
    BASE64: re.compile(r"[a-zA-Z0-9+/\n=]{64,}"),
    HEXADECIMAL: re.compile(r"(?:\b(?:0x|\\x)?[0-9a-fA-F]{2}(?:,|\b\s*)){8,}"),
    ESCAPES: re.compile(r"(?:\\u[0-9a-fA-F]{4}){8,}"),
}
"""StarCoder2's expressions."""

_STRING = r'"(?:[^"\\\n]|\\.)*+"?|\'(?:[^\'\\\n]|\\.)*+\'?'
_LONG = r'[rRuU]?(?:"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z))'
_SLASHES = r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
_EXPRESSION = r"(?<=[(,=:\[!&|?{};])\s*/(?![*/])(?:[^/\\\[\n]|\\.|\[[^\]\n]*\]){1,1000}/"
_COMMENTS = {
    "python": re.compile(rf"(?P<comment>#[^\n]*)|{_LONG}|[rRuU]?(?:{_STRING})", re.DOTALL),
    "java": re.compile(rf"{_SLASHES}|{_STRING}", re.DOTALL),
    "javascript": re.compile(rf"{_SLASHES}|{_STRING}|`[^`]*(?:`|\Z)|{_EXPRESSION}", re.DOTALL),
}
"""Language -> its comments and strings; a string that is not closed ends with its line."""

_HIDDEN = re.compile(
    r"<(script|style|template)\b.*?(?:</\1[^<>]*>|\Z)|<!--.*?(?:-->|\Z)|<[!?/a-z][^<>]*>",
    re.DOTALL | re.IGNORECASE,
)
_EXTENSIONS = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "htm": "html",
    "md": "markdown", "txt": "text", "xsl": "xslt", "smt2": "smt", "roff manpage": "roff",
}  # fmt: skip
_WIDE = ("html", "json", "markdown", "roff", "smt", "tex", "text", "xml")

_CODE = "def add(first, second):\n    # Both are numbers.\n    return first + second\n"
_BASE64 = f"{'aGVsbG8g' * 8}\n" * 5
_PAGE = f"<html><body><p>{'Words that a reader sees. ' * 6}</p></body></html>"
_SCRIPT = f"<html><script>{'let x = 1; ' * 60}</script><p>{'Seen. ' * 20}</p></html>"


class CodeQuality(MeasuredFilter):
    r"""Drop files of source code that are data, markup, generated, or on very long lines.

    Use it on files of code, one a document. `null` switches a rule off; the first rule that fails
    gives the reason. Off by default are rules of one data set only: The Stack v2's share of letters
    (0.25), RedPajama's letters per token (1.5), SantaCoder's share of comments (0.01 and 0.8).

    The language is a name, an extension or a path (what follows the last dot) in `language_column`,
    or `language` for all. HTML, JSON, Markdown, Roff, SMT, TeX, text and XML may have long lines
    (`max_wide_line_chars` instead of both bounds), XSLT an XML header; visible text is of HTML,
    comments are of Python, Java and JavaScript. For bounds of one language only, such as
    StarCoder's 50 to 5000 characters of JSON and YAML, use the stage again on that language.

    Lines are those of str.splitlines, lengths are in characters. The length of encoded data is the
    longest match of StarCoder2's three expressions, its ratio the share of characters in any.
    Generated files say so in the first five lines, in upper or lower case; names of files, for
    which go-enry has rules, are not looked at. Tokens are runs of word characters or of others, one
    more than there are, as in dolma's approximation; `token_column` has a tokenizer's own. Comments
    of Python include docstrings.

    Source: Kocetkov et al. 2022 (The Stack), Allal et al. 2023 (SantaCoder), Li et al. 2023
    (StarCoder), Lozhkov et al. 2024 (StarCoder2), section 3: bigcode-dataset at 014784c5,
    preprocessing/filtering.py; dolma 1.2.1, taggers/code; datamap-rs, CodeEncodedData. There
    Python's parser, Pygments and BeautifulSoup find comments and text: a file of Python that does
    not parse has no docstrings.
    """

    table: ClassVar[tuple[Rule, ...]] = (
        Rule("too_short", "num_chars", below="min_chars"),
        Rule("too_long", "num_chars", above="max_chars"),
        Rule("too_many_lines", "num_lines", above="max_lines"),
        Rule("long_line", "line_chars", above="max_line_chars"),
        Rule("long_lines", "mean_line_chars", above="max_mean_line_chars"),
        Rule("wide_line", "wide_line_chars", above="max_wide_line_chars"),
        Rule("too_few_alnum", "alnum_ratio", below="min_alnum_ratio"),
        Rule("too_few_letters", "alpha_ratio", below="min_alpha_ratio"),
        Rule("too_few_letters_per_token", "alpha_per_token", below="min_alpha_per_token"),
        Rule("xml_header"),
        Rule("hidden_html", "html_text_ratio", below="min_html_text_ratio"),
        Rule("short_html", "html_text_chars", below="min_html_text_chars"),
        Rule("too_few_comments", "comment_ratio", below="min_comment_ratio"),
        Rule("too_many_comments", "comment_ratio", above="max_comment_ratio"),
        Rule("encoded_run", "encoded_chars", above="max_encoded_chars"),
        Rule("encoded", "encoded_ratio", above="max_encoded_ratio"),
        Rule("generated"),
    )
    text_speed: ClassVar[float] = 60e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_CODE, None, {"language": "python", "min_comment_ratio": 0.01}),
        Example('{"a": 1}', "too_short", {"language": "json", "min_chars": 50}),
        Example("x = 1\n" * 9, "too_long", {"max_chars": 50}),
        Example("x = 1\n" * 9, "too_many_lines", {"max_lines": 8}),
        Example(f"{_CODE}# {'word ' * 300}", "long_line"),
        Example(f"x = '{'word ' * 30}'\n" * 3, "long_lines"),
        Example("word " * 300, None, {"language": "md"}),
        Example("word " * 30, "wide_line", {"language": "md", "max_wide_line_chars": 100}),
        Example("[[-1, 1], [-2, +3], [+4, -5]]", "too_few_alnum", {"min_alnum_ratio": 0.3}),
        Example("x = [1, 2, 3, 4, 5]", "too_few_letters", {"min_alpha_ratio": 0.25}),
        Example("x = a + b * c - d", "too_few_letters_per_token", {"min_alpha_per_token": 1.5}),
        Example('<?xml version="1.0"?>\n<names><name>one</name></names>', "xml_header"),
        Example(_PAGE, None, {"language": "html"}),
        Example(_SCRIPT, "hidden_html", {"language": "html"}),
        Example("<p>Only a few words.</p>", "short_html", {"language": "html"}),
        Example("x = 1\n", "too_few_comments", {"language": "py", "min_comment_ratio": 0.01}),
        Example(
            "// All of it.\n", "too_many_comments", {"language": "js", "max_comment_ratio": 0.8}
        ),
        Example(f"{_CODE * 40}key = '{'aGVsbG8g' * 120}'", None),
        Example(f"{_CODE}key = '{'aGVs' * 50}'", "encoded_run", {"max_encoded_chars": 100}),
        Example(f"{_CODE}{_BASE64}", "encoded"),
        Example(f"# This file is auto-generated. Do not edit.\n{_CODE}", "generated"),
    )

    min_chars: int | None = Field(None, ge=0)
    """Shortest file, in characters."""
    max_chars: int | None = Field(None, ge=0)
    """Longest file, in characters."""
    max_lines: int | None = Field(100_000, ge=0)
    """Most lines."""
    max_line_chars: int | None = Field(1000, ge=0)
    """Longest line, in characters."""
    max_mean_line_chars: float | None = Field(100.0, ge=0)
    """Largest mean length of lines, in characters."""
    max_wide_line_chars: int | None = Field(100_000, ge=0)
    """Longest line in languages whose lines may be wide."""
    min_alnum_ratio: float | None = Field(0.25, ge=0, le=1)
    """Least share of letters and digits."""
    min_alpha_ratio: float | None = Field(None, ge=0, le=1)
    """Least share of letters."""
    min_alpha_per_token: float | None = Field(None, ge=0)
    """Fewest letters per token."""
    token_column: str | None = Field(None, min_length=1)
    """Column with the number of tokens; `null` counts runs of characters."""
    drop_xml: bool = True
    """Drop files with an XML header in the first 100 characters."""
    min_html_text_ratio: float | None = Field(0.2, ge=0, le=1)
    """Least share of visible text in HTML."""
    min_html_text_chars: int | None = Field(100, ge=0)
    """Fewest characters of visible text in HTML."""
    min_comment_ratio: float | None = Field(None, ge=0, le=1)
    """Least share of comments."""
    max_comment_ratio: float | None = Field(None, ge=0, le=1)
    """Largest share of comments."""
    max_encoded_chars: int | None = Field(1024, ge=0)
    """Longest piece of encoded data, in characters."""
    max_encoded_ratio: float | None = Field(0.5, ge=0, le=1)
    """Largest share of encoded data."""
    drop_generated: bool = True
    """Drop files that say that a program wrote them."""
    generated_phrases: tuple[str, ...] = (
        *("auto-generated", "autogenerated", "automatically generated", "generated automatically"),
        "this file is generated",
    )
    """Phrases, in lower case, by which files say so."""
    language: str | None = Field(None, min_length=1)
    """Language or extension of all files, where no column has it."""
    language_column: str | None = Field(None, min_length=1)
    """Column with the language, the extension or the path of a file, as in `origin.file`."""

    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.language_column, self.token_column) if name is not None)

    def check(self, known: Known) -> None:
        if self.language_column is not None:
            check_strings(known, "language_column", self.language_column)
        if self.token_column is not None:
            check_numbers(known, "token_column", self.token_column)

    def measure(self, view: View) -> Mapping[str, Float64s]:
        text, languages = view.text, self._languages(view)
        measured = dict(zip(MEASURES, view.fact(measure_code), strict=True))
        chars, is_wide = measured["num_chars"], np.isin(languages, _WIDE)
        measured["wide_line_chars"] = np.where(is_wide, measured["line_chars"], np.nan)
        for name in ("line_chars", "mean_line_chars"):
            measured[name] = np.where(is_wide, np.nan, measured[name])
        if self.token_column is not None:
            tokens = to_numbers(view.column(self.token_column), self.token_column)
            tokens = np.where(tokens > 0, tokens, np.nan)
            measured["alpha_per_token"] = measured["alpha_ratio"] * chars / tokens
        heads = [_head(text, row) for row in range(view.num_docs)]
        if self.drop_xml:
            is_xml = np.array(["<?xml version=" in head[:100] for head in heads], np.bool_)
            measured["xml_header"] = (is_xml & (languages != "xslt")).astype(np.float64)
        if self.drop_generated:
            measured["generated"] = np.array([self._says_generated(head) for head in heads])
        visible, comments = np.full((2, view.num_docs), np.nan)
        for row in np.flatnonzero(languages == "html").tolist():
            visible[row] = count_visible(text.row(row).decode())
        if self.measures or (self.min_comment_ratio, self.max_comment_ratio) != (None, None):
            for row in np.flatnonzero(np.isin(languages, [*_COMMENTS])).tolist():
                comments[row] = count_comments(text.row(row).decode(), languages[row])
        measured["html_text_chars"] = visible
        measured["html_text_ratio"] = visible / np.maximum(chars, 1)
        measured["comment_ratio"] = comments / np.maximum(chars, 1)
        _measure_encoded(text, chars, measured)
        return measured

    def _languages(self, view: View) -> NDArray[np.str_]:
        """Return the language of each file, (N,), "" where nothing says it."""
        if self.language_column is None:
            names = pa.array([self.language] * view.num_docs, pa.string())
        else:
            names = to_strings(view.column(self.language_column), self.language_column)
        coded = names.dictionary_encode()
        languages = [_language(name) for name in coded.dictionary.to_pylist()]
        numbers = pc.fill_null(coded.indices, len(languages)).to_numpy(zero_copy_only=False)
        default = "" if self.language is None else _language(self.language)
        return np.array([*languages, default], np.str_)[np.asarray(numbers, np.int64)]

    def _says_generated(self, head: str) -> float:
        lines = "\n".join(head.split("\n", 5)[:5]).lower()
        return float(any(phrase in lines for phrase in self.generated_phrases))


def _language(name: str) -> str:
    """Return the language that a name, an extension or a path says, in lower case."""
    last = name.lower().rpartition("/")[2].rpartition(".")[2]
    return _EXTENSIONS.get(last, last)


def _head(text: Utf8, row: int) -> str:
    """Return the first five lines of a text, and at least its first 100 characters."""
    data, end = text.row(row), -1
    for _ in range(5):
        end = data.find(b"\n", end + 1)
        if end < 0:
            return data.decode()
    return data[: max(end, 400)].decode("utf-8", "ignore")


def _measure_encoded(text: Utf8, chars: Float64s, measured: dict[str, Float64s]) -> None:
    """Add the longest piece of encoded data, and its share of all characters."""
    kinds = measured["encoded_kinds"].astype(np.int64)
    longest, share = np.zeros(len(chars)), np.zeros(len(chars))
    for row in np.flatnonzero(kinds).tolist():
        content = text.row(row).decode()
        patterns = [pattern for kind, pattern in _ENCODED.items() if kind & kinds[row]]
        spans = [match.span() for pattern in patterns for match in pattern.finditer(content)]
        covered = covered_to = 0
        for start, end in sorted(spans):
            covered += max(end - max(start, covered_to), 0)
            covered_to = max(covered_to, end)
            longest[row] = max(longest[row], end - start)
        share[row] = covered / chars[row]
    measured["encoded_chars"], measured["encoded_ratio"] = longest, share


def count_visible(page: str) -> int:
    """Return the characters of a page outside of tags, comments, scripts and styles.

    Whitespace between two tags is one character, as in BeautifulSoup's get_text.
    """
    pieces = _HIDDEN.split(page)[::2]
    return sum(len(html.unescape(piece)) if piece.strip() else bool(piece) for piece in pieces)


def count_comments(text: str, language: str) -> int:
    """Return the characters of comments; those of Python without `#`, with docstrings.

    A docstring is a string that begins a line, after a colon or at the beginning of the file.
    """
    chars, end, last = 0, 0, ""  # `last` is the last of the code before
    for match in _COMMENTS[language].finditer(text):
        code = text[end : match.start()]
        end = match.end()
        last = code.rstrip()[-1:] or last
        comment = match["comment"]
        if comment is not None:
            chars += len(comment.replace("#", "") if language == "python" else comment)
        elif language == "python":
            if last in ("", ":") and ("\n" in code or not last):
                chars += len(inspect.cleandoc(match.group().strip("rRuU\"'")))
            last = "'"
    return chars
