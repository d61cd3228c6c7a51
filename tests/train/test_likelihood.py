"""Tasks: a choice has the likelihood that the model alone would give it, on any ranks."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
from click.testing import CliRunner

from corpuskit.cli.evaluate import command
from corpuskit.errors import DataError, UsageError
from corpuskit.train.attention import lay_out
from corpuskit.train.likelihood import score_items
from corpuskit.train.loop import train
from corpuskit.train.model import token_losses
from corpuskit.train.parallel import build_model, join
from corpuskit.train.settings import ParallelSettings
from corpuskit.train.tasks import ScoredText, TaskItem, encode_items, read_task
from tests.train.conftest import SEQ_LEN, VOCAB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpuskit.train.settings import TrainSettings

pytestmark = pytest.mark.slow


def items(sizes: Sequence[Sequence[int]]) -> list[TaskItem]:
    """Return items whose choices have these many tokens, about half of them scored."""
    random = np.random.default_rng(3)
    made = []
    for number, row in enumerate(sizes):
        choices = tuple(
            ScoredText(random.integers(1, VOCAB, size), max(size // 2, 1), 3 * size) for size in row
        )
        without = tuple(ScoredText(one.tokens[-one.scored - 1 :], one.scored, 3) for one in choices)
        lengths = tuple((2 * size, 3 * size) for size in row)
        made.append(TaskItem(f"q{number}", "ab"[number % 2], 0, choices, lengths, without))
    return made


ITEMS = items([(5, 9), (SEQ_LEN + 1, 2, 7), (4,), (SEQ_LEN + 2, 3), (12, 12, 12, 12), (6, 5)])


def judge(settings: TrainSettings) -> tuple[Any, Any]:
    parallel = join(settings)
    model = build_model(settings.model.shape(VOCAB), settings, parallel)
    return score_items(model, settings, parallel, ITEMS, SEQ_LEN)


def judge_alone(settings: TrainSettings) -> dict[str, tuple[list[float], list[float]]]:
    """Return the likelihoods of each choice, every request in a pass of its own."""
    parallel = join(settings)
    model = build_model(settings.model.shape(VOCAB), settings, parallel)

    def score(request: ScoredText) -> float:
        tokens = torch.from_numpy(np.asarray(request.tokens, np.int64))[None]
        layout = lay_out(
            np.arange(tokens.shape[1] - 1)[None], head_dim=8, rope_theta=10_000.0,
            kernel="sdpa", device=parallel.device,
        )  # fmt: skip
        with torch.no_grad():
            losses, _ = token_losses(model(tokens[:, :-1], layout), tokens[:, 1:])
        return -losses[0, -request.scored :].double().sum().item()

    return {
        item.id: ([*map(score, item.choices)], [*map(score, item.unconditional)]) for item in ITEMS
    }


def test_choices_have_the_likelihood_that_each_has_alone_on_any_ranks(
    settings: Any, run_ranks: Any
) -> None:
    ours = settings(batch={"global_rows": 8, "micro_rows": 3})
    (alone,) = run_ranks(1, judge_alone, ours)
    tensor = ours.model_copy(update={"parallel": ParallelSettings(tensor=2)})
    context = ours.model_copy(update={"parallel": ParallelSettings(context=2)})
    for ranks, given in ((1, ours), (2, tensor), (4, context)):
        for scores, of_items in run_ranks(ranks, judge, given):
            assert [item.id for item in of_items] == ["q0", "q1", "q2", "q4", "q5"]
            for item in of_items:
                assert item.nats == pytest.approx(alone[item.id][0], rel=1e-5)
                assert item.unconditional == pytest.approx(alone[item.id][1], rel=1e-5)
            assert (scores.items, scores.too_long, scores.too_long_ids) == (5, 1, ("q3",))
            assert_counted(scores, alone)


def assert_counted(scores: Any, alone: Any) -> None:
    """Compare shares with those counted item by item."""
    several = [item for item in ITEMS if len(item.choices) > 1 and item.id != "q3"]
    right = {"accuracy": 0, "accuracy_per_character": 0, "accuracy_unconditional": 0}
    for item in several:
        nats, without = alone[item.id]
        sizes = [size for size, _ in item.lengths]
        right["accuracy"] += nats[0] == max(nats)
        per = [value / size for value, size in zip(nats, sizes, strict=True)]
        right["accuracy_per_character"] += per[0] == max(per)
        more = [value - base for value, base in zip(nats, without, strict=True)]
        right["accuracy_unconditional"] += more[0] == max(more)
    for name, count in right.items():
        assert getattr(scores, name) == pytest.approx(count / len(several))
    share = right["accuracy"] / len(several)
    assert scores.standard_error == pytest.approx(math.sqrt(share * (1 - share) / 3))
    gold = [item for item in ITEMS if item.id != "q3"]
    nats = -sum(alone[item.id][0][0] for item in gold)
    size = sum(item.choices[0].text_bytes for item in gold)
    assert scores.bits_per_byte == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert sum(part.tokens for part in scores.domains.values()) == sum(
        item.choices[0].scored for item in gold
    )


def work(settings: TrainSettings) -> None:
    train(settings, join(settings), None, None, {"quiz": ITEMS})


def test_a_training_scores_tasks_and_keeps_every_item(
    settings_for: Any, run_ranks: Any, tmp_path: Path
) -> None:
    often = {"evaluate": {"every_steps": 4, "max_documents": 0}}
    judged, calm = settings_for(tmp_path / "judged", **often), settings_for(tmp_path / "calm")
    run_ranks(1, work, judged)
    run_ranks(1, work, calm.model_copy(update={"evaluate": None}))
    metrics = [Path(run.output, "metrics.jsonl").read_text().splitlines() for run in (judged, calm)]
    losses = [[json.loads(line)["loss"] for line in lines] for lines in metrics]
    assert losses[0] == losses[1], "the training does not notice"
    lines = Path(judged.output, "evaluations.jsonl").read_text().splitlines()
    scores = [json.loads(line)["tasks"]["quiz"] for line in lines]
    assert [one["too_long"] for one in scores] == [1, 1]
    assert scores[0]["bits_per_byte"] != scores[1]["bits_per_byte"]
    kept = Path(judged.output, "items", "step-00000008", "quiz.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in kept] == ["q0", "q1", "q2", "q4", "q5"]


# ---------------------------------------------------------------- task files

FORMS: dict[str, tuple[dict[str, Any], list[tuple[str, str]], int]] = {
    "HellaSwag": (
        {"activity_label": "Roof", "ctx_a": "A man [title] sits.", "ctx_b": "he",
         "endings": ["falls  off. [step]", "sings"], "label": "1"},
        [("Roof: A man. sits. He", " falls off. "), ("Roof: A man. sits. He", " sings")], 1,
    ),
    "ARC": (
        {"question": "Why?", "choices": {"text": ["a", "b"], "label": ["1", "2"]},
         "answerKey": "2"},
        [("Question: Why?\nAnswer:", " a"), ("Question: Why?\nAnswer:", " b")], 1,
    ),
    "OpenBookQA": (
        {"question_stem": "The sun", "answerKey": "A",
         "choices": [{"label": "A", "text": "shines"}, {"label": "B", "text": "rains"}]},
        [("The sun", " shines"), ("The sun", " rains")], 0,
    ),
    "SciQ": (
        {"question": "What?", "support": " So.", "correct_answer": "x", "distractor1": "p",
         "distractor2": "q", "distractor3": "r"},
        [("So.\nQuestion: What?\nAnswer:", f" {one}") for one in "pqrx"], 3,
    ),
    "PIQA": (
        {"goal": "Open it", "sol1": "pull", "sol2": "push", "label": 0},
        [("Question: Open it\nAnswer:", " pull"), ("Question: Open it\nAnswer:", " push")], 0,
    ),
    "WinoGrande": (
        {"sentence": "Ann saw Eve, _ waved.", "option1": "Ann", "option2": "Eve", "answer": "2"},
        [("Ann saw Eve, Ann", " waved."), ("Ann saw Eve, Eve", " waved.")], 1,
    ),
    "BoolQ": (
        {"passage": "P.", "question": "is it", "answer": True},
        [("P.\nQuestion: is it?\nAnswer:", " no"), ("P.\nQuestion: is it?\nAnswer:", " yes")], 1,
    ),
    "MMLU": (
        {"question": " Q ", "choices": ["s", "t"], "answer": 1, "subject": "high_school"},
        [("The following are multiple choice questions (with answers) about high school.\n\n"
          "Q\nA. s\nB. t\nAnswer:", f" {one}") for one in "AB"], 1,
    ),
    "plain": (
        {"context": "2+2=", "choices": ["4", "5"], "gold": 0, "domain": "sums"},
        [("2+2=", "4"), ("2+2=", "5")], 0,
    ),
    "text": ({"text": "A whole text."}, [("", "A whole text.")], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_published_forms_are_worded_as_their_harness_does(
    name: str, suffix: str, tmp_path: Path
) -> None:
    row, pairs, gold = FORMS[name]
    path = tmp_path / f"task{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row, row]), path)
    else:
        path.write_text(f"{json.dumps(row)}\n\n{json.dumps({**row, 'id': 'x'})}\n")
    (first, question), (second, _) = read_task(path)
    assert (first, second) == ("1", "2" if suffix == ".parquet" else "x")
    assert list(zip(question.contexts, question.continuations, strict=True)) == pairs
    assert question.gold == gold
    assert question.domain == (row.get("domain") or row.get("subject") or "")


@pytest.mark.parametrize(
    ("lines", "error", "words"),
    [
        (['{"choices": ["a"], "gold": 1}'], DataError, "line 1: as plain: gold is 1"),
        (['{"choices": ["a"], "gold": 0}', '{"choices": ["a"]}'], DataError,
         "line 2: as plain: lacks 'gold'"),
        (['{"choices": ["a", ""], "gold": 0}'], DataError, "a choice is empty"),
        (['{"choices": ["a"], "gold": 0'], DataError, "line 1: is not JSON"),
        (['{"chioces": ["a"], "gold": 0}'], UsageError, "of no known form"),
        (['{"text": "?", "choices": ["a"], "answer": "a"}'], UsageError, "of no known form"),
        (['{"choices": ["a"], "contexts": ["a", "b"], "gold": 0}'], DataError,
         "1 choices and 2 contexts"),
        (['{"question": "?", "choices": {"text": ["a"], "label": ["A"]}, "answerKey": "B"}'],
         DataError, "line 1: as ARC"),
        (['{"question": "?", "choices": {"text": ["a", "b"], "label": ["A"]}, "answerKey": "A"}'],
         DataError, "2 choices and 1 labels"),
        (['{"choices": "ab", "gold": 0}'], DataError, "'ab' is not a list"),
        ([f'{{"question": "?", "choices": {["a"] * 11}, "answer": 0}}'.replace("'", '"')],
         DataError, "has 11 choices, more than 10"),
        (['{"question": "?", "choices": "ab", "answer": 0}'], DataError, "'ab' is not a list"),
        (['{"passage": "p", "question": "?", "answer": "false"}'], DataError,
         "'false' is neither true nor false"),
        (['{"text": "a\\ud800"}'], DataError, "surrogates"),
        (['{"context": "\\udfff", "choices": ["a"], "gold": 0}'], DataError, "surrogates"),
        (['{"goal": "\\udfff", "sol1": "a", "sol2": "b", "label": 0}'], DataError, "surrogates"),
        (['{"goal": "g", "sol1": "\\udfff", "sol2": "b", "label": 0}'], DataError, "surrogates"),
        *(([f'{{"sentence": "a _ {end}", "option1": "{one}", "option2": "c", "answer": "1"}}'],
           DataError, "surrogates") for end, one in (("\\udfff", "b"), ("d", "\\udfff"))),
        (['{"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": "xy", "label": 0}'],
         DataError, "'xy' is not a list"),
        (["[" * 100_000], DataError, "line 1: is not JSON"),
        ([], UsageError, "has no items"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_refused_with_its_line(
    lines: list[str], error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(error) as refused:
        read_task(path)
    assert str(path) in str(refused.value)
    assert words in str(refused.value)


def test_a_continuation_is_what_comes_after_the_tokens_of_its_context(tmp_path: Path) -> None:
    path = tmp_path / "task.jsonl"
    path.write_text('{"context": "ab ", "choices": ["cd", "é"], "gold": 0}\n{"text": "xyz"}\n')
    path.write_text('{"context": "ab ", "choices": ["cd", "é"], "gold": 0}\n')
    questions = read_task(path)

    def encode(texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([ord(letter) for letter in text], np.int64) for text in texts]

    [item] = encode_items(questions, encode, begin=1, unconditional=True)
    assert item.choices[0].tokens.tolist() == [*map(ord, "ab cd")]
    assert [choice.scored for choice in item.choices] == [3, 2], "the space is predicted, too"
    assert [choice.text_bytes for choice in item.choices] == [3, 3]
    assert item.lengths == ((2, 2), (1, 2))
    assert item.unconditional[0].tokens.tolist() == [1, *map(ord, " cd")]
    [item] = encode_items(questions, encode, begin=1, always_begin=True)
    assert item.choices[0].tokens.tolist() == [1, *map(ord, "ab cd")]
    path.write_text('{"text": "xyz"}\n')
    [item] = encode_items(read_task(path), encode, begin=1)
    assert item.choices[0].tokens.tolist() == [1, *map(ord, "xyz")]
    assert item.choices[0].scored == 3


# ---------------------------------------------------------------- the command

QUIZ = [
    {"context": "The cat sat on the", "choices": [" mat", " philosophy of it"], "gold": 0},
    {"context": "Two and two", "choices": [" are four", " is"], "gold": 1, "id": "sum"},
    {"context": "long " * 80, "choices": [" x", " y"], "gold": 0, "id": "long"},
]


def evaluate_folder(arguments: Sequence[str]) -> str:
    done = CliRunner().invoke(command, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_folder_of_items_that_cannot_be_is_refused_before_the_model_is_opened(
    tmp_path: Path,
) -> None:
    (task := tmp_path / "quiz.jsonl").write_text(json.dumps(QUIZ[0]))
    asked = [str(tmp_path), f"quiz={task}", "--items", str(task / "items")]
    assert isinstance(CliRunner().invoke(command, asked).exception, NotADirectoryError)


def test_the_command_scores_a_model_of_hugging_face_as_its_own_library_does(
    run_ranks: Any, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    folder = tmp_path / "model"
    theirs.save_pretrained(folder)
    tokenizer = Path(__file__).parents[2] / "sample_data" / "tokenizer.json"
    shutil.copy(tokenizer, folder / "tokenizer.json")
    task = tmp_path / "quiz.jsonl"
    task.write_text("".join(json.dumps(row) + "\n" for row in QUIZ))
    asked = [str(folder), f"quiz={task}", "--items", str(tmp_path / "items"), "--json"]
    (printed,) = run_ranks(1, evaluate_folder, asked)
    scores = json.loads(printed)["quiz"]
    assert (scores["items"], scores["too_long"], scores["too_long_ids"]) == (2, 1, ["long"])
    lines = (tmp_path / "items" / "quiz.jsonl").read_text().splitlines()
    kept = {line["id"]: line["nats"] for line in map(json.loads, lines)}
    encoder = tokenizers.Tokenizer.from_file(str(tokenizer))
    for row, name in zip(QUIZ[:2], ("1", "sum"), strict=True):
        first = len(encoder.encode(row["context"], add_special_tokens=False).ids)
        for choice, ours in zip(row["choices"], kept[name], strict=True):
            text = f"{row['context']}{choice}"
            ids = torch.tensor([encoder.encode(text, add_special_tokens=False).ids])
            with torch.no_grad():
                logs = theirs(ids).logits[0, :-1].log_softmax(-1)
            expected = logs.gather(1, ids[0, 1:, None])[first - 1 :].sum().item()
            assert ours == pytest.approx(expected, abs=1e-4)
