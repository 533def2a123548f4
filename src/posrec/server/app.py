"""The HTTP interface: Litestar routes over one or more runs. Each worker process calls `create`."""

import functools
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.openapi import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPI
from litestar.params import Body, Parameter
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin

import posrec
from posrec.errors import InputError
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import as_ids
from posrec.server.docs_page import docs_page
from posrec.server.error_handlers import HANDLERS, NotFound
from posrec.server.log import log_as_json
from posrec.server.middleware import RECOMMEND, Middleware
from posrec.server.schemas import (  # fmt: skip
    MOST_ITEMS,
    BatchAnswer,
    BatchRequest,
    ClickRequest,
    ErrorAnswer,
    ExplainAnswer,
    ExplainRequest,
    FeedbackAnswer,
    FeedbackRequest,
    ItemsAnswer,
    RecommendAnswer,
    RecommendedItem,
    RecommendRequest,
    RunAnswer,
    SimilarAnswer,
    SplitRun,
)
from posrec.server.service import Service
from posrec.server.settings import ServerSettings

PAGE = Path(__file__).parent / "page" / "index.html"
ERROR_RESPONSES = {
    status: ResponseSpec(ErrorAnswer, generate_examples=False, description=about)
    for status, about in {
        400: "Not valid HTTP or JSON, or a value can't be used.", 401: "The API key is missing or wrong.",
        408: "The request did not arrive in time.", 413: "The body is too large.", 415: "The Content-Type is not JSON.",
        422: "A field is missing, of the wrong type or out of range.", 431: "The address and headers are too large.",
        503: "Overloaded, or not ready; try again after Retry-After seconds.",
    }.items()
}  # fmt: skip
NOT_FOUND = ResponseSpec(
    ErrorAnswer, generate_examples=False, description="There is no such item, or no session store."
)
ERROR_RESPONSES_WITH_404 = {**ERROR_RESPONSES, 404: NOT_FOUND}
CONNECTION_RESPONSES = {status: ERROR_RESPONSES[status] for status in (400, 408, 431, 503)}  # before a route is chosen


