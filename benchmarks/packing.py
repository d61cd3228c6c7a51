"""What packing does to documents, and what it costs.

Speed of one window (place, lay out, fill) in pieces per CPU second; share of documents that are cut,
and fill, by method and row length, beside nanochat's packer on the same documents; what copies and
bands cost in padding; where the CPU seconds of the whole stage go. Documents are real ones, and
lognormal ones of median 493 and mean 856 tokens. CPU seconds are the best of `--repeats`.

    python benchmarks/packing.py TOKENIZER.json TEXTS.parquet... [--repeats 7]
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.batch import utf8
from corpuskit.formats.shards import token_schema
from corpuskit.formats.shuffle_files import write_shuffle
from corpuskit.kernels.packing import best_fit, cut_documents, fill_rows, lay_out
from corpuskit.stage import Unit, View
from corpuskit.stages.mixing.upsample import QualityCurve, Upsample
from corpuskit.stages.sequences._rows import (
    PackedDocuments,
    copy_groups,
    cut_pieces,
    pack_windows,
    row_tables,
)
from corpuskit.stages.sequences.pack import Bands, Pack
from corpuskit.stages.sequences.tokenize import Tokenize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

WINDOW = 16384
CELL_BYTES = 64 << 20


def main() -> None:
    """Run all measurements and print tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("texts", type=Path, nargs="+", help="Parquet files with a column `text`")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    texts, view = read_cell(options.texts, options.tokenizer)
    real = np.diff(view.column("tokenize.tokens").offsets.to_numpy())
    print(
        f"{len(real)} real documents, tokens: median {np.median(real):.0f}, mean {real.mean():.0f}"
        f", {int(real.sum()) / texts:.3f} per byte"
    )
    lengths = {"real": real, "lognormal": lognormal(200_000)}
    for name, some in lengths.items():
        for seq_len in (2048, 4096, 8192):
            bench_window(name, some, seq_len + 1, options.repeats)
    for name, some in lengths.items():
        for seq_len in (2048, 4096, 8192):
            show_methods(name, some, seq_len + 1)
    for name, some in lengths.items():
        show_groups(name, some, 2049)
    profile_stage(view, options.repeats)


