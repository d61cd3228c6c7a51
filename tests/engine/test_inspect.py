"""Samples of what a stage dropped or replaced, as people and programs see them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from corpuskit.cli._render import PlainConsole
from corpuskit.cli.inspect import sides
from corpuskit.inspect.samples import excerpts, jaccard
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup
from tests.engine.conftest import ROOT, Lab, corpus
from tests.patience import HANG_SECONDS


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
        assert (
            row["jaccard"]
            == jaccard(row["text"], row["survivor_text"], MinhashDedup(ngram=3))
            > 0.3
        )


def test_similarity_is_that_of_sets_of_word_ngrams():
    assert jaccard("a b c d", "A, b; c e", MinhashDedup(ngram=3)) == 1 / 3
    assert jaccard("a b", "A  b!", MinhashDedup()) == 1
    assert jaccard("", "", MinhashDedup()) == 0
    assert jaccard("abc", "abd", MinhashDedup(shingles="characters", ngram=2)) == 1 / 3


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


def test_texts_that_the_ledger_lacks_come_from_the_input_files(finished, texts):
    found = inspected(finished, "--stage", "gopher_quality", "-n", "1000")
    assert {row["text_from"] for row in found["rows"]} >= {"input"}
    for row in found["rows"]:
        if row["text_from"] == "input":
            assert row["text"] == texts[row["id"]]


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory, tokenizer):
    """A run whose filter sees what rewriters left, and measures it; and one that kept all texts."""
    lab = Lab(tmp_path_factory.mktemp("rewritten"), tokenizer)
    documents = corpus(120, seed=7)
    lab.write("web.jsonl", [*documents[:90], {"id": "none"}])
    lab.write("books.jsonl", documents[90:])
    lab.pipeline["stages"] = [
        "pii",
        {"gopher_quality": {"words": "whitespace", "min_words": 40, "measures": True}},
        {"exact_dedup": {}},
    ]
    for name, keeps in (("whole", True), ("out", False)):
        lab.pipeline |= {"ledger": {"keep_text": keeps}, "output": str(lab.folder / name)}
        lab.run()
    return lab


def dropped(folder, stage):
    return {
        row["doc_key"]: row
        for path in sorted((folder / "ledger").glob("*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
        if row["stage"] == stage and row["action"] == "drop"
    }


def test_texts_from_the_input_are_as_the_stage_saw_them(rewritten):
    rows = dropped(rewritten.folder / "whole", "gopher_quality")
    found = inspected(rewritten, "--stage", "gopher_quality", "-n", "1000")["rows"]
    assert {row["key"]: row["text"] for row in found} == {k: r["text"] for k, r in rows.items()}
    assert any("email@example.com" in row["text"] for row in found)


def test_what_a_source_refused_is_shown_from_its_file(rewritten):
    (row,) = inspected(rewritten, "--stage", "jsonl", "--rule", "bad_text")["rows"]
    assert json.loads(row["text"]) == {"id": "none"}


def test_source_action_and_band_choose_rows(rewritten):
    rows = dropped(rewritten.folder / "out", "gopher_quality").values()
    short = [r for r in rows if r["rule"] == "gopher_short_doc"]
    rule = ("--rule", "gopher_short_doc")
    calls = {
        ("--source", "books"): [r for r in rows if r["source"] == "books"],
        (*rule, "--between", "5:9"): [r for r in short if 5 <= r["value"] <= 9],
        (*rule, "--between", ":6"): [r for r in short if r["value"] <= 6],
        (*rule, "--near-threshold", "30%"): [
            r for r in short if r["value"] >= 28
        ],
    }  # fmt: skip
    for options, expected in calls.items():
        found = inspected(rewritten, "--stage", "gopher_quality", "-n", "1000", *options)
        assert expected
        assert [row["key"] for row in found["rows"]] == sorted(r["doc_key"] for r in expected)
        assert sum(found["rules"].values()) == len(expected)
    found = inspected(rewritten, "--action", "replace", "-n", "1000")
    assert found["stage"] == "pii"
    assert {row["action"] for row in found["rows"]} == {"replace"}


def kept(folder):
    return {
        row["key"]: row
        for path in sorted((folder / "documents").glob("*.parquet"))
        for row in pq.read_table(path, partitioning=None).to_pylist()
    }


def test_kept_documents_are_shown_as_they_were_kept(rewritten):
    documents = kept(rewritten.folder / "out")
    found = inspected(rewritten, "--kept", "-n", "1000")
    assert {row["key"]: row["text"] for row in found["rows"]} == {
        key: row["text"] for key, row in documents.items()
    }
    books = inspected(rewritten, "--action", "kept", "--source", "books", "-n", "1000")["rows"]
    assert {row["key"] for row in books} == {
        k for k, r in documents.items() if r["source"] == "books"
    }


def test_kept_documents_are_chosen_by_what_was_measured_in_them(rewritten):
    measured = {
        row["key"]: row["gopher_short_doc"]
        for path in (rewritten.folder / "out" / "measures" / "gopher_quality").glob("*.parquet")
        for row in pq.read_table(path, partitioning=None).to_pylist()
    }
    near = {key for key in kept(rewritten.folder / "out") if measured[key] <= 60}
    found = inspected(
        rewritten, "--kept", "--stage", "gopher_quality", "--rule", "gopher_short_doc",
        "--near-threshold", "50", "-n", "1000",
    )  # fmt: skip
    assert near
    assert {row["key"] for row in found["rows"]} == near
    assert all(row["value"] == measured[row["key"]] and row["threshold"] == 40
               for row in found["rows"])  # fmt: skip


def test_kept_documents_of_a_run_without_documents_are_those_that_were_packed(lab):
    lab.pipeline["documents"] = False
    lab.run()
    account = lab.facts()["accounts"]
    found = inspected(lab, "--kept", "-n", "1000")
    assert found["rules"] == {"kept": sum(one["num_kept"] for one in account)}
    gone = [dropped(lab.out, name) for name in ("gopher_quality", "exact_dedup", "minhash_dedup")]
    assert not {row["key"] for row in found["rows"]} & {key for rows in gone for key in rows}


def test_a_changed_input_file_is_not_taken_for_the_one_that_was_read(rewritten):
    web = rewritten.inputs / "web.jsonl"
    before = web.stat()
    os.utime(web, (1, 1))
    try:
        found = inspected(rewritten, "--stage", "gopher_quality", "-n", "1000")["rows"]
        shown = rewritten.cli("inspect", str(rewritten.out), "--stage", "gopher_quality").stdout
    finally:
        os.utime(web, ns=(before.st_atime_ns, before.st_mtime_ns))
    without = [row for row in found if row["text"] is None]
    assert without
    assert {row["source"] for row in without} == {"web"}
    assert all("changed since the run was planned" in row["problem"] for row in without)
    assert "changed since the run was planned" in shown.replace("\n", " ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--between", "5"), "must look like LOW:HIGH"),
        (("--between", "9:5"), "must look like LOW:HIGH"),
        (("--near-threshold", "ten"), "must be a share in percent"),
        (("--source", "book"), "Did you mean 'books'?"),
        (("--action", "cut"), "no ledger rows with action 'cut'"),
        (("--kept", "--source", "webs"), "Did you mean 'web'?"),
        (("--kept", "--rule", "gopher_short_doc"), "needs --stage"),
        (("--kept", "--stage", "gopher_quality", "--rule", "gopher_shrt_doc"),
         "Did you mean 'gopher_short_doc'?"),
        (("--kept", "--stage", "pii", "--between", "0:1"), "has no value of it"),
        (("--kept", "--action", "cut"), "choose one"),
        (("--stage", "gopher_quality", "--rule", "gopher_short_doc", "--between", "1000:"),
         "values go from"),
    ],
)  # fmt: skip
def test_wrong_choices_are_told_what_to_do(rewritten, options, said):
    assert said in rewritten.cli("inspect", str(rewritten.out), *options, code=2).stderr


def test_differences_near_each_other_share_a_row_and_all_are_shown():
    words = [f"w{number}" for number in range(200)]
    other = list(words)
    for place in (20, 24, 100):
        other[place] = f"x{place}"
    out = PlainConsole(width=80, file=io.StringIO())
    for piece in sides(" ".join(words), " ".join(other), ("removed", "kept"), 8):
        out.print(piece)
    shown = " ".join(out.file.getvalue().split())
    for place in (20, 24, 100):
        assert f"[-w{place}-]" in shown
        assert f"[+x{place}+]" in shown
    assert shown.count("w21") == 2


def test_a_terminal_gets_the_pager_that_is_asked_for(finished, tmp_path):
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat > {tmp_path / 'paged'}\n")
    pager.chmod(0o755)
    call = finished.command("inspect", str(finished.out), "--stage", "pii", "-n", "1")
    program = (
        "import os, pty, sys\n"
        f"os.environ.update(PAGER={str(pager)!r}, TERM='xterm', COLUMNS='80')\n"
        f"sys.exit(os.waitstatus_to_exitcode(pty.spawn({call!r})))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, check=False, timeout=HANG_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    paged = (tmp_path / "paged").read_text()
    assert "@mail.example.org" in paged
    assert "@mail.example.org" not in done.stdout


@pytest.mark.parametrize("name", ["whole", "out"])
def test_spans_fit_the_texts_of_the_phase_that_reads(rewritten, name):
    done = rewritten.cli("inspect", str(rewritten.folder / name), "--stage", "pii", "-n", "1000",
                         "--json")  # fmt: skip
    rows = json.loads(done.stdout)["rows"]
    assert rows
    for row in rows:
        for start, end in row["spans"]:
            found = row["text"].encode()[start:end]
            assert found.startswith(b"user")
            assert found.endswith(b"@mail.example.org")
