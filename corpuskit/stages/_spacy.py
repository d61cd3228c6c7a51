"""spaCy's rule tokenizers as datatrove uses them: what they are made of, and answers from them.

What the kernels and the plain tokenizer need of a language is derived from spaCy once per installed
version and kept. After that spaCy, whose import takes 2 CPU seconds, is not needed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.kernels.words import english
from corpuskit.kernels.words.english import NO_RULES, NUM_CODES, Rules
from corpuskit.kernels.words.lexicon import char_kinds
from corpuskit.stages._derived import Derived, derived
from corpuskit.stages._spacy_rules import PROVEN, char_classes, digest_patterns
from corpuskit.stages._spacy_seams import Seam, SeamFinder
from corpuskit.stages._spacy_tokens import METHODS, Language, RuleTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FORBIDDEN = "IS_ALPHA"
"""As a word of its own it breaks spaCy; datatrove then removes it from the whole text.

spaCy's map of words takes this one's key, 1, for the mark of a deleted place, and so keeps a
pointer to a word whose memory was freed with the document before: nearly always the next one with
it fails. Here it always counts as failed.
"""

MAX_ASKED = 1000
"""Characters: longer chunks are asked for in pieces, since spaCy's time is quadratic in them (20 s
for 16,000 brackets). The kernel answers for a chunk of any length in linear time."""

_TOO_LONG = re.compile(rf"\S{{{MAX_ASKED}}}(?=\S)")


class LanguageFacts(NamedTuple):
    """What is known of a language without importing spaCy, once it was derived.

    Attributes:
        char_kinds: see `lexicon.char_kinds`, with the marks that end a sentence for spaCy.
        rules: what `split_chunk` needs.
        has_rules: whether spaCy's patterns are those that it was proven for.
        spaced: special cases with whitespace in them, which are no matter of one chunk.
        language: what the tokenizer is made of.
    """

    char_kinds: NDArray[np.uint8]
    rules: Rules
    has_rules: bool
    spaced: tuple[str, ...]
    language: Language


@functools.cache
def language_facts(code: str) -> LanguageFacts:
    """Return what is known of spaCy's language `code`, kept from before or from spaCy."""
    found = derived(f"words-{code}", _stamp(code), __file__, lambda: _derive(code))
    values, arrays = found
    has_rules = values["digest"] in PROVEN
    language = Language(values["patterns"], values["specials"], values["matched"])
    rules = NO_RULES
    if has_rules:
        given: dict[str, Any] = {**values, **arrays}
        rules = Rules(**{name: given[name] for name in Rules._fields})
    spaced = tuple(rule for rule in language.specials if len(rule.split()) > 1)
    return LanguageFacts(arrays["char_kinds"], rules, has_rules, spaced, language)


def _stamp(code: str) -> str:
    """Return a hash of spaCy's version and of the state of its language files."""
    found = importlib.util.find_spec("spacy")
    if found is None or found.origin is None:
        raise UsageError("words: spacy is not installed. Run: pip install spacy")
    lang = Path(found.origin).parent / "lang"
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{NUM_CODES} {importlib.metadata.version('spacy')}".encode())
    for file in sorted([*lang.glob("*.py"), *lang.glob(f"{code}/*.py")]):
        state = file.stat()
        digest.update(f" {file.name} {state.st_size} {state.st_mtime_ns}".encode())
    return digest.hexdigest()


def _derive(code: str) -> Derived:
    """Read off spaCy what `language_facts` keeps.

    Raises:
        UsageError: the language's tokenizer is not spaCy's rule tokenizer.
    """
    import spacy
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
    language = Language(
        {key: (m.__self__.pattern, m.__self__.flags) for key, m in patterns.items()},
        {rule: _pieces(tokenizer, rule) for rule in tokenizer.rules},
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


def _pieces(tokenizer: Any, rule: str) -> list[str]:
    from spacy.symbols import ORTH

    return [piece[ORTH] for piece in tokenizer.rules[rule]]


def _matched(tokenizer: Any) -> dict[str, list[str]]:
    """Return the special cases that are looked for among tokens -> the tokens looked for."""
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
    """How T words stand in C chunks.

    Attributes:
        data: the bytes of the words.
        starts, ends: (T,) int64 words in `data`.
        counts: (C,) int64 words of each chunk.
        seams: chunk -> texts beside it to which it loses a special case.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    counts: NDArray[np.int64]
    seams: dict[int, frozenset[Seam]]


def answers(chunks: Sequence[Sequence[str]], seams: dict[int, frozenset[Seam]]) -> Answers:
    """Return chunks, given by their words, as arrays."""
    words = [word.encode() for chunk in chunks for word in chunk]
    ends = np.cumsum([0, *map(len, words)], dtype=np.int64)
    data = np.frombuffer(b"".join(words), np.uint8)
    return Answers(data, ends[:-1], ends[1:], np.array([*map(len, chunks)], np.int64), seams)


class Pipeline:
    """Splits what a kernel could not, as datatrove's SpaCyTokenizer."""

    def __init__(self, code: str) -> None:
        facts = language_facts(code)
        self._tokenizer = RuleTokenizer(facts.language)
        self._seams = SeamFinder(facts.language, facts.has_rules)

    def split(self, chunks: Sequence[str]) -> Answers:
        """Split chunks (no whitespace, no FORBIDDEN in them), each as if it stood alone."""
        made: list[list[str]] = []
        seams: dict[int, frozenset[Seam]] = {}
        for number, chunk in enumerate(chunks):
            if len(chunk) > MAX_ASKED:
                pieces = [chunk[at : at + MAX_ASKED] for at in range(0, len(chunk), MAX_ASKED)]
                made.append([*itertools.chain.from_iterable(map(self._split, pieces))])
                continue
            tokens = self._tokenizer.split(chunk)
            made.append(self._tokenizer.match(tokens))
            if made[-1] != tokens:
                found = self._seams.find(tokens)
                if found:
                    seams[number] = found
        return answers(made, seams)

    def _split(self, chunk: str) -> list[str]:
        return self._tokenizer.match(self._tokenizer.split(chunk))

    def whole(self, text: str) -> list[str]:
        """Return the words of a text."""
        text = _TOO_LONG.sub("\\g<0>\n", text)
        words = self._tokenizer.whole(text)
        if FORBIDDEN in words:
            words = self._tokenizer.whole(text.replace(FORBIDDEN, ""))
        return [word.strip() for word in words if word.strip()]


@functools.cache
def pipeline(code: str) -> Pipeline:
    """Return the tokenizer of a language, opened once per process."""
    return Pipeline(code)
