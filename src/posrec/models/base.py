"""The base classes of all models: what a model implements, and what it gets for that.

A trained model is a `SessionModel`: a vector for each session and for each item, whose products are
the scores, and perhaps a term for the session's own items (`nn/items/own_items.py`). A model that
counts the training sessions is a `CountingModel`: it computes scores alone. Both are built as
`Model(items, config)`. Items are numbered 1..items; any other number is unknown to the model. It
reads the latest `config.max_length` clicks of a session."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from posrec.config import check_settings
from posrec.encodings.schemes import OwnEncoding
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph
from posrec.nn.items.attribute_vectors import AttributeTable
from posrec.nn.items.item_table import ItemTable
from posrec.nn.items.own_items import OwnItems
from posrec.nn.packing import Packing, pack

# Settings that many models declare alike.
ITEM_WIDTH: dict[str, Any] = {
    "meaning": "width of item vectors",
    "at_least": 1,
    "tune": (50, 64, 100, 128, 200),
}
CLICKS_READ: dict[str, Any] = {
    "meaning": "how many of a session's latest clicks are read",
    "at_least": 1,
}
DROPOUT: dict[str, Any] = {"between": (0, 1), "tune": (0.0, 0.1, 0.2, 0.3, 0.5)}
CLICK_DROPOUT: dict[str, Any] = {
    "meaning": "dropout of the clicks' vectors",
    "between": (0, 1),
    "tune": (0.0, 0.25, 0.5),
}
SPREAD: dict[str, Any] = {
    "meaning": "standard deviation of the initial weights; "
    "0 draws them uniformly, from about ±1 / sqrt(width)",
    "at_least": 0,
    "tune": (0.0, 0.02, 0.05),
}
ANCHORS: dict[str, Any] = {
    "meaning": "add the [anchor edges](terms.md#anchors) of PosRec's paper",
}


class Model(nn.Module):
    """The base class of both kinds: it scores all items for a batch of sessions."""

    # Whether there is a term for the session's own items. Scores are then log probabilities.
    has_own_items = False
    # Whether what is computed at a click depends on the clicks up to it alone, so that one pass
    # over a session gives the vectors of all its prefixes (`SessionBatch.every_click`).
    is_causal = False

    def __init__(self, items: int, config: Any) -> None:
        super().__init__()
        check_settings(config)
        self.items = items
        self.config = config

    @property
    def stride(self) -> int:
        """A causal model reads a session longer than `max_length` in overlapping windows, each of
        them once. They begin at multiples of the stride."""
        return max(1, self.config.max_length // 2) if self.is_causal else 1

    def count(self, items: Tensor, offsets: Tensor) -> None:
        """Called once, before training or in place of it, with the training sessions, oldest first:
        session s is `items[offsets[s] : offsets[s + 1]]`. A part of a dataset shares `items [N]`
        with the whole: clicks before `offsets[0]` and after `offsets[-1]` do not belong to it."""

    def scores(self, batch: SessionBatch) -> Tensor:
        """The scores of all items, [B, n]: column i is item i + 1."""
        raise NotImplementedError

    def saved_weights(self) -> dict[str, Tensor]:
        """The weights that a run holds: what scoring needs, and not what only training needs."""
        return self.state_dict()

    def load_saved_weights(self, weights: dict[str, Tensor]) -> None:
        """Continue the training from `saved_weights`. Called after `count`, so that a model can
        compute its parameters from what it saves instead."""
        self.load_state_dict(weights)

    def vector_parts(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The terms of the session vector by name, [B, d] each, if it is a sum."""
        return {}

    def click_attention(self, batch: SessionBatch) -> dict[str, Tensor]:
        """The attention weights of the clicks, [B, L], by the name of their term, if any."""
        return {}


class BatchVectors(NamedTuple):
    """What a trained model computes for a batch."""

    sessions: Tensor  # [B, d] session vectors
    table: Tensor  # [n, d] item vectors, or a table with some unused rows at its end
    own_items: OwnItems | None = None


