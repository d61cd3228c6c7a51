"""What a dataset card says of a run: sources, stages, counts, limits; `card_page` writes it down.

What was declared comes from `card:` in the pipeline file, everything else from the plan and the
seals. Nothing is guessed: what is not declared is shown as undeclared.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import corpuskit
from corpuskit.engine import registry
from corpuskit.engine.config import dump_yaml, pipeline_yaml
from corpuskit.engine.mixture import mixture, packing
from corpuskit.engine.status import accounts, funnel, outdated, sealed
from corpuskit.errors import DataError, UsageError
from corpuskit.inspect.archive import kept_bytes, read_bytes
from corpuskit.loader.edits import describe_edit, read_edits
from corpuskit.loader.index import open_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.settings import Card
    from corpuskit.engine.status import FunnelRow, Sealed


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """All that a card says.

    Attributes:
        unfinished: phases that have not run.
        languages: ISO 639 codes, declared or those that a stage keeps.
        sources: as declared, as read and as kept; `kept_bytes`, `tokens`, `rows` are None where
            they are not known, or not made.
        stages: what each is and did: `params` that are not defaults, `source` of the method,
            documents `dropped` and `changed` by rule, and before and after it; None where it has
            not run, or sees no documents.
        configs: name -> pattern of the files.
        columns: of the documents, name -> type.
        limits: what a reader should know; declared ones first.
        warnings: what is missing from the declaration.
        taken_down: documents that `corpuskit edit` masks, and that still lie in the files.
        mixture: stage, source, rows, tokens, epochs; empty without a plan of the mixture.
        fingerprints: phase -> fingerprint.
        pipeline: the pipeline file, without what are defaults.
    """

    name: str
    declared: Card
    unfinished: list[str]
    languages: list[str]
    sources: list[dict[str, Any]]
    rejected: dict[str, int]
    stages: list[dict[str, Any]]
    configs: dict[str, str]
    columns: dict[str, str]
    limits: list[str]
    warnings: list[str]
    tokenizer: str | None
    vocabulary: int | None
    seq_len: int | None
    taken_down: int
    mixture: list[dict[str, Any]]
    plan_hash: str | None
    fingerprints: dict[str, str]
    version: str
    pipeline: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        declared = self.declared.model_dump(mode="json", exclude_defaults=True)
        return dataclasses.asdict(self) | {"declared": declared}


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
    sealed_names = {phase.name for phase, _ in finished}
    declared = run.plan.settings.card
    rows = funnel(run, finished)
    steps = run.plan.file.steps
    by_label = {row.stage: row for row in rows if not row.is_source}
    stages = [_stage(step, by_label[step.label]) for step in steps]
    sources = _source_facts(run, finished)
    rejected = {
        f"{row.stage}: {rule}": sum(by_source.values())
        for row in rows
        if row.is_source
        for rule, by_source in row.dropped.items()
    }
    unfinished = [phase.name for phase in run.plan.phases if phase.name not in sealed_names]
    changed = [phase.name for phase, seal in finished if seal.accepted_code_change]
    facts_of = {key: value for facts in run.plan.given.values() for key, value in facts.items()}
    tokenizer = facts_of.get("tokenizer", {})
    plan_hash, taken_down, plan_limits = _edits(run, finished)
    table = mixture(run, finished) if "mix.plan" in sealed_names else None
    derived = find_limits(
        steps, [source["name"] for source in sources if source["license"] is None], changed
    )
    limits = [*declared.limits, *derived, *plan_limits]
    return CardFacts(
        run.plan.settings.name, declared, unfinished, _languages(run), sources, rejected, stages,
        _configs(run, finished), _columns(run, finished), limits,
        _warnings(declared, sources, unfinished),
        next((str(s.stage.tokenizer) for s in steps if hasattr(s.stage, "tokenizer")), None),
        tokenizer.get("vocab_size"),
        facts_of.get("packing", {}).get("seq_len"), taken_down,
        [dataclasses.asdict(row) for row in table.rows] if table else [],
        plan_hash, {phase.name: seal.fingerprint for phase, seal in finished},
        corpuskit.__version__, pipeline_yaml(run.plan.file),
    )  # fmt: skip


def source_of(stage: str) -> str:
    """Return what the documentation of a stage says after `Source:`."""
    doc = inspect.getdoc(registry.load(stage)) or ""
    match = re.search(r"^Source: (.*?)(?:\n\s*\n|\Z)", doc, re.DOTALL | re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def _stage(step: Step, row: FunnelRow) -> dict[str, Any]:
    kind = registry.kind_of(step.name)
    has_counts = kind not in {"mixing", "sequences"} or bool(row.dropped)
    return {
        "label": step.label,
        "name": step.name,
        "kind": kind,
        "summary": registry.summary(step.name),
        "source": source_of(step.name),
        "params": step.stage.model_dump(mode="json", exclude_defaults=True),
        "dropped": {rule: sum(by_source.values()) for rule, by_source in row.dropped.items()},
        "changed": dict(row.changed),
        "num_in": row.num_in if has_counts else None,
        "num_out": row.num_out if has_counts else None,
    }


def _source_facts(run: RunDirectory, finished: Sealed) -> list[dict[str, Any]]:
    documents = {account.source: account for account in accounts(run, finished)}
    packed = {row.source: row for row in packing(finished) if row.band is None}
    sizes, read = kept_bytes(run, finished), read_bytes(finished)
    no_tokens = 0 if packed else None  # where others are packed, a source may have no documents
    rows = []
    for step in run.plan.file.sources:
        name = step.label
        declared = run.plan.settings.card.sources.get(name)
        files = [file for file in run.inputs.files if file.source == name]
        count, row = documents.get(name), packed.get(name)
        rows.append(
            {
                "name": name,
                "format": step.name,
                **{key: getattr(declared, key, None) for key in _DECLARED},
                "paths": run.plan.source(name).paths,
                "files": len(files),
                "file_bytes": sum(file.size_bytes for file in files),
                "read_documents": count.num_read if count else 0,
                "read_bytes": read.get(name, 0),
                "kept_documents": count.num_kept if count else 0,
                "kept_bytes": None if sizes is None else sizes.get(name, 0),
                "tokens": row.tokens if row else no_tokens,
                "rows": row.rows if row else no_tokens,
            }
        )
    return rows


_DECLARED = ("license", "origin", "url", "description")


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
    configs = {}
    if "documents" in folders:
        configs["documents"] = "documents/*.parquet"
    if "tokens" in roles:
        configs["tokens"] = "tokens/*/*.parquet"
    if "aside:holdout" in roles:
        configs["holdout"] = "holdout/*.parquet"
    return configs


def _columns(run: RunDirectory, finished: Sealed) -> dict[str, str]:
    for phase, _ in finished:
        if phase.is_stream and phase.folder == "documents":
            return {field.name: str(field.type) for field in run.plan.schema(phase)}
    return {}


def _edits(run: RunDirectory, finished: Sealed) -> tuple[str | None, int, list[str]]:
    """Return the hash of the mix plan, how many documents its edits took down, and what to say."""
    if not any(phase.name == "mix.plan" for phase, _ in finished):
        return None, 0, []
    plan_hash = str(json.loads(run.read_file("mix.plan", "mix/plan.json"))["plan_hash"])
    try:
        edits = read_edits(open_files(run.store.address), plan_hash)
    except (UsageError, DataError) as error:
        return plan_hash, 0, [f"The chain of edits cannot be read: {error}"]
    removed = sum(len(edit.fields["documents"]) for edit in edits if edit.kind == "takedown")
    limits = [
        f"Training reads other rows than the mixture here says: {describe_edit(edit)}."
        for edit in edits
        if edit.kind != "takedown"
    ]
    if removed:
        limits.append(
            f"Taken down after packing: {removed:,} document{'s' * (removed != 1)}. The files "
            "still hold their text; corpuskit's loader leaves it out."
        )
    return plan_hash, removed, limits


def _warnings(
    declared: Card, sources: Sequence[Mapping[str, Any]], unfinished: Sequence[str]
) -> list[str]:  # fmt: skip
    warnings = []
    if unfinished:
        warnings.append(f"the run is not finished: {', '.join(unfinished)} have not run.")
    local = [path for source in sources for path in source["paths"] if path.startswith(("/", "~"))]
    if local:
        warnings.append(f"the card names paths of this machine, such as {local[0]}.")
    if declared.license is None:
        warnings.append("the licence of the dataset is not declared. Set card.license.")
    missing = [source["name"] for source in sources if source["license"] is None]
    if missing:
        many = "licences of sources {} are" if len(missing) > 1 else "licence of source {} is"
        warnings.append(
            f"the {many.format(', '.join(missing))} not declared. Set "
            f"card.sources.{missing[0]}.license."
        )
    missing = [
        source["name"] for source in sources if source["origin"] is None and source["url"] is None
    ]
    if missing:
        warnings.append(
            f"nothing says where {', '.join(missing)} came from. Set "
            f"card.sources.{missing[0]}.origin."
        )
    return warnings


# ---------------------------------------------------------------- what was done, and known limits

EXACT, NEAR, PARTS = "exact_dedup", "minhash_dedup", ("substring_dedup", "line_dedup")
DECONTAMINATION = {"decontaminate", "decontaminate_ngrams"}
HARMFUL = ("toxicity", "bad_words", "url_filter")
EMBEDDED = "embedded"


def find_limits(
    steps: Sequence[Step], unlicensed: Sequence[str], accepted: Sequence[str]
) -> list[str]:
    """Return what a reader of the dataset should know, from the plan alone.

    Args:
        unlicensed: sources without a declared licence.
        accepted: phases that were kept although their code had changed.
    """
    names = {step.name for step in steps}
    limits = [*_language_limits(steps), *_duplicates(names)]
    if not names & DECONTAMINATION:
        limits.append(
            "No stage looked for benchmark items: scores of models trained on it may be too high."
        )
    limits.append(
        "Only personal data that has a form (addresses, numbers, keys) was looked for; names are "
        "still there, and some of what has a form is missed."
        if "pii" in names
        else "No stage looked for personal data."
    )
    if not names & set(HARMFUL):
        limits.append("No stage looked for toxic or adult content.")
    limits += _sampling(steps)
    if unlicensed:
        limits.append(
            f"Nobody declared the licence of {', '.join(unlicensed)}. No stage looks at licences: "
            "who uses the texts has to find out."
        )
    if accepted:
        limits.append(
            f"Phases {', '.join(accepted)} were made by code that has changed since "
            "(`--accept-code-change`): running again may decide otherwise."
        )
    return limits


NOT_DONE = {
    "Duplicates": "Duplicates were not looked for.",
    "Benchmarks": "Benchmark items were not looked for.",
    "Personal data": "Personal data was not looked for.",
}


def statements(
    steps: Sequence[Step], dropped: Mapping[str, int], changed: Mapping[str, Mapping[str, int]]
) -> dict[str, list[str]]:
    """Return what was done about each subject of NOT_DONE, a sentence per stage.

    Args:
        dropped: label -> documents.
        changed: label -> rule, or kind of personal data -> documents that lost some of their text.
    """
    sentences: dict[str, list[str]] = {subject: [] for subject in NOT_DONE}
    for step in steps:
        stage, num, counts = step.stage, dropped.get(step.label, 0), changed.get(step.label, {})
        result = f"{_action(step)}: {_came(num, sum(counts.values()))}"
        if step.name == EXACT:
            sentences["Duplicates"].append(f"Documents with the same text were {result}.")
        elif step.name == NEAR:
            min_share = getattr(stage, "verify", None)
            detail = "" if min_share is None else f", checked to share {min_share:.0%} of them"
            max_share = getattr(stage, "max_lost", None)
            if max_share is not None and getattr(stage, "is_direct", bool)():
                detail += f" with one that stays, which lacks at most {max_share:.0%} of their own"
            sentences["Duplicates"].append(
                f"Near duplicates, by MinHash over {getattr(stage, 'ngram', '?')}-word shingles in "
                f"{getattr(stage, 'bands', '?')} bands of {getattr(stage, 'rows', '?')} "
                f"rows{detail}, were {result}."
            )
        elif step.name in PARTS:
            unit = "passages" if step.name == PARTS[0] else "lines"
            sentences["Duplicates"].append(f"Repeated {unit} were {result}.")
        elif step.name in DECONTAMINATION:
            sets = getattr(stage, "benchmarks", ())
            files = [f"{k} ({v})" for k, v in sets.items()] if isinstance(sets, dict) else sets
            sentences["Benchmarks"].append(
                f"Items of {', '.join(files)} were looked for; what was found was {result}."
            )
        elif step.name == "pii":
            by_kind = ", ".join(f"{kind} in {num:,}" for kind, num in counts.items()) or "nothing"
            kinds = ", ".join(getattr(stage, "kinds", ()))
            drops = f", and {num:,} are gone for it" if num else ""
            action = {"replace": "replaced", "mask": "masked", "tag": "tagged", "drop": "dropped"}
            how = action.get(getattr(stage, "action", ""), "replaced")
            sentences["Personal data"].append(
                f"Looked for {kinds}. Found and {how}: {by_kind} documents{drops}."
            )
    return {subject: lines or [NOT_DONE[subject]] for subject, lines in sentences.items()}


def _came(num_dropped: int, num_cut: int) -> str:
    drops = f"{num_dropped:,} document{'s' * (num_dropped != 1)} gone"
    if not num_cut:
        return drops
    suffix = f"; {drops}" if num_dropped else ""
    return f"{num_cut:,} document{'s' * (num_cut != 1)} shortened{suffix}"


def _action(step: Step) -> str:
    words = {"drop": "dropped", "cut": "cut out", "annotate": "noted, not removed"}
    return words.get(getattr(step.stage, "action", "drop"), "dropped")


def _language_limits(steps: Sequence[Step]) -> list[str]:
    lines = []
    for step in steps:
        if step.name == "language":
            model = getattr(step.stage, "model", EMBEDDED)
            label = "corpuskit's embedded model" if model == EMBEDDED else str(model)
            lines.append(
                f"Languages were identified by a fastText model ({label}); it errs on short, mixed "
                "and formulaic texts, and more often in languages that resemble others."
            )
    return lines or ["Languages were not looked at."]


def _duplicates(names: set[str]) -> list[str]:
    if NEAR in names:
        return []
    if EXACT in names:
        return ["Only exact copies were looked for: near duplicates are still there."]
    if names & set(PARTS):
        return ["Documents as a whole were not compared: duplicates may still be there."]
    return ["Duplicates were not looked for: they are still there."]


def _sampling(steps: Sequence[Step]) -> list[str]:
    """Return what is not there by choice or by chance."""
    lines = []
    for step in steps:
        if step.name == "holdout":
            ratio = getattr(step.stage, "ratio", 0.0)
            share = f"{100 * ratio:.3g} %"
            lines.append(f"About {share} of the documents were set aside, by a hash of their text.")
        elif step.name == "percentile" and getattr(step.stage, "keep_top", None) is not None:
            lines.append(
                f"Only the best {100 * getattr(step.stage, 'keep_top', 1.0):.3g} % by "
                f"{getattr(step.stage, 'column', 'a score')} was kept: what the score is blind to "
                "is rarer than in the sources."
            )
        elif step.name == "upsample":
            lines.append("Some documents count several times, others not at all (upsample).")
        elif step.name in {"quality", "toxicity"}:
            model = getattr(step.stage, "model", "")
            lines.append(f"Scores of {step.label} come from a classifier ({model}) and its biases.")
    return lines


# ---------------------------------------------------------------- the card as Markdown

SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")

LICENSES = frozenset(
    """apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0
    bigcode-openrail-m afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear
    c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0
    cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0 cdla-permissive-2.0
    wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0
    lgpl lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl osl-3.0 postgresql ofl-1.1 ncsa
    unlicense zlib pddl gemma llama2 llama3 llama3.1 llama3.2 llama3.3 unknown other""".split()
)
"""Identifiers that the hub knows (huggingface.co/docs/hub/repositories-licenses, 2025)."""

_COLUMNS = {
    "key": "position: number of the input file, and row or byte in it; joins with the ledger",
    "id": "the source's own id, or source, file and position",
    "text": "valid UTF-8",
    "source": "which of the sources above",
    "origin": "file, position, and URL and date where the source has them",
    "extra": "other columns of the input, as JSON",
}

_SPDX = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "cc0": "cc0-1.0"}


def card_page(facts: CardFacts, steps: Sequence[Step]) -> str:
    """Return the card; ends in a line feed."""
    declared = facts.declared
    title = clean(declared.pretty_name or facts.name)
    parts = [
        f"---\n{dump_yaml(metadata(facts))}---",
        f"# {plain(title)}",
        *([paragraphs(declared.description)] if declared.description else []),
        *_notice(facts),
        "Made with corpuskit: every document that left is in the ledger of the run, with the rule "
        "that dropped it.",
        "## Contents", _counts(facts),
        "## Sources", _sources(facts.sources),
        "## Stages", "In this order; documents in and out where the stage looks at documents.",
        _stages(facts), *_drops(facts), *_statements(facts, steps),
        *_fields(facts),
        "## Known limits", _list(plain(limit) for limit in facts.limits),
        "## How to load", _loading(facts),
        "## How to make it again", *_reproduction(facts),
    ]  # fmt: skip
    if declared.citation:
        parts += ["## Citation", fenced(clean_lines(declared.citation), "")]
    return "\n\n".join(parts).rstrip() + "\n"


def metadata(facts: CardFacts) -> dict[str, Any]:
    """Return the YAML head as plain values."""
    declared = facts.declared
    head: dict[str, Any] = {"pretty_name": clean(declared.pretty_name or facts.name)}
    head |= license_fields(declared.license, declared.license_link)
    if facts.languages:
        head["language"] = list(facts.languages)
    head["size_categories"] = [
        size_category(sum(source["kept_documents"] for source in facts.sources))
    ]
    head["task_categories"] = ["text-generation"]
    tags = ["corpuskit", "pretraining", *map(clean, declared.tags)]
    head["tags"] = list(dict.fromkeys(tags))
    head["source_datasets"] = _source_datasets(facts.sources)
    if facts.configs:
        head["configs"] = [
            {
                "config_name": name,
                **({"default": True} if number == 0 else {}),
                "data_files": [
                    {"split": "test" if name == "holdout" else "train", "path": pattern}
                ],
            }
            for number, (name, pattern) in enumerate(facts.configs.items())
        ]
    return head


def license_fields(name: str | None, link: str | None) -> dict[str, str]:
    """Return a licence as the hub wants it: an identifier, or `other` with a name."""
    if name is None:
        return {"license": "unknown"}
    spdx = re.sub(r"\s+", "-", name.strip().lower())
    spdx = _SPDX.get(spdx, spdx.removesuffix("-only").removesuffix("-or-later"))
    if spdx in LICENSES:
        return {"license": spdx}
    fields = {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", spdx).strip("-")}
    return fields | ({"license_link": link} if link else {})


def size_category(documents: int) -> str:
    """Return the size as the hub names it."""
    index = sum(documents >= 10 ** (3 + power) for power in range(len(SIZES)))
    if index == 0:
        return f"n<{SIZES[0]}"
    return f"n>{SIZES[-1]}" if index == len(SIZES) else f"{SIZES[index - 1]}<n<{SIZES[index]}"


def clean(text: str) -> str:
    """Return text on one line, without characters that a terminal or a browser would obey."""
    return " ".join(clean_lines(text).split())


def clean_lines(text: str) -> str:
    """Return text without characters that a terminal or a browser would obey; lines stay."""
    safe = (c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
    return "".join("\n" if c in "\u2028\u2029" else c for c in safe)


def plain(text: str) -> str:
    """Return text for a line of Markdown, with nothing in it that is markup."""
    text = re.sub(r"^([-+=:])", r"\\\1", _escaped(clean(text)))
    return re.sub(r"^(\d{1,9})([.)])", r"\1\\\2", text)


def _escaped(text: str) -> str:
    text = re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def paragraphs(text: str) -> str:
    """Return plain text in paragraphs, as blank lines divide it."""
    return "\n\n".join(
        plain(block) for block in re.split(r"\n\s*\n", clean_lines(text)) if block.strip()
    )


def prose(text: str) -> str:
    """Return a line of a docstring, whose only markup is code in backticks; tables may have it."""
    pieces = re.split(r"`([^`]+)`", clean(text))
    return "".join(cell(piece) if i % 2 else _escaped(piece) for i, piece in enumerate(pieces))


def cell(text: str) -> str:
    """Return inline code for a table, where even in code a bar ends the cell."""
    return code(text).replace("|", "\\|")


def code(text: str) -> str:
    """Return inline code."""
    text = clean(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def fenced(text: str, language: str) -> str:
    """Return a block of code; nothing in it ends the block."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _source_datasets(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return datasets of the hub that went in, and `original` for everything else."""
    datasets: dict[str, None] = {}
    for source in sources:
        names = (
            list(source["paths"]) if source["format"] == "huggingface" else [source["url"] or ""]
        )
        hub = [name.removeprefix("https://huggingface.co/datasets/") for name in names]
        ids = [name for name in hub if re.fullmatch(r"[\w.-]+/[\w.-]+", name)]
        datasets |= dict.fromkeys(ids or ["original"])
    return list(datasets)


