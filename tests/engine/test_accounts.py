"""Nothing disappears silently: what was read is kept or in the ledger."""

from __future__ import annotations

import pyarrow.parquet as pq

from tests.engine.conftest import corpus
from tests.engine.test_same_bytes import read


def test_every_document_is_kept_or_in_the_ledger(finished):
    kept = [row["id"] for row in read(finished, "documents")]
    dropped = [row["doc_id"] for row in read(finished, "ledger") if row["action"] == "drop"]
    assert sorted(kept + dropped) == sorted(d["id"] for d in corpus())
    assert {row["rule"] for row in read(finished, "ledger")} >= {
        "gopher_short_doc", "exact_duplicate", "near_duplicate", "email",
    }  # fmt: skip


def test_the_accounts_agree_with_the_files(finished):
    facts = finished.facts()
    accounts = {one["source"]: one for one in facts["accounts"]}
    rows = read(finished, "documents")
    for source, total in (("web", 120), ("books", 40)):
        account = accounts[source]
        assert account["num_read"] == total
        assert account["num_kept"] == sum(row["source"] == source for row in rows)
        assert account["num_missing"] == 0


def test_a_duplicate_names_a_survivor_that_survived(finished):
    kept = {row["id"] for row in read(finished, "documents")}
    near = [row for row in read(finished, "ledger") if row["rule"] == "near_duplicate"]
    exact = [row for row in read(finished, "ledger") if row["rule"] == "exact_duplicate"]
    later = {row["doc_id"]: row["survivor_id"] for row in near}
    assert near
    assert exact
    assert all(row["survivor_id"] in kept for row in near)
    for row in exact:  # the survivor of one pass may itself be a near duplicate in the next
        assert later.get(row["survivor_id"], row["survivor_id"]) in kept


def test_the_tokens_are_those_of_the_documents(finished):
    import json

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(finished.stage("tokenize")["tokenizer"])
    plan = json.loads((finished.out / "mix" / "plan.json").read_text())
    expected = {"web": 0, "books": 0}
    for row in read(finished, "documents"):
        expected[row["source"]] += len(tokenizer.encode(row["text"]).ids) + 1  # and its end
    assert {one["name"]: one["tokens"] for one in plan["sources"]} == expected
    for name in expected:
        rows = sum(
            pq.ParquetFile(path).metadata.num_rows
            for path in (finished.out / "tokens" / name).glob("*.parquet")
        )
        assert rows == next(s["rows"] for s in plan["sources"] if s["name"] == name)


def test_why_tells_the_whole_story_of_a_document(finished):
    row = next(r for r in read(finished, "ledger") if r["rule"] == "near_duplicate")
    told = finished.cli("why", str(finished.out), row["doc_id"]).stdout
    assert f"kept instead: {row['survivor_id']}" in told
    kept = read(finished, "documents")[0]
    assert "kept" in finished.cli("why", str(finished.out), kept["id"]).stdout
    finished.cli("why", str(finished.out), "no-such-document", code=2)


def test_verify_finds_a_flipped_byte(finished, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(finished.out, copy)
    path = next((copy / "documents").glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found = finished.cli("verify", str(copy), code=3).stdout
    assert path.name in found
    assert "not what was written" in found
    finished.cli("verify", str(finished.out))
