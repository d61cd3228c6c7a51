"""Reads task files: questions with choices, or texts, which become items for a model to score.

A file is JSON lines or Parquet. The plain form has, in each row,

    choices   list of texts           context   text before each choice (may be absent)
    gold      number of the right one contexts  one text before each choice, instead of `context`
    id, domain   (may be absent)      text      alone: a text that is scored whole

The published forms of some benchmarks are recognised by their columns, and get the prompts of
lm-evaluation-harness 0.4.9 without examples: see `FORMS`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from corpuskit.errors import DataError, UsageError, describe

Encode = Callable[[Sequence[str]], Sequence[NDArray[np.integer]]]
"""Returns the token ids of texts, without those that begin or end documents."""

Row = Mapping[str, Any]

_HALF_PAIR = re.compile("[\ud800-\udfff]")


class ScoredText(NamedTuple):
    """A text whose end is scored.

    Attributes:
        tokens: (T,) of context and continuation, at least one of each.
        scored: how many of the last tokens are the continuation.
        text_bytes: UTF-8 bytes of the continuation.
    """

    tokens: NDArray[np.integer]
    scored: int
    text_bytes: int


@dataclasses.dataclass(frozen=True)
class TaskItem:
    """A question with its choices; with one choice, a text.

    Attributes:
        id: as in the task's file.
        domain: group of the item, for results by group.
        gold: number of the right choice.
        choices: a text to score for each.
        lengths: (characters, UTF-8 bytes) of each choice as the file has it.
        unconditional: the continuations without context; empty if they are not to be scored.
    """

    id: str
    domain: str
    gold: int
    choices: tuple[ScoredText, ...]
    lengths: tuple[tuple[int, int], ...]
    unconditional: tuple[ScoredText, ...] = ()


@dataclasses.dataclass(frozen=True)
class Question:
    """A row of a task file.

    Attributes:
        contexts: what comes before each choice.
        continuations: what is scored: `choices` with the space before them.
        choices: as the file has them.
    """

    contexts: tuple[str, ...]
    continuations: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int
    domain: str = ""


def read_task(path: str | Path, limit: int | None = None) -> list[tuple[str, Question]]:
    """Return the questions of a file, each with its id: that of the row, or its number.

    Args:
        path: `.jsonl`, or `.parquet`.
        limit: of the first rows.

    Raises:
        UsageError: the file cannot be read, or its columns fit no known form.
        DataError: a row lacks a column, or has an impossible value; names file and row.
    """
    path = Path(path)
    form: Form | None = None
    questions: list[tuple[str, Question]] = []
    for line, row in itertools.islice(_rows(path), limit):
        form = form or find_form(row, str(path))
        try:
            question = form.read(row)
            _check(question)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}: {line}: as {form.name}: {reason}. Correct it.") from None
        questions.append((str(row.get("id", line.rpartition(" ")[2])), question))
    if not questions:
        raise UsageError(f"{path}: has no items.")
    return questions


def encode_items(
    questions: Sequence[tuple[str, Question]],
    encode: Encode,
    *,
    begin: int,
    always_begin: bool = False,
    unconditional: bool = False,
) -> list[TaskItem]:
    """Return the tokens of questions.

    Context and continuation are encoded together, as in a document. The continuation begins after
    as many tokens as the context alone has.

    Args:
        questions: as `read_task` returns them.
        encode: of the model's tokenizer.
        begin: the token before a text without context, from which its first token is predicted.
        always_begin: put it before every context, as before the documents of the training.
        unconditional: score continuations also without context.
    """
    pairs = [
        _split(context, continuation)
        for _, question in questions
        for context, continuation in zip(question.contexts, question.continuations, strict=True)
    ]
    full = encode([context + continuation for context, continuation in pairs])
    contexts = encode([context for context, _ in pairs])
    answers = encode([continuation for _, continuation in pairs]) if unconditional else []
    head = np.array([begin], np.int64)
    requests: list[ScoredText] = []
    for tokens, context, (_, continuation) in zip(full, contexts, pairs, strict=True):
        scored = max(len(tokens) - len(context), 1)
        needs_head = always_begin or len(tokens) == scored
        input_tokens = np.concatenate((head, tokens)) if needs_head else tokens
        requests.append(ScoredText(input_tokens, scored, len(continuation.encode())))
    unconditioned = [
        ScoredText(np.concatenate((head, tokens)), len(tokens), len(continuation.encode()))
        for tokens, (_, continuation) in zip(answers, pairs, strict=False)
    ]
    items: list[TaskItem] = []
    first = 0
    for id_, question in questions:
        end = first + len(question.choices)
        items.append(
            TaskItem(
                id_, question.domain, question.gold, tuple(requests[first:end]),
                tuple((len(choice), len(choice.encode())) for choice in question.choices),
                tuple(unconditioned[first:end]),
            )
        )  # fmt: skip
        first = end
    return items


def _split(context: str, continuation: str) -> tuple[str, str]:
    """Move spaces from the end of a context to the continuation: tokens begin with spaces."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, each after its name in messages: `line 3`, or `row 3`."""
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                number = 0
                for batch in file.iter_batches():
                    for row in batch.to_pylist():
                        number += 1
                        yield f"row {number}", row
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield f"line {number}", _parse(line, path, number)
    except OSError as error:
        raise UsageError(f"{describe(error)} Correct the path.") from None
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is neither JSON lines nor Parquet: {error}") from None


def _parse(line: str, path: Path, number: int) -> Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number}: is not JSON: {error}.") from None
    if not isinstance(row, dict):
        raise DataError(f'{path}: line {number}: must be an object, as in {{"choices": [...]}}.')
    return row


