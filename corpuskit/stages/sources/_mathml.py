"""Presentation MathML to LaTeX."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_DEPTH = 60
"""What is nested deeper becomes its text, without structure."""

_NAMES = (
    "\u03b1 alpha \u03b2 beta \u03b3 gamma \u03b4 delta \u03f5 epsilon \u03b5 varepsilon \u03b6 "
    "zeta \u03b7 eta \u03b8 theta \u03d1 vartheta \u03b9 iota \u03ba kappa \u03bb lambda \u03bc "
    "mu \u03bd nu \u03be xi \u03c0 pi \u03d6 varpi \u03c1 rho \u03f1 varrho \u03c3 sigma \u03c2 "
    "varsigma \u03c4 tau \u03c5 upsilon \u03d5 phi \u03c6 varphi \u03c7 chi \u03c8 psi \u03c9 "
    "omega \u0393 Gamma \u0394 Delta \u0398 Theta \u039b Lambda \u039e Xi \u03a0 Pi \u03a3 "
    "Sigma \u03a5 Upsilon \u03a6 Phi \u03a8 Psi \u03a9 Omega \u2202 partial \u2207 nabla \u221e "
    "infty \u210f hbar \u2113 ell \u211c Re \u2111 Im \u2135 aleph \u2205 emptyset \u2200 "
    "forall \u2203 exists \u00ac neg \u2227 wedge \u2228 vee \u2229 cap \u222a cup \u2295 oplus "
    "\u2297 otimes \u00b1 pm \u2213 mp \u00d7 times \u00f7 div \u22c5 cdot \u00b7 cdot \u2218 "
    "circ \u2217 ast \u22c6 star \u2022 bullet \u2020 dagger \u2216 setminus \u2264 leq \u2265 "
    "geq \u226a ll \u226b gg \u2260 neq \u2261 equiv \u2248 approx \u2243 simeq \u2245 cong "
    "\u223c sim \u221d propto \u227a prec \u227b succ \u2208 in \u2209 notin \u220b ni \u2282 "
    "subset \u2283 supset \u2286 subseteq \u2287 supseteq \u22a2 vdash \u22a8 models \u22a5 "
    "perp \u2223 mid \u2225 parallel \u2192 to \u2190 leftarrow \u2194 leftrightarrow \u21d2 "
    "Rightarrow \u21d0 Leftarrow \u21d4 Leftrightarrow \u21a6 mapsto \u27f6 longrightarrow "
    "\u2191 uparrow \u2193 downarrow \u2026 ldots \u22ef cdots \u22ee vdots \u22f1 ddots \u2032 "
    "prime \u2211 sum \u220f prod \u2210 coprod \u222b int \u222c iint \u222d iiint \u222e oint "
    "\u22c2 bigcap \u22c3 bigcup \u2a01 bigoplus \u27e8 langle \u27e9 rangle \u2016 Vert \u230a "
    "lfloor \u230b rfloor \u2308 lceil \u2309 rceil \u221a surd \u2220 angle \u25b3 triangle "
).split()
SYMBOLS = {symbol: f"\\{name}" for symbol, name in zip(_NAMES[::2], _NAMES[1::2], strict=True)} | {
    "\u2212": "-", "\u2061": "", "\u2062": "", "\u2063": "", "\u2064": "", "\u200b": "",
    "\u00a0": "~", "\\": r"\backslash", "{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#",
    "&": r"\&", "$": r"\$", "_": r"\_",
}  # fmt: skip
FUNCTIONS = frozenset(
    "arccos arcsin arctan arg cos cosh cot coth csc deg det dim exp gcd hom inf ker lg lim liminf "
    "limsup ln log max min Pr sec sin sinh sup tan tanh".split()
)
ALPHABETS = {
    "DOUBLE-STRUCK": "mathbb", "SCRIPT": "mathcal", "FRAKTUR": "mathfrak",
    "BLACK-LETTER": "mathfrak", "MONOSPACE": "mathtt", "SANS-SERIF": "mathsf", "BOLD": "mathbf",
}  # fmt: skip
"""Words in Unicode's names of letters and, in small letters, in values of mathvariant."""
_ACCENTS = {
    "hat": "^\u02c6\u0302", "tilde": "~\u02dc\u0303", "overline": "\u00af\u203e\u2015\u0304_",
    "vec": "\u2192\u20d7", "dot": "\u02d9\u0307.", "ddot": "\u00a8\u0308", "check": "\u02c7",
    "breve": "\u02d8", "overbrace": "\u23de",
}  # fmt: skip
OVER = {sign: name for name, signs in _ACCENTS.items() for sign in signs}
UNDER = {"\u23df": "underbrace"} | dict.fromkeys("_\u00af\u203e\u2015\u0332", "underline")
LIMITS = re.compile(
    r"\\(?:sum|(co)?prod|i{0,2}int|oint|big\w+|lim(inf|sup)?|max|min|sup|inf|det|gcd|Pr"
    r"|(over|under)brace\{.*\})"
)
"""Bases that LaTeX puts limits below and above of; others get \\underset and \\overset."""
MATRICES = {
    "(": ("pmatrix", ")"), "[": ("bmatrix", "]"), "|": ("vmatrix", "|"), "{": ("cases", ""),
}  # fmt: skip
"""Opening fence -> environment, closing fence."""


