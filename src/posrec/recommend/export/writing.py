"""The export of a run: files in its folder with which a CPU serves it quickly.

docs/files.md lists them, opening.py reads them. A run with code of the user's own has none.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError, NotInstalled, RunFailed
from posrec.io import changing, scratch_folder
from posrec.io.files import give_name
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.progress import Progress
from posrec.recommend.export.onnx_model import checked_onnx, is_too_large, with_outputs
from posrec.recommend.rank.encoder import OWN_OUTPUTS
from posrec.recommend.rank.exact_search import item_vectors_content
from posrec.recommend.rank.faiss_search import IndexSettings, import_faiss, write_index
from posrec.recommend.rank.torch_model import item_table, similarity_vectors
from posrec.runs.folder import EXPORT, INDEX, ITEMS, NETWORK, Run


def can_be_exported(run: Run) -> bool:
    """Whether the run's model is a network of the package's own code."""
    if not isinstance(run.model, SessionModel) or run.config["model"] not in MODELS:
        return False
    return not isinstance(getattr(run.model.config, "encoding", None), OwnEncoding)


def add_export(run: Run, progress: Progress) -> None:
    """The last step of a training. The run is complete without it."""
    if not can_be_exported(run):
        if isinstance(run.model, SessionModel):
            progress.message(
                "the run is not exported for serving: it has code of your own, so torch serves it"
            )
        return
    started = time.monotonic()
    progress.update("export for serving", 0, 1)
    try:
        write_export(run, progress=progress)
    except (InputError, RunFailed, OSError, RuntimeError, MemoryError) as error:
        message = f"the run is not exported for serving: {error}"
        if isinstance(error, NotInstalled):
            message += "; then posrec export adds it"
        progress.message(message)
        return
    progress.update("export for serving", 1, 1)
    progress.message(f"exported for serving in {time.monotonic() - started:.1f} s")


def write_export(
    run: Run, settings: IndexSettings | None = None, progress: Progress | None = None
) -> None:
    """Write the export of a finished run into its folder, in place of the one that it has.

    It is written to another folder first, so that a server that watches this one sees one change.
    """
    settings = settings or IndexSettings()
    progress = progress or Progress()
    if not can_be_exported(run):
        raise InputError(
            f"{run.config['model']} is a counting model or has code of your own, "
            "so torch serves it without an export"
        )
    with_index = wants_index(run, settings, progress)
    with on_cpu(run.model), scratch_folder(run.path / NETWORK) as folder:
        if is_too_large(run.model) and with_index:
            progress.message(
                "an ONNX file can't hold more than 2 GB, "
                "so torch computes and the index finds the items"
            )
        else:
            # Without scores: the search takes the products with the items itself.
            own_outputs = OWN_OUTPUTS if run.model.has_own_items else ()
            content, _ = checked_onnx(run)
            network = with_outputs(content, ["session_vectors", *own_outputs])
            (folder / NETWORK).write_bytes(network)
            vectors = (item_table(run), similarity_vectors(run))
            items = item_vectors_content(*vectors, run.model.has_own_items)
            (folder / ITEMS).write_bytes(items)
        if with_index:
            write_index(run, folder / INDEX, settings)
        with changing(run.path, *EXPORT):
            for name in EXPORT:
                if (folder / name).exists():
                    give_name(folder / name, run.path / name)
                else:
                    (run.path / name).unlink(missing_ok=True)


def wants_index(run: Run, settings: IndexSettings, progress: Progress) -> bool:
    """Whether to write an index. Without faiss there is none, unless it is asked for."""
    if not settings.wants_faiss(run.config["items"]):
        return False
    try:
        import_faiss()
    except NotInstalled as error:
        if settings.index == "faiss":
            raise
        progress.message(
            f"the export has no index, so every item is searched: {error}; "
            "then posrec export adds it"
        )
        return False
    return True


@contextmanager
def on_cpu(model: nn.Module) -> Iterator[None]:
    device = next((tensor.device for tensor in model.state_dict().values()), None)
    try:
        model.cpu()
        yield
    finally:
        model.to(device)
