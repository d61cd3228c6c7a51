"""What `corpuskit tune` says another bound would do is what a run with that bound does."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from corpuskit.errors import UsageError
from corpuskit.report.measured import Measured, decide, with_changes
from corpuskit.stage import Outcome, StreamingStage
from tests.contract.strategies import _numeric, _ties, make, of_kind, texts, view
from tests.run.conftest import Lab, corpus

STAGES = [param for param in of_kind(StreamingStage) if "measures" in param.values[0].model_fields]


def batch(codes, **measures) -> pa.RecordBatch:
    """Return rows of measures."""
    columns = {name: pa.array(values, pa.float64()) for name, values in measures.items()}
    return pa.record_batch({"code": pa.array(codes, pa.uint8()), **columns})


class Between(StreamingStage):
    """A stage for these tests.

    Source: none.
    """

    rules: ClassVar[tuple[str, ...]] = ("small", "odd", "large", "bad", "ngrams")
    bounds: ClassVar[dict[str, str]] = {
        "small": "min_size", "large": "max_size", "ngrams": "top_n_grams",
    }  # fmt: skip
    min_size: float | None = Field(2.0)
    max_size: float | None = Field(8.0)
    top_n_grams: dict[int, float | None] = Field({2: 0.2})

    def threshold(self, rule):
        if rule == "ngrams":
            bound = self.top_n_grams.get(2)
            return float("nan") if bound is None else bound
        return super().threshold(rule)

    def apply(self, view):
        return Outcome()


def codes_of(stage, rows) -> list[int]:
    return decide(stage, rows)[0].tolist()


def test_below_a_minimum_and_above_a_maximum_fail():
    rows = batch([0] * 4, small=[1, 2, 8, 9], large=[1, 2, 8, 9])
    assert codes_of(Between(), rows) == [1, 0, 0, 3]


def test_a_bound_that_is_null_is_off():
    rows = batch([1, 3], small=[1, 9], large=[1, 9])
    assert codes_of(Between(min_size=None, max_size=None), rows) == [0, 0]


def test_no_number_breaks_no_bound():
    rows = batch([0], small=[np.nan], large=[np.nan], bad=[np.nan], ngrams=[np.nan])
    assert codes_of(Between(), rows) == [0]


def test_the_first_rule_that_fails_wins():
    rows = batch([1], small=[1], large=[9])
    assert codes_of(Between(), rows) == [1]
    assert codes_of(Between(min_size=0), rows) == [3]


def test_a_measure_without_a_bound_fails_above_zero():
    rows = batch([0, 4], bad=[0, 1])
    assert codes_of(Between(), rows) == [0, 4]


def test_entries_of_a_mapping_are_bounds():
    rows = batch([0, 5], ngrams=[0.2, 0.21])
    assert codes_of(Between(), rows) == [0, 5]
    assert codes_of(Between(top_n_grams={2: 0.3}), rows) == [0, 0]


def test_a_rule_without_measures_fails_where_it_did():
    rows = batch([2, 0], small=[5, 5])
    assert codes_of(Between(), rows) == [2, 0]


def test_a_rule_that_was_never_asked_makes_it_unsure():
    rows = batch([1, 0, 1], small=[1, 5, 0], large=[1, 5, 0])
    codes, unsure = decide(Between(min_size=1), rows)
    assert codes.tolist() == [0, 0, 1]
    assert unsure.tolist() == [True, False, False]
    codes, unsure = decide(Between(min_size=1), rows, frozenset({"odd", "bad", "ngrams"}))
    assert unsure.tolist() == [False] * 3


def drawn(data, stage, names):
    """Return the stage with some of these bounds changed."""
    numeric = _numeric(type(stage))
    changes = {"measures": True}
    for name in sorted(names):
        if isinstance(getattr(stage, name), dict):
            factor = data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))
            changes[name] = {key: value * factor for key, value in getattr(stage, name).items()}
        elif name in numeric and data.draw(st.booleans()):
            values = st.sampled_from(_ties(numeric[name]))
            changes[name] = data.draw(st.none() | values if numeric[name]["nullable"] else values)
    fields = {name: getattr(stage, name) for name in type(stage).model_fields}
    try:
        return type(stage)(**fields | changes)
    except ValidationError:
        assume(False)


@pytest.mark.slow
@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_measures_and_bounds_decide_as_the_stage_does(cls, documents, data):
    stage = drawn(data, make(cls), set(cls.bounds.values()))
    documents = view(documents or ["a"], stage)
    outcome = stage.apply(documents)
    assume(outcome.measures)  # some have nothing to measure when all is off
    unmeasured = {name for rule, name in cls.bounds.items() if rule not in outcome.measures}
    tunable = {name for rule, name in cls.bounds.items() if rule in outcome.measures}
    rows = batch(outcome.codes, **outcome.measures)
    dropped = {stage.rules[code - 1] for code in outcome.codes if code}
    silent = frozenset(stage.rules) - outcome.measures.keys() - dropped
    assert decide(stage, rows, silent)[0].tolist() == outcome.codes.tolist()
    other = drawn(data, stage, {name for name in tunable if name not in unmeasured})
    codes, unsure = decide(other, rows, silent)
    expected = other.apply(documents).codes
    expected = np.zeros(len(codes), np.uint8) if expected is None else expected
    assert codes[~unsure].tolist() == expected[~unsure].tolist()


def with_measures(stage, *names):
    """Return what `find_measured` would, for a stage that measured these rules."""
    silent = frozenset(stage.rules) - set(names)
    return Measured(None, "between", stage, (), names, silent, [])


def test_an_entry_of_a_mapping_can_be_changed_alone():
    found = with_measures(Between(top_n_grams={2: 0.2, 3: 0.1}), "ngrams")
    other, changed = with_changes(found, ["top_n_grams.2=0.5"])
    assert other.top_n_grams == {2: 0.5, 3: 0.1}
    assert changed == {"top_n_grams.2": (0.2, 0.5)}
    other, _ = with_changes(found, ["between.top_n_grams.3=null", 'top_n_grams={"2": 1}'])
    assert other.top_n_grams == {2: 1}
    with pytest.raises(UsageError, match=r"has no entry '4'\. Known: 2, 3"):
        with_changes(found, ["top_n_grams.4=0.5"])


def test_a_bound_of_a_rule_that_was_not_measured_is_left_alone():
    found = with_measures(Both(), "small")
    assert with_changes(found, ["size=2"])[0].size == 2
    found = with_measures(Both(lines=3), "small")
    with pytest.raises(UsageError, match="long_line was not measured in this run"):
        with_changes(found, ["size=4"])


class Both(Between):
    """One parameter that bounds a measured rule, and sometimes one that is not.

    Source: none.
    """

    rules: ClassVar[tuple[str, ...]] = ("small", "long_line")
    bounds: ClassVar[dict[str, str]] = {"small": "size", "long_line": "size"}
    size: float = Field(1.0)
    lines: float | None = Field(None)

    def threshold(self, rule):
        if rule == "long_line":
            return float("nan") if self.lines is None else self.lines * self.size
        return StreamingStage.threshold(self, rule)


# What follows runs pipelines.


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A run whose filter stored what it measured; tests must not change it."""
    lab = Lab(tmp_path_factory.mktemp("tune"), Path("no_tokenizer"))
    documents = corpus()
    lab.write("web0.jsonl", documents[:110])
    lab.write("books.jsonl", documents[110:])
    lab.stage("gopher_quality").update(measures=True, max_symbol_ratio=0.2)
    lab.pipeline["stages"] = [*lab.pipeline["stages"][:2], "pii"]
    lab.pipeline["ledger"] = {"keep_text": True}
    lab.run()
    return lab


