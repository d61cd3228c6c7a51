"""The pipelines that are compared: several files, or one file with one thing changed at a time."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import TYPE_CHECKING

from corpuskit import yamlreader
from corpuskit.engine.config import dump_value, read_pipeline
from corpuskit.engine.plan import Plan, compile_plan
from corpuskit.errors import ConfigError, UsageError, suggest
from corpuskit.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.engine.config import PipelineFile, Step

NEEDED = ("holdout", "tokenize", "pack", "shuffle", "mix")
"""Stages without which there is nothing to train on, or to judge by."""


def slug(name: str) -> str:
    """Return a name as a folder is called."""
    return re.sub(r"[^\w.=-]+|^\.+$", "_", name)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A pipeline that is compared.

    Attributes:
        name: of its row in tables; unique.
        file: the pipeline, as it would run alone.
    """

    name: str
    file: PipelineFile

    @property
    def slug(self) -> str:
        """The name as a folder is called."""
        return slug(self.name)

    def plan(self, output: str, reuse: Sequence[str]) -> Plan:
        """Compile the pipeline, with a run directory of the study's.

        Args:
            reuse: run directories that it may take from, where they exist; as from its own.

        Raises:
            ConfigError: without the stage that was dropped, the others don't fit together.
        """
        base = self.file.settings
        earlier = [run for run in (base.output, *reuse) if open_store(run).exists("plan.json")]
        settings = base.model_copy(
            update={"output": output, "reuse": (*base.reuse, *earlier), "name": self.slug}
        )
        return compile_plan(dataclasses.replace(self.file, settings=settings))


@dataclasses.dataclass(frozen=True)
class VariantChanges:
    """What `corpuskit ablate` changes of one pipeline, a variant each.

    Attributes:
        vary: `stage.parameter=value,value,...`; a value is YAML.
        drop: labels of stages.
        swap: `source=path` or `source=path,path`.
        is_each_dropped: drop each stage that can be dropped, one at a time.
        is_grid: combine the values of `vary`, instead of one at a time.
        most: variants that these may make, beside those of `is_each_dropped`.
    """

    vary: Sequence[str] = ()
    drop: Sequence[str] = ()
    swap: Sequence[str] = ()
    is_each_dropped: bool = False
    is_grid: bool = False
    most: int = 64

    def __bool__(self) -> bool:
        return bool(self.vary or self.drop or self.swap or self.is_each_dropped)


def read_variants(
    paths: Sequence[str], changes: VariantChanges, overrides: Sequence[str] = ()
) -> list[Variant]:
    """Return the variants; all others are compared with the first.

    Args:
        paths: pipeline files; one if there are `changes`.
        overrides: `a.b=value` for all of them.

    Raises:
        ConfigError: a file is wrong, or a change does not fit it.
        UsageError: there is nothing to compare.
    """
    if changes.is_grid and len(changes.vary) < 2:
        raise UsageError(
            f"--grid: combines the values of several --vary, and there are {len(changes.vary)}. "
            "Give more of them, or leave --grid out."
        )
    if changes and len(paths) > 1:
        raise UsageError(
            f"{len(paths)} pipelines and changes to one of them are given. Give one pipeline with "
            "changes, or pipelines alone."
        )
    if not changes and len(paths) < 2:
        raise UsageError(
            "there is one pipeline and nothing to compare it with. Give another one, or --vary, "
            "--drop-stage, --swap-source or --leave-one-out."
        )
    files = [read_pipeline(path, overrides) for path in paths]
    variants = [Variant(file.settings.name, file) for file in files]
    if changes:
        variants += _changed(paths[0], variants[0], changes, overrides)
    names = [variant.slug for variant in variants]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"two variants are called {name!r}. Give each pipeline a `name` of its own, and "
                "name each change once."
            )
    for variant in variants:
        compile_plan(variant.file)
        if "pack" not in [step.name for step in variant.file.steps]:
            raise UsageError(f"{variant.file.path}: no stage packs tokens. Add `- pack`.")
    return variants


