"""Shuffling permutes the rows of each source, however they were cut."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.formats.shards import TOKEN_GROUP_ROWS
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.loader.order import permute
from corpuskit.stages import _routing
from corpuskit.stages.sequences import shuffle as module
from corpuskit.stages.sequences._rows import packed_schema
from corpuskit.stages.sequences.pack import Pack
from corpuskit.stages.sequences.shuffle import Shuffle
from corpuskit.stages.sequences.tokenize import Tokenize
from tests.stages.sequence_runner import pack_texts, rows_of, token_matrix

SEQ_LEN = 7


def numbered(first, count):
    """Return texts that fill one row each, all different."""
    return [f"{number:07d}" for number in range(first, first + count)]


def packed(folder, texts, tokenizer, **options):
    pack = Pack(seq_len=SEQ_LEN, method="concat")
    return pack_texts(folder, texts, Tokenize(tokenizer=tokenizer), pack, **options)


def texts_of(rows):
    return [bytes(tokens[:-1].astype(np.uint8)).decode() for tokens in token_matrix(rows)]


def test_rows_of_a_source_are_permuted_with_its_key(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 30), numbered(30, 20)]}, byte_tokenizer, seed=5)
    run.run_stage(Shuffle(rows_per_part=16))
    positions = permute(np.arange(50), 50, 5, "shuffle", "web")
    expected = dict(zip(positions.tolist(), numbered(0, 50), strict=True))
    rows = texts_of(rows_of(run, "shuffle.gather/tokens"))
    assert rows == [expected[position] for position in range(50)]
    assert rows != sorted(rows)


@settings(deadline=None, max_examples=15)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=4),
    order=st.sampled_from(["global", "as_read"]),
    backwards=st.booleans(),
)
def test_cells_and_tasks_do_not_matter(byte_tokenizer, new_folder, cuts, order, backwards):
    edges = [0, *sorted(cuts), 60]
    cells = [numbered(a, b - a) for a, b in itertools.pairwise(edges)]
    found = []
    for texts in ([numbered(0, 60)], cells):
        run = packed(new_folder(), {"web": texts, "books": [numbered(100, 9)]}, byte_tokenizer)
        run.run_stage(Shuffle(order=order, rows_per_part=13), backwards=backwards)
        found.append(run.parts("shuffle.gather/tokens") + run.parts("shuffle.gather/run:doc_rows"))
    assert found[0] == found[1]


def test_as_read_keeps_the_order(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 30), numbered(30, 20)]}, byte_tokenizer)
    run.run_stage(Shuffle(order="as_read"))
    assert texts_of(rows_of(run, "shuffle.gather/tokens")) == numbered(0, 50)


def test_rows_that_do_not_fit_at_once_are_shuffled_the_same(
    byte_tokenizer, tmp_path_factory, monkeypatch
):
    def digests():
        run = packed(tmp_path_factory.mktemp("run"), {"web": [numbered(0, 200)]}, byte_tokenizer)
        run.run_stage(Shuffle(rows_per_part=100))
        runs = len(run.parts("shuffle.scatter/run:rows-web"))
        return runs, [part.digest for part in run.parts("shuffle.gather/tokens")]

    whole = digests()
    monkeypatch.setattr(module, "PART_BYTES", 1)
    pieces = digests()
    assert (whole[0], pieces[0]) == (1, -(-200 // TOKEN_GROUP_ROWS))
    assert whole[1] == pieces[1]


def test_a_second_level_of_the_exchange_changes_nothing(byte_tokenizer, new_folder, monkeypatch):
    texts = {"web": [numbered(0, 40), numbered(40, 50)], "books": [numbered(100, 30)]}

    def found(memory_bytes):
        run = packed(new_folder(), texts, byte_tokenizer)
        run.memory_bytes = memory_bytes
        run.run_stage(Shuffle(rows_per_part=13))
        routes = len({part.unit for part in run.phases["shuffle.route"].parts})
        tokens = run.parts("shuffle.gather/tokens") + run.parts("shuffle.gather/run:doc_rows")
        return routes, tokens

    expected = found(1 << 30)
    monkeypatch.setattr(_routing, "MAX_OPENS", 5)  # web has more, books fewer
    assert found(1 << 30)[1] == expected[1]
    monkeypatch.setattr(_routing, "MAX_OPENS", 0)
    row_bytes = packed_schema(packed(new_folder(), texts, byte_tokenizer).given).field("tokens")
    routed = found(30 * module.ROUTE_COPIES * row_bytes.type.byte_width)
    assert expected[0] == 0
    assert routed[0] > 3  # two groups of producers of web, and several ranges
    assert routed[1] == expected[1]


def test_sources_are_shuffled_apart_and_by_their_names(byte_tokenizer, tmp_path):
    texts = {"web": [numbered(0, 40)], "books": [numbered(0, 40)]}
    run = packed(tmp_path, texts, byte_tokenizer)
    run.run_stage(Shuffle())
    web, books = (texts_of(rows_of(run, "shuffle.gather/tokens", name)) for name in texts)
    assert sorted(web) == sorted(books) == numbered(0, 40)
    assert web != books


def test_parts_say_what_they_hold(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 30)], "books": [numbered(0, 5)]}, byte_tokenizer)
    run.run_stage(Shuffle(rows_per_part=20))
    parts = run.parts("shuffle.gather/tokens")
    facts = [(part.unit, part.source, part.first, part.last, part.rows) for part in parts]
    assert facts == [(0, "web", 0, 19, 20), (1, "web", 20, 29, 10), (2, "books", 0, 4, 5)]
    assert [part.path.split("/part-")[0] for part in parts] == [
        "tokens/web",
        "tokens/web",
        "tokens/books",
    ]
    footer = json.loads(pq.read_schema(run.root / parts[1].path).metadata[b"corpuskit"])
    assert footer == {
        "format": 1,
        "source": "web",
        "seq_len": SEQ_LEN,
        "dtype": "uint16",
        "tokenizer": run.given["tokenizer"]["hash"],
        "first_row": 20,
        "shuffled": True,
    }


def test_documents_are_found_in_their_rows(byte_tokenizer, tmp_path):
    texts = ["a" * 3, "b" * 20, "c", "d" * 7, "e" * 11]
    run = packed(tmp_path, {"web": [texts]}, byte_tokenizer)
    run.run_stage(Shuffle(rows_per_part=3))
    tokens = token_matrix(rows_of(run, "shuffle.gather/tokens"))
    found = {}
    for part in run.parts("shuffle.gather/run:doc_rows"):
        entries = read_shuffle(run.root / part.path).to_pylist()
        assert [entry["key"] for entry in entries] == sorted(entry["key"] for entry in entries)
        for entry in entries:
            begin = entry["first_token"]
            own = tokens[entry["row"], begin : begin + entry["num_tokens"]].tolist()
            found.setdefault(entry["key"], []).extend(own)
    assert sorted(found) == [0, 1, 2, 3, 4]
    for key, one in enumerate(texts):
        assert sorted(found[key]) == sorted([*one.encode(), 256])


def test_default_parts_hold_about_64_mib(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 1)]}, byte_tokenizer)
    rows = Shuffle()._rows_per_part(run.given)
    assert rows % TOKEN_GROUP_ROWS == 0
    assert 0 <= (64 << 20) - rows * 16 < 64 * 16


def test_a_lost_run_is_noticed(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 9), numbered(9, 9)]}, byte_tokenizer)
    run.phases["pack"].counters["rows/web"] += 1
    with pytest.raises(DataError, match="rows 0 to 19 of source 'web' are not each there once"):
        run.run_stage(Shuffle())


def test_a_broken_part_is_named(byte_tokenizer, tmp_path):
    run = packed(tmp_path, {"web": [numbered(0, 9)]}, byte_tokenizer)
    path = run.root / run.parts("pack/packed")[0].path
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="not a whole part of packed rows"):
        run.run_stage(Shuffle())
