"""The unit table of a sealed phase: which units it had, what each read and what it counted.

It lies beside the seal, which names it as a part of the role `units`. Whoever runs the phase again
finds in it the units that need not be computed again; nobody else reads it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from corpuskit.errors import DataError
from corpuskit.formats.manifest import UNITS, Part, dump_checked, load_checked
from corpuskit.storage import digest_content

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class UnitTable:
    """What is known of the units of a phase, in unit order; columns are equally long.

    Attributes:
        chains: source -> fingerprint of all that decides but the inputs.
        units: their numbers.
        sources: of each; empty for ranges.
        inputs: hash of what each read; empty where a unit depends on more than that.
        counters: what each counted.
        volumes: bytes of text that stages saw in each.
    """

    chains: Mapping[str, str]
    units: Sequence[int]
    sources: Sequence[str]
    inputs: Sequence[str]
    counters: Sequence[Mapping[str, int]]
    volumes: Sequence[Mapping[str, int]]

    def to_json(self) -> bytes:
        """Return the file content; equal tables have equal bytes."""
        return dump_checked(
            {
                "format": FORMAT,
                "chains": dict(self.chains),
                "units": list(self.units),
                "sources": list(self.sources),
                "inputs": list(self.inputs),
                "counters": _columns(self.counters),
                "volumes": _columns(self.volumes),
            }
        )

    @classmethod
    def from_json(cls, content: bytes, where: str) -> UnitTable:
        """Parse the file.

        Raises:
            DataError: it is damaged, or of another version.
        """
        fields = load_checked(content, where)
        try:
            if fields["format"] != FORMAT:
                raise DataError(f"{where}: not a unit table of format {FORMAT}.")
            num = len(fields["units"])
            counters, volumes = (_rows(fields[name], num) for name in ("counters", "volumes"))
            units = [int(number) for number in fields["units"]]
            sources, inputs = ([str(v) for v in fields[name]] for name in ("sources", "inputs"))
            if {len(sources), len(inputs)} != {num}:
                raise ValueError("its columns differ in length")
            return cls(dict(fields["chains"]), units, sources, inputs, counters, volumes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{where}: not a unit table: {error!r}.") from None

    def part(self, phase: str) -> tuple[Part, bytes]:
        """Return the table as a part of a phase, and the content of its file."""
        content = self.to_json()
        digest = digest_content(content)
        name = f"manifests/{phase}/units-{digest[:12]}.json"
        size = len(content)
        part = Part(0, UNITS, name, rows=len(self.units), size_bytes=size, digest=digest)
        return part, content


def _columns(rows: Sequence[Mapping[str, int]]) -> dict[str, list[int | None]]:
    names = sorted({name for row in rows for name in row})
    return {name: [row.get(name) for row in rows] for name in names}


def _rows(columns: Mapping[str, Sequence[int | None]], num: int) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = [{} for _ in range(num)]
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            if value is not None:
                row[str(name)] = int(value)
    return rows
