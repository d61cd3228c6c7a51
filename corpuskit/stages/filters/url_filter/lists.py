"""Lists of URLs, domains and words, compiled once into a file that all processes map.

Opening the 4.6 million domains that come with datatrove takes 0.06 CPU s instead of 3, and 1 MB of
memory instead of 742; up to 40 MB more are mapped page by page when they are read, and shared by
all processes of a machine. Public suffixes are compiled into the same file.
"""

from __future__ import annotations

import bisect
import codecs
import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from corpuskit.errors import UsageError
from corpuskit.formats.batch import utf8
from corpuskit.formats.mapped import open_or_build
from corpuskit.kernels.arrays import Bytes, Int64s
from corpuskit.kernels.filters.urls import (
    END,
    EXCEPTION,
    HARD,
    LONGEST_WORD,
    MEMBER,
    SOFT,
    WILDCARD,
    Lists,
    make_automaton,
)
from corpuskit.kernels.jit import cache_dir
from corpuskit.kernels.stringset import BLOCK, MAX_LENGTH, Coded, Table, front_code, make_table
from corpuskit.stages.filters._lists import COMMENT, file_of, files_in, read_entries, versions

Entries = tuple[str, ...]

_FORMAT = 2
"""Raise it when the same lists compile to a different file."""

_ARCHIVE = "url_filterblacklistsv0_3_0.tar.gz"
_SNAPSHOT = ".tld_set_snapshot"

_CHUNK_BYTES = 4 << 20
_RANGE_ROWS = 1 << 17
"""Strings that are merged at a time: 100 MB of memory, however long the lists are."""

_PRIVATE = "// ===BEGIN PRIVATE DOMAINS==="
_SUFFIX = re.compile(r"^[.*!]*\w\S*", re.MULTILINE)
_SEPARATORS = re.compile(r"[^a-zA-Z0-9]+")
_SUBWORD_CHARACTERS = 200_000


@dataclasses.dataclass(frozen=True)
class UrlLists:
    """Entries of all lists; one is a string, or `@path` of a file with an entry a line.

    Attributes:
        integrated: also take the lists that come with datatrove.
        suffix_list: path of a public suffix list; None takes the one inside tldextract.
    """

    integrated: bool
    suffix_list: str | None
    exempt: Entries
    domains: Entries
    urls: Entries
    hard: Entries
    soft: Entries
    subwords: Entries


def open_lists(lists: UrlLists) -> Lists:
    """Open compiled lists, compiling them if needed; once per process.

    Raises:
        UsageError: a list cannot be read, or is empty.
    """
    return _open(lists, versions(files(lists)))


@functools.lru_cache(maxsize=8)
def _open(lists: UrlLists, _: tuple[tuple[int, int], ...]) -> Lists:
    """Open lists; the last argument tells versions of their files apart."""
    path = cache_dir() / "lists" / f"urls-{_digest(lists)}.map"
    arrays = open_or_build(path, lambda scratch: _compile(lists, scratch))

    def table(name: str) -> Table:
        fields = ("slots", "starts", "data", "kinds")
        return Table(*(arrays[f"{name}.{field}"] for field in fields))  # type: ignore[arg-type]

    def coded(name: str) -> Coded:
        return Coded(*(arrays[f"{name}.{key}"] for key in ("blocks", "data")))  # type: ignore[arg-type]

    return Lists(
        table("suffixes"), table("words"), coded("exempt"), coded("domains"), coded("urls"),
        arrays["subwords"],  # type: ignore[arg-type]
    )  # fmt: skip


def check(lists: UrlLists) -> None:
    """Check the user's own lists, but not the integrated ones, which takes 20 CPU seconds.

    Raises:
        UsageError: a file cannot be read or is empty, or an entry is not what its list holds.
    """
    own_lists = dataclasses.replace(lists, integrated=False)
    for path in files(lists):
        for _ in read_entries(path, comments=True):
            break
    words = {name: _words(own_lists, name) for name in _WORD_FILES.values()}
    _check_subwords(words["subwords"])
    if lists.suffix_list is not None:
        _suffixes(lists)
    for entries in (lists.exempt, lists.domains):
        for _ in map(_as_hosts, _chunks(entries)):
            pass
    for _ in _chunks(lists.urls):
        pass


