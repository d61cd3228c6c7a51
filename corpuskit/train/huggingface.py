"""Hugging Face models: reads and writes config.json and weights, and checks what must fit.

Llama, Mistral and Qwen3 are our decoder under other names, and Glm4Moe is it with experts. In all
of them rotary positions pair the halves of a head, so no matrix has to be permuted. Reading a
config needs no torch.

Weights are in safetensors files: the length of the header (8 bytes, little endian), the header
(JSON: type, shape and offsets of each tensor), and the tensors' bytes. The format's own library is
not used: it maps whole files into memory, so a file that is cut off while it is read kills the
process (SIGBUS), and it writes from a dictionary that holds a whole file. Here a read touches only
the bytes of its slice, and a write holds one tensor.

Source: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from corpuskit.errors import DataError, UsageError
from corpuskit.storage import digest_file
from corpuskit.train.record import find_damage
from corpuskit.train.settings import PRESETS, SIZES, ExpertShape, ModelShape, RopeScaling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

    from corpuskit.train.model import Decoder
    from corpuskit.train.parallel import Parallel
    from corpuskit.train.settings import TrainSettings

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
ORIGIN = "corpuskit.json"  # in which an export of ours describes itself

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
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
    "feed_forward.shared.gate": "mlp.shared_experts.gate_proj",
    "feed_forward.shared.up": "mlp.shared_experts.up_proj",
    "feed_forward.shared.down": "mlp.shared_experts.down_proj",
    "feed_forward.router": "mlp.gate",
    "feed_forward.router.bias": "mlp.gate.e_score_correction_bias",
}
_EXPERTS = "feed_forward.experts."
# The end of names whose tensors are float32 in files of any type: training moves them in steps of
# 0.001.
EXACT_SUFFIX = ".e_score_correction_bias"

_EXPORT_AGAIN = "Export the model again."

# The types that can be read: the files' names, and torch's.
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the format's own library


def foreign_names(name: str, experts: ExpertShape | None) -> list[str]:
    """Return Hugging Face's name of a tensor of ours; of a stack of experts, one for each."""
    if name in _OUTER:
        return [_OUTER[name]]
    _, number, inner = name.split(".", 2)
    layer = f"model.layers.{number}."
    if inner.startswith(_EXPERTS):
        assert experts is not None
        matrix = f"{inner.removeprefix(_EXPERTS)}_proj.weight"
        return [f"{layer}mlp.experts.{expert}.{matrix}" for expert in range(experts.count)]
    if inner in _INNER:
        return [layer + _INNER[inner]]
    inner = inner.removesuffix(".weight").removesuffix(".base_layer")  # of an adapted matrix
    return [f"{layer}{_INNER[inner]}.weight"]


def make_config(
    shape: ModelShape, seq_len: int, ids: Mapping[str, int | None], dtype: str
) -> dict[str, Any]:
    """Return the config.json of a model.

    Args:
        shape: of the model.
        seq_len: the longest text it was trained on, in tokens.
        ids: of the tokens `bos`, `eos` and `pad`; null where the tokenizer has none.
        dtype: of the weights in the files.
    """
    model_type = "qwen3" if shape.qk_norm else "llama"
    if shape.experts:
        model_type = "glm4_moe"
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
    if experts := shape.experts:
        return config | {
            "use_qk_norm": shape.qk_norm,
            "partial_rotary_factor": 1.0,
            "first_k_dense_replace": 0,
            "num_nextn_predict_layers": 0,  # transformers reads 1 where it is absent
            "n_routed_experts": experts.count,
            "num_experts_per_tok": experts.per_token,
            "n_shared_experts": experts.shared,
            "moe_intermediate_size": experts.ffn_dim,
            "routed_scaling_factor": experts.scaling,
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
        }
    extra = {"use_sliding_window": False, "sliding_window": None} if shape.qk_norm else {}
    return config | (extra or {"mlp_bias": False})


