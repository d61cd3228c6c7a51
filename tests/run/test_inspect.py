"""Samples of what a stage dropped or replaced, as people and programs see them."""

from __future__ import annotations

import json

import pytest

from corpuskit.report.samples import excerpts, jaccard


def inspected(finished, *arguments):
    return json.loads(finished.cli("inspect", str(finished.out), *arguments, "--json").stdout)


@pytest.fixture(scope="module")
def texts(finished):
    lines = [
        line
        for path in sorted(finished.inputs.glob("*.jsonl"))
        for line in path.read_text("utf-8").splitlines()
    ]
    return {found["id"]: found["text"] for found in map(json.loads, lines)}


def test_near_duplicates_come_with_the_text_that_was_kept_and_their_similarity(finished, texts):
    found = inspected(finished, "--stage", "minhash_dedup", "-n", "100")
    assert found["rows"]
    assert sum(found["rules"].values()) == len(found["rows"])
    for row in found["rows"]:
        assert row["text"] == texts[row["id"]]
        assert row["survivor_text"] == texts[row["survivor_id"]]
        assert row["jaccard"] == jaccard(row["text"], row["survivor_text"], 3) > 0.3


def test_similarity_is_that_of_sets_of_word_ngrams():
    assert jaccard("a b c d", "A, b; c e", 3) == 1 / 3
    assert jaccard("a b", "A  b!", 5) == 1
    assert jaccard("", "", 5) == 0


def test_another_seed_shows_other_documents_and_the_same_seed_the_same(finished):
    first, again, other = (
        [row["id"] for row in inspected(finished, "-n", "3", "--stage", "pii", *more)["rows"]]
        for more in ([], [], ["--seed", "7"])
    )
    assert first == again != other


def test_spans_are_shown_with_what_stands_around_them(finished, texts):
    (row,) = inspected(finished, "--stage", "pii", "-n", "1")["rows"]
    ((before, inside, after),) = excerpts(row["text"], row["spans"], 20)
    assert "@mail.example.org" in inside
    assert before + inside + after in texts[row["id"]]
    shown = finished.cli("inspect", str(finished.out), "--stage", "pii", "-n", "1").stdout
    assert f"[-{inside}-]" in shown.replace("\n", "")


def test_people_see_both_texts_side_by_side(finished):
    shown = finished.cli(
        "inspect", str(finished.out), "--stage", "minhash_dedup", "-n", "40"
    ).stdout
    assert "removed," in shown
    assert "kept," in shown
    assert "[-changed-]" in shown or "[+changed+]" in shown


def test_unknown_stages_and_rules_are_refused_with_those_there_are(finished):
    done = finished.cli("inspect", str(finished.out), "--stage", "minhash", code=2)
    assert "Did you mean 'minhash_dedup'?" in done.stderr
    done = finished.cli("inspect", str(finished.out), "--stage", "pii", "--rule", "mail", code=2)
    assert "There are: email" in done.stderr
