"""Word lists, as C4 used them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import DataError, UsageError, listing, suggest
from corpuskit.kernels.arrays import Bytes, Int64s
from corpuskit.kernels.filters.wordlist import WordList, compile_words, count_entries
from corpuskit.kernels.folding import lower_texts
from corpuskit.kernels.hashing import xxh64
from corpuskit.paths import PathText
from corpuskit.stage import Example, Known, Outcome, StreamingStage, View
from corpuskit.stages._numbers import check_strings, rows_by_value
from corpuskit.stages.filters._lists import read_entries, versions
from corpuskit.text.languages import common_codes, full_name, names_of

_UNSPACED = frozenset({"ja", "th", "zh"})
"""Languages written without spaces: entries are found anywhere, not only as words."""

_ALLOWED = frozenset({"sm", "\u30b0\u30ed", "\u5973\u306e\u5b50", "\u6027"})
"""Entries of the Japanese and the Chinese list that C4 takes out of all lists."""

_RULE = "document_removed_with_badwords"
_SHOWN = {"entries": ("slapdash", "very bad")}


class BadWords(StreamingStage):
    """Drop documents with entries of a word list, or count the entries.

    Give a list per language: files with one entry a line, such as those of LDNOOBW, which C4 used
    (CC-BY 4.0; corpuskit ships none). An entry, of one word or several, is compared with the text
    in lower case and must stand alone: no letter, digit or underscore next to it. In Japanese, Thai
    and Chinese it may be anywhere. An entry with a capital never matches.

    `count` is the number of positions where entries begin. A list knows no context: it drops
    medical and legal text and keeps hatred in polite words, so look at the counts first
    (`max_count: null` drops nothing).

    Source: Raffel et al. 2020 (C4), section 2.2; equals datatrove 0.10.1's C4BadWordsFilter. There
    `keep_fraction` draws from a stream of random numbers, so what is kept depends on how the work
    was cut; here a hash of the text decides.
    """

    rules: ClassVar[tuple[str, ...]] = (_RULE,)
    bounds: ClassVar[Mapping[str, str]] = {_RULE: "max_count"}
    text_speed: ClassVar[float] = 250e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example("A careful, thorough piece of work.", None, _SHOWN),
        Example("What a slapdash piece of work.", _RULE, _SHOWN),
        Example("That was very bad.", _RULE, _SHOWN),
        Example("Slapdashery is not in the list.", None, _SHOWN),
        Example("What a slapdash piece of work.", None, {**_SHOWN, "max_count": 1}),
        Example("What a slapdash piece of work.", None, {**_SHOWN, "max_count": None}),
    )

    lists: PathText | dict[str, PathText] | None = None
    """Path of the list of `language`, or language (`hu`, `hun` or `hun_Latn`) -> path; one entry a
    line."""
    entries: tuple[str, ...] = ()
    """More entries for the list of `language`."""
    language: str = Field("en", min_length=1)
    """Language of documents where `language_column` does not say it."""
    language_column: str | None = None
    """Column that names the language of each document, as in `language.label`."""
    unlisted: Literal["fail", "keep"] = "fail"
    """What to do with a document in a language that has no list."""
    allowlist: Literal["c4", "none"] = "c4"
    """`c4` takes four entries out of all lists that are common words in Japanese or Chinese."""
    max_count: int | None = Field(0, ge=0)
    """Most positions where an entry may begin; null drops nothing."""
    keep_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the documents with too many entries that is kept nevertheless."""
    seed: int = Field(0, ge=0, lt=2**64)
    """Another seed lets other documents stay."""
    measures: bool = False
    """Also store what the rule measured, so that its bound can be tuned without another run."""

    @model_validator(mode="after")
    def _has_a_list(self) -> BadWords:
        if not self.lists and not self.entries:
            raise ValueError("must have lists or entries: corpuskit ships no list")
        if isinstance(self.lists, dict) and self.language_column is None:
            needless = sorted(set(self.lists) - set(names_of(self.language)))
            if needless:
                raise ValueError(
                    f"lists: the one of {needless[0]!r} is never used without language_column"
                )
        return self

    def files(self) -> tuple[str, ...]:
        return tuple(self._paths.values())

    def needs(self) -> tuple[str, ...]:
        return () if self.language_column is None else (self.language_column,)

    def check(self, known: Known) -> None:
        for path in self._paths.values():
            for _ in read_entries(path):
                pass
        if self.language_column is None:
            if full_name(self.language) is None:
                hint = suggest(self.language, common_codes())
                raise UsageError(f"language: {self.language!r} is none that is known. {hint}")
            return
        check_strings(known, "language_column", self.language_column)
        labels = known.values.get(self.language_column)
        if labels is None:
            return
        for code in self._paths:
            if full_name(code) is None and code not in labels:
                hint = suggest(code, common_codes() | labels)
                raise UsageError(f"lists: {code!r} is no language that is known. {hint}")
        missing = {label for label in labels if self._listed(label) is None}
        if missing and self.unlisted == "fail":
            raise UsageError(
                f"lists: there is none for {listing(missing)}, which {self.language_column} may "
                "be. Give one, keep fewer languages, or set unlisted to keep."
            )

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"count": pa.int64()}

    def apply(self, view: View) -> Outcome:
        counts = np.zeros(view.num_docs, np.int64)
        lower: tuple[Int64s, Bytes] | None = None
        for language, rows in self._by_language(view):
            listed = self._listed(language)
            if listed is None:
                if self.unlisted == "keep":
                    continue
                raise DataError(
                    f"{self.stage_name()}: there is no list for the language {language!r}. Give "
                    "one in lists, or set unlisted to keep."
                )
            path = self._paths.get(listed)
            words = _compiled(
                path,
                versions([path] if path is not None else []),
                self.entries if listed in names_of(self.language) else (),
                _UNSPACED.isdisjoint(names_of(language)),
                self.allowlist == "c4",
            )
            lower = lower or view.fact(lower_texts)
            counts[rows] = count_entries(*lower, rows, words)
        columns = {"count": pa.array(counts)}
        if self.max_count is None:
            return Outcome(columns=columns)
        values = counts.astype(np.float64)
        for row in np.flatnonzero(counts > self.max_count).tolist():
            if self._is_spared(view, row):
                values[row] = np.nan  # not dropped, whatever the bound is
        codes = (values > self.max_count).astype(np.uint8)
        measured = {_RULE: values} if self.measures else {}
        return Outcome(codes=codes, values=values, columns=columns, measures=measured)

    @property
    def _paths(self) -> Mapping[str, str]:
        if isinstance(self.lists, str):
            return {self.language: self.lists}
        return self.lists or {}

    def _listed(self, label: str) -> str | None:
        """Return the code under which the entries for a label are given, None if there are none."""
        codes = {*self._paths, *([self.language] if self.entries else [])}
        return next((name for name in names_of(label) if name in codes), None)

    def _by_language(self, view: View) -> Iterator[tuple[str, Int64s]]:
        """Yield each language that occurs, with its rows."""
        if self.language_column is None:
            yield self.language, np.arange(view.num_docs)
            return
        column = view.column(self.language_column).cast(pa.string()).fill_null(self.language)
        for language, rows in rows_by_value(column):
            yield str(language), rows

    def _is_spared(self, view: View, row: int) -> bool:
        """Return whether `keep_fraction` keeps a document, by seed and text alone."""
        if self.keep_fraction == 0:
            return False
        offsets, data = view.text
        value = int(xxh64(data, offsets[row], offsets[row + 1], np.uint64(self.seed)))
        return (value >> 11) * 2.0**-53 < self.keep_fraction


@functools.lru_cache(maxsize=256)
def _compiled(
    path: str | None,
    _: tuple[tuple[int, int], ...],
    entries: tuple[str, ...],
    whole_words: bool,
    is_c4: bool,
) -> WordList:
    """Return a compiled list; each process compiles it once, and again when the file changes."""
    unique_entries = dict.fromkeys([*(read_entries(path) if path is not None else ()), *entries])
    exempt = _ALLOWED if is_c4 else frozenset()
    return compile_words(
        (entry for entry in unique_entries if entry not in exempt), whole_words=whole_words
    )
