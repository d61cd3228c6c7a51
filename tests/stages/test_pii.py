from __future__ import annotations

import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from corpuskit.kernels.pii.scan import KINDS
from corpuskit.stage import View
from corpuskit.stages.rewriters.pii import Pii, mask_texts
from tests.contract.strategies import plain, view
from tests.oracles import oracle_of

TEXT = "\xe9: jo@x.org at 81.2.69.142, 2a00:1450:4001:81b::200e and 10.0.0.99"
ALL = (
    "\xe9: jo@x.org, 81.2.69.142, 2a00:1450:4001:81b::200e, (415) 555-2671, 4111111111111111, "
    "DE89370400440532013000, 452-85-7892, AKIAIOSFODNN7EXAMPL3"
)


def after(text, **params):
    return plain(Pii(**params), view([text]))[0]["text"].decode()


def test_only_the_chosen_kinds_are_replaced():
    assert after(TEXT, kinds=["ipv4"]) == TEXT.replace("81.2.69.142", "192.0.2.1")
    assert after(ALL, kinds=[]) == ALL


def test_stand_ins_are_parameters_and_may_cut():
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


def test_tags_name_the_kind():
    assert after(ALL, action="tag") == "\xe9: " + ", ".join(f"<{kind.upper()}>" for kind in KINDS)


@pytest.mark.parametrize("character", ["*", "X"])
def test_a_mask_keeps_the_length(character):
    masked = after(ALL, action="mask", mask_character=character)
    assert len(masked) == len(ALL)
    assert masked.replace(character, "") == "\xe9: " + ", " * 7


def test_a_slice_is_masked_as_the_whole():
    whole = view(["jo@x.org a", "b jo@x.org", ""])
    rows = plain(Pii(action="mask"), View(whole.batch.slice(1)))
    assert [row["text"] for row in rows] == [b"b ********", b""]


def test_drop_names_the_first_kind_and_counts():
    texts = ["452-85-7892 jo@x.org, AKIAIOSFODNN7EXAMPL3, 452-85-7892", "jo@x.org", "none"]
    rows = plain(Pii(actions={"secret": "drop", "us_ssn": "drop"}), view(texts))
    assert [(row["rule"], row["value"]) for row in rows] == [
        ("us_ssn", 2.0), (None, "nan"), (None, "nan")
    ]  # fmt: skip
    assert [len(row["spans"]) for row in rows] == [4, 1, 0]
    assert rows[1]["text"] == b"email@example.com"


def test_each_kind_may_have_its_own_action():
    actions = {"email": "mask", "ipv4": "tag", "ipv6": "replace"}
    assert after(TEXT, action="drop", actions=actions) == (
        "\xe9: ******** at <IPV4>, 2001:db8::1 and 10.0.0.99"
    )


def test_several_stand_ins_take_turns_in_each_document():
    texts = ["a@x.org b@x.org 81.2.69.142 c@x.org", "d@x.org"]
    found = plain(Pii(email_replacement=("1", "2")), view(texts))
    assert [row["text"] for row in found] == [b"1 2 192.0.2.1 1", b"1"]


def test_a_batch_without_personal_data_keeps_its_text_and_facts():
    outcome = Pii().apply(view(["nothing", "here"]))
    assert outcome.text is None
    assert outcome.spans is None


@pytest.mark.parametrize("params", [{}, {"action": "mask"}, {"action": "tag"}], ids=str)
def test_a_second_run_finds_the_same_text(params):
    once = after(ALL, **params)
    assert after(once, **params) == once


def test_the_same_address_is_replaced_alike_everywhere():
    texts = ["a@x.org", "b@y.org c@z.org", "a@x.org"]
    found = [row["text"] for row in plain(Pii(), view(texts))]
    assert found == [b"email@example.com", b"email@example.com email@example.com", found[0]]


@pytest.mark.parametrize("text", ["", "a1", ".com", "com."])
def test_stand_ins_that_join_numbers_are_refused_in_mode_datatrove(text):
    with pytest.raises(ValidationError):
        Pii(mode="datatrove", email_replacement=text)


def test_mask_texts_masks_private_addresses_too():
    masked = mask_texts(pa.array(["10.0.0.99", None, "jo@x.org"], pa.large_string()))
    assert masked.type == pa.large_string()
    assert masked.to_pylist() == ["192.0.2.1", "", "email@example.com"]


def test_mask_texts_masks_all_kinds():
    (masked,) = mask_texts(pa.array([ALL], pa.large_string())).to_pylist()
    assert not [part for part in ALL.split(", ")[1:] if part in masked]


