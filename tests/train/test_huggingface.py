"""Models of Hugging Face: exported ones compute the same there, theirs compute the same here."""

from __future__ import annotations

import ast
import base64
import dataclasses
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.functional import cross_entropy

from corpuskit.cli._train_export import find_tokenizer, make_tokenizer
from corpuskit.cli.train import command
from corpuskit.errors import DataError, UsageError
from corpuskit.loader.assemble import IGNORED
from corpuskit.loader.stream import StreamingLoader
from corpuskit.stage import View
from corpuskit.stages.sequences.tokenize import Tokenize
from corpuskit.train.attention import lay_out
from corpuskit.train.checkpoint import Checkpoints
from corpuskit.train.huggingface import (
    load_weights,
    make_config,
    read_header,
    read_shape,
    read_slice,
    require_same_model,
    require_tokenizer,
    require_undamaged_export,
    write_tensors,
)
from corpuskit.train.huggingface_export import export, find_checkpoint
from corpuskit.train.loop import main
from corpuskit.train.model import Decoder, init_weights
from corpuskit.train.optim import build_optimizer
from corpuskit.train.parallel import build_model, join
from corpuskit.train.record import CheckpointRecord
from corpuskit.train.settings import ExpertShape, ModelShape, RopeScaling, TrainSettings
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

safetensors = pytest.importorskip("safetensors.torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
VOCAB = 61  # more than the 48 of the tokenizer
PLAIN = ModelShape(
    vocab_size=VOCAB,
    dim=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn_dim=48,
    tied=False,
    qk_norm=False,
    rope_theta=500.0,
    norm_eps=1e-3,
)
SCALING = RopeScaling(8.0, 1.0, 4.0, 16)  # of 16 tokens, so that it stretches some, and not all
SHAPES = {
    "tied, QK-norm": dataclasses.replace(PLAIN, tied=True, qk_norm=True),
    "untied": PLAIN,
    "experts": dataclasses.replace(
        PLAIN, qk_norm=True, experts=ExpertShape(5, 2, 24, 2, scaling=1.5)
    ),
    "wide heads": dataclasses.replace(
        PLAIN, heads=3, kv_heads=1, head_dim=16, qk_norm=True, rope_scaling=SCALING
    ),
}
IDS = {"bos": None, "eos": 0, "pad": 0}
TOKENS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB, (2, 24)))