def kept_by(lab) -> set[str]:
    """Return the documents that the filter of a finished run kept."""
    ledger = pq.read_table(lab.out / "ledger").to_pylist()
    dropped = {row["doc_id"] for row in ledger if row["stage"] == "gopher_quality"}
    return {document["id"] for document in corpus()} - dropped


def copied(lab, folder) -> Lab:
    """Return a lab with the same inputs and another output."""
    other = copy.copy(lab)
    other.pipeline = copy.deepcopy(lab.pipeline) | {"output": str(folder / "out")}
    other.path = folder / "p.yaml"
    return other


def tuned(lab, *arguments, code=0):
    done = lab.cli("tune", str(lab.out), "gopher_quality", *arguments, code=code)
    return done.stderr if code else done.stdout


@pytest.mark.slow
def test_tuning_says_what_a_run_does(measured, tmp_path):
    changes = ["--set", "min_words=70", "--set", "max_symbol_ratio=50"]
    changes += ["--set", "min_alpha_words_ratio=0.1"]
    found = json.loads(tuned(measured, *changes, "-n", "1000", "--json"))
    again = copied(measured, tmp_path)
    changed = {"min_words": 70, "max_symbol_ratio": 50, "min_alpha_words_ratio": 0.1}
    again.stage("gopher_quality").update(changed)
    again.run()
    before, after = kept_by(measured), kept_by(again)
    assert {one["id"] for one in found["dropped_samples"]} == before - after != set()
    assert {one["id"] for one in found["kept_samples"]} == after - before != set()
    assert found["total"]["documents_then"] == len(after)
    assert found["total"]["documents_now"] == len(before)
    rows = pq.read_table(again.out / "ledger").to_pylist()
    ours = [row["rule"] for row in rows if row["stage"] == "gopher_quality"]
    counts = {rule: share["documents_then"] for rule, share in found["rules"].items()}
    assert {rule: num for rule, num in counts.items() if num} == {r: ours.count(r) for r in ours}


