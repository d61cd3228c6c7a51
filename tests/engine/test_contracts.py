"""`expect`: what a file may say, where a run stops, and who says so."""

from __future__ import annotations

import dataclasses
import json

import pytest

from corpuskit.engine.callbacks import RunCallbacks
from corpuskit.engine.executors.slurm_slot import Slot
from corpuskit.engine.phase import failure_error, note_slot, read_failures
from corpuskit.engine.pipeline import prepared
from corpuskit.engine.plan import read_plan
from corpuskit.engine.rundir import RunDirectory
from corpuskit.errors import ConfigError, ContractError
from corpuskit.formats.manifest import COUNTED
from corpuskit.inspect.report.facts import gather
from tests.contracts import ROOT, draw_pipeline

HEAD = """output: out
sources: {web: {jsonl: "in*.jsonl"}, books: {jsonl: "in*.jsonl"}}
stages:
  - language: {keep: [en, de]}
  - gopher_quality: {words: whitespace, min_stop_words: null}
  - substring_dedup: {action: annotate}
  - minhash_dedup
"""


def test_a_run_passes_if_and_only_if_its_bounds_hold(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda handle: None)  # tests/faults has the losses of power
    held, broken = draw_pipeline(5, 5)
    assert held
    assert broken


@pytest.mark.parametrize(
    ("given", "place", "problem"),
    [
        ("gopher_qualty: {max_drop: 0.5}", "9:3", "Did you mean 'gopher_quality'?"),
        ("gopher_quality: {wbe: {max_drop: 0.5}}", "9:20", "Did you mean 'web'?"),
        ("gopher_quality: {web: {max_dorp: 0.5}}", "9:26", "Did you mean 'max_drop'?"),
        ("gopher_quality: {rules: {min_words: {max_drop: 0.5}}}", "9:28", "'gopher_short_doc'"),
        ("gopher_quality: {rules: {gopher_long: {max_drop: 0.5}}}", "9:28", "gopher_long_doc"),
        ("gopher_quality: {rules: {gopher_short_doc: {min_keep: 0.5}}}", "9:47", "Known: max_cut"),
        ("gopher_quality: 0.5", "9:3", "must be a mapping, got 0.5"),
        ("gopher_quality: {max_drop: 1}", "9:20", "1 can never fail; got 1."),
        ("gopher_quality: {max_drop: 60}", "9:20", "must be a share between 0 and 1"),
        ("gopher_quality: {max_drop: -0.1}", "9:20", "must be a share between 0 and 1"),
        ("gopher_quality: {max_drop: .nan}", "9:20", "must be a share between 0 and 1"),
        ("gopher_quality: {max_drop: true}", "9:20", "must be a share between 0 and 1"),
        ("gopher_quality: {min_keep: 0}", "9:20", "0 can never fail; got 0."),
        ("gopher_quality: {min_keep: {de: 0.5}}", "9:31", "is no label that stays here"),
        ("gopher_quality: {max_cut: 0.5}", "9:20", "cuts nothing out of documents"),
        (
            "gopher_quality: {rules: {gopher_enough_stop_words: {max_drop: 0.5}}}", "9:55",
            "can never fail: min_stop_words is null",
        ),
        ("minhash_dedup: {max_cut_bytes: 0.5}", "9:19", "cuts nothing out of documents"),
        ("substring_dedup: {max_drop: 0.5}", "9:21", "the stage drops nothing"),
        ("language: {min_keep: {ed: 0.5}}", "9:25", "Did you mean 'en'?"),
        ("tokens: {min: 1e9}", "9:12", "no stage packs"),
        ("tokens: {min: lots}", "9:12", "must be a number of tokens, as in 500M, got 'lots'"),
        ("tokens: {web: {max: 5}}", "9:18", "Known: min."),
    ],
)  # fmt: skip
def test_a_bound_that_names_nothing_or_cannot_fail_is_refused(tmp_path, given, place, problem):
    path = tmp_path / "p.yaml"
    path.write_text(f"{HEAD}expect:\n  {given}\n")
    with pytest.raises(ConfigError) as refused:
        read_plan(path)
    assert refused.value.where == f"{path}:{place}"
    assert problem in str(refused.value)


def test_the_example_of_the_page_is_sound(tmp_path):
    example = (ROOT / "docs" / "contracts.md").read_text("utf-8").split("```yaml\n")[1]
    tokenizer = ROOT / "sample_data" / "tokenizer.json"
    more = f"  - line_dedup\n  - tokenize: {{tokenizer: {tokenizer}}}\n  - pack: {{seq_len: 64}}\n"
    (tmp_path / "p.yaml").write_text(HEAD + more + example.split("```")[0])
    assert read_plan(tmp_path / "p.yaml").settings.expect