def to_latex(math: Any) -> str:
    """Return a formula as LaTeX: its annotation in TeX if it has one, else made from its elements.

    Elements that are unknown or have other children than they should keep their text, and so do
    letters for which LaTeX has no command.

    Args:
        math: a `<math>` element of resiliparse's tree.

    Source: MathML 3, chapter 3 (presentation markup); LaTeXML for `alttext`.
    """
    for note in math.query_selector_all("annotation"):
        if (note.getattr("encoding") or "").lower() in {"application/x-tex", "tex", "latex"}:
            return " ".join(note.text.split())
    is_from_tex = "ltx_Math" in (math.class_name or "")
    text = (is_from_tex and math.getattr("alttext")) or _row(math, 0)
    return " ".join(text.split())


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes in a node; resiliparse's `child_nodes` takes quadratic time."""
    child = node.first_child
    while child is not None:
        yield child
        child = child.next_sibling


def _elements(node: Any) -> list[Any]:
    return [child for child in children(node) if not child.tag.startswith("#")]


def _row(node: Any, depth: int) -> str:
    """Return the children one after another; a table between fences is a matrix."""
    nodes = [child for child in children(node) if child.tag != "#comment"]
    nodes = [child for child in nodes if child.tag != "#text" or child.text.strip()]
    pieces: list[str] = []
    while nodes:
        first = nodes.pop(0)
        name, end = MATRICES.get(first.text.strip() if first.tag == "mo" else "", ("", ""))
        table = _only_table(nodes[0]) if name and nodes else None
        is_closed = len(nodes) > 1 and nodes[1].tag == "mo"
        if table and (nodes[1].text.strip() if is_closed else "") == end:
            pieces.append(_table(table, depth, name))
            del nodes[: 1 + is_closed]
        else:
            pieces.append(_latex(first, depth))
    return " ".join(piece for piece in pieces if piece)


def _only_table(node: Any) -> Any | None:
    while node.tag in {"mrow", "mstyle"} and len(elements := _elements(node)) == 1:
        node = elements[0]
    return node if node.tag == "mtable" else None


def _latex(node: Any, depth: int) -> str:
    if node.tag == "#text" or depth > MAX_DEPTH:
        return _symbols(node.text.strip())
    if node.tag in LEAVES:
        return LEAVES[node.tag](node)
    elements = _elements(node)
    num, write = SHAPES.get(node.tag, (0, None))
    if write and len(elements) == num:
        latex = write(*(_latex(child, depth + 1) for child in elements))
        is_binomial = node.tag == "mfrac" and (node.getattr("linethickness") or "")[:1] == "0"
        return re.sub(r"\\frac\{(.*)\}\{(.*)\}", r"{\1 \\atop \2}", latex) if is_binomial else latex
    if node.tag == "mtable":
        return _table(node, depth, "matrix")
    if node.tag == "msqrt":
        return rf"\sqrt{{{_row(node, depth + 1)}}}"
    if node.tag == "mfenced":
        return _fenced(node, elements, depth)
    if node.tag == "mmultiscripts" and elements:
        return _multiscripts(elements, depth)
    if node.tag == "semantics" and elements:  # the other children are annotations
        return _latex(elements[0], depth + 1)
    return _row(node, depth + 1)


def _symbols(text: str) -> str:
    """Return text with LaTeX's names of its symbols; a space ends a command."""
    names = (_symbol(letter) for letter in text)
    return "".join(f"{name} " if name[:1] == "\\" else name for name in names).strip()


def _symbol(letter: str) -> str:
    if letter in SYMBOLS or letter.isascii():
        return SYMBOLS.get(letter, letter)
    plain = unicodedata.normalize("NFKC", letter)
    if plain == letter or not plain.isalnum():
        return letter
    return _styled(SYMBOLS.get(plain, plain), unicodedata.name(letter, ""))


def _styled(latex: str, style: str) -> str:
    command = next((command for word, command in ALPHABETS.items() if word in style), "")
    return rf"\{command}{{{latex}}}" if command else latex


