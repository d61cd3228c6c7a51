"""Edits: an append-only chain that changes what was not consumed yet, and nothing else."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from loader_runs import PAD, PADDING, Shards, expected_order, write_plan

from corpuskit.cli.main import main
from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader, read_mix
from corpuskit.loader.editing import append, new_stage, skip_rows, take_down

if TYPE_CHECKING:
    from pathlib import Path

MIX = [(200, {"web": 5, "books": 3}), (100, {"web": 1, "books": 2, "math": 4})]


@pytest.fixture
def run(shards: Shards, run_dir: Path) -> Path:
    return write_plan(shards, MIX, folder=run_dir)


def test_a_new_stage_begins_at_its_row(run: Path) -> None:
    before = expected_order(run)
    plan = read_mix(run)
    append(plan, new_stage(plan, 70, {"math": 1}))
    after = expected_order(run)
    assert after[:70] == before[:70]
    assert {source for source, *_ in after[70:]} == {"math"}
    assert len(after) == len(before)
    taken = [
        (source, row) for batch in StreamingLoader(run, 4) for source, row in rows_of(batch, run)
    ]
    assert taken == [(source, row) for source, row, _ in after]


def rows_of(batch: dict[str, Any], run: Path) -> list[tuple[str, int]]:
    names = list(json.loads((run / "mix" / "plan.json").read_text())["sources"])
    return [
        (names[k]["name"], row)
        for k, row in zip(batch["source_ids"].tolist(), batch["row_ids"].tolist(), strict=True)
    ]


def test_a_stage_may_begin_at_the_end(run: Path) -> None:
    plan = read_mix(run)
    assert new_stage(plan, 300, {"web": 1}, rows=10).row == 300
    with pytest.raises(UsageError, match="ends at row 300, so the stage needs a length"):
        new_stage(plan, 300, {"web": 1})


def test_a_state_before_the_edit_loads_and_one_behind_it_is_refused(run: Path) -> None:
    states = {step: StreamingLoader(run, 8).state_at(step) for step in (12, 13)}
    plan = read_mix(run)
    append(plan, new_stage(plan, 96, {"math": 1}))
    loader = StreamingLoader(run, 8)
    loader.load_state_dict(states[12])
    assert loader.plan.hash != states[12]["plan"]
    with pytest.raises(UsageError, match=r"edits/00001\.json was made since and changes the rows"):
        loader.load_state_dict(states[13])
    assert loader.step == 12


def test_a_cap_is_checked_before_anything_is_written(shards: Shards, run_dir: Path) -> None:
    run = write_plan(shards, MIX, folder=run_dir, max_epochs=8.0)
    plan = read_mix(run)
    edit = new_stage(plan, 32, {"math": 1}, rows=100)
    with pytest.raises(UsageError, match="the plan takes 100 rows of source 'math', which has 9"):
        append(plan, edit)
    assert not (run / "edits").exists()
    append(plan, new_stage(plan, 32, {"math": 1}, rows=100, max_epochs={"math": 12}))
    assert StreamingLoader(run, 1).num_steps == 132


@pytest.mark.parametrize(("cap", "is_allowed"), [(0, False), (1, True), (1.5, True), (-1, False)])
def test_a_cap_is_above_0(run: Path, cap: float, is_allowed: bool) -> None:
    plan = read_mix(run)
    with contextlib.nullcontext() if is_allowed else pytest.raises(UsageError, match="above 0"):
        assert new_stage(plan, 32, {"web": 1}, rows=1, max_epochs={"web": cap})


@pytest.mark.parametrize(
    ("weights", "is_allowed"),
    [({"web": 1, "math": 0}, True), ({"web": 0}, False), ({"web": 1, "math": -1}, False)],
)
def test_weights_are_at_least_0_and_one_above(
    run: Path, weights: dict[str, int], is_allowed: bool
) -> None:
    plan = read_mix(run)
    with contextlib.nullcontext() if is_allowed else pytest.raises(UsageError, match="at least 0"):
        assert new_stage(plan, 32, weights, rows=1)


def test_two_edits_at_once_do_not_both_win(run: Path) -> None:
    plan = read_mix(run)
    append(plan, skip_rows(plan, [(10, 20)]))
    with pytest.raises(UsageError, match=r"edits/00001\.json was written by another process"):
        append(plan, skip_rows(plan, [(30, 40)]))


def test_edits_of_a_mix_that_was_made_again_are_refused(
    shards: Shards, run: Path, tmp_path: Path
) -> None:
    append(read_mix(run), skip_rows(read_mix(run), [(10, 20)]))
    other = write_plan(shards, MIX, seed=5, folder=tmp_path / "other")
    (other / "edits").symlink_to(run / "edits")
    with pytest.raises(UsageError, match="was made again since"):
        read_mix(other)


def test_an_edit_changed_by_hand_is_refused(run: Path) -> None:
    append(read_mix(run), skip_rows(read_mix(run), [(10, 20)]))
    path = run / "edits" / "00001.json"
    path.write_text(path.read_text().replace("20", "21"))
    with pytest.raises(DataError, match="It was changed by hand"):
        read_mix(run)


def test_a_missing_edit_is_named(run: Path) -> None:
    for first in (10, 30):
        append(read_mix(run), skip_rows(read_mix(run), [(first, first + 5)]))
    (run / "edits" / "00001.json").unlink()
    with pytest.raises(DataError, match=r"00001\.json: missing, but edits/00002\.json is there"):
        read_mix(run)


@pytest.mark.parametrize("spans", [[(5, 5)], [(-1, 3)], [(290, 301)]])
def test_a_span_outside_the_run_is_refused(run: Path, spans: list[tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match="must be within the 300 rows"):
        skip_rows(read_mix(run), spans)


def taken_down(shards: Shards, run: Path, row: int) -> tuple[str, int]:
    """Take down the first document of some row; return its id and its key."""
    source, stored, _ = expected_order(run)[row]
    key = shards.segments[source][stored][0].key
    plan = read_mix(run)
    append(plan, take_down(plan, row, [shards.ids[key]]))
    return shards.ids[key], key


def test_a_document_taken_down_is_no_input_and_no_label(shards: Shards, run: Path) -> None:
    plain = {b["step"]: b for b in StreamingLoader(run, 1)}
    _, key = taken_down(shards, run, 40)
    order, masked = expected_order(run), 0
    for batch in StreamingLoader(run, 1):
        source, row, _ = order[batch["step"]]
        tokens, labels = (plain[batch["step"]][name][0].copy() for name in ("tokens", "labels"))
        size = int(plain[batch["step"]]["text_bytes"][0])
        for segment in shards.segments[source][row]:
            if segment.key == key and not segment.flags & PADDING and batch["step"] >= 40:
                masked += 1
                tokens[segment.start : segment.end] = PAD
                labels[max(0, segment.start - 1) : segment.end - 1] = -100
                size -= segment.text_bytes
        assert np.array_equal(batch["tokens"][0], tokens)
        assert np.array_equal(batch["labels"][0], labels)
        assert batch["text_bytes"][0] == size
        assert np.array_equal(batch["cu_seqlens"], plain[batch["step"]]["cu_seqlens"])
    assert masked


def test_a_document_stays_as_it_was_before_the_takedown(shards: Shards, run: Path) -> None:
    plain = [b["tokens"].copy() for b in StreamingLoader(run, 1, num_steps=40)]
    taken_down(shards, run, 40)
    for batch in StreamingLoader(run, 1, num_steps=40):
        assert np.array_equal(batch["tokens"], plain[batch["step"]])


def test_which_and_when_say_what_is_masked(shards: Shards, run: Path) -> None:
    name, key = taken_down(shards, run, 40)
    loader = StreamingLoader(run, 1)
    (row,) = loader.which(40)
    assert [span.masked for span in row.documents if span.key == key] == [True]
    occurrences = loader.occurrences(name)
    assert [occurrence.masked for occurrence in occurrences] == [s.step >= 40 for s in occurrences]


def test_a_takedown_is_part_of_the_history(shards: Shards, run: Path) -> None:
    states = [StreamingLoader(run, 1).state_at(step) for step in (40, 41)]
    taken_down(shards, run, 40)
    StreamingLoader(run, 1).load_state_dict(states[0])
    with pytest.raises(UsageError, match="changes the rows from 40 on"):
        StreamingLoader(run, 1).load_state_dict(states[1])


def masked_rows(loader: StreamingLoader) -> dict[int, tuple[list[int], int]]:
    return {b["step"]: (b["labels"][0].tolist(), int(b["text_bytes"][0])) for b in loader}


def test_a_document_taken_down_twice_is_masked_once_from_the_first_on(
    shards: Shards, run: Path
) -> None:
    name, key = taken_down(shards, run, 40)
    once = masked_rows(StreamingLoader(run, 1))
    append(read_mix(run), take_down(read_mix(run), 60, [name]))
    assert masked_rows(StreamingLoader(run, 1)) == once
    loader = StreamingLoader(run, 1)
    for occurrence in loader.occurrences(key):
        assert occurrence.masked == (occurrence.step >= 40)


def test_documents_of_all_sources_are_masked_together(shards: Shards, run: Path) -> None:
    wanted = {segments[3][0].key for segments in shards.segments.values()}
    wanted |= {segments[-1][0].key for segments in shards.segments.values()}
    plan = read_mix(run)
    append(plan, take_down(plan, 0, [shards.ids[key] for key in wanted] + sorted(wanted)))
    order = expected_order(run)
    for batch in StreamingLoader(run, 1):
        source, row, _ = order[batch["step"]]
        for segment in shards.segments[source][row]:
            inside = batch["tokens"][0][segment.start : segment.end]
            assert (segment.key in wanted) <= bool((inside == PAD).all())


def test_missing_documents_can_be_left_out(shards: Shards, run: Path) -> None:
    name = next(iter(shards.ids.values()))
    edit = take_down(read_mix(run), 0, [name, "nowhere"], ignore_missing=True)
    assert (edit.fields["documents"], edit.fields["not_there"]) == ([name], ["nowhere"])


def test_a_new_stage_drops_spans_of_rows_that_it_replaces(run: Path) -> None:
    append(read_mix(run), skip_rows(read_mix(run), [(20, 30), (100, 150)]))
    append(read_mix(run), new_stage(read_mix(run), 80, {"web": 1}))
    assert read_mix(run).skips.spans == ((20, 30),)


def test_spans_of_equal_size_are_told_apart(shards: Shards, run: Path, tmp_path: Path) -> None:
    found = []
    for first in (8, 16):
        other = write_plan(shards, [(300, {"web": 1})], folder=tmp_path / str(first))
        append(read_mix(other), skip_rows(read_mix(other), [(first, first + 4)]))
        found.append(StreamingLoader(other, 4).state_at(10)["history"])
    assert found[0] != found[1]


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 1, "kind": "x"}'])
def test_a_damaged_edit_is_to_be_restored(run: Path, content: str) -> None:
    append(read_mix(run), skip_rows(read_mix(run), [(10, 20)]))
    (run / "edits" / "00001.json").write_text(content)
    with pytest.raises(DataError, match=r"Restore it from a copy|kind must be") as caught:
        read_mix(run)
    assert "Run the mix" not in str(caught.value)


def test_documents_that_are_not_there_are_counted_and_named(run: Path) -> None:
    with pytest.raises(UsageError, match="1 of 1 documents are in no packed row: 'nowhere'"):
        take_down(read_mix(run), 0, ["nowhere"])


def test_the_command_line_edits_and_lists(
    run: Path, shards: Shards, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(shards.ids.values()))
    (tmp_path / "names").write_text(f"{name}\n")
    ramp = ["-b", "0:2,10:4"]
    commands = [
        ["skip", str(run), "--steps", "10:12", *ramp, "--reason", "spike"],
        ["takedown", str(run), "--at-step", "12", *ramp, "--docs-file", str(tmp_path / "names")],
        ["stage", str(run), "--at-step", "50", *ramp, "--weight", "web=2", "--tokens", "1600"],
        ["stage", str(run), "--at-step", "60", *ramp, "--weight", "web=1", "--dry-run"],
        ["list", str(run)],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(["edit", *command])
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "edits/00001.json: skip from row 20: rows 20 to 28 (spike)" in said
    assert "1 documents in" in said
    assert "100 rows of {'web': 2}" in said
    assert "Nothing was written" in said
    assert len(list((run / "edits").glob("*.json"))) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stage", "--at-step", "1", "--weight", "web"], "--weight must be SOURCE=a whole number"),
        (["stage", "--at-step", "1", "--weight", "wed=1"], "no source 'wed'. It has web, books"),
        (["stage", "--at-step", "999", "--weight", "web=1"], "step must be in"),
        (["skip", "--steps", "5"], "--steps must be FIRST:END, got '5'"),
        (["stage", "--at-step", "1", "--weight", "web=1", "--weight", "web=2"], "'web' twice"),
        (["stage", "--at-step", "1", "--weight", "web=1", "--tokens", "9"], "less than a row"),
        (
            ["stage", "--at-step", "1", "--weight", "web=1", "--max-epochs", "web=inf"],
            "max_epochs of 'web' must be above 0",
        ),
        *(
            (["source", "--from", "x", "--at-step", "1", "--weight", "web=1", *names], "--as must")
            for names in (["--as", "web"], ["--as", "web="], ["--as", "web=a", "--as", "web=b"])
        ),
        (["takedown", "--at-step", "3"], "name documents with --doc or --docs-file"),
    ],
)
def test_the_command_line_says_what_is_wrong(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["edit", arguments[0], str(run), "-b", "8", *arguments[1:]])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
