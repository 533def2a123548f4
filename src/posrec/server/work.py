"""How much work a request is, estimated before anything is computed, and how large its answer may
be.

Work is counted in plain requests: k = 20, no rules, computed in a batch of 16 (about 0.3 ms of a
processor for 27,000 items). The figures below were measured there.
"""

from collections.abc import Iterable, Sequence

from posrec.errors import InputError
from posrec.recommend.catalogue import MOST_FACTORS, Catalogue
from posrec.recommend.plan import (
    EXPLORE_POOL,
    LARGEST_POOL,
    POOL_PER_ITEM,
    SMALLEST_POOL,
)
from posrec.server.schemas import AnswerRequest, ColumnLimit

QUICK_WORK = (
    6  # the most work of a request that is computed together with others; more is slow
)
PIECE_WORK = 16  # of a slow request; pieces of other requests are computed between them
SLOW_QUEUE = 32  # times the queue for quick requests is the work that slow requests may have together
BODY_BYTES_PER_UNIT = 5000  # of a request; most of them are ids, which are looked up
BYTES_PER_ID = 8  # at least: to look up a shorter id takes as long
ITEMS_PER_UNIT = 50  # items of an answer, where they are many
ANSWER_BYTES_PER_UNIT = 20_000
INDEXED_PER_UNIT = 500  # items of a column that no rule has named before
DIVERSIFIED_PER_UNIT = 25  # items among which `diversify` chooses
SIMILAR_WORK = 10
FIND_WORK = 20
EXPLAIN_WORK = 10  # for each click
FEW_ROWS = 100  # of feedback; more are written in the background
ROWS_PER_UNIT = 50
MOST_ANSWER_BYTES = 16 << 20


def estimated_work(
    data: AnswerRequest, sessions: int, size: int, catalogue: Catalogue, clicks: int = 0
) -> int:
    """`size` is that of the body in bytes, `clicks` the number in all sessions together; an
    InputError where the answer would be too large."""
    k = min(data.k, catalogue.items)
    answer_bytes = checked_answer_bytes(sessions * k, data.fields, catalogue)
    ids = clicks + len(data.allow or ()) + len(data.deny or ())
    once = (
        max(size, BYTES_PER_ID * ids) / BODY_BYTES_PER_UNIT
        + answer_bytes / ANSWER_BYTES_PER_UNIT
    )
    indexing = indexing_work(columns_of_rules(data), catalogue)
    return max(1, round(sessions * work_of_a_session(data, k) + once + indexing))


def work_of_a_session(data: AnswerRequest, k: int) -> float:
    searches = 2 if data.pin else 1
    if data.boost:  # one for each factor, also that of the items that have none
        searches += min(
            sum(len(values) for values in data.boost.values()), MOST_FACTORS - 1
        )
    work = searches * max(1.0, k / ITEMS_PER_UNIT)
    if data.explore:
        work += EXPLORE_POOL / ITEMS_PER_UNIT
    if isinstance(data.diversify, str | ColumnLimit):
        work *= 2  # it may take more searches to find enough values of the column
    elif data.diversify:
        work += (
            min(max(POOL_PER_ITEM * k, SMALLEST_POOL), LARGEST_POOL)
            / DIVERSIFIED_PER_UNIT
        )
    return work


def columns_of_rules(data: AnswerRequest) -> set[str]:
    columns = {*(data.filter or ()), *(data.boost or ())}
    if isinstance(data.diversify, ColumnLimit):
        columns.add(data.diversify.column)
    elif isinstance(data.diversify, str):
        columns.add(data.diversify)
    return columns


def similar_work(
    k: int,
    fields: Sequence[str] | None,
    wanted: Iterable[str] | None,
    catalogue: Catalogue,
) -> int:
    """`wanted` has the columns of a filter."""
    answer_bytes = checked_answer_bytes(min(k, catalogue.items), fields, catalogue)
    indexing = indexing_work(wanted or (), catalogue)
    return SIMILAR_WORK + int(answer_bytes / ANSWER_BYTES_PER_UNIT + indexing)


def indexing_work(named: Iterable[str], catalogue: Catalogue) -> float:
    """Columns that a rule names for the first time, such as titles, are indexed first."""
    columns = catalogue.attributes.columns
    unindexed = [
        name for name in named if name in columns and not columns[name].is_indexed
    ]
    return len(unindexed) * catalogue.items / INDEXED_PER_UNIT


def checked_answer_bytes(
    items: int, fields: Sequence[str] | None, catalogue: Catalogue
) -> float:
    answer_bytes = items * catalogue.item_bytes(fields)
    check_answer_bytes(answer_bytes)
    return answer_bytes


def check_answer_bytes(answer_bytes: float) -> None:
    if answer_bytes > MOST_ANSWER_BYTES:
        raise InputError(
            f"the answer would have about {answer_bytes / (1 << 20):,.0f} MB; at most {MOST_ANSWER_BYTES >> 20} MB are "
            "sent: ask for fewer sessions, a smaller k or fewer fields"
        )
