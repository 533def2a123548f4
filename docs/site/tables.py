"""The tables of measured figures in the pages, made from results/.

    python docs/site/tables.py             writes every table into its page again
    python docs/site/tables.py --check     only says which pages would change, and exits with code 1 if any would

A page has `<!-- table: NAME -->` before a table and `<!-- end -->` after it; TABLES names the
function that makes it. SENTENCES are figures in running text: a page that lacks one is named too.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import peer_tables
import scaling
from page_tables import markdown_table

ROOT = Path(__file__).resolve().parents[2]
DATASETS = {"diginetica": "Diginetica", "yoochoose1_64": "Yoochoose 1/64"}
AT_5_AND_10 = ("recall@5", "recall@10", "mrr@5", "mrr@10")
AT_10 = ("recall@10", "mrr@10")
AT_20 = ("recall@20", "mrr@20")
PUBLISHED = [
    55.67,
    19.45,
    72.64,
    32.61,
]  # SGNN-HN, and GraphFine for Yoochoose's recall
Table = list[list[str]]
Row = dict[str, Any]


@cache
def result(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def reproduced(experiment: str, dataset: str) -> dict[str, Row]:
    """The rows of a table of the report on the paper's experiments, by label."""
    tables = result("reproduction/summary")["tables"]
    return next(
        one["rows"]
        for one in tables
        if (one["experiment"], one["dataset"]) == (experiment, dataset)
    )


def plus_row(dataset: str, name: str) -> Row:
    return next(
        row
        for row in result("posrec_plus")["rows"]
        if (row["dataset"], row["row"]) == (dataset, name)
    )


def counting_metrics(dataset: str, model: str) -> dict[str, float]:
    """Those of the default settings, whose row comes first."""
    return next(
        row["metrics"]
        for row in result("counting")["rows"]
        if (row["dataset"], row["model"]) == (dataset, model)
    )


def training_time(model: str, batch_size: str | None = None) -> Row:
    rows = result("training_time")
    return next(
        row
        for row in rows
        if (row["model"], row["settings"].get("batch_size")) == (model, batch_size)
    )


def digits(figures: Iterable[float]) -> list[str]:
    return [f"{figure:.2f}" for figure in figures]


def spread(figures: Sequence[float]) -> str:
    """Mean, and deviation where there is one."""
    return " ± ".join(digits(figures))


def by_dataset(*metrics: str) -> list[str]:
    """The head of a table: the metrics of each dataset, whose name stands before the first."""
    short = [metric.replace("recall", "R").replace("mrr", "M") for metric in metrics]
    return [
        "",
        *(
            cell
            for title in DATASETS.values()
            for cell in (f"{title} {short[0]}", *short[1:])
        ),
    ]


def headline_accuracy() -> Table:
    """README.md: the models one chooses between."""
    plus = [
        plus_row(dataset, "posrec-plus")["mean"][metric]
        for dataset in DATASETS
        for metric in AT_20
    ]
    rows = [
        by_dataset(*AT_20),
        ["**posrec-plus**, the default", *(f"**{cell}**" for cell in digits(plus))],
    ]
    for label, about in (
        ("PosRec", "the paper's model"),
        ("NARM", "the best recall of the paper's baselines on Diginetica"),
    ):
        means = [
            reproduced("overall", dataset)[label][metric][0]
            for dataset in DATASETS
            for metric in AT_20
        ]
        rows.append([f"{label}, {about}", *digits(means)])
    for model, about in (
        ("stan", "STAN, nearest sessions"),
        ("coclick", "coclick, counts without training"),
    ):
        rows.append(
            [
                about,
                *digits(
                    counting_metrics(name, model)[metric]
                    for name in DATASETS
                    for metric in AT_20
                ),
            ]
        )
    return [*rows, ["best published on these splits", *digits(PUBLISHED)]]


