"""Components that are joined in rounds are those that one task joins."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpuskit.errors import TaskError
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.kernels.unionfind import connect
from corpuskit.stage import Unit
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup
from corpuskit.stages.dedup.minhash_dedup.components import write_forest
from tests.stages.global_runner import Context, GlobalRun, key_of

NODES = 24
SMALL = 2500
"""Memory for a few links: there are up to a dozen ranges."""

Edges = list[tuple[int, int]]


def clustered(
    edges: Edges, folder: Path, *, rounds: int, verify: float | None, memory: int
) -> tuple[dict[str, list], dict[str, int]]:
    """Return the columns that the pass `cluster` writes, and how many units each pass had."""
    run = GlobalRun(["x"] * NODES, folder, bounds=range(2, NODES, 2), memory_bytes=memory)
    stage = MinhashDedup(rounds=rounds, verify=verify)
    run.counted = {"sign": {"signed": NODES}}
    for number, some in enumerate((edges[::2], edges[1::2])):
        ends = np.array([[key_of(a), key_of(b)] for a, b in some], np.int64).reshape(-1, 2)
        nodes, roots = connect(ends[:, 0].copy(), ends[:, 1].copy())
        inner = nodes != roots
        write_forest(stage, Context(run, "edges", Unit(number)), nodes[inner], roots[inner])
    passes = [one for one in stage.passes() if one.name.startswith(("join_", "cluster"))]
    units = {one.name: run.run_pass(one) for one in passes}
    name = "clusters" if verify is None else "components"
    tables = [read_shuffle(folder / part.path) for part in run.parts(f"cluster/{name}")]
    rows = [row for table in tables for row in table.to_pylist()]
    rows.sort(key=lambda row: row["key"])
    return {key: [repr(row[key]) for row in rows] for key in (rows[0] if rows else ())}, units


@st.composite
def graphs(draw: st.DrawFn) -> Edges:
    """Draw a path in order or out of it, a star, or edges at random."""
    nodes = draw(st.permutations(range(NODES)))
    nodes = draw(st.sampled_from([list(range(NODES)), nodes]))
    some = draw(st.lists(st.tuples(*[st.integers(0, NODES - 1)] * 2), max_size=40))
    path = list(itertools.pairwise(nodes))
    star = [(nodes[0], node) for node in nodes[1:]]
    return draw(st.sampled_from([path, star, some, [*path[::3], *some]]))


@given(edges=graphs(), verify=st.sampled_from([None, 0.8]))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_rounds_find_what_one_task_finds(edges, verify):
    edges = [(a, b) for a, b in edges if a != b]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
        expected, _ = clustered(edges, Path(one), rounds=0, verify=verify, memory=1 << 30)
        joined, _ = clustered(edges, Path(many), rounds=20, verify=verify, memory=SMALL)
    assert joined == expected


def test_rounds_end_when_all_is_joined(tmp_path):
    path = [(a, a + 1) for a in range(NODES - 1)]
    _, units = clustered(path, tmp_path, rounds=20, verify=0.8, memory=SMALL)
    worked = [name for name, num in units.items() if num]
    assert worked == [f"join_{number}" for number in range(1, len(worked))] + ["cluster"]
    assert 3 < len(worked) < 12
    assert units["cluster"] > 1


def test_rounds_have_nothing_to_do_where_one_task_will_do(tmp_path):
    _, units = clustered([(0, 1)], tmp_path, rounds=3, verify=0.8, memory=SMALL)
    assert units == {"join_1": 0, "join_2": 0, "join_3": 0, "cluster": 1}


def test_too_few_rounds_are_refused_with_what_to_set(tmp_path):
    path = [(a, a + 1) for a in range(NODES - 1)]
    with pytest.raises(TaskError, match=r"after 2 rounds need .* Set rounds to 8, or task_memory"):
        clustered(path, tmp_path, rounds=2, verify=0.8, memory=SMALL)
