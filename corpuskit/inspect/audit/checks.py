"""Measures each batch of an audit, and puts the findings together."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corpuskit.cpu import cpu_seconds
from corpuskit.errors import printable
from corpuskit.formats.batch import MAX_POSITION, numbers
from corpuskit.inspect.audit.estimates import Rate, at_least, estimate
from corpuskit.inspect.audit.holding import (
    FirstSeen,
    HashSample,
    exact_copies,
    find_templates,
    matrix_column,
    near_copies,
)
from corpuskit.inspect.samples import marks_of
from corpuskit.kernels.hashing import hash_texts
from corpuskit.kernels.lines import hash_units
from corpuskit.kernels.utf8 import hold_any
from corpuskit.stage import Known, View
from corpuskit.stages.annotators.language import UNDETERMINED, Language
from corpuskit.stages.dedup.decontaminate import Decontaminate
from corpuskit.stages.dedup.line_dedup import (
    Repeated,
    SegmentLimits,
    SegmentTally,
    TextSegments,
    find_segments,
)  # fmt: skip
from corpuskit.stages.dedup.minhash_dedup import MinhashDedup, schemes
from corpuskit.stages.rewriters.pii import Pii, mask_texts
from corpuskit.stages.rewriters.unicode import Unicode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from corpuskit.inspect.audit.reading import Selection, Unreadable
    from corpuskit.stage import Reject, SourceBatch

LANGUAGE_BYTES = 2000
"""Looked at of each text for its language: 7 to 10 CPU ms a megabyte, all of it 25."""

EXACT_BYTES, NEAR_BYTES, SHAPE_BYTES, TEXT_BYTES = 128 << 20, 128 << 20, 96 << 20, 48 << 20
"""Memory for hashes of 6 million texts, signatures of 500,000, parts of those of 350,000, and texts
to look at again."""

LINE_BYTES, LINE_COUNT, LINE_SHARE = 20, 6, 0.2
"""A text is boilerplate if at least this share of it is lines of at least 20 bytes that at least 6
texts have; bytes and texts as in `line_dedup`."""

MOST_LINES = 4 << 20  # different lines that are counted: 16 bytes each, and 60 while they are

TEMPLATE_SHARE, TEMPLATE_VALUES = 0.5, 64
"""Share of a text's 5-word runs that others must have, and how many are drawn to estimate it."""

EXAMPLES = 5
EXCERPT_CHARS = 200

CHECKS = {
    "exact_duplicates": ("exact duplicates", "equal to a text before it"),
    "near_duplicates": (
        "near duplicates",
        "not equal, but 80 % of the 5-word runs are those of a text before it (estimated)",
    ),
    "templates": (
        "templates",
        f"half of the 5-word runs or more are in {LINE_COUNT - 1} other texts: a filled-in form",
    ),
    "boilerplate": (
        "boilerplate",
        f"a fifth of the text or more is lines that {LINE_COUNT} texts or more have",
    ),
    "contamination": ("contamination", "holds an item of a benchmark, or a long run of its words"),
    "other_languages": ("other languages", "not in the most common language"),
    "personal_data": ("personal data", "has an e-mail or IP address, a number or key of a person"),
    "mojibake": ("mojibake", "was decoded in the wrong encoding (UTF-8 as Latin-1 or similar)"),
    "replacement_characters": ("replacement characters", "has U+FFFD: bytes were lost"),
    "control_characters": ("control characters", "has control characters other than white space"),
    "without_words": ("without words", "no letter or digit; empty texts are among them"),
    "unreadable_rows": ("unreadable rows", "no document could be made of the row or line"),
}
"""Check -> what it is called, and which documents it counts."""

MEASURED = (
    "contamination", "other_languages", "personal_data", "mojibake", "replacement_characters",
    "control_characters", "without_words",
)  # fmt: skip
"""Checks that look at one document at a time."""

_LOST = "\ufffd"
_CONTROLS = np.zeros(256, np.uint8)
_CONTROLS[[*range(9), 0x0B, *range(0x0E, 0x20), 0x7F]] = 1
_HOLDS_C3 = np.zeros(256, np.uint8)
_HOLDS_C3[0xC3] = 1
_SECOND = (
    "[\x80-\xbf\u20ac\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
    "\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178]"
)
_SUSPECT = f"[\xc2-\xdf]{_SECOND}|[\xe0-\xef]{_SECOND}{_SECOND}|\xc3 "
"""What UTF-8 of two or three bytes looks like in Latin-1 and Windows-1252. Texts without it are
spared ftfy, which takes 13 to 70 CPU ms a megabyte."""


