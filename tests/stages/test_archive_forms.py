"""ARC and WACZ: the same pages come out as of WARC, and damage costs what it touches."""

from __future__ import annotations

import collections
import gzip
import io
import itertools
import random
import re
import zipfile

import pytest
from source_reading import batches, input_file, read, read_slice
from web_archives import PAGE, http, members, pages, record, response

from corpuskit.errors import DataError
from corpuskit.stages.sources._web.archive import Archive, read_parts
from corpuskit.stages.sources._web.records import read_records
from corpuskit.stages.sources.warc import Warc

pytest.importorskip("resiliparse")
warcio = pytest.importorskip("warcio")

SOURCE = Warc(paths=("x",))
# warcio leaves its temporary files to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning"
)


# ---------------------------------------------------------------- ARC


def arc_record(url: str, block: bytes, *, version: int = 1, kind: str = "text/html") -> bytes:
    """Return a record as Heritrix 1 and Alexa's crawler wrote it."""
    more = " 200 - - 120 IA-000.arc.gz" if version == 2 else ""
    line = f"{url} 192.0.2.7 20040518015810 {kind}{more} {len(block)}\n"
    return line.encode() + block + b"\n"


def file_description(version: int = 1) -> bytes:
    names = {
        1: "URL IP-address Archive-date Content-type Archive-length",
        2: "URL IP-address Archive-date Content-type Result-code Checksum Location Offset "
        "Filename Archive-length",
    }
    block = f"{version} 0 InternetArchive\n{names[version]}\n".encode()
    return arc_record("filedesc://IA-000.arc", block, version=version, kind="text/plain")


def arc_pages(num: int, version: int = 1) -> list[bytes]:
    return [
        arc_record(f"http://a.example/{n}", http(PAGE.format(f"Page {n}.")), version=version)
        for n in range(num)
    ]


def records_of(path):
    opened = Archive(str(path), 1000)
    try:
        return list(
            read_records(opened.pieces(), lambda fields: True, 1 << 24, opened.end, opened.framing)
        )
    finally:
        opened.close()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", ["a.arc", "a.arc.gz", "whole.arc.gz", "cut.arc.gz"])
def test_an_arc_file_gives_the_documents_of_a_warc_file(tmp_path, version, form):
    records = [file_description(version), *arc_pages(3, version)]
    whole = b"".join(records)
    content = {
        "a.arc": whole,
        "a.arc.gz": members(records),
        "whole.arc.gz": gzip.compress(whole),
        "cut.arc.gz": gzip.compress(whole[:700]) + gzip.compress(whole[700:]),
    }[form]
    (tmp_path / form).write_bytes(content)
    (tmp_path / "b.warc").write_bytes(b"".join(pages(3)))
    found, expected = read(SOURCE, tmp_path / form), read(SOURCE, tmp_path / "b.warc")
    assert found.texts == expected.texts
    assert [one["url"] for one in found.documents] == [one["url"] for one in expected.documents]
    assert {one["date"] for one in found.documents} == {"2004-05-18T01:58:10Z"}
    assert found.rejects == [(0, "other_record")]
    starts = list(itertools.accumulate(map(len, records)))
    assert [one["position"] for one in found.documents] == starts[:-1]


def test_records_that_are_no_pages_are_rows_of_the_ledger(tmp_path):
    path = tmp_path / "a.arc.gz"
    records = [
        file_description(),
        arc_record("dns:a.example", b"20040518 1.2.3.4\n", kind="text/dns"),
        arc_record("http://a.example/gone", http("gone", status="404 Not Found")),
        arc_record("http://a.example/image", http(b"\x89PNG", kind="image/png"), kind="image/png"),
        arc_record("http://a.example/none", b"no http at all"),
        arc_record("http://a.example/with a blank", http(PAGE.format("Blank."))),
        arc_record("http://a.example/empty", b""),
    ]
    path.write_bytes(members(records))
    found = read(Warc(paths=("x",), columns=("ip", "offset")), path)
    assert [rule for _, rule in found.rejects] == [
        "other_record", "not_html", "bad_status", "not_html", "broken_http", "broken_http",
    ]  # fmt: skip
    (document,) = found.documents
    assert document["url"] == "http://a.example/with a blank"
    assert document["ip"] == "192.0.2.7"
    assert gzip.decompress(path.read_bytes()[document["offset"] :][: len(members([records[5]]))])


