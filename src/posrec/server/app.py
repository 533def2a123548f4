"""The HTTP interface: Litestar routes over one run. Each worker process calls `create`."""

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import Body, Parameter

import posrec
from posrec.device import choose_device
from posrec.errors import InputError
from posrec.recommend.artifacts import ArtifactCache
from posrec.recommend.ranker import Query, Ranking
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendations
from posrec.recommend.session import EncodedSession
from posrec.server.background import BackgroundQueue
from posrec.server.batching import Batcher
from posrec.server.docs_page import docs_page
from posrec.server.error_handlers import HANDLERS, NotFound, NotReady
from posrec.server.log import log_as_json, log_event
from posrec.server.metrics import Metrics
from posrec.server.middleware import RECOMMEND, Middleware
from posrec.server.reload import LoadedRun, RunReloader
from posrec.server.schemas import (  # fmt: skip
    ClickRequest,
    ErrorAnswer,
    ExplainAnswer,
    ExplainRequest,
    ItemsAnswer,
    RecommendRequest,
    RunAnswer,
)
from posrec.server.session_store import SessionStore
from posrec.server.settings import ServerSettings

DECODER, ENCODER = msgspec.json.Decoder(RecommendRequest), msgspec.json.Encoder()
PAGE = Path(__file__).parent / "page" / "index.html"
ERROR_RESPONSES = {
    status: ResponseSpec(ErrorAnswer, generate_examples=False, description=about)
    for status, about in {
        400: "The body is not JSON, or a value in it can't be used.", 401: "The API key is missing or wrong.",
        408: "The body did not arrive in time.", 413: "The body is too large.", 415: "The Content-Type is not JSON.",
        422: "A field is missing, of the wrong type or out of range.",
        503: "Overloaded, or not ready; try again after Retry-After seconds.",
    }.items()
}  # fmt: skip
NOT_FOUND = ResponseSpec(
    ErrorAnswer, generate_examples=False, description="There is no such item, or no session store."
)
ERROR_RESPONSES_WITH_404 = {**ERROR_RESPONSES, 404: NOT_FOUND}


class StrictRequest(Request[Any, Any, Any]):
    """Decodes bodies strictly; Litestar by itself accepts 0 for false and "5" for 5."""

    async def json(self) -> Any:
        """The body, decoded as the type that the route declares."""
        wanted = self.route_handler.parsed_data_field
        return msgspec.json.decode(await self.body(), type=wanted.annotation if wanted is not None else Any)


class Service:
    """The state that the routes of one worker process share."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics(Path(settings.shared) if settings.shared else None)
        cache = (
            ArtifactCache(settings.cache, settings.onnx, settings.index)
            if choose_device(settings.device).type == "cpu"
            else None
        )
        self.reloader = RunReloader(Path(settings.run), settings.device, cache, self.metrics)
        self.store: SessionStore | None = None
        if settings.session_store:
            self.store = SessionStore(settings.session_store, on_error=lambda: self.metrics.count("store_errors"))
        self.explanations = BackgroundQueue(settings.queue)  # each scores its session once for every click
        self.batcher: Batcher | None = None

    @asynccontextmanager
    async def running(self, app: Litestar) -> AsyncIterator[None]:
        torch.set_num_threads(1)  # sessions are small; more workers use more cores
        several = self.settings.workers > 1
        # With several workers on the cores, waiting to fill a batch costs more than it saves.
        limits = (self.settings.queue, self.settings.batch, 0.0 if several else self.settings.gather_ms / 1000)
        self.batcher = Batcher(rank, *limits, self.observe, inline=several)
        self.batcher.start()
        self.reloader.start()
        watching = asyncio.create_task(self.reloader.watch())
        yield
        watching.cancel()
        self.reloader.stop_build()
        self.explanations.stop()
        await self.batcher.stop()
        if self.store is not None:
            await self.store.close()
        log_event("stopped")

    def observe(self, size: int) -> None:
        self.metrics.batch(size)
        assert self.batcher is not None
        self.metrics.waiting(len(self.batcher.waiting))

    def loaded(self) -> LoadedRun:
        if self.reloader.current is None:
            raise NotReady("no run can be served yet; the server's log has the reason")
        return self.reloader.current

    async def recommend(self, session: list[Any], request: RecommendRequest | ClickRequest) -> Recommendations:
        """Unlike `Recommender.recommend`, an empty session gets popular items, and `k` may exceed the catalogue."""
        self.check_length(session)
        recommender = self.loaded().recommender
        encoded = recommender.encode(session) if session else EncodedSession([])
        candidates = recommender.candidates(getattr(request, "allow", None), getattr(request, "deny", None))
        query = recommender.query(encoded, request.k, request.exclude_seen, candidates)
        if encoded.unknown:
            self.metrics.count("unknown_items", len(encoded.unknown))
        assert self.batcher is not None
        return recommender.result(query, await self.batcher.ask((recommender, query)))

    def check_length(self, session: list[Any]) -> None:
        most = self.settings.max_length
        if len(session) > most:
            raise InputError(f"the session has {len(session):,} clicks; at most {most:,} are accepted")

    async def recommend_request(self, request: RecommendRequest) -> Recommendations:
        session = request.session
        if request.session_id is not None:
            session = [*(await stored(self).clicks(request.session_id)), *session]
        return await self.recommend(session, request)

    async def recommend_json(self, body: bytes) -> bytes:
        """POST /v1/recommend, a request's body to its answer's. The middleware calls it, past Litestar's routing."""
        assert self.batcher is not None
        self.batcher.refuse_more()
        return ENCODER.encode(await self.recommend_request(DECODER.decode(body)))

    def is_overloaded(self) -> bool:
        return self.batcher is not None and self.batcher.is_full()


