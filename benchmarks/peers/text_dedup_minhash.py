"""text-dedup 0.4: `python -m text_dedup.minhash`, one process, xxh3 of 32 bits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

from adapter import BANDS, NGRAM, ROWS, measured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Run its command; the ids are read from the data set that it saves."""
    folder = tempfile.TemporaryDirectory()
    options = {
        "path": "parquet", "data_files": documents, "split": "train", "column": "text",
        "output": f"{folder.name}/out", "cache_dir": f"{folder.name}/cache", "num_proc": 1,
        "ngram": NGRAM, "b": BANDS, "r": ROWS, "num_perm": BANDS * ROWS, "min_length": 0,
        "hash_func": "xxh3", "hash_bits": 32, "batch_size": 10_000,
    }  # fmt: skip
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    environment = {**os.environ, "HF_HOME": f"{folder.name}/home", "HF_HUB_OFFLINE": "1"}
    subprocess.run(
        [sys.executable, "-m", "text_dedup.minhash", *arguments], check=True, env=environment
    )

    def read() -> list[str]:
        import datasets

        with folder:
            return list(datasets.load_from_disk(f"{folder.name}/out")["id"])

    return read


if __name__ == "__main__":
    measured("text-dedup", keep)