def libraries(lists: UrlLists) -> tuple[str, ...]:
    """Return the distributions that lists come from."""
    suffixes = ("tldextract",) if lists.suffix_list is None else ()
    return ("datatrove", *suffixes) if lists.integrated else suffixes


def files(lists: UrlLists) -> tuple[str, ...]:
    """Return the files that lists are read from."""
    entry_lists = (lists.exempt, lists.domains, lists.urls, lists.hard, lists.soft, lists.subwords)
    return (*files_in(*entry_lists), *([lists.suffix_list] if lists.suffix_list else []))


def _digest(lists: UrlLists) -> str:
    """Return a hash of all that is in the lists."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(json.dumps([_FORMAT, dataclasses.astuple(lists)]).encode())
    paths = [Path(path) for path in files(lists)]
    if lists.integrated:
        paths += [_asset(name) for name in (_ARCHIVE, *_WORD_FILES)]
    if lists.suffix_list is None:
        paths.append(_snapshot())
    for path in paths:
        try:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"{path}: cannot be read: {reason}. Check the path.") from None
    return digest.hexdigest()


def _asset(name: str) -> Path:
    """Return a file that comes with datatrove, without importing it, which takes a second."""
    return Path(str(importlib.metadata.distribution("datatrove").locate_file("datatrove"))) / (
        f"assets/{name}"
    )


def _snapshot() -> Path:
    """Return the public suffix list that tldextract falls back to where there is no network."""
    try:
        package = importlib.metadata.distribution("tldextract").locate_file("tldextract")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError(
            "url_filter: tldextract, whose public suffix list it uses, is not installed. Install "
            "it, or set suffix_list to a file from publicsuffix.org."
        ) from None
    return Path(str(package)) / _SNAPSHOT


_WORD_FILES = {
    "banned_words.txt": "hard",
    "soft_banned_words.txt": "soft",
    "banned_subwords.txt": "subwords",
}


def _compile(lists: UrlLists, scratch: Path) -> Iterator[tuple[str, Iterable[NDArray[np.generic]]]]:
    """Yield all arrays of the compiled file."""
    words = {name: _words(lists, name) for name in _WORD_FILES.values()}
    kinds = {word: HARD * (word in words["hard"]) | SOFT * (word in words["soft"])
             for word in sorted(words["hard"] | words["soft"])}  # fmt: skip
    yield from _table("words", {word.encode(): kind for word, kind in kinds.items()})
    yield from _table("suffixes", _suffixes(lists))
    _check_subwords(words["subwords"])
    yield "subwords", [make_automaton(sorted(word.encode() for word in words["subwords"]))]
    for name, member in (("exempt", ""), ("domains", "domains"), ("urls", "urls")):
        chunks = _chunks(getattr(lists, name))
        if name != "urls":
            chunks = map(_as_hosts, chunks)
        if member and lists.integrated:
            chunks = itertools.chain(chunks, _integrated(member))
        folder = scratch / name
        folder.mkdir()
        blocks: list[Int64s] = []
        yield f"{name}.data", _coded(_sorted_runs(chunks, folder), blocks)
        yield f"{name}.blocks", blocks


def _check_subwords(subwords: set[str]) -> None:
    if sum(map(len, subwords)) > _SUBWORD_CHARACTERS:
        raise UsageError(
            f"banned_subwords: more than {_SUBWORD_CHARACTERS:,} characters. Give whole words in "
            "banned_words, which takes any number."
        )


def _table(name: str, kinds: dict[bytes, int]) -> Iterator[tuple[str, list[NDArray[np.generic]]]]:
    table = make_table(list(kinds), list(kinds.values()))
    for field, array in table._asdict().items():
        yield f"{name}.{field}", [array]


def _words(lists: UrlLists, name: str) -> set[str]:
    """Return the words of a list: letters and digits, in lower case."""
    sources = [_entries(getattr(lists, name))]
    if lists.integrated:
        sources += [
            read_entries(str(_asset(file)), comments=True)
            for file, list_name in _WORD_FILES.items()
            if list_name == name
        ]
    words = {_SEPARATORS.sub("", entry).lower() for entry in itertools.chain(*sources)} - {""}
    for word in sorted(words):
        if name != "subwords" and len(word) >= LONGEST_WORD:
            raise UsageError(
                f"url_filter: {word[:20]!r}.. has {len(word)} characters, a word has fewer than "
                f"{LONGEST_WORD}. Give it as a URL or a domain."
            )
    return words


def _entries(entries: Entries) -> Iterator[str]:
    """Yield the entries of a list; for `@path`, those of the file."""
    for entry in entries:
        path = file_of(entry)
        if path is None:
            yield entry.strip()
        else:
            yield from read_entries(path, comments=True)


def _suffixes(lists: UrlLists) -> dict[bytes, int]:
    """Return every ending of a rule of the public suffix list with its kinds.

    Private domains (`blogspot.com`) are left out, as tldextract does by default. A label that is no
    ASCII occurs in both of its spellings.
    """
    path = _snapshot() if lists.suffix_list is None else Path(lists.suffix_list)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: no public suffix list: {error}. Check the path.") from None
    kinds: dict[bytes, int] = {}

    def add(labels: list[str], kind: int) -> None:
        for spelt in itertools.product(*map(_spellings, labels)):
            ending = ".".join(spelt).encode()
            kinds[ending] = kinds.get(ending, 0) | kind

    for rule in set(_SUFFIX.findall(text.partition(_PRIVATE)[0])):
        labels = rule.split(".")
        for first in range(len(labels)):
            add(labels[first:], MEMBER)
        add(labels, END)
        if labels[0] == "*" and len(labels) > 1:
            add(labels[1:], WILDCARD)
        if labels[0].startswith("!"):
            add([labels[0][1:], *labels[1:]], EXCEPTION)
    if not kinds:
        raise UsageError(f"{path}: no public suffix list: has no rule. Check the path.")
    return kinds


def _spellings(label: str) -> list[str]:
    """Return a label and, if it is not ASCII, its spelling in ASCII."""
    if label.isascii():
        return [label]
    import idna

    try:
        spelt = idna.encode(label).decode()
        return [label, spelt] if idna.decode(spelt) == label else [label]
    except idna.IDNAError:
        return [label]


def _chunks(entries: Entries) -> Iterator[pa.Array]:
    """Yield entries as large_binary arrays of bounded size; files are read piece by piece."""
    inline = [entry.strip().encode() for entry in entries if file_of(entry) is None]
    yield pa.array([entry for entry in inline if entry], pa.large_binary())
    for path in files_in(entries):
        num_entries = 0
        with Path(path).open("rb") as file:
            for chunk in _lines(iter(functools.partial(file.read, _CHUNK_BYTES), b""), path):
                num_entries += len(chunk)
                yield chunk
        if num_entries == 0:
            raise UsageError(f"{path}: has no entry. A list has one entry a line.")


def _as_hosts(entries: pa.Array) -> pa.Array:
    """Return domains and hosts in lower case, as they are compared; a URL would never match."""
    hosts = pc.utf8_lower(entries.cast(pa.large_string()))
    bad = hosts.filter(pc.match_substring_regex(hosts, "[/?#]"))
    if len(bad):
        raise UsageError(
            f"url_filter: {bad[0].as_py()!r} is no domain or host. Give it as in example.org, or "
            "in extra_urls."
        )
    return hosts.cast(pa.large_binary())


def _integrated(member: str) -> Iterator[pa.Array]:
    with tarfile.open(_asset(_ARCHIVE), "r:gz") as archive:
        file = archive.extractfile(member)
        if file is None:
            raise UsageError(f"{_asset(_ARCHIVE)}: {member} is no file. Reinstall datatrove.")
        yield from _lines(iter(functools.partial(file.read, _CHUNK_BYTES), b""), member)


def _lines(pieces: Iterable[bytes], path: str) -> Iterator[pa.Array]:
    """Yield the entries of a file: lines stripped, without comments and empty ones."""
    partial, is_first = b"", True
    for piece in itertools.chain(pieces, (b"\n",)):
        block, newline, partial = (partial + piece).rpartition(b"\n")
        if not newline:
            continue
        if is_first:
            block, is_first = block.removeprefix(codecs.BOM_UTF8), False
        data = np.frombuffer(block + newline, np.uint8)
        ends = np.flatnonzero(data == ord("\n"))
        starts = np.concatenate(([0], ends[:-1] + 1))
        is_plain = bool(((data > 32) & (data < 127) | (data == ord("\n"))).all())
        if is_plain and (ends > starts).all() and not (data[starts] == ord(COMMENT)).any():
            lines = np.delete(data, ends)
            offsets = np.concatenate(([0], np.cumsum(ends - starts)))
            buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(lines)]
            yield pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends), buffers)
            continue
        try:
            text = (block + newline).decode()
        except UnicodeDecodeError:
            raise UsageError(f"{path}: is no UTF-8. A list has one entry a line.") from None
        entries = [line.strip() for line in re.split(r"\r\n|\r|\n", text) if line[:1] != COMMENT]
        yield pa.array([entry.encode() for entry in entries if entry], pa.large_binary())


def _sorted_runs(chunks: Iterable[pa.Array], folder: Path) -> Iterator[pa.Array]:
    """Yield all strings in order, each once, in arrays of about _RANGE_ROWS: an external sort."""
    runs: list[pa.Array] = []
    for number, chunk in enumerate(chunks):
        if len(chunk) == 0:
            continue
        path = str(folder / f"{number}.arrow")
        table = pa.table({"": _sorted(chunk)})
        with pa.OSFile(path, "wb") as out, pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
        with pa.memory_map(path) as file:
            runs.append(pa.ipc.open_file(file).get_batch(0).column(0))
    sizes = [len(run) for run in runs]
    samples = sorted(run[row].as_py() for run in runs for row in range(0, len(run), 256))
    step = max(len(samples) * _RANGE_ROWS // max(sum(sizes), 1), 1)
    edges = [0] * len(runs)
    for bound in [*samples[step::step], None]:
        ends = [_first_not_below(run, bound) for run in runs]
        slices = [run[low:high] for run, low, high in zip(runs, edges, ends, strict=True)]
        edges = ends
        if any(map(len, slices)):
            yield _sorted(pa.concat_arrays(slices))


def _sorted(strings: pa.Array) -> pa.Array:
    unique = strings.unique()
    return unique.take(pc.array_sort_indices(unique))


def _first_not_below(run: pa.Array, bound: bytes | None) -> int:
    """Return the index of the first string that is not below `bound`; None is above all."""
    if bound is None:
        return len(run)
    return bisect.bisect_left(range(len(run)), bound, key=lambda row: run[row].as_py())


def _coded(strings: Iterable[pa.Array], blocks: list[Int64s]) -> Iterator[Bytes]:
    """Yield sorted strings front-coded; append where blocks begin, and the end, to `blocks`."""
    size = 0
    tail = pa.array([], pa.large_binary())
    for chunk, is_last in itertools.chain(zip(strings, itertools.repeat(False)), [(tail, True)]):
        pending = pa.concat_arrays([tail, chunk])
        ready = len(pending) if is_last else len(pending) // BLOCK * BLOCK
        tail = pending[ready:]
        coding = pa.concat_arrays([pending[:ready]])
        longest = int(utf8(coding).sizes().max(initial=0))
        if longest > MAX_LENGTH:
            raise UsageError(f"url_filter: an entry has {longest:,} bytes, more than {MAX_LENGTH}.")
        piece, begins = front_code(*utf8(coding), size)
        size += len(piece)
        blocks.append(begins)
        if len(piece):
            yield piece
    blocks.append(np.array([size], np.int64))
    if size == 0:
        yield np.zeros(1, np.uint8)
