"""Repeated spans of text, exactly.

    pass                      reads                     writes              memory
    engine partitioned: ten passes that `partitioned` draws
    engine suffix_array:
    texts (cells)             documents                 `texts`, `sizes`    4 bytes a byte of a cell
    sort (ranges of scopes)   `texts` of a scope        `spans`             14 bytes a byte of all
    either:
    apply (cells)             spans of the cell         sidecar, ledger     200 bytes a document

`symbols` reads documents as bytes or as token ids.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from corpuskit.formats.batch import SPAN, ByteSpans, span_lists
from corpuskit.formats.ledger import Entries
from corpuskit.kernels.arrays import Bools, Float64s, Int64s
from corpuskit.kernels.substring import spans as trims
from corpuskit.kernels.substring.spans import join_spans
from corpuskit.stage import Cost, GlobalStage, Known, Pass, PassContext, View, Volume
from corpuskit.stages.dedup._keep import check_scope
from corpuskit.stages.dedup.substring_dedup import partitioned, suffix_array
from corpuskit.stages.dedup.substring_dedup.symbols import (
    ENCODED_PER_SECOND,
    DocumentSpans,
    SubstringParameters,
    byte_spans,
    columns_of,
)

_TRIMS = {"char": trims.CHAR, "word": trims.WORD, "line": trims.LINE}


class SubstringDedup(SubstringParameters, GlobalStage):
    """Cut passages that occur elsewhere, byte for byte.

    A window of `min_bytes` bytes is repeated if the same bytes occur twice in the corpus,
    in two documents or in one; windows never cross documents. The union of repeated windows is cut,
    except the first copy of each. Use it after minhash_dedup, which is cheaper and removes
    documents that are repeated as a whole: quoted passages, licences and navigation remain.

    Equality is decided by the bytes themselves, so there are no false hits, and both engines find
    the same spans: `suffix_array` is the published method, which needs all texts in the memory of
    one task; `partitioned` is bounded in memory, and faster.

    A span is then shrunk to whole words (`trim`), and text between two spans that is shorter than
    `min_fragment` is cut too. A document left with less than `min_document` is dropped. Instead
    of cutting, documents can be dropped by the share of them that is repeated, or annotated for a
    loss mask or a `threshold`.

    Cutting joins text from both sides of a cut, so a second run finds a little more (0.04 % of the
    bytes).

    Source: Lee et al. 2022, section 4.1: there windows of 50 tokens (about 250 bytes of English),
    and all copies are cut, as with `keep: none`. RefinedWeb (Penedo et al. 2023, appendix G.3)
    compares cutting, masking and dropping documents by share (0.2) or at any hit (0), and drops
    documents that are nearly empty afterwards. OLMo 3 keeps one copy, and cuts what lies between
    two cuts.
    """

    rules = ("repeated_substring", "too_little_left", "repeated_share")
    bounds: ClassVar[Mapping[str, str]] = {
        "too_little_left": "min_document",
        "repeated_share": "max_ratio",
    }

    engine: Literal["partitioned", "suffix_array"] = "partitioned"
    """`partitioned` (bounded memory), or `suffix_array` (the reference: all texts of a scope in
    the memory of one task; the extra `suffix-array`). Same spans."""
    trim: Literal["char", "word", "line"] = "word"
    """What a cut leaves whole: spans shrink to whole characters, words or lines."""
    min_fragment: int = Field(100, ge=0)
    """Text between two spans that is shorter than this, in bytes, is cut with them."""
    action: Literal["cut", "drop", "annotate"] = "cut"
    """Cut the spans, drop documents by `max_ratio`, or only annotate (`spans`,
    `duplicated_ratio`)."""
    min_document: int = Field(200, ge=0)
    """Documents left with fewer bytes after a cut are dropped."""
    max_ratio: float = Field(0.2, ge=0, le=1)
    """With `action: drop`: drop documents of which more than this share is in spans; 0 drops at any
    span."""

    def files(self) -> tuple[str, ...]:
        return () if self.tokenizer is None else (self.tokenizer,)

    def libraries(self) -> tuple[str, ...]:
        if self.tokenizer is None:
            return ()
        fast = importlib.util.find_spec("gigatoken") is not None
        return ("tokenizers", "gigatoken") if fast else ("tokenizers",)

    def needs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(columns_of(self)))

    def adds(self) -> Mapping[str, pa.DataType]:
        if self.action != "annotate":
            return {}
        return {"spans": pa.list_(SPAN), "duplicated_ratio": pa.float64()}

    def check(self, known: Known) -> None:
        check_scope(known, self.scope, self.prefer)
        if self.tokenizer is not None:
            from corpuskit.stages.sequences.tokenize.engines import check_edges

            check_edges(self.tokenizer)
        if self.engine == "suffix_array":
            suffix_array.require_library()

    def passes(self) -> tuple[Pass, ...]:
        read = (*(f"{name}/spans" for name in ("winnow", "refine", "gather", "sort")), "compare/")
        apply = Pass("apply", self.apply_spans, done_with=(*read, "route_windows/"))
        return (*self._engine.passes(self), apply)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        if pass_name != "apply":
            engine_cost: Cost = self._engine.cost(self, volume, pass_name)
            return engine_cost
        # Of bench_en 0.19 is repeated, in half of the documents; those are encoded again.
        encoded = 0 if self.tokenizer is None else volume.text_bytes / 2
        return Cost(
            cpu_seconds=volume.text_bytes / 400e6 + encoded / ENCODED_PER_SECOND,
            unit_bytes=200 * volume.cell_documents + volume.cell_bytes // 4,
            disk_bytes=40 * volume.documents,
        )

    @property
    def _engine(self) -> ModuleType:
        return suffix_array if self.engine == "suffix_array" else partitioned

    def apply_spans(self, context: PassContext) -> None:
        """Write the sidecar of a cell, and the ledger rows of what it cuts or drops."""
        repeats = self._engine.cell_spans(self, context)
        keys, _ = context.part_keys()
        keep, ratios = np.ones(len(keys), np.bool_), np.zeros(len(keys))
        cuts = [ByteSpans.empty()]
        for view in context.read("id", "source", "text") if len(repeats.keys) else ():
            spans = self._spans(view, repeats)
            cell_rows = np.searchsorted(keys, view.keys)
            sizes = view.text.sizes()
            repeated = np.bincount(spans.rows, spans.ends - spans.starts, len(sizes)).astype(float)
            ratios[cell_rows] = repeated / np.maximum(sizes, 1)
            context.count("spans", len(spans.rows))
            context.count("span_bytes", int(repeated.sum()))
            if self.action != "annotate":
                keep[cell_rows] = ~self._decide(context, view, spans, repeated)
            cuts.append(ByteSpans(cell_rows[spans.rows], spans.starts, spans.ends))
        rows, starts, ends = (np.concatenate(arrays) for arrays in zip(*cuts, strict=True))
        lists = span_lists(rows, starts, ends, len(keys))
        if self.action == "annotate":
            context.write_sidecar(keep, {"spans": lists, "duplicated_ratio": pa.array(ratios)})
        else:
            context.write_sidecar(keep, cuts=lists if self.action == "cut" else None)

    def _spans(self, view: View, repeats: DocumentSpans) -> ByteSpans:
        """Return the spans of a view's documents, in bytes, trimmed and joined."""
        low, high = np.searchsorted(repeats.keys, [view.keys[0], view.keys[-1] + 1])
        rows = np.searchsorted(view.keys, repeats.keys[low:high])
        starts, ends = repeats.starts[low:high], repeats.ends[low:high]
        starts, ends = byte_spans(self, view, rows, starts, ends)
        starts, ends = trims.trim_spans(
            *view.text, rows, starts, ends, trims.char_kinds(), _TRIMS[self.trim]
        )
        return ByteSpans(*join_spans(rows, starts, ends, self.min_fragment))

    def _decide(
        self, context: PassContext, view: View, spans: ByteSpans, repeated: Float64s
    ) -> Bools:
        """Add ledger rows for what is cut or dropped; return which documents are dropped."""
        sizes = view.text.sizes()
        has_spans = repeated > 0
        if self.action == "cut":
            values = sizes - repeated
            is_dropped = has_spans & (values < self.min_document)
            rule = "too_little_left"
            kept_rows = np.flatnonzero(has_spans & ~is_dropped)
            counts = np.bincount(spans.rows, minlength=len(sizes)).astype(np.float64)
            self._add_ledger(context, view, spans, "repeated_substring", kept_rows, counts)
        else:
            values = repeated / np.maximum(sizes, 1)
            is_dropped, rule = has_spans & (values > self.max_ratio), "repeated_share"
        self._add_ledger(context, view, spans, rule, np.flatnonzero(is_dropped), values)
        return is_dropped

    def _add_ledger(
        self, context: PassContext, view: View, spans: ByteSpans, rule: str,
        rows: Int64s, values: Float64s
    ) -> None:  # fmt: skip
        """Add a row for each of some documents, with all its spans."""
        if len(rows) == 0:
            return
        context.add_ledger(
            Entries.of(
                view.batch,
                rows,
                context.label,
                rule,
                values[rows],
                self.threshold(rule),
                action="cut" if rule == "repeated_substring" else "drop",
                spans=span_lists(*spans, view.num_docs).take(pa.array(rows)),
            )
        )
