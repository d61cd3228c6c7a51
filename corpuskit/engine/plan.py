"""Steps become phases: streaming stages are fused, global stages expand into their passes.

A plan is a function of the pipeline file alone. A run finds which input files there are, how they
are cut, and what can be reused. Workers rebuild the plan from `plan.json`. Whatever can be known to
be wrong is refused before a plan is made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from corpuskit.engine import registry
from corpuskit.engine.applies import EVERYWHERE, WHERE, Applies
from corpuskit.engine.config import AS, PipelineFile, Step, read_pipeline
from corpuskit.engine.expect import ExpectCheck
from corpuskit.engine.fingerprint import file_digest, library_version
from corpuskit.engine.settings import PipelineSettings
from corpuskit.errors import ConfigError, DataError, UsageError, describe, suggest
from corpuskit.formats.batch import REQUIRED, document_schema
from corpuskit.stage import CellStage, GlobalStage, Known, Pass, Stage, StreamingStage
from corpuskit.storage import hub, is_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from corpuskit.stage import Source


PLAN = "plan.json"
DOCUMENTS_BELOW_BYTES = 100_000_000_000
"""`documents/` is written by default below this size of the input."""

IN_PROCESS_BELOW_BYTES = 32 << 20
"""Smaller inputs are processed by the command itself, unless the file sets the workers: 32 MB of
text take about 4 CPU seconds through usual filters, and two workers take 2 to start."""


_INTERNAL = ("work/", "ledger/", "profile/", "measures/", "ids/")
"""Folders that hold no documents for users."""


@dataclasses.dataclass(frozen=True)
class Phase:
    """N independent units of work between two barriers.

    Attributes:
        index: position in the plan.
        name: of its manifests, ledger parts and work folder.
        labels: the steps it runs: fused streaming stages, or the one global stage.
        pass_name: of a global stage; empty for a streaming phase. The first pass of the first
            stage runs while the input is read (`refers`).
        base: the phase whose parts are the cells; None = the input files.
        role: of those parts.
        sidecars: phases whose sidecars apply to those parts, oldest first.
        earlier: earlier passes of the same global stage.
        waits: all phases whose seals decide what this one writes.
        folder: where a streaming phase puts document parts.
        owns: what only this phase writes; the rest there is deleted when it is sealed.
        columns: annotation columns of the documents it writes.
    """

    index: int
    name: str
    labels: tuple[str, ...]
    pass_name: str
    base: int | None
    role: str
    sidecars: tuple[int, ...]
    earlier: tuple[int, ...]
    waits: tuple[int, ...]
    folder: str
    owns: tuple[str, ...]
    columns: Mapping[str, pa.DataType]

    @property
    def is_stream(self) -> bool:
        """Whether the phase reads documents one by one and writes them, or packs them."""
        return not self.pass_name or self.refers

    @property
    def is_read_by_users(self) -> bool:
        """Whether the documents that it writes are results for users, all with the same columns."""
        return any(not folder.startswith(_INTERNAL) for folder in self.owns)

    @property
    def refers(self) -> bool:
        """Whether its document parts lack most texts, which are read from the input files again."""
        return bool(self.pass_name) and self.base is None


@dataclasses.dataclass(frozen=True)
class Plan:
    """A compiled pipeline.

    Attributes:
        given: what each stage provides for later ones (`tokenizer`, `packing`), as JSON values.
        until: the last stage that runs; None = the whole pipeline.
    """

    file: PipelineFile
    phases: tuple[Phase, ...]
    given: Mapping[str, Mapping[str, Any]]
    until: str | None = None

    @property
    def settings(self) -> PipelineSettings:
        return self.file.settings

    def step(self, label: str) -> Step:
        return next(step for step in self.file.steps if step.label == label)

    def source(self, label: str) -> Source:
        return next(step.source for step in self.file.sources if step.label == label)

    def current_pass(self, phase: Phase) -> Pass:
        """Return the pass that a phase of a global stage runs."""
        passes = self._passes[phase.labels[0]]
        return next(candidate for candidate in passes if candidate.name == phase.pass_name)

    @functools.cached_property
    def _passes(self) -> Mapping[str, Sequence[Pass]]:
        """The passes of each global stage; each barrier asks for those of all later phases."""
        steps = self.file.steps
        return {s.label: s.stage.passes() for s in steps if isinstance(s.stage, GlobalStage)}

    def given_to(self, phase: Phase) -> dict[str, Any]:
        """Return what the stages up to a phase provide; a pass at the end gets everything."""
        labels = [step.label for step in self.file.steps]
        at_end = bool(phase.pass_name) and self.current_pass(phase).at_end
        last = len(labels) if at_end else max(map(labels.index, phase.labels), default=-1) + 1
        return {k: v for label in labels[:last] for k, v in self.given.get(label, {}).items()}

    @functools.cached_property
    def declared(self) -> Mapping[str, pa.DataType]:
        """The columns that sources declare; documents of other sources have null there.

        Those of a source are in the order of their names: a worker's plan has lost any other.
        """
        return {k: v for s in self.file.sources for k, v in sorted(s.source.declared().items())}

    def schema(self, phase: Phase, source: str | None = None) -> pa.Schema:
        """Return the schema of the documents that a streaming phase writes.

        Args:
            source: of these documents. Shards that only later phases read lack the columns that
                stages add to other sources, so that such a stage changes nothing here.
        """
        only = None if source is None or phase.is_read_by_users else (source,)
        return document_schema(self.declared, _columns_of(self, phase, only))

    def columns(self, phase: Phase) -> Mapping[str, pa.DataType]:
        """Return the annotation columns that a phase may read or write."""
        return _columns_of(self, phase, self.applies(phase).sources)

    def applies(self, phase: Phase) -> Applies:
        """Return where the global stage of a phase applies; a streaming phase has all sources."""
        return EVERYWHERE if phase.is_stream else self.step(phase.labels[0]).applies

    def steps_of(self, phase: Phase, source: str) -> list[Step]:
        """Return the steps of a phase that apply to a source."""
        steps = map(self.step, phase.labels)
        return [step for step in steps if not source or step.applies.to_source(source)]

    def with_documents(self, is_wanted: bool) -> Plan:
        """Return the plan that does, or does not, write `documents/`."""
        plan = self.with_settings(documents=is_wanted)
        return dataclasses.replace(plan, phases=_phases(plan.file, self.until))

    def with_workers(self, num: int) -> Plan:
        """Return the plan with another number of local workers; no phase changes."""
        executor = self.settings.executor.model_copy(update={"workers": num})
        return self.with_settings(executor=executor)

    def with_settings(self, **changes: Any) -> Plan:
        """Return the plan with other settings, and the same phases."""
        settings = self.settings.model_copy(update=changes)
        return dataclasses.replace(self, file=dataclasses.replace(self.file, settings=settings))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": 1,
            "path": self.file.path,
            "settings": self.settings.model_dump(mode="json"),
            "sources": [_dump(step) for step in self.file.sources],
            "steps": [_dump(step) for step in self.file.steps],
            "given": dict(self.given),
            "until": self.until,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], location: str) -> Plan:
        """Rebuild a plan; nothing in it is executed but stages found by name.

        Raises:
            DataError: it was written by another version.
        """
        if content.get("format") != 1:
            raise DataError(f"{location}: not a plan of format 1.")
        file = PipelineFile(
            content["path"],
            PipelineSettings.model_validate_json(json.dumps(content["settings"])),
            tuple(_load(entry) for entry in content["sources"]),
            tuple(_load(entry) for entry in content["steps"]),
        )
        until = content["until"]
        return cls(file, _phases(file, until), content["given"], until)


def _columns_of(
    plan: Plan, phase: Phase, sources: tuple[str, ...] | None
) -> Mapping[str, pa.DataType]:
    """Return the annotation columns that documents of some sources have, of all if it is None."""
    return {
        name: kind
        for name, kind in phase.columns.items()
        if sources is None or any(map(plan.step(name.partition(".")[0]).applies.to_source, sources))
    }


def read_plan(path: str | Path, overrides: Sequence[str] = (), *, until: str | None = None) -> Plan:
    """Read a pipeline file and compile it; nothing is run and no input is opened.

    Args:
        until: the last stage that runs; a phase that would go on after it ends there.

    Raises:
        ConfigError: the file, a stage, a parameter or the order of stages is wrong.
    """
    return compile_plan(read_pipeline(path, overrides), until)


def compile_plan(file: PipelineFile, until: str | None = None) -> Plan:
    """Compile a pipeline file that was read; see `read_plan`.

    Raises:
        ConfigError: a stage or the order of stages is wrong.
    """
    file = dataclasses.replace(file, steps=_with_implied(file.steps))
    labels = [step.label for step in file.steps]
    if until is not None and until not in labels:
        raise UsageError(f"--until {until}: no such stage here. {suggest(until, labels)}")
    check_environment(file)
    check_stages(file)
    names = tuple(step.label for step in file.sources)
    ExpectCheck(file.steps, names, file.locations).check(file.settings.expect)
    phases = _phases(file, until)
    provided: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {}
    for step in file.steps:
        with located(step):
            provided[step.label] = dict(step.stage.provides(facts))
            facts.update(provided[step.label])
    return Plan(file, phases, provided, until)


def _with_implied(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Append what `pack` cannot do without: an order of rows, and the loader's plan."""
    names = [step.name for step in steps]
    if "pack" not in names:
        return steps
    location = steps[names.index("pack")].where
    added: list[Step] = []
    if "shuffle" not in names:
        stage = registry.load("shuffle").model_validate({"order": "as_read"})
        added.append(Step("shuffle", "shuffle", stage, location))
    if "mix" not in names:
        added.append(Step("mix", "mix", registry.load("mix").model_validate({}), location))
    return (*steps, *added)


