from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.filters.urls import (
    END,
    EXCEPTION,
    MEMBER,
    WILDCARD,
    find_bodies,
    find_hosts,
    make_automaton,
    suffix_labels,
)
from corpuskit.kernels.stringset import make_table

SUFFIXES = make_table(
    [b"com", b"uk", b"co.uk", b"ck", b"*.ck", b"www.ck", b"!www.ck"],
    [
        *(MEMBER | END, MEMBER | END, MEMBER | END, MEMBER | WILDCARD),
        *(MEMBER | END, EXCEPTION, MEMBER | END),
    ],
)


def host(url):
    data = url.encode()
    offsets = np.array([0, len(data)])
    starts, ends, _ = find_hosts(offsets, np.frombuffer(data + b"\0", np.uint8))
    return data[starts[0] : ends[0]].decode()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Example.org/a", "Example.org"),
        ("example.org?a", "example.org"),
        ("//example.org#a", "example.org"),
        ("http://a@b@example.org:80/", "example.org"),
        ("http://example.org..", "example.org"),
        ("http:// example.org\t", "example.org"),
        ("1.2+a-b://example.org", "example.org"),
        ("_://example.org", "_"),
        ("a//b", "a"),
        ("http://[::1]:80/", "[::1]"),
        ("http://[::1", "["),
        ("http:///a", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_url(url, expected):
    assert host(url) == expected


def test_wide_hosts_are_told():
    data = "http://b\u00fccher.example/\u00fc http://x.org/\u00fc".encode()
    cut = data.index(b" ") + 1
    _, _, wide = find_hosts(np.array([0, cut, len(data)]), np.frombuffer(data, np.uint8))
    assert wide.tolist() == [True, False]


def test_a_body_is_what_follows_the_scheme():
    data = b"https://a.b/c//a.b/ca.b/c"
    assert find_bodies(np.array([0, 13, 20, 25]), np.frombuffer(data, np.uint8)).tolist() == [
        8,
        15,
        20,
    ]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("example.com", 1),
        ("com", 1),
        ("a.example.co.uk", 2),
        ("example.uk", 1),
        ("example.ck", 2),
        ("a.example.ck", 2),
        ("www.ck", 1),
        ("ck", 0),
        ("localhost", 0),
        ("", 0),
        (".com", 1),
        ("a..com", 1),
    ],
)
def test_how_many_labels_are_a_public_suffix(name, labels):
    data = np.frombuffer(b"." + name.encode() + b"/", np.uint8)
    assert suffix_labels(SUFFIXES, data, 1, 1 + len(name)) == labels


@given(st.lists(st.text(alphabet="ab1", min_size=1, max_size=4), max_size=5), st.text("ab1"))
def test_an_automaton_finds_parts(parts, text):
    moves = make_automaton(sorted(part.encode() for part in set(parts)))
    state = 0
    for byte in text.encode():
        state = moves[state * 36 + (byte - 48 if byte < 58 else byte - 87)]
        if state < 0:
            break
    assert (state < 0) == any(part in text for part in parts)
