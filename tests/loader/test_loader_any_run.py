"""Whatever is done to a run on its way, it takes the rows of the uninterrupted one."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_runs import Shards, expected_order, expected_plan, write_plan

from corpuskit.loader import StreamingLoader
from corpuskit.loader.editing import append, new_stage, skip_rows

WEIGHTS = st.tuples(*[st.integers(0, 5)] * 3).filter(any)
STAGES = st.lists(st.tuples(st.integers(1, 70), WEIGHTS), min_size=1, max_size=3)
# Rows of the global batch, ranks, micro-batches, pieces of a row; and a factor for later steps.
TOPOLOGIES = st.sampled_from(
    [
        (1, 1, 1, 1),
        (2, 1, 2, 1),
        (2, 2, 1, 1),
        (4, 2, 1, 2),
        (6, 1, 3, 1),
        (6, 3, 2, 1),
        (8, 2, 4, 2),
        (8, 1, 2, 4),
        (8, 4, 1, 1),
    ]
)
RAMP = st.none() | st.tuples(st.integers(1, 4), st.integers(2, 3))
EDITS = st.none() | st.one_of(
    st.tuples(st.just("skip"), st.integers(0, 20), st.integers(1, 12)),
    st.tuples(st.just("stage"), st.integers(0, 40), WEIGHTS),
)
LEGS = st.lists(
    st.tuples(TOPOLOGIES, RAMP, st.integers(0, 6), st.integers(1, 3), EDITS),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(stages=STAGES, seed=st.integers(0, 3), legs=LEGS)
def test_stops_topologies_ramps_pieces_edits_and_skips_change_no_row(
    shards: Shards, stages: Any, seed: int, legs: Any
) -> None:
    names = list(shards.tokens)
    drawn = [(rows, dict(zip(names, weights, strict=True))) for rows, weights in stages]
    delivered: list[tuple[str, int]] = []
    state = None
    with tempfile.TemporaryDirectory() as folder:
        run = write_plan(shards, drawn, seed=seed, folder=Path(folder) / "run")
        for topology, ramp, num_steps, threads, edit in [*legs, ((1, 1, 1, 1), None, 999, 1, None)]:
            state = run_leg(shards, run, topology, ramp, num_steps, threads, state, delivered)
            if edit:
                make_edit(run, names, state, edit)
        skipped = {t for first, end in expected_plan(run)["skip"] for t in range(first, end)}
        expected = [row for t, row in enumerate(expected_order(run)) if t not in skipped]
    assert delivered == [(source, row) for source, row, _ in expected]


def run_leg(
    shards: Shards,
    run: Path,
    topology: tuple[int, int, int, int],
    ramp: tuple[int, int] | None,
    num_steps: int,
    threads: int,
    state: dict[str, Any] | None,
    delivered: list[tuple[str, int]],
) -> dict[str, Any]:
    """Take some steps from a state on all ranks; note every stored row once, in order."""
    rows, world_size, micro_batches, pieces = topology
    done = state["step"] if state else 0
    batch = [(0, rows), (done + ramp[0], rows * ramp[1])] if ramp else rows
    ranks = [
        StreamingLoader(
            run,
            batch,
            rank,
            world_size,
            micro_batches=micro_batches,
            seq_len=shards.seq_len // pieces,
            reader_threads=threads,
        )
        for rank in range(world_size)
    ]
    if state:
        for loader in ranks:
            loader.load_state_dict(json.loads(json.dumps(state)))
    streams = [iter(loader) for loader in ranks]
    for _ in range(min(num_steps, ranks[0].num_steps - ranks[0].step)):
        for loader, stream in zip(ranks, streams, strict=True):
            for _ in range(micro_batches):
                note(next(stream), loader, pieces, delivered)
    states = [loader.state_dict() for loader in ranks]
    for loader in ranks:
        loader.close()
    assert all(found == states[0] for found in states)
    return states[0]


def note(
    batch: dict[str, Any], loader: StreamingLoader, pieces: int, delivered: list[tuple[str, int]]
) -> None:
    """Append the stored rows that begin in a batch; pieces must come in order."""
    parts = batch["row_parts"].tolist() if pieces > 1 else [0] * len(batch["row_ids"])
    for source, row, part in zip(
        batch["source_ids"].tolist(), batch["row_ids"].tolist(), parts, strict=True
    ):
        place = (loader.source_names[source], row)
        if part == 0:
            delivered.append(place)
        else:
            assert delivered[-1] == place


def make_edit(run: Path, names: list[str], state: dict[str, Any], edit: tuple[Any, ...]) -> None:
    """Append an edit that counts from behind a state."""
    plan = StreamingLoader(run, 1).plan
    kind, behind, what = edit
    row = min(state["rows"] + behind, plan.order.num_rows)
    if kind == "skip" and row < plan.order.num_rows:
        append(plan, skip_rows(plan, [(row, min(row + what, plan.order.num_rows))]))
    if kind == "stage" and row < plan.order.num_rows:
        append(plan, new_stage(plan, row, dict(zip(names, what, strict=True)), rows=30))
