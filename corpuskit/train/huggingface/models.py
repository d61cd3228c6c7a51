"""Models of Hugging Face: what config.json means here, and weights into a sharded model.

Llama, Mistral and Qwen3 are our decoder under other names; rotary positions pair the halves of a
head in both, so no matrix has to be permuted. What a config means is said without torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corpuskit.errors import DataError, UsageError
from corpuskit.train.settings import ModelShape, RopeScaling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from corpuskit.train.huggingface.tensor_files import StoredTensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
ORIGIN = "corpuskit.json"
"""What an export of ours says of itself."""

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_OTHERS = {
    "qwen2": "its attention has biases",
    "mixtral": "it is a mixture of experts",
    "qwen3_moe": "it is a mixture of experts",
    "qwen2_moe": "it is a mixture of experts",
    "phi3": "its matrices are fused",
    "gpt2": "its positions are learned",
    "olmo2": "its norms come after the blocks",
}
_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INNER = {
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}


def foreign_name(name: str) -> str:
    """Return what Hugging Face calls a parameter of our decoder."""
    if name in _OUTER:
        return _OUTER[name]
    _, number, inner = name.split(".", 2)
    return f"model.layers.{number}.{_INNER[inner.removesuffix('.weight')]}.weight"


def make_config(
    shape: ModelShape, seq_len: int, ids: Mapping[str, int | None], dtype: str
) -> dict[str, Any]:
    """Return the config.json of a model.

    Args:
        shape: of the model.
        seq_len: the longest text it was trained on, in tokens.
        ids: of the tokens `bos`, `eos` and `pad`, null where there is none.
        dtype: of the weights in the files.
    """
    model_type = "qwen3" if shape.qk_norm else "llama"
    config = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": _write_scaling(shape.rope_scaling),
        "max_position_embeddings": seq_len,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": dtype,
        **{f"{name}_token_id": ids.get(name) for name in ("bos", "eos", "pad")},
    }
    more = {"use_sliding_window": False, "sliding_window": None} if shape.qk_norm else {}
    return config | (more or {"mlp_bias": False})


def read_shape(folder: str | Path) -> ModelShape:
    """Return the shape of a Llama, Mistral or Qwen3 model from its config.json.

    Raises:
        UsageError: our decoder does not compute what this model does; names the key and its value.
        DataError: the file is broken.
    """
    place = Path(folder, CONFIG)
    config = read_json(place, "Give the folder of a Hugging Face model.")
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        why = f", and {_OTHERS[model_type]}" if model_type in _OTHERS else ""
        raise UsageError(
            f"{place}: model_type is {model_type!r}{why}. "
            f"Models of {', '.join(ARCHITECTURES)} can be trained further."
        )
    for what, is_wrong in _departures(config, model_type).items():
        if is_wrong:
            raise UsageError(
                f"{place}: {what} is {config.get(what, 'not set')!r}, which this decoder does not "
                "compute. Choose another model."
            )
    heads, dim = _whole(place, config, "num_attention_heads"), _whole(place, config, "hidden_size")
    head_dim = 128 if model_type == "qwen3" else dim // heads  # where the file does not say it
    if config.get("head_dim") is not None:
        head_dim = _whole(place, config, "head_dim")
    kv_heads = heads
    if model_type != "llama" or config.get("num_key_value_heads") is not None:
        kv_heads = _whole(place, config, "num_key_value_heads")
    return ModelShape(
        vocab_size=_whole(place, config, "vocab_size"),
        dim=dim,
        layers=_whole(place, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_dim=_whole(place, config, "intermediate_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=model_type == "qwen3",
        **_read_rope(place, config),
        norm_eps=_number(place, "rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
    )


def _departures(config: Mapping[str, Any], model_type: str) -> dict[str, bool]:
    """Return which keys ask for what our decoder does not do."""
    architectures = config.get("architectures") or [ARCHITECTURES[model_type]]
    windows = config.get("sliding_window", 4096) is not None and model_type == "mistral"
    return {
        "architectures": architectures != [ARCHITECTURES[model_type]],
        "hidden_act": config.get("hidden_act", "silu") not in {"silu", "swish"},
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "sliding_window": windows,
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "layer_types": not set(config.get("layer_types") or ()) <= {"full_attention"},
        "partial_rotary_factor": config.get("partial_rotary_factor") not in {None, 1.0},
        "quantization_config": bool(config.get("quantization_config")),
    }


def _read_rope(place: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base of the rotary frequencies and what stretches them.

    Releases of transformers differ in where they write it.
    """
    theta, scaling = config.get("rope_theta", 10_000.0), None
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        theta = rope.get("rope_theta", theta)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "llama3":
            length = _whole(place, rope, "original_max_position_embeddings")
            scaling = RopeScaling(
                factor=_number(place, "factor", rope.get("factor")),
                low_freq_factor=_number(place, "low_freq_factor", rope.get("low_freq_factor")),
                high_freq_factor=_number(place, "high_freq_factor", rope.get("high_freq_factor")),
                original_length=length,
            )
        elif kind != "default":
            raise UsageError(
                f"{place}: {key} is {json.dumps(rope)}, which this decoder does not compute. "
                "Choose a model with rope_type default or llama3."
            )
    theta = _number(place, "rope_theta", theta)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _write_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_length,
    }


