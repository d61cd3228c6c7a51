"""Orders of rows as the shuffling code of a library makes them, run by that library's interpreter.

    python benchmarks/peers/loader_orders.py SCHEME NUM_ROWS FILE_ROWS OUT.npy

writes the numbers of the rows in the order of delivery. Rows lie in files of FILE_ROWS; a batch that
several ranks or workers fill takes its rows from them in turns.
"""

from __future__ import annotations

import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Order = NDArray[np.int64]

SEED, BATCH_ROWS = 7, 256


def corpuskit_loader(num_rows: int, file_rows: int) -> Order:
    """What the loader makes of a source that lies in the order in which it was read."""
    return corpuskit_order(num_rows, is_shuffled=False)


def corpuskit_second_epoch(num_rows: int, file_rows: int) -> Order:
    """What the loader makes of the second epoch."""
    return corpuskit_order(num_rows, is_shuffled=False, epoch=1)


def corpuskit_written(num_rows: int, file_rows: int) -> Order:
    """What the loader makes, in its first epoch, of what the stage `shuffle` wrote."""
    from corpuskit.loader.order import permute

    places = permute(np.arange(num_rows), num_rows, SEED, "shuffle", "web")
    written = np.empty(num_rows, np.int64)
    written[places] = np.arange(num_rows)
    return written[corpuskit_order(num_rows, is_shuffled=True)]


def corpuskit_order(num_rows: int, *, is_shuffled: bool, epoch: int = 0) -> Order:
    from corpuskit.loader.order import MixSource, MixStage, RowOrder

    source = MixSource("web", num_rows, is_shuffled)
    stage = MixStage("main", num_rows * (epoch + 1), (1,))
    order = RowOrder(SEED, [source], [stage])
    counters = np.arange(num_rows) + epoch * num_rows
    return np.concatenate([order.rows_at(part).rows for part in np.array_split(counters, 64)])


def mosaic(name: str, num_rows: int, file_rows: int, block_rows: int) -> Order:
    """Call a shuffle of MosaicML Streaming for one canonical node."""
    from loader_mosaic import stand_in_for_torchvision

    stand_in_for_torchvision()
    from streaming.base.shuffle import get_shuffle

    sizes = np.array([min(file_rows, num_rows - i) for i in range(0, num_rows, file_rows)])
    return get_shuffle(name, sizes, 1, SEED, 0, block_rows)


def mosaic_py1e(num_rows: int, file_rows: int) -> Order:
    """Blocks of 4 million, the default for one canonical node: here, the whole corpus."""
    return mosaic("py1e", num_rows, file_rows, 4_000_000)


def mosaic_py1e_small(num_rows: int, file_rows: int) -> Order:
    """Blocks of 2^18, the default from 16 canonical nodes on."""
    return mosaic("py1e", num_rows, file_rows, 1 << 18)


def mosaic_py1br_small(num_rows: int, file_rows: int) -> Order:
    return mosaic("py1br", num_rows, file_rows, 1 << 18)


def litdata(num_rows: int, file_rows: int, ranks: int, workers: int) -> Order:
    """Call LitData's FullShuffle as its dataset does; the cache that it asks is a plain object."""
    from litdata.streaming.item_loader import Interval
    from litdata.streaming.shuffle import FullShuffle
    from litdata.utilities.env import _DistributedEnv

    edges = [(i, min(i + file_rows, num_rows)) for i in range(0, num_rows, file_rows)]
    intervals = [Interval(low, low, high, high) for low, high in edges]
    reader = types.SimpleNamespace(_config=None, _max_cache_size=1 << 40)
    cache = types.SimpleNamespace(get_chunk_intervals=lambda: intervals, _reader=reader)
    shuffle = FullShuffle(cache, SEED, True)
    world = _DistributedEnv(world_size=ranks, global_rank=0, num_nodes=1)
    size = BATCH_ROWS // ranks
    chunks, pieces = shuffle.get_chunks_and_intervals_per_workers(world, workers, size, 1)
    lanes = [
        np.array(
            [
                row
                for chunk, piece in zip(chunks[lane], pieces[lane], strict=True)
                for row in shuffle(np.arange(piece[1], piece[2]), len(intervals), 1, int(chunk))
            ]
        )
        for lane in range(ranks * workers)
    ]
    batches = min(len(lane) for lane in lanes) // size
    # Step t takes from each rank a batch of its worker t % workers.
    cut = np.stack([lane[: batches * size].reshape(batches, size) for lane in lanes])
    by_rank = cut.reshape(ranks, workers, batches, size).transpose(2, 1, 0, 3)
    return by_rank.reshape(-1)


def litdata_alone(num_rows: int, file_rows: int) -> Order:
    return litdata(num_rows, file_rows, 1, 1)


def litdata_64(num_rows: int, file_rows: int) -> Order:
    return litdata(num_rows, file_rows, 8, 8)


def grain_index_shuffle(num_rows: int, file_rows: int) -> Order:
    """Call grain's index_shuffle as its MapDataset does."""
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module

    shuffled, last = index_shuffle_module.index_shuffle, num_rows - 1
    return np.fromiter(
        (shuffled(i, max_index=last, seed=SEED, rounds=4) for i in range(num_rows)),
        np.int64,
        num_rows,
    )


def hf_buffer(size: int, num_rows: int, file_rows: int) -> Order:
    """Stream through `IterableDataset.shuffle`, which also shuffles the order of the files."""
    import datasets

    def rows(firsts: list[int]) -> Iterator[dict[str, Any]]:
        for first in firsts:
            for row in range(first, min(first + file_rows, num_rows)):
                yield {"row": row}

    stream = datasets.IterableDataset.from_generator(
        rows, gen_kwargs={"firsts": list(range(0, num_rows, file_rows))}
    )
    stream = stream.shuffle(seed=SEED, buffer_size=size)
    return np.fromiter((one["row"] for one in stream), np.int64, num_rows)


def hf_buffer_1k(num_rows: int, file_rows: int) -> Order:
    return hf_buffer(1_000, num_rows, file_rows)


def hf_buffer_10k(num_rows: int, file_rows: int) -> Order:
    return hf_buffer(10_000, num_rows, file_rows)


def hf_buffer_100k(num_rows: int, file_rows: int) -> Order:
    return hf_buffer(100_000, num_rows, file_rows)


SCHEMES = (
    corpuskit_loader, corpuskit_second_epoch, corpuskit_written,
    mosaic_py1e, mosaic_py1e_small, mosaic_py1br_small, litdata_alone, litdata_64,
    grain_index_shuffle, hf_buffer_1k, hf_buffer_10k, hf_buffer_100k,
)  # fmt: skip


def main() -> None:
    """Write one order."""
    warnings.simplefilter("ignore")
    scheme, num_rows, file_rows, out = sys.argv[1:]
    make = {one.__name__: one for one in SCHEMES}[scheme]
    np.save(out, make(int(num_rows), int(file_rows)))


if __name__ == "__main__":
    main()
