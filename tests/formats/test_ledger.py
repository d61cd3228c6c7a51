"""The ledger: rows in, rows out, sorted; a seeded sample keeps its text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.formats.ledger import SAMPLE_BYTES, Entries, LedgerWriter, sampled


def entries(keys: list[int], **more: object) -> Entries:
    num = len(keys)
    ids, sources = pa.array([f"d{k}" for k in keys]), pa.array(["web"] * num)
    rules = pa.array(["too_short"] * num)
    return Entries(np.array(keys, np.int64), ids, sources, "length", rules, "drop", **more)


def written(writer: LedgerWriter, path) -> list[dict]:
    writer.write(path)
    return pq.read_table(path).to_pylist()


def test_rows_are_sorted_by_key_and_keep_the_order_of_stages(tmp_path):
    writer = LedgerWriter()
    writer.add(entries([5, 9], values=np.array([1.0, np.nan])))
    spans = pa.array([[{"start": 0, "end": 3}]], writer_spans())
    writer.add(entries([5], spans=spans, survivors=pa.array(["d1"])))
    rows = written(writer, tmp_path / "l.parquet")
    assert [(r["doc_key"], r["value"], r["survivor_id"]) for r in rows] == [
        (5, 1.0, None), (5, None, "d1"), (9, None, None),
    ]  # fmt: skip
    assert rows[1]["spans"] == [{"start": 0, "end": 3}]


def writer_spans() -> pa.DataType:
    from corpuskit.formats.ledger import SPAN

    return pa.list_(SPAN)


def test_the_sample_depends_on_the_key_and_the_seed_alone():
    keys = np.arange(200_000, dtype=np.int64)
    chosen = sampled(keys, 1)
    assert abs(chosen.mean() * 256 - 1) < 0.15
    assert (sampled(keys[::-1], 1)[::-1] == chosen).all()
    assert (sampled(keys, 2) != chosen).any()


def test_the_sample_keeps_masked_and_bounded_text_and_nothing_else_does(tmp_path):
    keys = np.arange(2000)
    texts = pa.array([f"secret {k} " + "y" * 30_000 * (k % 2) for k in keys], pa.large_string())

    def mask(found: pa.Array) -> pa.Array:
        return pa.compute.replace_substring(found, "secret", "XXX")

    writer = LedgerWriter(mask=mask)
    writer.add(entries(keys.tolist(), texts=texts))
    kept = [r for r in written(writer, tmp_path / "l.parquet") if r["text"] is not None]
    assert [r["doc_key"] for r in kept] == np.flatnonzero(sampled(keys, 0)).tolist()
    assert all(r["text"].startswith(f"XXX {r['doc_key']} ") for r in kept)
    assert max(len(r["text"]) for r in kept) <= SAMPLE_BYTES


def test_all_text_is_kept_when_asked_for(tmp_path):
    writer = LedgerWriter(keep_text=True)
    writer.add(entries([1, 2], texts=pa.array(["a", "b"], pa.large_string())))
    assert [r["text"] for r in written(writer, tmp_path / "l.parquet")] == ["a", "b"]