@pytest.mark.slow
def test_samples_show_texts_values_and_fates(measured):
    found = json.loads(tuned(measured, "--set", "min_words=2000", "-n", "1000", "--json"))
    originals = {document["id"]: document["text"] for document in corpus()}
    assert len(found["dropped_samples"]) == found["newly_dropped"]["documents"] > 50
    for one in found["dropped_samples"]:
        assert one["value"] < one["bound"] == 2000
        assert originals[one["id"]].startswith(one["text"])
    fates = {one["later"] for one in found["dropped_samples"]}
    assert fates == {None, "exact_dedup: exact_duplicate"}
    back = json.loads(tuned(measured, "--set", "min_words=1", "-n", "1000", "--json"))
    assert back["kept_samples"]
    assert all(originals[one["id"]].startswith(one["text"]) for one in back["kept_samples"])


@pytest.mark.slow
def test_sources_and_totals_agree(measured):
    found = json.loads(tuned(measured, "--set", "min_words=90", "--json"))
    assert found["sources"].keys() == {"web", "books"}
    for name in ("documents", "documents_now", "documents_then", "text_bytes_then"):
        assert found["total"][name] == sum(share[name] for share in found["sources"].values())
    total, lost = found["total"], found["newly_dropped"]
    assert total["documents_then"] == total["documents_now"] - lost["documents"]
    assert total["text_bytes_then"] == total["text_bytes_now"] - lost["text_bytes"]


@pytest.mark.slow
def test_a_sweep_says_what_each_value_does_alone(measured):
    found = json.loads(tuned(measured, "--sweep", "min_words=10:90:5", "--json"))["sweep"]
    assert [row["value"] for row in found] == [10, 30, 50, 70, 90]
    assert found[1]["newly_dropped"] == found[1]["newly_kept"] == 0
    one = json.loads(tuned(measured, "--set", "min_words=70", "--json"))
    assert found[3]["documents"] == one["total"]["documents_then"]
    assert found[3]["newly_dropped"] == one["newly_dropped"]["documents"]


@pytest.mark.slow
def test_people_read_a_table(measured):
    said = tuned(measured, "--set", "min_words=70")
    assert "gopher_quality.min_words: 30 -> 70" in said
    assert "30 -> 70" in said
    assert "newly dropped: " in said
    assert "--set gopher_quality.min_words=70" in said
    said = tuned(measured)
    assert "Bounds to --set: " in said
    assert "then" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--set", "min_word=3"], "no parameter 'min_word'. Did you mean 'min_words'?"),
        (["--set", "stop_words=3"], "stop_words is no bound of what was measured"),
        (["--set", "min_words=x"], "must be a number or null, got 'x'."),
        (["--set", "min_words.2=1"], "min_words is a single value."),
        (["--set", "max_symbol_ratio=-1"], "gopher_quality.max_symbol_ratio must be greater"),
        (["--sweep", "min_words=1:2"], "must look like parameter=first:last:count"),
    ],
)
def test_what_cannot_be_tuned_is_refused(measured, arguments, answer):
    assert answer in tuned(measured, *arguments, code=2)


@pytest.mark.slow
def test_other_stages_are_refused(measured):
    done = measured.cli("tune", str(measured.out), "gopher_qualities", code=2)
    assert "Did you mean 'gopher_quality'?" in done.stderr
    done = measured.cli("tune", str(measured.out), "exact_dedup", code=2)
    assert "exact_dedup has no bounds to tune." in done.stderr


@pytest.mark.slow
def test_without_measures_it_says_how_to_get_them(measured, tmp_path):
    other = copied(measured, tmp_path)
    other.stage("gopher_quality")["measures"] = False
    other.run()
    said = tuned(other, "--set", "min_words=1", code=2)
    assert "stored no measures" in said
    assert "--set gopher_quality.measures=true" in said


@pytest.mark.slow
def test_measures_of_other_parameters_are_refused(measured):
    plan = json.loads((measured.out / "plan.json").read_text())
    edited = json.loads(json.dumps(plan))
    step = next(step for step in edited["steps"] if step["label"] == "gopher_quality")
    step["params"]["min_words"] = 60
    try:
        (measured.out / "plan.json").write_text(json.dumps(edited))
        assert "does not explain what it decided" in tuned(measured, code=3)
    finally:
        (measured.out / "plan.json").write_text(json.dumps(plan))
