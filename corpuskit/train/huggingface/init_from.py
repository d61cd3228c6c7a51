"""What must be true of a model of Hugging Face and of a run that trains it further."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.storage import digest_file
from corpuskit.train.huggingface.models import ORIGIN, TOKENIZER, read_json, read_shape
from corpuskit.train.record import find_damage
from corpuskit.train.settings import PRESETS, SIZES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import ModelShape, TrainSettings

_AGAIN = "Export the model again."


def choose_model(settings: TrainSettings, tokenizer: Mapping[str, Any]) -> ModelShape:
    """Return the shape of the model that `init_from` names, having checked that it may be trained.

    Args:
        settings: with `init_from`.
        tokenizer: what the mix plan says of the tokenizer of its tokens.

    Raises:
        UsageError: our decoder does not compute this model, `model` contradicts it, or the tokens
            are not known to be those of its tokenizer.
    """
    assert settings.init_from is not None, "asked of runs that have it"
    shape = read_shape(settings.init_from)
    require_same_model(settings, shape)
    is_trusted = settings.init_tokenizer == "trusted"
    require_tokenizer(settings.init_from, tokenizer, shape, is_trusted=is_trusted)
    return shape


def require_same_model(settings: TrainSettings, shape: ModelShape) -> None:
    """Refuse a `model` section that contradicts the model that is trained further.

    Raises:
        UsageError: names every difference.
    """
    if "model" not in settings.model_fields_set:
        return
    given = settings.model
    asked: dict[str, Any] = {}
    if given.preset:
        asked = dict(zip(SIZES, PRESETS[given.preset], strict=True))
    named = {name: getattr(given, name) for name in given.model_fields_set}
    asked |= {name: value for name, value in named.items() if value is not None}
    differing = [
        f"{name} {asked[name]!r} here, {there!r} there"
        for name, there in asdict(shape).items()
        if asked.get(name, there) != there
    ]
    if differing:
        raise UsageError(
            f"model: differs from {settings.init_from}: {'; '.join(differing)}. "
            "Leave these out: init_from says what the model is."
        )


def require_tokenizer(
    folder: str | Path, tokenizer: Mapping[str, Any], shape: ModelShape, *, is_trusted: bool = False
) -> None:
    """Refuse to train a model further on tokens of another tokenizer.

    Equal files are equal tokenizers, and an export of ours says which tokenizer it was made from.
    Everything else can't be told here, so it is refused unless `is_trusted`.

    Args:
        folder: of the model.
        tokenizer: what the mix plan says of the tokenizer of its tokens.
        shape: of the model.
        is_trusted: take the user's word that ids mean the same; they must still fit the embedding.

    Raises:
        UsageError: the ids are, or may be, those of another tokenizer.
    """
    size = tokenizer["vocab_size"]
    if size > shape.vocab_size:
        raise UsageError(
            f"{folder}: the model has {shape.vocab_size:,} tokens, and the tokenizer of the packed "
            f"tokens has {size:,}. Tokenize with the model's own tokenizer."
        )
    wanted = tokenizer.get("hash")
    found = _tokenizers(Path(folder))
    if is_trusted or wanted in found.values():
        return
    named = ", ".join(f"{name} {digest}" for name, digest in found.items()) or "no tokenizer file"
    raise UsageError(
        f"{folder}: can't tell that its tokenizer ({named}) is that of the packed tokens "
        f"({wanted}). Tokenize with the model's own file, or set init_tokenizer: trusted if you "
        "know that the same ids mean the same."
    )


def require_whole_export(folder: Path, parallel: Parallel) -> None:
    """Refuse a model that is not what `corpuskit export` wrote, as its `corpuskit.json` tells.

    Models of others have no digests, and are taken as they are. Each file is read by one rank.

    Raises:
        DataError: names the file; on every rank.
    """
    if not (folder / ORIGIN).is_file():
        return
    files = read_json(folder / ORIGIN, _AGAIN).get("files", {})
    try:
        known = {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
    except (AttributeError, TypeError, ValueError):
        raise DataError(f"{folder / ORIGIN}: files is no list of files. {_AGAIN}") from None
    problem = find_damage(folder, known, parallel.rank, parallel.world_size)
    if problems := [one for one in parallel.gather(problem) if one]:
        raise DataError(
            f"{folder}: {'; '.join(problems)}. {_AGAIN} If the change is meant, take files out of "
            f"{ORIGIN}."
        )


def _tokenizers(folder: Path) -> dict[str, str]:
    """Return the tokenizer files of a model, and the hash that the tokenize stage gives them."""
    names = (TOKENIZER, "tokenizer.model")
    found = {name: digest_file(folder / name) for name in names if (folder / name).is_file()}
    if (folder / ORIGIN).is_file() and TOKENIZER in found:
        origin = read_json(folder / ORIGIN, _AGAIN).get("tokenizer") or {}
        if origin.get("file") == found[TOKENIZER]:  # nobody has changed it since
            found[TOKENIZER] = str(origin.get("hash"))
    return found
