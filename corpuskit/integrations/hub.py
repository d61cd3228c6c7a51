"""Publishes documents and card of a finished run as a dataset of the Hugging Face Hub.

Files are committed to a branch, a few GB a commit. One commit on the revision then copies them from
there, adds the card, and deletes the files of an earlier push; until then the revision does not
change. A push that is repeated, as after an interruption, sends no file that is on the revision or
on the branch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import xxhash

from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import sealed
from corpuskit.errors import DataError, TaskError, UsageError, reason_of
from corpuskit.inspect.card import card_facts, card_page
from corpuskit.storage import DamagedError, LocalStore, hub, open_ranged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from corpuskit.formats.manifest import Part
    from corpuskit.inspect.card import CardFacts
    from corpuskit.storage import Stored

FOLDER, CARD = "documents", "README.md"

# Of a commit on the branch: an interruption loses this much, and the Hub limits commits.
COMMIT_BYTES, COMMIT_FILES = 4 << 30, 500
MAX_FILES = 25_000  # of one commit, as huggingface_hub documents it

Ids = tuple[str, str]
"""The SHA-256 of a file, by which the Hub knows large files, and its Git id, for others."""


def finished_documents(run_dir: str) -> tuple[RunDirectory, CardFacts, list[Part]]:
    """Return a run, the facts of its card, and its last document parts.

    Raises:
        UsageError: it is not finished, has no documents, or some of them were taken down.
    """
    run = RunDirectory.open(run_dir)
    facts = card_facts(run)
    if facts.unfinished:
        raise UsageError(
            f"{run_dir}: the run is not finished: {', '.join(facts.unfinished)} have not run. "
            "Run the pipeline to its end."
        )
    if facts.taken_down:
        raise UsageError(
            f"{run_dir}: {FOLDER}/ still holds the texts of documents that were taken down "
            f"({facts.taken_down:,}). Drop them in the pipeline, and run it again."
        )
    seals = [seal for phase, seal in sealed(run) if phase.is_stream and phase.folder == FOLDER]
    if not seals:
        raise UsageError(f"{run_dir}: the run writes no documents.")
    return run, facts, list(seals[-1].by_role("documents"))


def push(
    run_dir: str,
    address: str,
    *,
    commit_bytes: int = COMMIT_BYTES,
    dry_run: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Publish documents and card of a run; continue a push that was interrupted.

    Args:
        run_dir: a finished run, in a folder or an object store.
        address: `hf://datasets/owner/name@revision`.
        commit_bytes: a commit on the branch ends with the file that reaches this size.
        dry_run: send nothing, and no request to the Hub.
        progress: called with a line about what was sent.

    Returns:
        `commit` of the revision, number of `files` on it, of files `sent` and `deleted` by this
        call, `sent_bytes`, and `warnings` about what the card lacks. Sent files are those that
        neither the revision nor the branch had; content that the Hub stores is not uploaded again.
        Of a dry run: `files` and `bytes` of the documents, `revision`, `endpoint` and `warnings`.

    Raises:
        UsageError: the run or the dataset cannot be published.
        DataError: a file is not what the run wrote, or differs on the Hub from what was sent.
        TaskError: the Hub failed, or the revision moved; run again.
    """
    target = hub.split(address)
    if target.path:
        raise UsageError(f"{address}: names a file. Write hf://datasets/owner/name@revision.")
    run, facts, parts = finished_documents(run_dir)
    _check_number(run_dir, parts)
    if dry_run:
        return _plan(target, facts, parts)
    card, branch = _card(run, facts), _branch(parts)
    dataset = _Dataset(address, target)
    head = dataset.head()
    published, staged = dataset.files(head), dataset.files(branch)
    expected: dict[str, Ids] = {}
    num_sent = sent_bytes = 0
    for batch in _batches(parts, commit_bytes):
        additions = []
        with run.store.scratch() as folder:
            for part in batch:
                path, ids = _fetch_checked(run.at(part), folder)
                expected[part.path] = ids
                if published.get(part.path) not in ids and staged.get(part.path) not in ids:
                    additions.append((part.path, path, ids))
                    sent_bytes += part.size_bytes
            dataset.stage(branch, head, additions)
        num_sent += len(additions)
        progress(f"{len(expected):,} of {len(parts):,} files, {sent_bytes / 1e6:,.1f} MB sent")
    commit, deleted = _publish(dataset, head, branch, published, expected, card)
    dataset.drop(branch)
    return {
        "commit": commit, "files": len(parts), "sent": num_sent, "sent_bytes": sent_bytes,
        "deleted": deleted, "warnings": facts.warnings,
    }  # fmt: skip


