"""The documents that `holdout` set aside, tokenized as the run tokenized the others."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from corpuskit.errors import DataError, UsageError
from corpuskit.formats.batch import numbers, utf8
from corpuskit.formats.manifest import Part, Seal
from corpuskit.formats.shards import read_documents
from corpuskit.loader.index import PLAN_FORMAT
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.stages.sequences.tokenize.definition import define, identify
from corpuskit.stages.sequences.tokenize.engines import token_edges
from corpuskit.stages.sequences.tokenize.ranks import NAMES_OF_BYTES
from corpuskit.stages.sequences.tokenize.sentencepiece import SPACE
from corpuskit.storage import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from corpuskit.kernels.arrays import Uint32s
    from corpuskit.train.tasks import Question, TaskItem

ROLE = "aside:holdout"
_PLAN_FORMAT = 1  # of plan.json; the engine, which writes it, cannot be imported here
CACHED_TOKENS = 1 << 24
"""Tokens of this rank's documents that are kept after the first pass, 64 MB; sources beyond that
are read and tokenized at each pass."""

ADVICE = (
    "Add `- holdout: {ratio: 0.005}` before dedup in the pipeline and run it again, or name a run "
    "that has it in evaluate.data"
)
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_BYTES_OF_NAMES = {name: byte for byte, name in NAMES_OF_BYTES.items()}


class HeldOutDocument(NamedTuple):
    """A held-out document.

    Attributes:
        tokens: (T,) uint32 as `pack` would have seen them: with bos and eos, if the run has them.
        text_bytes: UTF-8 bytes of text that all tokens but the first spell, the first being given
            and not predicted: all of the text if the document begins with bos. An eos is
            predicted, and spells none.
    """

    tokens: Uint32s
    text_bytes: int


class HeldOutRun:
    """The held-out documents of a run.

    Args:
        address: what the user calls the run directory.
        parts: of each source that has documents, in the order of their keys.
        stage: tokenizes as the run did.
        max_documents: of each source.
    """

    def __init__(
        self, store: Store, parts: Mapping[str, Sequence[Part]], stage: Tokenize, max_documents: int
    ) -> None:
        self.address = store.address
        self.source_names = tuple(parts)
        self._store, self._parts, self._stage = store, parts, stage
        self._max_documents = max_documents
        self._spelling = find_spelling(stage)
        self._cache: dict[tuple[str, int, int], list[HeldOutDocument]] = {}
        self._cache_tokens = CACHED_TOKENS

    def documents(self, source: str, rank: int, ranks: int) -> Iterator[HeldOutDocument]:
        """Yield every `ranks`-th document of a source, from the one with number `rank` on.

        Documents are numbered from 0 by their keys: file by file, in the order in which they were
        read; the first `max_documents` count. One row group of text is in memory at a time.

        Raises:
            DataError: a part is damaged.
        """
        request = (source, rank, ranks)
        if request in self._cache:
            yield from self._cache[request]
            return
        documents: list[HeldOutDocument] | None = []
        num_tokens = 0
        for document in self._read(*request):
            yield document
            num_tokens += len(document.tokens)
            if num_tokens > self._cache_tokens:
                documents = None
            elif documents is not None:
                documents.append(document)
        if documents is not None:
            self._cache[request] = documents
            self._cache_tokens -= num_tokens

    def _read(self, source: str, rank: int, ranks: int) -> Iterator[HeldOutDocument]:
        for number, batch in self._batches(source):
            rows = np.arange(number + (rank - number) % ranks, number + len(batch), ranks) - number
            if len(rows):
                yield from tokenize_batch(self._stage, batch.take(pa.array(rows)), self._spelling)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield (source, text) of the documents that `documents` tokenizes, in its order.

        Raises:
            DataError: a part is damaged.
        """
        for source in self.source_names:
            for _, batch in self._batches(source):
                for text in batch.column("text").to_pylist():
                    yield source, text

    def _batches(self, source: str) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of the first document of each batch, and the batch."""
        number = 0
        for part in self._parts[source]:
            file = self._store.at(part.path, digest=part.digest)
            for batch in read_documents(file, ["key", "text"]):
                yield number, batch.slice(0, self._max_documents - number)
                number += len(batch)
                if number >= self._max_documents:
                    return


def tokenize_batch(
    stage: Tokenize, batch: pa.RecordBatch, spelling: Callable[[Uint32s, bytes], int]
) -> Iterator[HeldOutDocument]:
    """Yield the documents of a batch as `pack` would have seen them.

    Args:
        spelling: as `find_spelling` returns it.
    """
    outcome = stage.apply(View(batch))
    assert outcome.columns is not None, "tokenize adds one"
    lists = outcome.columns["tokens"]
    offsets = numbers(lists.offsets)
    ids = numbers(lists.values).astype(np.uint32, copy=False)
    texts = utf8(batch.column("text"))
    for row in range(len(batch)):
        tokens = ids[offsets[row] : offsets[row + 1]].copy()
        yield HeldOutDocument(tokens, spelling(tokens, texts.row(row)))


def tokenize_texts(stage: Tokenize, texts: Sequence[str]) -> Iterator[HeldOutDocument]:
    """Yield texts as a run with this stage would have packed them."""
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    yield from tokenize_batch(stage, batch, find_spelling(stage))


def encode_task(
    questions: Sequence[tuple[str, Question]], tokenizer: Tokenize, *, unconditional: bool
) -> list[TaskItem]:
    """Encode the questions of a task as the documents of a run were encoded."""
    from corpuskit.train.tasks import encode_items

    facts = tokenizer.provides({})["tokenizer"]
    begin = next(facts[name] for name in ("bos", "eos", "pad") if facts[name] is not None)
    encode = bare_encoder(tokenizer)
    return encode_items(
        questions, encode, begin=begin, always_begin=tokenizer.add_bos, unconditional=unconditional
    )


def open_held_out(run_dir: str, max_documents: int, tokens: str | None = None) -> HeldOutRun:
    """Open the documents that the `holdout` stage of a run set aside; no text is read yet.

    What the pipeline does after `holdout` (filters, rewriters, dedup) was not done to them.

    Args:
        run_dir: a finished run: a folder, or an address.
        max_documents: of each source, the first ones.
        tokens: the run whose tokenizer counts, if another one than `run_dir`.

    Raises:
        UsageError: there is no run, or no holdout in it; or the tokenizer is gone or has changed.
        DataError: the held-out documents are not those of the run's token shards.
    """
    store = open_store(run_dir)
    plan = _read_plan(store)
    step = _find_step(plan, "holdout")
    if step is None:
        raise UsageError(f"{run_dir}: the run has no holdout stage. {ADVICE}.")
    seal = _find_seal(store, plan, step)
    if seal is None:
        raise UsageError(
            f"{run_dir}: holdout set no document aside, or has not run yet. "
            "Run the pipeline to its end, or raise holdout.ratio."
        )
    if tokens is None or tokens == run_dir:
        _require_same_documents(store, plan, seal)
    by_source: dict[str, list[Part]] = {str(source["label"]): [] for source in plan["sources"]}
    for part in seal.by_role(ROLE):
        by_source.setdefault(part.source, []).append(part)
    parts = {
        name: sorted(documents, key=lambda part: (part.first, part.unit))
        for name, documents in by_source.items()
        if documents
    }
    return HeldOutRun(store, parts, open_tokenizer(tokens or run_dir), max_documents)


def open_tokenizer(run_dir: str) -> Tokenize:
    """Return the `tokenize` stage of a finished run, with the file that it used.

    Raises:
        UsageError: the file is gone, or has changed.
    """
    store = open_store(run_dir)
    plan, mix = _read_plan(store), _read_json(store, "mix/plan.json", PLAN_FORMAT)
    step = _find_step(plan, "tokenize")
    if step is None:
        raise UsageError(f"{run_dir}: the run has no tokenize stage. Run a pipeline with one.")
    params, expected = step["params"], mix["tokenizer"]["hash"]
    path = str(params["tokenizer"])
    # Relative to the folder the run was started in, which may be on another machine; else to here.
    paths = dict.fromkeys((os.path.join(str(plan.get("folder", "")), path), path))
    existing = [path for path in paths if os.path.exists(path)]
    if not existing:
        raise UsageError(
            f"{run_dir}: its tokenizer is not at {' nor at '.join(paths)}. Put the file there: "
            "held-out documents are tokenized with it."
        )
    for path in existing:
        stage = Tokenize.model_validate({**params, "tokenizer": path})
        if identify(stage._spec) == expected:
            return stage
    raise UsageError(
        f"{existing[0]}: is not the tokenizer of {run_dir}: its hash is {identify(stage._spec)}, "
        f"that of the run's {expected}. Restore the file, or run the pipeline again."
    )


def bare_encoder(stage: Tokenize) -> Callable[[Sequence[str]], list[Uint32s]]:
    """Return a function of texts to their token ids, without what begins or ends documents."""
    bare = stage.model_copy(update={"add_bos": False, "add_eos": False})

    def encode(texts: Sequence[str]) -> list[Uint32s]:
        batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
        lists = bare.apply(View(batch)).columns["tokens"]
        ids = numbers(lists.values).astype(np.uint32, copy=False)
        return np.split(ids, numbers(lists.offsets)[1:-1])

    return encode


def find_spelling(stage: Tokenize) -> Callable[[Uint32s, bytes], int]:
    """Return a function of a document's tokens and text: bytes that its predicted tokens spell.

    Where names of tokens say what they spell (vocabularies of bytes, pieces with a mark for a
    space), the bytes are exact, and compared with the text. Otherwise (text is normalized) they are
    the text without what the first token stands for; of SentencePiece, its length after
    normalization.
    """
    definition = define(stage._spec)
    silent = set() if stage.allow_special else set(definition.specials)
    tables: list[dict[int, bytes]] = [{}, {}]
    for name, number in definition.vocabulary.items():
        for table, spell in zip(tables, (_spell_bytes, _spell_pieces), strict=True):
            table[number] = b"" if name in silent else spell(name)

    def predicted(tokens: Uint32s, text: bytes) -> int:
        inner = tokens[1 : len(tokens) - stage.add_eos].tolist()
        if not inner or stage.add_bos:
            return len(text) if inner else 0
        for table in tables:
            spelled = b"".join(map(table.__getitem__, inner))
            if text.endswith(spelled):
                return len(spelled)
        if definition.model is not None:
            return max(len(text) - len(tables[1][int(tokens[0])].strip(b" ")), 0)
        ends = token_edges(stage.tokenizer, text.decode())[1]
        return len(text) - int(ends[0]) if len(ends) else 0

    return predicted


def _spell_bytes(name: str) -> bytes:
    """Return what a token of a vocabulary of bytes spells; added ones spell their names."""
    try:
        return bytes(map(_BYTES_OF_NAMES.__getitem__, name))
    except KeyError:
        return name.encode()


def _spell_pieces(name: str) -> bytes:
    """Return what a piece of SentencePiece spells, unless it is the first: that may add a space."""
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()


def _read_plan(store: Store) -> dict[str, Any]:
    """Return `plan.json` of a run.

    Raises:
        UsageError: there is none.
        DataError: it is not one of ours.
    """
    if not store.exists("plan.json"):
        raise UsageError(
            f"{store.address}: not a run directory, it has no plan.json. It says how the run "
            "tokenized and where its held-out documents are: keep it beside mix/ and tokens/."
        )
    return _read_json(store, "plan.json", _PLAN_FORMAT)


def _read_json(store: Store, name: str, version: int) -> dict[str, Any]:
    where = store.where(name)
    if not store.exists(name):
        raise UsageError(f"{where}: no such file. Give the directory of a finished run.")
    try:
        fields = json.loads(store.read(name))
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}. Run the pipeline again.") from None
    if not isinstance(fields, dict) or fields.get("format") != version:
        raise DataError(f"{where}: format must be {version}. Run the pipeline again.")
    return fields


def _find_step(plan: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    return next((step for step in plan["steps"] if step["name"] == name), None)


def _find_seal(store: Store, plan: Mapping[str, Any], step: Mapping[str, Any]) -> Seal | None:
    """Return the seal of the phase that has the holdout: a phase is named after its last stage."""
    labels = [candidate["label"] for candidate in plan["steps"]]
    names = [f"manifests/{label}/seal.json" for label in labels[labels.index(step["label"]) :]]
    for name, content in zip(names, store.read_each(names), strict=True):
        if content is not None:
            seal = Seal.from_json(content, store.where(name))
            if len(seal.by_role(ROLE)):
                return seal
    return None


def _require_same_documents(store: Store, plan: Mapping[str, Any], seal: Seal) -> None:
    """Refuse if the holdout ran again since the mix was made: its documents may be trained on."""
    step = _find_step(plan, "mix")
    name = f"manifests/{step['label'] if step else 'mix'}.plan/seal.json"
    [content] = store.read_each([name])
    if content is None or seal.content not in Seal.from_json(content, store.where(name)).inputs:
        raise DataError(
            f"{store.address}: the held-out documents are newer than the token shards, which may "
            "hold some of them. Run the pipeline to its end."
        )
