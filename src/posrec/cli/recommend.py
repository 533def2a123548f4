"""The commands that use a run: recommend, export, serve."""

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
    Device,
    EncodingOption,
    Json,
    ModelOption,
    Overwrite,
    Threads,
    console,
    error_console,
    show,
)
from posrec.errors import InputError, not_installed
from posrec.progress import printable

IndexSet = Annotated[
    list[str] | None,
    typer.Option("--set", help="key=value for the search: index, recall, lists, probes. Can be repeated."),
]


def recommend(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    item: Annotated[
        list[str] | None,
        typer.Argument(help="The session: item ids, the oldest click first; none for popular items."),
    ] = None,
    k: K = None,
    exclude_seen: ExcludeSeen = False,
    allow: Allow = None,
    deny: Deny = None,
    filter: FilterOption = None,
    pin: Pin = None,
    boost: Boost = None,
    diversify: Diversify = None,
    fields: Fields = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show why: parts of scores, effects of clicks.")] = False,
    about: Annotated[str | None, typer.Option(help="Explain this item instead of the recommended ones.")] = None,
    model: ModelOption = None,
    encoding: EncodingOption = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Recommend the next items for a session.

    Example: posrec recommend runs/first sku-1 sku-7 -k 5 --explain
    posrec recommend runs/first sku-1 --filter category=Tents,Sandals --filter 'price<=200' --fields category,price
    """
    from posrec.cli.explanations import drawn, notes, recommendations_table
    from posrec.models.own_code import OwnCode
    from posrec.recommend.export.opening import missing_export, open_recommender

    recommender = open_recommender(run, device, OwnCode(model, encoding))
    if missing := missing_export(recommender):
        error_console.print(printable(missing), markup=False, highlight=False, soft_wrap=True)
    session, rules = item or [], answer_rules(exclude_seen, allow, deny, filter, pin, boost, diversify, fields)
    answer = recommender.recommend(session, k, **rules)
    wanted = [about] if about else [one.item for one in answer] if explain and not answer.popular else []
    explanations = recommender.explain(session, wanted) if wanted else []
    if as_json:
        reasons = {"explanations": [one.as_json() for one in explanations]} if wanted else {}
        show(answer.as_json() | reasons, None, as_json)
        return
    console.print(recommendations_table(answer))
    if explanations:
        console.print("", *drawn(explanations), sep="\n")
    elif explain:
        console.print("No click is known to the model, so there is nothing to explain.", highlight=False)
    for sentence in notes(answer):
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    onnx: Annotated[Path | None, typer.Option(help="Write the model as this ONNX file.", show_default=False)] = None,
    index: Annotated[
        Path | None, typer.Option(help="Write its item vectors as this faiss index.", show_default=False)
    ] = None,
    settings: IndexSet = None,
    model: ModelOption = None,
    encoding: EncodingOption = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Write the run's export for serving: its network as ONNX and its items in 8 bits, and an index of very many items.

    --onnx and --index write the whole model as an ONNX file, checked against torch, or the items as a faiss index, with
    measured recall.

    Example: posrec export runs/first
    posrec export runs/first --onnx first.onnx
    """
    from posrec.config import parse_pairs, split_settings
    from posrec.recommend.rank.faiss_search import RECALL_SESSIONS, IndexSettings, write_index
    from posrec.runs.run import load_run

    loaded, of_index = load_run(run, model, encoding), split_settings(parse_pairs(settings or []), IndexSettings())[0]
    if onnx is not None:
        from posrec.recommend.export.onnx_model import CLOSE, export_onnx

        difference = export_onnx(loaded, onnx, overwrite)
        checked = f"Scores differ from torch's by at most {difference:.1g} ({CLOSE:g} is allowed)."
        console.print(f"Wrote [bold]{escape(str(onnx))}[/]. {checked}", highlight=False, soft_wrap=True)
    if index is not None:
        search = write_index(loaded, index, of_index, overwrite)
        probes = f"A search looks through {search.probes:,} of {search.index.nlist:,} lists"
        recall = f"its recall@20 against the exact search is {search.recall:.4f} on {RECALL_SESSIONS} random sessions"
        console.print(f"Wrote [bold]{escape(str(index))}[/]. {probes}; {recall}.", highlight=False, soft_wrap=True)
    if onnx is None and index is None:
        from posrec.recommend.export.writing import write_export

        if loaded.has_export and not overwrite:
            raise InputError(f"{run} has an export already; pass --overwrite to write it again")
        write_export(loaded, of_index)
        console.print(f"Added the export for serving to [bold]{escape(str(run))}[/].", highlight=False, soft_wrap=True)


def serve(
    run: Annotated[list[Path], typer.Argument(help="A run folder; several share the sessions, see --split.")],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 for any free one.", min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="The number of processes that share the port.", min=1, max=256)] = 1,
    api_key: Annotated[
        str | None, typer.Option(envvar="POSREC_API_KEY", help="Refuse requests without this key.", show_envvar=True)
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(envvar="POSREC_API_KEY_FILE", help="The file with the key.", show_envvar=True)
    ] = None,
    session_store: Annotated[
        str | None,
        typer.Option(
            envvar="POSREC_SESSION_STORE",
            show_envvar=True,
            help="Store sessions in Redis or Valkey: redis://HOST:PORT/DB.",
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option(help="Refuse longer sessions; the model reads the latest clicks.", min=1, max=10_000)
    ] = 10_000,
    max_body: Annotated[int, typer.Option(help="Refuse larger requests, in bytes.", min=1024)] = 2 << 20,
    request_timeout: Annotated[
        float,
        typer.Option(
            "--request-timeout", help="Seconds a client may take to send a request or read an answer.", min=0.1
        ),
    ] = 10.0,
    queue: Annotated[int, typer.Option(help="How many requests may wait in each worker; more get 503.", min=1)] = 128,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Allow web pages of this origin (CORS). Can be repeated.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Answer requests for this host name, or * for all. Can be repeated. See docs/serving.md."),
    ] = None,
    deny_file: Annotated[
        Path | None, typer.Option(help="Never recommend the items of this file, one id per line; read again on change.")
    ] = None,
    allow_file: Annotated[
        Path | None, typer.Option(help="Recommend only the items of this file, one id per line; read again on change.")
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="Write what POST /v1/feedback receives to Parquet files in this folder.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The runs' shares of the sessions, such as 90,10; equal by default.")
    ] = None,
    log_requests: Annotated[bool, typer.Option("--log-requests", help="Log every request.")] = False,
    onnx: Annotated[bool, typer.Option(help="Compute with the run's export; --no-onnx with torch.")] = True,
    model: ModelOption = None,
    encoding: EncodingOption = None,
    device: Device = "cpu",
) -> None:
    """Serve recommendations over HTTP.

    Example: posrec serve runs/first --port 8000 --workers 2
    """
    try:
        from posrec.server.serve import serve as run_server
        from posrec.server.settings import ServerSettings, chosen_key, parse_shares
    except ImportError:
        raise not_installed("serving", "serve") from None
    from posrec.models.own_code import OwnCode

    settings = ServerSettings(
        tuple(map(str, run)), device, chosen_key(api_key, api_key_file), session_store, max_length, max_body,
        request_timeout, queue, log_requests=log_requests, onnx=onnx,
        allow_origin=tuple(allow_origin or ()), allow_host=tuple(allow_host or ()),
        code=OwnCode(model, encoding),
        split=parse_shares(split, len(run)), feedback=text_of(feedback),
        allow_file=text_of(allow_file), deny_file=text_of(deny_file),
    )  # fmt: skip
    run_server(settings, host, port, workers)


def text_of(path: Path | None) -> str | None:
    return None if path is None else str(path)
