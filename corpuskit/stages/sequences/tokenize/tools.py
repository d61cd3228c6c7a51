"""Trains byte-level BPE tokenizers; describes and converts tokenizers of all kinds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.manifest import Seal
from corpuskit.stage import InputFile, Source
from corpuskit.stages.sequences.tokenize.definition import (
    TokenizerSpec,
    candidates,
    define,
    files_of,
    identify,
)
from corpuskit.stages.sequences.tokenize.encoders import ReferenceEncoder
from corpuskit.stages.sequences.tokenize.engines import open_engine
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from corpuskit.stages.sources.text import Text
from corpuskit.storage import find_files as find_matches
from corpuskit.storage import local_file, walk_files, write_whole

END_OF_TEXT = "<|endoftext|>"
ALPHABET = 256
"""Bytes: every text can be encoded, whatever it was trained on."""

MIN_COUNT = 2
"""Occurrences from which on a pair of tokens can become a token."""

SLICE_BYTES = 64 << 20
MAX_DOCUMENT_BYTES = 16 << 20
COMPRESSED = (".gz", ".zst")
FORMATS: dict[str, type[Source]] = {
    ".parquet": Parquet,
    ".jsonl": Jsonl,
    ".ndjson": Jsonl,
    ".txt": Text,
    ".md": Text,
}


@dataclasses.dataclass(frozen=True)
class TrainedTokenizer:
    """What was trained, on how much.

    Attributes:
        num_rejected: documents that could not be read (no text, no UTF-8, too long).
        digest: blake2b-128 of the file.
    """

    path: str
    vocab_size: int
    num_files: int
    num_docs: int
    num_rejected: int
    text_bytes: int
    digest: str


def train_tokenizer(
    inputs: Sequence[Path],
    output: Path,
    *,
    vocab_size: int,
    special: Sequence[str] = (END_OF_TEXT,),
    text_column: str = "text",
    max_bytes: int = 1 << 30,
    progress: Callable[[int, int], None] = lambda num_docs, text_bytes: None,
) -> TrainedTokenizer:
    """Train a byte-level BPE tokenizer and write it as a tokenizer.json.

    The same texts, in whatever files and order, give the same file with the same version of
    `tokenizers`. Memory grows with the distinct words of the texts, not with the texts; `max_bytes`
    bounds it: of every file at most its share (by size on disk) of that much text is read.

    Args:
        inputs: Parquet, JSONL and text files (also .gz, .zst), folders of them, run directories.
        output: the file to write; appears whole or not at all.
        vocab_size: tokens, the special ones and the 256 bytes included.
        special: tokens that never come from text; the first has id 0.
        text_column: of Parquet and JSONL inputs.
        max_bytes: most text that is read.
        progress: called with the documents and bytes read so far.

    Raises:
        UsageError: nothing can be read, the vocabulary has no room for all bytes, names of special
            tokens are unusable, or `output` cannot be written.
        DataError: an input file is broken.

    Source: Sennrich et al. 2016 (BPE); Radford et al. 2019 (GPT-2): bytes as the alphabet, and the
    pattern that splits text into words. Hugging Face tokenizers is the implementation.
    """
    if vocab_size < ALPHABET + len(special):
        raise UsageError(
            f"--vocab-size must be at least {ALPHABET + len(special)} ({ALPHABET} bytes and "
            f"{len(special)} special tokens), got {vocab_size}."
        )
    _check_special(special)
    files = find_files(inputs)
    reader = TextReader(progress)
    content, size = _train(reader.texts(files, text_column, max_bytes), vocab_size, special)
    if reader.num_docs == 0:
        names = ", ".join(str(path) for path in inputs)
        raise UsageError(f"{names}: no text to train on. Set --text-column.")
    write_whole(output, content)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return TrainedTokenizer(
        str(output), size, len(files), reader.num_docs, reader.num_rejected,
        reader.text_bytes, digest,
    )  # fmt: skip


def _check_special(special: Sequence[str]) -> None:
    for name in special:
        if len(name) < 2 or special.count(name) > 1:
            problem = "is given twice" if special.count(name) > 1 else "is too short"
            raise UsageError(
                f"--special: {name!r} {problem}. Give names that differ, of two characters or more."
            )


def find_files(inputs: Sequence[Path]) -> list[Path]:
    """Return the readable files of `inputs`, of folders those below them, of runs their documents.

    A path that does not exist may be a pattern, in which `**` walks folders.

    Raises:
        UsageError: a path does not exist, or has no file that can be read.
    """
    paths: list[Path] = []
    for path in inputs:
        if (path / "manifests").is_dir():
            files = _documents_of_run(path)
        elif path.is_dir():
            files = [path / name for name in walk_files(str(path)) if _format(path / name)]
            for file in files:
                local_file(str(file))
        elif path.is_file():
            files = [path] if _format(path) else []
        elif matches := find_matches(str(path)):
            files = [Path(match.address) for match in matches if _format(Path(match.address))]
        else:
            raise UsageError(f"{path}: no such file or folder. Check the path.")
        if not files:
            types = ", ".join(FORMATS)
            raise UsageError(f"{path}: nothing to read. Files must end in {types} (or .gz, .zst).")
        paths += files
    return list(dict.fromkeys(paths))


def _documents_of_run(folder: Path) -> list[Path]:
    seals = sorted(folder.glob("manifests/*/seal.json"))
    parts = [part for path in seals for part in Seal.from_json(path.read_bytes(), str(path)).parts]
    paths = sorted({part.path for part in parts if part.path.startswith("documents/")})
    if not paths:
        raise UsageError(f"{folder}: the run has no documents/. Run it with documents: true.")
    return [folder / name for name in paths]


def _format(path: Path) -> type[Source] | None:
    name = path.name.lower()
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return FORMATS.get(os.path.splitext(name)[1])


class TextReader:
    """Reads texts, and counts what was read."""

    def __init__(self, progress: Callable[[int, int], None] = lambda docs, size: None) -> None:
        self.num_docs = self.num_rejected = self.text_bytes = 0
        self._progress = progress

    def texts(self, files: Sequence[Path], column: str, max_bytes: int) -> Iterator[list[str]]:
        """Yield texts in lists, from every file its share of `max_bytes`.

        Raises:
            UsageError: a file cannot be read.
            DataError: it is broken.
        """
        try:
            yield from self._shares(files, column, max_bytes)
        except (DataError, UsageError) as error:  # sources know the parameters of pipelines
            message = str(error).replace("sources.input.text_column", "--text-column")
            raise type(error)(message.removeprefix("text_column: ")) from None

    def _shares(self, files: Sequence[Path], column: str, max_bytes: int) -> Iterator[list[str]]:
        sizes = [path.stat().st_size for path in files]
        for path, size in zip(files, sizes, strict=True):
            bytes_left = max_bytes * size // max(sum(sizes), 1)
            for texts, text_bytes in self._read(path, size, column):
                while text_bytes > bytes_left and texts:
                    text_bytes -= len(texts.pop().encode())
                self.num_docs += len(texts)
                self.text_bytes += text_bytes
                self._progress(self.num_docs, self.text_bytes)
                yield texts
                bytes_left -= text_bytes
                if bytes_left <= 0:
                    break

    def _read(self, path: Path, size: int, column: str) -> Iterator[tuple[list[str], int]]:
        kind = _format(path)
        assert kind is not None, "find_files sees to it"
        params = {} if kind is Text else {"text_column": column, "extra": False}
        source = kind(paths=(str(path),), **params)
        file = InputFile(0, "input", str(path), path.name, size, "")
        for piece in source.slices(file, SLICE_BYTES):
            for batch in source.read(file, piece, MAX_DOCUMENT_BYTES):
                self.num_rejected += len(batch.rejects)
                texts = batch.texts.to_pylist()
                yield texts, sum(len(text.encode()) for text in texts)


def _train(
    texts: Iterator[list[str]], vocab_size: int, special: Sequence[str]
) -> tuple[bytes, int]:
    """Return a tokenizer.json, and how many tokens it has: at most `vocab_size`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str(pretty=False).encode(), tokenizer.get_vocab_size()


