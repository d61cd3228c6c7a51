"""The results of an ablation as JSON and as one HTML page, which makes no request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from corpuskit.inspect.report.page import html_table, policy, read_web, text
from corpuskit.inspect.training import Curve, read_losses
from corpuskit.storage import write_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from corpuskit.ablate.study import Proxy

RESULTS, PAGE = "ablation.json", "ablation.html"
SAMPLED = 0.1
"""Of a corpus: if trainings take more, one in 40 equal corpora is called different at 99 %."""
WIDTH, HEIGHT = 480, 200  # of a drawing, in its own units
COLORS = ("var(--kept)", "var(--lost)", "var(--good)", "var(--bad)", "var(--link)", "var(--dim)")
LABEL = "var(--dim)"
_LAW_TERMS = {"E": "E", "a": "A / N^a", "b": "B / D^b"}
_STYLE = """
.ablation svg { height: auto; max-width: 620px; }
.ablation polyline { fill: none; stroke-width: 1.5; }
.ablation text { font-size: 12px; }
.ablation .axis { stroke: var(--line); }
"""


def write_results(folder: Path, results: Mapping[str, Any], trainings: Sequence[Proxy]) -> Path:
    """Write `ablation.json` and `ablation.html`; return the path of the page."""
    write_whole(folder / RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    curves: dict[str, dict[str, list[Curve]]] = {}
    for training in trainings:
        by_variant = curves.setdefault(training.size, {})
        losses = by_variant.setdefault(training.corpus.variant.name, [])
        losses.append(read_losses(training.settings.output))
    write_whole(folder / PAGE, page(results, curves).encode())
    return folder / PAGE


def sentence(difference: Mapping[str, Any], confidence: float) -> str:
    """Say which of two variants is better, or what it would take to know."""
    overall = difference["bits_per_byte"][""]
    a, b = difference["a"], difference["b"]
    level = f"at {100 * confidence:g} % over all comparisons"
    mean, seeds, tokens = (overall[k] for k in ("mean", "needed_seeds", "needed_tokens"))
    if overall["is_decided"]:
        better, worse = (a, b) if mean > 0 else (b, a)
        return f"{better} is better than {worse} by {abs(mean):.4f} bits per byte, {level}."
    needs = [f"{seeds} seeds"] if seeds else []
    needs += [f"{tokens:.2g} times the tokens"] if tokens else []
    if needs:
        outlook = f"If the difference stays, {' or '.join(needs)} would decide it."
    elif mean == 0:
        outlook = "There is no difference at all."
    else:
        outlook = "No number of seeds would: it takes more documents to judge by, or more tokens."
    return f"Undecided {level}. {outlook}"


def sampled_note(results: Mapping[str, Any], size: str) -> str:
    """Warn if corpora of other documents are compared, and trainings take much of them."""
    names = [row["name"] for row in results["variants"] if not row["same_inputs"]]
    epochs = results["sizes"][size]["epochs"]
    highest = max((value for name in names for value in epochs[name].values()), default=0)
    if highest <= SAMPLED:
        return ""
    return (
        f"Trainings take {min(highest, 1):.0%} of a source of {', '.join(names)}: the verdict is "
        "about this corpus, and others of its kind may differ by more than the interval."
    )


def ranking(results: Mapping[str, Any]) -> str:
    """Say whether all sizes agree on which variant is better."""
    verdicts: dict[str, dict[str, int]] = {}
    for size, result in results["sizes"].items():
        for pair in result["differences"]:
            overall = pair["bits_per_byte"][""]
            sign = (overall["mean"] > 0) - (overall["mean"] < 0) if overall["is_decided"] else 0
            verdicts.setdefault(pair["b"], {})[size] = sign
    lines = []
    for name, signs in verdicts.items():
        better, worse, undecided = ([k for k, s in signs.items() if s == v] for v in (-1, 1, 0))
        if better and worse:
            lines.append(
                f"The ranking is not stable: {name} is better at {', '.join(better)} and worse at "
                f"{', '.join(worse)}. Do not extrapolate."
            )
        elif undecided and len(undecided) < len(signs):
            lines.append(
                f"{name}: undecided at {', '.join(undecided)}; no size contradicts another."
            )
    return " ".join(lines) or "The ranking is the same at all sizes."


def scaling_lines(results: Mapping[str, Any]) -> list[str]:
    """Say how differences change with size, and how losses fall."""
    scaling, lines = results["scaling"], []
    for name, trends in scaling["trends"].items():
        for axis, interval in trends.items():
            if interval:
                mean, low, high = interval
                caveat = "" if low > 0 or high < 0 else "; the interval includes zero"
                lines.append(
                    f"Per doubling of {axis}, the difference of {name} changes by {mean:+.4f} "
                    f"({low:+.4f} to {high:+.4f}){caveat}."
                )
    law = scaling["law"]
    if not law:
        lines.append("Three lengths (--tokens N,N,N) or three sizes give a law of the losses.")
        return lines
    target = " and ".join(
        f"{value:.3g} {axis}" for value, axis in zip(law["ahead"], law["axes"], strict=True)
    )
    for name, fit in law["variants"].items():
        terms = ", ".join(
            f"{key} {fit[key][0]:.3g} ({fit[key][1]:.3g} to {fit[key][2]:.3g})"
            for key in _LAW_TERMS
            if key in fit
        )
        formula = " + ".join(_LAW_TERMS[key] for key in _LAW_TERMS if key in fit)
        line = f"{name}: L = {formula}, {terms}. At {target}: {_spread(fit['predicted'], '.4f')}"
        if any(fit["difference"]):
            line += f", {_spread(fit['difference'], '+.4f')} from the baseline"
        lines.append(f"{line}.")
    return lines


def _spread(value: Sequence[float], form: str) -> str:
    mean, low, high = (format(number, form) for number in value)
    return f"{mean} ({low} to {high})"


def memorised(canaries: Mapping[str, Any]) -> str:
    """Say how often a text may be repeated, from ablation.json's `canaries` of a size."""
    share = f"Canaries are {100 * canaries['share']:.1f} % of the tokens"
    share += (
        ", which is a lot: take more tokens, or fewer counts." if canaries["share"] > 0.05 else "."
    )
    bound, largest = canaries["bound"], canaries["largest"]
    if largest is None:
        return (
            f"Not even secrets that were never seen are known to stay below {bound:g} bits. {share}"
        )
    if largest == 0:
        return f"Every count that was tried may exceed {bound:g} bits. {share}"
    return f"Secrets planted up to {largest:,} times stay below {bound:g} bits. {share}"


