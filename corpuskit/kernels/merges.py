"""The merges of byte pair encoding, from a vocabulary with priorities alone.

Merging always joins the two neighbours that make the token of the lowest priority, the leftmost of
equal ones. Merges within the bytes of a token do not depend on the text around them, unless
something joins across their edge, and then the token is not made. So a token is always made of the
last two parts that its own bytes merge to, and a list of merges with this one pair per token, in
order of priority, gives the same ids as the priorities.
"""

from __future__ import annotations

import numpy as np

from corpuskit.kernels.arrays import Int64s
from corpuskit.kernels.jit import kernel
from corpuskit.kernels.stringset import Table, look_up

NEVER = np.int64(1) << np.int64(62)


@kernel
def last_merges(table: Table, priority: Int64s, by_char: bool) -> Int64s:
    """Return where the second of the two parts of each token begins, (n,) in bytes.

    0 for single bytes or characters, which merging begins with; -1 for tokens that no merge makes.
    O(n L^2), L bytes in a token (150,000 tokens take 0.05 s), allocates 24 bytes for each of the
    longest token.

    Args:
        table: the tokens.
        priority: (n,) the lowest is merged first; negative: never.
        by_char: begin with the characters of UTF-8 text, not with bytes.
    """
    count = len(priority)
    halves = np.full(count, -1, np.int64)
    longest = 0
    for token in range(count):
        longest = max(longest, table.starts[token + 1] - table.starts[token])
    bounds = np.empty(longest + 1, np.int64)
    ranks = np.empty(longest + 1, np.int64)
    for token in range(count):
        if priority[token] >= 0:
            halves[token] = _last_merge(table, priority, token, bounds, ranks, by_char)
    return halves


@kernel
def _last_merge(
    table: Table, priority: Int64s, token: int, bounds: Int64s, ranks: Int64s, by_char: bool
) -> int:
    """Merge the bytes of one token as if they were a text; O(L^2)."""
    data, begin, end = table.data, table.starts[token], table.starts[token + 1]
    parts = 0
    for pos in range(begin, end):
        if not by_char or data[pos] & 0xC0 != 0x80:
            bounds[parts] = pos
            parts += 1
    bounds[parts] = end
    if parts < 2:
        return 0
    for part in range(parts - 1):
        ranks[part] = _rank(table, priority, bounds[part], bounds[part + 2])
    while parts > 2:
        best = 0
        for part in range(1, parts - 1):
            if ranks[part] < ranks[best]:
                best = part
        if ranks[best] == NEVER:
            return -1
        for part in range(best + 1, parts):
            bounds[part] = bounds[part + 1]
            ranks[part - 1] = ranks[part]
        parts -= 1
        if best > 0:
            ranks[best - 1] = _rank(table, priority, bounds[best - 1], bounds[best + 1])
        if best < parts - 1:
            ranks[best] = _rank(table, priority, bounds[best], bounds[best + 2])
    return int(bounds[1] - begin)


@kernel
def _rank(table: Table, priority: Int64s, begin: int, end: int) -> int:
    token = look_up(table, table.data, begin, end)
    if token < 0 or priority[token] < 0:
        return int(NEVER)
    return int(priority[token])
