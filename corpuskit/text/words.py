"""How text is split into words: spaCy's rules, whitespace, Unicode's word boundaries."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from corpuskit.errors import UsageError, suggest
from corpuskit.kernels.arrays import frozen, join_bytes
from corpuskit.kernels.utf8 import TERMINAL, char_table
from corpuskit.kernels.words import learn as wordlearn
from corpuskit.kernels.words import split as wordsplit
from corpuskit.kernels.words.boundaries import CLASSES, IS_PICTOGRAPH, IS_SPACE
from corpuskit.kernels.words.english import NO_RULES, Rules, split_scratch
from corpuskit.kernels.words.lexicon import Lexicon, Words, char_kinds
from corpuskit.kernels.words.split import SPACE_KINDS, ChunkMemory, Seams
from corpuskit.text import spacy
from corpuskit.text.languages import common_codes, names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from corpuskit.kernels.arrays import Bytes, Int32s, Int64s
    from corpuskit.text.spacy import Answers, Seam


WordSplit = Literal["spacy", "whitespace", "unicode"]
"""`spacy`: as datatrove 0.10.1 splits the language, where it does so by spaCy's rules;
`whitespace`: as str.split(); `unicode`: by the word boundaries of UAX #29, punctuation included."""

MAX_MEMORY_BYTES = 300_000_000
"""A splitter that uses more memory empties it before the next batch."""


_MOST_TOKENS = 1 << 24
"""Words of texts, split as a whole, that are kept for the next stage; 4 bytes each."""


class SplitterStats(NamedTuple):
    """Statistics of a splitter.

    Attributes:
        num_chunks: distinct chunks in memory.
        size_bytes: memory of chunks and words.
        num_asked: chunks and texts that a kernel could not split, since the process began.
        emulated: whether a kernel splits most new chunks, or Python splits all.
    """

    num_chunks: int
    size_bytes: int
    num_asked: int
    emulated: bool


class Splitter:
    """Finds the words of texts; keeps the words of each distinct chunk.

    An instance is a fact: `view.fact(splitter(words, language))` splits once for all stages.
    """

    def __init__(
        self, words: WordSplit, language: str = "en", max_memory_bytes: int = MAX_MEMORY_BYTES
    ) -> None:
        check_language(words, language)
        self.words, self.language = words, language
        self._max_memory_bytes = max_memory_bytes
        self._memory: ChunkMemory | None = None
        self._num_asked = 0
        tokenizer = _tokenizer(language) if words == "spacy" else None
        self._by_text = tokenizer if tokenizer and tokenizer.distributions else None
        self._numbers: dict[str, int] = {}
        self._texts: dict[bytes, Int32s] = {}

    def stats(self) -> SplitterStats:
        """Return current statistics."""
        emulated = self._split.kind != wordlearn.ASK
        if self._memory is None:
            return SplitterStats(0, 0, self._num_asked, emulated)
        memory = self._memory
        return SplitterStats(int(memory.used[0]), memory.size_bytes, self._num_asked, emulated)

    @functools.cached_property
    def _split(self) -> _SplitMethod:
        return _split_method(self.words, self.language)

    def __call__(self, offsets: Int64s, data: Bytes) -> Words:
        memory = self._memory
        if memory is None or memory.size_bytes > self._max_memory_bytes:
            self._memory = memory = ChunkMemory(Lexicon(self._split.char_kinds))
            self._seams, self._numbers, self._texts = (_SeamTable(self._split.forbidden), {}, {})
        if self._by_text is not None:
            return self._split_texts(memory.lexicon, offsets, data)
        batch = _SplitCall(memory, self._split, self._seams, frozen(data))
        bounds, tokens = batch.find(frozen(offsets[:-1]), frozen(offsets[1:]))
        self._num_asked += batch.num_asked
        return Words(frozen(bounds), frozen(tokens), memory.lexicon)

    def _split_texts(self, lexicon: Lexicon, offsets: Int64s, data: Bytes) -> Words:
        """Split each text by the tokenizer of the reference, once for all stages."""
        assert self._by_text is not None, "checked by the caller"
        split, numbers, cached = self._by_text.load(), self._numbers, self._texts
        if sum(map(len, cached.values())) > _MOST_TOKENS:
            cached.clear()
        tokens = [np.zeros(0, np.int32)]
        for begin, end in itertools.pairwise(offsets.tolist()):
            text = data[begin:end].tobytes()
            digest = hashlib.blake2b(text, digest_size=16).digest()
            if digest not in cached:
                words = split(text.decode())
                new = [word for word in dict.fromkeys(words) if word not in numbers]
                first = lexicon.append(new)
                numbers.update(zip(new, range(first, first + len(new)), strict=True))
                cached[digest] = np.fromiter(map(numbers.__getitem__, words), np.int32, len(words))
                self._num_asked += 1
            tokens.append(cached[digest])
        bounds = np.cumsum([0, *map(len, tokens[1:])], dtype=np.int64)
        return Words(frozen(bounds), frozen(np.concatenate(tokens)), lexicon)


