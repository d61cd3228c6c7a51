"""Web archives: records, HTTP, encodings, damage, and pages that the extractor does not survive."""

from __future__ import annotations

import collections
import gzip
import os
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_reading import batches, read
from web_archives import PAGE, http, members, pages, record, response, taken_apart

from corpuskit.engine.plan import read_plan
from corpuskit.errors import ConfigError, CorpuskitError, DataError, UsageError
from corpuskit.stage import Known
from corpuskit.stages.sources import _extract
from corpuskit.stages.sources._extract import ExtractorSettings, HtmlPage, extract_pages
from corpuskit.stages.sources._extract_worker import decode_page
from corpuskit.stages.sources._web import records
from corpuskit.stages.sources._web.archive import Archive, parse_fields
from corpuskit.stages.sources._web.http import Response, TooMuchError, decode_body, parse_response
from corpuskit.stages.sources._web.records import read_records
from corpuskit.stages.sources.warc import Warc
from tests.patience import wait_until

pytest.importorskip("resiliparse")

SOURCE = Warc(paths=("x",))
ROOT = Path(__file__).resolve().parents[2]


def archive(tmp_path, *records: bytes, name: str = "a.warc.gz") -> Path:
    path = tmp_path / name
    path.write_bytes(members(list(records)))
    return path


def records_of(path: Path):
    opened = Archive(str(path), 1000)
    try:
        return list(read_records(opened.pieces(), lambda fields: True, 1 << 24, opened.end))
    finally:
        opened.close()


def rules(reading) -> list[str]:
    return [rule for _, rule in reading.rejects]


# ---------------------------------------------------------------- every record is accounted for


def test_a_record_is_a_document_or_a_row_of_the_ledger(tmp_path):
    path = archive(
        tmp_path,
        record("warcinfo", b"software: x\r\n"),
        record("request", b"GET / HTTP/1.1\r\n\r\n"),
        *pages(2),
        response("gone", status="404 Not Found"),
        response(b"\x89PNG", kind="image/png"),
        response(""),
        response("<html><body><script>let x = 1</script></body></html>"),
        record("response", b"no http at all", Content_Type="application/http"),
        record("response", b"2008 1.2.3.4", "dns:a.example", Content_Type="text/dns"),
        response(b"\x1f\x8bbroken", Content_Encoding="gzip"),
        record("metadata", b"{}", Content_Type="application/json"),
    )
    found = read(SOURCE, path)
    assert [document["url"] for document in found.documents] == [
        "http://a.example/0",
        "http://a.example/1",
    ]
    assert [text[:7] for text in found.texts] == ["Page 0.", "Page 1."]
    assert rules(found) == [
        "other_record", "other_record", "bad_status", "not_html", "no_text", "no_text",
        "broken_http", "not_html", "broken_http", "other_record",
    ]  # fmt: skip
    assert found.documents[0]["date"] == "2024-05-18T01:58:10Z"


@pytest.mark.real
def test_real_archives_are_accounted_for_record_by_record(shared_data):
    for name in ("warcfile", "clueweb-quirk", "example", "whirlwind"):
        path = shared_data / "warc" / f"{name}.warc.gz"
        expected = collections.Counter(kind for kind, _ in taken_apart(path.read_bytes()))
        found = records_of(path)
        assert collections.Counter(one.fields["warc-type"] for one in found) == expected
        assert not [one for one in found if one.problem]
        reading = read(SOURCE, path)
        assert len(reading.documents) + len(reading.rejects) == expected.total()
        assert rules(reading).count("other_record") == expected.total() - expected["response"]


@pytest.mark.real
def test_blocks_equal_those_of_another_reader(shared_data):
    warc = pytest.importorskip("fastwarc.warc")
    for name in ("warcfile", "clueweb-quirk", "example"):
        path = shared_data / "warc" / f"{name}.warc.gz"
        with path.open("rb") as file:
            theirs = [one.reader.read() for one in warc.ArchiveIterator(file, parse_http=False)]
        assert [one.body for one in records_of(path)] == theirs


@pytest.mark.real
def test_a_clipped_real_archive_is_one_row(shared_data):
    reading = read(SOURCE, shared_data / "warc" / "clipped.warc.gz")
    assert (reading.documents, rules(reading)) == ([], ["clipped_file"])
    assert reading.values == [(75207, 88275)]


