"""What differs between the plans of two runs, and their funnels beside each other."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from corpuskit.engine.plan import PLAN
from corpuskit.engine.status import accounts, funnel

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.engine.status import Sealed

Name = TypeVar("Name", bound="Hashable")

_SILENT = frozenset({"output", "name", "executor", "documents", "card"})
"""Settings that decide about no document."""

SHOWN_FILES = 5


@dataclasses.dataclass(frozen=True)
class PlanChange:
    """One thing that is not the same in two plans.

    Attributes:
        place: as in `--set`: `gopher_quality.min_words`, `sources.web.paths`, `seed`; of code and
            finished phases what it is about.
        before, after: values as JSON; None = absent.
        label: stage that it is about, or empty.
        kind: `setting`, `source`, `files`, `stage`, `parameter`, `order`, `code` or `libraries`.
    """

    place: str
    before: Any
    after: Any
    label: str
    kind: str

    def words(self) -> str:
        """Return it as a few words."""
        if self.kind == "stage":
            return "added" if self.before is None else "removed"
        if self.kind in ("code", "libraries"):
            return f"other {self.kind}"
        if self.kind == "order":
            return "moved"
        name = self.place.removeprefix(f"{self.label}.")
        return f"{name} {_short(self.before)} -> {_short(self.after)}"


@dataclasses.dataclass(frozen=True)
class SideCount:
    """Documents that came to a stage and left it, and bytes that it saw (None: not counted).

    Attributes:
        sources: source -> (documents in, documents out).
        rules: rule -> source -> documents dropped.
    """

    num_in: int
    num_out: int
    text_bytes: int | None
    sources: dict[str, tuple[int, int]]
    rules: dict[str, dict[str, int]]


@dataclasses.dataclass(frozen=True)
class FunnelPair:
    """A source or a stage in both runs; None where it is not in a plan, or not finished.

    Attributes:
        stage: label of the source or the stage.
        kind: `source`, `filter`, `dedup`, ...
    """

    stage: str
    kind: str
    a: SideCount | None
    b: SideCount | None


@dataclasses.dataclass(frozen=True)
class SourcePair:
    """A source in both runs: documents and bytes read, and documents kept; None = no such source.

    Attributes:
        kept_bytes_a, kept_bytes_b: of the last document shards; None where a later phase masks some
            of them.
    """

    source: str
    read_a: int | None
    read_b: int | None
    read_bytes_a: int | None
    read_bytes_b: int | None
    kept_a: int | None
    kept_b: int | None
    kept_bytes_a: int | None
    kept_bytes_b: int | None


def plan_changes(one: RunDirectory, other: RunDirectory) -> list[PlanChange]:
    """Return what differs: settings, sources and their files, stages, parameters, code."""
    found = list(_settings(one, other))
    found += _sources(one, other)
    found += _stages(one, other)
    codes_a, codes_b = (_code(run) for run in (one, other))
    for name in sorted(codes_a.keys() & codes_b.keys()):
        labels = [step.label for step in other.plan.file.steps if step.name == name]
        if codes_a[name] != codes_b[name]:
            found += [
                PlanChange(label or name, codes_a[name], codes_b[name], label, "code")
                for label in labels or [""]
            ]
    return found


def _code(run: RunDirectory) -> dict[str, str]:
    """Return the digests of the code that a run was planned with."""
    found = json.loads(run.store.read(PLAN))["code"]
    return {str(name): str(digest) for name, digest in found.items()}


def library_changes(
    one: RunDirectory, other: RunDirectory, done_a: Sealed, done_b: Sealed,
    changes: Sequence[PlanChange],
) -> list[PlanChange]:  # fmt: skip
    """Return the reading phase, if its facts differ although nothing that the plans say does.

    What is left are libraries and contents of model files; later phases also hash their inputs.
    """
    kinds = {change.kind for change in changes}
    if kinds & {"setting", "source", "files"} or not (done_a and done_b):
        return []
    (phase_a, seal_a), (phase_b, seal_b) = done_a[0], done_b[0]
    labels = set(phase_a.labels)
    if phase_a.labels != phase_b.labels or labels & {change.label for change in changes}:
        return []
    # Where documents go and which numbers files have is hashed, too, and decides nothing.
    if phase_a.folder != phase_b.folder or one.inputs.facts() != other.inputs.facts():
        return []
    before, after = (seal.fingerprint.partition(".")[0] for seal in (seal_a, seal_b))
    if before == after:
        return []
    return [PlanChange(phase_a.name, before, after, "", "libraries")]


def _settings(one: RunDirectory, other: RunDirectory) -> Iterator[PlanChange]:
    left, right = (
        run.plan.settings.model_dump(mode="json", exclude=set(_SILENT)) for run in (one, other)
    )
    for place, before, after in _differences(left, right):
        yield PlanChange(place, before, after, "", "setting")


def _sources(one: RunDirectory, other: RunDirectory) -> Iterator[PlanChange]:
    steps = [{step.label: step for step in run.plan.file.sources} for run in (one, other)]
    for label in dict.fromkeys([*steps[0], *steps[1]]):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(f"sources.{label}", left, right, "", "source")
            continue
        for place, before, after in _differences(left, right):
            yield PlanChange(f"sources.{label}.{place}", before, after, "", "parameter")
        names = [
            {f.name: (f.size_bytes, f.stamp) for f in run.inputs.files if f.source == label}
            for run in (one, other)
        ]
        files = {
            "removed": sorted(names[0].keys() - names[1].keys()),
            "added": sorted(names[1].keys() - names[0].keys()),
            "changed": sorted(k for k in names[0].keys() & names[1] if names[0][k] != names[1][k]),
        }
        if any(files.values()):
            shown = {kind: _some(these) for kind, these in files.items() if these}
            place = f"sources.{label}: files"
            yield PlanChange(place, len(names[0]), {"files": len(names[1]), **shown}, "", "files")


def _some(names: list[str]) -> dict[str, Any]:
    return {"files": len(names), "names": names[:SHOWN_FILES]}


def _stages(one: RunDirectory, other: RunDirectory) -> Iterator[PlanChange]:
    steps = [{step.label: step for step in run.plan.file.steps} for run in (one, other)]
    both = [label for label in steps[0] if label in steps[1]]
    order = [label for label in steps[1] if label in steps[0]]
    for label in aligned(list(steps[0]), list(steps[1])):
        left, right = (_params(side.get(label)) for side in steps)
        if left is None or right is None:
            yield PlanChange(label, left, right, label, "stage")
            continue
        for place, before, after in _differences(left, right):
            yield PlanChange(f"{label}.{place}", before, after, label, "parameter")
    if both != order:
        yield PlanChange("order of stages", both, order, "", "order")


def _params(step: Step | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {"stage": step.name, **step.stage.model_dump(mode="json")}


def _differences(
    before: dict[str, Any], after: dict[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, before, after) of values that differ, inside of mappings too."""
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name}", old, new


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def aligned(left: list[Name], right: list[Name]) -> list[Name]:
    """Return all names of two lists, each once, in an order that both agree with where they can."""
    merged: list[Name] = []
    for _, begin, end, first, last in difflib.SequenceMatcher(
        None, left, right, autojunk=False
    ).get_opcodes():
        merged += [*left[begin:end], *right[first:last]]
    return list(dict.fromkeys(merged))


