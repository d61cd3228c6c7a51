"""Bad documents are ledger rows, bad files fail their task, bad configs run nothing."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.conftest import ROOT, corpus
from tests.engine.test_same_bytes import kept, read, tree
from tests.patience import HANG_SECONDS
from tests.stages.web_archives import response


@pytest.fixture
def plain(lab):
    """A lab with one source and one filter."""
    lab.pipeline["stages"] = [{"gopher_quality": {"words": "whitespace", "min_words": 5}}]
    lab.pipeline["sources"] = {"web": {"jsonl": str(lab.inputs / "web*"), "id_column": "id"}}
    for path in lab.inputs.iterdir():
        path.unlink()
    lab.documents = [d for d in corpus(40) if len(d["text"]) > 600]
    return lab


def ledger(lab) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in read(lab, "ledger"):
        counts[row["rule"]] = counts.get(row["rule"], 0) + 1
    return counts


def test_bad_documents_are_ledger_rows(plain):
    path = plain.write("web.jsonl", plain.documents[:3])
    text = plain.documents[4]["text"].replace("\n", " ")
    with path.open("ab") as file:
        file.write(b'{"id": "cut", "text": "no end\n')
        file.write(b'{"id": "number", "text": 5}\n')
        file.write(b'{"id": "none"}\n')
        file.write(b'{"id": "latin", "text": "\xe9t\xe9"}\n')
        file.write(b'{"id": "half", "text": "\\ud800 ' + text.encode() + b'"}\n')
        file.write(b"\n")
    plain.run()
    assert ledger(plain) == {
        "bad_json": 1, "bad_text": 2, "invalid_utf8": 1, "lone_surrogate": 1,
    }  # fmt: skip
    found = next(row for row in read(plain, "documents") if row["id"] == "half")
    assert found["text"] == "\ufffd " + text
    account = plain.facts()["accounts"][0]
    assert (account["num_read"], account["num_missing"]) == (8, 0)


def test_a_bad_document_is_found_by_its_own_id_where_that_can_be_read(plain):
    (plain.inputs / "web.jsonl").write_text(
        '{"id": "number", "text": 5, "n": 1}\n{"id": 7, "text": "a", "n": "x"}\n'
        '{"id": [1], "text": "b", "n": 1}\n{"id": "cut", "text": "no end\n'
        '{"id": "long", "text": "' + 2000 * "a" + '", "n": 1}\n'
    )
    rows = {"id": [None, "null"], "text": [None, None]}
    schema = pa.schema({"id": pa.string(), "text": pa.string()})
    pq.write_table(pa.table(rows, schema), plain.inputs / "table.parquet")
    missing = response(b"", status="404 Not Found")
    own = missing.split(b"WARC-Record-ID: <")[1].split(b">")[0].decode()
    (plain.inputs / "pages.warc").write_bytes(missing)
    sources = plain.pipeline["sources"]
    sources["web"] |= {"columns": {"n": "int64"}}
    sources["table"] = {"parquet": str(plain.inputs / "*.parquet"), "id_column": "id"}
    sources["pages"] = {"warc": str(plain.inputs / "*.warc"), "ids": "record"}
    plain.pipeline["max_document_bytes"] = 1000
    plain.run()
    ids = {row["doc_id"]: row["rule"] for row in read(plain, "ledger")}
    assert ids == {
        "number": "bad_text", "7": "bad_column", "web/web.jsonl#69": "bad_column",
        "web/web.jsonl#102": "bad_json", "long": "too_long", "table/table.parquet#0": "bad_text",
        "null": "bad_text", own: "bad_status",
    }  # fmt: skip
    for name, rule in ids.items():
        (told,) = json.loads(plain.cli("why", str(plain.out), name, "--json").stdout)["documents"]
        assert (told["id"], told["stages"][0]["rows"][0]["rule"]) == (name, rule)


def test_a_long_document_is_a_ledger_row(plain):
    plain.pipeline["max_document_bytes"] = 2000
    plain.write("web.jsonl", [*plain.documents[:3], {"id": "long", "text": "word " * 500}])
    plain.run()
    row = next(row for row in read(plain, "ledger") if row["rule"] == "too_long")
    assert row["value"] == 2500
    assert row["threshold"] == 2000


@pytest.mark.slow
def test_a_200_mb_line_needs_bounded_memory(plain):
    plain.pipeline["cell_bytes"] = 64 << 20
    path = plain.write("web.jsonl", plain.documents[:2])
    with path.open("ab") as file:
        file.write(b'{"id": "huge", "text": "')
        for _ in range(200):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n')
        file.write(json.dumps(plain.documents[2]).encode() + b"\n")
    plain.run_apart()
    assert ledger(plain) == {"too_long": 1}
    assert len(read(plain, "documents")) == 3
    assert plain.facts()["peak_rss_bytes"] < 700e6


@pytest.mark.parametrize("name", ["web.jsonl.gz", "web.jsonl.zst"])
def test_a_truncated_file_fails_its_task_and_names_file_and_offset(plain, name):
    import zstandard

    good = plain.write("web1.jsonl", plain.documents[:3])
    content = b"".join(json.dumps(d).encode() + b"\n" for d in plain.documents * 20)
    packed = gzip.compress(content) if name.endswith("gz") else zstandard.compress(content)
    path = plain.inputs / name
    path.write_bytes(packed[: len(packed) // 2])
    error = plain.run(code=3).stderr
    assert str(path) in error
    assert "offset" in error or "byte" in error
    assert "Traceback" not in error
    path.unlink()
    plain.run()
    assert {row["id"] for row in read(plain, "documents")} <= {d["id"] for d in plain.documents}
    assert good.exists()


def test_empty_files_are_no_documents(plain):
    plain.write("web.jsonl", plain.documents[:3])
    (plain.inputs / "web-empty.jsonl").write_bytes(b"")
    (plain.inputs / "web-lines.jsonl").write_bytes(b"\n\n")
    plain.run()
    assert len(read(plain, "documents")) == 3


def test_an_input_without_any_document_gives_an_empty_run(lab):
    for path in lab.inputs.iterdir():
        path.write_bytes(b"")
    lab.pipeline["stages"] = lab.pipeline["stages"][:4]
    lab.run()
    assert not list((lab.out / "documents").glob("*")) if (lab.out / "documents").exists() else True
    assert lab.facts()["accounts"] == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100])
def test_a_broken_parquet_file_is_refused_before_anything_runs(plain, content):
    plain.pipeline["sources"] = {"web": {"parquet": str(plain.inputs / "*.parquet")}}
    (plain.inputs / "a.parquet").write_bytes(content)
    error = plain.run(code=3).stderr
    assert "a.parquet" in error
    assert "Traceback" not in error


def test_a_missing_column_names_what_there_is(plain):
    plain.pipeline["sources"] = {"web": {"parquet": str(plain.inputs / "*.parquet")}}
    pq.write_table(pa.table({"content": ["a"]}), plain.inputs / "a.parquet")
    error = plain.run(code=2).stderr
    assert "column 'text' is missing; has 'content'" in error
    assert "text_column" in error


def test_a_damaged_document_part_is_a_data_error_downstream(lab):
    lab.run("--until", "gopher_quality")
    part = next((lab.out / "work" / "gopher_quality").glob("part*"))
    column = pq.ParquetFile(part).metadata.row_group(0).column(2)
    assert column.path_in_schema == "text"
    content = bytearray(part.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    part.write_bytes(content)
    error = lab.run(code=3).stderr
    assert part.name in error


@pytest.mark.parametrize(
    ("stage", "params", "message"),
    [
        ("gopher_quality", {"min_wrods": 3}, "Did you mean 'min_words'?"),
        ("gopher_quality", {"min_words": "many"}, "must be an integer"),
        ("minhash_dedup", {"bands": 0}, "minhash_dedup.bands must be greater than"),
        ("pack", {"seq_len": 0}, "pack.seq_len must be greater than"),
        ("tokenize", {"tokenizer": "nowhere.json"}, "nowhere.json"),
        ("mix", {"weights": {"web": 0}}, "mix"),
    ],
)
def test_a_wrong_parameter_runs_nothing(lab, stage, params, message):
    lab.stage(stage).update(params)
    error = lab.run(code=2).stderr
    assert message in error
    assert f"{lab.path}:" in error or stage == "tokenize"
    assert "Traceback" not in error
    assert not lab.out.exists()


def test_a_pattern_without_files_says_so(lab):
    lab.pipeline["sources"]["web"]["jsonl"] = "nothing/*.jsonl"
    error = lab.run(code=2).stderr
    assert "no file matches 'nothing/*.jsonl'" in error


def limited(lab, limit_bytes: int) -> subprocess.CompletedProcess[str]:
    """Run with a limit on file size: writing past it fails as writing to a full disk does."""
    lab.save()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))

    return subprocess.run(
        [sys.executable, "-m", "corpuskit", "run", str(lab.path)], cwd=lab.folder, text=True,
        capture_output=True, check=False, preexec_fn=limit, timeout=HANG_SECONDS,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def test_a_write_that_fails_leaves_nothing_that_looks_whole(finished, lab):
    done = limited(lab, 9_000)
    assert done.returncode == 1
    assert "file too large" in done.stderr.lower()
    for path in (lab.out / "documents").glob("*.parquet"):
        assert pq.ParquetFile(path).metadata is not None
    lab.run()
    assert tree(lab.out) == tree(finished.out)


def can_mount() -> bool:
    return os.geteuid() == 0 and Path("/proc/filesystems").read_text().find("tmpfs") >= 0


@pytest.mark.slow
def test_a_full_disk_is_said_and_survived(finished, lab, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(small)]
    if not can_mount() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        lab.pipeline["output"] = str(small / "out")
        error = lab.run_apart("--force", code=1).stderr  # preflight sees it coming
        assert "no space left on device" in error.lower()
        assert "Free disk space" in error
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        lab.run()
        assert kept(lab) == kept(finished)
        assert tree(lab.out) == tree(finished.out)
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def test_two_runs_cannot_share_a_directory(lab):
    import fcntl

    lab.out.mkdir()
    with (lab.out / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another run is using this directory" in lab.run(code=2).stderr
    lab.run("--until", "gopher_quality")


def test_a_directory_without_a_run_is_said(lab):
    assert "not a run directory" in lab.cli("status", str(lab.inputs), code=2).stderr
