"""dolma: its Bloom filter over paragraphs (lines), one process; JSON lines, gzipped, to attributes.

Variant: the interpreter of dolma's environment, whose pyarrow and numpy need not work together;
this adapter runs in any that reads Parquet. Making the input from Parquet is not counted. The filter is sized for the paragraphs there are, at
one false positive in a million.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from adapter import measured

if TYPE_CHECKING:
    from collections.abc import Callable


def keep(documents: Path, variant: str) -> Callable[[], dict[str, Any]]:
    """Run its command."""
    folder = tempfile.TemporaryDirectory()
    root = Path(folder.name)
    num_lines = write_input(documents, root / "documents")
    config = root / "config.json"
    content = {
        "documents": [f"{root}/documents/*.gz"],
        "dedupe": {
            "name": "bloom",
            "paragraphs": {"attribute_name": "seen"},
            "skip_empty": True,
        },
        "bloom_filter": {
            "file": f"{root}/bloom.bin",
            "read_only": False,
            "estimated_doc_count": num_lines,
            "desired_false_positive_rate": 1e-6,
        },
        "processes": 1,
    }
    config.write_text(json.dumps(content), "utf-8")
    command = [str(Path(variant).with_name("dolma")), "-c", str(config), "dedupe"]
    asked = "import importlib.metadata as m; print(m.version('dolma'))"
    version = subprocess.check_output([variant, "-c", asked], text=True).strip()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"dolma ended with status {status}")

    def read() -> dict[str, Any]:
        with folder:
            lines: list[str] = []
            for path in (root / "attributes").rglob("*.gz"):
                lines += gzip.decompress(path.read_bytes()).decode().splitlines()
            spans = [span for line in lines for span in json.loads(line)["attributes"]["seen"]]
        ids = pq.read_table(documents, columns=["id"]).column("id").to_pylist()
        return {
            "kept": ids,
            "cut_bytes": sum(end - start for start, end, _ in spans),
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_rss_bytes": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            "version": version,
        }

    return read


def write_input(documents: Path, folder: Path) -> int:
    """Write the documents as dolma reads them; return how many lines they have."""
    folder.mkdir()
    num_lines = 0
    with gzip.open(folder / "all.json.gz", "wt", encoding="utf-8", compresslevel=1) as out:
        for batch in pq.ParquetFile(documents).iter_batches(1000, columns=["id", "text"]):
            for row in batch.to_pylist():
                num_lines += row["text"].count("\n") + 1
                out.write(json.dumps({**row, "source": "web"}) + "\n")
    return num_lines


if __name__ == "__main__":
    measured("dolma", keep)
