"""Formats that are fuzzed: how good files look, and what must hold of damaged ones."""

from __future__ import annotations

import functools
import gzip
import io
import itertools
import json
import random
from typing import TYPE_CHECKING, NamedTuple

from corpuskit.stage import InputFile
from tests.fuzz.mutate import mutate, mutate_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from corpuskit.stage import Source

MOST = 1 << 20
TEXTS = ["the river bends twice", "before it reaches", "", "the old stone bridge", "caf\xe9 \u65e5"]


class Format(NamedTuple):
    """A format.

    Attributes:
        names: of files, with the ending that tells the format.
        seeds: makes the content of good files, in the order of names.
        read: reads a file and returns how many documents and rejects came of it.
        inside: whether what lies within gzip may be changed instead.
    """

    names: Sequence[str]
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[Path, bytes, bytes], int]
    inside: bool = False


def case(name: str, seed: int, folder: Path) -> tuple[Path, bytes, bytes]:
    """Write the damaged file of a seed; return its path, and the content before and after."""
    form, rng = FORMATS[name], random.Random(f"{name} {seed}")
    number = rng.randrange(len(form.names))
    good = good_files(name)[number]
    if form.inside and good.startswith(b"\x1f\x8b") and rng.random() < 0.5:
        members = _members(good)
        chosen = rng.randrange(len(members))
        members[chosen] = gzip.compress(mutate(gzip.decompress(members[chosen]), rng), mtime=0)
        bad = b"".join(members)
    elif form.names[number].endswith(".json") and rng.random() < 0.7:
        bad = mutate_json(good, rng)
    else:
        bad = mutate(good, rng)
    path = folder / form.names[number]
    path.write_bytes(bad)
    return path, good, bad


@functools.cache
def good_files(name: str) -> Sequence[bytes]:
    """Return the good files of a format, made once per process."""
    return FORMATS[name].seeds()


# ---------------------------------------------------------------- sources


def _documents(source: Source, path: Path) -> int:
    """Read a file as the runner does; check what holds whatever is in it."""
    file = InputFile(0, "web", str(path), path.name, path.stat().st_size, "")
    places: list[int] = []
    for piece in source.slices(file, 1 << 26):
        for batch in source.read(file, piece, MOST):
            batch.texts.validate(full=True)
            found = [*batch.positions.tolist(), *(one.position for one in batch.rejects)]
            places += sorted(found)
    assert all(a < b for a, b in itertools.pairwise(places)), "positions ascend"
    return len(places)


def _parquet(path: Path, good: bytes, bad: bytes) -> int:
    import pyarrow.parquet as pq

    from corpuskit.stages.sources.parquet import Parquet

    num = _documents(Parquet(paths=("x",)), path)
    assert num == pq.read_metadata(path).num_rows, "a row is neither a document nor in the ledger"
    return num


def _parquet_seeds() -> Sequence[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "text": TEXTS * 30, "n": list(range(150)), "l": [["x"], [], ["y", None], None, ["x"]] * 30,
        "s": [{"a": 1, "b": "z"}] * 150, "when": pa.array([0] * 150, pa.timestamp("ms", "UTC")),
    }  # fmt: skip
    options: list[dict[str, object]] = [
        {"compression": "none", "row_group_size": 60},
        {"compression": "zstd", "row_group_size": 60, "data_page_size": 200},
        {"compression": "snappy", "use_dictionary": False, "data_page_version": "2.0"},
        {"compression": "none", "store_schema": False, "write_statistics": False},
    ]
    found = []
    for option in options:
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink, **option)
        found.append(sink.getvalue())
    return found


PAGE = "<html><body><article><p>{} The river bends twice.</p></article></body></html>"


def _block(number: int) -> bytes:
    page = PAGE.format(f"Page {number}.").encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page


def _warc_record(number: int) -> bytes:
    block = _block(number)
    return (
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/%d\r\n"
        b"WARC-Date: 2024-05-18T01:58:10Z\r\nContent-Type: application/http; msgtype=response\r\n"
        b"Content-Length: %d\r\n\r\n%s\r\n\r\n" % (number, len(block), block)
    )


def _warc_seeds() -> Sequence[bytes]:
    import zstandard

    records = [_warc_record(number) for number in range(6)]
    whole = b"".join(records)
    return [
        whole, b"".join(gzip.compress(one, mtime=0) for one in records),
        gzip.compress(whole, mtime=0), zstandard.compress(whole),
    ]  # fmt: skip


def _arc_seeds() -> Sequence[bytes]:
    blocks = [_block(number) for number in range(6)]
    records = [
        b"http://a.example/%d 192.0.2.7 20040518015810 text/html %d\n%s\n" % (n, len(block), block)
        for n, block in enumerate(blocks)
    ]
    first = b"filedesc://a.arc 0.0.0.0 20040518015810 text/plain 20\n1 0 x\nURL IP-address\n"
    whole = b"".join([first, *records])
    return [
        whole, b"".join(gzip.compress(one, mtime=0) for one in records),
        gzip.compress(whole, mtime=0),
    ]  # fmt: skip


def _wacz_seeds() -> Sequence[bytes]:
    import zipfile

    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in (
            ("datapackage.json", b"{}"),
            (
                "archive/a.warc.gz",
                b"".join(gzip.compress(_warc_record(n), mtime=0) for n in range(3)),
            ),
            ("archive/b.warc", b"".join(map(_warc_record, range(3, 6)))),
        ):
            archive.writestr(zipfile.ZipInfo(name), content)
    return [sink.getvalue()]


def _wacz(path: Path, good: bytes, bad: bytes) -> int:
    from corpuskit.stages.sources.warc import Warc

    num = _documents(Warc(paths=("x",)), path)
    assert num > 0, "the directory names two files, and nothing came of them"
    return num


