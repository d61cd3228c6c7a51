"""Sentences as spaCy's sentencizer finds them, from words already split.

A sentence ends before the first token after a sentence-ending mark that is neither such a mark nor
punctuation. Whitespace is a token, too, but for one space behind a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from corpuskit.kernels.jit import kernel
from corpuskit.kernels.utf8 import skip_space, space_width
from corpuskit.kernels.words.lexicon import PUNCT, SENTENCE_END

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from corpuskit.kernels.words.lexicon import Words

    Bytes = NDArray[np.uint8]
    Offsets = NDArray[np.int64]

UNKNOWN = -1


def count_breaks(offsets: Offsets, data: Bytes, words: Words) -> NDArray[np.int64]:
    r"""Return (N,): how many sentences begin within the lines of each text; lines end with \n.

    UNKNOWN where the words are not what lies between whitespace: the reference drops a token.
    """
    lexicon = words.lexicon
    return _count(offsets, data, words.offsets, words.tokens, lexicon.starts, lexicon.kinds)


def sentence_edges(offsets: Offsets, data: Bytes, words: Words) -> tuple[Offsets, Offsets]:
    """Return ((N + 1,) offsets, (S,) edges): where the sentences of each text end, in bytes of it.

    A sentence begins where the one before ends, whitespace first; the last ends with the text, and
    an empty text is one sentence. Where the reference drops a token, the only edge is UNKNOWN.
    """
    lexicon = words.lexicon
    args = (offsets, data, words.offsets, words.tokens, lexicon.starts, lexicon.kinds)
    # A sentence has a token at least, one of whitespace counted with the word before it.
    edges = np.empty(2 * len(words.tokens) + 2 * len(offsets), np.int64)
    return _find(*args, edges), edges


@kernel
def _skip_within_line(data: Bytes, at: int, end: int) -> int:
    r"""Return where the whitespace at `at` ends, \n being none."""
    while at < end and data[at] != 10:
        width = space_width(data, at)
        if width == 0:
            break
        at += width
    return at


@kernel
def _count(
    offsets: Offsets,
    data: Bytes,
    word_offsets: Offsets,
    tokens: NDArray[np.int32],
    starts: Offsets,
    kinds: Bytes,
) -> NDArray[np.int64]:
    """O(W + whitespace); allocates 8 N bytes."""
    counts = np.zeros(len(offsets) - 1, np.int64)
    for row in range(len(counts)):
        at, end = offsets[row], offsets[row + 1]
        word, last = word_offsets[row], word_offsets[row + 1]
        has_mark, after_word, breaks = False, False, 0
        while at < end:
            if data[at] == 10:
                has_mark, after_word = False, False
                at += 1
            elif space_width(data, at) > 0:
                stop = _skip_within_line(data, at, end)
                if has_mark and not (after_word and data[at] == 32 and stop == at + 1):
                    breaks += 1
                    has_mark = False
                at, after_word = stop, False
            elif word == last:
                breaks = UNKNOWN
                break
            else:
                token = tokens[word]
                if kinds[token] & SENTENCE_END:
                    has_mark = True
                elif has_mark and kinds[token] & PUNCT == 0:
                    breaks += 1
                    has_mark = False
                at += starts[token + 1] - starts[token]
                word += 1
                after_word = True
        counts[row] = breaks
    return counts


@kernel
def _find(
    offsets: Offsets,
    data: Bytes,
    word_offsets: Offsets,
    tokens: NDArray[np.int32],
    starts: Offsets,
    kinds: Bytes,
    edges: Offsets,
) -> Offsets:
    """Fill `edges`, return their offsets. O(W + whitespace); allocates 8 N bytes."""
    bounds = np.zeros(len(offsets), np.int64)
    num = 0
    for row in range(len(offsets) - 1):
        begin, end = offsets[row], offsets[row + 1]
        word, last = word_offsets[row], word_offsets[row + 1]
        has_mark, after_word, at, before = False, False, begin, begin
        while at < end:
            ends_sentence = False
            if space_width(data, at) > 0:
                stop = skip_space(data, at, end)
                is_token = not (after_word and data[at] == 32 and stop == at + 1)
                after_word = False
                if is_token:
                    ends_sentence, has_mark = has_mark, False
            elif word == last:
                num, end = bounds[row], begin + UNKNOWN
                break
            else:
                token, is_token, after_word = tokens[word], True, True
                stop = at + starts[token + 1] - starts[token]
                word += 1
                if kinds[token] & SENTENCE_END:
                    has_mark = True
                elif has_mark and kinds[token] & PUNCT == 0:
                    ends_sentence, has_mark = True, False
            if ends_sentence:
                edges[num] = before - begin
                num += 1
            if is_token:
                before = stop
            at = stop
        edges[num] = end - begin
        num += 1
        bounds[row + 1] = num
    return bounds
