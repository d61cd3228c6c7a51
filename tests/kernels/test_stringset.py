from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.kernels.stringset import BLOCK, Coded, contains, front_code, look_up, make_table

# Alphabets of two make strings that share much, and long ones pass the limit of what is shared.
strings = st.sets(
    st.one_of(
        st.binary(max_size=6),
        st.text(alphabet="ab", max_size=7).map(str.encode),
        st.integers(250, 262).map(lambda n: b"a" * n),
        st.integers(120, 132).map(lambda n: b"b" * n + b"c"),
    ),
    max_size=60,
)


def buffers(wanted):
    offsets = np.cumsum([0, *map(len, wanted)], dtype=np.int64)
    return offsets, np.frombuffer(b"".join(wanted) + b"\0", np.uint8)


def code(wanted, piece=10**6):
    """Return a set as it is written: in pieces, each of whole blocks but the last."""
    ordered = sorted(wanted)
    data, blocks, size = [], [], 0
    for at in range(0, len(ordered), piece):
        coded, begins = front_code(*buffers(ordered[at : at + piece]), size)
        data.append(coded)
        blocks.append(begins)
        size += len(coded)
    whole = np.concatenate([*data, np.zeros(1, np.uint8)])
    places = np.concatenate([np.empty(0, np.int64), *blocks, [size]]).astype(np.int64)
    return Coded(places, whole)


def has(coded, string):
    data = np.frombuffer(b"." + string + b".", np.uint8)
    return contains(coded, data, 1, 1 + len(string))


@given(strings, strings)
def test_a_coded_set_holds_its_strings_and_no_other(members, others):
    coded = code(members)
    assert [string for string in members | others if has(coded, string)] == [
        string for string in members | others if string in members
    ]


@given(strings)
def test_neighbours_of_members_are_no_members(members):
    coded = code(members)
    near = {string[:-1] for string in members} | {string + b"a" for string in members}
    near |= {string[:-1] + bytes([string[-1] ^ 1]) for string in members if string}
    assert {string for string in near if has(coded, string)} == near & members


@given(strings)
def test_a_set_written_in_pieces_is_the_same(members):
    whole, pieces = code(members), code(members, piece=BLOCK)
    assert whole.data.tobytes() == pieces.data.tobytes()
    assert whole.blocks.tolist() == pieces.blocks.tolist()


@given(st.lists(st.binary(max_size=5), unique=True, max_size=40), st.lists(st.binary(max_size=5)))
def test_a_table_knows_the_number_of_each_string(members, others):
    table = make_table(members)
    for string in members + others:
        data = np.frombuffer(b"x" + string, np.uint8)
        found = look_up(table, data, 1, len(data))
        assert found == (members.index(string) if string in members else -1)


def test_a_table_keeps_what_was_said_of_its_strings():
    table = make_table([b"a", b"bc"], [3, 255])
    assert table.kinds.tolist() == [3, 255]


@pytest.mark.parametrize("num", [0, 1, 100])
def test_a_table_always_has_a_free_slot(num):
    table = make_table([str(n).encode() for n in range(num)])
    assert (table.slots < 0).sum() > num
