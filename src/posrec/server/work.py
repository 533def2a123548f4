"""How much work a request is, estimated before it is computed, and how large its answer may be.

The unit is a plain request: k = 20, no rules, computed in a batch of 16 (about 0.3 ms of a core for
27,000 items, where the figures below were measured).
"""

from collections.abc import Iterable, Sequence

from posrec.errors import InputError
from posrec.recommend.catalogue import MOST_FACTORS, Catalogue
from posrec.recommend.explore import EXPLORE_POOL
from posrec.recommend.plan import LARGEST_POOL, POOL_PER_ITEM, SMALLEST_POOL
from posrec.server.schemas import AnswerRequest, ColumnLimit, RankRequest

QUICK_WORK = 6  # the most work of a request that is computed together with others
PIECE_WORK = 16  # of a slow request; pieces of other requests come between its own
SLOW_QUEUE = 32  # how many times the work of quick requests slow ones may queue
LARGE_BODY = 32 << 10  # bytes; larger ones are decoded in the background
BODY_BYTES_PER_UNIT = 5000  # most of them are ids, which are looked up
BYTES_PER_ID = 8  # at least: to look up a shorter id takes as long
ITEMS_PER_UNIT = 50  # of a long answer
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
    data: AnswerRequest | RankRequest,
    sessions: int,
    size: int,
    catalogue: Catalogue,
    clicks: int = 0,
) -> int:
    """`size`: bytes of the body; `clicks`: of all sessions together. Raises an InputError if the
    answer would be too large."""
    if isinstance(data, RankRequest):  # as long an answer
        clicks += len(data.candidates)
        data = AnswerRequest(k=len(data.candidates))
    k = min(data.k, catalogue.items)
    answer_bytes = sessions * k * catalogue.item_bytes(data.fields)
    check_answer_bytes(answer_bytes)
    ids = clicks + len(data.allow or ()) + len(data.deny or ())
    reading = max(size, BYTES_PER_ID * ids) / BODY_BYTES_PER_UNIT
    writing = answer_bytes / ANSWER_BYTES_PER_UNIT
    ranking = sessions * work_of_a_session(data, k)
    indexing = indexing_work(columns_of_rules(data), catalogue)
    return max(1, round(ranking + (reading + writing) + indexing))


def work_of_a_session(data: AnswerRequest, k: int) -> float:
    searches = 2 if data.pin else 1
    if data.boost:  # one for each factor, also that of the items that have none
        factors = sum(len(values) for values in data.boost.values())
        searches += min(factors, MOST_FACTORS - 1)
    work = searches * max(1.0, k / ITEMS_PER_UNIT)
    if data.explore:
        work += EXPLORE_POOL / ITEMS_PER_UNIT
    if isinstance(data.diversify, str | ColumnLimit):
        work *= 2  # it may take more searches to find enough values of the column
    elif data.diversify:
        pool = min(max(POOL_PER_ITEM * k, SMALLEST_POOL), LARGEST_POOL)
        work += pool / DIVERSIFIED_PER_UNIT
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
    filtered: Iterable[str] | None,
    catalogue: Catalogue,
) -> int:
    """`filtered`: the columns of a filter."""
    answer_bytes = min(k, catalogue.items) * catalogue.item_bytes(fields)
    check_answer_bytes(answer_bytes)
    indexing = indexing_work(filtered or (), catalogue)
    return SIMILAR_WORK + int(answer_bytes / ANSWER_BYTES_PER_UNIT + indexing)


def indexing_work(names: Iterable[str], catalogue: Catalogue) -> float:
    """Columns that a rule names for the first time, such as titles, are indexed first."""
    columns = catalogue.attributes.columns
    unindexed = [
        name for name in names if name in columns and not columns[name].is_indexed
    ]
    return len(unindexed) * catalogue.items / INDEXED_PER_UNIT


def check_answer_bytes(answer_bytes: float) -> None:
    if answer_bytes > MOST_ANSWER_BYTES:
        raise InputError(
            f"the answer would have about {answer_bytes / (1 << 20):,.0f} MB; at most "
            f"{MOST_ANSWER_BYTES >> 20} MB are sent: ask for fewer sessions, a smaller k "
            "or fewer fields"
        )
