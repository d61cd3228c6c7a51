"""Hosts, registered domains and words of URLs, as datatrove's URL filter defines them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from corpuskit.kernels.arrays import Bools, Bytes, Int32s, Int64s
from corpuskit.kernels.jit import inline, kernel
from corpuskit.kernels.stringset import (
    HASH_PRIME,
    HASH_START,
    Coded,
    Table,
    contains,
    find,
    look_up,
)

Hosts = tuple[Int64s, Int64s, Bytes]  # where they begin, where they end, in these bytes

MEMBER, END, WILDCARD, EXCEPTION = 1, 2, 4, 8
"""Kinds of a suffix: a rule ends in it; it is a rule; any label may precede it (`*.ck`); it is an
exception from that (`!www.ck`)."""

HARD, SOFT = 1, 2
"""Kinds of a word."""

KEPT, DOMAIN, SUBDOMAIN, URL, HARD_WORD, SOFT_WORDS, SUBWORD = range(7)
"""Reasons to drop a URL, in the order of the tests."""

_SYMBOLS = 36
"""Letters and digits, all that subwords are made of."""


class Lists(NamedTuple):
    """The lists that URLs are compared with; read-only.

    Attributes:
        suffixes: public suffixes and their endings; `kinds` are the bits above.
        words: hard and soft ones.
        exempt, domains, urls: sets.
        subwords: (states * 36,) int32, an automaton over letters and digits: entry
            `state * 36 + symbol` is the next state, -1 where a subword ends.
    """

    suffixes: Table
    words: Table
    exempt: Coded
    domains: Coded
    urls: Coded
    subwords: Int32s


def make_automaton(strings: Iterable[bytes]) -> Int32s:
    """Return the automaton that finds strings of lower-case letters and digits, see Lists.

    Source: Aho and Corasick 1975, Efficient string matching.

    Takes 144 bytes and some 10 us for each character of the strings that is not shared.
    """
    rows: list[list[int]] = [[0] * _SYMBOLS]
    ends = [False]
    for string in strings:
        state = 0
        for byte in string:
            symbol = byte - 48 if byte < 58 else byte - 87
            if not rows[state][symbol]:
                rows[state][symbol] = len(rows)
                rows.append([0] * _SYMBOLS)
                ends.append(False)
            state = rows[state][symbol]
        ends[state] = state > 0
    waiting = [state for state in rows[0] if state]
    back = dict.fromkeys(waiting, 0)
    for state in waiting:  # grows while it is read: breadth first
        ends[state] |= ends[back[state]]
        for symbol, next_state in enumerate(rows[state]):
            fallback = rows[back[state]][symbol]
            if next_state:
                back[next_state] = fallback
                waiting.append(next_state)
            else:
                rows[state][symbol] = fallback
    moves = np.array(rows, np.int32)
    moves[np.array(ends)[moves]] = -1
    return moves.ravel()


@kernel
def find_hosts(offsets: Int64s, data: Bytes) -> tuple[Int64s, Int64s, Bools]:
    """Return where the host of each URL begins and ends, and whether it holds wide characters.

    As tldextract's `lenient_netloc`: what follows `scheme://` or `//`, or all if there is neither,
    up to one of `/ ? #`, without `user@` and `:port`, stripped, without full stops at the end.
    Hosts with wide characters are not stripped. O(B).
    """
    num_docs = len(offsets) - 1
    starts, ends = np.empty(num_docs, np.int64), np.empty(num_docs, np.int64)
    wide = np.zeros(num_docs, np.bool_)
    for row in range(num_docs):
        start = _after_scheme(data, offsets[row], offsets[row + 1])
        end = start
        while end < offsets[row + 1] and data[end] != 47 and data[end] != 63 and data[end] != 35:
            end += 1
        for pos in range(start, end):
            if data[pos] == 64:  # @: the last one counts
                start = pos + 1
        stop = _end_of_host(data, start, end)
        bits = np.uint8(0)
        for pos in range(start, stop):
            bits = np.uint8(bits | data[pos])
        wide[row] = bits >= 0x80
        is_bracketed = start < stop and data[start] == 91 and data[stop - 1] == 93
        if bits < 0x80 and not is_bracketed:
            while start < stop and _is_blank(data[start]):
                start += 1
            while start < stop and _is_blank(data[stop - 1]):
                stop -= 1
            while start < stop and data[stop - 1] == 46:
                stop -= 1
        starts[row], ends[row] = start, stop
    return starts, ends, wide


@kernel
def find_bodies(offsets: Int64s, data: Bytes) -> Int64s:
    """Return where each URL continues after `scheme://` or `//`, (N,)."""
    starts = np.empty(len(offsets) - 1, np.int64)
    for row in range(len(starts)):
        starts[row] = _after_scheme(data, offsets[row], offsets[row + 1])
    return starts


@kernel
def _after_scheme(data: Bytes, start: int, end: int) -> int:
    """Return where the URL continues after `scheme://` or `//`."""
    pos = start
    while pos + 1 < end and not (data[pos] == 47 and data[pos + 1] == 47):
        pos += 1
    if pos + 1 >= end:
        return start
    if pos == start:
        return start + 2
    if pos - start < 2 or data[pos - 1] != 58:
        return start
    for index in range(start, pos - 1):
        byte = data[index]
        is_letter = 65 <= byte <= 90 or 97 <= byte <= 122
        if not (is_letter or 48 <= byte <= 57 or byte == 43 or byte == 45 or byte == 46):
            return start
    return pos + 2


@kernel
def _end_of_host(data: Bytes, start: int, end: int) -> int:
    """Return where the port begins, or the authority ends; brackets hold an IPv6 address."""
    if start < end and data[start] == 91:
        for pos in range(start, end):
            if data[pos] == 93:
                return pos + 1
    for pos in range(start, end):
        if data[pos] == 58:
            return pos
    return end


@inline
def _is_blank(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13 or 28 <= byte <= 31


@kernel
def suffix_labels(suffixes: Table, data: Bytes, start: int, end: int) -> int:
    """Return how many labels of a host are its public suffix, 0 if it has none.

    Args:
        suffixes: see Lists.
        data, start, end: the host, in lower case.
    """
    labels = suffix = 0
    parent_kinds = 1  # kinds of the suffix before this label; the root's
    stop = end  # where the label ends
    while True:
        begin = stop
        while begin > start and data[begin - 1] != 46:
            begin -= 1
        number = look_up(suffixes, data, begin, end)
        kinds = np.int64(0) if number < 0 else np.int64(suffixes.kinds[number])
        if kinds & MEMBER:
            labels += 1
            if kinds & END:
                suffix = labels
        elif parent_kinds & WILDCARD:
            return labels if kinds & EXCEPTION else labels + 1
        else:
            return suffix
        if begin == start:
            return suffix
        parent_kinds = kinds
        stop = begin - 1


@kernel
def find_domains(suffixes: Table, lower: Hosts, hosts: Hosts) -> Int64s:
    """Return where the registered domain of each host begins in its data, -1 if it has none, (N,).

    Args:
        suffixes: see Lists.
        lower: the hosts in lower case.
        hosts: the hosts as they are; of the same labels.
    """
    domains = np.empty(len(hosts[0]), np.int64)
    for row in range(len(domains)):
        labels = suffix_labels(suffixes, lower[2], lower[0][row], lower[1][row])
        domains[row] = _registered(hosts[2], hosts[0][row], hosts[1][row], labels)
    return domains


@kernel
def _registered(data: Bytes, start: int, end: int, labels: int) -> int:
    """Return where the registered domain of a host begins, -1 if it has none.

    Args:
        labels: of the public suffix.
    """
    if labels == 0:
        return -1
    pos = end
    for _ in range(labels):
        while pos > start and data[pos - 1] != 46:
            pos -= 1
        if pos == start:
            return -1  # nothing before the suffix
        pos -= 1
    stop = pos
    while pos > start and data[pos - 1] != 46:
        pos -= 1
    return pos if pos < stop else -1  # an empty label is no domain


@kernel
def decide_urls(
    urls: tuple[Int64s, Bytes],
    bodies: Int64s,
    hosts: Hosts,
    domains: Int64s,
    lists: Lists,
    ignore_case: bool,
    max_soft_words: int,
) -> tuple[Bytes, Int64s]:
    """Return codes of URLs, (N,), and their soft words, counted if no earlier test drops the URL.

    Args:
        urls: the URLs, offsets (N + 1,) and bytes.
        bodies: (N,) start of the part that is looked up in the list of URLs.
        hosts: their hosts, in the case of the comparison.
        domains: (N,) start of the registered domain in the data of `hosts`, -1 if there is none.
        ignore_case: compare words in lower case.
    """
    offsets, data = urls
    host_starts, host_ends, host_data = hosts
    exempt, blocked, listed = lists.exempt, lists.domains, lists.urls
    words, moves = lists.words, lists.subwords
    num_docs = len(offsets) - 1
    codes, counts = np.zeros(num_docs, np.uint8), np.zeros(num_docs, np.int64)
    soft_words = np.empty(max_soft_words + 1, np.int64)
    word = np.empty(LONGEST_WORD, np.uint8)
    for row in range(num_docs):
        begin, end = offsets[row], offsets[row + 1]
        domain, host, stop = domains[row], host_starts[row], host_ends[row]
        if domain >= 0:
            if domain == host + 1:
                host = domain  # an empty subdomain is left out
            if _either(exempt, host_data, domain, host, stop) != KEPT:
                continue
            codes[row] = _either(blocked, host_data, domain, host, stop)
        if codes[row] == KEPT and contains(listed, data, bodies[row], end):
            codes[row] = URL
        if codes[row] == KEPT:
            counts[row] = _count_soft(data, begin, end, words, ignore_case, soft_words, word)
            if counts[row] < 0:
                codes[row] = HARD_WORD
            elif counts[row] > max_soft_words:
                codes[row] = SOFT_WORDS
            elif _has_subword(data, begin, end, moves):
                codes[row] = SUBWORD
    return codes, counts


@kernel
def _either(listed: Coded, data: Bytes, domain: int, host: int, stop: int) -> int:
    """Return DOMAIN if a set holds the registered domain, SUBDOMAIN for the host, else KEPT."""
    if contains(listed, data, domain, stop):
        return DOMAIN
    return SUBDOMAIN if host < domain and contains(listed, data, host, stop) else KEPT


@kernel
def _count_soft(
    data: Bytes, begin: int, end: int, words: Table, ignore_case: bool, seen: Int64s, word: Bytes
) -> int:
    """Return how many different soft words a URL has, -1 if it has a hard one.

    A word is a run of letters and digits.

    Args:
        seen: scratch; words are counted up to its length.
        word: scratch.
    """
    slots, starts, strings, kinds = words
    num = int(np.int64(0))
    size = int(np.int64(0))  # typed: for a literal the function it is passed to is compiled again
    value = HASH_START
    for pos in range(begin, end + 1):
        byte = np.int64(data[pos]) if pos < end else 0
        if _is_alphanumeric(byte):
            if ignore_case and 65 <= byte <= 90:
                byte += 32
            if size < len(word):
                word[size] = byte
                value = (value ^ np.uint64(byte)) * HASH_PRIME
            size += 1
            continue
        if 0 < size < len(word):
            number = find(slots, starts, strings, value, word, int(np.int64(0)), size)
            kind = np.int64(0) if number < 0 else np.int64(kinds[number])
            if kind & HARD:
                return -1
            if kind & SOFT and num < len(seen):
                is_new = True
                for index in range(num):
                    if seen[index] == number:
                        is_new = False
                if is_new:
                    seen[num] = number
                    num += 1
        size, value = int(np.int64(0)), HASH_START
    return num


LONGEST_WORD = 256
"""Runs of this length and above match no word; the lists refuse such words."""


@kernel
def _has_subword(data: Bytes, begin: int, end: int, moves: Int32s) -> bool:
    """Return whether the letters and digits of a URL, in lower case, hold a subword."""
    state = 0
    for pos in range(begin, end):
        byte = np.int64(data[pos])
        if 48 <= byte <= 57:
            symbol = byte - 48
        elif 97 <= byte <= 122:
            symbol = byte - 87
        elif 65 <= byte <= 90:
            symbol = byte - 55
        else:
            continue
        state = moves[state * _SYMBOLS + symbol]
        if state < 0:
            return True
    return False


@inline
def _is_alphanumeric(byte: int | np.int64) -> bool:
    return bool(48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122)
