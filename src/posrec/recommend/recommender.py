"""Recommender: raw item ids in, raw item ids out, for any model that scores.

    rec = Recommender.load("runs/tonight")
    rec.recommend(["sku-1", "sku-7"], k=10)
    rec.explain(["sku-1", "sku-7"], "sku-9")

Items that the model does not know are skipped and named. A session of which nothing is known gets popular items, and
the answer says so.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from posrec.device import choose_device
from posrec.errors import InputError
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.recommend.explain import Account, account
from posrec.recommend.results import ClickEffect, Explanation, Recommendation, Recommendations
from posrec.recommend.session import AnySession, Click, Session, as_ids
from posrec.recommend.topk import top
from posrec.run import Run, load_run, save_run

K = 20
SCORES_AT_ONCE = 1 << 25  # floats: 128 MB, whatever the catalogue's size
MOST_ROWS = 1024


@dataclass(frozen=True)
class Reading:
    """A session in item numbers, and the clicks that have none."""

    numbers: list[int]
    unknown: tuple[str, ...]


class Recommender:
    """`run.model` may be anything with `config.max_length` and `scores(batch)`.

    `scorer` ranks in its place where given, the same model in another form (OnnxModel); the run's own still explains.
    """

    def __init__(self, run: Run, device: str = "auto", scorer: Any = None) -> None:
        self.run = run
        self.device = choose_device(device)
        self.model: Model = run.model.to(self.device)
        self.scorer = scorer or self.model
        self.vocabulary = run.vocabulary
        self.items: int = run.config["items"]  # items 1..items are known to the model; a vocabulary may hold more
        self.popularity = None if run.popularity is None else run.popularity.float().to(self.device)

    @classmethod
    def load(cls, run: str | Path, device: str = "auto") -> "Recommender":
        """Of a run's folder."""
        return cls(load_run(run), device)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a run that `load` and every command read."""
        save_run(self.run, Path(folder), overwrite)

    # A text is a sequence of texts, so the two can't be told apart by their types alone.
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
        """The `k` best next items (20, or all where there are fewer), the best first; of many sessions a list of such.

        `exclude_seen` leaves out what the session holds already; `allow` leaves out all but these items, `deny` these.
        There may then be fewer than `k` left to recommend.
        """
        many = is_many(session)
        sessions: Any = session if many else [session]
        k, candidates = self.checked_k(k), self.candidates(allow, deny)
        readings = [self.read(one) for one in sessions]
        found = (part.tolist() for part in self.rank(readings, k, exclude_seen, candidates))
        answers = [self.answer(*row) for row in zip(readings, *found, strict=True)]
        return answers if many else answers[0]

    def read(self, session: AnySession) -> Reading:
        """A session in the model's numbers."""
        ids = as_ids(session)
        if not ids:
            raise InputError("the session is empty; give it at least one item")
        numbers = [self.number(item) for item in ids]
        known = [number for number in numbers if number is not None]
        if len(known) == len(ids):
            return Reading(known, ())
        return Reading(known, tuple(item for item, number in zip(ids, numbers, strict=True) if number is None))

    def number(self, item: str) -> int | None:
        """None for an item that the model does not know; the vocabulary may hold items that training never saw."""
        number = self.vocabulary.find(item)
        return None if number is None or number > self.items else number

    def checked_k(self, k: int | None) -> int:
        if k is None:
            return min(K, self.items)
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= self.items:
            raise InputError(f"k={k!r}: it must be a whole number from 1 to {self.items}, the number of items")
        return k

    def candidates(self, allow: Collection[Click] | None, deny: Collection[Click] | None) -> Tensor | None:
        """[n] True for items that may be recommended; None where all may. Ids that are not known have no say."""
        if allow is None and deny is None:
            return None
        chosen = torch.ones(self.items, dtype=torch.bool)
        if allow is not None:
            allowed = self.numbers(allow)
            if not allowed:
                raise InputError("the list of allowed items names none that the model knows")
            chosen.zero_()
            chosen[torch.tensor(allowed) - 1] = True
        if denied := self.numbers(deny or ()):
            chosen[torch.tensor(denied) - 1] = False
        return chosen.to(self.device)

    def numbers(self, items: Collection[Click]) -> list[int]:
        found = (self.number(item) for item in as_ids(items))
        return [number for number in found if number is not None]

    @torch.inference_mode()
    def rank(
        self, readings: Sequence[Reading], k: int, exclude_seen: bool = False, candidates: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The numbers [B, k] of the best items of each session and their scores, -inf where none was left."""
        numbers = torch.empty(len(readings), k, dtype=torch.int64)
        scores = torch.empty(len(readings), k)
        for rows in self.rows(readings):
            of_all = self.scores([readings[row] for row in rows], exclude_seen)
            if candidates is not None:
                of_all = of_all.masked_fill(~candidates, -torch.inf)
            best, columns = top(of_all, k)
            place = torch.tensor(rows)
            numbers[place], scores[place] = columns.cpu() + 1, best.cpu()
        return numbers, scores

    def rows(self, readings: Sequence[Reading]) -> Iterator[list[int]]:
        """The rows of a bounded number of sessions at a time; those of which nothing is known among themselves."""
        size = max(1, min(MOST_ROWS, SCORES_AT_ONCE // self.items))
        for known in (True, False):
            rows = [row for row, reading in enumerate(readings) if bool(reading.numbers) == known]
            yield from (rows[start : start + size] for start in range(0, len(rows), size))

    def scores(self, readings: Sequence[Reading], exclude_seen: bool) -> Tensor:
        """[B, n], of the model; or the items' clicks, where the sessions hold nothing that is known."""
        if not readings[0].numbers:
            if self.popularity is None:
                raise InputError(
                    f"no item of the session is known ({some(readings[0].unknown)}), and {self.run.path} does not "
                    "hold which items are popular; have that added by posrec evaluate with its dataset"
                )
            return self.popularity.expand(len(readings), -1)
        sessions = [reading.numbers for reading in readings]
        batch = SessionBatch.of(sessions, self.model.config.max_length).to(self.device)
        scores: Tensor = self.scorer.scores(batch).to(self.device, torch.float32)
        if exclude_seen:
            longest = max(map(len, sessions))
            seen = [session + session[:1] * (longest - len(session)) for session in sessions]  # however few are read
            scores = scores.scatter(1, torch.tensor(seen, device=self.device) - 1, -torch.inf)
        return scores

    def answer(self, reading: Reading, numbers: Sequence[int], scores: Sequence[float]) -> Recommendations:
        found = zip(numbers, scores, strict=True)
        items = tuple(self.recommendation(number, score) for number, score in found if score != -torch.inf)
        return Recommendations(items, reading.unknown, popular=not reading.numbers)

    def recommendation(self, number: int, score: float) -> Recommendation:
        return Recommendation(self.vocabulary.item(number), score, self.title(number))

    def title(self, number: int) -> str | None:
        titles = self.vocabulary.columns.get("title")
        return None if titles is None or titles[number - 1] is None else str(titles[number - 1])

    @overload
    def explain(self, session: AnySession, item: Click) -> Explanation: ...  # type: ignore[overload-overlap]
    @overload
    def explain(self, session: AnySession, item: Sequence[Click]) -> list[Explanation]: ...
    def explain(self, session: AnySession, item: Click | Sequence[Click]) -> Explanation | list[Explanation]:
        """Why `item` is scored as it is for `session`; of several items a list of such."""
        single = isinstance(item, str | int)
        wanted: Any = [item] if single else item
        reading, items = self.read(session), [self.known(one) for one in as_ids(wanted)]
        if not reading.numbers:
            raise InputError(f"no item of the session is known ({some(reading.unknown)}): nothing to explain")
        found = account(self.model, reading.numbers, items, self.device)
        explanations = [self.explanation(reading, number, found, place) for place, number in enumerate(items)]
        return explanations[0] if single else explanations

    def explanation(self, reading: Reading, number: int, found: Account, place: int) -> Explanation:
        """Of the item in this `place` of an account."""
        read = reading.numbers[-self.model.config.max_length :]
        score = float(found.scores[place])
        clicks = []
        for position, click in enumerate(read):
            effect = rank = None
            if found.scores_without is not None and found.ranks_without is not None:
                effect = score - float(found.scores_without[position, place])
                rank = int(found.ranks_without[position, place])
            attention = {name: float(weights[position]) for name, weights in found.attention.items()}
            clicks.append(ClickEffect(self.vocabulary.item(click), self.title(click), effect, rank, attention))
        return Explanation(
            item=self.vocabulary.item(number),
            title=self.title(number),
            score=score,
            rank=int(found.ranks[place]),
            parts={name: float(values[place]) for name, values in found.parts.items()},
            clicks=tuple(clicks),
            unread=len(reading.numbers) - len(read),
            unknown=reading.unknown,
        )

    def known(self, item: str) -> int:
        number = self.number(item)
        if number is None:
            raise InputError(f"item {item!r} is not known to the model")
        return number

    @torch.inference_mode()
    def similar_items(self, item: Click, k: int | None = None) -> list[Recommendation]:
        """The `k` items whose vectors point most nearly the same way (cosine), without the item itself."""
        if not isinstance(self.model, SessionModel):
            raise InputError(f"{self.run.config['model']} has no item vectors, so it can't say which items are similar")
        number = self.known(as_ids([item])[0])
        k = min(self.checked_k(k), self.items - 1)
        vectors: Tensor = self.model.item_vectors()
        lengths = vectors.norm(dim=1) * vectors[number - 1].norm()
        cosine = (vectors @ vectors[number - 1]) / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)
        cosine[number - 1] = -torch.inf
        values, columns = top(cosine[None], k)
        return [
            self.recommendation(column + 1, value)
            for value, column in zip(values[0].tolist(), columns[0].tolist(), strict=True)
        ]

    def update_session(self, session: AnySession | None, *clicks: Click) -> Session:
        """The session with more clicks; None starts one. What was passed in stays as it is."""
        before = Session(tuple(as_ids(session))) if session is not None else Session()
        return before.then(*clicks)


def some(ids: Sequence[str], most: int = 5) -> str:
    """The first ids and how many more there are: a sentence must stay one."""
    named = ", ".join(one if len(one) <= 100 else f"{one[:100]}..." for one in ids[:most])
    return named if len(ids) <= most else f"{named} and {len(ids) - most:,} more"


def is_many(sessions: Any) -> bool:
    """Whether this is a list of sessions; a list of ids is one session."""
    if isinstance(sessions, Session | str | bytes) or not isinstance(sessions, Sequence):
        return False
    return bool(sessions) and all(isinstance(one, Session | list | tuple) for one in sessions)
