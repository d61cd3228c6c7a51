"""What a loader delivers: the right rows to every rank, as the arrays that a model takes."""

from __future__ import annotations

import gc
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from loader_runs import PADDING, Shards, expected_order, write_plan, write_shards

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader
from corpuskit.loader.index import Remix
from corpuskit.loader.order import apportion

if TYPE_CHECKING:
    from pathlib import Path

    Rows = list[tuple[str, int]]

WHOLE = (
    "rank", "world_size", "micro_batches", "start_step", "read_ahead_bytes", "micro_batch_rows",
    "seq_len", "num_steps", "order_seed", "reader_threads", "max_open_parts", "cache_bytes",
)  # fmt: skip
"""Arguments that are whole numbers; the first five may not be None."""

MIX = [(300, {"web": 5, "books": 3}), (220, {"web": 1, "books": 2, "math": 4})]


def rows_of(loader: StreamingLoader, batch: dict[str, Any]) -> Rows:
    names = [loader.source_names[source] for source in batch["source_ids"]]
    return list(zip(names, batch["row_ids"].tolist(), strict=True))


def all_rows(run: Path, *args: Any, **options: Any) -> Rows:
    with StreamingLoader(run, *args, **options) as loader:
        return [row for batch in loader for row in rows_of(loader, batch)]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("corpuskit")]


