"""A loader that reads from object storage: the rows of a local one, few requests, named faults."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader, read_mix
from corpuskit.loader.cache import FOLDER
from corpuskit.loader.editing import add_sources, append, skip_rows
from corpuskit.loader.files import digest_bytes
from corpuskit.loader.parts import OpenParts
from corpuskit.storage import open_store
from tests.loader.loader_runs import Shards, part_of, write_index, write_plan, write_shards
from tests.patience import HANG_SECONDS
from tests.storage.conftest import make_bucket

if TYPE_CHECKING:
    from tests.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[2]
MIX = [(1500, {"web": 2, "books": 1})]
TAIL = 64 << 10

Rows = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Three parts, each larger than a tail; `books` is read more than once, out of order."""
    folder = tmp_path_factory.mktemp("run")
    rows = {"web": 1200, "books": 400}
    return write_shards(folder, rows, seq_len=256, part_rows=640, unshuffled=("books",))


@pytest.fixture(scope="module")
def run(shards: Shards) -> Path:
    return write_plan(shards, MIX)


@pytest.fixture
def far(run: Path, request: pytest.FixtureRequest) -> str:
    """The address of a copy of the run."""
    return upload(run, f"{make_bucket(getattr(request, 'param', 's3'), request)}/runs/one")


def upload(run: Path, address: str) -> str:
    store = open_store(address)
    for path in run.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(run).as_posix(), path.read_bytes())
    return address


def rows_of(address: str | Path, *args: Any, **options: Any) -> Rows:
    with StreamingLoader(address, 12, *args, **options) as loader:
        return taken(loader)


def taken(loader: StreamingLoader, steps: int | None = None) -> Rows:
    batches = list(itertools.islice(loader, steps))
    names = ("tokens", "labels", "position_ids", "row_ids", "run_rows", "text_bytes")
    return {name: np.concatenate([batch[name] for batch in batches]) for name in names}


def assert_same(found: Rows, expected: Rows) -> None:
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


def cached(tmp_path: Path, size: int = 64 << 20) -> dict[str, Any]:
    return {"cache_dir": tmp_path / "cache", "cache_bytes": size}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix)


def change(address: str, name: str, flip_at: int) -> None:
    store = open_store(address)
    content = bytearray(store.read(name))
    content[flip_at] ^= 4
    store.put(name, bytes(content))


def error_of(address: str, **options: Any) -> str:
    with StreamingLoader(address, 12, **options) as loader, pytest.raises(DataError) as caught:
        list(loader)
    return str(caught.value)


# Rows and requests


@pytest.mark.parametrize(
    ("far", "is_cached"),
    [("s3", False), ("s3", True), ("gs", True), ("az", True)],
    indirect=["far"],
)
def test_the_rows_are_those_of_a_local_run(
    far: str, run: Path, tmp_path: Path, is_cached: bool
) -> None:
    options = cached(tmp_path) if is_cached else {}
    for rank in range(2):
        expected = rows_of(run, rank, 2)
        for _ in range(2):
            assert_same(rows_of(far, rank, 2, read_ahead_bytes=200_000, **options), expected)


def test_a_run_is_resumed_at_any_step(far: str, run: Path, tmp_path: Path) -> None:
    whole = rows_of(run)
    with StreamingLoader(far, 12, **cached(tmp_path)) as first:
        begin = taken(first, 47)
        state = first.state_dict()
    with StreamingLoader(far, 12) as second:
        second.load_state_dict(state)
        rest = taken(second)
    assert_same({name: np.concatenate([begin[name], rest[name]]) for name in whole}, whole)


def test_a_part_costs_one_request_and_one_for_each_bundle(
    tmp_path: Path, s3: S3Server, bucket: str
):
    shards = write_shards(tmp_path, {"web": 1920}, seq_len=256, part_rows=640)
    far = upload(write_plan(shards, [(1920, {"web": 1})]), f"{bucket}/run")
    s3.requests()
    # Windows of 320 rows, five row groups: each is one request of about 170 kB.
    with StreamingLoader(far, 64, read_ahead_bytes=2 * 320 * 257 * 2) as loader:
        assert len(list(loader)) == 30
        counts = loader.read_counts
    small, tails, bundles = 3, 3, 6
    assert len(s3.requests()) == small + tails + bundles
    assert counts.requests == tails + bundles
    stored = sum(part["size_bytes"] for part in shards.index)
    assert stored - 3 * TAIL < counts.fetched_bytes - tails * TAIL < stored
    assert (counts.rows_read, counts.rows_used, counts.cache_hits) == (1920, 1920, 0)


