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

from posrec.device import computes_on_cpu
from posrec.errors import RunFailed
from posrec.io import WEIGHTS, FolderReader
from posrec.io.files import parse_tensors
from posrec.models.own_code import OwnCode
from posrec.recommend.rank.best_items import VectorSearch
from posrec.recommend.rank.encoder import OnnxModel, drawn_sessions
from posrec.recommend.rank.exact_search import ExactSearch, parse_item_vectors
from posrec.recommend.rank.faiss_search import likely_sessions, parse_index
from posrec.recommend.rank.ranker import Query, Ranking
from posrec.recommend.rank.similarity import Similarity
from posrec.recommend.recommender import Recommender, encode_of
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
    items if there is an index; otherwise torch and the exact search do. Counting models, and all
    models on a GPU, score every item. `cores` may be used for one exact search.
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
        if not computes_on_cpu(device):
            return Recommender(run, device)
        can_use_export = use_export and find_spec("onnxruntime") is not None
        return open_on_cpu(run, reader, can_use_export, cores)

    return read_run(path, read)


def open_on_cpu(
    run: Run, reader: FolderReader, use_export: bool, cores: int
) -> Recommender:
    scorer = None
    rounded = None
    similarity = None
    if use_export and reader.has(NETWORK):
        scorer = OnnxModel(reader.read(NETWORK), threads=1)
        content = reader.read(ITEMS)
        table, similar, rounded = parse_item_vectors(
            content, run.path / ITEMS, run.config["items"]
        )
        similarity = Similarity(lambda: similar)
    else:
        from posrec.models.base import SessionModel
        from posrec.recommend.rank.torch_model import item_table

        if not isinstance(run.model, SessionModel):
            return Recommender(run, "cpu")
        table = item_table(run)
    search: VectorSearch
    if use_export and reader.has(INDEX) and find_spec("faiss"):
        model = scorer or run.model
        sessions = likely_sessions(run, model.config.max_length, encode_of(model))
        search = parse_index(reader.read(INDEX), run.path / INDEX, table, sessions)
    else:
        search = ExactSearch(table, rounded, cores)
    return Recommender(run, "cpu", scorer, search, similarity)


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
    longest = recommender.ranker.max_length
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
