"""Datasets on the Hugging Face Hub: files to read, fetched into the library's cache.

The Hub stores commits of a whole repository, not files: nothing can be written under one name on a
condition of its own, and each write counts against a limit of commits. So a run directory cannot be
there; `integrations/hub.py` publishes finished ones.
"""

from __future__ import annotations

import importlib
import os
import re
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from corpuskit.errors import UsageError, reason_of
from corpuskit.storage.search import matches
from corpuskit.storage.store import FoundFile

if TYPE_CHECKING:
    from collections.abc import Callable

    Chooser = Callable[[list[str], Path], list[str]]

SCHEME = "hf://"
NO_RUNS = (
    "the Hub stores commits of a whole dataset, and a run directory needs files that are written "
    "on conditions, one by one. Set a local output, or s3://, gs:// or az://; then publish it with "
    "`corpuskit push RUN hf://datasets/owner/name`"
)
"""Why `hf://` is no output, and what to do."""

THREADS = 8


class HubAddress(NamedTuple):
    """A file, a pattern or nothing (an empty path) in a revision of a dataset."""

    dataset: str
    revision: str
    path: str


def split(address: str) -> HubAddress:
    """Return what `hf://datasets/owner/name@revision/path` names.

    Raises:
        UsageError: it names no dataset.
    """
    form = re.fullmatch(
        r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?/?(.*)", address, flags=re.DOTALL
    )
    if form is None:
        raise UsageError(
            f"{address}: names no dataset. Write hf://datasets/owner/name@revision/path; a "
            "revision may be left out."
        )
    return HubAddress(form[1], urllib.parse.unquote(form[2] or "main"), form[3])


def find(pattern: str) -> list[tuple[FoundFile, str]]:
    """Fetch the files that a pattern matches; return them with `owner/name/path`.

    Patterns mean what they mean to `find_files`.

    Raises:
        UsageError: the dataset cannot be fetched.
    """
    address = split(pattern)
    segments = address.path.split("/")

    def choose(names: list[str], _: Path) -> list[str]:
        return sorted(name for name in names if matches(name.split("/"), segments))

    fetched = fetch(address.dataset, address.revision, choose)
    return [(file, f"{address.dataset}/{name}") for file, name in fetched]


def fetch(dataset: str, revision: str, choose: Chooser) -> list[tuple[FoundFile, str]]:
    """List a dataset, fetch the files chosen into the library's cache.

    Names are those in the repository, stamps the hashes of contents: neither tells who fetched them
    when, so a run can continue elsewhere.

    Args:
        dataset: `owner/name`.
        revision: branch, tag or commit.
        choose: called with all names and the folder that has the card.

    Raises:
        UsageError: it cannot be fetched.
    """
    library = load_library()
    try:
        root, blobs = _listing(library, dataset, revision)
        names = choose(list(blobs), root)

        def download(name: str) -> str:
            path: str = library.hf_hub_download(
                dataset, name, repo_type="dataset", revision=root.name
            )
            return path

        with ThreadPoolExecutor(THREADS) as threads:
            paths = list(threads.map(download, names))
    except failures() as error:
        problem = describe(error) or unreachable(error)
        problem = problem or f"cannot be fetched: {reason_of(error)}. Try again"
        raise UsageError(f"{dataset}: revision {revision!r}: {problem}.") from None
    facts = [(path, os.stat(path), name) for name, path in zip(names, paths, strict=True)]
    return [
        (FoundFile(path, status.st_size, blobs[name], str(status.st_mtime_ns)), name)
        for path, status, name in facts
    ]


def load_library() -> Any:
    """Return huggingface_hub.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import huggingface_hub.constants  # which the library itself imports only when it needs it
    except ImportError:
        raise UsageError("huggingface_hub is not installed. Install it.") from None
    return huggingface_hub


def hide_progress() -> None:
    """Have the library show no bars of its own in this process."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()


def load_errors() -> Any:
    """Return the module of the library's errors."""
    return importlib.import_module("huggingface_hub.errors")


def failures() -> tuple[type[Exception], ...]:
    """Return what the library raises for the Hub's reasons; its HTTP errors are no OSErrors."""
    errors = load_errors()
    return (OSError, ValueError, RuntimeError, errors.HTTPError, errors.EntryNotFoundError)


def describe(error: Exception) -> str:
    """Return what is wrong and what to do, without a period; empty if that is not known."""
    errors = load_errors()
    if isinstance(error, errors.GatedRepoError):
        return "access must be granted first. Ask on its page, then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return "there is no such revision"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such dataset, or it is private. Check the name, or HF_TOKEN"
    if load_library().constants.HF_HUB_OFFLINE:
        return "is not fetched yet, and HF_HUB_OFFLINE is set. Fetch it, or give a folder"
    return ""


def unreachable(error: Exception) -> str:
    """Return that the server did not answer, which one, and why; empty for any other error."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names.isdisjoint({"ConnectError", "ConnectTimeout", "ConnectionError"}):
        return ""
    why = re.sub(r"^\[Errno -?\d+\] ", "", reason_of(error))
    return (
        f"{load_library().constants.ENDPOINT} cannot be reached ({why}). Check the network and "
        "HF_ENDPOINT"
    )


def _listing(library: Any, dataset: str, revision: str) -> tuple[Path, dict[str, str]]:
    """Return the folder of a revision in the library's cache, and name -> hash of all its files.

    Only the card is fetched. What was listed before can be listed without a network.
    """
    kind = {"repo_type": "dataset"}
    folder = Path(
        library.snapshot_download(dataset, **kind, revision=revision, allow_patterns=["README.md"])
    )
    if hasattr(library, "get_cached_repo_tree"):
        tree = library.get_cached_repo_tree(dataset, **kind, revision=folder.name)
        return folder, {file.path: file.blob_id for file in tree}
    facts = library.HfApi().dataset_info(dataset, revision=folder.name, files_metadata=True)
    return folder, {file.rfilename: file.blob_id or "" for file in facts.siblings or ()}
