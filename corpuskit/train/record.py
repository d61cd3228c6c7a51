"""The record of a checkpoint, and the lock and identity of a training's output folder.

The record, `train.json`, has a digest of every file and of itself. The digest is xxh3-128: it finds
accidents of storage and copying, not forgery, and reads 10 GB/s on a core where blake2b reads 0.7,
so checking costs little more than reading.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from corpuskit.errors import CorpuskitError, DataError, UsageError, describe
from corpuskit.storage import LocalStore, digest_content, digest_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

FORMAT = 2
FILE = "train.json"
READERS = 8  # threads of a rank that check files
LOCK_SECONDS = 20.0  # to wait for the lock: ranks that are ending may still be saving
_NAME = re.compile(r"step-(\d{8,})")
_DIGEST_FIELD = b',"digest":"'  # the last field of a record: the digest of the bytes before it

MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

Files = dict[str, tuple[int, str]]
"""Name -> size in bytes, digest."""


class DamagedCheckpointError(DataError):
    """A checkpoint is not what was saved; `problem` is the difference."""

    def __init__(self, folder: Path, problem: str, advice: str) -> None:
        super().__init__(f"{folder}: the checkpoint is damaged: {problem}. {advice}")
        self.problem = problem


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """The content of `train.json`."""

    step: int  # steps done
    shape: dict[str, Any]  # ModelShape
    settings: dict[str, Any]  # TrainSettings
    settings_hash: str
    plan_hash: str  # of the mix plan whose rows were consumed
    loader: dict[str, Any]  # LoaderState
    world_size: int  # ranks that wrote it; any number may read it
    guard: dict[str, Any] | None = None  # state of the SpikeGuard
    run: str = ""  # id of the training that wrote it
    skips: list[dict[str, Any]] = field(default_factory=list)  # of the training so far
    files: Files = field(default_factory=dict)  # all other files of the folder


def step_of(name: str) -> int | None:
    """Return the step in the name of a complete checkpoint; None for other names."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def complete_checkpoints(folder: Path) -> dict[int, Path]:
    """Return the complete checkpoints in a folder by step, ascending; none without the folder."""
    by_step = {step_of(path.name): path for path in folder.glob("step-*")}
    return {step: by_step[step] for step in sorted(step for step in by_step if step is not None)}


def require_checkpoint(folder: Path) -> None:
    """Refuse to branch from a folder that is not a checkpoint.

    Raises:
        UsageError: it is not; says what to name.
    """
    if step_of(folder.name) is None or not folder.is_dir():
        raise UsageError(
            f"branch_from: {folder} is not a checkpoint. Name a folder step-N of the trunk's "
            "OUTPUT/checkpoints."
        )


