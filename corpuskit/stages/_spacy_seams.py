"""Special cases of spaCy's tokenizers that reach from one chunk into the next."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from corpuskit.stages._spacy_tokens import Language

    Tokens = tuple[str, ...]


class Seam(NamedTuple):
    """A text that stands before or behind a chunk; see `kernels/words/seams.py`."""

    text: str
    is_behind: bool
    is_bounded: bool


class SeamFinder:
    """Finds the texts beside a chunk that would keep a special case from it."""

    def __init__(self, language: Language, is_proven: bool) -> None:
        self._is_proven = is_proven
        self._known: dict[Tokens, frozenset[Seam]] = {}
        self._patterns = {tuple(tokens) for tokens in language.matched.values()}
        self._parts = {token for pattern in self._patterns for token in pattern}
        self._longest = max(map(len, self._patterns), default=0)
        # Tokens at the beginning or the end of a chunk, or all of them -> what a special case has
        # before or behind them; in the last case, before them, whatever is behind.
        self._before: dict[Tokens, set[Tokens]] = defaultdict(set)
        self._behind: dict[Tokens, set[Tokens]] = defaultdict(set)
        self._around: dict[Tokens, set[Tokens]] = defaultdict(set)
        for pattern in self._patterns:
            for cut in range(1, len(pattern)):
                self._before[pattern[cut:]].add(pattern[:cut])
                self._behind[pattern[:cut]].add(pattern[cut:])
                for end in range(cut + 1, len(pattern)):
                    self._around[pattern[cut:end]].add(pattern[:cut])
        rules = [pieces for pieces in language.specials.values() if len(pieces) > 1]
        self._first_of_rules = {pieces[0] for pieces in rules}
        self._last_of_rules = {pieces[-1] for pieces in rules}

    def find(self, tokens: list[str]) -> frozenset[Seam]:
        """Return the seams of a chunk, given by its tokens before special cases are looked for.

        spaCy looks for special cases in the tokens of the whole text, single spaces ignored, and of
        two that overlap the longer one counts, even if it is not applied because of those spaces.
        """
        known = tuple(token if token in self._parts else "" for token in tokens)
        if known not in self._known:
            self._known[known] = self._find(known)
        return self._known[known]

    def _find(self, tokens: Tokens) -> frozenset[Seam]:
        num = len(tokens)
        found = [
            (a, b)
            for a in range(num)
            for b in range(a + 1, min(num, a + self._longest) + 1)
            if tokens[a:b] in self._patterns
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

    def _seam(self, words: Tokens, is_behind: bool) -> Seam:
        """Return the seam of words beside a chunk.

        Between two letters or digits only a special case separates, if the patterns are those that
        we know; whether one does for this word is asked of the rules.
        """
        outer = words[-1] if is_behind else words[0]
        pieces = self._first_of_rules if is_behind else self._last_of_rules
        bounded = self._is_proven and outer not in pieces
        return Seam("".join(words), is_behind, bounded)
