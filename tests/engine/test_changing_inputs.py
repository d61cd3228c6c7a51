"""Inputs that change while a run reads them: its tasks fail, and the next run has what is there."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from corpuskit.errors import DataError
from corpuskit.stages.sources._stream import InputStream
from corpuskit.storage import faults
from tests.engine.conftest import Lab, corpus, tree
from tests.engine.here import command_line
from tests.stages.web_archives import PAGE, record, response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOCUMENTS = corpus(40, 5)
LINES = b"".join(json.dumps(one).encode() + b"\n" for one in DOCUMENTS)
PARAGRAPHS = "\n".join(one["text"].replace("\n", " ") for one in DOCUMENTS).encode()


def warc(path: Path) -> None:
    path.write_bytes(b"".join(response(PAGE.format(i)) for i in range(30)))


def wet(path: Path) -> None:
    fields = {"Content_Type": "text/plain"}
    pages = (record("conversion", d["text"].encode(), **fields) for d in DOCUMENTS)
    path.write_bytes(b"".join(pages))


def parquet(path: Path) -> None:
    table = pa.table({name: [d[name] for d in DOCUMENTS] for name in ("id", "text")})
    pq.write_table(table, path, row_group_size=10)


def arrow(path: Path) -> None:
    table = pa.table({"text": [d["text"] for d in DOCUMENTS]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=10)


FORMATS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a.jsonl": ("jsonl", lambda path: path.write_bytes(LINES)),
    "a.jsonl.gz": ("jsonl", lambda path: path.write_bytes(gzip.compress(LINES))),
    "large.jsonl.gz": ("jsonl", lambda path: path.write_bytes(gzip.compress(LINES * 600, 1))),
    "a.jsonl.zst": ("jsonl", lambda path: path.write_bytes(zstandard.compress(LINES))),
    "a.parquet": ("parquet", parquet),
    "a.txt": ("text", lambda path: path.write_bytes(PARAGRAPHS)),
    "a.warc": ("warc", warc),
    "a.warc.wet": ("wet", wet),
    "a.arrow": ("huggingface", arrow),
}
"""A file -> the source that reads it, and what writes it."""


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def rewrite(path: Path) -> None:
    """Write other content of the same size in place."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 :] = content[len(content) // 2 :][::-1]
    with path.open("r+b") as file:
        file.write(content)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"text": "one more line that was not there"}\n')


def replace(path: Path) -> None:
    """Put another file of the same size in its place."""
    other = path.with_name("other")
    shutil.copy(path, other)
    rewrite(other)
    os.replace(other, path)


CHANGES = (truncate, empty, rewrite, grow, replace, os.unlink)


@contextlib.contextmanager
def at(step: str, name: str, action: Callable[[], object], nth: int = 1) -> Iterator[list[str]]:
    """Do something when a step passes a name for the n-th time; yield what was passed."""
    passed: list[str] = []

    def hook(reached: str, what: str) -> None:
        if step in reached and name in what:
            passed.append(what)
            if len(passed) == nth:
                action()

    faults.install_hook(hook)
    try:
        yield passed
    finally:
        faults.install_hook(None)


@pytest.fixture
def plain(lab: Lab) -> Lab:
    """A lab without inputs and with the stages that need no model."""
    for path in lab.inputs.iterdir():
        path.unlink()
    lab.pipeline["stages"] = ["exact_dedup"]
    return lab


def use(lab: Lab, name: str) -> Path:
    """Write a file and have the pipeline read it."""
    source, write = FORMATS[name]
    path = lab.inputs / name
    write(path)
    place = lab.inputs if source == "huggingface" else path
    lab.pipeline["sources"] = {"web": {source: str(place)}}
    lab.pipeline["cell_bytes"] = 8_000
    return path


def check_error(error: str, path: Path) -> None:
    assert f"{path}: changed since the run was planned: it had " in error
    assert "bytes (modified 20" in error
    assert "Traceback" not in error


def check_next_run(lab: Lab, path: Path) -> None:
    """Assert that the next run has what a fresh one has, or fails as a fresh one does."""
    faults.install_hook(None)
    lab.save()
    edited = command_line(lab.folder, ["run", str(lab.path)])
    found = tree(lab.out)
    shutil.rmtree(lab.out)
    fresh = command_line(lab.folder, ["run", str(lab.path)])
    assert fresh.returncode == edited.returncode, edited.stderr
    if fresh.returncode == 0:
        assert tree(lab.out) == found