def test_rows_come_in_the_documented_order(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    assert all_rows(run, 8) == [row[:2] for row in expected_order(run)]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_batch_holds_the_stored_tokens_cut_at_documents(tmp_path: Path, dtype: str) -> None:
    shards = write_shards(tmp_path, {"web": 200, "books": 70}, dtype=dtype, seq_len=24)
    run = write_plan(shards, [(250, {"web": 3, "books": 2})])
    with StreamingLoader(run, 10) as loader:
        for batch in loader:
            expected = expected_batch(shards, rows_of(loader, batch))
            for name, values in expected.items():
                assert np.asarray(batch[name]).tolist() == values, name


def expected_batch(shards: Shards, rows: Rows) -> dict[str, Any]:
    """Return the arrays of a batch, token by token."""
    length = shards.seq_len
    tokens, labels, positions, bounds, text_bytes = [], [], [], [], []
    for number, (source, row) in enumerate(rows):
        stored, segments = shards.tokens[source][row].tolist(), shards.segments[source][row]
        segment_of = [s for s in segments for _ in range(s.start, s.end)]
        tokens.append(stored[:-1])
        positions.append([at - segment_of[at].start for at in range(length)])
        labels.append(
            [
                stored[at + 1]
                if segment_of[at + 1] is segment_of[at] and not segment_of[at].flags & PADDING
                else -100
                for at in range(length)
            ]
        )
        bounds += [number * length + s.start for s in segments if s.start < length]
        text_bytes.append(sum(s.text_bytes for s in segments))
    bounds.append(len(rows) * length)
    return {
        "tokens": tokens,
        "labels": labels,
        "position_ids": positions,
        "cu_seqlens": bounds,
        "max_seqlen": max(np.diff(bounds)),
        "text_bytes": text_bytes,
    }


def test_arrays_have_the_promised_types(shards: Shards, run_dir: Path) -> None:
    with StreamingLoader(write_plan(shards, MIX, folder=run_dir), 4) as loader:
        batch = next(iter(loader))
    shapes = {
        name: (values.dtype.name, values.shape)
        for name, values in batch.items()
        if isinstance(values, np.ndarray) and name != "cu_seqlens"
    }
    wide, narrow = (4, shards.seq_len), (4,)
    assert shapes == {
        "tokens": ("int32", wide),
        "labels": ("int32", wide),
        "position_ids": ("int32", wide),
        "source_ids": ("int32", narrow),
        "row_ids": ("int64", narrow),
        "run_rows": ("int64", narrow),
        "text_bytes": ("int64", narrow),
    }
    assert batch["cu_seqlens"].dtype == np.int32
    assert type(batch["max_seqlen"]) is int


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_ranks_take_contiguous_slices_of_one_stream(
    shards: Shards, run_dir: Path, world_size: int, micro_batches: int
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    ranks = [
        all_rows(run, 24, rank, world_size, micro_batches=micro_batches)
        for rank in range(world_size)
    ]
    steps = [np.split(np.array(rows, object), len(rows) * world_size // 24) for rows in ranks]
    together = [tuple(row) for slices in zip(*steps, strict=True) for row in np.concatenate(slices)]
    assert together == [row[:2] for row in expected_order(run)][: len(together)]
    assert len(together) == 520 // 24 * 24


def test_batches_taken_together_can_be_kept(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with StreamingLoader(run, 8, read_ahead_bytes=1) as loader:
        kept = list(loader)
        for batch in kept:
            expected = expected_batch(shards, rows_of(loader, batch))
            assert batch["tokens"].tolist() == expected["tokens"]
            assert batch["position_ids"].tolist() == expected["position_ids"]


def test_a_batch_may_be_written_to(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with StreamingLoader(run, 8) as loader, StreamingLoader(run, 8) as other:
        for batch, same in zip(loader, other, strict=True):
            assert batch["tokens"].tolist() == same["tokens"].tolist()
            for values in batch.values():
                if isinstance(values, np.ndarray):
                    values[:] = -1


def test_stage_weights_hold_to_the_row(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    rows = all_rows(run, 4)
    for (num_rows, weights), first in zip(MIX, (0, 300), strict=True):
        names = [source for source, _ in rows[first : first + num_rows]]
        due = apportion(num_rows, [weights.get(name, 0) for name in shards.tokens])
        assert [names.count(name) for name in shards.tokens] == due.tolist()


def test_an_upsampled_source_gives_each_row_once_per_epoch(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, [(9 * 5 * 2, {"math": 1, "web": 1})], folder=run_dir)
    with StreamingLoader(run, 1) as loader:
        seen = [row for step in range(90) for row in loader.which(step) if row.source == "math"]
    times = {(row.epoch, row.source_row) for row in seen}
    assert len(seen) == 45
    assert times == {(epoch, row) for epoch in range(5) for row in range(9)}


def test_spans_to_skip_are_not_delivered(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, skip=[[10, 37], [295, 310]], folder=run_dir)
    expected = [
        row[:2]
        for counter, row in enumerate(expected_order(run))
        if not (10 <= counter < 37 or 295 <= counter < 310)
    ]
    with StreamingLoader(run, 2) as loader:
        batches = list(loader)
        assert [row for batch in batches for row in rows_of(loader, batch)] == expected
    counters = np.concatenate([batch["run_rows"] for batch in batches])
    assert set(range(520)) - set(counters.tolist()) == {*range(10, 37), *range(295, 310)}


def test_rows_beyond_the_last_whole_step_stay_undelivered(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with StreamingLoader(run, 100) as loader:
        assert loader.num_steps == 5
        assert len(list(loader)) == 5
        with pytest.warns(UserWarning, match="5 of 5 steps are done"):
            assert list(loader) == []


def test_start_and_end_are_steps_of_the_run(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    rows = all_rows(run, 8)
    assert all_rows(run, 8, start_step=20, num_steps=33) == rows[160:264]


@pytest.mark.parametrize("options", [{"num_steps": 66}, {"start_step": 66}, {"start_step": -1}])
def test_steps_beyond_the_plan_are_refused(
    shards: Shards, run_dir: Path, options: dict[str, int]
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with pytest.raises(UsageError, match="65"):
        StreamingLoader(run, 8, **options)


def test_a_world_size_that_does_not_divide_is_refused_with_those_that_do(
    shards: Shards, run_dir: Path
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with pytest.raises(
        UsageError, match=r"got 5 and 12\. Legal for 12 rows: \[1, 2, 3, 4, 6, 12\]"
    ):
        StreamingLoader(run, 12, world_size=5)
    with pytest.raises(UsageError, match=r"micro_batches .* 6 rows .* Legal: \[1, 2, 3, 6\]"):
        StreamingLoader(run, 12, world_size=2, micro_batches=4)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("reader_threads", 0),
        ("max_open_parts", 0),
        ("read_deadline_seconds", 0.0),
        ("read_deadline_seconds", float("inf")),
        ("read_deadline_seconds", float("nan")),
        ("start_step", 1.5),
        ("num_steps", 2.5),
        ("reader_threads", 10**9),
        ("read_ahead_bytes", 0),
        ("cache_bytes", 0),
        ("order_seed", -1),
        ("order_seed", 1 << 70),
        *((option, value) for option in WHOLE for value in (True, "2", 1.5, [2], float("nan"))),
        *((option, None) for option in WHOLE[:5]),
        *(("read_deadline_seconds", value) for value in ("2", True, None)),
        *(("fields", value) for value in (5, b"tokens", [5], [["tokens"]], ["tokens", None])),
        *(("skip", value) for value in (None, 5, "ab", [5], [(1,)], [(0, 2, "hash", 4)], [(0, 2.5)],
                                        [(0, 2, 5)], [(True, 2)], [("0", "2")], [(2, 2)])),
        *(("remix", value) for value in (True, {}, (5, {"web": 1}, {}))),
        *(("remix", Remix(*value)) for value in (
            (0, {"web": 1}, {}), ("5", {"web": 1}, {}), (5, {"web": 0}, {}), (5, {"web": -1}, {}),
            (5, {"web": 1.5}, {}), (5, {"no": 1}, {}), (5, [1], {}), (5, {"web": 1}, [1]),
            (5, {"web": 1}, {"web": 5}), (5, {"web": 1}, {"no": (0, 5)}),
        )),
        *(("cache_dir", value) for value in (5, b"x", ["x"], "\0")),
        *(("run_dir", value) for value in (None, 5, b"x", "\0")),
    ],
)  # fmt: skip
def test_options_out_of_bounds_are_refused(
    shards: Shards, run_dir: Path, option: str, value: Any
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with pytest.raises(UsageError, match=rf"^loader: {option} must .*, got .*\.$"):
        StreamingLoader(**{"run_dir": run, "global_batch_rows": 8, option: value})


def test_numbers_of_numpy_are_numbers(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    numbers = {**dict.fromkeys(WHOLE, 2), "rank": 1, "seq_len": 8, "num_steps": 20}
    del numbers["micro_batch_rows"]  # not beside micro_batches
    small: dict[str, Any] = {name: np.uint8(number) for name, number in numbers.items()}
    plain: dict[str, Any] = {**numbers}
    loaders = [
        StreamingLoader(run, np.int64(16), skip=np.array([[8, 16]]), **small),
        StreamingLoader(run, 16, skip=[(8, 16)], **plain),
    ]
    states = [json.dumps(loader.state_at(np.uint8(3))) for loader in loaders]  # type: ignore[arg-type]
    assert states[0] == states[1]
    found = [[rows_of(one, b) for b in one.batches_at(np.uint8(2))] for one in loaders]  # type: ignore[arg-type]
    assert found[0] == found[1]
    assert (
        StreamingLoader(run, 16, remix=Remix(np.int64(16), {"web": np.int64(1)}, {})).num_steps == 1
    )


def test_a_file_is_no_run(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    plan = run / "mix" / "plan.json"
    with pytest.raises(UsageError, match=r"plan\.json/mix/plan\.json: no such file\. Give the dir"):
        StreamingLoader(plan, 8)
    loader = StreamingLoader(run, 8)
    for ask in (loader.which, loader.batches_at, loader.state_at, loader.row_at, loader.mixture):
        with pytest.raises(UsageError, match="step must be a whole number, got True"):
            ask(True)
    for arguments in ({"rank": "0"}, {"rank": True}, {"row": 0.5}):
        with pytest.raises(UsageError, match=r"^which: (rank|row) must be a whole number, got"):
            loader.which(0, **arguments)
    with pytest.raises(
        UsageError, match=r"^occurrences: document must be an id or a key, got 1\.5"
    ):
        loader.occurrences(1.5)


def test_more_epochs_than_the_cap_are_refused_by_name(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, [(30, {"math": 1})], max_epochs=3.3, folder=run_dir)
    with pytest.raises(
        UsageError, match=r"30 rows of source 'math'.* 3\.33 epochs, max_epochs is 3\.3"
    ):
        StreamingLoader(run)


def test_as_many_epochs_as_the_cap_are_taken(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, [(27, {"math": 1})], max_epochs=3, folder=run_dir)
    assert len(all_rows(run, 9)) == 27


def test_a_plan_changed_by_hand_is_refused(shards: Shards, run_dir: Path) -> None:
    path = write_plan(shards, MIX, folder=run_dir) / "mix" / "plan.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DataError, match="plan_hash"):
        StreamingLoader(run_dir)


def test_a_plan_of_another_format_is_refused(shards: Shards, run_dir: Path) -> None:
    path = write_plan(shards, MIX, folder=run_dir) / "mix" / "plan.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(DataError, match=r"format must be 2, got 1\. Run the mix again"):
        StreamingLoader(run_dir)


def test_a_directory_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plan\.json: no such file"):
        StreamingLoader(tmp_path)


def test_a_plan_whose_sources_are_not_its_parts_is_refused(shards: Shards, run_dir: Path) -> None:
    path = write_plan(shards, MIX, folder=run_dir) / "mix" / "plan.json"
    plan = json.loads(path.read_text())
    plan["sources"][0]["rows"] += 1
    path.write_text(json.dumps(plan))
    with pytest.raises(DataError):
        StreamingLoader(run_dir)


def test_no_part_is_opened_before_it_is_needed(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    (run / "tokens").unlink()
    loader = StreamingLoader(run)
    with pytest.raises(DataError, match=r"part-00000-aa\.parquet"):
        next(iter(loader))


def test_few_open_parts_give_the_same_rows(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    one = all_rows(run, 8, max_open_parts=1, reader_threads=3, read_ahead_bytes=4000)
    assert one == all_rows(run, 8)


def test_each_row_group_is_read_once_in_stored_order(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {"web": 640, "books": 320}, part_rows=320)
    run = write_plan(shards, [(960, {"web": 2, "books": 1})])
    with StreamingLoader(run, 8) as loader:
        assert sum(len(batch["tokens"]) for batch in loader) == 960
        counts = loader.read_counts
    # Windows of 8 blocks hold 512 rows of web and 256 of books: whole row groups.
    assert (counts.rows_used, counts.rows_read, counts.row_groups) == (960, 960, 15)


def test_a_permuted_source_that_fits_is_read_few_times(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, {"web": 640}, unshuffled=("web",))
    run = write_plan(shards, [(640, {"web": 1})])
    with StreamingLoader(run, 8) as loader:
        list(loader)
        assert loader.read_counts.rows_read == 640


def test_closing_stops_every_thread(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    with StreamingLoader(run, 8, reader_threads=3) as loader:
        batches = iter(loader)
        next(batches)
        assert len(readers()) == 3
    assert readers() == []


def test_a_dropped_iterator_stops_its_threads(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    batches = iter(StreamingLoader(run, 8))
    next(batches)
    assert readers()
    del batches
    gc.collect()
    assert readers() == []


def test_a_dropped_loader_stops_the_thread_of_single_steps(shards: Shards, run_dir: Path) -> None:
    loader = StreamingLoader(write_plan(shards, MIX, folder=run_dir), 8)
    loader.batches_at(3)
    loader.batches_at(1)
    assert len(readers()) == 1
    del loader
    gc.collect()
    assert readers() == []


def test_an_iterator_of_a_moved_loader_says_so(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    loader = StreamingLoader(run, 8)
    begin = loader.state_dict()
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(begin)
    with pytest.raises(UsageError, match="Take a new one"):
        list(batches)


def test_a_closed_loader_goes_on_where_it_stood(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    loader = StreamingLoader(run, 8)
    first = rows_of(loader, next(iter(loader)))
    loader.close()
    second = rows_of(loader, next(iter(loader)))
    loader.close()
    assert first + second == all_rows(run, 8)[:16]


@pytest.mark.parametrize("seed", [None, 5])
def test_a_remix_repeats_its_windows_in_its_shares(
    shards: Shards, run_dir: Path, seed: int | None
) -> None:
    write_plan(shards, MIX, folder=run_dir)
    remix = Remix(96, {"web": 1, "books": 2}, {"books": (7, 20)})
    rows = all_rows(run_dir, 8, order_seed=seed, remix=remix)
    books = [row for name, row in rows if name == "books"]
    assert len(rows) == 96
    assert len(books) == 64
    assert set(books[:20]) == set(books[20:40]) == set(range(7, 27))
    with StreamingLoader(run_dir, 8, order_seed=seed, remix=remix) as loader:
        before = [row for _, batch in zip(range(5), loader, strict=False)
                  for row in rows_of(loader, batch)]  # fmt: skip
        state = loader.state_dict()
    with StreamingLoader(run_dir, 8, order_seed=seed, remix=remix) as loader:
        loader.load_state_dict(state)
        assert before + [row for batch in loader for row in rows_of(loader, batch)] == rows
    other = remix._replace(windows={"books": (8, 20)})
    with (
        StreamingLoader(run_dir, 8, order_seed=seed, remix=other) as loader,
        pytest.raises(UsageError, match="loader state"),
    ):
        loader.load_state_dict(state)


def test_a_remix_beyond_its_source_is_refused(shards: Shards, run_dir: Path) -> None:
    write_plan(shards, MIX, folder=run_dir)
    with pytest.raises(DataError, match="source 'books' has 20 rows"):
        StreamingLoader(run_dir, 8, remix=Remix(8, {"books": 1}, {"books": (10**6, 20)}))
