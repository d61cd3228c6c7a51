from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import TaskError
from corpuskit.stages.mixing.percentile import Percentile
from tests.stages.global_runner import GlobalRun, key_of

scores = st.lists(
    st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.25001, 0.5, 1.0, -3.0, float("nan")])),
    max_size=14,
)


def rank(values, *, texts=None, groups=None, second=None, cut=None, **params):
    """Run the stage over documents with these scores; `cut` are settings of the run."""
    texts = ["a text"] * len(values) if texts is None else texts
    columns = {"s.one": pa.array(values, pa.float64())}
    if second is not None:
        columns["s.two"] = pa.array(second, pa.float64())
    if groups is not None:
        columns["lang"] = pa.array(groups, pa.string())
        params["by"] = "lang"
    names = [name for name in columns if name.startswith("s.")]
    with tempfile.TemporaryDirectory() as folder:
        run = GlobalRun(texts, Path(folder), **(cut or {}))
        at = 0
        for number, table in enumerate(run.tables):
            for name, column in columns.items():
                table = table.append_column(name, column[at : at + len(table)])
            at += len(table)
            run.tables[number] = table
        decided = run.run(Percentile(columns=names, **params))
    ranks = np.array(decided.columns["rank"], np.float64)
    steps = np.array(decided.columns["bucket"], np.float64)
    return decided, [None if np.isnan(r) else r for r in ranks], [
        None if np.isnan(s) else int(s) for s in steps
    ]  # fmt: skip


def plain_ranks(values, weights, groups, buckets):
    known = [None if v is None or v != v else round(v, 4) for v in values]
    found = []
    for value, group in zip(known, groups, strict=True):
        if value is None:
            found.append((None, None))
            continue
        same = [(v, w) for v, w, g in zip(known, weights, groups, strict=True)
                if g == group and v is not None]  # fmt: skip
        below = sum(w for v, w in same if v < value)
        total = max(sum(w for _, w in same), 1)
        found.append((below / total, below * buckets // total))
    return found


@settings(max_examples=40)
@given(scores, st.data())
def test_ranks_are_the_share_below(values, data):
    groups = data.draw(st.lists(st.sampled_from(["en", "de", ""]), min_size=len(values),
                                max_size=len(values)))  # fmt: skip
    weigh_by = data.draw(st.sampled_from(["documents", "bytes"]))
    texts = ["\u00e9" * (number % 4) for number in range(len(values))]
    weights = [len(t.encode()) if weigh_by == "bytes" else 1 for t in texts]
    _, ranks, steps = rank(values, texts=texts, groups=groups, weigh_by=weigh_by, buckets=4)
    assert list(zip(ranks, steps, strict=True)) == plain_ranks(values, weights, groups, 4)


@settings(max_examples=20)
@given(scores, st.data())
def test_ranks_do_not_depend_on_how_the_work_was_cut(values, data):
    bounds = sorted(data.draw(st.sets(st.integers(0, len(values)), max_size=4)))
    merging = data.draw(st.sampled_from([200, 450, 1 << 30]))
    cut = {"bounds": bounds, "batch_docs": data.draw(st.integers(1, 5)),
           "memory_bytes": {"merge": merging}}  # fmt: skip
    whole, *expected = rank(values, keep_top=0.5, missing="drop")
    pieces, *found = rank(values, keep_top=0.5, missing="drop", cut=cut)
    assert found == expected
    assert pieces.keep.tolist() == whole.keep.tolist()
    assert pieces.ledger == whole.ledger
    assert pieces.counters["count"] == whole.counters["count"]


def test_equal_scores_share_a_bucket():
    _, ranks, steps = rank([1, 2, 2, 3], buckets=4)
    assert (ranks, steps) == ([0, 0.25, 0.25, 0.75], [0, 1, 1, 3])


def test_without_a_score_there_is_no_rank():
    decided, ranks, steps = rank([None, float("nan"), 1.0])
    assert (ranks, steps) == ([None, None, 0], [None, None, 0])
    assert decided.counters["count"] == {"scored": 1, "missing": 2}
    assert decided.keep.all()


def test_the_best_of_several_columns_counts():
    _, ranks, steps = rank([1, 2, 3, None], second=[0.9, 0.1, None, None], buckets=3)
    assert (ranks, steps) == ([0.5, 1 / 3, 2 / 3, None], [1, 1, 2, None])


def test_the_top_stays_and_the_ledger_says_why_others_left():
    decided, *_ = rank([5, 1, 4, 2, 3], keep_top=0.4)
    assert decided.keep.tolist() == [True, False, True, False, False]
    fields = ("doc_key", "rule", "value", "threshold")
    assert [tuple(row[field] for field in fields) for row in decided.ledger] == [
        (key_of(number), "below_percentile", value, 0.6)
        for number, value in [(1, 0.0), (3, 0.2), (4, 0.4)]
    ]


@pytest.mark.parametrize("tenths", range(1, 10))
def test_the_top_is_not_off_by_rounding(tenths):
    decided, *_ = rank(list(range(10)), keep_top=tenths / 10)
    assert decided.keep.sum() == tenths


def test_documents_without_a_score_may_be_dropped():
    decided, *_ = rank([None, 1], missing="drop")
    (row,) = decided.ledger
    assert decided.keep.tolist() == [False, True]
    assert (row["rule"], row["value"], row["threshold"]) == ("missing", None, None)


def test_documents_that_left_before_have_no_weight():
    _, ranks, _ = rank([0, 1, 2], cut={"alive": [False, True, True]})
    assert ranks == [None, 0, 0.5]


def test_scores_are_rounded_before_they_are_ranked():
    assert rank([0.12344, 0.12341, 0.1])[1] == [1 / 3, 1 / 3, 0]
    assert rank([0.12344, 0.12341, 0.1], decimals=5)[1] == [2 / 3, 1 / 3, 0]


def test_infinite_scores_are_the_ends():
    assert rank([float("inf"), 0, float("-inf"), 1e300])[1] == [0.5, 0.25, 0, 0.5]


def test_nothing_has_no_ranks():
    decided, ranks, _ = rank([])
    assert (decided.keep.tolist(), ranks) == ([], [])


def test_too_many_different_scores_are_refused():
    with pytest.raises(TaskError, match="3 different scores need 600 bytes"):
        rank([1, 2, 3], cut={"memory_bytes": {"rank": 500}})
