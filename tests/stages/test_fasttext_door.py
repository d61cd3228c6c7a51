"""The door to fastText: same predictions as the library, reproducible training."""

from __future__ import annotations

import ctypes
import os
import random

import fasttext
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import utf8
from corpuskit.stages.annotators._fasttext import (
    ClassifierSettings,
    FastTextModel,
    _zeroed_memory,
    open_model,
    train,
    training_line,
)
from corpuskit.stages.annotators._fasttextfile import labels_of

SMALL = ClassifierSettings(dim=8, epochs=3, minn=2, maxn=3, buckets=2000, seed=7)
TRAPS = [
    "\n",
    "\r",
    "\t",
    "\0",
    "\v",
    " ",
    "</s>",
    "__label__up",
    "__label__",
    "\u2028",
    "\x85",
    "\U0001f600",
]
texts = st.lists(
    st.lists(st.one_of(st.sampled_from(TRAPS), st.text(max_size=8)), max_size=8).map("".join),
    max_size=6,
)


def write_lines(path, docs=400, vocabulary=900, seed=3):
    """Two classes that share half of their words, so that weights stay finite."""
    rng = random.Random(seed)
    words = [
        "".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(vocabulary)
    ]
    with path.open("w") as file:
        for number in range(docs):
            label, low = (("up", 0), ("down", vocabulary // 4))[number % 2]
            chosen = rng.choices(words[low : low + 3 * vocabulary // 4], k=rng.randint(3, 30))
            file.write(training_line(" ".join(chosen), label))
    return path


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("lines") / "lines.txt")


@pytest.fixture(scope="module")
def model_path(lines):
    path = lines.with_name("small.bin")
    train(lines, SMALL).save(path)
    return path


@pytest.fixture(scope="module")
def official(model_path):
    return fasttext.load_model(str(model_path))


def buffers(values):
    return utf8(pa.array(values, pa.large_string()))


def as_pairs(model, found):
    return [
        [
            (model.labels[rank], score)
            for rank, score in zip(ranks, scores, strict=True)
            if rank >= 0
        ]
        for ranks, scores in zip(found.ranks.tolist(), found.scores.tolist(), strict=True)
    ]


def official_pairs(official, docs, k):
    labels, scores = official.predict([doc.replace("\n", " ") for doc in docs], k=k)
    return [
        [
            (label.removeprefix("__label__"), round(float(score), 4))
            for label, score in zip(*row, strict=True)
        ]
        for row in zip(labels, scores, strict=True)
    ]


@settings(deadline=None)
@given(texts)
def test_predictions_equal_those_of_the_library(model_path, official, docs):
    model = open_model(model_path)
    assert as_pairs(model, model.predict(buffers(docs), 2)) == official_pairs(official, docs, 2)


@settings(deadline=None)
@given(texts, st.integers(0, 12))
def test_max_bytes_cuts_back_to_a_whole_character(model_path, docs, max_bytes):
    model = open_model(model_path)
    cut = [doc.encode()[:max_bytes].decode(errors="ignore") for doc in docs]
    found = model.predict(buffers(docs), 2, max_bytes=max_bytes)
    expected = model.predict(buffers(cut), 2)
    assert as_pairs(model, found) == as_pairs(model, expected)


def test_a_slice_is_predicted_as_the_whole(model_path):
    model = open_model(model_path)
    array = pa.array(["abc de", "", "nop\nmno", "ab\u00e9 kl"], pa.large_string())
    whole = model.predict(utf8(array)).scores
    parts = [model.predict(utf8(array[row : row + 1])).scores for row in range(4)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_newlines_are_spaces_or_what_the_caller_says(model_path):
    model = open_model(model_path)
    expected = model.predict(buffers(["abc def", "abcdef"])).scores
    assert model.predict(buffers(["abc\ndef"])).scores[0] == expected[0]
    assert model.predict(buffers(["abc\ndef"]), drop_newlines=True).scores[0] == expected[1]


def test_fewer_labels_than_asked_leave_empty_places(model_path):
    found = open_model(model_path).predict(buffers(["abc"]), 4)
    assert found.ranks[0, 2:].tolist() == [-1, -1]
    assert found.scores[0, 2:].tolist() == [0.0, 0.0]


def test_white_space_of_unicode_is_something_unless_it_is_stripped(model_path):
    model = open_model(model_path)
    docs = buffers(["\u3000 \x1c", "\u2003\n\x85", " \t", ""])
    assert model.predict(docs, strip=True).empty.tolist() == [True] * 4
    assert model.predict(docs).empty.tolist() == [False, False, False, True]


@settings(deadline=None)
@given(texts)
def test_stripping_is_that_of_python(model_path, docs):
    model = open_model(model_path)
    found = model.predict(buffers(docs), 2, strip=True)
    expected = model.predict(buffers([doc.strip() for doc in docs]), 2)
    assert as_pairs(model, found) == as_pairs(model, expected)
    assert found.empty.tolist() == [not doc.strip() for doc in docs]


def test_no_texts_give_no_rows(model_path):
    assert open_model(model_path).predict(buffers([]), 2).ranks.shape == (0, 2)


def test_the_score_of_each_label_is_found(model_path):
    model = open_model(model_path)
    docs = buffers(["abc de", "nop", ""])
    found = model.predict(docs, 2)
    for rank, label in enumerate(model.labels):
        expected = [
            row[ranks.index(rank)]
            for row, ranks in zip(found.scores, found.ranks.tolist(), strict=True)
        ]
        assert model.scores_of(found, label).tolist() == expected


def test_an_unknown_label_is_answered_with_a_near_one(model_path):
    with pytest.raises(UsageError, match=r"no label 'don'. Did you mean 'down'\?"):
        open_model(model_path).rank_of("don")


def test_a_model_is_loaded_once_until_its_file_changes(model_path, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(model_path.read_bytes())
    first = open_model(path)
    assert open_model(str(path)) is first
    os.utime(path, ns=(1, 1))
    assert open_model(path) is not first


def test_a_missing_model_is_a_wrong_request(tmp_path):
    with pytest.raises(UsageError, match="no such model file"):
        open_model(tmp_path / "absent.bin")


@pytest.mark.parametrize("content", [b"", b"no", b"not a model at all" * 9])
def test_a_file_that_is_no_model_is_broken_data(tmp_path, content):
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"model\.bin: is not a whole fastText model"):
        open_model(path)


@pytest.fixture(scope="module", params=["plain", "quantized", "cut", "no norms", "output, too"])
def any_model(request, lines, tmp_path_factory):
    """The bytes of a model of each layout there is."""
    if request.param == "output, too":  # a codebook needs 256 rows, here labels
        words = [line.split() for line in lines.read_text().splitlines()]
        lines = tmp_path_factory.mktemp("many") / "lines.txt"
        many = [training_line(" ".join(row[1:]), f"l{num % 300}") for num, row in enumerate(words)]
        lines.write_text("".join(many))
    trained = train(lines, SMALL)
    if request.param in {"quantized", "cut"}:
        trained.quantize(lines, SMALL, cutoff=400 if request.param == "cut" else 0)
    elif request.param != "plain":
        trained._model.quantize(qnorm=False, qout=request.param == "output, too")
    path = tmp_path_factory.mktemp("layout") / "model"
    trained.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.6, 0.9, 0.999, 1.0, 1.001])
def test_a_model_that_is_cut_off_or_too_long_is_broken_data(any_model, tmp_path, share):
    path = tmp_path / "model.bin"
    path.write_bytes((any_model + bytes(1000))[: int(share * len(any_model))])
    if share == 1.0:
        assert len(open_model(path).labels) in {2, 300}
    else:
        with pytest.raises(DataError, match=r"model\.bin: (is not a whole|has [\d,]+ bytes)"):
            open_model(path)


@pytest.mark.real
def test_labels_are_read_without_the_model(any_model, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(any_model)
    assert labels_of(path) == tuple(f"__label__{name}" for name in open_model(path).labels)


def test_the_common_language_model_is_whole(shared_data):
    assert len(open_model(shared_data / "models" / "lid.176.ftz").labels) == 176


def test_word_vectors_are_refused(lines, tmp_path):
    # Fewer than ten threads, or a size that ten does not divide, leave weights unset.
    vectors = fasttext.train_unsupervised(
        str(lines), dim=10, epoch=1, bucket=10, thread=10, verbose=0
    )
    vectors.save_model(str(tmp_path / "vectors.bin"))
    with pytest.raises(DataError, match="without labels"):
        open_model(tmp_path / "vectors.bin")


def fill_memory_with(byte):
    """Leave `byte` all over what malloc will hand out next."""
    blocks = [bytes([byte]) * size for size in (2000, 20_000, 60_000, 120_000) for _ in range(200)]
    del blocks


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc's mallopt")
@pytest.mark.parametrize("buckets", [0, 300, 20_000])
def test_training_does_not_depend_on_what_memory_held(lines, tmp_path, buckets):
    runs = {"minn": 2, "maxn": 3} if buckets else {}
    chosen = ClassifierSettings(dim=8, epochs=1, buckets=buckets, seed=7, **runs)
    models = set()
    for byte in (0x00, 0xFF):
        fill_memory_with(byte)
        train(lines, chosen).save(tmp_path / "model.bin")
        models.add((tmp_path / "model.bin").read_bytes())
    assert len(models) == 1


@pytest.mark.parametrize("loss", ["softmax", "hs", "ns", "ova"])
def test_training_gives_the_model_of_the_library(lines, tmp_path, loss):
    chosen = ClassifierSettings(
        dim=10, epochs=2, lr=0.2, word_ngrams=2, buckets=500, seed=7, loss=loss
    )
    train(lines, chosen).save(tmp_path / "ours.bin")
    with _zeroed_memory():  # the library reads weights that it never set
        official = fasttext.train_supervised(
            str(lines), dim=10, epoch=2, lr=0.2, wordNgrams=2, bucket=500, seed=7, loss=loss,
            thread=1, verbose=0,
        )  # fmt: skip
    official.save_model(str(tmp_path / "official.bin"))
    assert (tmp_path / "ours.bin").read_bytes() == (tmp_path / "official.bin").read_bytes()


def test_another_seed_gives_another_model(lines, model_path, tmp_path):
    train(lines, ClassifierSettings(**{**vars(SMALL), "seed": 8})).save(tmp_path / "model.bin")
    assert (tmp_path / "model.bin").read_bytes() != model_path.read_bytes()


def test_a_quantized_model_is_smaller_and_agrees(lines, model_path, tmp_path):
    trained = train(lines, SMALL)
    trained.quantize(lines, SMALL, cutoff=0)
    trained.save(tmp_path / "small.ftz")
    full, small = FastTextModel(model_path), FastTextModel(tmp_path / "small.ftz")
    docs = buffers([line.split(" ", 1)[1] for line in lines.read_text().splitlines()])
    agreed = full.predict(docs).ranks == small.predict(docs).ranks
    assert (tmp_path / "small.ftz").stat().st_size < 0.6 * model_path.stat().st_size
    assert agreed.mean() > 0.9


def test_a_cutoff_keeps_that_many_rows_and_is_reproducible(lines, tmp_path):
    made = []
    for _ in range(2):
        trained = train(lines, SMALL)
        trained.quantize(lines, SMALL, cutoff=400)
        trained.save(tmp_path / "small.ftz")
        made.append((tmp_path / "small.ftz").read_bytes())
    assert made[0] == made[1]
    assert len(made[0]) < 40_000


def test_too_few_rows_to_quantize_are_refused(tmp_path):
    lines = write_lines(tmp_path / "lines.txt", docs=60, vocabulary=40)
    chosen = ClassifierSettings(dim=8, buckets=0)
    trained = train(lines, chosen)
    with pytest.raises(UsageError, match="fewer than 256"):
        trained.quantize(lines, chosen, cutoff=0)


@pytest.mark.parametrize(
    "wrong",
    [{"dim": 0}, {"epochs": 0}, {"lr": 0.0}, {"lr": float("nan")}, {"minn": 3, "maxn": 2},
     {"maxn": 3, "buckets": 0}, {"word_ngrams": 2, "buckets": 0}, {"threads": 0}, {"seed": -1},
     {"loss": "hinge"}],
)  # fmt: skip
def test_settings_that_would_crash_the_library_are_refused(wrong):
    with pytest.raises(UsageError, match=r"must be"):
        ClassifierSettings(**wrong)


def test_no_lines_cannot_be_learned(tmp_path):
    (tmp_path / "lines.txt").write_text("")
    with pytest.raises(DataError, match="training failed"):
        train(tmp_path / "lines.txt", SMALL)


def test_a_line_holds_one_label_and_all_words():
    line = training_line("a\n__label__evil b </s> c", "good")
    assert line.startswith("__label__good a ")
    assert line.count("\n") == 1
    assert not any(word.startswith("__label__") or word == "</s>" for word in line.split()[1:])


@pytest.mark.parametrize("label", ["", "two words", " up", "a\n"])
def test_a_label_that_is_not_one_word_is_refused(label):
    with pytest.raises(DataError, match="must be one word"):
        training_line("text", label)
