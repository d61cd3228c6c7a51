"""The mix plan: exact shares, exact epoch caps, and files that the loader opens."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from corpuskit.engine.mixture import mixture_table, mixture_totals
from corpuskit.errors import DataError, UsageError
from corpuskit.loader import StreamingLoader, plan_hash
from corpuskit.loader.order import apportion
from corpuskit.stages.mixing.mix import Mix
from corpuskit.stages.sequences.shuffle import Shuffle
from corpuskit.storage import digest_file
from tests.stages.sequence_runner import mixed_run, rows_of, token_matrix

SIZES = {"web": 40, "books": 15, "code": 6}


@pytest.fixture(scope="module")
def shuffled(byte_tokenizer, tmp_path_factory):
    """A run with 40, 15 and 6 rows in its sources, before the mixture."""
    texts = {
        name: [[f"{name[0]}{number:06d}" for number in range(size)]] for name, size in SIZES.items()
    }
    root = tmp_path_factory.mktemp("run")
    return mixed_run(root, texts, byte_tokenizer, seq_len=7, shuffle=Shuffle(rows_per_part=16))


def planned(run, **params):
    run.run_stage(Mix.model_validate(params))
    return json.loads((run.root / "mix/plan.json").read_bytes())


def rows_taken(plan):
    return {row.source: row.rows for row in mixture_totals(plan)}


def test_without_weights_each_row_is_taken_once(shuffled):
    plan = planned(shuffled)
    assert rows_taken(plan) == SIZES
    assert plan["stages"] == [{"name": "main", "rows": 61, "weights": SIZES}]


def test_the_run_is_as_long_as_the_scarcest_source_allows(shuffled):
    plan = planned(shuffled, weights={"web": 7, "books": 2, "code": 1})
    assert rows_taken(plan) == {"web": 40, "books": 12, "code": 6}
    longer = apportion(plan["stages"][0]["rows"] + 1, [7, 2, 1])
    assert (longer > list(SIZES.values())).any()


weights_of_all = st.fixed_dictionaries({name: st.integers(1, 50) for name in SIZES})


@settings(deadline=None, max_examples=40)
@given(
    weights=weights_of_all,
    caps=st.fixed_dictionaries({name: st.sampled_from([0.3, 1.0, 1.1, 4.0]) for name in SIZES}),
    split=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9), weights_of_all),
)
def test_no_source_exceeds_its_cap_and_one_row_more_would(shuffled, weights, caps, split):
    if split is None:
        stages = [{"name": "main", "weights": weights, "ratio": 1}]
    else:
        first = {"name": "one", "weights": weights, "ratio": split[0]}
        stages = [first, {"name": "two", "weights": split[2], "ratio": split[1]}]
    limits = [int(Fraction(str(caps[name])) * rows) for name, rows in SIZES.items()]

    def taken(total):
        sizes = apportion(total, [stage["ratio"] for stage in stages]).tolist()
        shares = [[stage["weights"][name] for name in SIZES] for stage in stages]
        counts = [apportion(size, share) for size, share in zip(sizes, shares, strict=True)]
        return sum(counts).tolist()

    plan = planned(shuffled, stages=stages, max_epochs=caps)
    total = sum(stage["rows"] for stage in plan["stages"])
    assert list(rows_taken(plan).values()) == taken(total)
    assert all(count <= cap for count, cap in zip(taken(total), limits, strict=True))
    assert any(count > cap for count, cap in zip(taken(total + 1), limits, strict=True))


def test_stages_with_rows_of_their_own_take_those(shuffled):
    stages = [
        {"name": "main", "weights": {"web": 3, "books": 1}, "rows": 20},
        {"name": "anneal", "weights": {"code": 1, "books": 1}, "rows": 8},
    ]
    table = mixture_table(planned(shuffled, stages=stages))
    assert [(row.stage, row.source, row.rows) for row in table if row.rows] == [
        ("main", "web", 15),
        ("main", "books", 5),
        ("anneal", "books", 4),
        ("anneal", "code", 4),
    ]


def test_the_table_counts_tokens_and_epochs(shuffled):
    plan = planned(shuffled, weights={"web": 1, "books": 1, "code": 2}, max_epochs=2, rows=20)
    (row,) = (row for row in mixture_table(plan) if row.source == "code")
    assert (row.rows, row.tokens, row.documents) == (10, 80, 10)
    assert row.epochs == pytest.approx(10 / 6)
    assert (row.planned_ratio, row.token_ratio, row.fill_ratio) == (0.5, 0.5, 1.0)


def test_the_totals_are_those_of_all_stages(shuffled):
    stages = [
        {"name": "main", "weights": {"web": 3, "books": 1}, "rows": 20},
        {"name": "anneal", "weights": {"code": 1, "books": 3}, "rows": 8},
    ]
    plan = planned(shuffled, stages=stages)
    totals = mixture_totals(plan)
    for name, rows in {"web": 15, "books": 11, "code": 2}.items():
        (one,) = (row for row in totals if row.source == name)
        each = [row for row in mixture_table(plan) if row.source == name]
        assert one.rows == rows == sum(row.rows for row in each)
        assert one.tokens == sum(row.tokens for row in each)
        assert one.epochs == pytest.approx(sum(row.epochs for row in each))
        assert one.planned_ratio == pytest.approx(rows / 28)


def test_rows_beyond_the_caps_are_refused(shuffled):
    message = r"takes 7 rows of 'code', 1\.17 epochs, but max_epochs 1\.0 allows 6 \(it has 6\)"
    with pytest.raises(UsageError, match=message):
        planned(shuffled, weights={"web": 1, "books": 1, "code": 1}, rows=21)


def test_a_token_budget_is_that_many_rows(shuffled):
    weights = {"web": 5, "books": 3, "code": 2}
    by_rows = planned(shuffled, weights=weights, rows=20)
    assert planned(shuffled, weights=weights, tokens=20 * 7 + 6) == by_rows
    assert planned(shuffled, weights=weights, tokens="0.14K") == by_rows


def test_a_stage_may_have_a_token_budget(shuffled):
    stages = [
        {"name": "warm", "weights": {"web": 1}, "tokens": "0.07K"},
        {"name": "anneal", "weights": "unimax", "sources": ["books", "code"], "rows": 18},
    ]
    plan = planned(shuffled, stages=stages)
    assert plan["stages"] == [
        {"name": "warm", "rows": 10, "weights": {"web": 1}},
        {"name": "anneal", "rows": 18, "weights": {"books": 12, "code": 6}},
    ]


def test_computed_weights_are_integers_in_the_plan(shuffled):
    (stage,) = planned(shuffled, temperature=2, rows=12)["stages"]
    roots = {name: rows**0.5 for name, rows in SIZES.items()}
    assert all(isinstance(weight, int) for weight in stage["weights"].values())
    for name, weight in stage["weights"].items():
        assert weight / 1e9 == pytest.approx(roots[name] / sum(roots.values()), abs=1e-9)


@pytest.mark.parametrize("weights", ["proportional", None])
def test_proportional_weights_are_the_default(shuffled, weights):
    assert planned(shuffled, weights=weights) == planned(shuffled)


def test_a_budget_that_no_sources_can_fill_is_refused_with_what_they_have(shuffled):
    message = r"takes 62 rows, but max_epochs leaves it 61 \(web 40, books 15, code 6\)"
    with pytest.raises(UsageError, match=message):
        planned(shuffled, weights="unimax", rows=62)
    assert rows_taken(planned(shuffled, weights="unimax", rows=61)) == SIZES


def test_a_stage_without_any_rows_is_an_error(byte_tokenizer, tmp_path):
    stages = [
        {"name": "main", "ratio": 9},
        {"name": "anneal", "ratio": 1, "sources": ["books"]},
    ]
    with pytest.raises(DataError, match="stage 'anneal' has no source with rows"):
        mixed_run(
            tmp_path, {"web": [["a"] * 40], "books": [[]]}, byte_tokenizer,
            mix=Mix.model_validate({"stages": stages}),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"weights": {"web": 1, "book": 1}}, "no source 'book'. Did you mean 'books'?"),
        ({"weights": {"web": 1, "books": 1}}, "the source 'code' has no weight"),
        ({"max_epochs": {"cod": 2.0}}, "mix.max_epochs: there is no source 'cod'"),
        (
            {"stages": [{"name": "a", "ratio": 1, "max_epochs": {"cod": 2.0}}]},
            "mix.stages.a.max_epochs: there is no source 'cod'",
        ),
        (
            {"stages": [{"name": "a", "ratio": 1, "sources": ["webb"]}]},
            "mix.stages.a.sources: there is no source 'webb'",
        ),
        (
            {"stages": [{"name": "a", "ratio": 1, "sources": ["web", "code"]}]},
            "the source 'books' has no weight",
        ),
        ({"tokens": 6}, "mix.tokens: 6 tokens are less than a row, which has 7"),
    ],
)
def test_names_must_be_those_of_the_sources(shuffled, params, message):
    with pytest.raises(UsageError) as error:
        planned(shuffled, **params)
    assert message in str(error.value)


def test_a_weighed_source_must_have_rows(byte_tokenizer, tmp_path):
    texts = {"web": [["a", "b"]], "books": [[]]}
    weights = {"web": 1, "books": 1}
    with pytest.raises(DataError, match="'books' has a weight, but none of its documents is left"):
        mixed_run(tmp_path, texts, byte_tokenizer, mix=Mix(weights=weights))


def test_a_source_without_rows_is_left_out_of_a_proportional_mixture(byte_tokenizer, tmp_path):
    run = mixed_run(tmp_path, {"web": [["a", "b"]], "books": [[]]}, byte_tokenizer)
    plan = json.loads((run.root / "mix/plan.json").read_bytes())
    assert [source["name"] for source in plan["sources"]] == ["web"]


def test_no_rows_at_all_are_an_error(byte_tokenizer, tmp_path):
    with pytest.raises(DataError, match="no source has any rows"):
        mixed_run(tmp_path, {"web": [[]]}, byte_tokenizer)


@pytest.mark.parametrize(
    "params",
    [
        {"weights": {"web": 0}},
        {"weights": {"web": 0.5}},
        {"max_epochs": 0},
        {"max_epochs": {"web": -1}},
        {"max_epochs": "inf"},
        {"max_epochs": 1e300},
        {"rows": 0},
        {"block_rows": 10},
        {"stages": []},
        {"stages": [{"name": "a", "weights": {"web": 1}}]},
        {"stages": [{"name": "a", "weights": {"web": 1}, "rows": 1, "ratio": 1}]},
        {"stages": [{"name": "a", "weights": {"web": 1}, "rows": 1}] * 2},
        {"stages": [{"name": "a", "weights": {"web": 1}, "rows": 1}], "weights": {"web": 1}},
        {"stages": [{"name": "a", "weights": {"web": 1}, "rows": 1}], "rows": 1},
        {"weights": {}},
        {"weights": ["web"]},
        {"tokens": 0},
        {"tokens": "10 billion"},
        {"tokens": "0.0001K"},
        {"tokens": "10G"},
        {"tokens": True},
        {"temperature": 0.5},
        {"max_epochs": {"web": "two"}},
    ],
)
def test_impossible_parameters_are_refused_with_the_plan(params):
    with pytest.raises(ValidationError):
        Mix.model_validate(params)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"weights": {"web": 0.7}},
            "the weight of 'web' must be an integer of at least 1, got 0.7",
        ),
        ({"weights": "unimx"}, "'unimx' is not a way to compute weights. Did you mean 'unimax'?"),
        ({"weights": "unimax"}, "unimax divides a budget among sources. Set tokens or rows."),
        ({"weights": "unimax", "temperature": 2, "rows": 9}, "temperature .* unimax. Remove one"),
        ({"weights": {"web": 1}, "temperature": 2}, "it can't go with weights that are given"),
        ({"rows": 1, "tokens": 10}, "rows and tokens both give the length of the run"),
        ({"tokens": "10GB"}, "must be a number of tokens, as in 10_000_000, 500M or 1.5B"),
        ({"max_epochs": {"web": 0}}, "that of 'web' must be a number above 0, at most 1e9, got 0"),
        (
            {"stages": [{"name": "a", "ratio": 1, "weights": "unimax"}]},
            "stage 'a' has a ratio of a run of open length. Set tokens or rows of the run",
        ),
        (
            {"stages": [{"name": "a", "ratio": 1, "weights": {"web": 1}, "sources": ["web"]}]},
            "stage 'a': sources can't go with weights that are given",
        ),
        (
            {"stages": [{"name": "a", "ratio": 1, "tokens": "1M"}]},
            "stage 'a' must have one of rows, tokens and ratio",
        ),
        (
            {"temperature": 2, "stages": [{"name": "a", "ratio": 1}]},
            "weights and temperature are those of stages where there are any",
        ),
    ],
)
def test_parameters_that_contradict_say_what_to_change(params, message):
    with pytest.raises(ValidationError, match=message):
        Mix.model_validate(params)


def test_the_plan_has_the_documented_fields_and_hash(shuffled):
    plan = planned(shuffled, seed=3)
    index = shuffled.root / "mix/index.parquet"
    assert plan["plan_hash"] == plan_hash(plan, digest_file(index))
    assert plan["seed"] == 3
    assert plan["sources"][1] == {
        "name": "books",
        "rows": 15,
        "tokens": 120,
        "documents": 15,
        "text_bytes": 105,
        "max_epochs": 1.0,
        "shuffled": True,
    }
    assert set(plan["tokenizer"]) == {"hash", "vocab_size", "eos", "pad"}


def test_lookups_name_every_run_with_its_range(shuffled):
    planned(shuffled)
    rows = pq.read_table(shuffled.root / "mix/lookups.parquet").to_pylist()
    assert [row["role"] for row in rows] == ["ids"] * 3 + ["id_hashes"] * 3 + ["doc_rows"] * 5
    assert {row["source"] for row in rows} == set(SIZES)
    for row in rows:
        assert row["first"] <= row["last"]
        assert (shuffled.root / row["path"]).exists()


def test_the_loader_streams_every_row_once(shuffled):
    planned(shuffled)
    tokens = {
        name: token_matrix(rows_of(shuffled, "shuffle.gather/tokens", name)) for name in SIZES
    }
    seen = []
    with StreamingLoader(shuffled.root, global_batch_rows=1) as loader:
        for batch in loader:
            name = loader.source_names[int(batch["source_ids"][0])]
            row = int(batch["row_ids"][0])
            assert batch["tokens"][0].tolist() == tokens[name][row][:-1].tolist()
            seen.append((name, row))
    assert sorted(seen) == sorted(
        (name, row) for name, size in SIZES.items() for row in range(size)
    )


def test_the_loader_finds_documents_both_ways(shuffled):
    planned(shuffled)
    with StreamingLoader(shuffled.root, global_batch_rows=1) as loader:
        occurrences = list(loader.occurrences("books-11"))
        (row,) = loader.which(occurrences[0].step)
    assert len(occurrences) == 1
    assert [span.id for span in row.documents] == ["books-11"]
    assert (row.source, row.documents[0].file) == ("books", "books.txt")


def test_the_same_plan_is_the_same_bytes(shuffled):
    planned(shuffled)
    names = ("plan.json", "index.parquet", "lookups.parquet", "files.json")
    before = [(shuffled.root / "mix" / name).read_bytes() for name in names]
    planned(shuffled)
    assert before == [(shuffled.root / "mix" / name).read_bytes() for name in names]


def test_shares_are_exact_anywhere_in_the_run(shuffled):
    planned(shuffled, weights={"web": 5, "books": 3, "code": 2})
    with StreamingLoader(shuffled.root, global_batch_rows=10) as loader:
        batches = [np.bincount(batch["source_ids"], minlength=3).tolist() for batch in loader]
    assert batches
    assert all(batch == [5, 3, 2] for batch in batches)
