"""The paper's figures from our results. Every panel is an SVG of its own, so that they stack on a narrow screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encoding_figures import (
    LONG,
    SHORT,
    across_figure,
    encodings_figure,
    similarity,
    trained_figure,
    within_figure,
)
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import new_figure, svg
from posrec.experiments.reproduce.claims import SHORT as SHORT_NAMES
from posrec.experiments.reproduce.grid import FIGURES, jobs_of
from posrec.experiments.reproduce.paper import BEST_LAMBDA2, METRICS
from posrec.experiments.reproduce.results import Results
from posrec.experiments.reproduce.tables import Line, Table

OURS, PAPER, BASE, FAINT = "#0b6e4f", "#98a2b3", "#2563eb", "#667085"


def panels(table: Table) -> tuple[list[Any], str]:
    """The panels of a table's figure, and its caption; no panels while there are no results."""
    lines = [line for line in table.lines if line.results]
    if not lines:
        return [], ""
    if table.experiment.name == "overall":
        caption = "Green: ours. Grey rings: the paper's. Models from the lowest to the highest of ours."
        return [dots(lines, metric) for metric in ("recall@10", "mrr@10")], caption
    if table.experiment.name == "encodings":
        caption = "Blue line: no encoding. Whiskers: standard deviation over seeds. Axes don't begin at zero."
        return [encoding_bars(lines, metric) for metric in METRICS], caption
    if table.experiment.name == "sensitivity":
        caption = "Whiskers: standard deviation over seeds. Dashed: the paper's best λ2. Axes don't begin at zero."
        return [curve(lines, metric, BEST_LAMBDA2.get(table.paper_dataset or "")) for metric in METRICS], caption
    with_it = "with anchors" if table.experiment.name == "anchors" else "with LDPE"
    caption = f"Grey: without; green: {with_it}. Whiskers: standard deviation over seeds. Axes don't begin at zero."
    return [paired_bars(lines, metric) for metric in METRICS], caption


def dots(lines: list[Line], metric: str) -> Any:
    ordered = sorted(lines, key=lambda line: line.mean(metric))
    figure, panel = new_panel(3.6, 0.36 * len(ordered) + 0.9)
    for place, line in enumerate(ordered):
        if metric in line.paper:
            panel.plot([line.paper[metric][0], line.mean(metric)], [place, place], color=PAPER, linewidth=1, zorder=1)
            panel.plot(line.paper[metric][0], place, "o", markerfacecolor="white", markeredgecolor=PAPER, zorder=2)
        panel.plot(line.mean(metric), place, "o", color=OURS, zorder=3)
    panel.set_yticks(range(len(ordered)), [line.row.label for line in ordered])
    panel.grid(axis="x", color="#eaecf0")
    panel.set_title(f"{SHORT_NAMES[metric]}, %", fontsize=10)
    return svg(figure)


def encoding_bars(lines: list[Line], metric: str) -> Any:
    figure, panel = new_panel(3.6, 2.9)
    base = [line for line in lines if line.row.label == "none"]
    shown = [line for line in lines if line.row.label != "none"]
    bars(
        panel, [(place, line, OURS if line.row.label == "LDPE" else PAPER) for place, line in enumerate(shown)], metric
    )
    panel.set_xticks(range(len(shown)), [line.row.label for line in shown], rotation=60, ha="right",
                     rotation_mode="anchor")  # fmt: skip
    if base:
        panel.axhline(base[0].mean(metric), color=BASE, linewidth=1.5)
    zoom_axis(panel, lines, metric)
    return svg(figure)


def paired_bars(lines: list[Line], metric: str) -> Any:
    figure, panel = new_panel(3.6, 2.9)
    models = list(dict.fromkeys(line.row.model for line in lines))
    names = [min((line.row.label for line in lines if line.row.model == model), key=len) for model in models]
    placed = []
    for line in lines:
        added = line.row.settings.get("anchors") or "encoding" in line.row.settings
        placed.append((models.index(line.row.model) + (0.2 if added else -0.2), line, OURS if added else PAPER))
    bars(panel, placed, metric, 0.36)
    panel.set_xticks(range(len(models)), names)
    zoom_axis(panel, lines, metric)
    return svg(figure)


