"""A dataset card as Markdown with a YAML head, in the form of the Hugging Face hub.

Whatever is not ours (declared texts, names, rules, paths) is plain text here: its markup is
escaped, control characters and those that change the direction of text are left out.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from corpuskit.engine.config import dump_yaml
from corpuskit.inspect.card.limits import benchmarks_said, duplicates_said, personal_said

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.inspect.card.card import CardFacts, SourceFacts

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
        "## Known limits", _list(plain(one) for one in facts.limits),
        "## How to load", _loading(facts),
        "## How to make it again", *_again(facts),
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
    head["size_categories"] = [size_category(sum(one.kept_documents for one in facts.sources))]
    head["task_categories"] = ["text-generation"]
    tags = ["corpuskit", "pretraining", *map(clean, declared.tags)]
    head["tags"] = list(dict.fromkeys(tags))
    head["source_datasets"] = _source_datasets(facts.sources)
    if facts.configs:
        head["configs"] = [
            {
                "config_name": name,
                **({"default": True} if place == 0 else {}),
                "data_files": [
                    {"split": "test" if name == "holdout" else "train", "path": pattern}
                ],
            }
            for place, (name, pattern) in enumerate(facts.configs.items())
        ]
    return head


def license_fields(name: str | None, link: str | None) -> dict[str, str]:
    """Return a licence as the hub wants it: an identifier, or `other` with a name."""
    if name is None:
        return {"license": "unknown"}
    known = re.sub(r"\s+", "-", name.strip().lower())
    known = _SPDX.get(known, known.removesuffix("-only").removesuffix("-or-later"))
    if known in LICENSES:
        return {"license": known}
    fields = {"license": "other", "license_name": re.sub(r"[^a-z0-9.]+", "-", known).strip("-")}
    return fields | ({"license_link": link} if link else {})


def size_category(documents: int) -> str:
    """Return the size as the hub names it."""
    bounds = [10 ** (3 + place) for place in range(len(SIZES))]
    place = sum(documents >= bound for bound in bounds)
    if place == 0:
        return f"n<{SIZES[0]}"
    return f"n>{SIZES[-1]}" if place == len(SIZES) else f"{SIZES[place - 1]}<n<{SIZES[place]}"


def clean(text: str) -> str:
    """Return text on one line, without characters that a terminal or a browser would obey."""
    return " ".join(clean_lines(text).split())


def clean_lines(text: str) -> str:
    """Return text without characters that a terminal or a browser would obey; lines stay."""
    kept = (c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs"})
    return "".join("\n" if c in "\u2028\u2029" else c for c in kept)


def plain(text: str) -> str:
    """Return text for a line of Markdown, with nothing in it that is markup."""
    return _lead(_escaped(clean(text)))


def _escaped(text: str) -> str:
    text = re.sub(r"([\\`*_{}\[\]|~$#!])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _lead(text: str) -> str:
    """Return a line that does not begin as an item of a list or as an underline would."""
    return re.sub(r"^(\d{1,9})([.)])", r"\1\\\2", re.sub(r"^([-+=:])", r"\\\1", text))


def paragraphs(text: str) -> str:
    """Return plain text in paragraphs, as blank lines divide it."""
    return "\n\n".join(plain(one) for one in re.split(r"\n\s*\n", clean_lines(text)) if one.strip())


def prose(text: str) -> str:
    """Return a line of a docstring, whose only markup is code in backticks; tables may have it."""
    pieces = re.split(r"`([^`]+)`", clean(text))
    return "".join(cell(one) if at % 2 else _escaped(one) for at, one in enumerate(pieces))


def cell(text: str) -> str:
    """Return inline code that may stand in a table, where even in code a bar ends the cell."""
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


def _source_datasets(sources: Sequence[SourceFacts]) -> list[str]:
    """Return datasets of the hub that went in, and `original` for everything else."""
    found: dict[str, None] = {}
    for one in sources:
        names = list(one.paths) if one.format == "huggingface" else [one.url or ""]
        hub = [name.removeprefix("https://huggingface.co/datasets/") for name in names]
        ids = [name for name in hub if re.fullmatch(r"[\w.-]+/[\w.-]+", name)]
        found |= dict.fromkeys(ids or ["original"])
    return list(found)


def _notice(facts: CardFacts) -> list[str]:
    if not facts.unfinished:
        return []
    names = ", ".join(code(name) for name in facts.unfinished)
    return [f"**The run is not finished**: {names} have not run. Figures are of what has."]


def _counts(facts: CardFacts) -> str:
    has_tokens = any(one.tokens is not None for one in facts.sources)
    columns = ["source", "documents read", "MB read", "documents kept", "MB kept"]
    columns += ["tokens"] if has_tokens else []
    rows = [
        [
            cell(one.name), f"{one.read_documents:,}", _megabytes(one.read_bytes),
            f"{one.kept_documents:,}", _megabytes(one.kept_bytes),
            *([_number(one.tokens)] if has_tokens else []),
        ]
        for one in facts.sources
    ]  # fmt: skip
    if len(rows) > 1:
        kept = [one.kept_bytes for one in facts.sources]
        rows.append([
            "all", f"{sum(one.read_documents for one in facts.sources):,}",
            _megabytes(sum(one.read_bytes for one in facts.sources)),
            f"{sum(one.kept_documents for one in facts.sources):,}",
            _megabytes(None if None in kept else sum(size or 0 for size in kept)),
            *([_number(sum(one.tokens or 0 for one in facts.sources))] if has_tokens else []),
        ])  # fmt: skip
    said = [_table(columns, rows)]
    if facts.languages:
        said.append(f"Languages: {', '.join(map(code, facts.languages))}.")
    if facts.tokenizer and has_tokens:
        said.append(
            f"Tokens by {code(facts.tokenizer)} ({_number(facts.vocabulary)} entries), in rows of "
            f"{_number(facts.seq_len)} and one more; MB are millions of bytes of UTF-8."
        )
    if facts.mixture:
        cells = [
            [cell(row["stage"] or "all"), cell(row["source"]), f"{row['rows']:,}",
             f"{row['tokens']:,}", f"{row['epochs']:.3f}"]
            for row in facts.mixture
        ]  # fmt: skip
        said += ["What a training run takes, by the plan of the mixture:",
                 _table(["stage", "source", "rows", "tokens", "epochs"], cells)]  # fmt: skip
    return "\n\n".join(said)


def _sources(sources: Sequence[SourceFacts]) -> str:
    said = []
    for one in sources:
        lines = [
            f"Licence: {plain(one.license) if one.license else '**not declared**'}",
            f"Origin: {plain(one.origin) if one.origin else 'not declared'}",
            *([f"Where: {plain(one.url)}"] if one.url else []),
            f"Read from: {', '.join(map(code, one.paths))} ({one.format}), {one.files:,} "
            f"file{'s' * (one.files != 1)}, {_megabytes(one.file_bytes)} MB on disk",
        ]
        about = [paragraphs(one.description)] if one.description else []
        said.append("\n\n".join([f"### {plain(one.name)}", *about, _list(lines)]))
    return "\n\n".join(said)


def _stages(facts: CardFacts) -> str:
    rows = [
        [
            cell(one.label), prose(one.summary), cell(json.dumps(one.params)) if one.params else "",
            "" if one.num_in is None else f"{one.num_in:,}",
            "" if one.num_out is None else f"{one.num_out:,}",
        ]
        for one in facts.stages
    ]  # fmt: skip
    columns = ["stage", "purpose", "parameters (others have their defaults)", "in", "out"]
    where = [f"{code(one.label)}: {prose(one.source)}" for one in facts.stages if one.source]
    return "\n\n".join([_table(columns, rows), "Sources of the methods:", _list(where)])


def _drops(facts: CardFacts) -> list[str]:
    rows = [[cell(name), f"{num:,}"] for name, num in facts.rejected.items()]
    for one in facts.stages:
        rows += [[cell(f"{one.label}: {rule}"), f"{num:,}"] for rule, num in one.dropped.items()]
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
    lost = {one.label: sum(one.dropped.values()) for one in facts.stages}
    changed = {one.label: one.changed for one in facts.stages}
    return [
        "## Duplicates", _list(map(plain, duplicates_said(steps, lost, changed))),
        "## Benchmarks", _list(map(plain, benchmarks_said(steps, lost, changed))),
        "## Personal data", _list(map(plain, personal_said(steps, lost, changed))),
    ]  # fmt: skip


def _loading(facts: CardFacts) -> str:
    said = []
    for name, pattern in facts.configs.items():
        if name != "tokens":
            said.append(
                f'{name} = load_dataset("parquet", data_files="{pattern}", split="train", '
                "streaming=True)"
            )
    blocks = []
    if said:
        lines = "\n".join(["from datasets import load_dataset", "", *said])
        blocks += ["In the folder of the run, or a copy of it:", fenced(lines, "python")]
    if facts.plan_hash is not None:
        lines = (
            "from corpuskit.loader import StreamingLoader\n\n"
            'loader = StreamingLoader(".", global_batch_rows=8)'
            "  # needs `tokens/` and `mix/`\nfor batch in loader:\n    ..."
        )
        blocks += ["Packed tokens, in the order of the plan:", fenced(lines, "python")]
    return "\n\n".join(blocks) or "There is nothing to load yet."


def _again(facts: CardFacts) -> list[str]:
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


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.2f}"
