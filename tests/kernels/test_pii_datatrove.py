from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.pii.scan import find_datatrove
from tests.contract.strategies import texts, view
from tests.oracles.pii import find_as_datatrove

KINDS = ("email", "ipv4")
PARTS = (
    *("@", "@", ".", ".", "-", "_", "!", "'", "[", "]", ":", "#", "+", "/", " ", "\n", "a", "Z"),
    *(
        "\xe9",
        "\u65e5",
        "\u0661",
        "\xb2",
        "\u0301",
        "\U0001d4b3",
        "\U0010ffff",
        "x.org",
        "jo@x.org",
    ),
    *("0", "1", "25", "255", "256", "007", "199", "299", "1.2.3.4", "81.2.69.142", "[1.2.3.4]"),
)
TRICKY = st.lists(
    st.lists(st.sampled_from(PARTS), max_size=14).map("".join) | texts(max_size=1).map("".join),
    max_size=5,
)


def found(documents, **options):
    text = view(documents).text
    spans = find_datatrove(text.offsets, text.data, **options)
    listed = [[] for _ in documents]
    for row, start, end, kind in zip(*(part.tolist() for part in spans), strict=True):
        listed[row].append((start, end, KINDS[kind]))
    return listed


def plainly(documents, kinds=KINDS):
    return [find_as_datatrove(text, kinds, only_public=None) for text in documents]


@settings(max_examples=80)
@given(TRICKY)
def test_spans_equal_those_of_the_formatter(documents):
    assert found(documents) == plainly(documents)


@settings(max_examples=30)
@given(TRICKY, st.booleans())
def test_one_kind_alone(documents, is_email):
    kinds = KINDS[:1] if is_email else KINDS[1:]
    assert found(documents, has_email=is_email, has_ipv4=not is_email) == plainly(documents, kinds)


def test_spans_of_small_texts_equal_those_of_the_formatter():
    dice = random.Random(0)
    documents = ["".join(dice.choices("a1.@-\xe9[]", k=dice.randrange(4, 10))) for _ in range(800)]
    documents += ["".join(dice.choices("0125.9", k=dice.randrange(7, 14))) for _ in range(800)]
    assert found(documents) == plainly(documents)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256.1.1.1", "56.1.1.1"),
        ("1.2.3.4567", "1.2.3.45"),
        ("1.2.3.299", "1.2.3.29"),
        ("\xe9a@b.cd", None),
        ("\xe9!a@b.cd", "!a@b.cd"),
        ("a..b@c.de", "b@c.de"),
        ("a@b.c-", "a@b.c"),
        ("a@b", None),
        ("a@[1.2.3.x:]", "a@[1.2.3.x:]"),
    ],
)
def test_oddities(text, expected):
    (spans,) = found([text])
    data = text.encode()
    assert [data[start:end].decode() for start, end, _ in spans] == ([expected] if expected else [])
