"""Predictions and scores are those of the official library, to the last bit."""

from __future__ import annotations

import random
import struct

import fasttext
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.errors import DataError
from corpuskit.formats.batch import utf8
from corpuskit.stages.annotators import _fasttext
from corpuskit.stages.annotators._fasttext import (
    ClassifierSettings,
    FastTextModel,
    train,
    training_line,
)
from corpuskit.stages.annotators._fasttextfile import append_calibration, labels_of
from corpuskit.stages.annotators.language import EMBEDDED_PATH

rng = random.Random(5)
WORDS = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(1, 9))) for _ in range(500)]
WORDS += ["na\u00efve", "\u65e5\u672c\u8a9e", "\u043f\u0440\u0438\u0432\u0435\u0442", "\u00df" * 40]
TRAPS = ["</s>", "__label__l1", "__label__zzz", "__label__", "\x01", "\x1c", "\u2028", "x" * 3000]


def text(num):
    """Return a text of known, unknown, very long and peculiar words."""
    parts = []
    for _ in range(rng.randint(0, num)):
        word, chance = rng.choice(WORDS), rng.random()
        if chance < 0.15:
            word = "".join(
                rng.choices("abcxyz\u00e9\u044f\u65e5\U0001f600<>_", k=rng.randint(1, 40))
            )
        elif chance < 0.16:
            word = "".join(rng.choices("abc\u00e9\u65e5", k=rng.randint(100, 5000)))
        elif chance < 0.18:
            word = rng.choice(TRAPS)
        parts += [word, rng.choice([" ", " ", " ", "\n", "\t", "  ", "\0", "\r\n"])]
    return "".join(parts)


def model(path, labels, how, **given):
    """Train and write a model; `how` it is quantized: no, all, cut, bare (no norms), out."""
    lines = path.with_name("lines.txt")
    rows = [training_line(f"{text(30)} a", f"l{row % labels}") for row in range(600)]
    lines.write_text("".join(rows))
    chosen = ClassifierSettings(epochs=2, lr=0.3, seed=3, **given)
    trained = train(lines, chosen)
    if how in {"all", "cut"}:
        trained.quantize(lines, chosen, cutoff=400 if how == "cut" else 0)
    elif how != "no":
        trained._model.quantize(qnorm=how == "out", qout=how == "out")
    trained.save(path)
    return path


ONES = np.ones(1, np.float32)


def assert_equal(path, docs, k, monkeypatch):
    """Scores are compared before they are rounded, and without a calibration."""
    monkeypatch.setattr(_fasttext, "DECIMALS", 12)
    ours, official = FastTextModel(path), fasttext.load_model(str(path)).f
    plain = ours._model.output._replace(scales=ONES)
    ours._model = ours._model._replace(output=plain)
    for _ in range(2):  # the second time words are known
        found = ours.predict(utf8(pa.array(docs, pa.large_string())), k)
        for row, doc in enumerate(docs):
            expected = official.predict(doc.replace("\n", " ") + "\n", k, 0.0, "strict")
            places = found.ranks[row] >= 0
            labels = [f"__label__{ours.labels[rank]}" for rank in found.ranks[row][places]]
            assert labels == [label for _, label in expected]
            scores = np.array([score for score, _ in expected])
            assert np.array_equal(found.scores[row][places], np.round(scores, 12))


SHAPES = [
    ("no", 3, {"loss": "softmax", "dim": 1, "buckets": 0}),
    ("no", 7, {"loss": "hs", "dim": 16, "minn": 2, "maxn": 4, "buckets": 3000}),
    ("no", 2, {"loss": "ova", "dim": 5, "word_ngrams": 3, "buckets": 900}),
    ("no", 300, {"loss": "ns", "dim": 32, "minn": 1, "maxn": 6, "buckets": 50}),
    ("all", 5, {"loss": "softmax", "dim": 20, "minn": 0, "maxn": 3, "buckets": 4000}),
    ("all", 3, {"loss": "ova", "dim": 10, "minn": 3, "maxn": 3, "word_ngrams": 2, "buckets": 600}),
    ("cut", 7, {"loss": "hs", "dim": 8, "minn": 2, "maxn": 5, "buckets": 2000}),
    ("cut", 2, {"loss": "softmax", "dim": 3, "word_ngrams": 2, "buckets": 2000, "min_count": 9}),
    ("bare", 40, {"loss": "hs", "dim": 17, "word_ngrams": 3, "minn": 2, "maxn": 3, "buckets": 999}),
    ("out", 300, {"loss": "softmax", "dim": 6, "minn": 1, "maxn": 2, "buckets": 800}),
    ("out", 300, {"loss": "hs", "dim": 12, "buckets": 0}),
]


@pytest.mark.parametrize(("how", "labels", "given"), SHAPES)
def test_models_of_each_kind_predict_as_in_the_library(how, labels, given, tmp_path, monkeypatch):
    path = model(tmp_path / "model", labels, how, **given)
    docs = [text(num) for num in (3, 30, 300) for _ in range(6)] + ["", " ", "a", "a" * 20_000]
    for k in (1, 5, labels):
        assert_equal(path, docs, k, monkeypatch)


