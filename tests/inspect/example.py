"""Facts of a small run as `report.facts` gathers them, made up, to look at the page with."""

from __future__ import annotations

from typing import Any

WORDS = (
    "river stone market winter letter garden engine bridge teacher window village summer".split()
)


def volume(documents: int | None, text_bytes: int | None, tokens: int | None) -> dict[str, Any]:
    how = "unknown" if text_bytes is None else "exact"
    return {"documents": documents, "text_bytes": text_bytes, "text_bytes_how": how,
            "tokens": tokens, "tokens_how": how.replace("exact", "estimated")}  # fmt: skip


def text(*pieces: Any) -> dict[str, Any]:
    """Return an excerpt of plain strings and of [kind, content]."""
    made = [["", one] if isinstance(one, str) else one for one in pieces]
    plain = "".join(content for kind, content in made if kind != "gap")
    return {"pieces": made, "size_bytes": len(plain.encode("utf-8", "surrogatepass"))}


def sample(action: str, stage: str | None, rule: str | None, source: str, number: int,
           shown: dict[str, Any] | None, **more: Any) -> dict[str, Any]:  # fmt: skip
    return {
        "action": action, "stage": stage, "rule": rule, "reason": None, "source": source,
        "key": str(number), "id": f"{source}/a.jsonl#{number}", "url": None, "value": None,
        "threshold": None, "text": shown, "num_spans": 0, "survivor": None, **more,
    }  # fmt: skip


def samples() -> list[dict[str, Any]]:
    """Return 24 short documents, 12 kept ones, an e-mail, a near duplicate, Arabic, no text."""
    found = [
        sample("drop", "gopher_quality", "few_words", "web", n, text(f"Home {WORDS[n % 12]} {n}"),
               value=float(n), threshold=50.0)
        for n in range(24)
    ]  # fmt: skip
    found += [
        sample("keep", None, None, "books", n, text(f"It was a {WORDS[n % 12]} day in Cafe\u0301."))
        for n in range(100, 112)
    ]
    mail = text(
        "\U0001f600 write to ", ["replace", "user@mail.example.org"], " today", ["gap", 900]
    )
    found.append(sample("replace", "pii", "email", "web", 200, mail, num_spans=3))
    survivor = {"id": "web/a.jsonl#3", "text": text("one two three four five"), "jaccard": 0.9}
    found.append(sample("drop", "minhash_dedup", "near_duplicate", "web", 201,
                        text("one two changed four five"), survivor=survivor))  # fmt: skip
    arabic = "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645"
    found.append(sample("drop", "language", "language", "web", 202, text(arabic), value=0.2))
    found.append(sample("drop", "jsonl", "invalid_utf8", "web", 203, None))
    return found


def row(stage: str, kind: str, web: tuple[int, int], books: tuple[int, int]) -> dict[str, Any]:
    """Return a row of the funnel from documents in and out of both sources."""

    def of(documents: int) -> dict[str, Any]:
        return volume(documents, 1800 * documents, 400 * documents)

    return {
        "stage": stage, "kind": kind, "name": stage, "state": "done",
        "in": of(web[0] + books[0]), "out": of(web[1] + books[1]),
        "sources": {"web": {"in": of(web[0]), "out": of(web[1])},
                    "books": {"in": of(books[0]), "out": of(books[1])}},
        "not_applied": {},
    }  # fmt: skip


def read(source: str, num_in: int, num_out: int) -> dict[str, Any]:
    """Return the row of the funnel of a source of JSON Lines."""
    found = row(source, "source", (num_in, num_out), (0, 0))
    sources = {source: found["sources"]["web"]}
    return {**found, "name": "jsonl", "sources": sources}


def drop(stage: str, rule: str, source: str, documents: int, kind: str) -> dict[str, Any]:
    return {"stage": stage, "rule": rule, "source": source, "kind": kind, "documents": documents,
            "text_bytes": 1000 * documents, "text_bytes_how": "estimated"}  # fmt: skip


def facts() -> dict[str, Any]:
    """Return the facts of a finished run."""
    return {**_counted(), **_shown(), **_made()}


