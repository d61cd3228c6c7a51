"""Documents are packed as often as they are to be, and bands of them apart."""

from __future__ import annotations

import bisect
import itertools

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.kernels.packing import PADDING
from corpuskit.loader.order import permute
from corpuskit.stages.sequences.pack import Bands, Pack
from corpuskit.stages.sequences.shuffle import Shuffle
from corpuskit.stages.sequences.tokenize import Tokenize
from tests.stages.sequence_runner import pack_texts, rows_of, token_matrix

EOS = 256
COPIES, SCORE = "upsample.copies", "percentile.rank"
EDGES = (0.25, 0.75)


def text(number, length):
    return chr(97 + number % 26) * (length - 1)  # a token a byte, and eos


def packed(folder, cells, tokenizer, pack, *, copies=None, scores=None, **options):
    """Pack cells of texts; copies and scores are those of the documents in their order."""
    ids = [f"web-{number}" for number in range(sum(map(len, cells)))]
    values = {}
    if copies is not None:
        values[COPIES] = dict(zip(ids, copies, strict=True))
    if scores is not None:
        values[SCORE] = dict(zip(ids, scores, strict=True))
    return pack_texts(
        folder, {"web": cells}, Tokenize(tokenizer=tokenizer), pack, values=values, **options
    )


def segments(rows):
    """Yield (row, key, tokens, flag) of each segment that is no padding."""
    for number, (tokens, row) in enumerate(
        zip(token_matrix(rows), rows.drop("tokens").to_pylist(), strict=True)
    ):
        ends = [*row["doc_starts"][1:], len(tokens)]
        for start, end, key, flag in zip(
            row["doc_starts"], ends, row["doc_keys"], row["flags"], strict=True
        ):
            if not flag & PADDING:
                yield number, key, tokens[start:end].tolist(), flag


