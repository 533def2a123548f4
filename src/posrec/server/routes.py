"""The routes of the HTTP interface. What they need is in the service (service.py)."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from posrec.errors import InputError
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import as_ids
from posrec.server.http.application import Application
from posrec.server.http.messages import HTML, TEXT, Refused, Request
from posrec.server.http.openapi import docs_page, document
from posrec.server.schemas import (
    MOST_ITEMS,
    ExplainAnswer,
    ExplainRequest,
    FeedbackAnswer,
    FeedbackRequest,
    ItemsAnswer,
    RecommendedItem,
    RunAnswer,
    SimilarAnswer,
    SplitRun,
)
from posrec.server.service import (
    ANSWER_BYTES_PER_UNIT,
    Service,
    check_answer_bytes,
    checked_answer_bytes,
    first_click,
    indexing_work,
)
from posrec.server.settings import ServerSettings

PAGE = Path(__file__).parent / "page" / "index.html"
SIMILAR_WORK, FIND_WORK, EXPLAIN_WORK = 10, 20, 10  # in plain requests, see service.py
ROWS_PER_UNIT, FEW_ROWS = 50, 100  # of feedback; more than a few are written in the background


SplitBy = Annotated[str, Meta(description="As in /v1/recommend; without it, the first run answers.")]


class SimilarQuery(Struct):
    k: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 20
    fields: Annotated[str, Meta(max_length=10_000, description="Names of columns, with commas.")] = ""
    filter: Annotated[str, Meta(max_length=10_000, description="A filter, as JSON.")] = ""
    split_by: SplitBy = ""


class RunQuery(Struct):
    split_by: SplitBy = ""


class ItemsQuery(Struct):
    query: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


def application(settings: ServerSettings, listen: Callable[[], None] = lambda: None) -> Application:
    """The application of one worker process. `listen` is called once the runs are loaded."""
    service = Service(settings, listen)
    app = Application(settings, service.metrics, service.background, service.running)

    recommend = "The best next items for a session"
    app.route("POST", "/v1/recommend", recommend, not_found=True, admit=service.batcher.refuse_more)(service.recommend)
    app.route("POST", "/v1/recommend/batch", "The same for many sessions")(service.recommend_batch)

    @app.route("GET", "/v1/similar/{item}", "The items most similar to an item", not_found=True)
    async def similar(item: str, query: SimilarQuery, request: Request) -> SimilarAnswer:
        loaded = service.loaded(query.split_by or None)
        recommender = loaded.recommender
        require_item(recommender, item)
        fields = query.fields.split(",") if query.fields else None
        answer_bytes = checked_answer_bytes(min(query.k, recommender.items), fields, recommender.catalogue)
        wanted = parse_filter(query.filter)

        def find() -> msgspec.Raw:
            similar_items = recommender.similar_items(item, query.k, filter=wanted, fields=fields)
            items = [RecommendedItem(one.item, one.score, one.title, one.fields) for one in similar_items]
            encoded = msgspec.json.encode(SimilarAnswer(items, loaded.fingerprint))
            check_answer_bytes(len(encoded))
            return msgspec.Raw(encoded)

        indexing = indexing_work(wanted or (), recommender.catalogue)
        with service.background.place(SIMILAR_WORK + int(answer_bytes / ANSWER_BYTES_PER_UNIT + indexing)):
            answer: SimilarAnswer = await service.background.run(find, request.has_left)
        return answer

    feedback_summary = "What became of an answer: shown, clicked, carted, bought"

    @app.route("POST", "/v1/feedback", feedback_summary, status=202, not_found=True, writes=True)
    async def feedback(data: FeedbackRequest) -> FeedbackAnswer:
        if service.feedback is None:
            raise Refused(404, "feedback is not written here; start the server with --feedback DIR")
        write, items = service.feedback.write, as_ids(data.items)
        write_rows = functools.partial(write, data.answer, data.event, items, data.session, data.visitor, data.value)
        if len(items) <= FEW_ROWS:
            return FeedbackAnswer(write_rows())
        with service.background.place(len(items) // ROWS_PER_UNIT):
            return FeedbackAnswer(await service.background.run(write_rows))

    @app.route("POST", "/v1/explain", "Why an item has its score", not_found=True)
    async def explain_item(data: ExplainRequest, request: Request) -> ExplainAnswer:
        recommender = service.loaded(data.split_by or first_click(data.session)).recommender
        require_item(recommender, str(data.item))
        service.check_length(data.session)
        # It scores the session once more for every click that is read.
        with service.background.place(EXPLAIN_WORK * (1 + min(len(data.session), recommender.ranker.max_length))):
            answer: ExplainAnswer = await service.background.run(
                functools.partial(explain, recommender, data), request.has_left
            )
        return answer

    @app.route("GET", "/v1/items", "Items by a part of their id or title, the most clicked first")
    async def items(query: ItemsQuery, request: Request) -> ItemsAnswer:
        search = service.loaded().item_search
        if not query.query.strip():
            return ItemsAnswer(search.most_clicked(query.limit))
        find = functools.partial(search.find, query.query, query.limit)
        with service.background.place(FIND_WORK):
            return ItemsAnswer(await service.background.run(find, request.has_left))

    @app.route("GET", "/v1/run", "What is being served")
    async def run(query: RunQuery) -> RunAnswer:
        loaded = service.loaded(query.split_by or None)
        opened, ranker = loaded.recommender.run, loaded.recommender.ranker
        split = [
            SplitRun(name, None if reloader.current is None else reloader.current.fingerprint, share, key)
            for name, reloader, share, key in zip(
                settings.names, service.reloaders, service.split.shares, service.split.keys, strict=True
            )
        ]
        return RunAnswer(
            model=opened.config["model"].rpartition(":")[2],
            items=ranker.items,
            max_length=ranker.max_length,
            metrics=opened.metrics,
            trained=opened.config.get("training", {}),
            search=ranker.search_kind,
            recall=ranker.recall,
            log_probabilities=ranker.has_own_items,
            fingerprint=loaded.fingerprint,
            columns=list(loaded.recommender.catalogue.attributes.columns),
            split=split,
        )

    click = "Add a click to a stored session, and get the best next items"
    app.route("POST", "/v1/sessions/{session_id}/click", click, not_found=True, writes=True)(service.click)

    delete = "Delete a stored session"

    @app.route("DELETE", "/v1/sessions/{session_id}", delete, status=204, not_found=True, writes=True)
    async def delete_session(session_id: str) -> None:
        await service.stored_sessions().delete(session_id)

    @app.route("GET", "/healthz", "The process is alive", media_type=TEXT)
    async def healthz() -> str:
        return "ok"

    @app.route("GET", "/readyz", "A run is loaded", media_type=TEXT)
    async def readyz() -> str:
        service.loaded()
        return "ready"

    @app.route("GET", "/metrics", "Metrics for Prometheus", media_type=TEXT)
    async def metrics() -> str:
        service.metrics.queue.set(len(service.batcher.waiting))
        return service.metrics.text()

    @app.route("GET", "/", media_type=HTML)
    async def playground() -> bytes:
        return PAGE.read_bytes()

    # Both take milliseconds to make.
    api = functools.cache(lambda: msgspec.Raw(msgspec.json.encode(document(app.routes))))
    api_page = functools.lru_cache(1)(lambda first, second: docs_page(document(app.routes), first, second))

    @app.route("GET", "/openapi/openapi.json")
    async def openapi() -> msgspec.Raw:
        return api()

    @app.route("GET", "/docs", media_type=HTML)
    async def docs() -> str:
        current = service.reloaders[0].current
        items = [] if current is None else [listed.item for listed in current.item_search.most_clicked(2)]
        if len(items) < 2:  # the page must work while no run is loaded
            items = ["sku-1", "sku-7"]
        return api_page(*items)

    return app


def require_item(recommender: Recommender, item: str) -> None:
    if recommender.number(item) is None:
        raise Refused(404, f"item {item[:100]!r} is not known to the model")


def explain(recommender: Recommender, request: ExplainRequest) -> ExplainAnswer:
    known_places = [place for place, click in enumerate(request.session) if recommender.number(str(click)) is not None]
    return ExplainAnswer.of(recommender.explain(request.session, request.item), known_places)


def parse_filter(text: str) -> dict[str, Any] | None:
    """A filter in a query parameter."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"filter is not a JSON object: {error}") from None
