"""Gather the pages of the website, and their order, for zensical.

    python docs/website.py DIR      # writes DIR/docs/ and DIR/mkdocs.yml; `make site` builds them

The pages are read on the repository's host, too, so they link to each other by their paths there,
also out of docs/. Here each gets a place in the site, and its links point to places.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "questions.md",
    "docs/stages/README.md": "stages/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security_policy.md",
    "benchmarks/RESULTS.md": "results.md",
    "sample_data/README.md": "sample_data.md",
}
"""Path in the repository -> place in the site; docs/NAME is at NAME, all else at its own path."""

LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
SECTION = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)
"""A part of the table of questions in docs/README.md."""


def place_of(path: str) -> str:
    """Return where a file of the repository is in the site."""
    return MOVED.get(path) or path.removeprefix("docs/").removeprefix(".")


def target_of(page: str, link: str) -> str:
    """Return which file a page's link leads to; of a folder, its README or else its first file."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if not (ROOT / path).is_dir():
        return path
    names = sorted(file.name for file in (ROOT / path).iterdir() if file.is_file())
    return posixpath.join(path, "README.md" if "README.md" in names else names[0])


def paths() -> list[str]:
    """Return the pages of the site by their paths in the repository."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    return list(dict.fromkeys([*MOVED, *(p.relative_to(ROOT).as_posix() for p in written)]))


def nav() -> list[dict[str, list[str]]]:
    """Return the navigation: the parts of docs/README.md with the pages that each links to."""
    _, *parts = SECTION.split((ROOT / "docs" / "README.md").read_text("utf-8"))
    stages = [place_of(path) for path in paths() if path.startswith("docs/stages/")]
    menu = [{"Home": ["index.md", "questions.md"]}]
    listed = {"index.md", "questions.md", *stages}
    for title, part in zip(parts[::2], parts[1::2], strict=True):
        targets = [target_of("docs/README.md", link) for link, _ in LINK.findall(part)]
        places = [place_of(path) for path in targets if path.endswith(".md")]
        menu.append({title: list(dict.fromkeys(p for p in places if p not in listed))})
        listed.update(places)
    others = [place_of(path) for path in paths() if place_of(path) not in listed]
    return [*menu, {"Stages": stages}, {"Project": others}]


def gather(folder: Path) -> None:
    """Write all pages, what they link to, and the configuration of zensical."""
    waiting = paths()
    for path in waiting:
        place = folder / "docs" / place_of(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not path.endswith(".md"):
            shutil.copy(ROOT / path, place)
            continue
        text = (ROOT / path).read_text("utf-8")
        targets = {link: target_of(path, link) for link, _ in LINK.findall(text)}
        waiting += [t for t in targets.values() if (ROOT / t).is_file() and t not in waiting]
        here = posixpath.dirname(place_of(path)) or "."

        def link_to(
            match: re.Match[str], targets: dict[str, str] = targets, here: str = here
        ) -> str:
            return posixpath.relpath(place_of(targets[match[1]]), here) + (match[2] or "")

        place.write_text(LINK.sub(link_to, text), "utf-8")
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    (folder / "mkdocs.yml").write_text(settings + yaml.safe_dump({"nav": nav()}, sort_keys=False))


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
