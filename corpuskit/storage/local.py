"""A run directory on a file system: fsync, then a rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from corpuskit.errors import DataError, UsageError, system_reason
from corpuskit.storage.faults import cleaning, fault_point
from corpuskit.storage.store import SCRATCH, DamagedError, Store, digest_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from corpuskit.storage.store import Stored

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class LocalStore(Store):
    """A run directory on a file system.

    Args:
        root: the run directory; created on first write.
    """

    is_remote = False

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.address = str(root)
        self._durable_folders: set[tuple[str, int]] = set()

    def path(self, name: str) -> Path:
        """Return the path of `name`.

        Raises:
            DataError: the name would leave the run directory.
        """
        return Path(self.where(name))

    def path_to_write(self, name: str) -> Path:
        """Return the path at which to write or delete `name`.

        Raises:
            DataError: a folder on the way there is a link, so what it points to is not the run's.
        """
        folder = str(self.root)
        for part in name.split("/")[:-1]:
            folder = os.path.join(folder, part)
            if os.path.islink(folder):
                raise DataError(
                    f"{folder}: is a link; a run changes nothing that links point to. Remove it."
                )
        return self.path(name)

    def where(self, name: str) -> str:
        self.check(name)
        return os.path.join(self.root, name)  # a Path for each of 2,000 looks is 1 % of a small run

    def size(self, name: str) -> int | None:
        fault_point("size:before", name)
        try:
            return os.stat(self.where(name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes:
        fault_point("read:before", name)
        try:
            with open(self.where(name), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{self.where(name)}: the file is missing.") from None

    def open(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        fault_point("read:before", name)
        return pa.OSFile(self.where(name), "rb")

    def put(self, name: str, content: bytes) -> None:
        with self._durable(name, content) as (scratch, final):
            os.replace(scratch, final)

    def put_new(self, name: str, content: bytes) -> bool:
        with self._durable(name, content) as (scratch, final):
            try:
                os.link(scratch, final)  # fails if the name is taken, a rename does not
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                return _move_new(scratch, final)
        return True

    @contextlib.contextmanager
    def _durable(self, name: str, content: bytes) -> Iterator[tuple[str, Path]]:
        """Yield a durable scratch file beside the final name; the caller gives it that name."""
        fault_point("put:before", name)
        final = self.path_to_write(name)
        self._make_folder(final.parent)
        scratch = f"{final.parent}/.put-{secrets.token_hex(8)}"
        with cleaning(lambda: _unlink(scratch)):
            # As open() would: with mkstemp's mode a group could read the parts, but no manifest.
            with open(scratch, "xb") as file:
                file.write(content)
                fault_point("put:written", scratch)
                file.flush()
                os.fsync(file.fileno())
            fault_point("put:synced", name)
            yield scratch, final
            fault_point("put:moved", name)
            sync_folder(final.parent)
            fault_point("put:after", name)

    def _make_folder(self, folder: Path) -> None:
        """Make a folder and those above it, and sync each entry in the folder above it.

        A process that made a folder may have died before it synced the entry, so each process syncs
        each folder once.
        """
        if folder in (self.root, folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            return
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(exist_ok=True)
            fault_point("folder:made", str(folder))
        key = (str(folder), folder.stat().st_ino)
        if key not in self._durable_folders:
            self._make_folder(folder.parent)
            sync_folder(folder.parent)
            self._durable_folders.add(key)

    def confirm(self, name: str) -> None:
        final = self.path(name)
        self._make_folder(final.parent)
        sync_folder(final.parent)

    def publish(self, scratch: Path, name: str) -> None:
        fault_point("publish:before", str(scratch))
        final = self.path_to_write(name)
        self._make_folder(final.parent)
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        fault_point("publish:synced", name)
        os.replace(scratch, final)
        fault_point("publish:moved", name)
        sync_folder(final.parent)
        fault_point("publish:after", name)

    def adopt(self, stored: Stored, name: str) -> None:
        if not (isinstance(stored.store, LocalStore) and self._link(stored.store, stored, name)):
            super().adopt(stored, name)

    def _link(self, owner: LocalStore, stored: Stored, name: str) -> bool:
        """Link a file of a run on this machine; return False where the file system cannot.

        A file of this run is compared with its seal when it is read.
        """
        source, final = owner.path(stored.name), self.path_to_write(name)
        if owner.root != self.root and owner.digest(stored.name) != stored.digest:
            raise DamagedError(stored)
        self._make_folder(final.parent)
        scratch = f"{final.parent}/.put-{secrets.token_hex(8)}"
        fault_point("adopt:before", name)
        try:
            os.link(source, scratch)
        except OSError as error:
            if error.errno not in {*NO_LINKS, errno.EXDEV, errno.EMLINK}:
                raise
            return False
        os.replace(scratch, final)
        _unlink(scratch)  # two names of one file: a rename of one to the other does nothing
        fault_point("adopt:moved", name)
        sync_folder(final.parent)
        fault_point("adopt:after", name)
        return True

    def sizes(self, folder: str) -> dict[str, int]:
        fault_point("list:before", folder)
        sizes = {name: size for name, size in self._walk(folder) if not _is_unfinished(name)}
        return dict(sorted(sizes.items()))

    def _walk(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield (name, size) of all files below a folder; some deleted meanwhile may be missing."""
        stack = [folder]
        while stack:
            prefix = stack.pop()
            if prefix and self.path(prefix).is_symlink():
                continue  # what is listed may be deleted
            try:
                entries = list(os.scandir(self.path(prefix) if prefix else self.root))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                name = f"{prefix}/{entry.name}" if prefix else entry.name
                if entry.is_dir(follow_symlinks=False):
                    stack.append(name)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    yield name, entry.stat().st_size

    def top(self) -> set[str]:
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root}: the output is a file. Set another output.")
        if not self.root.exists():
            return set()
        return {path.name for path in self.root.iterdir() if not _is_unfinished(path.name)}

    def delete(self, names: Iterable[str]) -> None:
        touched: set[Path] = set()
        for name in names:
            fault_point("delete:before", name)
            path = self.path_to_write(name)
            path.unlink(missing_ok=True)
            for parent in path.parents:
                touched.add(parent)
                if parent == self.root:
                    break
                try:
                    parent.rmdir()
                except OSError:
                    break
            fault_point("delete:after", name)
        for folder in touched:  # or a power loss brings back what no seal names
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                sync_folder(folder)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        parent = self.path_to_write(f"{SCRATCH}/x").parent
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        with cleaning(lambda: shutil.rmtree(folder, ignore_errors=True)):
            yield folder

    def clear_scratch(self) -> None:
        fault_point("clear:before", SCRATCH)
        shutil.rmtree(self.root / SCRATCH, ignore_errors=True)
        fault_point("clear:after", SCRATCH)
        for folder, _, names in os.walk(self.root):  # names only: no file is looked at
            for name in names:
                if _is_unfinished(name):
                    _unlink(os.path.join(folder, name))

    def logs(self) -> Path:
        folder = self.path_to_write("logs/x").parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        # Not truncated, and no link followed: in a directory from elsewhere it could be anything.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(self.root / "lock", flags, 0o666), "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise UsageError(
                        f"{self.root}: files cannot be locked here ({error.strerror}). Have the "
                        "file system mounted with locks (Lustre: -o flock), or set another output."
                    ) from None
                raise UsageError(
                    f"{self.root}: another run is using this directory. Wait for it, or set "
                    "another output."
                ) from None
            yield

    def digest(self, name: str) -> str:
        fault_point("read:before", name)
        return digest_part(self.path(name))


