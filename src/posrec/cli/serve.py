"""The commands of a server: export before it, serve, and forget a visitor."""

from pathlib import Path
from typing import Annotated

import typer

from posrec.cli.printing import Device, EncodingOption, ModelOption, Overwrite, Threads, say
from posrec.errors import InputError, not_installed, plural


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    onnx: Annotated[Path | None, typer.Option(help="Write the model as this ONNX file.", show_default=False)] = None,
    index: Annotated[
        Path | None, typer.Option(help="Write its item vectors as this faiss index.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value for the search: index, recall, lists, probes. Can be repeated."),
    ] = None,
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
        say(f"Wrote {onnx}. Scores differ from torch's by at most {difference:.1g} ({CLOSE:g} is allowed).")
    if index is not None:
        search = write_index(loaded, index, of_index, overwrite)
        probes = f"A search looks through {search.probes:,} of {search.index.nlist:,} lists"
        recall = f"its recall@20 against the exact search is {search.recall:.4f} on {RECALL_SESSIONS} random sessions"
        say(f"Wrote {index}. {probes}; {recall}.")
    if onnx is None and index is None:
        from posrec.recommend.export.writing import write_export

        if loaded.has_export and not overwrite:
            raise InputError(f"{run} has an export already; pass --overwrite to write it again")
        write_export(loaded, of_index)
        say(f"Added the export for serving to {run}.")


SessionStore = Annotated[
    str | None,
    typer.Option(
        envvar="POSREC_SESSION_STORE",
        show_envvar=True,
        help="Where sessions are stored: sqlite:FILE, or redis://HOST:PORT/DB (Redis or Valkey).",
    ),
]


def forget(
    visitor: Annotated[
        list[str],
        typer.Option(help="The id of a visitor or a session, as the shop has sent it. Can be repeated."),
    ],
    feedback: Annotated[Path | None, typer.Option(help="A folder that posrec serve --feedback has written.")] = None,
    session_store: SessionStore = None,
) -> None:
    """Erase what is stored of visitors: their stored sessions, and their rows of feedback.

    A server may be running meanwhile. See docs/deploying.md for what else may be stored, and how it is erased.

    Example: posrec forget --visitor visit-7 --feedback feedback
    posrec forget --visitor anna --feedback feedback --session-store sqlite:sessions.sqlite
    """
    try:
        from posrec.server.feedback import erase_visitors
        from posrec.server.session_store import delete_sessions
    except ImportError:
        raise not_installed("posrec forget", "serve") from None
    if feedback is None and session_store is None:
        raise InputError("name where the visitor is to be forgotten: --feedback DIR, --session-store ADDRESS, or both")
    erased = []
    if session_store is not None:
        erased.append(plural(delete_sessions(session_store, visitor), "stored session"))
    if feedback is not None:
        rows, files = erase_visitors(feedback, visitor)
        erased.append(f"{plural(rows, 'row')} of feedback in {plural(files, 'file')}")
    say(f"Erased {' and '.join(erased)}.")


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
    session_store: SessionStore = None,
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
    queue: Annotated[
        int, typer.Option(help="How many plain requests' work may wait in a worker; more gets 503.", min=1)
    ] = 128,
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
    items: Annotated[
        Path | None,
        typer.Option(help="Columns of the items (stock, price) in place of the run's; read again on change."),
    ] = None,
    feedback: Annotated[
        Path | None, typer.Option(help="Write what POST /v1/feedback receives to Parquet files in this folder.")
    ] = None,
    keep_feedback: Annotated[
        str | None, typer.Option(help="Delete files of --feedback that are older, such as 90d; none by default.")
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
        from posrec.server.settings import ServerSettings, chosen_key, parse_keep, parse_shares
    except ImportError:
        raise not_installed("serving", "serve") from None
    from posrec.models.own_code import OwnCode

    settings = ServerSettings(
        tuple(map(str, run)),
        device,
        chosen_key(api_key, api_key_file),
        session_store,
        max_length,
        max_body,
        request_timeout,
        queue,
        allow_origin=tuple(allow_origin or ()),
        allow_host=tuple(allow_host or ()),
        log_requests=log_requests,
        onnx=onnx,
        code=OwnCode(model, encoding),
        split=parse_shares(split, len(run)),
        allow_file=str(allow_file) if allow_file else None,
        deny_file=str(deny_file) if deny_file else None,
        items_file=str(items) if items else None,
        feedback=str(feedback) if feedback else None,
        keep_feedback=parse_keep(keep_feedback, feedback),
    )
    run_server(settings, host, port, workers)
