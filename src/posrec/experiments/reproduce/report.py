"""The report as one HTML file that needs nothing else: what held, the tables beside the paper's, the figures."""

from html import escape

from posrec.experiments.compare_report import STYLE
from posrec.experiments.reproduce import sentences as words
from posrec.experiments.reproduce.claims import FAILED, HELD, SHORT, UNCLEAR, Answer, signed
from posrec.experiments.reproduce.figures import encoding_pictures, panels
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES
from posrec.experiments.reproduce.learned_encodings import described
from posrec.experiments.reproduce.paper import METRICS
from posrec.experiments.reproduce.run import Results
from posrec.experiments.reproduce.tables import Line, Table

MORE_STYLE = """
:root { --bad: #b42318; --open: #93370d; --mark-back: #e7f4ef; --bad-back: #fdecea; --open-back: #fdf3e1; }
@media (prefers-color-scheme: dark) { :root { --bad: #fda29b; --open: #fec84b; --mark-back: #12352a;
  --bad-back: #44201d; --open-back: #3d2f12; } }
body { line-height: 1.55; max-width: 80rem; } h1 { margin-bottom: .4rem; }
h2 { border-top: 1px solid var(--line); padding-top: 1.4rem; } a { color: inherit; }
h3 { font-size: 1rem; margin: 1.6rem 0 .5rem; } p, ul { max-width: 52rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 1.2rem 0; font-size: .92rem; }
td small { color: var(--faint); font-size: .8rem; }
td.best small { font-weight: 400; } td .up { color: var(--mark); } td .down { color: var(--bad); }
td { vertical-align: top; line-height: 1.35; } tr.extra td:first-child, td.none { color: var(--faint); }
tr.own td:first-child { font-weight: 700; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--paper); }
.chip { display: inline-block; border-radius: 1rem; padding: .05rem .6rem; font-size: .82rem; white-space: nowrap; }
.held { color: var(--mark); background: var(--mark-back); } .failed { color: var(--bad); background: var(--bad-back); }
.unclear { color: var(--open); background: var(--open-back); }
table.claims td, table.claims th { text-align: left; padding-right: 1.2rem; }
table.claims td:first-child { white-space: normal; min-width: 9rem; }
table.claims td small { display: block; padding-left: .6rem; }
ul.said, ul.said ul { padding-left: 1.1rem; } ul.said li { margin: .35rem 0; } ul.said li li { margin: .1rem 0; }
ul.said li span { color: var(--faint); font-size: .92rem; display: block; }
.side { display: grid; gap: 0 2.5rem; align-items: start; } .side > * { min-width: 0; }
.side .note { width: 0; min-width: 100%; } /* as wide as the table, which sets the column */
@media (min-width: 1100px) { .side { grid-template-columns: max-content 1fr; } .side figure { margin: 0; } }
.panels { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 15rem), 1fr)); }
.wide svg { min-width: 44rem; } details { margin: .8rem 0; } summary { cursor: pointer; color: var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; font-size: .92rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
.warn { border-left: 3px solid var(--bad); padding-left: .8rem; }
@media (max-width: 600px) { body { margin: 1rem auto; } h1 { font-size: 1.35rem; } dl { display: block; }
  dd { margin: 0 0 .6rem; } th, td { font-size: .85rem; } table.claims td:first-child { min-width: 8rem; } }
@media print { :root { color-scheme: light; } body { max-width: none; } figure, tr { break-inside: avoid; } }
"""
ORIGIN = "Where this comes from"
CLASSES = {HELD: "held", FAILED: "failed", UNCLEAR: "unclear"}


def report(results: Results) -> str:
    first, *notes = words.lead(results)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(words.title(results))}</title><style>{STYLE}{MORE_STYLE}</style>",
        f"<h1>{escape(words.title(results))}</h1><p>{escape(first)}</p>",
        *(f"<p class=warn>{escape(sentence)}</p>" for sentence in notes),
        contents(results),
        *claims_part(results),
    ]
    for experiment in EXPERIMENTS.values():
        tables = [table for table in results.tables if table.experiment is experiment]
        if tables:
            parts += [f"<h2 id={experiment.name}>{escape(experiment.title)}</h2><p>{escape(experiment.about)}</p>"]
            parts += [part for table in tables for part in table_part(results, table)]
            if words.has_impossible(tables):
                parts.append(f"<p class=note>{escape(words.IMPOSSIBLE)}</p>")
    if results.shows_encodings:
        parts.append(f"<h2 id=figures>{escape(FIGURES.title)}</h2><p>{escape(FIGURES.about)}</p>")
        if said := described(results):
            lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in said)
            parts.append(f"<p>{escape(words.ALIKE)}</p><ul class=said>{lines}</ul>")
        parts += [f"<h3>{escape(name)}</h3><figure class='wide scroll'>{drawn}</figure>"
                  for name, drawn in encoding_pictures(results)]  # fmt: skip
    parts += [f"<h2 id=origin>{ORIGIN}</h2>", f"<p>{escape(words.METHOD)}</p>", origin_part(results)]
    if results.failures:
        failed = "".join(
            f"<li>{escape(one.cell.name)}<span>{escape(one.error or '')}</span>" for one in results.failures
        )
        parts.append(f"<h3>Trainings that failed</h3><ul class=said>{failed}</ul>")
    return "\n".join(parts) + "\n"


