"""JSON records that say what they must hold: a flipped bit in one is seen, not believed."""

from __future__ import annotations

import json
from typing import Any

from corpuskit.errors import DataError
from corpuskit.manifest.parts import digest_bytes, dump


def dump_checked(fields: dict[str, Any]) -> bytes:
    """Return canonical JSON of the fields and of a `digest` over them (blake2b-128, hex)."""
    return dump({**fields, "digest": digest_bytes(dump(fields))})


def load_checked(content: bytes, where: str) -> dict[str, Any]:
    """Return the fields of a record without its `digest`.

    Raises:
        DataError: it is not a JSON object, has no digest, or the digest is not that of the fields.
    """
    try:
        fields = json.loads(content)
        digest = fields.pop("digest")
        is_whole = digest_bytes(dump(fields)) == digest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{where}: not a record of a run: {error!r}.") from None
    if not is_whole:
        raise DataError(f"{where}: damaged: its digest is not that of its content.")
    return fields  # type: ignore[no-any-return]
