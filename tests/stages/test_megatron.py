"""What the source reads out of Megatron's files, and which files it refuses."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from indexed_dataset import CODES, write_dataset
from source_reading import batches, input_file, read

from corpuskit.errors import DataError
from corpuskit.stages.sources import _indexed, megatron
from corpuskit.stages.sources.megatron import Megatron

DOCUMENTS = [[[5, 6, 7]], [[8], [9, 10]], [[]], [], [[11, 12], [13], [14]]]
SOURCE = Megatron(paths=("x.bin",))


def tokens(reading) -> list[list[int]]:
    return [document["tokens"] for document in reading.documents]


def flat(lists) -> list:
    return list(itertools.chain.from_iterable(lists))


def joined(documents) -> list[list[int]]:
    return [flat(document) for document in documents]


def broken(tmp_path, at, content, part=".idx", **options):
    """Write the documents, with some bytes of a file replaced."""
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS, **options)
    with path.with_suffix(part).open("r+b") as file:
        file.seek(at)
        file.write(content)
    return path


def test_documents_come_back_as_ids_without_text(tmp_path):
    reading = read(SOURCE, write_dataset(tmp_path / "a.bin", DOCUMENTS))
    assert tokens(reading) == joined(DOCUMENTS)
    assert reading.texts == [""] * 5
    assert [document["position"] for document in reading.documents] == [0, 1, 2, 3, 4]
    assert set(reading.documents[0]) == {"position", "text", "tokens"}


def test_a_sequence_can_be_a_document(tmp_path):
    source = Megatron(paths=("x.bin",), unit="sequence")
    reading = read(source, write_dataset(tmp_path / "a.bin", DOCUMENTS))
    assert tokens(reading) == [ids for document in DOCUMENTS for ids in document]


@pytest.mark.parametrize("dtype", CODES)
def test_every_type_of_ids_is_read(tmp_path, dtype):
    reading = read(SOURCE, write_dataset(tmp_path / "a.bin", DOCUMENTS, dtype))
    assert tokens(reading) == joined(DOCUMENTS)


def test_ids_go_up_to_32_bits(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[[0, 2**32 - 1]]], "int64")
    assert tokens(read(SOURCE, path)) == [[0, 2**32 - 1]]


def test_sequences_may_lie_in_any_order(tmp_path):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS, backwards=True)
    assert tokens(read(SOURCE, path)) == joined(DOCUMENTS)


def test_modes_of_sequences_are_passed_over(tmp_path):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS)
    with path.with_suffix(".idx").open("ab") as file:
        file.write(bytes(7))  # one int8 for each sequence
    assert tokens(read(SOURCE, path)) == joined(DOCUMENTS)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=40), max_size=3), max_size=12),
    st.integers(1, 600),
    st.sampled_from([1, 2, 5, 1 << 20]),
    st.sampled_from(["document", "sequence"]),
)
def test_slices_give_the_documents_of_the_whole(tmp_path, documents, target, chunk, unit):
    path = write_dataset(tmp_path / "a.bin", documents)
    source = Megatron(paths=("x.bin",), unit=unit)
    whole = source.slices(input_file(path), target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "CHUNK", chunk)
        patch.setattr(_indexed, "CHUNK", chunk)
        assert source.slices(input_file(path), target) == whole
        found = tokens(read(source, path, target))
    expected = joined(documents) if unit == "document" else flat(documents)
    assert found == expected


def test_a_slice_holds_the_ids_of_about_as_much_text_as_asked(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[[1] * 100]] * 1000)
    pieces = SOURCE.slices(input_file(path), 38_400)
    assert {piece.end - piece.begin for piece in pieces} == {100}
    assert {piece.size_bytes for piece in pieces} == {38_400}
    assert SOURCE.text_size(input_file(path), pieces[0]) == (38_400, False)


def test_a_document_over_the_target_is_a_slice_alone(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[[1]], [[1] * 500], [[1]]])
    pieces = SOURCE.slices(input_file(path), 200)
    assert [(piece.begin, piece.end) for piece in pieces] == [(0, 1), (1, 2), (2, 3)]


def test_empty_documents_do_not_pile_up_in_a_slice(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[]] * 100)
    assert len(SOURCE.slices(input_file(path), 640)) == 10


def test_batches_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(megatron, "BLOCK_BYTES", 4000)
    path = write_dataset(tmp_path / "a.bin", [[[1] * 300]] * 10)
    assert [len(batch.positions) for batch in batches(SOURCE, path)] == [3, 3, 3, 1]


def test_a_long_document_is_rejected_unread(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[[1]], [[2] * 26], [[3] * 25]])
    reading = read(SOURCE, path, most=100)
    assert tokens(reading) == [[1], [3] * 25]
    assert reading.rejects == [(1, "too_long")]
    assert reading.values == [(104.0, 100)]


def test_a_document_of_countless_empty_sequences_is_rejected(tmp_path):
    path = write_dataset(tmp_path / "a.bin", [[[]] * 26, [[3]]])
    assert tokens(read(SOURCE, path, most=100)) == [[3]]


def test_a_name_without_bin_is_refused(tmp_path):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS)
    with pytest.raises(DataError, match=r"a\.idx: must end in \.bin"):
        read(SOURCE, path.with_suffix(".idx"))


def test_an_index_that_is_missing_is_named(tmp_path):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS)
    path.with_suffix(".idx").unlink()
    with pytest.raises(OSError, match=r"a\.idx"):
        read(SOURCE, path)


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"TNTIDX\0\0", r"byte 0: an index of fairseq's older kind"),
        (0, b"PAR1", r"byte 0: an index of Megatron begins with"),
        (9, b"\2", r"byte 9: version must be 1, got 2"),
        (17, b"\x09", r"byte 17: no type of ids has the code 9"),
        (18, b"\xff", r"has 158 bytes; 255 sequences"),
        (34, struct.pack("<i", -1), r"byte 34: sequence 0 has a length of -1"),
        (34 + 7 * 4, struct.pack("<q", -2), r"byte 62: sequence 0, .* starts at -2"),
        (34 + 7 * 4 + 8, struct.pack("<q", 19), r"byte 70: sequence 1, .* starts at 19, .* 20 byt"),
        (34 + 7 * 12, struct.pack("<q", 1), r"byte 118: .* number 0 is 1"),
        (34 + 7 * 12 + 16, struct.pack("<q", 0), r"byte 134: .* number 2 is 0"),
        (34 + 7 * 12 + 40, struct.pack("<q", 6), r"byte 158: .* number 5 is 6"),
    ],
)
def test_a_broken_index_is_refused_with_its_byte(tmp_path, at, content, message):
    path = broken(tmp_path, at, content)
    with pytest.raises(DataError, match=r"a\.idx: " + message.replace("158 bytes;", r"\d+ bytes;")):
        SOURCE.slices(input_file(path), 1 << 20)


@pytest.mark.parametrize("size", [0, 8, 33, 34, 100])
def test_a_cut_index_is_refused(tmp_path, size):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS)
    index = path.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:size])
    with pytest.raises(DataError, match=r"a\.idx"):
        SOURCE.slices(input_file(path), 1 << 20)


def test_a_cut_bin_is_refused_when_it_is_planned_and_when_it_is_read(tmp_path):
    path = write_dataset(tmp_path / "a.bin", DOCUMENTS)
    file = input_file(path)
    pieces = SOURCE.slices(file, 1 << 20)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"starts at 18, and the \.bin has 19 bytes"):
        SOURCE.slices(input_file(path), 1 << 20)
    with pytest.raises(DataError, match=r"starts at 18, and the \.bin has 19 bytes"):
        list(SOURCE.read(file, pieces[0], 1 << 20))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("int8", -1), ("int16", -1), ("int32", -5), ("int64", -5), ("int64", 2**32)),
        *(("float32", 0.5), ("float64", -1.0), ("float64", np.nan), ("float32", np.inf)),
    ],
)
def test_what_is_no_id_is_refused_with_its_byte(tmp_path, dtype, value):
    width = np.dtype(dtype).itemsize
    path = broken(tmp_path, 4 * width, np.array([value], dtype).tobytes(), ".bin", dtype=dtype)
    with pytest.raises(DataError, match=rf"a\.bin: byte {4 * width}: \S+ is no token id"):
        read(SOURCE, path)