def _notice(facts: CardFacts) -> list[str]:
    if not facts.unfinished:
        return []
    names = ", ".join(code(name) for name in facts.unfinished)
    return [f"**The run is not finished**: {names} have not run. Figures are of what has."]


def _counts(facts: CardFacts) -> str:
    names = ["read_documents", "read_bytes", "kept_documents", "kept_bytes", "tokens"]
    columns = ["source", "documents read", "MB read", "documents kept", "MB kept", "tokens"]
    has_tokens = any(source["tokens"] is not None for source in facts.sources)
    if not has_tokens:
        names, columns = names[:-1], columns[:-1]
    values = [[source[name] for name in names] for source in facts.sources]
    titles = [cell(source["name"]) for source in facts.sources]
    if len(values) > 1:
        titles.append("all")
        columns_of = zip(*values, strict=True)
        values.append([None if None in sizes else sum(sizes) for sizes in columns_of])
    formats = [_megabytes if name.endswith("bytes") else _number for name in names]
    rows = [
        [title, *(show(value) for show, value in zip(formats, values, strict=True))]
        for title, values in zip(titles, values, strict=True)
    ]
    blocks = [_table(columns, rows)]
    if facts.languages:
        blocks.append(f"Languages: {', '.join(map(code, facts.languages))}.")
    if facts.tokenizer and has_tokens:
        blocks.append(
            f"Tokens by {code(facts.tokenizer)} ({_number(facts.vocabulary)} entries), in rows of "
            f"{_number(facts.seq_len)} and one more; MB are millions of bytes of UTF-8."
        )
    if facts.mixture:
        cells = [
            [cell(row["stage"] or "all"), cell(row["source"]), f"{row['rows']:,}",
             f"{row['tokens']:,}", f"{row['epochs']:.3f}"]
            for row in facts.mixture
        ]  # fmt: skip
        blocks += ["What a training run takes, by the plan of the mixture:",
                 _table(["stage", "source", "rows", "tokens", "epochs"], cells)]  # fmt: skip
    return "\n\n".join(blocks)


