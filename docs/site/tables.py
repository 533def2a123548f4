"""The tables of measured figures in the pages, made from results/.

    python docs/site/tables.py

It writes every table into its page again; with --check it only prints which pages would change,
and exits with code 1 if any would. A page has `<!-- table: NAME -->` before a table and `<!-- end
-->` after it; TABLES names the function that makes it.
"""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import baseline_tables
import held_out_tables
import peer_tables
import position_tables
import scaling
from page_tables import Table, markdown_table, result

ROOT = Path(__file__).resolve().parents[2]
DATASETS = {"diginetica": "Diginetica", "yoochoose1_64": "Yoochoose 1/64"}
AT_5_AND_10 = ("recall@5", "recall@10", "mrr@5", "mrr@10")
AT_10 = ("recall@10", "mrr@10")
AT_20 = ("recall@20", "mrr@20")
# SGNN-HN, and GraphFine for Yoochoose's recall
PUBLISHED = [55.67, 19.45, 72.64, 32.61]
Row = dict[str, Any]


def reproduced(experiment: str, dataset: str) -> dict[str, Row]:
    """The rows of a table of the report on the paper's experiments, by label."""
    tables = result("reproduction/summary")["tables"]
    table = first_with(tables, {"experiment": experiment, "dataset": dataset})
    rows: dict[str, Row] = table["rows"]
    return rows


def first_with(rows: Iterable[Row], values: Row) -> Row:
    """The first row that has these values."""
    return next(
        row for row in rows if all(row[name] == value for name, value in values.items())
    )


def reproduced_means(label: str, dataset: str) -> dict[str, float]:
    row = reproduced("overall", dataset)[label]
    return {metric: row[metric][0] for metric in (*AT_10, *AT_20)}


def plus_row(name: str, dataset: str) -> Row:
    return first_with(result("posrec_plus")["rows"], {"dataset": dataset, "row": name})


def plus_means(name: str, dataset: str) -> dict[str, float]:
    means: dict[str, float] = plus_row(name, dataset)["mean"]
    return means


def counting_metrics(model: str, dataset: str) -> dict[str, float]:
    """With the default settings, whose row comes first."""
    row = first_with(result("counting")["rows"], {"dataset": dataset, "model": model})
    metrics: dict[str, float] = row["metrics"]
    return metrics


def training_time(model: str, batch_size: str | None = None) -> Row:
    rows: list[Row] = result("training_time")
    return next(
        row
        for row in rows
        if row["model"] == model and row["settings"].get("batch_size") == batch_size
    )


def digits(figures: Iterable[float]) -> list[str]:
    return [f"{figure:.2f}" for figure in figures]


def spread(figures: Sequence[float]) -> str:
    """The mean, and the deviation if it is known."""
    return " ± ".join(digits(figures))


def head_by_dataset(*metrics: str) -> list[str]:
    """The head of a table: the metrics of each dataset, whose name is before the first."""
    short = [metric.replace("recall", "R").replace("mrr", "M") for metric in metrics]
    head = [""]
    for title in DATASETS.values():
        head += [f"{title} {short[0]}", *short[1:]]
    return head


def by_dataset(
    metrics_of: Callable[[str], Mapping[str, Any]], metrics: Sequence[str]
) -> list[Any]:
    """The metrics of each dataset, in the order of the head."""
    figures = []
    for dataset in DATASETS:
        row = metrics_of(dataset)
        figures += [row[metric] for metric in metrics]
    return figures


def headline_accuracy() -> Table:
    """README.md: the models one chooses between."""
    plus = digits(by_dataset(partial(plus_means, "posrec-plus"), AT_20))
    bold = [f"**{cell}**" for cell in plus]
    rows = [head_by_dataset(*AT_20), ["**posrec-plus**, the default", *bold]]
    near = near_models()
    for label, about in (
        ("PosRec", "the paper's model"),
        ("NARM", "the best recall of the paper's baselines on Diginetica, not tuned"),
    ):
        means = by_dataset(partial(reproduced_means, label), AT_20)
        rows.append(as_tuned(near, label.lower(), f"{label}, {about}", means))
    for model, about in (
        ("stan", "STAN, nearest sessions"),
        ("coclick", "coclick, counts without training"),
    ):
        metrics = by_dataset(partial(counting_metrics, model), AT_20)
        rows.append(as_tuned(near, model, about, metrics))
    rows += [as_tuned(near, model, model, []) for model in list(near)]
    return [*rows, ["best published that could be checked", *digits(PUBLISHED)]]


