"""What a model gives, and what it gets for that.

A trained model is a `SessionModel`: it gives a vector for each session and a vector for each item, and its scores are
their products. Losses, ranking, nearest-neighbour search and the ONNX export all stand on these two. A model that is
not trained but counted is a `CountingModel`: it gives scores alone.

Both are built as `Model(items, config)`: items are numbered 1..items, any other number is an item that the model does
not know, and `config.max_length` says how many of the latest clicks the model reads.
"""

from typing import Any

from torch import Tensor, nn

from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.item_table import ItemTable
from posrec.nn.packing import Packing, pack


class Model(nn.Module):
    """What both kinds have in common: scores of all items for a batch of sessions."""

    def __init__(self, items: int, config: Any) -> None:
        super().__init__()
        self.items = items
        self.config = config

    def scores(self, batch: SessionBatch) -> Tensor:
        """[B, n]: column i is item i + 1."""
        raise NotImplementedError

    def vector_parts(self, batch: SessionBatch) -> dict[str, Tensor]:
        """Vectors [B, d] by name that add up to the session's vector, where it is such a sum; they explain a score."""
        return {}

    def click_attention(self, batch: SessionBatch) -> dict[str, Tensor]:
        """How much each of some parts reads each click, [B, L] by the part's name, where a model can say so."""
        return {}


class SessionModel(Model):
    """A model that is trained. It implements `session_vectors`, or `vectors` in its place.

    A model whose items are read at both ends, looked up for the clicks and multiplied with the session's vector, keeps
    them in `self.embedding` and implements `vectors`, so that the table gets one gradient and not the sum of two.
    """

    embedding: ItemTable

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.session_vectors is SessionModel.session_vectors and cls.vectors is SessionModel.vectors:
            raise TypeError(f"{cls.__name__} must define session_vectors(batch), or vectors(batch) in its place")

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """[B, d]."""
        return self.vectors(batch)[0]

    def item_vectors(self) -> Tensor:
        """[n, d]: row i is item i + 1."""
        return self.embedding.vectors()

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """Session vectors [B, d], and item vectors [n, d] or a table with a few rows more; what training reads."""
        return self.session_vectors(batch), self.item_vectors()

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.session_vectors(batch) @ self.item_vectors().T

    def build_graph(self, batch: SessionBatch) -> SessionGraph | None:
        """What a model that reads session graphs computes without its weights; training does it for many batches at
        once."""
        return None

    def graph_and_packing(self, batch: SessionBatch) -> tuple[SessionGraph, Packing]:
        """The batch's graphs and the packing of their nodes; built here unless the batch carries them."""
        graph = batch.graph or self.build_graph(batch)
        if graph is None:
            raise TypeError(f"{type(self).__name__} reads graphs and must define build_graph(batch)")
        return graph, batch.packing or pack(graph.nodes, batch.capacity)


class CountingModel(Model):
    """A model that is counted from the training sessions in one pass. It implements `count` and `scores`."""

    def count(self, items: Tensor, offsets: Tensor) -> None:
        """`items [N]`: every training click; `offsets [S + 1]`: where in them each session begins, oldest first.

        A part of a dataset shares the clicks of the whole: only `items[offsets[0] : offsets[-1]]` are its own.
        """
        raise NotImplementedError