# ---------------------------------------------------------------- compression


def test_all_compressions_give_the_same_documents(tmp_path):
    whole = b"".join(pages(3))
    forms = {
        "a.warc": whole,
        "b.warc.gz": members(pages(3)),
        "c.warc.gz": gzip.compress(whole),
        "d.warc.gz": gzip.compress(whole[:700]) + gzip.compress(whole[700:]),
        "e.warc.zst": zstandard.compress(whole),
        "f.warc.zst": b"".join(zstandard.compress(one) for one in pages(3)),
    }
    readings = []
    for name, content in forms.items():
        (tmp_path / name).write_bytes(content)
        readings.append(read(SOURCE, tmp_path / name))
    assert len(readings[0].documents) == 3
    assert all(reading == readings[0] for reading in readings)


def test_the_offset_is_that_of_the_gzip_member(tmp_path):
    path = archive(tmp_path, *pages(3))
    source = Warc(paths=("x",), columns=("offset", "status", "content_type", "record_id"))
    found = read(source, path).documents
    for document, expected in zip(found, pages(3), strict=True):
        member = path.read_bytes()[document["offset"] :]
        assert zlib.decompressobj(31).decompress(member) == expected
    assert {(one["status"], one["content_type"]) for one in found} == {(200, "text/html")}
    assert found[0]["record_id"].startswith("urn:uuid:")


def test_ids_may_be_those_of_records(tmp_path):
    found = read(Warc(paths=("x",), ids="record"), archive(tmp_path, *pages(1)))
    assert found.documents[0]["id"].startswith("urn:uuid:")


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("corpuskit.stages.sources._stream.FREE_BYTES", 1 << 20)
    path = archive(tmp_path, record("resource", bytes(1 << 20)))
    with pytest.raises(DataError, match=r"a\.warc\.gz: .* perhaps a decompression bomb"):
        read(Warc(paths=("x",), max_expansion=1), path)


def test_a_long_record_is_passed_over(tmp_path):
    path = archive(tmp_path, pages(1)[0], response("x" * 3000), pages(1)[0])
    found = read(Warc(paths=("x",), max_record_bytes=2000), path)
    assert (len(found.documents), rules(found)) == (2, ["too_long"])
    assert found.values[0][1] == 2000


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_what_is_no_archive_is_an_error(tmp_path, name):
    content = b"<html>a page</html>"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataError, match=rf"{name}: byte 0: not a web archive"):
        read(SOURCE, tmp_path / name)


def test_a_wat_file_is_refused(tmp_path):
    block = b'{"Container":{},"Envelope":{}}'
    path = archive(tmp_path, record("metadata", block, Content_Type="application/json"))
    with pytest.raises(DataError, match="a WAT file"):
        read(SOURCE, path)


# ---------------------------------------------------------------- damage


