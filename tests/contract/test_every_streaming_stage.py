"""What annotators, filters and rewriters promise: it never shows how documents were batched."""

from __future__ import annotations

import hashlib
import json
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpuskit.engine.records import measuring
from corpuskit.stage import StreamingStage, View
from tests.contract.strategies import (
    WORLD,
    make,
    of_kind,
    plain,
    reload,
    rules,
    stages,
    texts,
    texts_after,
    tied,
    view,
)
from tests.oracles import oracle_of

STAGES = of_kind(StreamingStage)
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])


def examples(cls):
    return [
        (cls(**example.params) if example.params else make(cls), example)
        for example in cls.examples
    ]


def outcome_of(stage, text):
    documents = view([text], stage)
    outcome = stage.apply(documents)
    (rule,) = rules(stage, outcome, 1)
    if rule is None and outcome.spans is not None and len(outcome.spans.codes):
        rule = stage.rules[outcome.spans.codes[0] - 1]
    return rule, texts_after(documents, outcome)[0].decode()


@pytest.mark.parametrize("cls", STAGES)
def test_every_rule_has_an_example(cls):
    shown = {example.rule for example in cls.examples}
    assert shown >= set(cls.rules)
    assert None in shown or not cls.rules, "a document that the stage leaves alone"


@pytest.mark.parametrize("cls", STAGES)
def test_examples_hold(cls):
    for stage, example in examples(cls):
        rule, text = outcome_of(stage, example.text)
        assert rule == example.rule, example
        if rule is None or example.becomes is not None:
            assert text == (example.text if example.becomes is None else example.becomes), example


@pytest.mark.parametrize("cls", STAGES)
def test_an_empty_batch_is_no_trouble(cls):
    stage = make(cls)
    assert plain(stage, view([], stage)) == []
    whole = view(["one text"], stage)
    assert plain(stage, View(whole.batch.slice(1))) == []


@pytest.mark.parametrize("cls", STAGES)
def test_an_outcome_is_as_declared(cls):
    stage = make(cls)
    documents = view(["", "a text\nof two lines", "jo@x.org " * 3], stage)
    outcome = stage.apply(documents)
    if outcome.codes is not None:
        assert outcome.codes.dtype == np.uint8
        assert outcome.codes.max() <= len(stage.rules)
    if outcome.values is not None:
        assert outcome.values.dtype == np.float64
    assert {name: values.type for name, values in outcome.columns.items()} == dict(stage.adds())
    for values in outcome.measures.values():
        assert values.dtype == np.float64
        assert len(values) == 3
    if outcome.text is not None:
        assert outcome.text.offsets.dtype == np.int64
        assert [text.decode() for text in texts_after(documents, outcome)]


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@few
def test_a_slice_decides_as_the_whole(cls, documents, data):
    stage = data.draw(stages(cls))
    whole = view(documents, stage)
    expected = plain(stage, whole)
    cut = data.draw(st.integers(0, len(documents)))
    assert plain(stage, View(whole.batch.slice(0, cut))) == expected[:cut]
    assert plain(stage, View(whole.batch.slice(cut))) == expected[cut:]


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@few
def test_each_document_alone_decides_as_in_its_batch(cls, documents, data):
    stage = data.draw(stages(cls))
    alone = [plain(stage, view([text], stage, first))[0] for first, text in enumerate(documents)]
    assert alone == plain(stage, view(documents, stage))


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@few
def test_order_of_documents_is_kept(cls, documents, data):
    stage = make(cls)
    order = data.draw(st.permutations(range(len(documents))))
    shuffled = View(view(documents, stage).batch.take(np.array(order, np.int64)))
    expected = plain(stage, view(documents, stage))
    assert plain(stage, shuffled) == [expected[row] for row in order]


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@few
def test_facts_of_selected_rows_hold(cls, documents, data):
    stage = make(cls)
    whole = view(documents, stage)
    expected = plain(stage, whole)
    rows = [row for row in range(len(documents)) if data.draw(st.booleans())]
    assert plain(stage, whole.select(np.array(rows, np.int64))) == [expected[row] for row in rows]


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts())
@few
def test_the_same_again_and_nothing_written_to(cls, documents):
    stage = make(cls)
    given_view = view(documents, stage)
    before = digest(given_view.batch)
    first = plain(stage, given_view)
    assert plain(stage, given_view) == first
    assert plain(pickle.loads(pickle.dumps(stage)), view(documents, stage)) == first
    assert plain(reload(stage), view(documents, stage)) == first
    assert digest(given_view.batch) == before