@functools.cache
def splitter(words: WordSplit, language: str = "en") -> Splitter:
    """Return the splitter of this process for a method and a language."""
    return Splitter(words, language)


def _no_answer(chunks: Sequence[str]) -> Answers:
    raise AssertionError(f"a kernel asked for words: {chunks!r}")


class _SplitMethod(NamedTuple):
    """How new chunks are split.

    Attributes:
        kind, rules: WHOLE, ASK or RULES of `learn`, and the rules.
        forbidden: see Seams.
        char_kinds: see Lexicon.
        pattern: matches special cases that span chunks, or None.
        split_chunks: splits chunks that the kernel could not.
        split_text: splits a piece of text that cannot be split chunk by chunk.
    """

    kind: int
    char_kinds: Bytes
    rules: Rules = NO_RULES
    forbidden: str = ""
    pattern: re.Pattern[bytes] | None = None
    split_chunks: Callable[[Sequence[str]], Answers] = _no_answer
    split_text: Callable[[str], list[str]] = str.split


class _SeamTable:
    """Builds the arrays of `Seams`; chunks with equal sets of seams form one group."""

    def __init__(self, forbidden: str) -> None:
        self._forbidden = np.frombuffer(forbidden.encode(), np.uint8)
        self._groups: dict[frozenset[Seam], int] = {}
        self._firsts: list[int] = []
        self._numbers: list[int] = []
        self._build()

    def add(self, firsts: Sequence[int], seams: Sequence[frozenset[Seam]]) -> None:
        """Add chunks, given by their first words in ascending order."""
        numbers = [self._groups.setdefault(seam_set, len(self._groups)) for seam_set in seams]
        self._firsts += firsts
        self._numbers += numbers
        self._build()

    def _build(self) -> None:
        entries = [seam for seams in self._groups for seam in sorted(seams)]
        texts = [seam.text.encode() for seam in entries]
        sizes = [len(seams) for seams in self._groups]
        sides = [seam.is_after + 2 * seam.is_bounded for seam in entries]
        self.arrays = Seams(
            frozen(np.array(self._firsts, np.int64)),
            frozen(np.array(self._numbers, np.int64)),
            frozen(np.cumsum([0, *sizes], dtype=np.int64)),
            frozen(np.array(sides, np.uint8)),
            *join_bytes(texts),
            self._forbidden,
        )


