"""Every stage's word on one document, for a document of each fate."""

from __future__ import annotations

import pytest

from corpuskit.loader import StreamingLoader
from corpuskit.loader.index import read_mix
from tests.inspect.why.lab import PASSAGE, WhyLab

LABELS = [
    "jsonl", "holdout", "gopher_quality", "exact_dedup", "minhash_dedup", "substring_dedup", "pii",
    "mix", "tokenize", "pack", "shuffle",
]  # fmt: skip


def outcomes(told: dict) -> dict[str, str]:
    return {one["stage"]: one["outcome"] for one in told["stages"]}


def stage(told: dict, label: str) -> dict:
    return next(one for one in told["stages"] if one["stage"] == label)


def entry(told: dict, label: str) -> dict:
    (row,) = stage(told, label)["rows"]
    return row


def note(lab: WhyLab) -> str:
    """Return the id of a document that is taken in two epochs."""
    return next(row["id"] for row in lab.rows("documents") if row["source"] == "notes")


def test_stages_come_in_the_order_of_the_plan_and_end_with_the_one_that_dropped(whys):
    told = whys.told("short")
    assert [one["stage"] for one in told["stages"]] == LABELS
    assert list(outcomes(told).values()) == ["kept", "kept", "dropped"] + ["not reached"] * 8
    assert told["outcome"] == "dropped"
    assert told["now"] is None


def test_a_dropped_document_has_value_threshold_and_what_they_mean(whys):
    row = entry(whys.told("short"), "gopher_quality")
    assert (row["rule"], row["value"], row["threshold"]) == ("gopher_short_doc", 4, 30)
    assert row["parameter"] == "min_words"
    assert "words" in row["meaning"]
    shown = whys.cli("why", str(whys.out), "short").stdout
    assert "drop by gopher_short_doc: 4 against 30 (min_words" in shown


def test_stored_measures_are_told_of_kept_documents_too(whys):
    by_id = {row["id"]: row for row in whys.rows("measures/gopher_quality")}
    told = {one["rule"]: one for one in stage(whys.told("mail"), "gopher_quality")["measures"]}
    assert told["gopher_short_doc"]["value"] == by_id["mail"]["gopher_short_doc"]
    assert not any(one["fails"] for one in told.values())
    short = {one["rule"]: one for one in stage(whys.told("short"), "gopher_quality")["measures"]}
    assert short["gopher_short_doc"]["fails"]


def test_an_exact_duplicate_names_its_survivor_and_its_cluster(whys):
    told = whys.told("copy-2")
    assert entry(told, "exact_dedup")["survivor_id"] == "doc3"
    cluster = stage(told, "exact_dedup")["cluster"]
    assert cluster["size"] == 3
    assert [one["id"] for one in cluster["members"]] == ["doc3", "copy-1"]
    shown = whys.cli("why", str(whys.out), "copy-2").stdout
    assert "kept instead: doc3\n" in shown
    assert "number 3 of a cluster of 3, with doc3, copy-1" in shown


def test_the_survivor_of_a_cluster_names_those_that_went(whys):
    cluster = stage(whys.told("doc3"), "exact_dedup")["cluster"]
    assert cluster["rank"] == 0
    assert [one["id"] for one in cluster["members"]] == ["copy-1", "copy-2"]


def test_a_near_duplicate_is_told_with_its_similarity(whys):
    told = whys.told("edited")
    row = entry(told, "minhash_dedup")
    assert row["survivor_id"] == "doc4"
    assert row["threshold"] == 0.8 <= row["value"] < 1
    assert row["lost"] <= 0.02
    kept = stage(whys.told("doc4"), "minhash_dedup")["cluster"]["members"]
    assert [(one["id"], one["similarity"]) for one in kept] == [("edited", row["value"])]


def test_a_cut_document_shows_what_was_cut(whys):
    told = whys.told("quoting")
    assert outcomes(told)["substring_dedup"] == "cut"
    row = entry(told, "substring_dedup")
    ((start, end),) = row["spans"]
    assert end - start >= len(PASSAGE)
    assert row["excerpts"][0]["span"].startswith("\nThis passage stands")
    texts = {row["id"]: row["text"] for row in whys.rows("documents")}
    assert PASSAGE in texts["quoted"]
    assert PASSAGE not in texts["quoting"]


