"""What a pipeline file may say besides its sources and stages: typed, bounded, frozen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, field_validator

from corpuskit.paths import PathText
from corpuskit.stage import Parameters

if TYPE_CHECKING:
    from collections.abc import Iterable


class Slurm(Parameters):
    """How to ask Slurm for slots to work in; what is absent is left to the cluster's defaults."""

    slots: int = Field(4, ge=1, le=100_000)
    """Slots that work at the same time: elements of the job array of a phase."""
    partition: str | None = None
    """Partition to submit to."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    time: str | None = Field(None, pattern=r"^[0-9:-]+$")
    """Time limit of a slot, as Slurm writes it; a slot that reaches it is requeued."""
    mem: str | None = Field(None, pattern=r"^[0-9]+[KMGT]?$")
    """Memory of a slot, as Slurm writes it (`32G`)."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of a slot; as many as it has workers when absent."""
    constraint: str | None = None
    """Features that nodes must have."""
    flags: tuple[str, ...] = ()
    """More options for sbatch, as they are (`--exclusive`); not `--array`, not `--dependency`."""
    grace_seconds: int = Field(120, ge=20, le=3600)
    """How long before its time limit a slot is warned, so that it hands over."""

    @field_validator("flags")
    @classmethod
    def _check_flags(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse what would undo the order of the phases."""
        for flag in flags:
            if re.match(r"--(array|dependency)\b|-[ad]", flag):
                raise ValueError(f"must not hold {flag!r}: arrays and their order are corpuskit's")
        return flags


class Ray(Parameters):
    """Which Ray cluster to use, and how much of it."""

    address: str | None = None
    """Address (`auto`, `ray://host:10001`); RAY_ADDRESS, or a Ray on this machine, when absent."""
    cpus_per_task: float = Field(1.0, gt=0)
    """CPUs that one task reserves."""
    memory: int | None = Field(None, ge=1)
    """Bytes of memory that one task reserves."""


class Executor(Parameters):
    """Where tasks run; nothing here changes an output byte."""

    kind: Literal["local", "slurm", "ray"] = "local"
    """Which launcher runs the tasks."""
    workers: int | None = Field(None, ge=0, le=1024)
    """Worker processes on this machine, or in a Slurm slot; with 0 tasks run in the process of
    `corpuskit run`, which a crash of a task then ends. When absent: 2, or 0 on this machine if the
    inputs are smaller than 32 MB."""
    tasks: int | None = Field(None, ge=1)
    """Tasks per phase; the planner chooses when absent."""
    retries: int = Field(1, ge=0, le=10)
    """How often a task is tried again after an unexpected failure."""
    slurm: Slurm = Slurm()
    """Used by `kind: slurm`."""
    ray: Ray = Ray()
    """Used by `kind: ray`."""

    @property
    def processes(self) -> int:
        """How many processes run tasks, in a slot or on this machine."""
        return 2 if self.workers is None else max(self.workers, 1)


class Ledger(Parameters):
    """What the ledger keeps besides its rows."""

    keep_text: bool = False
    """Keep the text of everything that left, not only of a small sample."""


WebAddress = Annotated[str, Field(pattern=r"^https?://[^\s<>]+$")]
LanguageCode = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{1,8})*$")]
Tag = Annotated[str, Field(min_length=1, max_length=60)]


class SourceCard(Parameters):
    """What the dataset card says about a source; plain text, not Markdown."""

    license: str | None = Field(None, min_length=1)
    """Licence of its documents: an identifier as in CC-BY-4.0, or a few words."""
    origin: str | None = Field(None, min_length=1)
    """Where the documents come from: who wrote them, who gathered them, when."""
    url: WebAddress | None = None
    """Where they can be had."""
    description: str | None = Field(None, min_length=1)
    """What they are."""


class Card(Parameters):
    """What the dataset card says that no run can know; plain text, not Markdown."""

    pretty_name: str | None = Field(None, min_length=1)
    """Title of the dataset; the name of the run when absent."""
    license: str | None = Field(None, min_length=1)
    """Licence of the dataset as a whole: an identifier as in CC-BY-4.0, or a few words."""
    license_link: WebAddress | None = None
    """Where that licence can be read, if it is none of the known ones."""
    description: str | None = Field(None, min_length=1)
    """What the dataset is, and what it is for."""
    languages: tuple[LanguageCode, ...] = ()
    """ISO 639 codes, as in [en, de]; those that a stage keeps when absent."""
    homepage: WebAddress | None = None
    """Where to read more."""
    citation: str | None = Field(None, min_length=1)
    """How to cite it, as BibTeX or as text."""
    tags: tuple[Tag, ...] = ()
    """More tags for search."""
    limits: tuple[str, ...] = ()
    """Known limits, besides those that the card finds in the plan."""
    sources: dict[str, SourceCard] = Field({})
    """Source -> what is known of it."""


class PipelineSettings(Parameters):
    """A pipeline file, without its sources and stages."""

    name: str = Field("", pattern=r"^[\w.-]*$")
    """Name of the run; the file's stem when absent."""
    output: PathText = Field(pattern=r"^[^\x00]+$")
    """The run directory."""
    reuse: tuple[PathText, ...] = ()
    """Other run directories: what they computed and this run needs is linked or copied from there,
    compared with its digests."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of everything random: samples, shuffle, mixture."""
    documents: bool | None = None
    """Write `documents/`; by default when the input is below 100 GB."""
    max_document_bytes: int = Field(16 << 20, ge=1, le=1 << 30)
    """Longer documents go to the ledger, in bytes of UTF-8."""
    cell_bytes: int = Field(64 << 20, ge=1024)
    """Text per cell: the unit of work, of parts and of packing windows; changes output files."""
    task_memory_bytes: int = Field(1 << 30, ge=1 << 20)
    """Memory that one task of a global stage may plan with."""
    shuffle_files: Literal["keep", "delete"] = "keep"
    """Keep what one pass of a stage writes for the next, or delete it as soon as it was read: less
    disk, but when inputs or parameters change, such a stage runs again as a whole, not only its new
    units. Results are the same."""
    executor: Executor = Executor()
    """Where tasks run."""
    measure_rules: bool = True
    """Have every rule measure every document, for the distributions of the report. Off saves about
    a quarter of the time of filters; decisions are the same, and nothing is made again."""
    ledger: Ledger = Ledger()
    """What the ledger keeps."""
    expect: dict[str, Any] = Field({})
    """What stages may drop and cut, and what must come out; checked after each phase. Nothing is
    made again when it changes."""
    card: Card = Card()
    """What the dataset card says; nothing is made again when it changes."""


def keys_at(model: type[BaseModel], path: Iterable[str | int]) -> list[str]:
    """Return the keys that a mapping inside a model may have; none where they are free.

    Args:
        path: fields, keys of mappings and indices of lists that lead to it.
    """
    kind: Any = model
    for part in path:
        inner = _model_in(kind)
        field = inner.model_fields.get(str(part)) if inner else None
        if inner and not field:
            return []
        kind = field.annotation if field else (get_args(kind) or (None,))[-1]
    inner_model = _model_in(kind)
    return list(inner_model.model_fields) if inner_model else []


def _model_in(kind: Any) -> type[BaseModel] | None:
    """Return the model that an annotation names, alone or beside None."""
    for candidate in (kind, *(get_args(kind) if type(None) in get_args(kind) else ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