def folder_name(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"step-{step:08d}"


def forgettable(steps: Iterable[int], settings: TrainSettings) -> set[int]:
    """Return the steps of the checkpoints that no rule keeps and no rollback may need."""
    rules, ordered = settings.checkpoint, sorted(steps)
    every, old = rules.keep_every_steps, ordered[: -rules.keep]
    losses = held_out_losses(Path(settings.output)) if rules.keep_best else {}
    by_loss = sorted((losses[step], step) for step in old if step in losses)
    best = {step for _, step in by_loss[: rules.keep_best]}
    far_enough = [step for step in ordered if step <= ordered[-1] - settings.guard.reach]
    for_rollback = max(far_enough, default=0)
    return {s for s in old if s < for_rollback and s not in best and (not every or s % every)}


def held_out_losses(output: Path) -> dict[int, float]:
    """Return step -> nats per held-out token, of the steps after which there was an evaluation."""
    losses = {}
    path = output / "evaluations.jsonl"
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        fields = json.loads(line)
        sources = [source for source in fields["sources"].values() if source["tokens"]]
        if sources and None not in (source["loss"] for source in sources):
            nats = sum(source["loss"] * source["tokens"] for source in sources)
            losses[fields["step"]] = nats / sum(source["tokens"] for source in sources)
    return losses


def write_record(folder: Path, record: CheckpointRecord) -> None:
    """Write `train.json`, durably."""
    fields = json.dumps({"format": FORMAT, **asdict(record)}, separators=(",", ":")).encode()
    body = fields.removesuffix(b"}")
    LocalStore(folder).put(FILE, body + _DIGEST_FIELD + digest_content(body).encode() + b'"}')


def read_record(
    folder: Path, advice: str = "Restore it from a copy, or move it away."
) -> CheckpointRecord:
    """Read a checkpoint's `train.json`.

    Args:
        folder: of the checkpoint.
        advice: how the message ends if it is damaged.

    Raises:
        DamagedCheckpointError: it is not what was saved, or of another step than the folder's name.
        DataError: it is of another format.
        CorpuskitError: the folder can't be read from here.
    """
    try:
        content = (folder / FILE).read_bytes()
    except OSError as error:
        is_there = folder.parent.is_dir() and (folder.exists() or folder.is_symlink())
        if is_there and isinstance(error, MISSING):
            raise DamagedCheckpointError(folder, f"{FILE} is missing", advice) from None
        raise CorpuskitError(
            f"{describe(error)} Every node must see the output folder, and may read it."
        ) from None
    body, _, digest = content.rpartition(_DIGEST_FIELD)
    if digest_content(body).encode() + b'"}' != digest:
        raise DamagedCheckpointError(folder, f"{FILE} is not what was saved", advice)
    fields = json.loads(body + b"}")
    number = fields.pop("format")
    if number != FORMAT:
        raise DataError(f"{folder / FILE}: format {number!r} is not known. Use a newer corpuskit.")
    record = CheckpointRecord(**fields)
    step = step_of(folder.name)
    if step is not None and step != record.step:
        problem = f"{FILE} is of step {record.step}: the folder was renamed, or files were swapped"
        raise DamagedCheckpointError(folder, problem, advice)
    return record


def require_undamaged(folder: Path, advice: str) -> CheckpointRecord:
    """Read every file of a checkpoint, and refuse it if one is not what was saved.

    Raises:
        DamagedCheckpointError: names the file.
    """
    record = read_record(folder, advice)
    if problem := find_damage(folder, record.files):
        raise DamagedCheckpointError(folder, problem, advice)
    return record


def find_damage(
    folder: Path, files: Mapping[str, tuple[int, str]], rank: int = 0, ranks: int = 1
) -> str:
    """Return what is wrong with this rank's share of some files; empty if nothing is.

    One thread of one rank reads each file: the rank that wrote it, if the number is the same.

    Args:
        folder: of the files.
        files: their sizes and digests.
        rank, ranks: this rank, and how many there are.

    Raises:
        OSError: a file exists and can't be read.
    """
    names = sorted(files, key=_by_number)[rank::ranks]
    with ThreadPoolExecutor(READERS, "check") as readers:
        problems = list(readers.map(lambda name: _compare(folder / name, *files[name]), names))
    return "; ".join(filter(None, problems))


def files_of(folder: Path, names: Iterable[str]) -> Files:
    """Return size and digest of files in a folder."""
    paths = {name: folder / name for name in names}
    return {name: (path.stat().st_size, digest_part(path)) for name, path in paths.items()}


def _by_number(name: str) -> tuple[list[int], str]:
    # Rank 7 wrote `__7_0.distcp`; `.metadata`, which is small, comes last.
    return [int(number) for number in re.findall(r"\d+", name)] or [1 << 62], name


def _compare(path: Path, size: int, digest: str) -> str:
    try:
        num_bytes = path.stat().st_size
        if num_bytes != size:
            return f"{path.name} has {num_bytes:,} bytes, {size:,} were saved"
        if digest_part(path) != digest:
            return f"{path.name} is not what was saved: its digest differs"
    except MISSING:
        return f"{path.name} is missing"
    return ""


@contextlib.contextmanager
def lock_output(
    output: Path,
    parallel: Parallel,
    trunk: str | None = None,
    restore: Callable[[], object] | None = None,
) -> Iterator[str]:
    """Lock the folder while entered, and yield the id that its training got at its first start.

    Rank 0 locks the file `lock`; the lock ends with the process, however that ends. A file system
    without locks is no error: nothing is locked then.

    Args:
        output: the folder.
        parallel: this rank.
        trunk: the checkpoint that a new training branches from; it skips the rows of its `skips`.
        restore: fills the folder on a new machine, the id included, from copies of checkpoints.

    Raises:
        UsageError: another process trains into this folder, or the copies are another training's.
        DataError: `run.json` is damaged.
    """
    with contextlib.ExitStack() as stack:
        identity = ""
        if parallel.rank == 0:
            output.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context((output / "lock").open("a")), output)
            if restore:
                restore()
            identity = _identity(output, trunk)
        yield parallel.gather(identity)[0]