def _sources(sources: Sequence[Mapping[str, Any]]) -> str:
    blocks = []
    for source in sources:
        lines = [
            f"Licence: {plain(source['license']) if source['license'] else '**not declared**'}",
            f"Origin: {plain(source['origin']) if source['origin'] else 'not declared'}",
            *([f"Where: {plain(source['url'])}"] if source["url"] else []),
            f"Read from: {', '.join(map(code, source['paths']))} ({source['format']}), "
            f"{source['files']:,} file{'s' * (source['files'] != 1)}, "
            f"{_megabytes(source['file_bytes'])} MB on disk",
        ]
        about = [paragraphs(source["description"])] if source["description"] else []
        blocks.append("\n\n".join([f"### {plain(source['name'])}", *about, _list(lines)]))
    return "\n\n".join(blocks)


def _stages(facts: CardFacts) -> str:
    rows = [
        [
            cell(stage["label"]), prose(stage["summary"]),
            cell(json.dumps(stage["params"])) if stage["params"] else "",
            _number(stage["num_in"], ""), _number(stage["num_out"], ""),
        ]
        for stage in facts.stages
    ]  # fmt: skip
    columns = ["stage", "purpose", "parameters (others have their defaults)", "in", "out"]
    methods = [
        f"{code(stage['label'])}: {prose(stage['source'])}"
        for stage in facts.stages
        if stage["source"]
    ]
    return "\n\n".join([_table(columns, rows), "Sources of the methods:", _list(methods)])


