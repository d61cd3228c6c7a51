"""A new dump compared with what an older run left, which is not touched."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from corpuskit.errors import UsageError
from corpuskit.stage import Known
from corpuskit.stages.dedup.exact_dedup import ExactDedup
from tests.engine.conftest import Lab, corpus, tree


@pytest.fixture
def dumps(tmp_path_factory, tokenizer):
    """Two labs: of 60 documents, indexed, and of those that come later, half of them known."""
    documents = corpus(120, 5)
    labs = []
    for name, some in (("one", documents[:70]), ("two", documents[40:])):
        lab = Lab(tmp_path_factory.mktemp(name), tokenizer)
        lab.write("web.jsonl", [{"id": f"{name}-{d['id']}", "text": d["text"]} for d in some])
        lab.pipeline["sources"] = {"web": lab.pipeline["sources"]["web"]}
        lab.pipeline["stages"] = [
            {"exact_dedup": {"index": True}},
            {"minhash_dedup": {"ngram": 3, "index": True, "keep": "longest"}},
        ]
        labs.append(lab)
    return labs


def inputs_of(lab):
    lines = (lab.inputs / "web.jsonl").read_text().splitlines()
    return {found["id"]: found["text"] for found in map(json.loads, lines)}


def ledger_of(lab):
    return pq.read_table(lab.out / "ledger").to_pylist()


def test_what_an_older_run_has_is_dropped_and_the_older_run_is_not_touched(
    dumps, tmp_path, tokenizer
):
    one, two = dumps
    one.run()
    nothing = Lab(tmp_path, tokenizer)
    nothing.write("web.jsonl", [])
    nothing.pipeline["sources"] = one.pipeline["sources"] | {
        "web": {"jsonl": str(nothing.inputs / "web.jsonl"), "id_column": "id"}
    }
    nothing.pipeline["stages"] = one.pipeline["stages"]
    nothing.run()
    before = tree(one.out, ".")
    for name in ("exact_dedup", "minhash_dedup"):
        two.stage(name)["against"] = [str(one.out), str(nothing.out)]
    two.run()
    assert tree(one.out, ".") == before
    known, texts = inputs_of(one), inputs_of(two)
    left = pq.read_table(two.out / "documents").column("id").to_pylist()
    assert left
    assert not {texts[name] for name in left} & set(known.values())
    dropped = [row for row in ledger_of(two) if row["action"] == "drop"]
    assert len(left) + len(dropped) == len(texts) == 80
    by_older = [row for row in dropped if row["survivor_id"] in known]
    assert {row["stage"] for row in by_older} == {"exact_dedup", "minhash_dedup"}
    for row in by_older:
        is_same = known[row["survivor_id"]] == texts[row["doc_id"]]
        assert is_same == (row["stage"] == "exact_dedup")
    near = {row["survivor_id"] for row in dropped if row["stage"] == "minhash_dedup"}
    assert near <= set(left) | set(known)


def test_an_index_of_other_parameters_or_none_is_refused_before_anything_runs(dumps):
    one, two = dumps
    one.stage("minhash_dedup")["bands"] = 12
    one.stage("exact_dedup")["index"] = False
    one.run()
    two.stage("minhash_dedup")["against"] = [str(one.out)]
    done = two.run(code=2)
    assert "its index was made with other parameters: {'bands': 12}" in done.stderr
    two.stage("minhash_dedup")["against"] = []
    two.stage("exact_dedup")["against"] = [str(one.out)]
    done = two.run(code=2)
    assert "its exact_dedup kept no index" in done.stderr
    two.stage("exact_dedup")["against"] = [str(one.folder / "nothing")]
    done = two.run(code=2)
    assert "no finished exact_dedup" in done.stderr
    two.stage("exact_dedup")["against"] = [str(two.out / ".." / two.out.name)]
    done = two.run(code=2)
    assert "is the output of this run" in done.stderr
    assert not two.out.exists()


def test_of_several_stages_the_one_with_these_parameters_is_meant(dumps, tmp_path):
    one, _ = dumps
    one.pipeline["stages"] = [
        {"exact_dedup": {"index": True}},
        {"exact_dedup": {"index": True, "normalize": "whitespace_case"}},
    ]
    one.run()
    found = {}
    for normalize in ("none", "whitespace_case"):
        stage = ExactDedup(against=[str(one.out)], normalize=normalize)
        found[normalize] = Path(stage.files()[0]).parent.name
        assert stage.references().rows("ids") == (70 if normalize == "none" else kept_by_first(one))
    assert found == {"none": "exact_dedup.hash", "whitespace_case": "exact_dedup_2.hash"}
    (one.out / "work" / "exact_dedup.hash").rename(tmp_path / "gone")
    with pytest.raises(UsageError, match=r"is gone: an index is part of work/"):
        ExactDedup(against=[str(one.out)]).check(Known(("web",)))
    with pytest.raises(UsageError, match="cannot be compared with yet"):
        ExactDedup(against=["s3://bucket/run"]).check(Known(("web",)))


def kept_by_first(lab):
    dropped = [row for row in ledger_of(lab) if row["stage"] == "exact_dedup"]
    return 70 - len(dropped)
