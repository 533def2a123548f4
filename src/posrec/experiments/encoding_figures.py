"""The figures of section 5.5: encodings of lengths 10 and 20, and how similar their positions are.

Heatmaps show dot products, scaled in each panel to 0 .. 1, which gives the paper's "0.16 in the
lower right corner" (docs/errata.md).
"""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import make_encoding
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.rendering import new_figure, svg
from posrec.io import write_text
from posrec.progress import Progress, SilentProgress

SHORT = 10
LONG = 20
OF_FIXED = 4  # figures of the fixed encodings
WITHIN = (
    "Dot products between the positions of one length, scaled to 0 .. 1 in each panel. "
    "Each position is most like itself."
)
ACROSS = (
    f"Dot products between the positions of lengths {SHORT} (rows) and {LONG} (columns), scaled "
    "to 0 .. 1 in each panel. SPE has one diagonal band: the same position from the first click. "
    "DPE has a second: the same position from the last click. The two last positions, in the "
    "lower right corner:"
)
TRAINED = (
    f"dot products between positions within lengths {SHORT} and {LONG} and across them, scaled to "
    "0 .. 1 in each panel."
)


def draw(
    folder: Path,
    d: int,
    trained: Sequence[TrainedEncoding] = (),
    progress: Progress | None = None,
) -> list[Path]:
    progress = progress or SilentProgress()
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, figure in figures(d, trained):
        progress.update("Drawing", len(written) / 2, OF_FIXED + len(trained), name)
        vector = folder / f"{name}.svg"
        write_text(vector, svg(figure) + "\n")
        image = folder / f"{name}.png"
        figure.savefig(image, dpi=150)
        written += [vector, image]
    return written


def figures(
    d: int, trained: Sequence[TrainedEncoding] = ()
) -> Iterator[tuple[str, Any]]:
    fixed = {"SPE": make_encoding("spe", d, LONG), "DPE": make_encoding("dpe", d, LONG)}
    lengths = (SHORT, LONG)
    for length in lengths:
        yield f"encodings-length-{length}", encodings_figure(fixed, length)
    within = [
        (name, similarity(scheme, length, length))
        for (name, scheme), length in product(fixed.items(), lengths)
    ]
    yield "alike-within-a-length", similarity_figure(within, (14, 3.9), WITHIN)
    across = [(name, similarity(scheme, SHORT, LONG)) for name, scheme in fixed.items()]
    corners = [f"{float(values[-1, -1]):.2f} for {name}" for name, values in across]
    text = f"{ACROSS} {' and '.join(corners)}."
    yield "alike-across-lengths", similarity_figure(across, (17, 4.9), text)
    for number, encoding in enumerate(trained, start=1):
        name = f"alike-{encoding.name}-run-{number}"
        yield name, trained_figure(encoding)


def trained_figure(encoding: TrainedEncoding) -> Any:
    name = encoding.name.upper()
    sizes = ((SHORT, SHORT), (LONG, LONG), (SHORT, LONG))
    panels = [(name, similarity(encoding.scheme, *size)) for size in sizes]
    text = f"{name} as learned by the run {encoding.run.name}: {TRAINED}"
    rows = len(encoding.table)
    if rows < LONG:
        text += f" Its table has {rows} rows; positions past them share the last."
    return similarity_figure(panels, (17, 5), text, [1, 1, 2])


def missing_figures(trained: Sequence[TrainedEncoding]) -> str | None:
    """Which of the paper's figures need a trained run that was not given."""
    names = {encoding.name for encoding in trained}
    missing = [name.upper() for name in ("lpe", "ldpe") if name not in names]
    if not missing:
        return None
    listed = " and ".join(missing)
    return f"left out: {listed}, drawn from a trained run given with --run RUN"


@torch.no_grad()
def encode(scheme: nn.Module, length: int) -> Tensor:
    """[length, d]: one session without repeated items."""
    forward = torch.arange(length).unsqueeze(0)
    encoded: Tensor = scheme(forward, length - 1 - forward, torch.tensor([length]))
    return encoded[0]