class StrictRequest(Request[Any, Any, Any]):
    """Decodes bodies strictly; Litestar by itself accepts 0 for false and "5" for 5."""

    async def json(self) -> Any:
        """The body, decoded as the type that the route declares."""
        wanted = self.route_handler.parsed_data_field
        return msgspec.json.decode(await self.body(), type=wanted.annotation if wanted is not None else Any)


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
    async def recommend(data: RecommendRequest) -> RecommendAnswer:
        """Only described here, for the OpenAPI document: the middleware answers it with `Service.recommend_json`."""
        raise AssertionError("the middleware answers POST /v1/recommend")

    @post("/v1/recommend/batch", status_code=200, responses=ERROR_RESPONSES, summary="The same for many sessions")
    async def recommend_batch(data: BatchRequest) -> BatchAnswer:
        return BatchAnswer(await service.recommend_batch(data.sessions, data))

    @get("/v1/similar/{item:str}", responses=ERROR_RESPONSES_WITH_404, summary="The items most similar to an item")
    async def similar(
        item: str,
        k: Annotated[int, Parameter(ge=1, le=MOST_ITEMS)] = 20,
        fields: Annotated[str, Parameter(max_length=10_000, description="Names of columns, with commas.")] = "",
        only: Annotated[str, Parameter(query="filter", max_length=10_000, description="A filter, as JSON.")] = "",
    ) -> SimilarAnswer:
        loaded = service.loaded()
        recommender = loaded.recommender
        if recommender.number(item) is None:
            raise NotFound(f"item {item[:100]!r} is not known to the model")
        wanted = functools.partial(
            recommender.similar_items, item, k, filter=parse_filter(only), fields=fields.split(",") if fields else None
        )
        found = await service.background.run(wanted)
        items = [RecommendedItem(one.item, one.score, one.title, one.fields) for one in found]
        return SimilarAnswer(items, loaded.fingerprint)

    @post("/v1/feedback", status_code=202, responses=ERROR_RESPONSES_WITH_404,
          summary="What became of an answer: shown, clicked, bought")  # fmt: skip
    async def feedback(data: FeedbackRequest) -> FeedbackAnswer:
        if service.feedback is None:
            raise NotFound("feedback is not written here; start the server with --feedback DIR")
        return FeedbackAnswer(service.feedback.write(data.answer, data.event, as_ids(data.items), data.session))

    @post("/v1/explain", status_code=200, responses=ERROR_RESPONSES_WITH_404, summary="Why an item has its score")
    async def explain_item(data: ExplainRequest) -> ExplainAnswer:
        recommender = service.loaded().recommender
        if recommender.number(str(data.item)) is None:
            raise NotFound(f"item {str(data.item)[:100]!r} is not known to the model")
        service.check_length(data.session)
        answer: ExplainAnswer = await service.background.run(functools.partial(explain, recommender, data))
        return answer

    @get("/v1/items", responses=ERROR_RESPONSES, summary="Items by a part of their id or title, the most clicked first")
    async def items(
        wanted: Annotated[str, Parameter(query="query", max_length=200)] = "",
        limit: Annotated[int, Parameter(ge=1, le=1000)] = 20,
    ) -> ItemsAnswer:
        search = service.loaded().item_search
        if wanted.strip() and not search.is_ready:
            await service.background.run(search.prepare)
        return ItemsAnswer(search.find(wanted, limit))

    @get("/v1/run", responses=ERROR_RESPONSES, summary="What is being served")
    async def run() -> RunAnswer:
        loaded = service.loaded()
        recommender = loaded.recommender
        opened, ranker = recommender.run, recommender.ranker
        split = [
            SplitRun(None if one.current is None else one.current.fingerprint, share)
            for one, share in zip(service.reloaders, service.split.shares, strict=True)
        ]
        return RunAnswer(
            opened.config["model"].rpartition(":")[2], ranker.items, ranker.max_length, opened.metrics,
            opened.config.get("training", {}), ranker.search_kind, ranker.recall, ranker.finder.has_own_items,
            loaded.fingerprint, list(opened.vocabulary.columns), split,
        )  # fmt: skip

    @post("/v1/sessions/{session_id:str}/click", status_code=200, responses=ERROR_RESPONSES_WITH_404,
          summary="Add a click to a stored session, and get the best next items")  # fmt: skip
    async def click(session_id: str, data: Annotated[ClickRequest, Body()]) -> RecommendAnswer:
        return await service.click(session_id, data)

    @get("/healthz", media_type=MediaType.TEXT, responses=CONNECTION_RESPONSES, summary="The process is alive")
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
        current = service.reloaders[0].current
        items = [one.item for one in current.item_search.find("", 2)] if current is not None else []
        if len(items) < 2:  # the page must work while no run is loaded
            items = ["sku-1", "sku-7"]
        return Response(docs_page(request.app.openapi_schema.to_schema(), items), media_type=MediaType.HTML)

    return [
        recommend, recommend_batch, similar, feedback, explain_item, items, run, click, healthz, readyz, metrics, page,
        docs,
    ]  # fmt: skip


def parse_filter(text: str) -> dict[str, Any] | None:
    """A filter in a query parameter."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"filter is not a JSON object: {error}") from None


class Application(Litestar):
    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """All types here are msgspec's. Litestar would import pydantic and attrs where they are installed, which is a
        tenth of the start. A version of Litestar that does not call this method would do so, and work as well."""
        return [*plugins, MsgspecDIPlugin()]

    @cached_property
    def openapi_schema(self) -> OpenAPI:
        """Made at the first use. It states that unknown fields are refused, which Litestar leaves out."""
        document = super().openapi_schema
        for name, schema in (document.components.schemas or {}).items():
            if name.endswith("Request"):
                schema.additional_properties = False
        return document


def create() -> Middleware:
    """The application for another process manager than `posrec serve`; its settings are in the environment."""
    log_as_json()
    return application(ServerSettings.from_environment())


def application(settings: ServerSettings, listen: Callable[[], None] = lambda: None) -> Middleware:
    """`listen` is called once the runs are loaded."""
    service = Service(settings, listen)
    described = OpenAPIConfig(
        "posrec", posrec.__version__, path="/openapi", render_plugins=[JsonRenderPlugin(path="/openapi.json")]
    )
    app = Application(
        routes(service),
        lifespan=[service.running],
        exception_handlers=HANDLERS,
        openapi_config=described,
        request_class=StrictRequest,
        request_max_body_size=settings.max_body,
        logging_config=None,
    )
    quick = {RECOMMEND: service.recommend_json}
    return Middleware(app, settings, service.metrics, quick, service.is_overloaded, service.begin_recommend)
