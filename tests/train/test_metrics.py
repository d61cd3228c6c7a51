"""What a run writes is strict JSON, has a line per step, and says what people need in one line."""

from __future__ import annotations

import errno
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.errors import CorpuskitError, DataError
from corpuskit.loader.state import SourceShare
from corpuskit.train.metrics import (
    WAIT_STEPS,
    DataWaits,
    EvaluationMetrics,
    Event,
    MetricsWriter,
    SourceLoss,
    StepMetrics,
)

if TYPE_CHECKING:
    from pathlib import Path


class FullDisk:
    """A file that takes nothing, and says so without its name when it is closed."""

    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "no space")

    close = flush = lambda self: self.write("")


def test_a_full_disk_names_the_file_that_was_not_written(tmp_path: Path) -> None:
    def write() -> None:
        with MetricsWriter(tmp_path, 0) as journal:
            for file in journal._files.values():
                file.close()
            journal._files = dict.fromkeys(journal._files, FullDisk())  # type: ignore[arg-type]
            journal.step(progress(0))

    with pytest.raises(CorpuskitError, match=r"metrics\.jsonl: "):
        write()


def progress(step: int, **changes: Any) -> StepMetrics:
    fields: dict[str, Any] = {
        "step": step,
        "steps": 10,
        "tokens": 256 * (step + 1),
        "loss": 3.5,
        "lr": 1e-3,
        "grad_norm": 0.7,
        "tokens_per_second": 1234.5,
        "step_seconds": 0.2,
        "data_wait_seconds": 0.001,
        "sources": {"web": SourceLoss(3.25, 1.25, 30), "books": SourceLoss(4.0, None, 10)},
        "mfu": 0.4125,
        "data_wait_p50_ms": 0.5,
        "data_wait_p99_ms": 7.25,
        "is_applied": True,
    }
    return StepMetrics(**fields | changes)


def strict(path: Path) -> list[dict[str, Any]]:
    """Read lines of JSON as other programs do: Python's NaN and Infinity are none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def share(source: str, planned: float) -> SourceShare:
    return SourceShare(source, 4, 128, 0.5, planned, planned, 0.0)


def test_numbers_that_are_not_finite_are_null_in_metrics_and_text_in_events(tmp_path: Path) -> None:
    bad = {"web": SourceLoss(math.nan, math.inf, 30)}
    with MetricsWriter(tmp_path, 0) as journal:
        journal.step(progress(0, loss=math.nan, grad_norm=-math.inf, sources=bad))
        journal.evaluation(EvaluationMetrics(1, bad))
        journal.event("bad_step", loss=math.nan, rows=[("web/3", math.inf)], path=tmp_path)
    (line,) = strict(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["grad_norm"]) == (None, None)
    assert line["sources"]["web"] == {"loss": None, "bits_per_byte": None, "tokens": 30}
    (line,) = strict(tmp_path / "evaluations.jsonl")
    assert line["sources"]["web"]["loss"] is None
    (event,) = strict(tmp_path / "events.jsonl")
    assert event["loss"] == "nan"
    assert event["rows"] == [["web/3", "inf"]]
    assert event["path"] == str(tmp_path)


def test_a_step_has_one_line_whatever_was_not_saved(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path, 0) as journal:
        for step in range(6):
            journal.step(progress(step, loss=float(step)))
            journal.evaluation(EvaluationMetrics(step + 1, {}))
            journal.mixture(step + 1, [share("web", 1.0)])
            journal.event("tick", number=step)
    for name in ("metrics", "events"):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 6, "lo')  # killed while writing
    with MetricsWriter(tmp_path, 4) as journal:
        for step in range(4, 6):
            journal.step(progress(step, loss=10.0 + step))
        journal.event("tock")
    lines = strict(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in lines] == [
        *[(step, float(step)) for step in range(4)],
        *[(4, 14.0), (5, 15.0)],
    ]
    for name in ("evaluations", "mixture"):
        assert [line["step"] for line in strict(tmp_path / f"{name}.jsonl")] == [1, 2, 3, 4]
    assert [e["event"] for e in strict(tmp_path / "events.jsonl")] == [*["tick"] * 6, "tock"]


def test_a_line_of_something_else_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "sources": {}}\nnot ours\n')
    with pytest.raises(DataError, match=r"metrics.jsonl: line 2 is not what a training run writes"):
        MetricsWriter(tmp_path, 5)
    assert path.read_text().endswith("not ours\n")


def test_the_mixture_counts_what_was_applied_over_all_starts(tmp_path: Path) -> None:
    shares = [share("web", 0.5), share("books", 0.5), share("notes", 0.0)]
    with MetricsWriter(tmp_path, 0) as journal:
        for step in range(3):
            journal.step(progress(step))
        journal.step(progress(3, is_applied=False))
    with MetricsWriter(tmp_path, 2) as journal:
        journal.step(progress(2, sources={"books": SourceLoss(4.0, None, 20)}))
        journal.step(progress(3, is_applied=False))
        found = journal.mixture(4, shares)
    tokens = {name: one.tokens for name, one in found.sources.items()}
    assert tokens == {"web": 60, "books": 40, "notes": 0}
    assert found.sources["books"].realised_ratio == pytest.approx(0.4)
    assert found.sources["books"].planned_ratio == 0.5
    assert str(found).startswith("mixture after 4 steps: web 60.0 % (planned 50.0 %, 0.50 epochs)")


@settings(max_examples=20)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=80), st.integers(0, 30))
def test_waits_have_the_percentiles_of_the_last_steps(seconds: list[float], more: int) -> None:
    waits = DataWaits()
    for _ in range(more):
        waits.add(1e6)  # forgotten again
    last = (seconds * WAIT_STEPS)[:WAIT_STEPS]
    for one in last:
        waits.add(one)
    expected = 1000 * np.percentile(np.array(last), [50, 99])
    assert waits.percentiles() == pytest.approx(tuple(expected))


def test_waits_of_no_step_are_none() -> None:
    assert DataWaits().percentiles() == (0.0, 0.0)


def test_a_failure_leaves_an_event_with_what_the_error_knows(tmp_path: Path) -> None:
    class SpikeError(CorpuskitError):
        event = {"documents": ["web/1"]}  # noqa: RUF012

    with pytest.raises(SpikeError), MetricsWriter(tmp_path, 0):
        raise SpikeError("step 3: too high.")
    with pytest.raises(KeyboardInterrupt), MetricsWriter(tmp_path, 0):
        raise KeyboardInterrupt
    failed, interrupted = strict(tmp_path / "events.jsonl")
    assert (failed["event"], failed["error"]) == ("failed", "SpikeError")
    assert (failed["message"], failed["documents"]) == ("step 3: too high.", ["web/1"])
    assert interrupted["event"] == "interrupted"


def test_every_line_for_people_is_one_line() -> None:
    assert str(progress(3)) == (
        "4/10 steps  loss 3.5000  lr 1.00e-03  grad 0.70  1,234 tok/s  mfu 41.2 %  "
        "wait p50 0.5 p99 7.2 ms  web 3.250 books 4.000"
    )
    assert "mfu" not in str(progress(3, mfu=None))
    assert str(progress(3, is_applied=False)).endswith("(not applied)")
    held = EvaluationMetrics(
        20, {"web": SourceLoss(3.25, 1.25, 30), "books": SourceLoss(4.0, None, 10)}
    )
    assert str(held) == "held out after 20 steps: web 1.2500 bits per byte, books 4.000 nats"
    assert str(Event("rollback", "to step 3,\nrows skipped")) == "rollback: to step 3, rows skipped"
