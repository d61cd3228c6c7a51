"""Classifiers from labelled rows: reading, training, judging, the command line."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.cli.classifier import command
from corpuskit.cli.main import main
from corpuskit.errors import DataError, UsageError
from corpuskit.stages.annotators._classifier import Shrink, judge_held_out, tally, train_classifier
from corpuskit.stages.annotators._fasttext import ClassifierSettings
from corpuskit.stages.annotators._labelled import (
    Labelled,
    LabelledRow,
    Split,
    is_held_out,
    write_shuffled,
)

SMALL = ClassifierSettings(dim=8, epochs=20, lr=1.0, minn=2, maxn=3, buckets=2000, seed=7)
OPTIONS = "--dim 8 --epochs 20 --lr 1.0 --minn 2 --maxn 3 --buckets 2000 --seed 7".split()


def rows_of_two_classes(count=600, seed=5):
    """Two classes that share half of their words; class by class, the worst order to learn in."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 7))) for _ in range(900)]
    rows = []
    for label, low in (("up", 0), ("down", 450)):
        for _ in range(count // 2):
            chosen = rng.choices(words[low : low + 450], k=8) + rng.choices(words, k=4)
            rows.append(LabelledRow(" ".join(chosen), label))
    return rows


def write_parquet(path, rows):
    columns = zip(*[LabelledRow(*row) for row in rows], strict=True)
    table = pa.table(dict(zip(("text", "label", "site"), columns, strict=True)))
    pq.write_table(table, path, row_group_size=100)
    return path


def labelled(*paths, **columns):
    return Labelled(tuple(paths), **columns)


def as_jsonl(rows):
    return "".join(json.dumps({"text": r[0], "label": r[1]}) + "\n" for r in rows).encode()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return write_parquet(tmp_path_factory.mktemp("rows") / "rows.parquet", rows_of_two_classes())


ROWS = [
    LabelledRow("one\ntwo", "a"),
    LabelledRow("", "b"),
    LabelledRow("caf\u00e9 \U0001f600", "a"),
]


@pytest.mark.parametrize(
    ("name", "pack"),
    [("r.jsonl", bytes), ("r.json.gz", gzip.compress), ("r.jsonl.zst", zstandard.compress)],
)
def test_jsonl_is_read_packed_or_not(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(as_jsonl(ROWS)))
    assert list(labelled(path)) == ROWS


def test_several_files_are_read_in_order(tmp_path):
    first = write_parquet(tmp_path / "a.parquet", ROWS)
    second = tmp_path / "b.jsonl"
    second.write_bytes(as_jsonl(ROWS[:1]))
    assert list(labelled(first, second)) == [*ROWS, ROWS[0]]


def test_numbers_are_labels_and_nulls_are_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    records = [("t", 1), ("t", None), (None, 1), ("t", True)]
    path.write_text("".join(json.dumps({"x": x, "y": y}) + "\n" for x, y in records))
    assert list(labelled(path, text_column="x", label_column="y")) == [
        LabelledRow("t", "1"),
        LabelledRow("t", "true"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("r.jsonl", b'{"text": "a"}\n', DataError, r"r\.jsonl:1: column 'label' is missing"),
        ("r.jsonl", b'\n{"text": \n', DataError, r"r\.jsonl:2: is not JSON"),
        ("r.jsonl", b"[1]\n", DataError, r"r\.jsonl:1: must be a JSON object"),
        ("r.jsonl", b"\xff\xfe{}\n", DataError, r"r\.jsonl:1: is not JSON"),
        ("r.jsonl.gz", b"\x1f\x8b\x08cut off", DataError, r"r\.jsonl\.gz: cannot be read"),
        ("r.parquet", b"PAR1 no", DataError, r"r\.parquet: is not a whole Parquet file"),
        ("r.csv", b"", UsageError, r"r\.csv: must be \.parquet or \.jsonl"),
    ],
)  # fmt: skip
def test_a_broken_input_names_its_place(tmp_path, name, content, error, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        list(labelled(tmp_path / name))


def test_a_missing_column_of_parquet_is_named(inputs):
    with pytest.raises(
        DataError, match=r"column 'quality' is missing; has 'text', 'label', 'site'"
    ):
        list(labelled(inputs, label_column="quality"))


def test_a_missing_input_is_a_wrong_request(tmp_path):
    with pytest.raises(UsageError, match="there is no such file"):
        list(labelled(tmp_path / "absent.jsonl"))


def test_about_the_asked_share_is_held_out():
    held = sum(is_held_out(f"text {number}", 0.25) for number in range(4000))
    assert 900 < held < 1100
    assert not any(is_held_out(f"text {number}", 0.0) for number in range(100))


def test_a_greater_share_holds_out_what_a_smaller_one_does():
    chosen = [f"text {number}" for number in range(1000) if is_held_out(f"text {number}", 0.1)]
    assert all(is_held_out(text, 0.2) for text in chosen)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text("abc", max_size=3), max_size=60), st.integers(0, 3))
def test_shuffling_keeps_every_line(tmp_path_factory, words, seed):
    path = tmp_path_factory.mktemp("shuffle") / "lines.txt"
    write_shuffled((word + "\n" for word in words), path, seed)
    assert Counter(path.read_text().split("\n")[:-1]) == Counter(words)
    assert list(path.parent.iterdir()) == [path]


