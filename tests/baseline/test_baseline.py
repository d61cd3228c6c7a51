"""A change of form changes no output: what the pipelines write is what `baseline.json` says.

When outputs change on purpose, `python -m tests.baseline --write` records the new ones.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.baseline.outputs import LOSS_TOLERANCE, baseline, differences, hashes, losses
from tests.baseline.runs import (
    FIRST_FILES,
    PIPELINES,
    QUICKSTART,
    THREE_SOURCES,
    TRAINING,
    small_runs,
    three_sources,
)


def test_the_pipelines_write_what_is_recorded(tmp_path):
    recorded = baseline()
    wrong = []
    for name, run in small_runs(tmp_path):
        wrong += differences(name, hashes(run), recorded)
    assert not wrong, "\n".join(wrong)


def test_the_quickstart_writes_what_is_recorded(clone):
    wrong = differences(QUICKSTART, hashes(clone[0] / "runs" / "quickstart"), baseline())
    assert not wrong, "\n".join(wrong)


def test_training_on_it_has_the_losses_that_are_recorded(clone):
    found = losses(clone[0] / "runs" / "quickstart-train")
    assert found == pytest.approx(baseline()["losses"], abs=LOSS_TOLERANCE)


@pytest.mark.real
def test_three_sources_of_real_text_write_what_is_recorded(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.end_to_end.DATA", shared_data)
    wrong = differences(FIRST_FILES, hashes(three_sources(tmp_path, FIRST_FILES)), baseline())
    assert not wrong, "\n".join(wrong)


def test_every_pipeline_is_recorded():
    runs = {*PIPELINES, FIRST_FILES, THREE_SOURCES} - {TRAINING}
    assert runs == set(baseline()["runs"])


@pytest.mark.parametrize(
    ("folder", "name", "column", "changed", "is_content"),
    [
        ("ledger", "a-part-000000-0000-0123456789ab.parquet", "rule", ["x"], True),
        ("tokens", "web/part-000000-0000-0123456789ab.parquet", "tokens", [b"\0\2"], True),
        ("documents", "part-000000-0000-0123456789ab.parquet", "score", [0.25000003], False),
        ("mix", "index.parquet", "digest", ["0"], False),
    ],
)
def test_a_byte_that_changes_is_seen(tmp_path, folder, name, column, changed, is_content):
    values = {"rule": ["y"], "tokens": [b"\0\1"], "score": [0.25], "digest": ["1"]}
    path = tmp_path / folder / name
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(values), path)
    before = hashes(tmp_path)[folder]
    pq.write_table(pa.table({**values, column: changed}), path)
    after = hashes(tmp_path)[folder]
    assert after["files"] != before["files"]
    assert (after["content"] != before["content"]) == is_content