def as_tuned(
    near: dict[str, list[float]], model: str, about: str, figures: list[float]
) -> list[str]:
    """A row of the headline, taken from `near` if the model is there."""
    if model in near:
        return [f"{about}, tuned", *digits(near.pop(model))]
    return [about, *digits(figures)]


def near_models() -> dict[str, list[float]]:
    """The tuned baselines that come within a point of posrec-plus's R@20 on a dataset."""
    near = {}
    ours = by_dataset(partial(plus_means, "posrec-plus"), AT_20)
    for label in tuned_rows():
        figures = by_dataset(partial(tuned_metrics, label), AT_20)
        gaps = [
            our - figure for our, figure in zip(ours[::2], figures[::2], strict=True)
        ]
        if not label.startswith("posrec-plus") and min(gaps) < 1:
            near[label] = figures
    return near


def tuned_rows() -> dict[str, dict[str, Row]]:
    """By model and dataset, what benchmarks.quality.tuned measured, where it has both datasets."""
    names = {
        row["fingerprint"]: row["dataset"] for row in result("posrec_plus")["rows"]
    }
    rows: dict[str, dict[str, Row]] = {}
    for row in result("tuned"):
        label = row["model"] if row["trials"] else f"{row['model']}, defaults"
        rows.setdefault(label, {})[names[row["fingerprint"]]] = row
    return {
        label: found for label, found in rows.items() if found.keys() == DATASETS.keys()
    }


def tuned_metrics(label: str, dataset: str) -> dict[str, float]:
    metrics: dict[str, float] = tuned_rows()[label][dataset]["metrics"]
    return metrics


def tuned() -> Table:
    """N@20 on validation with the default and with the best settings, and the test part."""
    head = ["", "trials"]
    for title in DATASETS.values():
        head += [f"{title} N@20: default", "tuned", "R@20", "M@20"]
    rows = [head]
    for label, found in tuned_rows().items():
        row = [label, f"{found['diginetica']['trials']}"]
        for dataset in DATASETS:
            tuning = found[dataset]["tuning"] or {}
            for name in ("default_value", "value"):
                value = tuning.get(name)
                row.append("" if value is None else f"{100 * value:.2f}")
            metrics = tuned_metrics(label, dataset)
            row += digits(metrics[metric] for metric in AT_20)
        rows.append(row)
    return rows


def headline_speed() -> Table:
    """What the main steps take."""
    seconds = sorted(round(seconds) for seconds in result("command")["seconds"])
    fastest_and_slowest = dict.fromkeys((f"{seconds[0]}", f"{seconds[-1]}"))
    prepared = result("prepare")["contenders"]["clean"]
    served = loads_of("posrec-plus")["1000 a second"]
    step_ratio = f"{result('step')['step_of_peer']:.2f}"
    rows = [
        (
            "an epoch of posrec-plus on Diginetica, 719,470 samples, one H200",
            f"{training_time('posrec-plus')['epoch_seconds']:.2f} s",
            "training_time",
        ),
        (
            "the whole `posrec train` there: "
            "epochs chosen, trained on all sessions, exported, evaluated",
            f"{' to '.join(fastest_and_slowest)} s",
            "command",
        ),
        (
            "a night's training from the night before, Diginetica, posrec-plus",
            night_of_plus(),
            "warm_start",
        ),
        (
            "a training step of PosRec on two CPU cores with AMX, batch 100, Diginetica",
            f"{step_ratio} of the time of SR-GNN's public code, side by side",
            "step",
        ),
        (
            "preparing 33 million clicks, two cores",
            f"{prepared['seconds']:.0f} s, {prepared['times_the_barest']:.1f} times "
            "a bare polars pipeline that only groups them into sessions",
            "prepare",
        ),
        (
            "1,000 requests a second over HTTP, posrec-plus, 43,097 items, "
            "two cores with the client",
            f"p50 {served['p50_ms']:.0f} ms, p90 {served['p90_ms']:.0f} ms",
            "serve",
        ),
    ]
    linked = [
        [step, measured, f"[results/{name}.json](../results/{name}.json)"]
        for step, measured, name in rows
    ]
    return [["what", "measured", "evidence"], *linked]


