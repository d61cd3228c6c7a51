"""Signatures of a run as MinHash objects of datasketch, and its LSH index (docs/datasketch.md).

datasketch is imported when the first MinHash is made.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import sealed
from corpuskit.errors import UsageError, suggest
from corpuskit.formats.shards import open_parquet
from corpuskit.stages.dedup.minhash_dedup.signatures import (
    ROLE,
    SignatureSettings,
    read_settings,
    read_signatures,
)
from corpuskit.storage import open_ranged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from datasketch import MinHash, MinHashLSH
    from numpy.typing import NDArray

    from corpuskit.formats.manifest import Part
    from corpuskit.storage import Readable


def read_minhashes(
    run_directory: str | Path, stage: str = "minhash_dedup"
) -> Iterator[tuple[str, MinHash]]:
    """Yield (document id, MinHash) of every document that the stage signed, in reading order.

    That includes the duplicates that the stage removed. Yields about 58,000 a second.

    Args:
        run_directory: path or address.
        stage: its label; it must have run with `scheme: datasketch` and `signatures: true`.

    Raises:
        UsageError: the run has no such signatures; says what to do.
    """
    for settings, ids, rows in _batches(run_directory, stage):
        for name, values in zip(ids, rows, strict=True):
            yield name, _minhash(settings, values)


def read_parameters(run_directory: str | Path, stage: str = "minhash_dedup") -> SignatureSettings:
    """Return the settings of the signatures of a stage.

    Raises:
        UsageError: the run has no such signatures; says what to do.
    """
    content, part = _parts(run_directory, stage)[0]
    with open_ranged(content) as source, open_parquet(source, content) as file:
        return _checked(read_settings(file, part.path), stage)


def build_index(
    run_directory: str | Path,
    stage: str = "minhash_dedup",
    *,
    storage_config: Mapping[str, Any] | None = None,
) -> MinHashLSH:
    """Return an LSH index of all signed documents, with the bands of the stage; keys are ids.

    Of documents with the same id, the index has the last one.

    Args:
        run_directory: path or address.
        stage: its label.
        storage_config: where datasketch keeps the index (None: in memory), as in
            `{"type": "redis", "basename": b"web", "redis": {"host": "localhost", "port": 6379}}`.

    Raises:
        UsageError: the run has no such signatures; says what to do.
    """
    from datasketch import MinHashLSH

    settings = read_parameters(run_directory, stage)
    index = MinHashLSH(
        num_perm=settings.num_perm,
        params=(settings.bands, settings.rows),
        storage_config=None if storage_config is None else dict(storage_config),
    )
    with index.insertion_session() as session:
        for name, minhash in read_minhashes(run_directory, stage):
            session.insert(name, minhash, check_duplication=False)
    return index


def similar(index: MinHashLSH, text: str, parameters: SignatureSettings) -> list[str]:
    """Return the sorted ids of candidates: documents that share a band with a text.

    Args:
        index: see `build_index`, or another with the same signatures.
        text: need not be in the index.
        parameters: see `read_parameters`.
    """
    return sorted(index.query(sign_text(text, parameters)))


def sign_text(text: str, parameters: SignatureSettings) -> MinHash:
    """Return the MinHash of a text, equal to that of the stage; computed by datasketch."""
    minhash = _minhash(parameters, None)
    minhash.update_batch(shingle_bytes(text, parameters.ngram))
    return minhash


def shingle_bytes(text: str, ngram: int = 5) -> list[bytes]:
    r"""Return the shingles of a text: n-grams of `\w+` words in lower case, joined by a space.

    A text of fewer words has one shingle of all its words; a text without words has none.
    """
    # A capital sigma becomes the ordinary small one, also at the end of a word: see
    # kernels/wordhash.py.
    words = re.findall(r"\w+", text.replace("\u03a3", "\u03c3").lower())
    if not words:
        return []
    starts = range(max(len(words) - ngram + 1, 1))
    return [" ".join(words[start : start + ngram]).encode() for start in starts]


def hash_function(function: str, precision: int) -> Callable[[bytes], int]:
    """Return the `hashfunc` of a MinHash for a hash function of `scheme: datasketch`.

    Args:
        function: `sha1`, datasketch's default, or `xxhash`, which is three times as fast.
        precision: 32 for the permutations `affine32`, 64 for `affine64`.
    """
    if function == "sha1":
        from datasketch import hashfunc

        hash_function = hashfunc.sha1_hash32 if precision == 32 else hashfunc.sha1_hash64
    else:
        import xxhash

        hash_function = xxhash.xxh32_intdigest if precision == 32 else xxhash.xxh64_intdigest
    return hash_function  # type: ignore[no-any-return]


def _minhash(settings: SignatureSettings, values: NDArray[Any] | None) -> MinHash:
    from datasketch import MinHash

    assert settings.hash_function is not None, "checked: the scheme is datasketch"
    assert settings.precision is not None, "checked: the scheme is datasketch"
    return MinHash(
        num_perm=settings.num_perm,
        seed=settings.seed,
        hashfunc=hash_function(settings.hash_function, settings.precision),
        hashvalues=values,
        permutations=_permutations(settings),
        scheme=f"affine{settings.precision}",
    )


@functools.lru_cache(maxsize=8)
def _permutations(settings: SignatureSettings) -> NDArray[Any]:
    from datasketch import MinHash

    minhash = MinHash(settings.num_perm, settings.seed, scheme=f"affine{settings.precision}")
    return minhash.permutations  # type: ignore[no-any-return]


def _batches(
    run_directory: str | Path, stage: str
) -> Iterator[tuple[SignatureSettings, list[str], NDArray[Any]]]:
    for content, part in _parts(run_directory, stage):
        with open_ranged(content) as source, open_parquet(source, content) as file:
            settings = _checked(read_settings(file, part.path), stage)
            for batch in read_signatures(file, settings):
                yield settings, batch.ids.to_pylist(), batch.values


def _parts(run_directory: str | Path, stage: str) -> list[tuple[Readable, Part]]:
    run = RunDirectory.open(str(run_directory))
    labels = [step.label for step in run.plan.file.steps]
    if stage not in labels:
        raise UsageError(f"{run_directory} has no stage {stage!r}. {suggest(stage, labels)}")
    role = ROLE + stage
    parts = [part for _, seal in sealed(run) for part in seal.by_role(role)]
    if not parts:
        raise UsageError(
            f"{run_directory}: {stage} left no signatures. Run it with scheme: datasketch and "
            "signatures: true."
        )
    return [(run.at(part), part) for part in parts]


def _checked(settings: SignatureSettings, stage: str) -> SignatureSettings:
    if settings.scheme != "datasketch":
        raise UsageError(
            f"{stage}: signatures are of scheme {settings.scheme}, which datasketch cannot read. "
            "Run it with scheme: datasketch."
        )
    return settings
