"""Personal data that has a form: addresses, numbers, keys."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self, get_args

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from corpuskit.formats.batch import Utf8, large_strings, utf8
from corpuskit.kernels.arrays import Bools, Bytes, Float64s, Int64s, frozen
from corpuskit.kernels.pii.scan import KINDS, PiiMatches, find_datatrove, find_pii
from corpuskit.kernels.spans import replace_spans
from corpuskit.stage import Example, Outcome, Spans, StreamingStage, View

Kind = Literal["email", "ipv4", "ipv6", "phone", "credit_card", "iban", "us_ssn", "secret"]
Action = Literal["replace", "mask", "tag", "drop"]
StandIns = str | Annotated[tuple[str, ...], Field(min_length=1, max_length=16)]

assert get_args(Kind) == KINDS, "the kinds of the kernel"

DATATROVE = {
    "email": ("email@example.com", "firstname.lastname@example.org"),
    "ipv4": (
        "22.214.171.124", "126.96.36.199", "188.8.131.52",
        "184.108.40.206", "220.127.116.11", "18.104.22.168",
    ),
}  # fmt: skip


class Pii(StreamingStage):
    """Replace, mask or tag personal data that has a documented form, or drop the documents with it.

    Use it as the last stage that looks at text. The ledger has the positions, never the words. With
    the default replacements a second run changes nothing. docs/accuracy/pii.md says how much is
    found, and how many of the matches are false.

    - `email`: ASCII, a domain of two labels or more, the last of 2 to 24 letters and not an image
      suffix (`icon@2x.png`); neither `git@host` nor a call (`query@key.transpose(1, 2)`).
    - `ipv4`: four numbers without leading zeros, without a letter or fifth number next to them; not
      a version (`v 8.1.0.99`) or heading (`6.1.8.99. Devices`).
    - `ipv6`: what `ipaddress` reads, if it has a decimal digit, and three groups or a first one of
      four digits, and not two digits in every group: so `a::b`, `x[1::2]` and hardware addresses
      stay. Which addresses are globally reachable is a table of our own, that of current CPython;
      multicast groups are left out, and of IPv6 only 2000::/3 and 64:ff9b::/96 have been assigned,
      so others must be written in full.
    - `phone`: after a plus, a calling code and as many digits as it allows; ten digits grouped as
      in North America, between spaces alone only after a word like `phone`; 7 to 12 digits in
      groups after such a word. Not dates, times, ranges of years, decimals, dotted quads, versions,
      ISBN, dumps and thousands (`1 234 567`); after `call`, `mobile` or `cell` a number needs an
      area code or the end of a clause (not `call 12 34 567 people`).
    - `credit_card`: 12 to 19 digits, together or in groups, with an issuer's prefix and length and
      the check digit; unless they are 15 or 16 digits together, a word like `card` must come before
      them, because the check digit is weak.
    - `iban`: the form of its country and the check digits.
    - `us_ssn`: `ddd-dd-dddd`, if it can have been issued.
    - `secret`: keys and tokens of AWS, GitHub, GitLab, Google, Hugging Face, npm, OpenAI and the
      like, PyPI, Slack, Stripe; JSON web tokens; private keys in PEM. Passwords have no form and
      are not found.

    All kinds are on by default: in 113 MB of manuals and web text the last five found 89 spans, all
    in the form of their kind.

    `mode: datatrove` does what datatrove 0.10.1's PIIFormatter does, for e-mail and IPv4 addresses,
    without word boundaries (`256.1.1.1` becomes `2` and a new address), with the running Python's
    `ipaddress` to recognise public ones. One thing differs: the rotation of replacements starts
    again in each document, so that output does not depend on how input was cut.

    Source: email, ipv4 and their replacements: datatrove 0.10.1, PIIFormatter, with boundaries.
    Numbers: ISO/IEC 7812 (cards), SWIFT's IBAN registry, ITU-T E.164 (calling codes), the rules of
    the US Social Security Administration since 2011; secrets: the forms their issuers document.
    """

    rules: ClassVar[tuple[str, ...]] = KINDS
    text_speed: ClassVar[float] = 350e6
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Nothing personal in version 1.2.3.4.5, 256.1.1.1, a::b or icon@2x.png."),
        Example("On 2024-01-15 in ISBN 978-0-306-40615-7, order 4111 1111 1111 1112, 000-12-3456."),
        Example(
            "Write to <jo.doe+x@mail.example.org>.",
            "email",
            becomes="Write to <email@example.com>.",
        ),
        Example(
            "Seen from 81.2.69.142:8080, via 10.0.0.1.",
            "ipv4",
            becomes="Seen from 192.0.2.1:8080, via 10.0.0.1.",
        ),
        Example("via 10.0.0.200", "ipv4", {"only_public_ips": False}, becomes="via 192.0.2.1"),
        Example("ping 2a00:1450:4001:81b::200e", "ipv6", becomes="ping 2001:db8::1"),
        Example("Ring +44 20 7946 0958 now.", "phone", becomes="Ring 202-555-0143 now."),
        Example("Call 192.168.10.1 on 2021-03-25 about 12 34 567 people."),
        Example("(415) 555-2671 x12", "phone", {"action": "tag"}, becomes="<PHONE>"),
        Example(
            "Card 4012-8888-8888-1881.", "credit_card", {"action": "mask"},
            becomes="Card *******************.",
        ),
        Example("to DE89 3704 0044 0532 0130 00", "iban", {"action": "tag"}, becomes="to <IBAN>"),
        Example("SSN 452-85-7892", "us_ssn", becomes="SSN 000-00-0000"),
        Example("key=AKIAIOSFODNN7EXAMPL3", "secret", becomes="key=REDACTED"),
        Example("key=AKIAIOSFODNN7EXAMPL3", "secret", {"actions": {"secret": "drop"}}),
        Example(
            "256.81.2.69 a@x.org b@y.org", "ipv4", {"mode": "datatrove"},
            becomes="222.214.171.124 email@example.com firstname.lastname@example.org",
        ),
    )  # fmt: skip

    mode: Literal["corpuskit", "datatrove"] = "corpuskit"
    """`datatrove`: e-mail and IPv4 addresses as datatrove's PIIFormatter has them."""
    kinds: tuple[Kind, ...] = KINDS
    """What to look for."""
    action: Action = "replace"
    """By a stand-in (replace), the same number of characters (mask), its kind (tag: `<EMAIL>`)."""
    actions: dict[Kind, Action] = Field({})
    """Other actions for some kinds; `drop` drops the documents that have it."""
    mask_character: Literal["*", "X"] = "*"
    """What masks are made of."""
    email_replacement: StandIns | None = None
    """Stands for each e-mail address; several take turns in a document. By default
    `email@example.com`, in mode datatrove its two."""
    ipv4_replacement: StandIns | None = None
    """Stands for each IPv4 address; by default `192.0.2.1`, reserved for documentation, in mode
    datatrove its six."""
    ipv6_replacement: StandIns = "2001:db8::1"
    """Stands for each IPv6 address; the default is reserved for documentation."""
    phone_replacement: StandIns = "202-555-0143"
    """Stands for each telephone number; the default is reserved for fiction."""
    credit_card_replacement: StandIns = "4111 1111 1111 1111"
    """Stands for each card number; the default is Visa's for tests."""
    iban_replacement: StandIns = "GB82 WEST 1234 5698 7654 32"
    """Stands for each account number; the default is the registry's example, of no bank."""
    us_ssn_replacement: StandIns = "000-00-0000"
    """Stands for each social security number; the default cannot be given out."""
    secret_replacement: StandIns = "REDACTED"
    """Stands for each key or token."""
    only_public_ips: bool = True
    """Find only addresses that are globally reachable, not 127.0.0.1 or 192.168.0.1."""
    min_ipv4_part: int = Field(64, ge=0, le=255)
    """Dotted numbers whose four parts are all smaller are sections and versions, not addresses.

    64 misses one address in 256 if all are equally likely. In 190 MB of manuals it spared 2,421 of
    2,805 dotted numbers that could be public addresses, nearly all of them section headings.
    """

    @model_validator(mode="after")
    def _check_datatrove(self) -> Self:
        """Refuse stand-ins that could become a part of an IP address, which is found afterwards."""
        for text in self._stand_ins("email") if self.mode == "datatrove" else ():
            if (
                not text.strip(".")
                or text != text.strip(".")
                or any(c in "0123456789" for c in text)
            ):
                raise ValueError(
                    f"email_replacement must be text without digits, with no dot at its ends, in "
                    f"mode datatrove, got {text!r}"
                )
        return self

    def apply(self, view: View) -> Outcome:
        matches = self._find(view.text)
        codes, values = self._drops(matches, view.num_docs)
        if len(matches.rows) == 0:
            return Outcome(codes=codes, values=values)
        spans = Spans(
            matches.rows, matches.starts, matches.ends, matches.kinds + np.uint8(1), "replace"
        )
        text = self._rewrite(view.text, matches)
        return Outcome(codes=codes, values=values, text=text, spans=spans)

    def _action(self, kind: str) -> Action:
        return self.actions.get(kind, self.action)  # type: ignore[call-overload, no-any-return]

    def _stand_ins(self, kind: str) -> tuple[str, ...]:
        """Return the stand-ins of a kind, which take turns in a document."""
        replacement: str | tuple[str, ...] | None = getattr(self, f"{kind}_replacement")
        if replacement is None:
            replacement = DATATROVE[kind]
            return (
                replacement
                if self.mode == "datatrove"
                else (replacement[0] if kind == "email" else "192.0.2.1",)
            )
        return (replacement,) if isinstance(replacement, str) else replacement

    def _find(self, text: Utf8) -> PiiMatches:
        if self.mode == "datatrove":
            return self._find_as_datatrove(text)
        return find_pii(
            text.offsets,
            text.data,
            self.kinds,
            only_public=self.only_public_ips,
            min_ipv4_part=self.min_ipv4_part,
        )

    def _find_as_datatrove(self, text: Utf8) -> PiiMatches:
        matches = find_datatrove(
            text.offsets, text.data, has_email="email" in self.kinds, has_ipv4="ipv4" in self.kinds
        )
        keep = matches.kinds == KINDS.index("email")
        begins = text.offsets[matches.rows]
        for index in np.flatnonzero(~keep).tolist():
            begin, end = begins[index] + matches.starts[index], begins[index] + matches.ends[index]
            keep[index] = is_address(
                text.data[begin:end].tobytes().decode(), only_public=self.only_public_ips
            )
        return _select(matches, keep)

    def _drops(self, matches: PiiMatches, num_docs: int) -> tuple[Bytes | None, Float64s | None]:
        """Return codes, and the number of spans of the kind; None if no action is `drop`."""
        if "drop" not in set(map(self._action, KINDS)):
            return None, None
        codes, values = np.zeros(num_docs, np.uint8), np.full(num_docs, np.nan)
        for code in reversed(range(len(KINDS))):
            if self._action(KINDS[code]) == "drop":
                count = np.bincount(matches.rows[matches.kinds == code], minlength=num_docs)
                codes[count > 0], values[count > 0] = code + 1, count[count > 0]
        return codes, values

    def _rewrite(self, text: Utf8, matches: PiiMatches) -> Utf8 | None:
        """Return the new texts, None if nothing changes; spans that drop documents stay."""
        by_action = np.array([self._action(kind) for kind in KINDS])[matches.kinds]
        masked, replaced = by_action == "mask", np.isin(by_action, ("replace", "tag"))
        if not masked.any() and not replaced.any():
            return None
        if masked.any():
            text = _mask(text, _select(matches, masked), self.mask_character)
        if replaced.any():
            pieces = [
                [f"<{kind.upper()}>".encode()] if self._action(kind) == "tag"
                else [option.encode() for option in self._stand_ins(kind)]
                for kind in KINDS
            ]  # fmt: skip
            text = _replace(text, _select(matches, replaced), pieces)
        return text


