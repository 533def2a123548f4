"""The commands that recommend with a run: for one session, `recommend`; for a file, `score`."""

import json
import re
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from posrec.cli.options import (
    LOCAL,
    Address,
    CreatedColumn,
    Device,
    EncodingOption,
    Engine,
    ExpiresColumn,
    ItemsFile,
    Json,
    ModelOption,
    Overwrite,
    RunFolder,
    Threads,
    Workers,
)
from posrec.cli.printing import console, say, show, warn
from posrec.device import usable_cores
from posrec.errors import InputError, plural
from posrec.progress import TerminalProgress

if TYPE_CHECKING:
    from posrec.recommend.plan import AnswerRules

K = Annotated[int | None, Option("-k", help="How many items; 20 by default.")]
Allow = Annotated[
    Path | None, Option(help="Recommend only these items: a file with one id per line.")
]
Deny = Annotated[
    Path | None,
    Option(help="Never recommend these items: a file with one id per line."),
]
Exclude = Annotated[
    str | None,
    Option(
        help="current: leave out the item of the last click; seen: every item of the session."
    ),
]
ExcludeSeen = Annotated[
    bool, Option("--exclude-seen", help="The same as --exclude seen.")
]
FilterOption = Annotated[
    list[str] | None,
    Option(
        help="COLUMN=VALUE,VALUE or COLUMN!=VALUE,VALUE, COLUMN<NUMBER (also <= > >=), or JSON. "
        "Can be repeated.",
    ),
]
Pin = Annotated[list[str] | None, Option(help="Put this item first. Can be repeated.")]
Boost = Annotated[
    list[str] | None,
    Option(
        help="COLUMN=VALUE:FACTOR, a factor for the items' chances. Can be repeated."
    ),
]
Diversify = Annotated[
    str | None,
    Option(
        help="From 0 to 1: prefer items that differ; or a column: one item of each value; "
        "COLUMN:2 at most two."
    ),
]
Explore = Annotated[
    float | None,
    Option(
        help="The share of places for new items that the model knows by their attributes; "
        "such as 0.05."
    ),
]
ExploreDays = Annotated[
    float | None,
    Option(help="For how many days after it was created an item is new; 7 by default."),
]
Now = Annotated[
    str | None,
    Option(help="The date and time by which items expire; the clock's by default."),
]
Fields = Annotated[
    str | None, Option(help="Columns to show with each item, with commas between them.")
]

CONDITION = re.compile(
    r"(?P<column>[^=<>!]+)(?P<sign><=|>=|!=|<|>|=)(?P<value>.*)", re.DOTALL
)
AS_GIVEN = ("exclude", "exclude_seen", "pin", "explore", "explore_days", "now")
BOUNDS = {"<=": "max", ">=": "min", "<": "below", ">": "above"}


def answer_rules(options: dict[str, Any]) -> "AnswerRules":
    """The options of `Recommender.recommend`, from those of the command."""
    fields = options["fields"]
    rules: Any = {name: options[name] for name in AS_GIVEN}
    rules |= {
        "filter": parse_filters(options["filter"] or []),
        "boost": parse_boosts(options["boost"] or []),
        "diversify": parse_diversify(options["diversify"]),
        "fields": None if fields is None else fields.split(","),
        "allow": listed_ids(options["allow"], options["run"], options["items"]),
        "deny": listed_ids(options["deny"], options["run"], options["items"]),
    }
    return rules  # type: ignore[no-any-return]


