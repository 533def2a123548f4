"""Which way a recommender finds items, and how it knows which items are similar. torch is imported only where a model
of torch computes."""

from functools import partial
from typing import TYPE_CHECKING, Any

from posrec.device import choose_device
from posrec.recommend.best_items import Floats
from posrec.recommend.by_search import BySearch
from posrec.recommend.encoder import SessionEncoder
from posrec.recommend.onnx_network import OnnxNetwork
from posrec.recommend.ranker import ItemFinder
from posrec.recommend.similarity import Similarity
from posrec.run_folder import AnyRun

if TYPE_CHECKING:
    from posrec.recommend.faiss_search import FaissSearch
    from posrec.recommend.search import ExactSearch


def encoder_of(scorer: Any) -> SessionEncoder:
    """An OnnxNetwork as it is, or a model of torch as an encoder."""
    if isinstance(scorer, OnnxNetwork):
        return scorer
    from posrec.recommend.torch_encoder import TorchEncoder

    return TorchEncoder(scorer)


def finder_of(scorer: Any, search: "ExactSearch | FaissSearch | None", items: int, device: str) -> ItemFinder:
    """By the search with the session vectors of `scorer`; without a search by its scores of all items."""
    if search is not None:
        return BySearch(encoder_of(scorer), search)
    from posrec.recommend.by_scores import ByScores

    return ByScores(scorer, items, choose_device(device))


def similarity_of(run: AnyRun) -> Similarity | None:
    """By the vectors of the run's model; None for a counting model, which has none."""
    from posrec.models.base import SessionModel

    # Of the run, not of a recommender: that would be a reference cycle.
    return Similarity(partial(vectors_of, run)) if isinstance(run.model, SessionModel) else None


def vectors_of(run: AnyRun) -> Floats:
    from posrec.recommend.torch_encoder import similarity_vectors

    return similarity_vectors(run)
