"""Words as datatrove finds them: speed of the splitter, warm and cold, against datatrove itself.

`cold` starts from an empty memory in a process whose kernels are compiled, `warm` splits the same
text again. datatrove splits a sample of the same documents, and both must find the same words.
MB per CPU second on one core.

    python benchmarks/words.py [--mb 112] [--slow-mb 3] [--language en] [--compile]

Reads bench_en (or bench_multi for other languages) from CORPUSKIT_SHARED_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
from filters import DATA

from corpuskit.text.words import Splitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Texts = tuple[NDArray[np.int64], NDArray[np.uint8]]

BATCH_DOCS = 512


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=float, default=112, help="text for the splitter")
    parser.add_argument("--slow-mb", type=float, default=3, help="text for datatrove")
    parser.add_argument("--language", default="en")
    parser.add_argument("--compile", action="store_true", help="time the compilation, too")
    options = parser.parse_args()
    documents = read_documents(options.language, options.mb * 1e6)
    batches = [buffers(part) for part in parts(documents)]
    size = sum(int(offsets[-1]) for offsets, _ in batches)
    print(f"{len(documents)} documents, {size / 1e6:.1f} MB, language {options.language}")
    for words in ("whitespace", "spacy", "unicode"):
        measure(words, options.language, batches, size)
    compare(options.language, documents, options.slow_mb * 1e6)
    if options.compile:
        print(f"compile all kernels: {compile_seconds():.1f} CPU s")


def measure(words: str, language: str, batches: Sequence[Texts], size: int) -> None:
    """Print one way to split, cold and warm."""
    first = Splitter(words, language)  # type: ignore[arg-type]
    begin = time.process_time()
    first(*buffers(["hello, world"]))
    loading = time.process_time() - begin
    split = Splitter(words, language)  # type: ignore[arg-type]
    speeds = []
    for _ in range(4):
        begin = time.process_time()
        for offsets, data in batches:
            split(offsets, data)
        speeds.append(size / 1e6 / (time.process_time() - begin))
        if len(speeds) == 1:
            cold = split.stats()
    print(
        f"{words:10}  cold {speeds[0]:6.1f} MB/s  warm {max(speeds):6.1f} MB/s  "
        f"first call {loading:.2f} CPU s  {cold.num_chunks} chunks in {cold.size_bytes / 1e6:.0f} MB, "
        f"{cold.num_asked} asked for ({cold.num_asked / max(cold.num_chunks, 1):.2%})"
        f"{'' if cold.emulated else ', no rules in the kernel'}"
    )


def compare(language: str, documents: Sequence[str], size: float) -> None:
    """Print datatrove's speed on a sample, and whether the words are the same."""
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    tokenizer = load_word_tokenizer(language)
    for _ in range(2):
        tokenizer.word_tokenize("IS_ALPHA")
    step = max(1, int(sum(map(len, documents)) / size))
    sample = documents[::step]
    begin = time.process_time()
    theirs = [tokenizer.word_tokenize(text) for text in sample]
    seconds = time.process_time() - begin
    found = Splitter("spacy", language)(*buffers(sample))
    content, starts = found.lexicon.data.tobytes(), found.lexicon.starts.tolist()
    known = [content[a:b].decode() for a, b in itertools.pairwise(starts)]
    bounds = itertools.pairwise(found.offsets.tolist())
    mine = [[known[token] for token in found.tokens[a:b].tolist()] for a, b in bounds]
    different = sum(a != b for a, b in zip(mine, theirs, strict=True))
    read = sum(len(text.encode()) for text in sample)
    print(
        f"datatrove   {read / 1e6 / seconds:6.2f} MB/s on {len(sample)} of the documents "
        f"({read / 1e6:.1f} MB); {different} have other words"
    )


def compile_seconds() -> float:
    """Return the CPU seconds of a first call with an empty cache of kernels."""
    code = (
        "import numpy as np, time; from corpuskit.text.words import Splitter;"
        "begin = time.process_time(); split = Splitter('whitespace');"
        "split(np.array([0, 1]), np.frombuffer(b'a', np.uint8));"
        "print(time.process_time() - begin)"
    )
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "CORPUSKIT_CACHE_DIR": cache},
            check=True,
            capture_output=True,
            text=True,
        )
    return float(done.stdout)


def read_documents(language: str, size: float) -> list[str]:
    """Read at most `size` bytes of documents of one language."""
    folder = DATA / ("bench_en" if language == "en" else "bench_multi")
    documents: list[str] = []
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        texts = table["text"].to_pylist()
        if language != "en":
            langs = table["lang"].to_pylist()
            texts = [t for t, lang in zip(texts, langs, strict=True) if lang[:2] == language[:2]]
        for text in texts:
            size -= len(text.encode())
            if size < 0:
                return documents
            documents.append(text)
    return documents


def parts(documents: Sequence[str]) -> list[Sequence[str]]:
    """Cut documents into batches."""
    return [documents[at : at + BATCH_DOCS] for at in range(0, len(documents), BATCH_DOCS)]


def buffers(documents: Sequence[str]) -> Texts:
    """Return offsets and bytes of documents."""
    coded = [text.encode() for text in documents]
    offsets = np.cumsum([0, *map(len, coded)], dtype=np.int64)
    return offsets, np.frombuffer(b"".join(coded), np.uint8)


if __name__ == "__main__":
    main()
