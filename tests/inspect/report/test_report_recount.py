"""What facts, history, ledger, seals, profile and the files themselves say is the same."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.engine.progress import Tracker
from corpuskit.engine.status import sealed
from corpuskit.inspect.lookup import RunDocuments, find
from corpuskit.inspect.why import history_of
from tests.inspect.report.conftest import documents

pytestmark = pytest.mark.slow

SOURCES = ["web", "books", "news"]


@pytest.fixture(scope="module")
def ledger(done) -> list[dict]:
    tables = [pq.read_table(path) for path in sorted(done.out.glob("ledger/*.parquet"))]
    return pa.concat_tables(tables).to_pylist()


@pytest.fixture(scope="module")
def shards(done) -> list[dict]:
    tables = [pq.read_table(path) for path in sorted(done.out.glob("documents/*.parquet"))]
    return pa.concat_tables(tables).to_pylist()


@pytest.fixture(scope="module")
def profile(done) -> list[dict]:
    tables = [pq.read_table(path) for path in sorted(done.out.glob("profile/*.parquet"))]
    return pa.concat_tables(tables).to_pylist()


def counted(rows: list[dict], **wanted: str) -> Counter:
    return Counter(
        (row["stage"], row["rule"].partition(": ")[0], row["source"])
        for row in rows
        if all(row[name] == value for name, value in wanted.items())
    )


def by_rule(rows: list[dict]) -> Counter:
    found: Counter = Counter()
    for row in rows:
        found[row["stage"], row["rule"], row["source"]] += row["documents"]
    return found


def test_every_kind_of_fate_is_there(facts):
    stages = {row["stage"] for row in facts["drops"]}
    dropping = {"jsonl", "holdout", "gopher_quality", "exact_dedup", "minhash_dedup"}
    assert stages == dropping
    assert {row["stage"] for row in facts["changes"]} == {"unicode", "pii"}


def test_documents_read_are_the_rows_of_the_files(facts):
    found = {row["source"]: row["num_read"] for row in facts["totals"]["accounts"]}
    assert found == {name: len(rows) for name, rows in documents().items()}
    rows = [row for row in facts["funnel"] if row["kind"] == "source"]
    assert {row["stage"]: row["in"]["documents"] for row in rows} == found
    assert all(set(row["sources"]) == {row["stage"]} for row in rows)


def test_bytes_read_are_those_of_the_texts(facts):
    sizes = {
        name: sum(len((row["text"] or "").encode()) for row in rows)
        for name, rows in documents().items()
    }
    [holdout] = [row for row in facts["funnel"] if row["stage"] == "holdout"]
    sources = holdout["sources"]
    assert {name: one["in"]["text_bytes"] for name, one in sources.items()} == sizes
    assert {one["in"]["text_bytes_how"] for one in sources.values()} == {"exact"}


def test_drops_are_rows_of_the_ledger(facts, ledger):
    assert by_rule(facts["drops"]) == counted(ledger, action="drop")
    assert facts["totals"]["dropped"] == sum(row["action"] == "drop" for row in ledger)


def test_changes_are_rows_of_the_ledger_and_spans_are_theirs(facts, ledger):
    rows = [row for row in ledger if row["action"] != "drop"]
    assert by_rule(facts["changes"]) == counted(rows)
    spans, sizes = Counter(), Counter()
    for row in rows:
        key = row["stage"], row["rule"], row["source"]
        spans[key] += len(row["spans"] or ())
        sizes[key] += sum(span["end"] - span["start"] for span in row["spans"] or ())
    for row in facts["changes"]:
        key = row["stage"], row["rule"], row["source"]
        assert (row["spans"], row["span_bytes"], row["how"]) == (spans[key], sizes[key], "exact")


def test_profile_parts_say_the_same(facts, profile):
    found: Counter = Counter()
    for row in profile:
        if row["what"] == "dropped":
            found[row["at"], row["field"], row["source"]] += row["documents"]
    streaming = ("holdout", "unicode", "gopher_quality", "pii")
    mine = [row for row in facts["drops"] if row["stage"] in streaming]
    assert by_rule(mine) == found
    for row in facts["funnel"]:
        seen = Counter()
        for one in profile:
            if (one["at"], one["what"]) == (row["stage"], "seen"):
                seen[one["source"]] += one["documents"]
        if seen:
            assert seen == {name: one["in"]["documents"] for name, one in row["sources"].items()}


def test_what_is_left_lies_in_the_shards(facts, shards):
    left = facts["totals"]["left"]
    sizes = [len(row["text"].encode()) for row in shards]
    assert (left["documents"], left["text_bytes"]) == (len(shards), sum(sizes))
    assert left["text_bytes_how"] == "exact"
    kept = {row["source"]: row["num_kept"] for row in facts["totals"]["accounts"]}
    assert Counter(row["source"] for row in shards) == kept


def test_no_document_is_missing(facts):
    assert [row["num_missing"] for row in facts["totals"]["accounts"]] == [0, 0, 0]
    totals = facts["totals"]
    assert totals["read"]["documents"] == totals["left"]["documents"] + totals["dropped"]


def test_each_stage_leaves_what_it_did_not_drop(facts):
    lost = by_rule(facts["drops"])
    for row in facts["funnel"]:
        label = row["name"] if row["kind"] == "source" else row["stage"]
        for source, one in row["sources"].items():
            gone = sum(n for (stage, _, s), n in lost.items() if (stage, s) == (label, source))
            assert one["in"]["documents"] - gone == one["out"]["documents"]
    stages = [row for row in facts["funnel"] if row["kind"] != "source"]
    for before, behind in itertools.pairwise(stages):
        assert before["out"] == behind["in"]
    read = [row["out"]["documents"] for row in facts["funnel"] if row["kind"] == "source"]
    assert sum(read) == stages[0]["in"]["documents"]


def test_every_command_has_the_same_funnel(facts, done, run, tmp_path):
    """What `status`, `report`, `diff` and `card` say of a stage is one figure."""
    mine = [
        (row["stage"], row["kind"], row["state"], row["in"]["documents"], row["out"]["documents"])
        for row in facts["funnel"]
    ]
    status = json.loads(done.cli("status", str(done.out), "--json").stdout)["funnel"]
    keys = ("stage", "kind", "state", "num_in", "num_out")
    assert [tuple(row[key] for key in keys) for row in status] == mine
    assert [list(row["sources"]) for row in status] == [list(r["sources"]) for r in facts["funnel"]]
    shutil.copytree(done.out, tmp_path / "b")
    diff = json.loads(done.cli("diff", str(done.out), str(tmp_path / "b"), "--json").stdout)
    assert [
        (r["stage"], r["kind"], r["a"]["num_in"], r["b"]["num_out"]) for r in diff["funnel"]
    ] == [(stage, kind, num_in, num_out) for stage, kind, _, num_in, num_out in mine]
    card = json.loads(done.cli("card", str(done.out), "--json").stdout)["stages"]
    by_stage = {stage: (num_in, num_out) for stage, _, _, num_in, num_out in mine}
    counted = {row["label"]: (row["num_in"], row["num_out"]) for row in card if row["num_in"]}
    assert counted
    assert counted.items() <= by_stage.items()
    live = Tracker(run)
    for phase, seal in sealed(run):
        live.end(phase, seal)
    so_far = [(row.stage, row.kind, row.num_in, row.num_out) for row in live.progress().funnel]
    assert so_far == [(stage, kind, *ends) for stage, kind, _, *ends in mine]


def test_bytes_of_drops_are_what_is_missing_behind_filters(facts):
    for row in facts["funnel"]:
        if row["kind"] in ("filter", "dedup") and row["stage"] != "unicode":
            sizes = [d for d in facts["drops"] if d["stage"] == row["stage"]]
            assert {d["text_bytes_how"] for d in sizes} == {"exact"}
            missing = row["in"]["text_bytes"] - row["out"]["text_bytes"]
            assert sum(d["text_bytes"] for d in sizes) == missing


def test_bytes_of_dropped_documents_are_those_of_their_texts(facts, done):
    texts = {row["id"]: row["text"] for row in documents()["web"] if row.get("id")}
    held = [d for d in facts["drops"] if (d["stage"], d["source"]) == ("holdout", "web")]
    rows = [r for p in done.out.glob("holdout/*.parquet") for r in pq.read_table(p).to_pylist()]
    sizes = [len(texts[row["id"]].encode()) for row in rows if row["source"] == "web"]
    assert sum(d["text_bytes"] for d in held) == sum(sizes)


def test_tokens_are_those_of_the_token_shards(facts, done, shards):
    plan = json.loads((done.out / "mix" / "plan.json").read_text())
    tokens = rows = padding = 0
    keys: set[int] = set()
    for path in done.out.glob("tokens/*/*.parquet"):
        table = pq.read_table(path)
        width = plan["seq_len"] + 1
        for row in table.to_pylist():
            ends = [*row["doc_starts"][1:], width]
            sizes = np.array(ends) - np.array(row["doc_starts"])
            is_padding = np.array(row["flags"]) & 2 != 0
            tokens += int(sizes[~is_padding].sum())
            padding += int(sizes[is_padding].sum())
            keys.update(key for key in row["doc_keys"] if key >= 0)
            rows += 1
    found = facts["totals"]["tokens"]
    assert (found["stored"], found["padding"], found["rows"]) == (tokens, padding, rows)
    assert facts["totals"]["left"]["tokens"] == tokens
    assert facts["totals"]["left"]["tokens_how"] == "exact"
    assert keys == {row["key"] for row in shards}


def test_the_mixture_takes_what_its_plan_says(facts, done):
    plan = json.loads((done.out / "mix" / "plan.json").read_text())
    assert sum(row["rows"] for row in facts["mixture"]["sources"]) == plan["stages"][0]["rows"]
    taken = sum(row["tokens"] for row in facts["mixture"]["sources"])
    assert facts["totals"]["tokens"]["taken"] == taken


def test_the_history_of_every_document_says_the_same(facts, run, ledger, shards):
    names = [row["id"] for row in shards]
    names += [row["doc_id"] for row in ledger if row["action"] == "drop"]
    assert len(names) == len(set(names)) == facts["totals"]["read"]["documents"]
    lost: Counter = Counter()
    kept = 0
    documents = RunDocuments(run)
    for name in names:
        found = history_of(documents, find(documents, "id", name).keys[0])
        kept += found["kept"]
        for row in found["ledger"]:
            if row["action"] == "drop":
                lost[row["stage"], row["rule"].partition(": ")[0], row["source"]] += 1
    assert kept == facts["totals"]["left"]["documents"]
    assert lost == by_rule(facts["drops"])


def test_clusters_have_the_dropped_documents_and_their_survivors(facts, ledger):
    for found in facts["duplicates"]:
        rows = [row for row in ledger if row["stage"] == found["stage"]]
        survivors = {row["survivor_id"] for row in rows}
        assert found["dropped"] == len(rows)
        assert (found["clusters"], found["documents"]) == (
            len(survivors),
            len(rows) + len(survivors),
        )
        assert sum(one["clusters"] for one in found["sizes"]) == found["clusters"]
        assert sum(one["documents"] for one in found["sizes"]) == found["documents"]
        for cluster in found["largest"]:
            kept = [one["id"] for one in cluster["members"] if one["kept"]]
            assert len(kept) == 1
            assert kept[0] in survivors


def test_lengths_and_domains_before_and_after_are_those_of_the_documents(facts, shards):
    lengths = facts["lengths"]["sources"]
    for source, rows in documents().items():
        assert sum(lengths[source]["read"]) == sum(row["text"] is not None for row in rows)
        left = [row for row in shards if row["source"] == source]
        assert sum(lengths[source]["left"]) == len(left)
    named = {one["name"]: one["sources"]["web"] for one in facts["domains"]["names"]}
    urls = [row["url"] for row in documents()["web"] if row["text"] is not None]
    assert {name: one["read"]["documents"] for name, one in named.items()} == Counter(
        url.split("/")[2].removeprefix("www.") for url in urls
    )
    kept = [row["origin"]["url"] for row in shards if row["source"] == "web"]
    found = {name: one["left"]["documents"] for name, one in named.items()}
    assert +Counter(found) == Counter(url.split("/")[2].removeprefix("www.") for url in kept)
