"""The HTTP interface: Litestar routes over one live run. A worker process calls `create`."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.config.cors import CORSConfig
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import Body, Parameter

import posrec
from posrec.errors import InputError
from posrec.recommend.artifacts import RunCache
from posrec.recommend.ranker import Found, Query, Ranker
from posrec.server.batching import Batcher, Overloaded
from posrec.server.docs_page import docs_page
from posrec.server.error_handlers import HANDLERS, NotFound, NotReady
from posrec.server.log import log_as_json, log_event
from posrec.server.metrics import Metrics
from posrec.server.middleware import Middleware
from posrec.server.reload import LiveRun, Loaded
from posrec.server.schemas import (  # fmt: skip
    ClickRequest,
    ErrorAnswer,
    ExplainAnswer,
    ExplainedClick,
    ExplainRequest,
    ItemsAnswer,
    Part,
    RecommendAnswer,
    RecommendRequest,
    RunAnswer,
)
from posrec.server.session_store import SessionStore
from posrec.server.settings import ServerSettings

DECODER, ENCODER = msgspec.json.Decoder(RecommendRequest), msgspec.json.Encoder()
PAGE = Path(__file__).parent / "page" / "index.html"
MOST_EXPLAINING = 16  # at a time; an explanation scores a session once for every click
PROBLEMS = {
    status: ResponseSpec(ErrorAnswer, generate_examples=False, description=about)
    for status, about in {
        400: "The body is no JSON, or the request makes no sense.", 401: "The API key is missing or wrong.",
        408: "The body did not come in time.", 413: "The body is too large.", 415: "The body is said to be no JSON.",
        422: "A field is missing, of the wrong type or out of bounds.",
        503: "Too much to do, or not ready; come back after Retry-After seconds.",
    }.items()
}  # fmt: skip
NOTHING = ResponseSpec(ErrorAnswer, generate_examples=False, description="There is no such item, or no session store.")
MISSING = {**PROBLEMS, 404: NOTHING}


class StrictRequest(Request[Any, Any, Any]):
    """Decodes bodies strictly; Litestar alone takes 0 for false and "5" for 5."""

    async def json(self) -> Any:
        """The body as what the route asks for."""
        wanted = self.route_handler.parsed_data_field
        return msgspec.json.decode(await self.body(), type=wanted.annotation if wanted is not None else Any)


class Service:
    """What the routes share in one worker process."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics(Path(settings.shared))
        cache = RunCache(settings.cache, settings.onnx, settings.index) if settings.device == "cpu" else None
        self.live = LiveRun(Path(settings.run), settings.device, cache, self.metrics)
        self.store: SessionStore | None = None
        if settings.session_store:
            self.store = SessionStore(settings.session_store, on_error=lambda: self.metrics.count("store_errors"))
        self.explaining = 0
        self.batcher: Batcher | None = None

    @asynccontextmanager
    async def running(self, app: Litestar) -> AsyncIterator[None]:
        torch.set_num_threads(1)  # sessions are small; workers are what uses more cores
        several = self.settings.workers > 1
        # Where workers share the cores, waiting for company costs more than it saves.
        limits = (self.settings.queue, self.settings.batch, 0.0 if several else self.settings.gather_ms / 1000)
        self.batcher = Batcher(rank, *limits, self.observe, inline=several)
        self.batcher.start()
        self.live.begin()
        watching = asyncio.create_task(self.live.watch())
        yield
        watching.cancel()
        self.live.stop_making()
        await self.batcher.stop()
        if self.store is not None:
            await self.store.close()
        log_event("stopped")

    def observe(self, size: int) -> None:
        self.metrics.batch(size)
        assert self.batcher is not None
        self.metrics.waiting(len(self.batcher.waiting))

    def loaded(self) -> Loaded:
        if self.live.current is None:
            raise NotReady(f"the run can't be served yet: {self.live.problem}")
        return self.live.current

    async def recommend(self, session: list[Any], request: RecommendRequest | ClickRequest) -> RecommendAnswer:
        self.check_length(session)
        allow, deny = getattr(request, "allow", None), getattr(request, "deny", None)
        ranker = self.loaded().ranker
        query = ranker.query(session, request.k, request.exclude_seen, allow, deny)
        if query.reading.unknown:
            self.metrics.count("unknown_items", len(query.reading.unknown))
        assert self.batcher is not None
        return ranker.answer(query, await self.batcher.ask((ranker, query)))

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(f"the session has {len(session):,} clicks; at most {most:,} are accepted")

    async def recommend_sent(self, request: RecommendRequest) -> RecommendAnswer:
        session = request.session
        if request.session_id is not None:
            session = [*(await stored(self).clicks(request.session_id)), *session]
        return await self.recommend(session, request)

    async def recommend_quickly(self, body: bytes) -> bytes:
        assert self.batcher is not None
        self.batcher.refuse_more()
        return ENCODER.encode(await self.recommend_sent(DECODER.decode(body)))

    async def aside(self, work: Callable[[], Any]) -> Any:
        """Slow work in another thread than the recommendations', and not too much of it."""
        if self.explaining >= MOST_EXPLAINING:
            raise Overloaded
        self.explaining += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        finally:
            self.explaining -= 1