def _check_number(run_dir: str, parts: Sequence[Part]) -> None:
    if len(parts) >= MAX_FILES:
        raise UsageError(
            f"{run_dir}: {len(parts):,} files; a commit takes {MAX_FILES:,}. Set larger cells."
        )


def _plan(target: hub.HubAddress, facts: CardFacts, parts: Sequence[Part]) -> dict[str, Any]:
    return {
        "files": len(parts), "bytes": sum(part.size_bytes for part in parts),
        "revision": target.revision, "endpoint": hub.load_library().constants.ENDPOINT,
        "warnings": facts.warnings,
    }  # fmt: skip


def _card(run: RunDirectory, facts: CardFacts) -> bytes:
    public = dataclasses.replace(facts, configs={FOLDER: f"{FOLDER}/*.parquet"}, plan_hash=None)
    return card_page(public, run.plan.file.steps).encode()


def _branch(parts: Sequence[Part]) -> str:
    """Return the branch of a push: the same for the same files."""
    names = "\n".join(f"{part.path} {part.digest}" for part in parts)
    return f"corpuskit-push-{hashlib.blake2b(names.encode(), digest_size=6).hexdigest()}"


def _publish(
    dataset: _Dataset, head: str, branch: str, published: dict[str, str],
    expected: dict[str, Ids], card: bytes,
) -> tuple[str, int]:  # fmt: skip
    """Commit documents and card on the revision; return its commit, and how many were deleted."""
    changed = [name for name, ids in expected.items() if published.get(name) not in ids]
    removed = [name for name in published if name.startswith(f"{FOLDER}/") and name not in expected]
    expected = expected | {CARD: _ids(card)}
    if not changed and not removed and published.get(CARD) in expected[CARD]:
        return head, 0
    commit = dataset.publish(head, branch, changed, removed, card)
    published = dataset.files(commit)
    for name, ids in expected.items():
        if published.get(name) not in ids:
            raise DataError(
                f"{dataset.address}: {name} is not what was sent, in commit {commit}. Push again."
            )
    return commit, len(removed)


