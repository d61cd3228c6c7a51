"""Makes edits of a running mixture; each is checked against the plan, then appended.

    plan = read_mix("runs/r")
    plan = append(plan, skip_rows(plan, [(8_000, 8_800)]))

A state from before the edit loads under the new plan if it precedes the rows that the edit changes.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.errors import UsageError
from corpuskit.loader.edits import SPAN_COLUMNS, Edit, new_edit, write_edit
from corpuskit.loader.index import MAX_EPOCHS, MixPlan, edited
from corpuskit.loader.provenance import KEY_BITS, Lookups, Provenance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEADLINE_SECONDS = 120.0


def append(plan: MixPlan, edit: Edit, other: MixPlan | None = None) -> MixPlan:
    """Append an edit to the chain of a plan, and return the plan with it.

    Args:
        plan: the current plan.
        edit: of this plan.
        other: the run whose sources the edit adds; their files are linked into `edits/` first.

    Raises:
        UsageError: the plan would take a source more often than its cap allows, or another process
            has appended an edit meanwhile.
        DataError: the edit does not fit the plan.
    """
    after = edited(plan.files, plan.base, [*plan.edits, edit], other)
    if other is not None:
        _link_files(plan, after, other)
    write_edit(plan.files.address, edit)
    return after


def _link_files(plan: MixPlan, after: MixPlan, other: MixPlan) -> None:
    """Link the files of the sources that an edit adds into `edits/`, or copy them.

    Links need both runs on one file system. A file that exists, as after a kill, is compared and
    kept.

    Raises:
        DataError: a file of the other run is missing, or not what its plan says.
    """
    from corpuskit.storage import open_store

    if importlib.util.find_spec("xxhash") is None:  # the loader alone does without
        raise UsageError(
            "edit source: shards are checked by xxhash. Install it (pip install xxhash)."
        )
    added, index = after.added[-1], other.parts
    store, source_store = open_store(plan.files.address), open_store(other.files.address)
    names = [source["name"] for source in other.base.fields["sources"]]
    numbers = [names.index(name) for name in added.names]
    parts = np.flatnonzero(np.isin(index.sources, numbers)).tolist()
    digests = {index.paths[part]: index.digests[part] for part in parts}
    small = [other.base.fields[key] for key in ("index", "lookups", "files")]
    for name in [*digests, "mix/plan.json", *small, *Lookups(other).files_of(added.names)]:
        digest, target = digests.get(name) or source_store.digest(name), added.prefix + name
        if not (store.exists(target) and store.digest(target) == digest):
            store.adopt(source_store.at(name, digest=digest), target)


def new_stage(
    plan: MixPlan,
    row: int,
    weights: Mapping[str, int],
    *,
    rows: int | None = None,
    name: str | None = None,
    max_epochs: Mapping[str, float] | None = None,
) -> Edit:
    """Return the edit that continues with other weights from a row of the run on.

    Args:
        plan: the current plan.
        row: row index of the first row that the new weights may change.
        weights: source -> integer share of the rows.
        rows: length of the stage; None for as many as the plan has from there.
        name: for reports.
        max_epochs: new caps of sources.

    Raises:
        UsageError: there is no such row or source, or no row is left and `rows` is not given.
    """
    names = [source.name for source in plan.sources]
    payload = _stage(plan, row, weights, rows, name, max_epochs or {}, names)
    return new_edit(plan.edits, plan.base.hash, "stages", row, payload)


def add_sources(
    plan: MixPlan,
    row: int,
    other: MixPlan,
    weights: Mapping[str, int],
    *,
    rename: Mapping[str, str] | None = None,
    rows: int | None = None,
    name: str | None = None,
    max_epochs: Mapping[str, float] | None = None,
) -> Edit:
    """Return the edit that adds sources of another run, and continues with other weights.

    Args:
        plan: the current plan.
        row: row index of the first row that may change.
        other: the plan of the other run. Its sources are added that have a weight, under names
            that this run does not have; its order, weights and skipped rows don't matter, and what
            it took down stays taken down.
        weights: source -> integer share of the rows, of sources of both.
        rename: source of the other run -> its name here.
        rows, name, max_epochs: see `new_stage`.

    Raises:
        UsageError: tokenizer, seq_len or dtype differ; no source would be added, or one is in the
            plan already; or as in `new_stage`.
    """
    names = _new_names(plan, other, weights, rename or {})
    names_known = [*(source.name for source in plan.sources), *names.values()]
    payload = _stage(plan, row, weights, rows, name, max_epochs or {}, names_known)
    ordinals = [run.first_ordinal for run in plan.added if run.base.hash == other.base.hash]
    first = ordinals[0] if ordinals else 1 + max(Lookups(plan).origins, default=-1)
    if first + max(Lookups(other).origins, default=0) >> 63 - KEY_BITS:
        raise UsageError("edit source: the two runs have too many input files, or sources.")
    masked: list[list[Any]] = [
        [names[source], *span, key + (first << KEY_BITS)]
        for edit in other.takedowns.edits
        for source, *span, key in zip(*(edit.fields["spans"][k] for k in SPAN_COLUMNS), strict=True)
        if source in names
    ]
    sources = [
        {**entry, "name": names[entry["name"]], "stored": entry["name"]}
        for entry in other.base.fields["sources"]
        if entry["name"] in names
    ]
    payload |= {
        "run": other.base.hash,
        "from": other.files.address,
        "first_ordinal": first,
        "sources": sources,
        "spans": {k: [span[n] for span in masked] for n, k in enumerate(SPAN_COLUMNS) if masked},
    }
    return new_edit(plan.edits, plan.base.hash, "source", row, payload)


def _new_names(
    plan: MixPlan, other: MixPlan, weights: Mapping[str, int], rename: Mapping[str, str]
) -> dict[str, str]:
    """Return the sources to add: name in the other run -> name in this one."""
    address, own_names = other.files.address, [source.name for source in plan.sources]
    for key in ("tokenizer", "seq_len", "dtype"):
        if plan.base.fields[key] != other.base.fields[key]:
            raise UsageError(
                f"edit source: {key} of {address} is {other.base.fields[key]}, that of"
                f" {plan.files.address} is {plan.base.fields[key]}. Tokenize and pack the new data"
                " as this run did."
            )
    stored_names = [entry["name"] for entry in other.base.fields["sources"]]
    names = {source: rename.get(source, source) for source in stored_names}
    if rename.keys() - names.keys() or len(set(names.values())) < len(names):
        raise UsageError(
            f"edit source: the sources of {address} are {', '.join(stored_names)}. Give each of"
            f" them at most one name of its own (--as SOURCE=NAME), got {dict(rename)}."
        )
    if invalid := [to for to in rename.values() if not to.replace("-", "_").isidentifier()]:
        raise UsageError(
            f"edit source: --as {invalid[0]!r}: a source's name must be made of letters, digits, -"
            " and _. Exports name files after it."
        )
    names = {source: to for source, to in names.items() if weights.get(to) and to not in own_names}
    if not names:
        raise UsageError(
            f"edit source: no weight names a source that only {address} has. It has"
            f" {', '.join(stored_names)}; --as SOURCE=NAME gives one of them another name."
        )
    numbers = [stored_names.index(source) for source in names]
    parts = np.flatnonzero(np.isin(other.parts.sources, numbers)).tolist()
    if not {other.parts.digests[part] for part in parts}.isdisjoint(plan.parts.digests):
        raise UsageError(
            f"edit source: the plan has rows of {', '.join(names)} of {address} already, and"
            " nothing may come twice. `corpuskit edit stage` raises a weight."
        )
    return names


def _stage(
    plan: MixPlan,
    row: int,
    weights: Mapping[str, int],
    rows: int | None,
    name: str | None,
    max_epochs: Mapping[str, float],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return the fields of an edit that begins a stage; `names` are all sources."""
    total = plan.order.num_rows
    if not 0 <= row <= total:
        raise UsageError(f"edit: the plan has rows 0 to {total}, got {row}.")
    for source in [*weights, *max_epochs]:
        if source not in names:
            raise UsageError(f"edit: the plan has no source {source!r}. It has {', '.join(names)}.")
    for source, cap in max_epochs.items():
        if not 0 < cap <= MAX_EPOCHS:
            raise UsageError(
                f"edit: max_epochs of {source!r} must be above 0 and at most {MAX_EPOCHS:,}."
            )
    if not any(weights.values()) or min(weights.values()) < 0:
        raise UsageError(f"edit: weights must be at least 0, and one above, got {dict(weights)}.")
    length = total - row if rows is None else rows
    if length < 1:
        raise UsageError(
            f"edit: the plan ends at row {total}, so the stage needs a length. Give rows or tokens."
        )
    stage = {
        "name": name or f"edit-{len(plan.edits) + 1}",
        "rows": length,
        "weights": dict(weights),
    }
    return {"stages": [stage], "max_epochs": dict(max_epochs)}


