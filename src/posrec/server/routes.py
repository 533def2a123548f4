"""The operations of the HTTP interface. What they share is in the service (service.py)."""

from functools import cache, lru_cache, partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from posrec.errors import InputError
from posrec.recommend.recommender import Recommender
from posrec.recommend.session import as_ids
from posrec.server.errors import Refused
from posrec.server.http.openapi import PLAYGROUND, docs_page, document
from posrec.server.http.operation import HTML, TEXT, Operation, RequestContext
from posrec.server.schemas import (
    MOST_ITEMS,
    NOW,
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
    now: Annotated[str, Meta(max_length=100, description=NOW)] = ""
    split_by: SplitBy = ""


class RunQuery(Struct):
    split_by: SplitBy = ""


class ItemsQuery(Struct):
    query: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20


class Routes:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.background = service.background
        # Both take milliseconds to make.
        self.document = cache(lambda: document(self.operations()))
        self.docs_page = lru_cache(1)(
            lambda first, second: docs_page(self.document(), first, second)
        )

    def operations(self) -> list[Operation]:
        service = self.service
        session = "/v1/sessions/{session_id}"
        return [
            Operation("POST", "/v1/recommend", service.recommend, not_found=True),
            Operation("POST", "/v1/recommend/batch", service.recommend_batch),
            Operation("POST", "/v1/rank", service.rank),
            Operation("GET", "/v1/similar/{item}", self.similar, not_found=True),
            Operation("POST", "/v1/feedback", self.feedback, status=202, writes=True),
            Operation("POST", "/v1/explain", self.explain_item, not_found=True),
            Operation("GET", "/v1/items", self.items),
            Operation("GET", "/v1/run", self.run),
            Operation("POST", f"{session}/click", service.click, writes=True),
            Operation("DELETE", session, self.delete_session, status=204, writes=True),
            Operation("GET", "/healthz", self.healthz, media_type=TEXT),
            Operation("GET", "/readyz", self.readyz, media_type=TEXT),
            Operation("GET", "/metrics", self.metrics, media_type=TEXT),
            Operation("GET", "/", self.playground, media_type=HTML),
            Operation("GET", "/docs", self.docs, media_type=HTML),
            Operation("GET", "/openapi/openapi.json", self.openapi),
        ]

    async def similar(
        self, item: str, query: SimilarQuery, context: RequestContext
    ) -> SimilarAnswer:
        """The items most similar to an item."""
        loaded = self.service.loaded(query.split_by or None)
        recommender = loaded.recommender
        require_item(recommender, item)
        fields = query.fields.split(",") if query.fields else None
        columns = parse_filter(query.filter)

        def find() -> SimilarAnswer:
            hits = recommender.similar_items(
                item,
                query.k,
                filter=columns,
                fields=fields,
                now=query.now or None,
            )
            items = [
                RecommendedItem(hit.item, hit.score, hit.title, hit.fields)
                for hit in hits
            ]
            encoded = msgspec.json.encode(SimilarAnswer(items, loaded.fingerprint))
            check_answer_bytes(len(encoded))
            return msgspec.Raw(encoded)  # type: ignore[return-value]

        work = similar_work(query.k, fields, columns, recommender.catalogue)
        return await self.background.compute(find, work, context.has_left)

    async def feedback(self, data: FeedbackRequest) -> FeedbackAnswer:
        """What became of an answer: shown, clicked, carted, bought, or the shop's own."""
        files = self.service.feedback
        if files is None:
            raise Refused(
                404,
                "feedback is not written here; start the server with --feedback DIR",
            )
        items = as_ids(data.items)
        details = (data.session, data.visitor, data.value)
        write = partial(files.write, data.answer, data.event, items, *details)
        if len(items) <= FEW_ROWS:
            return FeedbackAnswer(write())
        work = len(items) // ROWS_PER_UNIT
        return FeedbackAnswer(await self.background.compute(write, work))

    async def explain_item(
        self, data: ExplainRequest, context: RequestContext
    ) -> ExplainAnswer:
        """Why an item has its score."""
        loaded = self.service.loaded(data.split_by or first_click(data.session))
        recommender = loaded.recommender
        require_item(recommender, str(data.item))
        self.service.check_length(data.session)
        # It scores the session once more for every click that is read.
        clicks = min(len(data.session), recommender.ranker.encoder.max_length)
        work = EXPLAIN_WORK * (1 + clicks)
        compute = partial(explain, recommender, data)
        return await self.background.compute(compute, work, context.has_left)

    async def items(self, query: ItemsQuery, context: RequestContext) -> ItemsAnswer:
        """Items by a part of their id or title, the most clicked first."""
        search = self.service.loaded().item_search
        if not query.query.strip():
            return ItemsAnswer(search.most_clicked(query.limit))
        find = partial(search.find, query.query, query.limit)
        items = await self.background.compute(find, FIND_WORK, context.has_left)
        return ItemsAnswer(items)

    async def run(self, query: RunQuery) -> RunAnswer:
        """What is being served."""
        loaded = self.service.loaded(query.split_by or None)
        opened = loaded.recommender.run
        ranker = loaded.recommender.ranker
        return RunAnswer(
            model=opened.config["model"].rpartition(":")[2],
            items=ranker.items,
            max_length=ranker.encoder.max_length,
            metrics=opened.metrics,
            trained=opened.config.get("training", {}),
            search=ranker.search.kind,
            recall=ranker.search.recall,
            log_probabilities=ranker.encoder.has_own_items,
            fingerprint=loaded.fingerprint,
            columns=list(loaded.recommender.catalogue.attributes.columns),
            split=self.split_runs(),
        )

    def split_runs(self) -> list[SplitRun]:
        names = self.service.settings.names
        split = self.service.split
        runs = []
        for number, reloader in enumerate(self.service.reloaders):
            loaded = reloader.current
            fingerprint = None if loaded is None else loaded.fingerprint
            share = split.shares[number]
            runs.append(SplitRun(names[number], fingerprint, share, split.keys[number]))
        return runs

    async def delete_session(self, session_id: str) -> None:
        """Delete a stored session."""
        await self.service.stored_sessions().delete(session_id)

    async def healthz(self) -> str:
        """The process is alive."""
        return "ok"

    async def readyz(self) -> str:
        """A run is loaded."""
        self.service.loaded()
        return "ready"

    async def metrics(self) -> str:
        """Metrics for Prometheus."""
        self.service.metrics.queue.set(len(self.service.batcher.waiting))
        return await self.service.metrics.recent_text()

    async def playground(self) -> str:
        return PLAYGROUND.read_text(encoding="utf-8")

    async def docs(self) -> str:
        loaded = self.service.reloaders[0].current
        listed = [] if loaded is None else loaded.item_search.most_clicked(2)
        if len(listed) < 2:
            return self.docs_page("sku-1", "sku-7")
        return self.docs_page(listed[0].item, listed[1].item)

    async def openapi(self) -> dict[str, Any]:
        return self.document()


def require_item(recommender: Recommender, item: str) -> None:
    if recommender.catalogue.number(item) is None:
        raise Refused(404, f"item {item[:100]!r} is not known to the model")


def explain(recommender: Recommender, request: ExplainRequest) -> ExplainAnswer:
    positions = [
        position
        for position, click in enumerate(request.session)
        if recommender.catalogue.number(str(click)) is not None
    ]
    explanation = recommender.explain(request.session, request.item)
    return ExplainAnswer.from_explanation(explanation, positions)


def parse_filter(text: str) -> dict[str, Any] | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(f"filter is not a JSON object: {error}") from None