@pytest.mark.real
def test_real_pages_in_an_arc_file_are_read_as_warcio_reads_them(shared_data, tmp_path):
    from warcio.archiveiterator import ArchiveIterator

    for name in ("warcfile", "example"):
        blocks = [
            (one.fields["warc-target-uri"], one.body)
            for one in records_of(shared_data / "warc" / f"{name}.warc.gz")
            if one.fields["warc-type"] == "response"
        ]
        path = tmp_path / f"{name}.arc.gz"
        packed = [arc_record(url, body, version=1) for url, body in blocks]
        path.write_bytes(members([file_description(), *packed]))
        with path.open("rb") as file:
            theirs = [
                (one.rec_headers.get_header("uri"), one.raw_stream.read())
                for one in ArchiveIterator(file, no_record_parse=True)
                if one.rec_type == "response"
            ]
        ours = [(one.fields["warc-target-uri"], one.body) for one in records_of(path)][1:]
        assert ours == theirs == blocks
        texts = read(SOURCE, shared_data / "warc" / f"{name}.warc.gz").texts
        assert collections.Counter(read(SOURCE, path).texts) == collections.Counter(texts)


def test_damage_to_an_arc_file_takes_the_records_it_touches_and_no_others(tmp_path):
    packed = [gzip.compress(one, mtime=0) for one in arc_pages(5)]
    content, rng = b"".join(packed), random.Random(0)
    path = tmp_path / "a.arc.gz"
    for _ in range(60):
        begin = rng.randrange(len(content))
        end = min(len(content), begin + rng.choice((1, 20, 300)))
        path.write_bytes(
            content[:begin] + rng.randbytes(rng.choice((0, end - begin))) + content[end:]
        )
        found = records_of(path)
        whole = {one.body for one in found if not one.problem}
        at = 0
        for number, one in enumerate(packed):
            if at + len(one) <= begin or at >= end:
                assert http(PAGE.format(f"Page {number}.")) in whole
            at += len(one)
        positions = [one.position for one in found]
        assert positions == sorted(set(positions))


@pytest.mark.parametrize("claimed", [5, 99999])
@pytest.mark.parametrize("pack", [members, b"".join])
def test_a_wrong_length_in_an_arc_file_costs_no_other_record(tmp_path, claimed, pack):
    first, odd, third = arc_pages(3)
    odd = re.sub(rb" \d+\n", b" %d\n" % claimed, odd, count=1)
    path = tmp_path / ("a.arc.gz" if pack is members else "a.arc")
    path.write_bytes(pack([first, odd, third]))
    found = records_of(path)
    assert found[0].body == http(PAGE.format("Page 0."))
    assert found[-1].body == http(PAGE.format("Page 2."))
    assert "broken_record" in {one.problem for one in found[1:-1]}


def test_a_long_line_that_begins_like_a_record_is_passed_over_in_linear_time(tmp_path):
    path = tmp_path / "a.arc"
    odd = b"http:" + b" 1.2.3.4 20040518015810" * 40_000 + b"\n"
    path.write_bytes(odd * 5 + arc_pages(1)[0])
    assert records_of(path)[-1].body == http(PAGE.format("Page 0."))


# ---------------------------------------------------------------- WACZ


def warc_gz(first: int, num: int) -> bytes:
    """Return a WARC file as warcio writes it."""
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    sink = io.BytesIO()
    writer = WARCWriter(sink, gzip=True)
    for number in range(first, first + num):
        head = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], protocol="HTTP/1.1")
        body = io.BytesIO(PAGE.format(f"Page {number}.").encode())
        uri = f"http://a.example/{number}"
        writer.write_record(writer.create_warc_record(uri, "response", body, http_headers=head))
    return sink.getvalue()


def wacz(path, contents: dict[str, bytes], **options: int):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("datapackage.json", "{}", **options)
        for name, content in contents.items():
            archive.writestr(name, content, **options)
        archive.writestr("pages/pages.jsonl", "{}", zipfile.ZIP_DEFLATED)
    return path


@pytest.fixture
def two(tmp_path):
    contents = {"archive/b.warc.gz": warc_gz(0, 3), "archive/a.warc": b"".join(pages(5)[3:])}
    return wacz(tmp_path / "a.wacz", contents)


def test_every_warc_file_of_a_wacz_file_is_a_slice_of_its_own(two):
    file = input_file(two)
    pieces = SOURCE.slices(file, 1)
    assert len(pieces) == 2
    assert [pieces[0].begin, pieces[-1].end] == [0, file.size_bytes]
    assert pieces[0].end == pieces[1].begin
    whole = read(SOURCE, two)
    assert [text[:7] for text in whole.texts] == [f"Page {n}." for n in range(5)]
    parts = [read_slice(SOURCE, two, piece) for piece in pieces]
    assert parts[0].documents + parts[1].documents == whole.documents
    assert [len(part.documents) for part in parts] == [3, 2]
    positions = [one["position"] for one in whole.documents]
    assert positions == sorted(set(positions))


