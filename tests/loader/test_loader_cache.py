"""The folder of ranges: whole entries or none, a bound that holds, nothing of others touched."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from corpuskit.errors import UsageError
from corpuskit.loader.cache import FOLDER, HEADER_BYTES, EntryLock, RangeCache, open_cache
from corpuskit.storage import faults

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1000
ENTRY = SIZE + HEADER_BYTES


def key_of(number: int) -> str:
    return f"{number:032x}"


def content_of(number: int) -> bytes:
    return bytes([number % 251]) * SIZE


def opened(folder: Path, num_entries: int = 100) -> RangeCache:
    """Return a cache with room for so many entries."""
    cache = open_cache(folder, num_entries * ENTRY)
    assert cache is not None
    return cache


def add(cache: RangeCache, number: int, *, is_reread: bool = False) -> None:
    lock = cache.get(key_of(number))
    assert isinstance(lock, EntryLock)
    cache.publish([(lock, memoryview(content_of(number)))], is_reread=is_reread)


def there(cache: RangeCache) -> set[int]:
    """Return the numbers of the entries."""
    return {int(path.stem, 16) for path in cache.folder.glob("*.range")}


def age(cache: RangeCache, *numbers: int) -> None:
    """Have entries look used long ago, in this order, and not just now."""
    for at, number in enumerate(numbers):
        os.utime(cache.folder / f"{key_of(number)}.range", (at, at))
    cache._recent.clear()
    cache._recent_bytes = 0


def size_of(folder: Path) -> int:
    """Return the bytes of the entries and of what is being written."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix)


def test_an_entry_comes_back_as_it_was(tmp_path: Path) -> None:
    add(opened(tmp_path), 7)
    found = opened(tmp_path).get(key_of(7))
    assert bytes(found) == content_of(7)
    assert opened(tmp_path).find(key_of(8)) is None


@pytest.mark.parametrize("at", [0, 8, HEADER_BYTES, HEADER_BYTES + 500, -1])
def test_an_entry_with_a_flipped_bit_is_dropped(tmp_path: Path, at: int) -> None:
    cache = opened(tmp_path)
    add(cache, 7)
    path = cache.folder / f"{key_of(7)}.range"
    stored = bytearray(path.read_bytes())
    stored[at] ^= 16
    path.write_bytes(stored)
    assert isinstance(cache.get(key_of(7)), EntryLock)
    assert there(cache) == set()


@pytest.mark.parametrize("size", [0, 10, HEADER_BYTES, ENTRY - 1])
def test_an_entry_that_was_cut_is_dropped(tmp_path: Path, size: int) -> None:
    cache = opened(tmp_path)
    add(cache, 7)
    os.truncate(cache.folder / f"{key_of(7)}.range", size)
    assert cache.find(key_of(7)) is None