class _Builder:
    """Collects phases while the steps go by.

    Args:
        until: a streaming stage that ends its phase. That phase is named after it, so it does not
            replace the phase of the whole plan, nor is it replaced by that.
    """

    def __init__(self, file: PipelineFile, until: str | None) -> None:
        self.file, self.until = file, until
        self.phases: list[Phase] = []
        self.group: list[Step] = []
        self.base: int | None = None
        self.role = "documents"
        self.sidecars: list[int] = []
        self.columns: dict[str, pa.DataType] = {}

    def add(
        self, name: str, labels: tuple[str, ...], *, pass_name: str = "",
        earlier: tuple[int, ...] = (), owns: tuple[str, ...] = (), folder: str = "",
        waits: tuple[int, ...] = (),
    ) -> int:  # fmt: skip
        """Append a phase that reads the current documents; return its index."""
        index = len(self.phases)
        base = () if self.base is None else (self.base,)
        depends = tuple(sorted({*base, *self.sidecars, *earlier, *waits}))
        folders = (f"work/{name}/", f"ledger/{name}-part-", f"profile/{name}-part-", *owns)
        phase = Phase(
            index, name, labels, pass_name, self.base, self.role, tuple(self.sidecars),
            earlier, depends, folder or f"work/{name}", folders, dict(self.columns),
        )  # fmt: skip
        self.phases.append(phase)
        return index

    def flush(self, *, name: str = "", folder: str = "") -> None:
        """End the current streaming phase; with a `name`, even if no stage is in it.

        A phase is called after its last stage, so that appending stages changes no earlier name.
        """
        if not (self.group or name or self.base is None):
            return
        labels = tuple(step.label for step in self.group)
        stages = {s.label: s.stage for s in self.group if isinstance(s.stage, StreamingStage)}
        owns = [
            f"{diverted}/"
            for diverted in sorted({stage.diverts for stage in stages.values()} - {""})
        ]
        owns += [f"measures/{label}/part-" for label in stages]
        owns += ["ids/"] if self.base is None else []
        owns += [f"{folder}/"] if folder else []
        is_packed = bool(self.group) and isinstance(self.group[-1].stage, CellStage)
        # A stage of some sources that is added or removed must not rename the phase of all.
        shared = [step.label for step in self.group if step.applies.sources is None]
        stem = labels[-1] if labels else name or "read"
        if shared and stem != self.until:
            stem = shared[-1]
        self.base = self.add(stem, labels, owns=tuple(owns), folder=folder)
        self.role = "packed" if is_packed else "documents"
        self.group, self.sidecars = [], []

    def append(self, step: Step) -> None:
        """Append a streaming stage, or the cell stage that ends the streaming phase."""
        if self.role != "documents":
            raise ConfigError(
                step.where,
                f"{step.label} works on documents, but an earlier stage has packed them.",
                "Move it before pack.",
            )
        self.group.append(step)
        self.columns |= {f"{step.label}.{f}": kind for f, kind in step.stage.adds().items()}
        is_end = step.materialize or step.label == self.until
        if is_end or isinstance(step.stage, CellStage):
            self.flush()

    def expand(self, step: Step, stage: GlobalStage) -> None:
        if stage.reads == "documents" and not self._reads_input(step, stage):
            self.flush()
        if self.role != stage.reads:
            position = "after pack" if stage.reads == "packed" else "before pack"
            raise ConfigError(step.where, f"{step.label} must be {position}.")
        earlier: tuple[int, ...] = ()
        for stage_pass in stage.passes():
            waits = tuple(range(len(self.phases))) if stage_pass.at_end else ()
            name = f"{step.label}.{stage_pass.name}"
            owns = tuple(folder.replace("{label}", step.label) for folder in stage_pass.owns)
            if self.base is None:
                owns = (*owns, "ids/")
            index = self.add(
                name,
                (step.label,),
                pass_name=stage_pass.name,
                earlier=earlier,
                owns=owns,
                waits=waits,
            )
            earlier = (*earlier, index)
            if self.base is None:
                self.base = index
        for field, kind in stage.adds().items():
            self.columns[f"{step.label}.{field}"] = kind
        if stage.reads == "documents":
            self.sidecars.append(earlier[-1])
        elif stage.reads == "packed":
            self.base, self.role, self.sidecars = earlier[-1], "tokens", []

    def _reads_input(self, step: Step, stage: GlobalStage) -> bool:
        """Return whether the first pass of a stage runs while the input is read.

        It does if no stage precedes it and texts are cheap to read again: a GB of Parquet on disk
        takes 2 to 3 CPU seconds to read, and 6 to write as a shard. An edit of the stage then
        reads the input again, as it would read the shards.
        """
        is_first = self.base is None and not self.group and not step.applies.is_limited
        return (
            is_first
            and stage.passes()[0].is_cell_alone
            and all(source.source.for_texts() is not None for source in self.file.sources)
        )

    def is_written(self) -> bool:
        """Whether the documents lie there as they are, without pending stages or masks."""
        pending = self.group or self.sidecars or self.base is None
        return not pending and self.phases[self.base or 0].is_stream

    def write_documents(self) -> None:
        """Have the documents that survive written to `documents/`."""
        if self.is_written():
            last = self.phases[-1]
            owns = (*last.owns, "documents/")
            self.phases[-1] = dataclasses.replace(last, folder="documents", owns=owns)
        else:
            self.flush(name="documents", folder="documents")


