"""Write some of the sample texts in the forms that people have them in, to try a first run on.

    python sample_data/inputs.py [FOLDER]        (default: runs/inputs)

    crawl/pages.warc.gz        pages as a crawler stores them: HTML with menus, requests, an error page
    crawl/pages.warc.wet.gz    the same as Common Crawl's WET: all visible text
    jsonl/*.jsonl              one object per line; the text is the member `body`
    dataset/                   a copy of a dataset repository of Hugging Face: a card and Parquet
    datatrove/*.jsonl.gz       what datatrove's JsonlWriter leaves: text, id, metadata

The same bytes every time. No part of corpuskit is used.
"""

from __future__ import annotations

import gzip
import html
import io
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

FOLDER = Path(__file__).parent
NUM_PAGES = 240
MENU = ("Home", "About us", "Contact", "Sitemap", "Privacy policy")
PAGE = """<!doctype html>
<html lang="{lang}"><head><meta charset="utf-8"><title>{title}</title><style>nav {{ color: gray }}</style></head>
<body><header><nav><ul>{menu}</ul></nav></header>
<main><article><h1>{title}</h1>
{paragraphs}
</article></main>
<aside><h3>More</h3><a href="/a">Read more</a> <a href="/b">Next page</a></aside>
<footer>Copyright 2024. All rights reserved.</footer><script>document.title += "!"</script></body></html>
"""


def documents() -> list[dict[str, Any]]:
    """Return the web documents that have an address and a text, in order of their files."""
    found = []
    for path in sorted((FOLDER / "web").glob("*.jsonl.zst")):
        with zstandard.open(path, "rb") as stream:
            for line in stream.read().splitlines():
                try:
                    document = json.loads(line)
                except ValueError:
                    continue
                if not isinstance(document, dict) or not document.get("url"):
                    continue
                if isinstance(document.get("text"), str):
                    found.append(document)
    return found


def page_of(document: dict[str, Any]) -> str:
    """Return a document as a web page with a menu around it."""
    title = document["text"].partition(". ")[0]
    paragraphs = "\n".join(f"<p>{html.escape(part)}</p>" for part in document["text"].split("\n"))
    menu = "".join(f'<li><a href="/{item[:2]}">{item}</a></li>' for item in MENU)
    lang = document.get("lang", "en")
    return PAGE.format(title=html.escape(title[:60]), menu=menu, paragraphs=paragraphs, lang=lang)


def record(kind: str, url: str, date: str, block: bytes, content_type: str) -> bytes:
    """Return a WARC record as a gzip member of its own."""
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{kind} {url}")
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Target-URI: {url}\r\nWARC-Date: {date}T12:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:{name}>\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(block)}\r\n\r\n"
    )
    return packed(head.encode() + block + b"\r\n\r\n")


def packed(content: bytes) -> bytes:
    """Return content in gzip's form, without the time of day in it."""
    made = io.BytesIO()
    with gzip.GzipFile(fileobj=made, mode="wb", mtime=0) as stream:
        stream.write(content)
    return made.getvalue()


def answer(
    body: str, status: str = "200 OK", content_type: str = "text/html; charset=utf-8"
) -> bytes:
    """Return a server's answer."""
    content = body.encode("utf-8", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def write_crawl(folder: Path, found: list[dict[str, Any]]) -> None:
    """Write the pages as WARC and as WET."""
    warc, wet = [], []
    for document in found:
        url, date = document["url"], document["date"]
        request = f"GET {url} HTTP/1.1\r\nHost: site.example\r\n\r\n".encode()
        warc.append(record("request", url, date, request, "application/http; msgtype=request"))
        block = answer(page_of(document))
        warc.append(record("response", url, date, block, "application/http; msgtype=response"))
        text = "\n".join([*MENU, document["text"], "All rights reserved."])
        block = text.encode("utf-8", "replace")
        wet.append(record("conversion", url, date, block, "text/plain"))
    for url, block in (
        ("https://site1.example/gone", answer("<p>Not found", "404 Not Found")),
        ("https://site1.example/paper.pdf", answer("%PDF-1.7 ...", content_type="application/pdf")),
    ):
        kind = "application/http; msgtype=response"
        warc.append(record("response", url, "2024-01-01", block, kind))
    (folder / "crawl").mkdir(parents=True)
    (folder / "crawl" / "pages.warc.gz").write_bytes(b"".join(warc))
    (folder / "crawl" / "pages.warc.wet.gz").write_bytes(b"".join(wet))


def write_lines(folder: Path, found: list[dict[str, Any]]) -> None:
    """Write the documents as two files of JSON lines, and as datatrove writes them."""
    for name in ("jsonl", "datatrove"):
        (folder / name).mkdir(parents=True)
    half = len(found) // 2
    for number, part in enumerate((found[:half], found[half:])):
        plain, theirs = [], []
        for document in part:
            facts = {key: document[key] for key in ("url", "date", "lang")}
            plain.append(json.dumps({"doc": document["id"], **facts, "body": document["text"]}))
            metadata = {**facts, "file_path": f"{number}.warc.gz"}
            line = {"text": document["text"], "id": document["id"], "metadata": metadata}
            theirs.append(json.dumps(line))
        (folder / "jsonl" / f"part-{number}.jsonl").write_text("\n".join(plain) + "\n")
        content = packed(("\n".join(theirs) + "\n").encode())
        (folder / "datatrove" / f"{number:05d}.jsonl.gz").write_bytes(content)


def write_dataset(folder: Path, found: list[dict[str, Any]]) -> None:
    """Write the documents as a dataset repository: a card that names its files, and Parquet."""
    (folder / "dataset" / "data").mkdir(parents=True)
    card = (
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n"
        "    path: data/train-*.parquet\n---\n# Sample pages\n"
    )
    (folder / "dataset" / "README.md").write_text(card)
    columns = {key: [one[key] for one in found] for key in ("id", "url", "date", "lang")}
    columns["text"] = [one["text"].encode("utf-8", "replace").decode() for one in found]
    path = folder / "dataset" / "data" / "train-00000-of-00001.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=50)


def main(folder: Path) -> None:
    """Write everything into a new folder; leave one alone that is there."""
    if folder.exists():
        print(f"{folder} is there already")
        return
    found = documents()
    found = found[:NUM_PAGES]
    write_crawl(folder, found)
    write_lines(folder, found)
    write_dataset(folder, found)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/inputs"))
