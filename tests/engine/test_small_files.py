"""Small files share units and cells, cut by the inputs alone; keys stay as they are."""

from __future__ import annotations

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.engine.pipeline import open_run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from tests.engine.conftest import Lab, article, corpus, tree

KINDS = ("jsonl", "text", "parquet")


def write_small(lab: Lab, kind: str, num: int, first: int = 0) -> None:
    """Write documents, one a file."""
    for number in range(first, first + num):
        document = {"text": article(random.Random(number))}
        path = lab.inputs / f"web{number:05d}.{kind}"
        if kind == "jsonl":
            path.write_text(json.dumps(document) + "\n")
        elif kind == "text":
            path.write_text(document["text"])
        else:
            pq.write_table(pa.table({"text": [document["text"]]}), path)


@pytest.fixture
def small(tmp_path, tokenizer) -> Lab:
    """A lab whose source is to have many small files; 8 to 12 of them share a unit."""
    made = Lab(tmp_path, tokenizer)
    made.pipeline["cell_bytes"] = 8 * 50_000
    made.pipeline["stages"] = [{"gopher_quality": {"words": "whitespace", "min_words": 30}}]
    made.pipeline["sources"] = {"web": {"jsonl": str(made.inputs / "web*.jsonl")}}
    return made


def of_kind(lab: Lab, kind: str, num: int) -> Lab:
    write_small(lab, kind, num)
    lab.pipeline["sources"] = {"web": {kind: str(lab.inputs / f"web*.{kind}")}}
    return lab


def units_of(lab: Lab) -> list[list[str]]:
    """Return the files of each unit of the reading phase."""
    lab.save()
    run = open_run(read_plan(lab.path))
    return [[file.name for file, _ in pieces] for pieces in run.inputs.units.values()]


