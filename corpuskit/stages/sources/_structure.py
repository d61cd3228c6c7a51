"""Structure of pages that is kept as Markdown, whichever extractor takes the text out.

Marks are words that the page does not hold, put where structure begins and ends; the extractor
decides as it would without them. In its text they are replaced by Markdown made from the page. If
the extractor left out one mark of a pair, its own text of that part stays.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.stages.sources._mathml import children, to_latex

if TYPE_CHECKING:
    from collections.abc import Sequence

Part = Literal["headings", "lists", "tables", "code", "formulas"]

FORMULAS = (
    ".mwe-math-element,.katex-display,.katex,mjx-container,math,script[type^='math/'],"
    "img:is([class*=mwe-math],.tex,.latex,.math,.formulaInl,.formulaDsp)"
)
"""MediaWiki, KaTeX, MathJax 3, MathML, MathJax 2, and images of MediaWiki, WordPress, Sphinx and
Doxygen, whose alternative text is TeX."""
RENDERED = (
    ".MathJax,.MathJax_Display,.MathJax_Preview,.MathJax_SVG,.MathJax_SVG_Display,.MathJax_CHTML"
)
"""What MathJax 2 shows beside a <script> that holds the formula."""
DISPLAY = ("display=block", "mode=display", "katex-display", "display=true", "display-block",
           "image-display", "formulaDsp")  # fmt: skip
DELIMITED = re.compile(r"\s*(?:\$\$(.*)\$\$|\$(.*)\$|\\\[(.*)\\\]|\\\((.*)\\\))\s*", re.DOTALL)

LINE_NUMBERS = ":is(.linenos,.lineno,.linenodiv,.line-numbers-rows)"
LANGUAGE = re.compile(
    r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-|brush: ?|sourceCode )([\w+#.-]+)"
)
NO_LANGUAGES = frozenset({"none", "default", "plaintext", "text", "notranslate"})

LAYOUT = "table,pre,form,h1,h2,h3,h4,h5,h6,iframe,[role=presentation]"
"""A table with one of these inside is layout, and is not marked."""
LONG_CELL = 1000
"""So is a table without a header cell that has a cell of more characters."""
MAX_SPAN, MAX_DEPTH = 100, 20
UNSEEN = "script,style,template,[hidden],[style*='display:none' i],[style*='display: none' i]"


class Marks:
    """A page with marks, and the Markdown that replaces them."""

    def __init__(self, page: str, kinds: Sequence[str]) -> None:
        from resiliparse.parse.html import HTMLTree

        num = 0
        while (stem := f"qz{num or ''}x") in page:
            num += 1
        self._stem, self._texts = stem, list[str]()
        self._tree = HTMLTree.parse(page)
        body = self._tree.body
        for kind in PARTS:  # formulas are text in the other parts, tables are read before lists
            if kind in kinds and body is not None:
                getattr(self, f"_mark_{kind}")(body)
        document = self._tree.document
        self.page = page if document is None else document.html

    def with_markdown(self, text: str) -> str:
        """Return the text of an extractor with its marks replaced by Markdown."""
        marks = re.compile(rf"{self._stem}([0-9]{{1,9}})([aiz]) ?")
        ends = {mark[1]: mark.end() for mark in marks.finditer(text) if mark[2] == "z"}
        pieces: list[str] = []
        copied_to = 0
        for mark in marks.finditer(text):
            if mark.start() < copied_to or int(mark[1]) >= len(self._texts):
                continue
            plain, copied_to = text[copied_to : mark.start()], mark.end()
            end = ends.get(mark[1], 0) if mark[2] == "a" else 0
            if end > copied_to:
                plain, after = plain.rstrip(" \t\n|"), "\n\n"
                pieces += [plain, "\n\n" if plain else "", self._texts[int(mark[1])], after]
                while end < len(text) and text[end] in " \t\n|":
                    end += 1
                copied_to = end
            elif mark[2] == "i":
                line = plain.rpartition("\n")[2]
                is_start = re.fullmatch(r"[ \t]*(?:[\u2022*-]|\d+\.)?[ \t]*", line)
                plain = plain[: -len(line) or None] if is_start else f"{plain.rstrip()}\n"
                pieces += [plain, self._texts[int(mark[1])]]
            else:
                pieces.append(plain)
        return "".join([*pieces, text[copied_to:]])

    def _mark(self, node: Any, text: str, pair: bool = True) -> None:
        """Put a mark before the first text in a node, if any, and after the last."""
        first = _edge(node, False)
        last = _edge(node, True) if pair else None
        if first is not None:
            word = f"{self._stem}{len(self._texts)}"
            first.before(self._text_node(f"{word}{'a' if pair else 'i'} "))
            if last is not None:
                last.after(self._text_node(f" {word}z"))
            self._texts.append(text)

    def _mark_formulas(self, body: Any) -> None:
        if body.query_selector("script[type^='math/']"):
            for node in body.query_selector_all(RENDERED):
                node.remove()
        for node in body.query_selector_all(FORMULAS):
            is_inner = node.parent is not None and node.parent.closest(FORMULAS)
            latex = "" if is_inner else _latex_of(node)
            if latex:
                names = ("class", "display", "mode", "type")
                attributes = " ".join(f"{name}={node.getattr(name) or ''}" for name in names)
                inner = node.query_selector("math[display=block],img")
                attributes += (
                    f" display=block {inner.class_name}" if inner and inner.tag == "math" else ""
                )
                sign = "$$" if any(word in attributes for word in DISPLAY) else "$"
                node.replace_with(self._text_node(f"{sign}{latex}{sign}"))

    def _mark_code(self, body: Any) -> None:
        for node in body.query_selector_all(f"pre {LINE_NUMBERS},td{LINE_NUMBERS}"):
            node.remove()
        for node in body.query_selector_all("pre"):
            for line in node.query_selector_all("br,div,li,p"):
                if line.tag == "br" or not line.text.endswith("\n"):
                    line.append_child(self._text_node("\n"))
            text = node.text.strip("\n").rstrip()
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            code = f"{fence}{_language(node)}\n{text}\n{fence}"
            node.replace_children(self._text_node(text))
            self._mark(node, code)

    def _mark_tables(self, body: Any) -> None:
        for node in body.query_selector_all("table:not([role=presentation])"):
            if not node.query_selector(LAYOUT) and (text := self._markdown_table(node)):
                self._mark(node, text)

    def _mark_lists(self, body: Any) -> None:
        for node in body.query_selector_all("ul,ol"):
            depth, outer = 0, _list_around(node)
            while outer is not None and depth < MAX_DEPTH:
                depth, outer = depth + 1, _list_around(outer)
            start = node.getattr("start") or ""
            num = int(start) if re.fullmatch(r"\d{1,9}", start) else 1
            for item in children(node):
                if item.tag == "li":
                    sign = "-" if node.tag == "ul" else f"{num}."
                    self._mark(item, f"{' ' * 4 * depth}{sign} ", pair=False)
                    num += 1

    def _mark_headings(self, body: Any) -> None:
        for node in body.query_selector_all("h1,h2,h3,h4,h5,h6"):
            self._mark(node, f"{'#' * int(node.tag[1])} ", pair=False)

    def _markdown_table(self, table: Any) -> str:
        """Return a table of data as Markdown; empty if it has fewer than two rows or columns."""
        for node in table.query_selector_all(UNSEEN):
            node.remove()
        for node in table.query_selector_all("br,p,div,li,dt,dd"):
            node.before(self._text_node(" "))
        rows: list[list[str]] = []
        spans_below: dict[int, int] = {}
        longest = 0
        for row in table.query_selector_all("tr"):
            cells: list[str] = []
            for cell in (child for child in children(row) if child.tag in {"td", "th"}):
                while spans_below.get(len(cells), 0):
                    spans_below[len(cells)] -= 1
                    cells.append("")
                text = " ".join(cell.text.split())
                longest = max(longest, len(text))
                for num in range(_span(cell, "colspan")):
                    spans_below[len(cells)] = _span(cell, "rowspan") - 1
                    cells.append("" if num else text.replace("|", "\\|"))
            if cells:
                rows.append(cells)
        is_named = table.query_selector("th,caption") is not None
        if sum(len(cells) > 1 for cells in rows) < 2 or (longest > LONG_CELL and not is_named):
            return ""
        width = max(map(len, rows))
        rows = [cells + [""] * (width - len(cells)) for cells in rows]
        lines = [f"| {' | '.join(cells)} |" for cells in [rows[0], ["---"] * width, *rows[1:]]]
        caption = table.query_selector("caption")
        title = " ".join(caption.text.split()) if caption else ""
        return "\n".join([*([title, ""] if title else []), *lines])

    def _text_node(self, text: str) -> Any:
        return self._tree.create_text_node(text)


PARTS = ("formulas", "code", "tables", "lists", "headings")


def _list_around(node: Any) -> Any | None:
    outer = node.parent.parent if node.parent.tag == "div" else node.parent
    return outer.parent if outer is not None and outer.tag == "li" else None


def _edge(node: Any, is_last: bool) -> Any | None:
    """Return the first or last text in a node that shows."""
    nodes = [node.last_child if is_last else node.first_child]
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if node.tag == "#text" and node.text.strip():
            return node
        nodes.append(node.previous_sibling if is_last else node.next_sibling)
        if node.tag not in {"#text", "#comment", "script", "style"}:
            nodes.append(node.last_child if is_last else node.first_child)
    return None


def _latex_of(node: Any) -> str:
    if node.tag == "script":
        is_tex = (node.getattr("type") or "").startswith("math/tex")
        return " ".join(node.text.split()) if is_tex else ""
    math = node if node.tag == "math" else node.query_selector("math")
    if math:
        return to_latex(math)
    image = node if node.tag == "img" else node.query_selector("img[alt]")
    text = (image and image.getattr("alt")) or ""
    delimited = DELIMITED.fullmatch(text)
    return " ".join((delimited[delimited.lastindex or 0] if delimited else text).split())


def _language(node: Any) -> str:
    """Return the language of code by its class, or that of the element in it or around it."""
    inner = node.query_selector("code")
    for element in (inner, node, node.parent, node.parent and node.parent.parent):
        if element is None or element.tag.startswith("#"):
            continue
        attribute = element.getattr("data-lang") or element.getattr("data-language") or ""
        names = [attribute, *LANGUAGE.findall(element.class_name or "")]
        name = next((name for name in names if name and name not in NO_LANGUAGES), "")
        if re.fullmatch(r"[\w+#.-]{1,30}", name):
            return name
    return ""


def _span(cell: Any, name: str) -> int:
    value = cell.getattr(name) or ""
    return min(max(int(value), 1), MAX_SPAN) if re.fullmatch(r"\d{1,9}", value) else 1
