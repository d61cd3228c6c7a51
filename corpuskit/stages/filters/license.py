"""Licences that files of source code name themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field

from corpuskit.stage import Cost, Example, Outcome, StreamingStage, View, Volume

_TAG = re.compile(rb"SPDX-License-Identifier:[ \t]*([^\r\n]*)")
_MENTION = re.compile(rb"icense|LICENSE|ermission|edistribution|unencumbered|licdomain")
"""Part of every tag and notice below: files without it need no further look."""
_EXPRESSION = re.compile(
    r"\(*[A-Za-z0-9.+:-]+\)*(?:\s+(?:AND|OR|WITH)\s+\(*[A-Za-z0-9.+:-]+\)*)*", re.IGNORECASE
)
_MARKS = re.compile(r"[\s/*#;%!|\"'<>-]+")
"""Characters that begin, end and wrap lines of comments."""

_VERSION = r"(?:,? (?:version|v\.?) ?)([23])(?:\.\d)?"
_LATER = "any later version"

_GRANTS = (
    ("Apache-2.0", "licensed under the apache license,? version 2.0"),
    ("MPL-2.0", "terms of the mozilla public license,? v(?:ersion|.) ?2.0"),
    ("BSL-1.0", "distributed under the boost software license,? version 1.0"),
    ("MIT", "permission is hereby granted, free of charge, to any person obtaining a copy"),
    ("MIT", "(?:under|under the terms of) (?:the )?mit license"),
    ("ISC", "permission to use, copy, modify, and(?: or)? distribute this software for any"),
    (
        "BSD-4-Clause",
        "redistribution and use in source and binary forms.*all advertising materials",
    ),
    ("BSD-3-Clause", "redistribution and use in source and binary forms.*neither the name"),
    ("BSD-2-Clause", "redistribution and use in source and binary forms"),
    ("LicenseRef-BSD-style", "under (?:the|a) bsd style license"),
    ("Unlicense", "this is free and unencumbered software released into the public domain"),
    ("CC0-1.0", "creativecommons.org publicdomain zero 1.0"),
    ("curl", "licensed as described in the file copying.*curl"),
)
"""Identifier -> what its notice says, lower-cased, with the marks above made spaces; in order."""

_GNU = re.compile(r"gnu (lesser |library |affero )?general public license")
_MIT = "Permission is hereby granted, free of charge, to any person obtaining a copy of this"


def _identifier(value: str) -> str:
    if _EXPRESSION.fullmatch(value) is None or re.search(r"[\s()]", value):
        raise ValueError("must be an SPDX identifier such as MIT")
    return value


class License(StreamingStage):
    """Read the licence from a file's header, and drop files whose licence is not allowed.

    The licence is what `SPDX-License-Identifier:` says in the first `head_chars`, as an expression;
    several tags count together (AND). Without a tag the notices of 15 well-known licences are
    looked for; `evidence` is `spdx` or `notice`. A notice says what a file's author wrote, no
    more: a repository's LICENSE file, which most files rely on, is not seen here, nor is a notice
    that was copied with code. Without `allow` nothing is dropped.

    Of `A OR B` one must be allowed, of `A AND B` both; `A WITH exception` is allowed if `A` is.
    Capitals do not matter. The reason in the ledger names the licence: `not_allowed: GPL-2.0-only`.

    Source: SPDX 2.3, annexes D (expressions) and E (short identifiers in source files).
    """

    rules: ClassVar[tuple[str, ...]] = ("not_allowed", "missing")
    examples: ClassVar[tuple[Example, ...]] = (
        Example("# SPDX-License-Identifier: GPL-2.0-only\nimport os\n"),
        Example("// SPDX-License-Identifier: MIT\nint x;\n", None, {"allow": ("MIT",)}),
        Example("/* SPDX-License-Identifier: GPL-2.0 */", "not_allowed", {"allow": ("MIT",)}),
        Example("// SPDX-License-Identifier: (MIT OR GPL-2.0+)", None, {"allow": ("MIT",)}),
        Example("// SPDX-License-Identifier: MIT AND ISC", "not_allowed", {"allow": ("MIT",)}),
        Example(f"# {_MIT}\n# software.\n", None, {"allow": ("MIT",)}),
        Example(f"# {_MIT}\n# software.\n", "missing", {"notices": False, "missing": "drop"}),
        Example("import os\n", "missing", {"allow": ("MIT",), "missing": "drop"}),
    )

    allow: tuple[Annotated[str, AfterValidator(_identifier)], ...] | None = None
    """SPDX identifiers of the licences to keep, such as MIT; `null` drops none."""
    missing: Literal["keep", "drop"] = "keep"
    """What to do with files that name no licence."""
    notices: bool = True
    """Also look for the notices of well-known licences."""
    head_chars: int = Field(8192, gt=0)
    """Characters at the beginning of a file to look at."""

    def adds(self) -> Mapping[str, pa.DataType]:
        return {"spdx": pa.string(), "evidence": pa.string()}

    def values(self) -> Mapping[str, frozenset[str]]:
        return {"evidence": frozenset({"spdx", "notice"})}

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(cpu_seconds=volume.documents * 8192 / 100e6)

    def apply(self, view: View) -> Outcome:
        text = view.text
        begins, ends = text.offsets[:-1], text.offsets[1:]
        stops = np.minimum(begins + 4 * self.head_chars, ends)
        results = [
            self._find(text.data[start:stop].tobytes())
            for start, stop in zip(begins.tolist(), stops.tolist(), strict=True)
        ]
        licences = [licence for licence, _ in results]
        codes = np.zeros(view.num_docs, np.uint8)
        if self.missing == "drop":
            codes[[licence is None for licence in licences]] = 2
        if self.allow is not None:
            allow = frozenset(name.lower() for name in self.allow)
            codes[[name is not None and not is_allowed(name, allow) for name in licences]] = 1
        reasons = [f"not_allowed: {licences[row]}" if code == 1 else None
                   for row, code in enumerate(codes.tolist())]  # fmt: skip
        columns = zip(self.adds(), zip(*results, strict=True) if results else ((), ()), strict=True)
        return Outcome(
            codes=codes,
            reasons=pa.array(reasons, pa.string()),
            columns={name: pa.array(column, pa.string()) for name, column in columns},
        )

    def _find(self, data: bytes) -> tuple[str | None, str | None]:
        """Return the licence that the first bytes of a file name, and the evidence."""
        if _MENTION.search(data) is None:
            return None, None
        head = data.decode("utf-8", "ignore")[: self.head_chars].encode()
        tags = [_EXPRESSION.match(tag.decode().strip()) for tag in _TAG.findall(head)]
        names = dict.fromkeys(tag.group() for tag in tags if tag is not None)
        if names:
            several = len(names) > 1
            return " AND ".join(f"({n})" if several and " " in n else n for n in names), "spdx"
        licence = find_notice(head.decode()) if self.notices else None
        return licence, None if licence is None else "notice"


def find_notice(head: str) -> str | None:
    """Return the licence whose notice the beginning of a file has, None if there is none."""
    plain = _MARKS.sub(" ", head.lower())
    gnu = _GNU.search(plain)
    if gnu is not None:
        kind = {"": "GPL", "affero ": "AGPL"}.get(gnu.group(1) or "", "LGPL")
        around = plain[max(gnu.start() - 300, 0) : gnu.end() + 400]
        version = re.search(_VERSION, around) or re.search(r"(?:version|v) ?([23])", around)
        if version is not None:
            minor = "2.1" if kind == "LGPL" and "2.1" in around else f"{version.group(1)}.0"
            return f"{kind}-{minor}-{'or-later' if _LATER in around else 'only'}"
    for licence, notice in _GRANTS:
        if re.search(notice, plain):
            return licence
    return None


def is_allowed(expression: str, allow: frozenset[str]) -> bool:
    """Return whether an SPDX expression can be met by allowed licences.

    Args:
        expression: AND binds tighter than OR.
        allow: identifiers in lower case.
    """

    def judge(match: re.Match[str]) -> str:
        return "yes" if {match.group(), match[1]} & allow else "no"

    verdicts = re.sub(
        r"(?<![\w.+:-])(?!and\b|or\b)([\w.+:-]+)( with [\w.+:-]+)?", judge, expression.lower()
    )
    while "(" in verdicts:
        inner = re.sub(r"\(([^()]*)\)", lambda match: _either(match[1]), verdicts)
        verdicts = inner if inner != verdicts else verdicts.replace("(", " ")
    return _either(verdicts.replace(")", " ")) == "yes"


def _either(verdicts: str) -> str:
    """Return yes if all verdicts of one alternative between `or` are yes."""
    answers = [re.findall("yes|no", answer) for answer in re.split(r"\bor\b", verdicts)]
    return "yes" if any(answer and "no" not in answer for answer in answers) else "no"
