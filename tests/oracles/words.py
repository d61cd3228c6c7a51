"""datatrove's tokenizers, as the references of several stages take them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from corpuskit.text.spacy import FORBIDDEN

if TYPE_CHECKING:
    from corpuskit.text.words import WordSplit


@functools.cache
def reference_words(words: WordSplit, language: str = "en") -> Any:
    """Return a datatrove WordTokenizer that splits in this way and remembers recent texts.

    Its answers are those of datatrove 0.10.1's own tokenizer of the language. New are the memory of
    the last 4,096 texts, since tests ask for the same small texts many times over, and that the
    word on which spaCy nearly always fails (`spacy.FORBIDDEN`) always makes it fail.
    """
    import regex
    from datatrove.utils.word_tokenizers import WordTokenizer, load_word_tokenizer

    class Remembered(WordTokenizer):  # type: ignore[misc]
        def __init__(self, tokenizer: Any) -> None:
            super().__init__(language)
            self._words = functools.lru_cache(4096)(tokenizer.word_tokenize)
            self._sentences = functools.lru_cache(4096)(tokenizer.sent_tokenize)
            self._spans = functools.lru_cache(4096)(tokenizer.span_tokenize)

        def word_tokenize(self, text: str) -> list[str]:
            return list(self._words(text))

        def sent_tokenize(self, text: str) -> list[str]:
            return list(self._sentences(text))

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return list(self._spans(text))

    class Plain(WordTokenizer):  # type: ignore[misc]
        def word_tokenize(self, text: str) -> list[str]:
            if words == "whitespace":
                return text.split()
            return [part for part in regex.split(r"(?w)\b", text) if part.strip()]

        def sent_tokenize(self, text: str) -> list[str]:
            raise NotImplementedError

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            raise NotImplementedError

    if words != "spacy":
        return Remembered(Plain())
    return Remembered(_steady(load_word_tokenizer(language)))


def _steady(tokenizer: Any) -> Any:
    """Make one of spaCy's always do what it nearly always does."""
    once = tokenizer._do_tokenize

    def split(text: str) -> Any:
        found = once(text)
        if any(token.text == FORBIDDEN for part in found for token in part):
            found = once(text.replace(FORBIDDEN, ""))
        return found

    tokenizer._do_tokenize = split
    return tokenizer
