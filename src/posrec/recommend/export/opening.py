"""Opening a run folder to recommend from it: without torch if the run has an export.

The scores of a complete run can still be useless, so `try_out` ranks a few sessions.
"""

import hashlib
import math
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from posrec.device import choose_device, computes_on_cpu
from posrec.errors import InputError, RunFailed, first_line
from posrec.io import WEIGHTS, FolderReader
from posrec.io.files import parse_tensors
from posrec.models.own_code import OwnCode
from posrec.recommend.rank.best_items import Search
from posrec.recommend.rank.encoder import Encoder, OnnxModel, drawn_sessions
from posrec.recommend.rank.exact_search import ExactSearch, parse_item_vectors
from posrec.recommend.rank.faiss_search import parse_index
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.rank.similarity import Similarity
from posrec.recommend.recommender import Recommender
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


def open_recommender(
    folder: str | Path,
    device: str = "cpu",
    code: OwnCode | None = None,
    use_export: bool = True,
    cores: int = 1,
) -> Recommender:
    """Open a finished run. Every file is compared with its checksum and read into memory.

    On a CPU, ONNX Runtime computes the session vectors if there is an export, and faiss finds the
    items if there is an index; otherwise torch and the exact search do. `cores` may be used for
    many sessions, or for one search of a large catalogue.
    """
    path = Path(folder)

    def read(reader: FolderReader, config: dict[str, Any]) -> Recommender:
        parts = read_parts(reader, config)
        reader.read(WEIGHTS)
        # The file stays open: the run folder may be replaced before the model is needed.
        weights = (path / WEIGHTS).open("rb")
        sha256 = reader.sha256[WEIGHTS]
        model = partial(stored_model, path, config, weights, sha256, code or OwnCode())
        run = Run(load_model=model, **parts)
        if use_export and computes_on_cpu(device):
            recommender = by_usable_export(run, reader, device, cores)
            if recommender is not None:
                return recommender
        from posrec.recommend.rank.torch_model import search_of

        search = search_of(run.model, choose_device(device), cores)
        return Recommender(run, device, search=search)

    return read_run(path, read)


def by_usable_export(
    run: Run, reader: FolderReader, device: str, cores: int
) -> Recommender | None:
    """As `by_export`; an InputError if the export can't rank."""
    try:
        recommender = by_export(run, reader, device, cores)
        if recommender is not None:
            recommender.ranker.rank([Query(EncodedSession([1]), 1)])
        return recommender
    except (InputError, OSError, MemoryError):
        raise
    except Exception as error:  # the files of an export may be of others
        raise InputError(
            f"{run.path} has an export that can't be used ({first_line(error)}); "
            "write it again with posrec export --overwrite"
        ) from error


def by_export(
    run: Run, reader: FolderReader, device: str, cores: int
) -> Recommender | None:
    """A recommender that uses what the run has of an export; None if there is nothing that can be
    used here."""
    has_index = reader.has(INDEX) and find_spec("faiss") is not None
    onnx_model = None
    similarity = None
    encoder: Encoder
    if reader.has(NETWORK) and find_spec("onnxruntime"):
        encoder = onnx_model = OnnxModel(reader.read(NETWORK), threads=1)
        content = reader.read(ITEMS)
        table, similar, rounded = parse_item_vectors(
            content, run.path / ITEMS, run.config["items"]
        )
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
    return Recommender(run, device, onnx_model, search, similarity, cores)


def missing_export(recommender: Recommender) -> str | None:
    """A sentence about a run that torch serves although it could be exported."""
    run = recommender.run
    if run.has_export or not computes_on_cpu(recommender.device_name):
        return None
    from posrec.recommend.export.writing import can_be_exported

    if not can_be_exported(run):
        return None
    return (
        f"{run.path} has no export, so torch computes, more slowly; "
        f"posrec export {run.path} adds it"
    )


def try_out(recommender: Recommender) -> None:
    """Rank for sessions of many lengths, of often clicked items, of any items, and of none;
    RunFailed if a score is not finite or items repeat."""
    draw = np.random.default_rng(0)
    longest = recommender.ranker.encoder.max_length
    k = min(20, recommender.items)
    lengths = [1, 2, 3, 5, longest, longest + 3]
    clicks = recommender.popularity
    sessions = drawn_sessions(clicks, lengths, draw)
    sessions += drawn_sessions(np.zeros_like(clicks), lengths, draw)
    sessions.append([])
    queries = [Query(EncodedSession(session), k) for session in sessions]
    for query, ranking in zip(queries, recommender.ranker.rank(queries), strict=True):
        if fault := fault_of(ranking, recommender.items):
            about = "a session without a known item"
            if numbers := query.session.numbers[-3:]:
                ids = [recommender.vocabulary.item(number) for number in numbers]
                about = f"a session that ends with {ids}"
            raise RunFailed(
                f"the run can't be used: recommending for {about} gave {fault}"
            )


def fault_of(ranking: Ranking, items: int) -> str | None:
    if not all(math.isfinite(score) for _, score in ranking):
        return "a score that is not finite"
    if len({number for number, _ in ranking if 1 <= number <= items}) != len(ranking):
        return "items that are not distinct, or do not exist"
    return None if ranking else "no items"