def recommend(
    context: Context,
    run: RunFolder,
    item: list[str] | None = Argument(
        None, help="The session: item ids, the oldest first; none for popular items."
    ),
    k: K = None,
    exclude: Exclude = None,
    exclude_seen: ExcludeSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    filter: FilterOption = None,
    pin: Pin = None,
    boost: Boost = None,
    diversify: Diversify = None,
    explore: Explore = None,
    explore_days: ExploreDays = None,
    now: Now = None,
    fields: Fields = None,
    items: ItemsFile = None,
    created_column: CreatedColumn = None,
    expires_column: ExpiresColumn = None,
    explain: bool = Option(
        False, "--explain", help="Show why: parts of scores, effects of clicks."
    ),
    about: str | None = Option(
        None, help="Explain this item instead of the recommended ones."
    ),
    model: ModelOption = None,
    encoding: EncodingOption = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Recommend the next items for a session.

    Example: posrec recommend runs/first sku-1 sku-7 -k 5 --explain
    posrec recommend runs/first sku-1 --filter category=Tents --filter 'price<200' --fields price
    posrec recommend runs/first sku-1 --exclude current --diversify brand:2 --explore 0.05
    """
    rules = answer_rules(context.params)
    from posrec.cli.explanations import drawn, notes, recommendations_table
    from posrec.data.item_times import item_times
    from posrec.models.own_code import OwnCode
    from posrec.recommend.recommender import open_recommender
    from posrec.recommend.try_out import missing_export

    code = OwnCode(model, encoding)
    times = item_times(items, created_column, expires_column)
    recommender = open_recommender(run, device, code, items=items, **times)
    if missing := missing_export(recommender):
        warn(missing)
    session = item or []
    answer = recommender.recommend(session, k, **rules)
    to_explain = []
    if about:
        to_explain = [about]
    elif explain and not answer.popular:
        to_explain = [item.item for item in answer]
    explanations = recommender.explain(session, to_explain) if to_explain else []
    if as_json:
        content = answer.as_json()
        if explanations:
            content["explanations"] = [why.as_json() for why in explanations]
        show(content, None, as_json)
        return
    console.print(recommendations_table(answer))
    if explanations:
        console.print("", *drawn(explanations), sep="\n")
    elif explain:
        say("No click is known to the model, so there is nothing to explain.")
    for sentence in notes(answer):
        say(sentence)
    if explore and recommender.explorable is None:
        say(
            "The run knows items by their clicks alone, so --explore changes nothing; "
            "a run of posrec-plus with attributes knows new ones."
        )


def score(
    context: Context,
    run: RunFolder,
    source: Path = Argument(
        ..., metavar="INPUT", help="Sessions: .jsonl (plain, .gz or .zst) or .parquet."
    ),
    out: Path = Argument(
        ..., metavar="OUTPUT", help="The file to write: .jsonl, .jsonl.gz or .parquet."
    ),
    k: K = None,
    exclude: Exclude = None,
    exclude_seen: ExcludeSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    filter: FilterOption = None,
    pin: Pin = None,
    boost: Boost = None,
    diversify: Diversify = None,
    explore: Explore = None,
    explore_days: ExploreDays = None,
    now: Now = None,
    fields: Fields = None,
    items: ItemsFile = None,
    created_column: CreatedColumn = None,
    expires_column: ExpiresColumn = None,
    overwrite: Overwrite = False,
    engine: Engine = LOCAL,
    address: Address = None,
    workers: Workers = None,
    model: ModelOption = None,
    encoding: EncodingOption = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Recommend for every session of a file. The file can be of any size.

    Example: posrec score runs/first sessions.jsonl answers.parquet -k 10
    posrec score runs/first sessions.parquet answers.parquet --engine ray
    """
    rules = answer_rules(context.params)
    from posrec.data.item_times import item_times
    from posrec.io.executor import executor_of
    from posrec.models.own_code import OwnCode
    from posrec.recommend.files.score import score_file
    from posrec.recommend.recommender import open_recommender

    code = OwnCode(model, encoding)
    times = item_times(items, created_column, expires_column)
    started = time.monotonic()
    with (
        executor_of(engine, address, workers) as executor,
        TerminalProgress() as progress,
    ):
        # Tasks on a cluster have a core each.
        cores = threads or usable_cores() if executor.cpus == 1 else 1
        open_run = partial(
            open_recommender,
            run.absolute(),
            device,
            code,
            cores=cores,
            items=items,
            **times,
        )
        counts = score_file(
            open_run,
            source,
            out,
            k,
            executor=executor,
            progress=progress,
            gpus=executor.gpus_for(device),
            overwrite=overwrite,
            **rules,
        )
    summarize(counts, time.monotonic() - started)
    say(f"The recommendations are in {out}.")


def summarize(counts: Counter[str], seconds: float) -> None:
    rate = counts["sessions"] / seconds
    scored = plural(counts["sessions"], "session")
    say(f"{scored} in {seconds:.1f} s, {rate:,.0f} per second.")
    notes = []
    if counts["unknown"]:
        clicks = plural(counts["unknown"], "click")
        notes.append(f"Skipped {clicks} on items that the model does not know")
    if counts["popular"]:
        sessions = plural(counts["popular"], "session")
        notes.append(f"{sessions} had no known item and got popular ones")
    if notes:
        say(f"{'; '.join(notes)}.")
    if counts["empty"]:
        say(f"No item was left to recommend for {plural(counts['empty'], 'session')}.")


def listed_ids(
    path: Path | None, run: Path, items: Path | None = None
) -> list[str] | None:
    """The ids of a file that the run knows, with a warning of the others; with an items file,
    which may make them known, all ids."""
    if path is None:
        return None
    from posrec.data.vocabulary import FILE, Vocabulary
    from posrec.recommend.session import ListedIds
    from posrec.runs.folder import open_finished

    listed = ListedIds(path)
    if items is not None:
        return list(listed)
    reader, _ = open_finished(run)
    vocabulary = Vocabulary.from_json(reader.json(FILE), run / FILE)
    ids, note = listed.known(vocabulary.find)
    if note:
        warn(note)
    return ids


def parse_filters(texts: list[str]) -> dict[str, Any] | None:
    """
    >>> parse_filters(["category=tents,mats", "price<200", "brand!=own"])
    {'category': ['tents', 'mats'], 'price': {'below': 200.0}, 'brand': {'not': ['own']}}
    """
    conditions: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            try:
                conditions.update(json.loads(text))
            except ValueError as error:
                raise InputError(f"--filter {text}: it is not JSON ({error})") from None
            continue
        match = CONDITION.fullmatch(text)
        if match is None:
            raise InputError(
                f"--filter {text}: it must be COLUMN=VALUE,VALUE or COLUMN<=NUMBER, "
                "or a JSON object"
            )
        column = match["column"].strip()
        sign = match["sign"]
        values = match["value"].split(",")
        condition = conditions.setdefault(column, [] if sign == "=" else {})
        if isinstance(condition, list) != (sign == "="):
            raise InputError(
                f"--filter {text}: {column!r} has another filter too, and = goes with no other sign"
            )
        if sign == "=":
            condition += values
        elif sign == "!=":
            condition["not"] = [*condition.get("not", []), *values]
        else:
            condition[BOUNDS[sign]] = number(match["value"], f"--filter {text}")
    return conditions or None


def parse_boosts(texts: list[str]) -> dict[str, dict[str, float]] | None:
    factors: dict[str, dict[str, float]] = {}
    for text in texts:
        column, _, rest = text.partition("=")
        value, colon, factor = rest.rpartition(":")
        if not column or not colon or not factor:
            raise InputError(
                f"--boost {text}: it must be COLUMN=VALUE:FACTOR, such as brand=own:1.2"
            )
        by_value = factors.setdefault(column, {})
        by_value[value] = number(factor, f"--boost {text}")
    return factors or None


def parse_diversify(text: str | None) -> float | str | dict[str, Any] | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        column, _, most = text.rpartition(":")
    if column and most.isdecimal():
        return {"column": column, "most": int(most)}
    return text


def number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a number") from None