CASES = [
    (name, change) for name in FORMATS if name != "large.jsonl.gz" for change in (truncate, rewrite)
]
CASES += [("a.jsonl", change) for change in CHANGES if change not in {truncate, rewrite}]
CASES += [("a.parquet", change) for change in (grow, replace)]


@pytest.mark.parametrize(
    ("name", "change"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_file_that_changes_after_it_was_planned_fails_the_run(plain, name, change):
    path = use(plain, name)
    with at("put:after", "inputs.json", lambda: change(path)) as passed:
        error = plain.run(code=3).stderr
    assert len(passed) == 1
    check_error(error, path)
    if change is os.unlink:
        assert "it is gone" in error
    check_next_run(plain, path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "large.jsonl.gz"])
@pytest.mark.parametrize("change", [truncate, rewrite], ids=lambda one: one.__name__)
def test_a_file_that_changes_while_it_is_read_fails_the_run(plain, name, change):
    """The first cell is written then: a slice is under way, or the next one has not begun."""
    path = use(plain, name)
    plain.pipeline["cell_bytes"] = 2_000
    with at("publish:before", "documents", lambda: change(path)) as passed:
        error = plain.run(code=3).stderr
    assert passed
    check_error(error, path)
    check_next_run(plain, path)


@pytest.mark.parametrize("nth", [1, 2])
def test_two_slices_do_not_see_two_versions_of_a_file(plain, nth):
    """The file changes after the n-th of its slices was read whole, to lines of the same length."""
    path = use(plain, "a.jsonl")
    before = path.read_bytes()

    def replace_letters() -> None:
        path.write_bytes(before.replace(b"e", b"o").replace(b"toxt", b"text"))

    assert path.stat().st_size > 2.5 * plain.pipeline["cell_bytes"]
    with at("publish:before", "documents", replace_letters, nth) as passed:
        error = plain.run(code=3).stderr
    assert len(passed) >= nth
    check_error(error, path)
    check_next_run(plain, path)


def test_a_file_that_changes_after_it_was_read_does_not_matter(plain):
    path = use(plain, "a.jsonl")
    with at("put:after", "seal.json", lambda: rewrite(path)):
        plain.run()
    found = tree(plain.out)
    shutil.rmtree(plain.out)
    rewrite(path)
    plain.run()
    assert tree(plain.out) == found
    check_next_run(plain, path)


def test_whatever_moment_a_file_changes_at_the_run_has_one_version_of_it_or_fails(plain):
    path = use(plain, "a.jsonl")
    versions = [path.read_bytes(), path.read_bytes().replace(b"the", b"teh")]
    plain.run()
    trees = []
    for content in reversed(versions):
        path.write_bytes(content)
        shutil.rmtree(plain.out)
        plain.run()
        trees.append(tree(plain.out))
    outcomes = set()
    for nth in np.random.default_rng(0).integers(1, 250, 6).tolist():
        shutil.rmtree(plain.out)
        path.write_bytes(versions[0])
        with at("", "", lambda: path.write_bytes(versions[1]), nth):
            done = command_line(plain.folder, ["run", str(plain.path)])
        outcomes.add(done.returncode)
        if done.returncode == 0:
            assert tree(plain.out) in trees
        else:
            assert done.returncode == 3
            check_error(done.stderr, path)
        check_next_run(plain, path)
    assert outcomes == {0, 3}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_fewer_bytes_than_a_file_had_when_it_was_opened_are_an_error(tmp_path, name):
    """A network file system may end a file early without telling another size."""
    path = tmp_path / name
    FORMATS[name][1](path)
    with InputStream(str(path)) as stream:
        truncate(path)
        with pytest.raises(DataError, match=rf"{name}: .*ends (at byte|within)"):
            stream.read(1 << 20)


def test_the_message_says_what_was_planned_and_what_is_there(plain):
    path = use(plain, "a.jsonl")
    size = path.stat().st_size
    os.utime(path, ns=(0, 1_700_000_000_123_456_000))

    def change() -> None:
        os.truncate(path, 500)
        os.utime(path, ns=(0, 1_700_000_060_000_000_000))

    with at("put:after", "inputs.json", change):
        error = plain.run(code=3).stderr
    assert (
        f"{path}: changed since the run was planned: it had {size:,} bytes (modified 2023-11-14 "
        "22:13:20.123456 UTC), it now has 500 bytes (modified 2023-11-14 22:14:20.000000 UTC). "
        "Run again once it is stable."
    ) in error
