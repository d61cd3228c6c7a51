from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.filters.c4 import RULES, LineTests, rewrite_lines, strip_texts
from corpuskit.stage import View
from tests.contract.strategies import texts, view

CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
POLICY = (
    *("terms of use", "privacy policy", "cookie policy"),
    *("uses cookies", "use of cookies", "use cookies"),
)
ALL = LineTests(1000, 3, 1, 1, 1, 1, 1, 1)
PARTS = (
    *("a b c.", "a b", ".", "...", "?", '"', "[1]", "[12", "]", "[\u0661]", "[edit]", "[]", "\n"),
    *("[citation needed]", " ", "\t", "\u2003", "\r\n", "\u2028", "\x1f", "x" * 9, "\xe9" * 9, "{"),
    *("Lorem Ipsum", "JAVASCRIPT", "use coo\u212aies", "Privacy Policy", "terms of us", "k\u0130"),
)
TRICKY = st.lists(
    st.lists(st.sampled_from(PARTS), max_size=9).map("".join) | texts(max_size=1).map("".join),
    max_size=4,
)
TESTS = st.tuples(
    st.sampled_from([-1, 0, 3, 8, 1000]), st.integers(0, 3), *[st.integers(0, 1)] * 6
).map(lambda values: LineTests(*values))


def verdict(line, tests):
    """Return the rule that a line breaks, None if none, and the line without citations."""
    words = line.split()
    if tests.max_word_length >= 0 and any(len(word) > tests.max_word_length for word in words):
        return "too_long_word", line
    line = CITATION.sub("", line) if tests.remove_citations else line
    if tests.terminal_punct and (not line.endswith((*".?!\"'",)) or line.endswith("...")):
        return "no_terminal_punc", line
    if len(words) < tests.min_words:
        return "too_few_words", line
    lower = line.lower()
    found = {
        "lorem_ipsum": tests.lorem_ipsum and "lorem ipsum" in lower,
        "javascript": tests.javascript and "javascript" in lower,
        "curly_bracket": tests.curly_bracket and "{" in line,
        "policy": tests.policy and any(phrase in lower for phrase in POLICY),
    }
    return next((rule for rule, is_there in found.items() if is_there), None), line


def rewrite_plainly(text, tests):
    """Return what drops the document, its text, and how many lines stay."""
    kept = []
    for line in text.splitlines():
        rule, line = verdict(line.strip(), tests)
        if rule in {"lorem_ipsum", "curly_bracket"}:
            return rule, "", 0
        kept += [line] * (rule is None)
    return None, "\n".join(kept).strip(), len(kept)


def rewrite(documents, tests):
    draft = rewrite_lines(*view(documents).text, tests)
    offsets, data = strip_texts(draft.offsets, draft.data)
    return [
        (
            RULES[draft.codes[row] - 1] if draft.codes[row] else None,
            data[offsets[row] : offsets[row + 1]].tobytes().decode(),
            draft.num_lines[row],
        )
        for row in range(len(documents))
    ]


@settings(max_examples=300)
@given(TRICKY, TESTS)
def test_rewriting_equals_plain_python(documents, tests):
    assert rewrite(documents, tests) == [rewrite_plainly(text, tests) for text in documents]


@given(TRICKY, TESTS)
def test_the_text_is_what_lies_outside_of_the_cuts(documents, tests):
    draft = rewrite_lines(*view(documents).text, tests)
    for row, (rule, text, _) in enumerate(rewrite(documents, tests)):
        if rule is not None:
            assert row not in draft.rows
            continue
        data, outside, at = documents[row].encode(), b"", 0
        mine = draft.rows == row
        for start, end in zip(draft.starts[mine], draft.ends[mine], strict=True):
            assert at <= start < end <= len(data)
            outside, at = outside + data[at:start], end
        outside += data[at:]
        assert re.sub(rb"\n", b"", outside) == re.sub(rb"\n", b"", text.encode())


def rule_of_line(line, **tests):
    draft = rewrite_lines(*view([f"{line}\nIt stays as it is."]).text, ALL._replace(**tests))
    return RULES[draft.cut_codes[0] - 1] if len(draft.rows) else None


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("We use coo\u212aies on all pages.", "policy"),
        ("Our PRIVACY POLICY is here.", "policy"),
        ("Please turn JavaScript on now.", "javascript"),
        ("An ellipsis is no end...", "no_terminal_punc"),
        ("Two dots are one..", None),
        ('He said it "so"', None),
        ("Only two.", "too_few_words"),
        ("Cut here.[\u0661\u0662]", "too_few_words"),
        ("A citation ends it.[1]", "citation"),
        ("A citation is left open [1.", None),
        (f"It is {'x' * 1001} so.", "too_long_word"),
        (f"It is {chr(0xE9) * 1000} so.", None),
    ],
)
def test_what_cuts_a_line(line, rule):
    assert rule_of_line(line) == rule


def test_a_document_is_not_dropped_for_a_line_that_goes_anyway():
    documents = ["lorem ipsum dolor\nIt stays as it is.", "{ code }\nIt stays as it is."]
    assert [rule for rule, _, _ in rewrite(documents, ALL)] == [None, None]


def test_blank_lines_at_the_beginning_count_but_are_not_text():
    tests = LineTests(-1, 0, 1, 0, 0, 0, 0, 0)
    assert rewrite(["\n[1]\n a", "\n\n"], tests) == [(None, "a", 3), (None, "", 2)]


def test_a_slice_is_rewritten_as_the_whole():
    documents = ["One two three.", "A line goes\nThe next one stays.", "[1] It is so."]
    draft = rewrite_lines(*View(view(documents).batch.slice(1)).text, ALL)
    assert draft.data.tobytes() == b"The next one stays.It is so."
    assert draft.rows.tolist() == [0, 1]


def test_stripping_gives_back_texts_that_end_in_none():
    text = view(["a", "b\n c"]).text
    assert strip_texts(*text) == (text.offsets, text.data)
    offsets, data = strip_texts(*view(["a \u2003", "\n", "b"]).text)
    assert (offsets.tolist(), data.tobytes()) == ([0, 1, 1, 2], b"ab")
