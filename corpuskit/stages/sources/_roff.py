"""Manual pages as plain text: takes the markup off, lays nothing out."""

from __future__ import annotations

import re

SPECIAL = {
    "em": "\u2014", "en": "\u2013", "hy": "-", "bu": "\u2022", "aq": "'", "dq": '"', "ga": "`",
    "lq": "\u201c", "rq": "\u201d", "oq": "\u2018", "cq": "\u2019", "co": "\u00a9", "rg": "\u00ae",
    "ti": "~", "ha": "^", "rs": "\\", "sl": "/", "ba": "|", "mu": "\u00d7", "+-": "\u00b1",
    "<=": "\u2264", ">=": "\u2265", "->": "\u2192", "<-": "\u2190", "de": "\u00b0", "mc": "\u00b5",
    "tm": "\u2122",
}  # fmt: skip
SINGLE = {
    "e": "\\",
    "-": "-",
    " ": " ",
    "~": " ",
    "0": " ",
    "'": "'",
    "`": "`",
    ".": ".",
    "\\": "\\",
}

HEADINGS = {"SH", "SS", "Sh", "Ss"}
BREAKS = set("PP P LP TP TQ IP HP Pp It sp br Bl El nf fi EX EE".split())
WORDS = set(
    "B I SM SB Nm Ar Cm Fl Op Xr Em Sy Pa Nd Li Va Dq Sq Ql Fn Dv Ev Ic UR MT Lk Mt Ns Pq Fa Ft "
    "No".split()
)
JOINED = {"BR", "RB", "BI", "IB", "IR", "RI"}
"""Macros that set their arguments in turn in two fonts, without spaces between."""

_ESCAPE = re.compile(
    r"""\\(?:
        f(?:\[[^]]*\]|\(..|.)            # font
      | s[+-]?(?:\[[^]]*\]|\(..|\d\d?)   # size
      | [nm*](?:\[[^]]*\]|\(..|.)        # register, colour, string
      | \[(?P<long>[^]]*)\] | \((?P<pair>..)
      | [hvwlLoXZ]'[^']*'                # motions and drawings
      | ["#].*                           # comment
      | (?P<single>.)
    )""",
    re.VERBOSE,
)
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|(\S+)')


def roff_text(source: str) -> str:
    """Return the text of a manual page: headings on lines of their own, paragraphs joined.

    Tables, conditionals and definitions of macros are left out. An alias (`.so`) has no text.
    """
    paragraphs: list[list[str]] = [[]]
    until = ""
    for line in source.splitlines():
        if until:
            until = "" if line.strip() == until else until
        elif re.match(r"['.]\s*\w", line):
            name, _, rest = line[1:].strip().partition(" ")
            until = {"de": "..", "ig": "..", "TS": ".TE", "EQ": ".EN"}.get(name, "")
            _add_macro(paragraphs, name, rest)
        elif not line.strip():
            paragraphs.append([])
        elif line[0] not in "'.":
            paragraphs[-1].append(_plain(line))
    blocks = (" ".join(" ".join(words).split()) for words in paragraphs)
    return "\n\n".join(block for block in blocks if block)


def _add_macro(paragraphs: list[list[str]], name: str, rest: str) -> None:
    arguments = [_plain((a or b).replace('""', '"')) for a, b in _ARGUMENT.findall(rest)]
    if name in HEADINGS:
        paragraphs += [[" ".join(arguments)], []]
    elif name in BREAKS:
        paragraphs.append([])
        if name in {"IP", "It"} and arguments:
            paragraphs[-1].append(arguments[0] if name == "IP" else " ".join(arguments))
    elif name in JOINED:
        paragraphs[-1].append("".join(arguments))
    elif name in WORDS:
        paragraphs[-1].append(" ".join(arguments))


def _plain(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        name = match["long"] or match["pair"]
        if name is not None:
            if re.fullmatch(r"u[0-9A-F]{4,5}", name):
                return chr(int(name[1:], 16))
            return SPECIAL.get(name, "")
        return SINGLE.get(match["single"] or "", "")

    return _ESCAPE.sub(replace, text)