@pytest.mark.real
@pytest.mark.parametrize(
    "name",
    [
        "langid/udhr_paragraphs.parquet",
        "langid/tatoeba_v1.parquet",
        "toxicity/wiki_toxicity.parquet",
        "toxicity/davidson_tweets.parquet",
        "quality/sms_spam.parquet",
        "quality/quality_train.parquet",
        "bench_multi/bench_multi-00000-of-00002.parquet",
    ],
)
def test_real_texts_are_predicted_as_in_the_library(name, shared_data, monkeypatch):
    table = pq.read_table(shared_data / name, columns=["text"])
    rows = random.Random(1).sample(range(len(table)), min(len(table), 120))
    docs = table["text"].take(pa.array(sorted(rows))).to_pylist()
    for path in (EMBEDDED_PATH, shared_data / "models" / "lid.176.ftz"):
        for k in (1, 200):
            assert_equal(path, docs, k, monkeypatch)


# ---------------------------------------------------------------- calibration


def test_a_calibration_changes_scores_by_the_rows_of_a_text(tmp_path):
    path = model(tmp_path / "model", 5, "no", dim=6, buckets=0)  # a row a word, and one at the end
    docs = [" ".join(["a", "b", "c", "d"][:1] * num) for num in (3, 11, 1000)]
    texts = utf8(pa.array(docs, pa.large_string()))
    before = FastTextModel(path).predict(texts, 5)
    append_calibration(path, np.array([0.25, 1.0, 2.0]))
    after = FastTextModel(path).predict(texts, 5)
    assert np.array_equal(before.ranks, after.ranks)
    middle = np.log2(12) - 2  # 12 rows lie between the places of 8 and of 16
    for row, scale in enumerate((0.25, middle, 2.0)):
        expected = before.scores[row] ** scale
        assert after.scores[row] == pytest.approx(expected / expected.sum(), abs=3e-4)


def test_fasttext_itself_loads_a_calibrated_model(tmp_path, monkeypatch):
    path = model(tmp_path / "model", 5, "no", dim=6, buckets=0)
    append_calibration(path, ONES / 2)
    assert_equal(path, ["a b c", "d"], 5, monkeypatch)


@pytest.mark.parametrize(
    ("scales", "problem"),
    [([0], "out of bounds"), ([float("nan")], "out of bounds"), ([1] * 33, "has 33 scales")],
)
def test_a_calibration_that_cannot_be_meant_is_refused(scales, problem, tmp_path):
    path = model(tmp_path / "model", 5, "no", dim=6, buckets=0)
    append_calibration(path, np.array(scales))
    with pytest.raises(DataError, match=f"not a whole fastText model: its calibration.*{problem}"):
        FastTextModel(path)


# ---------------------------------------------------------------- crafted models


def crafted(path, change):
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    return path


def test_a_model_with_weights_that_are_no_numbers_is_refused(tmp_path):
    path = model(tmp_path / "model", 3, "no", dim=4, buckets=0)
    crafted(path, lambda content: content.__setitem__(slice(-16, None), b"\xff" * 16))
    ours = FastTextModel(path)
    with pytest.raises(DataError, match=r"model: cannot predict with it: it has weights that"):
        ours.predict(utf8(pa.array(["a b c"], pa.large_string())), 3)


def test_a_small_pruned_model_cannot_ask_for_much_memory(tmp_path):
    path = model(tmp_path / "model", 2, "cut", dim=4, minn=2, maxn=3, buckets=2000)

    def change(content):  # magic and version, then the arguments: bucket is the ninth
        struct.pack_into("<i", content, 8 + 4 * 8, 2**31 - 1)

    with pytest.raises(DataError, match=r"it is pruned, and bucket is 2147483647"):
        labels_of(crafted(path, change))


def test_a_small_quantized_model_cannot_ask_for_much_memory(tmp_path):
    """Rows of 16,384 numbers, each a single code: 20,000 bytes that would become 1.3 GB."""
    dim, rows = 1 << 14, 20_000
    arguments = struct.pack("<12id", dim, 5, 1, 1, 1, 1, 3, 3, rows, 2, 3, 1, 1e-4)
    dictionary = struct.pack("<iiiqq", 1, 0, 1, 1, -1) + b"__label__a\0" + struct.pack("<qb", 1, 1)
    codes = struct.pack("<?qqi", False, rows, dim, rows) + bytes(rows)
    codebook = struct.pack("<iiii", dim, 1, dim, dim) + bytes(4 * 256 * dim)
    output = b"\0" + struct.pack("<qq", 1, dim) + bytes(4 * dim)
    head = struct.pack("<ii", 793712314, 12)
    path = tmp_path / "model.ftz"
    path.write_bytes(head + arguments + dictionary + b"\1" + codes + codebook + output)
    with pytest.raises(DataError, match=r"20000 rows of 16384 numbers have a code for 16384"):
        FastTextModel(path)
