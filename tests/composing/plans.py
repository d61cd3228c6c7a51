"""Random pipelines whose stages apply to some sources and documents, and what must hold of them.

Of each pipeline:

- alone: a source has the documents and ledger rows of a run of that source alone, with the stages
  that apply to it (in the same bytes if it is the first one, and no other has columns of its own);
- split: conditions on a column of the input are the same as one source per value of that column,
  with stages for the sources whose value the condition holds for;
- killed: a run that dies at a random step of a commit, and runs again with other tasks, ends with
  the same bytes;
- edited: after an edit of one stage the run directory is that of a fresh run, and units of sources
  that the stage never had to do with are not computed.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml

from corpuskit.engine.pipeline import run
from corpuskit.engine.plan import read_plan
from corpuskit.engine.stream import StreamWork
from corpuskit.storage import faults
from tests.engine.conftest import article, tree
from tests.engine.here import Here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Pipeline = dict[str, Any]

SOURCES = ("web", "books", "code")
LANGUAGES = ("de", "fr", "en", None)
COLUMNS = {"lang": "string", "score": "float64", "num": "int64", "good": "bool"}
STEPS_TO_DIE_AT = 300
"""A run passes some hundred fault points; it dies at one of so many, or does not."""

STREAMING: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "gopher_quality": lambda rng: {"min_words": rng.choice([5, 30, 60])},
    "fineweb_quality": lambda _: {},
    "c4_paragraphs": lambda _: {"min_paragraphs": 1},
    "pii": lambda rng: {"email_replacement": rng.choice(["a@b.example", "[mail]"])},
    "unicode": lambda _: {},
    "holdout": lambda rng: {"ratio": rng.choice([0.1, 0.3])},
    "threshold": lambda rng: {
        "column": "score", "min": rng.choice([0.2, 0.5]), "missing": rng.choice(["keep", "drop"])
    },
    "language": lambda rng: {"min_score": rng.choice([0, 0.3])},
}  # fmt: skip
GLOBAL: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "exact_dedup": lambda _: {},
    "line_dedup": lambda _: {"min_bytes": 20},
    "percentile": lambda rng: {"columns": ["score"], "keep_top": rng.choice([0.5, 0.8])},
}


def documents(source: str, seed: int, num: int = 9) -> list[dict[str, Any]]:
    """Articles with columns, some of them null; some are copies or share a line."""
    rng = random.Random(f"{source}{seed}")
    made: list[dict[str, Any]] = []
    for i in range(num):
        text = article(rng)[: rng.choice([100, 600])]
        if made and rng.random() < 0.4:
            text = rng.choice(made)["text"] + rng.choice(["", "\n\nOne line that is its own."])
        if rng.random() < 0.3:
            text += f" Write to u{i}@mail.example.org."
        columns = {
            "lang": rng.choice(LANGUAGES), "score": rng.choice([None, round(rng.random(), 3)]),
            "num": rng.randrange(5), "good": rng.random() < 0.5,
        }  # fmt: skip
        made.append({"id": f"{source}-{i}", "text": text, **columns})
    return made


def draw(rng: random.Random, *, by_language: bool) -> list[dict[str, Any]]:
    """Return the stages of a pipeline.

    Args:
        by_language: conditions are on the column `lang`, and all stages are streaming ones.
    """
    stages = []
    labelled: set[str] | None = None
    for number in range(rng.randint(1, 5)):
        pool = STREAMING if by_language or rng.random() < 0.7 else GLOBAL
        once = {next(iter(stage)) for stage in stages} & {"holdout", "language"}
        name = rng.choice([name for name in pool if name not in once])
        params = {**pool[name](rng), "as": f"{name}_{number}x"}
        sources = sorted(rng.sample(SOURCES, rng.randint(1, 3)))
        if rng.random() < 0.7:
            params["sources"] = sources
        chosen = set(params.get("sources", SOURCES))
        if rng.random() < 0.6:
            params["where"] = _conditions(rng, by_language=by_language)
        if labelled and chosen <= labelled and not by_language and rng.random() < 0.5:
            label = next(s["language"]["as"] for s in stages if "language" in s)
            params["where"] = {f"{label}.label": {"not": rng.sample(["en", "fr", "la"], 2)}}
        if name == "language":
            labelled = chosen
        if rng.random() < 0.2:
            params["materialize"] = pool is STREAMING
        stages.append({name: params})
    return stages


def _conditions(rng: random.Random, *, by_language: bool) -> dict[str, Any]:
    language = rng.choice(["de", ["de", "fr"], {"not": "en"}, {"not": ["de", "fr"]}])
    if by_language:
        return {"lang": language}
    return dict(
        rng.sample(
            [
                ("lang", language),
                ("score", rng.choice([{"below": 0.5}, {"at_least": 0.3, "below": 0.9}])),
                ("num", rng.choice([2, [0, 1, 4], {"above": 1}, {"at_most": 3}])),
                ("good", rng.random() < 0.5),
            ],
            rng.randint(1, 2),
        )
    )


@dataclasses.dataclass
class Bench:
    """A folder in which pipelines run, in this process.

    Attributes:
        kind: format of the sources; the texts of Parquet files may stay where they are.
    """

    folder: Path
    kind: str

    def pipeline(self, inputs: dict[str, str], stages: list[dict[str, Any]]) -> Pipeline:
        return {
            "name": "random", "cell_bytes": 8 << 10, "documents": True,
            "sources": {
                source: {self.kind: str(self.folder / file), "id_column": "id", "columns": COLUMNS}
                for source, file in inputs.items()
            },
            "stages": stages,
        }  # fmt: skip

    def write(self, name: str, given: list[dict[str, Any]]) -> str:
        if self.kind == "parquet":
            types = {"string": pa.string(), "float64": pa.float64(), "int64": pa.int64()}
            columns = {name: types.get(kind, pa.bool_()) for name, kind in COLUMNS.items()}
            schema = pa.schema({"id": pa.string(), "text": pa.string(), **columns})
            pq.write_table(pa.Table.from_pylist(given, schema), self.folder / name)
        else:
            lines = "".join(json.dumps(document) + "\n" for document in given)
            (self.folder / name).write_text(lines)
        return name

    def run(self, pipeline: Pipeline, output: str, tasks: int | None = None) -> Path:
        """Run a pipeline and return its directory."""
        out = self.folder / output
        path = self.folder / "p.yaml"
        executor = {"workers": 1, "tasks": tasks}
        path.write_text(
            yaml.safe_dump({**pipeline, "output": str(out), "executor": executor}, sort_keys=False)
        )
        run(read_plan(path), launcher=Here(out))
        return out


def play(seed: int, folder: Path) -> list[str]:
    """Return what is wrong with the random pipeline of a seed."""
    rng = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(folder, "parquet" if seed % 3 == 0 else "jsonl")
    given = {source: documents(source, seed % 50) for source in SOURCES}
    inputs = {s: bench.write(f"{s}.data", rows) for s, rows in given.items()}
    by_language = rng.random() < 0.4
    stages = draw(rng, by_language=by_language)
    pipeline = bench.pipeline(inputs, stages)
    problems = []
    checks: list[Callable[[Path], Iterator[str]]] = [
        lambda out: _alone(bench, pipeline, out, rng.choice(SOURCES)),
        lambda out: _split(bench, pipeline, out, given) if by_language else iter(()),
        lambda out: _killed(bench, pipeline, out, rng),
        lambda out: _edited(bench, pipeline, out, rng),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)  # tests/faults has the losses of power
        try:
            out = bench.run(pipeline, "out")
            problems = [problem for check in checks for problem in check(out)]
        except Exception as error:  # noqa: BLE001 - any is a finding
            problems = [repr(error)]
    listed = "\n".join(yaml.safe_dump(stage, default_flow_style=True).strip() for stage in stages)
    return [f"seed {seed}: {problem}\n{listed}" for problem in problems]


def _params(stage: dict[str, Any]) -> dict[str, Any]:
    [params] = stage.values()
    return params


def _sources(stage: dict[str, Any]) -> set[str]:
    return set(_params(stage).get("sources", SOURCES))


def _table(out: Path, folder: str) -> pa.Table:
    if not list((out / folder).glob("*.parquet")):
        return pa.table({})
    # Shards of different sources have columns of their own order of stages.
    files = sorted((out / folder).glob("*.parquet"))
    return pa.concat_tables([ds.dataset(file).to_table() for file in files])


def _rows(table: pa.Table, source: str | None, without: set[str]) -> Iterator[str]:
    """Yield rows as text, in the order of ids; of all sources, or of one."""
    if not len(table):
        return
    if source is not None:
        table = table.filter(pc.equal(table.column("source"), source))
    for row in sorted(
        table.to_pylist(),
        key=lambda row: [str(row.get(k)) for k in ("id", "doc_id", "stage", "rule")],
    ):
        yield repr({k: v for k, v in row.items() if k not in without and v is not None})


def _alone(bench: Bench, pipeline: Pipeline, out: Path, source: str) -> Iterator[str]:
    mine = [copy.deepcopy(s) for s in pipeline["stages"] if source in _sources(s)]
    if any(next(iter(s)) in GLOBAL and _sources(s) != {source} for s in mine):
        return  # what other sources hold decides, too
    for stage in mine:
        _params(stage).pop("sources", None)
    inputs = {source: f"{source}.data"}
    alone = bench.run(bench.pipeline(inputs, mine), "alone")
    first = source == SOURCES[0]
    # Keys begin with the number of the file; which texts the ledger samples depends on them.
    keys = set() if first else {"key", "doc_key", "text"}
    for folder in ("documents", "holdout", "ledger"):
        hidden = keys - ({"text"} if folder != "ledger" else set())
        hidden |= set() if first else _with_keys(mine)
        together = list(_rows(_table(out, folder), source, hidden))
        if together != list(_rows(_table(alone, folder), source, hidden)):
            yield f"{source} alone: other {folder}"
    adds = [s for s in pipeline["stages"] if next(iter(s)) in ("language", *GLOBAL)]
    if first and all(source in _sources(stage) for stage in adds):
        names = {one.name for one in (out / "documents").glob("*")}
        if not {one.name for one in (alone / "documents").glob("*")} <= names:
            yield f"{source} alone: other bytes"


def _with_keys(stages: list[dict[str, Any]]) -> set[str]:
    return {f"{_params(stage)['as']}.cluster_id" for stage in stages}


def _split(
    bench: Bench, pipeline: Pipeline, out: Path, given: dict[str, list[dict[str, Any]]]
) -> Iterator[str]:
    def name(source: str, language: str | None) -> str:
        return f"{source}_{language or 'none'}"

    inputs = {}
    for source, rows in given.items():
        for language in LANGUAGES:
            if mine := [row for row in rows if row["lang"] == language]:
                file = bench.write(f"{name(source, language)}.data", mine)
                inputs[name(source, language)] = file
    stages = []
    for stage in copy.deepcopy(pipeline["stages"]):
        params = _params(stage)
        condition = params.pop("where", {}).get("lang")
        chosen = [
            name(source, language)
            for source in _sources(stage)
            for language in LANGUAGES
            if condition is None or _holds(condition, language)
        ]
        params["sources"] = sorted(set(chosen) & inputs.keys())
        stages += [stage] if params["sources"] else []
    split = bench.run(bench.pipeline(inputs, stages), "split")
    hidden = {"key", "doc_key", "source", "origin"}
    for folder in ("documents", "ledger"):
        without = hidden | ({"text"} if folder == "ledger" else set())
        if list(_rows(_table(out, folder), None, without)) != list(
            _rows(_table(split, folder), None, without)
        ):
            yield f"split by language: other {folder}"


def _holds(condition: Any, value: str | None) -> bool:
    if isinstance(condition, dict):
        return value is not None and not _holds(condition["not"], value)
    return value in condition if isinstance(condition, list) else value == condition


def _killed(bench: Bench, pipeline: Pipeline, out: Path, rng: random.Random) -> Iterator[str]:
    left = rng.randrange(STEPS_TO_DIE_AT)

    def die(_step: str, _name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise faults.Death

    faults.install_hook(die)
    try:
        bench.run(pipeline, "killed", rng.choice([None, 1, 2]))
    except faults.Death:
        pass
    finally:
        faults.install_hook(None)
    killed = bench.run(pipeline, "killed", rng.choice([None, 1, 2]))
    if _files(killed) != _files(out):
        yield "killed: other bytes"


def _files(out: Path) -> dict[str, str]:
    return tree(out, "documents", "holdout", "ledger", "work", "measures", "profile", "ids")


def _edited(bench: Bench, pipeline: Pipeline, out: Path, rng: random.Random) -> Iterator[str]:
    edited = copy.deepcopy(pipeline)
    number = rng.randrange(len(edited["stages"]))
    stage = edited["stages"][number]
    [(name, params)] = stage.items()
    before = _sources(stage)
    kind = rng.choice(["where", "sources", "parameter"])
    if kind == "where":
        params["where"] = {"num": {"at_least": rng.randrange(1, 4)}}
    elif kind == "sources":
        lost = rng.choice(sorted(before))
        params["sources"] = sorted(before - {lost}) or [lost]
    else:
        params |= {**STREAMING, **GLOBAL}[name](rng)
    touched = _touched(edited["stages"], number, before | _sources(stage))
    try:
        read_plan_of(bench, edited)
    except Exception:  # noqa: BLE001 - a later condition needs what is gone: another test's matter
        return
    computed: set[str] = set()
    begin = StreamWork.__init__

    def noted(self: StreamWork, run: Any, phase: Any, unit: Any, *rest: Any) -> None:
        # What is read by users has the columns of all sources.
        if not (phase.is_read_by_users and name in ("language", *GLOBAL)):
            computed.add(unit.source)
        begin(self, run, phase, unit, *rest)

    with pytest.MonkeyPatch.context() as here:
        here.setattr(StreamWork, "__init__", noted)
        bench.run(edited, "out")
    if not computed <= touched:
        yield f"edit of {params['as']} for {sorted(touched)} computed {sorted(computed)}"
    fresh = bench.run(edited, "fresh")
    if _files(out) != _files(fresh):
        yield f"edit of {params['as']} ({kind}): other bytes than a fresh run"


def _touched(stages: list[dict[str, Any]], number: int, sources: set[str]) -> set[str]:
    """Return the sources whose documents an edit of a stage can change: global stages spread it."""
    for stage in stages[number:]:
        if next(iter(stage)) in GLOBAL and sources & _sources(stage):
            sources = sources | _sources(stage)
    return sources


def read_plan_of(bench: Bench, pipeline: Pipeline) -> None:
    """Compile a pipeline; nothing is run."""
    path = bench.folder / "edited.yaml"
    path.write_text(
        yaml.safe_dump({**pipeline, "output": str(bench.folder / "out")}, sort_keys=False)
    )
    read_plan(path)
