"""Write the sample data: three sources, what was planted in them, and how much of everything.

    python sample_data/generate.py [FOLDER]

Same seed, same texts, on any machine and Python version; compressed bytes may differ between
versions of zstandard and pyarrow, their content does not.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import faults
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from prose import LANGUAGES, PARAGRAPH, Dice, English, write_article

SEED = 20
NUM_ENGLISH, NUM_OTHER, NUM_BOOKS, NUM_NOTES = 480, 22, 36, (40, 200)
PER_RULE, NUM_EXACT, NUM_PERSONAL, NUM_SPECIAL = 5, 36, 30, 8
EDITS = (0.02, 0.05, 0.08, 0.10, 0.15)
PER_EDIT = 10
WEB_FILES = 4
MAX_DOCUMENT_BYTES = 350_000
"""What a pipeline has to set so that one document is too long, and the 100,050-word one is not."""
MONTHS = ("January", "March", "April", "May", "June", "August", "October", "November")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@dataclasses.dataclass
class Document:
    """A document to be written, and what is true about it.

    Attributes:
        language: an ISO 639-1 code.
        truth: what was planted; empty for an ordinary document.
        raw: the line to be written instead of a JSON object.
    """

    id: str
    text: str
    language: str = "en"
    truth: dict[str, Any] = dataclasses.field(default_factory=dict)
    raw: bytes | None = None


class Web:
    """Makes the documents of the source `web`."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.documents: list[Document] = []

    def add(self, text: str, language: str = "en", **truth: Any) -> Document:
        document = Document(f"web-{len(self.documents):05d}", text, language, truth)
        self.documents.append(document)
        return document

    def fill(self, notes: list[Document]) -> list[Document]:
        """Make all documents, in the order in which they are written."""
        self._plain()
        self._broken_rules()
        self._personal()
        for _ in range(NUM_SPECIAL):
            self.add(faults.with_special(self._dice), kind="special_token")
        self._duplicates(notes)
        self._unreadable()
        return self._dice.mixed(self.documents)

    def _plain(self) -> None:
        dice = self._dice
        for _ in range(NUM_ENGLISH):
            english = English(dice)
            text = english.article(dice.between(2, 6))
            if dice.chance(0.2):
                text = english.title() + PARAGRAPH + text
            self.add(text.replace("\n", "\r\n") if dice.chance(0.02) else text)
        for language in LANGUAGES[1:]:
            for _ in range(NUM_OTHER):
                self.add(write_article(dice, language, dice.between(2, 5)), language)

    def _broken_rules(self) -> None:
        for _ in range(PER_RULE):
            for rule, text in faults.gopher_faults(self._dice).items():
                self.add(text, kind="gopher_quality", rule=rule)
        self.add(faults.endless(self._dice), kind="gopher_quality", rule="gopher_long_doc")
        for _ in range(3):
            for kind, text in faults.other_faults(self._dice).items():
                self.add(text, kind=kind)

    def _personal(self) -> None:
        for number in range(NUM_PERSONAL):
            text = write_article(self._dice, "en", 3)
            sentence, found, look_alikes = faults.personal(self._dice, number)
            text = text.replace(PARAGRAPH, f" {sentence}{PARAGRAPH}", 1)
            spans = [{"type": kind, "text": value, **_span(text, value)} for kind, value in found]
            others = [{"text": value, **_span(text, value)} for value in look_alikes]
            self.add(text, kind="pii", spans=spans, look_alikes=others)

    def _duplicates(self, notes: list[Document]) -> None:
        dice = self._dice
        plain = [document for document in self.documents if not document.truth]
        for number in range(NUM_EXACT):
            origin = dice.pick(notes if number % 6 == 0 else plain)
            self.add(origin.text, origin.language, kind="exact_duplicate", of=origin.id)
        english = [document for document in plain if document.language == "en"]
        for ratio in EDITS:
            for _ in range(PER_EDIT):
                origin = dice.pick(english)
                text = faults.edited(dice, origin.text, ratio)
                similarity = round(faults.jaccard(origin.text, text), 4)
                self.add(text, kind="near_duplicate", of=origin.id, edited_ratio=ratio,
                         jaccard_word5=similarity)  # fmt: skip

    def _unreadable(self) -> None:
        dice = self._dice
        good = write_article(dice, "en", 2)
        lines = {
            "bad_json": [b'{"id": "cut", "text": "The file ended here', b"404 Not Found", b'["list"]'],
            "bad_text": [b'{"id": "none", "url": "http://none.example/"}', b'{"id": "null", "text": null}',
                         b'{"id": "number", "text": 17}'],
            "invalid_utf8": [b'{"id": "latin", "text": "Un caf\xe9 au lait"}',
                             b'{"id": "cut", "text": "\xe2\x82"}'],
        }  # fmt: skip
        for rule, contents in lines.items():
            for line in contents:
                self.add("", kind="bad_line", rule=rule).raw = line
        self.add(faults.oversized(dice), kind="bad_line", rule="too_long")
        for half in ("\\ud83d", "\\udca1"):
            document = self.add(good, kind="bad_line", rule="lone_surrogate")
            line = _line(document, dice)
            document.raw = line.replace(b'"text": "', b'"text": "' + half.encode() + b" ", 1)
            good = write_article(dice, "en", 2)


