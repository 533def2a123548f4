"""The tables and figures of docs/peers.md, from results/peers.json.

    python docs/site/peer_tables.py

It draws the figures again; tables.py writes the tables.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures"
DATASETS = {
    "diginetica": "Diginetica",
    "yoochoose-tenth": "a tenth of Yoochoose 1/64",
    "demo": "the demo's shop",
}
TICKS = {"diginetica": (20, 50, 100, 200, 400), "demo": (0.1, 1, 10, 100)}  # seconds
PEERS = {
    "posrec": "posrec",
    "recbole": "RecBole",
    "rectools": "RecTools",
    "replay": "RePlay",
    "implicit": "implicit",
    "gru4rec": "GRU4Rec's authors",
    "session_rec": "session-rec",
}
MODELS = {
    "pop": "popularity",
    "itemknn": "Item-KNN",
    "bprmf": "BPR-MF",
    "als": "ALS",
    "vsknn": "VSKNN",
    "stan": "STAN",
    "fpmc": "FPMC",
    "stamp": "STAMP",
    "gru4rec": "GRU4Rec",
    "narm": "NARM",
    "sasrec": "SASRec",
    "srgnn": "SR-GNN",
    "gcsan": "GC-SAN",
    "posrec-plus": "posrec-plus",
}
COLOURS = {peer: f"C{number}" for number, peer in enumerate(PEERS)}
INK = "#808080"  # readable on both backgrounds of the site
Table = list[list[str]]
Row = dict[str, Any]


def measured() -> list[Row]:
    """The rows without an error, in the order of models and peers."""
    rows = json.loads((ROOT / "results" / "peers.json").read_text(encoding="utf-8"))

    def order(row: Row) -> tuple[int, int, bool]:
        return (
            list(DATASETS).index(row["dataset"]),
            list(MODELS).index(row["model"]),
            row["peer"] == "posrec",
        )

    return sorted((row for row in rows if "metrics" in row), key=order)


def recall(row: Row) -> str:
    low, high = row["intervals"]["recall@20"]
    return f"{row['metrics']['recall@20']:.1f} ({low:.1f} to {high:.1f})"


def seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def equal_settings() -> Table:
    """The same model with the same settings in a peer and in posrec, and posrec's own defaults."""
    head = ["Dataset", "Model", "Peer", "Settings", "Epochs"]
    head += ["R@20: peer", "posrec", "posrec, own defaults"]
    head += ["Seconds an epoch: peer", "posrec", "GB: peer", "posrec"]
    table = [head]
    rows = {}
    for row in measured():
        training = (row["dataset"], row["model"], row["epochs_at_most"])
        rows[*training, row["peer"], row["setting"]] = row
    for (dataset, model, cap, peer, setting), theirs in rows.items():
        same = f"as {peer}" if setting == "default" else f"as {peer}, {setting}"
        ours = rows.get((dataset, model, cap, "posrec", same))
        if peer == "posrec" or ours is None:
            continue
        default = rows.get((dataset, model, cap, "posrec", "default"))
        both = (theirs, ours)
        epochs = dict.fromkeys(str(row["epochs"] or "") for row in both)
        cells = [DATASETS[dataset], MODELS[model], PEERS[peer], setting]
        cells += [", ".join(epochs), recall(theirs), recall(ours)]
        cells += ["" if default is None else recall(default)]
        cells += [seconds(row["epoch_seconds"]) for row in both]
        cells += [f"{row['peak_gib']:.2f}" for row in both]
        table.append(cells)
    return table


def everything(dataset: str) -> Table:
    """Every training on a dataset."""
    head = ["Model", "By", "Settings", "R@20", "M@20", "Epochs", "Seconds an epoch"]
    head += ["until the best", "GB", "A new session", "Lines of code"]
    table = [head]
    for row in measured():
        if row["dataset"] != dataset:
            continue
        new = row["new_session"]
        if "ms" in new:
            answer = f"{new['ms']:.1f} ms"
        else:
            answer = f"can't; by hand {new['ms_by_hand']:.1f} ms"
        cells = [
            MODELS[row["model"]],
            PEERS[row["peer"]],
            row["setting"],
            recall(row),
            f"{row['metrics']['mrr@20']:.1f}",
            str(row["epochs"] or ""),
            seconds(row["epoch_seconds"]),
            seconds(row["seconds_until_best"]),
            f"{row['peak_gib'] + row['peak_gib_of_children']:.2f}",
            answer,
            str(row["lines_of_user_code"]),
        ]
        table.append(cells)
    return table


def draw_accuracy() -> None:
    """Accuracy against the time of training."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    for panel, dataset in zip(figure.subplots(1, 2), TICKS, strict=True):
        draw_dataset(panel, dataset)
    for peer in dict.fromkeys(row["peer"] for row in measured()):
        panel.plot([], [], "o", color=COLOURS[peer], label=PEERS[peer])
    label = "with the settings of a peer, or its documented ones"
    panel.plot([], [], "^", color=INK, label=label)
    figure.legend(
        loc="outside lower center", ncols=6, framealpha=0, labelcolor=INK, fontsize=8
    )
    figure.savefig(
        FIGURES / "peers_accuracy.svg", transparent=True, metadata={"Date": None}
    )


def draw_dataset(panel: Any, dataset: str) -> None:
    rows = [
        row
        for row in measured()
        if row["dataset"] == dataset and row["epochs_at_most"] > 1
    ]
    rows.sort(key=lambda row: row["metrics"]["recall@20"])
    best = {(row["peer"], row["model"]): row for row in rows}
    for row in best.values():
        point = (max(row["seconds_until_best"], 0.03), row["metrics"]["recall@20"])
        marker = "o" if row["setting"] == "default" else "^"
        panel.plot(*point, marker, color=COLOURS[row["peer"]], markersize=6)
        panel.annotate(
            MODELS[row["model"]],
            point,
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=6.5,
            color=INK,
        )
    panel.set_xscale("log")
    panel.set_xticks(TICKS[dataset], [f"{tick:g}" for tick in TICKS[dataset]])
    panel.set_xticks([], minor=True)
    panel.set_title(DATASETS[dataset], color=INK)
    panel.set_xlabel("seconds of training until the best epoch", color=INK)
    panel.set_ylabel("R@20", color=INK)
    panel.tick_params(colors=INK, which="both")
    panel.grid(color=INK, alpha=0.25)


def draw_memory() -> None:
    rows = [
        row
        for row in measured()
        if row["dataset"] == "demo" and row["setting"] == "default"
    ]
    models = [model for model in MODELS if any(row["model"] == model for row in rows)]
    figure = Figure(figsize=(7, 0.32 * len(models) + 1.1), layout="constrained")
    panel = figure.subplots()
    for peer, name in PEERS.items():
        of_peer = [row for row in rows if row["peer"] == peer]
        heights = [models.index(row["model"]) for row in of_peer]
        memory = [row["peak_gib"] + row["peak_gib_of_children"] for row in of_peer]
        panel.plot(memory, heights, "o", color=COLOURS[peer], label=name)
    panel.set_yticks(range(len(models)), [MODELS[model] for model in models])
    panel.set_xscale("log")
    panel.set_xlabel(
        "peak memory of training and ranking, GB; the demo's shop, two CPU cores",
        color=INK,
    )
    panel.tick_params(colors=INK, which="both")
    panel.grid(color=INK, alpha=0.25)
    panel.legend(fontsize=7, framealpha=0, labelcolor=INK)
    figure.savefig(
        FIGURES / "peers_memory.svg", transparent=True, metadata={"Date": None}
    )


if __name__ == "__main__":
    draw_accuracy()
    draw_memory()