documents = st.lists(
    st.tuples(st.integers(1, 50), st.integers(1, 4), st.sampled_from([0.0, 0.25, 0.5, 0.75, None])),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("method", ["best_fit", "concat"])
@settings(deadline=None, max_examples=25)
@given(docs=documents, cut=st.integers(0, 20), seq_len=st.integers(1, 30), window=st.integers(1, 9))
def test_all_tokens_are_stored_so_often_and_no_row_has_two_copies(
    byte_tokenizer, new_folder, method, docs, cut, seq_len, window
):
    texts = [text(number, length) for number, (length, _, _) in enumerate(docs)]
    cells = [cell for cell in (texts[:cut], texts[cut:]) if cell]
    pack = Pack(
        seq_len=seq_len, method=method, window=window, bands=Bands(column=SCORE, edges=EDGES)
    )
    _, copies, scores = zip(*docs, strict=True)
    run = packed(new_folder(), cells, byte_tokenizer, pack, copies=copies, scores=scores)
    found = list(segments(rows_of(run, "pack/packed")))
    for number, one in enumerate(texts):
        tokens = [token for _, key, own, _ in found if key == number for token in own]
        assert sorted(tokens) == sorted([*one.encode(), EOS] * copies[number])
        heads = [flag for _, key, _, flag in found if key == number and not flag & 1]
        assert len(heads) == copies[number]
    pairs = [(row, key) for row, key, _, _ in found]
    assert len(set(pairs)) == len(pairs)
    bands = [0 if s is None else bisect.bisect_right(EDGES, s) for s in scores]
    of_row = {}
    for row, key, _, _ in found:
        assert of_row.setdefault(row, bands[key]) == bands[key]


@settings(deadline=None, max_examples=15)
@given(docs=documents, batch=st.integers(1, 20))
def test_batch_boundaries_do_not_matter(byte_tokenizer, new_folder, docs, batch):
    lengths, copies, scores = zip(*docs, strict=True)
    cells = [[text(number, length) for number, length in enumerate(lengths)]]
    pack = Pack(seq_len=20, window=7, bands=Bands(column=SCORE, edges=EDGES))
    runs = [
        packed(
            new_folder(), cells, byte_tokenizer, pack, copies=copies, scores=scores, batch_docs=size
        )
        for size in (batch, 1000)
    ]
    assert runs[0].phases["pack"] == runs[1].phases["pack"]


def test_documents_and_their_copies_are_counted(byte_tokenizer, tmp_path):
    cells = [[text(0, 5), text(1, 12)]]
    run = packed(tmp_path, cells, byte_tokenizer, Pack(seq_len=9), copies=[1, 3])
    counters = run.counters("pack")
    expected = {"documents": 2, "copies": 4, "tokens": 41, "text_bytes": 37, "cut_documents": 3}
    assert {name: counters[f"{name}/web"] for name in expected} == expected
    assert counters["rows/web"] * 10 == counters["tokens/web"] + counters["padding/web"]


def test_copies_say_1_for_all_where_no_stage_repeats(byte_tokenizer, new_folder):
    cells = [[text(number, 3 + number % 7) for number in range(40)]]
    plain, ones = (
        packed(new_folder(), cells, byte_tokenizer, Pack(seq_len=9), copies=copies)
        for copies in (None, [1] * 40)
    )
    assert plain.phases["pack"] == ones.phases["pack"]


def test_of_documents_that_concat_cuts_those_that_fit_a_row_are_counted(byte_tokenizer, tmp_path):
    cells = [[text(0, 6), text(1, 10), text(2, 25)]]
    run = packed(tmp_path, cells, byte_tokenizer, Pack(seq_len=9, method="concat"))
    assert run.counters("pack")["cut_documents/web"] == 2
    assert run.counters("pack")["cut_fitting/web"] == 1


def test_a_band_is_a_part_that_says_which(byte_tokenizer, tmp_path):
    cells = [[text(0, 10), text(1, 10), text(2, 10)]]
    pack = Pack(seq_len=9, bands=Bands(column=SCORE, edges=[0.5]))
    run = packed(tmp_path, cells, byte_tokenizer, pack, scores=[0.9, 0.1, None])
    parts = sorted(run.parts("pack/packed"), key=lambda part: part.first)
    assert [(part.first, part.last, part.rows) for part in parts] == [(0, 0, 2), (1, 1, 1)]
    footers = [pq.read_schema(run.root / part.path).metadata[b"corpuskit"] for part in parts]
    assert [b'"band": 0' in footers[0], b'"band": 1' in footers[1]] == [True, True]
    counters = run.counters("pack")
    assert [counters[f"band_rows/{band}/web"] for band in (0, 1)] == [2, 1]
    assert [counters[f"band_padding/{band}/web"] for band in (0, 1)] == [0, 0]


def test_documents_without_a_value_can_come_last(byte_tokenizer, tmp_path):
    pack = Pack(seq_len=9, bands=Bands(column=SCORE, edges=[0.5], missing="last"))
    run = packed(tmp_path, [[text(0, 10)]], byte_tokenizer, pack, scores=[None])
    assert [part.first for part in run.parts("pack/packed")] == [1]


def test_edges_must_ascend():
    with pytest.raises(ValidationError, match="must ascend"):
        Bands(column=SCORE, edges=[0.5, 0.5])


def banded(folder, cells, scores, tokenizer):
    pack = Pack(seq_len=9, bands=Bands(column=SCORE, edges=EDGES))
    return packed(folder, cells, tokenizer, pack, scores=scores)


def numbered(count):
    """Return texts that fill one row each, all different, with scores in no order."""
    scores = [(number * 7 % count) / count for number in range(count)]
    return [f"{number:09d}" for number in range(count)], scores


def texts_of(run):
    rows = token_matrix(rows_of(run, "shuffle.gather/tokens"))
    return [bytes(tokens[:-1].astype(np.uint8)).decode() for tokens in rows]


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_bands_come_one_after_another_each_permuted_with_its_key(
    byte_tokenizer, tmp_path, direction
):
    texts, scores = numbered(60)
    run = banded(tmp_path, [texts[:25], texts[25:]], scores, byte_tokenizer)
    run.run_stage(Shuffle(order="bands", direction=direction, rows_per_part=16))
    bands = [[] for _ in range(3)]
    for one, score in zip(texts, scores, strict=True):
        bands[bisect.bisect_right(EDGES, score)].append(one)
    expected = []
    for band in range(3) if direction == "ascending" else (2, 1, 0):
        own = bands[band]
        positions = permute(np.arange(len(own)), len(own), 0, "shuffle", "web", "band", band)
        expected += [one for _, one in sorted(zip(positions.tolist(), own, strict=True))]
    assert texts_of(run) == expected


@settings(deadline=None, max_examples=12)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=4),
    order=st.sampled_from(["bands", "global"]),
    backwards=st.booleans(),
)
def test_cells_and_tasks_do_not_matter(byte_tokenizer, new_folder, cuts, order, backwards):
    texts, scores = numbered(40)
    edges = [0, *sorted(cuts), 40]
    cells = [texts[low:high] for low, high in itertools.pairwise(edges)]
    whole, cut = (
        banded(new_folder(), layout, scores, byte_tokenizer) for layout in ([texts], cells)
    )
    if order == "bands":
        whole.run_stage(Shuffle(order=order, rows_per_part=13))
        cut.run_stage(Shuffle(order=order, rows_per_part=13), backwards=backwards)
        assert whole.parts("shuffle.gather/tokens") == cut.parts("shuffle.gather/tokens")
    else:  # where a row goes depends on its position, and cells hold band after band
        cut.run_stage(Shuffle(order=order, rows_per_part=13), backwards=backwards)
        assert sorted(texts_of(cut)) == texts


