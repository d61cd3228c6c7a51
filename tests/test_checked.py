"""JSON files with a digest of themselves."""

from __future__ import annotations

import contextlib
import json

import pytest

from corpuskit.errors import DataError
from corpuskit.formats.manifest import dump_checked, load_checked

FIELDS = {"format": 1, "files": [["a", 1], ["\u00e9", 2]], "a": {"z": None, "b": 0.5}}


def test_what_was_written_is_read():
    content = dump_checked(FIELDS)
    assert load_checked(content, "x") == FIELDS
    assert len(json.loads(content)["digest"]) == 32
    assert dump_checked(dict(reversed(FIELDS.items()))) == content


def test_every_flipped_bit_is_noticed():
    content = dump_checked(FIELDS)
    equal = 0
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        with contextlib.suppress(DataError):
            assert load_checked(bytes(damaged), "in/x") == FIELDS
            equal += 1
    assert equal == 1  # the \\u00E9 that means what \\u00e9 does


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b'{"digest": 1}', b"[" * 9999]
)
def test_what_is_no_such_file_is_an_error(content):
    with pytest.raises(DataError, match=r"^x: "):
        load_checked(content, "x")
