"""Read the translated messages of programs: short texts in many languages, openly licensed.

    mkdir packages && cd packages
    apt-get download $(apt-cache search --names-only '^firefox-esr-l10n-' | cut -d' ' -f1 | grep -v all)
    apt-get download libreoffice-l10n-{bs,hr,sr,nso,rw,st,tn,ts,xh,zu}
    apt-get download android-framework-res chromium-l10n
    apt-get download libgtk-3-common libgtk2.0-common libglib2.0-data
    pip download --no-deps django kolibri   # the versions of packages.sha256

Firefox and LibreOffice (MPL 2.0), Kolibri (MIT), Android (Apache-2.0) and Chromium (BSD) are for
training, Django (BSD) for the choice of settings and for calibration, GTK and GLib (LGPL 2.1) for
judging alone. Messages that equal an English one are left out, and so are messages that two
languages share.
"""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import tarfile
import zipfile
from collections import defaultdict
from typing import TYPE_CHECKING

import resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

PARTS = {
    "firefox": "train", "libreoffice": "train", "kolibri": "train", "android": "train",
    "chromium": "train", "django": "tune", "gtk": "judge",
    "django-script": "tune-script", "gtk-script": "judge-script",
}  # fmt: skip
# Locales that are no label: spellings and scripts hardly ever met, and codes of other languages.
SKIPPED = frozenset("be@latin en@shaw az_IR sr@ije bn_IN en_AU ff ig_NG en-XC".split())
LOCALES = {"nb": "no", "hy-AM": "hy", "fil": "tl", "in": "id", "iw": "he"}
# Django's and GTK's messages in a script that their language is also written in: a part of its own.
SCRIPTS = frozenset("sr_Latn sr@latin uz@cyrillic".split())
_FLUENT = re.compile(r"^(?:[\w-]+|\s+\.[\w-]+|\s+\*?\[[^\]]+\])\s*=?\s*(\S.*)$|^\s+(\S.*)$", re.M)
_PROPERTY = re.compile(r"^[\w.-]+\s*=\s*(.+)$", re.M)
# Placeholders, markup, escapes, shortcuts: what is of no language.
_FOREIGN = re.compile(
    r"\{[^{}]*\}|<[^<>]*>|%(?:\(\w+\))?[-#0-9.]*[a-zA-Z]|%\d\$?\w?|\$\w+|&\w+;|\\u[0-9a-fA-F]{4}"
    r"|\\[nt]|https?:\S+|[~|_]|^\.[\w-]+ ="
)
_LETTERS = re.compile(r"[^\W\d_]")


def clean(message: str) -> str:
    """Return a message without what is of no language; empty if next to nothing is left."""
    message = re.sub(r"[_&~](?=\w)", "", message)  # the key of a shortcut
    text = " ".join(_FOREIGN.sub(" ", message).split())
    return text if len(_LETTERS.findall(text)) >= 3 and len(text) <= 600 else ""


def label_of_locale(locale: str) -> str | None:
    """Return our label for a locale such as `pt-BR`; None for what is skipped."""
    if locale in SKIPPED:
        return None
    primary = re.split(r"[-_@]", locale)[0]
    return LOCALES.get(primary, LOCALES.get(locale, primary))


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of a package."""
    if path.suffix != ".deb":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/locale/" in name and "/dist/" not in name:  # what Kolibri brings with it
                    yield name, archive.read(name)
        return
    data = subprocess.run(["dpkg-deb", "--fsys-tarfile", path], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(data.stdout)) as archive:
        for member in archive:
            if member.name.endswith((".mo", ".xpi", ".pak", ".apk")) and member.isfile():
                yield member.name, archive.extractfile(member).read()  # type: ignore[union-attr]


def _messages(name: str, content: bytes) -> Iterator[str]:
    """Yield the messages of a file that differ from their key."""
    if name.endswith(".mo"):
        num, keys, values = struct.unpack_from("<3I", content, 8)
        for entry in range(num):
            key, value = (
                content[place : place + size].partition(b"\0")[0]
                for size, place in (
                    struct.unpack_from("<2I", content, table + 8 * entry)
                    for table in (keys, values)
                )
            )
            if key and value != key.rpartition(b"\4")[2]:
                yield value.decode("utf-8", "ignore")
    elif name.endswith(".json"):
        content_of = json.loads(content)
        yield from (value for value in content_of.values() if isinstance(value, str))
    elif name.endswith((".ftl", ".properties")):
        pattern = _FLUENT if name.endswith(".ftl") else _PROPERTY
        lines = "\n".join(x for x in content.decode().split("\n") if not x.startswith(("#", "-")))
        yield from (
            next(filter(None, match), "") for match in map(_groups, pattern.finditer(lines))
        )


def _groups(match: re.Match[str]) -> tuple[str, ...]:
    return tuple(group or "" for group in match.groups())


def _of_file(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the locale and each message of a file."""
    if name.endswith(".xpi"):
        locale = re.search(r"langpack-([\w-]+)@", name)[1]  # type: ignore[index]
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            for each in inner.namelist():
                yield from ((locale, message) for message in _messages(each, inner.read(each)))
    elif name.endswith(".apk"):
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            yield from resources.arsc(inner.read("resources.arsc"))
    elif name.endswith(".pak"):
        locale = name.rpartition("/")[2].removesuffix(".pak")
        if "_" not in locale:  # af_FEMININE has the few messages that differ
            yield from ((locale, message) for message in resources.pak(content))
    elif match := re.search(r"(?:/locale|/resource)/([\w@-]+)/LC_MESSAGES/", name):
        yield from ((match[1], message) for message in _messages(name, content))


def _of_package(path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the source, the locale and each message of a package."""
    source = next((name for name in PARTS if name in path.name), "gtk")
    for name, content in _files(path):
        yield from ((source, locale, message) for locale, message in _of_file(name, content))


def read(paths: Iterable[Path]) -> dict[tuple[str, str], list[str]]:
    """Return (source, label) -> its messages, sorted, each once, none in two parts."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in sorted(paths):
        for source, locale, message in _of_package(path):
            label = label_of_locale(locale)
            if locale in SCRIPTS:
                source += "-script"
                label = label if source in PARTS else None
            if label is not None and (text := clean(message)):
                found[source, label].add(text)
    owners: dict[str, set[str]] = defaultdict(set)
    for (source, label), texts in found.items():
        for text in texts if not source.endswith("-script") else ():
            owners[text.lower()].add(label)
    seen: set[str] = set()
    out = {}
    for key in sorted(found, key=lambda key: (*PARTS,).index(key[0])):
        own = {text for text in found[key] if owners[text.lower()] <= {key[1]}}
        out[key] = sorted(text for text in own if text.lower() not in seen)
        seen |= {text.lower() for text in own}
    return out
