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
from corpuskit.integrations import export as exports
from corpuskit.integrations.export import (
    Export,
    MegatronWriter,
    Request,
    _check_room,
    export,
    stored_type,
)
from corpuskit.loader import read_mix
from corpuskit.loader.edits import new_edit, write_edit
from corpuskit.storage import LocalStore
from corpuskit.storage.faults import Death, install_hook
from tests.conftest import ROOT
from tests.loader.indexed_dataset import read_dataset

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
        monkeypatch.setattr(exports, "READ_BYTES", 1)
        monkeypatch.setattr(exports, "WINDOW_BYTES", 34 * 100)
        monkeypatch.setattr(exports, "CHUNK", 7)


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


def files(folder: Path) -> dict[str, bytes]:
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*")}
    return {name: p.read_bytes() for name, p in found.items() if p.is_file()}


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_documents_of_each_source_as_stored(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request())
    for name in ("web", "books", "math"):
        expected = list(documents_of(shards, stored(shards, name)))
        assert sequences(tmp_path / "o" / f"{name}.bin") == expected


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_rows_of_the_run_in_its_order(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request(order="run", unit="row"))
    expected = [row_of(shards, *place) for place in delivered(run)]
    assert len(expected) == 769
    assert sequences(tmp_path / "o" / "run.bin") == expected


@pytest.mark.usefixtures("pieces")
def test_megatron_gets_the_documents_of_the_run_in_its_order(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request(order="run"))
    assert sequences(tmp_path / "o" / "run.bin") == list(documents_of(shards, delivered(run)))


def test_megatron_gets_the_rows_of_each_source(shards, run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request(unit="row"))
    assert sequences(tmp_path / "o" / "books.bin") == shards.tokens["books"].tolist()


def test_ids_of_32_bits_keep_their_values(tmp_path):
    shards = write_shards(tmp_path / "s", {"web": 70}, dtype="uint32")
    run = write_plan(shards, [(70, {"web": 1})])
    export(str(run), str(tmp_path / "m"), Request(unit="row"))
    kind, documents = read_dataset(tmp_path / "m" / "web.bin")
    assert kind == "int32"
    assert [document[0] for document in documents] == shards.tokens["web"].tolist()


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
    request = Request(unit="row", sources=("math", "web"), rows=100)
    done = export(str(run), str(tmp_path / "o"), request)
    assert [(entry["source"], entry["rows"]) for entry in done["files"]] == [
        ("web", 100), ("math", 9),
    ]  # fmt: skip
    assert sequences(tmp_path / "o" / "web.bin") == shards.tokens["web"][:100].tolist()
    request = Request(order="run", unit="row", rows=50)
    export(str(run), str(tmp_path / "r"), request)
    expected = [row_of(shards, *place) for place in delivered(run)[:50]]
    assert sequences(tmp_path / "r" / "run.bin") == expected


def test_the_record_counts_what_is_there(shards, run, tmp_path):
    done = export(str(run), str(tmp_path / "o"), Request())
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
    done = export(str(copy), str(tmp_path / "d"), Request(order="run"))
    rows = delivered(copy)
    assert sequences(tmp_path / "d" / "run.bin") == list(documents_of(shards, rows, down))
    assert done["files"][0]["taken_down"] > 0
    export(str(copy), str(tmp_path / "r"), Request(unit="row"))
    expected = shards.tokens["web"].copy()
    for _, row, segment in (place for place in stretches if place[0] == "web"):
        expected[row, segment.start : segment.end] = PAD
    assert sequences(tmp_path / "r" / "web.bin") == expected.tolist()


@pytest.mark.slow
def test_whoever_dies_anywhere_and_runs_again_gets_the_same_bytes(run, tmp_path):
    request = Request(sources=("books", "math"))
    export(str(run), str(tmp_path / "whole"), request)
    expected = files(tmp_path / "whole")
    for point in itertools.count():
        out = tmp_path / f"o{point}"
        steps = itertools.count()

        def die(step: str, name: str, steps=steps, point=point) -> None:
            if next(steps) == point:
                raise Death

        install_hook(die)
        try:
            export(str(run), str(out), request)
            break
        except Death:
            pass
        finally:
            install_hook(None)
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
        export(str(copy), str(tmp_path / "o"), Request())
    assert set(files(tmp_path / "o")) == {"web.bin", "web.idx", "export.unfinished.json", "lock"}


@pytest.mark.slow
def test_a_killed_command_goes_on_where_it_was(run, tmp_path):
    expected = tmp_path / "whole"
    export(str(run), str(expected), Request())
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
    done = export(str(run), str(out), Request())
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert export(str(run), str(out), Request()) == done
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_another_request_is_refused(run, tmp_path):
    out = str(tmp_path / "o")
    export(str(run), out, Request())
    with pytest.raises(UsageError, match=r"holds an export with another unit: 'document', now"):
        export(str(run), out, Request(unit="row"))
    (tmp_path / "o" / "export.json").rename(tmp_path / "o" / "export.unfinished.json")
    with pytest.raises(UsageError, match=r"an unfinished export with another order: 'stored'"):
        export(str(run), out, Request(order="run"))


def test_a_finished_export_that_lost_a_file_is_an_error(run, tmp_path):
    export(str(run), str(tmp_path / "o"), Request())
    (tmp_path / "o" / "web.idx").unlink()
    with pytest.raises(DataError, match=r"export\.json: names files that are missing"):
        export(str(run), str(tmp_path / "o"), Request())


def test_a_folder_of_something_else_is_left_alone(run, tmp_path):
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "web.bin").write_text("mine")
    with pytest.raises(UsageError, match=r"o: is not empty, it has 'web\.bin'"):
        export(str(run), str(tmp_path / "o"), Request())
    assert files(tmp_path / "o") == {"web.bin": b"mine"}


def test_two_at_a_time_are_refused(run, tmp_path):
    out = tmp_path / "o"
    with LocalStore(out).lock(), pytest.raises(UsageError, match="another run is using"):
        export(str(run), str(out), Request())


def test_what_cannot_fit_is_refused_before_anything_is_written(run, tmp_path):
    work = Export(str(run), Request())
    work.targets["web"] = 10**15
    nothing = {"files": [], "is_finished": False}
    with pytest.raises(UsageError, match=r"needs about [\d,]+\.\d+ GB, [\d,]+\.\d+ GB are free"):
        _check_room(LocalStore(tmp_path / "o"), work, nothing)


@pytest.mark.parametrize("unit", ["document", "row"])
def test_the_room_asked_for_is_about_what_is_written(shards, run, tmp_path, unit):
    work = Export(str(run), Request(unit=unit))
    for entry in work.packed.plan.base.fields["sources"]:
        entry["documents"] = sum(key >> 40 == "web books math".split().index(entry["name"])
                                 for key in shards.ids)  # fmt: skip
    out = tmp_path / "o"
    export(str(run), str(out), Request(unit=unit))
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
    ],
)
def test_requests_that_make_no_sense_are_refused(run, tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(
            command, [str(run), str(tmp_path / "o"), *arguments], catch_exceptions=False
        )
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("out", "message"), [("exports", "inside the run"), ("s3://b/c", "are written to local folders")])  # fmt: skip  # noqa: E501
def test_places_where_exports_cannot_go_are_refused(run, out, message):
    place = out if "://" in out else str(run / out)
    with pytest.raises(UsageError, match=message):
        export(str(run), place, Request())
