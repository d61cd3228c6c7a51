"""`corpuskit audit`: what was planted is found, what cannot be read is named."""

from __future__ import annotations

import gzip
import json
import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from corpuskit.cli.audit import command
from corpuskit.errors import DataError, UsageError
from corpuskit.formats.zstd import zstd
from corpuskit.inspect.audit import checks, holding, reading
from corpuskit.inspect.audit.checks import Audit
from corpuskit.inspect.audit.estimates import estimate, student_quantile, wilson
from corpuskit.inspect.audit.page import render_audit

WORDS = """the of a committee river harvest stone bright winter carries lantern over quiet harbour
morning several people found their way across old bridge while rain fell on narrow streets and
merchants closed shutters early because storm had been expected since noon""".split()


def sentences(rng: random.Random, number: int = 60) -> str:
    return " ".join(f"{rng.choice(WORDS)}{rng.randrange(1000)}" if rng.random() < 0.3
                    else rng.choice(WORDS) for _ in range(number))  # fmt: skip


def planted(rng: random.Random) -> list[str]:
    """Return 300 texts: of each kind of thing ten, in places that chance decides."""
    texts = [sentences(rng) for _ in range(220)]
    skeleton = sentences(rng, 90).split()
    for kind in range(10):
        texts[kind + 10] += f" Write to jo.doe{kind}@mail.example.org."
        texts[kind + 20] += " Voil\u00c3\u00a0 l\u00e2\u20ac\u2122\u00c3\u00a9t\u00c3\u00a9"
        texts[kind + 30] += " caf\ufffd"
        texts[kind + 40] += " \x07\x00"
        texts[kind + 50] = (
            sentences(rng, 30)
            + "\nHome | News | About us | Contact | Careers | Privacy policy | Terms"
        )
        texts.append(texts[kind + 60])
        texts.append(f"{texts[kind + 70]} corrigendum")
        texts.append("Der Ausschuss trifft sich im Fr\u00fchjahr wieder, wenn die Ergebnisse der "
                     f"Umfrage {kind} bekannt sind und alle Mitglieder Zeit haben.")  # fmt: skip
        form = list(skeleton)
        for begin in (0, 30, 60):
            form[begin:begin] = sentences(rng, 8).split()
        texts.append(" ".join(form))
        texts.append(" " * kind)
    rng.shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of four good files, of all formats, and three that cannot be read."""
    place = tmp_path_factory.mktemp("data")
    texts = planted(random.Random(0))
    lines = [json.dumps({"id": row, "text": text}) for row, text in enumerate(texts)]
    bad = ['{"id": 3}', "not json"]
    (place / "a.jsonl").write_text("\n".join([*lines[:50], *bad]) + "\n", "utf-8")
    (place / "deep").mkdir()
    packed = gzip.compress("\n".join(lines[50:100]).encode())
    (place / "deep" / "b.jsonl.gz").write_bytes(packed)
    (place / "c.jsonl.zst").write_bytes(zstd.compress("\n".join(lines[100:150]).encode()))
    content = [text.encode() for text in texts[150:]] + [b"cut \xe2\x82", None]
    pq.write_table(pa.table({"content": content}), place / "d.parquet", row_group_size=20)
    (place / "cut.parquet").write_bytes((place / "d.parquet").read_bytes()[:-9])
    (place / "cut.jsonl.gz").write_bytes(packed[:-40])
    (place / "empty.jsonl").write_bytes(b"")
    (place / "note.txt").write_text("not data")
    return place


def audit(*paths, amount="all", seed=0, **options):
    selection = reading.select([*map(str, paths)], None, amount, seed)
    run = Audit(selection, seed=seed, **options)
    run.run()
    return run.report()


def test_items_that_are_never_found_are_noted(tmp_path):
    rows = [{"question": sentences(random.Random(1), 20)}, {"question": "Who is it?"}]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    text = tmp_path / "texts.jsonl"
    text.write_text(json.dumps({"text": rows[0]["question"] * 2}) + "\n", "utf-8")
    checks = {check.name: check for check in audit(text, benchmarks=[str(path)]).checks}
    assert checks["contamination"].rate.found == 1
    note = checks["contamination"].note
    assert note.startswith("items 1; items that are too short")
    assert note.endswith("never found: items 1 of 2")


def test_what_is_planted_is_counted(folder):
    report = audit(folder)
    found = {check.name: check for check in report.checks}
    counts = {name: check.rate.found for name, check in found.items() if check.rate}
    boilerplate = counts.pop("boilerplate")
    assert 0 < boilerplate <= 10  # the line is a fifth of the shorter texts
    assert counts == {
        "exact_duplicates": 10, "near_duplicates": 10, "templates": 20,
        "other_languages": 20, "personal_data": 10, "mojibake": 10, "replacement_characters": 10,
        "control_characters": 10, "without_words": 10, "unreadable_rows": 4,
    }  # fmt: skip
    assert "not looked for" in found["contamination"].note
    assert found["exact_duplicates"].rate.value == 10 / report.facts["documents"]
    assert report.facts["documents"] == 270 == report.facts["read_documents"]
    why = dict(found["unreadable_rows"].details)
    assert why == {"not a JSON object": "1", "UTF-8 cut off within its last character": "1",
                   "text is missing or not a string": "2"}  # fmt: skip
    places = [place for place, _ in found["unreadable_rows"].examples]
    assert "d.parquet: row 120: UTF-8 cut off within its last character" in places
    shown = " ".join(text for _, text in found["personal_data"].examples)
    assert "email@example.com" in shown
    assert "jo.doe" not in shown


def test_files_that_cannot_be_read_are_named_and_the_others_read(folder):
    report = audit(folder)
    broken = [str(folder / name) for name in ("cut.jsonl.gz", "cut.parquet")]
    assert sorted(one.place for one in report.unreadable) == broken
    assert report.facts["columns"] == [("JSON lines", "text"), ("Parquet", "content")]


def test_a_damaged_row_group_costs_no_other(folder, tmp_path):
    content = bytearray((folder / "d.parquet").read_bytes())
    file = pq.ParquetFile(folder / "d.parquet")
    column = file.metadata.row_group(2).column(0)
    begin = column.data_page_offset + 20
    content[begin : begin + 200] = bytes(200)
    (tmp_path / "d.parquet").write_bytes(content)
    report = audit(tmp_path)
    assert report.facts["read_documents"] == 120 - 20
    [broken] = report.unreadable
    assert "row group 2" in broken.reason


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", '{"title": "a", "abstract": "b"}\n', "strings: 'abstract', 'title'.*--text"),
        ("x.txt", "words\n", "is neither Parquet nor JSON lines"),
        ("x.jsonl", "", "the files are empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_is_refused(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises((UsageError, DataError), match=words):
        audit(tmp_path / name)


def test_folders_without_data_and_amounts_without_meaning_are_refused(tmp_path):
    with pytest.raises(UsageError, match="it is empty"):
        audit(tmp_path)
    with pytest.raises(UsageError, match="no file matches"):
        audit(tmp_path / "nothing")
    for amount in ("1", "0%", "101%", "many", "-1GB", "all of it"):
        with pytest.raises(UsageError, match="is not an amount of data"):
            audit(tmp_path, amount=amount)


def test_the_only_column_of_strings_is_the_text(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"n": 1, "abstract": "some words"}\n')
    assert audit(tmp_path).facts["columns"] == [("JSON lines", "abstract")]


def test_the_command_prints_a_table_a_page_and_json(folder, tmp_path):
    page = tmp_path / "audit.html"
    done = CliRunner().invoke(command, [str(folder), "--html", str(page)])
    assert done.exit_code == 3  # two files cannot be read
    assert re.search(r"exact duplicates +10 +3.7 % +largest group: 2 alike", done.output)
    assert "personal data" in done.output
    assert f"not read: {folder / 'cut.parquet'}: " in done.output
    html = page.read_text("utf-8")
    assert "script-src 'none'" in html
    assert "<script" not in html
    assert html.count("<tr>") > 20
    done = CliRunner().invoke(command, [str(folder / "d.parquet"), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output)["facts"]["documents"] == 120


def test_nothing_in_a_text_is_markup(tmp_path):
    (tmp_path / "<b>x.jsonl").write_text('{"text": "<script>alert(1)</script> a@b.org \\u202e"}\n')
    html = render_audit(audit(tmp_path), [str(tmp_path)])
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "\u202e" not in html


@pytest.fixture
def large(tmp_path, monkeypatch):
    """Return 2,000 texts in 40 pieces, of which 100 are copies and 200 have an address."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 1)
    rng = random.Random(1)
    texts = [sentences(rng, 20) for _ in range(1900)]
    texts += texts[:100]
    texts = [f"{text} jo{row % 1900}@mail.org" if row % 1900 < 190 else text
             for row, text in enumerate(texts)]  # fmt: skip
    rng.shuffle(texts)
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", row_group_size=50)
    return tmp_path


