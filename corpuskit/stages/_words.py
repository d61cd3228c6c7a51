"""How text is split into words: spaCy's rules, whitespace, Unicode's word boundaries."""

from __future__ import annotations

import csv
import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.kernels.punctuation import TERMINAL
from corpuskit.kernels.words import split as wordsplit
from corpuskit.kernels.words.lexicon import Lexicon, Words
from corpuskit.kernels.words.scan import SPACE_KINDS
from corpuskit.kernels.words.seams import Seams, is_touched
from corpuskit.kernels.words.specials import NO_RULES, Rules
from corpuskit.kernels.words.split import Memory, frozen
from corpuskit.stages import _spacy
from corpuskit.stages._spacy import Answers, Seam

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

WordSplit = Literal["spacy", "whitespace", "unicode"]
"""`spacy`: as datatrove 0.10.1 splits the language, where it does so by spaCy's rules;
`whitespace`: as str.split(); `unicode`: by the word boundaries of UAX #29, punctuation included."""

MAX_MEMORY_BYTES = 300_000_000
"""A splitter that remembers more begins anew with the next batch."""


class SplitterStats(NamedTuple):
    """How a splitter fares.

    Attributes:
        num_chunks: different chunks remembered.
        size_bytes: memory of chunks and words.
        num_asked: chunks and texts that a kernel could not split, since the process began.
        emulated: whether a kernel splits most new chunks, or all have to be asked for.
    """

    num_chunks: int
    size_bytes: int
    num_asked: int
    emulated: bool


class Splitter:
    """Finds the words of texts; what a chunk splits into is remembered.

    An instance is a fact: `view.fact(splitter(words, language))` splits once for all stages.
    """

    def __init__(
        self, words: WordSplit, language: str = "en", max_memory_bytes: int = MAX_MEMORY_BYTES
    ) -> None:
        check_language(words, language)
        self.words, self.language = words, language
        self._max_memory_bytes = max_memory_bytes
        self._memory: Memory | None = None
        self._num_asked = 0

    def stats(self) -> SplitterStats:
        """Return how many chunks are remembered, in how many bytes, and how many were asked for."""
        emulated = self._way.who != wordsplit.ASK
        if self._memory is None:
            return SplitterStats(0, 0, self._num_asked, emulated)
        memory = self._memory
        return SplitterStats(int(memory.used[0]), memory.size_bytes, self._num_asked, emulated)

    @functools.cached_property
    def _way(self) -> _Way:
        return _way(self.words, self.language)

    def __call__(self, offsets: Offsets, data: Bytes) -> Words:
        memory = self._memory
        if memory is None or memory.size_bytes > self._max_memory_bytes:
            self._memory = memory = Memory(Lexicon(self._way.sentence_ends))
            self._seams = _SeamTable(self._way.forbidden)
        bounds, tokens = self._find(memory, frozen(offsets), frozen(data))
        return Words(frozen(bounds), frozen(tokens), memory.lexicon)

    def _find(
        self, memory: Memory, offsets: Offsets, data: Bytes
    ) -> tuple[Offsets, NDArray[np.int32]]:
        """Return where the words of each text begin, and the words."""
        scratch, asked = wordsplit.scratch(offsets), wordsplit.questions(offsets)
        answers = _Answered(memory, self._way, self._seams, data)
        way, row = self._way, 0
        forced = _places(way.spaced, data)
        while True:
            row = wordsplit.find_words(
                row,
                offsets,
                data,
                SPACE_KINDS,
                memory.slots,
                memory.used,
                memory.lexicon.records,
                way.who,
                way.rules,
                self._seams.arrays,
                scratch,
                asked,
                forced,
            )
            answers.resolve(asked)
            if row == len(offsets) - 1:
                break
            memory.grow(int(offsets[row + 1] - offsets[row]))
        self._num_asked += int(asked.used[0])
        bounds, tokens = scratch.offsets, scratch.tokens[: int(scratch.offsets[-1])]
        if not asked.used[0]:
            return bounds, tokens
        bounds, tokens = wordsplit.expand(bounds, tokens, answers.firsts, answers.counts)
        for row in answers.touched_rows(asked, offsets):
            # Now that its chunks are known, the kernel sees where they lose a special case.
            again = self._find(memory, frozen(offsets[row : row + 2]), data)[1]
            tokens = np.concatenate([tokens[: bounds[row]], again, tokens[bounds[row + 1] :]])
            bounds[row + 1 :] += len(again) - (bounds[row + 1] - bounds[row])
        return bounds, tokens


@functools.cache
def splitter(words: WordSplit, language: str = "en") -> Splitter:
    """Return the one splitter of this process for a way to split and a language."""
    return Splitter(words, language)