def test_a_replaced_span_is_shown_as_the_stage_saw_it(whys):
    row = entry(whys.told("mail"), "pii")
    assert row["action"] == "replace"
    assert row["excerpts"][0]["span"] == "jo@mail.example.org"


def test_a_held_out_document_is_where_it_was_set_aside(whys):
    held = whys.rows("holdout")[0]
    told = whys.told(held["id"])
    assert told["outcome"] == "held out"
    assert told["now"]["part"].startswith("holdout/")
    assert held["text"].startswith(told["text"])
    assert told["tokens"] is None


def test_what_the_source_rejects_or_repairs_is_told_as_its_word(whys):
    (broken,) = whys.dropped("bad_json")
    told = whys.told(broken["doc_id"])
    assert outcomes(told)["jsonl"] == "dropped"
    assert outcomes(told)["holdout"] == "not reached"
    assert entry(whys.told("surrogate"), "jsonl")["rule"] == "lone_surrogate"
    assert outcomes(whys.told("surrogate"))["jsonl"] == "replaced"


def test_a_kept_document_lies_where_its_history_says(whys):
    import pyarrow.parquet as pq

    told = whys.told("mail")
    assert told["outcome"] == "kept"
    row = pq.read_table(whys.out / told["now"]["part"]).slice(told["now"]["row"], 1).to_pylist()[0]
    assert (row["id"], row["text"]) == ("mail", told["text"])


def test_token_rows_hold_the_document(whys):
    import pyarrow.parquet as pq

    told = whys.told(note(whys))
    for row in told["tokens"]["rows"]:
        group = pq.ParquetFile(whys.out / row["part"]).read_row_group(row["row_group"])
        stored = group.slice(row["row_in_group"], 1).to_pylist()[0]
        place = stored["doc_starts"].index(row["first_token"])
        assert stored["doc_keys"][place] == told["key"]


def test_a_document_of_two_epochs_is_seen_when_the_loader_says(whys):
    name = note(whys)
    tokens = whys.told(name, "-b", "2")["tokens"]
    assert tokens["epochs"] == 2
    told = [(one["step"], one["row"], one["epoch"]) for one in tokens["steps"] if "step" in one]
    with StreamingLoader(whys.out, 2) as loader:
        assert told == [(one.step, one.row, one.epoch) for one in loader.occurrences(name)]
    counters = [one["run_row"] for one in whys.told(name)["tokens"]["steps"]]
    assert len(counters) == tokens["taken"] == len(set(counters))


def test_a_document_that_the_mixture_never_takes_says_so(whys):
    plan = read_mix(whys.out)
    with StreamingLoader(whys.out, 1) as loader:
        name = next(
            row["id"] for row in whys.rows("documents")
            if row["source"] == "web" and not loader.occurrences(row["key"])
        )  # fmt: skip
    tokens = whys.told(name)["tokens"]
    assert tokens["taken"] == 0
    assert f"of the {plan.sources[0].rows} rows of source web" in tokens["why_not"]
    assert "which no step takes" in whys.cli("why", str(whys.out), name).stdout


@pytest.mark.parametrize("name", ["doc1", "short", "mail", "quoting", "edited", "surrogate"])
def test_recomputed_every_stage_decides_as_it_did(whys, name):
    told = whys.told(name, "--recompute")
    for one in told["stages"]:
        recomputed = one.get("recomputed")
        if recomputed is not None:
            was = "dropped" if one["outcome"] in ("dropped", "held out") else "kept"
            assert recomputed["outcome"] == was
    measured = {one["rule"]: one for one in stage(told, "gopher_quality")["measures"]}
    stored = next(row for row in whys.rows("measures/gopher_quality") if row["id"] == name)
    assert {rule: one["value"] for rule, one in measured.items()} == pytest.approx(
        {rule: stored[rule] for rule in measured}
    )


def test_what_cannot_be_recomputed_says_why(whys):
    source = whys.inputs / "web0.jsonl"
    moved = source.rename(source.with_suffix(".gone"))
    try:
        told = whys.told("mail", "--recompute")
    finally:
        moved.rename(source)
    assert "is gone" in stage(told, "gopher_quality")["recomputed"]["error"]
    assert stage(told, "pii")["recomputed"]["outcome"] == "kept"  # reads what the run has written
