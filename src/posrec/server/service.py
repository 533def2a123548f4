"""What the routes of one worker process share: the runs, the batcher, the session store, rules and feedback."""

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from posrec.device import use_threads
from posrec.errors import InputError
from posrec.recommend.catalogue import MOST_FACTORS, Catalogue, values_of
from posrec.recommend.plan import (
    EXPLORE_POOL,
    LARGEST_POOL,
    POOL_PER_ITEM,
    SMALLEST_POOL,
    Ordered,
    Plan,
)
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import EncodedSession
from posrec.server.batching import BODY_BYTES_PER_UNIT, INLINE, INLINE_OF_SEVERAL, BackgroundQueue, Batcher
from posrec.server.feedback import FeedbackFiles, convert_and_close, delete_old, new_answer_id
from posrec.server.http.messages import Refused, Request
from posrec.server.json_log import NO_MEMORY, log_event, log_seldom
from posrec.server.metrics import Metrics
from posrec.server.reload import LoadedRun, RunReloader, ShopFiles
from posrec.server.schemas import (
    AnswerRequest,
    BatchAnswer,
    BatchRequest,
    ClickRequest,
    GroupLimit,
    RecommendAnswer,
    RecommendedItem,
    RecommendRequest,
)
from posrec.server.session_store import SessionStore, SqliteSessions, StoreUnavailable, open_store
from posrec.server.settings import ServerSettings, Split

GATHER = 0.001  # seconds that a single worker waits for more requests before it computes a batch
# Work is counted in plain requests: k = 20, no rules, computed in a batch of 16 (about 0.3 ms of a processor for 27,000
# items). The figures below were measured there.
QUICK_WORK = 6  # the most work of a request that is computed together with others; more is slow
PIECE_WORK = 16  # of a slow request; pieces of other requests are computed between them
SLOW_QUEUE = 32  # times the queue for quick requests is the work that slow requests may have together
ITEMS_PER_UNIT = 50  # items of an answer, where they are many
BYTES_PER_ID = 8  # at least: to look up a shorter id takes as long
INDEXED_PER_UNIT = 500  # items of a column that no rule has named before
ANSWER_BYTES_PER_UNIT = 20_000
DIVERSIFIED_PER_UNIT = 25  # items among which `diversify` chooses
MOST_ANSWER_BYTES = 16 << 20
TIDY_PAUSE = 60.0  # seconds
SWITCH_INTERVAL = 0.001  # seconds until a thread that others wait for gives up Python's lock; the default is 0.005


class Query(NamedTuple):
    """A session, the run that answers it, and what is asked for."""

    loaded: LoadedRun
    plan: Plan
    session: EncodedSession