def _phases(file: PipelineFile, until: str | None) -> tuple[Phase, ...]:
    build = _Builder(file, until)
    at_end: list[tuple[Step, GlobalStage]] = []
    is_text = True
    for step in file.steps:
        if is_text and step.name == "tokenize":
            is_text = False
            if file.settings.documents is not False:
                build.write_documents()
        if not isinstance(step.stage, GlobalStage):
            build.append(step)
        elif step.stage.reads == "tokens":
            at_end.append((step, step.stage))
        else:
            build.expand(step, step.stage)
    if is_text:
        build.write_documents()
    elif build.role == "documents":
        last = next(step for step in file.steps if step.name == "tokenize")
        raise ConfigError(last.where, "tokenize must be followed by pack.", "Add `- pack`.")
    for step, stage in at_end:
        if build.role != "tokens":
            raise ConfigError(step.where, f"{step.label} needs packed rows.", "Add `- pack`.")
        build.expand(step, stage)
    _check_ownership(file, build.phases)
    stop = max((p.index for p in build.phases if until in p.labels), default=len(build.phases))
    return tuple(build.phases[: stop + 1])


def _check_ownership(file: PipelineFile, phases: Sequence[Phase]) -> None:
    """Check that no two phases, and no two stages of one, write to the same folder."""
    owner: dict[str, str] = {}
    for phase in phases:
        for prefix in phase.owns:
            if prefix in owner:
                step = next(s for s in file.steps if s.label == phase.labels[-1])
                raise ConfigError(
                    step.where,
                    f"{step.label} writes to {prefix}, and so does {owner[prefix]}.",
                    "Keep one of them.",
                )
            owner[prefix] = phase.name
    folders: set[str] = set()
    for step in file.steps:
        folder = step.stage.diverts if isinstance(step.stage, StreamingStage) else ""
        if folder in folders:
            raise ConfigError(
                step.where, f"{step.label} is the second stage that writes {folder}/."
            )
        folders |= {folder} - {""}


