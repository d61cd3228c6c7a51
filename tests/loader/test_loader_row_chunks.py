"""Rows in pieces, growing batches, states of any step: other cuts of the same stream."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from loader_runs import Shards, expected_order, write_plan

from corpuskit.cli.main import main
from corpuskit.errors import UsageError
from corpuskit.loader import StreamingLoader

if TYPE_CHECKING:
    from pathlib import Path

MIX = [(200, {"web": 5, "books": 3}), (100, {"web": 1, "books": 2, "math": 4})]


@pytest.fixture
def run(shards: Shards, run_dir: Path) -> Path:
    return write_plan(shards, MIX, folder=run_dir)


def stacked(loader: StreamingLoader, name: str) -> Any:
    return np.concatenate([batch[name] for batch in loader])


@pytest.mark.parametrize("pieces", [2, 4, 16])
def test_pieces_are_the_row_cut_where_it_is(run: Path, shards: Shards, pieces: int) -> None:
    whole = StreamingLoader(run, 4)
    length = shards.seq_len // pieces
    cut = StreamingLoader(run, 4 * pieces, seq_len=length)
    assert cut.num_steps == whole.num_steps
    for one, other in zip(whole, cut, strict=True):
        for name in ("tokens", "labels"):
            assert np.array_equal(one[name].reshape(-1, length), other[name])
        assert np.array_equal(np.repeat(one["row_ids"], pieces), other["row_ids"])
        assert other["row_parts"].tolist() == list(range(pieces)) * 4
        sizes = other["text_bytes"].reshape(-1, pieces)
        assert np.array_equal(sizes.sum(1), one["text_bytes"])
        assert (sizes >= 0).all()
        seams = np.union1d(one["cu_seqlens"], np.arange(0, 4 * shards.seq_len + 1, length))
        assert np.array_equal(other["cu_seqlens"], seams)
        assert other["max_seqlen"] == np.diff(seams).max() <= length
        starts = np.repeat(seams[:-1], np.diff(seams))
        positions = np.arange(4 * shards.seq_len) - starts
        assert np.array_equal(other["position_ids"].reshape(-1), positions)


def test_a_length_that_does_not_divide_is_refused_with_those_that_do(run: Path) -> None:
    with pytest.raises(UsageError, match=r"got 5\. Legal: 16, 8, 4, 2, 1\."):
        StreamingLoader(run, 8, seq_len=5)


def test_a_rank_takes_whole_rows(run: Path) -> None:
    with pytest.raises(UsageError, match="rows come in 4s from a stored row"):
        StreamingLoader(run, 8, 0, 4, seq_len=4)


def test_which_and_when_count_pieces(run: Path) -> None:
    loader = StreamingLoader(run, 8, seq_len=4)
    for row in loader.which(3):
        spans = [(span.first_token, span.num_tokens) for span in row.documents]
        assert all(first >= 0 and first + size <= 5 for first, size in spans)
        for span in row.documents:
            seen = {(occurrence.step, occurrence.row) for occurrence in loader.occurrences(span.id)}
            if span.first_token < 4:  # the last token is a label of this piece only
                assert (3, row.row) in seen


def test_documents_of_pieces_are_those_of_the_row(run: Path) -> None:
    whole, cut = StreamingLoader(run, 2), StreamingLoader(run, 8, seq_len=4)
    for row in whole.which(7):
        pieces = [piece for piece in cut.which(7) if piece.run_row == row.run_row]
        first = min(piece.row for piece in pieces)
        tokens = {
            (span.key, 4 * (piece.row - first) + span.first_token + i)
            for piece in pieces
            for span in piece.documents
            for i in range(span.num_tokens)
        }
        assert tokens == {
            (span.key, span.first_token + i)
            for span in row.documents
            for i in range(span.num_tokens)
        }


def test_a_ramp_takes_the_same_rows_in_growing_steps(run: Path) -> None:
    loader = StreamingLoader(run, [(0, 2), (5, 6), (20, 10)])
    sizes = [len(batch["row_ids"]) for batch in loader]
    assert sizes == [2] * 5 + [6] * 15 + [10] * 20
    found = stacked(StreamingLoader(run, [(0, 2), (5, 6), (20, 10)]), "run_rows")
    assert found.tolist() == list(range(300))


def test_micro_batches_of_so_many_rows_grow_in_number(run: Path) -> None:
    loader = StreamingLoader(run, [(0, 4), (3, 8)], 1, 2, micro_batch_rows=2)
    steps = [(batch["step"], len(batch["row_ids"])) for batch in loader]
    assert steps[:5] == [(0, 2), (1, 2), (2, 2), (3, 2), (3, 2)]


def test_steps_of_a_ramp_are_found_both_ways(run: Path) -> None:
    loader = StreamingLoader(run, [(0, 2), (5, 6)])
    order = expected_order(run)
    (row,) = loader.which(7, row=1)
    counter = 5 * 2 + 2 * 6 + 1
    assert (row.run_row, row.source, row.source_row) == (counter, *order[counter][:2])
    assert row.documents
    for span in row.documents:
        assert (7, 1) in {
            (occurrence.step, occurrence.row) for occurrence in loader.occurrences(span.id)
        }


@pytest.mark.parametrize(
    "ramp", [[], [(1, 4)], [(0, 4), (0, 8)], [(0, 4), (5, 0)], [(0, 8.5)], [8, 9], "8", 8.0]
)
def test_a_ramp_that_is_none_is_refused(run: Path, ramp: Any) -> None:
    with pytest.raises(UsageError, match="global_batch_rows must be"):
        StreamingLoader(run, ramp)


def test_the_world_must_divide_every_size_of_a_ramp(run: Path) -> None:
    with pytest.raises(UsageError, match="got 4 and 6"):
        StreamingLoader(run, [(0, 8), (10, 6)], 0, 4)


def test_a_state_of_any_step_needs_no_iteration(run: Path) -> None:
    loader = StreamingLoader(run, [(0, 2), (5, 6)])
    states = [loader.state_at(step) for step in range(loader.num_steps + 1)]
    assert states[0] == loader.state_dict()
    for batch in loader:
        assert loader.state_dict() == states[batch["step"] + 1]


@pytest.mark.parametrize("method", ["state_at", "row_at", "mixture"])
def test_what_comes_before_a_step_can_be_asked_of_the_end_and_no_later(
    run: Path, method: str
) -> None:
    loader = StreamingLoader(run, [(0, 2), (5, 6)])
    end = loader.num_steps
    getattr(loader, method)(end)
    for step in (-1, end + 1):
        with pytest.raises(UsageError, match=rf"{method}: step must be in \[0, {end + 1}\), got"):
            getattr(loader, method)(step)


@pytest.mark.parametrize(
    "options", [{"rank": 1, "world_size": 2, "micro_batches": 2}, {"seq_len": 4}], ids=str
)
def test_any_step_can_be_taken_out_of_turn(run: Path, options: dict[str, int]) -> None:
    ramp = [(0, 8), (4, 16)]
    with (
        StreamingLoader(run, ramp, **options) as loader,
        StreamingLoader(run, ramp, max_open_parts=1, **options) as other,
    ):
        expected: dict[int, list[Any]] = {}
        for batch in loader:
            expected.setdefault(batch["step"], []).append(batch)
        going = iter(other)
        for step in np.random.default_rng(0).permutation(list(expected)).tolist():
            position = other.state_dict()
            batches = other.batches_at(step)
            assert other.state_dict() == position
            turn = next(going)
            assert turn["run_rows"].tolist() == expected[turn["step"]][0]["run_rows"].tolist()
            for _ in range(loader.micro_batches - 1):
                next(going)
            for batch, good in zip(batches, expected[step], strict=True):
                assert batch.keys() == good.keys()
                assert all(np.array_equal(batch[name], good[name]) for name in good)
        with pytest.raises(UsageError, match=r"batches_at: step must be in \[0, "):
            other.batches_at(len(expected))


def test_a_state_taken_ahead_goes_on_behind_its_batch(run: Path) -> None:
    loader = StreamingLoader(run, 4)
    batches = list(loader)
    loader.load_state_dict(loader.state_at(batches[30]["step"] + 1))
    assert np.array_equal(next(iter(loader))["tokens"], batches[31]["tokens"])
    loader.close()


def test_the_mixture_is_within_three_rows_of_its_weights(run: Path) -> None:
    loader = StreamingLoader(run, 1)
    order = expected_order(run)
    for step in (0, 1, 77, 200, 250, 300):
        shares = loader.mixture(step)
        taken = [source for source, *_ in order[:step]]
        assert [share.rows for share in shares] == [taken.count(s.source) for s in shares]
        assert all(abs(share.error_rows) < 1 for share in shares)


def test_the_command_line_traces_pieces_ramps_and_mixtures(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in (
        ["--step", "7", "-b", "0:8,5:16", "--seq-len", "4"],
        ["--mixture", "--step", "9"],
        ["--mixture", "--json"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["trace", str(run), *options])
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "step=7  row=15" in said
    assert "planned_share" in said


def test_any_whole_number_is_a_batch_size(run: Path) -> None:
    assert StreamingLoader(run, np.int64(8)).num_steps == 37


@pytest.mark.parametrize(
    ("start", "steps", "message"), [(0, -1, "at least 1"), (20, 10, "at least 20"), (0, 99, "37")]
)
def test_a_run_without_steps_is_refused(run: Path, start: int, steps: int, message: str) -> None:
    with pytest.raises(UsageError, match=f"num_steps must be .*{message}"):
        StreamingLoader(run, 8, start_step=start, num_steps=steps)


def test_a_state_that_does_not_fit_moves_nothing(run: Path) -> None:
    loader = StreamingLoader(run, 16, num_steps=18)
    with pytest.raises(UsageError, match="num_steps"):
        loader.load_state_dict(StreamingLoader(run, 64).state_at(2))
    assert loader.step == 0
    assert next(iter(loader))["step"] == 0
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("taken", [0, 1, 2, 7])
def test_a_new_iterator_in_a_fork_goes_on_exactly_as_the_old_one(run: Path, taken: int) -> None:
    options: Any = {"micro_batches": 2, "reader_threads": 8, "read_ahead_bytes": 1}
    expected = [batch["run_rows"].tolist() for batch in StreamingLoader(run, 4, **options)]
    loader = StreamingLoader(run, 4, **options)
    batches = iter(loader)
    before = [next(batches)["run_rows"].tolist() for _ in range(taken)]
    loader.batches_at(3)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            rest = [batch["run_rows"].tolist() for batch in loader]
            at_three = [batch["run_rows"].tolist() for batch in loader.batches_at(3)]
            # Of a step that is begun, a new iterator gives all batches.
            code = 0 if [rest, at_three] == [expected[taken // 2 * 2 :], expected[6:8]] else 2
        finally:
            os._exit(code)
    assert before + [batch["run_rows"].tolist() for batch in batches] == expected
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    loader.close()


@pytest.mark.slow
def test_an_iterator_from_before_a_fork_says_so(run: Path) -> None:
    batches = iter(StreamingLoader(run, 4))
    next(batches)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            next(batches)
        except UsageError as error:
            code = 0 if "begun before a fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    batches.close()