class Service:
    """The state that the routes of one worker process share. `listen` is called once the runs are loaded."""

    def __init__(self, settings: ServerSettings, listen: Callable[[], None] = lambda: None) -> None:
        self.settings, self.listen = settings, listen
        self.metrics = Metrics(Path(settings.shared) if settings.shared else None, settings.names)
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
            self.feedback = FeedbackFiles(Path(settings.feedback), observe=self.metrics.feedback)
        self.background = BackgroundQueue(SLOW_QUEUE * settings.queue)
        # With several workers on the cores, waiting to fill a batch costs more than it saves.
        gather, inline = (0.0, INLINE_OF_SEVERAL) if settings.workers > 1 else (GATHER, INLINE)
        self.batcher = Batcher(rank, settings.queue, gather=gather, observe=self.metrics.batch, inline=inline)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        use_threads(1)  # sessions are small; more workers use more cores
        sys.setswitchinterval(SWITCH_INTERVAL)
        self.start_threads()
        asyncio.get_running_loop().set_exception_handler(log_loop_error)
        self.batcher.start()
        self.files.read()
        for reloader in self.reloaders:  # one that can't be loaded now is served once it can be
            reloader.replace_current()
        # What was imported and loaded until now stays. Without this the garbage collector goes through all of it again
        # and again, a tenth of a second at a time, in which nobody is answered.
        gc.collect()
        gc.freeze()
        self.listen()
        for reloader in self.reloaders:  # whoever reads this line may connect
            reloader.log_serving("started")
        tasks = [reloader.watch() for reloader in self.reloaders]
        tasks += [file.watch(self.apply_rules) for file in (self.files.allow, self.files.deny)]
        tasks += [self.files.items.watch(self.apply_items), self.tidy_up(), self.try_store()]
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

    def start_threads(self) -> None:
        """Start all threads now. Where memory runs out, Python waits for ever for a thread that can't begin to run, and
        with it the event loop would."""
        watchers = len(self.reloaders) + 1  # each may read for long
        watch = ThreadPoolExecutor(watchers, "posrec-watch")
        asyncio.get_running_loop().set_default_executor(watch)
        pools = {watch: watchers, self.batcher.thread: 1, self.background.thread: 1}
        if isinstance(self.store, SqliteSessions):
            pools[self.store.thread] = 1
        for pool, threads in pools.items():
            all_running = threading.Barrier(threads)
            wait([pool.submit(all_running.wait) for _ in range(threads)])

    async def try_store(self) -> None:
        """Ask the session store once, so that the log has the reason if it can't be used."""
        with suppress(StoreUnavailable):
            if self.store is not None:
                await self.store.clicks("")

    def store_failed(self, reason: str) -> None:
        self.metrics.count("store_errors")
        log_seldom("the session store failed", reason=reason)

    def apply_rules(self) -> None:
        self.apply(self.files.apply_rules)
        allow, deny = self.files.allow.content, self.files.deny.content
        allowed, denied = (None if ids is None else ids.number for ids in (allow, deny))
        log_event("rules read again", allowed=allowed, denied=denied)

    def apply_items(self) -> None:
        self.apply(self.files.apply_items)

    def apply(self, change: Callable[[Recommender], None]) -> None:
        """Change the catalogue of every run that is served."""
        with self.files.lock:
            for reloader in self.reloaders:
                if reloader.current is not None:
                    change(reloader.current.recommender)

    async def tidy_up(self) -> None:
        """Turn feedback into Parquet files in time, also where no more arrives, and delete what is too old."""
        while True:
            if self.feedback is not None:
                for file in self.feedback.take_files():
                    with suppress(MemoryError):  # the next start converts it
                        await asyncio.to_thread(convert_and_close, file)
                if self.settings.keep_feedback is not None:
                    await asyncio.to_thread(delete_old, self.feedback.folder, self.settings.keep_feedback)
            if self.store is not None:
                with suppress(StoreUnavailable):
                    await self.store.delete_expired()
            await asyncio.sleep(TIDY_PAUSE)

    def loaded(self, key: str | None = None) -> LoadedRun:
        """The run that answers sessions with this key; the first without one. Another while it can't be loaded."""
        runs = [reloader.current for reloader in self.reloaders]
        loaded = runs[0 if key is None else self.split.choose(key)] or next(filter(None, runs), None)
        if loaded is None:
            raise Refused(503, "no run can be served yet; the server's log has the reason")
        return loaded

    async def recommend(self, data: RecommendRequest, request: Request) -> RecommendAnswer:
        session, key = data.session, data.split_by or data.session_id
        self.check_length(session)
        if data.session_id is not None:
            stored = await self.stored_sessions().clicks(data.session_id)
            session = [*stored, *session][-self.settings.max_length :]
        loaded = self.loaded(first_click(session) if key is None else key)
        return await self.answer_one(loaded, data, request, session)

    async def click(self, session_id: str, data: ClickRequest, request: Request) -> RecommendAnswer:
        add_click = partial(self.stored_sessions().add, session_id, str(data.item))
        return await self.answer_one(self.loaded(session_id), data, request, [], add_click)

    async def answer_one(
        self,
        loaded: LoadedRun,
        data: AnswerRequest,
        request: Request,
        session: list[Any],
        add_click: Callable[[], Awaitable[list[str]]] | None = None,
    ) -> RecommendAnswer:
        """The answer for one session, or for the one that `add_click` gives. That is called when the request can't be
        refused any more: a client that asks again would store its click twice."""
        work = estimated_work(data, 1, len(request.body), loaded.recommender.catalogue, len(session))
        if work <= QUICK_WORK:
            self.batcher.refuse_more(work)
            plan = plan_of(loaded, data)
            if add_click is not None:
                with self.batcher.place(work):
                    session = (await add_click())[-self.settings.max_length :]
            query = self.query(loaded, plan, session)
            return self.answer(query, await self.batcher.submit(query, work, request.has_left))
        with self.background.place(work):
            plan = await self.background.run(partial(plan_of, loaded, data), request.has_left)
            if add_click is not None:
                session = (await add_click())[-self.settings.max_length :]
            return (await self.slow_answers(data, [(loaded, session)], {loaded: plan}, request))[0]

    async def recommend_batch(self, data: BatchRequest, request: Request) -> BatchAnswer:
        """Some sessions at a time, so that other requests are not kept waiting."""
        if not data.sessions:
            return BatchAnswer([])
        self.check_length(max(data.sessions, key=len))
        asked = [(self.loaded(first_click(session)), session) for session in data.sessions]
        clicks = sum(map(len, data.sessions))
        work = estimated_work(data, len(asked), len(request.body), asked[0][0].recommender.catalogue, clicks)
        together = max(1, PIECE_WORK * len(asked) // work)
        plans: dict[LoadedRun, Plan] = {}
        answers: list[RecommendAnswer] = []
        answer_bytes = 0
        with self.background.place(work):
            for start in range(0, len(asked), together):
                piece = await self.slow_answers(data, asked[start : start + together], plans, request)
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
        request: Request,
    ) -> list[RecommendAnswer]:
        """The answers for these sessions, computed and encoded as JSON in the background; `plans` gets those that are
        made."""

        def compute() -> list[msgspec.Raw]:
            queries = []
            for loaded, session in asked:
                if loaded not in plans:
                    plans[loaded] = plan_of(loaded, data)
                queries.append(self.query(loaded, plans[loaded], session))
            encoded = [msgspec.json.encode(one) for one in map(self.answer, queries, rank(queries))]
            check_answer_bytes(sum(map(len, encoded)))  # a request may name the items with the longest texts
            return [msgspec.Raw(one) for one in encoded]

        answers: list[RecommendAnswer] = await self.background.run(compute, request.has_left)
        return answers

    def query(self, loaded: LoadedRun, plan: Plan, session: list[Any]) -> Query:
        encoded = loaded.recommender.look_up(session)
        loaded.metrics.session(len(session), len(encoded.unknown))
        return Query(loaded, plan, encoded)

    def answer(self, query: Query, ordered: Ordered) -> RecommendAnswer:
        loaded, key = query.loaded, None if self.feedback is None else self.feedback.key
        ids, title, fields = loaded.recommender.vocabulary.ids, query.plan.catalogue.title, query.plan.fields
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
        answer_id = new_answer_id(loaded.fingerprint, loaded.metrics.name, key, explored)
        return RecommendAnswer(items, query.session.unknown, popular, answer_id, loaded.fingerprint)

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(f"the session has {len(session):,} clicks; at most {most:,} are accepted")

    def stored_sessions(self) -> SessionStore:
        if self.store is None:
            raise Refused(404, "no sessions are stored here; start the server with --session-store sqlite:FILE")
        return self.store