def documents_of(lab: Lab) -> list[dict]:
    parts = sorted((lab.out / "documents").rglob("*.parquet"))
    return [row for path in parts for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
def test_small_files_share_cells_and_keep_their_keys(small, kind):
    of_kind(small, kind, 60).run()
    assert 5 <= len(units_of(small)) <= 10
    assert len(list((small.out / "documents").rglob("*.parquet"))) == len(units_of(small))
    assert sum(path.is_file() for path in small.out.rglob("*")) < 80
    ledger = [row for path in (small.out / "ledger").rglob("*.parquet")
              for row in pq.read_table(path).to_pylist()]  # fmt: skip
    rows = {row["key"]: row for row in documents_of(small)}
    dropped = {row["doc_key"]: row["doc_id"] for row in ledger}
    keys = sorted(rows.keys() | dropped.keys())
    assert len(keys) == 60
    assert not any(key & ((1 << 40) - 1) for key in keys)
    for key, row in rows.items():
        name = f"web{keys.index(key):05d}.{kind}"
        assert row["id"] == f"web/{name}#0"
        assert row["origin"]["file"] == name
        assert row["origin"]["position"] == 0
        assert row["text"] == article(random.Random(keys.index(key)))
    assert all(dropped[key] == f"web/web{keys.index(key):05d}.{kind}#0" for key in dropped)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_do_not_matter_to_shared_cells(small, kind, tmp_path):
    of_kind(small, kind, 40).run()
    first = tree(small.out, "documents", "ledger", "ids", "profile")
    small.pipeline |= {"output": str(tmp_path / "other"), "executor": {"workers": 1, "tasks": 3}}
    small.run()
    assert tree(small.out, "documents", "ledger", "ids", "profile") == first


def test_a_file_behind_the_others_changes_the_last_unit_only(small):
    before = units_of(of_kind(small, "jsonl", 60))
    write_small(small, "jsonl", 1, first=60)
    after = units_of(small)
    assert after[: len(before) - 1] == before[:-1]
    assert [name for unit in after for name in unit] == [
        *(name for unit in before for name in unit), "web00060.jsonl",
    ]  # fmt: skip


def test_units_hold_files_of_one_source_and_large_ones_stand_alone(small):
    write_small(small, "jsonl", 10)
    for name in ("web00004b.jsonl", "web00007b.jsonl.gz"):
        content = "".join(json.dumps(document) + "\n" for document in corpus(90)).encode()
        packed = gzip.compress(content, 1) if name.endswith("gz") else content
        (small.inputs / name).write_bytes(packed)
    small.pipeline["sources"] = {
        "web": {"jsonl": str(small.inputs / "web0000[0-7]*.jsonl*")},
        "more": {"jsonl": str(small.inputs / "web0000[89].jsonl")},
    }
    stems = [[name[3:].partition(".")[0].lstrip("0") or "0" for name in u] for u in units_of(small)]
    assert stems == [["0", "1", "2", "3", "4"], ["4b"], ["5", "6", "7"], ["7b"], ["8", "9"]]


def test_a_file_without_text_counts_for_being_opened(small):
    for number in range(40):
        (small.inputs / f"web{number:05d}.jsonl").write_text("\n")
    assert [len(unit) for unit in units_of(small)] == [12, 12, 12, 4]


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_broken_small_file_is_named(small, kind):
    small.pipeline["sources"] = {"web": {kind.partition(".")[0]: str(small.inputs / "web*")}}
    if kind == "parquet":
        write_small(small, kind, 20)
        path = small.inputs / "web00013.parquet"
        start = pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset
        content = bytearray(path.read_bytes())
        content[start : start + 40] = b"\xff" * 40
        path.write_bytes(content)
    else:
        for number in range(20):
            packed = gzip.compress(json.dumps({"text": f"text {number}"}).encode())
            path = small.inputs / f"web{number:05d}.{kind}"
            path.write_bytes(packed[:-9] if number == 13 else packed)
    message = small.run(code=3).stderr
    assert f"web00013.{kind}: " in message
    assert "web00012" not in message
    assert "Traceback" not in message


def test_bad_documents_of_small_files_are_ledger_rows_of_their_own_files(small):
    write_small(small, "jsonl", 20)
    (small.inputs / "web00003.jsonl").write_bytes(b'\n{"text": 5}')
    # Together these two would be UTF-8: the end of one and the start of the next are halves.
    (small.inputs / "web00011.jsonl").write_bytes(b'{"text": "a' + "é".encode()[:1])
    (small.inputs / "web00012.jsonl").write_bytes("é".encode()[1:] + b'"}\n')
    small.run()
    rows = [row for path in (small.out / "ledger").rglob("*.parquet")
            for row in pq.read_table(path).to_pylist() if row["stage"] == "jsonl"]  # fmt: skip
    numbers = {file.name: file.ordinal for file in RunDirectory.open(str(small.out)).inputs.files}
    assert {(row["doc_id"], row["doc_key"], row["rule"]) for row in rows} == {
        ("web/web00003.jsonl#1", numbers["web00003.jsonl"] << 40 | 1, "bad_text"),
        ("web/web00011.jsonl#0", numbers["web00011.jsonl"] << 40, "invalid_utf8"),
        ("web/web00012.jsonl#0", numbers["web00012.jsonl"] << 40, "invalid_utf8"),
    }


def test_a_text_that_is_too_long_does_not_run_into_the_next_file(small):
    small.pipeline["max_document_bytes"] = 1000
    texts = ["a fine short text of ten words is here now", "b" * 5000, "c" * 900, "d" * 1001]
    for number, text in enumerate(texts):
        (small.inputs / f"web{number:05d}.txt").write_text(text)
    small.pipeline["sources"] = {"web": {"text": str(small.inputs / "web*.txt")}}
    small.pipeline["stages"] = []
    small.run()
    assert [row["text"] for row in documents_of(small)] == [texts[0], texts[2]]
    [path] = (small.out / "ledger").rglob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    assert [(row["doc_id"], row["rule"], row["value"]) for row in rows] == [
        ("web/web00001.txt#0", "too_long", 5000), ("web/web00003.txt#0", "too_long", 1001),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_why_finds_a_document_of_a_shared_cell(small, kind):
    of_kind(small, kind, 30).run()
    row = documents_of(small)[-1]
    shown = small.cli("why", str(small.out), row["id"], "--json").stdout
    assert row["id"] in shown
    assert "impossible" not in shown
    assert (
        row["id"]
        in small.cli(
            "inspect", str(small.out), "--containing", row["text"][:30], "-n", "1000"
        ).stdout
    )


def test_workers_that_share_a_run_agree_on_its_units(small):
    of_kind(small, "jsonl", 40)
    small.pipeline["executor"] = {"workers": 2}
    small.run_apart()
    small.cli("verify", str(small.out))
    assert len(documents_of(small)) + _dropped(small) == 40


def _dropped(lab: Lab) -> int:
    paths = (lab.out / "ledger").rglob("*.parquet")
    return sum(pq.read_table(path).num_rows for path in paths)


def test_inspect_reads_dropped_texts_out_of_small_files(small):
    write_small(small, "jsonl", 30)
    for number in (4, 5, 21):
        text = f"{number} too short to stay"
        (small.inputs / f"web{number:05d}.jsonl").write_text(json.dumps({"text": text}))
    small.run()
    shown = small.cli("inspect", str(small.out), "--stage", "gopher_quality", "-n", "50", "--json")
    texts = {row["id"]: row["text"] for row in json.loads(shown.stdout)["rows"]}
    for number in (4, 5, 21):
        assert texts[f"web/web{number:05d}.jsonl#0"] == f"{number} too short to stay"