def _move_new(scratch: str, final: Path) -> bool:
    """Rename a file to a new name where there are no hard links; False if the name is taken.

    Of two processes at the same instant both may win. They write the same content, so this is
    harmless; only some network file systems lack hard links.
    """
    if final.exists():
        return False
    os.replace(scratch, final)
    return True


def _is_unfinished(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".put-")


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(content)
        os.replace(scratch, path)
    except OSError as error:
        reason = system_reason(error)
        raise UsageError(f"{path}: cannot be written: {reason}. Check the path.") from None
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def sync_folder(folder: Path) -> None:
    """Make a rename durable: the entry lives in the folder, not in the file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Hash(Protocol):
    def update(self, content: Any, /) -> None: ...
    def hexdigest(self) -> str: ...


class DigestedFile(io.BufferedWriter):
    """A file that is written from its beginning to its end.

    Args:
        path: of the file.
        digest: of hashlib or xxhash.
        mode: `xb` for a file that must not exist, `wb`.

    Attributes:
        size_bytes: bytes written so far.
        digest: takes the same bytes; complete, as the file is, once it is closed.
    """

    def __init__(self, path: str | os.PathLike[str], digest: _Hash, mode: str = "xb") -> None:
        super().__init__(io.FileIO(path, mode))
        self.size_bytes, self.digest = 0, digest

    def write(self, content: Any, /) -> int:
        """Append bytes, or an array as it lies in memory."""
        self.digest.update(content)
        self.size_bytes += memoryview(content).nbytes
        return super().write(content)

    def fileno(self) -> int:
        """Return the descriptor; torch syncs it, of `.metadata` without a flush before."""
        self.flush()
        return super().fileno()