def _identifier(node: Any) -> str:
    text = node.text.strip().strip("\u2061")
    variant = node.getattr("mathvariant") or ""
    is_word = text.isalpha() and text.isascii()
    if text in FUNCTIONS:
        return f"\\{text}"
    if is_word and len(text) > 1 and variant in {"", "normal"}:
        return rf"\operatorname{{{text}}}"
    if is_word and variant == "normal":
        return rf"\mathrm{{{text}}}"
    return _styled(_symbols(text), variant.upper())


def _text(node: Any) -> str:
    text = re.sub(r"\s+", " ", node.text).replace("\\", r"\textbackslash ")
    escaped = re.sub(r"([{}%#&$_])", r"\\\1", text)
    return rf"\text{{{escaped}}}" if text.strip() else "~" if text else ""


def _scripts(base: str, lower: str = "", upper: str = "") -> str:
    is_single = re.fullmatch(r"\\?[A-Za-z]+|.|\d+|\\[a-z]+\{[^{}]*\}|\{\}|", base)
    up = "'" * upper.count("prime") if re.fullmatch(r"(\\prime ?)+", upper) else f"^{{{upper}}}"
    return (
        (base if is_single else f"{{{base}}}")
        + (f"_{{{lower}}}" if lower else "")
        + (up if upper else "")
    )


def _over(base: str, mark: str) -> str:
    if name := OVER_NAMES.get(mark):
        return rf"\{name}{{{base}}}"
    is_limit = LIMITS.fullmatch(base)
    return _scripts(base, "", mark) if is_limit else rf"\overset{{{mark}}}{{{base}}}"


def _under(base: str, mark: str) -> str:
    if name := UNDER_NAMES.get(mark):
        return rf"\{name}{{{base}}}"
    return _scripts(base, mark) if LIMITS.fullmatch(base) else rf"\underset{{{mark}}}{{{base}}}"


def _underover(base: str, lower: str, upper: str) -> str:
    is_limit = LIMITS.fullmatch(base)
    return _scripts(base, lower, upper) if is_limit else _over(_under(base, lower), upper)


OVER_NAMES = {_symbol(sign): name for sign, name in OVER.items()}
UNDER_NAMES = {_symbol(sign): name for sign, name in UNDER.items()}


def _multiscripts(elements: list[Any], depth: int) -> str:
    """Return a base with the scripts after it, and those after <mprescripts/> before it."""
    after: list[str] = []
    before: list[str] = []
    scripts = after
    for element in elements[1:]:
        if element.tag == "mprescripts":
            scripts = before
        else:
            scripts.append(_latex(element, depth + 1))
    post, pre = (
        (" ".join(scripts[::2]).strip(), " ".join(scripts[1::2]).strip())
        for scripts in (after, before)
    )
    return _scripts("{}", *pre) * any(pre) + _scripts(_latex(elements[0], depth + 1), *post)


def _fenced(node: Any, elements: list[Any], depth: int) -> str:
    opening, closing, mark = (
        default if (value := node.getattr(name)) is None else value
        for name, default in (("open", "("), ("close", ")"), ("separators", ","))
    )
    name, end = MATRICES.get(opening, ("", ""))
    if len(elements) == 1 and name and end == closing and (table := _only_table(elements[0])):
        return _table(table, depth, name)
    inner = f" {_symbols(mark.strip()[:1])} ".join(_latex(child, depth + 1) for child in elements)
    return rf"\left{_symbols(opening) or '.'} {inner} \right{_symbols(closing) or '.'}"


def _table(node: Any, depth: int, environment: str) -> str:
    rows = [" & ".join(_row(cell, depth + 1) for cell in _elements(row)) for row in _elements(node)]
    return rf"\begin{{{environment}}} " + r" \\ ".join(rows) + rf" \end{{{environment}}}"


LEAVES: dict[str, Callable[[Any], str]] = {
    "mi": _identifier, "mo": _identifier, "mn": lambda node: _symbols(node.text.strip()),
    "mtext": _text, "ms": _text,
}  # fmt: skip
SHAPES: dict[str, tuple[int, Callable[..., str]]] = {
    "mfrac": (2, lambda top, bottom: rf"\frac{{{top}}}{{{bottom}}}"),
    "mroot": (2, lambda base, index: rf"\sqrt[{index}]{{{base}}}"),
    "msub": (2, _scripts),
    "msup": (2, lambda base, exponent: _scripts(base, "", exponent)),
    "msubsup": (3, _scripts),
    "mover": (2, _over),
    "munder": (2, _under),
    "munderover": (3, _underover),
}
"""How many children an element has, and how it is written; with another number they are a row."""