def mean_of(values: Mapping[str, Sequence[float]], domain: str) -> float:
    """Return the mean of a measure over the seeds, on a domain or ("") over all with equal weights.

    Args:
        values: domain -> the measure after each training.
    """
    measures = [values[domain]] if domain else list(values.values())
    return sum(sum(seeds) / len(seeds) for seeds in measures) / len(measures)


def verdict_line(difference: Mapping[str, Any], confidence: float) -> str:
    """Return the verdict on a variant, with its name in front where the sentence lacks it."""
    name = "" if difference["bits_per_byte"][""]["is_decided"] else f"{difference['b']}: "
    return name + sentence(difference, confidence)


def page(results: Mapping[str, Any], curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> str:
    """Return the page.

    Args:
        results: as in ablation.json.
        curves: size -> variant -> training losses of each seed.
    """
    style = read_web("page.css") + _STYLE
    names = [variant["name"] for variant in results["variants"]]
    parts = [
        f"<h1>{text(names[0])}: ablation</h1>",
        f'<p class="note">{len(names)} variants, {results["seeds"]} seeds each. Intervals hold '
        f"at {100 * results['confidence']:g} % for all verdicts of a size together.</p>",
        _variants(results),
    ]
    if len(results["sizes"]) > 1:
        parts.append(f"<p>{text(ranking(results))}</p>")
        parts += [f"<p>{text(line)}</p>" for line in scaling_lines(results)]
        parts.append(_losses(results))
    for size, result in results["sizes"].items():
        parts += _size(size, result, results["confidence"], curves.get(size, {}))
        if warning := sampled_note(results, size):
            parts.append(f'<p class="note">{text(warning)}</p>')
    body = "".join(f"{part}\n" for part in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy([style], [])}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(names[0])}: ablation</title>\n<style>{style}</style>\n</head>\n"
        f'<body class="ablation">\n{body}</body>\n</html>\n'
    )


