"""Filters whose parameters differ by language: one YAML file each, in FineWeb2's shape."""

from __future__ import annotations

import functools
import glob
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, ValidationError

from corpuskit import yamlreader
from corpuskit.errors import UsageError, listing, suggest
from corpuskit.paths import PathText
from corpuskit.stage import Known, Outcome, View
from corpuskit.stages._numbers import check_strings, rows_by_value
from corpuskit.stages.filters._measured import MeasuredFilter
from corpuskit.text.languages import common_codes, full_name, names_of
from corpuskit.text.words import WordSplit, check_language, libraries

LABEL = "language.label"
UNKNOWN = "unknown_language"
_FIELD = "{language}"
_LABEL = r"[\w-]+"
OnUnknown = Literal["error", "drop", "keep", "defaults"]

KEYS = frozenset(
    """dup_line_frac dup_para_frac dup_line_char_frac dup_para_char_frac top_n_grams dup_n_grams
    min_doc_words max_doc_words min_avg_word_length max_avg_word_length max_symbol_word_ratio
    max_bullet_lines_ratio max_ellipsis_lines_ratio max_non_alpha_words_ratio min_stop_words
    stopwords line_punct_thr short_line_thr short_line_length char_duplicates_ratio new_line_ratio
    language_score language""".split()
)
"""What a file may hold: FineWeb2's keys, other parameters of the same filters by datatrove's names,
and `language`, the language to split words by where that is not the label itself."""


class LanguageFilter(MeasuredFilter):
    """A filter that counts words, whose parameters may differ from language to language."""

    keys: ClassVar[Mapping[str, str]]
    """Key in FineWeb2's file of a language -> parameter."""

    words: WordSplit = "spacy"
    """How text is split into words; `spacy` as the reference does."""
    language: str = Field("en", min_length=1)
    """Language by whose rules spaCy splits."""
    per_language: PathText | None = Field(None, min_length=1)
    """Folder with a file of parameters for each language, such as deu_Latn.yml (FineWeb2's shape),
    or a pattern such as configs/{language}.yml."""
    language_column: str = Field(LABEL, min_length=1)
    """Column with the language of a document."""
    unknown_language: OnUnknown = "error"
    """What to do with a document whose language has no file; `defaults`: use those given here."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.rules = (*cls.rules, UNKNOWN)

    def check_splits(self, *, needs_words: bool = True) -> Self:
        """Check the parameters above; for validators.

        Args:
            needs_words: whether text is split by `words` and `language`.

        Raises:
            ValueError: `per_language` is a pattern that does not name a language once, in the name
                of the file; or `measures` asks for bounds that differ by language.
            UsageError: the language cannot be split.
        """
        if self.per_language is not None:
            for pattern in _patterns(self.per_language):
                if pattern.count(_FIELD) > 1 or _FIELD not in Path(pattern).name:
                    raise ValueError(
                        f"per_language: {self.per_language!r} must have {_FIELD} once, in the name "
                        "of the file"
                    )
            if self.measures:
                raise ValueError(
                    "measures: bounds that depend on the language cannot be tuned. Leave out "
                    "per_language, or measure one language at a time"
                )
        elif needs_words:
            check_language(self.words, self.language)
        return self

    def files(self) -> tuple[str, ...]:
        return tuple(sorted(map(str, self._checked_files().values())))

    def libraries(self) -> tuple[str, ...]:
        return libraries(self.words, self.language if self.per_language is None else None)

    def needs(self) -> tuple[str, ...]:
        return () if self.per_language is None else (self.language_column,)

    def check(self, known: Known) -> None:
        """Check that every language that a document can have by then has a file that serves."""
        if self.per_language is None:
            return
        files = self._checked_files()
        check_strings(known, "language_column", self.language_column)
        labels = known.values.get(self.language_column)
        if labels is None:
            return
        for name in sorted(files.keys() - labels):
            if full_name(name) is None:
                hint = suggest(name, common_codes() | labels)
                raise UsageError(f"per_language: {files[name]} is named after no language. {hint}")
        without = {label for label in labels if file_of(self.per_language, label) is None}
        if without == labels or (without and self.unknown_language == "error"):
            remedy = (
                "Add them, keep fewer languages, or set unknown_language to drop, keep or defaults"
            )
            if without == labels:
                remedy = "Name the files as the language model names its labels"
            raise UsageError(
                f"per_language: {self.per_language} has no file for {listing(without)}, which "
                f"{self.language_column} may be. {remedy}."
            )
        for label in sorted(labels - without):
            self._for_language(label)

    def apply(self, view: View) -> Outcome:
        if self.per_language is None:
            return self.decide(view)
        codes = np.zeros(view.num_docs, np.uint8)
        values, bounds = np.full(view.num_docs, np.nan), np.full(view.num_docs, np.nan)
        for label, rows in rows_by_value(view.column(self.language_column)):
            chosen = self._for_language(label)
            if chosen is not None:
                # A whole view keeps the facts that stages share.
                outcome = chosen.decide(view if len(rows) == view.num_docs else view.select(rows))
                assert outcome.codes is not None, "filters decide"
                assert outcome.values is not None, "and say by which value"
                codes[rows], values[rows] = outcome.codes, outcome.values
                limits = np.array([np.nan, *map(chosen.threshold, chosen.rules)])
                bounds[rows] = limits[outcome.codes]
            elif self.unknown_language == "drop":
                codes[rows] = self.rules.index(UNKNOWN) + 1
        return Outcome(codes=codes, values=values, bounds=bounds)

    def _checked_files(self) -> Mapping[str, Path]:
        """Return label -> file; empty without `per_language`.

        Raises:
            UsageError: there is none, two are for one language, or one is broken.
        """
        if self.per_language is None:
            return {}
        files = files_in(self.per_language)
        for path in files.values():
            changes = self._changes(content_of(path))
            # Only of languages that occur it matters whether their words can be split.
            if getattr(self, "variant", "datatrove") == "datatrove":
                changes["words"] = "whitespace"
            self._changed(changes, f"{path}: ")
        return files

    def _for_language(self, label: str | None) -> Self | None:
        """Return the stage with the parameters of a language; None if there are none.

        Raises:
            UsageError: its file is broken, or it has none and that is an error.
        """
        assert self.per_language is not None, "checked by the caller"
        path = file_of(self.per_language, label)
        if path is not None:
            content = content_of(path)
            changes = self._changes(content)
            if self.words == "spacy":
                changes["language"] = content.get("language", label)
            return self._changed(changes, f"{path}: ")
        if self.unknown_language == "defaults":
            return self._changed({}, "")
        if self.unknown_language == "error":
            raise UsageError(
                f"per_language: no file for language {label!r} in {self.per_language}. Add it, or "
                "set unknown_language to drop, keep or defaults."
            )
        return None

    def _changes(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that a file gives.

        A parameter that may be null is null where the file says 0 or less, as in the reference;
        other keys of KEYS are for other stages.
        """
        changes: dict[str, Any] = {}
        for key, name in self.keys.items():
            if key in content:
                value, field = content[key], type(self).model_fields[name]
                may_be_null = type(None) in getattr(field.annotation, "__args__", ())
                is_off = isinstance(value, int | float) and value <= 0 and may_be_null
                changes[name] = None if is_off else value
        return changes

    def _changed(self, changes: Mapping[str, Any], path: str) -> Self:
        """Return a copy with changes, for documents of one language.

        Raises:
            UsageError: a value is out of its bounds.
        """
        try:
            return type(self)(**{**self.model_dump(), "per_language": None, **changes})
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path}{name}: {first['msg']}, got {first['input']!r}.") from error