def test_what_comes_before_the_clipped_end_are_documents(tmp_path):
    content = members(pages(3))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(content[:-50])
    found = read(SOURCE, path)
    assert (len(found.documents), rules(found)) == (2, ["clipped_file"])
    with pytest.raises(DataError, match=r"a\.warc\.gz: byte \d+: clipped_file: .* within the gzip"):
        read(Warc(paths=("x",), strict=True), path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_one_long_stream_keeps_what_lies_before_the_damage(tmp_path, pack):
    content = pack(b"".join(pages(40)))
    name = {bytes: "a.warc", gzip.compress: "a.warc.gz"}.get(pack, "a.warc.zst")
    (tmp_path / name).write_bytes(content[: len(content) * 3 // 4])
    found = records_of(tmp_path / name)
    assert found[-1].problem == "clipped_file"
    # zstd gives out blocks of 128 KB as a whole, and this is less.
    least = 0 if name.endswith("zst") else 20
    assert len(found) > least
    assert [one.problem for one in found[:-1]] == [""] * (len(found) - 1)


def test_zstd_blocks_before_a_broken_one_are_read(tmp_path):
    rng = random.Random(1)
    bodies = [rng.randbytes(2000).hex().encode() for _ in range(150)]  # 5 blocks of 128 KB
    packer = zstandard.ZstdCompressor(write_checksum=True)
    content = bytearray(packer.compress(b"".join(record("resource", body) for body in bodies)))
    content[len(content) * 4 // 5] ^= 255
    (tmp_path / "a.warc.zst").write_bytes(content)
    found = records_of(tmp_path / "a.warc.zst")
    assert found[-1].problem == "clipped_file"
    whole = [one.body for one in found if not one.problem]
    assert len(whole) >= 3 * 128 * 1024 // len(record("resource", bodies[0]))
    assert whole == bodies[: len(whole)]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_takes_the_records_it_touches_and_no_others(tmp_path, data):
    packed = [gzip.compress(one, mtime=0) for one in pages(4)]
    content = bytearray(b"".join(packed))
    begin = data.draw(st.integers(2, len(content) - 1))
    end = min(len(content), begin + data.draw(st.integers(1, 400)))
    kind = data.draw(st.sampled_from(["flip", "cut", "zero", "drop"]))
    if kind == "flip":
        content[begin] ^= 1 << data.draw(st.integers(0, 7))
        end = begin + 1
    elif kind == "zero":
        content[begin:end] = bytes(end - begin)
    elif kind == "drop":
        del content[begin:end]
    else:
        del content[begin:]
        end = len(b"".join(packed))
    path = tmp_path / "a.warc.gz"
    path.write_bytes(content)
    found = records_of(path)
    whole = {one.body for one in found if not one.problem}
    at = 0
    for number, one in enumerate(packed):
        expected = http(PAGE.format(f"Page {number}."))
        if at + len(one) <= begin or at >= end:
            assert expected in whole
        at += len(one)
    assert whole <= {http(PAGE.format(f"Page {n}.")) for n in range(4)}
    positions = [one.position for one in found]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("claimed", ["5", "9999", "x", ""])
def test_a_wrong_length_costs_no_other_record(tmp_path, claimed):
    first, third = pages(2)
    odd = record("resource", b"twelve bytes", Content_Length=claimed)
    for pack in (members, b"".join):
        name = "a.warc.gz" if pack is members else "a.warc"
        (tmp_path / name).write_bytes(pack([first, odd, third]))
        found = records_of(tmp_path / name)
        assert found[0].body == http(PAGE.format("Page 0."))
        assert found[-1].body == http(PAGE.format("Page 1."))
        assert "broken_record" in {one.problem for one in found[1:-1]}


@pytest.mark.parametrize("name", ["a.warc", "a.warc.zst"])
@pytest.mark.parametrize("claimed", [5000, 10**12])
@pytest.mark.parametrize("most", [10, 1 << 20])
def test_a_length_that_is_too_large_costs_only_its_own_record(tmp_path, name, claimed, most):
    odd = record("resource", b"twelve bytes", Content_Length=str(claimed))
    content = b"".join([*pages(1), odd, *pages(20)])
    path = tmp_path / name
    path.write_bytes(zstandard.compress(content) if name.endswith("zst") else content)
    opened = Archive(str(path), 1000)
    found = list(read_records(opened.pieces(), lambda fields: True, most, opened.end))
    opened.close()
    # Bytes passed over are held up to a bound only, but the end of a plain file is known.
    is_lost = most == 10 and (claimed == 5000 or name.endswith("zst"))
    whole = [one for one in found if one.problem in {"", "too_long"}]
    assert (len(whole) < 21) == is_lost
    assert is_lost or "broken_record" in {one.problem for one in found}


@pytest.mark.parametrize("excess", range(1, 16))
def test_a_length_that_cuts_the_next_record_s_first_line_costs_only_its_own(tmp_path, excess):
    odd = record("resource", b"twelve bytes", Content_Length=str(16 + excess))
    path = tmp_path / "a.warc"
    path.write_bytes(odd + b"".join(pages(2)))
    assert [one.problem for one in records_of(path)] == ["broken_record", "", ""]


def test_records_that_give_bytes_back_too_often_end_the_search(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "REREAD_BYTES", 0)
    odd = record("resource", b"twelve bytes", Content_Length="9000")
    content = b"".join([odd] * 200)
    path = tmp_path / "a.warc.zst"
    path.write_bytes(zstandard.compress(content))
    found = records_of(path)
    assert 1 < len(found) < 200


def test_versions_in_a_row_are_one_row(tmp_path):
    path = tmp_path / "a.warc"
    path.write_bytes(pages(1)[0] + b"WARC/1.0\r\n" * 20_000 + b"\r\n".join([b"", *pages(1)]))
    found = records_of(path)
    assert len(found) < 10
    assert found[-1].body == http(PAGE.format("Page 0."))


def test_a_broken_first_member_is_no_reason_to_stop(tmp_path):
    content = bytearray(members(pages(2)))
    content[20:60] = bytes(40)
    (tmp_path / "a.warc.gz").write_bytes(content)
    found = read(SOURCE, tmp_path / "a.warc.gz")
    assert (len(found.documents), rules(found)) == (1, ["broken_record"])


def test_fields_are_read_as_they_are_written_in_the_wild():
    assert parse_fields(b"A: 1\r\nb:2\r\n folded\nA: 3\nnonsense\r\n: x") == {
        "a": "1",
        "b": "2 folded",
    }


def test_a_continued_line_of_a_second_field_is_not_the_first_one_s():
    assert parse_fields(b"A: 1\n two\nA: 3\n four") == {"a": "1 two"}


def test_a_header_of_blanks_or_continued_lines_is_read():
    # A pattern that goes back over blanks takes hours.
    header = b"a" + b" " * 2_000_000 + b"b\n" + b"c: d" + b"\n e" * 100_000
    assert len(parse_fields(header)["c"]) == 200_001


# ---------------------------------------------------------------- HTTP


@pytest.mark.parametrize(
    "body",
    [b"%PDF-1.4\n", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"PK\x03\x04",
     gzip.compress(gzip.compress(b"x", mtime=0), mtime=0)],
)  # fmt: skip
def test_files_that_are_served_as_pages_are_none(tmp_path, body):
    path = archive(tmp_path, response(body + PAGE.encode()))
    assert rules(read(SOURCE, path)) == ["not_html"]


@pytest.mark.parametrize(
    ("identified", "is_page"),
    [("application/pdf", False), ("image/png", False), ("application/octet-stream", True),
     ("application/xml", True), ("text/plain", True), ("", True)],
)  # fmt: skip
def test_what_the_crawler_identified_as_no_text_is_no_page(tmp_path, identified, is_page):
    block = http(PAGE)
    more = {"WARC_Identified_Payload_Type": identified, "Content_Type": "application/http"}
    found = read(SOURCE, archive(tmp_path, record("response", block, **more)))
    assert (len(found.documents), rules(found)) == (int(is_page), [] if is_page else ["not_html"])


def test_gzip_without_a_header_is_decoded_once(tmp_path):
    path = archive(tmp_path, response(gzip.compress(PAGE.format("Encoded.").encode())))
    assert read(SOURCE, path).texts[0].startswith("Encoded.")


@pytest.mark.parametrize(
    ("coding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)]
)
def test_bodies_in_several_pieces_are_whole(coding, pack):
    body = b"".join(pack(b"%d," % number) for number in range(500)) + pack(b"") + pack(b"end")
    given = Response(200, {"content-encoding": coding}, body)
    assert decode_body(given, 1 << 20) == b"".join(b"%d," % n for n in range(500)) + b"end"
    with pytest.raises(TooMuchError):
        decode_body(given, 1000)


def test_a_gzip_body_cut_short_or_followed_by_others_gives_what_is_there():
    fields, packed = {"content-encoding": "gzip"}, gzip.compress(PAGE.encode())
    assert decode_body(Response(200, fields, packed + b"\r\n"), 10_000) == PAGE.encode()
    assert PAGE.encode().startswith(decode_body(Response(200, fields, packed[:-20]), 10_000))


def test_all_that_decides_about_a_page_is_in_the_fingerprint():
    assert {"resiliparse", "brotli"} <= set(SOURCE.libraries())


def test_brotli_is_asked_for_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "brotli", None)
    with pytest.raises(UsageError, match=r"brotli is not installed.*Run: .*html"):
        SOURCE.check(Known(("web",), {}, {}))


def test_a_header_that_does_not_end_is_no_response():
    assert parse_response(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000) is None


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"Transfer_Encoding": "chunked"}, lambda p: b"%x\r\n%s\r\n0\r\n\r\n" % (len(p), p)),
        ({"Transfer_Encoding": "chunked"}, bytes),
        ({"Content_Encoding": "gzip"}, gzip.compress),
        ({"Content_Encoding": "gzip"}, bytes),
        ({"Content_Encoding": "deflate"}, zlib.compress),
        ({"Content_Encoding": "deflate"}, lambda p: zlib.compress(p)[2:-4]),
        ({"Content_Encoding": "zstd"}, zstandard.compress),
        ({"Content_Encoding": "br"}, bytes),
    ],
)
def test_bodies_are_decoded_if_they_look_encoded(tmp_path, fields, body):
    path = archive(tmp_path, response(body(PAGE.format("Encoded.").encode()), **fields))
    assert read(SOURCE, path).texts[0].startswith("Encoded.")


