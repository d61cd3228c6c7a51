"""Variants of a pipeline: what each changes, and what is refused before anything runs."""

from __future__ import annotations

import pytest

from corpuskit.ablate.variants import VariantChanges, read_variants
from corpuskit.errors import ConfigError, UsageError
from tests.conftest import ROOT

PIPELINE = """\
name: base
output: runs/base
sources: {web: {text: "*.txt"}, books: {text: "books/*.txt"}}
stages:
  - holdout: {ratio: 0.02}
  - language
  - gopher_quality: {words: whitespace}
  - exact_dedup
  - tokenize: {tokenizer: tokenizer.json}
  - pack: {seq_len: 512}
expect:
  exact_dedup: {max_drop: 0.5}
"""


@pytest.fixture
def base(tmp_path):
    text = PIPELINE.replace("tokenizer.json", str(ROOT / "sample_data/tokenizer.json"))
    path = tmp_path / "base.yaml"
    path.write_text(text)
    return str(path)


def names(variants):
    return [variant.name for variant in variants]


def test_values_vary_one_at_a_time_or_as_a_grid(base):
    vary = ["gopher_quality.min_words=20,50", "language.keep=[de],[en, fr]"]
    alone = read_variants([base], VariantChanges(vary=vary))
    assert names(alone) == [
        "base", "gopher_quality.min_words=20", "gopher_quality.min_words=50",
        "language.keep=[de]", "language.keep=[en, fr]",
    ]  # fmt: skip
    stages = [{s.label: s.stage for s in variant.file.steps} for variant in alone]
    assert [one["gopher_quality"].min_words for one in stages] == [50, 20, 50, 50, 50]
    assert stages[4]["language"].keep == ("en", "fr")
    grid = read_variants([base], VariantChanges(vary=vary, is_grid=True))
    assert len(grid) == 5
    assert "gopher_quality.min_words=20 language.keep=[de]" in names(grid)


def test_the_baseline_may_have_a_value_that_is_varied(base):
    changes = VariantChanges(vary=["gopher_quality.min_words=20"])
    overrides = ["gopher_quality.min_words=30", "gopher_quality.max_words=999"]
    variants = read_variants([base], changes, overrides)
    stages = [variant.file.steps[2].stage for variant in variants]
    assert [(stage.min_words, stage.max_words) for stage in stages] == [(30, 999), (20, 999)]


def test_as_many_variants_as_are_allowed_are_made(base):
    values = ",".join(map(str, range(70)))
    changes = VariantChanges(vary=[f"gopher_quality.min_words={values}"], most=70)
    assert len(read_variants([base], changes)) == 71


def test_each_stage_that_is_not_needed_is_left_out_once(base):
    variants = read_variants([base], VariantChanges(is_each_dropped=True))
    assert names(variants) == ["base", "no language", "no gopher_quality", "no exact_dedup"]
    last = variants[-1].file
    assert "exact_dedup" not in [step.label for step in last.steps]
    assert last.settings.expect == {}


def test_a_source_is_swapped(base):
    [_, other] = read_variants([base], VariantChanges(swap=["web=a.txt,b.txt"]))
    paths = {step.label: step.stage.paths for step in other.file.sources}
    assert [list(map(str, paths[name])) for name in ("web", "books")] == [
        ["a.txt", "b.txt"], ["books/*.txt"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (VariantChanges(drop=["exact_dedupe"]), "exact_dedup"),
        (VariantChanges(drop=["pack"]), "nothing to train on"),
        (VariantChanges(swap=["wab=a.txt"]), "web"),
        (VariantChanges(swap=["web"]), "must look like"),
        (VariantChanges(vary=["gopher_quality.min_words"]), "must look like"),
        (VariantChanges(vary=["gopher_quality.min_words=[2"]), "not YAML values"),
        (VariantChanges(), "nothing to compare"),
        (VariantChanges(vary=["language.keep=[de]"], is_grid=True), "of several --vary, and there"),
        (VariantChanges(is_grid=True), "of several --vary, and there are 0"),
        (
            VariantChanges(vary=["language.keep=[de]", "pii.x=1", "language.keep=[en]"]),
            r"--vary language.keep: is given twice\. Give all its values at once",
        ),
        (
            VariantChanges(vary=["x.a=1,2,3,4,5,6,7", "x.b=1,2,3,4,5,6,7,8,9,10"], is_grid=True),
            r"70 variants are more than 64\. Vary less, or allow them with --max-variants 70",
        ),
        (VariantChanges(vary=["x.a=1,2"], drop=["language"], most=2), "3 variants are more than 2"),
    ],
)
def test_wrong_changes_are_refused(base, changes, problem):
    with pytest.raises(UsageError, match=problem):
        read_variants([base], changes)


def test_a_value_of_a_wrong_type_is_a_configuration_error(base):
    with pytest.raises(ConfigError, match="min_words"):
        read_variants([base], VariantChanges(vary=["gopher_quality.min_words=many"]))


def test_a_stage_that_others_need_cannot_be_left_out(base, tmp_path):
    text = (tmp_path / "base.yaml").read_text()
    limited = text.replace("- exact_dedup", "- exact_dedup: {where: {language.label: [en]}}")
    (tmp_path / "limited.yaml").write_text(limited)
    with pytest.raises(ConfigError, match="language cannot be dropped") as caught:
        read_variants([str(tmp_path / "limited.yaml")], VariantChanges(is_each_dropped=True))
    assert "limited.yaml:6:" in str(caught.value)


def test_two_pipelines_of_one_name_are_refused(base):
    with pytest.raises(UsageError, match="two variants are called 'base'"):
        read_variants([base, base], VariantChanges())
