"""What `corpuskit tune` says another bound would do is what a run with that bound does."""

from __future__ import annotations

import copy
import io
import json
import shlex
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from corpuskit.engine import registry
from corpuskit.engine.config import PipelineFile, read_pipeline, step_yaml
from corpuskit.engine.inputs import Inputs
from corpuskit.engine.plan import Plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.settings import PipelineSettings
from corpuskit.errors import UsageError
from corpuskit.formats.manifest import Part, dump_checked, load_checked
from corpuskit.inspect.tune import (
    MovedDocument,
    Tunable,
    decide,
    find_tunable,
    sweep,
    to_paste,
    tune,
    with_changes,
)
from corpuskit.stage import Outcome, StreamingStage
from tests.contract.strategies import make, numeric, of_kind, texts, ties, view
from tests.engine.conftest import Lab, corpus

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
    bounds = numeric(type(stage))
    changes = {"measures": True}
    for name in sorted(names):
        if isinstance(getattr(stage, name), dict):
            factor = data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0]))
            changes[name] = {key: value * factor for key, value in getattr(stage, name).items()}
        elif name in bounds and data.draw(st.booleans()):
            values = st.sampled_from(ties(bounds[name]))
            changes[name] = data.draw(st.none() | values if bounds[name]["nullable"] else values)
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
    """Return what `find_tunable` would, for a stage that measured these rules."""
    silent = frozenset(stage.rules) - set(names)
    return Tunable(None, "between", stage, None, None, [], (), names, silent)


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
        assert one["value"] < one["threshold"] == 2000
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
@pytest.mark.parametrize("values", ["10:90:5", "10,30,50,70,90"])
def test_a_sweep_says_what_each_value_does(measured, values):
    found = json.loads(tuned(measured, "--sweep", f"min_words={values}", "--json"))["sweep"]
    total = found["total"]
    assert found["values"] == [10, 30, 50, 70, 90]
    assert total["newly_dropped"][1] == total["newly_kept"][1] == 0
    one = json.loads(tuned(measured, "--set", "min_words=70", "--json"))
    assert total["kept_documents"][3] == one["total"]["documents_then"]
    assert total["kept_bytes"][3] == one["total"]["text_bytes_then"]
    assert total["newly_dropped"][3] == one["newly_dropped"]["documents"] > 0


@pytest.mark.slow
def test_a_sweep_keeps_other_changes(measured):
    other = ["--set", "max_symbol_ratio=50"]
    found = json.loads(tuned(measured, *other, "--sweep", "min_words=10:90:5", "--json"))["sweep"]
    changes = [*other, "--set", "min_words=10"]
    one = json.loads(tuned(measured, *changes, "--json"))
    total = {name: column[0] for name, column in found["total"].items() if name.startswith("newly")}
    assert total["newly_kept"] == one["newly_kept"]["documents"] > 0
    assert total["newly_dropped"] == one["newly_dropped"]["documents"]


