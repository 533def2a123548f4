"""The paper's figures from our results, as PNG files that the report shows."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encoding_figures import LONG, SHORT, similarity
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import new_figure
from posrec.experiments.reproduce.grid import FIGURES, jobs_of
from posrec.experiments.reproduce.jobs import JobResult
from posrec.experiments.reproduce.paper import METRICS
from posrec.experiments.reproduce.tables import Table

OURS, PAPER = "#0b6e4f", "#98a2b3"


def draw_table(table: Table, path: Path) -> bool:
    """A panel for each metric, with a point for each row that has results; False, and no file, while there are none."""
    lines = [line for line in reversed(table.lines) if line.results]
    if not lines:
        return False
    figure, panels = new_figure(1, len(METRICS), (14, 0.3 * len(lines) + 1))
    for panel, metric in zip(panels, METRICS, strict=True):
        for place, line in enumerate(lines):
            if metric in line.paper:
                panel.plot(line.paper[metric][0], place, "o", markerfacecolor="white", markeredgecolor=PAPER)
            panel.errorbar(line.mean(metric), place, xerr=line.deviation(metric), fmt="o", color=OURS, capsize=3)
        panel.set_yticks(range(len(lines)), [line.row.label for line in lines] if panel is panels[0] else [])
        panel.grid(color="#eaecf0")
        panel.set_axisbelow(True)
        panel.set_title(f"{metric}, %")
    write_png(figure, path)
    return True


def write_png(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None})


def learned_encodings(
    dataset: str, results: dict[str, JobResult], shared_settings: dict[str, Any]
) -> list[TrainedEncoding]:
    """LPE and LDPE as PosRec learned them on a dataset, seed 0, where there is a result."""
    encodings = []
    for row in FIGURES.rows:
        result = results.get(jobs_of(row, dataset, 1, shared_settings)[0].name)
        table = result.encoding() if result and not result.error else None
        if table is not None:
            name = str(row.settings["encoding"])
            scheme = make_encoding(name, d=table.shape[1], max_length=table.shape[0])
            scheme.load_state_dict({"table": torch.from_numpy(table)})
            encodings.append(TrainedEncoding(Path(f"{dataset}, seed 0"), name, scheme, *table.shape))
    return encodings


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
    first, last, others = values[place, place], values[place, place + LONG - SHORT], values[~same]
    return float(first.mean()), float(last.mean()), float(others.mean())
