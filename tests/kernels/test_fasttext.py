"""fastText's kernels against plain Python: rows of a text, labels by score, what is looked at."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels import fasttext as kernels

WORDS = [b"the", b"</s>", b"of", b"na\xc3\xafve", b"__label__kept", b"l1", b"l2"]
NUM_WORDS = 5
TRAPS = ["</s>", "__label__l1", "__label__kept", "l1", "\0", "\x01", "\x1f", "\u3042", "x" * 70,
         "\u65e5\u672c" * 30, "\U0001f600", "a" * 16, "b" * 17]  # fmt: skip
texts = st.lists(
    st.one_of(
        st.sampled_from([*TRAPS, "the", "of", " ", "\n", "na\u00efve"]), st.text(max_size=20)
    ),
    max_size=30,
).map(" ".join)


def fnv(word):
    value = 2166136261
    for byte in word:
        value = ((value ^ (byte | (0xFFFFFF00 if byte > 127 else 0))) * 16777619) & 0xFFFFFFFF
    return value


def runs_of(word, min_run, max_run):
    """Yield the runs of characters of a word between brackets, which are no runs themselves."""
    chars = [char.encode() for char in f"<{word.decode()}>"]
    for begin in range(len(chars)):
        for width in range(1, min(max_run, len(chars) - begin) + 1):
            is_bracket = width == 1 and begin in {0, len(chars) - 1}
            if width >= min_run and not is_bracket:
                yield b"".join(chars[begin : begin + width])


def rows_of(text, shape, kept):
    """Return the rows of a text, as the library's `getLine` has them."""
    min_run, max_run, ngrams, buckets = shape
    rows, hashes, values = [], [], []
    for word in [*filter(None, re.split(rb"[\0\t\n\v\f\r ]", text)), b"</s>"]:
        entry = WORDS.index(word) if word in WORDS else -1
        if entry >= NUM_WORDS or (entry < 0 and word.startswith(b"__label__")):
            continue
        rows += [entry] if entry >= 0 else []
        if word != b"</s>":
            rows += [(fnv(run),) for run in runs_of(word, min_run, max_run)]
        hashes.append((fnv(word) ^ 1 << 31) - (1 << 31))
        if word == b"</s>":
            break
    for first in range(len(hashes)) if ngrams > 1 else ():
        value = hashes[first]
        for number in hashes[first + 1 : first + ngrams]:
            value = (value * 116049371 + number) % (1 << 64)
            values.append((value,))
    places = {bucket: place for place, bucket in enumerate(sorted(kept or range(buckets)))}
    buckets_of = [row if isinstance(row, int) else row[0] % buckets for row in rows + values]
    return [
        bucket if isinstance(row, int) else NUM_WORDS + places[bucket]
        for row, bucket in zip(rows + values, buckets_of, strict=True)
        if isinstance(row, int) or bucket in places
    ]


