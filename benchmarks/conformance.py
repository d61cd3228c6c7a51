"""The same tests of resumption, topology, mixture and integrity, run against every loader.

    python benchmarks/conformance.py [--python litdata=PATH ...] [--only NAME ...] [--record FILE]
        [--write docs/conformance.md]

1,024 packed rows in 16 files, batches of 8 rows, every run a process of its own; a row knows its own
number, so what is compared are the rows that were delivered. Each library is used as its
documentation says: its own DataLoader where it has one, StatefulDataLoader for Hugging Face. A cell is
`pass`, `fail`, `refuses` (it raises) or `not offered`; details follow the table. With
`--record`, results of loaders that are not run now are taken from the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import shutil
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from loader_process import Places, add_options
from loader_tests import ROWS, TESTS, Bench, StoppedError, Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

MIXTURES, RESUMPTIONS = ("mixture", "mixture resumes"), ("resume", "resume later", "once")
SUBJECTS = (
    Subject("corpuskit", "corpuskit"),
    Subject("LitData", "litdata"),
    Subject("MosaicML", "mosaic", "", "", "hashes"),
    Subject("MosaicML stratified", "mosaic", "", "stratified", tests=MIXTURES),
    Subject("grain", "grain"),
    Subject("HF, file order", "hf", "file order", "file order", "file order"),
    Subject("HF, buffer 100", "hf", "buffer 100", "buffer 100", tests=(*RESUMPTIONS, *MIXTURES)),
    Subject("datatrove", "datatrove"),
)
WAYS = {
    "corpuskit": "`StreamingLoader`; workers are reader threads",
    "LitData": "`StreamingDataset(TokensLoader, shuffle=True, drop_last=True)` in `StreamingDataLoader`; `CombinedStreamingDataset` for mixtures",
    "MosaicML": "`StreamingDataset(shuffle=True)` in `StreamingDataLoader`; streams with `proportion`; `validate_hash` for integrity",
    "MosaicML stratified": 'the same with `batching_method="stratified"`, mixtures only',
    "grain": "`MapDataset.source().shuffle()[rank::world].batch().repeat()`, `MapDataset.mix`; workers by `mp_prefetch`",
    "HF, file order": "streamed Parquet in torchdata's `StatefulDataLoader`, `split_dataset_by_node`, `interleave_datasets`",
    "HF, buffer 100": "the same with `.shuffle(buffer_size=100)`",
    "datatrove": "`DatatroveFolderDataset`, which has no state: the sampler of consumed rows is the caller's (here, after nanotron's)",
}


def main() -> None:
    """Run every test against every loader and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", help="JSON file that keeps the results of all loaders")
    parser.add_argument("--write", help="Markdown page to write")
    parser.add_argument("--tests", nargs="+", help="these tests alone")
    add_options(parser)
    options = parser.parse_args()
    record = Path(options.record) if options.record else None
    found = json.loads(record.read_text("utf-8")) if record and record.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        places = Places.found(options, Path(options.folder or temporary).resolve())
        for subject in SUBJECTS:
            if subject.adapter in places.pythons:
                found[subject.name] = results(places, subject, options.tests)
                if record:
                    record.write_text(json.dumps(found, indent=1), "utf-8")
    page = markdown(found)
    print(page)
    if options.write:
        Path(options.write).write_text(page, "utf-8")


def results(places: Places, subject: Subject, chosen: Sequence[str] | None) -> dict[str, Any]:
    """Return the outcomes of all tests of a loader, and its versions."""
    folder = places.folder / "conformance"
    shutil.rmtree(folder / subject.name, ignore_errors=True)
    bench = Bench(places, subject, folder)
    cells = {}
    try:
        bench.write(bench.spec(), ROWS)
    except StoppedError as stopped:
        sys.exit(f"{subject.name}: {stopped.outcome.text}")
    for key, (_, test) in TESTS.items():
        if key not in (chosen or TESTS) or key not in (subject.tests or TESTS):
            continue
        begun = time.perf_counter()
        try:
            outcome = test(bench)
        except StoppedError as stopped:
            outcome = stopped.outcome
        cells[key] = dataclasses.asdict(outcome)
        spent = time.perf_counter() - begun
        print(
            f"{subject.name}: {key}: {outcome.kind}: {outcome.text} ({spent:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
    return {"versions": bench.versions, "cells": cells}


def markdown(found: dict[str, Any]) -> str:
    """Return the page."""
    names = [one.name for one in SUBJECTS if one.name in found]
    passed = [
        f"{name} {sum(cell['kind'] == 'pass' for cell in found[name]['cells'].values())}"
        for name in names
    ]
    lines = [
        "# Loaders: conformance",
        "",
        *_wrapped(
            "Which training data loaders resume exactly, keep their mixture and notice damage? "
            f"Passed, of {len(TESTS)} tests: {'; '.join(passed)} (`-`: not run). "
            "All loaders take the same tests, on 1,024 packed rows in 16 files, batches of 8; "
            "`refuses`: it raises. Not every library promises what is tested: LitData, MosaicML (by "
            "default) and Hugging Face draw each row's source at random; a Hugging Face state belongs "
            "to one rank (here all ranks load that of rank 0). Written by `python "
            "benchmarks/conformance.py --write docs/conformance.md`; last run "
            f"{dt.datetime.now(dt.UTC):%Y-%m-%d}."
        ),
        "",
        "| | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for key, (title, _) in TESTS.items():
        cells = [found[name]["cells"].get(key, {"kind": "-"})["kind"] for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines += ["", "## Outcomes other than a plain pass"]
    for key, (title, _) in TESTS.items():
        outcomes: dict[tuple[str, str], list[str]] = {}
        for name in names:
            cell = found[name]["cells"].get(key, {"kind": "-", "text": ""})
            if cell["text"] and cell["kind"] not in ("-", "not offered"):
                outcomes.setdefault((cell["kind"], cell["text"]), []).append(name)
        if outcomes:
            lines += ["", f"**{title}**", ""]
        for (kind, text), same in outcomes.items():
            lines += _wrapped(f"- {'; '.join(same)}: {kind}: `{text}`", "  ")
    lines += ["", "## How each loader is used", ""]
    for name in names:
        known = {key: value for key, value in found[name]["versions"].items() if value}
        versions = ", ".join(f"{key} {value}" for key, value in known.items())
        lines += _wrapped(f"- {name}: {WAYS[name]}. {versions}.", "  ")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


if __name__ == "__main__":
    main()