def skip_rows(plan: MixPlan, spans: Sequence[tuple[int, int]], reason: str = "") -> Edit:
    """Return the edit that skips spans [first, end) of the run's rows for good.

    Raises:
        UsageError: a span is empty or not within the run.
    """
    total = plan.order.num_rows
    if not spans:
        raise UsageError("edit: no span is given.")
    for first, end in spans:
        if not 0 <= first < end <= total:
            raise UsageError(
                f"edit: a span to skip must be within the {total} rows of the run and not empty,"
                f" got [{first}, {end})."
            )
    payload = {"spans": [[first, end] for first, end in spans], "reason": reason}
    first = min(first for first, _ in spans)
    return new_edit(plan.edits, plan.base.hash, "skip", first, payload)


def take_down(
    plan: MixPlan,
    row: int,
    documents: Iterable[str | int],
    reason: str = "",
    *,
    ignore_missing: bool = False,
) -> Edit:
    """Return the edit that masks documents from a row of the run on.

    Their tokens are replaced by the pad token, and none of them is a label; rows do not move.

    Args:
        plan: the current plan.
        row: the run's row index from which it applies.
        documents: ids, or keys.
        reason: stored with the edit.
        ignore_missing: leave out documents that no packed row holds, but not all of them.

    Raises:
        UsageError: no packed row holds a document, or there is no such row.
    """
    if not 0 <= row <= plan.order.num_rows:
        raise UsageError(f"edit: the plan has rows 0 to {plan.order.num_rows}, got {row}.")
    provenance = Provenance(plan, DEADLINE_SECONDS)
    names = list(documents)
    if not names:
        raise UsageError("edit: no document is given.")
    keys_of = provenance.lookups.keys_of(name for name in names if isinstance(name, str))
    keys = {name: {name} if isinstance(name, int) else keys_of[name] for name in names}
    spans = provenance.lookups.spans_of(set().union(*keys.values()))
    packed = {key for _, key, *_ in spans}
    missing = [name for name in names if not keys[name] & packed]
    if missing and not (ignore_missing and spans):
        examples = ", ".join(repr(name) for name in missing[:5])
        raise UsageError(
            f"edit: {len(missing)} of {len(names)} documents are in no packed row: {examples}"
            f"{', ...' if len(missing) > 5 else ''}. `corpuskit why` tells where one was dropped;"
            " ignore_missing (--ignore-missing) leaves them out."
        )
    order = [source.name for source in plan.sources]
    sources = np.array([order.index(source) for source, *_ in spans], np.int32)
    sizes = provenance.text_bytes_of(spans, sources)
    columns: tuple[list[Any], ...] = (
        [source for source, *_ in spans],
        [row for _, _, row, _, _ in spans],
        [first for *_, first, _ in spans],
        [count for *_, count in spans],
        sizes,
        [key for _, key, *_ in spans],
    )
    payload = {
        "documents": sorted(str(name) for name in names if keys[name] & packed),
        "not_there": sorted(map(str, missing)),
        "reason": reason,
        "spans": dict(zip(SPAN_COLUMNS, columns, strict=True)),
    }
    return new_edit(plan.edits, plan.base.hash, "takedown", row, payload)
