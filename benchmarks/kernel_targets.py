"""What kernels for exactly this processor gain over those for the level that machines share.

One pipeline with every family of kernels over English text, its tasks in one process, with kernels
of either kind in turn; CPU seconds by stage, the best of the rounds. Both must write the same bytes.
Reads bench_en of CORPUSKIT_SHARED_DATA; compiles kernels twice, which takes minutes.

    CORPUSKIT_SHARED_DATA=... python benchmarks/kernel_targets.py [ROUNDS [STAGE ...]]
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

STAGES: dict[str, object] = {
    "gopher_quality": {"gopher_quality": {"words": "whitespace"}},
    "gopher_repetition": {"gopher_repetition": {"words": "whitespace"}},
    "c4_quality": "c4_quality",
    "fineweb_quality": "fineweb_quality",
    "exact_dedup": "exact_dedup",
    "minhash_dedup": "minhash_dedup",
    "line_dedup": {"line_dedup": {"min_count": 6}},
    "substring_dedup": {"substring_dedup": {"min_bytes": 200}},
    "pii": "pii",
}
KINDS = ("portable", "native")
MARK = "from corpuskit.kernels.target import native_mark; native_mark().touch()"


def call(folder: Path, kind: str, *arguments: str) -> str:
    """Call Python with kernels of one kind; return what it printed."""
    environment = {**os.environ, "CORPUSKIT_CACHE_DIR": str(folder / kind)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, text=True, check=True, stdout=subprocess.PIPE
    ).stdout


def measure(folder: Path, kind: str) -> tuple[dict[str, float], str]:
    """Run the pipeline anew; return CPU seconds by stage and of the rest, and the digest of what it wrote."""
    out = folder / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    facts = json.loads(
        call(folder, kind, "-m", "corpuskit", "run", str(folder / "p.yaml"), "--json")
    )
    seconds = {row["stage"]: row["cpu_seconds"] for row in facts["funnel"] if row["cpu_seconds"]}
    seconds |= facts["cpu_seconds"]
    digest = hashlib.sha256()
    for path in sorted(out.rglob("*.parquet")):
        digest.update(path.relative_to(out).as_posix().encode() + path.read_bytes())
    return seconds, digest.hexdigest()


def main(rounds: int, names: list[str]) -> None:
    data = Path(os.environ["CORPUSKIT_SHARED_DATA"]) / "bench_en"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline = {
            "output": str(folder / "out"),
            "sources": {"en": {"parquet": str(sorted(data.glob("*.parquet"))[0])}},
            "stages": [stage for name, stage in STAGES.items() if not names or name in names],
            "executor": {"workers": 0},
        }
        (folder / "p.yaml").write_text(json.dumps(pipeline))
        best: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
        digests: set[str] = set()
        call(folder, "native", "-c", MARK)
        for _ in range(rounds):
            for kind in KINDS:
                seconds, digest = measure(folder, kind)
                digests.add(digest)
                for stage, value in seconds.items():
                    best[kind][stage] = min(best[kind].get(stage, value), value)
    assert len(digests) == 1, "native kernels write other bytes"
    print(f"{'stage':20} {'portable':>9} {'native':>9}  ratio")
    for stage, portable in best["portable"].items():
        native = best["native"][stage]
        print(f"{stage:20} {portable:7.2f} s {native:7.2f} s  {portable / native:5.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3, sys.argv[2:])