def test_a_run_stops_before_the_next_phase_and_goes_on_when_told(lab):
    rules = {"gopher_short_doc": {"max_drop": 0.9}}
    bounds = {"books": {"max_drop": 0.0}, "rules": rules}
    lab.pipeline["expect"] = {"gopher_quality": bounds, "tokens": {"min": "1B"}}
    stopped = lab.run(code=4)
    assert "gopher_quality  books   max_drop  <= 0 %" in stopped.stderr
    assert not (lab.out / "manifests" / "exact_dedup.hash").exists()
    facts = lab.facts()
    assert {c["source"]: c["verdict"] for c in facts["contracts"] if c["bound"] == "max_drop"} == {
        "books": "broken"
    }
    assert {c["verdict"] for c in facts["contracts"] if c["stage"] == "tokens"} == {"waiting"}
    assert "max_drop" in lab.cli("status", str(lab.out), "--watch", "1", code=4).stderr
    assert lab.run(code=4).stderr.splitlines()[-5:] == stopped.stderr.splitlines()[-5:]
    accepted = lab.run("--accept")
    assert "accepted, although expect does not hold" in accepted.stderr
    assert json.loads((lab.out / "plan.json").read_bytes())["accepts"] is True
    run = RunDirectory.open(str(lab.out))
    table = gather(run, samples=0, seed=0)["expect"]["contracts"]
    assert [row["cells"][-1] for row in table if row["stage"] == "tokens"] == ["accepted"]
    lab.pipeline["expect"] = {"tokens": {"min": "1B"}}
    stopped = lab.run(code=4)  # nothing is accepted for good
    assert "tokens  all     min    >= 1,000,000,000" in stopped.stderr


def test_slots_stop_and_the_follower_says_why(lab):
    lab.pipeline |= {"stages": ["exact_dedup"], "expect": {"exact_dedup": {"max_drop": 0.0}}}
    lab.save()
    with prepared(read_plan(lab.path), RunCallbacks()):
        pass
    run = RunDirectory.open(str(lab.out))
    lab.run(code=4)
    slot = Slot(run, 0, 1, 0, accept_code=False, force=False)
    last = run.plan.phases[-1]
    with pytest.raises(ContractError, match="exact_dedup  web"):
        slot.work(last.index)
    note_slot(run, last, 0, "expect does not hold: ...", ContractError.exit_code)
    assert isinstance(failure_error(last, read_failures(run, last)), ContractError)
    lab.run("--accept")
    with pytest.raises(ContractError, match="exact_dedup  web"):
        slot.close()
    run.accepts = True
    assert slot.close() == 0


def test_what_an_earlier_version_did_not_count_does_not_count_as_nothing(lab):
    lines = "A line that is in all of the documents.\n"
    lab.write("web0.jsonl", [{"id": f"d{i}", "text": lines + f"My own {i}."} for i in range(9)])
    lab.pipeline["stages"] = [{"line_dedup": {"min_count": 2}}]
    lab.run()
    run = RunDirectory.open(str(lab.out))
    for phase in run.plan.phases:
        seal = run.seal(phase.index)
        new = (COUNTED, "seen_bytes/", "shortened/", "cut_bytes/")
        old = {name: n for name, n in seal.counters.items() if not name.startswith(new)}
        run.store.put(run.seal_name(phase), dataclasses.replace(seal, counters=old).to_json())
    lab.pipeline["expect"] = {"line_dedup": {"web": {"max_cut_bytes": 0.9, "max_drop": 0.9}}}
    other = str(lab.out)
    lab.pipeline |= {"output": f"{lab.out}-2", "reuse": [other]}  # nor is it taken from there
    lab.run()
    assert lab.facts()["contracts"][0]["counted"] > 0
    lab.pipeline |= {"output": other, "reuse": []}
    lab.run("--accept-code-change")
    counted = lab.facts()["contracts"]
    assert [(one["verdict"], one["counted"] is None) for one in counted] == [("holds", False)] * 2
    assert counted[0]["counted"] > 0


def test_a_source_that_one_stage_wipes_out_is_worth_a_warning(lab):
    lab.write("web0.jsonl", [{"id": f"a{i}", "text": "too short"} for i in range(900)])
    lab.run("--until", "gopher_quality")
    [warning] = lab.facts()["warnings"]
    assert warning.startswith("gopher_quality dropped 9")
    assert "documents of web (" in warning
    lab.pipeline["expect"] = {"gopher_quality": {"web": {"max_drop": 0.999}}}
    lab.run("--until", "gopher_quality")
    assert lab.facts()["warnings"] == []


