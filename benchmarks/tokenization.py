"""Tokenization: the same ids as each tokenizer's own reference, and how fast.

    python benchmarks/tokenization.py --identity FOLDER TEXTS.parquet...
    python benchmarks/tokenization.py --fuzz 100000 FOLDER
    python benchmarks/tokenization.py --speed FOLDER TEXTS.parquet... [--only gpt2] [--mb 200]

FOLDER has the tokenizers of the table below, as published. `--identity` and `--fuzz` compare the
ids of the stage, with the engine that it chooses, with those of the reference (Hugging Face
tokenizers, tiktoken, SentencePiece), document by document. `--speed` has four figures of the same
documents and tokenizer: `corpuskit run` (Parquet in, packed and shuffled token shards out, one
worker); what a worker of it does for tokenization alone, in one process that has opened the
tokenizer (Parquet in, packed rows out); datatrove's DocumentTokenizer; and gigatoken alone on texts
in memory, opened before. CPU seconds of the first and third are those of all their processes, from
start to end. Each process sees the texts once, so that no memo of words is warm.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.shuffle_files import write_shuffle
from corpuskit.stage import Unit, View
from corpuskit.stages.sequences.pack import Pack
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.stages.sequences.tokenize.ranks import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STEP = 512
"""Documents that are compared at a time."""


class Kind(NamedTuple):
    path: str
    reference: str
    eos: str


KINDS = {
    "gpt2": Kind("gpt2", "pair", "<|endoftext|>"),
    "dolma2": Kind("allenai_dolma2/tokenizer.json", "json", "<|endoftext|>"),
    "neox": Kind("gpt_neox_olmo/tokenizer.json", "json", "<|endoftext|>"),
    "phi3": Kind("phi3_mini/tokenizer.json", "json", "<|endoftext|>"),
    "r50k": Kind("tiktoken/r50k_base.tiktoken", "gpt2", "<|endoftext|>"),
    "cl100k": Kind("tiktoken/cl100k_base.tiktoken", "cl100k", "<|endoftext|>"),
    "llama3": Kind("llama3/tokenizer.model", "llama3", "<|end_of_text|>"),
    "qwen": Kind("qwen/qwen.tiktoken", "qwen", "<|endoftext|>"),
    "mistral": Kind("mistral_v3/tokenizer.model", "sentencepiece", "</s>"),
    "tekken": Kind("mistral_tekken/tekken_240911.json.zst", "tekken", "</s>"),
}


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of tokenizers")
    parser.add_argument("texts", type=Path, nargs="*", help="Parquet files with a column `text`")
    parser.add_argument("--identity", action="store_true")
    parser.add_argument("--fuzz", type=int, default=0, metavar="DOCUMENTS")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--mb", type=int, default=10_000, help="most text that is used")
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    for name in options.only:
        if options.identity:
            documents = read_batches(options.texts, options.mb * 1_000_000)
            compare(name, options.folder, documents, "texts", options.engine)
        if options.fuzz:
            compare(name, options.folder, random_batches(options.fuzz), "fuzz", options.engine)
        if options.speed:
            measure(name, options.folder, options.texts, options.mb * 1_000_000)


def read_batches(paths: list[Path], most_bytes: int) -> Iterator[pa.Array]:
    """Yield texts, STEP at a time."""
    for path in paths:
        for batch in pq.ParquetFile(path).iter_batches(STEP, columns=["text"]):
            texts = batch.column("text").cast(pa.large_string()).drop_null()
            yield texts
            most_bytes -= texts.nbytes
            if most_bytes <= 0:
                return


def random_batches(num_docs: int) -> Iterator[pa.Array]:
    """Yield texts of any code points, with spaces, marks and words between them."""
    dice = random.Random(0)
    points = [p for p in range(0x110000) if not 0xD800 <= p < 0xE000]
    assigned = [p for p in points if unicodedata.category(chr(p)) != "Cn"]
    common = [*range(0x20, 0x7F), *range(0xA0, 0x600), *range(0x4E00, 0x4F00)]
    pieces = [" ", "  ", "\n", "\r\n", "\t", "\u3000", "\u00a0", "'s", "'LL", "'\u017f", "12345"]
    pieces += ["e\u0301", "\u200d", "\ufe0f", "\u0f71\u0f72", "the", " Hello", "</s>", "\u2581"]
    pieces += ["   " * 9, "\n \n  ", "\0", "[REFERENCE_DOC_1]", "<0x41>", "...", "//\n"]

    def piece() -> str:
        draw = dice.random()
        if draw < 0.4:
            return chr(dice.choice(common))
        if draw < 0.7:  # texts with a code point that is not assigned go to the reference
            return chr(dice.choice(points if draw < 0.402 else assigned))
        return dice.choice(pieces)

    for begin in range(0, num_docs, STEP):
        sizes = [dice.randrange(60) for _ in range(min(STEP, num_docs - begin))]
        texts = ["".join(piece() for _ in range(size)) for size in sizes]
        yield pa.array(texts, pa.large_string())


def compare(name: str, folder: Path, batches: Iterator[pa.Array], what: str, engine: str) -> None:
    """Print how many documents get other ids than the reference gives, and both speeds."""
    kind = KINDS[name]
    reference = open_reference(folder / kind.path, kind.reference)
    stage = Tokenize(tokenizer=str(folder / kind.path), eos=kind.eos, add_eos=False, engine=engine)
    stage.apply(View(pa.record_batch({"text": pa.array(["a"], pa.large_string())})))
    documents = tokens = size = differing = 0
    seconds = [0.0, 0.0]
    for texts in batches:
        strings = texts.to_pylist()
        began = time.process_time()
        expected = reference(strings)
        middle = time.process_time()
        found = stage.apply(View(pa.record_batch({"text": texts}))).columns["tokens"]
        seconds[1] += time.process_time() - middle
        seconds[0] += middle - began
        flat = np.concatenate([np.zeros(0, np.uint32), *expected])
        offsets = np.cumsum([0, *map(len, expected)])
        documents, tokens = documents + len(texts), tokens + len(flat)
        size += sum(len(text.encode()) for text in strings)
        if not np.array_equal(found.offsets.to_numpy(), offsets) or not np.array_equal(
            found.values.to_numpy(), flat
        ):
            rows = zip(found.to_pylist(), expected, strings, strict=True)
            others = [text for ids, ours, text in rows if ids != ours.tolist()]
            differing += len(others)
            print(f"  {name} differs: {min(others, key=len)[:80]!r}")
    reference_speed, speed = (size / 1e6 / max(second, 1e-9) for second in seconds)
    print(
        f"{what:6s} {name:8s} {documents:,} documents, {size / 1e6:.1f} MB, {tokens:,} tokens: "
        f"{differing} differ; reference {reference_speed:.1f} MB per CPU second, stage "
        f"{speed:.0f}, ratio {speed / reference_speed:.0f}",
        flush=True,
    )


def open_reference(path: Path, kind: str) -> Callable[[list[str]], list[np.ndarray]]:
    """Return what gives the ids that count; nothing of corpuskit is in it but split patterns."""
    if kind in {"json", "pair"}:
        from tokenizers import Tokenizer, models, pre_tokenizers

        if kind == "pair":
            files = [str(path / name) for name in ("vocab.json", "merges.txt")]
            tokenizer = Tokenizer(models.BPE.from_file(*files))
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        else:
            tokenizer = Tokenizer.from_file(str(path))
        tokenizer.encode_special_tokens = True
        return lambda texts: [
            np.array(one.ids, np.uint32)
            for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ]
    if kind == "sentencepiece":
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return lambda texts: [np.array(processor.encode(text), np.uint32) for text in texts]
    import tiktoken

    if kind == "tekken":
        import zstandard

        content = json.loads(zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read())
        config = content["config"]
        first = config["default_num_special_tokens"]
        room = config["default_vocab_size"] - first
        vocabulary = [one for one in content["vocab"] if one["rank"] < room]
        ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in vocabulary}
        regex = config["pattern"]
    else:
        lines = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        first, regex = 0, published_pattern(kind)
    encoding = tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [
        np.array(encoding.encode_ordinary(text), np.uint32) + np.uint32(first) for text in texts
    ]


def published_pattern(kind: str) -> str:
    """Return the pattern that tiktoken has for its own files; for others that of their code."""
    from tiktoken_ext import openai_public

    name = {"gpt2": "r50k_base", "cl100k": "cl100k_base"}.get(kind)
    if name is None:
        return PRESETS[kind].regex
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}  # its ranks are not fetched
    return str(openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"])


def measure(name: str, folder: Path, paths: list[Path], most_bytes: int) -> None:
    """Print the CPU seconds of `corpuskit run`, datatrove and gigatoken for the same documents."""
    from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec, define

    kind = KINDS[name]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        texts = pa.chunked_array(list(read_batches(paths, most_bytes)))
        size = sum(len(text.encode()) for text in texts.to_pylist()) / 1e6
        (place / "in").mkdir()
        half = len(texts) // 2  # two files, so that memory is that of a cell
        for name_, part in (("a", texts[:half]), ("b", texts[half:])):
            table = pa.table({"text": part})
            pq.write_table(table, place / f"in/{name_}.parquet", compression="zstd")
        fields = define(TokenizerSpec(str(folder / kind.path))).fields
        (place / "tokenizer.json").write_text(json.dumps(fields))
        ours = run_corpuskit(place, str(folder / kind.path), kind.eos)
        phase, opening = run_phase(place, str(folder / kind.path), kind.eos)
        alone = run_gigatoken(place)
        theirs = run_datatrove(place, kind.eos)
    figures = {
        "corpuskit run": ours,
        f"its tokenize + pack (opened in {opening:.2f})": phase,
        "datatrove": theirs,
        "gigatoken alone": alone,
    }
    rates = (f"{what} {cpu:.2f} CPU-s, {size / cpu:.1f} MB/CPU-s" for what, cpu in figures.items())
    print(f"speed  {name:8s} {size:.0f} MB: {'; '.join(rates)}")
    print(
        f"       {name:8s} tokenize + pack: {theirs / phase:.0f} x datatrove, "
        f"{alone / phase:.2f} of gigatoken; the whole run: {theirs / ours:.1f} x, "
        f"{alone / ours:.2f}",
        flush=True,
    )


def cpu_of(command: list[str], folder: Path) -> tuple[float, str]:
    """Run a command; return the CPU seconds of it and its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        done.stdout,
    )