# ---------------------------------------------------------------- describe and convert


@dataclasses.dataclass(frozen=True)
class Description:
    """A tokenizer as `tokenize` sees it.

    Attributes:
        hash: of all that decides ids.
        specials: special tokens and their ids.
        eos, bos, pad: tokens that could be meant; `tokenize` takes the only one.
        regex: how text is split into words, where the file does not say it.
        engine: what `engine: auto` uses here.
        tokens: of the sample text, with their ids.
    """

    kind: str
    files: tuple[str, ...]
    hash: str
    vocab_size: int
    dtype: str
    specials: Mapping[str, int]
    eos: tuple[str, ...]
    bos: tuple[str, ...]
    pad: tuple[str, ...]
    regex: str | None
    engine: str
    text: str
    tokens: tuple[tuple[int, str], ...]


def describe(spec: TokenizerSpec, text: str) -> Description:
    """Return what is known of a tokenizer, and the ids of a text.

    Raises:
        UsageError: the file is not a tokenizer, or something is missing.
    """
    definition = define(spec)
    encoder = open_engine(spec)
    names = {number: name for name, number in definition.vocabulary.items()}
    ids = encoder.encode(pa.array([text], pa.large_string())).ids.tolist()
    size = max(names) + 1
    return Description(
        kind=definition.kind,
        files=files_of(spec.path),
        hash=identify(spec),
        vocab_size=size,
        dtype="uint16" if size <= 1 << 16 else "uint32",
        specials={name: definition.vocabulary[name] for name in definition.specials},
        eos=tuple(candidates(definition, "eos")),
        bos=tuple(candidates(definition, "bos")),
        pad=tuple(candidates(definition, "pad")),
        regex=definition.regex,
        engine=encoder.engine,
        text=text,
        tokens=tuple((number, names[number]) for number in ids),
    )


def convert(spec: TokenizerSpec, output: Path) -> list[str]:
    """Write a tokenizer as a tokenizer.json of Hugging Face.

    Returns:
        Tokens for which SentencePiece may give other ids than the file.

    Raises:
        UsageError: no tokenizer.json has its ids, or `output` cannot be written.
    """
    definition = define(spec)
    fields = definition.fields
    ReferenceEncoder(fields, allow_special=False)  # Hugging Face can open it
    write_whole(output, json.dumps(fields, ensure_ascii=False).encode())
    return [] if definition.model is None else definition.model.own_pieces()
