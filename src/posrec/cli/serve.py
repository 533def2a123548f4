"""The commands of a server: export before it, serve, and forget a visitor."""

import os
import resource
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option

from posrec.cli.options import (
    CreatedColumn,
    Device,
    EncodingOption,
    ExpiresColumn,
    ModelOption,
    Overwrite,
    RunFolder,
    Threads,
    optional,
    switch,
)
from posrec.cli.printing import say
from posrec.errors import InputError, not_installed, plural


def export(
    run: RunFolder,
    onnx: Path | None = optional("Write the model as this ONNX file."),
    index: Path | None = optional("Write its item vectors as this faiss index."),
    vectors: Path | None = optional(
        "Write its item vectors as this Parquet file, for a vector database, and beside it the "
        "encoder of sessions as ONNX."
    ),
    settings: list[str] | None = Option(
        None, "--set", help="key=value of the search: index, recall, lists, probes."
    ),
    model: ModelOption = None,
    encoding: EncodingOption = None,
    overwrite: Overwrite = False,
    threads: Threads = None,
) -> None:
    """Write the run's export for serving: its network as ONNX and its items in 8 bits, and an index
    of very many items.

    --onnx, --index and --vectors write the whole model as an ONNX file, checked against torch, the
    items as a faiss index, with measured recall, or the items for a vector database.

    Example: posrec export runs/first
    posrec export runs/first --onnx first.onnx
    posrec export runs/first --vectors items.parquet
    """
    from posrec.config import parse_pairs, split_settings
    from posrec.recommend.rank import faiss_search
    from posrec.runs.run import load_run

    loaded = load_run(run, model, encoding)
    pairs = parse_pairs(settings)
    (index_settings,) = split_settings(pairs, faiss_search.IndexSettings())
    if onnx is not None:
        from posrec.recommend.export.onnx_model import CLOSE, export_onnx

        difference = export_onnx(loaded, onnx, overwrite)
        say(
            f"Wrote {onnx}. Scores differ from torch's by at most {difference:.1g} "
            f"({CLOSE:g} is allowed)."
        )
    if index is not None:
        search = faiss_search.write_index(loaded, index, index_settings, overwrite)
        say(
            f"Wrote {index}. A search looks through {search.index.nprobe:,} of "
            f"{search.index.nlist:,} lists; its recall@20 against the exact search is "
            f"{search.recall:.4f} on {faiss_search.RECALL_SESSIONS} random sessions."
        )
    if vectors is not None:
        from posrec.recommend.export.vectors import export_vectors

        encoder = export_vectors(loaded, vectors, overwrite)
        say(f"Wrote {vectors}, and the encoder of sessions, {encoder}.")
    if onnx is None and index is None and vectors is None:
        from posrec.recommend.export.writing import write_export

        if loaded.has_export and not overwrite:
            raise InputError(
                f"{run} has an export already; pass --overwrite to write it again"
            )
        write_export(loaded, index_settings)
        say(f"Added the export for serving to {run}.")


STORE_OPTION = "--session-store"
STORE_VARIABLE = "POSREC_SESSION_STORE"
SessionStore = Annotated[
    str | None,
    Option(
        STORE_OPTION,
        envvar=STORE_VARIABLE,
        help="Where sessions are stored: sqlite:FILE, or redis://HOST:PORT/DB (Redis or Valkey).",
    ),
]


def hide_password(address: str | None) -> None:
    """Start again with the session store's address in the environment, if it has a password: every
    user of the machine can read the command line."""
    from posrec.server.session_store import without_password

    line = "\0".join(sys.orig_argv)
    for option in (f"\0{STORE_OPTION}\0{address}", f"\0{STORE_OPTION}={address}"):
        if address and option in line and without_password(address) != address:
            os.environ[STORE_VARIABLE] = address
            os.execv(sys.executable, line.replace(option, "").split("\0"))