def load_weights(folder: str | Path, model: nn.Module) -> None:
    """Fill every parameter of a decoder, sharded or not, from a model's safetensors.

    Each rank reads the headers of all files, and the bytes of its own slices.

    Raises:
        DataError: a file is cut off, a tensor is missing, has another shape or a type that is not
            floating point, or there is one that the model has no place for; nothing was filled.
    """
    import torch
    from torch.distributed.tensor import DTensor

    from corpuskit.train.huggingface.tensor_files import read_slice

    place = Path(folder)
    stored = find_tensors(place)
    parameters = {foreign_name(name): one for name, one in model.named_parameters()}
    _require_match(place, stored, {name: tuple(one.shape) for name, one in parameters.items()})
    for name, parameter in parameters.items():
        target, offsets = parameter.data, [0] * parameter.ndim
        if isinstance(parameter, DTensor):
            # What checkpoints ask: the box of the tensor that this rank holds.
            (chunk,) = parameter.__create_chunk_list__()  # type: ignore[no-untyped-call]
            target, offsets = parameter.to_local(), list(chunk.offsets)
        with torch.no_grad():
            target.copy_(read_slice(stored[name], offsets, target.shape))


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return where the tensors of a model are.

    Raises:
        DataError: there are none, a file is cut off, or the index names what no file has.
    """
    from corpuskit.train.huggingface.tensor_files import read_header

    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            hint = "Save it with save_pretrained(FOLDER, safe_serialization=True)."
            raise DataError(f"{folder}: has neither {WEIGHTS} nor {INDEX}. {hint}")
        return read_header(folder / WEIGHTS)
    index = read_json(folder / INDEX, "Fetch it again.").get("weight_map")
    if not isinstance(index, dict):
        raise DataError(f"{folder / INDEX}: has no weight_map. Fetch it again.")
    # A name is a file of this folder, whatever an index says.
    headers = {file: read_header(folder / Path(file).name) for file in sorted(set(index.values()))}
    absent = [name for name, file in index.items() if name not in headers[file]]
    if absent:
        raise DataError(
            f"{folder / index[absent[0]]}: the tensor {absent[0]!r}, which {INDEX} looks for "
            "there, is missing. Fetch the model again."
        )
    return {name: headers[file][name] for name, file in index.items()}


def _require_match(
    folder: Path, stored: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse files that don't hold exactly the model's parameters."""
    from corpuskit.train.huggingface.tensor_files import DTYPES

    if missing := [name for name in shapes if name not in stored]:
        raise DataError(f"{folder}: {_some(missing)} missing. Fetch the model again.")
    # Of tied models, some write the head: it is the embedding. The other is computed.
    spare = ("lm_head.weight", "rotary_emb.inv_freq")
    if unexpected := [name for name in stored if name not in shapes and not name.endswith(spare)]:
        raise DataError(
            f"{folder}: {_some(unexpected)} not of the model that {CONFIG} describes. "
            "Check that the files belong together."
        )
    for name, shape in shapes.items():
        found = stored[name]
        if found.shape != shape:
            raise DataError(
                f"{found.place} is {found.shape}, and {CONFIG} makes it {shape}. "
                "Check that the files belong together."
            )
        if found.dtype not in DTYPES:
            raise DataError(
                f"{found.place} is of type {found.dtype}; it must be one of {', '.join(DTYPES)}. "
                "Take the model in bfloat16 or float32."
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor {shown} is" if len(names) == 1 else f"tensors {shown}{more} are"


def read_json(place: Path, hint: str) -> dict[str, Any]:
    """Return the object that a JSON file holds; `hint` ends the message if there is none.

    Raises:
        UsageError: the file can't be opened.
        DataError: it holds something else.
    """
    try:
        found = json.loads(place.read_bytes())
    except OSError as error:
        raise UsageError(f"{place}: can't be read: {error.strerror}. {hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: is no JSON: {error}. {hint}") from None
    if not isinstance(found, dict):
        raise DataError(f"{place}: is no JSON object. {hint}")
    return found


def _whole(place: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{place}: {name} must be a whole number of at least 1, got {value!r}.")
    return value


def _number(place: Path, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise DataError(f"{place}: {name} must be a number above 0, got {value!r}.")
    return float(value)