def log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong outside a request; every connection may report that there is no memory to read from it."""
    if isinstance(context.get("exception"), MemoryError):
        log_seldom(NO_MEMORY)
    else:
        loop.default_exception_handler(context)


def first_click(session: list[Any]) -> str | None:
    """By default it decides which of several runs answers a session."""
    return str(session[0]) if session else None


def plan_of(loaded: LoadedRun, data: AnswerRequest) -> Plan:
    return loaded.recommender.plan(data.k, **data.rules())


def estimated_work(data: AnswerRequest, sessions: int, size: int, catalogue: Catalogue, clicks: int = 0) -> int:
    """The work of a request with a body of `size` bytes, 1 for a plain one; an InputError where the answer would be too
    large. All sessions together have so many clicks."""
    k = min(data.k, catalogue.items)
    answer_bytes = checked_answer_bytes(sessions * k, data.fields, catalogue)
    searches = 1 + bool(data.pin)
    if data.boost:  # one for each factor, also that of the items that have none
        searches += min(sum(len(values) for values in data.boost.values()), MOST_FACTORS - 1)
    each = searches * max(1.0, k / ITEMS_PER_UNIT)
    if data.explore:
        each += EXPLORE_POOL / ITEMS_PER_UNIT
    if isinstance(data.diversify, str | GroupLimit):
        each *= 2  # it may take more searches to find enough values of the column
    elif data.diversify:
        each += min(max(POOL_PER_ITEM * k, SMALLEST_POOL), LARGEST_POOL) / DIVERSIFIED_PER_UNIT
    ids = clicks + len(data.allow or ()) + len(data.deny or ())
    once = max(size, BYTES_PER_ID * ids) / BODY_BYTES_PER_UNIT + answer_bytes / ANSWER_BYTES_PER_UNIT
    limited = data.diversify.column if isinstance(data.diversify, GroupLimit) else data.diversify
    named = {*(data.filter or ()), *(data.boost or ()), *([limited] if isinstance(limited, str) else [])}
    return max(1, round(sessions * each + once + indexing_work(named, catalogue)))


def indexing_work(named: Iterable[str], catalogue: Catalogue) -> float:
    """The work of columns that a rule names for the first time, such as titles: their values are indexed first."""
    columns = catalogue.attributes.columns
    unindexed = [name for name in named if name in columns and not columns[name].is_indexed]
    return len(unindexed) * catalogue.items / INDEXED_PER_UNIT


def checked_answer_bytes(items: int, fields: Sequence[str] | None, catalogue: Catalogue) -> float:
    """The estimated size of an answer with so many items; an InputError where it is too large."""
    answer_bytes = items * catalogue.item_bytes(fields)
    check_answer_bytes(answer_bytes)
    return answer_bytes


def check_answer_bytes(answer_bytes: float) -> None:
    if answer_bytes > MOST_ANSWER_BYTES:
        raise InputError(
            f"the answer would have about {answer_bytes / (1 << 20):,.0f} MB; at most {MOST_ANSWER_BYTES >> 20} MB are "
            "sent: ask for fewer sessions, a smaller k or fewer fields"
        )


def rank(queries: Sequence[Query]) -> list[Ordered]:
    """Rank the queries of a batch. Those to the same recommender are ranked together."""
    rows: dict[Recommender, list[int]] = {}
    for row, query in enumerate(queries):
        rows.setdefault(query.loaded.recommender, []).append(row)
    ranked: dict[int, Ordered] = {}
    for recommender, own in rows.items():
        asked = [(queries[row].plan, queries[row].session) for row in own]
        ranked.update(zip(own, recommender.rank(asked), strict=True))
    return [ranked[row] for row in range(len(queries))]
