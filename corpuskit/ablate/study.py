"""Builds the corpora of an ablation, trains a proxy on each with the same seeds, and scores it.

Everything is a file in the study's folder, and done once:

    corpora/VARIANT/                      run directories; a later one reuses units of those before
    trainings/VARIANT-SIZE-sSEED-KEY/     metrics, and scores.parquet: one row per judged unit
    ablation.json, ablation.html          the results

KEY is a hash of all that decides the scores: a training whose corpus, settings or judges changed
gets a new folder, and a study that was killed continues where it stopped.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.ablate.scaling import extrapolate, trend
from corpuskit.ablate.verdict import Scores, compare
from corpuskit.engine.pipeline import run
from corpuskit.errors import DataError, UsageError
from corpuskit.loader.index import read_mix
from corpuskit.stages.sequences._heldout import encode_task, open_held_out, open_tokenizer
from corpuskit.storage import write_whole
from corpuskit.train.tasks import read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpuskit.ablate.variants import Variant
    from corpuskit.ablate.verdict import Difference
    from corpuskit.engine.callbacks import RunCallbacks
    from corpuskit.loader.index import MixPlan
    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.train.pretrained import Pretrained
    from corpuskit.train.settings import TrainSettings
    from corpuskit.train.tasks import Question, ScoredText, TaskItem

SCORES = "scores.parquet"
SCORED_TOKENS = 2048
"""Least tokens of a forward pass: with 256, scoring took a third of the time of a training."""
FORMAT = 1
DEFAULT_TRAINING: Mapping[str, Any] = {
    "name": "0.5m",
    "model": {"preset": "0.5m"},
    "batch": {"global_rows": 8, "micro_rows": 2},
    "optimizer": {"lr": 4e-3},
    "schedule": {"warmup_ratio": 0.1},
}
"""Half a million parameters: 6,500 tokens per CPU second."""


@dataclasses.dataclass(frozen=True)
class Study:
    """What an ablation compares, and by what.

    Attributes:
        variants: the first is what the others are compared with.
        sizes: a training each, by name; `data`, `output`, seeds and length are the study's.
        num_seeds: trainings per variant and size.
        tokens: of each training whose size has none; None: all of the smallest corpus, once.
        canaries: repeat counts of secrets in further trainings of the first variant.
        tasks: name -> file of questions or texts.
        max_documents: held-out ones of each source that judge.
        confidence: of all verdicts of a size together.
    """

    folder: Path
    variants: Sequence[Variant]
    sizes: Mapping[str, TrainSettings]
    num_seeds: int = 5
    tokens: int | None = None
    tasks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_documents: int = 200
    confidence: float = 0.99
    canaries: Sequence[int] = ()

    def output(self, variant: Variant) -> str:
        """Return the run directory of a variant's corpus."""
        return str(self.folder / "corpora" / variant.slug)

    def check(self) -> None:
        """Refuse what can be known to fail before anything runs.

        Raises:
            UsageError: there is nothing to judge by, or too few seeds.
            ConfigError: a pipeline does not compile.
        """
        if self.num_seeds < 2:
            raise UsageError(
                f"--seeds {self.num_seeds}: one training per variant says nothing about noise. "
                "Ask for 2 at least."
            )
        for settings in self.sizes.values():
            if tokens := settings.tokens or self.tokens:
                settings.schedule.require_fit(tokens)
        sources = [step.label for variant in self.variants for step in variant.file.sources]
        for name, path in self.tasks.items():
            read_task(path)
            if name in sources:
                raise UsageError(
                    f"--task {name}: a source is called so, and its held-out documents judge under "
                    "that name. Choose another one."
                )
        for variant in self.variants:
            variant.plan(self.output(variant), [])
            names = [step.name for step in variant.file.steps]
            if not self.tasks and not self.max_documents:
                raise UsageError(
                    "--documents 0: there is nothing to judge by. Raise it, or name a task with "
                    "--task."
                )
            if not self.tasks and "holdout" not in names:
                raise UsageError(
                    f"{variant.file.path}: there is nothing to judge by. Add "
                    "`- holdout: {ratio: 0.01}` before what you vary, or name a task with --task."
                )

    def build(self, callbacks: RunCallbacks | None = None) -> list[Corpus]:
        """Run the pipelines that are not finished; return their corpora.

        Raises:
            CorpuskitError: as `corpuskit.run`; finished phases are kept.
        """
        corpora: list[Corpus] = []
        for variant in self.variants:
            plan = variant.plan(self.output(variant), [corpus.data for corpus in corpora])
            result = run(plan, callbacks, accept=True)
            corpora.append(
                Corpus(variant, result.run.store.address, read_mix(result.run.store.address))
            )
        return corpora

    def trainings(self, corpora: Sequence[Corpus], judges: Judges) -> list[Proxy]:
        """Return all trainings, seed by seed, so that an early end leaves whole pairs.

        Raises:
            UsageError: a corpus has fewer tokens than a training takes.
        """
        trainings = []
        for size, template in self.sizes.items():
            steps = self._steps(corpora, template)
            for seed in range(self.num_seeds):
                for corpus in corpora:
                    settings = template.model_copy(
                        update={
                            "data": corpus.data, "seed": seed, "order_seed": seed, "steps": steps,
                            "tokens": None, "evaluate": None,
                        }
                    )  # fmt: skip
                    decides = settings.model_dump(mode="json", exclude={"data", "output", "name"})
                    content = [FORMAT, decides, corpus.content, judges.digest]
                    key = hashlib.blake2b(json.dumps(content).encode(), digest_size=4).hexdigest()
                    name = f"{corpus.variant.slug}-{size}-s{seed}-{key}"
                    output = self.folder / "trainings" / name
                    settings = settings.model_copy(update={"output": str(output), "name": name})
                    trainings.append(Proxy(corpus, size, seed, settings))
        return trainings

    def _steps(self, corpora: Sequence[Corpus], template: TrainSettings) -> int:
        rows = template.batch.global_rows
        available = [corpus.plan.order.num_rows // rows for corpus in corpora]
        step_tokens = [rows * corpus.plan.seq_len for corpus in corpora]
        if len(set(step_tokens)) > 1:
            raise UsageError("the variants pack rows of different lengths. Set one pack.seq_len.")
        tokens = template.tokens or self.tokens
        steps = min(available) if tokens is None else tokens // step_tokens[0]
        if min(available) < steps or not steps:
            smallest = corpora[available.index(min(available))]
            limit = min(available) * step_tokens[0]
            raise UsageError(
                f"--tokens {tokens or step_tokens[0]:,}: variant {smallest.variant.name!r} "
                f"has {limit:,} tokens in steps of {step_tokens[0]:,}. Ask for fewer, leave "
                "--tokens out to take as many as the smallest corpus has, or allow repetition: "
                "--set mix.max_epochs=4."
            )
        return steps

    def results(self, trainings: Sequence[Proxy]) -> dict[str, Any]:
        """Compare all variants, size by size: JSON values, as in ablation.json."""
        corpora = list({id(t.corpus): t.corpus for t in trainings}.values())
        sizes = {}
        for size in self.sizes:
            group = [training for training in trainings if training.size == size]
            sizes[size] = self._compare(corpora, group)
        return {
            "format": FORMAT,
            "scaling": _scaling(sizes, self.confidence),
            "confidence": self.confidence,
            "seeds": self.num_seeds,
            "variants": [
                {
                    "name": corpus.variant.name,
                    "pipeline": corpus.variant.file.path,
                    "data": corpus.data,
                    "tokens": corpus.tokens,
                    "same_as": corpus.twin(corpora),
                    "same_inputs": corpus.inputs == corpora[0].inputs,
                }
                for corpus in corpora
            ],
            "sizes": sizes,
        }

    def _compare(self, corpora: Sequence[Corpus], trainings: Sequence[Proxy]) -> dict[str, Any]:
        """Return the values and differences of one size."""
        from corpuskit.train.estimate import count_parameters
        from corpuskit.train.huggingface import choose_shape

        read = {training.scores: read_scores(training.scores) for training in trainings}
        shared = shared_units(list(read.values()))
        scores = {
            corpus.variant.name: gather(
                [read[t.scores] for t in trainings if t.corpus is corpus], shared
            )
            for corpus in corpora
        }
        first, *names = scores
        settings = trainings[0].settings
        rows = (settings.steps or 0) * settings.batch.global_rows
        differences = []
        for name in names:
            scored = {m: (scores[first][m], scores[name][m]) for m in scores[first]}
            compared = {
                measure: to_json(compare(a, b, confidence=self.confidence, comparisons=len(names)))
                for measure, (a, b) in scored.items()
                if a
            }
            differences.append({"a": first, "b": name, **compared})
        plan = corpora[0].plan
        return {
            "tokens": rows * plan.seq_len,
            "parameters": count_parameters(choose_shape(settings, plan.tokenizer)).total,
            "steps": settings.steps,
            "units": {domain: len(units) for domain, units in shared.items()},
            "epochs": {corpus.variant.name: corpus.epochs(rows) for corpus in corpora},
            "values": {
                name: {m: {d: s.means.tolist() for d, s in ds.items()} for m, ds in row.items()}
                for name, row in scores.items()
            },
            "differences": differences,
        }


def read_corpora(study: Study) -> list[Corpus]:
    """Return the corpora that `build` has finished.

    Raises:
        UsageError: one has not been built.
    """
    addresses = [(variant, study.output(variant)) for variant in study.variants]
    return [Corpus(variant, address, read_mix(address)) for variant, address in addresses]


def _scaling(sizes: Mapping[str, Mapping[str, Any]], confidence: float) -> dict[str, Any]:
    """Return how losses fall with tokens and parameters, and how differences change."""
    axes = {
        axis: np.array([size[axis] for size in sizes.values()]) for axis in ("parameters", "tokens")
    }
    losses: dict[str, Any] = {}
    for result in sizes.values():
        for name, values in result["values"].items():
            by_domain = [*values["bits_per_byte"].values()]
            losses.setdefault(name, []).append(np.mean(by_domain, 0) if by_domain else None)
    if any(mean is None for values in losses.values() for mean in values):
        return {"law": None, "trends": {}}
    arrays = {name: np.array(values) for name, values in losses.items()}
    first, *variants = arrays
    return {
        "law": extrapolate(axes["parameters"], axes["tokens"], arrays, confidence),
        "trends": {
            name: {
                axis: trend(values, arrays[name] - arrays[first], confidence)
                for axis, values in axes.items()
            }
            for name in variants
        },
    }


def to_json(by_domain: Mapping[str, Difference]) -> dict[str, Any]:
    """Return differences as JSON values."""
    return {
        domain: {**dataclasses.asdict(row), "is_decided": row.is_decided}
        for domain, row in by_domain.items()
    }


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The finished run of a variant."""

    variant: Variant
    data: str
    plan: MixPlan

    @property
    def content(self) -> str:
        """A hash of its rows and their weights, whatever the run is called."""
        fields = {k: v for k, v in self.plan.base.fields.items() if k in _CONTENT}
        parts = [fields, self.plan.parts.digests]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    @property
    def tokens(self) -> int:
        """Tokens of all its rows, once."""
        return sum(source.rows for source in self.plan.sources) * self.plan.seq_len

    @property
    def inputs(self) -> list[Any]:
        """What the documents are read from, as written in the pipeline."""
        return [step.stage for step in self.variant.file.sources]

    def epochs(self, rows: int) -> dict[str, float]:
        """Return how often the first `rows` rows of the run repeat each source."""
        counts = self.plan.order.taken(rows).tolist()
        return {
            source.name: count / source.rows
            for source, count in zip(self.plan.sources, counts, strict=True)
            if source.rows
        }

    def twin(self, corpora: Sequence[Corpus]) -> str | None:
        """Return the first variant before this one that has the same rows."""
        before = itertools.takewhile(lambda corpus: corpus is not self, corpora)
        return next((c.variant.name for c in before if c.content == self.content), None)


_CONTENT = ("seed", "seq_len", "dtype", "tokenizer", "sources", "stages", "skip")


@dataclasses.dataclass(frozen=True)
class Judges:
    """What all variants are judged by.

    Attributes:
        documents: source -> texts that every variant held out.
        left_out: source -> texts that the first variant held out, but another one did not.
        tasks: name -> (id, question) of each item.
    """

    documents: Mapping[str, Sequence[str]]
    left_out: Mapping[str, int]
    tasks: Mapping[str, Sequence[tuple[str, Question]]]

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all of it."""
        tasks = {
            name: [(key, dataclasses.asdict(item)) for key, item in items]
            for name, items in self.tasks.items()
        }
        content = json.dumps([self.documents, tasks], default=str)
        return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def find_judges(study: Study, corpora: Sequence[Corpus]) -> Judges:
    """Return the documents that all variants held out, and the items of the tasks.

    Raises:
        UsageError: no document was held out by all of them, and there is no task.
    """
    held_out = []
    for corpus in corpora:
        texts: dict[str, list[str]] = {}
        if any(step.name == "holdout" for step in corpus.variant.file.steps):
            for source, text in open_held_out(corpus.data, study.max_documents).texts():
                texts.setdefault(source, []).append(text)
        held_out.append(texts)
    common = set.intersection(*({t for ts in texts.values() for t in ts} for texts in held_out))
    first = held_out[0]
    documents = {
        name: list(dict.fromkeys(text for text in texts if text in common))
        for name, texts in first.items()
    }
    left_out = {name: len(set(texts)) - len(documents[name]) for name, texts in first.items()}
    tasks = {name: read_task(path) for name, path in study.tasks.items()}
    documents = {name: texts for name, texts in documents.items() if texts}
    require_items(tasks, corpora)
    if not documents and not tasks:
        raise UsageError(
            "no document was held out by all variants. Put the same `holdout` before what differs, "
            "or name a task with --task."
        )
    return Judges(documents, {name: num for name, num in left_out.items() if num}, tasks)


def require_items(
    tasks: Mapping[str, Sequence[tuple[str, Question]]], corpora: Sequence[Corpus]
) -> None:
    """Refuse a task if no item fits into a row with the tokenizers of all variants.

    Raises:
        UsageError: names it.
    """
    fitting: dict[str, list[set[str]]] = {}
    for corpus in corpora if tasks else ():
        tokenizer, seq_len = open_tokenizer(corpus.data), corpus.plan.seq_len
        for name, items in judged_items(Judges({}, {}, tasks), tokenizer, seq_len):
            fitting.setdefault(name, []).append(
                {
                    item.id
                    for item in items
                    if all(len(choice.tokens) <= seq_len + 1 for choice in item.choices)
                }
            )
    for name, by_corpus in fitting.items():
        if not set.intersection(*by_corpus):
            raise UsageError(
                f"--task {name}: each item is longer than a row of {corpora[0].plan.seq_len} "
                "tokens, so there is nothing to judge by. Set a larger pack.seq_len, or leave the "
                "task out."
            )


@dataclasses.dataclass(frozen=True)
class Proxy:
    """A proxy: one corpus, size and seed."""

    corpus: Corpus
    size: str
    seed: int
    settings: TrainSettings

    @property
    def scores(self) -> Path:
        """The file that says that the training is done."""
        return Path(self.settings.output, SCORES)

    @property
    def is_done(self) -> bool:
        """Whether it was trained and scored."""
        return self.scores.exists()

    def run(self, judges: Judges, *, keep_model: bool = False) -> str | None:
        """Train or continue, score, and delete the checkpoints; return a signal that stopped it.

        Raises:
            CorpuskitError: as `corpuskit train`.
        """
        from corpuskit.train.loop import main
        from corpuskit.train.pretrained import open_pretrained

        settings = self.settings
        result = main(settings, alter=self.planting())
        if result.stopped_by:
            return result.stopped_by
        with contextlib.closing(
            open_pretrained(
                Path(settings.output), dtype=settings.dtype, device=settings.device,
                rows=max(settings.batch.micro_rows, SCORED_TOKENS // self.corpus.plan.seq_len),
            )
        ) as trained:  # fmt: skip
            self.write_scores(trained, judges)
        if not keep_model:
            shutil.rmtree(Path(settings.output, "checkpoints"), ignore_errors=True)
        return None

    def planting(self) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
        """Return what changes the batches of the training, if anything does."""
        return None

    def write_scores(self, trained: Pretrained, judges: Judges) -> None:
        """Score the trained model, and write the file that says that the training is done."""
        from corpuskit.train.likelihood import score_items

        tokenizer = open_tokenizer(self.corpus.data)
        rows: list[dict[str, Any]] = []
        for domain, items in judged_items(judges, tokenizer, trained.seq_len):
            _, scored = score_items(
                trained.model, trained.settings, trained.parallel, items, trained.seq_len
            )
            by_id = {item.id: item for item in items}
            rows += [_row(domain, by_id[item.id], item.nats) for item in scored]
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_whole(self.scores, sink.getvalue().to_pybytes())


_SCHEMA = pa.schema(
    [
        ("domain", pa.string()),
        ("unit", pa.string()),
        ("nats", pa.float64()),
        ("bytes", pa.int64()),
        ("right", pa.bool_()),
    ]
)


def _row(domain: str, item: TaskItem, nats: Sequence[float]) -> dict[str, Any]:
    """Return a row of scores: of the gold answer, or of a piece of a document."""
    is_choice = len(nats) > 1
    return {
        "domain": domain, "unit": item.id.partition("\0")[0], "nats": -nats[item.gold],
        "bytes": item.choices[item.gold].text_bytes,
        "right": int(np.argmax(nats)) == item.gold if is_choice else None,
    }  # fmt: skip


def judged_items(
    judges: Judges, tokenizer: Tokenize, seq_len: int
) -> Iterator[tuple[str, list[TaskItem]]]:
    """Yield each domain with its items; a long text is several, which share their unit."""
    from corpuskit.stages.sequences._heldout import tokenize_texts
    from corpuskit.train.tasks import ScoredText

    for source, texts in judges.documents.items():
        documents = enumerate(tokenize_texts(tokenizer, texts))
        yield (
            source,
            [
                item
                for number, text in documents
                if len(text.tokens) > 1
                for item in _pieces(
                    source,
                    number,
                    ScoredText(text.tokens, len(text.tokens) - 1, text.text_bytes),
                    seq_len,
                )
            ],
        )
    for name, questions in judges.tasks.items():
        items: list[TaskItem] = []
        for number, item in enumerate(encode_task(questions, tokenizer, unconditional=False)):
            is_text = len(item.choices) == 1
            # Ids of a file may occur twice: so a unit is named by its position.
            numbered = dataclasses.replace(item, id=str(number))
            items += _pieces(name, number, item.choices[0], seq_len) if is_text else [numbered]
        yield name, items


def _pieces(domain: str, number: int, text: ScoredText, seq_len: int) -> Iterator[TaskItem]:
    """Cut a text into rows; neighbours overlap by one token, and its bytes count with the first."""
    from corpuskit.train.tasks import ScoredText, TaskItem

    first, size = len(text.tokens) - text.scored, text.text_bytes
    for begin in range(0, len(text.tokens) - 1, seq_len):
        tokens = text.tokens[begin : begin + seq_len + 1]
        scored = min(len(tokens) - 1, begin + len(tokens) - first)
        if scored > 0:
            piece = ScoredText(tokens, scored, size)
            yield TaskItem(f"{number}\0{begin}", domain, 0, (piece,), ((1, 1),))
            size = 0


def shared_units(runs: Sequence[Mapping[str, Mapping[str, list[Any]]]]) -> dict[str, set[str]]:
    """Return the units of each domain that all trainings scored; others cannot be paired.

    An item that is longer than a row with the tokenizer of one variant is scored by none.
    """
    return {
        domain: set.intersection(*(set(run[domain]["unit"]) for run in runs))
        for domain in runs[0]
        if all(domain in run for run in runs)
    }


def gather(
    runs: Sequence[Mapping[str, Mapping[str, list[Any]]]], shared: Mapping[str, set[str]]
) -> dict[str, dict[str, Scores]]:
    """Return the scores of a variant's trainings: measure -> domain -> scores.

    Args:
        runs: the columns of each training.
        shared: the units of each domain that count.
    """
    measures: dict[str, dict[str, Scores]] = {"bits_per_byte": {}, "accuracy": {}}
    for domain, units in shared.items():
        columns = [run[domain] for run in runs]
        is_shared = np.array([unit in units for unit in columns[0]["unit"]], bool)
        if not is_shared.any():
            continue
        sizes = np.array(columns[0]["bytes"])[is_shared] * math.log(2)
        nats = np.array([run["nats"] for run in columns])[:, is_shared]
        measures["bits_per_byte"][domain] = Scores(nats, sizes)
        # Texts, which have one choice, are neither right nor wrong.
        is_task = is_shared & np.array([right is not None for right in columns[0]["right"]])
        rights = [np.array(run["right"], np.float64)[is_task] for run in columns]
        if is_task.any():
            measures["accuracy"][domain] = Scores(np.array(rights), np.ones(is_task.sum()))
    return measures


def read_scores(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Return the columns of each domain, pieces of a document summed."""
    domains: dict[str, dict[str, list[Any]]] = {}
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path}: cannot be read: {error}. Delete the folder, run again.") from None
    for row in rows:
        columns = domains.setdefault(row["domain"], {name: [] for name in _SCHEMA.names[1:]})
        if columns["unit"] and columns["unit"][-1] == row["unit"]:
            columns["nats"][-1] += row["nats"]
            columns["bytes"][-1] += row["bytes"]
            continue
        for name, column in columns.items():
            column.append(row[name])
    return domains


def run_trainings(
    trainings: Sequence[Proxy],
    judges: Judges,
    note: Callable[[Proxy, int], None],
    *,
    keep_models: bool = False,
) -> str | None:
    """Do what is not done; return the signal that stopped it, if one did.

    Args:
        note: called before each, with the number of those that are done.
    """
    unfinished = [training for training in trainings if not training.is_done]
    hook = sys.excepthook
    for number, training in enumerate(unfinished):
        note(training, len(trainings) - len(unfinished) + number)
        signal = training.run(judges, keep_model=keep_models)
        sys.excepthook = hook  # torch wraps it again with each process group
        if signal:
            return signal
    return None
