"""Finds input files, numbers them, and cuts them into slices.

All of it is a function of the pipeline and the files: sources in the order of the pipeline, the
files of a source by name. What a run directory remembers (`inputs.json`) only saves work.

Numbers ascend in that order, with gaps, so that files may come and go without moving others: see
`number`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import itertools
import os
import posixpath
from typing import TYPE_CHECKING, Any

from corpuskit.engine.fingerprint import code_digest
from corpuskit.engine.plan import located
from corpuskit.errors import DataError, UsageError, noting
from corpuskit.formats.batch import MAX_ORDINAL
from corpuskit.formats.manifest import dump_checked, load_checked
from corpuskit.stage import InputFile, Slice
from corpuskit.storage import bare_address, find_files, find_named, is_remote, stat_input
from corpuskit.storage.search import WILDCARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from corpuskit.engine.config import Step
    from corpuskit.stage import Source, SourceBatch
    from corpuskit.storage import FoundFile, Store

INPUTS = "inputs.json"

SHARED_CELLS = 8
"""Slices share a unit up to cell_bytes / SHARED_CELLS of text. More would leave workers without
work: 16 files of 5 MB are 16 units, not 2. The 11 files of a cell cost 30 to 60 CPU ms in a
pipeline whose stages take 1 to 2 s for 8 MB."""

GAPS = ((1 << 16, 4, 7), (1 << 12, 4, 6), (1 << 8, 2, 8), (1 << 4, 2, 4), (1, 1, 0))
"""Steps of `number` from wide to none, as (of a source, base of a file's, largest power of that).
The first one is taken whose numbers are small enough: with 4 and 7 they are about 140 times as many
as files, with 2 about 5 times."""

MAX_UNIT = 999_999
"""Unit numbers go to six digits while they can, so that parts sort by name as they do by number."""

OPENING_BYTES = 4096
"""Counts as text of a slice, for opening its file: 0.3 to 0.6 CPU ms."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """All input files in ordinal order, each with its slices.

    Attributes:
        begins: (U,) where in `numbered` each unit of the reading phase begins.
        numbers: (U,) of the units, ascending.
    """

    files: tuple[InputFile, ...]
    slices: tuple[tuple[Slice, ...], ...]
    begins: tuple[int, ...]
    numbers: tuple[int, ...]

    def size_bytes(self) -> int:
        """Return the size of all files as they lie on disk."""
        return sum(file.size_bytes for file in self.files)

    @functools.cached_property
    def numbered(self) -> list[tuple[InputFile, Slice]]:
        pairs = zip(self.files, self.slices, strict=True)
        return [(file, piece) for file, pieces in pairs for piece in pieces]

    @functools.cached_property
    def units(self) -> dict[int, list[tuple[InputFile, Slice]]]:
        """The units of the reading phase, by number: neighbouring slices of one source."""
        bounds = itertools.pairwise([*self.begins, len(self.numbered)])
        cut = (self.numbered[begin:end] for begin, end in bounds)
        return dict(zip(self.numbers, cut, strict=True))

    def facts(self) -> list[Any]:
        """Return the raw inputs as JSON values for the fingerprint of the reading phase."""
        pairs = zip(self.files, self.slices, strict=True)
        files = [
            [f.ordinal, f.source, f.name, f.size_bytes, f.stamp, [[s.begin, s.end] for s in cut]]
            for f, cut in pairs
        ]
        return [*files, list(self.begins), list(self.numbers)]


def find_inputs(
    store: Store,
    sources: Iterable[Step],
    cell_bytes: int,
    *,
    on_file: Callable[[int, int], None] = lambda num, total: None,
) -> Inputs:
    """Expand the patterns of all sources and cut the files.

    Slices of files that did not change since the last run of this directory are taken from there,
    so that footers are read once.

    Raises:
        UsageError: a pattern matches nothing, or what cannot be read.
        ConfigError: files lack what a parameter names.
        DataError: a footer cannot be read.
    """
    earlier_cuts = _known_cuts(store)
    matches: list[tuple[Step, FoundFile, str]] = []
    for step in sources:
        files_of_step = _expand(step)
        with located(step):
            step.source.check_files([file.address for file, _ in files_of_step])
        matches += [(step, file, name) for file, name in files_of_step]
    if len(matches) > MAX_ORDINAL:
        raise UsageError(f"{len(matches):,} input files: at most {MAX_ORDINAL:,} are possible.")
    tails = {step.label: _tail(step, cell_bytes) for step, *_ in matches}
    files: list[InputFile] = []
    cuts: list[tuple[Slice, ...]] = []
    ordinals = number([(step.label, name) for step, _, name in matches], MAX_ORDINAL)
    for num, (ordinal, (step, match, name)) in enumerate(zip(ordinals, matches, strict=True), 1):
        facts = (match.address, name, match.size_bytes, match.stamp, match.state)
        file = InputFile(ordinal, step.label, *facts)
        cut = earlier_cuts.get(_cut_key(file, tails[step.label]))
        if cut is None or not _is_tiled(file, cut):
            with located(step, UsageError):
                cut = _cut(step, file, cell_bytes)
        files.append(file)
        cuts.append(cut)
        on_file(num, len(matches))
    pieces = [(file, piece) for file, cut in zip(files, cuts, strict=True) for piece in cut]
    starts = _cut_units(
        pieces, {step.label: step.source for step, *_ in matches}, cell_bytes // SHARED_CELLS
    )
    firsts = (pieces[begin] for begin in starts)
    names = [(file.source, f"{file.name}#{piece.begin}") for file, piece in firsts]
    return Inputs(tuple(files), tuple(cuts), starts, tuple(number(names, MAX_UNIT)))


def number(names: Sequence[tuple[str, str]], limit: int) -> list[int]:
    """Return ascending numbers of files, with gaps: a function of these names, of no earlier ones.

    Each file takes the next multiple of its step, a power of 2 or 4 that follows from its name.
    Half of the names have the smallest step, a quarter the next one, and so on; so what one file
    more pushes on soon meets a file whose multiple is far enough. A file that comes last in its
    source moves no other one. One that comes before others moves 2.5 of 16, 4.5 of 100, 11 of
    1,000 on average, and most often one or none.

    Args:
        names: (source, name) in order.
        limit: the largest number, if there are gaps.
    """
    levels = [_level(source, name) for source, name in names]
    for source_step, base, top in GAPS:
        numbers: list[int] = []
        last, before = -1, ""
        for (source, _), level in zip(names, levels, strict=True):
            if source != before:
                step = source_step << min(_level(source, ""), top and 4)
                last, before = (last // step + 1) * step - 1, source
            step = base ** min(level, top)
            last = (last // step + 1) * step
            numbers.append(last)
        if last <= limit:
            break
    return numbers


def _level(source: str, name: str) -> int:
    """Return 0 for half of the names, 1 for a quarter, and so on."""
    digest = hashlib.blake2b(f"{source}\0{name}".encode(), digest_size=8).digest()
    return 64 - int.from_bytes(digest, "little").bit_length()


def _cut_units(
    pieces: list[tuple[InputFile, Slice]], sources: Mapping[str, Source], max_bytes: int
) -> tuple[int, ...]:
    """Return the indices of slices that begin units of up to `max_bytes` bytes of one source.

    A file that is added after the others of its source changes its last unit only.
    """
    starts: list[int] = []
    size_so_far, source = 0, ""
    for index, (file, piece) in enumerate(pieces):
        size = sources[file.source].text_size(file, piece)[0] + OPENING_BYTES
        size_so_far += size
        if size_so_far > max_bytes or file.source != source:
            starts.append(index)
            size_so_far, source = size, file.source
    return tuple(starts)


def save_inputs(store: Store, inputs: Inputs, sources: Iterable[Step], cell_bytes: int) -> None:
    """Store how the files were cut, so that the next run need not read their footers."""
    tails = {step.label: _tail(step, cell_bytes) for step in sources}
    cuts = {
        _cut_key(file, tails[file.source]): [dataclasses.astuple(piece) for piece in cut]
        for file, cut in zip(inputs.files, inputs.slices, strict=True)
    }
    store.put(INPUTS, dump_checked({"format": 2, "cuts": cuts}))


def _known_cuts(store: Store) -> dict[str, tuple[Slice, ...]]:
    """Return how files were cut before, by `_cut_key`; nothing where that cannot be read."""
    [content] = store.read_each([INPUTS])
    with contextlib.suppress(DataError, KeyError, TypeError, AttributeError):
        fields = load_checked(content or b"", INPUTS)
        if fields["format"] == 2:
            return {key: tuple(Slice(*s) for s in cut) for key, cut in fields["cuts"].items()}
    return {}


def _cut(step: Step, file: InputFile, cell_bytes: int) -> tuple[Slice, ...]:
    cut = tuple(step.source.slices(file, cell_bytes))
    if not _is_tiled(file, cut):
        bounds = ", ".join(f"[{piece.begin}, {piece.end})" for piece in cut[:5])
        raise DataError(
            f"{file.path}: the source {step.name!r} cuts it into {len(cut)} slices that leave "
            f"something out or overlap: {bounds}. Report it: that is a defect of the source."
        )
    return cut


def _is_tiled(file: InputFile, cut: Sequence[Slice]) -> bool:
    """Return whether every piece of a file lies in one slice; see `Source.slices`."""
    end = cut[0].whole if cut else None
    end = file.size_bytes if end is None else end
    ends = [0, *(piece.end for piece in cut)]
    return ends[-1] == end and all(
        piece.begin == begin and (piece.end > begin or not end) and piece.whole == cut[0].whole
        for begin, piece in zip(ends, cut, strict=False)
    )


def check_unchanged(file: InputFile) -> None:
    """Compare size and time, or ETag, of a file with those that it was planned with.

    Raises:
        DataError: it changed since, or is gone.
    """
    if not file.state:  # a source of its own way of finding files
        return
    try:
        now = stat_input(file.path)
    except (FileNotFoundError, NotADirectoryError):
        state = "is gone"
    else:
        if (now.size_bytes, now.state) == (file.size_bytes, file.state):
            return
        state = f"now has {_state(now.size_bytes, now.state)}"
    raise DataError(
        f"{file.path}: changed since the run was planned: it had "
        f"{_state(file.size_bytes, file.state)}, it {state}. Run again once it is stable."
    )


def read_pieces(
    source: Source, pieces: Iterable[tuple[InputFile, Slice]], max_document_bytes: int
) -> Iterator[SourceBatch]:
    """Yield what slices of a source hold, with keys for positions.

    Raises:
        DataError: a file is broken, or is not as it was when the run was planned.
    """
    pieces = list(pieces)
    reading = pieces[0][0]

    def checked() -> Iterator[tuple[InputFile, Slice]]:
        nonlocal reading
        for reading, piece in pieces:
            check_unchanged(reading)
            yield reading, piece
            check_unchanged(reading)

    batches = source.read_keyed(checked(), max_document_bytes)
    while True:
        try:
            with noting(f"source {reading.source}, file {reading.path}"):
                batch = next(batches, None)
        except Exception:
            for file, _ in pieces:
                check_unchanged(file)  # a change is the better reason
            raise
        if batch is None:
            return
        yield batch


def _state(size_bytes: int, state: str) -> str:
    try:
        moment = dt.datetime.fromtimestamp(int(state) / 1e9, dt.UTC)
        return f"{size_bytes:,} bytes (modified {moment:%Y-%m-%d %H:%M:%S.%f} UTC)"
    except (ValueError, OverflowError, OSError):
        return f"{size_bytes:,} bytes (ETag {state})"


def _cut_key(file: InputFile, tail: str) -> str:
    """Return what must be equal for an earlier cut to serve again."""
    return f"{file.path}|{file.size_bytes}|{file.stamp}|{tail}"


def _tail(step: Step, cell_bytes: int) -> str:
    """Return the part of `_cut_key` that all files of a source share."""
    params = step.stage.model_dump_json(exclude={"paths"})
    code = code_digest(step.name)  # decides what a slice's bounds mean
    facts = "|".join([step.name, str(cell_bytes), params, code])
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def _expand(step: Step) -> list[tuple[FoundFile, str]]:
    """Return a source's files, each with its path relative to the source's root, sorted by it.

    The root is the deepest folder that is common to all patterns, wildcards left out; so names, and
    with them keys and ids, are the same on disk and in object storage.
    """
    try:
        found_files = step.source.find()
        pairs = _matches(step.source.paths) if found_files is None else found_files
    except UsageError as error:
        raise UsageError(f"{step.where}: source {step.label!r}: {error}") from None
    # By name: a file that two patterns match, in two ways of writing its path, is one file.
    return sorted({name: (file, name) for file, name in pairs}.values(), key=lambda pair: pair[1])


def _matches(patterns: Sequence[str]) -> list[tuple[FoundFile, str]]:
    kinds = {is_remote(pattern) or pattern.startswith("hf://") for pattern in patterns}
    if len(kinds) > 1:
        raise UsageError("mixes local paths and addresses. Make two sources of it.")
    remote = kinds.pop()
    bare = [pattern.removeprefix("file://") for pattern in patterns]
    pairs: list[tuple[FoundFile, str]] = []
    for pattern in bare:
        matches = (
            find_named(pattern)
            if remote
            else [(file, file.address) for file in find_files(pattern)]
        )
        if not matches:
            hint = "Check the pattern" if WILDCARDS & set(pattern) else "Check the path"
            hint += "." if remote else f"; it is relative to the working directory {os.getcwd()!r}."
            raise UsageError(f"no file matches {pattern!r}. {hint}")
        pairs += matches
    if remote:
        root = posixpath.commonpath([_root(bare_address(pattern), "/") for pattern in patterns])
        return [(file, name[len(root) :].lstrip("/")) for file, name in pairs]
    root = os.path.commonpath([os.path.abspath(_root(pattern, os.sep)) for pattern in bare])
    return [(file, os.path.relpath(os.path.abspath(path), root)) for file, path in pairs]


def _root(pattern: str, separator: str) -> str:
    """Return the folder before the first wildcard, or of the file."""
    parts = pattern.split(separator)
    for index, part in enumerate(parts[:-1]):
        if WILDCARDS & set(part):
            return separator.join(parts[:index]) or ("/" if pattern.startswith("/") else ".")
    return separator.join(parts[:-1]) or ("/" if pattern.startswith("/") else ".")
