from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from corpuskit.formats.mapped import open_arrays, open_or_build, write_arrays

if TYPE_CHECKING:
    from pathlib import Path

    from corpuskit.formats.mapped import Pieces


def arrays(_: Path) -> Pieces:
    yield "numbers", [np.arange(5), np.arange(5, 9)]
    yield "bytes", [np.frombuffer(b"abc", np.uint8)]


def plain(found):
    return {name: array.tolist() for name, array in found.items()}


EXPECTED = {"numbers": list(range(9)), "bytes": list(b"abc")}


def test_pieces_become_arrays(tmp_path):
    write_arrays(tmp_path / "x.map", arrays(tmp_path))
    found = open_arrays(tmp_path / "x.map")
    assert plain(found) == EXPECTED
    assert not any(array.flags.writeable for array in found.values())
    assert all(array.ctypes.data % 64 == 0 for array in found.values())


def test_an_absent_file_is_made(tmp_path):
    place = tmp_path / "below" / "x.map"
    assert open_arrays(place) is None
    assert plain(open_or_build(place, arrays)) == EXPECTED
    assert plain(open_arrays(place)) == EXPECTED


def test_a_file_that_is_there_is_not_made_again(tmp_path):
    place = tmp_path / "x.map"
    write_arrays(place, arrays(tmp_path))
    assert plain(open_or_build(place, lambda _: pytest.fail("made again"))) == EXPECTED


def test_a_file_that_is_cut_off_counts_as_absent(tmp_path):
    place = tmp_path / "x.map"
    write_arrays(place, arrays(tmp_path))
    whole = place.read_bytes()
    for size in range(0, len(whole), 3):
        place.write_bytes(whole[:size])
        assert open_arrays(place) is None, size


def test_a_changed_byte_counts_as_absent(tmp_path):
    place = tmp_path / "x.map"
    write_arrays(place, arrays(tmp_path))
    whole = place.read_bytes()
    for at in range(0, len(whole), 3):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        found = open_arrays(place)
        assert found is None or plain(found) == EXPECTED, at


def test_a_damaged_file_is_made_again(tmp_path):
    place = tmp_path / "x.map"
    place.write_bytes(b"corpkmap" * 20)
    assert plain(open_or_build(place, arrays)) == EXPECTED


def test_what_a_killed_process_left_is_cleared(tmp_path):
    left = tmp_path / "making-x-killed"
    left.mkdir()
    (left / "x.map").write_bytes(b"half")
    open_or_build(tmp_path / "x.map", arrays)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.lock", "x.map"]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(_: Path) -> Pieces:
        yield "numbers", [np.arange(5)]
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        open_or_build(tmp_path / "x.map", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["x.lock"]


def _open(path):
    return plain(open_or_build(path, arrays))


@pytest.mark.slow
def test_processes_that_build_at_once_all_get_it(tmp_path):
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=spawned) as pool:
        found = list(pool.map(_open, [tmp_path / "x.map"] * 8))
    assert found == [EXPECTED] * 8