def _warc(path: Path, good: bytes, bad: bytes) -> int:
    from corpuskit.stages.sources.warc import Warc

    num = _documents(Warc(paths=("x",)), path)
    if good.startswith(b"\x1f\x8b"):
        _check_members(path, good, bad)
    return num


def _check_members(path: Path, good: bytes, bad: bytes) -> None:
    """Check that records come out whose gzip members the damage did not touch."""
    from corpuskit.stages.sources._web.archive import Archive
    from corpuskit.stages.sources._web.records import read_records

    archive = Archive(str(path), 1000)
    records = read_records(
        archive.pieces(), lambda fields: True, 1 << 24, archive.end, archive.framing
    )
    bodies = {one.body for one in records}
    archive.close()
    begin = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), len(bad))
    shared = len(bad) - begin
    end = next((i for i in range(1, shared + 1) if i > len(good) or good[-i] != bad[-i]), shared)
    at = 0
    for number, member in enumerate(_members(good)):
        if at + len(member) <= begin or at > len(good) - end:
            assert _block(number) in bodies, f"record {number} is lost"
        at += len(member)


def _members(content: bytes) -> list[bytes]:
    """Return the gzip members of a good file."""
    import zlib

    found = []
    while content:
        decoder = zlib.decompressobj(31)
        decoder.decompress(content)
        found.append(content[: len(content) - len(decoder.unused_data)])
        content = decoder.unused_data
    return found


# ---------------------------------------------------------------- tokenizers and models


def _tokenizer(path: Path, good: bytes, bad: bytes) -> int:
    import pyarrow as pa

    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.stages.sequences.tokenize.engines import open_engine

    stage = Tokenize(tokenizer=str(path), add_eos=False)
    size = stage.provides({})["tokenizer"]["vocab_size"]
    for engine in ("auto", "huggingface"):
        found = open_engine(stage._spec, engine).encode(pa.array(TEXTS, pa.large_string()))
        assert len(found.offsets) == len(TEXTS) + 1
        assert len(found.ids) == 0 or int(found.ids.max()) < size, "an id beyond the vocabulary"
        if path.suffix == ".model":
            break
    return 1


def _tokenizer_seeds() -> Sequence[bytes]:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    found = []
    for model, trainer in (
        (models.BPE(), trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"],
         initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)),
        (models.Unigram(), trainers.UnigramTrainer(vocab_size=40, unk_token="<unk>",
         special_tokens=["<unk>"], show_progress=False)),
        (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(vocab_size=60,
         special_tokens=["[UNK]"], show_progress=False)),
    ):  # fmt: skip
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(TEXTS * 20, trainer)
        found.append(tokenizer.to_str().encode())
    return found


def _tekken_seeds() -> Sequence[bytes]:
    import base64

    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b"ri"]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode()}
        for rank, token in enumerate(tokens)
    ]
    config = {"pattern": r"\s+|\w+|[^\s\w]+", "num_vocab_tokens": 300,
              "default_vocab_size": 300, "default_num_special_tokens": 20}  # fmt: skip
    return [json.dumps({"config": config, "vocab": vocabulary}).encode()]


def _sentencepiece_seeds() -> Sequence[bytes]:
    import sentencepiece

    found = []
    for kind, options in (("bpe", {"byte_fallback": True, "vocab_size": 320}),
                          ("unigram", {"vocab_size": 40, "hard_vocab_limit": False})):  # fmt: skip
        sink = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 30), model_writer=sink, model_type=kind,
            minloglevel=2, num_threads=1, **options,
        )  # fmt: skip
        found.append(sink.getvalue())
    return found


def _fasttext_seeds() -> Sequence[bytes]:
    import tempfile
    from pathlib import Path

    from corpuskit.stages.annotators._fasttext import ClassifierSettings, train, training_line

    found = []
    with tempfile.TemporaryDirectory() as folder:
        given, model = Path(folder) / "train.txt", Path(folder) / "model"
        lines = [training_line(f"{text} word{n}", f"l{n % 3}") for n, text in enumerate(TEXTS * 40)]
        given.write_text("".join(lines))
        for loss, quantized in (("softmax", False), ("hs", False), ("softmax", True)):
            settings = ClassifierSettings(dim=4, epochs=1, buckets=300, minn=2, maxn=3, loss=loss)
            trained = train(given, settings)
            if quantized:
                trained.quantize(given, settings, cutoff=280)
            trained.save(model)
            found.append(model.read_bytes())
    return found


def _fasttext(path: Path, good: bytes, bad: bytes) -> int:
    import pyarrow as pa

    from corpuskit.formats.batch import utf8
    from corpuskit.stages.annotators._fasttext import open_model

    model = open_model(path)
    model.predict(utf8(pa.array([*TEXTS, "word1 word2 unheard of"], pa.large_string())), 3)
    return len(model.labels)


FORMATS = {
    "parquet": Format([f"{n}.parquet" for n in range(4)], _parquet_seeds, _parquet),
    "warc": Format(
        ["a.warc", "b.warc.gz", "c.warc.gz", "d.warc.zst", "e.arc", "f.arc.gz", "g.arc.gz"],
        lambda: [*_warc_seeds(), *_arc_seeds()], _warc, True,
    ),
    "wacz": Format(["a.wacz"], _wacz_seeds, _wacz),
    "tokenizer": Format(
        [*(f"{n}.json" for n in range(3)), "tekken.json"],
        lambda: [*_tokenizer_seeds(), *_tekken_seeds()], _tokenizer,
    ),
    "sentencepiece": Format(["a.model", "b.model"], _sentencepiece_seeds, _tokenizer),
    "fasttext": Format(["a.bin", "b.bin", "c.ftz"], _fasttext_seeds, _fasttext),
}  # fmt: skip
