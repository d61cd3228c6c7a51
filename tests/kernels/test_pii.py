from __future__ import annotations

import ipaddress
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.formats.batch import utf8
from corpuskit.kernels.pii.addresses import RESERVED_V4, RESERVED_V6
from corpuskit.kernels.pii.scan import KINDS, find_pii
from tests.contract.strategies import texts, view
from tests.oracles.pii import find_spans
from tests.oracles.pii_addresses import is_public

PARTS = (
    *("@", ".", ":", "::", "-", "_", "%", "'", " ", "\n", "\xe9", "/", "[", "]", ",", "("),
    *("version ", "v:", "git", ". ", "224.0.0.9", "64:ff9b::", "ff02::1", "6e40:4041:617:e898"),
    *("a", "z", "g", "Ab", "com", "COM", "org", "png", "c0m", "xn--p1ai", "a" * 25, "jo", "2x"),
    *("0", "1", "00", "01", "7", "63", "64", "99", "255", "256", "1234", "12345", "81", "10"),
    *("1.2.3.4", "81.2.69.142", "10.0.0.99", "300.1.1.1", "81.2.69.142.5", "099.1.1.1"),
    *("2a00", "fe80", "2001:db8", "ffff", "12:34:56", "de:ad:be:ef", "1:2:3:4:5:6:7:8", "beef"),
    *("2a00:1450:4001:81b::200e", "::ffff:81.2.69.142", "::1", "1::", "jo.doe@mail.example.org"),
)
TRICKY = st.lists(
    st.lists(st.sampled_from(PARTS), max_size=10).map("".join) | texts(max_size=1).map("".join),
    max_size=6,
)
OPTIONS = st.fixed_dictionaries(
    {"only_public": st.booleans(), "min_ipv4_part": st.sampled_from([0, 64, 255])}
)


def found(text, kinds=KINDS, **options):
    options = {"only_public": True, "min_ipv4_part": 64, **options}
    spans = find_pii(text.offsets, text.data, kinds, **options)
    listed = [[] for _ in range(len(text))]
    for row, start, end, kind in zip(*(part.tolist() for part in spans), strict=True):
        listed[row].append((start, end, KINDS[kind]))
    return listed


def plainly(documents, kinds=KINDS, **options):
    options = {"only_public": True, "min_ipv4_part": 64, **options}
    return [find_spans(document.encode(), kinds, **options) for document in documents]


def words(document, **options):
    return [
        document.encode()[a:b].decode() for a, b, _ in found(view([document]).text, **options)[0]
    ]


@settings(max_examples=150)
@given(TRICKY, st.sets(st.sampled_from(KINDS)), OPTIONS)
def test_spans_equal_those_of_regular_expressions(documents, kinds, options):
    assert found(view(documents).text, kinds, **options) == plainly(documents, kinds, **options)


@pytest.mark.parametrize(
    "parts",
    [
        ("a", "a-", "@", ".", "com", "png", " "),
        ("1", "99", "256", ".", "a", "@", "-"),
        ("1", "2a00", ":", "::", "g", ".", "81.2.69.142"),
    ],
    ids=KINDS[:3],
)
def test_spans_of_every_small_text(parts):
    world = ["".join(chosen) for num in range(6) for chosen in itertools.product(parts, repeat=num)]
    world = random.Random(0).sample(world, 4000)
    options = {"only_public": False, "min_ipv4_part": 0}
    assert found(view(world).text, **options) == plainly(world, **options)


@given(TRICKY, st.integers(0, 6))
def test_a_slice_is_searched_as_the_whole(documents, cut):
    text = utf8(view(documents).batch.column("text").slice(cut))
    assert found(text) == found(view(documents).text)[cut:]


@pytest.mark.parametrize(
    "address",
    ["jo@x.org", "Jo.Doe+tag@mail.Example.CO.UK", "o'neil@x.org", "a_b%c-d@a-b.io", "1@2.de"],
)
def test_mail_addresses(address):
    assert words(f"<{address}>, {address}. \u65e5{address}\u65e5") == [address] * 3


@pytest.mark.parametrize(
    "text",
    ["icon@2x.png", "astro@4.5.3", "@property", "a@b", "Q@Q.T", "jo@-x.org", "jo@x..org", "a@x.x1"],
)
def test_what_is_no_mail_address(text):
    assert words(text) == []


def test_a_mail_address_ends_with_its_last_plausible_label():
    assert words("jo@x.org.2 jo@x.org- jo@x.org... jo@x.org:22") == ["jo@x.org"] * 4


@pytest.mark.parametrize(
    "text",
    [
        *("256.81.81.81", "81.81.81.256", "81.81.81.81.5", "5.81.81.81.81", "081.81.81.81"),
        *("v81.81.81.81", "81.81.81.81a", "a.81.81.81.81", "81.81.81", "81.81.81.81@"),
        *("1.2.3.4", "12.2.3.63", "10.0.0.99", "127.0.0.1", "192.168.0.1", "255.255.255.255"),
    ],
)
def test_what_is_no_public_ipv4_address(text):
    assert words(f"({text})") == []


