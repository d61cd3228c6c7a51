from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpuskit.kernels.pii.scan import FORMS, find_pii
from tests.contract.strategies import view
from tests.oracles.pii import find_spans

MANY = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA1bC2dE3fG4hI5jK6lM7nO8pQ9"
LINES = "\n".join([MANY] * 4)
BLOCK = f"-----BEGIN RSA PRIVATE KEY-----\n{LINES}\n-----END RSA PRIVATE KEY-----"
WEB = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
KEYS = [
    *("AKIA" + MANY[:16].upper(), "ASIA" + MANY[:16].upper(), "AIza" + MANY[:33] + "_-"),
    *("ghp_" + MANY[:36], "gho_" + MANY[:36], "github_pat_" + MANY[:22] + "_" + MANY + "ab"),
    *("npm_" + MANY[:36], "hf_" + MANY[:34], "sk_live_" + MANY[:24], "rk_live_" + MANY[:24]),
    *("glpat-" + MANY[:20], "xoxb-123456789012-123456789012-" + MANY[:24], "pypi-AgE" + MANY),
    *("sk-" + MANY[:48], "sk-ant-api03-" + MANY + "-" + MANY[:20] + "AA", WEB, BLOCK),
]
PARTS = (
    *(" ", "-", "_", ".", "=", "a", "A", "0", "x" * 40, "EXAMPLE", "-----", "-----BEGIN ", "\xe9"),
    *(" PRIVATE KEY", "-----END RSA PRIVATE KEY-----", "eyJ", MANY[:20], MANY[:36], MANY, *KEYS),
    *(form[0] for form in FORMS),
)


def words(document):
    text = view([document]).text
    found = find_pii(text.offsets, text.data, ["secret"])
    data = document.encode()
    return [data[a:b].decode() for a, b in zip(found.starts, found.ends, strict=True)]


def plainly(document):
    data = document.encode()
    spans = find_spans(data, ["secret"], only_public=True, min_ipv4_part=64)
    return [data[start:end].decode() for start, end, _ in spans]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PARTS), max_size=7).map("".join))
def test_secrets_are_those_of_regular_expressions(document):
    assert words(document) == plainly(document)


def test_secrets_with_one_character_changed_are_those_of_regular_expressions():
    dice = random.Random(0)
    for _ in range(100):
        key = dice.choice(KEYS)
        at = dice.randrange(min(len(key), 60))
        text = key[:at] + dice.choice("aZ0-_. ") + key[at + dice.randrange(2) :]
        assert words(text) == plainly(text), text


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:11])
def test_keys(key):
    assert words(f"({key}), key={key} '{key}'.") == [key] * 3


@pytest.mark.parametrize("prefix", [form[0] for form in FORMS])
def test_a_key_of_each_form_is_found(prefix):
    dice = random.Random(prefix)
    fewest = next(form[3] for form in FORMS if form[0] == prefix)
    key = prefix + "".join(dice.choices(string.ascii_letters, k=fewest - 2)) + "a7"
    assert words(f"{key} is") == [key]


@pytest.mark.parametrize(
    "text",
    [
        *("AKIAIOSFODNN7EXAMPLE", "AKIA" + "X" * 16, "ghp_" + "x" * 36, "sk-" + "1234" * 12),
        *("sk-learn-tutorial-2019-how-to-build-a-classifier-with-trees", "task-" + MANY[:40]),
        *("npm_config_registry_of_the_company_1234567890", "AKIA" + MANY[:17].upper()),
        *("glpat-short", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx", "ghp_" + MANY[:35], "a" + KEYS[0]),
        "-----BEGIN PUBLIC KEY-----\n" + LINES + "\n-----END PUBLIC KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\n...\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\n" + LINES,
    ],
    ids=lambda text: text[:14],
)
def test_what_is_no_secret(text):
    assert words(f"see {text} there") == []
