"""What a task wrote (manifest) and what a phase wrote (seal).

A manifest's atomic appearance is the completion of its task; a seal's is the completion of its
phase. Readers trust these, never a folder listing. Deterministic facts (parts, counters) make the
content hash; measured ones (`timing`) are kept beside it.
"""

from __future__ import annotations

from corpuskit.formats.manifest.checked import dump_checked, load_checked
from corpuskit.formats.manifest.parts import Part, Parts, RoleParts
from corpuskit.formats.manifest.records import Manifest, OtherFormatError, Seal

__all__ = [
    "Manifest", "OtherFormatError", "Part", "Parts", "RoleParts", "Seal", "dump_checked",
    "load_checked",
]  # fmt: skip
