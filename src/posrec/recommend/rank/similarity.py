"""How similar items are, by the cosine of their vectors; and lists of items that differ."""

from collections.abc import Callable, Collection
from functools import cached_property, partial

import numpy as np

from posrec.recommend.catalogue import Candidates
from posrec.recommend.rank.best_items import Best, Floats, best_of, lengths_of
from posrec.runs.folder import Run


class Similarity:
    """`load` returns the vectors [n, d] of the items; it is called at the first use."""

    def __init__(self, load: Callable[[], Floats]) -> None:
        self.load = load

    @cached_property
    def vectors(self) -> Floats:
        return self.load()

    @cached_property
    def lengths(self) -> Floats:
        """[n]; never 0, so that one can divide by it."""
        tiny = np.finfo(np.float32).tiny ** 0.5
        return np.maximum(lengths_of(self.vectors), tiny, dtype=np.float32)

    def most_similar(
        self, number: int, k: int, candidates: Candidates, denied: Collection[int]
    ) -> Best:
        products = self.vectors @ self.vectors[number - 1]
        cosines: Floats = products / (self.lengths * self.lengths[number - 1])  # [n]
        cosines[np.array([number, *denied]) - 1] = -np.inf
        if candidates.mask is not None:
            cosines[~candidates.mask] = -np.inf
        scores, columns = best_of(cosines, k)
        is_allowed = scores != -np.inf
        return Best(scores[is_allowed], columns[is_allowed])


def similarity_of(run: Run) -> Similarity | None:
    """None for a counting model, which has no vectors."""
    from posrec.models.base import SessionModel

    if not isinstance(run.model, SessionModel):
        return None
    from posrec.recommend.rank.torch_model import similarity_vectors

    # Of the run: a function of the recommender would be a reference cycle.
    return Similarity(partial(similarity_vectors, run))


def marginal_relevance(
    scores: Floats, vectors: Floats, weight: float, k: int
) -> list[int]:
    """The positions of k of P items with scores [P], the best first, and vectors [P, d].

    Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): the next item has the highest

        (1 - weight) relevance(i)  -  weight max_{j in the list} max(0, cos(i, j))

    where relevance is the score, scaled from 1 for the first item to 0 for the last.
    """
    if not len(scores):
        return []
    tiny = np.finfo(np.float32).tiny
    relevance = (scores - scores[-1]) / max(float(scores[0] - scores[-1]), tiny)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = vectors / np.maximum(lengths, tiny)
    # [P, P] at once is quicker than a row for each item of a long list.
    cosines = units @ units.T
    nearest = np.zeros(len(scores), np.float32)
    chosen: list[int] = []
    gains = (1 - weight) * relevance
    for _ in range(min(k, len(scores))):
        best = int((gains - weight * nearest).argmax())
        chosen.append(best)
        gains[best] = -np.inf
        np.maximum(nearest, cosines[best], out=nearest)
    return chosen