def claims_part(results: Results) -> list[str]:
    """The paper's claims: all at a glance, then each with its evidence."""
    if results.experiment == "figures":
        return []
    columns, rows = words.matrix(results)
    head = "".join(
        f"<th>{escape(results.title(dataset))}<br><small>{SHORT[metric]}</small>" for dataset, metric in columns
    )
    body = "".join(f"<tr><td>{escape(text)}</td>{''.join(map(answer_cell, found))}</tr>" for text, found in rows)
    plainly = "".join(
        f"<li><b>{outcome}</b><ul>{''.join(f'<li>{escape(claim)}</li>' for claim in claims)}</ul></li>"
        for outcome, claims in words.plainly(results)
    )
    parts = ["<h2 id=claims>Which claims of the paper held</h2>", f"<ul class=said>{plainly}</ul>" if plainly else ""]
    said = (*words.nearness(results), *words.beside(results), words.headline(results))
    parts += [f"<p>{escape(sentence)}</p>" for sentence in said]
    if rows:
        parts.append(f"<div class=scroll><table class=claims><tr><th>claim</th>{head}</tr>{body}</table></div>")
        parts.append(f"<p class=note>{escape(words.MEANING)}</p>")
        parts += [f"<p>{escape(sentence)}</p>" for sentence in words.resolution(results)]
    for dataset in results.datasets:
        listed = [evidence_part(results, dataset, verdict) for verdict in words.VERDICTS]
        if any(listed):
            parts.append(
                f"<details><summary>The evidence on {escape(results.title(dataset))}, claim by claim</summary>"
            )
            parts += [*listed, "</details>"]
    return parts


def answer_cell(answer: Answer | None) -> str:
    if answer is None:
        return "<td></td>"
    chip = f"<span class='chip {CLASSES[answer.verdict]}'>{answer.verdict}</span>"
    return f"<td>{chip}<small>{escape(answer.deciding)}</small></td>"


def evidence_part(results: Results, dataset: str, verdict: str) -> str:
    claims = "".join(
        f"<li>{escape(text)}"
        + "".join(f"<span>{SHORT[one.metric]}: {escape(one.evidence)}</span>" for one in answers)
        + "</li>"
        for text, answers in words.grouped(results, dataset, verdict)
    )
    return f"<h3>{words.VERDICTS[verdict]}</h3><ul class=said>{claims}</ul>" if claims else ""


def contents(results: Results) -> str:
    """Links to the parts that there are."""
    there = {table.experiment.name for table in results.tables}
    parts = {} if results.experiment == "figures" else {"claims": "Claims"}
    parts |= {name: experiment.title for name, experiment in EXPERIMENTS.items() if name in there}
    if results.shows_encodings:
        parts["figures"] = FIGURES.title
    links = "".join(f"<a href=#{name}>{escape(title)}</a>" for name, title in {**parts, "origin": ORIGIN}.items())
    return f"<nav>{links}</nav>"


def table_part(results: Results, table: Table) -> list[str]:
    drawn, caption = panels(table)
    compares = any(line.paper for line in table.lines)
    note = "Second line: the paper's figure, and ours minus it." if compares else words.nothing_beside(table)
    head = "".join(f"<th>{SHORT[metric]}" for metric in METRICS)
    body = "".join(table_row(table, line) for line in table.lines)
    parts = [
        f"<h3>{escape(results.title(table.dataset))}</h3><div class=side>",
        f"<div><div class=scroll><table><tr><th>%<th>seeds{head}</tr>{body}</table></div>"
        f"<p class=note>{escape(note)}</p></div>",
    ]
    if drawn:
        parts.append(f"<figure><div class=panels>{''.join(drawn)}</div><figcaption>{caption}</figcaption></figure>")
    parts.append("</div>")
    if table.findings:
        parts.append(findings_part(table))
    return parts


def table_row(table: Table, line: Line) -> str:
    kind = "extra" if line.row.extra else "own" if line.row.label == "PosRec" else ""
    name = escape(line.row.label) + ("<br><small>not in the paper</small>" if line.row.extra else "")
    cells = "".join(figure_cell(table, line, metric) for metric in METRICS)
    return f"<tr class='{kind}'><td>{name}</td><td class=none>{words.status(line)}</td>{cells}</tr>"


def figure_cell(table: Table, line: Line, metric: str) -> str:
    shown, deviation = "", line.deviation(metric)
    if line.outcomes:
        shown = f"{line.mean(metric):.2f}" + (f" <small>±{deviation:.2f}</small>" if deviation is not None else "")
    if metric in line.paper:
        wrong = line.impossible.get(metric)
        mark = f"<span title='{escape(wrong)}'>†</span>" if wrong else ""
        over = line.over_paper(metric)
        more = (
            f" <span class={'up' if round(over, 2) >= 0 else 'down'}>{signed(over)}</span>" if over is not None else ""
        )
        shown += f"<br><small>{line.paper[metric][0]:.2f}{mark}{more}</small>"
    leads = line.outcomes and line.mean(metric) == table.best(metric)
    return f"<td{' class=best' if leads else ''}>{shown}</td>"


def findings_part(table: Table) -> str:
    rows = "".join(
        f"<tr><td>{escape(one.first)} − {escape(one.second)}</td><td>{SHORT[one.metric]}</td>"
        f"<td>{signed(one.difference)}</td>"
        f"<td>{'–' if one.margin == float('inf') else f'±{one.margin:.2f}'}</td>"
        f"<td>{escape(one.p_shown.removeprefix('p = ').removeprefix('p '))}</td>"
        f"<td>{words.shown_words(one)}</td></tr>"
        for one in table.findings
    )
    head = "<th>pair<th>metric<th>difference<th>95 % interval<th>p<th>verdict"
    return (
        f"<details><summary>Which differences are real: {len(table.findings)} comparisons</summary>"
        f"<div class=scroll><table><tr>{head}</tr>{rows}</table></div></details>"
    )


def origin_part(results: Results) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in words.origin(results))
    return f"<dl>{rows}</dl>"
