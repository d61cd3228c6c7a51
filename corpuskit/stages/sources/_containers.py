"""Main text from the element that a page's template names as its content, where that is safe."""

from __future__ import annotations

import re
from typing import Any

BOX = ":is(div,article,main,section)"

ARTICLE_NAMES = (
    "entry-content", "article-content", "post-content", "post_content", "article-body",
    "articlebody", "article__body", "article__content", "post-body", "post-text", "story-body",
    "body-text", "field-body", "page-content",
)  # fmt: skip
POST_NAMES = ("single-post", "main-column")
MAIN_NAMES = ("main-content", "content-main", "content-body", "contentbody")
REST_NAMES = (
    "related", "newsletter", "subscri", "breadcrumb", "cookie", "consent", "footer", "nav",
    "author", "byline", "meta", "rating", "copyright", "widget", "embed", "print",
)  # fmt: skip
"""Parts of class names and ids, in any case; elements with one of REST_NAMES are not main text.
These names and the numbers below were chosen on three quarters of the sites of
docs/accuracy/extraction.md."""

CONTAINER_CHARACTERS = 1500
"""A container that occurs once holds the main text if its text has this many characters;"""
SHARE_OF_MAIN = 0.6
"""else if it has this share of the main text by resiliparse,"""
SHARE_OF_SEVERAL = 0.9
"""or this share, if the page has several such containers: a thread is more than its first post."""

MAIN_CHARACTERS = 200
"""A shorter main text by resiliparse is not used for comparison."""

LONG_LINE, LONG_SHARE = 80, 0.9
"""Without a container, resiliparse's text is used if this share of it is in lines of that length:
lines of menus, teasers and forms are shorter."""

CODE_SIGNS = r"\u2022(){}<>=;$\\"
SENTENCE_ENDS = r".!\u3002\uff01\"'\u201c\u201d\u00ab\u00bb\u2039\u203a\u2019"
TAIL = re.compile(rf"[^\n\t{CODE_SIGNS}]{{0,58}}[^\s{CODE_SIGNS}{SENTENCE_ENDS}]")
"""A block after the text that is no sentence, item, row or code, such as "Related topics"."""
TAIL_SHARE = 0.2
"""More than this share of a text is never a tail: the page is made of short blocks."""

CODE = "pre,code,tt,samp,kbd"
MANUALS = (
    "asciidoc", "docbook", "docusaurus", "docutils", "doxygen", "gi-docgen", "gtk-doc", "javadoc",
    "latex", "makeinfo", "mdbook", "mkdocs", "pdoc", "publican", "rustdoc", "sphinx", "texinfo",
)  # fmt: skip
"""What generators of manuals call themselves in <meta name=generator>."""
CODE_PIECES = 10
"""Manuals, and pages with this many code elements, keep resiliparse's text: trafilatura leaves
out code, members and definitions (recall of words in eight manuals 0.82, resiliparse 0.95)."""


def _selector(*words: str) -> str:
    return ",".join(f"[class*={name} i],[id*={name} i]" for name in words)


# One :is() an element: 6 times as fast as a list of whole selectors.
CONTAINERS = (
    f"{BOX}:is([itemprop=articleBody],{_selector(*ARTICLE_NAMES)})",
    f"{BOX}:is([class~=post],[class~=entry],[class~=text],[role=article],[id=article],"
    f"{_selector(*POST_NAMES)})",
    f"main,{BOX}:is([role=main],[id=content],[class~=content],{_selector(*MAIN_NAMES)})",
)
"""From the most specific; <article> is not among them: the first is often a teaser."""

MANUAL = "meta[name=generator i]:is(" + ",".join(f"[content*={x} i]" for x in MANUALS) + ")"

DEEP = "<div><div><div>"
"""Around a container: resiliparse leaves out every <ul> less than three elements below <body>."""

PARTS = ":is(div,section,aside,ul,ol,p,span,dl,nav,header,footer,form,figure)"


def container_text(page: str, comments: bool) -> str | None:
    """Return the main text of a page, None where trafilatura should decide.

    Args:
        page: HTML.
        comments: keep what readers wrote.
    """
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    names = REST_NAMES if comments else (*REST_NAMES, "comment")
    left_out = [f"{PARTS}:is({_selector(*names)})"]

    def text_of(html: Any, skip: list[str] | None = None) -> str:
        text: str = extract_plain_text(
            html, main_content=True, comments=comments, alt_texts=False, skip_elements=skip
        )
        return text.strip()

    tree = HTMLTree.parse(page)
    if tree.document is None or tree.body is None:
        return None
    is_technical = (
        tree.document.query_selector(MANUAL)
        or len(tree.body.query_selector_all(CODE)) >= CODE_PIECES
    )
    main = text_of(tree) if is_technical else None
    if main and len(main) >= MAIN_CHARACTERS:
        return main
    for selector in CONTAINERS:
        matches = tree.body.query_selector_all(selector)
        if not len(matches):
            continue
        # The main text of the container, not all of its text: F1 .9335 against .914.
        text = text_of(f"{DEEP}{matches[0].html}", left_out)
        is_only = len(matches) == 1
        if is_only and len(text) >= CONTAINER_CHARACTERS:
            return _without_tail(text)
        main = text_of(tree) if main is None else main
        share = SHARE_OF_MAIN if is_only else SHARE_OF_SEVERAL
        if len(main) >= MAIN_CHARACTERS and len(text) >= share * len(main):
            return _without_tail(text)
    main = text_of(tree) if main is None else main
    sizes = [len(line) for line in main.split("\n") if line.strip()]
    is_prose = sum(size for size in sizes if size >= LONG_LINE) >= LONG_SHARE * sum(sizes)
    return _without_tail(main) if len(main) >= MAIN_CHARACTERS and is_prose else None


def _without_tail(text: str) -> str:
    """Return a text without the short blocks after it: headings of link lists, buttons."""
    end = len(text)
    while (start := text.rfind("\n\n", 0, end)) > 0:
        block = text[start:end].strip()
        if block and not TAIL.fullmatch(block):
            break
        end = start
    return text[:end].rstrip() if end >= (1 - TAIL_SHARE) * len(text) else text