def features_of(shape, kept):
    min_run, max_run, ngrams, buckets = shape
    table = np.empty(0, np.uint64)
    if kept is not None:
        table, before = np.zeros(-(-buckets // 32), np.uint64), 0
        for group in range(len(table)):
            bits = [bit for bit in range(32) if 32 * group + bit in kept]
            table[group] = before << 32 | sum(1 << bit for bit in bits)
            before += len(bits)
    features = kernels.Features(
        np.frombuffer(b"".join(word + bytes(4) for word in WORDS), np.uint8).copy(),
        np.empty((len(WORDS), 2), np.int64),
        np.zeros(16, np.uint64),
        NUM_WORDS,
        min_run,
        max_run,
        ngrams,
        buckets,
        table,
        -1,
    )
    end_row = kernels.index_words(features, 3)
    assert [tuple(place) for place in features.spans.tolist()] == [
        (at, at + len(word))
        for at, word in zip(np.cumsum([0, *[len(w) + 4 for w in WORDS]]), WORDS, strict=False)
    ]
    return features._replace(end_row=int(end_row))


@settings(deadline=None)
@given(
    st.lists(texts, max_size=4),
    st.sampled_from([(1, 3, 1, 97), (2, 4, 2, 64), (1, 0, 3, 50), (3, 6, 1, 1), (1, 100, 1, 5000)]),
    st.booleans(),
    st.sampled_from([4, 8, 20]),
)
def test_the_mean_is_that_of_the_rows_in_order(docs, shape, prunes, stride):
    kept = set(range(0, shape[3], 3)) if prunes else None
    features = features_of(shape, kept)
    assert features.end_row == 1
    rng = np.random.default_rng(3)
    num_rows = NUM_WORDS + (shape[3] if kept is None else len(kept))
    matrix = rng.normal(size=(num_rows, stride)).astype(np.float32)
    data = [doc.encode() for doc in docs]
    bounds = np.cumsum([0, *map(len, data)])
    buffer = np.frombuffer(b"".join(data) + b"behind", np.uint8)
    hidden, counts = np.zeros((len(docs), stride), np.float32), np.zeros(len(docs), np.int64)
    room = kernels.make_scratch(features, max(map(len, data), default=0))
    for _ in range(2):  # the second time words are known
        hidden[:] = 0
        args = (buffer, features, matrix.reshape(-1), room, hidden, counts)
        kernels.mean_rows(bounds[:-1], bounds[1:], *args)
        for row, text in enumerate(data):
            expected, sums = rows_of(text, shape, kept), np.zeros(stride, np.float32)
            for number in expected:
                sums += matrix[number]
            sums *= np.float32(1 / len(expected))
            assert counts[row] == len(expected)
            assert np.array_equal(hidden[row], sums)


def tree_scores(mean, output):
    """Return label -> log probability, by the path to each label."""
    num, scores = len(output.norms), {}

    def visit(node, score):
        if node < num:
            scores[node] = score
            return
        product = float(np.dot(output.matrix[node - num], mean))
        chance = 1 / (1 + math.exp(-product))
        visit(output.left[node], score + math.log(1 - chance + 1e-5))
        visit(output.right[node], score + math.log(chance + 1e-5))

    visit(2 * num - 2, 0.0)
    return scores


def label_scores(mean, output):
    values = (output.matrix.T @ mean).astype(np.float64)
    if output.loss == kernels.SOFTMAX:
        powers = np.exp(values - values.max())
        chances = powers / powers.sum()
    else:
        places = np.clip(((values + 8) * 32).astype(int), 0, 512)
        chances = np.where(values < -8, 0, np.where(values > 8, 1, output.sigmoid[places]))
    return {label: math.log(chance + 1e-5) for label, chance in enumerate(chances)}


@pytest.mark.parametrize("loss", [1, 2, 3, 4])
@pytest.mark.parametrize(("num_labels", "most"), [(1, 1), (2, 2), (5, 3), (40, 1), (40, 40)])
def test_the_best_labels_come_first(loss, num_labels, most):
    rng = np.random.default_rng(loss)
    hidden = rng.normal(size=(6, 5)).astype(np.float32)
    matrix = rng.normal(size=(num_labels, 5)).astype(np.float32)
    left, right = kernels.build_tree(np.sort(rng.integers(1, 99, num_labels))[::-1].copy())
    by_node = matrix if loss == kernels.HIERARCHICAL else np.ascontiguousarray(matrix.T)
    norms = np.ones(num_labels, np.float32)
    output = kernels.Output(loss, by_node, norms, left, right, kernels.sigmoid_table())
    counts = np.ones(6, np.int64)
    counts[4] = 0
    ranks, scores = np.full((6, most), -1, np.int32), np.zeros((6, most))
    assert kernels.best_labels(hidden, counts, output, ranks, scores) == -1
    twin = tree_scores if loss == kernels.HIERARCHICAL else label_scores
    for row in range(6):
        if row == 4:
            assert (ranks[row] == -1).all()
            continue
        expected = twin(hidden[row], output)
        best = sorted(expected.values(), reverse=True)[:most]
        listed = [label for label in ranks[row].tolist() if label >= 0]
        assert len(set(listed)) == len(listed)
        if len(listed) < most:  # less likely than 1e-5: a tree leaves them out
            assert loss == kernels.HIERARCHICAL
            assert best[len(listed)] < math.log(1e-5) + 0.01
        for label, score, other in zip(listed, scores[row], best, strict=False):
            assert math.isclose(score, math.exp(expected[label]), rel_tol=1e-4)
            assert math.isclose(score, math.exp(other), rel_tol=1e-4)


def test_values_of_a_calibrated_model_are_those_of_numpy_and_rank_as_the_librarys():
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(30, 5)).astype(np.float32) * np.float32(30)
    matrix = np.ascontiguousarray(rng.normal(size=(157, 5)).astype(np.float32).T)
    none, scales = np.zeros(0, np.int32), np.array([0.25, 0.5, 2.0], np.float32)
    norms = rng.uniform(0.5, 2, 157).astype(np.float32)
    output = kernels.Output(
        kernels.SOFTMAX, matrix, norms, none, none, kernels.sigmoid_table(), scales
    )
    counts = rng.integers(2, 40, 30)
    counts[3] = 1
    values = np.zeros((30, 157), np.float32)
    assert kernels.label_values(hidden, counts, output, values)
    logits = (hidden.astype(np.float64) @ matrix) * norms
    logits *= np.interp(np.log2(counts) - 2, range(3), scales)[:, None]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    expected[3] = 0
    assert values == pytest.approx(expected, rel=1e-4, abs=1e-30)
    ranks, scores = np.full((30, 4), -1, np.int32), np.zeros((30, 4))
    others = ranks.copy(), scores.copy()
    kernels.rank_values(values, counts, ranks, scores)
    assert kernels.best_labels(hidden, counts, output, *others) == -1
    assert (ranks == others[0])[scores > 2e-5].all()
    assert (ranks[3] == -1).all()
    assert scores == pytest.approx(others[1], rel=1e-4)
    hidden[7, 2] = np.inf
    assert not kernels.label_values(hidden, counts, output, values)


@pytest.mark.parametrize("loss", [1, 3, 4])
def test_weights_that_are_no_numbers_are_noticed(loss):
    matrix = np.full((3, 3), np.nan, np.float32)
    left, right = kernels.build_tree(np.array([3, 2, 1]))
    norms = np.ones(3, np.float32)
    output = kernels.Output(loss, matrix, norms, left, right, kernels.sigmoid_table())
    ranks, scores = np.full((2, 1), -1, np.int32), np.zeros((2, 1))
    hidden, counts = np.ones((2, 3), np.float32), np.array([0, 1])
    assert kernels.best_labels(hidden, counts, output, ranks, scores) == 1


@settings(deadline=None)
@given(
    st.lists(st.text(st.sampled_from(" \t\n\x1c\x85\u3000a\u00e9\u65e5"), max_size=9), max_size=5),
    st.integers(-1, 12),
    st.booleans(),
)
def test_texts_are_cut_to_whole_characters_and_stripped(docs, max_bytes, strips):
    data = [doc.encode() for doc in docs]
    offsets = np.cumsum([0, *map(len, data)])
    buffer = np.frombuffer(b"".join(data) + b"z", np.uint8)
    begins, ends = kernels.cut_texts(offsets, buffer, max_bytes, strips)
    for text, begin, end in zip(data, begins, ends, strict=True):
        expected = text.decode() if max_bytes < 0 else text[:max_bytes].decode(errors="ignore")
        expected = expected.strip() if strips else expected
        assert buffer[begin:end].tobytes().decode() == expected
