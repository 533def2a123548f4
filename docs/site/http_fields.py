"""The tables of fields in docs/http.md, made from the OpenAPI document of the server.

    python docs/site/http_fields.py

Names, types, limits and defaults come from the code, the meanings from here. A field without a
meaning is an error.
"""

import re
from collections.abc import Container
from pathlib import Path
from typing import Any

from page_tables import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "http.md"
TABLE = re.compile(
    r"(<!-- fields (\w+)(?: beside those of (\w+))? -->\n\n).*?(\n\n<!-- end -->)",
    re.DOTALL,
)
RULES = (
    "[as in Python and on the command line](recommending.md#filters-rules-and-variety)"
)

# By the name of the field, or by schema and field where a name has several meanings.
MEANINGS = {
    "session": "the items that were clicked, the oldest click first",
    "sessions": "the items that were clicked in each session, the oldest click first",
    "k": "how many items to recommend",
    "exclude": (
        "`current`: leave out the item of the last click; `seen`: leave out every "
        "item of the session"
    ),
    "exclude_seen": "the same as `exclude` = `seen`",
    "allow": "recommend only these items",
    "deny": "never recommend these items",
    "filter": f"recommend only items whose columns match, {RULES}",
    "pin": "items to put first, in this order",
    "boost": f"factors for the chances of items by their columns, {RULES}",
    "diversify": (
        "0 to 1: how much variety counts against the score; "
        "or a column, each value of which is used once; or a limit"
    ),
    "explore": (
        "the share of places for [new items](recommending.md#a-place-for-new-items)"
    ),
    "explore_days": "for how many days after its `created` an item is new; 7 by default",
    "now": (
        "the time by which [items expire](recommending.md#items-that-expire): a date and "
        "time, or a number; by default the clock's"
    ),
    "column": "a column of the items",
    "most": "how many items of each value the list may have",
    "fields": "the columns to answer with each item",
    "session_id": (
        "the clicks that are stored under this id come before those of `session`"
    ),
    "split_by": (
        "with `--split`: requests with the same text are answered by the same run"
    ),
    "ExplainRequest.split_by": (
        "as in `/v1/recommend`: the run that answers this session explains the score"
    ),
    "ClickRequest.item": "the item that was clicked; it is added to the stored session",
    "ExplainRequest.item": "the item whose score is explained",
    "FeedbackRequest.answer": "the `id` of the answer",
    "event": (
        "`shown`, `clicked`, `carted`, `bought`, or your own, such as `favourite`: "
        "lower-case letters, digits, `-` and `_`"
    ),
    "FeedbackRequest.items": (
        "the items; those that were shown in the order in which they were shown"
    ),
    "FeedbackRequest.session": (
        "the shop's own id of the visit; without it, each answer is a session of its "
        "own"
    ),
    "visitor": (
        "the shop's own id of the visitor, as in `split_by`; without it, each "
        "session is a visitor of its own"
    ),
    "FeedbackRequest.value": (
        "what was paid for the item; only with `bought` and one item"
    ),
    "item": "the item's id",
    "title": "the item's title, where the dataset has titles",
    "score": (
        "the model's score; a log probability where `log_probabilities` of `/v1/run` "
        "is true"
    ),
    "RecommendedItem.fields": (
        "the columns that the request asked for; absent if it asked for none"
    ),
    "pinned": "true for items of `pin`; absent for others",
    "explored": (
        "true for new items that are there because of `explore`; absent for others"
    ),
    "RecommendAnswer.items": "the recommended items, the best first",
    "unknown": "the clicks on items that the model does not know; they were ignored",
    "popular": "whether no click was known, so that these are the most clicked items of late",
    "RecommendAnswer.id": (
        "identifies this answer, for `/v1/feedback`; it contains the run's "
        "fingerprint and name"
    ),
    "run": "the fingerprint of the run that answered",
    "answers": (
        "an answer of `/v1/recommend` for each session, in the order of the request"
    ),
    "SimilarAnswer.items": (
        "the most similar items; the score is the cosine of the items' vectors"
    ),
    "candidates": (
        "the items to rank, in any order; one that is given twice counts once"
    ),
    "unknown_candidates": (
        "the candidates that the model does not know; they have no score"
    ),
    "written": "how many rows were written, one for each item",
    "rank": "the item's rank among all items of the catalogue",
    "parts": (
        "the terms that add up to the score; empty for models whose score is not a sum"
    ),
    "ExplainAnswer.clicks": "the clicks that the model has read",
    "probability": (
        "the probability that the item is clicked next; null for models without "
        "probabilities"
    ),
    "repeat_chance": (
        "the chance that the next click repeats an item of the session; null likewise"
    ),
    "attributes": (
        "what each attribute adds, in a run trained with `attributes`; empty for others"
    ),
    "ExplainedAttribute.column": "the column; null for what attributes do not explain",
    "label": (
        "such as `same category` or `similar price` if an item of the session has it too"
    ),
    "ExplainedAttribute.effect": (
        "the effects add up to the parts that read the session: last item, latest and "
        "initial intention"
    ),
    "name": "the name of the term",
    "value": "its value",
    "position": "the click's index in `session` of the request, from 0",
    "attention": "the mean of the values of `reads`",
    "reads": "by intention, the share of attention that this click gets",
    "left_out": (
        "the score minus the score without this click; null if it is the only click"
    ),
    "rank_without": "the item's rank without this click",
    "ItemsAnswer.items": "the items that were found, the most clicked first",
    "ListedItem.clicks": "clicks in the training part",
    "RunAnswer.model": "the model's name",
    "RunAnswer.items": "the number of items that can be recommended",
    "max_length": "how many of a session's latest clicks the model reads",
    "metrics": "`metrics.json` of the run",
    "trained": "the settings of the training",
    "search": "how the best items are found: `exact`, `faiss`, or `all scores`",
    "recall": "the share of the exact best 20 items that the search finds",
    "log_probabilities": "whether a score is the logarithm of a probability",
    "SplitRun.name": "the name of its folder, for reports and metrics",
    "fingerprint": (
        "a hash of the run's weights and settings (of a split: null while the run "
        "can't be loaded)"
    ),
    "columns": "the columns of the items, for `filter` and `fields`",
    "split": "every run that is served",
    "share": "its share of the sessions",
    "SplitRun.split_by": (
        "a text for `split_by` that this run answers; null where its share is nearly 0"
    ),
    "error": "one sentence that says what is wrong",
}