def night_of_plus() -> str:
    mean = result("warm_start")["models"]["posrec-plus"]["mean"]
    share = f"{100 * mean['share of steps']:.1f} % of the steps from scratch"
    warm, scratch = digits((mean["warm recall@20"], mean["scratch recall@20"]))
    return f"{share}, R@20 {warm} instead of {scratch}"


def models() -> Table:
    head = head_by_dataset("recall@10", "paper", "mrr@10", "paper")
    rows = [[*head, "s an epoch (Diginetica)"]]
    seconds = {
        row["model"]: f"{row['epoch_seconds']:.2f}"
        for row in result("training_time")
        if "batch_size" not in row["settings"]
    }
    for label in reproduced("overall", "diginetica"):
        cells = []
        for dataset in DATASETS:
            row = reproduced("overall", dataset)[label]
            for metric in AT_10:
                paper = f"{row['paper'][metric][0]:.2f}" if row["paper"] else ""
                cells += [spread(row[metric]), paper]
        shown = "GRU4Rec" if label == "GRU4REC" else label
        name = label.lower().replace("-", "")
        rows.append([shown, *cells, seconds.get(name, "")])
    coclick = ["co-click"]
    for figure in digits(by_dataset(partial(counting_metrics, "coclick"), AT_10)):
        coclick += [figure, ""]
    return [*rows, [*coclick, ""]]


def counting_speed() -> Table:
    head = ["", "counting, s", "ranking all, s", "ranking all, processor seconds"]
    rows = [[*head, "one session, ms: median", "p95"]]
    for name, model in result("neighbours")["models"].items():
        ranking = model["evaluate"]
        session = model["one_session"]
        row = [
            name,
            f"{model['count']['seconds']:.2f}",
            f"{ranking['seconds']:.1f}",
            f"{ranking['cpu_seconds']:.1f}",
            f"{session['median_ms']:.2f}",
            f"{session['p95_ms']:.2f}",
        ]
        rows.append(row)
    return rows


def plus_accuracy() -> Table:
    rows = [head_by_dataset(*AT_20)]
    for name in ("posrec-plus", "PosRec", "STAN", "VSKNN", "coclick"):
        cells = []
        for dataset in DATASETS:
            by_seed = plus_row(name, dataset)["by_seed"]
            cells += [spread_of_seeds(by_seed[metric]) for metric in AT_20]
        rows.append([name, *cells])
    return [*rows, ["best published", *digits(PUBLISHED)]]


def spread_of_seeds(figures: Sequence[float]) -> str:
    if len(figures) == 1:
        return spread(figures)
    return spread([fmean(figures), stdev(figures)])


def plus_parts() -> Table:
    """What posrec-plus loses without each of its parts; significant differences are bold."""
    rows = [["removed", *head_by_dataset(*AT_20)[1:]]]
    for record in result("posrec_plus")["rows"]:
        name = record["row"]
        if record["dataset"] != "diginetica" or not name.startswith("without "):
            continue
        row = [name.removeprefix("without ")]
        for dataset in DATASETS:
            tests = plus_row(name, dataset)["lower_than"]
            for metric in AT_20:
                test = tests[metric]
                cell = f"{-test['by']:+.2f} ± {test['margin']:.2f}"
                row.append(f"**{cell}**" if test["p"] < 0.05 else cell)
        rows.append(row)
    return rows


