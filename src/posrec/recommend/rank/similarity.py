"""How similar items are: the cosine of the angle between their vectors."""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial

import numpy as np

from posrec.recommend.catalogue import Candidates
from posrec.recommend.rank.best_items import Best, Floats, best_of_all
from posrec.runs.folder import AnyRun


class Similarity:
    """Of the items of a model with item vectors. `load` is called at the first use and returns the vectors [n, d]."""

    def __init__(self, load: Callable[[], Floats]) -> None:
        self.load = load

    @cached_property
    def vectors(self) -> Floats:
        """[n, d]"""
        return self.load()

    @cached_property
    def lengths(self) -> Floats:
        """[n]; never 0, so that one can divide by it."""
        lengths: Floats = np.sqrt(np.einsum("nd,nd->n", self.vectors, self.vectors))
        return np.maximum(lengths, np.finfo(np.float32).tiny ** 0.5, dtype=np.float32)

    def cosines(self, number: int) -> Floats:
        """[n] the cosine of every item and this one."""
        found: Floats = (self.vectors @ self.vectors[number - 1]) / (self.lengths * self.lengths[number - 1])
        return found

    def most_similar(self, number: int, k: int, candidates: Candidates | None, denied: Collection[int]) -> Best:
        """The k items most similar to this one, of the candidates, without those denied."""
        cosine = self.cosines(number)
        cosine[np.array([number, *denied]) - 1] = -np.inf
        if candidates is not None:
            cosine[candidates.excluded] = -np.inf
        scores, columns = best_of_all(cosine, k)
        kept = scores != -np.inf
        return scores[kept], columns[kept]

    def vectors_of(self, numbers: Sequence[int]) -> Floats:
        """[P, d] the vectors of these items."""
        return self.vectors.take(np.array(numbers, np.int64) - 1, 0)


def similarity_of(run: AnyRun) -> Similarity | None:
    """By the vectors of the run's model; None for a counting model, which has none."""
    from posrec.models.base import SessionModel

    # Of the run, not of a recommender: that would be a reference cycle.
    return Similarity(partial(vectors_of, run)) if isinstance(run.model, SessionModel) else None


def vectors_of(run: AnyRun) -> Floats:
    from posrec.recommend.export.torch_encoder import similarity_vectors

    return similarity_vectors(run)
