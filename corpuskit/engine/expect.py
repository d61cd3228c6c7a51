"""`expect` of a pipeline file: bounds on the results of a run (docs/contracts.md).

This module checks the bounds when the plan is made; `contracts` measures them. No bound is part of
a fingerprint.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pyarrow as pa

from corpuskit.engine import registry
from corpuskit.errors import ConfigError, listing, suggest
from corpuskit.stage import GlobalStage, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from corpuskit.engine.config import PipelineFile, Step

KeyPath = tuple[str, ...]

TOKENS = "tokens"
"""Key of the bounds on what packing leaves, beside the labels of stages."""

PACK = "pack"
"""Label of the stage that packs; there is one."""

RULE_BOUNDS = ("max_drop", "max_cut")
BOUNDS = (*RULE_BOUNDS, "max_cut_bytes", "min_keep", "rules")
"""Keys of a stage, and of a source in it; of a rule."""

MAX_LABELS = 64
"""Labels that are counted: each is a column of the unit table, with a number for every unit."""


class Bound(NamedTuple):
    """One number of `expect`.

    Attributes:
        source: that it holds for; empty for all sources together.
        path: keys that lead to it, as in ("rules", "score", "max_drop").
    """

    stage: str
    source: str
    path: KeyPath
    limit: float


def bounds_of(expect: Mapping[str, Any], sources: Sequence[str]) -> list[Bound]:
    """Return all bounds; those of a stage hold for each source that has none of its own there."""
    bounds: list[Bound] = []
    for stage, entry in expect.items():
        by_source = {name: entry[name] for name in sources if name in entry and name not in BOUNDS}
        shared = dict(_numbers({k: v for k, v in entry.items() if k not in by_source}))
        if stage == TOKENS:
            bounds += [Bound(stage, "", path, num_tokens(value)) for path, value in shared.items()]
            shared = {}
        for source in sources:
            numbers = {**shared, **dict(_numbers(by_source.get(source, {})))}
            bounds += [
                Bound(stage, source, path, num_tokens(value) if stage == TOKENS else value)
                for path, value in numbers.items()
            ]
    return bounds


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in values.items():
        inner = _numbers(value) if isinstance(value, dict) else [((), value)]
        yield from (((key, *path), number) for path, number in inner)


def num_tokens(value: Any) -> float:
    """Return a number of tokens, NaN if it is none; YAML takes 1e9 for text, `mix` takes 1.5B."""
    powers = {"K": "e3", "M": "e6", "B": "e9", "T": "e12"}
    text = re.sub(r"[KMBT]$", lambda unit: powers[unit[0]], str(value))
    is_number = re.fullmatch(r"\d{1,20}(\.\d{1,20})?(e\+?\d\d?)?", text)
    return float(text) if is_number else float("nan")


class ExpectCheck:
    """Checks that all names of `expect` exist, and that every bound can fail.

    Args:
        steps: all of them checked.
        locations: `file:line:column` of each key, by its name in the file.

    Raises:
        ConfigError: a bound is wrong.
    """

    def __init__(
        self, steps: Iterable[Step], sources: Sequence[str], locations: Mapping[str, str]
    ) -> None:
        self.steps = {step.label: step for step in steps}
        self.stages = {label: step.stage for label, step in self.steps.items()}
        self.sources, self.locations = sources, locations

    def check(self, expect: Mapping[str, Any]) -> None:
        for label, limits in self._items((), expect, (*self.stages, TOKENS)):
            keys = ("min",) if label == TOKENS else BOUNDS
            for key, value in self._items((label,), limits, (*keys, *self.sources)):
                if key in keys:
                    self._bound((label,), (key,), value)
                    continue
                if label != TOKENS and not self.steps[label].applies.to_source(key):
                    self._refuse((label, key), f"can never fail: {label} does not apply to it.")
                for bound, number in self._items((label, key), value, keys):
                    self._bound((label, key), (bound,), number)

    def _refuse(self, path: KeyPath, problem: str, hint: str = "") -> NoReturn:
        name = ".".join(("expect", *path))
        raise ConfigError(self.locations.get(name, "expect"), f"{name} {problem}", hint)

    def _items(
        self, path: KeyPath, values: Any, names: Collection[str], parameters: Mapping[str, str] = {}
    ) -> Iterable[tuple[str, Any]]:
        """Return keys and values of what must be a mapping from known names."""
        if not isinstance(values, dict):
            self._refuse(path, f"must be a mapping, got {values!r}.")
        for key in values:
            if key not in names:
                is_parameter = f"It is a parameter. The rule is {parameters.get(key)!r}."
                hint = is_parameter if key in parameters else suggest(key, names)
                self._refuse((*path, key), "is no stage, source, bound or rule here.", hint)
        return values.items()

    def _bound(self, owner: KeyPath, path: KeyPath, value: Any) -> None:
        """Check a bound, or those of all rules or labels."""
        stage = self.stages.get(owner[0])
        if path == ("rules",) and stage is not None:
            parameters = {parameter: rule for rule, parameter in stage.bounds.items()}
            for rule, bounds in self._items((*owner, *path), value, stage.rules, parameters):
                for bound, number in self._items((*owner, *path, rule), bounds, RULE_BOUNDS):
                    self._bound(owner, (*path, rule, bound), number)
        elif path == ("min_keep",) and isinstance(value, dict):
            for label, number in value.items():
                self._bound(owner, (*path, label), number)
        elif stage is None and not num_tokens(value) >= 1:
            self._refuse((*owner, *path), f"must be a number of tokens, as in 500M, got {value!r}.")
        elif stage is None and PACK not in self.stages:
            self._refuse((*owner, *path), "can hold for nothing: no stage packs.", "Add `- pack`.")
        elif stage is not None and (problem := _problem(stage, path, value)):
            self._refuse((*owner, *path), problem)


def _problem(stage: Stage, path: KeyPath, value: Any) -> str:
    """Return why a share is wrong or can never fail; "" if it is sound."""
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    vacuous = 0 if path[0] == "min_keep" else 1
    if not is_share or value == vacuous:
        return f"must be a share between 0 and 1, and {vacuous} can never fail; got {value!r}."
    if path[0] == "min_keep" and len(path) > 1:
        labels = stage.values().get("label")
        if labels is None or path[1] not in labels:
            return f"is no label that stays here. {suggest(path[1], labels) if labels else ''}"
        too_many = f"is one of {len(labels)} labels. Up to {MAX_LABELS} are counted: keep fewer."
        return "" if counted_labels(stage) else too_many
    if not stage.rules or getattr(stage, "action", "") == "annotate":
        return "can never fail: the stage drops nothing. Remove it."
    if path[-1] in ("max_cut", "max_cut_bytes") and not _may_cut(stage):
        return "can never fail: the stage cuts nothing out of documents. Remove it."
    parameter = stage.bounds.get(path[1], "") if path[0] == "rules" else ""
    is_off = parameter and getattr(stage, parameter) is None
    if is_off and getattr(stage, "per_language", None) is None:
        return f"can never fail: {parameter} is null. Remove it."
    return ""


def _may_cut(stage: Stage) -> bool:
    from corpuskit.stages.filters._measured import MeasuredFilter

    if isinstance(stage, GlobalStage):
        return getattr(stage, "action", "") == "cut"
    uncut_kinds = ("annotators", "mixing", "sequences")
    kind = registry.kind_of(stage.stage_name())
    return kind not in uncut_kinds and not isinstance(stage, MeasuredFilter)


def counted_labels(stage: Stage) -> frozenset[str]:
    """Return the labels of a stage whose documents are counted; none if there are too many."""
    labels = stage.values().get("label", frozenset())
    return labels if len(labels) <= MAX_LABELS else frozenset()


def _may_meet(first: Step, second: Step) -> bool:
    """Return whether there may be a source to which both stages apply."""
    a, b = first.applies.sources, second.applies.sources
    return a is None or b is None or not set(a).isdisjoint(b)


def absent_origins(file: PipelineFile) -> list[str]:
    """Return a warning for each stage that reads URLs or dates which none of its sources has."""
    return [
        f"{step.label}: it reads the {name} of documents, and none of its sources has one. Set "
        f"{name}_column of a source, or remove this."
        for step in file.steps
        for name in step.stage.origins()
        if not any(name in source.source.origins() for source in file.sources_of(step))
    ]


def plan_warnings(steps: Sequence[Step]) -> list[str]:
    """Return the warnings of stages about their parameters and files; it may read files."""
    return [f"{step.label}: {text}" for step in steps for text in step.stage.warnings()]


def english_defaults(steps: Sequence[Step]) -> list[str]:
    """Return a warning for each stage that would treat other languages as English."""
    from corpuskit.stages.filters._languages import LanguageFilter

    warnings: list[str] = []
    by_label = {step.label: step for step in steps}
    for step in steps:
        label, stage = step.label, step.stage
        if not isinstance(stage, LanguageFilter) or stage.per_language is not None:
            continue
        annotator, _, field = stage.language_column.rpartition(".")
        labelled = by_label.get(annotator)
        languages = labelled.stage.values() if labelled and _may_meet(labelled, step) else {}
        foreign = languages.get(field, frozenset()) - {"en", "eng", "eng_Latn"}
        for condition in step.applies.where:
            if condition.column == stage.language_column:
                foreign = frozenset(v for v in foreign if condition.holds(pa.array([v])).all())
        default = type(stage).model_fields.get("stop_words")
        problem = ""
        if stage.words == "spacy" and stage.language == "en":
            problem = "words are split by English rules"
        is_default = default and getattr(stage, "stop_words", None) == default.default
        if is_default and getattr(stage, "min_stop_words", None):
            problem = "the stop words are English"
        if foreign and problem:
            names = f"{stage.language_column} may be {listing(foreign)}"
            warnings.append(f"{label}: {problem}, but {names}. Set per_language, or keep English.")
    return warnings
