"""Benchmark items in documents, by the plain n-gram rules of papers.

pass           reads                 writes                                   memory
find (cells)   documents             `hits`: n-grams that items have          24 bytes a match
                                     `counts`: of each, documents
judge (one)    `counts`              `decided`: n-grams that count            the index
apply (cells)  `hits`, `decided`,    sidecar, ledger                          24 bytes a match
               documents with hits
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.errors import UsageError
from corpuskit.formats.batch import numbers, span_lists
from corpuskit.formats.ledger import Entries
from corpuskit.stage import Cost, Example, GlobalStage, Pass
from corpuskit.stages._numbers import among
from corpuskit.stages._routing import one_unit, read_own_rows
from corpuskit.stages.dedup.decontaminate.benchmarks import (
    SEPARATOR,
    BenchmarkStage,
    by_benchmark,
    first_of_rows,
    lists_of_rows,
)
from corpuskit.stages.dedup.decontaminate.index import file_stamps
from corpuskit.stages.dedup.decontaminate.ngrams import (
    CharSpans,
    GramIndex,
    GramRecipe,
    NgramRule,
    gpt3_pieces,
    item_words,
    janitor_pieces,
    open_grams,
    word_spans,
)

if TYPE_CHECKING:
    from corpuskit.kernels.arrays import Bools, Int64s, Uint64s
    from corpuskit.stage import Known, PassContext, Volume


_HITS = pa.schema([("key", pa.int64()), ("word", pa.int64()), ("hash", pa.uint64())])
_COUNTS = pa.schema([("hash", pa.uint64()), ("documents", pa.int64())])
_DECIDED = pa.schema([("hash", pa.uint64()), ("item", pa.int64())])

_DEFAULTS: dict[NgramRule, tuple[int, int | None]] = {
    "gpt3": (13, 10), "janitor": (13, None), "llama3": (8, None), "chunks": (6, 1),
}  # fmt: skip
"""Words of an n-gram, and most documents that may hold one that counts."""

ITEMS, CONTAMINATED = "/items", "/contaminated"
"""Ends of counters of the pass `judge`, after the name of a benchmark."""


class DecontaminateNgrams(BenchmarkStage, GlobalStage):
    """Remove what shares word n-grams with benchmark items, by the rule of a paper.

    Use it to reproduce a paper's numbers, or to compare; `decontaminate` finds more and drops less
    that is clean. The text of an item is its question, then its answer. Words are what whitespace
    separates, in lower case, without punctuation (both of ASCII); n-grams are compared by hash.

    - `gpt3`: 13-grams. Those in more than 10 documents of the run are common phrases, and ignored.
      Of the others 200 characters before and after are cut, too; pieces below 200 characters go,
      and so do documents in more than 10 pieces. Chosen here, where the paper is silent: windows
      that meet are one, short pieces count, what stays of a document is one document.
    - `janitor`: the same in lm-evaluation-harness: no n-gram is ignored, documents with more than
      10 matches go, overlapping ones counted each, and punctuation alone is a word. Documents
      without a match stay; there, they go if they are below 200 characters.
    - `llama3`: 8-grams. An item is contaminated if those that occur in the run cover `min_share` of
      its words; documents that hold an 8-gram of such an item go. The paper counts tokens, and
      chooses the share for each benchmark by its effect on the score; the default is what Llama 2
      calls dirty. `corpuskit contamination` shows how many items are contaminated.
    - `chunks`: no paper's. 6-grams of words as `decontaminate` compares them, and of punctuation
      alone between whitespace; those in more than `max_documents` documents of the run are common
      phrases. Of the others as many as `min_words` words in a row have drop the document, if the
      words weigh `min_weight`. For use with `chunk_words: 0` there.

    Dropped and cut documents name up to 20 items in the ledger (`ngram: mmlu/virology_test/12`).
    Adds `hits`, n-grams that count, and `items`. An n-gram leads to the first item that has it,
    with `llama3` to the first contaminated one.

    Source: Brown et al. 2020 (GPT-3), appendix C; lm-evaluation-harness 0.4
    lm_eval/decontamination/janitor.py; Dubey et al. 2024 (Llama 3), section 5.1.4; Touvron et al.
    2023 (Llama 2), appendix A.6.
    """

    rules = ("ngram", "many_pieces", "little_left")
    bounds: ClassVar[Mapping[str, str]] = {"many_pieces": "max_pieces", "little_left": "min_piece"}
    examples: ClassVar[tuple[Example, ...]] = (
        Example(
            "A ferry leaves Port Amsel at noon with 48 crates of pears and loses a third of.",
            "little_left",
            {"benchmarks": ("sample_data/benchmark.jsonl",)},
        ),
    )

    rule: NgramRule = "gpt3"
    """Whose rule it is."""
    ngram: int | None = Field(None, ge=1, le=64)
    """Words of an n-gram; null: the rule's."""
    max_documents: int | None = Field(None, ge=1)
    """N-grams in more documents of the run than this are ignored; null: 10 with `gpt3`, 1 with
    `chunks`, else none are."""
    min_share: float = Field(0.8, gt=0, le=1)
    """`llama3`: least share of the words of a contaminated item that n-grams cover."""
    min_words: int = Field(8, ge=1)
    """`chunks`: words in a row that drop a document."""
    # 1.6: recall .91 and .94 (six benchmarks; others) at 2 false flags in half of bench_en; 0: .98
    # and .98 at 5.
    min_weight: float = Field(1.6, ge=0)
    """`chunks`: least weight of these words, as in `decontaminate`; marks weigh nothing."""
    window: int = Field(200, ge=0)
    """`gpt3`, `janitor`: characters that are cut before and after an n-gram."""
    min_piece: int = Field(200, ge=0)
    """`gpt3`, `janitor`: pieces of fewer characters are cut, too."""
    max_pieces: int = Field(10, ge=0)
    """`gpt3`: most pieces of a document that stays; `janitor`: most matches."""
    passages: bool = False
    """Count n-grams of passages, too; they are often from texts that many documents have."""
    action: Literal["remove", "annotate"] = "remove"
    """Drop and cut, or only add columns."""

    @model_validator(mode="after")
    def _check_words(self) -> DecontaminateNgrams:
        if self.rule == "chunks" and self.min_words < self._limits[0]:
            least = self._limits[0]
            raise ValueError(
                f"min_words: {self.min_words} is below ngram {least}. Set it to {least} or more, "
                "or lower ngram."
            )
        return self

    def check(self, known: Known) -> None:
        del known
        why, counts = self.not_found()
        if all(num == total for num, total in counts.values()):
            raise UsageError(
                f"benchmarks: all items are {why}, so that nothing would be found. Lower ngram, "
                "or choose another rule."
            )

    def files(self) -> tuple[str, ...]:
        return tuple(path for _, path in self.benchmark_files())

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"hits": pa.int64(), "items": pa.list_(pa.string())}

    def passes(self) -> tuple[Pass, ...]:
        judge = Pass("judge", self.judge, one_unit, done_with=("find/counts",))
        return (
            Pass("find", self.find, is_cell_alone=True),
            *((judge,) if self._compares else ()),
            Pass("apply", self.apply, done_with=("find/hits", "judge/")),
        )

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        size = sum(os.path.getsize(path) for path in self.files() if os.path.exists(path))
        # Matches of 42,648 items in a byte of documents that hold none: 130 in a MB of 6-grams, 6
        # to 7 times as many with each word less, up to one a word. Besides, one a document.
        often = min(1.3e-4 * 6.0 ** max(6 - self._limits[0], 0), 1 / 6)
        matches = volume.documents + int(volume.text_bytes * often)
        in_cell = volume.cell_documents + int(volume.cell_bytes * often)
        seconds, unit, disk = {
            "find": (volume.text_bytes / 100e6, 100 * in_cell, 40 * matches),
            "judge": (volume.cells * 1.3e-3, 30 * size, min(16 * matches, 8 * size)),
            "apply": (volume.text_bytes / 500e6, 100 * in_cell + 8 * size,
                      17 * volume.documents + 20 * matches),
        }[pass_name]  # fmt: skip
        held = (100 if self.rule == "chunks" else 45) * size  # 560 and 280 MB for 5.3 MB of Parquet
        return Cost(
            seconds, 2.0, 50_000_000 + held, unit, disk, units=1 if pass_name == "judge" else None
        )

    def find(self, context: PassContext) -> None:
        """Write the n-grams of items that documents of a cell hold, and in how many each is."""
        index = self._index()
        hits: list[tuple[Int64s, Int64s, Uint64s]] = []
        for view in context.read("text"):
            rows, words, hashes = index.find(view.text)
            hits.append((view.keys[rows], words, hashes))
        if not hits:
            return
        columns = [np.concatenate(column) for column in zip(*hits, strict=True)]
        hit_columns = dict(zip(_HITS.names, columns, strict=True))
        context.write_shuffle("hits", hit_columns, is_sorted=True)
        if self._compares:
            pairs = pa.table(hit_columns).group_by(["hash", "key"]).aggregate([])
            hashes, counts = np.unique(numbers(pairs.column("hash")), return_counts=True)
            context.write_shuffle("counts", {"hash": hashes, "documents": counts}, is_sorted=True)

    def judge(self, context: PassContext) -> None:
        """Write the n-grams that count: those in few documents, and of contaminated items."""
        index, (_, max_documents) = self._index(), self._limits
        totals = np.zeros(len(index.hashes), np.int64)
        for cell in range(len(context.parts("find/counts"))):  # one at a time, for bounded memory
            rows = context.read_shuffle("find/counts", None, None, _COUNTS, (cell, cell + 1))
            grams = np.searchsorted(index.hashes, numbers(rows.column("hash")))
            totals[grams] += numbers(rows.column("documents"))
        counts = (totals > 0) & (totals <= (max_documents or np.inf))
        owners = index.owners
        if self.rule == "llama3":
            is_dirty = index.shares(index.hashes[counts]) >= self.min_share
            is_long = np.diff(index.bounds) >= index.ngram  # the others have no n-gram to compare
            names = np.array([item.partition("/")[0] for item in index.items])
            for name in np.unique(names).tolist():
                context.count(f"{name}{ITEMS}", int(is_long[names == name].sum()))
                context.count(f"{name}{CONTAMINATED}", int(is_dirty[names == name].sum()))
            item_of_word = np.repeat(np.arange(len(is_dirty)), np.diff(index.bounds))
            words = np.flatnonzero(is_dirty[item_of_word] & (index.grams > 0))
            hashes, firsts = np.unique(index.grams[words], return_index=True)
            grams = np.searchsorted(index.hashes, hashes)
            counts &= np.isin(np.arange(len(counts)), grams)
            owners = owners.copy()  # a clean item may have the words of a contaminated one
            owners[grams] = item_of_word[words[firsts]]
        decided = {"hash": index.hashes[counts], "item": owners[counts]}
        context.write_shuffle("decided", decided, is_sorted=True)

    def apply(self, context: PassContext) -> None:
        """Write the sidecar of this cell, and the ledger rows of what is dropped or cut."""
        keys, _ = context.part_keys()
        hit_keys, words, owners = self._hits(context)
        rows = np.searchsorted(keys, hit_keys)
        keep, cuts = np.ones(len(keys), np.bool_), []
        items = self._items(rows, owners, len(keys))
        documents, firsts = np.unique(hit_keys, return_index=True)
        ends = np.append(firsts[1:], len(hit_keys))
        judged = documents if self.action == "remove" else documents[:0]
        for view in context.read("id", "source", "text", keys=judged) if len(judged) else ():
            for view_row in np.flatnonzero(among(view.keys, judged)).tolist():
                number = int(np.searchsorted(documents, view.keys[view_row]))
                row, hits = int(rows[firsts[number]]), slice(firsts[number], ends[number])
                content = np.frombuffer(view.text.row(view_row), np.uint8)
                text = content.tobytes().decode()
                rule, value, limit, char_spans = self._verdict(text, words[hits].tolist())
                keep[row] = rule is None
                # From characters to bytes.
                char_starts = np.append(np.flatnonzero(content & 0xC0 != 0x80), len(content))
                spans = char_starts[np.array(char_spans, np.int64).reshape(-1, 2)].tolist()
                cuts += [(row, *span) for span in spans if keep[row]]
                names = SEPARATOR.join(items[row].as_py())
                context.add_ledger(
                    Entries.of(
                        view.batch,
                        np.array([view_row]),
                        context.label,
                        f"{rule or 'ngram'}: {names}",
                        np.array([float(value)]),
                        limit,
                        action="drop" if rule else "cut",
                        spans=_lists([(0, *span) for span in spans], 1),
                    )
                )
        num_hits = pa.array(np.bincount(rows, minlength=len(keys)))
        lists = _lists(cuts, len(keys)) if cuts else None
        context.write_sidecar(keep, {"hits": num_hits, "items": items}, lists)

    def _hits(self, context: PassContext) -> tuple[Int64s, Int64s, Int64s]:
        """Return the matches of this cell that count: keys, words, items."""
        rows = read_own_rows(context, "find/hits", _HITS)
        if rows.num_rows == 0:
            return (np.empty(0, np.int64),) * 3
        keys, words, hashes = (numbers(rows.column(name)) for name in _HITS.names)
        if self._compares:
            decided = context.read_shuffle("judge/decided", None, None, _DECIDED)
            known, items = numbers(decided.column("hash")), numbers(decided.column("item"))
            counts = among(hashes, known)
            keys, words, hashes = keys[counts], words[counts], hashes[counts]
        else:
            known, items = self._index().hashes, self._index().owners
        owners = items[np.searchsorted(known, hashes)]
        if self.rule == "chunks":
            counts = self.in_a_row(keys, words, hashes)
            keys, words, owners = keys[counts], words[counts], owners[counts]
        return keys, words, owners

    def in_a_row(self, keys: Int64s, words: Int64s, hashes: Uint64s) -> Bools:
        """Return which matches are in runs of `min_words` words that weigh `min_weight`."""
        index = self._index()
        grams = np.searchsorted(index.hashes, hashes)
        is_next = (np.diff(keys, prepend=-1) == 0) & (np.diff(words, prepend=-1) == 1)
        firsts = np.flatnonzero(~is_next)
        sizes = np.diff(np.append(firsts, len(keys)))
        # Of an n-gram one word after another only the last word is new.
        added = np.where(is_next, index.last_weights[grams], index.weights[grams])
        sums = np.append(0.0, np.cumsum(added))
        weights = sums[firsts + sizes] - sums[firsts]  # exact, wherever the work is cut
        is_long = sizes > self.min_words - self._limits[0]
        return np.repeat(is_long & (weights >= self.min_weight), sizes)

    def _verdict(self, text: str, words: list[int]) -> tuple[str | None, int, float, CharSpans]:
        """Judge a document by the first words of the n-grams that count.

        Returns:
            The rule that drops it, what was measured, the threshold, and characters: what matched
            if it is dropped, else what is cut.
        """
        edges, last = word_spans(text, self.rule), self._limits[0] - 1
        spans = [(edges[word][0], edges[word + last][1]) for word in words]
        if self.rule in {"llama3", "chunks"}:
            return "ngram", len(words), np.nan, _joined(spans)
        pieces = janitor_pieces if self.rule == "janitor" else gpt3_pieces
        kept, num = pieces(len(text), spans, self.window, self.min_piece)
        if num > self.max_pieces:
            return "many_pieces", num, self.max_pieces, _joined(spans)
        if not kept:
            return "little_left", 0, self.min_piece, _joined(spans)
        borders = [0, *itertools.chain.from_iterable(kept), len(text)]
        cuts = [span for span in zip(borders[::2], borders[1::2], strict=True) if span[0] < span[1]]
        return None, len(words), np.nan, cuts

    def _items(self, rows: Int64s, owners: Int64s, num: int) -> pa.ListArray:
        """Return the items that each of `num` documents has n-grams of, in order of the items."""
        index = self._index()
        rows, owners = np.divmod(np.unique(rows * len(index.items) + owners), len(index.items))
        is_named = first_of_rows(rows)
        names = pa.array([index.items[item] for item in owners[is_named].tolist()], pa.string())
        return lists_of_rows(rows[is_named], names, num)

    @property
    def _limits(self) -> tuple[int, int | None]:
        """Words of an n-gram; most documents that may hold one that counts, None = any number."""
        ngram, max_documents = _DEFAULTS[self.rule]
        return self.ngram or ngram, self.max_documents or max_documents

    @property
    def _compares(self) -> bool:
        """Whether it depends on other documents of the run which n-grams count."""
        return self._limits[1] is not None or self.rule == "llama3"

    def not_found(self) -> tuple[str, dict[str, tuple[int, int]]]:
        names, num_words = item_words(self._recipe())
        least = max(self._limits[0], self.min_words if self.rule == "chunks" else 1)
        return f"of fewer than {least} words", by_benchmark(names, num_words >= least)

    def _index(self) -> GramIndex:
        return open_grams(self._recipe())

    def _recipe(self) -> GramRecipe:
        files = self.benchmark_files()
        stamps = file_stamps(path for _, path in files)
        return GramRecipe(files, self.columns(), self.rule, self._limits[0], self.passages, stamps)


def _lists(spans: list[tuple[int, ...]], num: int) -> pa.ListArray:
    rows, starts, ends = np.array(spans, np.int64).reshape(-1, 3).T.copy()
    return span_lists(rows, starts, ends, num)


def _joined(spans: CharSpans) -> CharSpans:
    """Join spans that overlap; they are sorted."""
    joined: CharSpans = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
