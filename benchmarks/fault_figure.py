"""Draws memory and open files of the soak in results/faults.json: docs/figures/soak.svg.

    python benchmarks/fault_figure.py

The background is transparent, and every colour can be read on white and on black.
"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from posrec.io import read_json

INK, MEMORY, FILES = "#808080", "#2f81f7", "#d97706"


def main() -> None:
    soak = read_json(Path("results/faults.json"))["parts"]["soak"]
    minutes = [sample["seconds"] / 60 for sample in soak["series"]]
    plt.rcParams.update({
        "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
        "svg.hashsalt": "posrec", "font.size": 9,
    })  # fmt: skip
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    for panel, measure, colour, title in zip(
        panels, ("memory_mb", "files"), (MEMORY, FILES), ("memory of all processes, MB", "open files"), strict=True
    ):
        values = [sample[measure] for sample in soak["series"]]
        panel.plot(minutes, values, color=colour, linewidth=1.8)
        panel.set(title=title, xlabel="minutes", ylim=(0, 1.25 * max(values)), xlim=(0, max(minutes)))
        panel.grid(color=INK, alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig("docs/figures/soak.svg", transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