def _span(text: str, value: str) -> dict[str, int]:
    """Return where a value lies in the text, in bytes of UTF-8."""
    start = len(text[: text.index(value)].encode())
    return {"start": start, "end": start + len(value.encode())}


def _line(document: Document, dice: Dice) -> bytes:
    number = document.id.partition("-")[2]
    row = {
        "id": document.id,
        "url": f"https://site{dice.between(1, 40)}.example/{document.language}/{number}.html",
        "date": f"{dice.between(2015, 2024)}-{dice.between(1, 12):02d}-{dice.between(1, 28):02d}",
        "lang": document.language,
        "score": dice.between(0, 1000) / 1000,
        "text": document.text,
    }
    return json.dumps(row, ensure_ascii=dice.chance(0.3)).encode()


def write_web(folder: Path, documents: list[Document], dice: Dice) -> list[dict[str, Any]]:
    """Write JSON lines: a byte order mark, blank lines and a missing last line feed included."""
    truth = []
    folder.mkdir(parents=True, exist_ok=True)
    share = -(-len(documents) // WEB_FILES)
    for number in range(WEB_FILES):
        content = b"\xef\xbb\xbf" if number == 2 else b""
        name = f"web-{number:03d}.jsonl.zst"
        for document in documents[number * share : (number + 1) * share]:
            if document.truth:
                truth.append(_truth("web", name, len(content), document))
            content += (document.raw or _line(document, dice)) + b"\n"
            if number == 1 and dice.chance(0.02):
                content += b" \r\n"
        packed = zstandard.ZstdCompressor(level=19).compress(content.rstrip(b"\n"))
        (folder / name).write_bytes(packed)
    return truth


def _truth(source: str, file: str, position: int, document: Document) -> dict[str, Any]:
    """Return a row of truth.jsonl; a line that cannot be read has no id."""
    has_id = document.raw is None or document.truth.get("rule") == "lone_surrogate"
    place = {"source": source, "file": file, "position": position if position > 3 else 0}
    return {**place, "id": document.id if has_id else None, **document.truth}


def write_books(folder: Path, dice: Dice) -> list[dict[str, Any]]:
    """Write two Parquet files of long texts; one with rows whose text is null or no UTF-8."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for number in range(NUM_BOOKS):
        language = ("de", "fr")[number % 2] if number % 9 == 8 else "en"
        writer = English(dice)
        text = write_article(dice, language, dice.between(14, 34))
        rows.append({"id": f"book-{number:03d}", "title": writer.title(), "author": f"{writer.topic} society",
                     "year": dice.between(1890, 2020), "language": language, "text": text})  # fmt: skip
    truth = []
    half = NUM_BOOKS // 2
    for part, chosen in enumerate((rows[:half], rows[half:])):
        name = f"books-{part}.parquet"
        if part == 1:
            for place, text in ((5, None), (11, b"Caf\xe9 Central, 1911"), (17, None)):
                chosen[place] = {**chosen[place], "text": text}
                rule = "bad_text" if text is None else "invalid_utf8"
                truth.append({"source": "books", "file": name, "position": place, "id": None,
                              "kind": "bad_line", "rule": rule})  # fmt: skip
        pq.write_table(_books_table(chosen), folder / name, row_group_size=8, compression="zstd",
                       compression_level=19)  # fmt: skip
    return truth


def _books_table(rows: list[dict[str, Any]]) -> pa.Table:
    table = pa.table({name: [row[name] for row in rows] for name in rows[0] if name != "text"})
    coded = [row["text"].encode() if isinstance(row["text"], str) else row["text"] for row in rows]
    raw = pa.array(coded, pa.binary())
    # A string column whose bytes nobody has checked, as careless writers leave them.
    text = pa.StringArray.from_buffers(
        len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0]
    )
    return table.append_column("text", text)


def make_notes(dice: Dice) -> tuple[list[bytes], list[Document]]:
    """Make two text files of dated paragraphs, and the documents that they hold."""
    files, documents = [], []
    for number, count in enumerate(NUM_NOTES):
        content = b""
        for place in range(count):
            head = f"{dice.pick(DAYS)}, {dice.between(1, 28)} {dice.pick(MONTHS)}."
            text = f"{head} {English(dice).paragraph(6, 9)}"
            name = f"notes-{number}.txt" + (".gz" if number else "")
            document = Document(f"notes/{name}#{len(content)}", text)
            coded = text.encode()
            if number and place == 40:
                coded = "Freitag, 3. März. Kein Wetter für Ausflüge.".encode("latin-1")
                document.truth = {"kind": "bad_line", "rule": "invalid_utf8"}
                document.raw = coded
            content += coded + (b"\n\n \n" if place % 10 == 9 else b"\n\n")
            documents.append(document)
        files.append(content)
    return files, documents


def generate(folder: Path, seed: int = SEED) -> None:
    """Write all files of the sample data but the tokenizer."""
    files, notes = make_notes(Dice(seed + 1))
    good_notes = [document for document in notes if not document.truth]
    dice = Dice(seed)
    documents = Web(dice).fill(good_notes)
    truth = write_web(folder / "web", documents, dice)
    truth += write_books(folder / "books", Dice(seed + 2))
    (folder / "notes").mkdir(exist_ok=True)
    (folder / "notes" / "notes-0.txt").write_bytes(files[0])
    (folder / "notes" / "notes-1.txt.gz").write_bytes(gzip.compress(files[1], 9, mtime=0))
    truth += [_truth("notes", d.id.split("/")[1].split("#")[0], int(d.id.split("#")[1]), d)
              for d in notes if d.truth]  # fmt: skip
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in truth]
    (folder / "truth.jsonl").write_text("".join(lines), "utf-8")
    write_golden(folder, documents, notes, truth, seed)


def write_golden(
    folder: Path, web: list[Document], notes: list[Document], truth: list[dict[str, Any]], seed: int
) -> None:
    """Write counts that readers of the sources must find; what a pipeline makes of it is kept."""
    path = folder / "golden.json"
    pipeline = json.loads(path.read_text("utf-8")).get("pipeline") if path.exists() else None
    planted: dict[str, int] = {}
    rejects: dict[str, dict[str, int]] = {"web": {}, "books": {}, "notes": {}}
    for row in truth:
        name = row["kind"] if row["kind"] == "bad_line" else row.get("rule", row["kind"])
        planted[name] = planted.get(name, 0) + 1
        if row["kind"] == "bad_line" and row["rule"] != "lone_surrogate":
            found = rejects[row["source"]]
            found[row["rule"]] = found.get(row["rule"], 0) + 1
    totals = {"web": len(web), "books": NUM_BOOKS, "notes": len(notes)}
    sources = {
        name: {"documents": total - sum(rejects[name].values()), "rejects": rejects[name]}
        for name, total in totals.items()
    }
    content = {"format": 1, "seed": seed, "max_document_bytes": MAX_DOCUMENT_BYTES, "sources": sources,
               "planted": planted, "pipeline": pipeline}  # fmt: skip
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