def _dump(step: Step) -> dict[str, Any]:
    return {
        "label": step.label,
        "name": step.name,
        "params": step.stage.model_dump(mode="json"),
        "where": step.where,
        "materialize": step.materialize,
        "applies": step.applies.to_json(),
    }


def _load(entry: Mapping[str, Any]) -> Step:
    stage = registry.load(entry["name"]).model_validate_json(json.dumps(entry["params"]))
    applies = Applies.parse(entry.get("applies", {}))
    return Step(entry["label"], entry["name"], stage, entry["where"], entry["materialize"], applies)


def check_stages(file: PipelineFile) -> None:
    """Ask every stage whether it can work on what the stages before it leave.

    Raises:
        ConfigError: it cannot, or a column that it needs does not exist by then.
    """
    columns: dict[str, pa.DataType] = {**REQUIRED, "extra": pa.string(), **_declared(file)}
    names = tuple(step.label for step in file.sources)
    values = {"source": frozenset(names)}
    added: dict[str, Step] = {}
    for step in file.sources:
        with located(step):
            _check_integers(step)
            _check_libraries(step)
            step.stage.check(Known(names, columns, values))
    for step in file.steps:
        for column in step.stage.needs():
            if column not in columns:
                raise ConfigError(
                    step.where_of(column),
                    f"{step.label} needs the column {column!r}, which "
                    "no earlier stage adds and no source declares.",
                    f"{suggest(column, columns)} A column of the input is declared in its source, "
                    f"as in columns: {{{column}: string}}.",
                )
        check_applies(step, Known(names, columns, values), added)
        _check_declared(file, step)
        number = [other.label for other in file.steps if other.name == step.name].index(step.label)
        expected = f"{step.name}_{number + 1}" if number else step.name
        with located(step):
            if step.label != expected and type(step.stage).provides is not Stage.provides:
                raise UsageError(f"{AS}: later stages look for what {expected} adds. Leave it out.")
            _check_integers(step)
            _check_libraries(step)
            _check_reference_runs(step.stage.reference_runs(), file.settings.output)
            excluded = tuple(name for name in names if not step.applies.to_source(name))
            origins = frozenset(o for s in file.sources_of(step) for o in s.source.origins())
            step.stage.check(Known(names, columns, values, excluded, origins))
            for path in step.stage.files():
                file_digest(path)
        columns |= {f"{step.label}.{field}": kind for field, kind in step.stage.adds().items()}
        added |= {f"{step.label}.{field}": step for field in step.stage.adds()}
        values |= {f"{step.label}.{field}": all_ for field, all_ in step.stage.values().items()}