@pytest.mark.slow
def test_people_read_a_table(measured):
    said = tuned(measured, "--set", "min_words=70")
    assert "gopher_quality.min_words: 30 -> 70" in said
    assert "30 -> 70" in said
    assert "newly dropped: " in said
    assert "--set gopher_quality.min_words=70" in said
    said = tuned(measured)
    assert "Thresholds to --set: " in said
    assert "then" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--set", "min_word=3"], "no parameter 'min_word'. Did you mean 'min_words'?"),
        (["--set", "stop_words=3"], "stop_words is not the threshold of a measured rule"),
        (["--set", "min_words=x"], "must be a number or null, got 'x'."),
        (["--set", "min_words.2=1"], "min_words is a single value."),
        (["--set", "min_words=5", "--set", "min_words=6"],
         "--set min_words=6: another --set makes min_words 5. Leave one out."),
        (["--set", "max_symbol_ratio=-1"], "gopher_quality.max_symbol_ratio must be greater"),
        (["--sweep", "min_words=2:1"], "must look like parameter, parameter=first:last[:count]"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_is_refused(measured, arguments, answer):
    assert answer in tuned(measured, *arguments, code=2)


@pytest.mark.slow
def test_other_stages_are_refused(measured):
    done = measured.cli("tune", str(measured.out), "gopher_qualities", code=2)
    assert "Did you mean 'gopher_quality'?" in done.stderr
    done = measured.cli("tune", str(measured.out), "exact_dedup", code=2)
    assert "exact_dedup has no thresholds to tune." in done.stderr


@pytest.mark.slow
def test_measures_of_other_parameters_are_refused(measured):
    plan = (measured.out / "plan.json").read_bytes()
    edited = load_checked(plan, "plan.json")
    step = next(step for step in edited["steps"] if step["label"] == "gopher_quality")
    step["params"]["min_words"] = 60
    try:
        (measured.out / "plan.json").write_bytes(dump_checked(edited))
        assert "was made with other parameters" in tuned(measured, code=2)
    finally:
        (measured.out / "plan.json").write_bytes(plan)


# Sweeps.


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("min_sizes", "no parameter 'min_sizes'. Did you mean 'min_size'?"),
        ("top_n_grams", "has several thresholds. Name one: top_n_grams.2."),
        ("top_n_grams.9", "has several thresholds. Did you mean 'top_n_grams.2'?"),
        ("min_size.2", "min_size is a single value."),
        ("min_size=3:2", "must look like parameter, parameter=first:last[:count]"),
        ("min_size=1:inf", "must look like"),
        ("min_size=1:2:x", "must look like"),
    ],
)
def test_a_sweep_of_nothing_is_refused(asked, answer):
    with pytest.raises(UsageError) as caught:
        sweep(with_measures(Between(), "small", "large", "ngrams"), [], asked)
    assert answer in str(caught.value)


def breaks(stage, row, leave_out=""):
    """Return whether a row of measures breaks a rule, in plain words."""
    for rule, name in stage.bounds.items():
        bound = getattr(stage, name)
        if bound is None or name == leave_out:
            continue
        if row[rule] < bound if name.startswith("min") else row[rule] > bound:
            return True
    return False


def recounted(lab, parameter, line, source):
    """Return documents and bytes that the stage would keep, row by row and rule by rule."""
    run = RunDirectory.open(str(lab.out))
    stage = run.plan.step("gopher_quality").stage.model_copy(update={parameter: line})
    rows = pq.read_table(lab.out / "measures" / "gopher_quality").to_pylist()
    kept = [row["text_bytes"] for row in rows if row["source"] == source and not breaks(stage, row)]
    return len(kept), sum(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameter", ["min_words", "max_symbol_ratio", "min_alpha_words_ratio", "min_stop_words"]
)
def test_a_curve_is_what_a_recount_says_at_every_threshold(measured, parameter):
    found = json.loads(tuned(measured, "--sweep", parameter, "--json"))["sweep"]
    assert len(found["values"]) >= 2
    assert found["now"] in found["values"]
    for place in range(0, len(found["values"]), 3):
        for source, share in found["sources"].items():
            kept = share["kept_documents"][place], share["kept_bytes"][place]
            assert kept == recounted(measured, parameter, found["values"][place], source)