def _counted() -> dict[str, Any]:
    kinds = {"jsonl": "source", "language": "annotator", "gopher_quality": "filter",
             "minhash_dedup": "dedup", "pii": "rewriter"}  # fmt: skip
    return {
        "format": 1,
        "made": {"at": "2026-11-22T01:30:00Z", "corpuskit": "0.1.0", "cpu_seconds": 0.8},
        "run": {"name": "example", "directory": "runs/example", "pipeline": "p.yaml", "seed": 0,
                "until": None, "state": "finished", "phase": None,
                "sentence": "Finished: 3 phases.",
                "began": "2026-11-22T01:00:00Z", "ended": None, "phases_done": 3, "phases": 3,
                "accepted_code_change": []},
        "failures": [],
        "sources": ["web", "books"],
        "stages": [{"label": one, "name": one, "kind": kind, "summary": f"What {one} does.",
                    "phases": ["gopher_quality"], "state": "done", "params": {}}
                   for one, kind in kinds.items()],
        "totals": {
            "input": {"files": 3, "size_bytes": 4_000_000},
            "read": volume(5000, 9_000_000, 2_000_000), "left": volume(3009, 5_416_200, 1_203_600),
            "dropped": 1991, "changed": 140,
            "tokens": {"stored": 1_203_600, "taken": 1_160_000, "rows": 684, "seq_len": 2048,
                       "padding": 1200},
            "accounts": [
                {"source": "web", "num_read": 4000, "num_dropped": 1891, "num_kept": 2109,
                 "num_missing": 0},
                {"source": "books", "num_read": 1000, "num_dropped": 100, "num_kept": 900,
                 "num_missing": 0}],
            "cpu_seconds": 12.5, "peak_rss_bytes": 4.1e8, "notes": ["Tokens are estimated."]},
        "expect": {
            "contracts": [
                {
                    "verdict": "broken",
                    "cells": [
                        *("exact_dedup", "web", "max_drop"),
                        *("<= 1 %", "4 % (160 of 4,000)", "broken"),
                    ],
                }
            ],
            "warnings": ["gopher_quality dropped 3,900 of 4,000 documents of web (97.5 %)."],
        },
        "funnel": [read("web", 4000, 3999), read("books", 1000, 1000),
                   row("language", "annotator", (3999, 3899), (1000, 1000)),
                   row("gopher_quality", "filter", (3899, 2509), (1000, 900)),
                   row("minhash_dedup", "dedup", (2509, 2109), (900, 900)),
                   row("pii", "rewriter", (2109, 2109), (900, 900))],
        "drops": [drop("jsonl", "invalid_utf8", "web", 1, "source"),
                  drop("language", "language", "web", 100, "annotator"),
                  drop("gopher_quality", "few_words", "web", 1390, "filter"),
                  drop("gopher_quality", "few_words", "books", 100, "filter"),
                  drop("minhash_dedup", "near_duplicate", "web", 400, "dedup")],
        "changes": [{"stage": "pii", "rule": "email", "action": "replace", "source": "web",
                     "documents": 140, "spans": 180, "span_bytes": 4100, "how": "exact"}],
    }  # fmt: skip


RECORDED = {"recorded": "all", "sampled": None}


def _shown() -> dict[str, Any]:
    of = {"documents": 10, "text_bytes": 900}
    none = {"documents": 0, "text_bytes": 0}
    return {
        "rewritten": {**RECORDED, "rows": [{"stage": "pii", "source": "web", "documents": 140,
                                            "removed_bytes": 900}]},
        "measures": {**RECORDED, "items": [
            {"stage": "gopher_quality", "name": "few_words", "kind": "measure", "rule": "few_words",
             "parameter": "min_words", "threshold": 50.0, "fails": "below",
             "edges": [[0, 0], [0, 10], [10, 30], [30, 50], [50, 100], [100, 1000], [1000, None]],
             "sources": {"web": [1, 299, 500, 590, 900, 1409, 200],
                         "books": [0, 0, 0, 100, 200, 600, 100]},
             "missing": {"web": 0}, "seen": 4899,
             "failing": {"at_least": 1490, "at_most": 1490, "ledger": 1490}},
            {"stage": "language", "name": "score", "kind": "score", "rule": None,
             "parameter": None, "threshold": 0.65, "fails": "below",
             "edges": [[number / 100, (number + 1) / 100] for number in range(100)],
             "sources": {"web": [1] * 90 + [390] * 10}, "missing": {"web": 2}, "seen": 3990,
             "failing": {"at_least": 64, "at_most": 65, "ledger": 65}}]},
        "values": {**RECORDED, "items": [
            {"field": "language.label", "stage": "language", "points": ["at", "left"], "names": [
                {"name": name, "sources": {"web": {"at": of, "left": none if name else of}}}
                for name in ("en", "ar", None)]}]},
        "domains": {**RECORDED, "distinct_shown": 20, "cut": True, "names": [
            {"name": f"host{number}.example.org", "sources": {"web": {"read": of, "left": none}}}
            for number in range(20)]},
        "lengths": {**RECORDED, "edges": [[0, 64], [64, 256], [256, 1024], [1024, None]],
                    "sources": {
                        "web": {"read": [100, 900, 1500, 1500], "left": [0, 200, 1000, 909]},
                        "books": {"read": [0, 0, 500, 500], "left": [0, 0, 450, 450]}}},
        "duplicates": [
            {"stage": "minhash_dedup", "kind": "minhash_dedup", "state": "done", "clusters": 220,
             "documents": 620, "dropped": 400, "threshold": 0.8, "sampled": None,
             "sizes": [{"low": 2, "high": 2, "clusters": 150, "documents": 300},
                       {"low": 3, "high": 4, "clusters": 70, "documents": 320}],
             "largest": [{"cluster": "7", "size": 4, "text": text("All rights reserved."),
                          "members": [{"key": "7", "id": "doc1", "source": "web", "rank": 0,
                                       "kept": True, "similarity": None},
                                      {"key": "9", "id": None, "source": None, "rank": 1,
                                       "kept": False, "similarity": 0.93}]}]}],
        "samples": {"budget_bytes": 400_000, "used_bytes": 4000, "seed": 0, "sampled": None,
                    "masked": True, "items": samples()},
    }  # fmt: skip