def funnels(
    one: RunDirectory, other: RunDirectory, done_a: Sealed, done_b: Sealed, source: str = ""
) -> list[FunnelPair]:
    """Return the sources and stages of both runs with what came in and out, where finished.

    Args:
        source: documents of one source only; how many bytes of it a stage saw is not counted.
    """
    sides = [_side(run, done) for run, done in ((one, done_a), (other, done_b))]
    if source:
        sides = [
            {
                key: _of_source(count, source)
                for key, count in side.items()
                if key[0] != "source" or key[1] == source
            }
            for side in sides
        ]
    keys = aligned(list(sides[0]), list(sides[1]))
    keys.sort(key=lambda key: key[0] != "source")  # stable: a source that only B has comes before
    return [FunnelPair(key[1], key[0], sides[0].get(key), sides[1].get(key)) for key in keys]


def _side(run: RunDirectory, done: Sealed) -> dict[tuple[str, str], SideCount]:
    """Return (kind, label) -> counts, of the sources and the stages that are finished."""
    sizes = _seen(done)
    return {
        (row.kind, row.stage): SideCount(
            row.num_in or 0, row.num_out or 0,
            None if row.is_source else sizes.get(row.stage), row.sources, row.dropped,
        )
        for row in funnel(run, done)
        if row.state == "done"
    }  # fmt: skip


def _of_source(count: SideCount, source: str) -> SideCount:
    """Return what a stage did to the documents of one source."""
    before, after = count.sources.get(source, (0, 0))
    rules = {rule: {source: by[source]} for rule, by in count.rules.items() if source in by}
    return SideCount(before, after, None, {source: (before, after)}, rules)


def _seen(done: Sealed) -> dict[str, int]:
    """Return bytes of text that came to each stage; passes of a global one read them again."""
    found: dict[str, int] = {}
    for phase, seal in done:
        for name, value in seal.timing.items():
            kind, _, label = name.partition("/")
            if kind == "text_bytes" and (label or not phase.is_stream):
                label = label or phase.labels[0]
                found[label] = max(found.get(label, 0), int(value))
    return found


def source_pairs(
    one: RunDirectory, other: RunDirectory, done_a: Sealed, done_b: Sealed, source: str = ""
) -> list[SourcePair]:
    """Return documents and bytes read and kept, source by source, or of one only."""
    sides = [_volumes(run, done) for run, done in ((one, done_a), (other, done_b))]
    nothing = (None, None, None, None)
    rows = []
    for label in dict.fromkeys([*sides[0], *sides[1]]):
        left, right = (side.get(label, nothing) for side in sides)
        pairs = [value for pair in zip(left, right, strict=True) for value in pair]
        rows.append(SourcePair(label, *pairs))
    return [row for row in rows if source in ("", row.source)]


def _volumes(
    run: RunDirectory, done: Sealed
) -> dict[str, tuple[int | None, int | None, int | None, int | None]]:
    from corpuskit.inspect.samples.kept import kept_shards

    shards = kept_shards(run, done)
    sizes: dict[str, int] = {}
    read: dict[str, int] = {}
    for part in shards.parts if shards else ():
        sizes[part.source] = sizes.get(part.source, 0) + part.text_bytes
    is_masked = shards is None or bool(shards.masks or shards.packing)
    for phase, seal in done:
        for name, value in seal.counters.items() if phase.base is None else ():
            if name.startswith("read_bytes/"):
                read[name.partition("/")[2]] = value
    return {
        row.source: (
            row.num_read,
            read.get(row.source),
            row.num_kept,
            None if is_masked else sizes.get(row.source, 0),
        )
        for row in accounts(run, done)
    }
