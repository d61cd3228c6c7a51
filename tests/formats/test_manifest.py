"""Manifests and seals: merged without order, hashed without timing, never trusted blindly."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.errors import DataError
from corpuskit.formats.manifest import (
    Manifest,
    OtherFormatError,
    Part,
    Parts,
    Seal,
    dump_checked,
    load_checked,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable


def manifest(*units: int, seconds: float = 1.0) -> Manifest:
    parts = tuple(Part(u, "documents", f"documents/part-{u}.parquet", rows=u) for u in units)
    timing = {"cpu_seconds": seconds, "peak_rss_bytes": 100.0 * units[0]}
    counters = tuple({"kept/web": 1} for _ in units)
    return Manifest(
        "read", "f.c", units, ("",) * len(units), parts, counters, timing, ({},) * len(units)
    )


def test_the_content_hash_is_free_of_tasks_and_timing():
    one = Seal.merge("read", "f.c", [manifest(0, 1, 2)])
    other = Seal.merge("read", "f.c", [manifest(2, seconds=9.0), manifest(0, 1)])
    assert one.content == other.content
    assert one.parts == other.parts


def test_the_content_hash_covers_parts_and_counters():
    seal = Seal.merge("read", "f.c", [manifest(0)])
    changed = Parts.of([dataclasses.replace(next(iter(seal.parts)), digest="other")])
    assert dataclasses.replace(seal, parts=changed).content != seal.content
    assert dataclasses.replace(seal, counters={"rows/web": 1}).content != seal.content


def test_the_content_hash_is_free_of_the_ledger_and_the_funnel():
    seal = Seal.merge("read", "f.c", [manifest(0)])
    more = Parts.of([*seal.parts, Part(0, "ledger", "ledger/x.parquet")])
    assert dataclasses.replace(seal, parts=more, counters={}).content == seal.content


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


BAD_PATHS = ["/etc/passwd", "../x", "a/../../x", "", "a\0b"]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leaves_the_run_directory_is_refused(path):
    content = load_checked(manifest(0).to_json(), "m")
    content["parts"][0]["path"] = path
    with pytest.raises(DataError, match="leaves the run directory"):
        Manifest.from_json(dump_checked(content), "m")


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_of_a_seal_that_leaves_the_run_directory_is_refused(path):
    seal = Seal("read", "f.c", (0,), Parts.of([Part(0, "documents", path)]), {}, {})
    found = Seal.from_json(seal.to_json(), "s")
    with pytest.raises(DataError, match=r"s: the path .* leaves the run directory"):
        found.by_role("documents")


@pytest.mark.parametrize(
    ("field", "value"),
    [("unit", "0"), ("rows", 1.5), ("first", 1 << 64), ("last", -1 << 64), ("path", 7),
     ("digest", None), ("role", ["documents"]), ("rows", True)],
)  # fmt: skip
def test_a_part_with_a_field_of_a_wrong_type_is_refused(field, value):
    content = load_checked(manifest(0).to_json(), "m")
    content["parts"][0][field] = value
    with pytest.raises(DataError, match=r"m: not a manifest: .* wrong type"):
        Manifest.from_json(dump_checked(content), "m")


@pytest.mark.parametrize(
    ("field", "value"),
    [("units", ["0"]), ("units", 0), ("counters", {"kept/web": "1"}), ("counters", []),
     ("timing", {"cpu_seconds": None}), ("strange", 1)],
)  # fmt: skip
def test_a_manifest_with_a_field_of_a_wrong_type_is_refused(field, value):
    content = {**load_checked(manifest(0).to_json(), "m"), field: value}
    with pytest.raises(DataError, match="m: not a manifest"):
        Manifest.from_json(dump_checked(content), "m")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format":2}', b'{"format":1,"kind":"manifest"}', b"null", b"[" * 100_000,
     b'{"format":3,"kind":"seal"}'],
)  # fmt: skip
def test_what_is_no_seal_is_a_data_error(content):
    with pytest.raises(DataError, match="not a seal"):
        Seal.from_json(content, "s")


@pytest.mark.parametrize("number", [2, 4])
def test_a_seal_of_another_version_is_told_from_a_broken_one(number):
    content = json.dumps({"format": number, "kind": "seal", "parts": [], "content": "x"}).encode()
    with pytest.raises(OtherFormatError, match=f"not a seal of format 3, but {number}"):
        Seal.from_json(content, "s")


def test_a_seal_is_a_json_object():
    seal = Seal.merge("read", "f.c", [manifest(0, 3)])
    content = json.loads(seal.to_json())
    assert content["units"] == [0, 3]
    assert content["parts"][0]["rows"] == [0, 3]
    assert content["parts"][0]["source"] == ""


@pytest.mark.parametrize(("old", "new"), [(b'"rows":1', b'"rows":9'), (b'"unit":1', b'"unit":0')])
def test_an_edited_seal_is_noticed(old, new):
    content = Seal.merge("read", "f.c", [manifest(1)]).to_json()
    assert old in content
    with pytest.raises(DataError, match="s: the content hash"):
        Seal.from_json(content.replace(old, new), "s")


def test_an_edited_counter_of_a_seal_is_noticed():
    seal = Seal.merge("read", "f.c", [manifest(1)])
    content = dataclasses.replace(seal, counters={"rows/web": 7}).to_json()
    with pytest.raises(DataError, match="s: is damaged"):
        Seal.from_json(content.replace(b'"rows/web":7', b'"rows/web":8'), "s")


def outcome(read: Callable[[], object]) -> object:
    """Return what was read, or "refused"."""
    try:
        return read()
    except DataError:
        return "refused"


def test_no_flipped_bit_of_a_record_is_believed():
    one = manifest(0, 1)
    seal = Seal.merge("read", "f.c", [one])
    for content, read, whole in [
        (one.to_json(), Manifest.from_json, one), (seal.to_json(), Seal.from_json, seal),
        (dump_checked({"files": [[0, 700994]]}), load_checked, {"files": [[0, 700994]]}),
    ]:  # fmt: skip
        for bit in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            assert outcome(lambda: read(bytes(flipped), "r")) in ("refused", whole)  # noqa: B023


@pytest.mark.parametrize("cut", [1, 2, 3, 50, 400])
def test_a_seal_that_was_cut_off_is_a_data_error(cut):
    content = Seal.merge("read", "f.c", [manifest(*range(9))]).to_json()
    with pytest.raises(DataError, match="s: not a seal"):
        Seal.from_json(content[:-cut], "s")


def line(**fields: object) -> Parts:
    """Columns of a role, as no honest program writes them: with a hash that is right."""
    content = Parts.of([Part(0, "a", "x"), Part(1, "a", "y")]).lines()[0]
    return Parts({"a": json.dumps({**json.loads(content), **fields}).encode()}, "s")


@pytest.mark.parametrize(
    "fields",
    [{"unit": [1, 0]}, {"unit": [0]}, {"rows": [0, "1"]}, {"rows": 1.0}, {"rows": [[0], [1]]},
     {"first": [-1, 1 << 64]}, {"path": "x"}, {"path": ["x", 1]}, {"source": ["web"]},
     {"digest": 0}, {"role": "b"}],
)  # fmt: skip
def test_columns_that_no_seal_has_are_a_data_error(fields):
    with pytest.raises(DataError, match="s: not a seal"):
        line(**fields).role("a")


numbers = st.integers(-(1 << 63), (1 << 63) - 1)
hashes = st.integers(0, (1 << 64) - 1)
texts = st.text('a"\\\n\u00e9', max_size=3)
paths = st.text("ab-\u00e9", min_size=1, max_size=3)


@st.composite
def part_lists(draw: st.DrawFn) -> list[Part]:
    found = []
    for role in draw(st.lists(st.sampled_from(["ledger", "run:a", "b"]), unique=True)):
        keys = draw(st.sampled_from([numbers, hashes]))
        one = st.builds(
            Part, numbers, st.just(role), paths, texts, numbers, numbers, numbers, keys, keys, texts
        )
        found += draw(st.lists(one, min_size=1, max_size=5))
    return found


@given(part_lists())
def test_parts_round_trip_in_unit_order(parts):
    seal = Seal("read", "f.c", (), Parts.of(parts), {}, {})
    found = Seal.from_json(seal.to_json(), "s")
    assert found == seal
    assert sorted(found.parts) == sorted(parts)
    assert len(found.parts) == len(parts)
    for role in {part.role for part in parts}:
        units = [part.unit for part in found.by_role(role)]
        assert units == sorted(units)


@given(part_lists(), hashes, hashes)
def test_parts_of_a_range_are_those_that_meet_it(parts, low, high):
    for role in Parts.of(parts).roles():
        expected = [part for part in role if part.first < high and part.last >= low]
        assert role.within(low, high) == expected
        assert role.within(low, None) == [part for part in role if part.last >= low]
        assert role.within(None, high + 1) == [part for part in role if part.first <= high]
        assert role.within(None, None) == list(role)


@given(part_lists())
def test_parts_of_a_unit_are_those_that_name_it(parts):
    for role in Parts.of(parts).roles():
        for number in {part.unit for part in parts} | {0}:
            assert list(role.of_unit(number)) == [part for part in role if part.unit == number]


def test_parts_are_a_sequence():
    role = Parts.of(Part(u, "a", f"p{u}", rows=u) for u in range(5)).role("a")
    assert role[-1] == role[4] == Part(4, "a", "p4", rows=4)
    assert [part.unit for part in role[1:3]] == [1, 2]
    assert role[2] in role
    with pytest.raises(IndexError):
        role[5]


def test_a_role_that_nobody_wrote_has_no_parts():
    assert list(Parts.of([]).role("ledger")) == []
    assert Parts.of([]).role("ledger").within(0, 1) == []


# ---------------------------------------------------------------- files with a digest of themselves

FIELDS = {"format": 1, "files": [["a", 1], ["\u00e9", 2]], "a": {"z": None, "b": 0.5}}


def test_checked_fields_round_trip():
    content = dump_checked(FIELDS)
    assert load_checked(content, "x") == FIELDS
    assert len(json.loads(content)["digest"]) == 32
    assert dump_checked(dict(reversed(FIELDS.items()))) == content


def test_every_flipped_bit_of_a_checked_file_is_noticed():
    content = dump_checked(FIELDS)
    equal = 0
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        with contextlib.suppress(DataError):
            assert load_checked(bytes(damaged), "in/x") == FIELDS
            equal += 1
    assert equal == 1  # the \\u00E9 that means what \\u00e9 does


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b'{"digest": 1}', b"[" * 9999]
)
def test_what_is_not_a_checked_file_is_an_error(content):
    with pytest.raises(DataError, match=r"^x: "):
        load_checked(content, "x")