_PATTERNS = {
    "mojibake": re.compile(_SUSPECT),
    "replacement_characters": re.compile(_LOST),
    "control_characters": re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f]"),
}
"""Check -> what an excerpt of an example is centred on."""


@dataclasses.dataclass
class Check:
    """What one check found.

    Attributes:
        rate: None if the check was not done; `note` says why then.
        details: what was found, and how often: by kind, by language, by group.
        examples: (location, excerpt with personal data masked).
    """

    name: str
    title: str
    meaning: str
    rate: Rate | None = None
    note: str = ""
    details: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    examples: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class AuditReport:
    """What is in the data: `facts` how much was read, the checks, and what could not be read."""

    facts: dict[str, Any]
    checks: list[Check]
    languages: list[tuple[str, Rate]]
    lengths: dict[str, int]
    unreadable: list[Unreadable]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self)


class Audit:
    """Looks at documents, batch by batch.

    Holds up to 128 MB of hashes, 224 MB of signatures, 48 MB of texts and 70 MB of lines, however
    many documents there are: of more, those chosen by hash.

    Args:
        selection: what is read.
        benchmarks: files or patterns of benchmark items; without, contamination is not looked for.
        seed: another one analyses other documents.

    Raises:
        UsageError: a benchmark cannot be read.
    """

    def __init__(
        self, selection: Selection, benchmarks: Sequence[str] = (), *, seed: int = 0
    ) -> None:
        self.selection, self._seed = selection, seed
        self._cpu_start = cpu_seconds()
        self._language = Language(min_score=0, max_bytes=LANGUAGE_BYTES)
        self._pii = Pii(action="drop")
        self._unicode = Unicode(
            unescape_html="never", fix_c1_controls=False, remove_terminal_escapes=False,
            remove_control_chars=False,
        )  # fmt: skip
        self._minhash = MinhashDedup()
        self._items: Decontaminate | None = None
        if benchmarks:
            self._items = Decontaminate(benchmarks=tuple(benchmarks), action="annotate")
            self._items.check(Known())
        self._exact, self._near = HashSample(EXACT_BYTES), HashSample(NEAR_BYTES)
        self._shapes, self._texts = HashSample(SHAPE_BYTES), HashSample(TEXT_BYTES)
        self._first, limits = FirstSeen(), SegmentLimits(LINE_BYTES, 0)
        self._lines = SegmentTally(limits, by_document=True, max_segments=MOST_LINES)
        num = max(len(selection.pieces), 1)
        self._read, self._num_kept, self._rows = np.zeros(num), np.zeros(num), np.zeros(num)
        self._hits = {name: np.zeros(num) for name in (*MEASURED, "unreadable_rows")}
        self._labels: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(num))
        self._details: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._examples: defaultdict[str, list[tuple[int, str, str]]] = defaultdict(list)
        self._bytes = self._read_bytes = self._longest = 0
        self._sizes = np.zeros(64 * 16, np.int64)

    def run(self, on_progress: Callable[[int, int], None] = lambda done, documents: None) -> None:
        """Read and measure everything.

        Args:
            on_progress: called with bytes of text and documents read so far.
        """
        for piece, batch in self.selection.batches():
            self._note_rejects(piece, batch)
            if len(batch.positions):
                self._add(piece, batch)
            on_progress(self._read_bytes, int(self._read.sum()))

    def _note_rejects(self, piece: int, batch: SourceBatch) -> None:
        self._rows[piece] += len(batch.positions) + len(batch.rejects)
        self._hits["unreadable_rows"][piece] += len(batch.rejects)
        for reject in batch.rejects:
            why = _why(reject)
            self._details["unreadable_rows"][why] += 1
            if len(self._examples["unreadable_rows"]) < 20:
                location = self._locate(piece, reject.position)
                excerpt = _excerpt(reject.text or "")
                self._examples["unreadable_rows"].append((0, f"{location}: {why}", excerpt))

    def _locate(self, piece: int, key: int) -> str:
        return self.selection.locate(piece, key & MAX_POSITION)

    def _add(self, piece: int, batch: SourceBatch) -> None:
        columns = {"key": pa.array(batch.positions), "text": batch.texts}
        view = View(pa.record_batch(columns))
        hashes, _ = hash_texts(*view.text)
        signatures = schemes.sign(view, self._minhash, values=True)
        self._read[piece] += view.num_docs
        self._read_bytes += int(view.text.sizes().sum())
        identity = {
            "key": columns["key"],
            "piece": pa.repeat(pa.scalar(piece, pa.int32()), len(hashes)),
        }
        self._exact.add(pa.record_batch({"mark": pa.array(hashes), **identity}))
        new = self._first.new_rows(hashes)
        fresh = view if len(new) == view.num_docs else view.select(new)
        self._lines.add(_lines(fresh))
        self._hold(view, hashes, signatures, pa.record_batch(identity), new)
        share = self.selection.kept_share
        rows = np.flatnonzero(marks_of(view.keys, self._seed + 3) < share * 2.0**64)
        if len(rows):
            is_all = len(rows) == view.num_docs
            self._measure(piece, view if is_all else view.select(rows), signatures.signed[rows])

    def _hold(
        self, view: View, hashes: NDArray[np.uint64], signatures: schemes.Signatures,
        identity: pa.RecordBatch, new: NDArray[np.int64],
    ) -> None:  # fmt: skip
        """Hold signatures, and texts that were not met before."""
        assert signatures.values is not None, "values=True"
        marks = marks_of(view.keys, self._seed + 2)

        def ids(rows: NDArray[np.int64]) -> dict[str, pa.Array]:
            rows_taken = identity.take(pa.array(rows))
            return {name: rows_taken.column(name) for name in ("key", "piece")}

        rows = np.flatnonzero(signatures.signed)
        values = signatures.values[rows]
        columns = {
            # By a value that near duplicates mostly share: so they are chosen together.
            "mark": pa.array(marks_of(values[:, 0], 0)),
            "hash": pa.array(hashes[rows]),
            "bands": matrix_column(signatures.bands[rows]),
            "values": matrix_column((values & np.uint64(0xFF)).astype(np.uint8)),
        }
        self._near.add(pa.record_batch(columns | ids(rows)))
        texts = view.column("text").take(pa.array(new))
        self._texts.add(pa.record_batch({"mark": pa.array(marks[new]), "text": texts} | ids(new)))
        new = new[signatures.signed[new]]
        values = signatures.values[new, :TEMPLATE_VALUES] & np.uint64(0xFFFFFFFF)
        columns = {"mark": pa.array(marks[new]), "values": matrix_column(values.astype(np.uint32))}
        self._shapes.add(pa.record_batch(columns | ids(new)))

    def _measure(self, piece: int, view: View, signed: NDArray[np.bool_]) -> None:
        """Do the checks that look at one document at a time."""
        sizes, texts = view.text.sizes(), view.column("text")
        self._num_kept[piece] += view.num_docs
        self._bytes += int(sizes.sum())
        self._longest = max(self._longest, int(sizes.max()))
        self._sizes += np.bincount(_bins(sizes), minlength=len(self._sizes))
        labels = self._language.apply(view).columns
        for row in pc.value_counts(labels["label"]).to_pylist():
            self._labels[row["values"]][piece] += row["counts"]
        unsure = numbers(labels["score"]) < Language().min_score
        self._details["other_languages"]["unsure"] += int(unsure.sum())
        self._hit("without_words", piece, view, ~signed)
        self._details["without_words"]["empty"] += int((sizes == 0).sum())
        self._hit("control_characters", piece, view, hold_any(*view.text, _CONTROLS))
        has_lost = numbers(pc.match_substring(texts, _LOST))
        self._hit("replacement_characters", piece, view, has_lost)
        ends = numbers(pc.ends_with(texts, _LOST)) if has_lost.any() else has_lost
        self._details["replacement_characters"]["at the very end: cut off"] += int(ends.sum())
        self._hit("mojibake", piece, view, self._is_mojibake(view))
        spans = self._pii.apply(view).spans
        starts = np.full(view.num_docs, -1)
        if spans is not None:
            starts[spans.rows[::-1]] = spans.starts[::-1]
            pairs = np.unique(spans.rows * 256 + spans.codes)
            for code, num in zip(*np.unique(pairs % 256, return_counts=True), strict=True):
                self._details["personal_data"][self._pii.rules[code - 1]] += int(num)
        self._hit("personal_data", piece, view, starts >= 0, starts)
        if self._items is not None:
            items = self._items.apply(view).columns["items"]
            self._hit("contamination", piece, view, numbers(pc.list_value_length(items)) > 0)
            for names in items.to_pylist() if len(items.flatten()) else ():
                benchmarks = {name.partition("/")[0] for name in names}
                self._details["contamination"].update(benchmarks)

    def _is_mojibake(self, view: View) -> NDArray[np.bool_]:
        is_bad = np.zeros(view.num_docs, np.bool_)
        rows = np.flatnonzero(hold_any(*view.text, _HOLDS_C3))
        if len(rows):
            texts = view.column("text").take(pa.array(rows))
            rows = rows[numbers(pc.match_substring_regex(texts, _SUSPECT))]
        if len(rows):
            spans = self._unicode.apply(view.select(rows)).spans
            if spans is not None:
                is_bad[rows[spans.rows]] = True
        return is_bad

    def _hit(
        self, name: str, piece: int, view: View, hits: NDArray[np.bool_],
        starts: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        """Count the documents with a property, and remember a few, where it starts in them."""
        rows = np.flatnonzero(hits)
        self._hits[name][piece] += len(rows)
        if not len(rows):
            return
        marks = marks_of(view.keys[rows], self._seed + 4)
        examples = self._examples[name]
        for i in np.argsort(marks)[:EXAMPLES].tolist():
            if len(examples) < EXAMPLES or marks[i] < examples[-1][0]:
                location = self._locate(piece, int(view.keys[rows[i]]))
                content = view.text.row(int(rows[i]))
                match = _PATTERNS[name].search(content.decode()) if name in _PATTERNS else None
                at_char = match.start() if match else 0
                if starts is not None:
                    at_char = len(content[: starts[rows[i]]].decode())
                examples.append((int(marks[i]), location, _excerpt(content.decode(), at_char)))
                examples.sort()
                del examples[EXAMPLES:]

    # ------------------------------------------------------------ findings

    def report(self) -> AuditReport:
        """Return what was found."""
        selection = self.selection
        checks = {name: Check(name, *texts) for name, texts in CHECKS.items()}
        self._find_copies(checks)
        self._find_lines(checks["boilerplate"])
        self._find_templates(checks["templates"])
        labels = self._languages(checks["other_languages"])
        for name in MEASURED:
            checks[name].rate = self._rate(self._hits[name])
        self._describe(checks)
        if self._items is None:
            checks["contamination"].rate = None
            checks["contamination"].note = "not looked for: no --benchmark was given"
        else:
            check = checks["contamination"]
            most = [f"{name} {num}" for name, num in check.details[:3]]
            missed = [text.rstrip(".") for text in self._items.warnings()]
            check.note = "; ".join([*most, *missed]) if missed else ""
        checks["unreadable_rows"].rate = estimate(
            self._hits["unreadable_rows"], self._rows, selection.piece_share, 1.0
        )
        for check in checks.values():
            examples = self._examples[check.name]
            check.examples = check.examples or [(location, text) for _, location, text in examples]
        facts = {
            "files": selection.num_files, "files_found": selection.found_files,
            "file_bytes": selection.file_bytes, "columns": sorted(selection.columns),
            "text_bytes": selection.text_bytes, "is_whole": selection.piece_share >= 1,
            "read_documents": int(self._read.sum()), "read_bytes": self._read_bytes,
            "documents": int(self._num_kept.sum()), "bytes": self._bytes,
            "cpu_seconds": round(cpu_seconds() - self._cpu_start, 2), "seed": self._seed,
        }  # fmt: skip
        order = list(checks.values())
        return AuditReport(facts, order, labels, self._lengths(), selection.unreadable)

    def _rate(self, hits: NDArray[np.float64]) -> Rate:
        return estimate(hits, self._num_kept, self.selection.piece_share, self.selection.kept_share)

    def _rate_of(
        self, pieces: NDArray[np.int32], rows: NDArray[Any], share: float, deff: float = 1.0
    ) -> Rate:
        """Return the rate of some rows; `share` of all documents read are in `pieces`."""
        hits, sizes = (
            np.bincount(rows, minlength=len(self._read)).astype(np.float64)
            for rows in (pieces[rows], pieces)
        )
        return estimate(hits, sizes, self.selection.piece_share, share, deff)

    def _find_copies(self, checks: dict[str, Check]) -> None:
        for name, pool in (("exact_duplicates", self._exact), ("near_duplicates", self._near)):
            check, table = checks[name], pool.rows()
            if table is None:
                check.rate = Rate.unknown()
                continue
            keys, pieces = numbers(table.column("key")), numbers(table.column("piece"))
            marks = numbers(table.column("mark"))
            is_exact = name == "exact_duplicates"
            least = self._minhash.verify or 0.0
            copies = exact_copies(marks, keys) if is_exact else near_copies(table, least)
            deff = _design_effect(copies.rows, marks) if pool.share < 1 else 1.0
            rate = self._rate_of(pieces, copies.rows, pool.share, deff)
            notes = []
            if pool.share < 1:
                notes.append(f"looked for among {100 * pool.share:g} % of the texts, by hash")
                if not is_exact:  # of a pair, both are chosen in `least` of all cases or more
                    rate = at_least(rate, least + (1 - least) * pool.share)
            if self.selection.piece_share < 1:
                rate = at_least(rate, self.selection.piece_share)
                notes.append("copies outside of what was read are not met")
            check.rate = rate
            for num, first, second in copies.groups(EXAMPLES):
                a, b = (self._locate(int(pieces[row]), int(keys[row])) for row in (first, second))
                check.details.append((f"{a}; {b}" + ", ..." * (num > 2), f"{num:,} alike"))
            notes += [f"largest group: {check.details[0][1]}"] if check.details else []
            check.note = "; ".join(notes)

    def _find_lines(self, check: Check) -> None:
        high, low, counts = self._lines.totals()
        many = counts >= LINE_COUNT
        high, low, counts, share = high[many], low[many], counts[many], self._lines.share
        repeats = Repeated(
            high, low, np.zeros(len(high), np.bool_), SegmentLimits(LINE_BYTES, 0),
            by_document=True, is_clear=True,
        )  # fmt: skip
        table = self._texts.rows()
        pieces = np.empty(0, np.int32) if table is None else numbers(table.column("piece"))
        ratios: list[NDArray[np.float64]] = [np.empty(0)]
        tops: dict[bytes, int] = {}
        bytes_repeated = bytes_all = 0.0
        for batch in () if table is None else table.to_batches(max_chunksize=4096):
            view = View(batch)
            lines = _lines(view)
            rows = np.flatnonzero(repeats.find(lines))
            data, starts, ends = (lines.compared[0], *(a[rows] for a in lines.compared[1:]))
            repeated = np.bincount(lines.docs[rows], (ends - starts) / share, view.num_docs)
            sizes = view.text.sizes()
            ratios.append(np.minimum(repeated / np.maximum(sizes, 1), 1.0))
            bytes_repeated += repeated.sum()
            bytes_all += sizes.sum()
            hashes, _, _ = hash_units(data, starts, ends, lines.docs[rows], lines.scopes, 0, 0)
            _, firsts = np.unique(hashes, return_index=True)
            times = counts[np.searchsorted(high, hashes[firsts])]
            for i in np.argsort(times * (starts - ends)[firsts])[: 2 * EXAMPLES].tolist():
                tops[data[starts[firsts[i]] : ends[firsts[i]]].tobytes()] = int(times[i])
        top = sorted(tops.items(), key=lambda a: (-len(a[0]) * a[1], a[0]))
        check.details = [
            (_excerpt(line.decode()), f"{times:,} texts") for line, times in top[: 2 * EXAMPLES]
        ]
        check.rate = self._rate_of(pieces, np.concatenate(ratios) >= LINE_SHARE, self._texts.share)
        if self.selection.piece_share < 1:
            check.rate = dataclasses.replace(check.rate, high=None, how="at least")
        check.note = f"{100 * bytes_repeated / max(bytes_all, 1):.1f} % of all text is such lines"

    def _find_templates(self, check: Check) -> None:
        table, texts = self._shapes.rows(), self._texts.rows()
        if table is None or texts is None:
            check.rate = Rate.unknown()
            return
        keys, pieces = numbers(table.column("key")), numbers(table.column("piece"))
        templates = find_templates(table, TEMPLATE_SHARE, LINE_COUNT)
        rate = self._rate_of(pieces, templates.rows, self._shapes.share)
        check.rate = dataclasses.replace(rate, high=None, how="at least")  # of few texts not all
        with_text = numbers(texts.column("key"))
        _, inverse, nums = np.unique(templates.groups, return_inverse=True, return_counts=True)
        for group in np.argsort(-nums, kind="stable")[:EXAMPLES].tolist():
            rows = templates.rows[inverse == group]
            readable = rows[np.isin(keys[rows], with_text)]
            row = int((readable if len(readable) else rows)[0])
            location = self._locate(int(pieces[row]), int(keys[row]))
            check.details.append((location, f"{nums[group]:,} texts"))
            check.note = check.note or f"largest group: {check.details[0][1]}"
            for i in np.flatnonzero(with_text == keys[row]).tolist():
                check.examples.append((location, _excerpt(texts.column("text")[i].as_py())))

    def _languages(self, check: Check) -> list[tuple[str, Rate]]:
        totals = {label: num.sum() for label, num in self._labels.items()}
        order = sorted(totals, key=lambda label: (-totals[label], label))
        if not order:
            return []
        labels = [label for label in order if label != UNDETERMINED] or order
        check.meaning = f"not in the most common language ({labels[0]})"
        self._hits["other_languages"] = self._num_kept - self._labels[labels[0]]
        unsure = self._details["other_languages"]["unsure"]
        check.note = f"{unsure:,} texts of any language with a score below {Language().min_score:g}"
        return [(label, self._rate(self._labels[label])) for label in order[:20]]

    def _describe(self, checks: dict[str, Check]) -> None:
        for name, counts in self._details.items():
            if name != "other_languages":
                ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
                checks[name].details = [(detail, f"{num:,}") for detail, num in ranked if num]

    def _lengths(self) -> dict[str, int]:
        """Return quantiles of the bytes of texts, to 2 %."""
        sums = np.cumsum(self._sizes)
        if not sums[-1]:
            return {}
        shares = {"p1": 0.01, "p10": 0.1, "median": 0.5, "p90": 0.9, "p99": 0.99}
        bins = {name: int(np.searchsorted(sums, share * sums[-1])) for name, share in
                shares.items()}  # fmt: skip
        middle = {name: round(2 ** ((i + 0.5) / 16)) - 1 for name, i in bins.items()}
        return {"mean": round(self._bytes / int(sums[-1])), **middle, "longest": self._longest}


def _bins(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    bins: NDArray[np.int64] = (16 * np.log2(sizes + 1.0)).astype(np.int64)
    return bins


def _lines(view: View) -> TextSegments:
    return find_segments(view, "line", "none", np.zeros(view.num_docs, np.uint64))


def _design_effect(rows: NDArray[np.int64], marks: NDArray[np.uint64]) -> float:
    """Return the design effect of drawing groups: their variance over that of single documents."""
    _, groups, sizes = np.unique(marks, return_inverse=True, return_counts=True)
    hits = np.bincount(groups[rows], minlength=len(sizes))
    rate = len(rows) / len(marks)
    independent = rate * (1 - rate) * len(marks)
    return float(((hits - rate * sizes) ** 2).sum() / independent) if independent else 1.0


def _why(reject: Reject) -> str:
    words = {
        "bad_text": "text is missing or not a string", "bad_json": "not a JSON object",
        "invalid_utf8": "not UTF-8", "too_long": "longer than 16 MiB",
    }  # fmt: skip
    text = reject.text or ""
    if reject.rule == "invalid_utf8" and text.find(_LOST) == len(text) - 1:
        return "UTF-8 cut off within its last character"
    return words.get(reject.rule, reject.rule)


def _excerpt(text: str, position: int = 0) -> str:
    """Return the part of a text around a character, with personal data masked."""
    begin = max(position - EXCERPT_CHARS // 2, 0)
    low, high = max(begin - EXCERPT_CHARS, 0), begin + 2 * EXCERPT_CHARS
    [excerpt] = mask_texts(pa.array([text[low:high]])).to_pylist()
    excerpt = excerpt[begin - low : begin - low + EXCERPT_CHARS]
    ellipsis = "..." if begin + EXCERPT_CHARS < len(text) else ""
    return ("..." if begin else "") + printable(" ".join(excerpt.split())) + ellipsis