def test_brotli_is_decoded_where_it_is_installed(tmp_path):
    brotli = pytest.importorskip("brotli")
    body = brotli.compress(PAGE.format("Encoded.").encode())
    path = archive(tmp_path, response(body, Content_Encoding="br"))
    assert read(SOURCE, path).texts[0].startswith("Encoded.")


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, zstandard.compress])
def test_a_body_that_decodes_to_too_much_is_passed_over(tmp_path, pack):
    coding = {gzip.compress: "gzip", zlib.compress: "deflate"}.get(pack, "zstd")
    path = archive(tmp_path, response(pack(bytes(1 << 20)), Content_Encoding=coding))
    assert rules(read(Warc(paths=("x",), max_record_bytes=1 << 19), path)) == ["too_long"]


def test_a_response_may_lack_all_but_its_status():
    assert parse_response(b"HTTP/1.0 200") == (200, {}, b"")
    assert parse_response(b"GET / HTTP/1.0") is None


def test_a_page_without_content_type_is_told_by_its_beginning(tmp_path):
    page = PAGE.format("Sniffed.")
    path = archive(tmp_path, response(page, kind=""), response("just words", kind=""))
    found = read(SOURCE, path)
    assert (len(found.documents), rules(found)) == (1, ["not_html"])


def test_resources_come_without_http(tmp_path):
    page = PAGE.format("A resource.").encode()
    path = archive(tmp_path, record("resource", page, Content_Type="text/html; charset=utf-8"))
    found = read(Warc(paths=("x",), records=("response", "resource")), path)
    assert found.texts[0].startswith("A resource.")