def is_address(text: str, *, only_public: bool) -> bool:
    """Return whether `ipaddress` reads a text, as datatrove's check of addresses has it."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not only_public or address.is_global


def _select(matches: PiiMatches, rows: Bools) -> PiiMatches:
    return PiiMatches(
        matches.rows[rows], matches.starts[rows], matches.ends[rows], matches.kinds[rows]
    )


def _turns(matches: PiiMatches) -> Int64s:
    """Return how many spans of the same kind precede each span in its document."""
    order = np.lexsort((matches.starts, matches.rows, matches.kinds))
    rows, kinds = matches.rows[order], matches.kinds[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows[1:] != rows[:-1]) | (kinds[1:] != kinds[:-1])
    indices = np.arange(len(rows))
    turns = np.empty(len(rows), np.int64)
    turns[order] = indices - np.maximum.accumulate(np.where(is_first, indices, 0))
    return turns


def _replace(text: Utf8, matches: PiiMatches, pieces: Sequence[Sequence[bytes]]) -> Utf8:
    """Replace spans by the pieces of their kind, in turn, starting over with each document."""
    sizes = np.array([len(options) for options in pieces], np.int64)
    firsts = np.cumsum(sizes) - sizes
    codes = firsts[matches.kinds] + _turns(matches) % sizes[matches.kinds]
    flat = [piece for options in pieces for piece in options]
    assert len(flat) <= 256, "codes are bytes"
    spans = (matches.rows, matches.starts, matches.ends, codes.astype(np.uint8))
    return Utf8(*replace_spans(text.offsets, text.data, *spans, flat))


def _mask(text: Utf8, matches: PiiMatches, character: str) -> Utf8:
    """Write a character over all bytes of the spans, which are ASCII."""
    first, last = text.offsets[0], text.offsets[-1]
    output = text.data[first:last].copy()
    sizes = matches.ends - matches.starts
    begins = text.offsets[matches.rows] - first + matches.starts
    offsets_in_spans = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    output[np.repeat(begins, sizes) + offsets_in_spans] = ord(character)
    return Utf8(frozen(text.offsets - first), frozen(output))


def mask_texts(texts: pa.Array) -> pa.Array:
    """Return texts with what all kinds find replaced, private addresses too; nulls become empty."""
    array = texts.cast(pa.large_string()).fill_null("")
    stage, text = Pii(only_public_ips=False), utf8(array)
    matches = stage._find(text)
    return large_strings(*(stage._rewrite(text, matches) or text))