def stored(tmp_path, stage, **columns) -> Tunable:
    """Return measures that lie in two files, as a run would have stored them."""
    plan = Plan(PipelineFile("p.yaml", PipelineSettings(output=str(tmp_path)), (), ()), (), {})
    run = RunDirectory(plan, Inputs((), (), (), ()))
    num = len(columns["code"])
    fixed = {
        "key": pa.array(range(num), pa.int64()), "id": pa.array(map(str, range(num))),
        "source": pa.array(["web", "books"] * num)[:num],
        "text_bytes": pa.array([10] * num, pa.int64()),
        "code": pa.array(columns.pop("code"), pa.uint8()),
    }  # fmt: skip
    table = pa.table(fixed | {name: pa.array(v, pa.float64()) for name, v in columns.items()})
    parts = []
    for number, piece in enumerate([table.slice(0, num // 2), table.slice(num // 2)]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(piece, path)
        parts.append(Part(number, "measures:between", path.name, "", len(piece)))
    dropped = {stage.rules[code - 1] for code in fixed["code"].to_pylist() if code}
    silent = frozenset(stage.rules) - set(columns) - dropped
    return Tunable(run, "between", stage, None, None, [], parts, tuple(columns), silent)


def test_a_rule_without_measures_makes_a_part_of_a_sweep_unsure(tmp_path):
    tunable = stored(tmp_path, Between(max_size=None), code=[1, 2, 0, 1], small=[1, 5, 5, 0])
    swept = sweep(tunable, [], "min_size=0:2:3")
    assert swept.values == [0, 1, 2]
    assert swept.total["kept_documents"] == [3, 2, 1]  # `odd` dropped one, whatever the threshold
    assert swept.total["unsure"] == [2, 1, 0]  # and was never asked about those too small
    assert swept.sources["web"]["kept_bytes"] == [20, 20, 10]
    assert swept.total["newly_kept"] == [2, 1, 0]


def test_ties_and_what_is_no_number_are_kept_on_the_line(tmp_path):
    sizes = [np.nan, 8, 8, 9, np.inf, -1]
    tunable = stored(tmp_path, Between(min_size=None), code=[0, 0, 0, 3, 3, 0], large=sizes)
    swept = sweep(tunable, ["max_size=9"], "max_size=7:9:3")
    assert (swept.now, swept.then, swept.values) == (8, 9, [7, 8, 9])
    assert swept.total["kept_documents"] == [2, 4, 5]
    assert swept.total["newly_dropped"] == [2, 0, 0]


class Grams(Between):
    """Two rules, whose thresholds are entries of one mapping.

    Source: none.
    """

    rules: ClassVar[tuple[str, ...]] = ("pairs", "triples")
    bounds: ClassVar[dict[str, str]] = {"pairs": "top_n_grams", "triples": "top_n_grams"}
    top_n_grams: dict[int, float | None] = Field({2: 0.2, 3: 0.9})

    def threshold(self, rule):
        return self.top_n_grams[2 if rule == "pairs" else 3]


def test_thresholds_are_quantiles_of_the_rule_of_an_entry(tmp_path):
    pairs = [0.1, 0.2, 0.3, 0.4]
    tunable = stored(tmp_path, Grams(), code=[0, 0, 1, 1], pairs=pairs, triples=[0.7] * 4)
    swept = sweep(tunable, [], "top_n_grams.2")
    assert (swept.values[0], swept.values[-1], swept.now) == (0.1, 0.4, 0.2)
    assert swept.total["kept_documents"] == [
        sum(pair <= value for pair in pairs) for value in swept.values
    ]


@pytest.mark.slow
def test_without_measures_each_rule_is_shown_alone_by_bins(measured, tmp_path):
    other = copied(measured, tmp_path)
    other.stage("gopher_quality")["measures"] = False
    other.run()
    rules = json.loads(tuned(other, "--json"))["single_rules"]
    rules = {rule["rule"]: rule["failing"] for rule in rules}
    rows = pq.read_table(measured.out / "measures" / "gopher_quality").to_pylist()
    short = sum(row["gopher_short_doc"] < 30 for row in rows)
    one = rules["gopher_short_doc"]
    assert one["at_least"] <= short <= one["at_most"] < one["at_least"] + 10
    few = sum(row["gopher_enough_stop_words"] < 2 for row in rows)
    one = rules["gopher_enough_stop_words"]  # whole numbers up to 16 have bins of their own
    assert one["at_least"] == one["at_most"] == few > 0
    shown = tuned(other)
    assert "min_words" in shown
    assert "--set gopher_quality.measures=true" in shown
    for asked in (("--set", "min_words=1"), ("--sweep", "min_words")):
        refused = tuned(other, *asked, code=2)
        assert "stored no measures" in refused
        assert "--set gopher_quality.measures=true" in refused


# What to paste.


def pasted(tmp_path, line, *overrides):
    """Return the steps of a pipeline whose stages are these lines."""
    text = f'output: out\nsources: {{web: {{jsonl: "a.jsonl"}}}}\nstages:\n  {line}\n'
    (tmp_path / "pasted.yaml").write_text(text)
    return read_pipeline(tmp_path / "pasted.yaml", overrides).steps


@pytest.mark.parametrize(
    "line",
    [
        "- gopher_quality",
        '- gopher_quality: {min_words: 80, stop_words: [a, "no", "1e3", "#", "it:"]}',
        "- gopher_repetition: {max_top_ngram_ratios: {2: 0.5, 3: 0.25}, words: whitespace}",
        "- threshold: {column: my.score, min: 1.0e-7, materialize: true}",
        '- threshold: {column: "a\\u2028b \\U0001f600", max: 3}',
    ],
)
def test_a_stage_as_a_line_of_yaml_is_the_same_stage(tmp_path, line):
    [step] = pasted(tmp_path, line)
    written = step_yaml(step)
    assert "\n" not in written
    [again] = pasted(tmp_path, written)
    assert (again.stage, again.materialize) == (step.stage, step.materialize)


@pytest.mark.slow
def test_the_line_to_paste_and_the_command_make_what_was_shown(measured, tmp_path):
    changes = ["min_words=80", "max_symbol_ratio=0.5"]
    options = [word for change in changes for word in ("--set", change)]
    found = json.loads(tuned(measured, *options, "--json"))
    [pasted_step] = pasted(tmp_path, found["yaml"])
    wanted = measured.stage("gopher_quality") | {"min_words": 80, "max_symbol_ratio": 0.5}
    assert pasted_step.stage == registry.load("gopher_quality").model_validate(wanted)
    words = shlex.split(found["command"])
    assert words[:3] == ["corpuskit", "run", str(measured.path)]
    steps = read_pipeline(words[2], words[4::2]).steps
    assert steps[0].stage == pasted_step.stage
    said = tuned(measured, *options)
    assert found["yaml"] in said
    assert f"in {measured.path}:" in said


def test_a_mapping_is_given_whole_on_the_command_line(tmp_path):
    [step] = pasted(tmp_path, "- gopher_repetition: {words: whitespace}")
    other = step.stage.model_copy(update={"max_top_ngram_ratios": {2: 0.5, 3: 0.18, 4: 0.16}})
    settings = PipelineSettings(output=str(tmp_path / "out"))
    plan = Plan(PipelineFile("p q.yaml", settings, (), (step,)), (), {})
    run = RunDirectory(plan, Inputs((), (), (), ()))
    line, shown = to_paste(run, step.label, other, ["max_top_ngram_ratios.2"])
    assert line == (
        "- gopher_repetition: {words: whitespace, max_top_ngram_ratios: {2: 0.5, 3: 0.18, 4: 0.16}}"
    )
    words = shlex.split(shown)
    assert words[2] == "p q.yaml"
    [again] = pasted(tmp_path, "- gopher_repetition: {words: whitespace}", words[4])
    assert again.stage == other


@pytest.mark.slow
def test_names_and_texts_reach_the_terminal_escaped(measured):
    from corpuskit.cli import _render
    from corpuskit.cli import tune as command

    evil = "\x1b[2J\u202e\r\nfake: 100%"
    tunable = find_tunable(RunDirectory.open(str(measured.out)), "gopher_quality")
    tuning, swept = tune(tunable, []), sweep(tunable, [], "min_words")
    swept.sources[evil] = swept.sources["web"]
    moved = MovedDocument(1, evil, evil, 3, "gopher_short_doc", 1.0, 30.0, evil, evil)
    out = _render.PlainConsole(width=160, record=True, file=io.StringIO())
    command.print_sweep(out, tuning, swept)
    command._print_samples(out, "newly dropped", tuning.newly_dropped, [moved])
    shown = out.export_text()
    assert shown.count("\\u001b") >= 4
    assert not {"\x1b", "\r", "\u202e"} & set(shown)
    assert not any(line.startswith("fake") for line in shown.splitlines())
