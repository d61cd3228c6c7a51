"""spaCy's rule tokenizers as datatrove uses them; the only file that imports spaCy for words.

spaCy is imported (2 CPU seconds) only when a chunk has to be asked for. What the kernels need of
its language data is derived once per installed version and kept beside the compiled kernels.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.kernels.jit import cache_dir
from corpuskit.kernels.words import specials
from corpuskit.kernels.words.specials import NO_RULES, NUM_CODES, Rules
from corpuskit.stages._spacy_rules import PROVEN, char_classes, digest_patterns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FORBIDDEN = "IS_ALPHA"
"""Breaks spaCy; datatrove then removes it from the whole text."""

MAX_ASKED = 1000
"""Characters: longer chunks are asked for in pieces, since spaCy's time is quadratic in them (20 s
for 16,000 brackets). The kernel answers for a chunk of any length in linear time."""

_TOO_LONG = re.compile(rf"\S{{{MAX_ASKED}}}(?=\S)")

_FORMAT = 1


class LanguageFacts(NamedTuple):
    """What is known of a language without importing spaCy, once it was derived.

    Attributes:
        sentence_ends: marks that end a sentence for the sentencizer.
        rules: what `split_chunk` needs.
        has_rules: whether spaCy's patterns are those that it was proven for.
        spaced: special cases with whitespace in them, which are no matter of one chunk.
    """

    sentence_ends: frozenset[str]
    rules: Rules
    has_rules: bool
    spaced: tuple[str, ...]


@functools.cache
def language_facts(code: str) -> LanguageFacts:
    """Return what is known of spaCy's language `code`, from the cache or from spaCy."""
    place = cache_dir() / f"words-{code}-{_stamp(code)}.json"
    given = _read(place)
    if given is None:
        given = pipeline(code).derive()
        _write(place, given)
    digest = str(given["digest"])
    rules = NO_RULES
    if digest in PROVEN:
        classes = np.frombuffer(bytes.fromhex(given["classes"]), np.uint16)
        matched = frozenset(given["matched"])
        rules = specials.rules(classes, given["specials"], matched, PROVEN[digest])
    return LanguageFacts(
        frozenset(given["sentence_ends"]),
        rules,
        digest in PROVEN,
        tuple(given["spaced"]),
    )