def which_model() -> Table:
    labels = {
        "narm": "NARM",
        "posrec": "PosRec",
        "gru4rec": "GRU4REC",
        "sasrec": "SASRec",
    }
    sources = {"posrec-plus": partial(plus_means, "posrec-plus")}
    for model in ("coclick", "stan", "vsknn"):
        sources[model] = partial(counting_metrics, model)
    for model, label in labels.items():
        sources[model] = partial(reproduced_means, label)
    rows = [head_by_dataset(*AT_10)]
    for model, metrics_of in sources.items():
        rows.append([model, *digits(by_dataset(metrics_of, AT_10))])
    return rows


def marketplace() -> Table:
    """What models find of the next day's clicks."""
    groups = ("known", "rare", "new", "all")
    models = result("marketplace")["models"]
    samples = next(iter(models.values()))["by_novelty"]
    head = [f"{group} ({samples[group]['samples']:,})" for group in groups]
    rows = [["R@20 / M@20 of the next day", *head]]
    for name, figures in models.items():
        cells = []
        for group in groups:
            found = figures["by_novelty"][group]
            cells.append(
                f"{100 * found['recall@20']:.1f} / {100 * found['mrr@20']:.1f}"
            )
        rows.append([name, *cells])
    return rows


def paper_protocol() -> Table:
    rows = [["", "R@5", "R@10", "M@5", "M@10"]]
    for dataset, title in DATASETS.items():
        row = reproduced("overall", dataset)["PosRec"]
        rows.append([title, *(spread(row[metric]) for metric in AT_5_AND_10)])
        paper = [row["paper"][metric][0] for metric in AT_5_AND_10]
        rows.append(["the paper", *digits(paper)])
    return rows


# results/accuracy.json has one seed of these, and the report has several seeds of the others.
CHOICES = {
    "feed-forward of d, not 4d": ("feed_forward", 1),
    "1 head, not 2": ("heads", 1),
    "10 heads": ("heads", 10),
    "no l2": ("l2", 0),
    "l2 of 1e-4, not 1e-5": ("l2", 0.0001),
    "first weights normal of deviation 0.1": ("initialization", "normal"),
    "weights of the graph normalised": ("normalize", True),
    "the latest 69 clicks, not 20": ("max_length", 69),
    "bf16": ("precision", "bf16"),
    "fp32": ("precision", "fp32"),
}
CHOICES_IN_REPORT = {
    "as above": ("overall", "PosRec"),
    "no anchors": ("anchors", "PosRec-ANC"),
    "no positional encoding": ("encodings", "none"),
    "lambda2 of 0.25 (above: 1 and 0.5)": ("sensitivity", "λ2 = 0.25"),
}


def choices() -> Table:
    metrics = {}
    for record in result("accuracy")["records"]:
        for setting, value in record["settings"].items():
            metrics[record["dataset"], setting, value] = record["metrics"]
    single = []
    for name, (setting, value) in CHOICES.items():
        row = [name]
        for dataset in DATASETS:
            of_choice = metrics[dataset, setting, value]
            row += digits(of_choice[metric] for metric in AT_10)
        single.append(row)
    several = []
    for name, (experiment, label) in CHOICES_IN_REPORT.items():
        row = [name]
        for dataset in DATASETS:
            of_label = reproduced(experiment, dataset)[label]
            row += [spread(of_label[metric]) for metric in AT_10]
        several.append(row)
    return [head_by_dataset(*AT_10), several[0], *single, *several[1:]]


def cpu_step() -> Table:
    step = result("step")
    code = "[SR-GNN's public code](https://github.com/CRIPAC-DIG/SR-GNN)"
    names = {
        "a step of PosRec": "step",
        "the same with `precision=fp32`": "step_fp32",
        "the softmax over 43,097 items and Adam for their table alone": "least",
        f"a step of {code}, a smaller model": "peer",
    }
    rows = [
        [name, f"{step[f'{key}_ms']} ms", f"{step[f'{key}_best_ms']} ms"]
        for name, key in names.items()
    ]
    return [["", "median", "best"], *rows]


