"""URLs as they occur, and as nobody writes them but somebody will."""

from __future__ import annotations

import dataclasses
import gzip
import random
import re
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LABELS = (
    *("www", "a", "m", "-", "", "*", "!www", "www.ck", "ck", "foo", "xn--", "xn--80ak6aa92e"),
    *("xn--p1ai", "XN--P1AI", "xn--zzzz", "xn--a-", "b\u00fccher", "\u0130stanbul", "\u03a3\u03a3"),
    *("\u212a", "\u516c\u53f8", "\u500b\u4eba", "xn--55qx5d", "co", "com"),
)
HOSTS = (
    *("localhost", "", ".", "..", "com", "co.uk", ".com", "..com", "a..com", ".example.com"),
    *("..example.com", "example.com.", "example.com..", "  example.com ", "foo.ck", "www.ck"),
    *("x.www.ck", "foo.bar.ck", "city.kawasaki.jp", "a.b.kawasaki.jp", "kawasaki.jp"),
    *("example\u3002com", "ex\uff0ecom\uff61", "\u2003example.com\u00a0", "\u2003www.example.org"),
    *("[::1]", "[2001:db8::1]", "[foo.com]", "[1.2.3.4", "[]x", "1.2.3.4", "1.2.3", "256.1.1.1"),
)
SCHEMES = (
    *(
        "http://",
        "https://",
        "HTTP://",
        "ftp://",
        "//",
        "",
        "://",
        ":",
        "h\u00e9://",
        "a//",
        "ab//",
    ),
    *("mailto:", "x+y.z-1://", "http:/", "http:///", "1://", " http://", "\u00e9//"),
)
USERS, PORTS = (
    ("", "", "", "", "user@", "u:p@", "a@b@", "us/er@"),
    ("", "", "", ":80", ":", "::", ":x"),
)
PATHS = ("", "/", "/index.html", "?q=1", "#f", "/a/b/c")
PIECES = ("hello", "page", "12", "%20", "\u00e9t\u00e9", "x" * 300)


@dataclasses.dataclass
class Maker:
    """Makes URLs of what lists hold: subdomains, ports, users, capitals, other scripts."""

    domains: Sequence[str]
    urls: Sequence[str]
    words: Sequence[str]
    suffixes: Sequence[str]

    def make(self, num: int, seed: int = 0) -> list[str]:
        """Return `num` URLs, none of them empty."""
        self.dice = random.Random(seed)
        return [self.url() for _ in range(num)]

    def url(self) -> str:
        choice = self.dice.choice
        if self.dice.random() < 0.06:
            url = choice(self.urls)
            return choice([url, url, self.cased(url), f"http://{url}", f"//{url}", f"{url}/"])
        parts = choice(SCHEMES), choice(USERS), self.host(), choice(PORTS), self.path()
        return "".join(parts) or "x"

    def host(self) -> str:
        choice, kind = self.dice.choice, self.dice.random()
        if kind < 0.4:
            name = choice(self.domains)
        elif kind < 0.65:
            suffix = choice(self.suffixes)
            suffix = choice([suffix, suffix.lstrip("*.!"), suffix.replace("*", "x")])
            name = f"{choice(LABELS)}.{suffix}" if self.dice.random() < 0.7 else suffix
        elif kind < 0.8:
            name = choice(HOSTS)
        else:
            name = f"{choice(self.words)}{choice(['', '-'])}{choice(self.words)}.co.uk"
        while self.dice.random() < 0.35:
            name = f"{choice(LABELS)}.{name}"
        return self.cased(name)

    def path(self) -> str:
        choice = self.dice.choice
        if self.dice.random() < 0.5:
            return choice(PATHS)
        words = [choice([choice(self.words), choice(self.words), choice(PIECES)]) for _ in range(3)]
        return (
            "/" + choice("-_/%.+ ").join(map(self.cased, words)) + choice(["", ".html", "\u3042"])
        )

    def cased(self, text: str) -> str:
        kind = self.dice.random()
        if kind < 0.7:
            return text
        if kind < 0.9:
            return text.upper() if kind < 0.8 else text.title()
        return "".join(c.upper() if self.dice.random() < 0.3 else c for c in text)


def real_urls(folder: Path) -> list[str]:
    """Return the URLs of pages, and those inside real texts and web archives."""
    pattern = re.compile(r"https?://[^\s<>\"')\]]+")
    found = set(pq.read_table(folder / "html" / "trafilatura_eval.parquet")["url"].to_pylist())
    for path in sorted(folder.glob("bench_*/*-00000-*.parquet")):
        for text in pq.read_table(path)["text"].to_pylist():
            found.update(pattern.findall(text))
    for path in sorted((folder / "warc").glob("*.gz")):
        try:
            archive = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        except EOFError:  # a clipped one
            continue
        found.update(line.strip() for line in re.findall(r"WARC-Target-URI: ?(.*)", archive))
        found.update(pattern.findall(archive))
    return sorted(found - {""})
