"""Prints what a training run will take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.table import Table

from corpuskit.cli._render import console, text_table
from corpuskit.train.estimate import COPY_RATE, FILL_RATIO, WRITE_RATE
from corpuskit.train.flops import token_flops

if TYPE_CHECKING:
    from corpuskit.train.estimate import Estimate
    from corpuskit.train.settings import TrainSettings

CHINCHILLA = 20
"""Tokens per parameter that cost least for a loss, counting training alone: Hoffmann et al.,
arXiv 2203.15556, table 3. Models that will be used much are trained on more."""


def print_plan(settings: TrainSettings, figures: Estimate) -> None:
    """Print parameters, length, memory, time, cost and checkpoints of a run."""
    out = console()
    tables = [
        _model(figures),
        _length(figures),
        _sources(figures),
        _memory(figures),
        _pipeline(figures),
        _time(figures),
    ]
    for table in (*tables, _checkpoints(figures, settings)):
        if table.row_count:
            out.print(table)
            out.print()
    out.print(_fit(figures))
    for line in figures.advice:
        out.print(f"! {line}")


def _facts(title: str, *rows: tuple[str, str, str]) -> Table:
    """Return a table of names, figures and what explains them."""
    table = Table(
        box=None, show_header=False, pad_edge=False, title=title, title_justify="left",
        title_style="bold",
    )  # fmt: skip
    table.add_column(no_wrap=True, min_width=18)
    table.add_column(justify="right", no_wrap=True, min_width=10)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _model(figures: Estimate) -> Table:
    shape, count = figures.length.shape, figures.parameters
    head = "the norm; weights are those of the embedding" if shape.tied else "and the norm"
    inner = f"{shape.ffn_dim:,} inside"
    if moe := shape.experts:
        used = f"{moe.per_token} + {moe.shared} used"
        inner = f"{moe.count} experts with {moe.ffn_dim:,} inside, {used}"
    kv = "" if shape.kv_heads == shape.heads else f", {shape.kv_heads} for keys and values"
    return _facts(
        "Parameters",
        ("embedding", _count(count.embedding), f"{shape.vocab_size:,} x {shape.dim:,}"),
        (
            "blocks", _count(count.blocks),
            f"{shape.layers} of width {shape.dim:,}, {shape.heads} heads of {shape.head_dim}{kv}, "
            f"{inner}",
        ),
        ("head", _count(count.head), head),
        ("total", _count(count.total), f"{count.total:,}"),
        ("non-embedding", _count(count.blocks), ""),
    )  # fmt: skip


def _length(figures: Estimate) -> Table:
    length, total = figures.length, figures.parameters.total
    ratio = f"{length.tokens / total:.3g} per parameter ({CHINCHILLA} is Chinchilla)"
    per_step = length.tokens // length.steps
    possible = "" if length.plan_steps is None else f"of {length.plan_steps:,} in the plan; "
    share = 1 - token_flops(length.shape) / figures.token_flops
    return _facts(
        "Training",
        ("tokens", _count(length.tokens), ratio),
        ("steps", f"{length.steps:,}", f"{possible}{_count(per_step)} tokens each"),
        (
            "FLOPs per token", _count(figures.token_flops),
            f"forward and backward; attention {100 * share:.1f} %, counted in {length.visible_from}"
            f" ({length.visible_tokens:,.0f} tokens seen by each)",
        ),
        ("FLOPs", f"{figures.flops:.3g}", "of the run; nothing computed twice"),
    )  # fmt: skip


def _sources(figures: Estimate) -> Table:
    table = text_table("source", ">rows", ">epochs", ">tokens of a document")
    table.columns[0].min_width = 18
    for source in figures.length.sources:
        mean = "" if source.document_tokens is None else f"{source.document_tokens:,.0f}"
        table.add_row(source.name, f"{source.rows:,}", f"{source.epochs:.3f}", mean)
    return table


def _memory(figures: Estimate) -> Table:
    work, peak = figures.work, figures.peak
    hardware = figures.device.name if figures.device else ("CUDA" if work.is_cuda else "CPU")
    title = f"Memory per rank{', at most' * bool(figures.stages)}, {figures.ranks} x {hardware}"
    table = text_table("part", ">at most", ">at the peak", "", title=title)
    table.title_style = "bold"
    table.columns[0].min_width, table.columns[1].min_width = 18, 10
    parts = dict.fromkeys(part for moment in figures.moments for part in moment.parts)
    for part in parts:
        largest = max(moment.parts.get(part, 0.0) for moment in figures.moments)
        if largest:
            at_peak = peak.parts.get(part, 0.0)
            table.add_row(part, _size(largest), _size(at_peak), _explain(part, figures))
    table.add_row("total", "", _size(peak.total), f"peak: {peak.name}")
    return table


def _pipeline(figures: Estimate) -> Table:
    title = f"Pipeline, bubble {100 * figures.bubble:.1f} % of a step"
    table = text_table(
        ">stage", ">layers", ">parameters", ">micro-batches", ">memory", "", title=title
    )
    table.title_style = "bold"
    for number, stage in enumerate(figures.stages):
        ends = [name for name in ("embedding", "head") if getattr(stage.work, f"has_{name}")]
        table.add_row(
            str(number), str(stage.work.layers), _count(stage.parameters),
            f"{stage.work.in_flight:.3g}", _size(stage.peak.total), " and ".join(ends),
        )  # fmt: skip
    return table


_MOMENTS = {
    "adamw": "two moments, float32",
    "adamw8bit": "two moments, a byte each and scales",
    "lion": "one moment, float32",
    "muon": "one moment of blocks' matrices, two of others, float32",
    "schedule_free": "a moment and average weights, float32",
}


def _explain(part: str, figures: Estimate) -> str:
    work, shape = figures.work, figures.length.shape
    cut = f"cut over {work.shards} ranks" if work.shards > 1 else "whole"
    if work.tensor > 1:
        cut += f", matrices over {work.tensor}"
    dtype = "bfloat16" if work.item_bytes == 2 else "float32"
    rows = f"{work.rows} row{'s' * (work.rows > 1)} of {work.seq_len:,} tokens"
    rows += f", shared by {work.context} ranks" * (work.context > 1)
    average = ", average weights" if work.keeps_average else ""
    keeps_whole = work.accumulates and work.zero == 1 and work.is_wrapped
    return {
        "weights": f"float32, {cut}",
        "optimizer": f"{_MOMENTS[work.optimizer]}{average}, {cut}",
        "gradients": "float32" + (", whole until the last micro-batch" * keeps_whole),
        "gathered weights": f"{dtype}, zero: {work.zero}",
        "reduction": "gradients as made and as sent over the ranks",
        "activations": f"{rows}, {dtype}, recompute: {work.recompute}",
        "mask": f"rows x {work.tokens // work.rows:,} x {work.seq_len:,}; "
        "as numbers again in each block",
        "logits": f"x {shape.vocab_size:,}, float32, with what the loss makes of them",
        "working": "inside the backward pass of a block",
        "checkpoint": "copy while it is written in the background",
        "waiting": f"activations of {work.in_flight - 1:.3g} more micro-batches in the pipeline",
        "received": f"{work.received} tensors between stages",
    }[part]


def _time(figures: Estimate) -> Table:
    if figures.seconds is None:
        return _facts("")
    step = figures.seconds / figures.length.steps
    source = "as the last steps of this run"
    if not figures.is_measured and figures.peak_flops:
        peak = f"{figures.peak_flops / 1e12:,.6g} TFLOP/s"
        source = f"at {100 * figures.mfu:g} % of {figures.ranks} x {peak}"
        source += ", outside the bubbles" * bool(figures.stages)
    rows = [
        ("time", _duration(figures.seconds), source),
        ("step", _duration(step), f"{_count(figures.length.tokens / figures.seconds)} tokens/s"),
        ("device hours", f"{figures.seconds / 3600 * figures.ranks:,.1f}", ""),
    ]
    if figures.cost is not None:
        rows.append(("cost", f"{figures.cost:,.2f}", "at the price given, without restarts"))
    return _facts("Time", *rows)


def _checkpoints(figures: Estimate, settings: TrainSettings) -> Table:
    cost, saves = figures.checkpoint, settings.checkpoint
    kept = max(saves.keep, 1 + math.ceil(settings.guard.reach / saves.every_steps))
    how = f"{COPY_RATE / 1e9:g} GB/s a rank to host memory, then in the background"
    if not saves.background:
        how = "training waits until they are written"
    steps = "" if cost.every_steps is None else f"{cost.every_steps:,} steps; "
    return _facts(
        "Checkpoints",
        ("size", _size(cost.size_bytes), f"{kept} are kept"),
        ("write", _duration(cost.write_seconds), f"at {WRITE_RATE / 1e9:g} GB/s by all ranks"),
        ("training waits", _duration(cost.stall_seconds), how),
        ("failures", _duration(cost.failure_seconds), "apart, on average, over all ranks"),
        (
            "best interval", _duration(cost.every_seconds),
            f"{steps}Daly 2006; checkpoint.every_steps is {saves.every_steps:,}",
        ),
    )  # fmt: skip


def _fit(figures: Estimate) -> str:
    need = figures.peak.total
    if figures.device is None:
        return f"A rank needs {_size(need)}, and what libraries take. --device says if that fits."
    room = figures.device.memory_bytes
    share = f"{_size(need)} of {_size(room)} on {figures.device.name}, {100 * need / room:.0f} %"
    if need > room:
        return f"DOES NOT FIT: {share}."
    if need > FILL_RATIO * room:
        return f"TIGHT: {share}; fragments, NCCL and CUDA take some, too."
    return f"Fits: {share}."


def _count(number: float) -> str:
    letters = {1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
    for factor, letter in letters.items():
        if abs(number) >= factor:
            return f"{number / factor:,.3g} {letter}"
    return f"{number:,.3g}"


def _size(size_bytes: float) -> str:
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.2f} {unit}"
    return f"{size_bytes:,.0f} B"


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.2f} s" if seconds >= 0.1 else f"{1000 * seconds:,.2f} ms"