def test_ipv4_addresses():
    text = "81.2.69.142 [81.2.69.142]:80, 81.2.69.142/24 http://81.2.69.142. at 81.2.69.142-9"
    assert words(text) == ["81.2.69.142"] * 5


@pytest.mark.parametrize(
    "text",
    [
        *("12:34:56", "a::b", "x[1::2]", "::add", "0::", "std::u8::c", "1:2:3:4:5:6:7:8:9"),
        *("00:11:22:33:44:55", "00:11:22:33:44:55:66:77", "2a00:1450::81b::1", "2a00:14500::1:2"),
        *(
            "2a00:2:3:4:5:6:7::8",
            "2a00:2:3:4:5:6:7:8::",
            "::2a00:2:3:4:5:6:7:8",
            "2a00:2:3:4:5:6:7",
        ),
        *("fe80::1", "::1", "2001:db8::1", "::ffff:10.0.0.99", "2a00:1450::1:::"),
    ],
)
def test_what_is_no_public_ipv6_address(text):
    assert words(f"({text})") == []


@pytest.mark.parametrize(
    "address",
    [
        "2a00:1450:4001:81b::200e",
        "2400::1",
        "2a00:2:3:4:5:6:7:8",
        "::ffff:81.2.69.142",
        "2a00:1:2::",
    ],
)
def test_ipv6_addresses(address):
    assert words(f"[{address}]:80 {address}, {address}. \xe9{address}/48") == [address] * 4


def test_the_largest_part_decides_whether_a_dotted_number_is_an_address():
    assert words("1.2.3.63 1.2.3.64 64.1.1.1") == ["1.2.3.64", "64.1.1.1"]
    assert words("1.2.3.63", min_ipv4_part=63) == ["1.2.3.63"]


def test_what_one_address_took_the_next_cannot_use():
    assert words("jo@x.org@y.org") == ["jo@x.org"]


def test_an_embedded_ipv4_address_takes_the_room_of_two_groups():
    assert words("2a00:2:3:4:5:6:81.2.69.142") == ["2a00:2:3:4:5:6:81.2.69.142"]
    assert words("2a00:2:3:4:5:6:7:81.2.69.142") == ["81.2.69.142"]


def test_private_addresses_on_request():
    text = "10.0.0.99 fe80::1 ::ffff:10.0.0.99"
    assert words(text, only_public=False) == text.split()


def test_more_spans_than_first_planned():
    assert len(words("jo@x.org " * 500)) == 500


def test_no_texts():
    assert found(view([]).text) == []


# Ranges that ipaddress treats in one way in Python 3.11.7, in another today.
MOVED = [
    ipaddress.ip_network(net)
    for net in ("192.0.0.0/24", "64:ff9b:1::/48", "2001::/23", "2002::/16", "3fff::/20")
]


def edges(table):
    for entry in table.split():
        net = ipaddress.ip_network(entry.lstrip("!"))
        for value in (int(net[0]) - 1, int(net[0]), int(net[-1]), int(net[-1]) + 1):
            if 0 <= value < 2**net.max_prefixlen:
                yield type(net[0])(value)


def test_public_is_global_of_ipaddress():
    dice = random.Random(0)
    addresses = [*edges(RESERVED_V4), *edges(RESERVED_V6)]
    addresses += [ipaddress.IPv4Address(dice.randrange(2**32)) for _ in range(2000)]
    addresses += [ipaddress.IPv6Address(dice.randrange(2**128)) for _ in range(500)]
    addresses += [ipaddress.IPv6Address(0xFFFF << 32 | dice.randrange(2**32)) for _ in range(500)]
    for address in addresses:
        mapped = getattr(address, "ipv4_mapped", None) or address
        if not any(mapped in net for net in MOVED if net.version == mapped.version):
            assert is_public(address) == mapped.is_global, address


@pytest.mark.parametrize(
    ("address", "reachable"),
    [
        *(("192.0.0.8", False), ("192.0.0.9", True), ("192.0.0.10", True), ("192.0.0.11", False)),
        *(("192.0.1.0", True), ("64:ff9b:1::1", False), ("64:ff9b::1", True), ("2002::1", False)),
        *(("2001:1::1", True), ("2001:1::3", False), ("2001:3::1", True), ("2001:4:112::1", True)),
        *(("2001:20::1", True), ("2001:30::1", True), ("2001:200::1", True), ("3fff::1", False)),
        *(("3fff:1000::1", True), ("2001:db8::1", False)),
    ],
)
def test_public_where_python_changed_its_mind(address, reachable):
    assert is_public(ipaddress.ip_address(address)) == reachable
    assert (words(f"({address})", min_ipv4_part=0) == [address]) == reachable
