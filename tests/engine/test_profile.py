"""What passed through a run is counted, and documents are found by id and URL."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpuskit.engine.records import (
    ID,
    LAST,
    MAX_NAMES,
    PER_OCTAVE,
    STEPS,
    URL,
    Profile,
    bins,
    edges,
    hash_of,
)
from corpuskit.engine.rundir import RunDirectory
from corpuskit.engine.status import funnel, sealed, verify
from corpuskit.formats.shuffle_files import read_shuffle
from corpuskit.stage import View
from tests.engine.conftest import Lab, corpus, tree


@pytest.fixture(scope="module")
def done(tmp_path_factory, tokenizer):
    """A run over documents with URLs; tests must not change it."""
    made = Lab(tmp_path_factory.mktemp("profiled"), tokenizer)
    documents = corpus()
    for number, document in enumerate(documents[:120]):
        document["url"] = f"https://www.site{number % 7}.example/page{number}?q=a@b"
    documents[3]["url"] = "HTTP://user:secret@Other.Example:8080/x"
    del documents[5]["url"]
    del documents[6]["id"]
    made.write("web0.jsonl", documents[:60])
    made.write("web1.jsonl", documents[60:120])
    made.write("books.jsonl", documents[120:])
    made.pipeline["sources"]["web"]["url_column"] = "url"
    made.run()
    return made


def rows(lab, **wanted) -> list[dict]:
    run = RunDirectory.open(str(lab.out))
    parts = [part for _, seal in sealed(run) for part in seal.by_role("profile")]
    table = pa.concat_tables(pq.read_table(lab.out / part.path) for part in parts)
    return [
        row
        for row in table.to_pylist()
        if all(row[name] == value for name, value in wanted.items())
    ]


def test_lengths_and_domains_are_those_of_the_files(done):
    documents = corpus()
    found = rows(done, at="read", what="length")
    assert sum(row["documents"] for row in found) == len(documents)
    assert sum(row["text_bytes"] for row in found) == sum(len(d["text"]) for d in documents)
    per_bin = Counter(bins(np.array([float(len(d["text"])) for d in documents])).tolist())
    assert per_bin == sum((Counter({row["bin"]: row["documents"]}) for row in found), Counter())
    domains = Counter()
    for row in rows(done, at="read", what="domain"):
        domains[row["name"]] += row["documents"]
    expected = Counter(f"site{number % 7}.example" for number in range(120))
    expected -= Counter(["site3.example", "site5.example"])
    assert domains == expected + Counter(["other.example", None])


def test_what_stages_saw_and_dropped_is_what_the_funnel_says(done):
    run = RunDirectory.open(str(done.out))
    for row in funnel(run, sealed(run)):
        step = next((s for s in run.plan.file.steps if s.label == row.stage), None)
        if step is None or not rows(done, at=row.stage, what="seen"):
            continue
        seen = rows(done, at=row.stage, what="seen")
        assert sum(one["documents"] for one in seen) == row.num_in
        assert sum(one["text_bytes"] for one in seen) == row.text_bytes
        dropped = Counter()
        for one in rows(done, at=row.stage, what="dropped"):
            dropped[one["field"], one["source"]] += one["documents"]
        assert dropped == {
            (rule, source): num for rule, by in row.dropped.items() for source, num in by.items()
        }
        for rule in dict.fromkeys(one["field"] for one in rows(done, at=row.stage, what="measure")):
            measured = rows(done, at=row.stage, what="measure", field=rule)
            assert sum(one["documents"] for one in measured) == row.num_in


def test_measures_are_counted_without_being_stored(done):
    assert rows(done, at="gopher_quality", what="measure")
    assert not (done.out / "measures").exists()
    assert verify(RunDirectory.open(str(done.out))).problems == []


def test_rules_need_not_measure(tmp_path, tokenizer):
    made = Lab(tmp_path, tokenizer)
    made.write("web0.jsonl", corpus(40))
    made.write("books.jsonl", corpus(20, 1))
    made.pipeline["stages"] = made.pipeline["stages"][:2]
    made.run("--set", "measure_rules=false")
    quiet = rows(made)
    assert {row["what"] for row in quiet} >= {"seen", "dropped", "length"}
    assert "measure" not in {row["what"] for row in quiet}
    before = tree(made.out, "documents", "ledger")
    assert "gopher_quality: reused" in made.run().stdout  # nothing is made again for it
    assert tree(made.out, "documents", "ledger") == before


def test_documents_are_found_by_id_and_url(done):
    run = RunDirectory.open(str(done.out))
    seal = sealed(run)[0][1]
    parts = seal.by_role("ids")

    def keys(name: str, kind: int) -> list[int]:
        mark = hash_of(name)
        found = pa.concat_tables(
            read_shuffle(run.store.at(part.path), mark, mark + 1) for part in parts
        ).to_pylist()
        return [row["key"] for row in found if row["kind"] == kind]

    assert len(keys("doc7", ID)) == len(keys("https://www.site0.example/page7?q=a@b", URL)) == 1
    assert keys("doc7", ID) == keys("https://www.site0.example/page7?q=a@b", URL)
    assert keys("doc7", URL) == keys("doc6", ID) == keys("nothing", ID) == []
    assert sum(part.rows for part in parts) == len(corpus()) - 1 + 119


def test_a_profile_makes_no_later_phase_run_again(done):
    run = RunDirectory.open(str(done.out))
    seal = sealed(run)[0][1]
    without = seal.parts.digests.keys() - {"profile", "ids"}
    assert seal.content == type(seal).from_json(seal.to_json(), "again").content
    assert without < seal.parts.digests.keys()


@given(st.floats(allow_nan=False, allow_infinity=True))
def test_a_value_lies_in_its_bin(value):
    [number] = bins(np.array([value])).tolist()
    low, high = edges(number)
    assert -LAST <= number <= LAST
    if value > 0:
        assert low < value <= high
    else:
        assert low <= value <= high
        assert value < high or low == high


def test_an_edge_lies_in_the_bin_below_it():
    """Thresholds are often edges: what equals 0.14 is not above it."""
    for number in range(-LAST + 1, LAST):
        low, high = edges(number)
        assert bins(np.array([high if number >= 0 else low])).tolist() == [number]


def test_bins_follow_each_other_without_gaps():
    places = [edges(number) for number in range(1, LAST + 1)]
    assert all(one[1] == pytest.approx(other[0]) for one, other in itertools.pairwise(places))
    assert places[0] == (0.0, 1 / STEPS)
    assert edges(0) == (0.0, 0.0)
    assert edges(-3) == (-3 / STEPS, -2 / STEPS)
    assert bins(np.array([0.0, 0.2, 1.0, 2.0])).tolist() == [
        0,
        STEPS // 5,
        STEPS,
        STEPS + PER_OCTAVE,
    ]
    assert len(set(bins(np.arange(17.0)).tolist())) == 17


def test_the_rarest_names_lose_their_name_and_nothing_else(tmp_path):
    limit = MAX_NAMES["domain"]
    hosts = ["often.example"] * 3 + [f"h{number:05}.example" for number in range(limit + 5)]
    hosts.append("x" * 300)
    num = len(hosts)
    origin = pa.array(
        [{"url": f"http://{host}/"} for host in hosts], pa.struct([("url", pa.string())])
    )
    batch = pa.record_batch({"text": pa.array(["ab"] * num, pa.large_string()), "origin": origin})
    profile = Profile("web")
    profile.count_documents("read", View(batch.slice(0, 500)))
    profile.count_documents("read", View(batch.slice(500)))
    profile.write(tmp_path / "p.parquet")
    found = [r for r in pq.read_table(tmp_path / "p.parquet").to_pylist() if r["what"] == "domain"]
    assert len(found) == limit + 1
    assert sum(row["documents"] for row in found) == num
    assert sum(row["text_bytes"] for row in found) == 2 * num
    named = {row["name"]: row["documents"] for row in found}
    assert named["often.example"] == 3
    assert named[None] == 7


def test_a_second_run_writes_the_same_bytes(done, tmp_path, tokenizer):
    again = Lab(tmp_path, tokenizer)
    for name in ("web0.jsonl", "web1.jsonl", "books.jsonl"):
        documents = [json.loads(line) for line in (done.inputs / name).read_text().splitlines()]
        again.write(name, documents)
    again.pipeline["sources"]["web"]["url_column"] = "url"
    again.pipeline["executor"]["workers"] = 1
    again.run()

    def content(lab) -> dict[str, bytes]:
        paths = [*(lab.out / "profile").iterdir(), *(lab.out / "ids").iterdir()]
        return {path.name: path.read_bytes() for path in paths}

    assert content(again) == content(done)


def test_a_host_is_what_can_be_one(tmp_path):
    urls = {
        "https://www.A.example:80/x": "a.example",
        "ftp://u:p@b.example?q": "b.example",
        "http://[2001:db8::1]:8080/": "[2001:db8::1]",
        "http://\u00e9t\u00e9.example#top": "\u00e9t\u00e9.example",
        "https://<script>alert(1)</script>/5": None,
        "http://a b.example/": None,
        "http://nul\x00.example/": None,
        "/only/a/path": None,
        "mailto:jo@example.org": None,
    }
    origin = pa.array([{"url": url} for url in urls], pa.struct([("url", pa.string())]))
    text = pa.array(["x"] * len(urls), pa.large_string())
    profile = Profile("web")
    profile.count_documents("read", View(pa.record_batch({"text": text, "origin": origin})))
    profile.write(tmp_path / "p.parquet")
    found = [r for r in pq.read_table(tmp_path / "p.parquet").to_pylist() if r["what"] == "domain"]
    assert {row["name"]: row["documents"] for row in found} == Counter(urls.values())
