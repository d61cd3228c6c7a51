from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.pii.scan import KINDS, find_pii
from tests.contract.strategies import view
from tests.oracles.pii import find_spans

PHONES = [
    *("415-555-2671", "(415) 555-2671", "(415)555-2671", "415.555.2671"),
    *("408 492-1542", "1-800-555-1234", "1 (415) 555-2671", "+1 542 491 8204", "+14155552671"),
    *("+1 (415) 555-2671", "+44 20 7476 1985", "+33 6 34 27 51 22", "+49 30 87664812"),
    *("+33 (0)1 21 85 94 66", "+49 (30) 87664812", "+49 89/43665522", "+9477-3283048"),
    *("415-555-2671 ext. 12", "833.719.3994x1887", "(764)722-5949 x9"),
]
CARDS = [
    *("4111 1111 1111 1111", "4012-8888-8888-1881", "5555555555554444", "2223003122003222"),
    *("378282246310005", "3782 822463 10005", "6011111111111117", "3530111333300000"),
    *("3056 930902 5904", "6304000000000000", "6200000000000005"),
]
ACCOUNTS = [
    *("DE89370400440532013000", "DE89 3704 0044 0532 0130 00", "GB82 WEST 1234 5698 7654 32"),
    *("gb82west12345698765432", "FR1420041010050500013M02606", "NO9386011117947"),
    *("NL91ABNA0417164300", "MT84MALT011000012345MTLCAST001S"),
]
PARTS = (
    *(" ", "  ", "\n", "-", ".", "/", "+", "(", ")", ":", "@", "x", "ext. ", "_", "\xe9", "a", "Z"),
    *("0", "1", "7", "33", "44", "415", "555", "2671", "4111", "5555", "123456", "00", "666"),
    *(
        "call ",
        "Phone: ",
        "tel. no. ",
        "fax",
        "number is ",
        "+1 ",
        "+44 20",
        "(0)",
        "415-555",
        "DE",
    ),
    *("mobile ", "cell: ", "2021", "-03-25", "12 34 567", ".03.2021", "192.168.10.1", " people"),
    *("card ", " or ", "1990-1995", "4131034282458809939", "30288610434735", "00 ", "08 ", "12"),
    *(*PHONES, *CARDS, *ACCOUNTS, "164-75-7324", "164-75", "DE89 3704", "021-4006034"),
)
TRICKY = st.lists(st.sampled_from(PARTS), max_size=10).map("".join)


def words(document, kinds=KINDS):
    text = view([document]).text
    found = find_pii(text.offsets, text.data, kinds)
    return [
        (KINDS[kind], document.encode()[start:end].decode())
        for _, start, end, kind in zip(*(part.tolist() for part in found), strict=True)
    ]


def plainly(document, kinds=KINDS):
    spans = find_spans(document.encode(), kinds, only_public=True, min_ipv4_part=64)
    return [(kind, document.encode()[start:end].decode()) for start, end, kind in spans]


@settings(max_examples=100)
@given(TRICKY, st.sets(st.sampled_from(KINDS)))
def test_numbers_are_those_of_regular_expressions(document, kinds):
    assert words(document, kinds) == plainly(document, kinds)


def test_numbers_with_one_character_changed_are_those_of_regular_expressions():
    dice = random.Random(0)
    for _ in range(200):
        text = dice.choice(["call ", "", "Tel.: "]) + dice.choice([*PHONES, *CARDS, *ACCOUNTS])
        at = dice.randrange(len(text))
        text = text[:at] + dice.choice("0123456789 -./()+x@aZ") + text[at + dice.randrange(2) :]
        assert words(text) == plainly(text), text


@pytest.mark.parametrize("number", PHONES)
def test_telephone_numbers(number):
    assert words(f"<{number}>, {number}. \u65e5{number}\u65e5") == [("phone", number)] * 3