def forget(
    visitor: list[str] = Option(
        ...,
        help="The id of a visitor or a session, as the shop sent it. Can be repeated.",
    ),
    feedback: Path | None = optional(
        "A folder that posrec serve --feedback has written."
    ),
    session_store: SessionStore = None,
) -> None:
    """Erase what is stored of visitors: their stored sessions, and their rows of feedback.

    A server may be running meanwhile. See docs/deploying.md for what else may be stored, and how it
    is erased.

    Example: posrec forget --visitor visit-7 --feedback feedback
    posrec forget --visitor anna --feedback feedback --session-store sqlite:sessions.sqlite
    """
    try:
        from posrec.server.feedback.erasing import erase_visitors
        from posrec.server.session_store import delete_sessions
    except ImportError:
        raise not_installed("posrec forget", "serve") from None
    hide_password(session_store)
    if feedback is None and session_store is None:
        raise InputError(
            "name where the visitor is to be forgotten: --feedback DIR, "
            "--session-store ADDRESS, or both"
        )
    erased = []
    if session_store is not None:
        erased.append(plural(delete_sessions(session_store, visitor), "stored session"))
    if feedback is not None:
        rows, files = erase_visitors(feedback, visitor)
        erased.append(f"{plural(rows, 'row')} of feedback in {plural(files, 'file')}")
    say(f"Erased {' and '.join(erased)}.")


def serve(
    context: Context,
    run: list[Path] = Argument(
        ..., help="A run folder; several share the sessions, see --split."
    ),
    host: str = Option("127.0.0.1", help="The address to listen on; 0.0.0.0 for all."),
    port: int = Option(
        8000, help="The port to listen on; 0 for any free one.", min=0, max=65535
    ),
    workers: int = Option(
        1, help="The number of processes that share the port.", min=1, max=256
    ),
    api_key_file: Path | None = optional(
        "Refuse requests without the key in this file (or in POSREC_API_KEY).",
        envvar="POSREC_API_KEY_FILE",
    ),
    tls_certificate: Path | None = optional(
        "Speak HTTPS with this certificate chain (PEM)."
    ),
    tls_key: Path | None = optional("The private key of the certificate (PEM)."),
    session_store: SessionStore = None,
    max_length: int = Option(
        10_000,
        help="Refuse longer sessions; models read the latest clicks.",
        min=1,
        max=10_000,
    ),
    max_body: int = Option(2 << 20, help="Refuse larger requests, in bytes.", min=1024),
    request_timeout: float = Option(
        10.0, help="Seconds in which a client must send the body.", min=0.1
    ),
    queue: int = Option(
        128,
        help="How many plain requests' work may wait in a worker; more gets 503.",
        min=1,
    ),
    allow_origin: list[str] | None = optional(
        "Allow web pages of this origin (CORS). Can be repeated."
    ),
    allow_host: list[str] | None = optional(
        "Answer requests for this host name, or * for all. Can be repeated."
    ),
    deny_file: Path | None = optional(
        "Never recommend these items: a file of ids; read again on change."
    ),
    allow_file: Path | None = optional(
        "Recommend only these items: a file of ids; read again on change."
    ),
    items: Path | None = optional(
        "Columns of the items, such as stock; read again on change."
    ),
    created_column: CreatedColumn = None,
    expires_column: ExpiresColumn = None,
    feedback: Path | None = optional(
        "Write what POST /v1/feedback receives to Parquet files in this folder."
    ),
    keep_feedback: str | None = optional(
        "Delete files of --feedback that are older, such as 90d."
    ),
    split: str | None = optional(
        "The runs' shares of the sessions, such as 90,10; equal by default."
    ),
    log_requests: bool = switch("--log-requests", "Log every request."),
    onnx: bool = Option(
        True, help="Compute with the run's export; --no-onnx with torch."
    ),
    model: ModelOption = None,
    encoding: EncodingOption = None,
    device: Device = "cpu",
) -> None:
    """Serve recommendations over HTTP.

    Example: posrec serve runs/first --port 8000 --workers 2
    """
    try:
        import msgspec

        from posrec.server.content.split import parse_shares
        from posrec.server.serve import serve as run_server
        from posrec.server.settings import ServeOptions, chosen_key, parse_keep
    except ImportError:
        raise not_installed("serving", "serve") from None
    from posrec.data.item_times import item_times
    from posrec.models.own_code import OwnCode

    hide_password(session_store)
    # A core dump of a worker would hold its secrets, and sessions.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The other options have the names of the server's settings.
    options = {
        **context.params,
        "runs": run,
        "api_key": chosen_key(api_key_file),
        "allow_origin": allow_origin or (),
        "allow_host": allow_host or (),
        "code": OwnCode(model, encoding),
        "split": parse_shares(split, len(run)),
        "items_file": items,
        "item_times": item_times(items, created_column, expires_column),
        "keep_feedback": parse_keep(keep_feedback, feedback),
    }
    plain = msgspec.to_builtins(options, enc_hook=str)  # paths become text
    run_server(msgspec.convert(plain, ServeOptions))