def training_times() -> Table:
    head = ["Diginetica, one H200, alone", "seconds an epoch, median", "training"]
    rows = [[*head, "with compiling and ranking", "memory", "R@10", "M@10"]]
    for name, row in (
        ("PosRec, batch 100", training_time("posrec")),
        ("PosRec, batch 1,024", training_time("posrec", "1024")),
        ("posrec-plus, `refit`", training_time("posrec-plus")),
    ):
        # The first one may have to compile.
        total = fmean(row["total_seconds"][1:] or row["total_seconds"])
        cells = [
            name,
            f"{row['epoch_seconds']:.2f}",
            f"{fmean(row['training_seconds']):.1f} s",
            f"{total:.0f} s",
            f"{row['peak_gb']:.1f} GB",
        ]
        metrics = [fmean(row["metrics"][metric]) for metric in AT_10]
        rows.append([*cells, *digits(metrics)])
    return rows


def nights() -> Table:
    models = result("warm_start")["models"]
    means = [models[model]["mean"] for model in ("posrec", "posrec-plus")]
    kinds = {
        "from scratch every night": "scratch",
        "started from the night before": "warm",
        "the run of the night before, not trained": "no training",
    }
    rows = [["", "PosRec R@20", "M@20", "posrec-plus R@20", "M@20"]]
    for name, kind in kinds.items():
        figures = [mean[f"{kind} {metric}"] for mean in means for metric in AT_20]
        rows.append([name, *digits(figures)])
    steps = ["steps of a night, as a share of those from scratch"]
    for mean in means:
        steps += [f"{100 * mean['share of steps']:.1f} %", ""]
    return [*rows, steps]


def growth() -> Table:
    sizes = {
        "10,000 items, 10 clicks, 10,000 sessions": (10_000, 10, 10_000),
        "100,000 items": (100_000, 10, 10_000),
        "1,000,000 items": (1_000_000, 10, 10_000),
        "50 clicks": (10_000, 50, 10_000),
        "200 clicks": (10_000, 200, 10_000),
        "100,000 sessions": (10_000, 10, 100_000),
        "1,000,000 sessions": (10_000, 10, 1_000_000),
    }
    rows = [["", "a step", "", "ranking 1,000", ""]]
    cells = result("growth")["cuda"]["cells"]
    for name, (items, length, sessions) in sizes.items():
        cell = cells[f"items={items} length={length} sessions={sessions}"]
        row = [
            name,
            f"{cell['step_ms']:.2f} ms",
            shown_memory(cell["step_mb"]),
            f"{cell['evaluation_ms']:.0f} ms",
            shown_memory(cell["evaluation_mb"]),
        ]
        rows.append(row)
    return rows


def shown_memory(megabytes: float) -> str:
    if megabytes < 1000:
        return f"{megabytes:.0f} MB"
    return f"{megabytes / 1000:.1f} GB"


def large_catalogues() -> Table:
    rows = [["items", "model", "d", "memory", "a step", "a million clicks"]]
    if not (ROOT / "results" / "large_catalogue.json").exists():
        return rows
    for case in result("large_catalogue")["cases"].values():
        row = [
            f"{case['items']:,}",
            case["model"],
            str(case["d"]),
            f"{case['memory_gb']:.1f} GB",
            f"{case['ms_a_step']:.1f} ms",
            f"{case['seconds_a_million_clicks']:.1f} s",
        ]
        rows.append(row)
    return rows


def variety() -> Table:
    head = ["`diversify`", "R@20", "M@20"]
    rows = [[*head, "mean cosine of a list's pairs", "categories in a list"]]
    for name, figures in result("diversify")["diversify"].items():
        row = [
            "`category`" if name == "category" else name,
            f"{figures['recall@20']:.1f}",
            f"{figures['mrr@20']:.1f}",
            f"{figures['similarity']:.3f}",
            f"{figures['categories']:.1f}",
        ]
        rows.append(row)
    return rows


