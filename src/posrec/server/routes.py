"""The operations of the HTTP interface. What they share is in the service (service.py)."""

from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from posrec.errors import InputError
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import as_ids
from posrec.server.errors import Refused
from posrec.server.http.openapi import docs_page, document
from posrec.server.http.operation import HTML, TEXT, Operation, RequestContext
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
from posrec.server.service import Service, first_click
from posrec.server.work import (
    EXPLAIN_WORK,
    FEW_ROWS,
    FIND_WORK,
    ROWS_PER_UNIT,
    check_answer_bytes,
    similar_work,
)

PAGE = Path(__file__).parent / "page" / "index.html"
EXAMPLE_ITEMS = ["sku-1", "sku-7"]  # of /docs, while no run is loaded

SplitBy = Annotated[
    str, Meta(description="As in /v1/recommend; without it, the first run answers.")
]


class SimilarQuery(Struct):
    k: Annotated[int, Meta(ge=1, le=MOST_ITEMS)] = 20
    fields: Annotated[
        str, Meta(max_length=10_000, description="Names of columns, with commas.")
    ] = ""
    filter: Annotated[
        str, Meta(max_length=10_000, description="A filter, as JSON.")
    ] = ""
    split_by: SplitBy = ""


class RunQuery(Struct):
    split_by: SplitBy = ""