def _variants(results: Mapping[str, Any]) -> str:
    rows = [
        (
            variant["name"],
            variant["pipeline"],
            f"{variant['tokens']:,}",
            f"the corpus of {variant['same_as']}" if variant["same_as"] else "",
        )
        for variant in results["variants"]
    ]
    return html_table("Variants", ("variant", "pipeline", "tokens of the corpus", ""), rows)


def _size(
    size: str, result: Mapping[str, Any], confidence: float, curves: Mapping[str, Sequence[Curve]]
) -> list[str]:
    verdicts = "".join(
        f'<p class="headline">{text(verdict_line(difference, confidence))}</p>'
        for difference in result["differences"]
    )
    sources = list(dict.fromkeys(name for repeats in result["epochs"].values() for name in repeats))
    epochs = [
        (variant, *(f"{epochs_of[name]:.2f}" if name in epochs_of else "-" for name in sources))
        for variant, epochs_of in result["epochs"].items()
    ]
    parts = [
        f"<section><h2>{text(size)}: {result['tokens']:,} tokens</h2>",
        verdicts,
        *(_differences(result["differences"], name) for name in ("bits_per_byte", "accuracy")),
        "<h3>Training loss, mean of the seeds, smoothed</h3>",
        _curves(curves),
        html_table("Epochs of each source", ("variant", *sources), epochs),
        _exposures(result.get("canaries")),
        "</section>",
    ]
    return [part for part in parts if part]


