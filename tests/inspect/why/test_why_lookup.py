"""Documents are found by id, key, place, URL and text; few files are opened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from corpuskit.inspect.why import keyed
from corpuskit.inspect.why.history import history
from corpuskit.inspect.why.lookup import Documents, find
from corpuskit.storage import LocalStore
from tests.engine.conftest import ROOT
from tests.inspect.why.lab import HOSTILE, NOTES, PASSAGE, documents


def keys(whys, *arguments):
    return whys.why(*arguments)["keys"]


def test_a_document_is_found_by_id_key_url_and_text(whys):
    (key,) = keys(whys, "mail")
    (one,) = [one for one in documents() if one["id"] == "mail"]
    assert keys(whys, str(key)) == [key]
    assert keys(whys, "--key", str(key)) == [key]
    assert keys(whys, "--url", one["url"]) == keys(whys, one["url"]) == [key]
    assert keys(whys, "--text", one["text"]) == [key]
    assert keys(whys, "--text", f"  {one['text']}\r\n") == [key]
    assert keys(whys, "--containing", "Write to jo@") == [key]


def test_a_text_comes_from_a_file_too(whys, tmp_path):
    text = next(one["text"] for one in documents() if one["id"] == "short")
    (tmp_path / "t.txt").write_text(text)
    assert keys(whys, "--text-file", str(tmp_path / "t.txt")) == keys(whys, "short")


def test_a_text_that_only_the_input_has_is_found_there(whys):
    found = whys.why("--containing", "short to keep")
    assert found["keys"] == keys(whys, "short")
    assert "in the input files" in found["found"]


def test_a_search_says_so_on_standard_error(whys):
    done = whys.cli("why", str(whys.out), "--containing", PASSAGE, "--json")
    assert "looking through" in done.stderr
    assert len(json.loads(done.stdout)["keys"]) == 2
    assert whys.cli("why", str(whys.out), "mail").stderr == ""


def test_a_derived_id_is_parsed_and_must_be_a_document(whys):
    row = next(row for row in whys.rows("documents") if row["source"] == "notes")
    assert keys(whys, row["id"]) == [row["key"]]
    place = row["id"].rpartition("#")[0]
    said = whys.why(f"{place}#1", code=2)
    assert "no document with the id" in said
    assert repr(f"{place}#0") in said  # the one before it


def test_an_id_that_two_documents_have_finds_both(whys):
    found = whys.why("twice")
    assert len(found["documents"]) == 2
    assert {one["id"] for one in found["documents"]} == {"twice"}
    assert found["keys"] == sorted(found["keys"])
    shown = whys.cli("why", str(whys.out), "twice", "-n", "1").stdout
    assert "2 documents: by id." in shown
    assert f"Others, by key: {found['keys'][1]}" in shown


def test_programs_get_the_history_of_the_first_document(whys):
    run = whys.histories().run
    assert history(run, "twice")["key"] == keys(whys, "twice")[0]
    assert history(run, str(keys(whys, "mail")[0]))["id"] == "mail"


def test_a_number_is_an_id_first_and_a_key_if_asked(whys):
    assert whys.told("5")["id"] == "5"
    first = min(one.first for one in whys.histories().seal(0).by_role("documents"))
    assert whys.told("--key", str(first))["key"] == first


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["no-such-document"], "Ids here look like"),
        (["quotin"], "Did you mean 'quoting'?"),
        (["web/web0.json#12"], "Did you mean a document of 'web/web0.jsonl'?"),
        (["--key", "7x"], "is no key"),
        (["--key", str((1 << 63) - 1)], "no document with the key"),
        (["--url", "https://site.example/none"], "URLs here look like 'https://site.example/"),
        (["--text", " "], "is empty"),
        (["--containing", "nobody wrote this"], "in the input files"),
        ([], "name one thing"),
        (["a", "--url", "b"], "got 2"),
        (["\udcff"], "not UTF-8"),
        (["mail", "--training", "nowhere"], "not the output of a training"),
        (["mail", "--training", "x", "-b", "4"], "Leave --global-batch-rows out"),
    ],
)
def test_what_is_not_there_is_said_with_what_to_do(whys, asked, said):
    assert said in whys.why(*asked, code=2)


def test_hostile_ids_are_found_and_never_reach_the_terminal_raw(whys):
    done = whys.cli("why", str(whys.out), HOSTILE, "--measure")
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
    histories = whys.histories()
    cells = len(histories.seal(0).by_role("documents"))
    assert cells > 3
    hits = find(histories.documents, "id", "mail")
    histories.of(hits.keys[0])
    ids = [name for name in opened if name.startswith("ids/")]
    parts = [name for name in opened if name.endswith(".parquet")]
    assert len(ids) == len(histories.seal(0).by_role("ids"))
    ledger = [name for name in parts if name.startswith("ledger/")]
    assert len(set(ledger)) <= len([p for p, s in histories.finished if s.by_role("ledger")])
    units = {name.split("part-")[1][:11] for name in parts if not name.startswith("tokens/")}
    assert len(units) == 1  # one cell, in every phase


def test_a_key_reads_only_the_row_groups_that_can_hold_it(tmp_path):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"key": np.arange(0, 4000, 2), "text": [f"t{i}" for i in range(2000)]})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=100)
    (row,) = keyed.rows_of(tmp_path / "p.parquet", 2468)
    assert row == {"row": 1234, "key": 2468, "text": "t1234"}
    assert keyed.rows_of(tmp_path / "p.parquet", 2469) == []
    assert keyed.keys_around(tmp_path / "p.parquet", 2469) == [2468, 2470]
    assert keyed.keys_around(tmp_path / "p.parquet", 9999) == [3998]


def test_runs_of_before_ids_were_looked_up_are_searched_and_say_so(whys, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(whys.out, old)
    for seal in old.glob("manifests/*/seal.json"):
        forget(seal)
    for asked in (["short"], ["--url", "https://site.example/1"]):
        done = whys.cli("why", str(old), *asked, "--json")
        found = json.loads(done.stdout)
        assert found["keys"] == keys(whys, *asked)
        assert "of before they were looked up" in found["found"]
        assert "looking through" in done.stderr
    packed = json.loads(whys.cli("why", str(old), "mail", "--json").stdout)
    assert packed["found"] == "by id"  # the loader's lookups have it
    assert "no document with the id" in whys.cli("why", str(old), "none", code=2).stderr


def forget(path):
    """Write a seal as it was before there were ids and profiles."""
    from corpuskit.formats.manifest import Parts, Seal

    seal = Seal.from_json(path.read_bytes(), str(path))
    kept = [part for part in seal.parts if part.role not in ("ids", "profile")]
    fields = {**seal.__dict__, "parts": Parts.of(kept)}
    fields.pop("_content", None)
    path.write_bytes(Seal(**fields).to_json())


def test_documents_without_a_seal_are_found_by_place_only(whys):
    run = whys.histories().run
    waiting = Documents(run, [])
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


def test_without_the_files_of_ids_the_run_is_scanned(whys, tmp_path):
    shutil.copytree(whys.out, tmp_path / "out")
    shutil.rmtree(tmp_path / "out/ids")
    done = whys.cli("why", str(tmp_path / "out"), "mail", "--json")
    assert json.loads(done.stdout)["keys"] == keys(whys, "mail")
    assert "looking through" in done.stderr
