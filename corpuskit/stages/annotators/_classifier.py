"""Labelled rows in, a fastText model and its accuracy out: `corpuskit classifier`."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpuskit.batch import Utf8
from corpuskit.errors import DataError, UsageError
from corpuskit.stages.annotators._fasttext import open_model, train, training_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from corpuskit.stages.annotators._fasttext import Model, Settings

BATCH = 4096
"""Rows that are read or predicted at a time."""
BUCKETS = 32
"""Files that lines are scattered over, to shuffle them with 1/32 of their bytes in memory."""


class Row(NamedTuple):
    """A text and its true label."""

    text: str
    label: str


@dataclass(frozen=True)
class LabelScore:
    """How well one label is found; `num_docs` have it, `num_predicted` were given it."""

    label: str
    num_docs: int
    num_predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """How a model does on labelled rows.

    Attributes:
        num_docs: rows judged.
        accuracy: share of rows whose best label is the true one.
        macro_f1: mean of the labels' F1.
        labels: labels that occur, by name.
        confusions: (true, predicted, count), most frequent first.
    """

    num_docs: int
    accuracy: float
    macro_f1: float
    labels: tuple[LabelScore, ...]
    confusions: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class TrainReport:
    """What `train_classifier` did; `held_out` is None when nothing was held out."""

    model: str
    size_bytes: int
    num_docs: int
    labels: tuple[str, ...]
    held_out: Evaluation | None


def read_rows(paths: Sequence[Path], text_column: str, label_column: str) -> Iterator[Row]:
    """Yield the rows of Parquet and JSONL files (.jsonl, .json, also .gz and .zst), in order.

    Labels that are numbers or booleans become strings; rows with a null in either column are left
    out.

    Raises:
        UsageError: a file is missing or of another kind.
        DataError: a file is broken or lacks a column; names file and line.
    """
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file.")
        name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
        if name.endswith((".jsonl", ".json", ".ndjson")):
            yield from _read_jsonl(path, text_column, label_column)
        elif name.endswith((".parquet", ".pq")):
            yield from _read_parquet(path, text_column, label_column)
        else:
            raise UsageError(f"{path}: must be .parquet or .jsonl, also .jsonl.gz or .jsonl.zst.")


def _read_parquet(path: Path, text_column: str, label_column: str) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for column in (text_column, label_column):
                if column not in file.schema_arrow.names:
                    _missing(str(path), column, file.schema_arrow.names)
            for batch in file.iter_batches(BATCH, columns=[text_column, label_column]):
                texts, labels = batch.column(text_column), batch.column(label_column)
                for text, label in zip(texts.to_pylist(), labels.to_pylist(), strict=True):
                    if text is not None and label is not None:
                        yield Row(str(text), _label(label))
    except pa.ArrowInvalid as error:
        raise DataError(f"{path}: is not a whole Parquet file: {error}.") from None


def _read_jsonl(path: Path, text_column: str, label_column: str) -> Iterator[Row]:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression="detect") as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise DataError(f"{path}:{number}: is not JSON: {error}.") from None
                if not isinstance(record, dict):
                    raise DataError(f"{path}:{number}: must be a JSON object.")
                for column in (text_column, label_column):
                    if column not in record:
                        _missing(f"{path}:{number}", column, list(record))
                if record[text_column] is not None and record[label_column] is not None:
                    yield Row(str(record[text_column]), _label(record[label_column]))
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from None


def _missing(where: str, column: str, present: list[str]) -> None:
    raise DataError(
        f"{where}: column {column!r} is missing; has {', '.join(map(repr, present))}. "
        "Set --text-column and --label-column."
    )


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_held_out(text: str, share: float) -> bool:
    """Say whether a text is set aside: by its hash, so that copies of a text stay together."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") < share * 2.0**64


def train_classifier(
    inputs: Sequence[Path],
    output: Path,
    settings: Settings,
    *,
    text_column: str = "text",
    label_column: str = "label",
    holdout: float = 0.0,
    quantize: bool = False,
    cutoff: int = 0,
    progress: Callable[[str], None] = lambda message: None,
    verbose: int = 0,
) -> TrainReport:
    """Train a classifier on labelled rows, write it to `output` and judge it on what was held out.

    Rows are put in random order by the seed, whatever their order in the files. With one thread the
    same rows, settings and library give the same file.

    Args:
        inputs: Parquet or JSONL files.
        output: the model; `.ftz` by custom for a quantized one.
        settings: see `Settings`.
        text_column: column of the texts.
        label_column: column of the labels; a label is one word.
        holdout: share of texts that are judged instead of learned from, chosen by hash.
        quantize: compress the model.
        cutoff: rows that are kept when quantizing; 0 keeps all.
        progress: is given one line of text per step.
        verbose: 2 draws fastText's own progress bar.

    Raises:
        UsageError: an input is missing, a setting makes no sense, or the model is too small to
            be quantized.
        DataError: an input is broken, a label is not one word, or there are fewer than two labels.
    """
    _check_options(holdout, cutoff if not quantize else 0)
    with tempfile.TemporaryDirectory(prefix="corpuskit-") as scratch:
        lines = Path(scratch, "lines.txt")
        counts: Counter[str] = Counter()
        rows = read_rows(inputs, text_column, label_column)
        write_shuffled(_learned(rows, holdout, counts), lines, settings.seed)
        if len(counts) < 2:
            found = ", ".join(map(repr, counts)) or "none"
            raise DataError(f"column {label_column!r}: needs two labels, has {found}.")
        progress(f"training on {counts.total():,} texts with {len(counts)} labels")
        model = train(lines, settings, verbose=verbose)
        if quantize:
            progress(f"quantizing {model.rows:,} rows")
            model.quantize(lines, settings, cutoff=cutoff, verbose=verbose)
    model.save(output)
    progress(f"wrote {output}, {output.stat().st_size:,} bytes")
    held_out = None
    if holdout > 0:
        rows = read_rows(inputs, text_column, label_column)
        held_out = judge(
            open_model(output), (row for row in rows if is_held_out(row.text, holdout))
        )
    return TrainReport(
        str(output), output.stat().st_size, counts.total(), tuple(sorted(counts)), held_out
    )