class SessionModel(Model):
    """The base class of trained models. A subclass implements `session_vectors`, or `vectors`.

    A model that uses one table of item vectors for the clicks and for the scores keeps it in
    `self.embedding` and implements `vectors`: both uses then add to one gradient. A model with a
    term for the session's own items implements `batch_vectors`, and `vectors` as its first two
    results."""

    embedding: ItemTable
    # How many columns at the end of a session vector are 1 when it recommends: the products with
    # them are a term of the item alone.
    bias_columns = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        has_sessions = cls.session_vectors is not SessionModel.session_vectors
        has_vectors = cls.vectors is not SessionModel.vectors
        if not has_sessions and not has_vectors:
            raise TypeError(
                f"{cls.__name__} must define session_vectors(batch), or vectors(batch) in its place"
            )

    def describe(self, attributes: AttributeTable) -> None:
        """Called before training with the attributes that the setting `attributes` names."""
        raise NotImplementedError

    def attribute_parts(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What a run keeps so that items that come later have vectors, if the model can give
        them any; `with_items` of such a model reads these vectors."""
        return None

    def click_vectors(self, items: Tensor) -> Tensor | None:
        """The vectors that the model reads of clicks, [B, L] items -> [B, L, d], if it reads its
        item table for nothing else; `SessionBatch.vectors` then takes their place."""
        return None

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """The vectors of the sessions, [B, d]."""
        return self.vectors(batch)[0]

    def item_vectors(self) -> Tensor:
        """The vectors of the items, [n, d]: row i is item i + 1."""
        return self.embedding.vectors()

    def similarity_vectors(self) -> Tensor:
        """The vectors by whose cosine two items are similar, [n, d]."""
        return self.item_vectors()

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """Session vectors [B, d] and item vectors, as training reads them: [n, d], or a table with
        some unused rows at its end."""
        return self.session_vectors(batch), self.item_vectors()

    def batch_vectors(self, batch: SessionBatch) -> BatchVectors:
        return BatchVectors(*self.vectors(batch))

    def sessions_and_own_items(
        self, batch: SessionBatch
    ) -> tuple[Tensor, OwnItems | None]:
        """`batch_vectors` without the item vectors: all that a search needs of a batch."""
        if not self.has_own_items:
            return self.session_vectors(batch), None
        sessions, _, own_items = self.batch_vectors(batch)
        return sessions, own_items

    def scores(self, batch: SessionBatch) -> Tensor:
        if not self.has_own_items:
            return self.session_vectors(batch) @ self.item_vectors().T
        sessions, table, own_items = self.batch_vectors(batch)
        assert own_items is not None
        return own_items.log_chances_of_all(sessions @ table[: self.items].T)

    def modules_to_initialize(self) -> Iterator[nn.Module]:
        """The modules whose weights the model draws: all but layer norms, which start as the
        identity, and an encoding of the user's own, which starts with the weights that it has."""
        users_modules: set[nn.Module] = set()
        encoding_name = getattr(self.config, "encoding", None)
        if isinstance(encoding_name, OwnEncoding) and isinstance(
            self.encoding, nn.Module
        ):
            users_modules.update(self.encoding.modules())
        for module in self.modules():
            if module not in users_modules and not isinstance(module, nn.LayerNorm):
                yield module

    def draw_weights(self, bound: float, spread: float = 0.0) -> None:
        """Draw the weights of `modules_to_initialize`, uniformly from +-bound; with a spread from a
        normal distribution of this standard deviation, where biases start at 0."""
        for module in self.modules_to_initialize():
            for parameter in module.parameters(recurse=False):
                if not spread:
                    nn.init.uniform_(parameter, -bound, bound)
                elif parameter.dim() > 1:
                    nn.init.normal_(parameter, std=spread)
                else:
                    nn.init.zeros_(parameter)

    def build_graph(self, batch: SessionBatch) -> SessionGraph | None:
        """The session graphs of a batch, if the model reads graphs. They do not depend on the
        weights, so training builds them for many batches at once."""
        return None

    def graph_and_packing(self, batch: SessionBatch) -> tuple[SessionGraph, Packing]:
        """The batch's session graphs and the packing of their nodes, built unless it has them."""
        graph = batch.graph or self.build_graph(batch)
        if graph is None:
            raise TypeError(
                f"{type(self).__name__} reads graphs and must define build_graph(batch)"
            )
        return graph, batch.packing or pack(graph.nodes, batch.capacity)


class CountingModel(Model):
    """The base class of models that count the training sessions in one pass. A subclass implements
    `count`, which keeps its counts in buffers, and `scores`."""

    def count(self, items: Tensor, offsets: Tensor) -> None:
        raise NotImplementedError

    def known_clicks(self, batch: SessionBatch) -> Tensor:
        """[B, L] True at clicks on known items."""
        return batch.mask & (batch.items >= 1) & (batch.items <= self.items)