def rank(asked: Sequence[tuple[Recommender, Query]]) -> list[Ranking]:
    """Rank a batch of queries. Around a reload, one batch may hold queries for two recommenders."""
    rankings: list[Ranking] = [([], [])] * len(asked)
    rows: dict[Recommender, list[int]] = {}
    for row, (recommender, _) in enumerate(asked):
        rows.setdefault(recommender, []).append(row)
    for recommender, own in rows.items():
        for row, ranking in zip(own, recommender.ranker.rank([asked[row][1] for row in own]), strict=True):
            rankings[row] = ranking
    return rankings


def explain(recommender: Recommender, request: ExplainRequest) -> ExplainAnswer:
    known = [place for place, click in enumerate(request.session) if recommender.number(str(click)) is not None]
    return ExplainAnswer.of(recommender.explain(request.session, request.item), known)


def routes(service: Service) -> list[Any]:
    @post(
        "/v1/recommend",
        status_code=200,
        responses=ERROR_RESPONSES_WITH_404,
        summary="The best next items for a session",
    )
    async def recommend(data: RecommendRequest) -> Recommendations:
        """Only described here, for the OpenAPI document: the middleware answers it with `Service.recommend_json`."""
        raise AssertionError("the middleware answers POST /v1/recommend")

    @post("/v1/explain", status_code=200, responses=ERROR_RESPONSES_WITH_404, summary="Why an item has its score")
    async def explain_item(data: ExplainRequest) -> ExplainAnswer:
        recommender = service.loaded().recommender
        if recommender.number(str(data.item)) is None:
            raise NotFound(f"item {str(data.item)[:100]!r} is not known to the model")
        service.check_length(data.session)
        answer: ExplainAnswer = await service.explanations.run(functools.partial(explain, recommender, data))
        return answer

    @get("/v1/items", responses=ERROR_RESPONSES, summary="Items by a part of their id or title, the most clicked first")
    async def items(
        wanted: Annotated[str, Parameter(query="query", max_length=200)] = "",
        limit: Annotated[int, Parameter(ge=1, le=1000)] = 20,
    ) -> ItemsAnswer:
        return ItemsAnswer(service.loaded().item_search.find(wanted, limit))

    @get("/v1/run", responses=ERROR_RESPONSES, summary="What is being served")
    async def run() -> RunAnswer:
        recommender = service.loaded().recommender
        opened, ranker = recommender.run, recommender.ranker
        return RunAnswer(
            opened.config["model"], ranker.items, ranker.max_length, opened.metrics, opened.config.get("training", {}),
            ranker.search_kind, ranker.recall, recommender.model.has_own_items,
        )  # fmt: skip

    @post("/v1/sessions/{session_id:str}/click", status_code=200, responses=ERROR_RESPONSES_WITH_404,
          summary="Add a click to a stored session, and get the best next items")  # fmt: skip
    async def click(session_id: str, data: Annotated[ClickRequest, Body()]) -> Recommendations:
        return await service.recommend(await stored(service).add(session_id, str(data.item)), data)

    @get("/healthz", media_type=MediaType.TEXT, summary="The process is alive")
    async def healthz() -> str:
        return "ok"

    @get("/readyz", media_type=MediaType.TEXT, responses=ERROR_RESPONSES, summary="A run is loaded")
    async def readyz() -> str:
        service.loaded()
        return "ready"

    @get("/metrics", media_type=MediaType.TEXT, responses=ERROR_RESPONSES, summary="Metrics for Prometheus")
    async def metrics() -> str:
        if service.batcher is not None:
            service.metrics.waiting(len(service.batcher.waiting))
        return service.metrics.text()

    @get("/", media_type=MediaType.HTML, include_in_schema=False)
    async def page() -> Response[bytes]:
        if not PAGE.is_file():
            raise NotFound("there is no page here; /docs lists what there is")
        return Response(PAGE.read_bytes(), media_type=MediaType.HTML)

    @get("/docs", media_type=MediaType.HTML, include_in_schema=False, sync_to_thread=False)
    def docs(request: Any) -> Response[str]:
        return Response(docs_page(request.app.openapi_schema.to_schema()), media_type=MediaType.HTML)

    return [recommend, explain_item, items, run, click, healthz, readyz, metrics, page, docs]


def stored(service: Service) -> SessionStore:
    if service.store is None:
        raise NotFound("no sessions are stored here; start the server with --session-store redis://...")
    return service.store


def close_requests(app: Litestar) -> None:
    """State in the OpenAPI document that unknown fields are refused, which Litestar leaves out."""
    for name, schema in (app.openapi_schema.components.schemas or {}).items():
        if name.endswith("Request"):
            schema.additional_properties = False


def create() -> Middleware:
    """The application for another process manager than `posrec serve`; its settings are in the environment."""
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
        request_class=StrictRequest,
        request_max_body_size=settings.max_body,
        logging_config=None,
    )
    close_requests(app)
    quick = {RECOMMEND: service.recommend_json}
    return Middleware(app, settings, service.metrics, quick, service.is_overloaded)
