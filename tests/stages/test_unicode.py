"""Mojibake, normal forms, control characters: what the contract tests do not reach."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import large_strings, utf8
from corpuskit.kernels.utf8 import hold_any
from corpuskit.stages.rewriters.unicode import (
    MARKS,
    RUN_CHARS,
    SEGMENT_CHARS,
    SIGNS,
    Unicode,
    _edges,
    fixer,
    is_mark,
    normalize,
    ordered,
)
from tests.contract.strategies import plain, view

ftfy = pytest.importorskip("ftfy")

GOOD = [
    *(
        "caf\xe9 \u201cna\xefve\u201d",
        "r\xe9sum\xe9 \u2014 5\xa0\u20ac",
        "\u0440\u0435\u043a\u0430",
    ),
    *("\u65e5\u672c", "a & b", "<b>", "\n", "\n\xc3 la carte", "\xc2 x"),
]
CODECS = ["cp1252", "latin-1", "macroman", "cp437", "cp1251", "cp1250", "iso-8859-2"]


def garbled(text: str, codec: str) -> str:
    """Read UTF-8 as something else; what that does not know stays."""
    return text.encode().decode(codec, "replace")


SNIPPETS = st.one_of(
    st.sampled_from(GOOD),
    st.builds(garbled, st.sampled_from(GOOD), st.sampled_from(CODECS)),
    st.sampled_from(["&eacute;", "&amp;", "&ATILDE;", "\x1b[36m", "\x00", "\x85", "\x93", "\r\n",
                     "\ufb01", "\uff21", "\u2018", "\ufffd", "\u2028", "e\u0301", "\ufeff"]),
    st.text(max_size=4),
)  # fmt: skip
TEXTS = st.lists(SNIPPETS, max_size=8).map("".join)

OPTIONS = {
    name: st.booleans()
    for name, field in Unicode.model_fields.items()
    if field.annotation in {bool, "bool"}
}


@settings(max_examples=30, deadline=None)
@given(
    text=TEXTS,
    options=st.fixed_dictionaries(
        {}, optional={**OPTIONS, "unescape_html": st.sampled_from(["auto", "always", "never"]),
                      "form": st.sampled_from(["none", "NFC", "NFKC"])}),
)  # fmt: skip
def test_ftfy_behind_the_gate_is_ftfy(text, options):
    stage = Unicode(**options)
    config = ftfy.TextFixerConfig(**stage._options())
    assert plain(stage, view([text]))[0]["text"].decode() == ftfy.fix_text(text, config)


@pytest.mark.real
@pytest.mark.slow
def test_real_texts_come_out_as_ftfy_gives_them(shared_data):
    import pyarrow.parquet as pq

    path = sorted((shared_data / "bench_multi").glob("*.parquet"))[0]
    texts = pq.read_table(path, columns=["text"])["text"].to_pylist()[:300]
    stage = Unicode()
    config = ftfy.TextFixerConfig(**stage._options())
    found = [row["text"].decode() for row in plain(stage, view(texts))]
    assert found == [ftfy.fix_text(text, config) for text in texts]


def test_all_that_mojibake_is_told_by_is_a_sign():
    """But for Greek and Cyrillic letters, which ftfy looks at beside one."""
    from ftfy.badness import MOJIBAKE_CATEGORIES

    every = "".join(chr(code) for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000)
    others = SIGNS.sub("", every)
    for name, members in MOJIBAKE_CATEGORIES.items():
        found = re.findall(f"[{members}]", others)
        if name in {"lower_common", "upper_common"}:
            found = re.findall("[^\u0391-\u03ce\u0401-\u045f]", "".join(found))
        assert found == [], name


def test_a_line_longer_than_a_segment_is_left_to_ftfy():
    text = "x" * SEGMENT_CHARS + "\xc3 la carte"
    options = Unicode()._options()
    config = ftfy.TextFixerConfig(**options)
    assert fixer(tuple(options.items()))(text) == ftfy.fix_text(text, config) != text


def test_plain_texts_are_passed_on_as_they_are():
    texts = ["plain\ttext\n", "", "1 < 2", "caf\xe9"]
    assert Unicode().apply(view(texts)).text is None


def test_changed_and_unchanged_rows_keep_their_places():
    texts = ["one", "tw\x00o", "", "thr\xe9e", "four\x00"]
    outcome = Unicode().apply(view(texts))
    assert [outcome.text.row(i).decode() for i in range(5)] == [
        "one",
        "two",
        "",
        "thr\xe9e",
        "four",
    ]
    assert outcome.spans.rows.tolist() == [1, 4]
    assert (outcome.spans.starts.tolist(), outcome.spans.ends.tolist()) == ([2, 4], [3, 5])


@given(TEXTS)
def test_without_ftfy_text_is_normalized_as_a_whole(text):
    stage = Unicode(fix="none", remove_control_chars=False, form="NFC")
    assert plain(stage, view([text]))[0]["text"].decode() == unicodedata.normalize("NFC", text)


@given(before=TEXTS, after=TEXTS)
def test_a_span_holds_all_that_differs(before, after):
    if not before or before == after:
        return
    old, new = before.encode(), after.encode()
    start, end = _edges(old, new)
    assert 0 <= start < end <= len(old)
    old[:start].decode(), old[start:end].decode(), old[end:].decode()
    assert new.startswith(old[:start])
    assert new.endswith(old[end:])


@given(st.lists(st.text(alphabet="ab&\xe9", max_size=5), max_size=6), st.sets(st.integers(0, 255)))
def test_the_gate_knows_which_texts_hold_a_byte(texts, wanted):
    table = np.zeros(256, np.uint8)
    table[sorted(wanted)] = 1
    data = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, data)], dtype=np.int64)
    text = utf8(large_strings(offsets, np.frombuffer(b"".join(data), np.uint8)))
    found = hold_any(text.offsets, text.data, table)
    assert found.tolist() == [bool(set(one) & wanted) for one in data]


# ---------------------------------------------------------------- long runs of marks

FORMS = ["NFC", "NFD", "NFKC", "NFKD"]
RUNS = st.builds(
    lambda before, marks, after: before + "".join(marks) + after,
    st.sampled_from(["", "e", "\xe9", "\u1ea5", "\xb4", "\u304b", "\u0f40"]),
    st.lists(
        st.sampled_from("\u0301\u0316\u0327\u0344\u0345\u0f71\u0f73\u0f81\u3099\uff9e\u1dce\u05b0"),
        min_size=RUN_CHARS - 5,
        max_size=RUN_CHARS + 50,
    ),
    st.sampled_from(["", "a", "\xe9\u0316", "\n\u0301", "\u1161"]),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=2), st.sampled_from(FORMS))
def test_long_runs_of_marks_come_out_as_the_library_gives_them(runs, form):
    text = "".join(runs)
    assert normalize(form, text) == unicodedata.normalize(form, text)
    stage = Unicode(form=form)
    config = ftfy.TextFixerConfig(**stage._options())
    fixed = fixer(tuple(stage._options().items()))
    assert fixed(text) == ftfy.fix_text(text, config)


def test_a_run_as_long_as_the_bound_is_found_wherever_it_begins():
    run = "\u0301" + "\u0316" * (RUN_CHARS - 1)
    for begin in range(25):
        assert ordered("NFC", "x" * begin + run) == "x" * begin + run[1:] + run[0]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_mark_lies_outside_the_range_that_is_searched(form):
    others = [*range(MARKS[0]), *range(MARKS[1], 0x110000)]
    assert not any(is_mark(form, chr(code)) for code in others)


@pytest.mark.parametrize("fix", ["ftfy", "none"])
def test_marks_without_end_are_put_in_order(fix):
    # By the library alone this takes hours.
    num = 200_000
    found = plain(Unicode(fix=fix, form="NFD"), view(["e" + "\u0301\u0316" * num]))
    assert found[0]["text"].decode() == "e" + "\u0316" * num + "\u0301" * num