class _Way(NamedTuple):
    """How new chunks are split.

    Attributes:
        who, rules: see `find_words`.
        forbidden: see Seams.
        sentence_ends: see Lexicon.
        spaced: matches texts that are no matter of one chunk, or None.
        ask: splits chunks that the kernel could not.
        ask_whole: splits a text that cannot be split chunk by chunk.
    """

    who: int
    rules: Rules
    forbidden: str
    sentence_ends: frozenset[str]
    spaced: re.Pattern[bytes] | None
    ask: Callable[[Sequence[str]], Answers]
    ask_whole: Callable[[str], list[str]]


class _SeamTable:
    """What `Seams` says, as it grows; equal sets of seams are one group."""

    def __init__(self, forbidden: str) -> None:
        self._forbidden = np.frombuffer(forbidden.encode(), np.uint8)
        self._groups: dict[frozenset[Seam], int] = {}
        self._firsts: list[int] = []
        self._numbers: list[int] = []
        self._build()

    def add(self, firsts: Sequence[int], seams: Sequence[frozenset[Seam]]) -> None:
        """Note chunks, given by their first words in ascending order."""
        numbers = [self._groups.setdefault(one, len(self._groups)) for one in seams]
        self._firsts += firsts
        self._numbers += numbers
        self._build()

    def _build(self) -> None:
        entries = [seam for seams in self._groups for seam in sorted(seams)]
        texts = [seam.text.encode() for seam in entries]
        sizes = [len(seams) for seams in self._groups]
        sides = [seam.is_behind + 2 * seam.is_bounded for seam in entries]
        self.arrays = Seams(
            frozen(np.array(self._firsts, np.int64)),
            frozen(np.array(self._numbers, np.int64)),
            frozen(np.cumsum([0, *sizes], dtype=np.int64)),
            frozen(np.array(sides, np.uint8)),
            frozen(np.cumsum([0, *map(len, texts)], dtype=np.int64)),
            np.frombuffer(b"".join(texts), np.uint8),
            self._forbidden,
        )


class _Answered:
    """The answers to the questions of one batch, as they come in."""

    def __init__(self, memory: Memory, way: _Way, seams: _SeamTable, data: Bytes) -> None:
        self._memory, self._way, self._seams, self._data = memory, way, seams, data
        self.firsts = self.counts = np.zeros(0, np.int64)
        self._touchy: set[int] = set()

    def resolve(self, asked: wordsplit.Questions) -> None:
        """Answer the questions that were not answered yet."""
        first, stop = len(self.firsts), int(asked.used[0])
        if first == stop:
            return
        spans, is_chunk = asked.spans[first:stop], asked.slots[first:stop] >= 0
        firsts, counts = np.zeros(stop - first, np.int64), np.zeros(stop - first, np.int64)
        touchy = np.zeros(stop, np.uint8)
        if is_chunk.any():
            answers = self._way.ask([self._text(a, b) for a, b in spans[is_chunk]])
            number = self._memory.lexicon.append_pieces(answers.data, answers.starts, answers.ends)
            counts[is_chunk] = answers.counts
            firsts[is_chunk] = number + np.cumsum(answers.counts) - answers.counts
            if answers.seams:
                chunks = sorted(answers.seams)
                places = np.flatnonzero(is_chunk)[chunks]
                self._seams.add(firsts[places].tolist(), [answers.seams[chunk] for chunk in chunks])
                self._touchy.update((first + places).tolist())
                touchy[first + places] = 1
        for place in np.flatnonzero(~is_chunk):
            firsts[place], counts[place] = self._whole(*spans[place])
        self.firsts = np.concatenate([self.firsts, firsts])
        self.counts = np.concatenate([self.counts, counts])
        memory = self._memory
        wordsplit.answer(
            memory.slots, memory.lexicon.records, asked, first, self.firsts, self.counts, touchy
        )

    def touched_rows(self, asked: wordsplit.Questions, offsets: Offsets) -> list[int]:
        """Return the texts in which a chunk that was asked for loses a special case."""
        rows: set[int] = set()
        if not self._touchy:
            return []
        for question, row, start, stop in asked.places[: int(asked.used[1])].tolist():
            if row not in rows and question in self._touchy and is_touched(
                self._data, offsets[row], offsets[row + 1], start, stop, self._seams.arrays,
                int(self.firsts[question]),
            ):  # fmt: skip
                rows.add(row)
        return sorted(rows)

    def _whole(self, begin: int, end: int) -> tuple[int, int]:
        words = self._way.ask_whole(self._text(begin, end))
        return self._memory.lexicon.append(words), len(words)

    def _text(self, begin: int, end: int) -> str:
        return self._data[begin:end].tobytes().decode()