def _check_declared(file: PipelineFile, step: Step) -> None:
    """Check that of the sources of a step one declares each declared column that it reads.

    Raises:
        ConfigError: only others do, so it would see nothing but null.
    """
    declared, own = (
        {column for source in sources for column in source.source.declared()}
        for sources in (file.sources, file.sources_of(step))
    )
    for column in (*step.stage.needs(), *step.applies.columns):
        if column in declared - own:
            raise ConfigError(
                step.where_of(column),
                f"{step.label} reads the column {column!r}, which none of its sources declares.",
                f"Declare it in one of them, as in columns: {{{column}: string}}, or remove this.",
            )


def check_applies(step: Step, known: Known, added: Mapping[str, Step]) -> None:
    """Check that a stage may have its limits, and that its documents have the columns it reads.

    Args:
        known: sources, and columns and their values before the stage.
        added: column -> the stage that adds it.

    Raises:
        ConfigError: it cannot, or some of its documents lack a column.
    """
    stage, applies = step.stage, step.applies
    with located(step):
        for name in applies.sources or ():
            known.check_source("sources", name)
        for condition in applies.where:
            column = condition.column
            key = f"{WHERE}.{column}"
            if column == "source":
                raise UsageError(f"{key}: is what `sources` chooses. Write sources: [...].")
            if column not in known.columns:
                hint = suggest(column, known.columns)
                raise UsageError(
                    f"{key}: no earlier stage adds this column, and no source declares it. {hint}"
                )
            condition.check(known.columns[column], known.values.get(column))
        if applies.is_limited and (reason := _unlimited(step)):
            raise UsageError(f"{next(iter(applies.to_json()))}: {reason}")
        for column in (*stage.needs(), *applies.columns):
            adder = added.get(column)
            missing = [
                name
                for name in known.sources
                if adder and applies.to_source(name) and not adder.applies.to_source(name)
            ]
            if adder and missing:
                key = f"{WHERE}.{column}" if column in applies.columns else column
                raise UsageError(
                    f"{key}: {adder.label} adds it to {', '.join(adder.applies.sources or ())} "
                    f"only, so documents of {', '.join(missing)} lack it. Add "
                    f"{', '.join(missing)} to the sources of {adder.label}, or set the sources of "
                    f"{step.label}."
                )


