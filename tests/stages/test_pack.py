"""Packed rows hold each token of each document exactly once, whatever the batches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import make_keys
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.kernels.packing import CONTINUES, GOES_ON, PADDING
from corpuskit.stages.sequences.pack import Pack
from corpuskit.stages.sequences.tokenize import Tokenize
from tests.stages.sequence_runner import pack_texts, rows_of, token_matrix

METHODS = ["best_fit", "concat"]
EOS, PAD = 256, 257


def packed(folder, texts, byte_tokenizer, pack, **options):
    run = pack_texts(folder, texts, Tokenize(tokenizer=byte_tokenizer), pack, **options)
    return run, rows_of(run, "pack/packed")


def documents_in(rows):
    """Return key -> its tokens in row order, flags, and bytes."""
    found = {}
    for tokens, row in zip(token_matrix(rows), rows.drop("tokens").to_pylist(), strict=True):
        ends = [*row["doc_starts"][1:], len(tokens)]
        segments = zip(row["doc_starts"], ends, row["doc_keys"], row["flags"], strict=True)
        for (start, end, key, flag), size in zip(segments, row["text_bytes"], strict=True):
            entry = found.setdefault(key, ([], [], []))
            entry[0].extend(tokens[start:end].tolist())
            entry[1].append(flag)
            entry[2].append(size)
    return found


def text(length):
    return "x" * (length - 1)  # a token a byte, and eos


lengths_of_cells = st.lists(st.lists(st.integers(1, 70), max_size=25), min_size=1, max_size=3)


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=25)
@given(cells=lengths_of_cells, seq_len=st.integers(1, 40), window=st.integers(1, 30))
def test_each_token_is_stored_once_in_order(
    byte_tokenizer, new_folder, method, cells, seq_len, window
):
    cells = [[text(n)[: n // 2] + "y" * ((n - 1) // 2) for n in cell] for cell in cells]
    pack = Pack(seq_len=seq_len, method=method, window=window)
    if not any(cells):
        return
    _, rows = packed(new_folder(), {"web": cells}, byte_tokenizer, pack)
    found = documents_in(rows)
    found.pop(-1, None)
    texts = [one for cell in cells for one in cell]
    assert [found[key][0] for key in sorted(found)] == [[*one.encode(), EOS] for one in texts]
    assert [sum(found[key][2]) for key in sorted(found)] == [len(one) for one in texts]


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=15)
@given(cells=lengths_of_cells, batch=st.integers(1, 30))
def test_batch_boundaries_do_not_matter(byte_tokenizer, new_folder, method, cells, batch):
    texts = {"web": [[text(n) for n in cell] for cell in cells]}
    pack = Pack(seq_len=20, method=method, window=7)
    tokenize = Tokenize(tokenizer=byte_tokenizer)
    runs = [
        pack_texts(new_folder(), texts, tokenize, pack, batch_docs=size) for size in (batch, 1000)
    ]
    assert runs[0].phases["pack"] == runs[1].phases["pack"]


def test_best_fit_cuts_only_documents_longer_than_a_row(byte_tokenizer, tmp_path):
    lengths = [5, 33, 32, 34, 66, 67, 1, 33]
    run, rows = packed(
        tmp_path, {"web": [[text(n) for n in lengths]]}, byte_tokenizer, Pack(seq_len=32)
    )
    found = documents_in(rows)
    pieces = [found[key][1] for key in sorted(found) if key >= 0]
    two, three = [GOES_ON, CONTINUES], [GOES_ON, CONTINUES | GOES_ON, CONTINUES]
    assert pieces == [[0], [0], [0], two, two, three, [0], [0]]
    assert run.counters("pack")["cut_documents/web"] == 3


def test_concat_pads_only_the_last_row(byte_tokenizer, tmp_path):
    lengths = [5, 33, 32, 34, 66, 67, 1, 34]
    pack = Pack(seq_len=32, method="concat")
    _, rows = packed(tmp_path, {"web": [[text(n) for n in lengths]]}, byte_tokenizer, pack)
    flags = rows.column("flags").to_pylist()
    assert [PADDING in row for row in flags] == [False] * 8 + [True]
    assert len(rows) == -(-sum(lengths) // 33)


def test_padding_is_flagged_and_holds_the_pad_token(byte_tokenizer, tmp_path):
    _, rows = packed(tmp_path, {"web": [[text(5), text(6)]]}, byte_tokenizer, Pack(seq_len=15))
    assert token_matrix(rows)[0, 11:].tolist() == [PAD] * 5
    (row,) = rows.drop("tokens").to_pylist()
    assert row == {
        "doc_starts": [0, 5, 11],
        "doc_keys": [0, 1, -1],
        "text_bytes": [4, 5, 0],
        "flags": [0, 0, PADDING],
    }


def test_documents_of_usual_lengths_fill_99_percent(byte_tokenizer, tmp_path):
    rng = np.random.default_rng(1)
    lengths = np.clip(np.exp(rng.normal(4.2, 1.05, 3000)), 4, 2000).astype(int).tolist()
    run, rows = packed(
        tmp_path, {"web": [[text(n) for n in lengths]]}, byte_tokenizer, Pack(seq_len=256)
    )
    counters = run.counters("pack")
    assert counters["padding/web"] == len(rows) * 257 - sum(lengths)
    assert counters["padding/web"] < 0.01 * len(rows) * 257


def test_counters_add_up_per_source(byte_tokenizer, tmp_path):
    texts = {"web": [["a", "bb"], ["ccc"]], "books": [["d" * 40]]}
    run, rows = packed(tmp_path, texts, byte_tokenizer, Pack(seq_len=9))
    assert dict(run.counters("pack")) == {
        "documents/web": 3,
        "tokens/web": 9,
        "text_bytes/web": 6,
        "rows/web": 2,
        "padding/web": 11,
        "cut_documents/web": 0,
        "copies/web": 3,
        "cut_fitting/web": 0,
        "documents/books": 1,
        "tokens/books": 41,
        "text_bytes/books": 40,
        "rows/books": 5,
        "padding/books": 9,
        "cut_documents/books": 1,
        "copies/books": 1,
        "cut_fitting/books": 0,
    }
    assert len(rows) == 7


def test_ids_can_be_looked_up_both_ways(byte_tokenizer, tmp_path):
    texts = {"web": [["a", "b"], ["c"]], "books": [["d"]]}
    run, _ = packed(tmp_path, texts, byte_tokenizer, Pack(seq_len=9))
    tables = [read_shuffle(run.root / part.path) for part in run.parts("pack/run:ids")]
    pairs = [tuple(row.values()) for table in tables for row in table.to_pylist()]
    book = int(make_keys(1, np.array([0]))[0])
    assert sorted(pairs) == [(0, "web-0"), (1, "web-1"), (2, "web-2"), (book, "books-0")]
    tables = [read_shuffle(run.root / part.path) for part in run.parts("pack/run:id_hashes")]
    hashes = {row["key"]: row["id_hash"] for table in tables for row in table.to_pylist()}
    for key, name in pairs:
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        assert hashes[key] == int.from_bytes(digest, "little")


def test_a_cell_without_documents_writes_nothing(byte_tokenizer, tmp_path):
    run = pack_texts(tmp_path, {"web": [[]]}, Tokenize(tokenizer=byte_tokenizer), Pack(seq_len=9))
    assert run.phases["pack"].parts == []
    assert not any(run.counters("pack").values())


def test_documents_without_tokens_take_no_place(byte_tokenizer, tmp_path):
    tokenize = Tokenize(tokenizer=byte_tokenizer, add_eos=False)
    run = pack_texts(tmp_path, {"web": [["", "ab", "", "c"]]}, tokenize, Pack(seq_len=4))
    (row,) = rows_of(run, "pack/packed").drop("tokens").to_pylist()
    assert row["doc_keys"] == [1, 3, -1]


def test_rows_of_a_large_vocabulary_are_32_bits_wide(tmp_path, byte_tokenizer):
    content = json.loads(Path(byte_tokenizer).read_bytes())
    content["model"] |= {
        "vocab": {
            **content["model"]["vocab"],
            **{token["content"]: token["id"] for token in content["added_tokens"]},
            "zz": 70_000,
        },
        "merges": [["z", "z"]],
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    run, rows = packed(tmp_path, {"web": [["azz"]]}, str(path), Pack(seq_len=3))
    eos, pad = (run.given["tokenizer"][name] for name in ("eos", "pad"))
    assert token_matrix(rows, "uint32").tolist() == [[ord("a"), 70_000, eos, pad]]
