"""Recommender: raw item ids in, raw item ids out, for any model.

Items that the model does not know are skipped and named in the result. A session without a known item gets the most
clicked items, and the result says so.
"""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from posrec.device import choose_device
from posrec.errors import InputError
from posrec.models.base import Model, SessionModel
from posrec.models.registry import ModelSpec
from posrec.recommend.explain import break_down
from posrec.recommend.ranker import Candidates, Query, Ranker, Ranking
from posrec.recommend.results import Explanation, Recommendation, Recommendations
from posrec.recommend.search import ExactSearch, top
from posrec.recommend.session import AnySession, Click, EncodedSession, Session, as_ids, is_many
from posrec.run import Run, load_run, save_run

if TYPE_CHECKING:
    from posrec.recommend.faiss_search import FaissSearch

K = 20


class Recommender:
    """Recommends items for sessions with the model of a run.

    Args:
        run: A run from `posrec.run.load_run`. `Recommender.load` opens a run folder directly.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        scorer: The same model in another form, such as an OnnxModel, which ranks in place of `run.model`. Explanations
            and similar items still come from `run.model`.
        search: Finds the best items for session vectors on the CPU; None scores every item. See ranker.py.

    Example::

        rec = Recommender.load("runs/tonight")
        for one in rec.recommend(["sku-1", "sku-7"], k=3):
            print(one.item, one.score)
    """

    def __init__(
        self, run: Run, device: str = "auto", scorer: Any = None, search: "ExactSearch | FaissSearch | None" = None
    ) -> None:
        self.run = run
        self.device = choose_device(device)
        self.model: Model = run.model.to(self.device)
        self.vocabulary = run.vocabulary
        self.titles = run.vocabulary.columns.get("title")
        self.items: int = run.config["items"]  # the model knows items 1..items; the vocabulary may hold more
        self.popularity = None if run.popularity is None else run.popularity.float().to(self.device)
        longest = self.model.config.max_length
        self.ranker = Ranker(scorer or self.model, longest, self.items, self.popularity, self.device, search)

    def __repr__(self) -> str:
        return f"Recommender({self.run.config['model']}, {self.items:,} items, {self.device})"

    @classmethod
    def load(
        cls, run: str | Path, device: str = "auto", spec: str | ModelSpec | None = None, encoding: Any = None
    ) -> "Recommender":
        """Open a run folder.

        Args:
            run: A folder written by `posrec train`, `posrec compare` or `Recommender.save`.
            device: "auto" (a GPU where there is one), "cpu" or "cuda".
            spec: For a run of a model of your own: its ModelSpec, or its name such as `"my_model.py:MY_SPEC"`.
            encoding: Likewise for an encoding of your own: `"my_encoding.py:nearness"`, or the encoding itself. Names
                in the run folder are never used, so no unknown code is run.

        Returns:
            A recommender with the run's model.

        Example: `rec = Recommender.load("runs/tonight", device="cpu")`
        """
        return cls(load_run(run, spec, encoding), device)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a run folder that `load` and every command can read. It is written whole or not at all.

        Args:
            folder: The folder to write.
            overwrite: Replace a run folder that exists. Any other folder is never replaced.

        Example: `posrec.fit(data, model="posrec").save("runs/tonight")`
        """
        self.run = save_run(self.run, Path(folder), overwrite)

    # A text is a sequence of texts, so the types alone can't tell the two overloads apart.
    @overload
    def recommend(self, session: AnySession, k: int | None = None, *, exclude_seen: bool = False,  # type: ignore[overload-overlap]
                  allow: Collection[Click] | None = None, deny: Collection[Click] | None = None,
                  ) -> Recommendations: ...  # fmt: skip
    @overload
    def recommend(self, session: Sequence[AnySession], k: int | None = None, *, exclude_seen: bool = False,
                  allow: Collection[Click] | None = None, deny: Collection[Click] | None = None,
                  ) -> list[Recommendations]: ...  # fmt: skip
    def recommend(
        self,
        session: AnySession | Sequence[AnySession],
        k: int | None = None,
        *,
        exclude_seen: bool = False,
        allow: Collection[Click] | None = None,
        deny: Collection[Click] | None = None,
    ) -> Recommendations | list[Recommendations]:
        """Recommend the best next items for a session, or for each of many sessions.

        Args:
            session: Item ids, the oldest click first; a `Session`; or a list of such sessions.
            k: How many items, from 1 to the number of items. By default 20, or all where there are fewer.
            exclude_seen: Leave out every item of the session, also clicks too old for the model to read.
            allow: Recommend only these items. Unknown ids are ignored, but at least one must be known.
            deny: Never recommend these items. Unknown ids are ignored.

        Returns:
            The items, the best first; fewer than `k` where too few are left. For a list of sessions, a list of these.

        Raises:
            InputError: The session is empty or not a list of ids, or `k` is out of range.

        Example::

            found = rec.recommend(["sku-1", "sku-7"], k=10, exclude_seen=True, deny={"sku-3"})
            found[0].item, found[0].score, found.unknown, found.popular
            rec.recommend([["sku-1"], ["sku-7", "sku-1"]], k=10)  # two sessions, two results
        """
        many = is_many(session)
        sessions: Any = session if many else [session]
        k, candidates = self.checked_k(k), self.checked_candidates(allow, deny)
        queries = [self.query(self.encode(one), k, exclude_seen, candidates) for one in sessions]
        rankings = self.ranker.rank(queries)
        results = [self.result(query, ranking) for query, ranking in zip(queries, rankings, strict=True)]
        return results if many else results[0]

    def encode(self, session: AnySession) -> EncodedSession:
        """The session as item numbers."""
        ids = as_ids(session)
        if not ids:
            raise InputError("the session is empty; it needs at least one item")
        numbers = [self.number(item) for item in ids]
        known = [number for number in numbers if number is not None]
        if len(known) == len(ids):
            return EncodedSession(known)
        return EncodedSession(known, tuple(item for item, number in zip(ids, numbers, strict=True) if number is None))

    def query(
        self, session: EncodedSession, k: int, exclude_seen: bool = False, candidates: Candidates | None = None
    ) -> Query:
        """A query for the ranker; an InputError where no click is known and the run has no popularity to answer it."""
        if not session.numbers and self.popularity is None:
            named = f" ({some(session.unknown)})" if session.unknown else ""
            raise InputError(
                f"no item of the session is known{named}, and the run does not hold which items are popular; "
                "posrec evaluate with the run's dataset adds that"
            )
        return Query(session, k, exclude_seen, candidates)

    def result(self, query: Query, ranking: Ranking) -> Recommendations:
        items = tuple(map(self.recommendation, *ranking))
        return Recommendations(items, query.session.unknown, popular=not query.session.numbers)

    def recommendation(self, number: int, score: float) -> Recommendation:
        return Recommendation(self.vocabulary.ids[number - 1], score, self.title(number) if self.titles else None)

    def title(self, number: int) -> str | None:
        title = self.titles[number - 1] if self.titles is not None else None
        return None if title is None else str(title)

    def id_and_title(self, number: int) -> tuple[str, str | None]:
        return self.vocabulary.ids[number - 1], self.title(number)

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know; the vocabulary may hold items that training never saw."""
        number = self.vocabulary.find(item)
        return None if number is None or number > self.items else number

    def known(self, item: str) -> int:
        number = self.number(item)
        if number is None:
            raise InputError(f"item {item!r} is not known to the model")
        return number

    def checked_k(self, k: int | None) -> int:
        if k is None:
            return min(K, self.items)
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= self.items:
            raise InputError(f"k={k!r}: it must be a whole number from 1 to {self.items}, the number of items")
        return k

    def candidates(self, allow: Collection[Click] | None, deny: Collection[Click] | None) -> Candidates | None:
        """The items that may be recommended; None for all of them. Unknown ids are ignored."""
        if allow is None and not deny:
            return None
        allowed, denied = (
            None if ids is None else [number for item in as_ids(ids) if (number := self.number(item)) is not None]
            for ids in (allow, deny)
        )
        return Candidates(self.items, allowed, denied or ())

    def checked_candidates(self, allow: Collection[Click] | None, deny: Collection[Click] | None) -> Candidates | None:
        """As `candidates`, but an InputError where no allowed id is known: the list is likely of another shop."""
        if allow is not None and all(self.number(item) is None for item in as_ids(allow)):
            raise InputError(
                "the model knows none of the allowed items; check that the ids are those of the training log"
            )
        return self.candidates(allow, deny)

    @overload
    def explain(self, session: AnySession, item: Click) -> Explanation: ...  # type: ignore[overload-overlap]
    @overload
    def explain(self, session: AnySession, item: Sequence[Click]) -> list[Explanation]: ...
    def explain(self, session: AnySession, item: Click | Sequence[Click]) -> Explanation | list[Explanation]:
        """Explain the score of an item for a session, or the scores of several items.

        Args:
            session: Item ids, the oldest click first, or a `Session`.
            item: The id of the item to explain, or a list of ids.

        Returns:
            The item's score, its rank, the parts of the score where the model has such, and the effect of each click.
            For a list of items, a list of these.

        Raises:
            InputError: The item is not known to the model, or no item of the session is.

        Example::

            why = rec.explain(["sku-1", "sku-7"], "sku-9")
            why.score, why.rank, why.parts, why.clicks[0].effect
        """
        single = isinstance(item, str | int)
        wanted: Any = [item] if single else item
        encoded, items = self.encode(session), [self.known(one) for one in as_ids(wanted)]
        if not encoded.numbers:
            raise InputError(f"no item of the session is known ({some(encoded.unknown)}): there is nothing to explain")
        breakdown = break_down(self.model, encoded.numbers, items, self.device)
        explanations = [
            breakdown.explanation(place, encoded, number, self.id_and_title) for place, number in enumerate(items)
        ]
        return explanations[0] if single else explanations

    @torch.inference_mode()
    def similar_items(self, item: Click, k: int | None = None) -> list[Recommendation]:
        """The items whose vectors point in the most similar direction (cosine), without the item itself.

        Args:
            item: An item id.
            k: How many items. By default 20, or all others where there are fewer.

        Returns:
            The items, the most similar first; a score is a cosine, from -1 to 1.

        Raises:
            InputError: The item is not known, or the model has no item vectors (counting models).

        Example::

            rec.similar_items("sku-1", k=5)[0].item
        """
        if not isinstance(self.model, SessionModel):
            raise InputError(f"{self.run.config['model']} has no item vectors, so it can't say which items are similar")
        number = self.known(as_ids([item])[0])
        k = min(self.checked_k(k), self.items - 1)
        vectors: Tensor = self.model.similarity_vectors()
        lengths = vectors.norm(dim=1) * vectors[number - 1].norm()
        cosine = (vectors @ vectors[number - 1]) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
        cosine[number - 1] = -torch.inf
        values, columns = top(cosine[None], k)
        return list(map(self.recommendation, (columns[0] + 1).tolist(), values[0].tolist()))

    def update_session(self, session: AnySession | None, *clicks: Click) -> Session:
        """A new session with more clicks at the end. The session passed in does not change.

        Args:
            session: The session so far; None starts a new one.
            clicks: The item ids to add.

        Returns:
            The new session, which `recommend` and `explain` accept.

        Example::

            session = rec.update_session(None, "sku-1")
            rec.recommend(rec.update_session(session, "sku-7"))
        """
        before = Session(tuple(as_ids(session))) if session is not None else Session()
        return before.then(*clicks)


def some(ids: Sequence[str], most: int = 5) -> str:
    """The first ids and how many more there are, so that an error message stays short."""
    named = ", ".join(one if len(one) <= 100 else f"{one[:100]}..." for one in ids[:most])
    return named if len(ids) <= most else f"{named} and {len(ids) - most:,} more"