def headline_speed() -> Table:
    """What the main steps take."""
    warm = sorted(round(seconds) for seconds in result("command")["seconds"])
    prepared = result("prepare")["contenders"]["clean"]
    served = result("serve")["loads"]["1000 a second"]
    rows = [
        (
            "an epoch of posrec-plus on Diginetica, 719,470 samples, one H200",
            f"{training_time('posrec-plus')['epoch_seconds']:.2f} s",
            "training_time",
        ),
        (
            "the whole `posrec train` there: epochs chosen, trained on all sessions, exported, evaluated",
            f"{' to '.join(dict.fromkeys(map(str, (warm[0], warm[-1]))))} s",
            "command",
        ),
        (
            "a night's training from the night before, Diginetica, posrec-plus",
            night_of_plus(),
            "warm_start",
        ),
        (
            "a training step of PosRec on two CPU cores with AMX, batch 100, Diginetica",
            f"{result('step')['step_of_peer']:.2f} of the time of SR-GNN's public code, side by side",
            "step",
        ),
        (
            "preparing 33 million clicks, two cores",
            f"{prepared['seconds']:.0f} s, {prepared['times_the_barest']:.1f} times a bare polars pipeline that only "
            "groups them into sessions",
            "prepare",
        ),
        (
            "1,000 requests a second over HTTP, 43,097 items, two cores with the client",
            f"p50 {served['p50_ms']:.0f} ms, p90 {served['p90_ms']:.0f} ms",
            "serve",
        ),
    ]
    linked = [
        [what, measured, f"[results/{name}.json](../results/{name}.json)"]
        for what, measured, name in rows
    ]
    return [["what", "measured", "evidence"], *linked]


def night_of_plus() -> str:
    mean = result("warm_start")["models"]["posrec-plus"]["mean"]
    share = f"{100 * mean['share of steps']:.1f} % of the steps from scratch"
    return f"{share}, R@20 {mean['warm recall@20']:.2f} instead of {mean['scratch recall@20']:.2f}"


def models() -> Table:
    head = by_dataset("recall@10", "paper", "mrr@10", "paper")
    rows = [[*head, "s an epoch (Diginetica)"]]
    seconds = {
        row["model"]: f"{row['epoch_seconds']:.2f}"
        for row in result("training_time")
        if "batch_size" not in row["settings"]
    }
    for label in reproduced("overall", "diginetica"):
        cells = []
        for row in (reproduced("overall", dataset)[label] for dataset in DATASETS):
            for metric in AT_10:
                cells += [
                    spread(row[metric]),
                    f"{row['paper'][metric][0]:.2f}" if row["paper"] else "",
                ]
        name = label.lower().replace("-", "")
        rows.append(
            [{"GRU4REC": "GRU4Rec"}.get(label, label), *cells, seconds.get(name, "")]
        )
    coclick = [
        counting_metrics(dataset, "coclick")[metric]
        for dataset in DATASETS
        for metric in AT_10
    ]
    return [
        *rows,
        [
            "co-click",
            *(cell for figure in digits(coclick) for cell in (figure, "")),
            "",
        ],
    ]


def counting_speed() -> Table:
    rows = [
        [
            "",
            "counting, s",
            "ranking all, s",
            "ranking all, processor seconds",
            "one session, ms: median",
            "p95",
        ]
    ]
    for name, one in result("neighbours")["models"].items():
        ranking = one["evaluate"]
        session = one["one_session"]
        times = [
            f"{one['count']['seconds']:.2f}",
            f"{ranking['seconds']:.1f}",
            f"{ranking['cpu_seconds']:.1f}",
        ]
        rows.append(
            [name, *times, f"{session['median_ms']:.2f}", f"{session['p95_ms']:.2f}"]
        )
    return rows


def plus_accuracy() -> Table:
    rows = [by_dataset(*AT_20)]
    for name in ("posrec-plus", "PosRec", "STAN", "VSKNN", "coclick"):
        seeds = [
            plus_row(dataset, name)["by_seed"][metric]
            for dataset in DATASETS
            for metric in AT_20
        ]
        cells = [
            spread([fmean(one), stdev(one)] if len(one) > 1 else one) for one in seeds
        ]
        rows.append([name, *cells])
    return [*rows, ["best published", *digits(PUBLISHED)]]


def plus_parts() -> Table:
    rows = [["removed", *by_dataset(*AT_20)[1:]]]
    for name in (
        row["row"]
        for row in result("posrec_plus")["rows"]
        if row["dataset"] == "diginetica"
    ):
        if name.startswith("without "):
            tests = [
                plus_row(dataset, name)["lower_than"][metric]
                for dataset in DATASETS
                for metric in AT_20
            ]
            cells = [
                (f"{-one['by']:+.2f} ± {one['margin']:.2f}", one["p"] < 0.05)
                for one in tests
            ]
            rows.append(
                [
                    name.removeprefix("without "),
                    *(f"**{text}**" if sure else text for text, sure in cells),
                ]
            )
    return rows