class _SplitCall:
    """Splits the texts of one call."""

    def __init__(
        self, memory: ChunkMemory, split: _SplitMethod, seams: _SeamTable, data: Bytes
    ) -> None:
        self._memory, self._split, self._seams, self._data = memory, split, seams, data
        self._forced = _match_positions(split.pattern, data)
        self.num_asked = 0

    def find(self, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int32s]:
        """Return where the words of each text begin, and the words."""
        memory, scratch = self._memory, wordsplit.scratch(begins, ends)
        queue = wordsplit.questions(len(scratch.tokens) // 16 + 256)
        answers = [wordlearn.no_answers(0)]
        row, first = 0, 0
        while True:
            row = wordsplit.find_words(
                row,
                begins,
                ends,
                self._data,
                SPACE_KINDS,
                memory.slots,
                memory.used,
                memory.lexicon.records.data,
                self._seams.arrays,
                scratch,
                queue,
                self._forced,
            )
            if first < queue.used[0]:
                answers.append(self._answer(queue, first))
                first = int(queue.used[0])
            if row == len(begins):
                break
            memory.grow()
            queue = wordsplit.more_questions(queue)
        bounds, tokens = scratch.offsets, scratch.tokens[: int(scratch.offsets[-1])]
        if first == 0:
            return bounds, tokens
        learned = wordlearn.LearnedWords(*map(np.concatenate, zip(*answers, strict=True)))
        bounds, tokens, rows = wordlearn.expand(bounds, tokens, learned)
        if not len(rows):
            return bounds, tokens
        # Their chunks are known now, so the kernel finds where these lose a special case.
        return _replace(bounds, tokens, rows, *self.find(frozen(begins[rows]), frozen(ends[rows])))

    def _answer(self, queue: wordsplit.Questions, first: int) -> wordlearn.LearnedWords:
        """Answer the questions from `first` on."""
        memory, lexicon, split = self._memory, self._memory.lexicon, self._split
        stop = int(queue.used[0])
        spans, is_chunk = queue.spans[first:stop], queue.slots[first:stop] >= 0
        learned = wordlearn.no_answers(stop - first)
        sizes = (spans[:, 1] - spans[:, 0])[is_chunk]
        if split.kind != wordlearn.ASK:
            lexicon.reserve(int(sizes.sum()), int(sizes.sum()))
            scratch = split_scratch(int(sizes.max(initial=1)))
            wordlearn.learn(
                self._data, first, split.kind, split.rules, lexicon.records, scratch, queue, learned
            )
        unknown = np.flatnonzero(is_chunk & (learned.counts == wordlearn.UNKNOWN))
        if len(unknown):
            answers = split.split_chunks([self._text(a, b) for a, b in spans[unknown]])
            number = lexicon.append_pieces(answers.data, answers.starts, answers.ends)
            learned.counts[unknown] = answers.counts
            learned.firsts[unknown] = number + np.cumsum(answers.counts) - answers.counts
            chunks = sorted(answers.seams)
            if chunks:
                touched = unknown[chunks]
                firsts = learned.firsts[touched].tolist()
                self._seams.add(firsts, [answers.seams[chunk] for chunk in chunks])
                learned.touchy[touched] = 1
        for question in np.flatnonzero(~is_chunk):
            learned.firsts[question], learned.counts[question] = self._split_whole_text(
                *spans[question]
            )
        self.num_asked += len(unknown)
        wordlearn.answer(memory.slots, lexicon.records, queue, first, learned)
        return learned

    def _split_whole_text(self, begin: int, end: int) -> tuple[int, int]:
        text = self._data[begin:end].tobytes()
        words_of_text = self._memory.texts.get(text)
        if words_of_text is None:
            words = self._split.split_text(text.decode())
            words_of_text = self._memory.lexicon.append(words), len(words)
            self._memory.texts[text] = words_of_text
            self.num_asked += 1
        return words_of_text

    def _text(self, begin: int, end: int) -> str:
        return self._data[begin:end].tobytes().decode()


def _replace(
    bounds: Int64s, tokens: Int32s, rows: Int64s, new_bounds: Int64s, new_tokens: Int32s
) -> tuple[Int64s, Int32s]:
    """Return offsets and tokens with other words for some texts."""
    counts, pieces, end = np.diff(bounds), [], 0
    for index, row in enumerate(rows.tolist()):
        pieces += [tokens[end : bounds[row]], new_tokens[slice(*new_bounds[index : index + 2])]]
        end = bounds[row + 1]
    counts[rows] = np.diff(new_bounds)
    new_offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return new_offsets, np.concatenate([*pieces, tokens[end:]])


def _split_method(words: WordSplit, language: str) -> _SplitMethod:
    if words == "whitespace":
        return _SplitMethod(wordlearn.WHOLE, char_kinds())
    if words == "unicode":
        return _SplitMethod(wordlearn.ASK, char_kinds(TERMINAL), split_chunks=_ask_boundaries)
    tokenizer = _tokenizer(language)
    if tokenizer.distributions:  # such a tokenizer splits full texts only
        return _SplitMethod(wordlearn.ASK, char_kinds())
    code = tokenizer.code
    facts = spacy.language_facts(code)
    spaced = b"|".join(re.escape(text.encode()) for text in facts.spaced)
    return _SplitMethod(
        wordlearn.RULES if facts.has_rules else wordlearn.ASK,
        facts.char_kinds,
        facts.rules,
        spacy.FORBIDDEN,
        re.compile(spaced) if spaced else None,
        lambda chunks: spacy.pipeline(code).split(chunks),
        lambda text: spacy.pipeline(code).split_text(text),
    )


def _match_positions(pattern: re.Pattern[bytes] | None, data: Bytes) -> Int64s:
    """Return where a pattern matches, and a last position beyond all data."""
    positions = [match.start() for match in pattern.finditer(data.data)] if pattern else []
    return frozen(np.array([*positions, np.iinfo(np.int64).max], np.int64))


@functools.cache
def boundary_classes() -> Bytes:
    """Return class and bits of each code point for `kernels.words.boundaries`.

    Read-only; built on first use (20 ms) from the installed `regex`.
    """
    import regex

    table = (char_table(str.isspace) * np.uint8(IS_SPACE)).astype(np.uint8)
    codes = [code for code in range(len(table)) if not 0xD800 <= code <= 0xDFFF]
    text = "".join(map(chr, codes))
    for number, alias in enumerate(CLASSES[1:], start=1):
        members = [ord(char) for char in regex.findall(rf"\p{{WB={alias}}}", text)]
        table[members] |= number
    table[[ord(char) for char in regex.findall(r"\p{ExtPict}", text)]] |= IS_PICTOGRAPH
    return frozen(table)


def _ask_boundaries(chunks: Sequence[str]) -> Answers:
    """Split chunks at the word boundaries of UAX #29."""
    import regex

    boundary = regex.compile(r"(?w)\b")
    return spacy.answers([[p for p in boundary.split(chunk) if p] for chunk in chunks], {})


def check_language(words: WordSplit, language: str, *, by_chunk: bool = False) -> None:
    """Refuse a language that cannot be split this way; fast, as it loads no tokenizer.

    Args:
        by_chunk: also refuse tokenizers that split full texts only.

    Raises:
        UsageError: with the tokenizer of the reference and what to do instead.
    """
    if words not in get_args(WordSplit):
        raise UsageError(f"words: must be one of {', '.join(get_args(WordSplit))}, got {words!r}.")
    if words == "spacy" and (names := _tokenizer(language).distributions) and by_chunk:
        raise UsageError(
            f"language: {language!r} is split by {', '.join(names)}, which finds no sentences as "
            "spaCy does."
        )


class _Tokenizer(NamedTuple):
    """The tokenizer of the reference for a language.

    Attributes:
        code: spaCy's code of the language, if rules split it chunk by chunk.
        distributions: else the distributions to install, which split full texts.
        name: the language as the reference calls it.
    """

    code: str
    distributions: tuple[str, ...]
    name: str

    def load(self) -> Callable[[str], list[str]]:
        from datatrove.utils.word_tokenizers import load_word_tokenizer

        return load_word_tokenizer(self.name).word_tokenize  # type: ignore[no-any-return]


_BY_TEXT = {
    "ja": ("sudachipy", "sudachidict_core"),
    "zh": ("jieba",),
    "vi": ("pyvi",),
    "ThaiTokenizer": ("pythainlp",),
    "IndicNLPTokenizer": ("indic-nlp-library",),
}
"""Language of spaCy, or class of datatrove, whose tokenizer needs the full text -> distributions
that it needs. Without those that download models on first use (Stanza), and without Kiwi: kiwipiepy
from 0.22 on does not have the model that datatrove 0.10.1 loads."""


def _tokenizer(language: str) -> _Tokenizer:
    """Return the tokenizer of the reference for a language, by any code of it.

    Raises:
        UsageError: it has none, or one that is not supported or not installed here.
    """
    assigned = _assignments()
    # Only names with a script: for others the reference takes the last row of its table (Kurdish
    # for Hindi, Thai for Malay), and `als` is another language there.
    name = next((name for name in names_of(language) if name in assigned), "")
    kind, code = assigned.get(name, ("", ""))
    if kind == "WhitespaceTokenizer":
        return _Tokenizer("xx", (), name)
    if not kind:
        raise UsageError(
            f"language: datatrove knows no {language!r}. {suggest(language, common_codes())} Or "
            "use words: whitespace."
        )
    distributions = _BY_TEXT.get(code if kind == "SpaCyTokenizer" else kind, ())
    if kind == "SpaCyTokenizer" and not distributions:
        return _Tokenizer(code, (), name)
    missing = [package for package in distributions if not is_installed(package)]
    if not distributions or missing:
        remedy = f"Run: pip install {' '.join(missing)}. Or use" if missing else "Use"
        raise UsageError(
            f"language: the reference splits {language!r} by {', '.join(missing) or kind}, which "
            f"is not {'installed' if missing else 'supported'} here. {remedy} words: whitespace "
            "or unicode."
        )
    return _Tokenizer(code, distributions, name)


def is_installed(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def libraries(words: WordSplit, language: str | None) -> tuple[str, ...]:
    """Return the distributions whose versions decide what the words of a text are.

    Args:
        language: None for any.
    """
    if words != "spacy":
        return ("regex",) if words == "unicode" else ()
    if language is None:
        distributions = tuple(filter(is_installed, itertools.chain(*_BY_TEXT.values())))
    else:
        distributions = _tokenizer(language).distributions
    # datatrove decides which of spaCy's rules split a language.
    return ("datatrove", "spacy", *distributions)


@functools.cache
def _assignments() -> dict[str, tuple[str, str]]:
    """Return language with script -> (class of tokenizer, code), as datatrove 0.10.1 has them."""
    spec = importlib.util.find_spec("datatrove")
    if spec is None or spec.origin is None:
        raise UsageError("words: datatrove is not installed. Run: pip install datatrove")
    table: dict[str, tuple[str, str]] = {}
    with (Path(spec.origin).parent / "assets" / "tokenizer_assignment.csv").open() as file:
        for row in csv.DictReader(file):
            if row["type"]:
                name = f"{row['code_3']}_{row['script']}"
                table.setdefault(name, (row["type"], row["tok_code"]))
    return table