def bars(panel: Any, placed: list[tuple[float, Line, str]], metric: str, width: float = 0.7) -> None:
    for place, line, colour in placed:
        error = line.deviation(metric)
        panel.bar(place, line.mean(metric), width, color=colour, yerr=error, ecolor="#344054", capsize=2)


def curve(lines: list[Line], metric: str, best: float | None) -> Any:
    figure, panel = new_panel(3.6, 2.9)
    places = [float(line.row.settings["lambda2"]) for line in lines]
    errors = [line.deviation(metric) or 0.0 for line in lines]
    panel.errorbar(places, [line.mean(metric) for line in lines], errors, marker="o", color=OURS, capsize=3)
    panel.set_xscale("log", base=2)
    panel.set_xticks(places, [f"{place:g}" for place in places])
    panel.set_xlabel("λ2")
    if best is not None:
        panel.axvline(best, color=FAINT, linestyle="--", linewidth=1)
    zoom_axis(panel, lines, metric)
    return svg(figure)


def zoom_axis(panel: Any, lines: list[Line], metric: str) -> None:
    """Show only the range of the figures, since their differences are small compared to them."""
    low = min(line.mean(metric) - (line.deviation(metric) or 0) for line in lines)
    high = max(line.mean(metric) + (line.deviation(metric) or 0) for line in lines)
    room = max(0.25 * (high - low), 0.02)
    panel.set_ylim(max(0, low - 2 * room), high + room)
    panel.set_title(f"{SHORT_NAMES[metric]}, %", fontsize=10)
    panel.grid(axis="y", color="#eaecf0")


def encoding_pictures(results: Results) -> list[tuple[str, Any]]:
    """(heading, SVG) of section 5.5: the fixed encodings, and what PosRec learned on each dataset, seed 0."""
    d = 100
    fixed = {"SPE": make_encoding("spe", d, LONG), "DPE": make_encoding("dpe", d, LONG)}
    pictures = [
        *((f"SPE and DPE of length {length}", svg(encodings_figure(fixed, length))) for length in (SHORT, LONG)),
        ("How alike their positions are", svg(within_figure(fixed))),
        ("And across two lengths", svg(across_figure(fixed))),
    ]
    return [*pictures, *((heading, svg(trained_figure(one))) for heading, one in learned_encodings(results))]


def learned_encodings(results: Results) -> Iterator[tuple[str, TrainedEncoding]]:
    """(heading, table) of LPE and LDPE in PosRec on each dataset, seed 0, where there is a result."""
    for dataset in results.datasets:
        for row in FIGURES.rows:
            result = results.job_results.get(jobs_of(row, dataset, 1, results.shared_settings)[0].name)
            table = result.encoding() if result and not result.error else None
            if table is not None:
                name = str(row.settings["encoding"])
                scheme = make_encoding(name, d=table.shape[1], max_length=table.shape[0])
                scheme.load_state_dict({"table": torch.from_numpy(table)})
                heading = f"{row.label} learned on {results.title(dataset)}"
                yield heading, TrainedEncoding(Path(f"{dataset}, seed 0"), name, scheme, *table.shape)


def learned_encodings_sentences(results: Results) -> list[str]:
    """How similar equal positions of two session lengths are, a sentence for each learned table."""
    sentences = []
    for heading, one in learned_encodings(results):
        first, last, other = mean_similarities(one.scheme)
        sentences.append(
            f"{heading}: {first:.2f} for the same position from the first click, {last:.2f} for the same from the "
            f"last, {other:.2f} for others."
        )
    return sentences


def mean_similarities(scheme: nn.Module) -> tuple[float, float, float]:
    """Mean scaled dot products of positions of lengths 10 and 20: the same from the first click, from the last, others.

    >>> one, two = (mean_similarities(make_encoding(name, 100, LONG)) for name in ("spe", "dpe"))
    >>> [round(value, 2) for value in one + two]
    [1.0, 0.13, 0.37, 1.0, 1.0, 0.58]
    """
    values = similarity(scheme, SHORT, LONG)
    place = torch.arange(SHORT)
    same = torch.zeros_like(values, dtype=torch.bool)
    same[place, place] = same[place, place + LONG - SHORT] = True
    return (
        float(values[place, place].mean()),
        float(values[place, place + LONG - SHORT].mean()),
        float(values[~same].mean()),
    )


def new_panel(width: float, height: float) -> tuple[Any, Any]:
    figure, panel = new_figure(1, 1, (width, height))
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel
