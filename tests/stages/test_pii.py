from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from corpuskit.kernels.pii import KINDS
from corpuskit.stages.rewriters.pii import Pii, mask_texts
from tests.contract.strategies import plain, view

TEXT = "\xe9: jo@x.org at 81.2.69.142, 2a00:1450:4001:81b::200e and 10.0.0.99"


def after(text, **params):
    return plain(Pii(**params), view([text]))[0]["text"].decode()


def test_only_the_chosen_kinds_are_replaced():
    assert after(TEXT, kinds=["ipv4"]) == TEXT.replace("81.2.69.142", "192.0.2.1")
    assert after(TEXT, kinds=[]) == TEXT


def test_replacements_are_parameters_and_may_cut():
    text = after(TEXT, email_replacement="", ipv4_replacement="\u2014", ipv6_replacement="<IP>")
    assert text == "\xe9:  at \u2014, <IP> and 10.0.0.99"


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValidationError):
        Pii(kinds=("telephone",))


def test_spans_are_bytes_of_the_text_that_was_seen():
    spans = plain(Pii(), view([TEXT]))[0]["spans"]
    data = TEXT.encode()
    assert [(data[start:end].decode(), rule, action) for start, end, rule, action in spans] == [
        ("jo@x.org", "email", "replace"),
        ("81.2.69.142", "ipv4", "replace"),
        ("2a00:1450:4001:81b::200e", "ipv6", "replace"),
    ]


def test_a_batch_without_addresses_keeps_its_text_and_facts():
    outcome = Pii().apply(view(["nothing", "here"]))
    assert outcome.text is None
    assert outcome.spans is None


def test_a_second_run_finds_the_same_text():
    once = after(TEXT)
    assert after(once) == once


def test_the_same_address_is_replaced_alike_everywhere():
    texts = ["a@x.org", "b@y.org c@z.org", "a@x.org"]
    found = [row["text"] for row in plain(Pii(), view(texts))]
    assert found == [b"email@example.com", b"email@example.com email@example.com", found[0]]


def test_mask_texts_masks_private_addresses_too():
    masked = mask_texts(pa.array(["10.0.0.99", None, "jo@x.org"], pa.large_string()))
    assert masked.type == pa.large_string()
    assert masked.to_pylist() == ["192.0.2.1", "", "email@example.com"]


def test_mask_texts_takes_slices_and_empty_arrays():
    texts = pa.array(["jo@x.org", "b", "c@x.org"], pa.large_string())
    assert mask_texts(texts.slice(1)).to_pylist() == ["b", "email@example.com"]
    assert mask_texts(texts.slice(3)).to_pylist() == []


def gold(table):
    """Return per text: spans that must be found as (start, end) characters, and hard negatives."""
    kinds = {"EMAIL", "EMAIL_ADDRESS", "IPV4", "IPV6", "IP_ADDRESS"}
    for row in table.to_pylist():
        wanted = {(s["start"], s["end"]) for s in row["spans"] if s["type"] in kinds}
        yield row["text"], wanted, [(h["start"], h["end"]) for h in row.get("hard_negatives") or ()]


def spans_in_chars(text):
    data = text.encode()
    return {
        (len(data[:start].decode()), len(data[:end].decode()))
        for start, end, _, _ in plain(Pii(), view([text]))[0]["spans"]
    }


@pytest.mark.real
def test_planted_addresses_are_found_and_look_alikes_are_not(shared_data):
    hits = misses = extra = fooled = 0
    for text, wanted, negatives in gold(pq.read_table(shared_data / "pii" / "planted.parquet")):
        found = spans_in_chars(text)
        hits += len(found & wanted)
        misses += len(wanted - found)
        extra += len(found - wanted)
        fooled += sum(low <= start < high for start, _ in found for low, high in negatives)
    assert hits / (hits + misses) >= 0.99
    assert hits / (hits + extra) >= 0.99
    assert fooled == 0


@pytest.mark.real
def test_spans_equal_the_plain_reference_on_real_texts(shared_data):
    texts = pq.read_table(shared_data / "pii" / "planted.parquet")["text"].to_pylist()
    texts += pq.read_table(shared_data / "bench_multi" / "bench_multi-00000-of-00002.parquet")[
        "text"
    ].to_pylist()[::20]
    stage = Pii()
    oracle = stage.oracle()
    found = [row["text"].decode() for row in plain(stage, view(texts))]
    assert found == [oracle(text)[1] for text in texts]
    assert set(KINDS) == {
        rule for row in plain(stage, view(texts)) for _, _, rule, _ in row["spans"]
    }