@pytest.mark.parametrize(
    "text",
    [
        *("2024-01-15 12:30:45", "978-0-306-40615-7", "1.2.3.4.5", "10.0.0.1", "415-555-267"),
        *("115.555.2671", "415 555 2671", "415-555.2671", "415-555-26711", "v415-555-2671"),
        *("+192.168.10.100", "+2147483647", "+1300", "+4412345", "+44 20 7476 19", "+0412345678"),
        *("1 415 555 2671 3", "3 415 555 2671", "/415-555-2671", "415-555-2671-99", "021-4006034"),
        *("415-555-2671@x", "00 44 20 74 76 19", "12 34 56 78 90", "f(415) 555-2671"),
    ],
)
def test_what_is_no_telephone_number(text):
    assert words(f"at {text} then", ["phone"]) == []


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Phone: 021-4006034", "021-4006034"),
        ("tel. no. (022) 0793-176,", "(022) 0793-176"),
        ("call me at 07700 063 966.", None),
        ("call 07700 063 966.", "07700 063 966"),
        ("Fax 5551234567", "5551234567"),
        ("Phone 415 555 2671", "415 555 2671"),
        ("call 4294967295", None),
        ("recall 07700 063 966", None),
        ("phone     021-4006034", None),
        ("phone 12-34", None),
        ("phone 1234-1234-1234-1234", None),
    ],
)
def test_a_word_before_makes_any_grouping_a_telephone_number(text, number):
    assert words(text, ["phone"]) == ([("phone", number)] if number else [])


@pytest.mark.parametrize("number", CARDS)
def test_card_numbers(number):
    assert words(f"<{number}>, {number}. ({number})") == [("credit_card", number)] * 3


@pytest.mark.parametrize(
    "text",
    [
        *("4111111111111112", "4111 1111 1111 1112", "9111111111111111", "4111111111111"),
        *(
            "4111 1111-1111 1111",
            "4111 1111 1111 1111 11",
            "0.4111111111111111",
            "a4111111111111111",
        ),
        *("/4111111111111111", "4111111111111111-a", "41111111111111110000", "3782 8224631 0005"),
        *("2003 4111 1111 1111 1111", "378282246310005a", "+4111111111111111"),
    ],
)
def test_what_is_no_card_number(text):
    assert words(f"at {text} then", ["credit_card"]) == []


@pytest.mark.parametrize("number", ACCOUNTS)
def test_account_numbers(number):
    assert words(f"<{number}>, {number}. \u65e5{number}\u65e5") == [("iban", number)] * 3


@pytest.mark.parametrize(
    "text",
    [
        *("DE89370400440532013001", "DE8937040044053201300", "DE893704004405320130000"),
        *("XX89370400440532013000", "De89370400440532013000", "DE8937040044 0532013000"),
        *("GB82west12345698765432", "aDE89370400440532013000", "DE89370400440532013000-1"),
        *("GB8212345698765432WEST", "DE89 3704"),
    ],
)
def test_what_is_no_account_number(text):
    assert words(f"at {text} then", ["iban"]) == []


def test_social_security_numbers():
    assert words("164-75-7324, (899-01-0001)") == [
        ("us_ssn", "164-75-7324"),
        ("us_ssn", "899-01-0001"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "000-12-3456",
            "666-12-3456",
            "900-12-3456",
            "123-00-3456",
            "123-45-0000",
            "1123-45-6789",
        ),
        *("123-45-67890", "123-45-6789-1", "1-123-45-6789", "123-45-6789@x.org", "123 45 6789"),
    ],
)
def test_what_is_no_social_security_number(text):
    assert words(f"at {text} then", ["us_ssn"]) == []


def test_an_address_is_not_cut_by_numbers_in_it():
    text = "4155552671@x.org 81.2.69.142 2a00:1450:4001:81b::200e"
    assert [kind for kind, _ in words(text)] == ["email", "ipv4", "ipv6"]