def run_corpuskit(folder: Path, tokenizer: str, eos: str) -> float:
    (folder / "p.yaml").write_text(
        textwrap.dedent(f"""
        name: speed
        output: {folder}/run
        documents: false
        sources:
          web: {{parquet: [{folder}/in/*.parquet], text_column: text}}
        stages:
          - tokenize: {{tokenizer: {tokenizer}, eos: "{eos}"}}
          - pack: {{seq_len: 2048}}
        """)
    )
    command = [sys.executable, "-m", "corpuskit.cli.main", "run", "p.yaml", "--workers", "1"]
    return cpu_of(command, folder)[0]


class Context:
    """What a cell of `pack` writes to, in a folder."""

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        self.folder, self.given, self.unit = folder, given, Unit(0, "web")

    def count(self, name: str, value: int = 1) -> None:
        """Count nothing."""

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        write_shuffle(self.folder / f"{name}.arrow", columns, is_sorted=is_sorted)

    def write_part(
        self, role: str, folder: str, write: Callable[[Path], None], **facts: Any
    ) -> None:
        write(self.folder / f"{role}.parquet")


def run_phase(folder: Path, tokenizer: str, eos: str) -> tuple[float, float]:
    """Return the CPU seconds of tokenize and pack in this process, and of opening before."""
    (folder / "phase").mkdir()
    stage, pack = Tokenize(tokenizer=tokenizer, eos=eos), Pack(seq_len=2048)
    given = dict(stage.provides({}))
    given |= pack.provides(given)
    context = Context(folder / "phase", given)

    def views(path: Path, num_docs: int | None = None) -> Iterator[View]:
        key = 0
        for batch in pq.ParquetFile(path).iter_batches(512):
            texts = batch.column("text").cast(pa.large_string())[:num_docs]
            keys = np.arange(key, key + len(texts))
            key += len(texts)
            columns = {"key": keys, "id": [f"web/a.parquet#{k}" for k in keys], "text": texts}
            view = View(pa.record_batch(columns))
            found = stage.apply(view).columns
            yield view.with_columns({f"tokenize.{name}": ids for name, ids in found.items()})
            if num_docs is not None:
                return

    began = time.process_time()
    pack.collect(views(folder / "in/a.parquet", 1), context)
    opened = time.process_time()
    for path in sorted((folder / "in").iterdir()):
        pack.collect(views(path), context)
    return time.process_time() - opened, opened - began