# ---------------------------------------------------------------- encodings

JAPANESE = "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0"
TEXT = "caf\xe9 \u201cna\xefve\u201d \u20ac"


@pytest.mark.parametrize(
    ("page", "label", "expected"),
    [
        (TEXT.encode(), "", TEXT),
        (TEXT.encode(), "iso-8859-1", TEXT),
        (TEXT.encode()[:-1], "utf-8", TEXT[:-1]),
        (b"\xef\xbb\xbf" + TEXT.encode(), "", TEXT),
        (b"\xff\xfe" + TEXT.encode("utf-16-le"), "", TEXT),
        (TEXT.encode("cp1252"), "windows-1252", TEXT),
        (JAPANESE.encode("shift_jis"), "x-sjis", JAPANESE),
        (b"<meta charset=koi8-r>" + "\u0440\u0435\u043a\u0430".encode("koi8-r"), "",
         "<meta charset=koi8-r>\u0440\u0435\u043a\u0430"),
        (TEXT.encode("cp1252"), "no-such-charset", TEXT),
        (b"", "", ""),
    ],
)  # fmt: skip
def test_pages_are_decoded(page, label, expected):
    assert decode_page(page, label) == expected


@given(page=st.binary(max_size=200), label=st.text(max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_some_text(page, label):
    assert isinstance(decode_page(page, label), str)


# ---------------------------------------------------------------- pages that are no pleasure

GOOD = HtmlPage(PAGE.format("Good.").encode())
HEAVY = HtmlPage(b"<p>word word word</p>" * 100_000)


def outcome(pages_given, **params):
    return [one.rule for one in extract_pages(pages_given, ExtractorSettings(**params))]


def test_a_page_that_takes_too_long_costs_only_itself():
    found = outcome([GOOD, HEAVY, GOOD], page_seconds=0.01)
    assert found == ["", "extraction_timeout", ""]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel bounds memory on Linux only")
def test_a_page_that_takes_too_much_memory_costs_only_itself():
    heavier = HtmlPage(HEAVY.content * 4)
    found = outcome([GOOD, heavier, GOOD], page_memory_mb=64, page_seconds=60.0)
    assert found[::2] == ["", ""]
    assert found[1] in {"extraction_memory", "extraction_crash"}


@pytest.mark.slow
def test_a_page_over_which_the_parser_hangs_is_ended():
    nested = HtmlPage(b"<div>" * 200_000 + b"x")  # resiliparse 2.0 takes quadratic time
    assert outcome([GOOD, nested, GOOD], page_seconds=0.5) == ["", "extraction_timeout", ""]


def test_a_killed_extractor_is_replaced():
    service = _extract._service(os.getpid())
    assert [one.rule for one in service.extract([GOOD], ExtractorSettings())] == [""]
    service._child.kill()
    assert [one.rule for one in service.extract([GOOD, GOOD], ExtractorSettings())] == ["", ""]


def test_an_extractor_that_cannot_start_is_an_error_and_no_verdict(monkeypatch):
    monkeypatch.setattr(_extract, "WORKER", "corpuskit.no_such_module")
    with pytest.raises(CorpuskitError, match="cannot be started: exit code 1"):
        _extract._Service().extract([GOOD], ExtractorSettings())


def test_an_extractor_is_replaced_after_enough_pages(monkeypatch):
    service = _extract._service(os.getpid())
    service.extract([GOOD], ExtractorSettings())
    before = service._child.pid
    monkeypatch.setitem(_extract.RECYCLE_PAGES, "resiliparse", 1)
    service.extract([GOOD], ExtractorSettings())
    assert service._child.pid != before


def test_extracted_rules_reach_the_ledger(tmp_path):
    path = archive(tmp_path, response(HEAVY.content))
    found = read(Warc(paths=("x",), page_seconds=0.01), path)
    assert rules(found) == ["extraction_timeout"]
    assert found.values[0][1] == 0.01
    assert "out of CPU time" in found.heads[0]


@pytest.mark.slow
def test_the_extractor_ends_with_who_started_it():
    code = (
        "import os, time\n"
        "from corpuskit.stages.sources._extract import HtmlPage, "
        "ExtractorSettings, extract_pages, _service\n"
        "extract_pages([HtmlPage(b'<p>x y z</p>')], ExtractorSettings())\n"
        "print(_service(os.getpid())._child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment
    ) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not _is_running(child))
    assert not _is_running(child)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not (stat.exists() and ") Z " in stat.read_text())


@pytest.mark.slow
def test_trafilatura_extracts_too(tmp_path):
    pytest.importorskip("trafilatura")
    path = archive(tmp_path, *pages(1))
    found = read(Warc(paths=("x",), extractor="trafilatura", favour="precision"), path)
    assert found.texts[0].startswith("Page 0. The river")
    assert "Home" not in found.texts[0]


def test_all_text_is_more_than_the_main_text(tmp_path):
    path = archive(tmp_path, *pages(1))
    assert "Home" in read(Warc(paths=("x",), main_content=False), path).texts[0]
    assert "Home" not in read(SOURCE, path).texts[0]


def test_a_missing_extractor_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr(_extract.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"Run: .*html"):
        SOURCE.check(Known(("web",), {}, {}))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["warc", "html"])