def which_model() -> Table:
    labels = {
        "narm": "NARM",
        "posrec": "PosRec",
        "gru4rec": "GRU4REC",
        "sasrec": "SASRec",
    }
    rows = [by_dataset(*AT_10)]
    for model in ("posrec-plus", "coclick", "stan", "vsknn", *labels):
        cells = []
        for dataset in DATASETS:
            if model == "posrec-plus":
                metrics = plus_row(dataset, model)["mean"]
            elif model in labels:
                metrics = {
                    metric: reproduced("overall", dataset)[labels[model]][metric][0]
                    for metric in AT_10
                }
            else:
                metrics = counting_metrics(dataset, model)
            cells += digits(metrics[metric] for metric in AT_10)
        rows.append([model, *cells])
    return rows


def paper_protocol() -> Table:
    rows = [["", "R@5", "R@10", "M@5", "M@10"]]
    for dataset, title in DATASETS.items():
        row = reproduced("overall", dataset)["PosRec"]
        rows.append([title, *(spread(row[metric]) for metric in AT_5_AND_10)])
        rows.append(
            ["the paper", *digits(row["paper"][metric][0] for metric in AT_5_AND_10)]
        )
    return rows


# What results/accuracy.json has one seed of, and what the report has more seeds of.
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
    metrics = {(one["dataset"], *setting): one["metrics"] for one in result("accuracy")["records"]
             for setting in one["settings"].items() if setting[0] != "lambda2"}  # fmt: skip
    single = [
        [
            name,
            *digits(
                metrics[dataset, *setting][metric]
                for dataset in DATASETS
                for metric in AT_10
            ),
        ]
        for name, setting in CHOICES.items()
    ]
    first, *others = (
        [
            name,
            *(
                spread(reproduced(experiment, dataset)[label][metric])
                for dataset in DATASETS
                for metric in AT_10
            ),
        ]
        for name, (experiment, label) in CHOICES_IN_REPORT.items()
    )
    return [by_dataset(*AT_10), first, *single, *others]