def test_a_second_run_takes_row_groups_from_the_cache(far: str, tmp_path: Path) -> None:
    with StreamingLoader(far, 12, **cached(tmp_path)) as first:
        list(first)
        fetched = first.read_counts
    with StreamingLoader(far, 12, **cached(tmp_path)) as second:
        list(second)
        counts = second.read_counts
    # Only the tails: the ETag of a part is asked for in every run.
    assert (counts.requests, counts.fetched_bytes) == (3, 3 * TAIL)
    assert fetched.cache_hits == 0
    assert counts.cache_hits > 15


def test_ranks_of_a_machine_fetch_each_row_group_once(far: str, run: Path, tmp_path: Path) -> None:
    with StreamingLoader(far, 12) as alone:
        list(alone)
        once = alone.read_counts
    found: list[tuple[Rows, Any]] = [None, None, None]  # type: ignore[list-item]

    def iterate(rank: int) -> None:
        with StreamingLoader(far, 12, rank, 3, **cached(tmp_path)) as loader:
            found[rank] = (taken(loader), loader.read_counts)

    threads = [threading.Thread(target=iterate, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ranges = [counts.fetched_bytes - 3 * TAIL for _, counts in found]
    assert sum(ranges) == once.fetched_bytes - 3 * TAIL
    assert sum(counts.cache_hits for _, counts in found) > 30
    for rank, (rows, _) in enumerate(found):
        assert_same(rows, rows_of(run, rank, 3))


def test_side_columns_are_read_without_tokens(far: str, run: Path) -> None:
    with StreamingLoader(far, 12) as loader, StreamingLoader(run, 12) as local:
        assert loader.which(7) == local.which(7)
        document = local.which(7)[3].documents[0].id
        assert loader.occurrences(document) == local.occurrences(document)
    plan = read_mix(far)
    parts = OpenParts(plan, 1)
    table = parts.read(0, [1], ("doc_starts", "doc_keys"))
    parts.close()
    assert table.column_names == ["doc_starts", "doc_keys"]
    assert parts.transfers.requests == 2
    assert parts.transfers.fetched_bytes < TAIL + 10_000


def test_edits_are_read_from_object_storage(far: str, run: Path) -> None:
    plan = append(read_mix(far), skip_rows(read_mix(far), [(120, 240)]))
    assert open_store(far).list("edits") == ["edits/00001.json"]
    with StreamingLoader(far, 12) as loader:
        assert loader.plan.hash == plan.hash
        rows = taken(loader, 30)
    whole = rows_of(run)
    kept = np.r_[0:120, 240:480]
    assert_same(rows, {name: values[kept] for name, values in whole.items()})


def test_compressed_parts_give_the_same_rows(
    run: Path, bucket: str, tmp_path: Path, s3: S3Server
) -> None:
    shards = write_shards(
        tmp_path, {"web": 1200, "books": 400}, seq_len=256, part_rows=640, unshuffled=("books",)
    )
    for part in shards.index:
        path = tmp_path / part["path"]
        pq.write_table(
            pq.read_table(path), path, row_group_size=64, compression="zstd", compression_level=1,
            use_dictionary=False, column_encoding="PLAIN", write_page_checksum=True,
            data_page_size=1 << 30,
        )  # fmt: skip
        part["size_bytes"], part["digest"] = path.stat().st_size, digest_bytes(path.read_bytes())
    write_index(shards)
    compressed = write_plan(shards, MIX)
    expected = rows_of(run)
    assert_same(rows_of(compressed), expected)
    far = upload(compressed, f"{bucket}/run")
    assert_same(rows_of(far, **cached(tmp_path)), expected)
    assert_same(rows_of(far, **cached(tmp_path)), expected)


ALONE = """
import sys

class OnlyTheThree:
    known = {"corpuskit", "numpy", "pyarrow", "obstore", *sys.stdlib_module_names}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.known and not name.startswith("_sysconfigdata"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyTheThree())
from corpuskit.loader import StreamingLoader
with StreamingLoader(sys.argv[1], 12, cache_dir=sys.argv[2]) as loader:
    print(sum(1 for _ in loader), len(loader.which(3)))
"""


def test_obstore_is_all_that_it_takes_beside_numpy_and_pyarrow(far: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", ALONE, far, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("125 12\n", "")


def test_nothing_is_written_without_a_cache(
    far: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("TMPDIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(home)
    with StreamingLoader(far, 12) as loader:
        list(loader)
        loader.which(3)
    assert list(home.iterdir()) == []


# Faults


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_flipped_bit_is_reported_with_its_place(
    far: str, shards: Shards, tmp_path: Path, is_cached: bool
) -> None:
    name = shards.index[1]["path"]
    footer = pq.read_metadata(shards.path / name).row_group(4)
    change(far, name, footer.column(0).data_page_offset + 9_000)
    message = error_of(far, **(cached(tmp_path) if is_cached else {}))
    assert message.startswith(f"{far}/{name}: row group 4: source 'web' can't be read, twice")
    assert "CRC" in message


def test_what_failed_its_check_is_not_kept(far: str, shards: Shards, tmp_path: Path) -> None:
    name = shards.index[0]["path"]
    footer = pq.read_metadata(shards.path / name).row_group(0)
    change(far, name, footer.column(0).data_page_offset + 9_000)
    error_of(far, **cached(tmp_path))
    change(far, name, footer.column(0).data_page_offset + 9_000)
    assert_same(rows_of(far, **cached(tmp_path)), rows_of(shards.path))


def test_a_part_of_another_size_is_reported(far: str, shards: Shards) -> None:
    name = shards.index[0]["path"]
    open_store(far).put(name, open_store(far).read(name) + b"more")
    message = error_of(far)
    size = shards.index[0]["size_bytes"]
    assert message.startswith(f"{far}/{name}: row group 0: source 'web' can't be read, twice: ")
    assert f"it has {size + 4} bytes, the index says {size}" in message


@pytest.mark.parametrize("content", [b"", b"PAR1", None])
def test_a_part_that_is_cut_or_gone_is_reported(
    far: str, shards: Shards, content: bytes | None
) -> None:
    name = shards.index[0]["path"]
    if content is None:
        open_store(far).delete([name])
    else:
        open_store(far).put(name, content)
    message = error_of(far)
    assert message.startswith(f"{far}/{name}: row group 0: source 'web' can't be read, twice: ")
    assert ("no such object" if content is None else f"it has {len(content)} bytes") in message


def test_a_part_that_is_replaced_meanwhile_is_reported(tmp_path: Path, bucket: str) -> None:
    shards = write_shards(tmp_path, {"web": 640}, seq_len=256, part_rows=640)
    far = upload(write_plan(shards, [(640, {"web": 1})]), f"{bucket}/run")
    name = shards.index[0]["path"]
    with StreamingLoader(far, 64, read_ahead_bytes=1, reader_threads=1) as loader:
        batches = iter(loader)
        next(batches)
        # Only a column that this does not read: nothing but the ETag tells.
        chunk = pq.read_metadata(tmp_path / name).row_group(0).column(2)
        assert chunk.path_in_schema.startswith("doc_keys")
        change(far, name, chunk.data_page_offset + 60)
        with pytest.raises(DataError, match="was replaced since rows of it were read") as caught:
            list(batches)
    assert str(caught.value).startswith(f"{far}/{name}: row group ")


def test_passing_faults_are_not_noticed(far: str, run: Path, s3: S3Server) -> None:
    expected = rows_of(run)
    for kind in ("503", "lose", "cut"):
        s3.fail(kind, "GET", "tokens", num=2)
        assert_same(rows_of(far), expected)
        assert s3.calm() == 0


def test_a_server_that_stops_answering_is_an_error_within_the_deadline(
    far: str, s3: S3Server
) -> None:
    with StreamingLoader(far, 12, read_deadline_seconds=2.0, read_ahead_bytes=1) as loader:
        batches = iter(loader)
        next(batches)
        s3.requests()
        s3.fail("hang", "GET", "part-00640", num=10_000, seconds=20)
        begun = time.monotonic()
        with pytest.raises(DataError) as caught:
            list(batches)
        waited = time.monotonic() - begun
    assert str(caught.value).startswith(f"{far}/tokens/web/part-00640-aa.parquet: row group 0: ")
    assert "source 'web'" in str(caught.value)
    assert waited < 10
    assert len([path for _, path in s3.requests() if "part-00640" in path]) < 20


def test_a_missing_bucket_and_a_missing_run_are_named(bucket: str) -> None:
    for address in (f"{bucket}/nothing", "s3://there-is-none/run"):
        with pytest.raises(UsageError, match=f"{address}/mix/plan.json: no such file"):
            StreamingLoader(address)


FORK = """
import os, sys
from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader
loader = StreamingLoader(sys.argv[1], 12)
next(iter(loader))
if os.fork() == 0:
    for again in (lambda: next(iter(loader)), lambda: StreamingLoader(sys.argv[1], 12)):
        try:
            again()
        except UsageError as error:
            print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_is_refused_and_does_not_hang(far: str) -> None:
    command = [sys.executable, "-c", FORK, far]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    )
    assert done.stdout.count("was forked from one that has used object storage") == 2


# The cache


def test_a_flipped_bit_in_the_cache_is_fetched_again(far: str, run: Path, tmp_path: Path) -> None:
    rows_of(far, **cached(tmp_path))
    entries = sorted((tmp_path / "cache" / FOLDER).glob("*.range"))
    for path in entries[::2]:
        stored = bytearray(path.read_bytes())
        stored[len(stored) // 2] ^= 1
        path.write_bytes(stored)
    with StreamingLoader(far, 12, **cached(tmp_path)) as loader:
        assert_same(taken(loader), rows_of(run))
        counts = loader.read_counts
    assert counts.requests > 3
    assert 0 < counts.cache_hits < len(entries)
    assert sorted((tmp_path / "cache" / FOLDER).glob("*.range")) == entries


def test_the_least_bound_is_named_and_will_do(far: str, run: Path, tmp_path: Path) -> None:
    options = {"read_ahead_bytes": 100_000}
    with pytest.raises(UsageError, match=r"cache_bytes must be at least \d+, what two") as caught:
        StreamingLoader(far, 12, **options, **cached(tmp_path, 1000))
    least = int(str(caught.value).partition("least ")[2].partition(",")[0])
    with pytest.raises(UsageError):
        StreamingLoader(far, 12, **options, **cached(tmp_path, least - 1))
    assert least < 700_000
    assert_same(rows_of(far, **options, **cached(tmp_path, least)), rows_of(run))
    assert 0 < size_of(tmp_path / "cache" / FOLDER) <= least


STREAM = """
import sys
from corpuskit.loader import StreamingLoader
far, rank, cache, size = sys.argv[1:]
with StreamingLoader(
    far, 12, int(rank), 2, cache_dir=cache, cache_bytes=int(size), read_ahead_bytes=60_000
) as loader:
    for batch in loader:
        print(int(batch["tokens"].sum()), flush=True)
"""


def test_the_bound_holds_with_processes_that_are_killed(
    far: str, run: Path, tmp_path: Path
) -> None:
    def start(rank: int) -> subprocess.Popen[bytes]:
        arguments = [far, str(rank), str(tmp_path / "cache"), "700000"]
        command = [sys.executable, "-W", "error", "-c", STREAM, *arguments]
        return subprocess.Popen(command, cwd=ROOT, env=os.environ, stdout=subprocess.PIPE)

    killed = start(0)
    assert killed.stdout is not None
    for _ in range(20):
        killed.stdout.readline()
    killed.kill()
    killed.communicate()
    ranks = [start(rank) for rank in range(2)]
    sums = [[int(line) for line in rank.communicate()[0].split()] for rank in ranks]
    for rank, found in enumerate(sums):
        tokens = rows_of(run, rank, 2)["tokens"].reshape(125, -1)
        assert found == tokens.sum(axis=1).tolist()
    folder = tmp_path / "cache" / FOLDER
    assert 300_000 < size_of(folder) <= 700_000
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("is_far", [False, True])
def test_sources_of_a_run_here_or_there_are_added_to_one_in_object_storage(
    is_far: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bucket = make_bucket("s3", request)
    whole = write_shards(tmp_path / "whole", {"web": 150, "code": 70})
    mine, theirs = (part_of(whole, tmp_path / name, {name: name}) for name in ("web", "code"))
    run = upload(write_plan(mine, [(90, {"web": 1})]), f"{bucket}/runs/web")
    other: str | Path = write_plan(theirs, [(9, {"code": 1})])
    if is_far:
        other = upload(Path(other), f"{bucket}/runs/code")
    weights = {"web": 1, "code": 2}
    planned = write_plan(whole, [(24, {"web": 1}), (60, weights)])
    plan, added = read_mix(run), read_mix(other)
    append(plan, add_sources(plan, 24, added, weights, rows=60), added)
    expected = rows_of(planned)
    assert_same(rows_of(run), expected)
    assert_same(rows_of(run, **cached(tmp_path)), expected)
    with StreamingLoader(run, 12) as loader, StreamingLoader(planned, 12) as same:
        assert loader.which(4)[1].documents[0].id == same.which(4)[1].documents[0].id