def test_mask_texts_takes_slices_and_empty_arrays():
    texts = pa.array(["jo@x.org", "b", "c@x.org"], pa.large_string())
    assert mask_texts(texts.slice(1)).to_pylist() == ["b", "email@example.com"]
    assert mask_texts(texts.slice(3)).to_pylist() == []


GOLD = {
    "EMAIL": "email", "IPV4": "ipv4", "IPV6": "ipv6", "PHONE": "phone",
    "CREDIT_CARD": "credit_card", "IBAN": "iban", "US_SSN": "us_ssn",
}  # fmt: skip


@pytest.mark.real
def test_planted_data_is_found_and_look_alikes_are_not(shared_data):
    rows = pq.read_table(shared_data / "pii" / "planted.parquet").to_pylist()
    found, wanted, fooled = set(), set(), 0
    for number, (row, result) in enumerate(
        zip(rows, plain(Pii(), view([row["text"] for row in rows])), strict=True)
    ):
        data = row["text"].encode()
        spans = [
            (len(data[:a].decode()), len(data[:b].decode()), k) for a, b, k, _ in result["spans"]
        ]
        found |= {(number, *span) for span in spans}
        wanted |= {(number, s["start"], s["end"], GOLD[s["type"]]) for s in row["spans"]}
        traps = [(h["start"], h["end"]) for h in row["hard_negatives"]]
        fooled += sum(low <= start < high for start, _, _ in spans for low, high in traps)
    for kind in GOLD.values():
        hits = sum(span[3] == kind for span in found & wanted)
        assert hits / sum(span[3] == kind for span in wanted) >= 0.99, kind
        assert hits / sum(span[3] == kind for span in found) >= 0.99, kind
    assert fooled == 0


@pytest.mark.real
def test_spans_equal_the_plain_reference_on_real_texts(shared_data):
    texts = pq.read_table(shared_data / "pii" / "planted.parquet")["text"].to_pylist()
    texts += pq.read_table(shared_data / "bench_multi" / "bench_multi-00000-of-00002.parquet")[
        "text"
    ].to_pylist()[::20]
    stage = Pii()
    oracle = oracle_of(stage)
    found = [row["text"].decode() for row in plain(stage, view(texts))]
    assert found == [oracle(text)[1] for text in texts]
    kinds = {rule for row in plain(stage, view(texts)) for _, _, rule, _ in row["spans"]}
    assert kinds >= set(GOLD.values())


@pytest.mark.real
def test_mode_datatrove_equals_the_formatter_on_real_texts(shared_data):
    texts = pq.read_table(shared_data / "pii" / "planted.parquet")["text"].to_pylist()[::2]
    stage = Pii(mode="datatrove")
    oracle = oracle_of(stage)
    found = [row["text"].decode() for row in plain(stage, view(texts))]
    assert found == [oracle(text)[1] for text in texts]


COUNT = """
import json, sys
import numpy as np
from corpuskit.kernels.pii.scan import find_pii
from corpuskit.kernels.pii.scan import find_datatrove

class Counted(np.ndarray):
    looks = 0
    def __getitem__(self, place):
        Counted.looks += 1
        return self.view(np.ndarray)[place]

def looks(find, text):
    Counted.looks = 0
    data = np.frombuffer(text.encode(), np.uint8).view(Counted)
    find(np.array([0, len(data)]), data)
    return Counted.looks

np.seterr(over="ignore")
small, large = 600, 1200
for piece in json.loads(sys.argv[1]):
    for find in (find_pii, find_datatrove):
        counts = [looks(find, piece * (size // len(piece))) for size in (small, large)]
        print(json.dumps([piece, find.__name__, *counts]))
"""
PIECES = (
    *("1", "@", ".", "a-", "a.", "1.", "1:", "::", "-", "1 ", "1-", "a@", "a@b.", "I", "_", "AK"),
    *("sk-", "ghp_", "xoxb-", "eyJ.", "eyJ.eyJ", "-----BEGIN RSA PRIVATE KEY-----", "(415) "),
    *(
        "DE89",
        "DE89 3704 ",
        "+1 ",
        "4111 ",
        "4111-",
        "phone: 1",
        "no. ",
        "1.1.",
        "a.@",
        "[1.1.1.1:",
    ),
)


@pytest.mark.slow
def test_a_byte_is_looked_at_a_bounded_number_of_times():
    """Kernels as plain Python count their looks: twice the text, twice the looks."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, json.dumps(PIECES)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    counts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(counts) == 2 * len(PIECES)
    assert not [count for count in counts if count[3] > 2.2 * count[2] + 200]
    assert max(count[3] for count in counts) < 100 * 1200
