"""A document that is dropped for what is in it: where that was, in the row that says so."""

from __future__ import annotations

import pyarrow.parquet as pq


def ledger(lab):
    paths = (lab.out / "ledger").glob("*.parquet")
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_a_dropped_document_has_one_row_with_the_spans_it_was_dropped_for(lab):
    text = "Write to jo@mail.example.org, or to 81.2.69.142, or to al@mail.example.org."
    lab.write("web0.jsonl", [{"id": "both", "text": text}])
    lab.write("web1.jsonl", [{"id": "ip", "text": "Seen from 81.2.69.142."}])
    lab.write("books.jsonl", [{"id": "none", "text": "Nothing."}])
    lab.pipeline["stages"] = [{"pii": {"actions": {"email": "drop"}}}]
    lab.run()
    rows = ledger(lab)
    found = {(row["doc_id"], row["rule"], row["action"]): row["spans"] for row in rows}
    assert set(found) == {("both", "email", "drop"), ("ip", "ipv4", "replace")}
    parts = [text[span["start"] : span["end"]] for span in found["both", "email", "drop"]]
    assert parts == ["jo@mail.example.org", "al@mail.example.org"]


def test_a_dropped_document_without_spans_has_none(lab):
    lab.run()
    rows = ledger(lab)
    dropped = [row for row in rows if row["action"] == "drop"]
    assert dropped
    assert all(row["spans"] is None for row in dropped)
