"""Recommender: raw item ids in, raw item ids out, for any model.

Items that the model does not know are skipped and named in the result. A session without a known item, and an empty
one, gets the most clicked items, and the result says so.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from posrec.device import choose_device
from posrec.errors import InputError, RunFailed
from posrec.recommend.catalogue import Candidates, Catalogue, Fields, values_of
from posrec.recommend.plan import FEW_CLICKS, AnswerRules, Ordered, Plan, SimilarRules
from posrec.recommend.rank.best_items import Floats, VectorSearch
from posrec.recommend.rank.encoder import OnnxModel, SessionEncoder
from posrec.recommend.rank.ranker import Ranker, SearchRanker
from posrec.recommend.rank.similarity import Similarity, similarity_of
from posrec.recommend.results import Explanation, Recommendation, Recommendations
from posrec.recommend.session import AnySession, Click, EncodedSession, Session, as_ids, is_many, some
from posrec.runs.folder import Run

if TYPE_CHECKING:
    import torch

    from posrec.models.base import Model
    from posrec.models.registry import ModelSpec


class Recommender:
    """Recommends items for sessions with the model of a run.

    Args:
        run: A run from `posrec.runs.run.load_run`. `Recommender.load` opens a run folder directly.
        device: "auto" (a GPU where there is one), "cpu" or "cuda".
        scorer: The same model in another form, such as an OnnxModel, which ranks in place of `run.model`. Explanations
            and similar items still come from `run.model`.
        search: Finds the best items for session vectors on the CPU; None scores every item. See rank/ranker.py.
        similarity: The vectors by which items are similar, where they are known without `run.model`.

    Example::

        rec = Recommender.load("runs/tonight")
        for one in rec.recommend(["sku-1", "sku-7"], k=3):
            print(one.item, one.score)
    """

    def __init__(
        self,
        run: Run,
        device: str = "auto",
        scorer: Any = None,
        search: VectorSearch | None = None,
        similarity: Similarity | None = None,
    ) -> None:
        self.run, self.wanted_device = run, device
        self.vocabulary = run.vocabulary
        self.items: int = run.config["items"]  # the model knows items 1..items; the vocabulary may hold more
        self.catalogue = Catalogue(run.vocabulary, self.items)
        self.popularity: Floats = np.asarray(run.popularity, np.float32)
        self.similarity = similarity or similarity_of(run)
        self.uses_onnx = isinstance(scorer, OnnxModel)
        self.ranker = self.ranker_of(scorer or self.model, search)

    def ranker_of(self, scorer: Any, search: VectorSearch | None) -> Ranker:
        """By the search with the session vectors of `scorer`; without a search by its scores of all items."""
        if search is not None:
            return SearchRanker(encoder_of(scorer), search, self.popularity)
        from posrec.recommend.rank.torch_model import ScoresRanker  # imports torch

        return ScoresRanker(scorer, self.popularity, self.device)

    @cached_property
    def device(self) -> "torch.device":
        return choose_device(self.wanted_device)

    @cached_property
    def model(self) -> "Model":
        """The run's model on the device. It is loaded here where the run was opened without it."""
        return self.run.model.to(self.device)

    def __repr__(self) -> str:
        return f"Recommender({self.run.config['model']}, {self.items:,} items, {self.device})"

    @classmethod
    def load(
        cls, run: str | Path, device: str = "auto", spec: "str | ModelSpec | None" = None, encoding: Any = None
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
        from posrec.runs.run import load_run

        return cls(load_run(run, spec, encoding), device)

    def save(self, folder: str | Path, overwrite: bool = False, export: bool = True) -> None:
        """Write a run folder that `load` and every command can read. It is written whole or not at all.

        Args:
            folder: The folder to write.
            overwrite: Replace a run folder that exists. Any other folder is never replaced.
            export: Write the export for serving too, which takes some seconds; `posrec export` can add it later.

        Example: `posrec.fit(data, model="posrec").save("runs/tonight")`
        """
        from posrec.progress import default_progress
        from posrec.recommend.export.writing import add_export
        from posrec.runs.run import saving

        with saving(self.run, Path(folder), overwrite) as saved:
            if export:
                add_export(saved, default_progress())
        self.run = replace(saved, path=Path(folder))

    # A text is a sequence of texts, so the types alone can't tell the two overloads apart.
    @overload
    def recommend(  # type: ignore[overload-overlap]
        self, session: AnySession, k: int | None = None, **rules: Unpack[AnswerRules]
    ) -> Recommendations: ...
    @overload
    def recommend(
        self, session: Sequence[AnySession], k: int | None = None, **rules: Unpack[AnswerRules]
    ) -> list[Recommendations]: ...
    def recommend(
        self, session: AnySession | Sequence[AnySession], k: int | None = None, **rules: Unpack[AnswerRules]
    ) -> Recommendations | list[Recommendations]:
        """Recommend the best next items for a session, or for each of many sessions.

        Args:
            session: Item ids, the oldest click first; a `Session`; or a list of such sessions. An empty session gets
                the most clicked items.
            k: How many items, 1 or more; 20 by default. Where there are fewer items, all of them are returned.
            exclude: "current" leaves out the item of the last click, "seen" every item of the session, also clicks
                too old for the model to read. `exclude_seen=True` is the same as `exclude="seen"`.
            allow: Recommend only these items. Unknown ids are ignored; if none is known, there is nothing to
                recommend.
            deny: Never recommend these items. Unknown ids are ignored.
            filter: Recommend only items whose columns match, such as `{"category": ["tents"], "price": {"max": 200}}`;
                see docs/recommending.md.
            pin: Put these items first, in this order, unless they are unknown or must not be recommended.
            boost: Multiply the chances of items by a factor, such as `{"brand": {"own": 1.2}}`. For trained models the
                logarithm of the factor is added to the score; for counting models and popular items the score is
                multiplied.
            diversify: From 0 to 1, how much more to value items that differ from those above them in the list (maximal
                marginal relevance over item vectors); or the name of a column, for one item of each of its values, or
                `{"column": "brand", "most": 2}` for at most two.
            explore: From 0 to 0.5, the share of places given to new items, those with fewer than 5 clicks in training.
                They have `Recommendation.explored`. A place of 20 is a share of 0.05.
            fields: The names of columns to return with each item, in `Recommendation.fields`.

        Returns:
            The items, the best first; fewer than `k` where too few are left. For a list of sessions, a list of these.

        Raises:
            InputError: The session is not a list of ids, `k` is below 1, or there is no such column.

        Example::

            found = rec.recommend(["sku-1", "sku-7"], k=10, exclude="seen", deny={"sku-3"})
            found[0].item, found[0].score, found.unknown, found.popular
            rec.recommend([["sku-1"], ["sku-7", "sku-1"]], k=10)  # two sessions, two results
            rec.recommend([], filter={"category": "tents"})  # the most clicked tents
        """
        many = is_many(session)
        sessions: Any = session if many else [session]
        plan = self.plan(k, **rules)
        asked = [(plan, self.look_up(one)) for one in sessions]
        results = [
            self.result(plan, encoded, found) for (_, encoded), found in zip(asked, self.rank(asked), strict=True)
        ]
        return results if many else results[0]

    def plan(self, k: int | None = None, **rules: Unpack[AnswerRules]) -> Plan:
        """What is asked for, checked; for any number of sessions."""
        return Plan(self.catalogue, self.similarity, k, new_items=self.new_items, **rules)

    @cached_property
    def new_items(self) -> Candidates | None:
        """The items with few training clicks, which `explore` is about; None where there are none."""
        is_new = self.popularity < FEW_CLICKS
        return Candidates(is_new) if is_new.any() else None

    def rank(self, asked: Sequence[tuple[Plan, EncodedSession]]) -> list[Ordered]:
        """The list of items for each session by its plan; all are ranked together."""
        queries = [plan.queries(session) for plan, session in asked]
        rankings = iter(self.ranker.rank([query for part in queries for query in part]))
        lists = []
        for (plan, session), part in zip(asked, queries, strict=True):
            lists.append(plan.ordered(session, [next(rankings) for _ in part], self.ranker.rank))
        return lists

    def look_up(self, session: AnySession) -> EncodedSession:
        """The session as item numbers."""
        ids = as_ids(session)
        numbers = [self.number(item) for item in ids]
        known = [number for number in numbers if number is not None]
        if len(known) == len(ids):
            return EncodedSession(known)
        unknown = tuple(item for item, number in zip(ids, numbers, strict=True) if number is None)
        return EncodedSession(known, unknown, ends_unknown=numbers[-1] is None)

    def result(self, plan: Plan, session: EncodedSession, found: Ordered) -> Recommendations:
        require_finite([score for _, score in found.items])
        items = [self.recommendation(number, score, plan.fields) for number, score in found.items]
        for place, (number, _) in enumerate(found.items):
            items[place].pinned, items[place].explored = place < found.pinned, number in found.explored
        return Recommendations(tuple(items), session.unknown, popular=not session.numbers)

    def recommendation(self, number: int, score: float, fields: Fields | None) -> Recommendation:
        shown = values_of(number, fields) if fields else None
        return Recommendation(self.vocabulary.ids[number - 1], score, self.title(number), shown)

    def title(self, number: int) -> str | None:
        return self.catalogue.title(number)

    def id_and_title(self, number: int) -> tuple[str, str | None]:
        return self.vocabulary.ids[number - 1], self.title(number)

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know."""
        return self.catalogue.number(item)

    def known(self, item: str) -> int:
        number = self.number(item)
        if number is None:
            raise InputError(f"item {item!r} is not known to the model")
        return number

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
        items, encoded = [self.known(one) for one in as_ids(wanted)], self.look_up(session)
        if not encoded.numbers:
            unknown = encoded.unknown
            reason = f"no item of the session is known ({some(unknown)})" if unknown else "the session is empty"
            raise InputError(f"{reason}: there is nothing to explain")
        from posrec.recommend.explain import explain  # imports torch

        explanations = explain(self.model, encoded, items, self.device, self.id_and_title)
        for why in explanations:
            attention = [weight for click in why.clicks for weight in click.attention.values()]
            require_finite([why.score, *why.parts.values(), *attention])
        return explanations[0] if single else explanations

    def similar_items(self, item: Click, k: int | None = None, **rules: Unpack[SimilarRules]) -> list[Recommendation]:
        """The items whose vectors point in the most similar direction (cosine), without the item itself.

        Args:
            item: An item id.
            k: How many items; 20 by default.
            filter, allow, deny, fields: As in `recommend`.

        Returns:
            The items, the most similar first; a score is a cosine, from -1 to 1.

        Raises:
            InputError: The item is not known, or the model has no item vectors (counting models).

        Example::

            rec.similar_items("sku-1", k=5)[0].item
        """
        if self.similarity is None:
            raise InputError(f"{self.run.config['model']} has no item vectors, so it can't say which items are similar")
        number, plan = self.known(as_ids([item])[0]), self.plan(k, **rules)
        values, columns = self.similarity.most_similar(number, plan.k, plan.candidates, plan.denied)
        require_finite(values.tolist())
        found = zip(columns.tolist(), values.tolist(), strict=True)
        return [self.recommendation(column + 1, value, plan.fields) for column, value in found]

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


def require_finite(scores: Sequence[float]) -> None:
    if not all(map(math.isfinite, scores)):
        raise RunFailed("the run can't be used: it gave a score that is not finite")


def encoder_of(scorer: Any) -> SessionEncoder:
    """An OnnxModel as it is, or a model of torch as an encoder."""
    if isinstance(scorer, OnnxModel):
        return scorer
    from posrec.recommend.rank.torch_model import TorchEncoder  # imports torch

    return TorchEncoder(scorer)