def test_an_entry_in_the_place_of_another_is_dropped(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    add(cache, 7)
    (cache.folder / f"{key_of(7)}.range").rename(cache.folder / f"{key_of(8)}.range")
    assert cache.find(key_of(8)) is None


def test_the_bound_holds_at_every_write(tmp_path: Path) -> None:
    cache = opened(tmp_path, 20)
    for number in range(100):
        add(cache, number)
        assert size_of(cache.folder) <= cache.most_bytes
        assert number in there(cache)
    assert len(there(cache)) >= 18


def test_a_wrong_count_is_put_right(tmp_path: Path) -> None:
    cache = opened(tmp_path, 5)
    marker = cache.folder / "corpuskit-cache"
    title, _, _ = marker.read_bytes().rpartition(b"\n")
    marker.write_bytes(title + b"\nnot a number of 20 dig")
    for number in range(12):
        add(cache, number)
        assert size_of(cache.folder) <= cache.most_bytes


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = opened(tmp_path, 6)
    for number in range(6):
        add(cache, number)
    age(cache, 3, 0, 1, 2, 4, 5)
    add(cache, 6)
    assert there(cache) == {0, 1, 2, 4, 5, 6}


def test_what_is_needed_again_goes_last_and_the_last_used_first(tmp_path: Path) -> None:
    cache = opened(tmp_path, 6)
    for number in range(6):
        add(cache, number, is_reread=number != 5)
    age(cache, 0, 1, 2, 3, 4, 5)
    add(cache, 6)
    assert there(cache) == {0, 1, 2, 3, 4, 6}
    age(cache, 0, 1, 2, 3, 4)
    cache._reread.add(key_of(6))
    add(cache, 7, is_reread=True)
    assert there(cache) == {0, 1, 2, 3, 4, 7}


def test_what_was_used_just_now_stays(tmp_path: Path) -> None:
    cache = opened(tmp_path, 6)
    cache.keep_bytes = 2 * ENTRY
    for number in range(6):
        add(cache, number)
    for number in (0, 1):
        os.utime(cache.folder / f"{key_of(number)}.range", (0, 0))
        assert cache.find(key_of(number)) is not None
        os.utime(cache.folder / f"{key_of(number)}.range", (0, 0))
    add(cache, 6)
    assert {0, 1, 6} <= there(cache)


def test_an_entry_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    cache = open_cache(tmp_path, SIZE)
    assert cache is not None
    add(cache, 1)
    assert there(cache) == set()
    assert size_of(cache.folder) == 0


def test_what_others_put_there_is_left_alone(tmp_path: Path) -> None:
    cache = opened(tmp_path, 3)
    strange = [
        cache.folder / "precious.range",
        cache.folder / f"{key_of(1)}.RANGE",
        cache.folder / f"x{key_of(1)}.part",
        tmp_path / f"{key_of(1)}.range",
    ]
    for path in strange:
        path.write_bytes(b"mine")
    (cache.folder / f"{key_of(90)}.range").symlink_to(strange[0])
    cache = opened(tmp_path, 3)
    for number in range(10):
        add(cache, number)
    assert [path.read_bytes() for path in strange] == [b"mine"] * 4


@pytest.mark.parametrize("name", ["data.parquet", "corpuskit-cache"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / name).write_bytes(b"something else")
    with pytest.raises(UsageError, match="is not a cache of this version"):
        open_cache(tmp_path, 1000)
    assert (tmp_path / FOLDER / name).read_bytes() == b"something else"


def test_a_bound_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cache_bytes must be at least 1, got 0"):
        open_cache(tmp_path, 0)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """A disk that is full in the middle of an entry."""

    def fail(step: str, name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", name)

    faults.install_hook(fail)
    yield
    faults.install_hook(None)


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_one_warning(tmp_path: Path) -> None:
    cache = opened(tmp_path)

    def add_some() -> None:
        for number in range(3):
            if (lock := cache.get(key_of(number))) is not None:
                cache.publish([(lock, memoryview(content_of(number)))], is_reread=False)

    with pytest.warns(RuntimeWarning, match=r"can't be used: .*No space left") as warned:
        add_some()
    assert len(warned) == 1
    assert size_of(cache.folder) == 0
    assert cache.get(key_of(1)) is None


def test_a_folder_that_cannot_be_made_is_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="Ranges are read without it"):
        assert open_cache(tmp_path / "file", 1000) is None


def test_a_folder_that_goes_away_is_one_warning(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    (cache.folder / "corpuskit-cache").unlink()
    cache.folder.rmdir()
    with pytest.warns(RuntimeWarning, match="Ranges are read without it") as warned:
        found = [cache.get(key_of(number)) for number in range(3)]
    assert found == [None] * 3
    assert len(warned) == 1


def test_one_of_two_fetches_and_the_other_waits_for_it(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    lock = first.get(key_of(1))
    assert isinstance(lock, EntryLock)
    assert second.get(key_of(1), 0.02) is None
    later = threading.Timer(
        0.05, first.publish, ([(lock, memoryview(content_of(1)))],), {"is_reread": False}
    )
    later.start()
    found = second.get(key_of(1), 30)
    later.join()
    assert bytes(found) == content_of(1)


def test_a_lock_given_up_passes_to_the_next(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    lock = first.get(key_of(1))
    assert isinstance(lock, EntryLock)
    threading.Timer(0.05, first.release, (lock,)).start()
    assert isinstance(second.get(key_of(1), 30), EntryLock)


DIE_WITHIN_A_WRITE = """
import os, signal, sys
from pathlib import Path
from corpuskit.loader.cache import open_cache
from corpuskit.storage import faults

cache = open_cache(Path(sys.argv[1]), 100_000)
lock = cache.get("0" * 32)
other = cache.get("1" * 32)
faults.install_hook(lambda step, name: os.kill(os.getpid(), signal.SIGKILL))
cache.publish([(lock, memoryview(b"x" * 5000))], is_reread=False)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_nothing_that_is_used(tmp_path: Path) -> None:
    before = opened(tmp_path)
    add(before, 7)
    died = subprocess.run(
        [sys.executable, "-c", DIE_WITHIN_A_WRITE, str(tmp_path)], cwd=ROOT, check=False
    )
    assert died.returncode == -signal.SIGKILL
    left = sorted(path.name for path in before.folder.glob("*.part"))
    assert left == [f"{key_of(0)}.part", f"{'1' * 32}.part"]
    assert (before.folder / left[0]).stat().st_size > 2500
    # Its locks died with it: the entry can be locked by those who run, and made.
    assert before.find(key_of(0)) is None
    kept = before.get("1" * 32)
    assert isinstance(kept, EntryLock)
    after = opened(tmp_path)
    # The next start removes the leftover, and not the lock of one that lives.
    assert [path.name for path in after.folder.glob("*.part")] == [kept.name]
    before.release(kept)
    add(after, 0)
    assert there(after) == {0, 7}
    count = (after.folder / "corpuskit-cache").read_bytes()[-20:]
    assert int(count) == size_of(after.folder) == 2 * ENTRY


WRITE_ON = """
import sys
from pathlib import Path
from corpuskit.loader.cache import EntryLock, open_cache

cache = open_cache(Path(sys.argv[1]), 50_000)
for number in range(int(sys.argv[2]), 100_000, 3):
    key = f"{number // 2:032x}"
    found = cache.get(key, 5)
    content = key.encode() * 60
    if isinstance(found, EntryLock):
        cache.publish([(found, memoryview(content))], is_reread=bool(number % 2))
    else:
        assert found is None or bytes(found) == content
    print(number, flush=True)
"""


def size_between_writes(folder: Path) -> int:
    """Return the bytes of the entries while nobody may write: files are renamed meanwhile."""
    with (folder / "corpuskit-cache").open("rb") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        return size_of(folder)


@pytest.mark.slow
def test_the_bound_holds_over_all_processes_at_any_time(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITE_ON, str(tmp_path), str(start)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        for start in range(3)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for line in range(150):
            if line == 50:
                writers[0].kill()
            assert writers[1 + line % 2].stdout.readline()
            assert size_between_writes(tmp_path / FOLDER) <= 50_000
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert size_of(opened(tmp_path).folder) > 25_000