def _unlimited(step: Step) -> str:
    """Return why a stage must apply to all documents; empty if it need not."""
    if isinstance(step.stage, CellStage) or (
        isinstance(step.stage, GlobalStage) and step.stage.reads != "documents"
    ):
        return f"{step.name} makes one stream of all documents. Apply it to all."
    if type(step.stage).provides is not Stage.provides:
        return "packing needs what it adds for every document. Apply it to all."
    return ""


@contextlib.contextmanager
def located(
    step: Step, kinds: type[Exception] | tuple[type[Exception], ...] = (UsageError, DataError)
) -> Iterator[None]:
    """Name the line of the pipeline file in an error of a step.

    Raises:
        ConfigError: instead of errors of these kinds.
    """
    try:
        yield
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(step.where, f"{step.label}: {describe(error)}") from None
    except kinds as error:
        message = str(error)
        location = step.where_of(message)
        text = message if message.startswith(step.name) else f"{step.label}: {message}"
        raise ConfigError(location, text) from None


def check_environment(file: PipelineFile) -> None:
    """Check that the output can be written, and that the executor is there.

    Raises:
        ConfigError: it cannot, or is not.
    """
    output = file.settings.output
    if not is_remote(output) and (problem := _output_problem(output.removeprefix("file://"))):
        location = file.locations.get("output", file.path)
        raise ConfigError(location, f"output: {problem}", "Set another one.")
    kind = file.settings.executor.kind
    missing = hint = ""
    if kind == "ray" and importlib.util.find_spec("ray") is None:
        missing, hint = "ray", "Run pip install 'ray[client]'"
    if kind == "slurm" and shutil.which("sbatch") is None:
        missing, hint = "sbatch", "Work on a login node of Slurm"
    if missing:
        location = file.locations.get("executor.kind", file.path)
        problem = f"executor.kind: {missing} is not installed here."
        raise ConfigError(location, problem, f"{hint}, or set executor.kind to local.")


def _output_problem(output: str) -> str:
    """Return why nothing can be written there; what does not exist yet will be made."""
    if output.startswith(hub.SCHEME):
        return f"{hub.NO_RUNS}."
    folder = os.path.abspath(output)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        return f"{folder} is not a folder."
    return "" if os.access(folder, os.W_OK | os.X_OK) else f"{folder} may not be written to."


def _check_integers(step: Step) -> None:
    """Check that integers without a bound of their own fit into the 64 bits that kernels have."""
    for name, field in type(step.stage).model_fields.items():
        value = getattr(step.stage, name)
        is_bounded = any(hasattr(bound, "le") or hasattr(bound, "lt") for bound in field.metadata)
        if isinstance(value, int) and abs(value) >= 1 << 63 and not is_bounded:
            raise UsageError(f"{name}: {value} is more than {(1 << 63) - 1}. Set a smaller number.")


def _check_libraries(step: Step) -> None:
    """Check that the distributions are installed that a stage cannot do without."""
    for name in step.stage.libraries():
        if library_version(name) is None:
            raise UsageError(f"{name} is not installed here. Run: pip install {name}")


def _check_reference_runs(runs: tuple[str, ...], output: str) -> None:
    """Check that a stage does not read the run that it is part of: it would find itself there."""
    for directory in runs:
        if os.path.realpath(directory) == os.path.realpath(output):
            raise UsageError(f"{directory} is the output of this run. Write to another directory.")


def _declared(file: PipelineFile) -> Mapping[str, pa.DataType]:
    types: dict[str, pa.DataType] = {}
    for step in file.sources:
        for name, kind in step.source.declared().items():
            if types.setdefault(name, kind) != kind:
                raise ConfigError(
                    step.locations.get(f"columns.{name}", step.where),
                    f"column {name!r} is {kind} here but {types[name]} in another source.",
                    "Declare one type.",
                )
    return types