GIGATOKEN = """
import pathlib, time, pyarrow as pa, pyarrow.parquet as pq, gigatoken
from awkward import Array
from awkward.contents import ListOffsetArray, NumpyArray
from awkward.index import Index64
import numpy as np
fast = gigatoken.Tokenizer.from_json(open("tokenizer.json").read())
batches = []
for path in sorted(pathlib.Path("in").iterdir()):
  for batch in pq.ParquetFile(path).iter_batches(512):
    texts = batch.column(0).cast(pa.large_string())
    _, offsets, data = texts.buffers()
    offsets = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    chars = NumpyArray(np.frombuffer(data, np.uint8), parameters={"__array__": "char"})
    lists = ListOffsetArray(Index64(offsets), chars, parameters={"__array__": "string"})
    batches.append(Array(lists))
read = time.process_time()
for batch in batches:
    fast.encode_batch(batch, parallel=False)
print(time.process_time() - read)
"""


def run_gigatoken(folder: Path) -> float:
    return float(cpu_of([sys.executable, "-c", GIGATOKEN], folder)[1])


DATATROVE = """
import sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer
LocalPipelineExecutor(
    pipeline=[
        ParquetReader("in"),
        DocumentTokenizer(
            output_folder="out", tokenizer_name_or_path="tokenizer.json",
            eos_token=sys.argv[1], shuffle_documents=False,
        ),
    ],
    tasks=1, workers=1, logging_dir="logs",
).run()
"""


def run_datatrove(folder: Path, eos: str) -> float:
    return cpu_of([sys.executable, "-c", DATATROVE, eos], folder)[0]


if __name__ == "__main__":
    main()
