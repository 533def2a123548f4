"""The report as Markdown: the same words and tables, without the drawings."""

from posrec.experiments.reproduce import sentences as words
from posrec.experiments.reproduce.claims import SHORT, signed
from posrec.experiments.reproduce.grid import EXPERIMENTS, FIGURES
from posrec.experiments.reproduce.learned_encodings import described
from posrec.experiments.reproduce.paper import METRICS
from posrec.experiments.reproduce.run import Results
from posrec.experiments.reproduce.tables import Line, Table


def markdown(results: Results) -> str:
    parts = [f"# {words.title(results)}", *words.lead(results)]
    if results.experiment != "figures":
        parts += ["## Which claims of the paper held"]
        for outcome, claims in words.plainly(results):
            parts.append("\n".join([f"**{outcome}**\n", *(f"- {claim}" for claim in claims)]))
        parts += [*words.nearness(results), *words.beside(results), words.headline(results), *claims_table(results)]
        parts += [words.MEANING, *words.resolution(results)]
        parts += evidence(results)
    for experiment in EXPERIMENTS.values():
        tables = [table for table in results.tables if table.experiment is experiment]
        if tables:
            parts += [f"## {experiment.title}", experiment.about]
            parts += [part for table in tables for part in table_part(results, table)]
            if words.has_impossible(tables):
                parts.append(words.IMPOSSIBLE)
    if results.shows_encodings and (said := described(results)):
        parts += [f"## {FIGURES.title}", f"{FIGURES.about} The heatmaps are in the HTML report.", words.ALIKE]
        parts.append("\n".join(f"- {sentence}" for sentence in said))
    parts += ["## Where this comes from", words.METHOD]
    parts.append("\n".join(f"- {name}: {value}" for name, value in words.origin(results)))
    if results.failures:
        parts += ["### Trainings that failed", "\n".join(f"- {one.cell.name}: {one.error}" for one in results.failures)]
    return "\n\n".join(parts) + "\n"


def claims_table(results: Results) -> list[str]:
    columns, rows = words.matrix(results)
    if not rows:
        return []
    head = ["claim", *(f"{results.title(dataset)} {SHORT[metric]}" for dataset, metric in columns)]
    shown = [[f"{one.verdict}, {one.deciding}" if one else "" for one in found] for _, found in rows]
    return [grid(head, [[text, *cells] for (text, _), cells in zip(rows, shown, strict=True)])]


def evidence(results: Results) -> list[str]:
    parts = []
    for dataset in results.datasets:
        for verdict, shown in words.VERDICTS.items():
            lines = [
                f"- {text}. " + " ".join(f"{SHORT[one.metric]}: {one.evidence}." for one in answers)
                for text, answers in words.grouped(results, dataset, verdict)
            ]
            if lines:
                parts += [f"### {results.title(dataset)}: {shown.lower()}", "\n".join(lines)]
    return parts


def table_part(results: Results, table: Table) -> list[str]:
    compares = any(line.paper for line in table.lines)
    head = ["%", "seeds"]
    for metric in METRICS:
        head += [SHORT[metric], "paper", "difference"] if compares else [SHORT[metric]]
    rows = [[line.row.label, words.status(line), *figures(line, compares)] for line in table.lines]
    parts = [f"### {results.title(table.dataset)}", grid(head, rows)]
    return parts if compares else [*parts, words.nothing_beside(table)]


def figures(line: Line, compares: bool) -> list[str]:
    cells = []
    for metric in METRICS:
        deviation, over = line.deviation(metric), line.over_paper(metric)
        shown = f"{line.mean(metric):.2f}" if line.outcomes else ""
        cells.append(shown + (f" ± {deviation:.2f}" if deviation is not None else ""))
        if compares:
            mark = "†" if metric in line.impossible else ""
            cells.append(f"{line.paper[metric][0]:.2f}{mark}" if metric in line.paper else "")
            cells.append(signed(over) if over is not None else "")
    return cells


def grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
