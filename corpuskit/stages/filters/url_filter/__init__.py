"""Block lists of domains, URLs and words in URLs, as RefinedWeb and FineWeb used them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from corpuskit.formats.batch import utf8
from corpuskit.kernels.arrays import Bytes, Int64s, frozen, join_bytes
from corpuskit.kernels.filters.urls import decide_urls, find_bodies, find_domains, find_hosts
from corpuskit.paths import PathText
from corpuskit.stage import Cost, Example, Known, Outcome, StreamingStage, View, Volume
from corpuskit.stages.filters._lists import file_of
from corpuskit.stages.filters.url_filter import lists as url_lists

Hosts = tuple[Int64s, Int64s, Bytes]

_MISSING = "missing_url"
_OWN: dict[str, Any] = {"use_integrated_lists": False}
_HOST = "a.example.org"
_WORDS = ("cheap", "pills")

_WIDE_STOPS = str.maketrans(dict.fromkeys("\u3002\uff0e\uff61", "."))
"""Full stops that part labels, beside the ASCII one."""


class UrlFilter(StreamingStage):
    """Drop documents by their URL: 4.6 million domains, URLs, words in the URL.

    Use it first on web pages. Tests run in this order: registered domain, whole host, whole URL, a
    hard word, several soft words, a part of a word anywhere (separators left out); the first hit
    names the rule. A word is a run of letters and digits. A host without a public suffix (an
    address, `localhost`) is in no list of domains. The lists that come with datatrove mainly block
    adult sites; yours add to them, or replace them.

    Lists are compiled on first use, once per machine and content (5 CPU s, 37 MB in the cache of
    kernels; `corpuskit warmup` does it), and mapped afterwards: opening them takes 0.04 CPU s.
    Membership is exact.

    Two weaknesses of the reference are kept by default. Words and domains are compared with case,
    so `XXX` and `EXAMPLE.ORG` pass (`case: insensitive` closes that). Its list of URLs has no
    `https://`, so whole URLs never match (`scheme: ignored` closes that).

    Source: Penedo et al. 2023 (RefinedWeb), section 3.1 and appendix G.1; equals datatrove 0.10.1's
    URLFilter with the public suffix list that its tldextract has without a network; there a missing
    URL is an error. Exempt domains: the curated-domain exclusion of RefinedWeb and DCLM.
    """

    rules: ClassVar[tuple[str, ...]] = (
        *(_MISSING, "domain", "subdomain", "url"),
        *("hard_blacklisted", "soft_blacklisted", "blacklisted_subword"),
    )
    bounds: ClassVar[Mapping[str, str]] = {"soft_blacklisted": "max_soft_words"}
    # A text that is a URL stands for a document from there.
    examples: ClassVar[tuple[Example, ...]] = (
        Example("https://example.org/a"),
        Example("no url", _MISSING, {**_OWN, "missing": "drop"}),
        Example("https://www.example.org", "domain", {**_OWN, "extra_domains": ("example.org",)}),
        Example("https://a.example.org", "subdomain", {**_OWN, "extra_domains": (_HOST,)}),
        Example("https://b.example.org", None, {**_OWN, "extra_domains": (_HOST,)}),
        Example("//example.org/a?b=1", "url", {**_OWN, "extra_urls": ("//example.org/a?b=1",)}),
        Example("https://example.org/pills", "hard_blacklisted", {**_OWN, "banned_words": _WORDS}),
        Example(
            "https://example.org/cheap/pills",
            "soft_blacklisted",
            {**_OWN, "soft_banned_words": _WORDS},
        ),
        Example(
            "https://example.org/che-ap", "blacklisted_subword", {**_OWN, "banned_subwords": _WORDS}
        ),
        Example(
            "https://a.example.org",
            None,
            {**_OWN, "extra_domains": ("example.org",), "exempt_domains": (_HOST,)},
        ),
    )

    use_integrated_lists: bool = True
    """Take the lists that come with datatrove, besides those given here."""
    extra_domains: tuple[str, ...] = ()
    """Domains and hosts, as in `example.org`, in lower case; `@path` reads a file, one a line,
    `#` comments."""
    extra_urls: tuple[str, ...] = ()
    """URLs, letter for letter; `@path` reads a file."""
    banned_words: tuple[str, ...] = ()
    """Words of which one is enough; `@path` reads a file."""
    soft_banned_words: tuple[str, ...] = ()
    """Words that count together; `@path` reads a file."""
    banned_subwords: tuple[str, ...] = ()
    """Parts of words of which one is enough; `@path` reads a file."""
    exempt_domains: tuple[str, ...] = ()
    """Domains and hosts that no rule applies to (curated sources); `@path` reads a file."""
    max_soft_words: int = Field(1, ge=0, le=1000)
    """Most different soft words in a URL."""
    case: Literal["reference", "insensitive"] = "reference"
    """`reference` compares hosts and words unchanged; lists are in lower case."""
    scheme: Literal["reference", "ignored"] = "reference"
    """`ignored` looks a URL up in the list of URLs without its `https://`."""
    missing: Literal["keep", "drop"] = "keep"
    """What to do with documents that have no URL."""
    suffix_list: PathText | None = None
    """Path of a public suffix list; null takes the one inside tldextract."""

    @field_validator("extra_domains", "exempt_domains")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            if file_of(entry) is None and "/" in entry:
                raise ValueError(f"{entry!r} is no domain or host; a URL belongs into extra_urls")
        return value

    def needs(self) -> tuple[str, ...]:
        return ("origin",)

    def origins(self) -> tuple[str, ...]:
        return ("url",)

    def check(self, known: Known) -> None:
        del known
        url_lists.check(self._lists)

    def files(self) -> tuple[str, ...]:
        return url_lists.files(self._lists)

    def libraries(self) -> tuple[str, ...]:
        return url_lists.libraries(self._lists)

    def cost(self, volume: Volume, pass_name: str = "") -> Cost:
        return Cost(volume.documents / 250e3, start_seconds=0.05, resident_bytes=40_000_000)

    def apply(self, view: View) -> Outcome:
        lists = url_lists.open_lists(self._lists)
        column = pc.struct_field(view.column("origin"), "url").fill_null("")
        urls = utf8(column.cast(pa.large_string()))
        hosts, lower = _hosts(*urls)
        ignore_case = self.case == "insensitive"
        compared = lower if ignore_case else hosts
        bodies = urls.offsets[:-1] if self.scheme == "reference" else find_bodies(*urls)
        codes, counts = decide_urls(
            (urls.offsets, urls.data),
            bodies,
            compared,
            find_domains(lists.suffixes, lower, compared),
            lists,
            ignore_case,
            self.max_soft_words,
        )
        codes = np.where(codes > 0, codes + 1, 0).astype(np.uint8)
        if self.missing == "drop":
            codes[urls.sizes() == 0] = 1
        is_soft = codes == 1 + self.rules.index("soft_blacklisted")
        return Outcome(codes=codes, values=np.where(is_soft, counts.astype(np.float64), np.nan))

    @property
    def _lists(self) -> url_lists.UrlLists:
        return url_lists.UrlLists(
            integrated=self.use_integrated_lists,
            suffix_list=self.suffix_list,
            exempt=self.exempt_domains,
            domains=self.extra_domains,
            urls=self.extra_urls,
            hard=self.banned_words,
            soft=self.soft_banned_words,
            subwords=self.banned_subwords,
        )


def _hosts(offsets: Int64s, data: Bytes) -> tuple[Hosts, Hosts]:
    """Return the hosts of URLs unchanged, and in lower case.

    The few hosts with wide characters are decoded here and appended to the data of the URLs.
    """
    starts, ends, wide = find_hosts(offsets, data)
    data = data[: offsets[-1]]
    lower = np.where((data >= ord("A")) & (data <= ord("Z")), data + 32, data).astype(np.uint8)
    rows = np.flatnonzero(wide)
    hosts = [_wide_host(data[starts[row] : ends[row]].tobytes().decode()) for row in rows]
    spelt = [host.encode() for host in hosts]
    small = [".".join(label.lower() for label in host.split(".")).encode() for host in hosts]
    return (_appended(starts, ends, data, rows, spelt), _appended(starts, ends, lower, rows, small))


def _wide_host(host: str) -> str:
    """Return a host stripped, its full stops in ASCII, as tldextract takes it."""
    if host.startswith("[") and host.endswith("]"):
        return host
    return host.strip().translate(_WIDE_STOPS).rstrip(".")


def _appended(starts: Int64s, ends: Int64s, data: Bytes, rows: Int64s, hosts: list[bytes]) -> Hosts:
    """Return hosts with those of `rows` replaced; read-only, as Arrow's buffers are."""
    if len(rows):
        starts, ends = starts.copy(), ends.copy()
        offsets, new_data = join_bytes(hosts)
        starts[rows], ends[rows] = len(data) + offsets[:-1], len(data) + offsets[1:]
        data = np.concatenate([data, new_data])
    return frozen(starts), frozen(ends), frozen(data)
