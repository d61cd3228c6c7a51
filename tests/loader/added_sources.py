"""Sources of another run, added to a run in progress: random cases against a run planned so.

    python -m tests.loader.added_sources --num 200

A case makes three run directories of the same rows: A; B; and one whose plan has the sources of
both and, from a row on, other weights from the start. B is added to A at that row. Then A must
deliver what the third delivers, batch for batch, name the same documents, and take a state from
before that row and refuse one from behind it.
"""

from __future__ import annotations

import argparse
import collections
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corpuskit.errors import UsageError
from corpuskit.integrations.export import Order, Request, export
from corpuskit.loader import StreamingLoader, read_mix
from corpuskit.loader.editing import add_sources, append, skip_rows, take_down
from tests.loader.loader_runs import Shards, expected_order, part_of, write_plan, write_shards

OURS, THEIRS = ("web", "books", "math"), ("code", "law")


def check_case(seed: int, folder: Path) -> None:
    """Check one case; its files stay in the folder."""
    chance = np.random.default_rng(seed)
    ours = OURS[: int(chance.integers(1, 4))]
    theirs = THEIRS[: int(chance.integers(1, 3))]
    rows = {name: int(chance.integers(9, 220)) for name in (*ours, *theirs)}
    unshuffled = tuple(name for name in rows if chance.random() < 0.3)
    whole = write_shards(folder / "whole", rows, seq_len=8, unshuffled=unshuffled, seed=seed)
    # In every second case a source of B is called like one of A.
    stored = dict(zip(theirs, theirs, strict=True))
    if seed % 2:
        stored[theirs[0]] = "web"
    ours_shards = part_of(whole, folder / "a", dict(zip(ours, ours, strict=True)))
    part_of(whole, folder / "b", {stored[name]: name for name in theirs})

    weights = {name: int(chance.integers(1, 9)) for name in ours}
    total, at = int(chance.integers(60, 400)), int(chance.integers(0, 60))
    after = {name: int(chance.integers(1, 9)) for name in (*ours, *theirs)}
    length = int(chance.integers(1, 300))
    run = write_plan(ours_shards, [(total, weights)], seed=seed)
    before = expected_order(run)
    other = write_plan(_shards(folder / "b", whole, stored), [(9, {stored[theirs[0]]: 1})], seed=3)
    stages = [(at, weights), (length, after)] if at else [(length, after)]
    planned = write_plan(whole, stages, seed=seed)

    states = {step: StreamingLoader(run, 1).state_at(step) for step in (at, at + 1)}
    gone = []
    if seed % 3 == 0:  # what B took down stays taken down
        source = read_mix(other)
        gone = [f"{theirs[0]}/{theirs[0]}.jsonl#0"]
        append(source, take_down(source, 0, gone))
    plan, added = read_mix(run), read_mix(other)
    edit = add_sources(
        plan, at, added, after, rows=length, rename={there: name for name, there in stored.items()}
    )
    append(plan, edit, added)
    if gone:
        append(read_mix(planned), take_down(read_mix(planned), at, gone))
    if seed % 5 == 0 and at > 10:  # a later edit of the usual kind
        for each in (run, planned):
            append(read_mix(each), skip_rows(read_mix(each), [(at - 5, at + 1)]))
    shutil.rmtree(folder / "b")  # nothing of it is needed any more

    order = expected_order(run)
    assert order[:at] == before[:at], "rows before the edit changed"
    assert max(collections.Counter(order).values()) == 1, "a row comes twice in an epoch"
    assert order == expected_order(planned)
    _compare(run, planned, chance)
    if states[at]["step"] and seed % 5:
        StreamingLoader(run, 1).load_state_dict(states[at])
        StreamingLoader(planned, 1).load_state_dict(StreamingLoader(run, 1).state_at(at))
        with pytest.raises(UsageError, match=r"00001\.json was made since and changes the rows"):
            StreamingLoader(run, 1).load_state_dict(states[at + 1])


def _shards(path: Path, whole: Shards, stored: dict[str, str]) -> Shards:
    tokens = {there: whole.tokens[name] for name, there in stored.items()}
    shuffled = {there: whole.shuffled[name] for name, there in stored.items()}
    return Shards(path, whole.seq_len, whole.dtype, shuffled, tokens)


def _compare(run: Path, planned: Path, chance: np.random.Generator) -> None:
    batch_rows = int(chance.integers(1, 9))
    with StreamingLoader(run, batch_rows) as ours, StreamingLoader(planned, batch_rows) as theirs:
        assert ours.source_names == theirs.source_names
        assert ours.num_steps == theirs.num_steps
        if not ours.num_steps:
            return
        for mine, yours in zip(ours, theirs, strict=True):
            for name, value in mine.items():
                assert np.array_equal(value, yours[name]), name
        for step in chance.integers(0, ours.num_steps, 3).tolist():
            mine, yours = ours.which(step), theirs.which(step)
            assert [_named(row) for row in mine] == [_named(row) for row in yours]
            document = mine[0].documents[0]
            assert ours.occurrences(document.id) == theirs.occurrences(document.id)
            assert step in [o.step for o in ours.occurrences(document.key)]
    for order in ("stored", "run"):
        assert _exported(run, order) == _exported(planned, order)


def _exported(run: Path, order: Order) -> dict[str, bytes]:
    out = run.with_name(f"{run.name}-{order}")
    export(str(run), str(out), Request(order=order))
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "export.json"}


def _named(row: Any) -> tuple[Any, ...]:
    spans = [
        (s.id, s.file, s.position, s.first_token, s.num_tokens, s.masked) for s in row.documents
    ]
    return row.run_row, row.source, row.source_row, row.epoch, spans


def main() -> None:
    """Run cases; end with an error at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.num):
        with tempfile.TemporaryDirectory() as folder:
            try:
                check_case(seed, Path(folder))
            except BaseException:
                print(f"case {seed} failed: repeat it with --first {seed} --num 1")  # noqa: T201
                raise
    print(f"{options.num} cases: the rows of a run planned so from the start")  # noqa: T201


if __name__ == "__main__":
    main()