def read_shape(folder: str | Path) -> ModelShape:
    """Return the shape of a model of `ARCHITECTURES` from its config.json.

    Raises:
        UsageError: our decoder does not compute this model; names the key and its value.
        DataError: the file is broken.
    """
    path = Path(folder, CONFIG)
    config = read_json(path, "Give the folder of a Hugging Face model.")
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        why = f", and {_OTHERS[model_type]}" if model_type in _OTHERS else ""
        raise UsageError(
            f"{path}: model_type is {model_type!r}{why}. "
            f"Models of {', '.join(ARCHITECTURES)} can be trained further."
        )
    for key, is_unsupported in _unsupported(config, model_type).items():
        if is_unsupported:
            raise UsageError(
                f"{path}: {key} is {config.get(key, 'not set')!r}, which this decoder does not "
                "compute. Choose another model."
            )
    heads, dim = (_size(path, config, key) for key in ("num_attention_heads", "hidden_size"))
    head_dim = 128 if model_type == "qwen3" else dim // heads  # transformers' defaults
    if config.get("head_dim") is not None:
        head_dim = _size(path, config, "head_dim")
    kv_heads = heads
    if model_type != "llama" or config.get("num_key_value_heads") is not None:
        kv_heads = _size(path, config, "num_key_value_heads")
    return ModelShape(
        vocab_size=_size(path, config, "vocab_size"),
        dim=dim,
        layers=_size(path, config, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_dim=_size(path, config, "intermediate_size"),
        tied=bool(config.get("tie_word_embeddings", False)),
        qk_norm=model_type == "qwen3" or bool(config.get("use_qk_norm")),
        experts=_read_experts(path, config) if model_type == "glm4_moe" else None,
        **_read_rope(path, config),
        norm_eps=_number(path, "rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
    )


def _read_experts(path: Path, config: Mapping[str, Any]) -> ExpertShape:
    return ExpertShape(
        count=_size(path, config, "n_routed_experts"),
        per_token=_size(path, config, "num_experts_per_tok"),
        ffn_dim=_size(path, config, "moe_intermediate_size"),
        shared=_size(path, config, "n_shared_experts"),
        scaling=_number(path, "routed_scaling_factor", config.get("routed_scaling_factor")),
    )


def _unsupported(config: Mapping[str, Any], model_type: str) -> dict[str, bool]:
    """Return by key whether its value requires what our decoder does not do."""
    architectures = config.get("architectures") or [ARCHITECTURES[model_type]]
    has_window = config.get("sliding_window", 4096) is not None and model_type == "mistral"
    return {
        "architectures": architectures != [ARCHITECTURES[model_type]],
        "hidden_act": config.get("hidden_act", "silu") not in {"silu", "swish"},
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "sliding_window": has_window,
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "layer_types": not set(config.get("layer_types") or ()) <= {"full_attention"},
        "partial_rotary_factor": _partial_rotary_factor(config) not in {None, 1.0},
        "quantization_config": bool(config.get("quantization_config")),
    } | (_unsupported_of_experts(config) if model_type == "glm4_moe" else {})


def _unsupported_of_experts(config: Mapping[str, Any]) -> dict[str, bool]:
    return {
        "first_k_dense_replace": config.get("first_k_dense_replace", 1) != 0,
        "norm_topk_prob": not config.get("norm_topk_prob", True),
        "n_group": config.get("n_group", 1) != 1,
    }


def _partial_rotary_factor(config: Mapping[str, Any]) -> Any:
    rope = config.get("rope_parameters") or {}
    default = 0.5 if config.get("model_type") == "glm4_moe" else None
    return config.get("partial_rotary_factor", rope.get("partial_rotary_factor", default))


def _read_rope(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_theta` and `rope_scaling` of a `ModelShape`.

    Releases of transformers write them under different keys.
    """
    theta, scaling = config.get("rope_theta", 10_000.0), None
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        theta = rope.get("rope_theta", theta)
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "llama3":
            length = _size(path, rope, "original_max_position_embeddings")
            scaling = RopeScaling(
                factor=_number(path, "factor", rope.get("factor")),
                low_freq_factor=_number(path, "low_freq_factor", rope.get("low_freq_factor")),
                high_freq_factor=_number(path, "high_freq_factor", rope.get("high_freq_factor")),
                original_length=length,
            )
        elif kind != "default":
            raise UsageError(
                f"{path}: {key} is {json.dumps(rope)}, which this decoder does not compute. "
                "Choose a model with rope_type default or llama3."
            )
    theta = _number(path, "rope_theta", theta)
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


def load_weights(folder: str | Path, model: Decoder) -> None:
    """Fill every parameter that this rank has of a decoder from a model's safetensors.

    Each rank reads the headers of all files, and the bytes of its own slices.

    Raises:
        DataError: a file is cut off, or a tensor is missing, has another shape or a type that is
            not floating point, or is unknown to the decoder; then nothing was filled.
    """
    import torch
    from torch.distributed.tensor import DTensor

    from corpuskit.train.adapters import FourBitLinear

    folder = Path(folder)
    tensors_stored = find_tensors(folder)
    experts = model.shape.experts
    with torch.device("meta"):
        full = type(model)(model.shape) if model.stages else model
    tensors = _without_adapters(model)
    shapes = {
        foreign: tuple(parameter.shape[-2:])
        for name, parameter in _without_adapters(full).items()
        for foreign in foreign_names(name, experts)
    }
    _require_match(folder, tensors_stored, shapes)
    for name, parameter in tensors.items():
        if isinstance(parameter, FourBitLinear):  # each rank has the whole matrix
            (foreign,) = foreign_names(name, experts)
            parameter.fill(read_slice(tensors_stored[foreign], [0, 0], parameter.shape))
            continue
        target, offsets = parameter.data, [0] * parameter.ndim
        if isinstance(parameter, DTensor):
            # The method that torch's checkpoints use: the box of the tensor that this rank has.
            (chunk,) = parameter.__create_chunk_list__()  # type: ignore[no-untyped-call]
            target, offsets = parameter.to_local(), list(chunk.offsets)
        boxes, sources = [target], foreign_names(name, experts)
        if target.ndim > 2:
            first, *offsets = offsets
            boxes, sources = list(target), sources[first : first + len(target)]
        with torch.no_grad():
            for box, foreign in zip(boxes, sources, strict=True):
                box.copy_(read_slice(tensors_stored[foreign], offsets, box.shape))


def _without_adapters(model: Decoder) -> dict[str, Any]:
    """Return the tensors of a model by name, or for a matrix in four bits its module."""
    from corpuskit.train.adapters import FourBitLinear

    tensors: dict[str, Any] = dict((*model.named_parameters(), *model.named_buffers()))
    for name, module in model.named_modules():
        if isinstance(module, FourBitLinear):
            del tensors[f"{name}.codes"], tensors[f"{name}.scale"]
            tensors[f"{name}.weight"] = module
    return {name: tensor for name, tensor in tensors.items() if ".lora_" not in name}


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return where the tensors of a model are, by name.

    Raises:
        DataError: there are none, a file is cut off, or the index names a tensor that no file has.
    """
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            hint = "Save it with save_pretrained(FOLDER, safe_serialization=True)."
            raise DataError(f"{folder}: has neither {WEIGHTS} nor {INDEX}. {hint}")
        return read_header(folder / WEIGHTS)
    index = read_json(folder / INDEX, "Fetch it again.").get("weight_map")
    if not isinstance(index, dict):
        raise DataError(f"{folder / INDEX}: has no weight_map. Fetch it again.")
    # Only the last part of a path: an index must not lead out of the folder.
    headers = {file: read_header(folder / Path(file).name) for file in sorted(set(index.values()))}
    absent = [name for name, file in index.items() if name not in headers[file]]
    if absent:
        raise DataError(
            f"{folder / index[absent[0]]}: the tensor {absent[0]!r}, which {INDEX} looks for "
            "there, is missing. Fetch the model again."
        )
    return {name: headers[file][name] for name, file in index.items()}


def _require_match(
    folder: Path, tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse files that don't hold exactly the model's parameters."""
    if missing := [name for name in shapes if name not in tensors]:
        raise DataError(f"{folder}: {_some(missing)} missing. Fetch the model again.")
    # Some tied models store the head, which is the embedding; frequencies are computed.
    ignored = ("lm_head.weight", "rotary_emb.inv_freq")
    if unexpected := [n for n in tensors if n not in shapes and not n.endswith(ignored)]:
        raise DataError(
            f"{folder}: {_some(unexpected)} not of the model that {CONFIG} describes. "
            "Check that the files belong together."
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise DataError(
                f"{tensor.label} is {tensor.shape}, and {CONFIG} makes it {shape}. "
                "Check that the files belong together."
            )
        if tensor.dtype not in DTYPES:
            raise DataError(
                f"{tensor.label} is of type {tensor.dtype}; it must be one of {', '.join(DTYPES)}. "
                "Take the model in bfloat16 or float32."
            )


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:3])
    others = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor {listed} is" if len(names) == 1 else f"tensors {listed}{others} are"


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """Return the object in a JSON file; `hint` ends the message of an error.

    Raises:
        UsageError: the file can't be opened.
        DataError: it is not JSON, or not an object.
    """
    try:
        fields = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}. {hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON: {error}. {hint}") from None
    if not isinstance(fields, dict):
        raise DataError(f"{path}: is not a JSON object. {hint}")
    return fields


def _size(path: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"{path}: {name} must be a whole number of at least 1, got {value!r}.")
    return value


def _number(path: Path, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise DataError(f"{path}: {name} must be a number above 0, got {value!r}.")
    return float(value)


# Checks of a run that trains a model further.


def choose_shape(settings: TrainSettings, tokenizer: Mapping[str, Any]) -> ModelShape:
    """Return the model's shape: of the settings, or of the model that `init_from` names.

    Args:
        settings: of the run.
        tokenizer: what the mix plan says of the tokenizer of its tokens.

    Raises:
        UsageError: our decoder does not compute this model, `model` contradicts it, or the packed
            tokens may be those of another tokenizer.
    """
    if settings.init_from is None:
        return settings.model.shape(tokenizer["vocab_size"])
    shape = read_shape(settings.init_from)
    require_same_model(settings, shape)
    require_tokenizer(settings.init_from, tokenizer, shape, settings.init_tokenizer)
    return shape


def choose_teacher(
    settings: TrainSettings, shape: ModelShape, tokenizer: Mapping[str, Any]
) -> ModelShape | None:
    """Return the shape of the model that `distill` names; its ids must be those of the model.

    Args:
        settings: of the run.
        shape: of the model that learns.
        tokenizer: what the mix plan says of the tokenizer of its tokens.

    Raises:
        UsageError: our decoder does not compute the teacher, or its tokens may be different.
    """
    if settings.distill is None:
        return None
    folder = settings.distill.teacher
    teacher = read_shape(folder)
    if teacher.vocab_size != shape.vocab_size:
        raise UsageError(
            f"distill.teacher: {folder} has {teacher.vocab_size:,} tokens, and the model has "
            f"{shape.vocab_size:,}. Choose another, or set model.vocab_size."
        )
    require_tokenizer(folder, tokenizer, teacher, settings.init_tokenizer)
    return teacher


def require_same_model(settings: TrainSettings, shape: ModelShape) -> None:
    """Refuse a `model` section that contradicts the model that is trained further.

    Raises:
        UsageError: names every difference.
    """
    if "model" not in settings.model_fields_set:
        return
    section = settings.model
    requested: dict[str, Any] = {}
    if section.preset:
        requested = dict(zip(SIZES, PRESETS[section.preset], strict=True))
    values = {name: getattr(section, name) for name in section.model_fields_set}
    requested |= {name: value for name, value in values.items() if value is not None}
    differing = [
        f"{name} {requested[name]!r} here, {value!r} there"
        for name, value in asdict(shape).items()
        if requested.get(name, value) != value
    ]
    if differing:
        raise UsageError(
            f"model: differs from {settings.init_from}: {'; '.join(differing)}. "
            "Leave these out: init_from says what the model is."
        )


def require_tokenizer(
    folder: str | Path,
    tokenizer: Mapping[str, Any],
    shape: ModelShape,
    init_tokenizer: Literal["same", "trusted"],
) -> None:
    """Refuse to train a model further on tokens of another tokenizer.

    Equal files are equal tokenizers, and an export of ours names the tokenizer that it was made
    with. Other tokenizers are unknown, and refused unless `init_tokenizer` is `trusted`.

    Args:
        folder: of the model.
        tokenizer: what the mix plan says of the tokenizer of its tokens.
        shape: of the model.
        init_tokenizer: `trusted`: ids mean the same; they must still fit the embedding.

    Raises:
        UsageError: the ids are, or may be, those of another tokenizer.
    """
    size = tokenizer["vocab_size"]
    if size > shape.vocab_size:
        raise UsageError(
            f"{folder}: the model has {shape.vocab_size:,} tokens, and the tokenizer of the packed "
            f"tokens has {size:,}. Tokenize with the model's own tokenizer."
        )
    expected = tokenizer.get("hash")
    hashes = _tokenizers(Path(folder))
    if init_tokenizer == "trusted" or expected in hashes.values():
        return
    listed = ", ".join(f"{name} {digest}" for name, digest in hashes.items()) or "no tokenizer file"
    raise UsageError(
        f"{folder}: its tokenizer ({listed}) may not be that of the packed tokens "
        f"({expected}). Tokenize with the model's own file, or set init_tokenizer: trusted if you "
        "know that the same ids mean the same."
    )


def require_undamaged_export(folder: Path, parallel: Parallel) -> None:
    """Refuse an export whose files differ from the digests in its `corpuskit.json`.

    Other models have no digests and are not checked. Each file is read by one rank.

    Raises:
        DataError: names the file; on every rank.
    """
    if not (folder / ORIGIN).is_file():
        return
    files = read_json(folder / ORIGIN, _EXPORT_AGAIN).get("files", {})
    try:
        expected = {str(name): (int(size), str(digest)) for name, (size, digest) in files.items()}
    except (AttributeError, TypeError, ValueError):
        raise DataError(
            f"{folder / ORIGIN}: files is not a list of files. {_EXPORT_AGAIN}"
        ) from None
    problem = find_damage(folder, expected, parallel.rank, parallel.world_size)
    if problems := list(filter(None, parallel.gather(problem))):
        raise DataError(
            f"{folder}: {'; '.join(problems)}. {_EXPORT_AGAIN} If the change is meant, take "
            f"files out of {ORIGIN}."
        )


def _tokenizers(folder: Path) -> dict[str, str]:
    """Return the tokenizer files of a model with their hashes, as the tokenize stage has them."""
    names = (TOKENIZER, "tokenizer.model")
    hashes = {name: digest_file(folder / name) for name in names if (folder / name).is_file()}
    if (folder / ORIGIN).is_file() and TOKENIZER in hashes:
        origin = read_json(folder / ORIGIN, _EXPORT_AGAIN).get("tokenizer") or {}
        if origin.get("file") == hashes[TOKENIZER]:  # unchanged since the export
            hashes[TOKENIZER] = str(origin.get("hash"))
    return hashes


# Files of tensors.


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor is stored."""

    path: Path
    name: str
    dtype: str  # the format's name: F32, BF16, ...
    shape: tuple[int, ...]
    begin: int  # offset in the file

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.path}: tensor {self.name!r}"


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file, which must be as long as its header says.

    Raises:
        DataError: it can't be read, is cut off, or is not a safetensors file.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = file.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DataError(f"{path}: can't be read: {error.strerror}. Check the folder.") from None
    try:
        fields = json.loads(head)
        fields.pop("__metadata__", None)
        begin = 8 + length
        tensors = {name: _parse_entry(path, name, entry, begin) for name, entry in fields.items()}
        end = begin + max((entry["data_offsets"][1] for entry in fields.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise DataError(
            f"{path}: no header of a safetensors file in its {size:,} bytes. Fetch it again."
        ) from None
    if size != end:
        raise DataError(
            f"{path}: is {size:,} bytes long, and its header describes {end:,}. Fetch it again."
        )
    return tensors


def _parse_entry(path: Path, name: str, entry: Mapping[str, Any], begin: int) -> StoredTensor:
    first, end = (int(offset) for offset in entry["data_offsets"])
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    if dtype in DTYPES and end - first != math.prod(shape) * int(dtype[-2:]) // 8:
        raise ValueError("bytes and shape don't agree")
    if not 0 <= first <= end or min(shape, default=0) < 0:
        raise ValueError("impossible offsets")
    return StoredTensor(path, name, dtype, shape, begin + first)


def read_slice(tensor: StoredTensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Read a box of a tensor of one or two dimensions, in the type of the file.

    Whole rows are one read, parts of rows one read each.

    Args:
        tensor: of a type of DTYPES.
        offsets: where the box begins, in each dimension.
        sizes: of the box.

    Raises:
        DataError: the file ends before the box does.
    """
    import torch

    dtype: torch.dtype = getattr(torch, DTYPES[tensor.dtype])
    box = torch.empty(tuple(sizes), dtype=dtype)
    if not box.numel():
        return box
    rows = box.view(-1, box.shape[-1]) if box.ndim > 1 else box.view(1, -1)
    width, columns = tensor.shape[-1], rows.shape[1]
    begin = tensor.begin + dtype.itemsize * offsets[-1]
    if box.ndim > 1:
        begin += dtype.itemsize * width * offsets[0]
    if columns == width:
        rows = rows.view(1, -1)
    step = dtype.itemsize * rows.shape[1]
    content = box.view(-1).view(torch.uint8).numpy().data
    handle = os.open(tensor.path, os.O_RDONLY)
    try:
        for number in range(len(rows)):
            target = content[number * step : (number + 1) * step]
            _fill(handle, target, begin + number * width * dtype.itemsize, tensor)
    finally:
        os.close(handle)
    return box


def _fill(handle: int, target: memoryview, begin: int, tensor: StoredTensor) -> None:
    """Read until `target` is full: Linux reads at most 2 GB in a call."""
    filled = 0
    while filled < len(target):
        count = os.preadv(handle, [target[filled:]], begin + filled)
        if not count:
            raise DataError(f"{tensor.label}: the file ends in it. Fetch it again.")
        filled += count


def write_tensors(
    path: Path,
    shapes: Mapping[str, Sequence[int]],
    dtype: torch.dtype,
    tensors: Iterable[torch.Tensor],
) -> None:
    """Write a file, durably.

    Args:
        path: must not exist.
        shapes: of the tensors, by name.
        dtype: of all of them in the file, except those of `EXACT_SUFFIX`.
        tensors: in the order of `shapes`; taken one at a time.
    """
    import torch

    codes = {getattr(torch, name): code for code, name in DTYPES.items()}
    types = {name: torch.float32 if name.endswith(EXACT_SUFFIX) else dtype for name in shapes}
    sizes = (math.prod(shape) * types[name].itemsize for name, shape in shapes.items())
    ends = list(itertools.accumulate(sizes, initial=0))
    fields: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for (name, shape), offsets in zip(shapes.items(), itertools.pairwise(ends), strict=True):
        entry = {"dtype": codes[types[name]], "shape": list(shape), "data_offsets": list(offsets)}
        fields[name] = entry
    head = json.dumps(fields, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # so that the tensors are aligned
    with path.open("xb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for (name, shape), tensor in zip(shapes.items(), tensors, strict=True):
            assert tensor.shape == torch.Size(shape), name
            flat = tensor.to(types[name]).contiguous().view(-1)
            file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def load_initial_weights(folder: Path, model: Decoder, parallel: Parallel) -> None:
    """Check a Hugging Face folder, and fill a model with its weights.

    Raises:
        DataError: a file is damaged, or not of this model.
    """
    require_undamaged_export(folder, parallel)
    load_weights(folder, model)
