"""What exports hold, token for token, and what becomes of one that is interrupted."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from loader_runs import PAD, PADDING, expected_order, write_plan, write_shards

from corpuskit.cli.export import command
from corpuskit.errors import DataError, UsageError
from corpuskit.integrations import _digested, _packed, megatron
from corpuskit.integrations.export import Export, Request, _check_room, export
from corpuskit.integrations.megatron import MegatronWriter, stored_type
from corpuskit.integrations.nanotron import count_words
from corpuskit.loader import read_mix
from corpuskit.loader.edits import new_edit, write_edit
from corpuskit.storage import LocalStore
from corpuskit.storage.faults import Death, arm
from tests.conftest import ROOT
from tests.stages.indexed_dataset import read_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STAGES = [(500, {"web": 3, "books": 1}), (300, {"web": 1, "books": 1, "math": 1})]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    rows = {"web": 400, "books": 130, "math": 9}
    return write_shards(tmp_path_factory.mktemp("shards"), rows, unshuffled=("books",))


@pytest.fixture(scope="module")
def run(shards) -> Path:
    """A run that takes every source more than once and passes over some rows."""
    return write_plan(shards, STAGES, skip=[[10, 40], [100, 101]])


@pytest.fixture(params=["one", "many"])
def pieces(request, monkeypatch):
    """Everything read at once, and in pieces of a row group, a few rows, a few entries."""
    if request.param == "many":
        monkeypatch.setattr(_packed, "READ_BYTES", 1)
        monkeypatch.setattr(_packed, "WINDOW_BYTES", 34 * 100)
        monkeypatch.setattr(_digested, "CHUNK", 7)
        monkeypatch.setattr(megatron, "CHUNK", 7)


def stored(shards, name: str) -> list[tuple[str, int]]:
    return [(name, row) for row in range(len(shards.tokens[name]))]


def delivered(run: Path) -> list[tuple[str, int]]:
    skip = json.loads((run / "mix" / "plan.json").read_text())["skip"]
    order = enumerate(expected_order(run))
    return [(s, r) for t, (s, r, _) in order if not any(a <= t < b for a, b in skip)]


def row_of(shards, name: str, row: int) -> list[int]:
    return shards.tokens[name][row].tolist()


def documents_of(shards, rows, down=()) -> Iterator[list[int]]:
    for name, row in rows:
        for segment in shards.segments[name][row]:
            if not segment.flags & PADDING and segment.key not in down:
                yield row_of(shards, name, row)[segment.start : segment.end]


def sequences(path: Path) -> list[list[int]]:
    """Return the sequences of a Megatron data set, each of which is a document."""
    _, documents = read_dataset(path)
    assert all(len(document) == 1 for document in documents)
    return [document[0] for document in documents]


def nanotron(path: Path, kind: str = "<u2") -> tuple[np.ndarray, list[int]]:
    """Return the ids of a `.ds`, and where documents end."""
    return np.fromfile(path, kind), np.fromfile(f"{path}.index", "<u8").tolist()


def files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*")}
    return {name: p.read_bytes() for name, p in found.items() if p.is_file()}


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_documents_of_each_source_as_stored(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("megatron"))
    for name in ("web", "books", "math"):
        expected = list(documents_of(shards, stored(shards, name)))
        assert sequences(tmp_path / "o" / f"{name}.bin") == expected


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_rows_of_the_run_in_its_order(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("megatron", order="run", unit="row"))
    expected = [row_of(shards, *place) for place in delivered(run)]
    assert len(expected) == 769
    assert sequences(tmp_path / "o" / "run.bin") == expected


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_documents_of_the_run_in_its_order(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("megatron", order="run"))
    assert sequences(tmp_path / "o" / "run.bin") == list(documents_of(shards, delivered(run)))


def test_megatron_gets_the_rows_of_each_source(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("megatron", unit="row"))
    assert sequences(tmp_path / "o" / "books.bin") == shards.tokens["books"].tolist()


@pytest.mark.usefixtures("pieces")
def test_nanotron_gets_rows_and_where_documents_end_in_them(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("nanotron", order="run"))
    ids, ends = nanotron(tmp_path / "o" / "run" / "run.ds")
    rows = delivered(run)
    assert ids.reshape(-1, 17).tolist() == [row_of(shards, *place) for place in rows]
    segments = [[s.end for s in shards.segments[name][row]] for name, row in rows]
    assert ends == [17 * i + end for i, row in enumerate(segments) for end in row]


def test_nanotron_gets_documents_without_padding(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("nanotron", unit="document"))
    ids, ends = nanotron(tmp_path / "o" / "web" / "web.ds")
    expected = list(documents_of(shards, stored(shards, "web")))
    assert ids.tolist() == list(itertools.chain.from_iterable(expected))
    assert ends == np.cumsum([len(document) for document in expected]).tolist()


def test_nanotrons_metadata_name_tokenizer_size_and_count(run, tmp_path):
    export(str(run), str(tmp_path / "a"), Request("nanotron"))
    assert (tmp_path / "a/web/web.ds.metadata").read_text() == "00ff|2\n6800\n6.80 kT"
    export(str(run), str(tmp_path / "b"), Request("nanotron", tokenizer="gpt2"))
    assert (tmp_path / "b/math/math.ds.metadata").read_text() == "gpt2|2\n153\n153 T"
    with pytest.raises(UsageError, match=r"--tokenizer-name must not .* got 'a\|b'"):
        export(str(run), str(tmp_path / "c"), Request("nanotron", tokenizer="a|b"))


def test_counts_are_written_as_humanize_writes_them():
    from humanize import metric

    edges = [10**e + d for e in range(16) for d in (-1, 0, 1)] + [9994, 9995, 99949, 99950, 123456]
    for number in [0, 1, 7, 42, *edges]:
        assert count_words(number) == metric(number, unit="T")


def test_ids_of_32_bits_keep_their_values(tmp_path):
    shards = write_shards(tmp_path / "s", {"web": 70}, dtype="uint32")
    run = write_plan(shards, [(70, {"web": 1})])
    export(str(run), str(tmp_path / "m"), Request("megatron", unit="row"))
    kind, documents = read_dataset(tmp_path / "m" / "web.bin")
    assert kind == "int32"
    assert [document[0] for document in documents] == shards.tokens["web"].tolist()
    export(str(run), str(tmp_path / "n"), Request("nanotron"))
    ids, _ = nanotron(tmp_path / "n" / "web" / "web.ds", "<u4")
    assert ids.reshape(-1, 17).tolist() == shards.tokens["web"].tolist()
    assert (tmp_path / "n/web/web.ds.metadata").read_text().startswith("00ff|4\n")


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "expected"),
    [("<u2", 65_499, "<u2"), ("<u2", 65_500, "<i4"), ("<u2", 65_536, "<i4"), ("<u4", 99, "<i4")],
)
def test_megatron_stores_small_vocabularies_in_16_bits(tmp_path, dtype, vocab_size, expected):
    assert stored_type(np.dtype(dtype), vocab_size) == np.dtype(expected)
    writer = MegatronWriter(tmp_path, "a", np.dtype(dtype), vocab_size)
    writer.add(np.array([1, 65_535], dtype), np.array([2]))
    writer.close()
    assert read_dataset(tmp_path / "a.bin") == (np.dtype(expected).name, [[[1, 65_535]]])


def test_ids_beyond_31_bits_are_refused_for_megatron(tmp_path):
    writer = MegatronWriter(tmp_path, "a", np.dtype("<u4"), 1 << 32)
    with pytest.raises(DataError, match=r"a: Megatron stores ids of 31 bits, got 2147483648"):
        writer.add(np.array([1 << 31], np.uint32), np.array([1]))
    writer.abandon()


def test_some_sources_and_some_rows_can_be_asked_for(shards, run, tmp_path):
    request = Request("megatron", unit="row", sources=("math", "web"), rows=100)
    done = export(str(run), str(tmp_path / "o"), request)
    assert [(entry["source"], entry["rows"]) for entry in done["files"]] == [
        ("web", 100), ("math", 9),
    ]  # fmt: skip
    assert sequences(tmp_path / "o" / "web.bin") == shards.tokens["web"][:100].tolist()
    request = Request("megatron", order="run", unit="row", rows=50)
    export(str(run), str(tmp_path / "r"), request)
    expected = [row_of(shards, *place) for place in delivered(run)[:50]]
    assert sequences(tmp_path / "r" / "run.bin") == expected


def test_the_record_counts_what_is_there(shards, run, tmp_path):
    done = export(str(run), str(tmp_path / "o"), Request("megatron"))
    assert json.loads((tmp_path / "o" / "export.json").read_text()) == done
    assert set(files(tmp_path / "o")) == {"export.json"} | {
        f"{name}.{ending}" for name in ("web", "books", "math") for ending in ("bin", "idx")
    }
    web = done["files"][0]
    segments = list(itertools.chain.from_iterable(shards.segments["web"]))
    real = [s for s in segments if not s.flags & PADDING]
    assert web["sequences"] == len(real)
    assert web["tokens"] == sum(s.end - s.start for s in real)
    assert web["padding"] == 400 * 17 - web["tokens"]
    assert web["continued"] == sum(s.flags & 1 for s in real)
    for name, file in web["files"].items():
        content = (tmp_path / "o" / name).read_bytes()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        assert file == {"size_bytes": len(content), "digest": digest}


def test_documents_that_were_taken_down_are_in_no_export(shards, run, tmp_path):
    copy = write_plan(shards, STAGES, folder=tmp_path / "run")
    places = [
        (name, row, segment)
        for name, rows in shards.segments.items()
        for row, segments in enumerate(rows)
        for segment in segments
    ]
    down = {key for key in shards.ids if key % 5 == 2}
    stretches = [place for place in places if place[2].key in down]
    assert len(down) > 20
    spans = {
        "source": [name for name, _, _ in stretches],
        "row": [row for _, row, _ in stretches],
        "first_token": [segment.start for _, _, segment in stretches],
        "num_tokens": [segment.end - segment.start for _, _, segment in stretches],
        "text_bytes": [segment.text_bytes for _, _, segment in stretches],
        "key": [segment.key for _, _, segment in stretches],
    }
    edit = new_edit([], read_mix(copy).hash, "takedown", 96, {"spans": spans})
    write_edit(str(copy), edit)
    done = export(str(copy), str(tmp_path / "d"), Request("megatron", order="run"))
    rows = delivered(copy)
    assert sequences(tmp_path / "d" / "run.bin") == list(documents_of(shards, rows, down))
    assert done["files"][0]["taken_down"] > 0
    export(str(copy), str(tmp_path / "r"), Request("megatron", unit="row"))
    expected = shards.tokens["web"].copy()
    for _, row, segment in (place for place in stretches if place[0] == "web"):
        expected[row, segment.start : segment.end] = PAD
    assert sequences(tmp_path / "r" / "web.bin") == expected.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "sources"), [("megatron", ("books", "math")), ("nanotron", ("math",))]
)
def test_whoever_dies_anywhere_and_runs_again_gets_the_same_bytes(run, tmp_path, to, sources):
    request = Request(to, sources=sources)
    export(str(run), str(tmp_path / "whole"), request)
    expected = files(tmp_path / "whole")
    for point in itertools.count():
        out = tmp_path / f"o{point}"
        steps = itertools.count()

        def die(step: str, name: str, steps=steps, point=point) -> None:
            if next(steps) == point:
                raise Death

        arm(die)
        try:
            export(str(run), str(out), request)
            break
        except Death:
            pass
        finally:
            arm(None)
        with_record = (out / "export.json").exists()
        export(str(run), str(out), request)
        assert files(out) == expected, f"died at point {point}, record there: {with_record}"
    assert point > 30


def test_an_error_leaves_nothing_that_looks_whole(shards, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(shards.path, copy)
    part = sorted((copy / "tokens" / "books").iterdir())[0]
    with part.open("r+b") as file:
        file.seek(300)
        byte = file.read(1)[0]
        file.seek(300)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match=rf"{part.name}: row group 0: source 'books'"):
        export(str(copy), str(tmp_path / "o"), Request("megatron"))
    assert set(files(tmp_path / "o")) == {"web.bin", "web.idx", "export.unfinished.json", "lock"}


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(run, tmp_path):
    expected = tmp_path / "whole"
    export(str(run), str(expected), Request("megatron"))
    arguments = ["export", str(run), str(tmp_path / "o"), "--format", "megatron"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command_line = [sys.executable, "-m", "corpuskit", *arguments]
    process = subprocess.Popen(command_line, cwd=tmp_path, env=environment)
    end = time.monotonic() + 60
    while not (tmp_path / "o" / "export.unfinished.json").exists() and time.monotonic() < end:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command_line, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert files(tmp_path / "o") == files(expected)


def test_a_finished_export_is_left_alone(run, tmp_path):
    out = tmp_path / "o"
    done = export(str(run), str(out), Request("megatron"))
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert export(str(run), str(out), Request("megatron")) == done
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_another_request_is_refused(run, tmp_path):
    out = str(tmp_path / "o")
    export(str(run), out, Request("megatron"))
    with pytest.raises(UsageError, match=r"holds an export with another unit: 'document', now"):
        export(str(run), out, Request("megatron", unit="row"))
    (tmp_path / "o" / "export.json").rename(tmp_path / "o" / "export.unfinished.json")
    with pytest.raises(UsageError, match=r"an unfinished export with another target: 'megatron'"):
        export(str(run), out, Request("nanotron", unit="document"))


def test_a_finished_export_that_lost_a_file_is_an_error(run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request("megatron"))
    (tmp_path / "o" / "web.idx").unlink()
    with pytest.raises(DataError, match=r"export\.json: names files that are missing"):
        export(str(run), str(tmp_path / "o"), Request("megatron"))


def test_a_folder_of_something_else_is_left_alone(run, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "web.bin").write_text("mine")
    with pytest.raises(UsageError, match=r"o: is not empty, it has 'web\.bin'"):
        export(str(run), str(tmp_path / "o"), Request("megatron"))
    assert files(tmp_path / "o") == {"web.bin": b"mine"}


def test_two_at_a_time_are_refused(run, tmp_path):
    out = tmp_path / "o"
    with LocalStore(out).lock(), pytest.raises(UsageError, match="another run is using"):
        export(str(run), str(out), Request("megatron"))


def test_what_cannot_fit_is_refused_before_anything_is_written(run, tmp_path):
    work = Export(str(run), Request("megatron"))
    work.targets["web"] = 10**15
    nothing = {"files": [], "is_finished": False}
    with pytest.raises(UsageError, match=r"needs about [\d,]+\.\d+ GB, [\d,]+\.\d+ GB are free"):
        _check_room(LocalStore(tmp_path / "o"), work, nothing)


@pytest.mark.parametrize("to", ["megatron", "nanotron"])
@pytest.mark.parametrize("unit", ["document", "row"])
def test_the_room_asked_for_is_about_what_is_written(shards, run, tmp_path, to, unit):
    work = Export(str(run), Request(to, unit=unit))
    for entry in work.packed.plan.base.fields["sources"]:
        entry["documents"] = sum(key >> 40 == "web books math".split().index(entry["name"])
                                 for key in shards.ids)  # fmt: skip
    out = tmp_path / "o"
    export(str(run), str(out), Request(to, unit=unit))
    written = sum(len(content) for name, content in files(out).items() if "export" not in name)
    assert 0.95 * written < work.size_bytes(list(work.targets)) < 1.7 * written


def call(*arguments: str):
    return CliRunner().invoke(command, list(arguments))


def test_the_command_says_what_it_wrote(run, tmp_path):
    found = call(str(run), str(tmp_path / "o"), "--format", "megatron", "--source", "math")
    assert found.exit_code == 0, found.output
    assert found.output.startswith("math: 19 sequences, 149 tokens of 9 rows, 0.0 MB, 8 pieces of ")
    again = call(str(run), str(tmp_path / "o"), "--format=megatron", "--source=math", "--json")
    assert json.loads(again.stdout)["files"][0]["sequences"] == 19


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "megatron", "--source", "wbe"), r"no source 'wbe'\. Did you mean 'web'\?"),
        (
            ("--format", "megatron", "--order", "run", "--source", "web"),
            r"goes with --order stored",
        ),
        (("--format", "megatron", "--tokenizer-name", "gpt2"), r"goes with --format nanotron"),
    ],
)
def test_requests_that_make_no_sense_are_refused(run, tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(
            command, [str(run), str(tmp_path / "o"), *arguments], catch_exceptions=False
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("out", "message"), [("exports", "inside of the run"), ("s3://b/c", "are written to local folders")])  # fmt: skip  # noqa: E501
def test_places_where_exports_cannot_go_are_refused(run, out, message):
    place = out if "://" in out else str(run / out)
    with pytest.raises(UsageError, match=message):
        export(str(run), place, Request("megatron"))


@pytest.mark.slow
def test_datatrove_reads_the_rows_of_the_run(shards, run, tmp_path):
    from datatrove.utils.dataset import DatatroveFolderDataset

    export(str(run), str(tmp_path / "o"), Request("nanotron", order="run"))
    rows = DatatroveFolderDataset(
        str(tmp_path / "o" / "run"), 16, filename_pattern="*.ds", return_positions=True
    )
    places = delivered(run)
    assert len(rows) == len(places)
    for number, (name, row) in enumerate(places):
        assert rows[number]["input_ids"].tolist() == row_of(shards, name, row)
        expected = [i - s.start for s in shards.segments[name][row] for i in range(s.start, s.end)]
        assert rows[number]["positions"].tolist() == expected


@pytest.mark.slow
def test_datatrove_merges_what_was_exported(run, tmp_path):
    from datatrove.pipeline.tokens.merger import DocumentTokenizerMerger

    export(str(run), str(tmp_path / "o"), Request("nanotron", sources=("web",)))
    DocumentTokenizerMerger(
        str(tmp_path / "o" / "web"), str(tmp_path / "m"), "all", shuffle=False, progress=False
    ).run()
    merged, whole = tmp_path / "m" / "000_all.ds", tmp_path / "o" / "web" / "web.ds"
    for ending in ("", ".index", ".metadata"):
        ours, theirs = (path.with_name(path.name + ending) for path in (whole, merged))
        assert ours.read_bytes() == theirs.read_bytes()