def recommending() -> Table:
    report = result("recommend")
    models = report["models"]
    head = []
    for model in ("posrec-plus", "posrec"):
        head += [f"{model}, ms", "times the unit"]
    rows = [[f"{report['items']:,} items, k = 20", *head]]
    for name in models["posrec-plus"]:
        times = [models[model][name] for model in ("posrec-plus", "posrec")]
        cells = []
        for time in times:
            cells += [f"{time['ms']:.2f}", f"{time['units']:.2f}"]
        rows.append([name, *cells])
    file_ms = 1000 / report["scored_a_second_and_core"]
    return [*rows, ["files, by `posrec score`", f"{file_ms:.2f}", "", "", ""]]


def filters() -> Table:
    report = result("recommend")
    times = report["filters_ms"]
    items = f"{report['large_items']:,} items"
    rows = [[items, "ms a session", "times that without a filter"]]
    for name, ms in times.items():
        rows.append([name, f"{ms:.1f}", f"{ms / times['no filter']:.2f}"])
    return rows


def searches() -> Table:
    head = ["", "best 20 found", "ms a session", "with log Z"]
    rows = [[*head, "error of log Z: mean", "p99", "largest"]]
    for name, search in result("index")["searches"].items():
        recall = f"{100 * search.get('recall@20', 1):.1f} %"
        times = [f"{search['ms']:.2g}", f"{search['ms_with_log_z']:.2g}"]
        errors = [f"{error:.2g}" for error in search["error_of_log_z"].values()]
        rows.append([name, recall, *times, *errors])
    return rows


def serving() -> Table:
    names = {
        "one connection": "one connection",
        "1,000 a second, no error": "1000 a second",
        "64 connections, each sends its next request at once": "saturation",
        "three times as many requests over 2,000 connections: the answered ones": (
            "overload"
        ),
    }
    rows = [["", "requests a second", "p50", "p90", "p99"]]
    for model in ("posrec-plus", "posrec"):
        for name, key in names.items():
            load = loads_of(model)[key]
            rate = "" if key == "overload" else f"{load['per_second']:,.0f}"
            latencies = [f"{load[f'p{percent}_ms']:.1f} ms" for percent in (50, 90, 99)]
            rows.append([f"{model}: {name}", rate, *latencies])
    return rows


def request() -> Table:
    """The processor time of a request to posrec-plus."""
    times = result("recommend")["models"]["posrec-plus"]
    alone = times["one session"]["ms"]
    parts = [times[name]["ms"] for name in ("its network", "its search")]
    (batched,) = [time["ms"] for name, time in times.items() if "in batches" in name]
    loads = loads_of("posrec-plus")
    whole = [
        loads[name]["cpu_ms_a_request"] for name in ("one connection", "saturation")
    ]
    rows = {
        "the network, alone": (parts[0], None),
        "the search, alone": (parts[1], None),
        "`recommend` in one process": (alone, batched),
        "HTTP around it": (whole[0] - alone, whole[1] - batched),
        "together": (whole[0], whole[1]),
    }
    table = [["", "one request at a time", "at saturation"]]
    for name, cells in rows.items():
        shown = ["" if ms is None else f"{ms:.2f} ms" for ms in cells]
        table.append([name, *shown])
    return table


def loads_of(model: str) -> Row:
    loads: Row = result("serve")["models"][model]["loads"]
    return loads


def faults() -> str:
    """A list item for each part that was run, one sentence a line, with what was counted below."""
    lines = []
    for name, part in result("faults")["parts"].items():
        steps = part.get("done", part.get("requests"))
        lost = "errors" if name == "soak" else "dropped"
        failed = part.get("failed", part.get(lost))
        note = NOTES[name](part) if name in NOTES else ""
        text = f"{part['about']} Of {steps:,} steps {failed:,} failed. {note}".rstrip()
        sentences = re.split(r"(?<=\.) (?=[A-Z0-9`])", text)
        counted = part.get(COUNTED.get(name, "outcomes"), {})
        counts = [f"- {number:,} × {outcome}" for outcome, number in counted.items()]
        lines += [f"- **`{name}`**:", *indented(sentences), *indented(counts)]
    return "\n".join(lines)


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def overload_note(part: Row) -> str:
    middle = part["middle_round"]
    rounds = part["p99_ms_of_rounds"]
    return (
        f"Of {part['rate']:,} requests a second "
        f"{part['capacity_per_second']:,} could be answered. "
        f"{part['answered']:,} were answered, and all others were refused with 503. "
        f"The middle one of five rounds had p50 {middle['p50_ms']:.0f} ms "
        f"and p99 {middle['p99_ms']:.0f} ms. "
        f"p99 was between {rounds[0]:.0f} and {rounds[-1]:.0f} ms."
    )