def _lock(file: IO[str], output: Path) -> None:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return  # the file system has no locks
            if time.monotonic() > deadline:
                raise UsageError(
                    f"{output}: another process trains into this folder. Wait for it, end it, or "
                    "set another output; `corpuskit train FILE --status` says where its ranks are."
                ) from None
            time.sleep(0.2)
        else:
            return


def _identity(output: Path, trunk: str | None = None) -> str:
    path = output / "run.json"
    if not path.exists():
        newest = _newest_record(output)  # of a training whose `run.json` was not copied along
        skips = newest.skips if newest else []
        if trunk and not newest and Path(trunk, "train.json").is_file():
            skips = read_record(Path(trunk)).skips
        _write_run(output, newest.run if newest else uuid.uuid4().hex, skips)
    return id_in(path.read_bytes(), str(path))


def id_in(content: bytes, path: str) -> str:
    """Return the id of a training in its `run.json`.

    Raises:
        DataError: it is damaged.
    """
    try:
        return str(json.loads(content)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: has no id: {error}. Restore it, or delete it.") from None


def find_newest(settings: TrainSettings) -> tuple[Path, CheckpointRecord] | None:
    """Return folder and record of the checkpoint that a run continues from; reads no tensors.

    Raises:
        UsageError: `branch_from` is not a checkpoint.
    """
    own = complete_checkpoints(Path(settings.output, "checkpoints"))
    for folder in reversed(own.values()):
        with contextlib.suppress(DamagedCheckpointError):
            return folder, read_record(folder)
    if settings.branch_from is None or own:
        return None
    require_checkpoint(folder := Path(settings.branch_from))
    return folder, read_record(folder)


def _newest_record(output: Path) -> CheckpointRecord | None:
    """Return the record of the newest readable checkpoint that names its training."""
    for folder in reversed(complete_checkpoints(output / "checkpoints").values()):
        with contextlib.suppress(CorpuskitError):
            if (record := read_record(folder)).run:
                return record
    return None


def _write_run(output: Path, identity: str, skips: list[dict[str, Any]]) -> None:
    fields = {"format": 1, "id": identity, "skips": skips}
    LocalStore(output).put("run.json", json.dumps(fields).encode())


def read_skips(output: Path) -> list[dict[str, Any]]:
    """Return the spans of rows that a training skips since its rollbacks, each with the reason.

    They are in its own `run.json`: other trainings on the same plan take these rows.

    Raises:
        DataError: `run.json` is damaged.
    """
    path = output / "run.json"
    try:
        skips = json.loads(path.read_bytes()).get("skips", [])
        spans_of(skips)
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read: {error!r}. Restore it.") from None
    return list(skips)


def spans_of(skips: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, str]]:
    """Return the spans in the form of the loader's `skip`: (first, end, hash of the plan)."""
    return [(int(skip["rows"][0]), int(skip["rows"][1]), str(skip["plan"])) for skip in skips]


def add_skip(output: Path, first: int, end: int, plan: str, reason: str) -> None:
    """Have a training skip rows [first, end) of a plan from now on."""
    skip = {"rows": [first, end], "plan": plan, "reason": reason}
    _write_run(output, _identity(output), [*read_skips(output), skip])
