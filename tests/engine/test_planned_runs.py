"""What `plan` lets through runs: random pipelines from the parameters of all stages.

`CORPUSKIT_FUZZ=500 pytest tests/engine/test_planned_runs.py -k random` tries more of them.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from corpuskit.engine import registry
from corpuskit.stages.annotators._fasttext import ClassifierSettings, train
from tests.engine.conftest import ROOT, corpus
from tests.engine.here import command_line

if TYPE_CHECKING:
    from corpuskit.stage import Stage

CASES = int(os.environ.get("CORPUSKIT_FUZZ", "30"))
SEED = int(os.environ.get("CORPUSKIT_FUZZ_SEED", "0"))

STRINGS = [
    *("text", "source", "id", "origin", "extra", "lang", "score", "when", "global", "url"),
    *("language.label", "language.score", "quality.score", "percentile.rank", "minhash_dedup"),
    *("web", "books", "en", "de", "hu", "zz", "und", "eng_Latn", "toxic", "hq", "", "a b", "("),
    *("docs.jsonl", "docs.parquet", "words.txt", "own.ftz", "tokenizer.json", "configs", "nowhere"),
    *("@words.txt", "@nowhere", "example.org", "</s>", "<|endoftext|>", "gpt2", "train"),
]
NUMBERS = [0, 1, 2, 3, 7, 64, 255, 1000, -1, 0.0, 0.3, 0.5, 1.0, 1e-9, 100.5, 2**31, 2**63]
NUMBERS += [float("nan"), float("inf")]
GIVEN: dict[str, dict[str, Any]] = {
    "quality": {"model": "own.ftz", "label": "eng_Latn"},
    "toxicity": {"model": "own.ftz", "label": "eng_Latn"},
    "bad_words": {"entries": ["river"]},
    "datatrove": {"step": "datatrove.pipeline.filters.RegexFilter", "params": {"regex_exp": "x"}},
    "threshold": {"column": "score", "min": 0.1},
    "decontaminate": {"benchmarks": "questions.jsonl"},
    "decontaminate_ngrams": {"benchmarks": "questions.jsonl"},
    "percentile": {"columns": ["score"]},
    "upsample": {"column": "score", "points": [[0, 1]]},
    "tokenize": {"tokenizer": "tokenizer.json"},
    "gopher_quality": {"words": "whitespace"},
    "gopher_repetition": {"words": "whitespace"},
    "fineweb_quality": {"words": "whitespace"},
    "url_filter": {"use_integrated_lists": False},
}
SLOW = {
    "url_filter": {"use_integrated_lists"},  # it compiles 4.6 million domains
    "html": {"page_seconds"},
}


def value(dice: random.Random, schema: dict[str, Any], defs: dict[str, Any]) -> Any:  # noqa: C901
    """Return a value that fits a JSON schema, roughly."""
    if "$ref" in schema:
        schema = defs[schema["$ref"].rpartition("/")[2]]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return value(dice, dice.choice(options), defs)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        names = [name for name in schema["properties"] if dice.random() < 0.5]
        return {
            name: value(dice, schema["properties"][name], defs)
            for name in {*names, *schema.get("required", [])}
        }
    if kind == "object":
        inner = schema.get("additionalProperties")
        inner = inner if isinstance(inner, dict) else {}
        return {dice.choice(STRINGS): value(dice, inner, defs) for _ in range(dice.randint(0, 2))}
    if kind == "array":
        if "prefixItems" in schema:
            return [value(dice, one, defs) for one in schema["prefixItems"]]
        return [value(dice, schema.get("items", {}), defs) for _ in range(dice.randint(0, 3))]
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        high = schema.get("maximum", schema.get("exclusiveMaximum", low + 50))
        near = [low, low + 1, (low + high) // 2 if kind == "integer" else (low + high) / 2, high]
        chosen = dice.choice([*near, *NUMBERS])
        return int(chosen) if kind == "integer" and math.isfinite(chosen) else chosen
    if kind == "boolean":
        return dice.random() < 0.5
    return None if kind == "null" else dice.choice(STRINGS)


def changed(dice: random.Random, cls: type[Stage], name: str, num: int) -> dict[str, Any]:
    """Return the parameters of a stage, some of them drawn at random."""
    schema = cls.model_json_schema()
    names = sorted(set(schema["properties"]) - {"paths"} - SLOW.get(name, set()))
    params = dict(GIVEN.get(name, {}))
    for one in dice.sample(names, min(num, len(names))):
        params[one] = value(dice, schema["properties"][one], schema.get("$defs", {}))
    return params


def pipeline(dice: random.Random) -> dict[str, Any]:
    """Return a pipeline of one or two sources and one to three stages, maybe packed."""
    kinds = [name for name in registry.names() if registry.kind_of(name) != "sources"]
    ends = ("tokenize", "pack", "shuffle", "mix")
    chosen = dice.sample([name for name in kinds if name not in ends], dice.randint(1, 2))
    if dice.random() < 0.3:
        chosen.insert(0, "language")
    if dice.random() < 0.4:
        chosen += [*ends[:2], *dice.sample(ends[2:], dice.randint(0, 2))]
    stages = []
    for name in dict.fromkeys(chosen):
        params = changed(dice, registry.load(name), name, dice.randint(0, 3))
        stages.append({name: params} if params else name)
    files = {"jsonl": "docs.jsonl", "parquet": "docs.parquet", "text": "words.txt",
             "huggingface": "dataset"}  # fmt: skip
    sources = {}
    for label in ["web", "books"][: dice.randint(1, 2)]:
        name = dice.choice(list(files))
        columns = {"columns": {"score": "float64", "lang": "string"}} if name != "text" else {}
        params = {**columns, **changed(dice, registry.load(name), name, dice.randint(0, 1))}
        sources[label] = {name: files[name], **params}
    return {"output": "out", "sources": sources, "stages": stages, "executor": {"workers": 1}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer):
    """A folder with small inputs and files for parameters."""
    made = tmp_path_factory.mktemp("fuzz")
    rows = [
        {**row, "lang": "en", "score": n / 40, "when": "2021-03-25", "url": f"http://x.org/{n}"}
        for n, row in enumerate(corpus(40))
    ]
    (made / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), made / "docs.parquet")
    (made / "dataset").mkdir()
    shutil.copy(made / "docs.parquet", made / "dataset/train.parquet")
    (made / "words.txt").write_text("river\nstone\n")
    shutil.copy(ROOT / "sample_data/benchmark.jsonl", made / "questions.jsonl")
    (made / "configs").mkdir()
    (made / "configs/en.yml").write_text("min_doc_words: 3\n")
    shutil.copy(tokenizer, made / "tokenizer.json")
    lines = made / "lines.txt"
    lines.write_text("__label__eng_Latn the river and the stone\n__label__deu_Latn der Fluss\n" * 9)
    train(lines, ClassifierSettings(dim=4, buckets=100)).save(made / "own.ftz")
    return made


@pytest.mark.parametrize("number", range(CASES))
def test_a_random_pipeline_is_refused_by_plan_or_runs(folder, number):
    made = pipeline(random.Random(f"{SEED}/{number}"))
    Path(folder, "p.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    shutil.rmtree(folder / "out", ignore_errors=True)
    planned = command_line(folder, ["plan", "p.yaml"])
    assert planned.returncode in (0, 2), planned.stderr
    if planned.returncode == 2:
        assert planned.stderr.count("\n") == 1, planned.stderr
        assert planned.stderr.startswith("error: p.yaml:"), planned.stderr
        assert not (folder / "out").exists()
        return
    done = command_line(folder, ["run", "p.yaml", "--quiet"])
    # 3: nothing is left of documents as small as these, or nothing to take.
    assert done.returncode in (0, 3), f"{yaml.safe_dump(made)}\n{done.stderr}"


def test_a_column_that_one_source_declares_is_null_in_the_others(folder):
    made = {
        "output": "out", "executor": {"workers": 1},
        "sources": {
            "web": {"jsonl": "docs.jsonl", "columns": {"score": "float64"}},
            "notes": {"text": "words.txt", "per": "line"},
        },
        "stages": [{"threshold": {"column": "score", "min": 0.5}}],
    }  # fmt: skip
    Path(folder, "p.yaml").write_text(yaml.safe_dump(made, sort_keys=False))
    shutil.rmtree(folder / "out", ignore_errors=True)
    done = command_line(folder, ["run", "p.yaml", "--quiet"])
    assert done.returncode == 0, done.stderr
    scores = [
        (row["source"], row["score"])
        for part in sorted((folder / "out/documents").glob("*.parquet"))
        for row in pq.read_table(part, columns=["source", "score"]).to_pylist()
    ]
    assert [score for source, score in scores if source == "notes"] == [None, None]
    assert min(score for source, score in scores if source == "web") >= 0.5
