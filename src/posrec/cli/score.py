"""The command that recommends for whole files of sessions."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from posrec.cli.answer_options import (
    Allow,
    Boost,
    Deny,
    Diversify,
    ExcludeSeen,
    Fields,
    FilterOption,
    K,
    Pin,
    answer_rules,
)
from posrec.cli.printing import (
    LOCAL,
    Address,
    Device,
    EncodingOption,
    Engine,
    ModelOption,
    Overwrite,
    Threads,
    Workers,
    console,
)


def score(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Sessions: .jsonl (plain, .gz or .zst) or .parquet.")],
    out: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The file to write: .jsonl, .jsonl.gz or .parquet.")],
    k: K = None,
    exclude_seen: ExcludeSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    filter: FilterOption = None,
    pin: Pin = None,
    boost: Boost = None,
    diversify: Diversify = None,
    fields: Fields = None,
    overwrite: Overwrite = False,
    parts: Annotated[
        bool,
        typer.Option("--parts", help="Write OUTPUT as a folder of part files."),
    ] = False,
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
    posrec score runs/first sessions.parquet answers.parquet --parts --engine ray
    """
    from posrec.errors import plural
    from posrec.io.executor import cluster_of
    from posrec.progress import TerminalProgress
    from posrec.recommend.files.score import OpenRun, score_file

    rules = answer_rules(exclude_seen, allow, deny, filter, pin, boost, diversify, fields)
    with cluster_of(engine, address, workers) as cluster, TerminalProgress() as progress:
        totals = score_file(
            OpenRun(run, device, model, encoding), source, out, k,
            cluster=cluster, as_folder=parts, overwrite=overwrite, progress=progress, **rules,
        )  # fmt: skip
    done = f"{plural(totals.sessions, 'session')} in {totals.seconds:.1f} s, {totals.rate_note()}."
    console.print(done, highlight=False, soft_wrap=True)
    if totals.earlier:
        console.print(
            f"{plural(totals.earlier, 'session')} of them had been scored by an earlier call.", highlight=False
        )
    popular = f"{plural(totals.popular, 'session')} had no known item and got popular ones" if totals.popular else ""
    if totals.unknown:
        unknown = f"Skipped {plural(totals.unknown, 'click')} on items that the model does not know"
        popular = f"{unknown}; {popular}" if popular else unknown
    if popular:
        console.print(f"{popular}.", highlight=False, soft_wrap=True)
    if totals.empty:
        console.print(f"No item was left to recommend for {plural(totals.empty, 'session')}.", highlight=False)
    console.print(f"The recommendations are in [bold]{escape(str(out))}[/].", highlight=False, soft_wrap=True)
