"""The only importer of obstore: requests to a bucket, retried, with errors for users.

obstore, not pyarrow.fs or s3fs: these commit a truncated object when a writer fails, and pyarrow.fs
has no conditional put.

Every failure becomes an OSError with one line: which object, which server, its answer and what to
do. Nothing of the request goes into it, so no secret does.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime as dt
import errno
import functools
import os
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from corpuskit.distribution import install_command
from corpuskit.errors import UsageError
from corpuskit.logs import LOG
from corpuskit.storage.faults import fault_point

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Answer = TypeVar("Answer")

PART_BYTES = 8 << 20
MAX_PARTS = 9_000  # S3 allows 10,000 parts
PARTS_AT_ONCE = 4
ATTEMPTS = 3
"""How often a request is sent that obstore does not repeat: its answer may have been lost."""

WRITER = "corpuskitwriter"  # Azure allows no hyphen
_process: int | None = None  # that made the first request

FAILED = re.compile(r"status code: (5\d\d|429)|kind: \w")
"""Failures of servers and networks, which the library repeats unless `Bucket` does."""

METADATA_SERVICE = re.compile(
    r"169\.254\.169\.254|/latest/api/token|/latest/meta-data|metadata\.google\.internal|/metadata/identity"
)


@dataclasses.dataclass(frozen=True)
class Provider:
    """A kind of object store, by the scheme of its addresses.

    Attributes:
        store: the class of obstore.
        bucket: what it calls a bucket.
        prefix: of the environment variables that obstore reads.
        endpoints: variables that name another server, the first one that is set wins.
        key, unsigned: variables to set for credentials, and for a store that needs none.
        version: the field that a conditional put compares: an ETag, or Google's generation.
        no_version: a value of it that no object has.
        has_suffix_ranges: whether the end of an object can be read without knowing its size.
        deletes_missing: whether one request deletes many objects, those that are not there too.
    """

    name: str
    store: str
    bucket: str
    prefix: str
    endpoints: tuple[str, ...]
    key: str
    unsigned: str
    version: str = "e_tag"
    no_version: str = '"0"'
    has_suffix_ranges: bool = True
    deletes_missing: bool = False


PROVIDERS = {
    "s3": Provider(
        "Amazon S3", "S3Store", "bucket", "AWS_", ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "AWS_SKIP_SIGNATURE", deletes_missing=True,
    ),
    "gs": Provider(
        "Google Cloud Storage", "GCSStore", "bucket", "GOOGLE_", ("GOOGLE_BASE_URL",),
        "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE", "version", "1",
    ),
    "az": Provider(
        "Azure Blob Storage", "AzureStore", "container", "AZURE_",
        ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", "AZURE_SKIP_SIGNATURE",
        has_suffix_ranges=False,
    ),
}  # fmt: skip
DELETES_AT_ONCE = 16
"""Requests at a time, where one request deletes one object."""


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a server.

    Attributes:
        answer_seconds: for one answer, its content included.
        retry_seconds: from the first try to the last one.
        max_retries: of one request.
        first_pause_seconds: before the first retry; it doubles.
        repeats_here: `Bucket` repeats requests, and calls its guard before each, instead of the
            library: each request ends within `answer_seconds`.
    """

    answer_seconds: float = 60.0
    retry_seconds: float = 180.0
    max_retries: int = 8
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 15.0
    repeats_here: bool = False


@dataclasses.dataclass(frozen=True)
class Entry:
    """An object as a listing or a HEAD shows it.

    Attributes:
        tag: its ETag.
        version: what a conditional put compares; a listing may lack it.
    """

    key: str
    size_bytes: int
    tag: str
    version: str = ""


def split(address: str) -> tuple[str, str]:
    """Return `s3://bucket` and key of `s3://bucket/key`; the key may be empty.

    Raises:
        UsageError: the address names no bucket.
    """
    scheme, _, path = address.partition("://")
    bucket, _, key = path.partition("/")
    provider = PROVIDERS[scheme]
    if "@" in bucket or ":" in bucket:
        raise UsageError(
            f"an {scheme}:// address holds more than a {provider.bucket} and a key. Set "
            f"{provider.key}, and for another server {provider.endpoints[-1]}, instead."
        )
    if not re.fullmatch(r"[A-Za-z0-9$][A-Za-z0-9._-]+", bucket):
        raise UsageError(
            f"{address}: {bucket!r} is no {provider.bucket}. Write "
            f"{scheme}://{provider.bucket}/prefix."
        )
    return f"{scheme}://{bucket}", key