def retries_note(part: Row) -> str:
    rates = [
        f"{round(median(figures)):,} with {clients} connections"
        for clients, figures in part["answered_per_second"].items()
    ]
    return f"Answered a second, the middle one of three rounds: {', '.join(rates)}."


def greedy_note(part: Row) -> str:
    latencies = [
        f"Beside {kind}, p99 was {beside:.0f} ms instead of {before:.0f} ms."
        for kind, (before, beside) in part["p99_ms"].items()
    ]
    growth = f"Memory grew by at most {part['memory_growth_mb']} MB."
    return " ".join([*latencies, growth])


def beside_note(part: Row) -> str:
    latencies = [
        f"{kind} {load['p99_ms']:,.0f} ms" for kind, load in part["kinds"].items()
    ]
    return (
        f"p99 beside {', '.join(latencies)}. {part['errors']:,} were refused with 503. "
        f"Memory was at most {part['most_memory_mb']:,} MB."
    )


def soak_note(part: Row) -> str:
    memory = [sample["memory_mb"] for sample in part["series"]]
    files = [sample["files"] for sample in part["series"]]
    return (
        f"p50 was {part['p50_ms']:,.0f} ms and p99 {part['p99_ms']:,.0f} ms "
        f"over {part['seconds'] / 60:.0f} minutes. "
        f"Memory of all processes went from {memory[0]:,.0f} to {memory[-1]:,.0f} MB, "
        f"at most {max(memory):,.0f}. "
        f"At most {max(files)} files were open."
    )


# What was counted, by its key in results/faults.json; `outcomes` for all others.
COUNTED = {
    "java": "requests",
    "limits": "answers",
    "workers": "",
    "slow": "",
    "greedy": "",
}
NOTES: dict[str, Callable[[Row], str]] = {
    "requests": lambda part: (
        f"There were {part['tracebacks']} tracebacks in the log "
        f"and {part['memory_growth_mb']} MB more memory."
    ),
    "slow": lambda part: (
        f"{part['cut_off']:,} slow clients were cut off, "
        f"and {part['plain_requests']:,} answers were right. "
        f"The slowest took {part['slowest_ms']:,} ms; "
        f"memory grew by {part['memory_growth_mb']} MB."
    ),
    "workers": lambda part: (
        f"Every worker was replaced; {part['requests_lost']} requests, "
        "which were in flight, were lost."
    ),
    "clock": lambda part: (
        f"All {part['feedback_rows']:,} rows of feedback were on disk. "
        f"The slowest plain request took {part['slowest_ms']:,} ms."
    ),
    "feedback": lambda part: (
        f"Of {part['sent_mb']} MB that were sent, {part['written_mb']} MB were written; "
        f"all {part['rows']:,} confirmed rows are on disk."
    ),
    "deny": lambda part: (
        f"The file of {part['file_mb']} MB was read within {part['most_seconds']} s. "
        f"Memory rose from {part['memory_mb']} to at most {part['most_memory_mb']} MB. "
        f"The slowest request took {part['slowest_ms']:,} ms."
    ),
    "store": lambda part: (
        f"The slowest request without a stored session took {part['slowest_ms']} ms."
    ),
    "replicas": lambda part: (
        f"Of {part['requests']:,} requests nginx sent {part['retried_by_nginx']} "
        "to the other replica. "
        f"Clients sent {part['clicks_sent_again']} clicks again, "
        f"of which {part['clicks_stored_twice']} were stored twice."
    ),
    "overload": overload_note,
    "retries": retries_note,
    "greedy": greedy_note,
    "beside": beside_note,
    "soak": soak_note,
}


