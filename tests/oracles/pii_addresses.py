"""What kernels/pii/addresses.py finds, once more with `re` and `ipaddress`: slow and plain."""

from __future__ import annotations

import ipaddress
import re
import string
from typing import TYPE_CHECKING

from corpuskit.kernels.pii.addresses import (
    IMAGES,
    LONGEST_TLD,
    RESERVED_V4,
    RESERVED_V6,
    VERSION_CUES,
    VERSION_GAP,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL, _NOT_FIRST = (string.ascii_letters + string.digits + "._%+'-").encode(), b"._%+'-"
_LABEL = rb"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_DOMAIN = re.compile(rb"%b(?:\.%b)*" % (_LABEL, _LABEL))
_TLD = re.compile(rb"[A-Za-z]{2,%d}" % LONGEST_TLD)

_DOTTED = rb"[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![A-Za-z0-9_@])(?!\.[0-9])"
_IPV4 = re.compile(rb"(?<![A-Za-z0-9_])(?<![A-Za-z0-9_]\.)" + _DOTTED)

_VERSION = re.compile(
    rb"(?:version|(?<![A-Za-z0-9_])(?:%b))[%b]{1,12}\Z"
    % ("|".join(VERSION_CUES.split()).encode(), re.escape(VERSION_GAP)),
    re.IGNORECASE,
)
_HEADING = re.compile(rb"(?:\A|\n)[ \t#*]{0,16}\Z")

_GROUP = rb"[0-9A-Fa-f]{1,4}"
_IPV6 = re.compile(
    rb"""(?<![A-Za-z0-9_.:])
    (?: GROUP (?: :GROUP ){7} | (?: GROUP: ){6} DOTTED
      | (?: GROUP (?: :GROUP )* )? :: (?: (?: GROUP: )* (?: DOTTED | GROUP ) )? )
    (?![A-Za-z0-9_]) (?!:[0-9A-Fa-f:]) (?!\.[0-9]) (?: (?<!:) | (?!:) )
    """.replace(b"GROUP", _GROUP).replace(b"DOTTED", _DOTTED),
    re.VERBOSE,
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: Address) -> bool:
    """Return whether an address is globally reachable, by the tables of the kernel."""
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    for net, reachable in _networks(RESERVED_V4 if address.version == 4 else RESERVED_V6):
        if address in net:
            return reachable
    return True


def _networks(text: str) -> Iterator[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, bool]]:
    for entry in text.split():
        yield ipaddress.ip_network(entry.lstrip("!")), entry.startswith("!")


def _before(text: bytes, free: int, at: int, chars: bytes) -> int:
    """Return where the run of `chars` that ends at `at` begins."""
    return free + len(text[free:at].rstrip(chars))


def email(text: bytes, free: int, at: int) -> tuple[int, int] | None:
    local = text[_before(text, free, at, _LOCAL) : at].lstrip(_NOT_FIRST)
    domain = _DOMAIN.match(text, at + 1)
    if not local or domain is None or local.lower() == b"git":
        return None
    labels = domain[0].split(b".")
    while labels and not _TLD.fullmatch(labels[-1]):
        labels.pop()
    if len(labels) < 2 or labels[-1].lower().decode() in IMAGES:
        return None
    stop = at + 1 + len(b".".join(labels))
    if text[stop : stop + 1] == b"(" and len(labels[-1]) > 3:
        return None
    return at - len(local), stop


def ipv4(
    text: bytes, free: int, at: int, *, only_public: bool, min_part: int
) -> tuple[int, int] | None:
    found = _IPV4.match(text, _before(text, free, at, string.digits.encode()))
    if found is None:
        return None
    try:
        address = ipaddress.IPv4Address(found[0].decode())
    except ValueError:
        return None
    if max(address.packed) < min_part:
        return None
    if only_public and (address.is_multicast or not is_public(address)):
        return None
    before = text[: found.start()][-28:]
    is_line = _HEADING.search(text[: found.start()][-17:]) is not None
    if is_line and max(address.packed[:3]) < min_part and text[found.end() :][:2] == b". ":
        return None
    return None if _VERSION.search(before) else found.span()


def ipv6(text: bytes, free: int, at: int, *, only_public: bool) -> tuple[int, int] | None:
    found = _IPV6.match(text, _before(text, free, at, string.hexdigits.encode()))
    if found is None:
        return None
    try:
        address = ipaddress.IPv6Address(found[0].decode())
    except ValueError:
        return None
    written = found[0].decode()
    groups = [group for group in written.replace(".", ":.").split(":") if group]
    parts = len(groups) - 2 * (written.count(".") > 0)
    if not any(char.isdecimal() for char in written) or all(len(g) == 2 for g in groups):
        return None
    if parts < 3 and len(written.partition(":")[0]) < 4:
        return None
    if only_public and not (is_public(address) and _is_given_out(address, written)):
        return None
    return found.span()


def _is_given_out(address: ipaddress.IPv6Address, written: str) -> bool:
    """Return whether somebody may have the address, or it is written in full."""
    if address.ipv4_mapped is not None or int(address) >> 125 == 1:
        return True
    if int(address) >> 64 == 0x64FF9B << 32:
        return True
    groups = address.exploded.split(":")
    return "::" not in written and all(int(group, 16) >= 0x100 for group in groups)