@torch.no_grad()
def fill(model: nn.Module) -> nn.Module:
    """Give a decoder weights that depend on names only, norms that are not one among them."""
    init_weights(model, 0)  # type: ignore[arg-type]
    for name, buffer in model.named_buffers():  # biases of routers, large enough to choose
        generator = torch.Generator().manual_seed(len(name))
        buffer.copy_(0.3 * torch.rand(buffer.shape, generator=generator))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            generator = torch.Generator().manual_seed(len(name))
            whole = 0.5 + torch.rand(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                mesh, placements = parameter.device_mesh, parameter.placements
                whole = distribute_tensor(whole, mesh, placements, src_data_rank=None)
            parameter.copy_(whole)
    return model


@torch.no_grad()
def logits_of(model: Decoder) -> torch.Tensor:
    """Return the logits of TOKENS, each row of which is a document."""
    positions = np.tile(np.arange(TOKENS.shape[1]), (len(TOKENS), 1))
    layout = lay_out(
        positions,
        head_dim=model.shape.head_dim,
        rope_theta=model.shape.rope_theta,
        rope_scaling=model.shape.rope_scaling,
        kernel="sdpa",
        device=torch.device("cpu"),
    )
    return model(TOKENS, layout)


@torch.no_grad()
def foreign_logits(folder: Path) -> torch.Tensor:
    """Return the logits of TOKENS as transformers computes them in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()(TOKENS).logits


def loaded(folder: Path) -> Decoder:
    """Return a whole decoder with the weights of a folder."""
    model = Decoder(read_shape(folder))
    load_weights(folder, model)
    return model


def save(outputs: dict[str, TrainSettings], shapes: dict[str, ModelShape] = SHAPES) -> None:
    """Write a checkpoint of each of some shapes, of three steps."""
    for name, settings in outputs.items():
        parallel = join(settings)
        model = fill(build_model(shapes[name], settings, parallel))
        checkpoints = Checkpoints(settings, parallel)
        facts: Any = {
            "settings": settings.model_dump(mode="json"),
            "settings_hash": settings.digest(),
        }
        shape = dataclasses.asdict(shapes[name])
        record = CheckpointRecord(3, shape, plan_hash="p", loader={}, world_size=2, **facts)
        checkpoints.save(model, build_optimizer(model, settings.optimizer), record)  # type: ignore[arg-type]
        checkpoints.wait()


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory, settings_for: Any, run_ranks: Any
) -> dict[str, Path]:
    """A checkpoint of two ranks for each of SHAPES."""
    outputs = {name: settings_for(tmp_path_factory.mktemp("saved")) for name in SHAPES}
    run_ranks(2, save, outputs)
    return {name: find_checkpoint(one.output) for name, one in outputs.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_an_exported_model_computes_the_same_in_transformers(
    name: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    done = export(saved[name], tmp_path / "out", seq_len=24, ids=IDS, dtype="float32")
    ours = logits_of(fill(Decoder(SHAPES[name])))  # type: ignore[arg-type]
    assert torch.allclose(foreign_logits(done.folder), ours, atol=TOLERANCE, rtol=0)
    assert torch.equal(logits_of(loaded(done.folder)), ours)
    assert read_shape(done.folder) == SHAPES[name]
    origin = json.loads((done.folder / "corpuskit.json").read_text())
    assert (origin["step"], origin["plan_hash"]) == (3, "p")
    assert not list(tmp_path.glob(".*"))


PLAIN_TORCH = """
import itertools, json, re, sys, torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

table, cases = map(json.loads, sys.argv[1:])
for checkpoint, whole, exported, layers, experts in cases:
    dcp_to_torch_save(checkpoint, whole)
    model = torch.load(whole, weights_only=True)["model"]
    there, compared = load_file(exported), set()
    for pair in table:
        for layer, expert in itertools.product(range(layers), range(experts)):
            ours, theirs = (re.sub(r"\\bN\\b", str(layer), name) for name in pair)
            theirs = re.sub(r"\\bM\\b", str(expert), theirs)
            name, _, is_stacked = ours.partition("[")
            name = name if is_stacked or name.endswith(".bias") else f"{name}.weight"
            theirs = theirs if theirs.endswith("_bias") else f"{theirs}.weight"
            if name not in model:
                continue
            tensor = model[name][expert] if is_stacked else model[name]
            assert torch.equal(tensor, there[theirs]), (checkpoint, name, theirs)
            compared |= {name, theirs}
    all_names = model.keys() | there.keys()
    assert compared == all_names, (checkpoint, all_names - compared)
assert not any(name.startswith("corpuskit") for name in sys.modules)
"""


def names_on_the_page() -> list[list[str]]:
    """Return our name and Hugging Face's of every tensor, from the table of docs/formats.md."""
    page = (ROOT / "docs" / "formats.md").read_text("utf-8").partition("| here | Hugging Face |")[2]
    pairs = []
    for row in page.strip().splitlines()[1:]:
        if not row.startswith("|"):
            break
        sides = [
            [expanded for cell in re.findall("`(.*?)`", side) for expanded in expand(cell)]
            for side in row.strip("|").split("|")
        ]
        pairs += [list(pair) for pair in zip(*sides, strict=True)]
    return pairs


def expand(name: str) -> list[str]:
    begin, brace, rest = name.partition("{")
    inside, _, end = rest.partition("}")
    return [begin + one + end for one in inside.split(",")] if brace else [name]


def test_plain_torch_reads_checkpoints_by_the_names_on_the_page(
    saved: dict[str, Path], tmp_path: Path
) -> None:
    cases = []
    for name, shape in SHAPES.items():
        done = export(saved[name], tmp_path / name, seq_len=24, ids=IDS, dtype="float32")
        paths = (saved[name], tmp_path / f"{name}.pt", done.folder / "model.safetensors")
        num_experts = shape.experts.count if shape.experts else 1
        cases.append([*map(str, paths), shape.layers, num_experts])
    given = map(json.dumps, (names_on_the_page(), cases))
    command = [sys.executable, "-I", "-c", PLAIN_TORCH, *given]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_several_files_have_an_index(saved: dict[str, Path], tmp_path: Path) -> None:
    options: Any = {"seq_len": 24, "ids": IDS, "file_bytes": 9_000}
    done = export(saved["untied"], tmp_path / "out", **options)
    files = sorted(done.folder.glob("*.safetensors"))
    assert [file.name for file in files][
        -1
    ] == f"model-{done.files:05d}-of-{done.files:05d}.safetensors"
    assert len(files) == done.files > 2
    assert all(file.stat().st_size < 11_000 for file in files)
    ours = logits_of(fill(Decoder(PLAIN)).bfloat16().float())  # type: ignore[arg-type]
    assert torch.allclose(foreign_logits(done.folder), ours, atol=TOLERANCE, rtol=0)
    assert torch.equal(logits_of(loaded(done.folder)), ours)


def test_a_folder_is_complete_or_absent(saved: dict[str, Path], tmp_path: Path) -> None:
    broken = shutil.copytree(saved["untied"], tmp_path / "step-00000003")
    options: Any = {"seq_len": 24, "ids": IDS}
    for part in broken.glob("*.distcp"):
        part.write_bytes(part.read_bytes()[:100])
    problem = r"step-00000003: the checkpoint is damaged: __0_0\.distcp has 100 bytes"
    with pytest.raises(DataError, match=problem):
        export(broken, tmp_path / "out", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]
    (tmp_path / "out").mkdir()  # an empty one may be there, and what a killed export left
    (tmp_path / ".out.unfinished").mkdir()
    (tmp_path / ".out.unfinished" / "config.json").touch()
    export(saved["untied"], tmp_path / "out", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "step-00000003"]
    with pytest.raises(UsageError, match="out: is there already, and not an empty folder"):
        export(saved["untied"], tmp_path / "out", **options)


def foreign(name: str, folder: Path, dtype: str = "float32", **changes: Any) -> Path:
    """Save a tiny model of transformers with random weights."""
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8, "rms_norm_eps": 1e-3,
    }  # fmt: skip
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**{**sizes, **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.ndim == 1), 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "changes"),
    [
        ("Llama", "float32", {"rope_theta": 700.0}),
        ("Llama", "bfloat16", {"rope_parameters": LLAMA3}),
        ("Llama", "bfloat16", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
        ("Mistral", "float16", {"sliding_window": None, "head_dim": 16}),
        ("Qwen3", "bfloat16", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    ],
)
def test_a_foreign_model_computes_the_same_here(
    name: str, dtype: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = foreign(name, tmp_path, dtype, **changes)
    model = loaded(folder)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.allclose(logits_of(model), foreign_logits(folder), atol=TOLERANCE, rtol=0)


TOPOLOGIES = [{}, {"replicas": 2}, {"tensor": 2}]


def gather(folder: Path, all_settings: list[TrainSettings]) -> list[dict[str, torch.Tensor]]:
    """Return the whole weights that each of the settings loads, from this rank."""
    found = []
    for settings in all_settings:
        model = build_model(read_shape(folder), settings, join(settings))
        load_weights(folder, model)
        whole = {name: one.full_tensor() for name, one in model.named_parameters()}  # type: ignore[attr-defined]
        found.append({name: one.detach().clone().numpy() for name, one in whole.items()})
    return found


def test_ranks_read_their_slices(tmp_path: Path, settings_for: Any, run_ranks: Any) -> None:
    folder = foreign("Qwen3", tmp_path, vocab_size=62, intermediate_size=46)
    ours = [settings_for(tmp_path, parallel=parallel) for parallel in TOPOLOGIES]
    alone = loaded(folder).state_dict()
    for rank in run_ranks(2, gather, folder, ours):
        for weights in rank:
            assert list(weights) == list(alone)
            assert all(np.array_equal(weights[name], alone[name].numpy()) for name in alone)


TOKENIZER = b"{}"
ORIGIN = {"hash": "none", "file": hashlib.blake2b(TOKENIZER, digest_size=16).hexdigest()}
"""The tokenizer of the packed tokens in `run_dir`, as an export tells of it."""


def trained_from(folder: Path, output: Path, settings_for: Any) -> TrainSettings:
    """Return settings that train a folder's model further, too slowly to change a weight."""
    options = {"steps": 2, "optimizer": {"lr": 1e-20, "weight_decay": 0.0}}
    fields = settings_for(output, init_from=str(folder), **options).model_dump(exclude_unset=True)
    return TrainSettings.model_validate({k: v for k, v in fields.items() if k != "model"})


def test_an_exported_model_trains_on_with_the_same_losses(
    tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    folder = foreign("Llama", tmp_path / "foreign", rope_parameters=LLAMA3)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "corpuskit.json").write_text(json.dumps({"tokenizer": ORIGIN}))
    first = trained_from(folder, tmp_path / "first", settings_for)
    again = trained_from(tmp_path / "exported", tmp_path / "again", settings_for)
    run_ranks(1, main, first, group=False)
    export(
        find_checkpoint(first.output), tmp_path / "exported", seq_len=32, ids=IDS, dtype="float32",
        files={"tokenizer.json": TOKENIZER}, tokenizer=ORIGIN,
    )  # fmt: skip
    run_ranks(1, main, again, group=False)
    losses = [_losses(one) for one in (first, again)]
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]
    batch = next(iter(StreamingLoader(first.data, 8)))
    assert losses[0][0] == pytest.approx(_foreign_loss(folder, batch), abs=TOLERANCE)


def test_a_damaged_export_is_refused_on_every_rank(
    saved: dict[str, Path], tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    options: Any = {"seq_len": 24, "ids": IDS, "file_bytes": 9_000}
    folder = export(saved["untied"], tmp_path / "out", **options).folder
    settings = settings_for(tmp_path / "train")
    assert run_ranks(2, _check_export, folder, settings) == ["", ""]
    shard = sorted(folder.glob("*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    messages = run_ranks(2, _check_export, folder, settings)
    assert messages[0] == messages[1]
    assert messages[0].startswith(f"{folder}: {shard.name} is not what was saved: its digest")


def _check_export(folder: Path, settings: TrainSettings) -> str:
    try:
        require_undamaged_export(folder, join(settings))
    except DataError as error:
        return str(error)
    return ""


def _losses(settings: TrainSettings) -> list[float]:
    lines = Path(settings.output, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@torch.no_grad()
def _foreign_loss(folder: Path, batch: dict[str, Any]) -> float:
    """Return the mean loss of a batch as transformers computes it, document by document."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    losses = []
    for tokens, labels, positions in zip(
        batch["tokens"], batch["labels"], batch["position_ids"], strict=True
    ):
        bounds = [*np.flatnonzero(positions == 0), len(tokens)]
        for first, end in itertools.pairwise(bounds):
            logits = model(torch.from_numpy(tokens[None, first:end].astype(np.int64))).logits[0]
            wanted = torch.from_numpy(labels[first:end].astype(np.int64))
            losses.append(cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum"))
    return float(sum(losses) / (batch["labels"] != IGNORED).sum())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama of transformers."""
    return foreign("Llama", tmp_path_factory.mktemp("llama"))


def edited(folder: Path, copy: Path, **changes: Any) -> Path:
    """Copy a model with other values in config.json; None takes a key out."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text()) | changes
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2', and its attention has biases"),
        ({"model_type": "bert"}, "model_type is 'bert'. Models of llama, mistral, qwen3, glm4_moe"),
        ({"architectures": ["LlamaModel"]}, r"architectures is \['LlamaModel'\]"),
        ({"attention_bias": True}, "attention_bias is True, which this decoder does not compute"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 4096},
         "sliding_window is 4096"),
        ({"layer_types": ["sliding_attention"]}, "layer_types is "),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_parameters is .*yarn"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is "),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number of at least 1, got"),
        ({"rms_norm_eps": None}, "rms_norm_eps must be a number above 0, got None"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_ours_is_refused(
    changes: dict[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    folder = edited(llama, tmp_path / "copy", **changes)
    with pytest.raises((UsageError, DataError), match=rf"config.json: {message}"):
        read_shape(folder)


def test_a_folder_without_a_model_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json: can't be read: No such file"):
        read_shape(tmp_path)
    folder = edited(llama, tmp_path / "copy")
    (folder / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config.json: is not JSON"):
        read_shape(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"neither model.safetensors nor model.safetensors.ind"):
        load_weights(folder, Decoder(read_shape(llama)))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a folder."""
    tensors = safetensors.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.save_file(tensors, folder / "model.safetensors")


def test_files_that_do_not_fit_are_refused(llama: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    spoiled: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
        "missing": (lambda t: t.pop(name), f"tensor '{name}' is missing"),
        "unexpected": (lambda t: t.update(x=t[name].clone()), "tensor 'x' is not of the model"),
        "shape": (
            lambda t: t.update({name: t[name][:-1]}),
            rf"'{name}' is \(47, 32\), and config.json makes it \(48, 32\)",
        ),
        "type": (lambda t: t.update({name: t[name].to(torch.int8)}), f"'{name}' is of type I8"),
    }
    for number, (change, message) in enumerate(spoiled.values()):
        folder = edited(llama, tmp_path / str(number))
        rewrite(folder, change)
        model = fill(Decoder(read_shape(folder)))
        before = [parameter.clone() for parameter in model.parameters()]
        with pytest.raises(DataError, match=message):
            load_weights(folder, model)
        assert all(map(torch.equal, before, model.parameters())), "nothing was filled"


def test_spare_tensors_of_known_kinds_are_passed_over(tmp_path: Path) -> None:
    folder = foreign("Llama", tmp_path, tie_word_embeddings=True)
    expected = logits_of(loaded(folder))
    spare = {"lm_head.weight": torch.zeros(1), "model.rotary_emb.inv_freq": torch.zeros(4)}
    rewrite(folder, lambda tensors: tensors.update(spare))
    assert torch.equal(logits_of(loaded(folder)), expected)


def test_a_torn_file_is_named(llama: Path, tmp_path: Path) -> None:
    folder = edited(llama, tmp_path / "copy")
    whole = (folder / "model.safetensors").read_bytes()
    for size, message in ((len(whole) - 1, "bytes long, and its header describes"), (99, "header")):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(DataError, match=f"model.safetensors: .*{message}"):
            loaded(folder)


def test_the_model_section_may_repeat_but_not_contradict(tmp_path: Path, settings_for: Any) -> None:
    sizes = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 48, "qk_norm": False}
    require_same_model(settings_for(tmp_path, model=sizes, init_from="m"), PLAIN)
    require_same_model(trained_from(tmp_path, tmp_path, settings_for), PLAIN)
    wrong = {**sizes, "layers": 3, "qk_norm": True}
    with pytest.raises(UsageError, match=r"from m: layers 3 here, 2 there; qk_norm True here, Fa"):
        require_same_model(settings_for(tmp_path, model=wrong, init_from="m"), PLAIN)
    with pytest.raises(UsageError, match="dim 128 here, 32 there"):
        require_same_model(settings_for(tmp_path, model={"preset": "0.5m"}), PLAIN)


def test_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER)
    same, other = ({"hash": one, "vocab_size": 48} for one in (ORIGIN["file"], "none"))
    require_tokenizer(tmp_path, same, PLAIN, "same")
    with pytest.raises(UsageError, match=rf"its tokenizer .*\(tokenizer.json {same['hash']}\)"):
        require_tokenizer(tmp_path, other, PLAIN, "same")
    require_tokenizer(tmp_path, other, PLAIN, "trusted")
    (tmp_path / "corpuskit.json").write_text(json.dumps({"tokenizer": ORIGIN}))
    require_tokenizer(tmp_path, other, PLAIN, "same")
    (tmp_path / "tokenizer.json").write_bytes(b"{ }")
    with pytest.raises(UsageError, match=r"its tokenizer .* may not be that of the packed tokens"):
        require_tokenizer(tmp_path, other, PLAIN, "same")
    with pytest.raises(UsageError, match=r"the model has 61 tokens, and the tokenizer .* has 62"):
        require_tokenizer(tmp_path, same | {"vocab_size": 62}, PLAIN, "trusted")


BYTES = [bytes([byte]) for byte in range(256)]
TEXTS = [
    "Hello, the world! It's 2025: na\u00efve, \u4f60\u597d.\n    return x",
    "",
    "  a \t\r\n b ",
]


def as_trained(folder: Path, **parameters: Any) -> tuple[Any, list[list[int]], str]:
    """Return transformers' tokenizer for a stage's files, the stage's ids of TEXTS, the note."""
    stage = Tokenize(add_eos=False, **parameters)
    found = make_tokenizer(stage, stage.provides({})["tokenizer"], 24)
    ids = {"bos": found.bos, "eos": 0, "pad": 0}
    files = {
        **found.files,
        "config.json": json.dumps(make_config(PLAIN, 24, ids, "float32")).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    batch = pa.record_batch({"text": pa.array(TEXTS, pa.large_string())})
    stored = stage.apply(View(batch)).columns["tokens"].to_pylist()
    return transformers.AutoTokenizer.from_pretrained(folder), stored, found.note


def write_ranks(path: Path) -> dict[str, Any]:
    """Write ranks of tiktoken; return what a stage needs to read them."""
    tokens = [*BYTES, b"th", b"the", b" w", b"  ", b"12"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    path.write_bytes(b"".join(lines))
    specials = {"<eos>": 300, "<s>": 301}
    return {"tokenizer": str(path), "pattern": "llama3", "special_tokens": specials}


def write_pieces(path: Path, **options: Any) -> dict[str, Any]:
    """Write a SentencePiece model like Llama 2's; return what a stage needs to read it."""
    sentencepiece = pytest.importorskip("sentencepiece")
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(TEXTS), "that cat sat on the mat"] * 20),
            model_writer=file,
            **{
                "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                "remove_extra_whitespaces": False, "vocab_size": 300, "minloglevel": 2,
            } | options,
        )  # fmt: skip
    return {"tokenizer": str(path)}


def test_auto_tokenizer_gives_the_ids_of_the_run(tmp_path: Path) -> None:
    pieces = write_pieces(tmp_path / "tokenizer.model")
    for parameters, eos, bos in (
        ({"tokenizer": "sample_data/tokenizer.json"}, 0, None),
        ({**write_ranks(tmp_path / "x.tiktoken"), "add_bos": True}, 300, 301),
        (pieces, 2, None),
        ({**pieces, "add_bos": True}, 2, 1),
    ):
        folder = tmp_path / f"{eos}-{bos}"
        folder.mkdir()
        tokenizer, stored, note = as_trained(folder, **parameters)
        assert [tokenizer(text).input_ids for text in TEXTS] == stored, parameters
        assert (tokenizer.eos_token_id, tokenizer.bos_token_id, note) == (eos, bos, "")
        assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in stored] == TEXTS


def test_pieces_that_only_sentencepiece_can_make_are_not_exported(tmp_path: Path) -> None:
    stage = Tokenize(**write_pieces(tmp_path / "m.model", byte_fallback=False, vocab_size=60))
    with pytest.raises(UsageError, match=r"had from a tokenizer.json: it has no byte fallb"):
        make_tokenizer(stage, stage.provides({})["tokenizer"], 24)


def test_a_tokenizer_that_changed_since_is_refused(tmp_path: Path) -> None:
    stage = Tokenize(tokenizer="sample_data/tokenizer.json")
    with pytest.raises(UsageError, match="is not the file that made the tokens"):
        make_tokenizer(stage, {"hash": "another"}, 24)


def test_a_run_without_its_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    shutil.copy("sample_data/tokenizer.json", file)
    stage = Tokenize(tokenizer=str(file))
    tokenizer = stage.provides({})["tokenizer"]
    file.unlink()
    with pytest.raises(OSError, match="No such file"):
        make_tokenizer(stage, tokenizer, 24)
    note = find_tokenizer(str(tmp_path), tokenizer, 24).note
    assert note.startswith(f"exported without tokenizer: {tmp_path}: not a run directory")
    assert note.endswith("Export where the pipeline ran, or copy the tokenizer's own files there.")


def test_the_command_exports_the_newest_step(
    saved: dict[str, Path], run_dir: Path, tmp_path: Path
) -> None:
    settings = {"data": str(run_dir), "output": str(saved["untied"].parents[1])}
    file = tmp_path / "t.yaml"
    file.write_text(json.dumps({**settings, "batch": {"global_rows": 8}}))
    result = CliRunner().invoke(command, [str(file), "--export", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    first, second = result.output.splitlines()
    assert first.startswith(f"{tmp_path}/out: LlamaForCausalLM of step 3, ")
    assert second.startswith(f"exported without tokenizer: {run_dir}: not a run directory")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["torch_dtype"]) == (32, "bfloat16")
    result = CliRunner().invoke(command, [str(file), "--export", "x", "--step", "4"])
    assert "has no checkpoint of step 4. It has: 3." in str(result.exception)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_files_are_those_of_safetensors(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"a": torch.randn(7, 5).to(dtype), "b": torch.randn(3).to(dtype)}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    write_tensors(tmp_path / "ours", shapes, dtype, iter(tensors.values()))
    theirs = safetensors.load_file(tmp_path / "ours")
    assert all(torch.equal(theirs[name], tensor) for name, tensor in tensors.items())
    safetensors.save_file(tensors, tmp_path / "theirs")
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        stored = read_header(path)
        for offsets, sizes in (
            ((0, 0), (7, 5)),
            ((2, 0), (4, 5)),
            ((1, 2), (5, 2)),
            ((7, 0), (0, 5)),
        ):
            (row, column), (rows, columns) = offsets, sizes
            expected = tensors["a"][row : row + rows, column : column + columns]
            assert torch.equal(read_slice(stored["a"], offsets, sizes), expected)
        assert torch.equal(read_slice(stored["b"], (1,), (2,)), tensors["b"][1:])


@pytest.mark.parametrize("name", SHAPES)
def test_gguf_has_a_name_for_every_tensor(
    name: str, saved: dict[str, Path], tmp_path: Path
) -> None:
    gguf = pytest.importorskip("gguf")
    folder = export(saved[name], tmp_path / "out", seq_len=24, ids=IDS).folder
    config = json.loads((folder / "config.json").read_text())
    kind = {"llama": "LLAMA", "qwen3": "QWEN3", "glm4_moe": "GLM4_MOE"}[config["model_type"]]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, kind), config["num_hidden_layers"])
    for tensor in safetensors.load_file(folder / "model.safetensors"):
        # As the converter does: the experts of a layer are one tensor.
        whole = re.sub(r"\.experts\.\d+\.", ".experts.", tensor)
        whole = whole.replace("e_score_correction_bias", "e_score_correction.bias")
        assert names.get_name(whole, try_suffixes=(".weight", ".bias")), tensor
    # Else the converter takes transformers' value for it, and expects a layer that is not there.
    assert config.get("num_nextn_predict_layers", 0) == 0


