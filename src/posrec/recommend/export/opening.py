"""What a recommender is made of, read from a run folder: without torch if it has an export."""

import hashlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from posrec.device import choose_device, computes_on_cpu
from posrec.errors import InputError, RunFailed, first_line
from posrec.io import WEIGHTS, FolderReader
from posrec.io.files import parse_tensors
from posrec.models.own_code import OwnCode
from posrec.recommend.rank.best_items import Search
from posrec.recommend.rank.encoder import Encoder, OnnxModel
from posrec.recommend.rank.exact_search import ExactSearch, parse_item_vectors
from posrec.recommend.rank.faiss_search import parse_index
from posrec.recommend.rank.ranker import Query, Ranker
from posrec.recommend.rank.similarity import Similarity
from posrec.recommend.session import EncodedSession
from posrec.runs.folder import INDEX, ITEMS, NETWORK, Run, read_parts, read_run

if TYPE_CHECKING:
    from posrec.models.base import Model


def stored_model(
    path: Path, config: dict[str, Any], weights: BinaryIO, sha256: str, code: OwnCode
) -> "Model":
    """The model of a run that was opened without it; RunFailed if its file was changed since."""
    from posrec.runs.run import model_of_run

    weights.seek(0)
    content = weights.read()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise RunFailed(
            f"{path / WEIGHTS} has changed since the run was opened; open the run again"
        )
    tensors, _ = parse_tensors(content, path / WEIGHTS)
    return model_of_run(path, config, tensors, code.model, code.encoding)


class Parts(NamedTuple):
    """The arguments of a Recommender."""

    run: Run
    device: str
    scorer: Encoder | None
    search: Search
    similarity: Similarity | None
    cores: int


def open_parts(
    folder: str | Path,
    device: str = "cpu",
    code: OwnCode | None = None,
    use_export: bool = True,
    cores: int = 1,
) -> Parts:
    """Open a finished run. Every file is compared with its checksum and read into memory.

    On a CPU, ONNX Runtime computes the session vectors if there is an export, and faiss finds the
    items if there is an index; otherwise torch and the exact search do. `cores` may be used for
    many sessions, or for one search of a large catalogue.
    """
    path = Path(folder)

    def read(reader: FolderReader, config: dict[str, Any]) -> Parts:
        run_parts = read_parts(reader, config)
        reader.read(WEIGHTS)
        # The file stays open: the run folder may be replaced before the model is needed.
        weights = (path / WEIGHTS).open("rb")
        sha256 = reader.sha256[WEIGHTS]
        model = partial(stored_model, path, config, weights, sha256, code or OwnCode())
        run = Run(load_model=model, **run_parts)
        if use_export and computes_on_cpu(device):
            parts = by_usable_export(run, reader, device, cores)
            if parts is not None:
                return parts
        from posrec.recommend.rank.torch_model import search_of

        search = search_of(run.model, choose_device(device), cores)
        return Parts(run, device, None, search, None, cores)

    return read_run(path, read)


def by_usable_export(
    run: Run, reader: FolderReader, device: str, cores: int
) -> Parts | None:
    """As `by_export`; an InputError if the export can't rank."""
    try:
        parts = by_export(run, reader, device, cores)
        if parts is not None and parts.scorer is not None:
            popularity = np.asarray(run.popularity, np.float64)
            ranker = Ranker(parts.scorer, parts.search, popularity)
            ranker.rank([Query(EncodedSession([1]), 1)])
        return parts
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # the files of an export may be of others
        raise InputError(
            f"{run.path} has an export that can't be used ({first_line(error)}); "
            "write it again with posrec export --overwrite"
        ) from error


def by_export(run: Run, reader: FolderReader, device: str, cores: int) -> Parts | None:
    """With what the run has of an export; None if there is nothing that can be used here."""
    has_index = reader.has(INDEX) and find_spec("faiss") is not None
    onnx_model = None
    similarity = None
    encoder: Encoder
    if reader.has(NETWORK) and find_spec("onnxruntime"):
        content = reader.read(ITEMS)
        table, similar, rounded = parse_item_vectors(
            content, run.path / ITEMS, run.config["items"]
        )
        network = reader.read(NETWORK)
        encoder = onnx_model = OnnxModel(network, threads=1, table=similar)
        similarity = Similarity(lambda: similar)
    elif has_index:
        from posrec.recommend.rank.torch_model import TorchEncoder, item_table

        encoder = TorchEncoder(run.model)
        table = item_table(run)
        rounded = None
    else:
        return None
    search: Search
    if has_index:
        content = reader.read(INDEX)
        search = parse_index(content, run.path / INDEX, table, run, encoder)
    else:
        search = ExactSearch(table, encoder.has_own_items, rounded, cores)
    return Parts(run, device, onnx_model, search, similarity, cores)
