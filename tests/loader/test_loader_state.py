"""Stopping and going on: a position is a counter, and every other number in a state is checked."""

from __future__ import annotations

import json
import math
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
    assert set(state) == {
        "format", "plan", "base", "history", "step", "rows", "tokens", "consumed", "digest",
    }  # fmt: skip
    assert (state["format"], state["step"], state["rows"]) == (3, 12, 111)
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
        ("format", 2, "format must be 3, got 2"),
        ("rows", 97, "rows consumed of source"),
        ("rows", 10_000, "rows must be within the 300"),
        ("rows", 1 << 70, "rows must be a whole number of at least 0, got 1180591620717411303424"),
        ("tokens", 5, "5 tokens"),
        ("tokens", math.nan, "tokens must be a whole number of at least 0, got nan"),
        ("step", -1, "step must be a whole number of at least 0, got -1"),
        ("step", True, "step must be a whole number of at least 0, got True"),
        ("step", 0, "0 steps"),
        ("step", 11, "digest is '.*', but its other fields give"),
        ("step", 97, "97 steps"),
        ("step", "12", "step must be a whole number of at least 0, got '12'"),
        ("history", "00", "history 00"),
        ("history", None, "history must be a text, got None"),
        ("base", "00", "digest is '.*', but its other fields give"),
        ("plan", "00", "saved under plan 00, which is this plan with an edit that is missing"),
        ("digest", "00", "digest is '00', but its other fields give"),
        ("consumed", {"web": 96}, "0 rows consumed of source 'books', but this plan takes 36"),
        ("consumed", {"web": -1}, "consumed of source 'web' must be a whole number of at least 0"),
        ("consumed", None, "consumed must be a dict of rows by source, got None"),
    ],
)
def test_a_state_with_one_wrong_field_is_refused(
    shards: Shards, run_dir: Path, field: str, value: Any, message: str
) -> None:
    run = write_plan(shards, MIX, folder=run_dir)
    state = StreamingLoader(run, 8, start_step=12).state_dict()
    for changed in (state | {field: value}, json.loads(json.dumps(state | {field: value}))):
        with pytest.raises((DataError, UsageError), match=message) as caught:
            StreamingLoader(run, 8).load_state_dict(changed)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("state", [None, [], "", 3, b"{}", {}, "a\n" * 10_000])
def test_what_is_no_state_is_refused_in_one_line(shards: Shards, run_dir: Path, state: Any) -> None:
    loader = StreamingLoader(write_plan(shards, MIX, folder=run_dir), 8)
    with pytest.raises(DataError, match=r"^loader state: .* Load a state that this ") as caught:
        loader.load_state_dict(state)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert loader.step == 0


def test_each_field_of_a_state_is_needed(shards: Shards, run_dir: Path) -> None:
    loader = StreamingLoader(write_plan(shards, MIX, folder=run_dir), 8, start_step=12)
    state = loader.state_dict()
    for field in state:
        with pytest.raises(DataError, match=f"loader state: {field} must be"):
            loader.load_state_dict({name: state[name] for name in state if name != field})


def test_a_second_pass_says_that_nothing_is_left(shards: Shards, run_dir: Path) -> None:
    loader = StreamingLoader(write_plan(shards, MIX, folder=run_dir), 8)
    rows = [batch["run_rows"].tolist() for batch in loader]
    with pytest.warns(UserWarning, match="37 of 37 steps are done, so there is nothing to iterate"):
        assert list(loader) == []
    loader.load_state_dict(loader.state_at(0))
    assert [batch["run_rows"].tolist() for batch in loader] == rows


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
