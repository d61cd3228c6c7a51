"""Stopping and going on: a position is a counter, and every other number in a state is checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_runs import Shards, expected_order, write_plan, write_shards

from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader

WEIGHTS = st.tuples(*[st.integers(0, 5)] * 3).filter(any)
STAGES = st.lists(st.tuples(st.integers(0, 70), WEIGHTS), min_size=1, max_size=3)
MIX = [(200, {"web": 5, "books": 3}), (100, {"web": 1, "books": 2, "math": 4})]


def stages_of(shards: Shards, drawn: list[tuple[int, tuple[int, ...]]]) -> list[Any]:
    names = list(shards.tokens)
    return [(rows, dict(zip(names, weights, strict=True))) for rows, weights in drawn]


def test_a_state_says_what_was_consumed(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, skip=[[30, 45]], folder=run_dir)
    loader = StreamingLoader(run, 8, start_step=12)
    before = [row for t, row in enumerate(expected_order(run)[: 96 + 15]) if not 30 <= t < 45]
    state = loader.state_dict()
    assert set(state) == {"format", "plan", "history", "step", "rows", "tokens", "consumed"}
    assert (state["format"], state["step"], state["rows"]) == (2, 12, 111)
    assert state["tokens"] == 96 * shards.seq_len
    names = [source for source, *_ in before]
    assert state["consumed"] == {name: names.count(name) for name in shards.tokens}


def test_a_state_between_micro_batches_is_that_of_the_step(shards: Shards, run_dir: Path) -> None:
    loader = StreamingLoader(write_plan(shards, MIX, folder=run_dir), 8, micro_batches=2)
    begin = loader.state_dict()
    batches = iter(loader)
    next(batches)
    assert loader.state_dict() == begin
    next(batches)
    assert loader.state_dict()["rows"] == 8
    loader.close()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 1, "format must be 2, got 1"),
        ("rows", 97, "rows consumed of source"),
        ("rows", 10_000, "rows must be within the 300"),
        ("tokens", 5, "5 tokens"),
        ("step", -1, "-1 steps"),
        ("step", 0, "0 steps"),
        ("step", 97, "97 steps"),
        ("step", "12", "another type"),
        ("history", "00", "history 00"),
        ("consumed", {"web": 96}, "0 rows consumed of source 'books', but this plan takes 36"),
        ("consumed", None, "another type"),
    ],
)
def test_a_state_with_one_wrong_field_is_refused(
    shards: Shards, run_dir: Path, field: str, value: Any, message: str
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    state = StreamingLoader(run, 8, start_step=12).state_dict()
    with pytest.raises(DataError, match=message):
        StreamingLoader(run, 8).load_state_dict(state | {field: value})


ACCEPTED: dict[str, Any] = {
    "a stage more": ([*MIX, (50, {"math": 1})], {}),
    "a longer last stage": ([MIX[0], (180, MIX[1][1])], {}),
    "weights times two": ([(200, {"web": 10, "books": 6}), MIX[1]], {}),
    "a span to skip behind": (MIX, {"skip": [[96, 104]]}),
    "other weights later": ([MIX[0], (100, {"math": 1})], {}),
}
REFUSED: dict[str, Any] = {
    "another seed": (MIX, {"seed": 1}),
    "other weights": ([(200, {"web": 5, "books": 4}), MIX[1]], {}),
    "a span to skip before": (MIX, {"skip": [[95, 97]]}),
    "a shorter stage": ([(90, MIX[0][1]), MIX[1]], {}),
}


@pytest.mark.parametrize("change", ACCEPTED)
def test_a_plan_with_the_same_history_takes_the_state(
    shards: Shards, tmp_path: Path, change: str
) -> None:
    old = write_plan(shards, MIX, folder=tmp_path / "old")
    stages, options = ACCEPTED[change]
    new = write_plan(shards, stages, folder=tmp_path / "new", **options)
    assert expected_order(new)[:96] == expected_order(old)[:96]
    loader = StreamingLoader(new, 8)
    loader.load_state_dict(StreamingLoader(old, 8, start_step=12).state_dict())
    assert loader.step == 12


@pytest.mark.parametrize("change", REFUSED)
def test_a_plan_with_another_history_refuses_the_state(
    shards: Shards, tmp_path: Path, change: str
) -> None:
    old = write_plan(shards, MIX, folder=tmp_path / "old")
    stages, options = REFUSED[change]
    new = write_plan(shards, stages, folder=tmp_path / "new", **options)
    with pytest.raises(UsageError, match="loader state"):
        StreamingLoader(new, 8).load_state_dict(StreamingLoader(old, 8, start_step=12).state_dict())


def test_a_source_appended_takes_the_state(shards: Shards, tmp_path: Path) -> None:
    rows = {name: len(tokens) for name, tokens in shards.tokens.items()}
    more = write_shards(tmp_path / "more", rows | {"code": 50}, unshuffled=("books",))
    stages = [*MIX, (40, {"code": 1})]
    loader = StreamingLoader(write_plan(more, stages), 8)
    old = write_plan(shards, MIX, folder=tmp_path / "old")
    loader.load_state_dict(StreamingLoader(old, 8, start_step=12).state_dict())
    assert loader.step == 12


def test_other_tokens_under_the_same_plan_refuse_the_state(shards: Shards, tmp_path: Path) -> None:
    rows = {name: len(tokens) for name, tokens in shards.tokens.items()}
    other = write_shards(tmp_path / "other", rows, unshuffled=("books",), seed=1)
    old = write_plan(shards, MIX, folder=tmp_path / "old")
    with pytest.raises(UsageError, match="history"):
        StreamingLoader(write_plan(other, MIX), 8).load_state_dict(
            StreamingLoader(old, 8, start_step=12).state_dict()
        )


@settings(max_examples=60, deadline=None)
@given(
    old=STAGES,
    new=STAGES,
    at=st.integers(0, 99),
)
def test_equal_history_means_equal_rows(shards: Shards, old: Any, new: Any, at: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            write_plan(shards, stages_of(shards, drawn), folder=Path(folder) / name)
            for name, drawn in (("a", old), ("b", [*old[:1], *new]))
        ]
        orders = [expected_order(run) for run in runs]
        step = min(at, *(len(order) for order in orders))
        states = [StreamingLoader(run, 1, start_step=step).state_dict() for run in runs]
        if states[0]["history"] == states[1]["history"]:
            assert orders[0][:step] == orders[1][:step]
        else:
            with pytest.raises((UsageError, DataError)):
                StreamingLoader(runs[1], 1).load_state_dict(states[0])