def _drops(facts: CardFacts) -> list[str]:
    rows = [[cell(name), f"{num:,}"] for name, num in facts.rejected.items()]
    for stage in facts.stages:
        rows += [
            [cell(f"{stage['label']}: {rule}"), f"{num:,}"]
            for rule, num in stage["dropped"].items()
        ]
    if not rows:
        return ["Nothing was dropped."]
    return ["What left, by the rule that dropped it:", _table(["rule", "documents"], rows)]


def _fields(facts: CardFacts) -> list[str]:
    if not facts.columns:
        return []
    rows = [
        [cell(name), cell(kind), plain(_COLUMNS.get(name, ""))]
        for name, kind in facts.columns.items()
    ]
    return ["## Fields", _table(["column", "type", "what"], rows)]


def _statements(facts: CardFacts, steps: Sequence[Step]) -> list[str]:
    dropped = {stage["label"]: sum(stage["dropped"].values()) for stage in facts.stages}
    changed = {stage["label"]: stage["changed"] for stage in facts.stages}
    return [
        part
        for subject, lines in statements(steps, dropped, changed).items()
        for part in (f"## {subject}", _list(map(plain, lines)))
    ]


def _loading(facts: CardFacts) -> str:
    calls = [
        f'{name} = load_dataset("parquet", data_files="{pattern}", split="train", streaming=True)'
        for name, pattern in facts.configs.items()
        if name != "tokens"
    ]
    blocks = []
    if calls:
        lines = "\n".join(["from datasets import load_dataset", "", *calls])
        blocks += ["In the folder of the run, or a copy of it:", fenced(lines, "python")]
    if facts.plan_hash is not None:
        lines = (
            "from corpuskit.loader import StreamingLoader\n\n"
            'loader = StreamingLoader(".", global_batch_rows=8)'
            "  # needs `tokens/` and `mix/`\nfor batch in loader:\n    ..."
        )
        blocks += ["Packed tokens, in the order of the plan:", fenced(lines, "python")]
    return "\n\n".join(blocks) or "There is nothing to load yet."


def _reproduction(facts: CardFacts) -> list[str]:
    rows = [[cell(phase), cell(mark)] for phase, mark in facts.fingerprints.items()]
    plan = [f"Hash of the mixture's plan: {code(facts.plan_hash)}."] if facts.plan_hash else []
    return [
        f"With corpuskit {facts.version} (this card's; fingerprints below tell whether the code is "
        "the same), from the same input files: save this as `pipeline.yaml` and run "
        "`corpuskit run pipeline.yaml`. Decisions do not depend on the machine, nor on the number "
        "of workers.",
        fenced(facts.pipeline, "yaml"),
        *plan,
        _table(["phase", "fingerprint"], rows),
    ]


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(columns), ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _number(value: int | None, unknown: str = "?") -> str:
    return unknown if value is None else f"{value:,}"


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.2f}"
