"""sample_data/gather.py: real text of this machine, as sources that a pipeline can read."""

from __future__ import annotations

import gzip
import json
import sysconfig
from pathlib import Path

import pytest

import sample_data.gather as gathering
from corpuskit.engine.config import read_pipeline
from corpuskit.errors import UsageError
from corpuskit.stage import InputFile
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from sample_data.gather import (
    Found,
    Kind,
    find_code,
    find_docstrings,
    find_packages,
    gather,
    main,
    roff_text,
)

MAN = r""".\" A comment.
.TH PICK 1 "May 2024"
.de XX
hidden
..
.SH NAME
pick \- choose one of several \fIfiles\fP
.SH "SEE ALSO"
.BR sort (1),
.B uniq
.PP
A \(lqquoted\(rq word, a back\eslash
and the next line.
.TS
table
.TE
.IP \(bu 2
First item.\" remark
.IP 2.
Caf\['e] \[u00E9]t\('e \s-1SMALL\s0 and \m[blue]blue\m[].
"""


def test_a_manual_page_becomes_paragraphs():
    assert roff_text(MAN).split("\n\n") == [
        "NAME",
        "pick - choose one of several files",
        "SEE ALSO",
        "sort(1), uniq",
        "A \u201cquoted\u201d word, a back\\slash and the next line.",
        "\u2022 First item.",
        "2. Caf \u00e9t SMALL and blue.",
    ]


def test_an_mdoc_page_keeps_its_words():
    page = ".Dd May 1\n.Sh NAME\n.Nm pick\n.Nd choose\n.Sh OPTIONS\n.Bl -tag\n.It Fl a\nAll.\n.El\n"
    assert roff_text(page).split("\n\n") == ["NAME", "pick choose", "OPTIONS", "Fl a All."]


def test_an_alias_has_no_text():
    assert roff_text(".so man1/pick.1\n") == ""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with three manual pages, one of them an alias, and some documents."""
    man, doc = tmp_path / "man", tmp_path / "doc"
    pages = {
        "man1/pick.1.gz": MAN * 9,
        "de/man1/pick.1.gz": ".SH NAME\n" + "W\u00f6rter " * 90,
        "man1/alias.1.gz": ".so man1/pick.1\n",
    }
    for name, text in pages.items():
        (man / name).parent.mkdir(parents=True, exist_ok=True)
        (man / name).write_bytes(gzip.compress(text.encode()))
    (man / "man1" / "link.1.gz").symlink_to(man / "man1" / "pick.1.gz")
    documents = {
        "pick/copyright": b"May be copied. " * 30,
        "pick/README.gz": b"no gzip",
        "pick/latin.txt": b"\xff" * 500,
        "pick/tiny.txt": b"small",
        "pick/program.bin": b"x" * 900,
    }
    for name, content in documents.items():
        (doc / name).parent.mkdir(parents=True, exist_ok=True)
        (doc / name).write_bytes(content)
    monkeypatch.setattr(gathering, "MAN_FOLDERS", (str(man), str(tmp_path / "none")))
    monkeypatch.setattr(gathering, "DOC_FOLDERS", (str(doc),))
    return tmp_path


def test_pages_and_documents_are_found_and_the_rest_is_left_alone(machine):
    found = {one.id: one for one in gathering.find_system()}
    assert set(found) == {"man/man1/pick.1", "man/de/man1/pick.1", "doc/pick/copyright"}
    assert "W\u00f6rter" in found["man/de/man1/pick.1"].text
    assert found["doc/pick/copyright"].package == "pick"


def test_families_of_names_take_turns():
    names = [f"/m/git-{n}.1" for n in range(50)] + ["/m/ls.1", "/m/de/ls.1", "/m/cat.1"]
    first = {path.as_posix() for path in gathering._spread(map(Path, names))[:4]}
    assert {"/m/ls.1", "/m/de/ls.1", "/m/cat.1"} < first


def some(find, count):
    found = []
    for one in find():
        found.append(one)
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("find", [find_code, find_docstrings, find_packages])
def test_every_kind_finds_real_text_with_its_licence(find):
    found = some(find, 12)
    assert len({one.id for one in found}) == 12
    assert all(len(one.text) >= gathering.MIN_CHARS for one in found)
    assert any(one.license for one in found)


def test_code_is_the_standard_library_without_its_tests():
    library = Path(sysconfig.get_paths()["stdlib"])
    for one in some(find_code, 30):
        parts = Path(one.path).relative_to(library).parts
        assert not {"site-packages", "test", "tests"} & set(parts)
        assert one.license == "PSF-2.0"


def test_packages_that_are_folders_of_the_user_are_left_out():
    for package in gathering._packages():
        assert "dir_info" not in (package.read_text("direct_url.json") or "")


@pytest.fixture
def gathered(machine, monkeypatch):
    def numbered():
        for number in range(400):
            yield Found(f"n/{number}", f"text {number} " * 40, "/n", "n", "MIT")

    kinds = (gathering.KINDS[0], Kind("empty", "nothing", "parquet", lambda: iter(())),
             Kind("numbers", "made here", "jsonl.zst", numbered))  # fmt: skip
    monkeypatch.setattr(gathering, "KINDS", kinds)
    monkeypatch.setattr(gathering, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(gathering, "VOCAB_SIZE", 300)
    return gather(machine / "out", 100_000), machine / "out"


def test_each_kind_becomes_a_source_within_its_share(gathered):
    found, folder = gathered
    assert [one.name for one in found] == ["system", "numbers"]
    assert sum(one.text_bytes for one in found) <= 100_000
    assert found[1].text_bytes > 60_000
    for one, kind in zip(found, (Parquet, Jsonl), strict=True):
        source = kind(paths=("x",), id_column="id", columns={"license": "string"})
        texts = 0
        for path in sorted((folder / one.name).iterdir()):
            file = InputFile(0, one.name, str(path), path.name, path.stat().st_size, "")
            for piece in source.slices(file, 1 << 30):
                for batch in source.read(file, piece, 1 << 20):
                    assert not batch.rejects
                    assert batch.ids.null_count == 0
                    texts += len(batch.texts)
        assert texts == one.num_docs
    assert len(list((folder / "numbers").iterdir())) > 2


def test_the_pipeline_can_be_read(gathered):
    _, folder = gathered
    pipeline = read_pipeline(folder / "pipeline.yaml")
    assert [step.label for step in pipeline.sources] == ["system", "numbers"]
    assert pipeline.steps[-1].name == "shuffle"
    assert json.loads((folder / "tokenizer.json").read_bytes())["model"]["type"] == "BPE"


def test_a_folder_with_something_in_it_is_left_alone(gathered):
    _, folder = gathered
    with pytest.raises(UsageError, match="not empty"):
        gather(folder, 1000)


def test_agathering_without_text_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "KINDS", gathering.KINDS[:1])
    monkeypatch.setattr(gathering, "MAN_FOLDERS", ())
    monkeypatch.setattr(gathering, "DOC_FOLDERS", ())
    with pytest.raises(UsageError, match="no text that is known here"):
        gather(tmp_path / "out", 1000)


@pytest.mark.slow
def test_the_script_gathers_from_this_machine(tmp_path, capsys):
    assert main([str(tmp_path / "out"), "--max-mb", "1"]) == 0
    printed = capsys.readouterr().out
    assert "the standard library of Python" in printed
    assert "licences" in printed
    assert f"Next: corpuskit run {tmp_path / 'out' / 'pipeline.yaml'}" in printed
    assert main([str(tmp_path / "out")]) == 2
