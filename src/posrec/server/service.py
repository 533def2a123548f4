"""What the routes of a worker share: runs, queues, the session store, rules and feedback."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from posrec.device import use_threads
from posrec.errors import InputError
from posrec.recommend.catalogue import values_of
from posrec.recommend.plan import Ordered, Plan, RankPlan
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.server.batching import INLINE, BackgroundQueue, Batcher
from posrec.server.content.reload import LoadedRun, RunReloader, ShopFiles
from posrec.server.content.split import Split
from posrec.server.errors import Refused
from posrec.server.feedback.answer_ids import new_answer_id
from posrec.server.feedback.erasing import delete_old
from posrec.server.feedback.writing import FeedbackFiles
from posrec.server.http.operation import RequestContext
from posrec.server.json_log import log_event, log_handlers, log_seldom
from posrec.server.metrics import Metrics
from posrec.server.schemas import (
    AnswerRequest,
    BatchAnswer,
    BatchRequest,
    ClickRequest,
    RankAnswer,
    RankRequest,
    RecommendAnswer,
    RecommendedItem,
    RecommendRequest,
)
from posrec.server.session_store import SessionStore, StoreUnavailable, open_store
from posrec.server.settings import ServeOptions
from posrec.server.work import (
    PIECE_WORK,
    QUICK_WORK,
    SLOW_QUEUE,
    check_answer_bytes,
    estimated_work,
)

GATHER = 0.001  # seconds that a single worker waits for more requests in a batch
TIDY_PAUSE = 60.0  # seconds
# Seconds until a thread that others wait for gives up Python's lock; the default is 0.005.
SWITCH_INTERVAL = 0.001


class RankingTask(NamedTuple):
    loaded: LoadedRun
    plan: Plan
    session: EncodedSession


class Service:
    def __init__(self, settings: ServeOptions) -> None:
        self.settings = settings
        shared = Path(settings.shared) if settings.shared else None
        self.metrics = Metrics(shared, settings.names)
        for handler in log_handlers():
            handler.on_lost = partial(self.metrics.count, "lost_log_lines")
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
            folder = Path(settings.feedback)
            self.feedback = FeedbackFiles(folder, observe=self.metrics.feedback)
        self.background = BackgroundQueue(SLOW_QUEUE * settings.queue)
        # With several workers on the cores, waiting to fill a batch costs more than it saves.
        is_single = settings.workers == 1
        self.batcher = Batcher(
            rank,
            settings.queue,
            gather=GATHER if is_single else 0.0,
            observe=self.metrics.batch,
            inline=INLINE,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        use_threads(1)  # sessions are small; more workers use more cores
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.batcher.start()
        self.files.read()
        for reloader in self.reloaders:
            reloader.replace_current()  # if it can't be loaded, `watch` tries again
        # The garbage collector would go through all that was loaded again and again.
        gc.collect()
        gc.freeze()
        for reloader in self.reloaders:
            reloader.log_serving("started")
        watching = [
            *(reloader.watch() for reloader in self.reloaders),
            self.files.allow.watch(self.apply_rules),
            self.files.deny.watch(self.apply_rules),
            self.files.items.watch(partial(self.apply, self.files.with_items)),
            self.tidy_up(),
            self.try_store(),
        ]
        tasks = [asyncio.create_task(coroutine) for coroutine in watching]
        yield
        for task in tasks:
            task.cancel()
        self.background.stop()
        await self.batcher.stop()
        if self.store is not None:
            await self.store.close()
        if self.feedback is not None:
            self.feedback.convert_files(also_recent=True)
        log_event("stopped")
        for handler in log_handlers():
            handler.flush()

    async def try_store(self) -> None:
        """If it can't be used, the reason is logged."""
        with suppress(StoreUnavailable):
            if self.store is not None:
                await self.store.clicks("")

    def store_failed(self, reason: str) -> None:
        self.metrics.count("store_errors")
        log_seldom("the session store failed", reason=reason)

    def apply_rules(self) -> None:
        self.apply(self.files.with_rules)
        allow = self.files.allow.content
        deny = self.files.deny.content
        log_event(
            "rules read again",
            allowed=None if allow is None else allow.number,
            denied=None if deny is None else deny.number,
        )

    def apply(self, change: Callable[[LoadedRun], LoadedRun]) -> None:
        with self.files.lock:
            for reloader in self.reloaders:
                if reloader.current is not None:
                    reloader.current = change(reloader.current)

    async def tidy_up(self) -> None:
        while True:
            if self.feedback is not None:
                await self.tidy_feedback(self.feedback)
            if self.store is not None:
                with suppress(StoreUnavailable):
                    await self.store.delete_expired()
            await asyncio.sleep(TIDY_PAUSE)

    async def tidy_feedback(self, feedback: FeedbackFiles) -> None:
        with suppress(MemoryError):  # it is tried again
            await asyncio.to_thread(feedback.convert_files)
        seconds = self.settings.keep_feedback
        if seconds is not None:
            await asyncio.to_thread(delete_old, feedback.folder, seconds)

    def loaded(self, key: str | None = None) -> LoadedRun:
        """The run for sessions with this key; another one while it can't be loaded."""
        runs = [reloader.current for reloader in self.reloaders]
        chosen = 0 if key is None else self.split.choose(key)
        for loaded in (runs[chosen], *runs):
            if loaded is not None:
                return loaded
        raise Refused(503, "no run can be served yet; the server's log has the reason")

    async def recommend(
        self, data: RecommendRequest, context: RequestContext
    ) -> RecommendAnswer:
        """The best next items for a session."""
        session = data.session
        self.check_length(session)
        if data.session_id is not None:
            stored = await self.stored_sessions().clicks(data.session_id)
            session = self.latest([*stored, *session])
        key = data.split_by or data.session_id
        loaded = self.loaded(first_click(session) if key is None else key)
        return await self.answer_one(loaded, data, context, session)

    async def rank(self, data: RankRequest, context: RequestContext) -> RankAnswer:
        """Given items in the order of their scores for a session."""
        self.check_length(data.session)
        loaded = self.loaded(data.split_by or first_click(data.session))
        answer: Any = await self.answer_one(loaded, data, context, data.session)
        return answer  # type: ignore[no-any-return]

    async def click(
        self, session_id: str, data: ClickRequest, context: RequestContext
    ) -> RecommendAnswer:
        """Add a click to a stored session, and get the best next items."""
        store = self.stored_sessions()
        add_click = partial(store.add, session_id, str(data.item), context.received)
        loaded = self.loaded(session_id)
        return await self.answer_one(loaded, data, context, [], add_click)

    async def answer_one(
        self,
        loaded: LoadedRun,
        data: AnswerRequest | RankRequest,
        context: RequestContext,
        session: list[Any],
        add_click: Callable[[], Awaitable[list[str]]] | None = None,
    ) -> RecommendAnswer:
        """`add_click` gives the session once the request can't be refused any more: a client that
        asks again would store its click twice."""
        catalogue = loaded.recommender.catalogue
        work = estimated_work(data, 1, context.body_bytes, catalogue, len(session))
        if work <= QUICK_WORK:
            plan = plan_of(loaded, data)
            await self.batcher.wait_for_room(work)
            if add_click is not None:
                self.batcher.let_in()  # nobody waits for the session store
                session = self.latest(await add_click())
            task = ranking_task(loaded, plan, session)
            return self.answer(task, await self.batcher.submit(task, work))
        make_plan = partial(plan_of, loaded, data)
        plan = await self.background.compute(make_plan, work, context.has_left)
        if add_click is not None:
            session = self.latest(await add_click())
        with self.background.place(work):
            routed = [(loaded, session)]
            answers = await self.slow_answers(data, routed, {loaded: plan}, context)
            return answers[0]

    async def recommend_batch(
        self, data: BatchRequest, context: RequestContext
    ) -> BatchAnswer:
        """The same for many sessions."""
        sessions = data.sessions
        if not sessions:
            return BatchAnswer([])
        self.check_length(max(sessions, key=len))
        routed = [(self.loaded(first_click(session)), session) for session in sessions]
        catalogue = routed[0][0].recommender.catalogue
        size = context.body_bytes
        clicks = sum(map(len, sessions))
        work = estimated_work(data, len(sessions), size, catalogue, clicks)
        piece_size = max(1, PIECE_WORK * len(sessions) // work)
        plans: dict[LoadedRun, Plan] = {}
        answers: list[RecommendAnswer] = []
        answer_bytes = 0
        self.background.refuse_more(work)
        with self.background.place(work):
            for start in range(0, len(sessions), piece_size):
                piece = routed[start : start + piece_size]
                raw: list[Any] = await self.slow_answers(data, piece, plans, context)
                answer_bytes += sum(len(memoryview(answer)) for answer in raw)
                check_answer_bytes(answer_bytes)
                answers += raw
        return BatchAnswer(answers)

    async def slow_answers(
        self,
        data: AnswerRequest | RankRequest,
        routed: list[tuple[LoadedRun, list[Any]]],
        plans: dict[LoadedRun, Plan],
        context: RequestContext,
    ) -> list[RecommendAnswer]:
        """Computed and encoded as JSON in the background; `plans` gets the plans that are made."""

        def compute() -> list[RecommendAnswer]:
            tasks = []
            for loaded, session in routed:
                if loaded not in plans:
                    plans[loaded] = plan_of(loaded, data)
                tasks.append(ranking_task(loaded, plans[loaded], session))
            answers = map(self.answer, tasks, rank(tasks))
            encoded = [msgspec.json.encode(answer) for answer in answers]
            # The items may be those with the longest texts.
            check_answer_bytes(sum(map(len, encoded)))
            return list(map(msgspec.Raw, encoded))  # type: ignore[arg-type]

        return await self.background.run(compute, context.has_left)

    def answer(self, task: RankingTask, ordered: Ordered) -> RecommendAnswer:
        loaded = task.loaded
        ids = loaded.recommender.vocabulary.ids
        title = task.plan.catalogue.title
        fields = task.plan.fields
        items = [
            RecommendedItem(
                ids[number - 1],
                score,
                title(number),
                values_of(number, fields) if fields else None,
                position < ordered.pinned,
                number in ordered.explored,
            )
            for position, (number, score) in enumerate(ordered.items)
        ]
        popular = not task.session.numbers
        loaded.metrics.answer(popular, is_short=len(items) < task.plan.k)
        run = loaded.fingerprint
        key = None if self.feedback is None else self.feedback.key
        marked = ((item.item, item.explored) for item in items)
        answer_id = new_answer_id(run, loaded.metrics.name, key, marked)
        answer = (items, task.session.unknown, popular, answer_id, run)
        if isinstance(task.plan, RankPlan):
            return RankAnswer(*answer, task.plan.unknown)
        return RecommendAnswer(*answer)

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(
                f"the session has {len(session):,} clicks; at most {most:,} are accepted"
            )

    def latest(self, session: list[Any]) -> list[Any]:
        return session[-self.settings.max_length :]

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


def plan_of(loaded: LoadedRun, data: AnswerRequest | RankRequest) -> Plan:
    if isinstance(data, RankRequest):
        return RankPlan(loaded.recommender.catalogue, data.candidates)
    return loaded.recommender.plan(data.k, **data.rules())


def ranking_task(loaded: LoadedRun, plan: Plan, session: list[Any]) -> RankingTask:
    encoded = loaded.recommender.look_up(session)
    loaded.metrics.session(len(session), len(encoded.unknown))
    return RankingTask(loaded, plan, encoded)


def rank(tasks: Sequence[RankingTask]) -> list[Ordered]:
    """Sessions of the same recommender are ranked together."""
    rows_by_recommender: dict[Recommender, list[int]] = {}
    for row, task in enumerate(tasks):
        rows_by_recommender.setdefault(task.loaded.recommender, []).append(row)
    ranked: dict[int, Ordered] = {}
    for recommender, rows in rows_by_recommender.items():
        sessions = [(tasks[row].plan, tasks[row].session) for row in rows]
        ranked.update(zip(rows, recommender.ordered_lists(sessions), strict=True))
    return [ranked[row] for row in range(len(tasks))]
