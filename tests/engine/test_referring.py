"""A global stage that stands first reads the input; texts stay in the input files."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.engine.context import PassWork
from corpuskit.engine.phase import cut_units
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import DataError
from corpuskit.stages.sources.parquet import Parquet
from tests.engine.conftest import Lab, article, corpus, tree
from tests.engine.test_reuse import check_fresh, computed

if TYPE_CHECKING:
    from pathlib import Path

FILES = 6
STAGES = ["exact_dedup", {"line_dedup": {"min_count": 2}}, "pii"]


_COLUMNS = pa.schema([("id", pa.string()), ("text", pa.string()), ("kind", pa.int64())])


def write(lab: Lab, name: str, documents: list[dict], rows: int = 5) -> Path:
    """Write a file with a column that goes to `extra`, and a row that becomes no document."""
    more = {"id": None, "text": None, "kind": 7}
    known = [document | {"kind": len(document["text"])} for document in documents]
    table = pa.Table.from_pylist([*known, more], _COLUMNS)
    return write_table(lab.inputs / name, table, rows)


def write_table(path: Path, table: pa.Table, rows: int = 5) -> Path:
    """Write a file whose size follows from that of the values."""
    pq.write_table(
        table, path, row_group_size=rows, compression="none", use_dictionary=False,
        write_statistics=False,
    )  # fmt: skip
    return path


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)  # tests/faults has the losses of power


@pytest.fixture
def first(tmp_path: Path, tokenizer: Path) -> Lab:
    """A lab whose first stage is a global one, over Parquet files of several cells."""
    made = Lab(tmp_path, tokenizer)
    documents = corpus(90)
    for number in range(FILES):
        write(made, f"web{number}.parquet", documents[15 * number : 15 * number + 15])
    made.pipeline["cell_bytes"] = 8_000
    made.pipeline["sources"] = {
        "web": {"parquet": str(made.inputs / "web*.parquet"), "id_column": "id"}
    }
    made.pipeline["stages"] = list(STAGES)
    return made


def phases(lab: Lab) -> list[str]:
    lab.save()
    return [phase.name for phase in read_plan(lab.path).phases]


def test_a_global_stage_that_stands_first_reads_the_input(first):
    assert phases(first)[0] == "exact_dedup.hash"
    first.pipeline["stages"] = ["pii", *STAGES[:2]]
    assert phases(first)[:2] == ["pii", "exact_dedup.hash"]  # an edit of exact_dedup keeps `pii`
    first.pipeline["stages"] = list(STAGES)
    first.write("books.jsonl", corpus(2))
    first.pipeline["sources"]["books"] = {"jsonl": str(first.inputs / "books.jsonl")}
    assert phases(first)[:2] == ["read", "exact_dedup.hash"]  # JSON costs more to read again


@pytest.mark.parametrize("cell_bytes", [8_000, 1_024])
def test_it_ends_with_the_bytes_of_a_run_that_stores_texts(first, monkeypatch, cell_bytes):
    """A row group of 5 documents is one cell of 8,000 bytes, or several of 1,024."""
    first.pipeline["cell_bytes"] = cell_bytes
    first.run()
    folders = ("documents", "work/exact_dedup.apply", "work/line_dedup.apply")
    mine, rows = tree(first.out, *folders), ledger(first)
    held = [pq.read_table(path) for path in (first.out / "work/exact_dedup.hash").glob("part-*")]
    texts = pa.concat_tables(held).column("text")
    assert (texts.null_count > 0.9 * len(texts)) == (cell_bytes > 1_024)
    first.cli("verify", str(first.out))
    shutil.rmtree(first.out)
    monkeypatch.setattr(Parquet, "for_texts", lambda source: None)
    first.run()
    assert (tree(first.out, *folders), ledger(first)) == (mine, rows)


def ledger(lab: Lab) -> list[str]:
    paths = (lab.out / "ledger").glob("*.parquet")
    rows = (row for path in paths for row in pq.read_table(path).to_pylist())
    return sorted(map(repr, rows))


def test_a_new_file_costs_its_own_units(first):
    computed(first)
    rng = random.Random(9)
    write(first, "web9.parquet", [{"id": f"n{i}", "text": article(rng)} for i in range(4)])
    ran = computed(first)
    assert ran["exact_dedup.hash"] == ran["line_dedup.hash"] == 1
    check_fresh(first)


def test_an_edit_of_a_later_stage_does_not_hash_again(first):
    computed(first)
    first.stage("line_dedup")["min_count"] = 3
    ran = computed(first)
    assert not any(num for name, num in ran.items() if name.startswith("exact_dedup."))


def test_texts_that_changed_behind_an_equal_time_are_refused(first):
    first.run("--until", "exact_dedup")
    path = first.inputs / "web3.parquet"
    before, table = path.stat(), pq.read_table(path)
    texts = pa.array([text and text[::-1] for text in table.column("text").to_pylist()])
    write_table(path, table.set_column(1, "text", texts))
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    message = " ".join(first.run(code=3).stderr.split())
    assert "are not in the input as they were read first" in message
    path.touch()
    first.run()


def test_a_run_without_documents_can_be_compared_with(first):
    first.pipeline["stages"] = [{"exact_dedup": {"index": True}}]
    files = sorted(first.inputs.iterdir())
    write(first, files[0].name, [])
    for path in files[1:]:
        path.unlink()
    first.run()
    first.pipeline["output"], old = str(first.folder / "next"), str(first.out)
    first.stage("exact_dedup")["against"] = [old]
    write(first, files[0].name, corpus(5))
    first.run()
    assert list((first.out / "documents").glob("part-*"))


def test_a_pass_reads_the_input_once(first, tmp_path):
    computed(first)
    run = RunDirectory.open(str(first.out))
    phase = run.plan.phases[0]
    work = PassWork(run, phase, cut_units(run, phase)[0], tmp_path)
    with pytest.raises(DataError, match=r"exact_dedup\.hash: .*documents a second time"):
        next(work.read("text"))


def test_why_reads_the_text_from_the_input_while_it_is_there(first):
    first.run("--until", "exact_dedup")
    shown = first.cli("why", str(first.out), "doc3").stdout
    first_words = " ".join(corpus(90)[3]["text"].split()[:3])
    assert first_words in shown
    (first.inputs / "web0.parquet").unlink()
    assert "is gone" in " ".join(first.cli("why", str(first.out), "doc3").stdout.split())