def _changed(
    path: str, baseline: Variant, changes: VariantChanges, overrides: Sequence[str]
) -> list[Variant]:
    values = [_values(text) for text in changes.vary]
    keys = [key for key, _ in values]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UsageError(f"--vary {twice[0]}: is given twice. Give all its values at once.")
    # A key that --set and --vary share has the value of --set in the baseline only.
    overrides = [text for text in overrides if text.partition("=")[0] not in keys]
    varied = [[f"{key}={value}" for value in given] for key, given in values]
    num = (math.prod if changes.is_grid else sum)(map(len, varied))
    num += len(changes.drop) + len(changes.swap)
    if num > changes.most:
        raise UsageError(
            f"{num:,} variants are more than {changes.most}. Vary less, or allow them with "
            f"--max-variants {num}."
        )
    combined = (
        itertools.product(*varied) if changes.is_grid else ((v,) for vs in varied for v in vs)
    )
    variants = [
        Variant(" ".join(settings), read_pipeline(path, [*overrides, *settings]))
        for settings in combined
        if settings
    ]
    file = baseline.file
    variants += [Variant(f"no {label}", _without(file, label)) for label in changes.drop]
    variants += [Variant(swap.partition(",")[0], _swapped(file, swap)) for swap in changes.swap]
    if changes.is_each_dropped:
        for step in file.steps:
            if step.name not in NEEDED and step.label not in changes.drop:
                shorter = _without(file, step.label)
                try:
                    compile_plan(shorter)
                except ConfigError as error:
                    raise ConfigError(
                        step.where,
                        f"{step.label} cannot be dropped: {error.problem}",
                        "Name the stages to drop with --drop-stage.",
                    ) from None
                variants.append(Variant(f"no {step.label}", shorter))
    return variants


def _values(text: str) -> tuple[str, list[str]]:
    """Split `stage.parameter=20,50` into the parameter and its values, as YAML texts."""
    key, equals, values = text.partition("=")
    try:
        parsed = yamlreader.load(f"[{values}]", "value")
    except ConfigError as error:
        raise UsageError(f"--vary {text}: not YAML values: {error.problem}") from None
    if not equals or not key or not parsed:
        raise UsageError(f"--vary {text}: must look like gopher_quality.min_words=20,50,100.")
    return key, [dump_value(value) for value in parsed]


def _without(file: PipelineFile, label: str) -> PipelineFile:
    """Return the pipeline without a stage, and without what `expect` says of it."""
    labels = [step.label for step in file.steps]
    if label not in labels:
        raise UsageError(f"--drop-stage {label}: no such stage here. {suggest(label, labels)}")
    if file.steps[labels.index(label)].name in NEEDED:
        raise UsageError(
            f"--drop-stage {label}: without it there is nothing to train on, or to judge by."
        )
    expect = {key: bounds for key, bounds in file.settings.expect.items() if key != label}
    return dataclasses.replace(
        file,
        steps=tuple(step for step in file.steps if step.label != label),
        settings=file.settings.model_copy(update={"expect": expect}),
    )


def _swapped(file: PipelineFile, swap: str) -> PipelineFile:
    """Return the pipeline with other files of a source."""
    name, equals, paths = swap.partition("=")
    names = [step.label for step in file.sources]
    if not equals or not paths:
        raise UsageError(f"--swap-source {swap}: must look like web=crawl/*.jsonl.zst.")
    if name not in names:
        raise UsageError(f"--swap-source {swap}: no source {name!r}. {suggest(name, names)}")

    def swapped(step: Step) -> Step:
        stage = type(step.stage).model_validate(
            {**step.stage.model_dump(), "paths": paths.split(",")}
        )
        return dataclasses.replace(step, stage=stage) if step.label == name else step

    return dataclasses.replace(file, sources=tuple(map(swapped, file.sources)))