def cpu_step() -> Table:
    step = result("step")
    peer = "a step of [SR-GNN's public code](https://github.com/CRIPAC-DIG/SR-GNN), a smaller model"
    names = {
        "a step of PosRec": "step",
        "the same with `precision=fp32`": "step_fp32",
        "the softmax over 43,097 items and Adam for their table alone": "least",
        peer: "peer",
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
        total = fmean(row["total_seconds"][1:] or row["total_seconds"])
        times = [
            f"{row['epoch_seconds']:.2f}",
            f"{fmean(row['training_seconds']):.1f} s",
            f"{total:.0f} s",
        ]
        rows.append(
            [
                name,
                *times,
                f"{row['peak_gb']:.1f} GB",
                *digits(fmean(row["metrics"][one]) for one in AT_10),
            ]
        )
    return rows


def nights() -> Table:
    means = [
        result("warm_start")["models"][model]["mean"]
        for model in ("posrec", "posrec-plus")
    ]
    kinds = {
        "from scratch every night": "scratch",
        "started from the night before": "warm",
        "the run of the night before, not trained": "no training",
    }
    rows = [
        [name, *digits(mean[f"{kind} {metric}"] for mean in means for metric in AT_20)]
        for name, kind in kinds.items()
    ]
    shares = [
        cell for mean in means for cell in (f"{100 * mean['share of steps']:.1f} %", "")
    ]
    head = ["", "PosRec R@20", "M@20", "posrec-plus R@20", "M@20"]
    return [
        head,
        *rows,
        ["steps of a night, as a share of those from scratch", *shares],
    ]


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
    for name, (items, length, sessions) in sizes.items():
        cell = result("growth")["cuda"]["cells"][
            f"items={items} length={length} sessions={sessions}"
        ]
        memory = [f"{cell[key]:.0f} MB" if cell[key] < 1000 else f"{cell[key] / 1000:.1f} GB"
                  for key in ("step_mb", "evaluation_mb")]  # fmt: skip
        rows.append(
            [
                name,
                f"{cell['step_ms']:.2f} ms",
                memory[0],
                f"{cell['evaluation_ms']:.0f} ms",
                memory[1],
            ]
        )
    return rows


def large_catalogues() -> Table:
    rows = [["items", "model", "d", "memory", "a step", "a million clicks"]]
    cases = (
        result("large_catalogue")["cases"]
        if (ROOT / "results" / "large_catalogue.json").exists()
        else {}
    )
    for one in cases.values():
        times = [
            f"{one['ms_a_step']:.1f} ms",
            f"{one['seconds_a_million_clicks']:.1f} s",
        ]
        rows.append(
            [
                f"{one['items']:,}",
                one["model"],
                str(one["d"]),
                f"{one['memory_gb']:.1f} GB",
                *times,
            ]
        )
    return rows


def variety() -> Table:
    rows = [
        [
            "`diversify`",
            "R@20",
            "M@20",
            "mean cosine of a list's pairs",
            "categories in a list",
        ]
    ]
    for name, one in result("diversify")["diversify"].items():
        figures = [
            f"{one['recall@20']:.1f}",
            f"{one['mrr@20']:.1f}",
            f"{one['similarity']:.3f}",
        ]
        rows.append(
            [
                f"`{name}`" if name == "category" else name,
                *figures,
                f"{one['categories']:.1f}",
            ]
        )
    return rows


def recommending() -> Table:
    found = result("recommend")
    rows = [
        ["43,097 items, k = 20", "ONNX Runtime, ms a session", "torch, ms a session"]
    ]
    for name, times in found["milliseconds_a_session"].items():
        rows.append([name, *(f"{times[engine]:.2g}" for engine in ("onnx", "torch"))])
    return [
        *rows,
        [
            "files, by `posrec score`",
            "",
            f"{1000 / found['scored_a_second_and_core']:.2g}",
        ],
    ]


def filters() -> Table:
    found = result("recommend")
    times = found["filters_ms"]
    rows = [
        [name, f"{ms:.1f}", f"{ms / times['no filter']:.2f}"]
        for name, ms in times.items()
    ]
    return [
        [
            f"{found['large_items']:,} items",
            "ms a session",
            "times that without a filter",
        ],
        *rows,
    ]


def searches() -> Table:
    rows = [
        [
            "",
            "best 20 found",
            "ms a session",
            "with log Z",
            "error of log Z: mean",
            "p99",
            "largest",
        ]
    ]
    for name, one in result("index")["searches"].items():
        found = f"{100 * one.get('recall@20', 1):.1f} %"
        errors = [f"{figure:.2g}" for figure in one["error_of_log_z"].values()]
        rows.append(
            [name, found, f"{one['ms']:.2g}", f"{one['ms_with_log_z']:.2g}", *errors]
        )
    return rows


def serving() -> Table:
    names = {
        "one connection": "one connection",
        "1,000 a second, no error": "1000 a second",
        "64 connections, each sends its next request at once": "saturation",
        "three times as many requests over 2,000 connections: the answered ones": "overload",
    }
    rows = [["", "requests a second", "p50", "p90", "p99"]]
    for name, key in names.items():
        load = result("serve")["loads"][key]
        rate = "" if key == "overload" else f"{load['per_second']:,}"
        rows.append(
            [name, rate, *(f"{load[f'p{share}_ms']:.1f} ms" for share in (50, 90, 99))]
        )
    return rows


def faults() -> str:
    """A list item for each part that was run, one sentence a line, with what was counted below."""
    lines = []
    for name, part in result("faults")["parts"].items():
        steps = part.get("done", part.get("requests"))
        failed = part.get("failed", part.get("errors" if name == "soak" else "dropped"))
        note = NOTES[name](part) if name in NOTES else ""
        text = f"{part['about']} Of {steps:,} steps {failed:,} failed. {note}".rstrip()
        lines += [
            f"- **`{name}`**",
            *indented(re.split(r"(?<=\.) (?=[A-Z0-9`])", text)),
        ]
        counted = part.get(COUNTED.get(name, "outcomes"), {})
        lines += indented(
            f"- {number:,} × {outcome}" for outcome, number in counted.items()
        )
    return "\n".join(lines)


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def overload_note(part: Row) -> str:
    middle = part["middle_round"]
    rounds = part["p99_ms_of_rounds"]
    return (
        f"Of {part['rate']:,} requests a second {part['capacity_per_second']:,} could be answered. "
        f"{part['answered']:,} were answered, and all others were refused with 503. "
        f"The middle one of five rounds had p50 {middle['p50_ms']:.0f} ms and p99 {middle['p99_ms']:.0f} ms. "
        f"p99 was between {rounds[0]:.0f} and {rounds[-1]:.0f} ms."
    )


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
        f"p50 was {part['p50_ms']:,.0f} ms and p99 {part['p99_ms']:,.0f} ms over {part['seconds'] / 60:.0f} minutes. "
        f"Memory of all processes went from {memory[0]:,.0f} to {memory[-1]:,.0f} MB, at most {max(memory):,.0f}. "
        f"At most {max(files)} files were open."
    )


