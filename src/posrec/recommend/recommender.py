"""Recommender: raw item ids in, raw item ids out, for any model.

Items that the model does not know are skipped and named in the result. A session without a known
item gets the most clicked items of late, and the result says so.
"""

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from posrec.data.item_times import ItemTimes
from posrec.device import choose_device, usable_cores
from posrec.errors import InputError, RunFailed
from posrec.progress import Progress, default_progress
from posrec.recommend.catalogue import Catalogue, Fields, values_of
from posrec.recommend.explore import Explorable, explorable_of
from posrec.recommend.plan import AnswerRules, Ordered, Plan, RankPlan, SimilarRules
from posrec.recommend.rank.best_items import Floats, Search, TableSearch
from posrec.recommend.rank.encoder import Encoder, OnnxModel
from posrec.recommend.rank.ranker import Ranker
from posrec.recommend.rank.similarity import Similarity, similarity_of
from posrec.recommend.results import (
    Explanation,
    ListOfRecommendations,
    RankedCandidates,
    Recommendation,
    Recommendations,
)
from posrec.recommend.session import (
    AnySession,
    Click,
    EncodedSession,
    Session,
    as_ids,
    is_many,
    some,
)
from posrec.runs.folder import Run

if TYPE_CHECKING:
    import torch

    from posrec.models.base import Model
    from posrec.models.own_code import OwnCode
    from posrec.models.registry import ModelSpec
    from posrec.runs.new_items import NewItems


def require_finite(scores: Iterable[float]) -> None:
    if not all(map(math.isfinite, scores)):
        raise RunFailed("the run can't be used: it gave a score that is not finite")