def open_bucket(name: str, retries: RetryPolicy | None = None) -> Bucket:
    """Return a bucket as the environment reaches it; its connections are shared in the process.

    Args:
        name: with its scheme, as in `s3://bucket`.
        retries: how long requests are retried.

    Raises:
        UsageError: the extra `s3` is not installed.
    """
    prefix = PROVIDERS[name.partition("://")[0]].prefix
    settings = frozenset(item for item in os.environ.items() if item[0].startswith(prefix))
    return _open_bucket(name, retries or RetryPolicy(), settings, os.getpid())


@functools.lru_cache(maxsize=32)
def _open_bucket(
    name: str, retries: RetryPolicy, settings: frozenset[tuple[str, str]], process: int
) -> Bucket:
    return Bucket(name, retries)


class Bucket:
    """A bucket of an object store.

    Keys hold no empty, `.` or `..` segments, and no control characters.

    Args:
        name: with its scheme, as in `s3://bucket`.
        retries: how long requests are retried.
    """

    provider = PROVIDERS["s3"]
    _guard: Callable[[], None] | None = None

    def __init__(self, name: str, retries: RetryPolicy) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            raise UsageError(
                f"{name}: object storage needs the extra s3. Run: {install_command('s3')}"
            ) from None
        scheme, _, bucket = name.partition("://")
        self.provider = PROVIDERS[scheme]
        self.name, self.retries, self._library = name, retries, obstore
        endpoint = next(filter(None, map(os.environ.get, self.provider.endpoints)), "")
        self.endpoint = _without_secrets(endpoint) if endpoint else self.provider.name
        if endpoint and not re.match(r"https?://[^/]", endpoint):
            raise UsageError(
                f"{self.provider.endpoints[-1]} is {self.endpoint!r}, which is no address. Write "
                "http://host:port or https://host."
            )

        def seconds(num: float) -> dt.timedelta:
            return dt.timedelta(seconds=num)

        try:
            self._client = getattr(obstore.store, self.provider.store)(
                bucket,
                client_options={
                    "allow_http": bool(endpoint and endpoint.startswith("http://")),
                    "timeout": seconds(retries.answer_seconds),
                    "connect_timeout": seconds(min(10.0, retries.answer_seconds)),
                },
                retry_config={
                    "max_retries": 0 if retries.repeats_here else retries.max_retries,
                    "retry_timeout": seconds(retries.retry_seconds),
                    "backoff": {
                        "init_backoff": seconds(retries.first_pause_seconds),
                        "max_backoff": seconds(retries.longest_pause_seconds),
                        "base": 2,
                    },
                },
            )
        except obstore.exceptions.BaseError as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"{name}: {reason.rstrip('.')}. Check the {self.provider.prefix} variables."
            ) from None

    def guarded(self, guard: Callable[[], None]) -> Bucket:
        """Return the same bucket; `guard` is called before each request, and may refuse it."""
        guarded = copy.copy(self)
        guarded._guard = guard
        return guarded

    def address(self, key: str) -> str:
        return f"{self.name}/{key}"

    def head(self, key: str) -> Entry | None:
        """Return what is known about an object, None if there is none."""
        try:
            return self._entry(self._ask(key, lambda: self._library.head(self._client, key)))
        except FileNotFoundError:
            return None

    def read(self, key: str, limit: int | None = None) -> tuple[bytes, Entry] | None:
        """Return the whole content of an object, None if there is none.

        Raises:
            OSError: EFBIG, it has more than `limit` bytes.
        """

        def request() -> tuple[bytes, Entry]:
            answer = self._library.get(self._client, key)
            size = answer.meta["size"]
            if limit is not None and size > limit:
                problem = f"{size:,} bytes, at most {limit:,} are possible"
                raise OSError(errno.EFBIG, problem, self.address(key))
            return answer.bytes().to_bytes(), self._entry(answer.meta)

        try:
            return self._ask(key, request)
        except FileNotFoundError:
            return None

    def read_range(self, key: str, begin: int, end: int, tag: str) -> memoryview:
        """Return bytes `begin` to `end` of an object.

        Raises:
            OSError: ESTALE, it was replaced since it had this tag.
        """
        options = {"range": (begin, end), "if_match": tag}

        def request() -> memoryview:
            return memoryview(self._library.get(self._client, key, options=options).bytes())

        content = self._ask(key, request)
        if len(content) != end - begin:
            raise OSError(errno.EIO, f"{end - begin} bytes asked for, {len(content)} came", key)
        return content

    def read_tail(self, key: str, size: int) -> tuple[memoryview, Entry]:
        """Return the last bytes of an object that is not empty, at most `size`.

        Raises:
            FileNotFoundError: there is no such object.
        """
        if not self.provider.has_suffix_ranges:
            entry = self.head(key)
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such object", self.address(key))
            begin = max(0, entry.size_bytes - size)
            return self.read_range(key, begin, entry.size_bytes, entry.tag), entry
        options = {"range": {"suffix": size}}

        def request() -> tuple[memoryview, Entry]:
            answer = self._library.get(self._client, key, options=options)
            return memoryview(answer.bytes()), self._entry(answer.meta)

        return self._ask(key, request)

    def put(self, key: str, content: bytes) -> None:
        """Write an object in one step, over an older one if there is one."""
        self._ask(key, lambda: self._library.put(self._client, key, content, use_multipart=False))

    def put_new(self, key: str, content: bytes) -> str | None:
        """Write an object unless it is there; return its version if this call wrote it.

        A put whose answer is lost is sent again and then finds its own object there. So every
        object holds the id of its writer, and a refusal counts only if that is another process.
        """
        writer = secrets.token_hex(8)

        def request() -> str | None:
            exists = self._library.exceptions.AlreadyExistsError
            for _ in range(ATTEMPTS):
                fault_point("send:put", key)
                with contextlib.suppress(exists):  # also 409: two puts got in each other's way
                    result = self._library.put(
                        self._client, key, content, mode="create", attributes={WRITER: writer},
                        use_multipart=False,
                    )  # fmt: skip
                    return str(result[self.provider.version])
                with contextlib.suppress(FileNotFoundError):
                    current = self._library.get(self._client, key, options={"head": True})
                    is_mine = current.attributes.get(WRITER) == writer
                    return str(current.meta[self.provider.version]) if is_mine else None
                time.sleep(self.retries.first_pause_seconds)
            raise OSError(errno.EIO, "others keep getting in between. Run again", self.address(key))

        return self._ask(key, request)

    def replace(self, key: str, content: bytes, version: str) -> str | None:
        """Write an object if it still has this version; return the new one, else None.

        None may also mean that it was written and the answer was lost, or that the server refused
        both of two requests that came at the same time.
        """

        def request() -> str | None:
            fault_point("send:put", key)
            mode = {self.provider.version: version}
            try:
                new = self._library.put(self._client, key, content, mode=mode, use_multipart=False)
            except self._library.exceptions.PreconditionError:
                return None
            return str(new[self.provider.version])

        try:
            return self._ask(key, request)
        except FileNotFoundError:
            return None

    def put_file(self, path: Path, key: str) -> None:
        """Write a file of any size; the object appears complete or not at all.

        Holds PARTS_AT_ONCE parts in memory.
        """
        size = path.stat().st_size
        part = max(PART_BYTES, -(-size // MAX_PARTS))
        self._ask(
            key,
            lambda: self._library.put(
                self._client, key, path, use_multipart=size > part, chunk_size=part,
                max_concurrency=PARTS_AT_ONCE,
            ),
            is_upload=True,
        )  # fmt: skip

    def walk(self, folder: str) -> list[Entry]:
        """Return the objects below a folder; markers of empty folders are among them."""

        def request() -> list[Entry]:
            # From the start each time: a stream of pages that has failed may end as if complete.
            pages = self._library.list(self._client, folder or None)
            return [self._entry(entry) for page in pages for entry in page]

        return self._ask(folder, request)

    def level(self, folder: str) -> tuple[list[str], list[Entry]]:
        """Return the keys of the folders and the objects right below a folder."""
        listing = self._ask(
            folder, lambda: self._library.list_with_delimiter(self._client, folder or None)
        )
        return list(listing["common_prefixes"]), list(map(self._entry, listing["objects"]))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects that may exist."""

        def delete(batch: list[str]) -> None:
            def request() -> None:
                fault_point("send:delete", batch[0])
                self._library.delete(self._client, batch)

            self._ask(batch[0], request)

        def delete_one(key: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                delete([key])

        if keys and self.provider.deletes_missing:
            delete(list(keys))
        elif keys:  # a request for many would end at the first one that is not there
            with ThreadPoolExecutor(min(len(keys), DELETES_AT_ONCE), "delete") as pool:
                list(pool.map(delete_one, keys))

    def _ask(self, key: str, request: Callable[[], Answer], *, is_upload: bool = False) -> Answer:
        """Return what a request returns, repeated while that may help; translate its failure."""
        _require_first_process(self.address(key))
        retries = self.retries
        began, pause = time.monotonic(), retries.first_pause_seconds
        attempts = retries.max_retries + 1 if retries.repeats_here else ATTEMPTS
        for attempt in range(1, attempts + 1):
            if self._guard is not None:
                self._guard()
            try:
                return request()
            except (self._library.exceptions.BaseError, FileNotFoundError, ValueError) as error:
                is_late = time.monotonic() - began > retries.retry_seconds
                may_succeed = _may_succeed(error, is_upload=is_upload) or (
                    retries.repeats_here and FAILED.search(str(error)) is not None
                )
                if attempt == attempts or is_late or not may_succeed:
                    raise self._translate(error, key) from None
                answer = _answer_of(str(error))
                LOG.warning("%s: %s; tried again in %.1f s", self.address(key), answer, pause)
            time.sleep(pause)
            pause = min(2 * pause, retries.longest_pause_seconds)
        raise AssertionError("the last attempt returns or raises")

    def _entry(self, meta: Any) -> Entry:
        version = meta[self.provider.version] or ""
        return Entry(meta["path"], meta["size"], meta["e_tag"] or "", version)

    def _translate(self, error: Exception, key: str) -> OSError:
        """Return an exception of the library as an OSError with one line of text."""
        text, address = str(error), self.address(key)
        answer = _answer_of(text)
        kinds = self._library.exceptions
        provider = self.provider
        if "NoSuchBucket" in text or "ContainerNotFound" in text:
            bucket = self.name.partition("://")[2]
            problem = f"there is no {provider.bucket} {bucket!r} at {self.endpoint}. Make it first"
            return OSError(errno.ENOENT, problem, address)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "there is no such object", address)
        if METADATA_SERVICE.search(text):
            return PermissionError(
                errno.EACCES,
                f"no credentials were found. Set {provider.key}, or {provider.unsigned}=true for a "
                f"public {provider.bucket}",
                address,
            )
        if isinstance(error, kinds.PermissionDeniedError | kinds.UnauthenticatedError):
            return PermissionError(
                errno.EACCES,
                f"{self.endpoint} refuses it: {answer}. Check {provider.key}, what they allow in "
                f"this {provider.bucket}, and the clock of this machine",
                address,
            )
        if isinstance(error, kinds.PreconditionError):
            return OSError(errno.ESTALE, "it was replaced while it was read. Run again", address)
        if isinstance(error, kinds.InvalidPathError | ValueError):
            name = text.partition("\n\nDebug")[0].replace("\n", " ")
            return OSError(errno.EINVAL, f"a name cannot be used: {name}", address)
        if "status code: 507" in text:
            return OSError(errno.ENOSPC, f"{self.endpoint} has no space left: {answer}", address)
        advice = " Check AWS_DEFAULT_REGION." if "redirect" in text.lower() else ""
        problem = f"{self.endpoint}: {answer}, after all retries.{advice} Run again when it is up"
        return OSError(errno.EIO, problem, address)


def _require_first_process(address: str) -> None:
    """Refuse a request in a fork of a process that has made one: it would wait for ever.

    Raises:
        UsageError: this is one.
    """
    global _process  # noqa: PLW0603 - as is the runtime of the library
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise UsageError(
            f"{address}: this process was forked from one that has used object storage, and the"
            " library's connections don't survive that. Start it with spawn."
        )


def _may_succeed(error: Exception, *, is_upload: bool) -> bool:
    """Return whether a request that obstore has given up may succeed if it is sent again."""
    text = str(error)
    if is_upload and "NoSuchUpload" in text:  # completed, and the answer was lost
        return True
    return re.search(r"kind: (Timeout|Interrupted)\b", text) is not None


def _answer_of(text: str) -> str:
    """Return a server's answer, or why there is none, in a few words."""
    status = re.search(r"status code: (\d{3})", text)
    code = re.search(r"<Code>([\w.]{1,60})</Code>", text)
    message = re.search(r"<Message>([^<\n]{1,200})", text)
    if status:
        answer = f"{status[1]} {code[1]}" if code else status[1]
        return f"{answer} ({message[1].rstrip('.')})" if message else answer
    kind = re.search(r"kind: (Timeout|Connect|Interrupted|Decode)\b", text)
    return {
        "Timeout": "no answer in time",
        "Connect": "no connection",
        "Interrupted": "the connection broke",
        "Decode": "the answer broke off",
    }.get(kind[1] if kind else "", "the request failed")


def _without_secrets(url: str) -> str:
    """Return an endpoint without a user and a query."""
    scheme, _, path = url.partition("://")
    return f"{scheme}://{path.partition('?')[0].rpartition('@')[2].rstrip('/')}"