def test_intervals_of_samples_hold_the_truth(large):
    covered = {"exact_duplicates": 0, "personal_data": 0}
    truth = {"exact_duplicates": 0.05, "personal_data": 0.145}
    for seed in range(3):
        report = audit(large, amount="20%", seed=seed)
        assert 0.35 < report.facts["read_documents"] / 2000 < 0.45
        rates = {check.name: check.rate for check in report.checks}
        assert rates["exact_duplicates"].how == "at least"
        for name, value in truth.items():
            covered[name] += rates[name].low <= value <= rates[name].high
    assert min(covered.values()) >= 2
    assert audit(large, amount="20%").checks == audit(large, amount="20%").checks


def test_copies_are_counted_wherever_all_is_read(large):
    report = audit(large, amount="60%")
    rates = {check.name: check.rate for check in report.checks}
    assert (rates["exact_duplicates"].found, rates["exact_duplicates"].how) == (100, "counted")
    assert 0.5 < report.facts["documents"] / 2000 < 0.7


def test_memory_is_bounded_and_the_rest_chosen_by_hash(large, monkeypatch):
    monkeypatch.setattr(checks, "EXACT_BYTES", 20_000)
    monkeypatch.setattr(checks, "TEXT_BYTES", 50_000)
    monkeypatch.setattr(checks, "MOST_LINES", 500)
    report = audit(large)
    rate = next(check.rate for check in report.checks if check.name == "exact_duplicates")
    assert rate.of < 1200
    assert rate.low <= 0.05 <= rate.high
    sample = holding.HashSample(10_000)
    for begin in range(0, 100_000, 1000):
        marks = np.arange(begin, begin + 1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        sample.add(pa.record_batch({"mark": marks}))
    assert sample.rows().nbytes <= 10_000
    assert len(sample.rows()) == pytest.approx(100_000 * sample.share, rel=0.2)


def test_rates_of_drawn_pieces_are_covered_as_often_as_they_say():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        rates = rng.beta(2, 30, 200)  # pieces differ: documents of one are alike
        hits = rng.binomial(50, rates).astype(float)
        drawn = rng.permutation(200)[:40]
        rate = estimate(hits[drawn], np.full(40, 50.0), 0.2, 1.0)
        covered += rate.low <= hits.sum() / 10_000 <= rate.high
    assert covered / 300 > 0.92
    whole = estimate(np.array([3.0]), np.array([10.0]), 1.0, 1.0)
    assert (whole.low, whole.value, whole.high, whole.how) == (0.3, 0.3, 0.3, "counted")
    none = estimate(np.array([0.0]), np.array([100.0]), 0.01, 1.0)
    assert none.low == 0 < none.high < 0.2


def test_published_values_of_intervals():
    low, high = wilson(0.1, 100)
    assert (low, high) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    quantiles = [student_quantile(n) for n in (5, 10, 30)]
    assert quantiles == pytest.approx([2.5706, 2.2281, 2.0423], abs=1e-4)