def _way(words: WordSplit, language: str) -> _Way:
    if words == "whitespace":
        return _Way(wordsplit.WHOLE, NO_RULES, "", frozenset(), None, _no_answer, str.split)
    if words == "unicode":
        return _Way(wordsplit.ASK, NO_RULES, "", TERMINAL, None, _ask_boundaries, str.split)
    code = _spacy_code(language)
    facts = _spacy.language_facts(code)
    return _Way(
        wordsplit.RULES if facts.has_rules else wordsplit.ASK,
        facts.rules,
        _spacy.FORBIDDEN,
        facts.sentence_ends,
        re.compile(b"|".join(re.escape(s.encode()) for s in facts.spaced))
        if facts.spaced
        else None,
        lambda chunks: _spacy.pipeline(code).split(chunks),
        lambda text: _spacy.pipeline(code).whole(text),
    )


def _places(pattern: re.Pattern[bytes] | None, data: Bytes) -> Offsets:
    """Return where a pattern matches, and a place beyond all data."""
    found = [match.start() for match in pattern.finditer(data.data)] if pattern else []
    return frozen(np.array([*found, np.iinfo(np.int64).max], np.int64))


def _no_answer(chunks: Sequence[str]) -> Answers:
    raise AssertionError(f"a kernel asked for words: {chunks!r}")


def _ask_boundaries(chunks: Sequence[str]) -> Answers:
    """Split chunks at the word boundaries of UAX #29."""
    import regex

    boundary = regex.compile(r"(?w)\b")
    counts: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for chunk in chunks:
        before = len(starts)
        pieces = [piece.encode() for piece in boundary.split(chunk) if piece]
        for piece in pieces:
            starts.append(at)
            at += len(piece)
            ends.append(at)
        counts.append(len(starts) - before)
    return Answers(
        np.frombuffer("".join(chunks).encode(), np.uint8),
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array(counts, np.int64),
        {},
    )


def check_language(words: WordSplit, language: str) -> None:
    """Refuse a language that cannot be split this way; cheap: loads no tokenizer.

    Raises:
        UsageError: says which tokenizer the reference has for it, and what to do instead.
    """
    if words not in get_args(WordSplit):
        raise UsageError(f"words: must be one of {', '.join(get_args(WordSplit))}, got {words!r}.")
    if words == "spacy":
        _spacy_code(language)


_NOT_BY_RULES = {
    "zh": "jieba",
    "ja": "SudachiPy",
    "ko": "mecab-ko",
    "th": "pythainlp",
    "vi": "pyvi",
}
"""spaCy's languages whose tokenizer is another library's -> that library."""


def _spacy_code(language: str) -> str:
    """Return spaCy's code of the tokenizer that the reference has for a language."""
    kind, code = _assignments().get(language, ("", ""))
    if kind == "WhitespaceTokenizer":
        return "xx"
    if kind == "SpaCyTokenizer" and code not in _NOT_BY_RULES:
        return code
    if not kind:
        raise UsageError(
            f"language: datatrove knows no {language!r}. Give an ISO 639 code such as en or deu, "
            "with a script where needed (srp_Latn), or use words: whitespace."
        )
    maker = f"spaCy with {_NOT_BY_RULES[code]}" if code in _NOT_BY_RULES else kind
    raise UsageError(
        f"language: the reference splits {language!r} by {maker}, which is no rule that depends on "
        "the chunk alone. Use words: whitespace or unicode, or datatrove's own filter through the "
        "datatrove stage."
    )


@functools.cache
def _assignments() -> dict[str, tuple[str, str]]:
    """Return language -> (class of tokenizer, code), read as datatrove 0.10.1 does."""
    found = importlib.util.find_spec("datatrove")
    if found is None or found.origin is None:
        raise UsageError("words: datatrove is not installed. Run: pip install datatrove")
    table: dict[str, tuple[str, str]] = {}
    with (Path(found.origin).parent / "assets" / "tokenizer_assignment.csv").open() as file:
        for row in csv.DictReader(file):
            if not row["type"]:
                continue
            kind = row["type"], row["tok_code"]
            codes = [row["code_3"]]
            # The reference tests these columns for being empty, so FALSE counts as true.
            if row["code_1"] and row["default_code_1"]:
                codes.append(row["code_1"])
            for code in codes:
                if f"{code}_{row['script']}" not in table:
                    table[f"{code}_{row['script']}"] = kind
                    if row["default_script"]:
                        table[code] = kind
    return table
