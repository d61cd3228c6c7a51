"""What packing did to the documents of a run, per source."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from corpuskit.engine.plan.compile import Phase
    from corpuskit.formats.manifest import Seal


@dataclasses.dataclass(frozen=True)
class PackingRow:
    """What packing did to the documents of a source, or of one of its bands.

    Attributes:
        band: of the source, from 0; None = the whole source.
        documents, copies: how many there are, and how often they were packed; 0 for a band.
        num_cut: copies that lie in more than one row; num_cut_fitting: of these, those that would
            have fitted one.
        rows, tokens, padding: of the packed rows; padding in tokens, tokens without it.
    """

    source: str
    band: int | None
    documents: int
    copies: int
    num_cut: int
    num_cut_fitting: int
    rows: int
    tokens: int
    padding: int

    @property
    def fill_ratio(self) -> float:
        """Share of the stored tokens that is no padding."""
        return self.tokens / max(self.tokens + self.padding, 1)

    @property
    def cut_ratio(self) -> float:
        """Share of the copies that lie in more than one row."""
        return self.num_cut / max(self.copies, 1)


def packing(finished: Iterable[tuple[Phase, Seal]]) -> list[PackingRow]:
    """Return a row per source, and behind it one per band; none when nothing is packed yet."""
    counters = next((seal.counters for phase, seal in finished if phase.name == "pack"), {})
    prefix = "documents/"
    names = [name.removeprefix(prefix) for name in sorted(counters) if name.startswith(prefix)]
    return [row for source in names for row in _rows(counters, source)]


def _rows(counters: Mapping[str, int], source: str) -> list[PackingRow]:
    def of(name: str) -> int:
        return counters.get(f"{name}/{source}", 0)

    rows, padding = of("rows"), of("padding")
    width = (of("tokens") + padding) // max(rows, 1)
    whole = PackingRow(
        source, None, of("documents"), of("copies"), of("cut_documents"), of("cut_fitting"), rows,
        of("tokens"), padding,
    )  # fmt: skip
    num_bands = sum(f"band_rows/{band}/{source}" in counters for band in range(256))
    bands = []
    for band in range(num_bands):
        rows, padding = of(f"band_rows/{band}"), of(f"band_padding/{band}")
        bands.append(PackingRow(source, band, 0, 0, 0, 0, rows, rows * width - padding, padding))
    return [whole, *bands]
