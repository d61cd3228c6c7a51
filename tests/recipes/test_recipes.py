"""Recipes: tables and pipelines that agree, `init`, `recipes diff`."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from corpuskit.engine.plan import read_plan
from corpuskit.engine.recipes import (
    FOLDER,
    detect_source,
    find_recipe,
    pipeline_text,
    recipes,
    write_recipe,
)
from corpuskit.errors import UsageError
from tests.conftest import ROOT
from tests.engine.here import command_line

WEB = "sample_data/web/*.jsonl.zst"
RECIPES = pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.full_name)


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch):
    monkeypatch.chdir(ROOT)


@RECIPES
def test_a_recipe_is_a_pipeline_whose_stages_are_in_its_table(recipe, tmp_path):
    inputs = {source: [WEB] for source in recipe.inputs}
    path, needs = write_recipe(recipe, tmp_path / "new", inputs)
    plan = read_plan(path)
    listed = [
        name
        for step, stages in recipe.labelled
        if not step.needs.keys() & needs.keys()
        for _, name, _ in stages
    ]
    assert [step.name for step in plan.file.steps] == listed
    assert {step.label for step in plan.file.sources} == set(recipe.inputs)
    text = path.read_text("utf-8")
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    assert all(len(line) <= 100 or "http" in line or "- " in line for line in comments)


@RECIPES
def test_a_table_says_where_each_step_is_published_and_what_differs(recipe):
    assert f"{recipe.full_name}.yaml" in {path.name for path in FOLDER.iterdir()}
    for step in recipe.steps:
        assert step.match == "ours" or step.source in recipe.links, step.step
        assert step.why or step.match != "close", step.step
        assert not (step.match == "missing" and step.stages), step.step
        labels = [label for of, stages in recipe.labelled if of is step for label, _, _ in stages]
        assert all(need.partition(".")[0] in labels for need in step.needs), step.step


def test_what_is_needed_switches_a_stage_on(tmp_path):
    dclm = find_recipe("dclm")
    model = f"quality.model={ROOT}/sample_data/quality.ftz"
    path, needs = write_recipe(dclm, tmp_path, {"": [WEB]}, [model, "quality.label=prose"])
    assert not needs
    [quality] = [step for step in read_plan(path).file.steps if step.name == "quality"]
    assert (quality.stage.label, quality.stage.min_score) == ("prose", 0.018112)
    assert list(write_recipe(dclm, tmp_path / "other", {"": [WEB]})[1]) == ["quality.model"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["quality.model"], "must look like stage.parameter=value"),
        (["qualty.model=x"], "no stage 'qualty'. Did you mean 'quality'?"),
        (["quality.modell=x"], "quality has no parameter 'modell'. Did you mean 'model'?"),
        (["language.min_score=[]"], "language.min_score must be a number"),
        (["language.min_score=]"], "--set language.min_score=]:1:1: not valid YAML"),
        (
            ["language.min_score=.5", "language.min_score=.6"],
            "--set language.min_score=.6: another --set makes it 0.5. Leave one out.",
        ),
        (["quality.label=x"], "quality.model is missing"),
    ],
)
def test_a_wrong_value_leaves_nothing_behind(tmp_path, overrides, message):
    with pytest.raises(UsageError) as error:
        write_recipe(find_recipe("dclm"), tmp_path / "new", {"": [WEB]}, overrides)
    assert message in str(error.value)
    assert not (tmp_path / "new").exists()


def test_init_says_what_it_wrote_and_overwrites_nothing(tmp_path):
    folder = tmp_path / "my crawl"
    done = command_line(ROOT, ["init", "c4", str(folder), "--input", WEB])
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    assert "\n  bad_words.lists: the file" in done.stdout
    assert f"next: corpuskit plan '{folder}/c4.yaml'" in done.stdout
    before = (folder / "c4.yaml").read_bytes()
    again = command_line(ROOT, ["init", "dclm", str(folder), "--input", WEB])
    assert again.returncode == 2
    assert "is not empty" in again.stderr
    assert [path.read_bytes() for path in folder.iterdir()] == [before]
    unquoted = ["--input", "sample_data/web/web-000.jsonl.zst", "sample_data/web/web-001.jsonl.zst"]
    refused = command_line(ROOT, ["init", "c4", str(tmp_path / "new"), *unquoted])
    assert refused.returncode == 2
    assert "Put a pattern of --input into quotes" in refused.stderr


def test_names_and_versions():
    assert find_recipe("c4").full_name == "c4@2019-10"
    with pytest.raises(UsageError, match=r"which version\? Name fineweb@2024-04 or fineweb@data"):
        find_recipe("fineweb")
    with pytest.raises(UsageError, match=r"no recipe 'finweb'\. Did you mean 'fineweb'\?"):
        find_recipe("finweb")
    with pytest.raises(UsageError, match=r"Known: c4, common-pile-web, dclm, dolma3-pdf, [^@]*$"):
        find_recipe("my-own")


def test_formats_and_columns_are_found(tmp_path):
    def source(name: str, content: bytes) -> dict:
        (tmp_path / name).write_bytes(content)
        found = detect_source([str(tmp_path / name)])
        return found | {next(iter(found)): None}

    row = json.dumps({"content": "x" * 100_000, "uuid": "1", "url": "http://a", "date": 3})
    named = {"text_column": "content", "id_column": "uuid", "url_column": "url"}
    assert source("a.gz", gzip.compress(row.encode() + b"\n{")) == {"jsonl": None} | named
    assert source("b.txt", b"Plain text.\n") == {"text": None}
    warc = b"WARC/1.0\r\nWARC-Type: %s\r\n"
    assert source("c.gz", gzip.compress(warc % b"warcinfo" + warc % b"response")) == {"warc": None}
    assert source("d", warc % b"warcinfo" + warc % b"conversion") == {"wet": None}
    table = pa.table({"id": [1], "text": ["x"], "doc_id": ["y"]})
    pq.write_table(table, tmp_path / "e")
    assert source("e", (tmp_path / "e").read_bytes()) == {"parquet": None, "id_column": "doc_id"}
    with pytest.raises(
        UsageError, match=r"no column is called text or content.*columns of strings: 'line'"
    ):
        source("f", b'{"line": "x", "n": 1}\n')
    with pytest.raises(UsageError, match="its first line is no JSON object"):
        source("g", b'{"text":\n "x"}\n')
    with pytest.raises(UsageError, match="Make two sources of them"):
        detect_source([str(tmp_path / "a.gz"), str(tmp_path / "b.txt")])
    with pytest.raises(UsageError, match="no file matches"):
        detect_source([str(tmp_path / "nothere")])


def test_recipes_that_differ_name_their_rules():
    done = command_line(ROOT, ["recipes", "diff", "dclm", "c4", "--json"])
    rules = {change["place"]: change["rules"] for change in json.loads(done.stdout)["changes"]}
    assert rules["language.min_score"] == ["score"]
    assert "no_terminal_punc" in rules["c4_quality"]
    assert "top_1_gram" not in rules["gopher_repetition"]
    assert "top_2_gram" in rules["gopher_repetition"]
    same = command_line(ROOT, ["recipes", "diff", "c4", "c4"])
    assert "The stages are the same." in same.stdout


@pytest.mark.slow
def test_documents_that_differ_are_counted(tmp_path):
    rows = [{"id": str(n), "text": f"The cat number {n} sits and looks. " * 3} for n in range(9)]
    rows[3]["text"] = "Far too short for one of them."
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["recipes", "diff", "common-pile-web", "dolma3-pdf", "--json"]
    done = command_line(tmp_path, [*arguments, "--on", "web.jsonl", "--keep", "runs"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    [kept] = [change for change in found["documents"]["changes"] if change["kind"] == "kept"]
    assert (kept["documents"], kept["a"]["rule"]) == (1, "gopher_short_doc")
    assert (tmp_path / "runs/a/run/documents").is_dir()
    changes = command_line(tmp_path, arguments)
    places = [change["place"] for change in json.loads(changes.stdout)["changes"]]
    assert any(place.startswith("minhash_dedup") for place in places)


def test_commands_print_every_recipe():
    listed = command_line(ROOT, ["recipes"]).stdout
    assert all(f"{recipe.full_name}  ({recipe.exactness})" in listed for recipe in recipes())
    shown = command_line(ROOT, ["recipes", "show", "dclm"]).stdout
    assert "gopher_quality: {variant: dclm}" in shown
    assert "https://arxiv.org/abs/2406.11794" in shown


def test_a_pipeline_is_read_back_as_given():
    dclm = find_recipe("dclm")
    given = ["line_rules.min_words=3"]
    text, _ = pipeline_text(dclm, {"web": {"jsonl": "a b's/*.gz"}}, "out put: x", given)
    plain = yaml.safe_load(text)
    assert plain["sources"] == {"web": {"jsonl": "a b's/*.gz"}}
    assert plain["output"] == "out put: x"
    assert {"line_rules": {"min_words": 3}} in plain["stages"]


def test_a_line_break_in_a_value_stays_within_its_line():
    text, _ = pipeline_text(find_recipe("fineweb2"), {"web": {"text": "*"}}, "run")
    assert r"""- symbol_lines: {symbols: ['|'], replacement: "\n"}""" in text
    assert {"symbol_lines": {"symbols": ["|"], "replacement": "\n"}} in yaml.safe_load(text)[
        "stages"
    ]