def _check(question: Question) -> None:
    num = len(question.choices)
    if not num or not all(question.choices) or not all(question.continuations):
        raise ValueError("a choice is empty")
    if len(question.contexts) != num:
        raise ValueError(f"has {num} choices and {len(question.contexts)} contexts")
    if not 0 <= question.gold < num:
        raise ValueError(f"gold is {question.gold}; it must be from 0 to {num - 1}")


# ---------------------------------------------------------------- the forms


class Form(NamedTuple):
    """A form of task files: the columns by which it is recognised, and how a row is read."""

    name: str
    columns: frozenset[str]
    read: Callable[[Row], Question]


def find_form(row: Row, path: str) -> Form:
    """Return the form of a file, by the columns of its first row.

    Raises:
        UsageError: there is none.
    """
    for form in FORMS:
        if form.columns <= row.keys() and not (form.name == "text" and "choices" in row):
            return form
    forms = "; ".join(f"{form.name}: {', '.join(sorted(form.columns))}" for form in FORMS)
    raise UsageError(f"{path}: columns {', '.join(row)} are of no known form. Known: {forms}.")


def _shared(context: str, choices: Sequence[str], gold: int, domain: str = "") -> Question:
    """Return a question whose choices follow the same context and a space."""
    spaced = tuple(f" {_text(choice)}" for choice in choices)
    return Question((_text(context),) * len(choices), spaced, tuple(choices), gold, domain)


def _listed(row: Row) -> Question:
    choices = tuple(map(_text, _list(row["choices"])))
    contexts = row.get("contexts") or [row.get("context") or ""] * len(choices)
    domain = str(row.get("domain") or "")
    return Question(tuple(map(_text, contexts)), choices, choices, _number(row["gold"]), domain)


def _text_only(row: Row) -> Question:
    text = _text(row["text"])
    return Question(("",), (text,), (text,), 0, str(row.get("domain") or ""))


def _hellaswag(row: Row) -> Question:
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    endings = [_clean(ending) for ending in _list(row["endings"])]
    return _shared(_clean(context), endings, _number(row["label"]))


def _clean(text: str) -> str:
    """Remove the markup of WikiHow from HellaSwag."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _lettered(row: Row) -> Question:
    is_bare = "question_stem" in row  # OpenBookQA; ARC has `question`
    context = row["question_stem"] if is_bare else f"Question: {row['question']}\nAnswer:"
    choices = row["choices"]
    if isinstance(choices, list):  # a list of objects, as the original files have it
        choices = {key: [choice[key] for choice in choices] for key in ("label", "text")}
    texts, labels = _list(choices["text"]), _list(choices["label"])
    if len(texts) != len(labels):
        raise ValueError(f"has {len(texts)} choices and {len(labels)} labels")
    return _shared(context, texts, labels.index(row["answerKey"].strip()))


def _sciq(row: Row) -> Question:
    context = f"{(row.get('support') or '').lstrip()}\nQuestion: {row['question']}\nAnswer:"
    distractors = [row[f"distractor{number}"] for number in (1, 2, 3)]
    return _shared(context, [*distractors, row["correct_answer"]], 3)


def _piqa(row: Row) -> Question:
    return _shared(
        f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], _number(row["label"])
    )


def _winogrande(row: Row) -> Question:
    before, _, after = row["sentence"].partition("_")
    contexts = tuple(_text(before + row[f"option{number}"]) for number in (1, 2))
    ending = _text(after.strip())
    return Question(contexts, (f" {ending}",) * 2, (ending,) * 2, _number(row["answer"]) - 1)


def _boolq(row: Row) -> Question:
    answer = row["label"] if "label" in row else row["answer"]
    if answer not in (0, 1):  # as are false and true
        raise ValueError(f"{answer!r} is neither true nor false")
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    return _shared(context, ["no", "yes"], int(answer))


def _mmlu(row: Row) -> Question:
    texts = _list(row["choices"])
    letters = "ABCDEFGHIJ"[: len(texts)]
    if len(texts) > len(letters):
        raise ValueError(f"has {len(texts)} choices, more than {len(letters)}")
    listed = zip(letters, texts, strict=True)
    choices = "\n".join(f"{letter}. {choice}" for letter, choice in listed)
    subject = str(row.get("subject") or "")
    topic = f" about {subject.replace('_', ' ')}" if subject else ""
    intro = f"The following are multiple choice questions (with answers){topic}.\n\n"
    answer = row["answer"]
    gold = letters.index(answer) if isinstance(answer, str) else _number(answer)
    return _shared(f"{intro}{row['question'].strip()}\n{choices}\nAnswer:", letters, gold, subject)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    if _HALF_PAIR.search(value):
        raise ValueError(f"{value!r} has half of a pair of surrogates, which UTF-8 cannot hold")
    return value


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not a number of a choice")
    return int(value)


FORMS = tuple(
    Form(name, frozenset(columns.split()), read)
    for name, columns, read in (
        ("HellaSwag", "activity_label ctx_a ctx_b endings label", _hellaswag),
        ("OpenBookQA", "question_stem choices answerKey", _lettered),
        ("ARC", "question choices answerKey", _lettered),
        ("SciQ", "question correct_answer distractor1 distractor2 distractor3", _sciq),
        ("PIQA", "goal sol1 sol2 label", _piqa),
        ("WinoGrande", "sentence option1 option2 answer", _winogrande),
        ("BoolQ", "passage question label", _boolq),
        ("BoolQ", "passage question answer", _boolq),
        ("MMLU", "question choices answer", _mmlu),
        ("plain", "choices gold", _listed),
        ("text", "text", _text_only),
    )
)
