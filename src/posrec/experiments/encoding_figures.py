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
    f"Dot products between the positions of lengths {SHORT} (rows) and {LONG} (columns), scaled to 0 .. 1 in each "
    "panel. SPE has one diagonal band: the same position from the first click. DPE has a second: the same position "
    "from the last click. The two last positions, in the lower right corner:"
)
TRAINED = f"dot products between positions within lengths {SHORT} and {LONG} and across them, scaled to 0 .. 1 in each panel."


def draw(
    folder: Path,
    d: int,
    trained: Sequence[TrainedEncoding] = (),
    progress: Progress | None = None,
) -> list[Path]:
    """Write every figure into `folder` as SVG and PNG; return the paths."""
    progress = progress or SilentProgress()
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, figure in figures(d, trained):
        progress.update("Drawing", len(written) / 2, OF_FIXED + len(trained), name)
        written += save(figure, folder / name)
    return written


def figures(
    d: int, trained: Sequence[TrainedEncoding] = ()
) -> Iterator[tuple[str, Any]]:
    """The figures of the fixed encodings, and those of learned ones, by name."""
    fixed = {"SPE": make_encoding("spe", d, LONG), "DPE": make_encoding("dpe", d, LONG)}
    lengths = (SHORT, LONG)
    for length in lengths:
        yield f"encodings-length-{length}", encodings_figure(fixed, length)
    within = [
        (name, similarity(scheme, length, length))
        for name, scheme in fixed.items()
        for length in lengths
    ]
    yield "alike-within-a-length", similarity_figure(within, (14, 3.9), WITHIN)
    across = [(name, similarity(scheme, SHORT, LONG)) for name, scheme in fixed.items()]
    corners = " and ".join(
        f"{float(values[-1, -1]):.2f} for {name}" for name, values in across
    )
    yield (
        "alike-across-lengths",
        similarity_figure(across, (17, 4.9), f"{ACROSS} {corners}."),
    )
    for number, one in enumerate(trained, start=1):
        rows = len(one.table)
        both = ((SHORT, SHORT), (LONG, LONG), (SHORT, LONG))
        panels = [
            (one.name.upper(), similarity(one.scheme, *lengths)) for lengths in both
        ]
        short = (
            f" Its table has {rows} rows; positions past them share the last."
            if rows < LONG
            else ""
        )
        words = (
            f"{one.name.upper()} as learned by the run {one.run.name}: {TRAINED}{short}"
        )
        yield (
            f"alike-{one.name}-run-{number}",
            similarity_figure(panels, (17, 5), words, [1, 1, 2]),
        )


def missing_figures(trained: Sequence[TrainedEncoding]) -> str | None:
    """Which of the paper's figures need a trained run that was not given."""
    missing = [
        name.upper()
        for name in ("lpe", "ldpe")
        if name not in {one.name for one in trained}
    ]
    return (
        f"left out: {' and '.join(missing)}, drawn from a trained run given with --run RUN"
        if missing
        else None
    )


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

    >>> one, two = (mean_similarities(make_encoding(name, 100, LONG)) for name in ("spe", "dpe"))
    >>> [round(value, 2) for value in one + two]
    [1.0, 0.13, 0.37, 1.0, 1.0, 0.58]
    """
    values = similarity(scheme, SHORT, LONG)
    place = torch.arange(SHORT)
    same = torch.zeros_like(values, dtype=torch.bool)
    same[place, place] = same[place, place + LONG - SHORT] = True
    first = values[place, place]
    last = values[place, place + LONG - SHORT]
    others = values[~same]
    return float(first.mean()), float(last.mean()), float(others.mean())


def encodings_figure(schemes: dict[str, nn.Module], length: int) -> Any:
    figure, panels = new_figure(1, len(schemes), (11, 3.4 if length == SHORT else 4.4))
    for panel, (name, scheme) in zip(panels, schemes.items(), strict=True):
        image = panel.imshow(
            encode(scheme, length).numpy(),
            cmap="RdBu_r",
            vmin=-1,
            vmax=1,
            aspect="auto",
            interpolation="none",
        )
        panel.set(
            title=f"{name}, length {length}", xlabel="dimension", ylabel="position"
        )
        panel.set_yticks(range(0, length, 1 if length == SHORT else 2))
    figure.colorbar(image, ax=panels, label="value")
    caption(
        figure,
        f"SPE and DPE of a session of {length} clicks. SPE's row of a position is the same at every length. DPE's left "
        "half is the same for the same position counted from the first click, its right half for the same position "
        "counted from the last click.",
    )
    return figure


def similarity_figure(
    panels: Sequence[tuple[str, Tensor]],
    size: tuple[float, float],
    words: str,
    widths: list[int] | None = None,
) -> Any:
    figure, axes = new_figure(1, len(panels), size, widths)
    for axis, (name, values) in zip(axes, panels, strict=True):
        image = heatmap(axis, name, values)
    figure.colorbar(image, ax=axes, label="dot product, scaled", shrink=0.8)
    caption(figure, words)
    return figure


def heatmap(axis: Any, name: str, values: Tensor) -> Any:
    """Across lengths, every cell has its number."""
    rows, columns = values.shape
    across = rows != columns
    image = axis.imshow(
        values.numpy(), cmap="viridis", vmin=0, vmax=1, interpolation="none"
    )
    axis.set(
        title=f"{name}, length {rows}" + (f" against {columns}" if across else ""),
        xlabel=f"position in length {columns}" if across else "position",
        ylabel=f"position in length {rows}" if across else "position",
    )
    axis.set_xticks(range(0, columns, 1 if columns == SHORT or across else 2))
    axis.set_yticks(range(0, rows, 1 if rows == SHORT else 2))
    for row, column in product(range(rows), range(columns)) if across else ():
        value = float(values[row, column])
        ink = "black" if value > 0.6 else "white"
        axis.text(
            column,
            row,
            f"{value:.2f}".lstrip("0"),
            ha="center",
            va="center",
            fontsize=6,
            color=ink,
        )
    return image


def caption(figure: Any, words: str) -> None:
    lines = textwrap.fill(words, width=int(figure.get_figwidth() * 11))
    figure.supxlabel(lines, fontsize=10, x=0.01, ha="left")


def save(figure: Any, path: Path) -> list[Path]:
    """As SVG and PNG; the SVG has no date, so that the same input gives the same file."""
    vector = path.with_suffix(".svg")
    image = path.with_suffix(".png")
    write_text(vector, svg(figure) + "\n")
    figure.savefig(image, dpi=150)
    return [vector, image]