# What was counted, by its key in results/faults.json; `outcomes` for all others.
COUNTED = {"java": "requests", "limits": "answers", "workers": "", "slow": ""}
NOTES: dict[str, Callable[[Row], str]] = {
    "requests": lambda part: (
        f"There were {part['tracebacks']} tracebacks in the log and {part['memory_growth_mb']} MB more memory."
    ),
    "slow": lambda part: (
        f"{part['cut_off']:,} slow clients were cut off, and {part['plain_requests']:,} answers were right. "
        f"The slowest took {part['slowest_ms']:,} ms; memory grew by {part['memory_growth_mb']} MB."
    ),
    "workers": lambda part: (
        f"Every worker was replaced; {part['requests_lost']} requests, which were in flight, were lost."
    ),
    "clock": lambda part: (
        f"All {part['feedback_rows']:,} rows of feedback were on disk. "
        f"The slowest plain request took {part['slowest_ms']:,} ms."
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
        f"Of {part['requests']:,} requests nginx sent {part['retried_by_nginx']} to the other replica. "
        f"Clients sent {part['clicks_sent_again']} clicks again, "
        f"of which {part['clicks_stored_twice']} were stored twice."
    ),
    "overload": overload_note,
    "beside": beside_note,
    "soak": soak_note,
}


def scaling_table(name: str) -> Callable[[], Table]:
    return lambda: scaling.tables(scaling.Assumptions())[name]


TABLES: dict[str, dict[str, Callable[[], Table | str]]] = {
    "README.md": {"accuracy": headline_accuracy},
    "docs/models.md": {"models": models},
    "docs/models_plus.md": {"accuracy": plus_accuracy, "parts": plus_parts},
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
        "searches": searches,
    },
    "docs/peers.md": {
        "equal settings": peer_tables.equal_settings,
        "diginetica": partial(peer_tables.everything, "diginetica"),
        "demo": partial(peer_tables.everything, "demo"),
    },
    "docs/reliability.md": {"faults": faults},
    "docs/scaling.md": {
        "large catalogues": large_catalogues,
        **{name: scaling_table(name) for name in scaling.TABLES},
    },
}


def sentences() -> dict[str, list[str]]:
    """Figures in running text, as the pages must show them."""
    posrec = [reproduced("overall", dataset)["PosRec"] for dataset in DATASETS]
    ours, papers = (digits(figures) for figures in zip(*((row["recall@10"][0], row["paper"]["recall@10"][0])
                                                          for row in posrec), strict=True))  # fmt: skip
    return {
        "README.md": [
            f"R@10 of {ours[0]} and {ours[1]}; the paper has {papers[0]} and {papers[1]}"
        ],
        "docs/which_model.md": [
            f"finds {result('new_items')['models']['with']['new']['recall@20'][0]:.0f} % of clicks on unseen items",
        ],
    }


def as_markdown(content: Table | str) -> str:
    return content if isinstance(content, str) else markdown_table(content)


def filled(page: str, text: str) -> str:
    """The page's text with each of its tables made again."""
    for name, make in TABLES[page].items():
        marks = rf"(<!-- table: {name} -->\n\n).*?(\n\n<!-- end -->)"
        text, places = re.subn(
            marks,
            lambda match, make=make: f"{match[1]}{as_markdown(make())}{match[2]}",
            text,
            flags=re.S,
        )
        if places != 1:
            raise SystemExit(f"{page} has {places} places for the table {name!r}")
    return text


def outdated() -> list[str]:
    """What pages show that results/ does not have, a line each."""
    lines = [
        f"{page}: a table differs from results/; run python docs/site/tables.py"
        for page in TABLES
        if filled(page, text := (ROOT / page).read_text(encoding="utf-8")) != text
    ]
    return lines + [
        f"{page} does not say {sentence!r}"
        for page, wanted in sentences().items()
        for sentence in wanted
        if sentence not in " ".join((ROOT / page).read_text(encoding="utf-8").split())
    ]


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        for page in TABLES:
            path = ROOT / page
            path.write_text(
                filled(page, path.read_text(encoding="utf-8")), encoding="utf-8"
            )
    if lines := outdated():
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
