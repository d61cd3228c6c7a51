"""A run directory of somebody else names nothing outside itself and claims what it holds."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.engine import registry
from corpuskit.errors import CorpuskitError, DataError, UsageError
from corpuskit.loader import StreamingLoader, plan_hash, read_mix
from tests.loader.loader_runs import write_plan, write_shards

if TYPE_CHECKING:
    from pathlib import Path

ESCAPES = ("/etc/passwd", "../x", "tokens/../../x", "", "a\0b")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shards = write_shards(tmp_path / "run", {"web": 130})
    return write_plan(shards, [(100, {"web": 1})])


def change(run: Path, **fields: Any) -> None:
    """Change fields of the plan, and its hash with them, as an attacker would."""
    path = run / "mix" / "plan.json"
    plan = json.loads(path.read_text()) | fields
    index = hashlib.blake2b((run / "mix" / "index.parquet").read_bytes(), digest_size=16)
    plan["plan_hash"] = plan_hash(plan, index.hexdigest())
    path.write_text(json.dumps(plan))


def change_index(run: Path, **columns: Any) -> None:
    path = run / "mix" / "index.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, path)
    change(run)


def test_the_run_itself_streams(run):
    with StreamingLoader(run) as loader:
        assert sum(1 for _ in loader) == 12


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("field", ["index", "lookups", "files"])
def test_a_plan_names_no_file_outside_the_run_directory(run, field, name):
    change(run, **{field: name})
    with pytest.raises(DataError, match=r"plan.json: .* the run directory"):
        read_mix(run)


@pytest.mark.parametrize("name", ESCAPES)
def test_an_index_names_no_part_outside_the_run_directory(run, name):
    change_index(run, path=[name])
    with pytest.raises(DataError, match=r"index.parquet: .* the run directory"):
        read_mix(run)


@pytest.mark.parametrize(
    "fields",
    [
        {"seq_len": 1 << 40}, {"seq_len": 1 << 70}, {"seed": 1 << 90},
        {"stages": [{"name": "a", "rows": 1 << 80, "weights": {"web": 1}}]},
        {"stages": [{"name": "a", "rows": 5, "weights": {"web": 1 << 80}}]},
        {"stages": [[]]}, {"sources": [None]}, {"skip": [[0]]}, {"name": 5}, {"tokenizer": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_with_values_that_cannot_be_is_refused(run, fields):
    change(run, **fields)
    with pytest.raises(CorpuskitError, match=r"plan.json"):
        read_mix(run)


def test_json_that_is_nested_too_deep_is_refused(run):
    (run / "mix" / "plan.json").write_text("[" * 1_000_000)
    with pytest.raises(DataError, match="not JSON"):
        read_mix(run)


@pytest.mark.parametrize("name", ["plan.json", "index.parquet"])
def test_a_pipe_in_place_of_a_file_does_not_hang(run, name):
    (run / "mix" / name).unlink()
    os.mkfifo(run / "mix" / name)
    with pytest.raises(DataError, match="not a regular file"):
        read_mix(run)


@pytest.mark.parametrize(
    "columns", [{"rows": [0]}, {"rows": [-130]}, {"rows": [1 << 62]}, {"rows": ["130"]},
                {"rows": [None]}, {"path": [7]}, {"path": ["x" * 5000]}],
    ids=str,
)  # fmt: skip
def test_an_index_with_values_that_cannot_be_is_refused(run, columns):
    change_index(run, **columns)
    with pytest.raises(DataError, match=r"mix/(index.parquet|plan.json): "):
        read_mix(run)


def test_an_index_that_claims_billions_of_rows_is_refused(run):
    path = run / "mix" / "index.parquet"
    row = pq.read_table(path)
    many = {name: pa.repeat(row[name][0], 5_000_000) for name in row.column_names}
    pq.write_table(pa.table(many), path, compression="zstd")
    assert path.stat().st_size < 300_000
    change(run)
    with pytest.raises(DataError, match=r"index.parquet: .* can't hold"):
        read_mix(run)


def test_a_part_whose_row_group_claims_more_than_its_rows_is_refused(run):
    (part,) = run.glob("tokens/web/*.parquet")
    table = pq.read_table(part)
    table = pa.table(table.columns, schema=pq.ParquetFile(part).schema_arrow)
    starts = [np.zeros(1_000_000, np.int32) if i == 0 else one.as_py()
              for i, one in enumerate(table["doc_starts"])]  # fmt: skip
    place = table.column_names.index("doc_starts")
    field = table.schema.field(place)
    table = table.set_column(place, field, pa.array(starts, field.type))
    pq.write_table(table, part, row_group_size=64, compression="zstd", use_dictionary=False)
    assert part.stat().st_size < 200_000
    change_index(run, size_bytes=[part.stat().st_size])
    with (
        StreamingLoader(run) as loader,
        pytest.raises(DataError, match="row group 0 claims 1000"),
    ):
        next(iter(loader))


@pytest.mark.parametrize("name", ["os", "os.system", "corpuskit.cli.main", "../x", "jsonl.Jsonl"])
def test_a_plan_loads_no_module_but_stages_found_by_name(name):
    with pytest.raises(UsageError, match="There is no stage"):
        registry.load(name)