def test_shuffling_moves_lines_by_the_seed(tmp_path):
    lines = [f"{number}\n" for number in range(200)]
    orders = []
    for seed in (1, 1, 2):
        write_shuffled(lines, tmp_path / "lines.txt", seed)
        orders.append((tmp_path / "lines.txt").read_text())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != "".join(lines)


def test_figures_of_an_evaluation_are_those_of_the_definition():
    pairs = Counter({("a", "a"): 3, ("a", "b"): 1, ("b", "b"): 2, ("b", "a"): 2, ("c", ""): 1})
    found = tally(pairs)
    assert (found.num_docs, found.accuracy) == (9, 5 / 9)
    assert [(s.label, s.num_docs, s.num_predicted) for s in found.labels] == [
        ("a", 4, 5),
        ("b", 4, 3),
        ("c", 1, 0),
    ]
    assert [s.precision for s in found.labels] == [3 / 5, 2 / 3, 0.0]
    assert [s.recall for s in found.labels] == [3 / 4, 2 / 4, 0.0]
    assert [s.f1 for s in found.labels] == [6 / 9, 4 / 7, 0.0]
    assert found.macro_f1 == pytest.approx((6 / 9 + 4 / 7) / 3)
    assert found.confusions == (("b", "a", 2), ("a", "b", 1), ("c", "", 1))


def test_rows_in_the_worst_order_are_learned(inputs, tmp_path):
    report = train_classifier(labelled(inputs), tmp_path / "m.bin", SMALL, split=Split(0.2))
    assert report.labels == ("down", "up")
    assert report.num_docs + report.held_out.num_docs == 600
    assert report.held_out.accuracy > 0.9


@pytest.mark.parametrize("options", [Shrink(), Shrink(True), Shrink(True, 500)])
def test_training_twice_gives_the_same_bytes(inputs, tmp_path, options):
    for name in ("one", "two"):
        train_classifier(labelled(inputs), tmp_path / name, SMALL, split=Split(0.1), shrink=options)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_is_held_out_is_not_learned(inputs, tmp_path):
    rows = list(labelled(inputs))
    learned = [row for row in rows if not is_held_out(row.text, 0.2)]
    train_classifier(labelled(inputs), tmp_path / "split.bin", SMALL, split=Split(0.2))
    train_classifier(learned, tmp_path / "alone.bin", SMALL)
    assert (tmp_path / "split.bin").read_bytes() == (tmp_path / "alone.bin").read_bytes()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Split(1.0), "holdout must be at least 0 and below 1, got 1.0"),
        (lambda: Split(-0.1), "holdout must be"),
        (lambda: Split(0.1, groups=("a",)), "exclude each other"),
        (lambda: Shrink(cutoff=500), "cutoff 500 has no effect"),
        (lambda: Shrink(True, 500, 10**6), "exclude each other"),
    ],
)
def test_settings_without_sense_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        wrong()


def test_one_label_is_not_enough(tmp_path):
    path = write_parquet(tmp_path / "r.parquet", [("a b", "up"), ("c d", "up")])
    with pytest.raises(DataError, match="must be two to learn from, found 'up'"):
        train_classifier(labelled(path), tmp_path / "m.bin", SMALL)
    assert not (tmp_path / "m.bin").exists()


def test_rows_without_text_cannot_judge(inputs, tmp_path):
    train_classifier(labelled(inputs), tmp_path / "m.bin", SMALL)
    (tmp_path / "none.jsonl").write_text('{"text": null, "label": "up"}\n')
    with pytest.raises(DataError, match="no row with a text and a label is left"):
        judge_held_out(tmp_path / "m.bin", labelled(tmp_path / "none.jsonl"), Split())


def test_the_command_line_trains_and_judges(inputs, tmp_path):
    model = tmp_path / "models" / "m.ftz"
    trained = CliRunner().invoke(
        command,
        [
            *("train", str(inputs), "--output", str(model), *OPTIONS),
            *("--quantize", "--holdout", "0.2", "--json"),
        ],
    )
    assert trained.exit_code == 0, trained.output
    report = json.loads(trained.stdout)
    assert report["size_bytes"] == model.stat().st_size
    assert "training on" in trained.stderr
    judged = CliRunner().invoke(command, ["eval", str(model), str(inputs), "--json"])
    assert json.loads(judged.stdout)["num_docs"] == 600
    table = CliRunner().invoke(command, ["eval", str(model), str(inputs)]).stdout.splitlines()
    assert table[0].startswith("accuracy 0.9")
    assert [line.split()[0] for line in table[2:4]] == ["down", "up"]


def test_options_of_the_command_line_reach_the_library(inputs, tmp_path):
    done = CliRunner().invoke(
        command, ["train", str(inputs), "--output", str(tmp_path / "a"), *OPTIONS]
    )
    assert done.exit_code == 0, done.output
    train_classifier(labelled(inputs), tmp_path / "b", SMALL, folds=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_wrong_request_exits_with_2_and_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["classifier", "eval", str(tmp_path / "absent.bin"), str(tmp_path / "absent.jsonl")])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