def _check_options(holdout: float, useless_cutoff: int) -> None:
    if not 0 <= holdout < 1:
        raise UsageError(f"holdout must be at least 0 and below 1, got {holdout}.")
    if useless_cutoff:
        raise UsageError(f"cutoff {useless_cutoff:,} has no effect alone. Add --quantize.")


def _learned(rows: Iterable[Row], holdout: float, counts: Counter[str]) -> Iterator[str]:
    """Yield the training lines of rows that are not held out, and count their labels."""
    for text, label in rows:
        if not is_held_out(text, holdout):
            counts[label] += 1
            yield training_line(text, label)


def evaluate_classifier(
    model: Path, inputs: Sequence[Path], *, text_column: str = "text", label_column: str = "label"
) -> Evaluation:
    """Judge a model on labelled rows.

    Raises:
        UsageError: a file is missing.
        DataError: an input is broken, or no row has a text and a label.
    """
    found = judge(open_model(model), read_rows(inputs, text_column, label_column))
    if found.num_docs == 0:
        raise DataError(f"{inputs[0]}: no row has a text and a label.")
    return found


def judge(model: Model, rows: Iterable[Row]) -> Evaluation:
    """Compare the model's best label with the true one, row by row."""
    pairs: Counter[tuple[str, str]] = Counter()
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        ranks = model.predict(buffers([row.text for row in batch])).ranks[:, 0]
        names = (model.labels[rank] if rank >= 0 else "" for rank in ranks.tolist())
        pairs.update((row.label, name) for row, name in zip(batch, names, strict=True))
    return tally(pairs)


def tally(pairs: Counter[tuple[str, str]]) -> Evaluation:
    """Turn counts of (true, predicted) into figures; a ratio without a denominator is 0."""
    true: Counter[str] = Counter()
    given: Counter[str] = Counter()
    for (label, guess), count in pairs.items():
        true[label] += count
        given[guess] += count
    scores = []
    for label in sorted(true.keys() | (given.keys() - {""})):
        hits = pairs[label, label]
        precision = hits / given[label] if given[label] else 0.0
        recall = hits / true[label] if true[label] else 0.0
        f1 = 2 * hits / (given[label] + true[label])
        scores.append(LabelScore(label, true[label], given[label], precision, recall, f1))
    wrong = [(*pair, count) for pair, count in pairs.items() if pair[0] != pair[1]]
    total = pairs.total()
    return Evaluation(
        num_docs=total,
        accuracy=sum(pairs[label, label] for label in true) / total if total else 0.0,
        macro_f1=sum(score.f1 for score in scores) / len(scores) if scores else 0.0,
        labels=tuple(scores),
        confusions=tuple(sorted(wrong, key=lambda found: (-found[2], found[0], found[1]))),
    )


def buffers(texts: Sequence[str]) -> Utf8:
    """Lay texts out as buffers; lone surrogates become U+FFFD."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    cleaned = [raw.decode("utf-8", "replace").encode() for raw in encoded]
    offsets = np.zeros(len(cleaned) + 1, np.int64)
    np.cumsum([len(raw) for raw in cleaned], out=offsets[1:])
    return Utf8(offsets, np.frombuffer(b"".join(cleaned), np.uint8))


def write_shuffled(lines: Iterable[str], path: Path, seed: int) -> None:
    """Write lines in random order, the same for the same lines and seed.

    Lines are scattered over 32 files, and each is shuffled in memory: that is a uniform order, and
    memory holds 1/32 of the bytes.
    """
    rng = random.Random(seed)
    parts = [path.with_suffix(f".{number}") for number in range(BUCKETS)]
    files = [part.open("w", encoding="utf-8", errors="replace", newline="\n") for part in parts]
    try:
        for line in lines:
            files[rng.randrange(BUCKETS)].write(line)
    finally:
        for file in files:
            file.close()
    with path.open("wb") as out:
        for part in parts:
            content = part.read_bytes().split(b"\n")[:-1]
            rng.shuffle(content)
            out.writelines(line + b"\n" for line in content)
            part.unlink()
