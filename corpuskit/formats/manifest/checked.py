"""JSON files that carry a digest of themselves, so that a flipped bit is noticed."""

from __future__ import annotations

import json
from typing import Any

from corpuskit.errors import DataError
from corpuskit.formats.manifest.parts import digest_bytes, dump

DIGEST = "digest"


def dump_checked(fields: dict[str, Any]) -> bytes:
    """Return canonical JSON of `fields` and of their blake2b-128, under the key `digest`."""
    return dump({**fields, DIGEST: digest_bytes(dump(fields))})


def load_checked(content: bytes, where: str) -> dict[str, Any]:
    """Return the fields that `dump_checked` wrote, without the digest.

    Args:
        where: the file, for messages.

    Raises:
        DataError: it is no JSON object, or not what was written.
    """
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be read: {error}.") from None
    if not isinstance(fields, dict):
        raise DataError(f"{where}: cannot be read: it holds no JSON object.")
    if fields.pop(DIGEST, None) != digest_bytes(dump(fields)):
        raise DataError(f"{where}: is damaged: its content and its digest differ.")
    return fields