def written(page: str, schemas: dict[str, Any]) -> str:
    """The page with every table made again."""

    def replaced(match: re.Match[str]) -> str:
        begin, name, other, end = match.groups()
        shown_elsewhere = schemas[other]["properties"] if other else {}
        return f"{begin}{fields_table(name, schemas[name], shown_elsewhere)}{end}"

    return TABLE.sub(replaced, page)


def fields_table(
    name: str, schema: dict[str, Any], shown_elsewhere: Container[str]
) -> str:
    """Only requests have a column of defaults, and their required fields come first."""
    is_request = name.endswith("Request")
    required = schema["required"]
    fields = [
        field
        for field in schema["properties"].items()
        if field[0] not in shown_elsewhere
    ]
    if is_request:
        fields.sort(key=lambda field: field[0] not in required)
    rows = [["field", "type", "meaning"]]
    if is_request:
        rows = [["field", "type", "default", "meaning"]]
    for field, about in fields:
        meaning = MEANINGS.get(f"{name}.{field}") or MEANINGS[field]
        row = [f"`{field}`", kind(about), meaning]
        if is_request:
            without_null = re.sub(",? or null", "", kind(about))
            row = [f"`{field}`", without_null, default(field, about, required), meaning]
        rows.append(row)
    return markdown_table(rows)


def default(field: str, about: dict[str, Any], required: list[str]) -> str:
    if field in required:
        return "required"
    value = about.get("default")
    return "" if value is None else f"`{str(value).lower()}`"


def kind(about: dict[str, Any]) -> str:
    """A type in words, with its limits: "integer, 1 to 1000"."""
    choices = [kind(choice) for choice in about.get("anyOf", ())]
    if sorted(choices) == ["integer", "text"]:
        shown = "id"
    elif choices:
        follows_limit = len(choices) > 2 and "," in choices[0]
        shown = (", or " if follows_limit else " or ").join(choices)
    elif "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        shown = f"[{name}](#{name.lower()})"
    elif "enum" in about:
        shown = ", ".join(f"`{value}`" for value in about["enum"])
    elif about.get("type") == "array":
        inner = kind(about["items"]).partition(",")[0]  # without its limit
        plural = "ids" if inner == "id" else inner
        shown = f"list of {plural}".replace("list of list", "list of lists")
    else:
        words = {
            "string": "text",
            "boolean": "true or false",
            "object": "object",
            "number": "number",
        }
        shown = words.get(about.get("type", ""), about.get("type", "any"))
    return shown + limits(about)


def limits(about: dict[str, Any]) -> str:
    if "minimum" in about:
        return f", {about['minimum']:g} to {about['maximum']:g}"
    for least, most, unit in (
        ("minItems", "maxItems", ""),
        ("minLength", "maxLength", " characters"),
    ):
        if most in about:
            at_most = f"{about[most]:,}{unit}"
            if least in about:
                return f", {about[least]} to {at_most}"
            return f", at most {at_most}"
    return ""


def server_schemas() -> dict[str, Any]:
    from posrec.server.routes import Routes
    from posrec.server.service import Service
    from posrec.server.settings import ServeOptions

    routes = Routes(Service(ServeOptions(("run",))))
    schemas: dict[str, Any] = routes.document()["components"]["schemas"]
    return schemas


if __name__ == "__main__":
    page = written(PAGE.read_text(encoding="utf-8"), server_schemas())
    PAGE.write_text(page, encoding="utf-8")
