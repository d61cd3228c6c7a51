"""The table of what packing did to the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from corpuskit.cli._tables import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.mixture import PackingRow


def print_packing(rows: Sequence[PackingRow]) -> None:
    """Print documents, cuts and fill per source; nothing when nothing is packed yet."""
    if not rows:
        return
    out = console()
    table = Table(
        box=None, header_style="bold", pad_edge=False, title="Packing", title_justify="left"
    )
    table.add_column("source", overflow="fold")
    for name in ("documents", "copies", "cut", "though they fit", "rows", "padding", "fill"):
        table.add_column(name, justify="right")
    for row in rows:
        fill = f"{100 * row.fill_ratio:.2f} %"
        sizes = (f"{row.rows:,}", f"{row.padding:,}", fill)
        if row.band is not None:
            table.add_row(f"  band {row.band}", "", "", "", "", *sizes)
            continue
        cut = f"{row.num_cut:,} ({100 * row.cut_ratio:.2f} %)"
        counts = (f"{row.documents:,}", f"{row.copies:,}", cut, f"{row.num_cut_fitting:,}")
        table.add_row(row.source, *counts, *sizes)
    out.print()
    out.print(table)