def _differences(differences: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Return intervals as a drawing, and the same as a table."""
    rows = [
        (difference["b"], domain or "all", row)
        for difference in differences
        for domain, row in difference.get(measure, {}).items()
    ]
    if not rows:
        return ""
    reach = max(max(abs(row["low"]), abs(row["high"])) for _, _, row in rows) or 1.0
    better = "left is better" if measure == "bits_per_byte" else "right is better"
    shapes, line = [], 22
    for number, (name, domain, row) in enumerate(rows):
        y = line * number + line / 2
        low, high, mean = (
            WIDTH * (0.7 + 0.22 * row[key] / reach) for key in ("low", "high", "mean")
        )
        lower_is_better = measure == "bits_per_byte"
        kind = "var(--dim)"
        if row["is_decided"]:
            kind = "var(--good)" if (row["mean"] < 0) == lower_is_better else "var(--bad)"
        shapes.append(
            f'<text x="0" y="{y + 4:g}" fill="{LABEL}">{text(name[:30])}: {text(domain)}</text>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:g}" y2="{y:g}" stroke="{kind}" '
            f'stroke-width="3"><title>{row["low"]:+.4f} to {row["high"]:+.4f}</title></line>'
            f'<circle cx="{mean:.1f}" cy="{y:g}" r="4" fill="{kind}"/>'
        )
    height = line * len(rows) + 16
    shapes += [
        f'<text x="{WIDTH * (0.7 + 0.22 * share):g}" y="{height - 2}" text-anchor="middle" '
        f'fill="{LABEL}">{reach * share:+.3g}</text>'
        for share in (-1, 1)
    ]
    shapes.append(
        f'<text x="{0.7 * WIDTH:g}" y="{height - 2}" text-anchor="middle" fill="{LABEL}">0</text>'
    )
    axis = (
        f'<line class="axis" x1="{0.7 * WIDTH:g}" x2="{0.7 * WIDTH:g}" y1="0" y2="{height - 14}"/>'
    )
    cells = [
        (name, domain, f"{row['mean']:+.4f}", f"{row['low']:+.4f} to {row['high']:+.4f}",
         "decided" if row["is_decided"] else "undecided")
        for name, domain, row in rows
    ]  # fmt: skip
    title = f"Difference in {measure.replace('_', ' ')}"
    table = html_table(title, ("variant", "domain", "difference", "interval", ""), cells)
    return (
        f"<h3>{title} from {text(differences[0]['a'])}; {better}</h3>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{axis}'
        f"{''.join(shapes)}</svg>"
        f"<details><summary>As a table</summary>{table}</details>"
    )


def _curves(curves: Mapping[str, Sequence[Curve]]) -> str:
    lines = {}
    for name, seeds in curves.items():
        points = [curve.points() for curve in seeds if len(curve)]
        length = min((len(seed["x"]) for seed in points), default=0)
        if length:
            means = np.mean([seed["mean"][:length] for seed in points], axis=0)
            width = max(1, length // 40)  # of a moving average: single steps hide the difference
            smooth = np.convolve(means, np.full(width, 1 / width), "valid").tolist()
            lines[name] = (points[0]["x"][width - 1 : length], smooth)
    if not lines:
        return '<p class="note">No losses were recorded.</p>'
    # The first tenth falls so steeply that nothing else could be seen.
    losses = [v for xs, ys in lines.values() for v in ys[len(ys) // 10 :]]
    low, high = min(losses), max(losses)
    last = max(xs[-1] for xs, _ in lines.values())
    shapes = []
    for number, (name, (xs, ys)) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(
            f"{WIDTH * x / last:.1f},"
            f"{HEIGHT - (HEIGHT - 20) * (min(y, high) - low) / ((high - low) or 1) - 10:.1f}"
            for x, y in zip(xs, ys, strict=True)
        )
        shapes.append(f'<polyline points="{path}" stroke="{color}"/>')
        shapes.append(
            f'<text x="{WIDTH - 10}" y="{16 + 16 * number}" text-anchor="end" '
            f'fill="{color}">{text(name[:50])}: {ys[-1]:.4f}</text>'
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Training losses">'
        f'{"".join(shapes)}</svg><p class="note">{last:,.0f} steps; from {high:.3f} to {low:.3f} '
        "nats per token.</p>"
    )


def _exposures(canaries: Mapping[str, Any] | None) -> str:
    """Return the exposure of canaries by their repeats: a bar with its interval, and numbers."""
    if not canaries:
        return ""
    line, curve = 22, canaries["curve"]
    scale = 0.5 * WIDTH / max(canaries["bound"], *(row["high"] for row in curve))
    zero, shapes = 0.15 * WIDTH, []
    for number, row in enumerate(curve):
        y = line * number + line / 2
        low, high, mean = (zero + scale * max(row[key], 0) for key in ("low", "high", "exposure"))
        kind = "var(--good)" if row["high"] < canaries["bound"] else "var(--bad)"
        shapes.append(
            f'<text x="0" y="{y + 4:g}" fill="{LABEL}">{row["repeats"]:,}</text>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y:g}" y2="{y:g}" stroke="{kind}" '
            f'stroke-width="3"/><circle cx="{mean:.1f}" cy="{y:g}" r="4" fill="{kind}"/>'
            f'<text x="{0.7 * WIDTH:g}" y="{y + 4:g}" fill="{LABEL}">{row["exposure"]:.1f} '
            f"({row['low']:.1f} to {row['high']:.1f})</text>"
        )
    bound = zero + scale * canaries["bound"]
    height = line * len(curve)
    return (
        "<h3>Exposure of planted secrets, in bits, by repeats</h3>"
        f"<p>{text(memorised(canaries))}</p>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Exposure by repeats">'
        f'<line class="axis" x1="{bound:.1f}" x2="{bound:.1f}" y1="0" y2="{height}"/>'
        f"{''.join(shapes)}</svg>"
        f'<p class="note">The line is at {canaries["bound"]:g} bits. {curve[0]["canaries"]} '
        "secrets of each count; one that was never seen has 1.4 bits on average.</p>"
    )


def _losses(results: Mapping[str, Any]) -> str:
    """Return the losses of all sizes as a table."""
    names = [variant["name"] for variant in results["variants"]]
    rows = [
        (size, f"{result['parameters']:,}", f"{result['tokens']:,}",
         *(f"{mean_of(result['values'][name]['bits_per_byte'], ''):.4f}" for name in names))
        for size, result in results["sizes"].items()
        if all(result["values"][name]["bits_per_byte"] for name in names)
    ]  # fmt: skip
    columns = ("size", "parameters", "tokens", *names)
    return html_table("Bits per byte, mean of domains and seeds", columns, rows) if rows else ""
