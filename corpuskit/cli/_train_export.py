"""Export a checkpoint as a Hugging Face model, with the tokenizer of its tokens."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.cli._streams import echo
from corpuskit.distribution import install_command
from corpuskit.errors import CorpuskitError, UsageError, describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from corpuskit.stages.sequences.tokenize import Tokenize
    from corpuskit.train.settings import TrainSettings


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as Hugging Face reads it, or the reason why it is missing."""

    files: Mapping[str, bytes]
    bos: int | None = None  # what documents begin with
    note: str = ""


def export(
    settings: TrainSettings,
    folder: str,
    *,
    step: int | None = None,
    dtype: str = "bfloat16",
    average: str | None = None,
) -> None:
    """Write the checkpoint of a step, or the newest, and the run's tokenizer to a new folder."""
    with needs_torch():
        from corpuskit.train.huggingface_export import export as write
        from corpuskit.train.huggingface_export import find_checkpoint
    from corpuskit.loader.index import read_mix

    checkpoint = find_checkpoint(settings.output, step)
    plan = read_mix(settings.data)
    tokenizer = find_tokenizer(settings.data, plan.tokenizer, plan.seq_len)
    origin = None
    if content := tokenizer.files.get("tokenizer.json"):
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        origin = {"hash": plan.tokenizer.get("hash"), "file": digest}
    model = write(
        checkpoint,
        Path(folder),
        seq_len=plan.seq_len,
        ids={"bos": tokenizer.bos, "eos": None, "pad": None}
        | {k: v for k, v in plan.tokenizer.items() if k in ("eos", "pad") and isinstance(v, int)},
        dtype=dtype,
        files=tokenizer.files,
        tokenizer=origin,
        average=average,
    )
    files = f"{model.files} files" if model.files > 1 else "1 file"
    files += ", and the tokenizer" if origin else ""
    size = f"{model.parameters:,} parameters, {model.size_bytes / 1e6:,.1f} MB of {model.dtype}"
    echo(f"{model.folder}: {model.architecture} of step {model.step:,}, {size} in {files}")
    if tokenizer.note:
        echo(tokenizer.note)


def find_tokenizer(run_dir: str, tokenizer: Mapping[str, Any], seq_len: int) -> TokenizerFiles:
    """Return the files of a run's tokenizer; none, with the reason, if they can't be had.

    Args:
        run_dir: of the pipeline that packed the tokens.
        tokenizer: what its mix plan says.
        seq_len: L.
    """
    try:
        return make_tokenizer(_find_stage(run_dir), tokenizer, seq_len)
    except CorpuskitError as error:
        why = str(error)
    except OSError as error:  # a path of the pipeline is relative to where it ran
        why = describe(error)
    advice = "Export where the pipeline ran, or copy the tokenizer's own files there."
    return TokenizerFiles({}, note=f"exported without tokenizer: {why} {advice}")


def make_tokenizer(stage: Tokenize, tokenizer: Mapping[str, Any], seq_len: int) -> TokenizerFiles:
    """Return what makes `AutoTokenizer` give the ids of a stage.

    Text that spells a special token is the exception: there it is that token, as prompts want it.

    Raises:
        CorpuskitError: the file is gone or another, or no tokenizer.json has its ids.
    """
    from corpuskit.stages.sequences.tokenize.definition import TokenizerSpec, define, identify

    special_tokens = stage.special_tokens
    specials = None if special_tokens is None else tuple(sorted(special_tokens.items()))
    source = TokenizerSpec(stage.tokenizer, stage.pattern, specials)
    if identify(source) != tokenizer.get("hash"):
        raise UsageError(f"{stage.tokenizer} is not the file that made the tokens. Restore it.")
    definition = define(source)
    fields, facts = definition.fields, stage.provides({})["tokenizer"]
    names = {number: name for name, number in definition.vocabulary.items()}
    bos = facts["bos"] if stage.add_bos else None
    special = {
        f"{kind}_token": names[number]
        for kind, number in (("bos", bos), ("eos", facts["eos"]), ("pad", facts["pad"]))
        if number is not None
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": seq_len,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    note = ""
    if definition.model is not None and (pieces := definition.model.own_pieces()):
        note = (
            f"tokenizer.json: texts that spell one of its {len(pieces)} own pieces "
            f"({', '.join(pieces[:3])} ...) have other ids there than SentencePiece gives them"
        )
    text = json.dumps(_as_trained(fields, names, bos), ensure_ascii=False)
    files = {
        "tokenizer.json": text.encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode() + b"\n",
        "special_tokens_map.json": json.dumps(special, indent=2).encode() + b"\n",
    }
    return TokenizerFiles(files, bos, note)


def _find_stage(run_dir: str) -> Tokenize:
    """Return the stage that made a run's tokens.

    Raises:
        CorpuskitError: there is no plan of a pipeline, or no such stage in it.
    """
    from corpuskit.engine.rundir import RunDirectory
    from corpuskit.stages.sequences.tokenize import Tokenize

    for step in RunDirectory.open(run_dir).plan.file.steps:
        if isinstance(step.stage, Tokenize):
            return step.stage
    raise UsageError(f"{run_dir}: its pipeline has no tokenize stage.")


def _as_trained(
    fields: Mapping[str, Any], names: Mapping[int, str], bos: int | None
) -> dict[str, Any]:
    """Return a tokenizer.json that begins a text as the documents of the run begin.

    Files of released models often add a token of their own, which these tokens lack.
    """
    template = None
    if bos is not None:
        first = {"SpecialToken": {"id": names[bos], "type_id": 0}}
        first_text, second_text = ({"Sequence": {"id": part, "type_id": 0}} for part in "AB")
        token = {"id": names[bos], "ids": [bos], "tokens": [names[bos]]}
        template = {
            "type": "TemplateProcessing",
            "single": [first, first_text],
            "pair": [first, first_text, second_text],
            "special_tokens": {names[bos]: token},
        }
    return {**fields, "post_processor": template}


@contextlib.contextmanager
def needs_torch() -> Iterator[None]:
    """Turn a failed import of torch into advice.

    Raises:
        UsageError: torch is absent.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(
            f"corpuskit train needs torch. Install it with: {install_command('train')}"
        ) from None
