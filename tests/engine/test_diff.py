"""Two runs compared: every number against a recount of ledger and documents in plain Python."""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict

import pyarrow.parquet as pq
import pytest

from corpuskit.inspect import diff
from tests.engine.conftest import Lab, article, corpus, sentence

VARIANTS = ("base", "threshold", "added", "removed", "file", "seed")


class Variants:
    """A corpus, and runs of it with one thing changed in each."""

    def __init__(self, folder, tokenizer):
        self.lab = Lab(folder, tokenizer)
        documents = corpus(220, seed=3)
        self.lab.write("web0.jsonl", documents[:70])
        self.lab.write("web1.jsonl", [*documents[70:140], {"id": "broken"}])
        self.lab.write("books.jsonl", documents[140:200])
        copies = [{"id": f"copy{at}", "text": documents[at]["text"]} for at in range(0, 200, 4)]
        self.more = documents[200:] + copies
        self.lab.pipeline |= {"cell_bytes": 40_000, "stages": stages()}

    def run(self, name, *arguments):
        self.lab.pipeline["output"] = str(self.lab.folder / name)
        self.lab.run(*arguments)

    def place(self, name):
        return str(self.lab.folder / name)

    def diff(self, one, other, *arguments):
        done = self.lab.cli("diff", self.place(one), self.place(other), *arguments, "--json")
        return json.loads(done.stdout)


def stages(*, min_words=30, verify=0.8, holdout=0.05):
    return [
        {"holdout": {"ratio": holdout}},
        {"gopher_quality": {"words": "whitespace", "min_words": min_words}},
        "exact_dedup",
        {"minhash_dedup": {"ngram": 3, "verify": verify}},
        "pii",
    ]


@pytest.fixture(scope="module")
def variants(tmp_path_factory, tokenizer):
    made = Variants(tmp_path_factory.mktemp("variants"), tokenizer)
    made.run("base")
    made.lab.pipeline["stages"] = stages(min_words=45)
    made.run("threshold")
    made.lab.pipeline["stages"] = [*stages(), "unicode"]
    made.lab.pipeline["stages"].insert(
        2, {"gopher_quality": {"words": "whitespace", "min_words": 60}}
    )
    made.run("added")
    every = stages(holdout=0.2)
    made.lab.pipeline["stages"] = [one for one in every if one not in ("exact_dedup", "pii")]
    made.run("removed")
    made.lab.pipeline["stages"] = stages()
    made.lab.stage("minhash_dedup").update({"seed": 9, "bands": 2, "verify": None, "keep": "first"})
    made.run("seed")
    made.lab.pipeline["stages"] = stages()
    made.lab.write("web-first.jsonl", made.more)  # sorted before the others: ordinals change
    made.run("file")
    return made