def best(repeats: int, work: Callable[[], object]) -> float:
    """Return the least CPU seconds of some calls, after one that compiles."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def lognormal(num: int) -> NDArray[np.int64]:
    """Return document lengths with median 493 and mean 856."""
    rng = np.random.default_rng(0)
    return np.maximum(np.exp(rng.normal(6.2, 1.05, num)), 2).astype(np.int64)


def read_cell(paths: list[Path], tokenizer: str) -> tuple[int, View]:
    """Return bytes of text, and a cell of tokenized documents, in batches of one view."""
    tables = [pq.read_table(path, columns=["text"]) for path in paths]
    texts = pa.concat_tables(tables).column("text").cast(pa.large_string()).combine_chunks()
    count = len(texts)
    columns = {"key": np.arange(count), "id": [f"bench-{i}" for i in range(count)], "text": texts}
    view = View(pa.record_batch(columns))
    tokens = Tokenize(tokenizer=tokenizer).apply(view).columns["tokens"]
    return int(utf8(texts).sizes().sum()), view.with_columns({"tokenize.tokens": tokens})


def documents_of(
    lengths: NDArray[np.int64],
    copies: NDArray[np.int32] | None = None,
    bands: NDArray[np.int64] | None = None,
) -> PackedDocuments:
    """Return documents of these lengths with random tokens."""
    num = len(lengths)
    tokens = np.random.default_rng(1).integers(0, 50_000, int(lengths.sum()), np.uint16)
    return PackedDocuments(
        tokens,
        lengths,
        lengths * 4,
        np.arange(num),
        np.ones(num, np.int32) if copies is None else copies,
        np.zeros(num, np.int64) if bands is None else bands,
    )


def bench_window(name: str, lengths: NDArray[np.int64], width: int, repeats: int) -> None:
    """Measure one full window: its kernels alone, and with the Arrow columns around them."""
    documents = documents_of(lengths[:20_000])
    pieces = cut_pieces(documents, np.arange(len(documents.keys)), width, joined=False).part(
        0, WINDOW
    )
    num = len(pieces.lengths)
    _, num_rows = best_fit(pieces.lengths, width)
    out = np.empty((num_rows, width), np.uint16)

    def kernels() -> None:
        places, found = best_fit(pieces.lengths, width)
        bounds, starts, which = lay_out(places, pieces.lengths, found, width)
        fill_rows(
            documents.tokens, pieces.begins, pieces.lengths, bounds, starts, which, 0, out
        )  # fmt: skip

    schema = token_schema(width - 1, "uint16", {})

    def whole() -> None:
        window = list(pack_windows(pieces, WINDOW, width, joined=False))
        for _ in row_tables(window, documents, schema, width, 0):
            pass

    source = np.ones_like(out)
    place = best(repeats, lambda: best_fit(pieces.lengths, width))
    both, around = best(repeats, kernels), best(repeats, whole)
    copied = best(repeats, lambda: np.copyto(out, source))
    print(
        f"window  {name:9s} rows of {width - 1}: {num} pieces of {pieces.lengths.mean():5.0f} "
        f"tokens: place {num / place / 1e6:5.1f} M pieces/CPU-s, place + lay out + fill "
        f"{num / both / 1e6:5.2f} ({out.nbytes / both / 1e9:.1f} GB/CPU-s; np.copyto of the rows "
        f"{out.nbytes / copied / 1e9:.1f}), with Arrow columns and fresh memory "
        f"{num / around / 1e6:5.2f}; fill {pieces.lengths.sum() / out.size:.5f}",
        flush=True,
    )


def pack_lengths(lengths: NDArray[np.int64], width: int, *, joined: bool) -> tuple[float, ...]:
    """Return the share of documents that are cut, that of those that fit a row, and the fill."""
    docs, sizes, _, flags = cut_documents(lengths, lengths, width, 0, joined)
    cut_docs = docs[flags == 4]
    rows = -(-int(lengths.sum()) // width)
    if not joined:
        rows = sum(
            best_fit(sizes[begin : begin + WINDOW], width)[1]
            for begin in range(0, len(sizes), WINDOW)
        )
    return (
        len(cut_docs) / len(lengths),
        float((lengths[cut_docs] <= width).mean() if len(cut_docs) else 0)
        * len(cut_docs)
        / len(lengths),
        int(lengths.sum()) / (rows * width),
    )


def crop_lengths(
    lengths: NDArray[np.int64], width: int, num: int = 400_000, buffer: int = 1000
) -> tuple[float, ...]:
    """Return the share of documents cut, that fit a row, and of tokens lost, as nanochat packs.

    Rows are filled from a buffer with the largest document that fits; where none does, the shortest
    is cropped to the room that is left and the rest of it thrown away (karpathy/nanochat,
    nanochat/dataloader.py). Long documents gather in the buffer, so the documents come again and
    again, in random order, and the second half counts.
    """
    drawn = np.random.default_rng(4).choice(lengths, num)
    held, room = drawn[:buffer].copy(), width
    num_cut = num_fitting = lost = tokens = used = 0
    for number, following in enumerate(drawn[buffer:].tolist()):
        fitting = np.where(held <= room, held, 0)
        at = int(fitting.argmax())
        is_cut = not fitting[at]
        if is_cut:
            at = int(held.argmin())
        length = int(held[at])
        if number >= num // 2:
            used += 1
            tokens += length
            num_cut += is_cut
            num_fitting += is_cut and length <= width
            lost += max(length - room, 0)
        room = width if is_cut or length == room else room - length
        held[at] = following
    return num_cut / used, num_fitting / used, lost / tokens


def show_methods(name: str, lengths: NDArray[np.int64], width: int) -> None:
    """Print what each method does to the documents."""
    for method in ("best_fit", "concat"):
        is_cut, fitting, fill = pack_lengths(lengths, width, joined=method == "concat")
        print(
            f"method  {name:9s} rows of {width - 1}: {method:9s} cuts {is_cut:6.2%} of documents, "
            f"{fitting:6.2%} though they fit a row; fill {fill:.5f}; tokens lost 0"
        )
    is_cut, fitting, lost = crop_lengths(lengths, width)
    print(
        f"method  {name:9s} rows of {width - 1}: nanochat  cuts {is_cut:6.2%} of documents, "
        f"{fitting:6.2%} though they fit a row; fill 1.00000; tokens lost {lost:.1%}",
        flush=True,
    )


def padding(documents: PackedDocuments, width: int, num_bands: int) -> float:
    """Return the share of padding, of one cell."""
    rows = tokens = 0
    for band in range(num_bands):
        for chosen in copy_groups(documents, band):
            pieces = cut_pieces(documents, chosen, width, joined=False)
            rows += sum(one.num_rows for one in pack_windows(pieces, WINDOW, width, joined=False))
            tokens += int(pieces.lengths.sum())
    return 1 - tokens / (rows * width)


def show_groups(name: str, lengths: NDArray[np.int64], width: int) -> None:
    """Print the padding of one cell by copies and bands."""
    some = lengths[: int(np.searchsorted(np.cumsum(lengths), CELL_BYTES * 0.25))]
    num = len(some)
    rng = np.random.default_rng(2)
    ranks = rng.permutation(num) / num
    # Cluster sizes as after global deduplication: half alone, a tail as 1 / size**2.
    sizes = np.minimum((1 / np.maximum(rng.random(num), 1e-4)).astype(np.int64), 5000)
    quality = Upsample(column="x", curve=QualityCurve(mean=1.5))
    kinds = {
        "once": np.ones(num, np.int32),
        "fineweb2": Upsample(column="x", preset="fineweb2")._factors(sizes.astype(float)),
        "dolma3, mean 1.5": np.floor(quality._factors(ranks) + rng.random(num)),
    }
    for kind, copies in kinds.items():
        found = []
        for num_bands in (1, 4, 16):
            bands = (ranks * num_bands).astype(np.int64)
            documents = documents_of(some, copies.astype(np.int32), bands)
            found.append(f"{padding(documents, width, num_bands):.3%} in {num_bands} band(s)")
        print(
            f"groups  {name:9s} cell of {num} documents, rows of {width - 1}, {kind}: "
            f"{copies.mean():.2f} copies, padding {', '.join(found)}",
            flush=True,
        )


class BenchContext:
    """What the stage touches; files go to a folder, each a new one: emptying an old one costs."""

    def __init__(self, given: Mapping[str, Any], folder: Path) -> None:
        self.unit, self.given, self.folder = Unit(0, "web"), given, folder
        self.counts: Counter[str] = Counter()

    def count(self, name: str, value: int = 1) -> None:
        self.counts[name] += value

    def write_shuffle(
        self, name: str, columns: Mapping[str, Any], *, is_sorted: bool = False
    ) -> None:
        write_shuffle(self.folder / name, columns, is_sorted=is_sorted)

    def write_part(
        self, role: str, folder: str, write: Callable[[Path], None], **facts: Any
    ) -> None:
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            write(Path(file.name))


def profile_stage(view: View, repeats: int) -> None:
    """Print what the whole stage costs on real documents, files included, and what dominates."""
    sizes = np.cumsum(view.text.sizes())
    view = View(view.batch.slice(0, int(np.searchsorted(sizes, CELL_BYTES))))
    offsets = view.column("tokenize.tokens").offsets.to_numpy()
    tokens = int(offsets[view.num_docs] - offsets[0])
    given = {"tokenizer": {"hash": "", "dtype": "uint16", "pad": 0, "vocab_size": 50_000}}
    bands = Bands(column="rank", edges=(0.25, 0.5, 0.75))
    rank = pa.array(np.random.default_rng(3).random(view.num_docs))
    for name, stage in {"best_fit": Pack(), "4 bands": Pack(bands=bands)}.items():
        cell = view if stage.bands is None else view.with_columns({"rank": rank})
        parts = [View(cell.batch.slice(i, 2000)) for i in range(0, cell.num_docs, 2000)]
        with tempfile.TemporaryDirectory() as folder:
            known = {**given, **stage.provides(given)}

            def collect(
                stage: Pack = stage, parts: list[View] = parts, known: Any = known, at: str = folder
            ) -> None:
                stage.collect(iter(parts), BenchContext(known, Path(at)))  # type: ignore[arg-type]

            seconds = best(repeats, collect)
            print(
                f"stage   {name}: {tokens / seconds / 1e6:.0f} M tokens/CPU-s, "
                f"{view.num_docs / seconds / 1e6:.2f} M documents/CPU-s, files included"
            )
            profile = cProfile.Profile()
            profile.runcall(collect)
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(12)


if __name__ == "__main__":
    main()
