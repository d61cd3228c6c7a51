"""Compare what all pipelines write with what is recorded, or record it.

python -m tests.baseline            # takes two minutes; real text from CORPUSKIT_SHARED_DATA
python -m tests.baseline --write    # after a change on purpose; review the difference
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.baseline.outputs import BASELINE, baseline, differences, hashes, losses, made_with
from tests.baseline.runs import (
    FIRST_FILES,
    QUICKSTART,
    THREE_SOURCES,
    quickstart_runs,
    small_runs,
    three_sources,
)


def measure(folder: Path) -> dict[str, Any]:
    """Run everything; return what is recorded of it."""
    runs = {}
    (folder / "small").mkdir()
    for name, run in small_runs(folder / "small"):
        runs[name] = hashes(run)
        print(name)
    (folder / "quickstart").mkdir()
    run, training = quickstart_runs(folder / "quickstart")
    runs[QUICKSTART] = hashes(run)
    print(QUICKSTART)
    for name in (FIRST_FILES, THREE_SOURCES):
        (folder / name).mkdir()
        runs[name] = hashes(three_sources(folder / name, name))
        print(name)
    return {
        "made_with": made_with(),
        "runs": dict(sorted(runs.items())),
        "losses": losses(training),
    }


def main() -> None:
    """Compare, or write."""
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder))
    if sys.argv[1:] == ["--write"]:
        BASELINE.write_text(json.dumps(measured, indent=1) + "\n")
        return
    recorded = baseline()
    wrong = [
        line for name, run in measured["runs"].items() for line in differences(name, run, recorded)
    ]
    wrong += ["losses differ"] if measured["losses"] != recorded["losses"] else []
    print(*(wrong or ["Everything is as recorded."]), sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
