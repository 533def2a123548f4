"""What the routes of one worker process share: the runs, the batcher, the session store, rules and feedback."""

import asyncio
import gc
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from posrec.device import usable_cores, use_threads
from posrec.errors import InputError
from posrec.recommend.catalogue import values_of
from posrec.recommend.plan import Ordered, Plan
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.server.batching import INLINE, INLINE_OF_SEVERAL, Batcher
from posrec.server.feedback import FeedbackFiles
from posrec.server.http.messages import NotFound, NotReady
from posrec.server.json_log import log_event
from posrec.server.live.background import BackgroundQueue
from posrec.server.live.reload import LoadedRun, RunReloader
from posrec.server.live.rule_files import RuleFiles
from posrec.server.metrics import Metrics
from posrec.server.schemas import AnswerRequest, ClickRequest, RecommendAnswer, RecommendedItem, RecommendRequest
from posrec.server.session_store import SessionStore, StoreUnavailable
from posrec.server.settings import ServerSettings, Split

SESSIONS_AT_ONCE = 16  # of a batch request; other requests are computed between them
ROTATION_CHECK = 60.0  # seconds
STORE_LOG_PAUSE = 10.0  # seconds between two log lines about a session store that fails

Asked = tuple[Recommender, Sequence[tuple[Plan, EncodedSession]]]


