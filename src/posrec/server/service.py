"""What the routes of one worker process share: the runs, the batcher, the session store, rules and
feedback."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from posrec.device import use_threads
from posrec.errors import InputError
from posrec.recommend.catalogue import values_of
from posrec.recommend.plan import Ordered, Plan
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.server.batching import INLINE, INLINE_OF_SEVERAL, BackgroundQueue, Batcher
from posrec.server.content.reload import LoadedRun, RunReloader, ShopFiles
from posrec.server.content.split import Split
from posrec.server.errors import Refused
from posrec.server.feedback.answer_ids import new_answer_id
from posrec.server.feedback.erasing import delete_old
from posrec.server.feedback.writing import FeedbackFiles, convert_and_close
from posrec.server.http.operation import RequestContext
from posrec.server.json_log import log_event, log_seldom
from posrec.server.metrics import Metrics
from posrec.server.schemas import (
    AnswerRequest,
    BatchAnswer,
    BatchRequest,
    ClickRequest,
    RecommendAnswer,
    RecommendedItem,
    RecommendRequest,
)
from posrec.server.session_store import SessionStore, StoreUnavailable, open_store
from posrec.server.settings import ServerSettings
from posrec.server.work import (
    PIECE_WORK,
    QUICK_WORK,
    SLOW_QUEUE,
    check_answer_bytes,
    estimated_work,
)

GATHER = 0.001  # seconds that a single worker waits for more requests before it computes a batch
TIDY_PAUSE = 60.0  # seconds
SWITCH_INTERVAL = 0.001  # seconds until a thread that others wait for gives up Python's lock; the default is 0.005


class RankingTask(NamedTuple):
    loaded: LoadedRun
    plan: Plan
    session: EncodedSession


class Service:
    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics(
            Path(settings.shared) if settings.shared else None, settings.names
        )
        self.files = ShopFiles(settings)
        self.reloaders = [
            RunReloader(Path(run), name, settings, self.metrics, self.files)
            for run, name in zip(settings.runs, settings.names, strict=True)
        ]
        self.split = Split(settings.split or [1] * len(self.reloaders))
        self.store: SessionStore | None = None
        if settings.session_store:
            self.store = open_store(settings.session_store, self.store_failed)
        self.feedback: FeedbackFiles | None = None
        if settings.feedback:
            self.feedback = FeedbackFiles(
                Path(settings.feedback), observe=self.metrics.feedback
            )
        self.background = BackgroundQueue(SLOW_QUEUE * settings.queue)
        # With several workers on the cores, waiting to fill a batch costs more than it saves.
        gather, inline = (
            (0.0, INLINE_OF_SEVERAL) if settings.workers > 1 else (GATHER, INLINE)
        )
        self.batcher = Batcher(
            rank,
            settings.queue,
            gather=gather,
            observe=self.metrics.batch,
            inline=inline,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        use_threads(1)  # sessions are small; more workers use more cores
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.batcher.start()
        self.files.read()
        for (
            reloader
        ) in self.reloaders:  # one that can't be loaded now is served once it can be
            reloader.replace_current()
        # The garbage collector would go through all that was loaded again and again, while nobody
        # is answered.
        gc.collect()
        gc.freeze()
        for reloader in self.reloaders:
            reloader.log_serving("started")
        tasks = [reloader.watch() for reloader in self.reloaders]
        tasks += [
            file.watch(self.apply_rules) for file in (self.files.allow, self.files.deny)
        ]
        tasks += [
            self.files.items.watch(self.apply_items),
            self.tidy_up(),
            self.try_store(),
        ]
        watching = [asyncio.create_task(task) for task in tasks]
        yield
        for task in watching:
            task.cancel()
        self.background.stop()
        await self.batcher.stop()
        if self.store is not None:
            await self.store.close()
        if self.feedback is not None:
            for file in self.feedback.take_files(also_recent=True):
                convert_and_close(file)
        log_event("stopped")

    async def try_store(self) -> None:
        """The log has the reason if it can't be used."""
        with suppress(StoreUnavailable):
            if self.store is not None:
                await self.store.clicks("")

    def store_failed(self, reason: str) -> None:
        self.metrics.count("store_errors")
        log_seldom("the session store failed", reason=reason)

    def apply_rules(self) -> None:
        self.apply(self.files.apply_rules)
        allow = self.files.allow.content
        deny = self.files.deny.content
        allowed, denied = (None if ids is None else ids.number for ids in (allow, deny))
        log_event("rules read again", allowed=allowed, denied=denied)

    def apply_items(self) -> None:
        self.apply(self.files.apply_items)

    def apply(self, change: Callable[[Recommender], None]) -> None:
        with self.files.lock:
            for reloader in self.reloaders:
                if reloader.current is not None:
                    change(reloader.current.recommender)

    async def tidy_up(self) -> None:
        while True:
            if self.feedback is not None:
                with suppress(MemoryError):
                    await asyncio.to_thread(self.feedback.convert_leftovers)
                for file in self.feedback.take_files():
                    with suppress(MemoryError):  # the next start converts it
                        await asyncio.to_thread(convert_and_close, file)
                if self.settings.keep_feedback is not None:
                    await asyncio.to_thread(
                        delete_old, self.feedback.folder, self.settings.keep_feedback
                    )
            if self.store is not None:
                with suppress(StoreUnavailable):
                    await self.store.delete_expired()
            await asyncio.sleep(TIDY_PAUSE)

    def loaded(self, key: str | None = None) -> LoadedRun:
        """The run that answers sessions with this key; the first without one. Another while it
        can't be loaded."""
        runs = [reloader.current for reloader in self.reloaders]
        loaded = runs[0 if key is None else self.split.choose(key)] or next(
            filter(None, runs), None
        )
        if loaded is None:
            raise Refused(
                503, "no run can be served yet; the server's log has the reason"
            )
        return loaded

    async def recommend(
        self, data: RecommendRequest, context: RequestContext
    ) -> RecommendAnswer:
        session = data.session
        key = data.split_by or data.session_id
        self.check_length(session)
        if data.session_id is not None:
            stored = await self.stored_sessions().clicks(data.session_id)
            session = [*stored, *session][-self.settings.max_length :]
        loaded = self.loaded(first_click(session) if key is None else key)
        return await self.answer_one(loaded, data, context, session)

    async def click(
        self, session_id: str, data: ClickRequest, context: RequestContext
    ) -> RecommendAnswer:
        add_click = partial(self.stored_sessions().add, session_id, str(data.item))
        return await self.answer_one(
            self.loaded(session_id), data, context, [], add_click
        )

    async def answer_one(
        self,
        loaded: LoadedRun,
        data: AnswerRequest,
        context: RequestContext,
        session: list[Any],
        add_click: Callable[[], Awaitable[list[str]]] | None = None,
    ) -> RecommendAnswer:
        """`add_click` gives the session once the request can't be refused any more: a client that
        asks again would store its click twice."""
        work = estimated_work(
            data, 1, context.body_bytes, loaded.recommender.catalogue, len(session)
        )
        if work <= QUICK_WORK:
            self.batcher.refuse_more(work)
            plan = plan_of(loaded, data)
            if add_click is not None:
                with self.batcher.place(work):
                    session = (await add_click())[-self.settings.max_length :]
            query = self.query(loaded, plan, session)
            return self.answer(query, await self.batcher.submit(query, work))
        with self.background.place(work):
            plan = await self.background.run(
                partial(plan_of, loaded, data), context.has_left
            )
            if add_click is not None:
                session = (await add_click())[-self.settings.max_length :]
            return (
                await self.slow_answers(
                    data, [(loaded, session)], {loaded: plan}, context
                )
            )[0]

    async def recommend_batch(
        self, data: BatchRequest, context: RequestContext
    ) -> BatchAnswer:
        if not data.sessions:
            return BatchAnswer([])
        self.check_length(max(data.sessions, key=len))
        asked = [
            (self.loaded(first_click(session)), session) for session in data.sessions
        ]
        clicks = sum(map(len, data.sessions))
        work = estimated_work(
            data,
            len(asked),
            context.body_bytes,
            asked[0][0].recommender.catalogue,
            clicks,
        )
        together = max(1, PIECE_WORK * len(asked) // work)
        plans: dict[LoadedRun, Plan] = {}
        answers: list[RecommendAnswer] = []
        answer_bytes = 0
        with self.background.place(work):
            for start in range(0, len(asked), together):
                piece = await self.slow_answers(
                    data, asked[start : start + together], plans, context
                )
                sizes = [len(memoryview(one)) for one in piece]  # type: ignore[arg-type]  # they are encoded
                answer_bytes += sum(sizes)
                check_answer_bytes(answer_bytes)
                answers += piece
        return BatchAnswer(answers)

    async def slow_answers(
        self,
        data: AnswerRequest,
        asked: Iterable[tuple[LoadedRun, list[Any]]],
        plans: dict[LoadedRun, Plan],
        context: RequestContext,
    ) -> list[RecommendAnswer]:
        """Computed and encoded as JSON in the background; `plans` gets those that are made."""

        def compute() -> list[msgspec.Raw]:
            queries = []
            for loaded, session in asked:
                if loaded not in plans:
                    plans[loaded] = plan_of(loaded, data)
                queries.append(self.query(loaded, plans[loaded], session))
            encoded = [
                msgspec.json.encode(one)
                for one in map(self.answer, queries, rank(queries))
            ]
            check_answer_bytes(
                sum(map(len, encoded))
            )  # a request may name the items with the longest texts
            return [msgspec.Raw(one) for one in encoded]

        answers: list[RecommendAnswer] = await self.background.run(
            compute, context.has_left
        )
        return answers

    def query(self, loaded: LoadedRun, plan: Plan, session: list[Any]) -> RankingTask:
        encoded = loaded.recommender.look_up(session)
        loaded.metrics.session(len(session), len(encoded.unknown))
        return RankingTask(loaded, plan, encoded)

    def answer(self, query: RankingTask, ordered: Ordered) -> RecommendAnswer:
        loaded = query.loaded
        key = None if self.feedback is None else self.feedback.key
        ids = loaded.recommender.vocabulary.ids
        title = query.plan.catalogue.title
        fields = query.plan.fields
        items = [
            RecommendedItem(
                ids[number - 1],
                score,
                title(number),
                values_of(number, fields) if fields else None,
                place < ordered.pinned,
                number in ordered.explored,
            )
            for place, (number, score) in enumerate(ordered.items)
        ]
        explored = [item.item for item in items if item.explored]
        popular = not query.session.numbers
        loaded.metrics.answer(popular, is_short=len(items) < query.plan.k)
        answer_id = new_answer_id(
            loaded.fingerprint, loaded.metrics.name, key, explored
        )
        return RecommendAnswer(
            items, query.session.unknown, popular, answer_id, loaded.fingerprint
        )

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(
                f"the session has {len(session):,} clicks; at most {most:,} are accepted"
            )

    def stored_sessions(self) -> SessionStore:
        if self.store is None:
            raise Refused(
                404,
                "no sessions are stored here; start the server with --session-store sqlite:FILE",
            )
        return self.store


def first_click(session: list[Any]) -> str | None:
    """By default it decides which of several runs answers a session."""
    return str(session[0]) if session else None


def plan_of(loaded: LoadedRun, data: AnswerRequest) -> Plan:
    return loaded.recommender.plan(data.k, **data.rules())


def rank(queries: Sequence[RankingTask]) -> list[Ordered]:
    """Sessions of the same recommender are ranked together."""
    rows: dict[Recommender, list[int]] = {}
    for row, query in enumerate(queries):
        rows.setdefault(query.loaded.recommender, []).append(row)
    ranked: dict[int, Ordered] = {}
    for recommender, own in rows.items():
        asked = [(queries[row].plan, queries[row].session) for row in own]
        ranked.update(zip(own, recommender.rank(asked), strict=True))
    return [ranked[row] for row in range(len(queries))]
