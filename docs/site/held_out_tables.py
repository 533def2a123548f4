"""The table of results/held_out.json: data that nobody tuned on."""

from statistics import fmean

from page_tables import Table, result


def figures(dataset: str, model: str, encoding: str, metric: str) -> list[float]:
    """Of each seed."""
    wanted = (dataset, model, encoding)
    return [
        row[metric]
        for row in result("held_out")["rows"]
        if (row["dataset"], row["model"], row["encoding"]) == wanted
    ]


def held_out() -> Table:
    """Both models with their defaults."""
    rows = [["", "test samples", "posrec-plus R@20", "M@20", "PosRec R@20", "M@20"]]
    for dataset, about in result("held_out")["datasets"].items():
        row = [dataset, f"{about['test_samples']:,}"]
        for model in ("posrec-plus", "posrec"):
            for metric in ("recall@20", "mrr@20"):
                row.append(f"{fmean(figures(dataset, model, 'ldpe', metric)):.2f}")
        rows.append(row)
    return rows
