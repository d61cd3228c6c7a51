"""What every store promises: a file system, S3, Google Cloud Storage, Azure Blob Storage."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from corpuskit.errors import DataError, UsageError
from corpuskit.storage import DamagedError, LocalStore, Store, faults, open_store

if TYPE_CHECKING:
    from pathlib import Path

LEAVING = ["", "/etc/passwd", "../x", "a/../../x", "..", "a/..", "a\0b"]


def test_what_was_put_is_read(store: Store):
    store.put("manifests/a.json", b"one")
    assert store.read("manifests/a.json") == b"one"
    assert store.size("manifests/a.json") == 3
    assert store.exists("manifests/a.json")


def test_a_put_replaces(store: Store):
    store.put("a", b"one")
    store.put("a", b"three")
    assert store.read("a") == b"three"


def test_an_empty_file_is_a_file(store: Store):
    store.put("a", b"")
    assert (store.size("a"), store.read("a")) == (0, b"")


def test_a_missing_file_is_a_data_error(store: Store):
    assert store.size("a/b") is None
    with pytest.raises(DataError, match=r"a/b: the file is missing"):
        store.read("a/b")
    with pytest.raises(FileNotFoundError), store.open("a/b") as file:
        file.read()


def test_a_file_is_not_a_folder(store: Store):
    store.put("a", b"1")
    assert store.size("a/b") is None


@pytest.mark.parametrize("name", LEAVING)
def test_names_that_leave_are_refused(store: Store, tmp_path: Path, name: str):
    made = tmp_path / "made"
    made.write_bytes(b"1")
    for act in (store.read, store.open, store.size, store.where, store.at):
        with pytest.raises(DataError):
            act(name)
    for write in (store.put, store.put_new):
        with pytest.raises(DataError):
            write(name, b"1")
    with pytest.raises(DataError):
        store.publish(made, name)
    with pytest.raises(DataError):
        store.delete([name])


def test_put_new_gives_way(store: Store):
    assert store.put_new("m/a", b"first")
    assert not store.put_new("m/a", b"second")
    assert store.read("m/a") == b"first"


def test_put_new_gives_way_to_the_same_bytes(store: Store):
    assert store.put_new("a", b"same")
    assert not store.put_new("a", b"same")


def test_one_of_many_threads_wins(store: Store):
    start = threading.Barrier(8)

    def race(number: int) -> bool:
        start.wait()
        return store.put_new("m/a", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(race, range(8)))
    assert won.count(True) == 1
    assert store.read("m/a") == b"%d" % won.index(True)


def _race(address: str, number: int) -> bool:
    return open_store(address).put_new("m/a", b"same")


def test_one_of_many_processes_wins(store: Store):
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        won = pool.starmap(_race, [(store.address, number) for number in range(8)])
    assert won.count(True) == 1


@pytest.mark.parametrize("size", [0, 1, 1000, (8 << 20) - 1, (8 << 20) + 1])
def test_what_was_published_is_read(store: Store, size: int):
    content = hashlib.shake_128(b"x").digest(size)
    with store.scratch() as scratch:
        made = scratch / "made"
        made.write_bytes(content)
        store.publish(made, "tokens/web/part-1.parquet")
    assert store.read("tokens/web/part-1.parquet") == content
    digest = xxhash.xxh3_128_hexdigest(content)
    assert store.digest("tokens/web/part-1.parquet") == digest


def test_a_file_of_another_run_is_adopted(store: Store, tmp_path: Path):
    other = LocalStore(tmp_path / "other")
    other.put("work/part-1.bin", b"one")
    digest = other.digest("work/part-1.bin")
    store.adopt(other.at("work/part-1.bin", digest=digest), "work/part-2.bin")
    other.delete(["work/part-1.bin"])
    assert store.read("work/part-2.bin") == b"one"
    store.adopt(store.at("work/part-2.bin", digest=digest), "work/part-3.bin")
    store.delete(["work/part-2.bin"])
    assert store.read("work/part-3.bin") == b"one"
    assert store.list("work") == ["work/part-3.bin"]


def test_a_damaged_file_of_another_run_is_not_adopted(store: Store, tmp_path: Path):
    other = LocalStore(tmp_path / "other")
    other.put("work/part-1.bin", b"one")
    digest = other.digest("work/part-1.bin")
    other.put("work/part-1.bin", b"two")
    with pytest.raises(DamagedError, match=r"work/part-1\.bin"):
        store.adopt(other.at("work/part-1.bin", digest=digest), "work/part-2.bin")
    assert not store.exists("work/part-2.bin")


def test_sizes_lists_what_lies_below(store: Store):
    for name in ("b/2", "b/1", "b/deep/er/3", "bb/4", "5"):
        store.put(name, b"x" * int(name[-1]))
    assert store.sizes("b") == {"b/1": 1, "b/2": 2, "b/deep/er/3": 3}
    assert list(store.sizes("b")) == sorted(store.sizes("b"))
    assert store.list("") == ["5", "b/1", "b/2", "b/deep/er/3", "bb/4"]
    assert store.list("none") == []


def test_top_names_what_lies_right_below(store: Store):
    assert store.top() == set()
    store.put("plan.json", b"{}")
    store.put("ledger/a", b"1")
    assert store.top() == {"plan.json", "ledger"}


def test_a_file_in_place_of_the_root_is_a_usage_error(store: Store):
    address = f"{store.address}/plan"
    store.put("plan", b"{}")
    with pytest.raises(UsageError, match="Set another output"):
        open_store(address).top()


def test_delete_takes_what_is_there_and_what_is_not(store: Store):
    store.put("a/b/1", b"1")
    store.put("a/2", b"1")
    store.delete(["a/b/1", "a/b/none", "none"])
    assert store.list("") == ["a/2"]
    assert store.top() == {"a"}
    store.delete(iter(["a/2"]))
    assert store.top() == set()
    store.delete([])


def test_odd_names_are_names(store: Store):
    names = ["a b", "a%20b", "a+b", "a?b*c[d]", "#a&b=c;", "\u00fc\u4e2d", "~a", "...", "a..b"]
    for name in names:
        store.put(f"x/{name}", name.encode())
    assert store.list("x") == sorted(f"x/{name}" for name in names)
    assert [store.read(f"x/{name}").decode() for name in names] == names
    store.delete(f"x/{name}" for name in names)
    assert store.list("x") == []


def test_ranges_are_read_from_any_position(store: Store):
    content = bytes(range(256)) * 5000
    store.put("a", content)
    with store.open("a") as file:
        assert file.size() == len(content)
        for begin, size in ((0, 10), (1_000_000, 300_000), (500, 0), (7, 100), (1_279_990, 100)):
            file.seek(begin)
            assert file.read(size) == content[begin : begin + size]
            assert file.tell() == begin + len(content[begin : begin + size])


def test_row_groups_are_read_by_arrow(store: Store):
    table = pa.table({"a": list(range(5000)), "b": [f"text {i}" for i in range(5000)]})
    with store.scratch() as scratch:
        pq.write_table(table, scratch / "t", row_group_size=500, compression="none")
        store.publish(scratch / "t", "documents/t.parquet")
    with store.open("documents/t.parquet") as source:
        reader = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
        assert reader.read_row_group(7, ["b"]).equals(table.slice(3500, 500).select(["b"]))
        assert reader.read().equals(table)


def test_scratch_is_private_and_goes(store: Store):
    with store.scratch() as one, store.scratch() as two:
        assert one != two
        (one / "x").write_bytes(b"1")
    assert not one.exists()
    assert not two.exists()


def _fail_in_scratch(store: Store, error: type[BaseException]) -> Path:
    with contextlib.suppress(error), store.scratch() as folder:
        (folder / "x").write_bytes(b"1")
        raise error
    return folder


def test_scratch_goes_when_its_user_fails(store: Store):
    folder = _fail_in_scratch(store, ZeroDivisionError)
    assert not folder.exists()


def test_what_the_dead_left_in_scratch_is_cleared(store: Store):
    folder = _fail_in_scratch(store, faults.Death)
    assert folder.exists()
    store.clear_scratch()
    assert not folder.exists()


def test_logs_is_a_folder_on_this_machine(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = store.logs()
    (folder / "worker.log").write_text("x")
    assert store.logs() == folder
    assert store.list("manifests") == []


def test_the_lock_is_held_by_one(store: Store):
    with (
        store.lock(),
        pytest.raises(UsageError, match="another run is using this directory"),
        open_like(store).lock(),
    ):
        pytest.fail("two hold the lock")


def test_the_lock_is_free_afterwards(store: Store):
    with store.lock():
        store.put("a", b"1")
    with open_like(store).lock():
        store.put("a", b"2")
    assert store.read("a") == b"2"


def test_a_store_survives_pickling(store: Store):
    store.put("a", b"1")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"1"


def test_faults_are_passed_in_order(store: Store, tmp_path: Path):
    made = tmp_path / "made"
    made.write_bytes(b"1")
    steps: list[str] = []
    faults.install_hook(lambda step, name: steps.append(step))
    try:
        store.put("a", b"1")
        store.publish(made, "b")
        store.read("a")
        store.delete(["a"])
    finally:
        faults.install_hook(None)
    known = [step for step in steps if step in faults.STEPS]
    assert known == steps
    ends = [step for step in steps if step.endswith((":before", ":after"))]
    assert ends == [
        "put:before", "put:after", "publish:before", "publish:after", "read:before",
        "delete:before", "delete:after",
    ]  # fmt: skip


@pytest.mark.parametrize("step", ["put:before", "publish:before"])
def test_who_dies_before_leaves_nothing(store: Store, tmp_path: Path, step: str):
    made = tmp_path / "made"
    made.write_bytes(b"1")
    faults.install_hook(lambda at, name: die() if at == step else None)
    try:
        with pytest.raises(faults.Death):
            store.put("a", b"1") if step.startswith("put") else store.publish(made, "a")
    finally:
        faults.install_hook(None)
    assert store.list("") == []
    assert store.size("a") is None


def die() -> None:
    raise faults.Death


def open_like(store: Store) -> Store:
    """Return the same store as another process would open it."""
    return pickle.loads(pickle.dumps(store))
