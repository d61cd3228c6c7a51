"""The committed sample data is what its generator writes, and what truth.jsonl says it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpuskit.stage import InputFile, View
from corpuskit.stages.filters.gopher_quality import GopherQuality
from corpuskit.stages.sequences.tokenize.tools import train_tokenizer
from corpuskit.stages.sources._stream import InputStream
from corpuskit.stages.sources.jsonl import Jsonl
from corpuskit.stages.sources.parquet import Parquet
from corpuskit.stages.sources.text import Text

FOLDER = Path(__file__).parents[1] / "sample_data"
SOURCES = {
    "web": (Jsonl(paths=("x",), id_column="id", columns={"lang": "string"}), "*.jsonl.zst"),
    "books": (Parquet(paths=("x",), id_column="id", columns={"language": "string"}), "*.parquet"),
    "notes": (Text(paths=("x",), per="paragraph"), "*.txt*"),
}


@pytest.fixture(scope="module")
def golden():
    return json.loads((FOLDER / "golden.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def truth():
    lines = (FOLDER / "truth.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return {(row["source"], row["file"], row["position"]): row for row in rows}


@pytest.fixture(scope="module")
def found(golden):
    """All documents as (place, id, language, text), and the rejects as place -> rule."""
    documents, rejects = [], {}
    for name, (source, pattern) in SOURCES.items():
        for path in sorted((FOLDER / name).glob(pattern)):
            file = InputFile(0, name, str(path), path.name, path.stat().st_size, "")
            for piece in source.slices(file, 1 << 30):
                for batch in source.read(file, piece, golden["max_document_bytes"]):
                    for one in batch.rejects:
                        rejects[name, path.name, one.position] = one.rule
                    languages = next(iter(batch.columns.values()), pa.array(["en"]))
                    for row, position in enumerate(batch.positions.tolist()):
                        place = (name, path.name, position)
                        ident = (
                            batch.ids[row].as_py()
                            if batch.ids
                            else f"{name}/{path.name}#{position}"
                        )
                        language = languages[row % len(languages)].as_py()
                        documents.append((place, ident, language, batch.texts[row].as_py()))
    return documents, rejects


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, str(FOLDER / "generate.py"), str(folder)], check=True)
    return folder


def content(path: Path) -> object:
    if path.suffix == ".parquet":
        return [{k: None if v is None else str(v) for k, v in row.items()}
                for row in pq.read_table(path).cast(binary(path)).to_pylist()]  # fmt: skip
    if path.name == "golden.json":
        return {**json.loads(path.read_bytes()), "pipeline": None}
    with InputStream(str(path)) as stream:
        return stream.read(1 << 30)


def binary(path: Path) -> pa.Schema:
    """The schema with bytes for text: one row is no UTF-8."""
    schema = pq.read_schema(path)
    place = schema.get_field_index("text")
    return schema.set(place, pa.field("text", pa.binary()))


def test_the_generator_writes_what_is_committed(fresh):
    names = sorted(path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file())
    assert len(names) == 10
    for name in names:
        assert content(fresh / name) == content(FOLDER / name), name


def test_the_folder_stays_small():
    size = sum(path.stat().st_size for path in FOLDER.rglob("*")
               if path.is_file() and "__pycache__" not in path.parts)  # fmt: skip
    assert size < 800_000


def test_readers_find_what_the_golden_file_counts(found, golden):
    documents, rejects = found
    for name, expected in golden["sources"].items():
        assert sum(place[0] == name for place, *_ in documents) == expected["documents"]
        broken = Counter(rule for place, rule in rejects.items() if place[0] == name)
        assert broken == expected["rejects"]


def test_truth_names_exactly_the_lines_that_are_rejected(found, truth):
    planted = {place: row["rule"] for place, row in truth.items() if row["kind"] == "bad_line"}
    assert found[1] == {place: rule for place, rule in planted.items() if rule != "lone_surrogate"}


def test_every_row_of_truth_is_a_document_or_a_reject(found, truth):
    documents, rejects = found
    idents = {place: ident for place, ident, *_ in documents}
    for place, row in truth.items():
        assert place in rejects or idents[place] == row["id"]


def test_documents_are_in_nine_languages(found):
    assert set(Counter(language for _, _, language, _ in found[0])) == {
        "en", "de", "fr", "es", "it", "pt", "nl", "pl", "ru",
    }  # fmt: skip


def test_gophers_filter_drops_what_breaks_its_rules_and_nothing_else(found, truth):
    documents = [
        row for row in found[0] if row[2] == "en" and truth.get(row[0], {}).get("kind") != "menu"
    ]
    texts = pa.array([text for *_, text in documents], pa.large_string())
    stage = GopherQuality(words="whitespace")
    outcome = stage.apply(View(pa.record_batch({"text": texts})))
    decided = [stage.rules[code - 1] if code else None for code in outcome.codes.tolist()]
    planted = [row if row["kind"] == "gopher_quality" else {} for row in
               (truth.get(place, {"kind": None}) for place, *_ in documents)]  # fmt: skip
    assert decided == [row.get("rule") for row in planted]
    assert set(decided) == {None, *stage.rules} - {"unknown_language"}


def test_exact_duplicates_are_exact_and_there_are_no_others(found, truth):
    texts = {ident: text for _, ident, _, text in found[0]}
    copies = [row for row in truth.values() if row["kind"] == "exact_duplicate"]
    assert all(texts[row["id"]] == texts[row["of"]] for row in copies)
    repeated = len(texts) - len(set(texts.values()))
    assert repeated == len(copies)
    assert any(row["of"].startswith("notes/") for row in copies)


def grams(text: str) -> frozenset[int]:
    words = re.findall(r"\w+", text.lower())[:5000]
    return frozenset(hash(tuple(words[i : i + 5])) for i in range(len(words) - 4))


def jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    return len(left & right) / len(left | right)


def test_near_duplicates_are_as_similar_as_truth_says(found, truth):
    sets = {ident: grams(text) for _, ident, _, text in found[0]}
    near = [row for row in truth.values() if row["kind"] == "near_duplicate"]
    for row in near:
        measured = jaccard(sets[row["id"]], sets[row["of"]])
        assert measured == pytest.approx(row["jaccard_word5"], abs=1e-4)
    assert {row["edited_ratio"] for row in near} == {0.02, 0.05, 0.08, 0.1, 0.15}
    assert min(row["jaccard_word5"] for row in near) < 0.5 < max(r["jaccard_word5"] for r in near)


def test_documents_that_were_not_planted_are_unlike_each_other(found, truth):
    sets = [grams(text) for place, _, _, text in found[0] if place not in truth][::2]
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for row, one in enumerate(sets):
        for gram in one:
            shared[gram].append(row)
    pairs = Counter(pair for rows in shared.values() for pair in combinations(rows, 2))
    sizes = [len(one) for one in sets]
    assert max(both / (sizes[a] + sizes[b] - both) for (a, b), both in pairs.items()) < 0.1


def test_spans_of_personal_data_point_at_it(found, truth):
    texts = {ident: text.encode() for _, ident, _, text in found[0]}
    rows = [row for row in truth.values() if row["kind"] == "pii"]
    kinds = Counter()
    for row in rows:
        for span in row["spans"] + row["look_alikes"]:
            assert texts[row["id"]][span["start"] : span["end"]].decode() == span["text"]
            kinds[span.get("type", "look_alike")] += 1
    assert set(kinds) == {"email", "ip_public", "ip_private", "ip_documentation", "look_alike"}


def test_the_tokenizer_is_the_one_trained_on_the_sources(tmp_path):
    folders = [FOLDER / name for name in SOURCES]
    train_tokenizer(folders, tmp_path / "tokenizer.json", vocab_size=4096)
    ours, theirs = (json.loads((folder / "tokenizer.json").read_bytes())["model"]
                    for folder in (tmp_path, FOLDER))  # fmt: skip
    assert ours["vocab"] == theirs["vocab"]
    assert np.array_equal(ours["merges"], theirs["merges"])
    assert theirs["vocab"]["<|endoftext|>"] == 0
