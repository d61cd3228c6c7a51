"""Documents are found by id, key, place, URL and text; few files are opened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from corpuskit.inspect import archive
from corpuskit.inspect.lookup import RunDocuments, find
from corpuskit.inspect.why import history_of
from corpuskit.storage import LocalStore
from tests.engine.conftest import ROOT
from tests.inspect.why.lab import HOSTILE, NOTES, PASSAGE, documents


def keys(whys, *arguments):
    return whys.why(*arguments)["keys"]


def test_a_document_is_found_by_id_key_and_url(whys):
    (key,) = keys(whys, "mail")
    (one,) = [one for one in documents() if one["id"] == "mail"]
    assert keys(whys, str(key)) == [key]
    assert keys(whys, "--key", str(key)) == [key]
    assert keys(whys, "--url", one["url"]) == keys(whys, one["url"]) == [key]


def test_inspect_finds_documents_by_a_piece_of_their_text(whys):
    def containing(piece, *more, code=0):
        done = whys.cli("inspect", str(whys.out), "--containing", piece, *more, "--json", code=code)
        return done.stderr if code else json.loads(done.stdout)["rows"]

    (row,) = containing("Write to jo@")  # replaced later, so an earlier phase has it
    assert row["key"] == keys(whys, "mail")[0]
    ((start, end),) = row["spans"]
    assert row["text"].encode()[start:end] == b"Write to jo@"
    assert {row["id"] for row in containing(PASSAGE)} == {"quoted", "quoting"}
    assert len(containing("the", "-n", "3")) == 3
    assert {row["source"] for row in containing("the", "--source", "notes")} == {"notes"}
    assert "no stored text" in containing("nobody wrote this", code=2)
    assert "is empty" in containing(" ", code=2)
    assert "not UTF-8" in containing("\udcff", code=2)
    assert "only --source and -n" in containing("the", "--kept", code=2)
    shown = whys.cli("inspect", str(whys.out), "--containing", PASSAGE).stdout
    assert "quoted (web)" in shown
    assert "[-This passage" in shown


def test_a_derived_id_is_parsed_and_must_be_a_document(whys):
    row = next(row for row in whys.rows("documents") if row["source"] == "notes")
    assert keys(whys, row["id"]) == [row["key"]]
    place = row["id"].rpartition("#")[0]
    said = whys.why(f"{place}#1", code=2)
    assert "no document with the id" in said


def test_an_id_that_two_documents_have_finds_both(whys):
    found = whys.why("twice")
    assert len(found["documents"]) == 2
    assert {one["id"] for one in found["documents"]} == {"twice"}
    assert found["keys"] == sorted(found["keys"])
    shown = whys.cli("why", str(whys.out), "twice", "-n", "1").stdout
    assert "2 documents: by id." in shown
    assert f"Others, by key: {found['keys'][1]}" in shown


def test_a_number_is_an_id_first_and_a_key_if_asked(whys):
    assert whys.told("5")["id"] == "5"
    first = min(one.first for one in whys.documents().seal.by_role("documents"))
    assert whys.told("--key", str(first))["key"] == first


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["no-such-document"], "Ids here look like"),
        (["quotin"], "Did you mean 'quoting'?"),
        (["web/web0.json#12"], "Did you mean a document of 'web/web0.jsonl'?"),
        (["--key", "7x"], "is not a key"),
        (["--key", str((1 << 63) - 1)], "no document with the key"),
        (["--url", "https://site.example/none"], "URLs here look like 'https://site.example/"),
        ([], "name one document"),
        (["a", "--url", "b"], "got 2"),
        (["\udcff"], "not UTF-8"),
        (["mail", "--training", "nowhere"], "not the output of a training"),
        (["mail", "--training", "x", "-b", "4"], "Leave --global-batch-rows out"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_do(whys, asked, said):
    assert said in whys.why(*asked, code=2)


def test_hostile_ids_are_found_and_never_reach_the_terminal_raw(whys):
    done = whys.cli("why", str(whys.out), HOSTILE, "--recompute")
    assert "jsonl" in done.stdout
    assert not set("\x1b\x07\u202e\u2066\x00") & set(done.stdout + done.stderr)
    found = json.loads(whys.cli("why", str(whys.out), HOSTILE, "--json").stdout)
    assert found["documents"][0]["id"] == HOSTILE
    place = next(row["id"] for row in whys.rows("documents") if NOTES in row["id"])
    asked = [
        whys.cli("why", str(whys.out), place),
        whys.cli("why", str(whys.out), "\x1b[31m", code=2),
        whys.cli("why", str(whys.out), f"{place}1", code=2),
        whys.cli("why", str(whys.out), "--url", f"https://site.example/{HOSTILE}", code=2),
    ]
    for done in asked:
        assert not set("\x1b\x07\u202e\u2066\x00") & set(done.stdout + done.stderr)


def test_few_files_are_opened_and_none_is_scanned(whys, monkeypatch):
    opened: list[str] = []
    real = LocalStore.open

    def counted(self, name):
        opened.append(name)
        return real(self, name)

    monkeypatch.setattr(LocalStore, "open", counted)
    known = whys.documents()
    cells = len(known.seal.by_role("documents"))
    assert cells > 3
    hits = find(known, "id", "mail")
    history_of(known, hits.keys[0])
    ids = [name for name in opened if name.startswith("ids/")]
    parts = [name for name in opened if name.endswith(".parquet")]
    assert len(ids) == len(known.seal.by_role("ids"))
    ledger = [name for name in parts if name.startswith("ledger/")]
    assert len(set(ledger)) <= len([p for p, s in known.finished if s.by_role("ledger")])
    units = {name.split("part-")[1][:11] for name in parts if not name.startswith("tokens/")}
    assert len(units) == 1  # one cell, in every phase


def test_a_key_reads_only_the_row_groups_that_can_hold_it(tmp_path):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"key": np.arange(0, 4000, 2), "text": [f"t{i}" for i in range(2000)]})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=100)
    (row,) = archive.rows_of(tmp_path / "p.parquet", 2468)
    assert row == {"row": 1234, "key": 2468, "text": "t1234"}
    assert archive.rows_of(tmp_path / "p.parquet", 2469) == []


def test_documents_without_a_seal_are_found_by_place_only(whys):
    run = whys.documents().run
    waiting = RunDocuments(run, [])
    known = next(row for row in whys.rows("documents") if row["source"] == "notes")
    assert find(waiting, "id", known["id"]).keys == (known["key"],)
    from corpuskit.errors import UsageError

    with pytest.raises(UsageError, match="is not finished"):
        find(waiting, "id", "mail")
    with pytest.raises(UsageError, match="not finished"):
        find(waiting, "url", "https://site.example/1")


@pytest.mark.slow
def test_a_history_loads_no_compiler_and_no_language_tools(whys):
    code = (
        "import sys; from corpuskit.cli.main import group; "
        f"group.main(['why', {str(whys.out)!r}, 'mail'], standalone_mode=False); "
        "print(sorted({'numba', 'torch', 'spacy', 'datatrove', 'rich', 'tokenizers', 'pandas'}"
        " & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_the_files_of_ids_a_document_is_named_by_its_key(whys, tmp_path):
    shutil.copytree(whys.out, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/ids")
    for asked in (["mail"], ["--url", "https://site.example/1"]):
        done = whys.cli("why", str(tmp_path / "out"), *asked, code=2)
        assert "is gone, and with it the index of ids" in done.stderr
    [key] = keys(whys, "mail")
    done = whys.cli("why", str(tmp_path / "out"), "--key", str(key), "--json")
    assert json.loads(done.stdout)["documents"][0]["id"] == "mail"
