"""What breaks on disk or hangs is named, in time, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from loader_runs import Shards, write_index, write_part, write_plan, write_shards

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader
from tests.patience import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
MIX = [(400, {"web": 1})]


@pytest.fixture
def own_shards(tmp_path: Path) -> Shards:
    """Shards that a test may break: four parts of one source, read in stored order."""
    return write_shards(tmp_path, {"web": 400}, part_rows=100)


def part_of(shards: Shards, number: int) -> Path:
    return shards.path / shards.index[number]["path"]


def flip(path: Path, at: int, mask: int = 1) -> None:
    stored = bytearray(path.read_bytes())
    stored[at] ^= mask
    path.write_bytes(stored)


def chunks_of(path: Path, group: int) -> dict[str, range]:
    """Return where each column of a row group lies in the file."""
    footer = pq.read_metadata(path).row_group(group)
    columns = (footer.column(i) for i in range(footer.num_columns))
    return {
        column.path_in_schema.partition(".")[0]: range(
            column.data_page_offset, column.data_page_offset + column.total_compressed_size
        )
        for column in columns
    }


def steps_before_error(run: Path, **options: float) -> tuple[int, str]:
    """Return how many steps a loader of batches of 4 delivers, and the error that ends it."""
    with StreamingLoader(run, 4, **options) as loader, pytest.raises(DataError) as caught:
        for _ in loader:
            pass
    return loader.step, str(caught.value)


@pytest.mark.parametrize("column", ["tokens", "doc_starts", "text_bytes", "flags"])
def test_a_flipped_bit_is_reported_with_its_place(own_shards: Shards, column: str) -> None:
    run = write_plan(own_shards, MIX)
    path = part_of(own_shards, 2)
    flip(path, chunks_of(path, 1)[column][-3])
    steps, message = steps_before_error(run)
    assert steps == 264 // 4
    assert message.startswith(f"{path}: row group 1: source 'web' can't be read, twice")
    assert "CRC" in message


def test_a_flipped_byte_in_a_page_header_never_changes_a_batch(own_shards: Shards) -> None:
    run = write_plan(own_shards, [(100, {"web": 1})])
    path = part_of(own_shards, 0)
    sound = path.read_bytes()
    stored = own_shards.tokens["web"]
    for column in chunks_of(path, 0).values():
        for at in column[:40]:
            path.write_bytes(sound)
            flip(path, at, mask=0x15)
            try:
                with StreamingLoader(run, 100, reader_threads=1) as loader:
                    batch = next(iter(loader))
            except DataError:
                continue
            assert (batch["tokens"] == stored[batch["row_ids"], :-1]).all()
            assert batch["text_bytes"].tolist() == [
                sum(segment.text_bytes for segment in own_shards.segments["web"][row])
                for row in batch["row_ids"]
            ]


@pytest.mark.parametrize("size_bytes", [0, 4, 1000, -1])
def test_a_truncated_part_is_reported_with_its_path(own_shards: Shards, size_bytes: int) -> None:
    run = write_plan(own_shards, MIX)
    path = part_of(own_shards, 1)
    os.truncate(path, size_bytes % path.stat().st_size)
    steps, message = steps_before_error(run)
    assert steps == 25
    assert message.startswith(f"{path}: row group 0: source 'web' can't be read, twice: it has ")


def test_a_part_in_the_place_of_another_is_reported(own_shards: Shards) -> None:
    path = part_of(own_shards, 1)
    path.write_bytes(part_of(own_shards, 2).read_bytes())
    own_shards.index[1]["size_bytes"] = path.stat().st_size
    write_index(own_shards)
    _, message = steps_before_error(write_plan(own_shards, MIX))
    assert message.startswith(f"{path}: row group 0: source 'web' can't be read, twice: its footer")
    assert "'first_row': 200" in message


@pytest.mark.parametrize("start", [1, -1, 17])
def test_segments_that_are_not_of_the_row_are_reported(own_shards: Shards, start: int) -> None:
    first = own_shards.segments["web"][170][0]
    own_shards.segments["web"][170][0] = dataclasses.replace(first, start=start)
    own_shards.index[1] = write_part(own_shards, "web", 100, 200)
    write_index(own_shards)
    steps, message = steps_before_error(write_plan(own_shards, MIX))
    assert steps == 164 // 4
    assert message.startswith(f"{part_of(own_shards, 1)}: row group 1: source 'web': doc")
    assert "doc_starts, text_bytes and flags must describe rows of 17 tokens" in message


def test_steps_before_a_broken_row_group_are_delivered(own_shards: Shards) -> None:
    run = write_plan(own_shards, MIX)
    path = part_of(own_shards, 3)
    flip(path, chunks_of(path, 1)["tokens"][500])
    assert {steps_before_error(run, reader_threads=n)[0] for n in (1, 2, 4)} == {364 // 4}


def test_a_part_restored_before_its_second_read_is_read(
    own_shards: Shards, caplog: pytest.LogCaptureFixture
) -> None:
    run = write_plan(own_shards, [(100, {"web": 1})])
    path = part_of(own_shards, 0)
    sound = path.read_bytes()
    flip(path, chunks_of(path, 1)["tokens"][500])
    # One row group per read and windows of one step: group 1 is read with the handle of group 0.
    with StreamingLoader(run, 4, reader_threads=1, read_ahead_bytes=1) as loader:
        batches = iter(loader)
        next(batches)
        copy = path.with_suffix(".copy")
        copy.write_bytes(sound)
        copy.replace(path)
        rest = list(batches)
    assert len(rest) == 24
    assert "a read of token rows failed and is tried again" in caplog.text


@pytest.fixture
def hanging_part(own_shards: Shards) -> Iterator[Path]:
    """A part whose opening blocks, as on storage that does not answer: a FIFO without a writer."""
    path = part_of(own_shards, 1)
    path.unlink()
    os.mkfifo(path)
    yield path
    # Let the threads go that wait for a writer.
    for _ in range(100):
        if not any(thread.name.startswith("corpuskit") for thread in threading.enumerate()):
            break
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        time.sleep(0.05)


def test_a_read_that_hangs_is_an_error_within_its_deadline(
    own_shards: Shards, hanging_part: Path
) -> None:
    run = write_plan(own_shards, MIX)
    begun = time.monotonic()
    steps, message = steps_before_error(run, read_deadline_seconds=0.4)
    assert steps == 25
    where = f"{hanging_part}: row group 0 to 1: source 'web'"
    assert message.startswith(f"{where} was not read within 0.4 ")
    assert time.monotonic() - begun < 30


def test_a_step_out_of_turn_has_the_same_deadline(own_shards: Shards, hanging_part: Path) -> None:
    run = write_plan(own_shards, MIX)
    with StreamingLoader(run, 4, read_deadline_seconds=0.3) as loader:
        began = time.monotonic()
        with pytest.raises(DataError, match=r"was not read within 0\.3 seconds"):
            loader.batches_at(26)
        assert time.monotonic() - began < HANG_SECONDS
        assert loader.batches_at(2)[0]["row_ids"].tolist() == [8, 9, 10, 11]


def test_a_broken_row_group_stops_only_the_steps_that_need_it(own_shards: Shards) -> None:
    run = write_plan(own_shards, MIX)
    path = part_of(own_shards, 2)
    flip(path, chunks_of(path, 1)["tokens"][500])
    with StreamingLoader(run, 4) as loader:
        for step in (70, 10, 70, 60):
            if step == 70:
                with pytest.raises(DataError, match=r"row group 1: .* twice"):
                    loader.batches_at(step)
            else:
                assert loader.batches_at(step)[0]["row_ids"][0] == 4 * step


def test_which_has_the_same_deadline(own_shards: Shards, hanging_part: Path) -> None:
    loader = StreamingLoader(write_plan(own_shards, MIX), 4, read_deadline_seconds=0.3)
    with pytest.raises(DataError, match=r"row group 0: source 'web' was not read within 0\.3"):
        loader.which(25)


READ_FOR_EVER = """
import sys
from corpuskit.loader import StreamingLoader
begin = StreamingLoader(sys.argv[1]).state_dict()
while True:
    loader = StreamingLoader(sys.argv[1], 8, reader_threads=3)
    for batch in loader:
        print(batch["tokens"].sum(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_a_killed_reader_leaves_nothing_behind(own_shards: Shards, tmp_path: Path) -> None:
    run = write_plan(own_shards, MIX)
    temporary = tmp_path / "temporary"
    temporary.mkdir()

    def files() -> set[str]:
        mine = os.getuid()
        shared = {p.name for p in Path("/dev/shm").iterdir() if p.stat().st_uid == mine}
        # Locks of processes that other tests spawn meanwhile; a reader has none.
        shared = {name for name in shared if not name.startswith("sem.mp-")}
        return shared | {str(path) for path in tmp_path.rglob("*")}

    before = files()
    reader = subprocess.Popen(
        [sys.executable, "-c", READ_FOR_EVER, str(run)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
    )
    assert reader.stdout is not None
    for _ in range(60):
        reader.stdout.readline()
    reader.send_signal(signal.SIGKILL)
    reader.communicate()
    assert reader.returncode == -signal.SIGKILL
    assert files() == before


def test_memory_does_not_grow_with_the_rows_read(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {"web": 640}, seq_len=512, unshuffled=("web",))
    run = write_plan(shards, [(40_000, {"web": 1})])
    sizes = []
    with StreamingLoader(run, 64, read_ahead_bytes=1 << 20) as loader:
        for step, batch in enumerate(loader):
            assert batch["tokens"].shape == (64, 512)
            if step % 100 == 99:
                sizes.append(int(Path("/proc/self/statm").read_text().split()[1]))
    grown_bytes = (np.array(sizes[2:]) - sizes[1]).max() * os.sysconf("SC_PAGE_SIZE")
    assert grown_bytes < 8 << 20


END_EARLY = """
import builtins, sys
from corpuskit.loader import StreamingLoader
builtins.kept = iter(StreamingLoader(sys.argv[1], 8, reader_threads=8))
next(builtins.kept)
"""

FORK_EARLY = """
import os, sys
from corpuskit.loader import StreamingLoader
batches = iter(StreamingLoader(sys.argv[1], 8, reader_threads=8))
next(batches)
if os.fork() == 0:
    del batches
    sys.exit(0)
assert os.wait()[1] == 0
next(batches)
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [END_EARLY, FORK_EARLY], ids=["end", "fork"])
def test_a_program_may_end_while_rows_are_read(tmp_path: Path, program: str) -> None:
    # Fifty parts that the first block needs, so that the threads are busy when the program ends.
    shards = write_shards(tmp_path, {"web": 3200}, part_rows=64)
    run = write_plan(shards, [(3200, {"web": 1})])
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(run)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_SECONDS,
        )
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("ftp://bucket/run", "ftp:// is not supported"),
        ("s3:/bucket/run", "one slash is missing"),
        (Path("s3://bucket/run"), "one slash is missing"),
    ],
)
def test_an_address_of_no_use_is_refused_by_name(address: str | Path, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        StreamingLoader(address, global_batch_rows=8)