def _made() -> dict[str, Any]:
    mixed = [
        {"stage": "main", "source": one, "rows": rows, "tokens": 2000 * rows, "documents": rows,
         "epochs": 0.7, "max_epochs": 1.0, "planned_ratio": planned, "token_ratio": planned + 0.001,
         "fill_ratio": 0.999}
        for one, rows, planned in (("web", 479, 0.7), ("books", 205, 0.3))
    ]  # fmt: skip
    phase = {
        "phase": "gopher_quality", "labels": ["language", "gopher_quality"], "pass": None,
        "state": "done", "units": 4, "units_done": 4, "tasks": 2, "cpu_seconds": 4.0,
        "task_wall_seconds": 4.4, "elapsed_seconds": 2.3, "text_bytes": 9_000_000,
        "bytes_per_cpu_second": 2.25e6, "peak_rss_bytes": 4.1e8, "written": [],
    }  # fmt: skip
    return {
        "mixture": {"state": "planned", "notes": [], "problem": "", "rows": mixed,
                    "sources": mixed},
        "packing": [{"source": "web", "band": None, "documents": 2109, "copies": 2109,
                     "num_cut": 30, "num_cut_fitting": 2, "rows": 500, "tokens": 1_000_000,
                     "padding": 800,
                     "fill_ratio": 0.9992, "cut_ratio": 0.0136}],
        "resources": {
            "cpu_seconds": {"read": 1.1, "write": 0.8, "total": 12.5}, "phases": [phase],
            "stages": [{"stage": "gopher_quality", "cpu_seconds": 1.5, "text_bytes": 8_990_000,
                        "bytes_per_cpu_second": 5.9e6, "documents": 4990}],
            "disk": [{"role": "documents", "files": 4, "rows": 3009, "size_bytes": 2_500_000}]},
        "provenance": {
            "phases": [{"phase": "gopher_quality", "fingerprint": "0123.4567", "content": "0011",
                        "inputs": [], "is_current": True, "accepted_code_change": False}],
            "versions": {"here": {"corpuskit": "0.1.0"}, "recorded": None}, "plan_hash": None,
            "tokenizer": None, "code": {"gopher_quality": "aa11"}},
        "plan": {
            "settings": {"name": "example", "seed": 0},
            "sources": [{"label": "web", "format": "jsonl", "params": {}, "paths": ["web/*.jsonl"],
                         "num_files": 2, "size_bytes": 3_000_000,
                         "files": [{"name": "a.jsonl", "size_bytes": 1_500_000}]}],
            "stages": [{"label": "gopher_quality", "name": "gopher_quality",
                        "params": {"min_words": 50}, "changed": {}, "materialize": False}],
            "edits": 0},
        "training": [],
    }  # fmt: skip


SAFE = {"format", "state", "kind", "action", "fails", "text_bytes_how", "tokens_how", "how",
        "recorded", "points"}  # fmt: skip
NAMES = {"web", "books", "gopher_quality"}


def hostile(value: Any, added: str) -> Any:
    """Return facts in which text from anywhere, names of sources included, has something added."""
    if isinstance(value, dict):
        return {
            key + added if key in NAMES else key: one if key in SAFE else hostile(one, added)
            for key, one in value.items()
        }
    if isinstance(value, list):
        if len(value) == 2 and value[0] in ("", "cut", "replace"):
            return [value[0], hostile(value[1], added)]
        return [hostile(one, added) for one in value]
    return value + added if isinstance(value, str) else value
