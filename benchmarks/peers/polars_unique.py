"""polars: `unique` on the text column of a lazy scan.

Variants: `memory` (the in-memory engine; default: the streaming one), `eager` (read, then unique).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from adapter import measured

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def keep(documents: Path, variant: str) -> Callable[[], list[str]]:
    """Keep any one of equal texts."""
    if variant == "eager":
        table = pl.read_parquet(documents, columns=["id", "text"]).unique("text", keep="any")
        ids = table["id"]
    else:
        query = pl.scan_parquet(documents).select("id", "text").unique("text", keep="any")
        engine = "in-memory" if variant == "memory" else "streaming"
        ids = query.select("id").collect(engine=engine)["id"]
    return ids.to_list


if __name__ == "__main__":
    measured("polars", keep)
