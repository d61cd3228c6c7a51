"""Manifests and seals: merged without order, hashed without timing, never trusted blindly."""

from __future__ import annotations

import dataclasses
import json

import pytest

from corpuskit.errors import DataError
from corpuskit.manifest import Manifest, Part, Seal


def manifest(*units: int, seconds: float = 1.0) -> Manifest:
    parts = tuple(Part(u, "documents", f"documents/part-{u}.parquet", rows=u) for u in units)
    timing = {"cpu_seconds": seconds, "peak_rss_bytes": 100.0 * units[0]}
    return Manifest("read", "f.c", units, parts, {"kept/web": len(units)}, timing)


def test_the_content_hash_is_free_of_tasks_and_timing():
    one = Seal.merge("read", "f.c", [manifest(0, 1, 2)])
    other = Seal.merge("read", "f.c", [manifest(2, seconds=9.0), manifest(0, 1)])
    assert one.content() == other.content()
    assert one.parts == other.parts


def test_the_content_hash_covers_parts_and_counters():
    seal = Seal.merge("read", "f.c", [manifest(0)])
    changed = dataclasses.replace(seal.parts[0], digest="other")
    assert dataclasses.replace(seal, parts=(changed,)).content() != seal.content()
    assert dataclasses.replace(seal, counters={"rows/web": 1}).content() != seal.content()


def test_the_content_hash_is_free_of_the_ledger_and_the_funnel():
    seal = Seal.merge("read", "f.c", [manifest(0)])
    more = (*seal.parts, Part(0, "ledger", "ledger/x.parquet"))
    assert dataclasses.replace(seal, parts=more, counters={}).content() == seal.content()


def test_the_same_work_done_twice_counts_once():
    seal = Seal.merge("read", "f.c", [manifest(0, 1), manifest(0, 1)])
    assert seal.counters == {"kept/web": 2}
    assert seal.timing["peak_rss_bytes"] == 0.0


def test_work_that_overlaps_in_part_is_refused():
    with pytest.raises(DataError, match="share some"):
        Seal.merge("read", "f.c", [manifest(0, 1), manifest(1, 2)])


def test_files_round_trip():
    one = manifest(0, 3)
    assert Manifest.from_json(one.to_json(), "m") == one
    seal = Seal.merge("read", "f.c", [one])
    assert Seal.from_json(seal.to_json(), "s") == seal


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_a_path_that_leaves_the_run_directory_is_refused(path):
    content = json.loads(manifest(0).to_json())
    content["parts"][0]["path"] = path
    with pytest.raises(DataError, match="leaves the run directory"):
        Manifest.from_json(json.dumps(content).encode(), "m")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format":2,"kind":"seal"}', b'{"format":1,"kind":"manifest"}', b"null"],
)
def test_what_is_no_seal_is_a_data_error(content):
    with pytest.raises(DataError, match="not a seal"):
        Seal.from_json(content, "s")


def test_an_edited_seal_is_noticed():
    content = json.loads(Seal.merge("read", "f.c", [manifest(1)]).to_json())
    content["parts"][0]["rows"] = 99
    with pytest.raises(DataError, match="content hash"):
        Seal.from_json(json.dumps(content).encode(), "s")