def similarity(scheme: nn.Module, rows: int, columns: int) -> Tensor:
    """[rows, columns]: dot products between the positions of two lengths, scaled to 0 .. 1."""
    products = encode(scheme, rows) @ encode(scheme, columns).T
    spread = products.max() - products.min()
    return (products - products.min()) / torch.where(spread > 0, spread, 1.0)


def mean_similarities(scheme: nn.Module) -> tuple[float, float, float]:
    """Mean similarity of lengths 10 and 20: same from the first click, from the last, others.

    >>> [round(value, 2) for value in mean_similarities(make_encoding("spe", 100, LONG))]
    [1.0, 0.13, 0.37]
    >>> [round(value, 2) for value in mean_similarities(make_encoding("dpe", 100, LONG))]
    [1.0, 1.0, 0.58]
    """
    values = similarity(scheme, SHORT, LONG)
    position = torch.arange(SHORT)
    same_from_last = position + LONG - SHORT
    is_other = torch.ones_like(values, dtype=torch.bool)
    is_other[position, position] = False
    is_other[position, same_from_last] = False
    first = values[position, position]
    last = values[position, same_from_last]
    return float(first.mean()), float(last.mean()), float(values[is_other].mean())


def encodings_figure(schemes: dict[str, nn.Module], length: int) -> Any:
    is_short = length == SHORT
    figure, panels = new_figure(1, len(schemes), (11, 3.4 if is_short else 4.4))
    for panel, (name, scheme) in zip(panels, schemes.items(), strict=True):
        values = encode(scheme, length).numpy()
        image = panel.imshow(
            values, "RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="none"
        )
        title = f"{name}, length {length}"
        panel.set(title=title, xlabel="dimension", ylabel="position")
        panel.set_yticks(range(0, length, 1 if is_short else 2))
    figure.colorbar(image, ax=panels, label="value")
    caption(
        figure,
        f"SPE and DPE of a session of {length} clicks. SPE's row of a position is the same at "
        "every length. DPE's left half is the same for the same position counted from the first "
        "click, its right half for the same position counted from the last click.",
    )
    return figure


def similarity_figure(
    panels: Sequence[tuple[str, Tensor]],
    size: tuple[float, float],
    text: str,
    widths: list[int] | None = None,
) -> Any:
    figure, axes = new_figure(1, len(panels), size, widths)
    for axis, (name, values) in zip(axes, panels, strict=True):
        image = heatmap(axis, name, values)
    figure.colorbar(image, ax=axes, label="dot product, scaled", shrink=0.8)
    caption(figure, text)
    return figure


def heatmap(axis: Any, name: str, values: Tensor) -> Any:
    """Within a length, or across two, where every cell has its number."""
    rows, columns = values.shape
    image = axis.imshow(values.numpy(), "viridis", vmin=0, vmax=1, interpolation="none")
    axis.set_yticks(range(0, rows, 1 if rows == SHORT else 2))
    if rows == columns:
        axis.set_xticks(range(0, columns, 1 if columns == SHORT else 2))
        title = f"{name}, length {rows}"
        axis.set(title=title, xlabel="position", ylabel="position")
        return image
    axis.set_xticks(range(columns))
    axis.set(
        title=f"{name}, length {rows} against {columns}",
        xlabel=f"position in length {columns}",
        ylabel=f"position in length {rows}",
    )
    for row, column in product(range(rows), range(columns)):
        value = float(values[row, column])
        number = f"{value:.2f}".lstrip("0")
        ink = "black" if value > 0.6 else "white"
        axis.text(column, row, number, ha="center", va="center", fontsize=6, color=ink)
    return image


def caption(figure: Any, text: str) -> None:
    lines = textwrap.fill(text, width=int(figure.get_figwidth() * 11))
    figure.supxlabel(lines, fontsize=10, x=0.01, ha="left")