def fates(folder):
    """Return id -> (source, fate, text or survivor), from ledger and documents alone."""
    found = {}
    for path in (folder / "ledger").glob("*.parquet"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            if row["action"] == "drop":
                assert row["doc_id"] not in found
                fate = (row["stage"], row["rule"])
                found[row["doc_id"]] = (row["source"], fate, row["survivor_id"])
    for path in (folder / "documents").glob("*.parquet"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            assert row["id"] not in found
            found[row["id"]] = (row["source"], "kept", row["text"])
    return found


def recounted(one, other):
    """Return (kind, fate in A, fate in B) -> source -> documents."""
    found = defaultdict(Counter)
    for identity in one.keys() | other.keys():
        mine, theirs = one.get(identity), other.get(identity)
        source = (mine or theirs)[0]
        if mine is None or theirs is None:
            kind = "only_a" if theirs is None else "only_b"
        elif mine[1] == theirs[1]:
            if mine[2] == theirs[2]:
                continue
            kind = "text" if mine[1] == "kept" else "survivor"
        elif ("holdout" in mine[1]) != ("holdout" in theirs[1]):
            kind = "held_out"
        elif mine[1] == "kept":
            kind = "dropped"
        else:
            kind = "kept" if theirs[1] == "kept" else "rule"
        left, right = ("absent" if one is None else one[1] for one in (mine, theirs))
        found[kind, left, right][source] += 1
    return found


def counted(found):
    """Return the same of what `diff` says."""

    def fate(side):
        return (side["stage"], side["rule"]) if side["stage"] else side["outcome"]

    return {
        (one["kind"], fate(one["a"]), fate(one["b"])): one["sources"] for one in found["changes"]
    }


@pytest.mark.parametrize(
    ("name", "is_swapped"), [*((name, False) for name in VARIANTS[1:]), (VARIANTS[-1], True)]
)
def test_every_count_is_that_of_a_recount_in_plain_python(variants, name, is_swapped):
    names = (name, "base") if is_swapped else ("base", name)
    left, right = (fates(variants.lab.folder / one) for one in names)
    found = variants.diff(*names)
    assert counted(found) == recounted(left, right)
    assert found["changes"]
    total = {
        "documents_a": len(left),
        "documents_b": len(right),
        "in_both": len(left.keys() & right),
    }
    for key, expected in total.items():
        assert sum(source[key] for source in found["totals"].values()) == expected
    kept = [{i for i, one in side.items() if one[1] == "kept"} for side in (left, right)]
    assert sum(one["kept_both"] for one in found["totals"].values()) == len(kept[0] & kept[1])
    for row in found["sources"]:
        mine = [sum(1 for i in side if run[i][0] == row["source"]) for side, run in
                zip(kept, (left, right), strict=True)]  # fmt: skip
        assert [row["kept_a"], row["kept_b"]] == mine


def test_every_kind_of_change_is_in_the_recounts(variants):
    base = fates(variants.lab.folder / "base")
    kinds = {
        kind
        for name in VARIANTS[1:]
        for kind, *_ in recounted(base, fates(variants.lab.folder / name))
    }
    assert kinds == {"dropped", "kept", "rule", "held_out", "survivor", "text", "only_b"}


def test_small_windows_count_the_same(variants, monkeypatch):
    whole = variants.diff("base", "file")
    monkeypatch.setattr(diff, "WINDOW_ROWS", 7)
    assert variants.diff("base", "file") == whole


def test_a_change_names_what_the_plans_say_about_it(variants):
    found = variants.diff("base", "threshold")
    (change,) = (one for one in found["changes"] if one["kind"] == "dropped")
    assert change["because"] == "gopher_quality: min_words 30 -> 45"


def test_the_plan_differences_are_named(variants):
    found = variants.diff("base", "added")
    assert {(one["kind"], one["place"]) for one in found["plan"]} == {
        ("stage", "gopher_quality_2"), ("stage", "unicode"),
    }  # fmt: skip
    found = variants.diff("base", "file")
    (one,) = found["plan"]
    assert one["after"]["added"] == {"files": 1, "names": ["web-first.jsonl"]}
    found = variants.diff("base", "seed")
    assert {one["place"]: (one["before"], one["after"]) for one in found["plan"]} == {
        "minhash_dedup.seed": (1, 9), "minhash_dedup.bands": (14, 2),
        "minhash_dedup.verify": (0.8, None), "minhash_dedup.keep": ("longest", "first"),
    }  # fmt: skip


def test_funnels_stand_beside_each_other_as_status_has_them(variants):
    found = variants.diff("base", "added")
    assert [row["stage"] for row in found["funnel"]] == [
        "web", "books", "holdout", "gopher_quality", "gopher_quality_2", "exact_dedup",
        "minhash_dedup", "pii", "unicode",
    ]  # fmt: skip
    for side, name in (("a", "base"), ("b", "added")):
        done = variants.lab.cli("status", variants.place(name), "--json")
        expected = {row["stage"]: row for row in json.loads(done.stdout)["funnel"]}
        for row in found["funnel"]:
            if row[side] is None:
                assert row["stage"] not in expected
                continue
            mine = expected[row["stage"]]
            assert (row[side]["num_in"], row[side]["num_out"]) == (mine["num_in"], mine["num_out"])
            sources = row[side]["sources"].values()
            assert sum(out for _, out in sources) == mine["num_out"]


def test_renamed_and_touched_files_are_matched_by_their_ids(variants, tmp_path, tokenizer):
    lab = Lab(tmp_path, tokenizer)
    lab.pipeline |= {"cell_bytes": 40_000, "stages": stages(), "output": variants.place("renamed")}
    lines = [
        line
        for name in ("web1.jsonl", "web0.jsonl")
        for line in (variants.lab.inputs / name).read_text("utf-8").splitlines()
        if '"text"' in line
    ]
    (lab.inputs / "web-all.jsonl").write_text("\n".join(lines), "utf-8")
    books = lab.inputs / "books.jsonl"
    books.write_bytes((variants.lab.inputs / "books.jsonl").read_bytes())
    os.utime(books, (1, 1))
    lab.run()
    left, right = (fates(variants.lab.folder / name) for name in ("base", "renamed"))
    found = variants.diff("base", "renamed")
    assert counted(found) == recounted(left, right)
    assert len([note for note in found["notes"] if "matched by their ids" in note]) == 2


def test_of_an_unfinished_run_what_is_finished_counts(variants):
    variants.lab.pipeline["stages"] = stages(min_words=45)
    web = variants.lab.inputs / "web-first.jsonl"
    held = web.rename(web.with_suffix(".away"))
    try:
        variants.run("half", "--until", "gopher_quality")
    finally:
        held.rename(web)
    found = variants.diff("base", "half")
    left, right = (fates(variants.lab.folder / name) for name in ("base", "threshold"))
    late = ("exact_dedup", "minhash_dedup")
    for side in (left, right):
        for identity, (source, fate, _) in side.items():
            is_kept = fate == "kept" or fate[0] in late
            side[identity] = (source, "kept" if is_kept else fate, None)
    assert counted(found) == recounted(left, right)
    assert any(
        "up to gopher_quality only (--until), without: exact_dedup, minhash_dedup, pii" in note
        for note in found["notes"]
    )
    assert not found["texts_compared"]


def test_wrong_requests_are_told_what_to_do(variants, tmp_path, tokenizer):
    base = variants.place("base")

    def refused(*arguments):
        return variants.lab.cli("diff", *arguments, code=2).stderr

    assert "not a run directory" in refused(base, str(tmp_path))
    assert "is the same run twice" in refused(base, f"{base}/../base")
    lab = Lab(tmp_path, tokenizer)
    lab.write("web9.jsonl", [{"id": "other", "text": "Something else altogether."}])
    lab.pipeline["sources"].pop("books")
    lab.pipeline["stages"] = ["unicode"]
    lab.run()
    assert "have no documents in common" in refused(base, str(lab.out))


def test_the_same_plan_twice_differs_in_nothing(tmp_path, tokenizer):
    lab = Lab(tmp_path, tokenizer)
    lab.write("web0.jsonl", corpus(30, seed=4))
    lab.pipeline["sources"].pop("books")
    lab.pipeline["stages"] = [{"gopher_quality": {"words": "whitespace", "min_words": 30}}]
    lab.run()
    lab.pipeline["output"] = str(tmp_path / "again")
    lab.run()
    found = json.loads(lab.cli("diff", str(tmp_path / "out"), str(lab.out), "--json").stdout)
    assert (found["plan"], found["changes"], found["notes"]) == ([], [], [])
    assert found["texts_compared"]
    assert found["totals"]["web"]["in_both"] == 30
    shown = lab.cli("diff", str(tmp_path / "out"), str(lab.out)).stdout
    assert "The plans are the same." in shown
    assert "0 are not the same." in shown


def test_people_see_the_groups_and_the_words_that_differ(variants):
    shown = variants.lab.cli("diff", variants.place("base"), variants.place("removed")).stdout
    for part in ("exact_dedup: not in B", "pii: not in B", "Held out in one run only",
                 "Kept in both, with another text", "[exact_dedup: removed]"):  # fmt: skip
        assert part in shown


def test_nothing_raw_reaches_the_terminal(tmp_path, tokenizer):
    import random

    lab = Lab(tmp_path, tokenizer)
    rng = random.Random(5)
    evil = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
    rows = [
        {"id": f"{evil}{place}", "text": f"{article(rng)} {evil} {sentence(rng)}" if place % 2
         else f"{evil} few words"}
        for place in range(12)
    ]  # fmt: skip
    lab.write("web0.jsonl", rows)
    lab.pipeline["sources"].pop("books")
    places = []
    for number, least in enumerate((2, 20)):
        lab.pipeline["stages"] = [
            {"gopher_quality": {"words": "whitespace", "min_words": least, "min_stop_words": None}}
        ]
        places.append(str(lab.folder / f"evil{number}"))
        lab.pipeline["output"] = places[-1]
        lab.run()
    calls = (["diff", *places], ["diff", *places, "--json"], ["inspect", places[1]],
             ["inspect", places[1], "--json"], ["inspect", places[1], "--kept"])  # fmt: skip
    for call in calls:
        shown = lab.cli(*call).stdout
        assert "few words" in shown or "kept" in shown
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
