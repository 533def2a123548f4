"""The comparison as one HTML file that needs nothing else: tables, plots, and what they mean in words."""

import io
from html import escape
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.experiments.compare import Outcome, Pair

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --faint: #667085; --line: #d9dee7; --paper: #fff; --mark: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --faint: #98a2b3; --line: #344054; --paper: #12161d; --mark: #5ad1a5; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .7rem .35rem 0; white-space: nowrap; font-size: .92rem; text-align: right;
         border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, .pairs :is(:nth-child(2), :last-child) { text-align: left; }
td.best { font-weight: 700; color: var(--mark); }
tr.ceiling td { color: var(--faint); font-style: italic; }
p.note, figcaption { color: var(--faint); font-size: .9rem; }
figure { margin: 1rem 0; } figure svg { width: 100%; height: auto; background: #fff; border-radius: 6px; }
.scroll { overflow-x: auto; }
"""


def report(outcome: Outcome, data: PreparedDataset) -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>Comparison of {escape(', '.join(outcome.metrics))}</title><style>{STYLE}</style>",
        f"<h1>{escape(' against '.join(outcome.metrics))}</h1>",
        f"<p>{len(data.test):,} test samples from {data.test.sessions:,} sessions, every one of {data.train_items:,} "
        f"items ranked; ties count against the target. Dataset {data.fingerprint[:12]}.</p>",
        "<h2>Results, in percent</h2>",
        metrics_table(outcome.metrics, data.ceiling),
        "<h2>Which differences are real</h2>",
        pairs_table(outcome.pairs),
        "<p class=note>Paired on the same samples, whole sessions drawn together (2,000 bootstrap draws for the "
        "interval, a t-test over sessions for p), corrected for many comparisons after Holm.</p>",
        "<h2>By length of the session</h2>",
        figure(outcome.lengths, "clicks before the target", "Recall and MRR at 20 by how many clicks came before."),
        "<h2>By where the first repeat stands</h2>",
        figure(outcome.repeats, "position of the first click on an item seen before", "None: all clicks differ."),
    ]
    return "\n".join(parts) + "\n"


def metrics_table(metrics: dict[str, dict[str, float]], ceiling: dict[str, Any] | None) -> str:
    names = list(next(iter(metrics.values())))
    best = {name: max(of[name] for of in metrics.values()) for name in names}
    rows = ["<tr><th>model</th>" + "".join(f"<th>{escape(name)}</th>" for name in names) + "</tr>"]
    for model, of in metrics.items():
        cells = []
        for name in names:
            leads = of[name] == best[name] and not name.startswith("popularity")  # popular is not better
            cells.append(f"<td{' class=best' if leads else ''}>{100 * of[name]:.2f}</td>")
        rows.append(f"<tr><td>{escape(model)}</td>{''.join(cells)}</tr>")
    if ceiling:
        known = (f"{100 * ceiling[name]:.2f}" if name in ceiling else "" for name in names)
        best_cells = "".join(f"<td>{value}</td>" for value in known)
        rows.append(f"<tr class=ceiling><td>best attainable</td>{best_cells}</tr>")
    return f"<div class=scroll><table>{''.join(rows)}</table></div>"


def pairs_table(pairs: list[Pair]) -> str:
    rows = ["<tr><th>pair</th><th>metric</th><th>difference</th><th>95 % interval</th><th>p</th><th>verdict</th></tr>"]
    for pair in pairs:
        found = pair.comparison
        rows.append(
            f"<tr><td>{escape(pair.first)} - {escape(pair.second)}</td><td>{pair.metric}</td>"
            f"<td>{100 * found.difference:+.2f}</td><td>{100 * found.low:+.2f} to {100 * found.high:+.2f}</td>"
            f"<td>{escape(pair.p_shown)}</td><td>{escape(pair.verdict)}</td></tr>"
        )
    return f"<div class=scroll><table class=pairs>{''.join(rows)}</table></div>"


def figure(groups: dict[str, dict[str, dict[str, float]]], label: str, caption: str) -> str:
    """Two panels, a line a model; bars behind show how many samples each group has."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for of in groups.values() for name in of))
    drawing, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for panel, metric in zip(panels, ("recall@20", "mrr@20"), strict=True):
        samples = next(iter(groups.values()))
        shares = panel.twinx()
        shares.bar(
            range(len(names)), [samples.get(name, {}).get("samples", 0) for name in names], color="#e4e7ec", zorder=0
        )
        shares.set_yticks([])
        shares.set_ylabel("samples (bars)", color="#98a2b3")
        panel.set_zorder(shares.get_zorder() + 1)
        panel.patch.set_visible(False)
        for model, of in groups.items():
            shown = [100 * of[name][metric] if name in of else float("nan") for name in names]
            panel.plot(range(len(names)), shown, marker="o", label=model)
        panel.set_xticks(range(len(names)), names)
        panel.set_xlabel(label)
        panel.set_title(f"{metric}, %")
        panel.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    text = io.StringIO()
    drawing.savefig(text, format="svg", metadata={"Date": None})
    plt.close(drawing)
    svg = text.getvalue()
    return f"<figure>{svg[svg.index('<svg') :]}<figcaption>{escape(caption)}</figcaption></figure>"
