"""spaCy's rule tokenizers as datatrove uses them, without importing spaCy, which takes 2 CPU s.

What the kernels and the plain tokenizer need of a language is derived from spaCy once per installed
version and kept.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from corpuskit.errors import UsageError
from corpuskit.formats.derived import Derived, derived
from corpuskit.kernels.arrays import Bytes, Int64s, join_bytes
from corpuskit.kernels.words import english
from corpuskit.kernels.words.english import NO_RULES, NUM_CODES, Rules
from corpuskit.kernels.words.lexicon import char_kinds

Tokens = tuple[str, ...]


FORBIDDEN = "IS_ALPHA"
"""This word breaks spaCy; datatrove then removes it from the text.

spaCy's map of words takes this word's key, 1, for the mark of a deleted slot, and so keeps a
pointer to memory that was freed with the document before: the next document with the word nearly
always fails. Here each one counts as failed.
"""

MAX_ASKED = 1000
"""Characters: longer chunks are split in pieces here, since spaCy's time is quadratic (20 s for
16,000 brackets). The kernel splits chunks of any length in linear time."""

_TOO_LONG = re.compile(rf"\S{{{MAX_ASKED}}}(?=\S)")


class LanguageFacts(NamedTuple):
    """What was derived of a language.

    Attributes:
        char_kinds: see `lexicon.char_kinds`, with the marks that end a sentence for spaCy.
        rules: what `split_chunk` needs.
        has_rules: whether spaCy's patterns are those that it was proven for.
        spaced: special cases that contain whitespace, hence span chunks.
        language: patterns and special cases of the tokenizer.
    """

    char_kinds: Bytes
    rules: Rules
    has_rules: bool
    spaced: tuple[str, ...]
    language: TokenizerRules


@functools.cache
def language_facts(code: str) -> LanguageFacts:
    """Return the facts of spaCy's language `code`, from the cache or else from spaCy."""
    files = derived(f"words-{code}", _stamp(code), __file__, lambda: _derive(code))
    values, arrays = files
    has_rules = values["digest"] in PROVEN
    language = TokenizerRules(values["patterns"], values["specials"], values["matched"])
    rules = NO_RULES
    if has_rules:
        fields: dict[str, Any] = {**values, **arrays}
        rules = Rules(**{name: fields[name] for name in Rules._fields})
    spaced = tuple(rule for rule in language.specials if len(rule.split()) > 1)
    return LanguageFacts(arrays["char_kinds"], rules, has_rules, spaced, language)


def _pattern(compiled: re.Pattern[str]) -> tuple[str, int]:
    """Return pattern and flags as spaCy passed them to `re.compile`, whose cache then has it.

    A compiled pattern has more flags: UNICODE, and those that it begins with. With these `re` would
    compile it again; the 1.5 million characters of French take 3.5 CPU s.
    """
    pattern, flags = compiled.pattern, compiled.flags
    needs_no_flags = re.compile(pattern).flags == flags
    return pattern, 0 if needs_no_flags else flags & ~re.UNICODE