def test_the_offset_is_a_place_in_the_wacz_file(two):
    found = read(Warc(paths=("x",), columns=("offset",)), two).documents
    for document in found[:3]:
        with gzip.open(io.BytesIO(two.read_bytes()[document["offset"] :])) as file:
            assert file.read(5) == b"WARC/"


def test_every_record_of_a_wacz_file_is_accounted_for(tmp_path):
    broken = bytearray(warc_gz(0, 3))
    broken[len(broken) // 2] ^= 255
    contents = {
        "archive/a.warc.gz": bytes(broken),
        "archive/b.warc.gz": members([record("request", b"GET /"), response(PAGE)]),
        "archive/empty.warc.gz": b"",
    }
    found = read(SOURCE, wacz(tmp_path / "a.wacz", contents))
    assert len(found.documents) == 3
    assert [rule for _, rule in found.rejects] == ["broken_record", "other_record"]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, "holds no WARC file in archive/"),
        ({"archive/a.txt": b"x"}, r"byte \d+: 'archive/a.txt' is no WARC file"),
        ({"archive/a.warc.gz": b"no gzip"}, "archive/a.warc.gz: the name says gzip"),
        ({"archive/a.warc": b"<html>"}, "archive/a.warc: byte 0: not a web archive"),
    ],
)
def test_what_is_no_wacz_file_is_refused(tmp_path, contents, message):
    with pytest.raises(DataError, match=message):
        read(SOURCE, wacz(tmp_path / "a.wacz", contents))


def test_a_warc_file_that_zip_compressed_is_refused_with_what_to_do(tmp_path):
    contents = {"archive/a.warc": b"".join(pages(2))}
    path = wacz(tmp_path / "a.wacz", contents, compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match=r"a\.wacz: byte \d+: .*compressed.*zip -0"):
        SOURCE.slices(input_file(path), 1)


def test_a_wacz_file_that_was_cut_off_is_refused_when_the_plan_is_made(two):
    two.write_bytes(two.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"a\.wacz: no whole WACZ file"):
        SOURCE.slices(input_file(two), 1)


def test_entries_that_share_bytes_are_refused(two):
    content = bytearray(two.read_bytes())
    first = read_parts(str(two))[0]
    for place in [found.start() for found in re.finditer(b"PK\x01\x02", bytes(content))][1:3]:
        content[place + 42 : place + 46] = first.header.to_bytes(4, "little")
    two.write_bytes(content)
    with pytest.raises(DataError, match=r"byte \d+: .* overlaps"):
        SOURCE.slices(input_file(two), 1)


def test_a_bomb_in_a_wacz_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("corpuskit.stages.sources._stream.FREE_BYTES", 1 << 20)
    bomb = gzip.compress(record("resource", bytes(4 << 20)))
    path = wacz(tmp_path / "a.wacz", {"archive/a.warc.gz": bomb})
    with pytest.raises(DataError, match=r"a\.wacz: archive/a\.warc\.gz: .*decompression bomb"):
        read(Warc(paths=("x",), max_expansion=1), path)


def test_positions_that_could_be_those_of_another_part_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("corpuskit.stages.sources._web.archive.MAX_RATIO", 1)
    contents = {"archive/a.warc.gz": gzip.compress(b"".join(pages(50)))}
    with pytest.raises(DataError, match="more than keys can tell apart"):
        read(SOURCE, wacz(tmp_path / "a.wacz", contents))


@pytest.mark.parametrize(
    ("name", "content"), [("a.warc", b"PK\x03\x04xxxx"), ("a.warc.gz", b"BZh9")]
)
def test_what_is_no_archive_by_its_first_bytes_fails_the_plan(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: "):
        SOURCE.slices(input_file(tmp_path / name), 1)


def test_batches_of_an_arc_file_are_bounded_and_decide_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.arc.gz").write_bytes(members([file_description(), *arc_pages(9)]))
    whole = read(SOURCE, tmp_path / "a.arc.gz")
    monkeypatch.setattr("corpuskit.stages.sources._web.BLOCK_ROWS", 2)
    assert len(batches(SOURCE, tmp_path / "a.arc.gz")) >= 5
    assert read(SOURCE, tmp_path / "a.arc.gz") == whole
