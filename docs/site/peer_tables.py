"""The tables of docs/peers.md, from results/peers.json."""

from collections.abc import Mapping
from typing import Any

from page_tables import Table, result

DATASETS = {
    "diginetica": "Diginetica",
    "yoochoose": "Yoochoose 1/64",
    "demo": "the demo's shop",
}
PEERS = {
    "posrec": "posrec",
    "recbole": "RecBole",
    "rectools": "RecTools",
    "replay": "RePlay",
    "gru4rec": "its authors",
    "session_rec": "session-rec",
    "implicit": "implicit",
}
MODELS = {
    "posrec-plus": "posrec-plus",
    "posrec": "PosRec",
    "core": "CORE",
    "sasrec": "SASRec",
    "bert4rec": "BERT4Rec",
    "narm": "NARM",
    "gru4rec": "GRU4Rec",
    "srgnn": "SR-GNN",
    "gcsan": "GC-SAN",
    "stan": "STAN",
    "vsknn": "VSKNN",
    "itemknn": "Item-KNN",
}
MISSING = "–"
Row = dict[str, Any]
Training = tuple[str, str, str]  # model, peer, setting


def measured(name: str) -> dict[Training, dict[str, Row]]:
    """The rows of a result file by training and dataset, in the order of models, peers and
    settings."""
    rows = [row for row in result(name) if "metrics" in row]
    rows.sort(
        key=lambda row: (
            list(MODELS).index(row["model"]),
            list(PEERS).index(row["peer"]),
            row["setting"],
        )
    )
    trainings: dict[Training, dict[str, Row]] = {}
    for row in rows:
        training = (row["model"], row["peer"], row["setting"])
        trainings.setdefault(training, {})[row["dataset"]] = row
    return trainings


def metric(row: Row | None, name: str) -> str:
    """With half of its interval; a mark if the training ended at the limit of time."""
    if row is None:
        return MISSING
    low, high = row["intervals"][name]
    mark = "†" if row["ended_by_limit"] else ""
    return f"{row['metrics'][name]:.1f}{mark} ± {(high - low) / 2:.1f}"


def of_epochs(row: Row | None) -> str:
    """The best of the epochs."""
    if row is None or not row["epochs"]:
        return MISSING
    return f"{row['best_epoch']} of {row['epochs']}"


def until_best(row: Row | None, timed: Row | None) -> str:
    """Minutes until the best epoch, as long as the one that was timed; until it has counted, if the
    model has no epochs."""
    if row is None:
        return MISSING
    if not row["epochs"]:
        return f"{row['seconds_until_best'] / 60:.1f}"
    if timed is None:
        return MISSING
    return f"{row['best_epoch'] * timed['epoch_seconds'] / 60:.0f}"


def memory(row: Row | None) -> str:
    if row is None:
        return MISSING
    main = f"{row['peak_gib'] + row['peak_gib_of_children']:.1f}"
    return f"{main} + {row['peak_gpu_gib']:.1f}" if row["peak_gpu_gib"] else main


def answer(row: Row | None) -> str:
    """Milliseconds of a session that was not in training."""
    if row is None:
        return MISSING
    new = row["new_session"]
    return f"{new['ms']:.1f}" if "ms" in new else f"({new['ms_by_hand']:.1f})"


def own_settings() -> Table:
    """Every library with its own settings and rule of stopping."""
    head = ["Model", "By"]
    for name in DATASETS.values():
        head += [f"{name}: R@20", "M@20"]
    table = [head]
    for (model, peer, setting), rows in measured("peers").items():
        if setting == "own":
            cells = [MODELS[model], PEERS[peer]]
            for dataset in DATASETS:
                row = rows.get(dataset)
                cells += [metric(row, "recall@20"), metric(row, "mrr@20")]
            table.append(cells)
    return table


def costs() -> Table:
    """What the trainings of the table before took."""
    epochs = measured("peers_epochs")
    answers = measured("peers_sessions")
    head = ["Model", "By", "Diginetica: best epoch", "GB"]
    table = [[*head, "the demo's shop: minutes", "A new session, ms"]]
    for training, rows in measured("peers").items():
        model, peer, setting = training
        if setting == "own":
            largest = rows.get("diginetica")
            timed = first_of(epochs.get(training, {}))
            asked = first_of(answers.get(training, {}))
            cells = [MODELS[model], PEERS[peer], of_epochs(largest), memory(largest)]
            cells += [until_best(rows.get("demo"), timed), answer(asked)]
            table.append(cells)
    return table


def first_of(rows: Mapping[str, Row]) -> Row | None:
    return next(iter(rows.values()), None)


def difference(theirs: Row | None, ours: Row | None) -> str:
    """Of R@20 and M@20, if both trainings ended by their own rule."""
    if theirs is None or ours is None:
        return MISSING
    if theirs["ended_by_limit"] or ours["ended_by_limit"]:
        return MISSING
    values = []
    for name in ("recall@20", "mrr@20"):
        value = ours["metrics"][name] - theirs["metrics"][name]
        values.append(f"{round(value, 1) + 0.0:+.1f}")  # -0.0 is 0.0
    return " / ".join(values)


def equal_settings() -> Table:
    """R@20 of the same model with the same settings in a peer and in posrec, and the differences
    of R@20 and M@20."""
    head = ["Model", "Peer"]
    for name in DATASETS.values():
        head += [f"{name}: peer", "posrec", "difference"]
    trainings = measured("peers")
    table = [head]
    for (model, library, setting), ours in trainings.items():
        if library != "posrec":
            continue
        # such as "as recbole" or "as recbole, with RecBole's layer and weights"
        peer, _, change = setting.removeprefix("as ").partition(", ")
        of_peer = {
            setting: rows
            for (name, by, setting), rows in trainings.items()
            if (name, by) == (model, peer)
        }
        own = of_peer.pop("own", {})
        # A peer that has other settings than its own has them for this table.
        theirs = next(iter(of_peer.values()), own)
        if not theirs.keys() & ours.keys():
            continue
        cells = [f"{MODELS[model]} {change}".strip(), PEERS[peer]]
        for dataset in DATASETS:
            row = ours.get(dataset)
            both = [theirs.get(dataset) if row else None, row]
            cells += [metric(row, "recall@20") for row in both]
            cells.append(difference(*both))
        table.append(cells)
    return table