class _Dataset:
    """The operations of a push on a dataset of the Hub; failures become errors in one line."""

    def __init__(self, address: str, target: hub.HubAddress) -> None:
        self.address, self.revision = address, target.revision
        self._library = hub.load_library()
        if self._library.constants.HF_HUB_OFFLINE:
            raise UsageError(f"{address}: HF_HUB_OFFLINE is set. Unset it to push.")
        self._api = self._library.HfApi()
        self._kind = {"repo_id": target.dataset, "repo_type": "dataset"}
        hub.hide_progress()

    def head(self) -> str:
        """Return the commit of the revision."""
        with self._errors_raised():
            return str(self._api.repo_info(**self._kind, revision=self.revision).sha)

    def files(self, revision: str) -> dict[str, str]:
        """Return name -> one of its ids; empty if there is no such revision."""
        missing = hub.load_errors().RevisionNotFoundError
        with self._errors_raised(), contextlib.suppress(missing):
            tree = self._api.list_repo_tree(**self._kind, revision=revision, recursive=True)
            files = [entry for entry in tree if hasattr(entry, "blob_id")]
            return {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}
        return {}

    def stage(self, branch: str, head: str, additions: Sequence[tuple[str, Path, Ids]]) -> None:
        """Commit files, if any, on the branch, which begins at `head`."""
        operations = []
        for name, path, ids in additions:
            operations.append(self._library.CommitOperationAdd(name, path))
            operations[-1].upload_info.sha256 = bytes.fromhex(ids[0])  # not computed again
        with self._errors_raised():
            if operations:
                self._api.create_branch(**self._kind, branch=branch, revision=head, exist_ok=True)
                self._api.create_commit(
                    **self._kind, operations=operations, revision=branch,
                    commit_message=f"Part of a push: {len(additions)} files",
                )  # fmt: skip

    def publish(
        self, head: str, branch: str, changed: list[str], removed: list[str], card: bytes
    ) -> str:
        """Commit on the revision, if it is still at `head`; return the commit."""
        copy, delete = self._library.CommitOperationCopy, self._library.CommitOperationDelete
        operations = [
            *(copy(name, name, src_revision=branch) for name in changed),
            *(delete(name, is_folder=False) for name in removed),
            self._library.CommitOperationAdd(CARD, card),
        ]
        with self._errors_raised():
            commit = self._api.create_commit(
                **self._kind, operations=operations, revision=self.revision, parent_commit=head,
                commit_message="Publish documents and card with corpuskit",
            )  # fmt: skip
        return str(commit.oid)

    def drop(self, branch: str) -> None:
        """Delete the branch; a failure does no harm."""
        with contextlib.suppress(*hub.failures()):
            self._api.delete_branch(**self._kind, branch=branch)

    @contextlib.contextmanager
    def _errors_raised(self) -> Iterator[None]:
        advice = "Run the same command again: what is there is not sent again."
        try:
            yield
        except hub.failures() as error:
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if status in (409, 412):
                problem = f"{self.revision} moved while files were sent"
                raise TaskError(f"{self.address}: {problem}. {advice}") from None
            problem = hub.describe(error)
            if not problem and status in (401, 403):
                problem = "the token may not write there. Set HF_TOKEN to one that may"
            if problem:
                raise UsageError(f"{self.address}: {problem}.") from None
            if problem := hub.unreachable(error):
                raise TaskError(f"{self.address}: {problem}. {advice}") from None
            cause = error.__cause__ if isinstance(error, RuntimeError) else error
            answer = getattr(cause, "server_message", None) or str(cause).partition("\n")[0]
            raise TaskError(f"{self.address}: {reason_of(answer)}. {advice}") from None


def _batches(parts: Sequence[Part], commit_bytes: int) -> Iterator[list[Part]]:
    batch: list[Part] = []
    for part in parts:
        batch.append(part)
        if sum(p.size_bytes for p in batch) >= commit_bytes or len(batch) == COMMIT_FILES:
            yield batch
            batch = []
    if batch:
        yield batch


def _fetch_checked(part: Stored, folder: Path) -> tuple[Path, Ids]:
    """Return a part as a file on this machine, copied to `folder` if it is remote, with its ids.

    Raises:
        DamagedError: it is not what the run wrote.
    """
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_ranged(part))
        sinks: list[Any] = [xxhash.xxh3_128(), hashlib.sha256(), _git_hash(source.size())]
        if isinstance(part.store, LocalStore):
            path, copy = part.store.path(part.name), None
        else:
            path = folder / part.name.rpartition("/")[2]
            copy = stack.enter_context(path.open("wb"))
        source.seek(0)
        while piece := source.read(1 << 20):
            for sink in sinks:
                sink.update(piece)
            if copy:
                copy.write(piece)
    digest, *ids = (sink.hexdigest() for sink in sinks)
    if digest != part.digest:
        raise DamagedError(part)
    return path, (ids[0], ids[1])


def _ids(content: bytes) -> Ids:
    git = _git_hash(len(content))
    git.update(content)
    return hashlib.sha256(content).hexdigest(), git.hexdigest()


def _git_hash(size: int) -> Any:
    return hashlib.sha1(b"blob %d\0" % size)