class Recommender:
    """Recommends items for sessions with the model of a run.

    Args:
        run: A run of `posrec.load_run`; `Recommender.load` opens a run folder directly.
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        scorer: The same model in another form, such as an OnnxModel, which computes session vectors
            in place of `run.model`. Explanations still come from `run.model`.
        search: Finds the best items for session vectors; None computes the item vectors, and
            searches them on the device.
        similarity: The vectors by which items are similar, if they are known without the model.
        cores: How many may rank for a list of sessions; torch chooses by itself.

    Example::

        rec = Recommender.load("runs/tonight")
        for recommended in rec.recommend(["sku-1", "sku-7"], k=3):
            print(recommended.item, recommended.score)
    """

    def __init__(
        self,
        run: Run,
        device: str = "auto",
        scorer: Encoder | None = None,
        search: Search | None = None,
        similarity: Similarity | None = None,
        cores: int = 1,
    ) -> None:
        self.run = run
        self.device_name = device
        self.vocabulary = run.vocabulary
        self.added: NewItems | None = None  # the latest items of `vocabulary`
        self.before: tuple[Run, ...] = ()  # the runs without them
        # The model knows items 1..items; the vocabulary may hold more.
        self.items: int = run.config["items"]
        self.catalogue = Catalogue(run.vocabulary, self.items)
        self.popularity: Floats = np.asarray(run.popularity, np.float32)
        self.similarity = similarity or similarity_of(run)
        self.uses_onnx = isinstance(scorer, OnnxModel)
        if scorer is None or search is None:
            from posrec.recommend.rank.torch_model import TorchEncoder, search_of

            scorer = scorer or TorchEncoder(self.model, self.device)
            search = search or search_of(self.model, self.device)
        recent = run.popularity if run.recent is None else run.recent
        self.ranker = Ranker(scorer, search, np.asarray(recent, np.float64), cores)

    @cached_property
    def device(self) -> "torch.device":
        return choose_device(self.device_name)

    @cached_property
    def model(self) -> "Model":
        """The run's model on the device, loaded at the first use."""
        return self.run.model.to(self.device)

    def __repr__(self) -> str:
        return f"Recommender({self.run.config['model']}, {self.items:,} items, {self.device})"

    @classmethod
    def load(
        cls,
        run: str | Path,
        device: str = "auto",
        spec: "str | ModelSpec | None" = None,
        encoding: Any = None,
    ) -> "Recommender":
        """Open a run folder, as every command and the server do.

        Args:
            run: A folder written by `posrec train`, `posrec compare` or `Recommender.save`.
            device: "auto" (a GPU if there is one), "cpu" or "cuda". On a CPU, ONNX Runtime computes
                if the run has an export and the extra `serve` is installed
                (`Recommender.uses_onnx`); otherwise torch does.
            spec: For a model of your own: its ModelSpec, or its name, `"my_model.py:MY_SPEC"`.
            encoding: For an encoding of your own: the encoding, or `"my_encoding.py:nearness"`.
                Names in the run folder are never used, so no unknown code is run.

        Example: `rec = Recommender.load("runs/tonight", device="cpu")`
        """
        from posrec.models.own_code import OwnCode
        from posrec.recommend.export.opening import open_parts

        code = OwnCode(spec, encoding)
        return cls(*open_parts(run, device, code, cores=usable_cores()))

    def save(
        self, folder: str | Path, overwrite: bool = False, export: bool = True
    ) -> None:
        """Write a run folder that `load` and every command can read, whole or not at all.

        Args:
            folder: The folder to write.
            overwrite: Replace a run folder that exists. Any other folder is never replaced.
            export: Write the export for serving too, which takes some seconds.

        Example: `posrec.fit(data, model="posrec").save("runs/tonight")`
        """
        from posrec.recommend.export.writing import add_export
        from posrec.runs.run import saving

        with saving(self.run, Path(folder), overwrite) as saved:
            if export:
                add_export(saved, default_progress())
        self.run = replace(saved, path=Path(folder))

    def with_items(
        self, items: Any, progress: Progress | None = None, **times: Unpack[ItemTimes]
    ) -> "Recommender":
        """A recommender that also knows items which the training did not see.

        A row whose id the run does not know becomes an item, with the vector that its attributes
        give it; it can be clicked, recommended, explained and filtered. The columns of the rows
        replace the run's columns of the same names. A run trained without attributes gains the
        columns alone, and a message says so.

        Args:
            items: A file or a table with a row per item, as for `posrec prepare --items`.
            progress: Receives messages; by default they are printed to standard error.
            created_column, expires_column: The columns to read as `created` and `expires`.

        Returns:
            A new recommender; this one does not change.

        Example: `rec.with_items("items-of-today.csv").recommend(["listed-an-hour-ago"])`
        """
        from posrec.data.items import read_items
        from posrec.runs.new_items import find_new_items

        progress = progress or default_progress()
        ids = self.vocabulary.ids[: self.items]
        rows = read_items(items, **times).by_known_id(ids, progress)
        found = find_new_items(self.run, rows)
        if found.note:
            progress.message(found.note)
        extended = self.with_found(self.run, found)
        extended.before = (*self.before, self.run)
        return extended

    def with_found(self, run: Run, found: "NewItems") -> "Recommender":
        """As `with_items`, for items that were found for `run`. This recommender is one of the run
        or of the run with other items, which are left out."""
        if found.has_items_of(self.added):
            changed = copy(self)
            changed.run = found.added_to(run)
            changed.before = (run,)
            changed.vocabulary = found.vocabulary
            changed.catalogue = self.catalogue.with_columns(found.vocabulary.columns)
            return changed
        known: int = run.config["items"]
        ranker = self.ranker
        search = None
        if isinstance(ranker.search, TableSearch):
            width = ranker.search.table.shape[1]
            rows = found.search_rows(run, width)
            search = ranker.search.with_items(known, rows)
        scorer = None
        similarity = None
        if isinstance(ranker.encoder, OnnxModel) and self.similarity is not None:
            vectors = self.similarity.vectors[:known]
            if found.ids:
                vectors = np.concatenate([vectors, found.vectors])
            similarity = Similarity(lambda: vectors)
            scorer = ranker.encoder.with_table(vectors)
        extended = Recommender(
            found.added_to(run),
            self.device_name,
            scorer,
            search,
            similarity,
            ranker.cores,
        )
        extended.added = found
        extended.before = (run,)
        return extended

    def id_and_title(self, number: int) -> tuple[str, str | None]:
        return self.vocabulary.ids[number - 1], self.catalogue.title(number)

    def known_number(self, item: str) -> int:
        number = self.catalogue.number(item)
        if number is None:
            raise InputError(f"item {item!r} is not known to the model")
        return number

    def trained_values(self, number: int) -> dict[str, Any]:
        """The columns of an item as they were when it got its vector."""
        runs = (*self.before, self.run)
        first = next(run for run in runs if number <= run.config["items"])
        columns = first.vocabulary.columns.items()
        return {name: values[number - 1] for name, values in columns}

    @cached_property
    def explorable(self) -> Explorable | None:
        """For `explore`."""
        return explorable_of(self.run)

    def look_up(self, session: AnySession) -> EncodedSession:
        numbers: list[int] = []
        unknown: list[str] = []
        number = None
        for item in as_ids(session):
            number = self.catalogue.number(item)
            if number is None:
                unknown.append(item)
            else:
                numbers.append(number)
        return EncodedSession(numbers, tuple(unknown), current=number)

    def plan(self, k: int | None = None, **rules: Unpack[AnswerRules]) -> Plan:
        """What is asked for, checked; for any number of sessions."""
        return Plan(
            self.catalogue, self.similarity, k, explorable=self.explorable, **rules
        )

    def ordered_lists(
        self, requests: Sequence[tuple[Plan, EncodedSession]]
    ) -> list[Ordered]:
        """The list of items for each session by its plan; all are ranked together."""
        queries = [plan.queries(session) for plan, session in requests]
        rankings = iter(self.ranker.rank(list(chain.from_iterable(queries))))
        lists = []
        for (plan, session), asked in zip(requests, queries, strict=True):
            answers = [next(rankings) for _ in asked]
            lists.append(plan.ordered(session, answers, self.ranker.rank))
        return lists

    def recommendation(
        self, number: int, score: float, fields: Fields | None
    ) -> Recommendation:
        item, title = self.id_and_title(number)
        values = values_of(number, fields) if fields else None
        return Recommendation(item, score, title, values)

    def result(
        self, plan: Plan, session: EncodedSession, ordered: Ordered
    ) -> Recommendations:
        require_finite(score for _, score in ordered.items)
        items = []
        for position, (number, score) in enumerate(ordered.items):
            item = self.recommendation(number, score, plan.fields)
            item.pinned = position < ordered.pinned
            item.explored = number in ordered.explored
            items.append(item)
        popular = not session.numbers
        return Recommendations(tuple(items), session.unknown, popular)

    # A text is a sequence of texts, so the types alone can't tell the two overloads apart.
    @overload
    def recommend(  # type: ignore[overload-overlap]
        self, session: AnySession, k: int | None = None, **rules: Unpack[AnswerRules]
    ) -> Recommendations: ...
    @overload
    def recommend(
        self,
        session: Sequence[AnySession],
        k: int | None = None,
        **rules: Unpack[AnswerRules],
    ) -> ListOfRecommendations: ...
    def recommend(
        self,
        session: AnySession | Sequence[AnySession],
        k: int | None = None,
        **rules: Unpack[AnswerRules],
    ) -> Recommendations | ListOfRecommendations:
        """Recommend the best next items for a session, or for each of many sessions.

        Args:
            session: Item ids, the oldest click first; a `Session`; or a list of such sessions. An
                empty session gets the most clicked items of late.
            k: How many items, 1 or more; 20 by default.
            exclude: "current" leaves out the item of the last click, "seen" every item of the
                session. `exclude_seen=True` is the same as `exclude="seen"`.
            allow: Recommend only these items; unknown ids are ignored.
            deny: Never recommend these items; unknown ids are ignored.
            filter: Recommend only items whose columns match, such as
                `{"category": ["tents"], "price": {"max": 200}}`; see docs/recommending.md.
            pin: Put these items first, in this order, where they may be recommended.
            boost: Multiply the chances of items by a factor, such as `{"brand": {"own": 1.2}}`:
                its logarithm is added to the scores of trained models, other scores are multiplied.
            diversify: From 0 to 1, how much to prefer items that differ from those above them; or
                a column, for one item of each of its values; or
                `{"column": "brand", "most": 2}` for at most two.
            explore: From 0 to 0.5, the share of places given to new items that the model knows by
                their attributes. They have `Recommendation.explored`.
            explore_days: For how many days after its `created` an item is new, 7 by default; one
                without is new if it has fewer than 5 clicks in training.
            now: The date and time by which items expire (their column `expires`), as text, number,
                date or datetime; by default the clock's.
            fields: The names of columns to return with each item, in `Recommendation.fields`.

        Returns:
            The items, the best first; fewer than `k` where too few are left. For a list of
            sessions, a list of these. Both have `to_frame()`, with the fields.

        Raises:
            InputError: The session is not a list of ids, an option is wrong, or there is no such
                column.

        Example::

            answer = rec.recommend(["sku-1", "sku-7"], k=10, exclude="seen", deny={"sku-3"})
            answer[0].item, answer[0].score, answer.unknown, answer.popular
            rec.recommend([["sku-1"], ["sku-7", "sku-1"]], k=10)  # two sessions, two results
        """
        many = is_many(session)
        sessions: Any = session if many else [session]
        plan = self.plan(k, **rules)
        encoded = [self.look_up(clicks) for clicks in sessions]
        lists = self.ordered_lists([(plan, clicks) for clicks in encoded])
        results = ListOfRecommendations(
            self.result(plan, clicks, ordered)
            for clicks, ordered in zip(encoded, lists, strict=True)
        )
        return results if many else results[0]

    def rank(
        self, session: AnySession, candidates: Sequence[Click]
    ) -> RankedCandidates:
        """Rank given items for a session, such as those that a search engine has found.

        Args:
            session: As in `recommend`. Without a known click, scores are click counts.
            candidates: Their ids, in any order; one that is given twice counts once.

        Returns:
            Every candidate that the model knows with its score, the best first, like a list; the
            others are in `unknown_candidates`.

        Raises:
            InputError: The session or the candidates are not a list of ids.

        Example::

            ranked = rec.rank(["sku-1", "sku-7"], ["sku-3", "sku-9", "new-1"])
            [item.item for item in ranked], ranked.unknown_candidates
        """
        plan = RankPlan(self.catalogue, candidates)
        encoded = self.look_up(session)
        result = self.result(plan, encoded, self.ordered_lists([(plan, encoded)])[0])
        return RankedCandidates(**vars(result), unknown_candidates=plan.unknown)

    @overload
    def explain(  # type: ignore[overload-overlap]
        self, session: AnySession, item: Click
    ) -> Explanation: ...
    @overload
    def explain(
        self, session: AnySession, item: Sequence[Click]
    ) -> list[Explanation]: ...
    def explain(
        self, session: AnySession, item: Click | Sequence[Click]
    ) -> Explanation | list[Explanation]:
        """Explain the score of an item for a session, or the scores of several items.

        Args:
            session: Item ids, the oldest click first, or a `Session`.
            item: The id of the item to explain, or a list of ids.

        Raises:
            InputError: The item is not known to the model, or no item of the session is.

        Example::

            why = rec.explain(["sku-1", "sku-7"], "sku-9")
            why.score, why.rank, why.parts, why.clicks[0].effect
        """
        single = isinstance(item, str | int)
        ids: Any = [item] if single else item
        numbers = [self.known_number(id) for id in as_ids(ids)]
        encoded = self.look_up(session)
        if not encoded.numbers:
            reason = "the session is empty"
            if encoded.unknown:
                reason = f"no item of the session is known ({some(encoded.unknown)})"
            raise InputError(f"{reason}: there is nothing to explain")
        from posrec.recommend.explain import explain  # imports torch

        explanations = explain(
            self.model, encoded, numbers, self.device, self.id_and_title
        )
        if self.run.attributes is not None:
            from posrec.recommend.attribute_effects import attribute_effects

            clicks = encoded.numbers
            effects = attribute_effects(
                self.model, self.run.attributes, clicks, numbers, self.trained_values
            )
            explanations = [
                replace(why, attributes=of_item)
                for why, of_item in zip(explanations, effects, strict=True)
            ]
        for why in explanations:
            require_finite([why.score, *why.parts.values()])
            for click in why.clicks:
                require_finite(click.attention.values())
        return explanations[0] if single else explanations

    def similar_items(
        self, item: Click, k: int | None = None, **rules: Unpack[SimilarRules]
    ) -> list[Recommendation]:
        """The items whose vectors point in the most similar direction, the most similar first.

        Args:
            item: An item id; it is not among the items.
            k: How many items; 20 by default.
            filter, allow, deny, fields, now: As in `recommend`.

        Returns:
            The items; a score is a cosine, from -1 to 1.

        Raises:
            InputError: The item is not known, or the model has no item vectors (counting models).
        """
        if self.similarity is None:
            raise InputError(
                f"{self.run.config['model']} has no item vectors, "
                "so it can't say which items are similar"
            )
        number = self.known_number(as_ids([item])[0])
        plan = self.plan(k, **rules)
        best = self.similarity.most_similar(
            number, plan.k, plan.candidates, plan.denied
        )
        scores = best.scores.tolist()
        require_finite(scores)
        return [
            self.recommendation(column + 1, score, plan.fields)
            for column, score in zip(best.columns.tolist(), scores, strict=True)
        ]

    def update_session(self, session: AnySession | None, *clicks: Click) -> Session:
        """A new session with more clicks at the end. The session passed in does not change.

        Args:
            session: The session so far; None starts a new one.
            clicks: The item ids to add.

        Example::

            session = rec.update_session(None, "sku-1")
            rec.recommend(rec.update_session(session, "sku-7"))
        """
        before = Session(tuple(as_ids(session))) if session is not None else Session()
        return before.then(*clicks)


def open_recommender(
    folder: str | Path,
    device: str = "cpu",
    code: "OwnCode | None" = None,
    use_export: bool = True,
    cores: int = 1,
    items: Path | None = None,
    **times: Unpack[ItemTimes],
) -> Recommender:
    """As `Recommender.load`, for commands and the server; `cores` may be used. `items` is a file
    for `Recommender.with_items`, and `times` its columns."""
    from posrec.recommend.export.opening import open_parts

    recommender = Recommender(*open_parts(folder, device, code, use_export, cores))
    return recommender if items is None else recommender.with_items(items, **times)