def _stamp(code: str) -> str:
    """Return a hash of spaCy's version and of the state of its language files."""
    spec = importlib.util.find_spec("spacy")
    if spec is None or spec.origin is None:
        raise UsageError("words: spacy is not installed. Run: pip install spacy")
    lang = Path(spec.origin).parent / "lang"
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{NUM_CODES} {importlib.metadata.version('spacy')}".encode())
    for file in sorted([*lang.glob("*.py"), *lang.glob(f"{code}/*.py")]):
        state = file.stat()
        digest.update(f" {file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()


def _derive(code: str) -> Derived:
    """Derive from spaCy what `language_facts` keeps.

    Raises:
        UsageError: the language's tokenizer is not spaCy's rule tokenizer.
    """
    import spacy
    from spacy.symbols import ORTH
    from spacy.tokenizer import Tokenizer

    pipeline = spacy.blank(code)
    tokenizer: Any = pipeline.tokenizer
    methods = {key: getattr(tokenizer, key) for key in METHODS}
    patterns = {key: method for key, method in methods.items() if method is not None}
    if type(tokenizer) is not Tokenizer or not all(
        isinstance(getattr(method, "__self__", None), re.Pattern)
        and method.__name__ == METHODS[key]
        for key, method in patterns.items()
    ):
        raise UsageError(
            f"language: spaCy's tokenizer for {code!r} is {type(tokenizer).__name__}, which needs "
            "more than patterns. Use words: unicode, or the datatrove stage."
        )
    digest = digest_patterns(tokenizer)
    language = TokenizerRules(
        {key: _pattern(method.__self__) for key, method in patterns.items()},
        {rule: [piece[ORTH] for piece in pieces] for rule, pieces in tokenizer.rules.items()},
        _matched(tokenizer),
    )
    sentencizer: Any = pipeline.create_pipe("sentencizer")
    arrays = {"char_kinds": char_kinds(frozenset(sentencizer.punct_chars))}
    values = {"digest": digest, **language._asdict()}
    if digest in PROVEN:
        classes = char_classes(pipeline.Defaults)
        matched = frozenset(language.matched)
        rules = english.rules(classes, language.specials, matched, PROVEN[digest])
        for name, value in rules._asdict().items():
            (arrays if isinstance(value, np.ndarray) else values)[name] = value
    return Derived(values, arrays)


def _matched(tokenizer: Any) -> dict[str, list[str]]:
    """Return the special cases that are also searched among tokens -> their tokens there."""
    bare = type(tokenizer)(
        tokenizer.vocab, rules={}, **{key: getattr(tokenizer, key) for key in METHODS}
    )
    return {
        rule: [token.text for token in bare(rule)]
        for rule in tokenizer.rules
        if not rule.isspace()
        and (
            not tokenizer.faster_heuristics
            or " " in rule
            or tokenizer.find_prefix(rule)
            or tokenizer.find_infix(rule)
            or tokenizer.find_suffix(rule)
        )
    }


class Answers(NamedTuple):
    """The T words of C chunks.

    Attributes:
        data: the bytes of the words.
        starts, ends: (T,) int64 words in `data`.
        counts: (C,) int64 words of each chunk.
        seams: chunk -> texts next to it to which it loses a special case.
    """

    data: Bytes
    starts: Int64s
    ends: Int64s
    counts: Int64s
    seams: dict[int, frozenset[Seam]]


def answers(chunks: Sequence[Sequence[str]], seams: dict[int, frozenset[Seam]]) -> Answers:
    """Return chunks, given by their words, as arrays."""
    ends, data = join_bytes([word.encode() for chunk in chunks for word in chunk])
    return Answers(data, ends[:-1], ends[1:], np.array([*map(len, chunks)], np.int64), seams)


class PlainPipeline:
    """Splits chunks and texts as datatrove's SpaCyTokenizer, where a kernel cannot."""

    def __init__(self, code: str) -> None:
        facts = language_facts(code)
        self._tokenizer = RuleTokenizer(facts.language)
        self._seams = SeamFinder(facts.language, facts.has_rules)

    def split(self, chunks: Sequence[str]) -> Answers:
        """Split chunks (no whitespace, no FORBIDDEN in them), each by itself."""
        tokens_of_chunks: list[list[str]] = []
        seams: dict[int, frozenset[Seam]] = {}
        for number, chunk in enumerate(chunks):
            if len(chunk) > MAX_ASKED:
                pieces = [
                    chunk[start : start + MAX_ASKED] for start in range(0, len(chunk), MAX_ASKED)
                ]
                tokens_of_chunks.append([*itertools.chain.from_iterable(map(self._split, pieces))])
                continue
            tokens = self._tokenizer.split(chunk)
            tokens_of_chunks.append(self._tokenizer.match(tokens))
            if tokens_of_chunks[-1] != tokens:
                seam = self._seams.find(tokens)
                if seam:
                    seams[number] = seam
        return answers(tokens_of_chunks, seams)

    def _split(self, chunk: str) -> list[str]:
        return self._tokenizer.match(self._tokenizer.split(chunk))

    def split_text(self, text: str) -> list[str]:
        """Return the words of a text."""
        text = _TOO_LONG.sub("\\g<0>\n", text)
        words = self._tokenizer.split_text(text)
        if FORBIDDEN in words:
            words = self._tokenizer.split_text(text.replace(FORBIDDEN, ""))
        return [word.strip() for word in words if word.strip()]


@functools.cache
def pipeline(code: str) -> PlainPipeline:
    """Return the tokenizer of a language, opened once per process."""
    return PlainPipeline(code)


# ----------------------------------------------------------------------
# The patterns of spaCy that the kernels know, and their classes of characters.

PROVEN = {
    "7a309ee14bca20bdf744aa9857c7ad96": True,  # en lg tn
    "62bc0c8f8845f105ea71f6f2109faf63": False,  # xx and 20 languages with its patterns
}
"""Digests of the patterns that `kernels/words/english.py` was proven for -> its `digit_hyphens`."""


def digest_patterns(tokenizer: Any) -> str:
    """Return a hash of all that decides how a chunk is split, except special cases."""
    regexes = (tokenizer.prefix_search, tokenizer.suffix_search)
    regexes += (tokenizer.infix_finditer, tokenizer.url_match, tokenizer.token_match)
    shape: list[Any] = [importlib.metadata.version("spacy").split(".")[:2]]
    for method in regexes:
        regex = getattr(method, "__self__", None)
        shape.append([regex.pattern, regex.flags] if isinstance(regex, re.Pattern) else str(method))
    shape.append(bool(tokenizer.faster_heuristics))
    return hashlib.blake2b(json.dumps(shape).encode(), digest_size=16).hexdigest()


def char_classes(defaults: Any) -> NDArray[np.uint16]:
    """Return the classes of characters that the kernel's patterns use."""
    from spacy.lang import char_classes as spacys

    classes = np.zeros(NUM_CODES, np.uint16)
    all_chars = "".join(chr(code) for code in range(NUM_CODES) if not 0xD800 <= code < 0xE000)

    def mark(chars: Iterable[str], *bits: int) -> None:
        codes = [ord(char) for char in chars]
        for bit in bits:
            classes[codes] |= bit

    def inside(pattern: str) -> list[str]:
        return re.findall(f"[{pattern}]", all_chars)

    mark(inside(spacys.ALPHA), english.LETTER)
    mark(inside(spacys.ALPHA_LOWER), english.LOWER)
    mark(inside(spacys.ALPHA_UPPER), english.UPPER)
    mark("0123456789", english.DIGIT)
    mark(inside(spacys.CONCAT_QUOTES), english.QUOTE)
    dotted = rf"0-9{spacys.ALPHA_LOWER}%\u00b2\-\+{spacys.PUNCT}(?:{spacys.CONCAT_QUOTES})"
    mark(inside(dotted), english.DOTTED)
    mark(inside(spacys.CONCAT_ICONS), english.PREFIX, english.SUFFIX, english.BREAK)
    mark("\u2026", english.BREAK)
    mark(_single(defaults.prefixes), english.PREFIX)
    mark(_single(defaults.suffixes), english.SUFFIX)
    mark(_single(spacys.LIST_CURRENCY), english.CURRENCY)
    mark({char for unit in spacys.LIST_UNITS for char in unit if char > "\x7f"}, english.UNIT)
    mark(inside(r"A-Za-z0-9\u00a1-\uffff"), english.HOST)
    mark(inside(r"\w+\-."), english.SCHEME)
    mark((char for char in inside(r"\d") if char > "\x7f"), english.ASK)
    is_astral = np.arange(NUM_CODES) > 0xFFFF
    classes[is_astral & (classes & english.LOWER != 0)] |= english.ASK
    return classes


def _single(pieces: Iterable[str]) -> list[str]:
    """Return the characters among patterns."""
    plain = (piece[1:] if len(piece) == 2 and piece[0] == "\\" else piece for piece in pieces)
    return [piece for piece in plain if len(piece) == 1]


# ----------------------------------------------------------------------
# spaCy's rule tokenizer in plain Python, from the patterns and special cases that it was given.
#
# The import of spaCy takes 2 CPU seconds, often more than the words of a whole batch; what a kernel
# cannot answer is asked here instead. Source: spaCy 3.8, spacy/tokenizer.pyx.

METHODS = {
    "prefix_search": "search",
    "suffix_search": "search",
    "infix_finditer": "finditer",
    "token_match": "match",
    "url_match": "match",
}
"""Attribute of spaCy's tokenizers -> the method of a pattern that it must be."""

_NEVER = re.compile("(?!)")


class TokenizerRules(NamedTuple):
    """Patterns and special cases of a tokenizer.

    Attributes:
        patterns: key of METHODS -> pattern and flags, for those that the language has.
        specials: text -> its tokens.
        matched: special cases that are also searched among tokens -> their tokens there.
    """

    patterns: dict[str, tuple[str, int]]
    specials: dict[str, list[str]]
    matched: dict[str, list[str]]


class _Node:
    """Node of a trie: tokens that may follow; whether the tokens so far are a special case."""

    __slots__ = ("following", "is_end")

    def __init__(self) -> None:
        self.following: dict[str, _Node] = {}
        self.is_end = False


class RuleTokenizer:
    """Splits as spaCy's Tokenizer does."""

    def __init__(self, language: TokenizerRules) -> None:
        compiled = {key: re.compile(*arguments) for key, arguments in language.patterns.items()}
        self._prefix = compiled.get("prefix_search", _NEVER).search
        self._suffix = compiled.get("suffix_search", _NEVER).search
        self._infixes = compiled.get("infix_finditer", _NEVER).finditer
        self._token = compiled.get("token_match", _NEVER).match
        self._url = compiled.get("url_match", _NEVER).match
        self._specials = language.specials
        self._root = _Node()
        for tokens in language.matched.values():
            node = self._root
            for token in tokens:
                node = node.following.setdefault(token, _Node())
            node.is_end = True

    def split(self, chunk: str) -> list[str]:
        """Return the tokens of a chunk, before special cases are searched among them."""
        prefixes: list[str] = []
        suffixes: list[str] = []
        middle = self._split_affixes(chunk, prefixes, suffixes)
        if middle:
            if middle in self._specials:
                prefixes += self._specials[middle]
            elif self._token(middle) or self._url(middle):
                prefixes.append(middle)
            else:
                self._split_infixes(middle, prefixes)
        prefixes += reversed(suffixes)
        return prefixes

    def _split_affixes(self, text: str, prefixes: list[str], suffixes: list[str]) -> str:
        """Take affixes off; return the text between them."""
        size = 0
        while text and len(text) != size:
            if self._token(text) or text in self._specials:
                break
            size = len(text)
            match = self._prefix(text)
            front = match.end() - match.start() if match else 0
            if front and text[front:] in self._specials:
                prefixes.append(text[:front])
                text = text[front:]
                break
            match = self._suffix(text[front:])
            back = match.end() - match.start() if match else 0
            if back and text[:-back] in self._specials:
                suffixes.append(text[-back:])
                text = text[:-back]
                break
            if front:
                prefixes.append(text[:front])
            if back:
                suffixes.append(text[size - back :])
            text = text[front : size - back]
        return text

    def _split_infixes(self, text: str, tokens: list[str]) -> None:
        start = 0
        for match in self._infixes(text):
            begin, end = match.span()
            if begin == 0:
                continue
            if begin != start:
                tokens.append(text[start:begin])
            if begin != end:
                tokens.append(text[begin:end])
            start = end
        if start < len(text):
            tokens.append(text[start:])

    def match(self, tokens: Sequence[str], spaces: Sequence[bool] = ()) -> list[str]:
        """Return tokens, those that spell a special case replaced by its own.

        Of special cases that overlap the longest one counts, then the first one.

        Args:
            tokens: of one chunk, or of a text.
            spaces: whether a single space follows the token; empty for none.
        """
        matches = self._matches(tokens)
        if not matches:
            return list(tokens)
        replaced: list[str] = []
        last = 0
        for begin, end in _longest(matches):
            text = "".join(
                token + " " * (bool(spaces) and spaces[begin + index] and begin + index + 1 < end)
                for index, token in enumerate(tokens[begin:end])
            )
            replaced += tokens[last:begin]
            replaced += self._specials.get(text, tokens[begin:end])
            last = end
        return replaced + list(tokens[last:])

    def _matches(self, tokens: Sequence[str]) -> list[tuple[int, int]]:
        matches = []
        for begin in range(len(tokens)):
            node, end = self._root, begin
            while end < len(tokens) and tokens[end] in node.following:
                node = node.following[tokens[end]]
                end += 1
                if node.is_end:
                    matches.append((begin, end))
        return matches

    def split_text(self, text: str) -> list[str]:
        """Return the tokens of a text; whitespace other than a single space is a token."""
        tokens: list[str] = []
        spaces: list[bool] = []
        start = 0
        is_space = text[:1].isspace()
        for pos, char in enumerate(text):
            if char.isspace() != is_space:
                if start < pos:
                    self._extend(text[start:pos], tokens, spaces)
                start = pos
                if char == " ":
                    spaces[-1] = True
                    start = pos + 1
                is_space = not is_space
        if start < len(text):
            self._extend(text[start:], tokens, spaces)
        return self.match(tokens, spaces)

    def _extend(self, span: str, tokens: list[str], spaces: list[bool]) -> None:
        new_tokens = self.split(span)
        tokens += new_tokens
        spaces += [False] * len(new_tokens)


def _longest(matches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the matches that spaCy keeps, in order; none of them overlap."""
    longest = []
    covered: set[int] = set()
    for begin, end in sorted(matches, key=lambda span: (span[0] - span[1], span[0])):
        if begin not in covered and end - 1 not in covered:
            longest.append((begin, end))
        covered.update(range(begin, end))
    return sorted(longest)


# ----------------------------------------------------------------------
# Special cases of spaCy's tokenizers that reach from one chunk into the next.


class Seam(NamedTuple):
    """A text before or after a chunk; see `kernels/words/split.py`."""

    text: str
    is_after: bool
    is_bounded: bool


class SeamFinder:
    """Finds the texts next to a chunk that would prevent a special case in it."""

    def __init__(self, language: TokenizerRules, is_proven: bool) -> None:
        self._is_proven = is_proven
        self._cache: dict[Tokens, frozenset[Seam]] = {}
        self._patterns = {tuple(tokens) for tokens in language.matched.values()}
        self._parts = {token for pattern in self._patterns for token in pattern}
        self._longest = max(map(len, self._patterns), default=0)
        # Tokens at the beginning or the end of a chunk, or all of them -> the tokens of a special
        # case before or after these; for all of them, those before, whatever follows.
        self._before: dict[Tokens, set[Tokens]] = defaultdict(set)
        self._after: dict[Tokens, set[Tokens]] = defaultdict(set)
        self._around: dict[Tokens, set[Tokens]] = defaultdict(set)
        for pattern in self._patterns:
            for cut in range(1, len(pattern)):
                self._before[pattern[cut:]].add(pattern[:cut])
                self._after[pattern[:cut]].add(pattern[cut:])
                for end in range(cut + 1, len(pattern)):
                    self._around[pattern[cut:end]].add(pattern[:cut])
        rules = [pieces for pieces in language.specials.values() if len(pieces) > 1]
        self._first_of_rules = {pieces[0] for pieces in rules}
        self._last_of_rules = {pieces[-1] for pieces in rules}

    def find(self, tokens: list[str]) -> frozenset[Seam]:
        """Return the seams of a chunk, given by its tokens before special cases are searched.

        spaCy searches special cases in the tokens of the full text, single spaces ignored. Of two
        that overlap the longer one counts, even if it is not applied because of those spaces.
        """
        key = tuple(token if token in self._parts else "" for token in tokens)
        if key not in self._cache:
            self._cache[key] = self._find(key)
        return self._cache[key]

    def _find(self, tokens: Tokens) -> frozenset[Seam]:
        num = len(tokens)
        matches = [
            (a, b)
            for a in range(num)
            for b in range(a + 1, min(num, a + self._longest) + 1)
            if tokens[a:b] in self._patterns
        ]
        seams: set[Seam] = set()
        for size in range(1, min(num, self._longest) + 1):
            for outside in self._before.get(tokens[:size], ()):
                if any(a < size and b - a <= size + len(outside) for a, b in matches):
                    seams.add(self._seam(outside, is_after=False))
            for outside in self._after.get(tokens[num - size :], ()):
                if any(b > num - size and b - a <= size + len(outside) for a, b in matches):
                    seams.add(self._seam(outside, is_after=True))
        for outside in self._around.get(tokens, ()):
            seams.add(self._seam(outside, is_after=False))
        return frozenset(seams)

    def _seam(self, words: Tokens, is_after: bool) -> Seam:
        """Return the seam of words next to a chunk.

        With proven patterns only a special case separates two letters or two digits: `rules` say
        whether one does for this word.
        """
        outer = words[-1] if is_after else words[0]
        pieces = self._first_of_rules if is_after else self._last_of_rules
        bounded = self._is_proven and outer not in pieces
        return Seam("".join(words), is_after, bounded)
