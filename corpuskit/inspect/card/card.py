"""What a dataset card says of a run: sources, stages, counts, limits; `card_page` writes it down.

What was declared comes from `card:` in the pipeline file, everything else from the plan and the
seals. Nothing is guessed: what nobody declared is said to be undeclared.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from typing import TYPE_CHECKING, Any

import corpuskit
from corpuskit.engine import registry
from corpuskit.engine.config import pipeline_yaml
from corpuskit.engine.mixture import mixture
from corpuskit.engine.packing import packing
from corpuskit.engine.status import accounts, funnel, outdated, sealed
from corpuskit.errors import DataError, UsageError
from corpuskit.inspect.card.limits import find_limits
from corpuskit.loader.edits import read_edits
from corpuskit.loader.index import open_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.settings import Card
    from corpuskit.engine.status import FunnelRow, Sealed


@dataclasses.dataclass(frozen=True)
class SourceFacts:
    """A source: as declared, as read, as kept.

    Attributes:
        format: `jsonl`, `parquet`, ...
        files, file_bytes: input files.
        kept_bytes, tokens, rows: None = not known, or not made.
    """

    name: str
    format: str
    license: str | None
    origin: str | None
    url: str | None
    description: str | None
    paths: tuple[str, ...]
    files: int
    file_bytes: int
    read_documents: int
    read_bytes: int
    kept_documents: int
    kept_bytes: int | None
    tokens: int | None
    rows: int | None


@dataclasses.dataclass(frozen=True)
class StageFacts:
    """A stage: what it is, and what it did.

    Attributes:
        params: those that are no defaults.
        source: where the method comes from, as its documentation says.
        dropped, changed: rule -> documents.
        num_in, num_out: documents before and after; None = it has not run, or sees no documents.
    """

    label: str
    name: str
    kind: str
    summary: str
    source: str
    params: dict[str, Any]
    dropped: dict[str, int]
    changed: dict[str, int]
    num_in: int | None
    num_out: int | None


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """All that a card says.

    Attributes:
        unfinished: phases that have not run.
        languages: ISO 639 codes, declared or those that a stage keeps.
        configs: name -> pattern of the files.
        columns: of the documents, name -> type.
        limits: what a reader should know; declared ones first.
        warnings: what is missing from the declaration.
        mixture: stage, source, rows, tokens, epochs; empty without a plan of the mixture.
        fingerprints: phase -> fingerprint.
        pipeline: the pipeline file, without what are defaults.
    """

    name: str
    declared: Card
    unfinished: list[str]
    languages: list[str]
    sources: list[SourceFacts]
    rejected: dict[str, int]
    stages: list[StageFacts]
    configs: dict[str, str]
    columns: dict[str, str]
    limits: list[str]
    warnings: list[str]
    tokenizer: str | None
    vocabulary: int | None
    seq_len: int | None
    mixture: list[dict[str, Any]]
    plan_hash: str | None
    fingerprints: dict[str, str]
    version: str
    pipeline: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **facts,
            "declared": self.declared.model_dump(mode="json", exclude_defaults=True),
            "sources": [dataclasses.asdict(one) for one in self.sources],
            "stages": [dataclasses.asdict(one) for one in self.stages],
        }


def card_facts(run: RunDirectory) -> CardFacts:
    """Return what a card says of a run, as far as the run is.

    Raises:
        UsageError: no phase is finished, or one was made with other parameters.
    """
    finished = sealed(run)
    if not finished:
        raise UsageError(f"{run.store.address}: no phase is finished. Run the pipeline first.")
    old = [phase.name for phase in outdated(run, finished)]
    if old:
        raise UsageError(
            f"{run.store.address}: phases {', '.join(old)} were made with other parameters, files "
            "or inputs than the plan now has, so a card would tell of what did not make the data. "
            "Run the pipeline again."
        )
    done = {phase.name for phase, _ in finished}
    declared = run.plan.settings.card
    rows = funnel(run, finished)
    steps = run.plan.file.steps
    by_label = {row.stage: row for row in rows if not row.is_source}
    stages = [_stage(step, by_label[step.label]) for step in steps]
    sources = _sources(run, finished)
    rejected = {
        f"{row.stage}: {rule}": sum(by.values())
        for row in rows
        if row.is_source
        for rule, by in row.dropped.items()
    }
    unfinished = [phase.name for phase in run.plan.phases if phase.name not in done]
    changed = [phase.name for phase, seal in finished if seal.accepted_code_change]
    given = {key: value for facts in run.plan.given.values() for key, value in facts.items()}
    tokenizer = given.get("tokenizer", {})
    plan_hash, plan_limits = _edits(run, finished)
    table = mixture(run, finished) if "mix.plan" in done else None
    found = find_limits(steps, [one.name for one in sources if one.license is None], changed)
    limits = [*declared.limits, *found, *plan_limits]
    return CardFacts(
        run.plan.settings.name, declared, unfinished, _languages(run), sources, rejected, stages,
        _configs(run, finished), _columns(run, finished), limits,
        _warnings(declared, sources, unfinished),
        _tokenizer_name(steps), tokenizer.get("vocab_size"),
        given.get("packing", {}).get("seq_len"),
        [dataclasses.asdict(row) for row in table.rows] if table else [],
        plan_hash, {phase.name: seal.fingerprint for phase, seal in finished},
        corpuskit.__version__, pipeline_yaml(run.plan.file),
    )  # fmt: skip


def source_of(stage: str) -> str:
    """Return what the documentation of a stage says after `Source:`."""
    doc = inspect.getdoc(registry.load(stage)) or ""
    found = re.search(r"^Source: (.*?)(?:\n\s*\n|\Z)", doc, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _stage(step: Step, row: FunnelRow) -> StageFacts:
    params = step.stage.model_dump(mode="json", exclude_defaults=True)
    kind = registry.kind_of(step.name)
    has_counts = kind not in {"mixing", "sequences"} or bool(row.dropped)
    return StageFacts(
        step.label, step.name, kind, registry.summary(step.name), source_of(step.name), params,
        {rule: sum(by.values()) for rule, by in row.dropped.items()}, dict(row.changed),
        row.num_in if has_counts else None, row.num_out if has_counts else None,
    )  # fmt: skip


def _sources(run: RunDirectory, finished: Sealed) -> list[SourceFacts]:
    documents = {one.source: one for one in accounts(run, finished)}
    packed = {row.source: row for row in packing(finished) if row.band is None}
    sizes = _kept_bytes(run, finished)
    read: dict[str, int] = {}
    for phase, seal in finished:
        if phase.base is None:
            for name, value in seal.counters.items():
                if name.startswith("read_bytes/"):
                    read[name.removeprefix("read_bytes/")] = value
    found = []
    for step in run.plan.file.sources:
        name = step.label
        said = run.plan.settings.card.sources.get(name)
        files = [file for file in run.inputs.files if file.source == name]
        count, row = documents.get(name), packed.get(name)
        nothing = 0 if packed else None  # others are packed, so this one has no documents
        found.append(
            SourceFacts(
                name, step.name,
                said.license if said else None, said.origin if said else None,
                said.url if said else None, said.description if said else None,
                run.plan.source(name).paths, len(files), sum(file.size_bytes for file in files),
                count.num_read if count else 0, read.get(name, 0),
                count.num_kept if count else 0, sizes.get(name, 0) if sizes is not None else None,
                row.tokens if row else nothing, row.rows if row else nothing,
            )
        )  # fmt: skip
    return found


def _kept_bytes(run: RunDirectory, finished: Sealed) -> dict[str, int] | None:
    """Return bytes of text of what is kept, by source; None while masks wait to be applied."""
    sizes: dict[str, int] | None = None
    for phase, seal in finished:
        if phase.is_stream:
            parts = seal.by_role("documents")
            sizes = {}
            for part in parts:
                sizes[part.source] = sizes.get(part.source, 0) + part.text_bytes
            if not len(parts):  # packed
                names = [step.label for step in run.plan.file.sources]
                sizes = {name: seal.counters.get(f"text_bytes/{name}", 0) for name in names}
        elif any(name.startswith("dropped/") for name in seal.counters):
            sizes = None
    return sizes


def _languages(run: RunDirectory) -> list[str]:
    declared = run.plan.settings.card.languages
    if declared:
        return list(declared)
    for step in run.plan.file.steps:
        codes = getattr(step.stage, "keep", None) if step.name == "language" else None
        if codes:
            return list(dict.fromkeys(code.partition("_")[0].lower() for code in codes))
    return []


def _configs(run: RunDirectory, finished: Sealed) -> dict[str, str]:
    """Return which files can be loaded, the best to begin with first."""
    folders = {phase.folder for phase, _ in finished if phase.is_stream}
    roles = {role for _, seal in finished for role in seal.parts.digests}
    found = {}
    if "documents" in folders:
        found["documents"] = "documents/*.parquet"
    if "tokens" in roles:
        found["tokens"] = "tokens/*/*.parquet"
    if "aside:holdout" in roles:
        found["holdout"] = "holdout/*.parquet"
    return found


def _columns(run: RunDirectory, finished: Sealed) -> dict[str, str]:
    for phase, _ in finished:
        if phase.is_stream and phase.folder == "documents":
            return {field.name: str(field.type) for field in run.plan.schema(phase)}
    return {}


def _edits(run: RunDirectory, finished: Sealed) -> tuple[str | None, list[str]]:
    """Return the hash of the mix plan, and what its edits mean for a reader."""
    if not any(phase.name == "mix.plan" for phase, _ in finished):
        return None, []
    plan_hash = str(json.loads(run.read_file("mix.plan", "mix/plan.json"))["plan_hash"])
    try:
        edits = read_edits(open_files(run.store.address), plan_hash)
    except (UsageError, DataError) as error:
        return plan_hash, [f"The chain of edits cannot be read: {error}"]
    gone = sum(len(edit.fields["documents"]) for edit in edits if edit.kind == "takedown")
    if not gone:
        return plan_hash, []
    return plan_hash, [
        f"{gone:,} documents were taken down after packing: corpuskit's loader leaves them out, "
        "but they still lie in the files."
    ]


def _tokenizer_name(steps: Sequence[Step]) -> str | None:
    return next((str(s.stage.tokenizer) for s in steps if hasattr(s.stage, "tokenizer")), None)


def _warnings(
    declared: Card, sources: Sequence[SourceFacts], unfinished: Sequence[str]
) -> list[str]:  # fmt: skip
    found = []
    if unfinished:
        found.append(f"the run is not finished: {', '.join(unfinished)} have not run.")
    here = [path for one in sources for path in one.paths if path.startswith(("/", "~"))]
    if here:
        found.append(f"the card names paths of this machine, such as {here[0]}.")
    if declared.license is None:
        found.append("the licence of the dataset is not declared. Set card.license.")
    missing = [one.name for one in sources if one.license is None]
    if missing:
        many = "licences of sources {} are" if len(missing) > 1 else "licence of source {} is"
        found.append(
            f"the {many.format(', '.join(missing))} not declared. Set "
            f"card.sources.{missing[0]}.license."
        )
    missing = [one.name for one in sources if one.origin is None and one.url is None]
    if missing:
        found.append(
            f"nothing says where {', '.join(missing)} came from. Set "
            f"card.sources.{missing[0]}.origin."
        )
    return found