@pytest.mark.parametrize(
    ("keep", "params", "warned"),
    [
        (["en"], {"words": "whitespace"}, ""),
        (["en", "hu"], {"words": "whitespace"}, "the stop words are English"),
        (["hu"], {"words": "whitespace", "stop_words": ["a", "az"]}, ""),
        (["hu"], {"words": "whitespace", "min_stop_words": None}, ""),
        (["hu"], {"stop_words": ["a", "az"]}, "words are split by English rules"),
        (["en", "hu"], {"words": "whitespace", "where": {"language.label": ["en"]}}, ""),
        (["hu"], {"words": "whitespace", "sources": ["books"]}, ""),
        (["hu"], {"words": "whitespace", "sources": ["web"]}, "the stop words are English"),
    ],
)
def test_english_defaults_for_other_languages_are_worth_a_warning(lab, keep, params, warned):
    language = {"keep": keep} | ({"sources": ["web"]} if "sources" in params else {})
    lab.pipeline["stages"] = [{"language": language}, {"gopher_quality": params}]
    lab.save()
    printed = lab.cli("plan", str(lab.path)).stdout
    assert ("Warning: gopher_quality: " + warned in printed) if warned else "Warning" not in printed


def test_a_share_is_of_the_documents_that_the_stage_applies_to(lab):
    short = [{"id": f"s{i}", "text": "too short", "kind": "page"} for i in range(30)]
    long = [{"id": f"l{i}", "text": "too short as well", "kind": "note"} for i in range(70)]
    lab.write("web0.jsonl", short + long)
    for name in lab.inputs.glob("web[1-9]*"):
        name.unlink()
    lab.pipeline["sources"]["web"]["columns"] = {"kind": "string"}
    lab.pipeline["stages"] = [{"gopher_quality": {"sources": ["web"], "where": {"kind": "page"}}}]
    lab.pipeline["expect"] = {"gopher_quality": {"web": {"max_drop": 0.5}}}
    stopped = lab.run(code=4)
    assert "100 % (30 of 30)" in stopped.stderr
    lab.pipeline["expect"] = {"gopher_quality": {"books": {"max_drop": 0.5}}}
    refused = lab.run(code=2)
    assert "can never fail: gopher_quality does not apply to it" in refused.stderr


WITHOUT = "and none of its sources has one. Set "


@pytest.mark.parametrize(
    ("stage", "params", "name"),
    [
        ("url_filter", {}, "url"),
        ("url_filter", {"sources": ["books"]}, "url"),
        ("url_filter", {"sources": ["web"]}, ""),
        ("exact_dedup", {"keep": "newest"}, "date"),
        ("minhash_dedup", {"keep": "newest", "sources": ["web"]}, "date"),
        ("exact_dedup", {"column": "url"}, ""),
    ],
)
def test_a_stage_that_reads_what_no_source_has_is_worth_a_warning(lab, stage, params, name):
    if not name:
        lab.pipeline["sources"]["web"]["url_column"] = "url"
    for file in ("web0.jsonl", "books0.jsonl"):
        lab.write(file, [{"id": "a", "text": "A text.", "url": "https://example.org"}])
    lab.pipeline["stages"] = [{stage: params}]
    lab.save()
    warning = f"{stage}: it reads the {name} of documents, {WITHOUT}{name}_column of a source"
    printed = lab.cli("plan", str(lab.path)).stdout
    assert printed.count(warning) == bool(name)
    assert (warning in lab.run().stderr) == bool(name)
    assert len(lab.facts()["warnings"]) == bool(name)


@pytest.mark.parametrize(
    ("column", "stage"),
    [
        ("origin.url", "url_filter"),
        ("origin.url", {"exact_dedup": {"column": "url"}}),
        ("origin.date", {"minhash_dedup": {"keep": "newest"}}),
        ("score", {"threshold": {"column": "score", "min": 0.5}}),
        ("score", {"upsample": {"column": "score", "points": [[0, 1], [1, 2]]}}),
        ("lang", {"exact_dedup": {"scope": "lang"}}),
        ("lang", {"gopher_quality": {"where": {"lang": "en"}}}),
    ],
)
def test_a_stage_that_reads_what_no_document_has_is_worth_a_warning(lab, column, stage):
    columns = {"url_column": "url", "date_column": "date"}
    for name in ("web", "books"):
        declared = {"columns": {"score": "float64", "lang": "string"}}
        path = str(lab.inputs / f"{name}0.jsonl")
        lab.pipeline["sources"][name] |= {"jsonl": path, **columns, **declared}
    empty = dict.fromkeys(("url", "date", "score", "lang"))
    full = {"url": "https://example.org", "date": "2020-01-01", "score": 0.7, "lang": "en"}
    rows = [{"id": str(i), "text": f"Text {i}.", **empty} for i in range(5)]
    lab.write("web0.jsonl", [{"id": "bad", "text": 5, **full}, *rows])
    lab.write("books0.jsonl", [*rows, {"id": "x", "text": "Another.", **full}])
    lab.pipeline["stages"] = [stage]
    label = stage if isinstance(stage, str) else next(iter(stage))
    warning = f"{label} reads {column}: none of the 5 documents of web has a value there"
    assert warning in lab.run().stderr
    assert [one for one in lab.facts()["warnings"] if "reads" in one] == [
        f"{warning}. Check the columns of the source."
    ]
    assert warning in " ".join(lab.cli("status", str(lab.out)).stdout.split())
