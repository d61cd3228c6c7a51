"""The quickstart on sample_data/ decides what `sample_data/golden.json` says, and what was planted.

`UPDATE_GOLDEN=1 pytest tests/test_golden.py` writes the counts anew; review the difference.
"""

from __future__ import annotations

import hashlib
import json
import os

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow
GOLDEN = ROOT / "sample_data" / "golden.json"


@pytest.fixture(scope="module")
def quickstart(clone):
    """The run directory of the quickstart, as the README's commands leave it."""
    return clone[0] / "runs" / "quickstart"


def rows(folder) -> list[dict]:
    found: list[dict] = []
    for path in sorted(folder.glob("*.parquet")):
        found += pq.read_table(path).to_pylist()
    return found


def planted_truth() -> list[dict]:
    lines = (ROOT / "sample_data" / "truth.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def decided(run) -> dict:
    """Return drops by stage, rule and source, what is kept, and the hash of the kept texts."""
    counts: dict[str, int] = {}
    for row in rows(run / "ledger"):
        name = "/".join([row["action"], row["stage"], row["rule"], row["source"]])
        counts[name] = counts.get(name, 0) + 1
    kept: dict[str, int] = {}
    texts = hashlib.blake2b(digest_size=16)
    for row in sorted(rows(run / "documents"), key=lambda row: row["id"]):
        kept[row["source"]] = kept.get(row["source"], 0) + 1
        texts.update(f"{row['id']}\0{row['text']}\0".encode())
    plan = json.loads((run / "mix" / "plan.json").read_text())
    return {
        "ledger": dict(sorted(counts.items())),
        "kept": kept,
        "texts": texts.hexdigest(),
        "tokens": {source["name"]: source["tokens"] for source in plan["sources"]},
        "rows": {source["name"]: source["rows"] for source in plan["sources"]},
    }


def test_the_decisions_are_the_golden_ones(quickstart):
    golden = json.loads(GOLDEN.read_text())
    found = decided(quickstart)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps({**golden, "pipeline": found}, indent=2) + "\n")
        golden["pipeline"] = found
    assert found == golden["pipeline"]


def test_planted_documents_leave_by_the_rule_they_break(quickstart):
    truth = planted_truth()
    planted = {t["id"]: t["rule"] for t in truth if t["kind"] == "gopher_quality"}
    assert len(planted) > 30
    reasons: dict[str, str] = {}
    for row in rows(quickstart / "ledger"):
        reasons.setdefault(row["doc_id"], row["rule"])
    wrong = {
        name: (kind, reasons.get(name))
        for name, kind in planted.items()
        if reasons.get(name) not in {kind, "held_out", "language", "score"}
    }
    assert not wrong
    right = [name for name, kind in planted.items() if reasons.get(name) == kind]
    assert len(right) >= 0.8 * len(planted)


def test_no_planted_address_is_left(quickstart):
    truth = planted_truth()
    secrets = [
        span["text"]
        for one in truth
        if one["kind"] == "pii"
        for span in one["spans"]
        if span["type"] in {"email", "ip_public"}
    ]
    # By default `pii` takes small numbers with dots (8.8.4.4) for section numbers.
    secrets = [s for s in secrets if "@" in s or max(map(int, s.split("."))) >= 64]
    assert len(secrets) > 15
    text = "\n".join(row["text"] for row in rows(quickstart / "documents"))
    assert not [secret for secret in secrets if secret in text]
