"""corpuskit: `corpuskit run` of a pipeline with one stage, documents to sidecars, one process.

The variant is the stage as JSON, such as `{"minhash_dedup": {"bands": 14}}`; keys `cell_bytes` and
`task_memory_bytes` beside it are settings of the pipeline.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter import measured

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ("cell_bytes", "task_memory_bytes")


def pipeline(documents: Path | str, output: Path, given: dict[str, Any]) -> dict:
    """Return the pipeline of one stage over Parquet files, run by one process as most peers are."""
    settings = {name: given[name] for name in SETTINGS if name in given}
    stages = [{name: values} for name, values in given.items() if name not in SETTINGS]
    return {
        "output": str(output),
        "documents": False,
        **settings,
        "sources": {"web": {"parquet": str(documents), "id_column": "id"}},
        "stages": stages,
        "executor": {"workers": 0},
    }


def run(path: Path, until: str) -> None:
    """Run a pipeline by the command line, up to the masks of a stage."""
    done = subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(path), "--until", until],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


def phases(output: Path) -> dict[str, dict[str, float]]:
    """Return CPU seconds, peak memory and bytes written by phase, as its seal says."""
    sys.path.insert(0, str(ROOT))
    from corpuskit.engine.rundir import RunDirectory

    run = RunDirectory.open(str(output))
    found = {}
    for phase in run.plan.phases:
        seal = run.seal(phase.index)
        found[phase.name] = {
            "cpu_seconds": seal.timing.get("cpu_seconds", 0.0)
            - seal.timing.get("cpu_seconds/compiling", 0.0),
            "peak_rss_bytes": seal.timing.get("peak_rss_bytes", 0.0),
            "size_bytes": float(sum(part.size_bytes for part in seal.parts)),
        }
    return found


def ledger(output: Path) -> tuple[set[str], int]:
    """Return the ids of the documents that were dropped, and the bytes that were cut of others."""
    import pyarrow.parquet as pq  # after what is measured

    gone: set[str] = set()
    cut = 0
    for path in (output / "ledger").rglob("*.parquet"):
        for row in pq.read_table(path, columns=["doc_id", "action", "spans"]).to_pylist():
            if row["action"] == "drop":
                gone.add(row["doc_id"])
            cut += sum(span["end"] - span["start"] for span in row["spans"] or ())
    return gone, cut


def keep(documents: Path, variant: str) -> Callable[[], dict[str, Any]]:
    """Run the pipeline; the ids are those that are not in the ledger."""
    folder = tempfile.TemporaryDirectory()
    output, path = Path(folder.name) / "run", Path(folder.name) / "p.yaml"
    content = pipeline(documents, output, json.loads(variant))
    path.write_text(json.dumps(content), "utf-8")
    run(path, next(iter(content["stages"][-1])))

    def read() -> dict[str, Any]:
        with folder:
            import pyarrow.parquet as pq

            gone, cut = ledger(output)
            ids = pq.read_table(documents, columns=["id"]).column("id").to_pylist()
            kept = [one for one in ids if one not in gone]
            return {"kept": kept, "cut_bytes": cut, "phases": phases(output)}

    return read


if __name__ == "__main__":
    measured("corpuskit", keep)