def rank(asked: Any) -> list[Found]:
    """A batch of (ranker, query); around a reload two rankers may be asked in one batch."""
    found: list[Found] = [([], [])] * len(asked)
    rows: dict[int, list[int]] = {}
    for row, (one_ranker, _) in enumerate(asked):
        rows.setdefault(id(one_ranker), []).append(row)
    for together in rows.values():
        ranker: Ranker = asked[together[0]][0]
        queries: list[Query] = [asked[row][1] for row in together]
        for row, one in zip(together, ranker.rank(queries), strict=True):
            found[row] = one
    return found


def explain(loaded: Loaded, request: ExplainRequest) -> ExplainAnswer:
    rec = loaded.ranker.recommender
    known = [place for place, click in enumerate(request.session) if rec.number(str(click)) is not None]
    why = rec.explain(request.session, request.item)
    positions = known[len(known) - len(why.clicks) :]
    clicks = [
        ExplainedClick(
            click.item, click.title, position,
            sum(click.attention.values()) / len(click.attention) if click.attention else None,
            dict(click.attention), click.effect, click.rank_without,
        )
        for position, click in zip(positions, why.clicks, strict=True)
    ]  # fmt: skip
    parts = [Part(name, value) for name, value in why.parts.items()]
    return ExplainAnswer(why.item, why.title, why.score, why.rank, parts, clicks, list(why.unknown))


def routes(service: Service) -> list[Any]:
    @post("/v1/recommend", status_code=200, responses=MISSING, summary="The best next items for a session")
    async def recommend(data: RecommendRequest) -> RecommendAnswer:
        return await service.recommend_sent(data)

    @post("/v1/explain", status_code=200, responses=MISSING, summary="Why an item is scored as it is")
    async def explain_item(data: ExplainRequest) -> ExplainAnswer:
        loaded = service.loaded()
        if loaded.ranker.recommender.number(str(data.item)) is None:
            raise NotFound(f"item {str(data.item)[:100]!r} is not known to the model")
        service.check_length(data.session)
        answer: ExplainAnswer = await service.aside(functools.partial(explain, loaded, data))
        return answer

    @get("/v1/items", responses=PROBLEMS, summary="Items by a piece of their id or title, the most clicked first")
    async def items(
        wanted: Annotated[str, Parameter(query="query", max_length=200)] = "",
        limit: Annotated[int, Parameter(ge=1, le=1000)] = 20,
    ) -> ItemsAnswer:
        return ItemsAnswer(service.loaded().catalogue.find(wanted, limit))

    @get("/v1/run", responses=PROBLEMS, summary="What is being served")
    async def run() -> RunAnswer:
        ranker = service.loaded().ranker
        rec = ranker.recommender
        config, reads = rec.run.config, rec.model.config.max_length
        settings = config.get("training", {})
        return RunAnswer(config["model"], rec.items, reads, rec.run.metrics, settings, ranker.found_by, ranker.recall)

    @post("/v1/sessions/{session_id:str}/click", status_code=200, responses=MISSING,
          summary="Add a click to a kept session, and get the best next items")  # fmt: skip
    async def click(session_id: str, data: Annotated[ClickRequest, Body()]) -> RecommendAnswer:
        return await service.recommend(await stored(service).add(session_id, str(data.item)), data)

    @get("/healthz", media_type=MediaType.TEXT, summary="The process lives")
    async def healthz() -> str:
        return "ok"

    @get("/readyz", media_type=MediaType.TEXT, responses=PROBLEMS, summary="A run is loaded")
    async def readyz() -> str:
        service.loaded()
        return "ready"

    @get("/metrics", media_type=MediaType.TEXT, responses=PROBLEMS, summary="Counts for Prometheus")
    async def metrics() -> str:
        if service.batcher is not None:
            service.metrics.waiting(len(service.batcher.waiting))
        return service.metrics.text()

    @get("/", media_type=MediaType.HTML, include_in_schema=False)
    async def page() -> Response[bytes]:
        if not PAGE.is_file():
            raise NotFound("there is no page here; /docs tells what there is")
        return Response(PAGE.read_bytes(), media_type=MediaType.HTML)

    @get("/docs", media_type=MediaType.HTML, include_in_schema=False, sync_to_thread=False)
    def docs(request: Any) -> Response[str]:
        return Response(docs_page(request.app.openapi_schema.to_schema()), media_type=MediaType.HTML)

    return [recommend, explain_item, items, run, click, healthz, readyz, metrics, page, docs]


def stored(service: Service) -> SessionStore:
    if service.store is None:
        raise NotFound("no sessions are kept here; start the server with --session-store redis://...")
    return service.store


def close_requests(app: Litestar) -> None:
    """Unknown fields are refused, and the document must say so; Litestar leaves that out."""
    for name, schema in (app.openapi_schema.components.schemas or {}).items():
        if name.endswith("Request"):
            schema.additional_properties = False


def create() -> Middleware:
    """The application of one worker process, as its environment says."""
    log_as_json()
    return application(ServerSettings.from_environment())


def application(settings: ServerSettings) -> Middleware:
    service = Service(settings)
    described = OpenAPIConfig(
        "posrec", posrec.__version__, path="/openapi", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
    )
    app = Litestar(
        routes(service),
        lifespan=[service.running],
        exception_handlers=HANDLERS,
        openapi_config=described,
        cors_config=CORSConfig(list(settings.allow_origin)) if settings.allow_origin else None,
        request_class=StrictRequest,
        request_max_body_size=settings.max_body,
        logging_config=None,
    )
    close_requests(app)
    return Middleware(app, settings, service.metrics, {"/v1/recommend": service.recommend_quickly})
