"""WET files: conversion records as documents."""

from __future__ import annotations

import pytest
from source_reading import read
from web_archives import members, record, taken_apart

from corpuskit.errors import DataError
from corpuskit.stages.sources.wet import Wet

SOURCE = Wet(paths=("x",))


def text(content: bytes, **fields: str) -> bytes:
    return record("conversion", content, Content_Type="text/plain", **fields)


def test_conversion_records_are_documents_and_the_others_rows(tmp_path):
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(
        members(
            [
                record("warcinfo", b"x: y"),
                text("Caf\xe9\n \n".encode(), WARC_Identified_Content_Language="fra,eng"),
                text(b"\xef\xbb\xbfmarked"),
                text(b" \n"),
                text(b"\xe9"),
                text(b"y" * 101),
                record("conversion", b"<p>", Content_Type="text/html"),
                record("response", b"HTTP/1.1 200 OK\r\n\r\n"),
            ]
        )
    )
    found = read(Wet(paths=("x",), columns=("language",)), path, most=100)
    assert found.texts == ["Caf\xe9\n \n", "marked"]
    assert [document["language"] for document in found.documents] == ["fra,eng", None]
    assert [document["url"] for document in found.documents] == ["http://a.example/"] * 2
    assert [rule for _, rule in found.rejects] == [
        "other_record", "no_text", "invalid_utf8", "too_long", "other_record", "other_record",
    ]  # fmt: skip
    assert found.values[3] == (101, 100)


def test_a_clipped_file_keeps_what_came_before(tmp_path):
    path = tmp_path / "a.warc.wet.gz"
    path.write_bytes(members([text(b"one"), text(b"two")])[:-5])
    found = read(SOURCE, path)
    assert (found.texts, [rule for _, rule in found.rejects]) == (["one"], ["clipped_file"])
    with pytest.raises(DataError, match="clipped_file"):
        read(Wet(paths=("x",), strict=True), path)


@pytest.mark.real
def test_a_real_wet_file_is_accounted_for_and_a_wat_file_refused(shared_data):
    path = shared_data / "warc" / "whirlwind.warc.wet.gz"
    kinds = [kind for kind, _ in taken_apart(path.read_bytes())]
    found = read(SOURCE, path)
    assert len(found.documents) == kinds.count("conversion") == 1
    assert len(found.rejects) == len(kinds) - 1
    assert found.texts[0].startswith("Escopete - Biquipedia")
    with pytest.raises(DataError, match=r"whirlwind\.warc\.wat\.gz: .* a WAT file"):
        read(SOURCE, shared_data / "warc" / "whirlwind.warc.wat.gz")
