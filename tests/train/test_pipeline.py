"""A pipeline computes what one rank computes; python -m tests.train.topologies has every mesh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from corpuskit.errors import UsageError
from corpuskit.train.estimate import count_parameters, plan_pipeline, plan_work
from corpuskit.train.settings import (
    TrainSettings,
    require_pipeline,
    stage_spans,
)
from tests.train.conftest import VOCAB
from tests.train.topologies import difference, go_on_from, settings_of, work

TOLERANCE = 1e-5


@pytest.mark.slow
def test_pipelines_compute_as_one_rank_and_continue_each_other(
    run_ranks: Any, run_dir: Path, tmp_path: Path
) -> None:
    def build(name: str, **parallel: Any) -> TrainSettings:
        return settings_of(str(run_dir), tmp_path / name, parallel)

    one, two, four = (
        build("one"),
        build("two", pipeline=2),
        build("four", pipeline=2, pipeline_schedule="interleaved", zero=1),
    )
    run_ranks(1, work, one)
    run_ranks(2, work, two)
    there = go_on_from(two, build("there", pipeline=2, pipeline_schedule="zbv", zero=1, replicas=2))
    run_ranks(4, work, four, there)
    shared = go_on_from(there, build("shared", pipeline=2, context=2))
    run_ranks(4, work, shared)
    back = go_on_from(shared, build("back"))
    run_ranks(1, work, back)
    for ours in (two, four, there, shared, back):
        assert max(difference(ours, one)) < TOLERANCE, ours.output
    assert min(difference(four, one)) > 0, "compared with itself"


def shape_and_settings(**parallel: Any) -> tuple[Any, TrainSettings]:
    settings = settings_of("-", Path("o"), parallel, batch={"global_rows": 48, "micro_rows": 4})
    return settings.model.shape(VOCAB), settings


@pytest.mark.parametrize(
    ("parallel", "changes", "ranks", "message"),
    [
        ({"pipeline": 8}, {}, 8, r"8 \(1f1b\) needs 8 layers, .* has 5\. Set .*: 5\."),
        ({"pipeline": 2}, {"model": {"tied": True}}, 2, r"Set model\.tied: false"),
        ({"pipeline": 2}, {"batch": {"micro_rows": 5}}, 2, r"48 rows .* Set batch.micro_rows: 4\."),
        ({"pipeline": 4}, {"batch": {"global_rows": 2}}, 4, r"Set batch.global_rows: 16\."),
        (
            {"pipeline": 2, "pipeline_schedule": "interleaved"},
            {"batch": {"micro_rows": 16}}, 2, r"a multiple of 2 .* Set batch.micro_rows: 12\.",
        ),
    ],
)  # fmt: skip
def test_what_a_pipeline_cannot_share_out_is_refused(
    parallel: dict[str, Any], changes: dict[str, Any], ranks: int, message: str
) -> None:
    shape, settings = shape_and_settings(**parallel)
    given = settings.model_dump()
    for section, fields in changes.items():
        given[section] |= fields
    settings = TrainSettings.model_validate(given)
    shape = settings.model.shape(VOCAB)
    with pytest.raises(UsageError, match=message):
        require_pipeline(shape, settings, ranks)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"parallel": {"pipeline_schedule": "zbv"}},
            "zero 3 does not .* zbv. Set parallel.zero to 1",
        ),
        (
            {"parallel": {"pipeline_schedule": "zero_bubble", "zero": 1, "recompute": "full"}},
            "recompute full does not .* Set parallel.recompute to none",
        ),
        (
            {"parallel": {"pipeline_schedule": "zbv", "zero": 1}, "compile": True},
            "compile True does not .* Set compile to False",
        ),
    ],
)
def test_settings_that_cannot_work_together_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    fields["parallel"]["pipeline"] = 2
    with pytest.raises(ValueError, match=message):
        TrainSettings.model_validate(
            {"data": "-", "output": "o", "batch": {"global_rows": 8}} | fields
        )


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zbv"])
def test_the_plan_has_every_layer_and_parameter_once(schedule: str) -> None:
    shape, settings = shape_and_settings(pipeline=2, pipeline_schedule=schedule, zero=1)
    work_of_rank = plan_work(shape, settings, seq_len=32, ranks=4, is_cuda=False)
    ranks, bubble = plan_pipeline(shape, settings, work_of_rank, 4)
    assert sum(rank.work.layers or 0 for rank in ranks) == shape.layers
    assert sum(rank.parameters for rank in ranks) == count_parameters(shape).total
    assert ranks[0].peak.total > 0
    # 6 micro-batches: one place waits for the other (1 + 2) / (6 * 3 + 1 + 2) of a step.
    assert bubble == pytest.approx({"1f1b": 1 / 7, "interleaved": 1 / 13, "zbv": 1 / 37}[schedule])


def test_stages_are_consecutive_and_the_last_is_the_shortest() -> None:
    _, settings = shape_and_settings(pipeline=2, pipeline_schedule="zbv", zero=1)
    spans = stage_spans(5, settings.parallel)
    assert [span.layers for span in spans] == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert [span.rank for span in spans] == [0, 1, 1, 0]