CONVERTED = {
    "tied, QK-norm": {"qwen3.block_count": 2, "qwen3.rope.freq_base": 500.0},
    "experts": {"glm4moe.block_count": 2, "glm4moe.rope.dimension_count": 8,
                "glm4moe.expert_used_count": 2, "glm4moe.expert_weights_scale": 1.5},
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERTED)
def test_llama_cpp_converts_an_export_as_the_page_says(
    name: str, tmp_path: Path, settings_for: Any, run_ranks: Any
) -> None:
    """Runs where LLAMA_CPP names its source; the source of llama-cpp-python has it, too."""
    gguf, source = pytest.importorskip("gguf"), os.environ.get("LLAMA_CPP")
    if not source:
        pytest.skip("LLAMA_CPP is not set")
    stage = Tokenize(tokenizer="sample_data/tokenizer.json")
    facts = stage.provides({})["tokenizer"]
    shape = dataclasses.replace(SHAPES[name], vocab_size=facts["vocab_size"])
    settings = settings_for(tmp_path)
    run_ranks(1, save, {name: settings}, {name: shape})
    folder = export(
        find_checkpoint(settings.output), tmp_path / "out", seq_len=24, dtype="float32",
        ids={"bos": None, "eos": 0, "pad": 0}, files=make_tokenizer(stage, facts, 24).files,
    ).folder  # fmt: skip
    shutil.copytree(source, tmp_path / "llama.cpp")
    base, glm = (tmp_path / "llama.cpp" / "conversion" / f"{file}.py" for file in ("base", "glm"))

    def convert() -> str:
        command = [sys.executable, base.parents[1] / "convert_hf_to_gguf.py", folder]
        options = ["--outtype", "f32", "--outfile", tmp_path / "m.gguf"]
        return subprocess.run(command + options, capture_output=True, text=True).stderr  # noqa: PLW1510

    glm_text = glm.read_text()
    start = glm_text.index("class Glm4MoeModel")
    fitted = glm_text[start:].replace("_set_vocab_glm()", "_set_vocab_gpt2()", 1)
    glm.write_text(glm_text[:start] + fitted)
    hashed = re.search(r"chkhsh: +([0-9a-f]{64})", convert())
    assert hashed
    text = base.read_text()
    (line,) = (line for line in text.splitlines() if line.strip().startswith("chktxt = "))
    batch = pa.record_batch(
        {"text": pa.array([ast.literal_eval(line.partition("= ")[2])], pa.large_string())}
    )
    stored = Tokenize(tokenizer="sample_data/tokenizer.json", add_eos=False).apply(View(batch))
    ids = stored.columns["tokens"].to_pylist()[0]
    assert hashlib.sha256(str(ids).encode()).hexdigest() == hashed[1], "as the run has tokenized"
    known = f'        res = "gpt-2" if chkhsh == "{hashed[1]}" else None\n'
    base.write_text(text.replace("        res = None\n", known, 1))
    assert "successfully exported" in convert()
    written = gguf.GGUFReader(tmp_path / "m.gguf")
    assert written.fields["tokenizer.ggml.pre"].contents() == "gpt-2"
    for key, value in CONVERTED[name].items():
        assert written.fields[key].contents() == value
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in written.tensors}
    ours = safetensors.load_file(folder / "model.safetensors")
    query = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(tensors["blk.1.attn_q.weight"], ours[query])
    if shape.experts:
        up = [ours[f"model.layers.1.mlp.experts.{n}.up_proj.weight"] for n in range(5)]
        assert torch.equal(tensors["blk.1.ffn_up_exps.weight"], torch.stack(up))