def digest(batch):
    hashed = hashlib.blake2b()
    for column in batch.columns:
        for buffer in column.buffers():
            hashed.update(b"" if buffer is None else memoryview(buffer))
    return hashed.hexdigest()


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@few
def test_a_measured_value_breaks_its_bound(cls, documents, data):
    stage = data.draw(stages(cls))
    for row in plain(stage, view(documents, stage)):
        if row["rule"] in cls.bounds and row["value"] not in {None, "nan"}:
            assert row["value"] != stage.threshold(row["rule"]) or "max" not in row["rule"]


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts())
@few
def test_spans_lie_within_their_text_and_apart(cls, documents):
    stage = make(cls)
    sizes = [len(text.encode()) for text in documents]
    for row, size in zip(plain(stage, view(documents, stage)), sizes, strict=True):
        edges = [edge for start, end, _, _ in row["spans"] for edge in (start, end)]
        assert edges == sorted(edges)
        assert all(0 <= edge <= size for edge in edges)
        assert all(start < end for start, end, _, _ in row["spans"])


@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts())
@few
def test_what_is_outside_of_spans_stays(cls, documents):
    stage = make(cls)
    for text, row in zip(documents, plain(stage, view(documents, stage)), strict=True):
        if not row["spans"]:
            continue
        data, rest, at = text.encode(), row["text"], 0
        for start, end, _, _ in row["spans"]:
            kept = data[at:start]
            assert kept in rest
            rest = rest[rest.index(kept) + len(kept) :]
            at = end
        assert rest.endswith(data[at:])


def reference_of(stage):
    oracle = oracle_of(stage)
    if oracle is None:
        pytest.skip(f"{stage.stage_name()} has no reference")
    return oracle


def disagreements(stage, oracle, documents):
    """Return where stage and reference differ: text, what was found, what was expected."""
    found = plain(stage, view(documents, stage))
    differing = []
    for text, row in zip(documents, found, strict=True):
        rule, after = oracle(text)
        if row["rule"] != rule or (rule is None and row["text"].decode() != after):
            differing.append((text, row["rule"], row["text"].decode(), rule, after))
    return differing


@pytest.mark.slow
@pytest.mark.parametrize("cls", STAGES)
def test_equals_the_reference_on_every_small_text(cls):
    reference_of(make(cls))
    for stage in tied(cls):
        assert disagreements(stage, reference_of(stage), WORLD)[:3] == [], repr(stage)


@pytest.mark.slow
@pytest.mark.parametrize("cls", STAGES)
@given(documents=texts(), data=st.data())
@settings(few, max_examples=60)
def test_equals_the_reference_on_tricky_texts(cls, documents, data):
    stage = data.draw(stages(cls))
    assert disagreements(stage, reference_of(stage), documents) == []


@pytest.mark.parametrize("cls", STAGES)
def test_equals_the_reference_on_examples(cls):
    for stage, example in examples(cls):
        assert disagreements(stage, reference_of(stage), [example.text]) == []


@pytest.mark.parametrize("cls", STAGES)
def test_what_a_stage_drops_may_live_elsewhere(cls):
    assert isinstance(cls.diverts, str)
    assert not cls.diverts or (cls.rules and "/" not in cls.diverts)


@pytest.mark.parametrize("cls", STAGES)
def test_facts_for_later_stages_are_json(cls):
    facts = dict(make(cls).provides({}))
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize("cls", [one for one in STAGES if "measures" in one.values[0].model_fields])
@given(documents=texts(), data=st.data())
@few
def test_measuring_changes_no_decision(cls, documents, data):
    stage = data.draw(stages(cls))
    quiet = stage.model_copy(update={"measures": False})
    found = measuring(quiet)
    given_view = view(documents, stage)
    measured = [
        {name: value for name, value in row.items() if not name.startswith("measure ")}
        for row in plain(found, given_view)
    ]
    assert measured == plain(quiet, given_view)