class Service:
    """The state that the routes of one worker process share. `listen` is called once the runs are loaded."""

    def __init__(self, settings: ServerSettings, listen: Callable[[], None] = lambda: None) -> None:
        self.settings, self.listen = settings, listen
        self.metrics = Metrics(Path(settings.shared) if settings.shared else None)
        self.rules = RuleFiles(settings.allow_file, settings.deny_file)
        cores = max(1, usable_cores() // settings.workers)
        self.reloaders = [
            RunReloader(Path(run), settings.device, settings.onnx, self.metrics, settings.code, self.rules, cores)
            for run in (settings.run, *settings.more_runs)
        ]
        self.split = Split(settings.split or [1] * len(self.reloaders))
        self.store: SessionStore | None = None
        self.store_failure_logged = -math.inf
        if settings.session_store:
            self.store = SessionStore(settings.session_store, self.store_failed)
        self.feedback = FeedbackFiles(Path(settings.feedback)) if settings.feedback else None
        self.background = BackgroundQueue(settings.queue)  # an explanation scores its session once for every click
        self.batcher: Batcher | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        use_threads(1)  # sessions are small; more workers use more cores
        several = self.settings.workers > 1
        # With several workers on the cores, waiting to fill a batch costs more than it saves.
        limits = (self.settings.queue, self.settings.batch, 0.0 if several else self.settings.gather_ms / 1000)
        self.batcher = Batcher(rank, *limits, self.observe, INLINE_OF_SEVERAL if several else INLINE)
        self.batcher.start()
        self.rules.read()
        for reloader in self.reloaders:
            reloader.start()
        # What was imported and loaded until now stays. Without this the garbage collector goes through all of it again
        # and again, a tenth of a second at a time, in which nobody is answered.
        gc.collect()
        gc.freeze()
        self.listen()
        for reloader in self.reloaders:  # whoever reads this line may connect
            reloader.log_serving("started")
        watching = [asyncio.create_task(reloader.watch()) for reloader in self.reloaders]
        watching.append(asyncio.create_task(self.rules.watch(self.apply_rules)))
        watching.append(asyncio.create_task(self.rotate_feedback()))
        watching.append(asyncio.create_task(self.try_store()))
        yield
        for task in watching:
            task.cancel()
        self.background.stop()
        await self.batcher.stop()
        if self.store is not None:
            await self.store.close()
        if self.feedback is not None:
            self.feedback.rotate()
        log_event("stopped")

    async def try_store(self) -> None:
        """Ask the session store once, so that the log has the reason if it can't be used."""
        with suppress(StoreUnavailable):
            if self.store is not None:
                await self.store.clicks("")

    def store_failed(self, reason: str) -> None:
        self.metrics.count("store_errors")
        now = time.monotonic()
        if now - self.store_failure_logged > STORE_LOG_PAUSE:
            self.store_failure_logged = now
            log_event("the session store failed", logging.ERROR, reason=reason)

    def observe(self, size: int) -> None:
        self.metrics.batch(size)
        assert self.batcher is not None
        self.metrics.waiting(len(self.batcher.waiting))

    def apply_rules(self) -> None:
        for reloader in self.reloaders:
            if reloader.current is not None:
                self.rules.apply(reloader.current.recommender.catalogue)

    async def rotate_feedback(self) -> None:
        """Turn feedback into Parquet files in time, also where no more arrives."""
        while self.feedback is not None:
            await asyncio.sleep(ROTATION_CHECK)
            self.feedback.rotate_if_due()

    def loaded(self, key: str | None = None) -> LoadedRun:
        """The run that answers sessions with this key; the first run without one."""
        chosen = 0 if key is None else self.split.choose(key)
        others = [one for place, one in enumerate(self.reloaders) if place != chosen]
        for reloader in (self.reloaders[chosen], *others):
            if reloader.current is not None:
                return reloader.current
        raise NotReady("no run can be served yet; the server's log has the reason")

    async def recommend(self, session: list[Any], request: AnswerRequest, key: str | None = None) -> RecommendAnswer:
        loaded, plan = self.planned(session, request, key)
        return (await self.answers(loaded, plan, [session]))[0]

    async def click(self, session_id: str, request: ClickRequest) -> RecommendAnswer:
        """Store a click and recommend for the whole session. A request that is refused is refused before its click is
        stored: a client that asks again would store it twice."""
        store = self.stored_sessions()
        assert self.batcher is not None
        with self.batcher.place():
            loaded, plan = self.planned([], request, session_id)
            clicks = await store.add(session_id, str(request.item))
            asked = (plan, self.encode(loaded.recommender, clicks[-self.settings.max_length :]))
            ordered = self.batcher.submit((loaded.recommender, [asked]), has_place=True)
        return answer(loaded, *asked, (await ordered)[0])

    def planned(self, session: list[Any], request: AnswerRequest, key: str | None) -> tuple[LoadedRun, Plan]:
        """The run that answers, and what is asked of it.

        `key` decides, with several runs, which of them answers; by default it is the session's first click.
        """
        loaded = self.loaded(str(session[0]) if key is None and session else key)
        return loaded, loaded.recommender.plan(request.k, **request.rules())

    async def answers(self, loaded: LoadedRun, plan: Plan, sessions: Sequence[list[Any]]) -> list[RecommendAnswer]:
        asked = [(plan, self.encode(loaded.recommender, session)) for session in sessions]
        assert self.batcher is not None
        found: Sequence[Ordered] = await self.batcher.ask((loaded.recommender, asked))
        return [answer(loaded, *one, ordered) for one, ordered in zip(asked, found, strict=True)]

    def encode(self, recommender: Recommender, session: list[Any]) -> EncodedSession:
        self.check_length(session)
        encoded = recommender.encode(session)
        if encoded.unknown:
            self.metrics.count("unknown_items", len(encoded.unknown))
        return encoded

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(f"the session has {len(session):,} clicks; at most {most:,} are accepted")

    async def recommend_batch(self, sessions: Sequence[list[Any]], request: AnswerRequest) -> list[RecommendAnswer]:
        """Some sessions at a time, so that other requests are not kept waiting; in the order of the sessions."""
        rows: dict[int, list[int]] = {}
        for row, session in enumerate(sessions):
            rows.setdefault(self.split.choose(str(session[0])) if session else 0, []).append(row)
        answers: dict[int, RecommendAnswer] = {}
        for own in rows.values():
            loaded = self.loaded(str(sessions[own[0]][0]) if sessions[own[0]] else None)
            plan = loaded.recommender.plan(request.k, **request.rules())
            for start in range(0, len(own), SESSIONS_AT_ONCE):
                some = own[start : start + SESSIONS_AT_ONCE]
                found = await self.answers(loaded, plan, [sessions[row] for row in some])
                answers.update(zip(some, found, strict=True))
        return [answers[row] for row in range(len(sessions))]

    async def recommend_request(self, request: RecommendRequest) -> RecommendAnswer:
        session = request.session
        if request.session_id is not None:
            self.check_length(session)
            stored = await self.stored_sessions().clicks(request.session_id)
            session = [*stored, *session][-self.settings.max_length :]
        return await self.recommend(session, request, request.split_by or request.session_id)

    def refuse_if_overloaded(self) -> None:
        """Raise Overloaded before any work is done for a request, where it would be refused in the end."""
        assert self.batcher is not None
        self.batcher.refuse_more()

    def stored_sessions(self) -> SessionStore:
        if self.store is None:
            raise NotFound("no sessions are stored here; start the server with --session-store redis://...")
        return self.store


def rank(jobs: Sequence[Asked]) -> list[list[Ordered]]:
    """Rank a batch of requests. Sessions of the same recommender are ranked together."""
    answers: list[list[Ordered]] = [[] for _ in jobs]
    rows: dict[Recommender, list[int]] = {}
    for row, (recommender, _) in enumerate(jobs):
        rows.setdefault(recommender, []).append(row)
    for recommender, own in rows.items():
        found = iter(recommender.rank([one for row in own for one in jobs[row][1]]))
        for row in own:
            answers[row] = [next(found) for _ in jobs[row][1]]
    return answers


def answer(loaded: LoadedRun, plan: Plan, session: EncodedSession, found: Ordered) -> RecommendAnswer:
    return RecommendAnswer(
        answered(loaded.recommender, plan, found), session.unknown, not session.numbers,
        f"{loaded.fingerprint}-{secrets.token_hex(8)}", loaded.fingerprint,
    )  # fmt: skip


def answered(recommender: Recommender, plan: Plan, found: Ordered) -> list[RecommendedItem]:
    ids, titled, fields = recommender.vocabulary.ids, recommender.titles is not None, plan.fields
    items = [
        RecommendedItem(ids[number - 1], score, recommender.title(number) if titled else None)
        for number, score in zip(found.numbers, found.scores, strict=True)
    ]
    if fields:
        for item, number in zip(items, found.numbers, strict=True):
            item.fields = values_of(number, fields)
    for item in items[: found.pinned]:
        item.pinned = True
    return items
