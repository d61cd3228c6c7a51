"""A dataset card says what the files say, is valid, and can't be made to say anything else."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections import Counter

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from corpuskit.engine.config import read_pipeline
from corpuskit.engine.plan import read_plan
from corpuskit.formats.manifest import dump_checked, load_checked
from corpuskit.inspect.card import (
    cell,
    clean,
    code,
    fenced,
    find_limits,
    license_fields,
    paragraphs,
    plain,
    size_category,
    statements,
)
from tests.engine.conftest import Lab, tree

HOSTILE = (
    "a|b `c` **d** <script>alert(1)</script> [x](javascript:y) \x1b[31m \u202e ![i](z)\n---\n# h"
)
OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"  # and nothing of these
)


@pytest.fixture(scope="module")
def kept(finished, tmp_path_factory):
    """A copy of the finished run, in a lab of its own; card tests edit its pipeline."""
    lab = copy.copy(finished)
    folder = tmp_path_factory.mktemp("card")
    shutil.copytree(finished.out, folder / "out")
    lab.pipeline = copy.deepcopy(finished.pipeline) | {"output": str(folder / "out")}
    lab.path = folder / "p.yaml"
    lab.run()
    return lab


def card_of(lab: Lab, *arguments: str) -> str:
    return lab.cli("card", str(lab.out), *arguments).stdout


def head_of(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_figures_are_those_of_the_files(kept):
    facts = json.loads(card_of(kept, "--json"))
    documents = pq.read_table(kept.out / "documents").to_pylist()
    gone = pq.read_table(kept.out / "ledger").to_pylist()
    plan = json.loads((kept.out / "mix" / "plan.json").read_text())
    tokens = {one["name"]: one["tokens"] for one in plan["sources"]}
    for one in facts["sources"]:
        ours = [row for row in documents if row["source"] == one["name"]]
        assert one["kept_documents"] == len(ours) > 0
        assert one["kept_bytes"] == sum(len(row["text"].encode()) for row in ours)
        assert one["tokens"] == tokens[one["name"]]
        lost = sum(row["action"] == "drop" and row["source"] == one["name"] for row in gone)
        assert one["read_documents"] == len(ours) + lost
    rules = Counter((row["stage"], row["rule"]) for row in gone if row["action"] == "drop")
    said = {
        (one["label"], rule): n for one in facts["stages"] for rule, n in one["dropped"].items()
    }
    assert said == rules
    assert facts["plan_hash"] == plan["plan_hash"]
    assert set(facts["columns"]) == set(documents[0])


def test_the_card_is_one_that_the_hub_can_read(kept):
    hub = pytest.importorskip("huggingface_hub")
    text = card_of(kept)
    card = hub.DatasetCard(text)
    data = card.data.to_dict()
    assert data["pretty_name"] == "p"
    assert data["license"] == "unknown"
    assert data["size_categories"] == ["n<1K"]
    assert data["task_categories"] == ["text-generation"]
    assert [one["config_name"] for one in data["configs"]] == ["documents", "tokens"]
    for one in data["configs"]:
        [files] = one["data_files"]
        assert list(kept.out.glob(files["path"]))
    assert card.text.strip().startswith("# p\n")
    assert 'documents = load_dataset("parquet", data_files="documents/*.parquet"' in card.text
    assert 'StreamingLoader(".", global_batch_rows=8)' in card.text
    assert hub.DatasetCard(str(card)).data.to_dict() == data


def test_what_nobody_declared_is_said_to_be_undeclared(kept):
    done = kept.cli("card", str(kept.out))
    assert done.stdout.count("Licence: **not declared**") == 2
    assert "warning: the licence of the dataset is not declared. Set card.license." in done.stderr
    assert "licences of sources web, books are not declared" in done.stderr
    assert "Nobody declared the licence of web, books." in done.stdout


def test_edits_of_the_stream_are_told(kept, tmp_path):
    run = str(shutil.copytree(kept.out, tmp_path / "out"))
    id_taken = pq.read_table(kept.out / "documents")["id"][0].as_py()
    weights = ("--weight", "web=1", "--weight", "books=1")
    kept.cli("edit", "stage", run, "--at-step", "1", "-b", "1", "--rows", "20", *weights)
    kept.cli("edit", "takedown", run, "--at-step", "1", "-b", "1", "--doc", id_taken)
    kept.cli("edit", "skip", run, "--steps", "2:3", "-b", "1")
    limits = json.loads(kept.cli("card", run, "--json").stdout)["limits"]
    kinds = [line.partition(": edits/0000")[2][2:] for line in limits]
    assert next(filter(None, kinds)).startswith("json: stages from row 1: ")
    assert "json: skip from row 2: rows 2 to 3." in kinds
    assert "Taken down after packing: 1 document." in limits[-1]


def test_editing_the_card_makes_nothing_again(kept):
    before = tree(kept.out, "documents", "tokens", "mix", "ledger", "manifests")
    stamps = {path: path.stat().st_mtime_ns for path in kept.out.glob("manifests/*/seal.json")}
    kept.pipeline["card"] = {"license": "CC-BY-4.0", "languages": ["en"], "citation": "@misc{a}"}
    kept.save()
    planned = kept.cli("plan", str(kept.path)).stdout
    assert "reuse" in planned
    assert "RUN" not in planned
    kept.run()
    assert tree(kept.out, "documents", "tokens", "mix", "ledger", "manifests") == before
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    head = head_of(card_of(kept))
    assert (head["license"], head["language"]) == ("cc-by-4.0", ["en"])


def test_the_pipeline_in_the_card_is_the_pipeline(kept, tmp_path):
    [text] = re.findall(r"^```yaml\n(.*?)^```", card_of(kept), re.DOTALL | re.MULTILINE)
    (tmp_path / "again.yaml").write_text(text)
    again, plan = read_plan(tmp_path / "again.yaml"), read_plan(kept.path)
    assert [step.stage for step in again.file.steps] == [step.stage for step in plan.file.steps]
    assert [step.stage for step in again.file.sources] == [s.stage for s in plan.file.sources]
    bare = plan.settings.model_copy(update={"card": again.settings.card, "documents": True})
    assert again.settings == bare


def test_a_hostile_declaration_says_nothing_of_its_own(kept):
    earlier = dict(kept.pipeline)
    about = {"license": HOSTILE, "origin": HOSTILE, "description": HOSTILE}
    kept.pipeline["card"] = {
        "pretty_name": HOSTILE, "license": HOSTILE, "description": HOSTILE, "tags": ["#t\n- u"],
        "citation": "``` \x07\n```\n# injected", "limits": [HOSTILE], "languages": ["no"],
        "sources": {"web": about, "books": about},
    }  # fmt: skip
    try:
        kept.run()
        card = card_of(kept)
    finally:
        kept.pipeline = earlier
        kept.run()
    assert not OBEYED.search(card)
    head = head_of(card)
    assert head["pretty_name"] == clean(HOSTILE)
    assert head["language"] == ["no"]
    assert head["license"] == "other"
    assert re.fullmatch(r"[a-z0-9.-]+", head["license_name"])
    body = card.split("---\n", 2)[2]
    tokens = MarkdownIt("commonmark").enable("table").parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    assert not [one for one in [*tokens, *inline] if one.type in {"html_block", "html_inline"}]
    assert not [one for one in inline if one.type in {"link_open", "image"}]
    headings = [tokens[i + 1].content for i, t in enumerate(tokens) if t.type == "heading_open"]
    assert "Citation" in headings
    assert not {"injected", "h"} & set(headings)


def test_a_run_that_is_not_finished_says_so(kept, tmp_path):
    other = copy.copy(kept)
    shutil.copytree(kept.out, tmp_path / "out")
    other.pipeline = kept.pipeline | {"output": str(tmp_path / "out")}
    (other.out / "manifests" / "pack" / "seal.json").unlink()
    done = other.cli("card", str(other.out))
    assert "**The run is not finished**: `pack`" in done.stdout
    assert "warning: the run is not finished: pack" in done.stderr
    assert head_of(done.stdout)["configs"][0]["config_name"] == "documents"
    shutil.rmtree(other.out / "manifests")
    assert "no phase is finished" in other.cli("card", str(other.out), code=2).stderr


def test_a_card_goes_to_a_file(kept, tmp_path):
    assert card_of(kept, "-o", str(tmp_path / "README.md")) == ""
    assert (tmp_path / "README.md").read_text("utf-8") == card_of(kept)


# Without a run.


def steps_of(tmp_path, *stages):
    path = tmp_path / "p.yaml"
    sources = {"web": {"jsonl": "a.jsonl"}}
    path.write_text(yaml.safe_dump({"output": "o", "sources": sources, "stages": list(stages)}))
    return read_pipeline(path).steps


def test_limits_follow_from_the_plan(tmp_path):
    bare = " ".join(find_limits(steps_of(tmp_path, "gopher_quality"), ["web"], ["read"]))
    for words in (
        "Languages were not looked at.", "Duplicates were not looked for", "No stage looked for "
        "benchmark items", "No stage looked for personal data.", "toxic or adult", "licence of web",
        "Phases read were made by code that has changed",
    ):  # fmt: skip
        assert words in bare
    whole = steps_of(
        tmp_path, {"holdout": {"ratio": 0.02}}, "language", "url_filter", "exact_dedup",
        "minhash_dedup", {"decontaminate": {"benchmarks": ["b.jsonl"], "action": "cut"}}, "pii",
        {"quality": {"model": "q.ftz", "label": "good"}}, {"percentile": {"keep_top": 0.5}},
    )  # fmt: skip
    said = " ".join(find_limits(whole, [], []))
    for words in ("embedded model", "About 2 %", "best 50 %", "q.ftz", "names are still there"):
        assert words in said
    for words in ("Nobody declared", "were not looked", "No stage looked", "Only exact"):
        assert words not in said
    exact = find_limits(steps_of(tmp_path, "exact_dedup"), [], [])
    assert "Only exact copies were looked for: near duplicates are still there." in exact


def test_statements_name_what_was_done(tmp_path):
    steps = steps_of(
        tmp_path, "minhash_dedup", {"exact_dedup": {"action": "annotate"}},
        {"decontaminate": {"benchmarks": ["b.jsonl"], "action": "cut"}}, "pii",
    )  # fmt: skip
    near, exact = statements(steps, {"minhash_dedup": 7}, {})["Duplicates"]
    assert "14 bands of 8 rows" in near
    assert "to share 80% of them with one that stays, which lacks at most 2% of" in near
    assert "were dropped: 7 documents gone." in near
    assert "noted, not removed" in exact
    cut = statements(steps, {}, {"decontaminate": {"contaminated": 3}})["Benchmarks"][0]
    assert "b.jsonl" in cut
    assert cut.endswith("cut out: 3 documents shortened.")
    assert "email in 3" in statements(steps, {}, {"pii": {"email": 3}})["Personal data"][0]
    assert statements((), {}, {})["Personal data"] == ["Personal data was not looked for."]


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(deadline=None)
def test_plain_text_stays_what_it_says(text):
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(plain(text))
    if not clean(text):
        assert not tokens
        return
    assert [one.type for one in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert {one.type for one in tokens[1].children} <= {"text", "text_special"}
    assert "".join(one.content for one in tokens[1].children) == clean(text)


@given(st.text("`|a \\\n", min_size=1))
@settings(deadline=None)
def test_code_stays_what_it_says(text):
    table = f"| a |\n| --- |\n| {cell('x' + text + 'x')} |"
    parsed = MarkdownIt("commonmark").enable("table").parse(table)
    [one] = [token for token in parsed if token.type == "inline"][1].children
    assert one.type == "code_inline"
    assert one.content == clean("x" + text + "x")
    [_, inline, _] = MarkdownIt("commonmark").parse(code("x" + text + "x"))
    assert inline.children[0].content == one.content
    tokens = MarkdownIt("commonmark").parse(fenced(text, "yaml") + "\n")
    assert [one.type for one in tokens] == ["fence"]


@pytest.mark.parametrize(
    ("documents", "size"),
    [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**9, "1B<n<10B"), (10**12, "n>1T")],
)
def test_sizes_have_the_names_of_the_hub(documents, size):
    assert size_category(documents) == size


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (None, {"license": "unknown"}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("CC BY 4.0", {"license": "cc-by-4.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("ODC-By-1.0", {"license": "odc-by"}),
        ("Ask us!", {"license": "other", "license_name": "ask-us"}),
    ],
)
def test_licences_have_the_names_of_the_hub(name, fields):
    assert license_fields(name, None) == fields


def test_paragraphs_stay_apart():
    assert paragraphs("a\n b\n\n# c\n") == "a b\n\n\\# c"


def test_no_card_tells_of_parameters_that_did_not_make_the_data(finished, tmp_path):
    """The plan was edited, and the run stopped before its phase was made again."""
    shutil.copytree(finished.out, tmp_path / "out")
    path = tmp_path / "out/plan.json"
    plan = load_checked(path.read_bytes(), "plan.json")
    text = json.dumps(plan).replace('"min_words": 30', '"min_words": 31')
    assert text != json.dumps(plan)
    path.write_bytes(dump_checked(json.loads(text)))
    out = str(tmp_path / "out")
    said = finished.cli("card", out, code=2).stderr
    assert "gopher_quality were made with other parameters" in said
    said = finished.cli("tune", out, "gopher_quality", code=2).stderr
    assert "was made with other parameters" in said
    facts = json.loads(finished.cli("report", out, "--json").stdout)
    assert facts["run"]["state"] == "changed"
    assert {one["threshold"] for one in facts["measures"]["items"]} == {None}
    assert "no longer those that made" in facts["totals"]["notes"][0]
    said = finished.cli("why", out, "doc3", "--recompute").stdout
    assert "made with other parameters" in " ".join(said.split())