def test_a_plan_fails_at_the_line_of_an_extractor_that_cannot_be_imported(
    tmp_path, monkeypatch, form
):
    """As with pip 23.2, which does not install what lxml's extra html_clean asks for."""
    pytest.importorskip("trafilatura")
    (tmp_path / "lxml_html_clean").mkdir()
    (tmp_path / "lxml_html_clean" / "__init__.py").write_text("raise ImportError('not there')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source, stage = "{warc: x.warc.gz, extractor: trafilatura}", "html: {favour: recall}"
    if form == "html":
        source, stage = "{jsonl: x.jsonl}", "html: {extractor: trafilatura}"
    path = tmp_path / "p.yaml"
    path.write_text(f"output: out\nsources:\n  web: {source}\nstages:\n  - {stage}\n")
    line = {"warc": r"p\.yaml:3:\d+", "html": r"p\.yaml:5:\d+"}[form]
    with pytest.raises(ConfigError, match=rf"{line}.*trafilatura: cannot be loaded.*Run: .*html"):
        read_plan(path)


def test_batches_are_bounded_and_decide_nothing(tmp_path, monkeypatch):
    path = archive(tmp_path, *pages(9))
    whole = read(SOURCE, path)
    monkeypatch.setattr("corpuskit.stages.sources._web.BLOCK_ROWS", 2)
    assert len(batches(SOURCE, path)) >= 5
    assert read(SOURCE, path) == whole
