"""Pipeline files: every mistake gets file, line, column, and what to do."""

from __future__ import annotations

import os
import re
import time

import pytest

from corpuskit.engine import registry
from corpuskit.engine.config import read_model, read_pipeline
from corpuskit.engine.settings import PipelineSettings
from corpuskit.errors import ConfigError, UsageError
from corpuskit.stages.filters import _languages
from corpuskit.train.settings import EvaluateSettings
from corpuskit.train.settings import TrainSettings as TrainingSettings

GOOD = """\
output: out
seed: 3
sources:
  web: {jsonl: "web/*.jsonl", columns: {lang: string}}
stages:
  - gopher_quality: {words: whitespace, min_words: 20}
  - exact_dedup
executor: {workers: 2}
"""


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Read a pipeline text; return the error's message."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, *overrides: str) -> str:
        (tmp_path / "p.yaml").write_text(text)
        with pytest.raises(UsageError) as caught:
            read_pipeline("p.yaml", overrides)
        return str(caught.value)

    return read


def test_a_good_file_is_read(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    file = read_pipeline(path)
    assert file.settings.name == "p"
    assert [step.label for step in file.steps] == ["gopher_quality", "exact_dedup"]
    assert file.steps[0].stage.min_words == 20
    assert file.sources[0].stage.paths == ("web/*.jsonl",)
    assert file.steps[1].where == f"{path}:7:5"


def test_a_file_may_have_any_name(tmp_path):
    path = tmp_path / "my run (2).yaml"
    path.write_text(GOOD)
    settings = read_pipeline(path).settings
    assert settings.name == "my-run-2-"
    assert (
        PipelineSettings.model_validate_json(settings.model_dump_json()) == settings
    )  # as workers do


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("min_words", "min_wrods", "p.yaml:6:41: gopher_quality has no parameter 'min_wrods'. "
         "Did you mean 'min_words'?"),
        ("min_words: 20", "min_words: many", "p.yaml:6:52: gopher_quality.min_words must be "
         "an integer, got 'many'."),
        ("min_words: 20", "min_words: true", "p.yaml:6:52: gopher_quality.min_words must be "
         "an integer, got True."),
        ("min_words: 20", 'min_words: "20"', "p.yaml:6:52: gopher_quality.min_words must be "
         "an integer, got '20'."),
        ("exact_dedup", "exact_dedupe", "p.yaml:7:5: there is no stage 'exact_dedupe'. "
         "Did you mean 'exact_dedup'?"),
        ("exact_dedup", "jsonl", "p.yaml:7:5: there is no stage 'jsonl'."),
        ("seed: 3", "seed: -3", "p.yaml:2:7: seed must be greater than or equal to 0, got -3."),
        ("seed: 3", "sede: 3", "p.yaml:2:1: the file has no parameter 'sede'. "
         "Did you mean 'seed'?"),
        ("seed: 3", "output: b", "p.yaml:2:1: 'output' is given twice. Remove one."),
        ("output: out\n", "", "p.yaml:1:1: output is missing. Set it."),
        ("workers: 2", "wokers: 2", "p.yaml:8:12: executor has no parameter 'wokers'."),
        ("workers: 2", "workers: -1", "p.yaml:8:21: executor.workers must be greater than or "
         "equal to 0, got -1."),
        ("jsonl:", "jsnol:", "p.yaml:4:8: source 'web' must name one format. "
         "Did you mean 'jsonl'?"),
        ("web:", "we/b:", "p.yaml:4:3: source name 'we/b' must be made of letters, digits"),
        ('jsonl: "web/*.jsonl"', 'jsonl: "web/*.jsonl", txt_column: t', "sources.web has no "
         "parameter 'txt_column'. Did you mean 'text_column'?"),
        ("seed: 3", "seed: [3", "not valid YAML"),
        ("seed: 3", "seed: !!int abc", "p.yaml:2:7: 'abc' is not of type int."),
        ("seed: 3", "seed: !!timestamp abc", "p.yaml:2:7: 'abc' is not of type timestamp."),
        ("seed: 3", "name: &a [*a]", "p.yaml:2:11: a value holds itself. Write the values out."),
        ("seed: 3", "seed: " + "[" * 3000, "p.yaml:2:70: nested deeper than 64."),
        ("seed: 3", "<<: {seed: 3}", "p.yaml:2:1: a key must be plain text."),
        ("seed: 3", "? [a]\n: 3", "a key must be plain text."),
        ("output: out", 'output: ""', "p.yaml:1:9: output"),
        ("output: out", 'output: "a\\0b"', "p.yaml:1:9: output"),
        ('jsonl: "web/*.jsonl"', "jsonl: []", "sources.web.jsonl"),
        ('jsonl: "web/*.jsonl"', 'jsonl: a, paths: [b]', "has no parameter 'paths'"),
        ("  - exact_dedup", "  - {a: 1, b: 2}", "p.yaml:7:5: a stage must be a name"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_and_a_cure(check, old, new, message):
    assert old in GOOD
    assert message in check(GOOD.replace(old, new))


CARD = """\
card:
  license: CC-BY-4.0
  languages: [en, "no"]
  homepage: https://example.org/a
  sources:
    web: {license: CC0-1.0, origin: "a crawl"}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("web: {lic", "wbe: {lic", "p.yaml:14:5: card: there is no source 'wbe'. "
         "Did you mean 'web'?"),
        ("license: CC-BY", "licence: CC-BY", "p.yaml:10:3: card has no parameter 'licence'. "
         "Did you mean 'license'?"),
        ("{license: CC0", "{licence: CC0", "p.yaml:14:11: card.sources.web has no parameter "
         "'licence'. Did you mean 'license'?"),
        ("[en,", "[English,", "p.yaml:11:15: card.languages.0"),
        ("https://example.org/a", "javascript:alert(1)", "p.yaml:12:13: card.homepage"),
        ("license: CC-BY-4.0", "license: [a]", "p.yaml:10:12: card.license must be a string"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_card_names_its_place(check, old, new, message):
    assert old in CARD
    assert message in check(GOOD + CARD.replace(old, new))


def test_a_card_is_read(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD + CARD)
    card = read_pipeline(path, ["card.sources.web.url=https://example.org"]).settings.card
    assert card.languages == ("en", "no")
    assert card.sources["web"].license == "CC0-1.0"
    assert card.sources["web"].url == "https://example.org"


def test_the_schema_for_editors_covers_the_card():
    from corpuskit.inspect.catalogue import pipeline_schema

    schema = pipeline_schema()
    assert schema["properties"]["card"]["$ref"] == "#/$defs/Card"
    card, source = schema["$defs"]["Card"], schema["$defs"]["SourceCard"]
    assert {"license", "languages", "limits", "sources"} <= card["properties"].keys()
    assert all(one["description"] for one in card["properties"].values())
    assert source["additionalProperties"] is False


def test_the_first_mistake_in_the_file_is_reported(check):
    text = GOOD.replace("min_words: 20", "min_word: 20, max_word: 3, max_words: x")
    assert "min_word'" in check(text)


def test_a_stage_given_twice_gets_labels(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD + "\n")
    path.write_text(GOOD.replace("exact_dedup", "gopher_quality"))
    labels = [step.label for step in read_pipeline(path).steps]
    assert labels == ["gopher_quality", "gopher_quality_2"]


def test_overrides_reach_settings_stages_and_sources(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    overrides = ["seed=9", "gopher_quality.min_words=7", "stages.exact_dedup.action=annotate",
                 "sources.web.text_column=body", "executor.workers=5"]  # fmt: skip
    file = read_pipeline(path, overrides)
    assert file.settings.seed == 9
    assert file.steps[0].stage.min_words == 7
    assert file.steps[1].stage.action == "annotate"
    assert file.sources[0].stage.text_column == "body"
    assert file.settings.executor.workers == 5


def test_an_override_addresses_a_stage_given_twice_by_its_label(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("exact_dedup", "gopher_quality\n  - pii\n  - gopher_quality"))
    overrides = ["gopher_quality_2.min_words=7", "stages.gopher_quality_3.min_words=9"]
    steps = read_pipeline(path, overrides).steps
    words = {step.label: getattr(step.stage, "min_words", None) for step in steps}
    assert words == {
        "gopher_quality": 20, "gopher_quality_2": 7, "pii": None, "gopher_quality_3": 9,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("gopher_quality.min_wrods=7", "--set gopher_quality.min_wrods=7: gopher_quality has no "
         "parameter 'min_wrods'. Did you mean 'min_words'?"),
        ("seed=x", "--set seed=x: seed must be an integer, got 'x'."),
        ("stages.nope.a=1", "no stage 'nope'."),
        ("gopher_quality_2.min_words=7", "--set gopher_quality_2.min_words=7: the file has no "
         "parameter 'gopher_quality_2'."),
        ("seed", "must look like"),
        ("output.x=1", "is not a mapping"),
        ("executor.workers=-1", "executor.workers must be greater"),
    ],
)  # fmt: skip
def test_a_wrong_override_says_so(check, override, message):
    assert message in check(GOOD, override)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("seed=1", "seed=2"),
        ("gopher_quality.min_words=7", "stages.gopher_quality.min_words=8"),
        ("executor={workers: 2}", "executor={workers: 2}"),
        ("executor.workers=2", "executor={workers: 4}"),
    ],
)
def test_two_overrides_of_one_value_are_refused(check, first, second):
    assert f"--set {second}: --set {first} sets it, too. Leave one out." in check(
        GOOD, "output=elsewhere", first, second
    )


@pytest.mark.parametrize("stages", ["", " 5", " {a: 1}"])
def test_an_override_of_a_file_without_stages_is_no_crash(tmp_path, stages):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.partition("stages:")[0] + f"stages:{stages}\n")
    with pytest.raises(UsageError, match="stages"):
        read_pipeline(path, ["stages.exact_dedup.action=drop"])
    if not stages:
        assert read_pipeline(path, ["executor.workers=3"]).settings.executor.workers == 3


def test_files_that_cannot_be_read_say_why(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_pipeline(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"output: \xff")
    with pytest.raises(UsageError, match="byte 8 is not UTF-8"):
        read_pipeline(tmp_path / "latin.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(ConfigError, match="must be a mapping"):
        read_pipeline(tmp_path / "list.yaml")


def test_stages_must_be_a_list(check):
    assert "p.yaml:5:9: stages must be a list." in check(GOOD.partition("stages:")[0] + "stages: 5")


def test_yaml_cannot_construct_objects(check):
    text = GOOD.replace("seed: 3", "seed: !!python/object:os.system {}")
    assert "p.yaml:2:7: the tag" in check(text)


def test_training_settings_get_the_same_errors(tmp_path):
    from corpuskit.train.settings import TrainSettings

    path = tmp_path / "t.yaml"
    path.write_text("data: runs/x\noutput: runs/y\nsetps: 3\n")
    with pytest.raises(ConfigError, match=r"t\.yaml:3:1: the file has no parameter 'setps'"):
        read_model(path, TrainSettings)
    path.write_text("data: x\noutput: y\nbatch: {global_rows: 4}\nsteps: 3\ntokens: 5\n")
    with pytest.raises(ConfigError, match=r"t\.yaml:4:8: steps 3 and tokens 5 are both set"):
        read_model(path, TrainSettings)


@pytest.mark.parametrize("flag", ["--dependency=afterok:1", "--array=0-3", "-a0-3", "-d afterok:1"])
def test_flags_of_slurm_cannot_undo_the_order_of_phases(tmp_path, flag):
    path = tmp_path / "p.yaml"
    path.write_text(
        'output: out\nsources: {web: {jsonl: "a.jsonl"}}\n'
        f'executor: {{slurm: {{flags: ["{flag}"]}}}}\n'
    )
    with pytest.raises(ConfigError, match=r"executor\.slurm\.flags: must not hold"):
        read_pipeline(path)


LAUGHS = "l0: &l0 lol\n" + "".join(
    f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
CHAIN = "l0: &l0 lol\n" + "".join(f"l{n}: &l{n} [*l{n - 1}]\n" for n in range(1, 100))
MERGES = "l0: &l0 {a: 1}\n" + "".join(
    f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 10)}]}}\n" for n in range(1, 10)
)
HOSTILE = [
    pytest.param(LAUGHS, ":6:", "more than 100,000 values, aliases expanded", id="laughs"),
    pytest.param(MERGES, ":6:", "more than 100,000 values, aliases expanded", id="merges"),
    pytest.param(CHAIN, ":64:", "nested deeper than 64", id="chain"),
    pytest.param("a: " + "{b: " * 9000, ":1:", "nested deeper than 64", id="deep"),
    pytest.param("a: " + "- " * 9000, ":1:", "nested", id="deep block"),
    pytest.param("a: &b {c: *b}", ":1:11", "a value holds itself", id="circle"),
    pytest.param("a: 1" + ":1" * 90_000, ":1:4", "a number or date of 180,001", id="base 60"),
    pytest.param("a: " + "9" * 5000, ":1:4", "a number or date of 5,000", id="digits"),
    pytest.param("# " + "x" * (4 << 20), ":1:1", "at most 4,194,304 are read", id="size"),
]


@pytest.mark.parametrize(("text", "place", "problem"), HOSTILE)
def test_hostile_yaml_is_refused_at_once_wherever_it_is_read(tmp_path, text, place, problem):
    """All of these took minutes, or ended in a traceback; the bound is 1 CPU second each."""
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    begin = time.process_time()
    readers = (
        read_pipeline,
        lambda path: read_model(path, TrainingSettings),
        _languages.content_of,
    )
    for reader in readers:
        with pytest.raises(ConfigError) as caught:
            reader(path)
        if "- " not in text:  # a sequence inside a line is no YAML
            assert str(caught.value).startswith(f"{path}{place}")
            assert problem in str(caught.value)
    assert time.process_time() - begin < 3


@pytest.mark.parametrize(
    "value",
    [
        "[" * 9000,
        "{a: " * 9000,
        "9" * 5000,
        "&a [*a]",
        "1:" * 9000 + "1",
        "!!python/none x",
        "{[a]: b}",
    ],
)
def test_a_hostile_override_is_refused(check, value):
    assert check(GOOD, f"seed={value}").startswith("--set seed=")


def test_an_override_of_many_names_is_refused(check):
    assert check(GOOD, "a." * 9000 + "b=1") == (
        "--set: 9001 names with dots between them. Check the name."
    )


def test_aliases_within_the_bounds_are_expanded(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(
        GOOD.replace("seed: 3", "seed: &seed 3").replace("workers: 2", "workers: *seed")
    )
    assert read_pipeline(path).settings.executor.workers == 3


NOT_PATHS = """
config split revision pattern text_column id_column url_column date_column label language keep
language_column column by step stop_chars stop_words extra_domains extra_urls banned_words
soft_banned_words banned_subwords exempt_domains question_column answer_column passage_column
choices_column prefer scope tokens columns sources special_tokens eos bos ids entries content_types
params keep_labels remove_labels limits max_epochs name seed name_or_path kind token_column
generated_phrases allow symbols replacement cursed expect one_per
"""


def test_every_parameter_that_is_a_string_is_a_path_or_known_to_be_none():
    """A path that is no `PathText` would make a folder called `~`."""
    models = {name: registry.load(name) for name in registry.names()}
    models |= {"pipeline": PipelineSettings, "train": TrainingSettings}
    models |= {"evaluate": EvaluateSettings}
    unknown = [
        f"{owner}.{name}"
        for owner, model in models.items()
        for name, field in model.model_fields.items()
        if re.search(r"\bstr\b", kind := str(field.annotation) + str(field.metadata))
        and "expand_home" not in kind
        and "Literal" not in kind
        and not name.endswith("_replacement")
        and name not in NOT_PATHS.split()
    ]
    assert unknown == []


PATHS = [
    ("output: out", "output: {}", "output", lambda f: f.settings.output),
    ('"web/*.jsonl"', '"{}"', "sources.web.jsonl.0", lambda f: f.sources[0].stage.paths[0]),
    ("exact_dedup", "exact_dedup: {{against: [\"{}\"]}}", "exact_dedup.against.0",
     lambda f: f.steps[1].stage.against[0]),
    ("exact_dedup", "language: {{model: \"{}\"}}", "language.model",
     lambda f: f.steps[1].stage.model),
    ("exact_dedup", "language: {{min_scores: \"{}\"}}", "language.min_scores",
     lambda f: f.steps[1].stage.min_scores),
    ("exact_dedup", "decontaminate: {{benchmarks: {{a: \"{}\"}}}}", "decontaminate.benchmarks",
     lambda f: f.steps[1].stage.benchmarks["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "name", "value"), PATHS, ids=[row[2] for row in PATHS])
def test_the_home_folder_is_expanded_and_variables_are_refused(
    tmp_path, monkeypatch, check, old, new, name, value
):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "q.yaml").write_text(GOOD.replace(old, new.format("~/a b")))
    assert value(read_pipeline(tmp_path / "q.yaml")) == f"{tmp_path}/home/a b"
    for path, problem in {
        "~no_such_user/x": "is in the home folder of 'no_such_user', and there is no such user.",
        "$SCRATCH/x": "holds the variable $SCRATCH, which is not expanded.",
        "s3://bucket/${RUN}/x": "holds the variable ${RUN}, which is not expanded.",
    }.items():
        message = check(GOOD.replace(old, new.format(path)))
        assert re.match(rf"p.yaml:\d+:\d+: {name}", message), message
        assert f"{path!r} {problem}" in message


def test_a_tilde_inside_a_path_and_a_dollar_inside_a_name_stay(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("output: out", "output: ./~/a$b/c$"))
    assert read_pipeline(path).settings.output == "./~/a$b/c$"
    assert read_pipeline(path, ["output=~/x"]).settings.output == os.path.expanduser("~/x")


def test_a_training_file_expands_the_home_folder_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    path = tmp_path / "t.yaml"
    text = "data: DATA\noutput: ~/model\nsteps: 1\nbatch: {global_rows: 1}\n"
    path.write_text(text.replace("DATA", "~/run"))
    settings = read_model(path, TrainingSettings)
    assert (settings.data, settings.output) == ("/home/me/run", "/home/me/model")
    path.write_text(text.replace("DATA", "$X/run"))
    with pytest.raises(ConfigError, match=r"t.yaml:1:7: data: '\$X/run' holds the variable \$X"):
        read_model(path, TrainingSettings)