def scaling_table(name: str) -> Callable[[], Table]:
    return lambda: scaling.tables(scaling.Assumptions())[name]


TABLES: dict[str, dict[str, Callable[[], Table | str]]] = {
    "README.md": {"accuracy": headline_accuracy},
    "docs/models.md": {
        "models": models,
        "choices": baseline_tables.choices,
        "tuned": tuned,
    },
    "docs/models_baselines.md": {"beside the authors": baseline_tables.beside_authors},
    "docs/models_plus.md": {
        "accuracy": plus_accuracy,
        "held out": held_out_tables.held_out,
        "parts": plus_parts,
    },
    "docs/positions.md": {
        "posrec": position_tables.of_posrec,
        "posrec-plus": position_tables.of_posrec_plus,
        "gains": position_tables.gains,
        "demo": position_tables.of_demo,
    },
    "docs/which_model.md": {"accuracy": which_model},
    "docs/performance.md": {
        "speed": headline_speed,
        "protocol": paper_protocol,
        "choices": choices,
        "cpu step": cpu_step,
        "training": training_times,
        "nights": nights,
        "growth": growth,
        "recommending": recommending,
        "filters": filters,
        "variety": variety,
        "counting speed": counting_speed,
        "serving": serving,
        "request": request,
        "searches": searches,
    },
    "docs/new_items.md": {"marketplace": marketplace},
    "docs/peers.md": {
        "own settings": peer_tables.own_settings,
        "costs": peer_tables.costs,
        "equal settings": peer_tables.equal_settings,
    },
    "docs/reliability.md": {"faults": faults},
    "docs/scaling.md": {
        "large catalogues": large_catalogues,
        **{name: scaling_table(name) for name in scaling.TABLES},
    },
}


def sentences() -> dict[str, list[str]]:
    """Figures in running text, as the pages must show them."""
    rows = [reproduced("overall", dataset)["PosRec"] for dataset in DATASETS]
    ours = digits(row["recall@10"][0] for row in rows)
    papers = digits(row["paper"]["recall@10"][0] for row in rows)
    with_attributes = result("new_items")["models"]["with"]
    unseen = with_attributes["new"]["recall@20"][0]
    return {
        "README.md": [
            f"R@10 of {ours[0]} and {ours[1]}; the paper has {papers[0]} and {papers[1]}"
        ],
        "docs/which_model.md": [f"finds {unseen:.0f} % of clicks on unseen items"],
    }


def as_markdown(content: Table | str) -> str:
    return content if isinstance(content, str) else markdown_table(content)


def filled(page: str, text: str) -> str:
    """The page's text with each of its tables made again."""
    for name, make in TABLES[page].items():
        marks = rf"(?<=<!-- table: {name} -->\n\n).*?(?=\n\n<!-- end -->)"
        places = list(re.finditer(marks, text, re.DOTALL))
        if len(places) != 1:
            raise SystemExit(f"{page} has {len(places)} places for the table {name!r}")
        start, end = places[0].span()
        text = text[:start] + as_markdown(make()) + text[end:]
    return text


def outdated() -> list[str]:
    """A line for each page with a table, and for each sentence, that differs from results/."""
    lines = []
    for page in TABLES:
        text = (ROOT / page).read_text(encoding="utf-8")
        if filled(page, text) != text:
            lines.append(
                f"{page}: a table differs from results/; run python docs/site/tables.py"
            )
    for page, page_sentences in sentences().items():
        words = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for sentence in page_sentences:
            if sentence not in words:
                lines.append(f"{page} does not say {sentence!r}")
    return lines


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        for page in TABLES:
            path = ROOT / page
            text = filled(page, path.read_text(encoding="utf-8"))
            path.write_text(text, encoding="utf-8")
    if lines := outdated():
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
