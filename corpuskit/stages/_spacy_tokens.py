"""spaCy's rule tokenizer in plain Python, from the patterns and special cases that it was given.

The import of spaCy takes 2 CPU seconds, often more than the words of a whole batch; what a kernel
cannot answer is asked here instead. Source: spaCy 3.8, spacy/tokenizer.pyx.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

METHODS = {
    "prefix_search": "search",
    "suffix_search": "search",
    "infix_finditer": "finditer",
    "token_match": "match",
    "url_match": "match",
}
"""What spaCy's tokenizers are made of -> the method of a pattern that it must be."""

_NEVER = re.compile("(?!)")


class Language(NamedTuple):
    """What a tokenizer is made of.

    Attributes:
        patterns: key of METHODS -> pattern and flags; what a language has none of is left out.
        specials: text -> its tokens.
        matched: special cases that are looked for among tokens, too -> the tokens looked for.
    """

    patterns: dict[str, tuple[str, int]]
    specials: dict[str, list[str]]
    matched: dict[str, list[str]]


class _Node:
    """Tokens that may follow; whether the tokens so far are a special case."""

    __slots__ = ("following", "is_end")

    def __init__(self) -> None:
        self.following: dict[str, _Node] = {}
        self.is_end = False


class RuleTokenizer:
    """Splits as spaCy's Tokenizer does."""

    def __init__(self, language: Language) -> None:
        found = {key: re.compile(*given) for key, given in language.patterns.items()}
        self._prefix = found.get("prefix_search", _NEVER).search
        self._suffix = found.get("suffix_search", _NEVER).search
        self._infixes = found.get("infix_finditer", _NEVER).finditer
        self._token = found.get("token_match", _NEVER).match
        self._url = found.get("url_match", _NEVER).match
        self._specials = language.specials
        self._root = _Node()
        for tokens in language.matched.values():
            node = self._root
            for token in tokens:
                node = node.following.setdefault(token, _Node())
            node.is_end = True

    def split(self, chunk: str) -> list[str]:
        """Return the tokens of a chunk, before special cases are looked for among them."""
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
        """Take affixes off; return what is left between them."""
        size = 0
        while text and len(text) != size:
            if self._token(text) or text in self._specials:
                break
            size = len(text)
            found = self._prefix(text)
            front = found.end() - found.start() if found else 0
            if front and text[front:] in self._specials:
                prefixes.append(text[:front])
                text = text[front:]
                break
            found = self._suffix(text[front:])
            back = found.end() - found.start() if found else 0
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
        for found in self._infixes(text):
            begin, end = found.span()
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
        """Return tokens with the special cases among them in their place.

        Of two special cases that overlap the longer one counts, then the earlier one.

        Args:
            tokens: of one chunk, or of a text.
            spaces: whether a single space follows the token; empty for none.
        """
        found = self._matches(tokens)
        if not found:
            return list(tokens)
        made: list[str] = []
        at = 0
        for begin, end in _longest(found):
            text = "".join(
                token + " " * (bool(spaces) and spaces[begin + place] and begin + place + 1 < end)
                for place, token in enumerate(tokens[begin:end])
            )
            made += tokens[at:begin]
            made += self._specials.get(text, tokens[begin:end])
            at = end
        return made + list(tokens[at:])

    def _matches(self, tokens: Sequence[str]) -> list[tuple[int, int]]:
        found = []
        for begin in range(len(tokens)):
            node, end = self._root, begin
            while end < len(tokens) and tokens[end] in node.following:
                node = node.following[tokens[end]]
                end += 1
                if node.is_end:
                    found.append((begin, end))
        return found

    def whole(self, text: str) -> list[str]:
        """Return the tokens of a text, whitespace of more than one space among them."""
        tokens: list[str] = []
        spaces: list[bool] = []
        start = 0
        is_space = text[:1].isspace()
        for at, char in enumerate(text):
            if char.isspace() != is_space:
                if start < at:
                    self._extend(text[start:at], tokens, spaces)
                start = at
                if char == " ":
                    spaces[-1] = True
                    start = at + 1
                is_space = not is_space
        if start < len(text):
            self._extend(text[start:], tokens, spaces)
        return self.match(tokens, spaces)

    def _extend(self, span: str, tokens: list[str], spaces: list[bool]) -> None:
        more = self.split(span)
        tokens += more
        spaces += [False] * len(more)


def _longest(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the matches that spaCy keeps, none of which overlap, by where they begin."""
    kept = []
    seen: set[int] = set()
    for begin, end in sorted(found, key=lambda span: (span[0] - span[1], span[0])):
        if begin not in seen and end - 1 not in seen:
            kept.append((begin, end))
        seen.update(range(begin, end))
    return sorted(kept)