def _stamp(code: str) -> str:
    """Return a hash of spaCy's version and of the state of its language files."""
    found = importlib.util.find_spec("spacy")
    if found is None or found.origin is None:
        raise UsageError("words: spacy is not installed. Run: pip install spacy")
    lang = Path(found.origin).parent / "lang"
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{_FORMAT} {NUM_CODES} {importlib.metadata.version('spacy')}".encode())
    for file in sorted([*lang.glob("*.py"), *lang.glob(f"{code}/*.py")]):
        state = file.stat()
        digest.update(f" {file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()


def _read(place: Path) -> dict[str, Any] | None:
    """Return what was kept, None if there is nothing or it is damaged."""
    try:
        head, _, body = place.read_bytes().partition(b"\n")
    except OSError:
        return None
    if head != hashlib.blake2b(body, digest_size=16).hexdigest().encode():
        return None
    kept: dict[str, Any] = json.loads(body)
    return kept


def _write(place: Path, facts: dict[str, Any]) -> None:
    """Keep facts for later processes: whole or not at all; a cache that is full is no error."""
    body = json.dumps(facts).encode()
    head = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
            file.write(head + b"\n" + body)
        os.replace(file.name, place)
    except OSError:
        return


class Seam(NamedTuple):
    """A text that stands before or behind a chunk; see `wordsplit.Seams`."""

    text: str
    is_behind: bool
    is_bounded: bool


class Answers(NamedTuple):
    """How T words stand in C chunks.

    Attributes:
        data: the bytes of the chunks and of what separates them.
        starts, ends: (T,) int64 words in `data`.
        counts: (C,) int64 words of each chunk.
        seams: chunk -> texts beside it to which it loses a special case.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]
    seams: dict[int, frozenset[Seam]]


@functools.cache
def pipeline(code: str) -> Pipeline:
    """Return the tokenizer of a language, opened once per process."""
    return Pipeline(code)


class Pipeline:
    """spaCy's blank pipeline of one language, as datatrove's SpaCyTokenizer opens it.

    Raises:
        UsageError: the language's tokenizer is not spaCy's rule tokenizer.
    """

    def __init__(self, code: str) -> None:
        import spacy
        from spacy.tokenizer import Tokenizer

        self._language = spacy.blank(code)
        self._tokenizer: Any = self._language.tokenizer
        if type(self._tokenizer) is not Tokenizer:
            raise UsageError(
                f"language: spaCy's tokenizer for {code!r} is {type(self._tokenizer).__name__}, "
                "which needs more than rules. Use words: unicode, or the datatrove stage."
            )
        self._plain = _without_matches(self._tokenizer)
        self._patterns = _patterns(self._tokenizer)
        self._known_seams: dict[tuple[str, ...], frozenset[Seam]] = {}
        self._is_proven = digest_patterns(self._tokenizer) in PROVEN
        self._parts = {token for pattern in self._patterns.values() for token in pattern}
        self._pattern_set = set(self._patterns.values())
        # Tokens at the beginning or the end of a chunk, or all of them -> what a special case has
        # before or behind them; in the last case, before them, whatever is behind.
        self._before: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        self._behind: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        self._around: dict[tuple[str, ...], set[tuple[str, ...]]] = defaultdict(set)
        for pattern in self._pattern_set:
            for cut in range(1, len(pattern)):
                self._before[pattern[cut:]].add(pattern[:cut])
                self._behind[pattern[:cut]].add(pattern[cut:])
                for end in range(cut + 1, len(pattern)):
                    self._around[pattern[cut:end]].add(pattern[:cut])
        self._longest = max(map(len, self._pattern_set), default=0)
        tokenizer: Any = self._tokenizer
        rules = {rule: _pieces(self._tokenizer, rule) for rule in tokenizer.rules}
        self._first_pieces = {rules[rule][0] for rule in self._patterns}
        self._first_of_rules = {pieces[0] for pieces in rules.values() if len(pieces) > 1}
        self._last_of_rules = {pieces[-1] for pieces in rules.values() if len(pieces) > 1}
        # The first time spaCy meets this text nothing happens; from then on, always the same.
        for _ in range(2):
            self._is_broken(FORBIDDEN)

    def derive(self) -> dict[str, Any]:
        """Return what `language_facts` keeps."""
        sentencizer: Any = self._language.create_pipe("sentencizer")
        tokenizer = self._tokenizer
        digest = digest_patterns(tokenizer)
        facts: dict[str, Any] = {
            "sentence_ends": sorted(sentencizer.punct_chars),
            "digest": digest,
            "spaced": sorted(rule for rule in tokenizer.rules if len(rule.split()) > 1),
        }
        if digest in PROVEN:
            facts["classes"] = char_classes(self._language.Defaults).tobytes().hex()
            facts["specials"] = {rule: _pieces(tokenizer, rule) for rule in tokenizer.rules}
            facts["matched"] = sorted(self._patterns)
        return facts

    def split(self, chunks: Sequence[str]) -> Answers:
        """Split chunks (no whitespace, no FORBIDDEN in them), each as if it stood alone."""
        from spacy.attrs import LENGTH

        parts = [-(-len(chunk) // MAX_ASKED) for chunk in chunks]
        if max(parts, default=1) > 1:
            chunks = [c[a : a + MAX_ASKED] for c in chunks for a in range(0, len(c), MAX_ASKED)]
            found = self.split(chunks)
            counts = np.add.reduceat(found.counts, np.cumsum([0, *parts[:-1]]))
            return found._replace(counts=counts, seams={})
        # A line feed is a token of its own, which no special case reaches across.
        text = "\n".join(chunks)
        with self._language.memory_zone():
            lengths = self._tokenizer(text).to_array(LENGTH).astype(np.int64)
        data = np.frombuffer(text.encode(), np.uint8)
        places = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
        ends = np.cumsum(lengths)
        if len(text) != (ends[-1] if len(ends) else 0):
            raise AssertionError("spaCy's tokens must make up the text")
        starts = ends - lengths
        breaks = np.cumsum([len(chunk) + 1 for chunk in chunks]) - 1
        kept = ~np.isin(starts, breaks)
        starts, ends = starts[kept], ends[kept]
        bounds = np.concatenate([np.zeros(1, np.int64), np.searchsorted(starts, breaks)])
        words = [text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        suspects = np.flatnonzero([word in self._first_pieces for word in words])
        numbers = sorted({int(n) for n in np.searchsorted(bounds, suspects, side="right") - 1})
        seams = {}
        for number, tokens in zip(numbers, self._unmatched(chunks, numbers), strict=True):
            if list(tokens) != words[bounds[number] : bounds[number + 1]]:
                seams[number] = self._seams(tuple(t if t in self._parts else "" for t in tokens))
        seams = {number: found for number, found in seams.items() if found}
        return Answers(data, places[starts], places[ends], np.diff(bounds), seams)

    def _unmatched(self, chunks: Sequence[str], numbers: list[int]) -> list[list[str]]:
        """Return the tokens of some chunks before special cases are looked for among them."""
        with self._language.memory_zone():
            tokens = [t.text for t in self._plain("\n".join(chunks[n] for n in numbers))]
        breaks = [place for place, token in enumerate(tokens) if token == "\n"]
        return [
            tokens[a + 1 : b] for a, b in itertools.pairwise([-1, *breaks, len(tokens)])
        ] * bool(numbers)

    def _seams(self, tokens: tuple[str, ...]) -> frozenset[Seam]:
        if tokens not in self._known_seams:
            self._known_seams[tokens] = self._find_seams(tokens)
        return self._known_seams[tokens]

    def _find_seams(self, tokens: tuple[str, ...]) -> frozenset[Seam]:
        """Return the texts beside a chunk that would keep a special case from it.

        spaCy looks for special cases in the tokens of the whole text, single spaces ignored, and of
        two that overlap the longer one counts, even if it is not applied because of those spaces.

        Args:
            tokens: of the chunk; empty strings where no special case has such a token.
        """
        num = len(tokens)
        found = [
            (a, b)
            for a in range(num)
            for b in range(a + 1, min(num, a + self._longest) + 1)
            if tokens[a:b] in self._pattern_set
        ]
        seams: set[Seam] = set()
        for size in range(1, min(num, self._longest) + 1):
            for outside in self._before.get(tokens[:size], ()):
                if any(a < size and b - a <= size + len(outside) for a, b in found):
                    seams.add(self._seam(outside, is_behind=False))
            for outside in self._behind.get(tokens[num - size :], ()):
                if any(b > num - size and b - a <= size + len(outside) for a, b in found):
                    seams.add(self._seam(outside, is_behind=True))
        for outside in self._around.get(tokens, ()):
            seams.add(self._seam(outside, is_behind=False))
        return frozenset(seams)

    def _seam(self, words: tuple[str, ...], is_behind: bool) -> Seam:
        """Return the seam of words beside a chunk.

        Between two letters or digits only a special case separates, if the patterns are those that
        we know; whether one does for this word is asked of the rules.
        """
        outer = words[-1] if is_behind else words[0]
        pieces = self._first_of_rules if is_behind else self._last_of_rules
        bounded = self._is_proven and outer not in pieces
        return Seam("".join(words), is_behind, bounded)

    def _is_broken(self, text: str) -> bool:
        """Return whether a text breaks spaCy."""
        try:
            with self._language.memory_zone():
                self._tokenizer(text)
        except AssertionError:
            return True
        return False

    def whole(self, text: str) -> list[str]:
        """Return the words of a text as datatrove's SpaCyTokenizer does."""
        text = _TOO_LONG.sub("\\g<0>\n", text)
        if FORBIDDEN in text and self._is_broken(text):
            text = text.replace(FORBIDDEN, "")
        with self._language.memory_zone():
            words = [token.text for token in self._tokenizer(text)]
        return [word.strip() for word in words if word.strip()]


def _pieces(tokenizer: Any, rule: str) -> list[str]:
    from spacy.symbols import ORTH

    return [piece[ORTH] for piece in tokenizer.rules[rule]]


def _without_matches(tokenizer: Any) -> Any:
    """Return a copy of a tokenizer that does not look for special cases among tokens."""
    from spacy.tokenizer import Tokenizer

    class Plain(Tokenizer):  # type: ignore[misc]
        is_loading = True

        def find_prefix(self, string: str) -> Any:
            return 0 if self.is_loading else super().find_prefix(string)

        def find_suffix(self, string: str) -> Any:
            return 0 if self.is_loading else super().find_suffix(string)

        def find_infix(self, string: str) -> Any:
            return [] if self.is_loading else super().find_infix(string)

    # A special case is looked for among tokens only if some affix is found in it while it is added.
    plain = _copy(Plain, tokenizer, tokenizer.rules)
    Plain.is_loading = False
    return plain


def _copy(kind: Any, tokenizer: Any, rules: dict[str, Any]) -> Any:
    return kind(
        tokenizer.vocab,
        rules=rules,
        prefix_search=tokenizer.prefix_search,
        suffix_search=tokenizer.suffix_search,
        infix_finditer=tokenizer.infix_finditer,
        token_match=tokenizer.token_match,
        url_match=tokenizer.url_match,
    )


def _patterns(tokenizer: Any) -> dict[str, tuple[str, ...]]:
    """Return the special cases that are looked for among tokens -> the tokens looked for."""
    bare = _copy(type(tokenizer), tokenizer, {})
    return {
        rule: tuple(token.text for token in bare(rule))
        for rule in tokenizer.rules
        if not rule.isspace()
        and (
            " " in rule
            or tokenizer.find_prefix(rule)
            or tokenizer.find_infix(rule)
            or tokenizer.find_suffix(rule)
        )
    }
