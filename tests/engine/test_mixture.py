"""The mixture is a table before anything runs, exact once packed, refused before it is shuffled."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from corpuskit.cli._tables import print_mixture
from corpuskit.engine.mixture import PACK, mixture, mixture_problem
from corpuskit.engine.phase import PhaseWork
from corpuskit.engine.pipeline import check_phase, open_run, run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.status import run_facts, sealed, verify
from corpuskit.errors import TaskError, UsageError
from corpuskit.loader import StreamingLoader, read_mix
from corpuskit.loader.editing import append, skip_rows
from tests.engine.conftest import ROOT, tree
from tests.engine.here import Here


def opened(lab, *overrides: str):
    return open_run(read_plan(lab.path, overrides))


def finished_before(run, name: str):
    """Return the sealed phases before one."""
    names = [phase.name for phase in run.plan.phases]
    return [pair for pair in sealed(run) if pair[0].index < names.index(name)]


def phase_of(run, name: str):
    return next(phase for phase in run.plan.phases if phase.name == name)


def by_source(rows):
    return {row.source: row for row in rows}


def test_before_anything_runs_the_table_is_an_estimate(lab, finished):
    lab.save()
    found = mixture(opened(lab), [])
    real = mixture(opened(finished), sealed(opened(finished)))
    assert found.state == "estimated"
    assert any("not run yet" in note and "minhash_dedup" in note for note in found.notes)
    # It takes that nothing is dropped, so there is at least as much as there will be.
    assert sum(row.tokens for row in found.sources) > sum(row.tokens for row in real.sources)


def test_what_is_to_run_again_is_taken_to_drop_what_it_dropped_before(finished):
    run = opened(finished)
    found, real = mixture(run, []), by_source(mixture(run, sealed(run)).sources)
    assert found.notes[1:] == (
        "to run again, taken to drop as much as last time: gopher_quality, exact_dedup, "
        "minhash_dedup, pii",
        "tokens per byte of text as this directory packed them last",
    )
    for row in found.sources:
        assert row.rows / row.epochs == pytest.approx(
            real[row.source].rows / real[row.source].epochs, rel=0.15
        )


def test_the_assumed_tokens_per_byte_are_named(lab):
    lab.save()
    found = mixture(opened(lab), [])
    assert "0.31 tokens per byte of text assumed" in found.notes
    size = sum(path.stat().st_size for path in lab.inputs.iterdir())
    tokens = sum(row.tokens / row.epochs for row in found.sources)
    assert 0.2 * size < tokens < 0.4 * size


def test_text_of_unknown_size_is_named(lab):
    lab.save()
    assert "the text of web, books is guessed from the size of files" in mixture(
        opened(lab), []
    ).notes  # fmt: skip


def test_behind_finished_documents_only_the_tokens_are_a_guess(finished):
    run = opened(finished)
    found = mixture(run, finished_before(run, PACK))
    assert found.state == "estimated"
    assert found.notes == ("tokens per byte of text as this directory packed them last",)
    exact = by_source(mixture(run, sealed(run)).sources)
    for name, row in by_source(found.sources).items():
        assert (row.rows, row.tokens, row.epochs) == pytest.approx(
            (exact[name].rows, exact[name].tokens, exact[name].epochs), rel=0.05
        )


def test_once_packed_the_table_is_that_of_the_finished_plan(finished):
    run = opened(finished)
    counted = mixture(run, finished_before(run, "shuffle.scatter"))
    planned = mixture(run, sealed(run))
    assert (counted.state, planned.state) == ("counted", "planned")
    assert counted.rows == planned.rows
    assert counted.sources == planned.sources
    assert counted.problem == ""


def test_what_the_loader_delivers_is_what_the_table_says(finished):
    found = mixture(opened(finished), sealed(opened(finished)))
    taken = {row.source: 0 for row in found.sources}
    tokens = dict(taken)
    with StreamingLoader(finished.out, global_batch_rows=1) as loader:
        pad = loader.plan.tokenizer["pad"]
        for batch in loader:
            name = loader.source_names[int(batch["source_ids"][0])]
            taken[name] += 1
            tokens[name] += int((batch["tokens"] != pad).sum())
    for name, row in by_source(found.sources).items():
        assert taken[name] == row.rows
        # The rest are ends of documents, which are the padding too, and the row's last token.
        assert abs(tokens[name] - row.tokens) < row.documents + 3 * row.rows
    assert sum(row.token_ratio for row in found.sources) == pytest.approx(1)


def test_a_plan_without_rows_has_no_mixture(finished):
    run = open_run(read_plan(finished.path, until="pii"))
    assert all(phase.name != "mix.plan" for phase in run.plan.phases)
    assert mixture(run, sealed(run)) is None
    assert mixture_problem(run, 1) == ""


def test_a_schedule_that_does_not_fit_is_refused_before_anything_is_shuffled(finished):
    before = tree(finished.out)
    run = opened(finished, "mix.rows=100000")
    work = PhaseWork(run, phase_of(run, "shuffle.scatter"))
    with pytest.raises(TaskError, match=r"mix: the run takes .* epochs, but max_epochs 1.0 allows"):
        check_phase(work, force=True, is_started=True)
    with pytest.raises(UsageError, match=r"Nothing was run\."):
        check_phase(work, force=True)
    assert tree(finished.out) == before


@pytest.mark.parametrize("phase", ["gopher_quality", "pii", PACK])
def test_before_it_is_packed_a_schedule_is_not_refused(finished, phase):
    run = opened(finished, "mix.rows=100000")
    assert mixture_problem(run, phase_of(run, phase).index) == ""


def test_the_run_stops_behind_pack(lab):
    lab.stage("mix")["tokens"] = "1M"
    lab.pipeline["stages"] = lab.pipeline["stages"][4:]
    lab.save()
    with pytest.raises(TaskError, match="Finished phases are kept: correct it and run again"):
        run(read_plan(lab.path), launcher=Here(lab.out))
    assert (lab.out / "manifests" / PACK / "seal.json").exists()
    assert not (lab.out / "manifests" / "shuffle.scatter").exists()
    again = run(read_plan(lab.path, ["mix.tokens=2K"]), launcher=Here(lab.out))
    assert again.reused[phase_of(again.run, PACK).index]
    assert sum(row.rows for row in mixture(again.run, sealed(again.run)).sources) == 2000 // 128


def test_a_plan_that_will_not_fit_says_so_beforehand(lab):
    lab.stage("mix")["tokens"] = "1M"
    lab.save()
    found = mixture(opened(lab), [])
    assert found.problem.startswith("mix: the run takes ")
    assert max(row.epochs for row in found.sources) > 1


def test_the_table_is_printed_with_what_is_known_of_it(finished, capsys):
    run = opened(finished, "mix.rows=1000")
    for seals in ([], finished_before(run, "shuffle.scatter"), sealed(opened(finished))):
        print_mixture(mixture(run, seals))
    guessed, counted, planned = re.split(r"^Mixture", capsys.readouterr().out, flags=re.M)[1:]
    assert guessed.startswith(", estimated (~)")
    assert re.search(r"main +web +~750 +~", guessed)
    assert "~ to run again, taken to drop as much as last time: gopher_quality" in guessed
    assert counted.startswith(", from the rows that are packed")
    assert "Would be refused: mix: the run takes" in counted
    assert "~" not in counted + planned
    assert re.search(r"main +books +\d+ .* 25\.00 % +\d\d\.\d\d % +\d\d\.\d\d %", planned)


def test_the_guide_shows_what_is_printed(tmp_path, monkeypatch, capsys):
    guide = (ROOT / "docs" / "mixing.md").read_text("utf-8")
    schedule = guide.partition("## Schedules")[2].partition("```yaml")[2].partition("```")[0]
    (mix,) = yaml.safe_load(schedule)
    quickstart = yaml.safe_load((ROOT / "pipelines" / "quickstart.yaml").read_text("utf-8"))
    stages = [
        "exact_dedup", mix, {"tokenize": {"tokenizer": "sample_data/tokenizer.json"}},
        {"pack": {"seq_len": 512}}, "shuffle",
    ]  # fmt: skip
    path = tmp_path / "p.yaml"
    content = {"output": str(tmp_path / "out"), "sources": quickstart["sources"], "stages": stages}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    monkeypatch.chdir(ROOT)
    print_mixture(mixture(open_run(read_plan(path)), []))
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert "\n".join(printed) in guide


def test_a_stage_is_printed_with_the_sources_that_it_takes(finished, capsys):
    stages = "[{name: a, weights: {web: 1}, rows: 2}, {name: b, weights: {books: 1}, rows: 3}]"
    run = opened(finished, "mix.weights=null", f"mix.stages={stages}")
    print_mixture(mixture(run, finished_before(run, "shuffle.scatter")))
    lines = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[3:]]
    assert lines == [
        ["a", "web", "2"], ["b", "books", "3"], ["all", "web", "2"], ["all", "books", "3"],
        ["all", "all", "5"],
    ]  # fmt: skip


def test_plan_and_status_say_the_same_to_programs(finished):
    rows = json.loads(finished.cli("plan", str(finished.path), "--json").stdout)
    (facts,) = (row["mixture"] for row in rows if row["phase"] == "mix.plan")
    assert facts == json.loads(json.dumps(run_facts(opened(finished))["mixture"]))
    assert facts["state"] == "planned"
    assert {row["source"] for row in facts["rows"]} == {"web", "books"}


def test_a_mix_that_has_edits_is_not_made_again_unawares(lab):
    lab.pipeline["stages"] = lab.pipeline["stages"][4:]
    lab.save()
    here = Here(lab.out)
    run(read_plan(lab.path), launcher=here)
    plan = read_mix(lab.out)
    append(plan, skip_rows(plan, [(0, 1)]))
    run(read_plan(lab.path), launcher=here)  # nothing to do: they stay
    changed = read_plan(lab.path, ["mix.seed=5"])
    with pytest.raises(UsageError, match="1 edits of the mix that this run would make again"):
        run(changed, launcher=here)
    assert read_mix(lab.out).skips.spans == ((0, 1),)
    path = lab.out / "edits" / "00001.json"
    content = path.read_text()
    path.write_text("{")
    found = mixture(opened(lab), sealed(opened(lab)))
    assert any("Restore it from a copy" in note for note in found.notes)
    assert any("not JSON" in one for one in verify(opened(lab)).problems)
    path.write_text(content)
    run(changed, force=True, launcher=here)
    assert any("was made again since" in one for one in verify(open_run(changed)).problems)