class ItemsQuery(Struct):
    query: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class Routes:
    def __init__(self, service: Service) -> None:
        self.service = service
        # Both take milliseconds to make.
        self.document = cache(lambda: document(self.operations()))
        self.docs_page = lru_cache(1)(
            lambda first, second: docs_page(self.document(), first, second)
        )

    def operations(self) -> list[Operation]:
        service = self.service
        return [
            Operation(
                "POST",
                "/v1/recommend",
                service.recommend,
                "The best next items for a session",
                not_found=True,
                admit=service.batcher.refuse_more,
            ),
            Operation(
                "POST",
                "/v1/recommend/batch",
                service.recommend_batch,
                "The same for many sessions",
            ),
            Operation(
                "GET",
                "/v1/similar/{item}",
                self.similar,
                "The items most similar to an item",
                not_found=True,
            ),
            Operation(
                "POST",
                "/v1/feedback",
                self.feedback,
                "What became of an answer: shown, clicked, carted, bought",
                status=202,
                not_found=True,
                writes=True,
            ),
            Operation(
                "POST",
                "/v1/explain",
                self.explain_item,
                "Why an item has its score",
                not_found=True,
            ),
            Operation(
                "GET",
                "/v1/items",
                self.items,
                "Items by a part of their id or title, the most clicked first",
            ),
            Operation("GET", "/v1/run", self.run, "What is being served"),
            Operation(
                "POST",
                "/v1/sessions/{session_id}/click",
                service.click,
                "Add a click to a stored session, and get the best next items",
                not_found=True,
                writes=True,
            ),
            Operation(
                "DELETE",
                "/v1/sessions/{session_id}",
                self.delete_session,
                "Delete a stored session",
                status=204,
                not_found=True,
                writes=True,
            ),
            Operation(
                "GET", "/healthz", self.healthz, "The process is alive", media_type=TEXT
            ),
            Operation(
                "GET", "/readyz", self.readyz, "A run is loaded", media_type=TEXT
            ),
            Operation(
                "GET",
                "/metrics",
                self.metrics,
                "Metrics for Prometheus",
                media_type=TEXT,
            ),
            Operation("GET", "/", self.playground, media_type=HTML),
            Operation("GET", "/docs", self.docs, media_type=HTML),
            Operation("GET", "/openapi/openapi.json", self.openapi),
        ]

    async def similar(
        self, item: str, query: SimilarQuery, context: RequestContext
    ) -> SimilarAnswer:
        loaded = self.service.loaded(query.split_by or None)
        recommender = loaded.recommender
        require_item(recommender, item)
        fields = query.fields.split(",") if query.fields else None
        wanted = parse_filter(query.filter)

        def find() -> msgspec.Raw:
            similar_items = recommender.similar_items(
                item, query.k, filter=wanted, fields=fields
            )
            items = [
                RecommendedItem(
                    similar.item, similar.score, similar.title, similar.fields
                )
                for similar in similar_items
            ]
            encoded = msgspec.json.encode(SimilarAnswer(items, loaded.fingerprint))
            check_answer_bytes(len(encoded))
            return msgspec.Raw(encoded)

        with self.service.background.place(
            similar_work(query.k, fields, wanted, recommender.catalogue)
        ):
            answer: SimilarAnswer = await self.service.background.run(
                find, context.has_left
            )
        return answer

    async def feedback(self, data: FeedbackRequest) -> FeedbackAnswer:
        if self.service.feedback is None:
            raise Refused(
                404,
                "feedback is not written here; start the server with --feedback DIR",
            )
        items = as_ids(data.items)
        write = self.service.feedback.write
        write_rows = partial(
            write,
            data.answer,
            data.event,
            items,
            data.session,
            data.visitor,
            data.value,
        )
        if len(items) <= FEW_ROWS:
            return FeedbackAnswer(write_rows())
        with self.service.background.place(len(items) // ROWS_PER_UNIT):
            return FeedbackAnswer(await self.service.background.run(write_rows))

    async def explain_item(
        self, data: ExplainRequest, context: RequestContext
    ) -> ExplainAnswer:
        recommender = self.service.loaded(
            data.split_by or first_click(data.session)
        ).recommender
        require_item(recommender, str(data.item))
        self.service.check_length(data.session)
        # It scores the session once more for every click that is read.
        clicks = min(len(data.session), recommender.ranker.max_length)
        with self.service.background.place(EXPLAIN_WORK * (1 + clicks)):
            compute = partial(explain, recommender, data)
            answer: ExplainAnswer = await self.service.background.run(
                compute, context.has_left
            )
        return answer

    async def items(self, query: ItemsQuery, context: RequestContext) -> ItemsAnswer:
        search = self.service.loaded().item_search
        if not query.query.strip():
            return ItemsAnswer(search.most_clicked(query.limit))
        find = partial(search.find, query.query, query.limit)
        with self.service.background.place(FIND_WORK):
            return ItemsAnswer(
                await self.service.background.run(find, context.has_left)
            )

    async def run(self, query: RunQuery) -> RunAnswer:
        loaded = self.service.loaded(query.split_by or None)
        opened = loaded.recommender.run
        ranker = loaded.recommender.ranker
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
            split=self.split(),
        )

    def split(self) -> list[SplitRun]:
        service = self.service
        runs = zip(
            service.settings.names,
            service.reloaders,
            service.split.shares,
            service.split.keys,
            strict=True,
        )
        return [
            SplitRun(
                name,
                None if reloader.current is None else reloader.current.fingerprint,
                share,
                key,
            )
            for name, reloader, share, key in runs
        ]

    async def delete_session(self, session_id: str) -> None:
        await self.service.stored_sessions().delete(session_id)

    async def healthz(self) -> str:
        return "ok"

    async def readyz(self) -> str:
        self.service.loaded()
        return "ready"

    async def metrics(self) -> str:
        self.service.metrics.queue.set(len(self.service.batcher.waiting))
        return self.service.metrics.text()

    async def playground(self) -> str:
        return PAGE.read_text(encoding="utf-8")

    async def docs(self) -> str:
        current = self.service.reloaders[0].current
        most_clicked = [] if current is None else current.item_search.most_clicked(2)
        items = [listed.item for listed in most_clicked]
        first, second = items if len(items) == 2 else EXAMPLE_ITEMS
        return self.docs_page(first, second)

    async def openapi(self) -> dict[str, Any]:
        return self.document()


def require_item(recommender: Recommender, item: str) -> None:
    if recommender.number(item) is None:
        raise Refused(404, f"item {item[:100]!r} is not known to the model")


def explain(recommender: Recommender, request: ExplainRequest) -> ExplainAnswer:
    known = [
        position
        for position, click in enumerate(request.session)
        if recommender.number(str(click)) is not None
    ]
    return ExplainAnswer.of(recommender.explain(request.session, request.item), known)


def parse_filter(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"filter is not a JSON object: {error}") from None