def files_in(per_language: str, parameter: str = "per_language") -> Mapping[str, Path]:
    """Return label -> file, of a folder or pattern.

    Raises:
        UsageError: there is none, or two are for one language.
    """
    files: dict[str, Path] = {}
    for pattern in _patterns(per_language):
        before, _, after = pattern.partition(_FIELD)
        for name in glob.glob(f"{glob.escape(before)}*{glob.escape(after)}"):
            label = Path(name).name[len(Path(before + "x").name) - 1 :].removesuffix(after)
            if not re.fullmatch(_LABEL, label) or not Path(name).is_file():
                continue
            if label in files:
                raise UsageError(
                    f"{parameter}: {files[label]} and {name} are for one language. Remove one."
                )
            files[label] = Path(name)
    if not files:
        raise UsageError(
            f"{parameter}: {per_language} has no file for any language, such as deu_Latn.yml. "
            "Check the path."
        )
    return files


def file_of(per_language: str, label: str | None) -> Path | None:
    """Return the file for a label, by any code of its language (`hu`, `hun_Latn`)."""
    # A label comes from a column: it must not lead out of the folder.
    for name in names_of(label) if label and re.fullmatch(_LABEL, label) else ():
        for pattern in _patterns(per_language):
            path = Path(pattern.replace(_FIELD, name))
            if path.is_file():
                return path
    return None


def is_pattern(path: str) -> bool:
    """Return whether a path names a file per language: it is a folder, or has {language}."""
    return _FIELD in path or Path(path).is_dir()


def _patterns(per_language: str) -> tuple[str, ...]:
    """Return patterns of file names; a folder holds `<label>.yml` or `.yaml` for each language."""
    if _FIELD in per_language:
        return (per_language,)
    folder = Path(per_language)
    return str(folder / f"{_FIELD}.yml"), str(folder / f"{_FIELD}.yaml")


def content_of(path: Path) -> Mapping[str, Any]:
    """Return what a language's file holds, read again when it has changed.

    Raises:
        UsageError: it is no mapping, or has an unknown key.
    """
    stat = path.stat()
    return _read(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=4096)
def _read(path: Path, modified: int, size_bytes: int) -> Mapping[str, Any]:
    """Return what a file holds; the last two arguments tell versions of it apart."""
    try:
        content = yamlreader.load(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must map keys to values, got {type(content).__name__}.")
    for key in content:
        if key not in KEYS:
            raise UsageError(f"{path}: has no key {key!r}. {suggest(str(key), KEYS)}")
    return content
