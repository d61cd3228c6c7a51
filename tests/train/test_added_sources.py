"""A training whose run gets sources of another goes on like one that was planned so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from corpuskit.errors import UsageError
from corpuskit.loader.editing import add_sources, append
from corpuskit.loader.index import read_mix
from corpuskit.train.loop import train
from corpuskit.train.parallel import join
from tests.loader.loader_runs import part_of, write_plan, write_shards

if TYPE_CHECKING:
    from corpuskit.train.settings import TrainSettings

OLD, NEW = {"web": 2, "books": 1}, {"web": 1, "books": 1, "code": 3}


def work(trainings: list[TrainSettings], at: int) -> str:
    """Train each; before the second, add the source of run b to the data of the first."""
    train(trainings[0], join(trainings[0]))
    plan, other = read_mix(trainings[0].data), read_mix(Path(trainings[0].data).with_name("b"))
    append(plan, add_sources(plan, 4 * at, other, NEW, rows=40), other)
    try:
        for settings in trainings[1:]:
            train(settings, join(settings))
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(("at", "saved"), [(4, 4), (6, 4), (3, 4)])
def test_losses_are_those_of_a_run_planned_so_from_the_start(
    at: int, saved: int, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    whole = write_shards(tmp_path / "whole", {"web": 90, "books": 60, "code": 70}, seq_len=8)
    ours = part_of(whole, tmp_path / "a", {"web": "web", "books": "books"})
    data = write_plan(ours, [(80, OLD)])
    write_plan(part_of(whole, tmp_path / "b", {"code": "code"}), [(70, {"code": 1})])
    planned = write_plan(whole, [(4 * at, OLD), (40, NEW)])
    fields = {
        "batch": {"global_rows": 4, "micro_rows": 2},
        "guard": {"sigmas": 0},
        "model": {"dim": 8, "layers": 1, "heads": 2, "kv_heads": 1, "ffn_dim": 16},
    }
    begun, goes_on, compared = (
        settings_for(tmp_path / output, data=str(run), steps=steps, **fields)
        for output, run, steps in (("t", data, saved), ("t", data, 12), ("p", planned, 12))
    )
    (refusal,) = run_ranks(1, work, [begun, goes_on, compared], at)
    if at < saved:
        assert "edits/00001.json was made since and changes the rows from 12 on" in refusal
        return
    assert not refusal
    lines = [
        [
            json.loads(line)
            for line in Path(settings.output, "metrics.jsonl").read_text().splitlines()
        ]
        for settings in (goes_on, compared)
    ]
    mine, theirs = ([(line["loss"], line["grad_norm"]) for line in each] for each in lines)
    assert len(mine) == 12
    assert mine == theirs
