"""Documents that come with token ids: checked, not encoded."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize
from tests.contract.strategies import tiny_tokenizer

SIZE = 258  # tokens of tiny_tokenizer: the bytes, <s> and </s>


def apply(lists, kind=None, **params):
    stage = Tokenize(tokenizer=tiny_tokenizer(), ids="given", **params)
    column = pa.array(lists, kind or pa.list_(pa.int64()))
    texts = pa.array([""] * len(lists), pa.large_string())
    outcome = stage.apply(View(pa.record_batch({"text": texts, "given": column})))
    return outcome, outcome.columns["tokens"].to_pylist()


def test_the_column_is_needed():
    assert Tokenize(tokenizer=tiny_tokenizer(), ids="tokens").needs() == ("tokens",)
    assert Tokenize(tokenizer=tiny_tokenizer()).needs() == ()


@pytest.mark.parametrize(
    "kind", [pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()], ids=str
)
@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_given_ids_are_taken_as_they_are(kind, lists):
    rows = [[0, 257], [], [5]]
    outcome, found = apply(rows, lists(kind), add_eos=False)
    assert found == rows
    assert not outcome.codes.any()


def test_documents_begin_and_end_as_asked():
    _, found = apply([[7], []], add_bos=True)
    assert found == [[256, 7, 257], [256, 257]]


def test_an_id_that_is_no_token_drops_its_document():
    outcome, found = apply([[1], [2, 258, 900], [], [-1], [3]])
    assert outcome.codes.tolist() == [0, 1, 0, 1, 0]
    assert outcome.values[[1, 3]].tolist() == [258, -1]
    assert [found[row] for row in (0, 2, 4)] == [[1, 257], [257], [3, 257]]


def test_missing_ids_drop_their_document():
    outcome, found = apply([[1], None, [2, None], [3]])
    assert outcome.codes.tolist() == [0, 1, 1, 0]
    assert math.isnan(outcome.values[1])
    assert [found[0], found[3]] == [[1, 257], [3, 257]]


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.float64()), pa.int64()], ids=str)
def test_other_columns_are_refused(kind):
    with pytest.raises(DataError, match=r"tokenize.ids: the column 'given' is .*must be a list"):
        apply([None], kind)


rows = st.lists(st.lists(st.integers(-3, 262), max_size=5) | st.none(), max_size=12)


@given(rows, st.integers(0, 12), st.integers(0, 12))
def test_a_slice_decides_as_the_whole(lists, first, length):
    stage = Tokenize(tokenizer=tiny_tokenizer(), ids="given")
    texts = pa.array([""] * len(lists), pa.large_string())
    batch = pa.record_batch({"text": texts, "given": pa.array(lists, pa.list_(pa.int64()))})
    part = stage.apply(View(batch.slice(first, length)))
    for row, ids in enumerate(lists[first : first + length]):
        bad = ids is None or not all(0 <= number < SIZE for number in ids)
        assert bool(part.codes[row]) is bad
        if not bad:
            assert part.columns["tokens"][row].as_py() == [*ids, 257]
