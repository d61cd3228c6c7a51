"""Planted secrets: what batches hold, and what exposure says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from corpuskit.ablate.canaries import (
    EACH,
    MOST_BITS,
    Planting,
    draw_canaries,
    exposure,
    plant,
    summarise,
)
from corpuskit.cli.main import group
from corpuskit.errors import UsageError
from corpuskit.loader.stream import StreamingLoader
from corpuskit.stages.sequences._heldout import open_tokenizer
from tests.ablate.trials import ablate, write_trial

LENGTH = 64


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study with canaries, one count of which is high; and its results."""
    folder = tmp_path_factory.mktemp("canaries")
    arguments = write_trial(folder, 0, "none", most=400, epochs=2)  # short of 50K tokens, perhaps
    arguments += ["--tokens", "50K", "--seeds", "2", "--canaries", "1,32"]
    return folder, arguments, ablate(arguments)


def loader(folder):
    fields = ("tokens", "labels", "position_ids", "cu_seqlens", "row_ids")
    return StreamingLoader(str(folder / "study/corpora/a"), global_batch_rows=4, fields=fields)


def test_repeated_secrets_are_exposed_and_unseen_ones_are_not(study):
    _, _, results = study
    found = results["sizes"]["tiny"]["canaries"]
    never, once, often = found["curve"]
    assert [one["repeats"] for one in found["curve"]] == [0, 1, 32]
    assert never["low"] < 1.44 < never["high"]
    assert often["low"] > 15 > once["high"]
    assert found["planted"] == EACH * 33
    assert found["largest"] in {0, 1, None}


def test_trainings_that_are_compared_have_no_canaries(study, tmp_path):
    folder, arguments, results = study
    without = ablate(arguments[:-2])
    assert without["sizes"]["tiny"]["values"] == results["sizes"]["tiny"]["values"]
    assert "canaries" not in without["sizes"]["tiny"]
    names = sorted(path.name for path in (folder / "study/trainings").glob("*-canaries-*"))
    assert [name[:9] for name in names] == ["a-tiny-s0", "a-tiny-s1"]


def test_each_canary_is_planted_as_often_as_asked_and_the_corpus_stays(study):
    folder, _, _ = study
    plain, planted = list(loader(folder)), []
    tokenizer = open_tokenizer(str(folder / "study/corpora/a"))
    canaries = draw_canaries((1, 3), 7)
    planting = plant(canaries, tokenizer, 7, steps=50, global_rows=4, seq_len=LENGTH)
    planted = [planting(batch) for batch in loader(folder)][:50]
    text = " ".join(
        "|".join(map(str, row)) for batch in planted for row in batch["tokens"].tolist()
    )
    for canary in canaries:
        [tokens] = tokenizer_ids(tokenizer, [canary.text])
        assert text.count("|".join(map(str, tokens)) + "|") == canary.repeats
    changed = sum(
        (a["tokens"] != b["tokens"]).any(1).sum() for a, b in zip(plain, planted, strict=False)
    )
    assert changed == 4 * EACH
    assert all(
        (a["tokens"] == b["tokens"]).all() for a, b in zip(plain, loader(folder), strict=True)
    )


def tokenizer_ids(tokenizer, texts):
    from corpuskit.stages.sequences._heldout import tokenize_texts

    return [one.tokens.tolist() for one in tokenize_texts(tokenizer, texts)]


def test_a_planted_batch_is_one_that_the_loader_could_have_made():
    rng = np.random.default_rng(0)
    for case in range(200):
        size = int(rng.integers(2, LENGTH + 2))
        starts = sorted({0, *rng.integers(LENGTH, size=int(rng.integers(0, 5))).tolist()})
        stored = rng.integers(100, 200, (3, LENGTH + 1)).astype(np.int32)
        batch = assemble(stored, [[0], starts, [0, 32]])
        batch["step"] = case
        canary = np.arange(size)
        found = Planting({case * 3 + 1: canary}, 3)(batch)
        stored[1, :size] = canary
        after = [size] if size <= LENGTH else []
        expected = assemble(stored, [[0], [0, *after, *(s for s in starts if s > size)], [0, 32]])
        for name in ("tokens", "labels", "position_ids", "cu_seqlens"):
            np.testing.assert_array_equal(found[name], expected[name], f"{name}, case {case}")


def assemble(stored, starts):
    """Return a batch of stored rows with segments, written out."""
    rows = len(stored)
    tokens, labels = stored[:, :-1].copy(), stored[:, 1:].copy()
    positions = np.zeros((rows, LENGTH), np.int32)
    bounds = []
    for row, own in enumerate(starts):
        if own[-1] == LENGTH:  # of a segment whose first token is the last label
            labels[row, -1] = -100
        own = [begin for begin in own if begin < LENGTH]
        for begin, end in zip(own, [*own[1:], LENGTH], strict=True):
            positions[row, begin:end] = np.arange(end - begin)
            bounds.append(row * LENGTH + begin)
            if end < LENGTH:
                labels[row, end - 1] = -100
    cu = np.array([*bounds, rows * LENGTH], np.int32)
    return {"tokens": tokens, "labels": labels, "position_ids": positions, "cu_seqlens": cu}


def test_exposure_is_the_rank_in_bits():
    rng = np.random.default_rng(0)
    num = 4000
    bits = [exposure(rng.standard_normal(65)) for _ in range(num)]
    # -log2 of a uniform rank: mean and deviation are 1 / ln 2.
    assert np.mean(bits) == pytest.approx(1 / math.log(2), abs=4 / math.log(2) / num**0.5 + 0.05)
    others = rng.standard_normal(2000)
    others = (others - others.mean()) / others.std(ddof=1)
    assert exposure(np.append(2.3263, others)) == pytest.approx(math.log2(100), abs=0.01)
    assert exposure(np.append(1e6, others)) == MOST_BITS
    assert exposure(np.append(-1e6, others)) == 0


def test_the_largest_count_is_one_below_which_no_count_is_exposed(tmp_path):
    class Done:
        counts = (1, 2, 4)
        scores = tmp_path / "canaries.json"

    means = {0: 1.4, 1: 1.5, 2: 9.0, 4: 1.5}
    facts = [
        {"repeats": count, "exposure": mean + wobble}
        for count, mean in means.items()
        for wobble in (-0.1, 0, 0.1)
    ]
    Done.scores.write_text(json.dumps({"planted": 21, "tokens": 600, "canaries": facts}))
    found = summarise([Done()], 6000, 0.95, 3)
    assert (found["largest"], found["share"]) == (1, 0.1)
    assert summarise([Done()], 6000, 0.95, 1)["largest"] is None


def test_canaries_that_do_not_fit_are_refused(study):
    folder, arguments, _ = study
    tokenizer = open_tokenizer(str(folder / "study/corpora/a"))
    with pytest.raises(UsageError, match="need 800 rows, and a training has 400"):
        plant(draw_canaries((100,), 0), tokenizer, 0, steps=100, global_rows=4, seq_len=64)
    with pytest.raises(UsageError, match="rows have 8"):
        plant(draw_canaries((1,), 0), tokenizer, 0, steps=100, global_rows=4, seq_len=8)
    outcome = CliRunner().invoke(group, ["ablate", *arguments[:-2], "--canaries", "0,4"])
    assert "must be counts from 1 on" in str(outcome.exception)