def test_a_band_without_rows_takes_no_row(byte_tokenizer, tmp_path):
    texts = numbered(5)[0]
    run = banded(tmp_path, [texts], [0.9, 0.1, 0.9, 0.1, 0.9], byte_tokenizer)
    run.run_stage(Shuffle(order="bands"))
    found = texts_of(run)
    assert set(found[:2]) == {texts[1], texts[3]}
    assert sorted(found) == texts


def test_every_copy_is_found_by_its_key(byte_tokenizer, tmp_path):
    cells = [[text(0, 5), text(1, 23), text(2, 9)]]
    run = packed(tmp_path, cells, byte_tokenizer, Pack(seq_len=9), copies=[3, 2, 1])
    run.run_stage(Shuffle())
    tokens = token_matrix(rows_of(run, "shuffle.gather/tokens"))
    found = {}
    for part in run.parts("shuffle.gather/run:doc_rows"):
        for entry in read_shuffle(run.root / part.path).to_pylist():
            begin = entry["first_token"]
            own = tokens[entry["row"], begin : begin + entry["num_tokens"]].tolist()
            found.setdefault(entry["key"], []).append((entry["row"], own))
    for key, times in enumerate([3, 2, 1]):
        stored = [token for _, own in found[key] for token in own]
        assert sorted(stored) == sorted([*cells[0][key].encode(), EOS] * times)
        rows = [row for row, _ in found[key]]
        assert len(set(rows)) == len(rows)


def test_a_lost_row_of_a_band_is_noticed(byte_tokenizer, tmp_path):
    texts, scores = numbered(20)
    run = banded(tmp_path, [texts], scores, byte_tokenizer)
    run.phases["pack"].counters["band_rows/0/web"] += 1
    with pytest.raises(DataError, match="are not each there once"):
        run.run_stage(Shuffle(order="bands"))


def test_bands_must_have_been_packed():
    with pytest.raises(UsageError, match=r"Set pack\.bands"):
        Shuffle(order="bands").provides({"packing": {"seq_len": 9}})


def test_a_direction_needs_bands():
    with pytest.raises(UsageError, match="order is global"):
        Shuffle(direction="descending").provides({"packing": {"seq_len": 9, "bands": 2}})
