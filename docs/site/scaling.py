"""What a catalogue and a click log of any size cost, computed from constants in results/.

    python docs/site/scaling.py --items 1e6 --clicks 1e8

Nothing is measured here. Measured constants are read from the files that `Measured` names; what
was not measured is in `Assumptions`, each of which is an option. docs/scaling.md has the formulas.
"""

import argparse
import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from posrec.models.posrec import PosRec, PosRecConfig
from posrec.training.losses import NEGATIVES

RESULTS = Path(__file__).resolve().parents[2] / "results"
DAY = 86_400
GIB = 2**30
FLOAT = 4
RANKS = (1, 8)  # GPUs, each with the whole table
Table = list[list[str]]


@dataclass(frozen=True)
class Assumptions:
    """What was not measured; each is an option of this script."""

    items: float = 10e6
    clicks: float = 1e9  # a day
    session_length: float = 5.0  # clicks
    peak: float = 3.0  # requests a second at the busiest time, in those of the mean
    d: int = 100
    batch: int = 4096  # sessions of a step, over all ranks
    epochs: int = 4
    # that matrix products reach, a tenth of an H200's figure for bfloat16
    gpu_tflops: float = 100.0
    link: float = 50.0  # GB a second and rank: 400 Gb/s between machines
    store_commands: float = 100_000.0  # a second, of one Valkey process
    store_bytes: float = 400.0  # of a stored session, with the store's own

    @property
    def sessions(self) -> float:
        return self.clicks / self.session_length

    @property
    def samples(self) -> float:
        """Training samples a day: every click but a session's first is a target."""
        return self.clicks - self.sessions

    @property
    def peak_requests(self) -> float:
        """A second; one request for each click."""
        return self.peak * self.clicks / DAY


@dataclass(frozen=True)
class Measured:
    """Constants of results/*.json, each with its file."""

    base_ms: float  # growth.json: a GPU's step of 100 sessions, without what grows with the items
    item_ns: (
        float  # growth.json: what each item adds: its row, gradient, moments and logits
    )
    item_bytes: float  # growth.json: GPU memory that each item adds to a step
    click_bytes: float  # prepare.json: peak memory of `posrec prepare`
    clicks_a_second: float  # prepare.json: on two cores
    request_ms: float  # serve.json: CPU time of a request at saturation, 43,097 items
    request_items: int
    million_ms: float  # serve_million.json: likewise, a million items, exact search
    faiss_ms: float  # index.json: random sessions, the worst case
    clustered_ms: float  # index.json: sessions near an item
    faiss_items: int
    faiss_bytes: float  # index.json: of an item in the index
    scored: float  # recommend.json: sessions a second and core
    scored_items: int


def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def read_constants() -> Measured:
    cells = result("growth")["cuda"]["cells"]
    small, large = (
        cells[f"items={items} length=10 sessions=10000"]
        for items in (100_000, 1_000_000)
    )
    item_ms = (large["step_ms"] - small["step_ms"]) / 900_000
    prepared = result("prepare")
    contender = prepared["contenders"]["paper"]
    served = result("serve")["models"]["posrec"]
    million = result("serve_million")
    index = result("index")
    scored = result("recommend")
    return Measured(
        base_ms=max(0.0, small["step_ms"] - 100_000 * item_ms),
        item_ns=1e6 * item_ms,
        item_bytes=(large["step_mb"] - small["step_mb"]) * 1e6 / 900_000,
        click_bytes=contender["peak_gib"] * GIB / prepared["clicks"],
        clicks_a_second=prepared["clicks"] / contender["seconds"],
        request_ms=served["loads"]["saturation"]["cpu_ms_a_request"],
        request_items=served["items"],
        million_ms=million["loads"]["saturation"]["cpu_ms_a_request"],
        faiss_ms=index["searches"]["faiss, random sessions"]["ms"],
        clustered_ms=index["searches"]["faiss, sessions near an item"]["ms"],
        faiss_items=index["items"],
        faiss_bytes=index["megabytes"] * 1e6 / index["items"],
        scored=scored["scored_a_second_and_core"],
        scored_items=scored["items"],
    )


def rest_of_model(d: int) -> int:
    """Numbers of PosRec beside its item table."""
    model = PosRec(1, PosRecConfig(d=d))
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if name != "embedding.weight"
    )


def bytes_of_step(assumed: Assumptions, ranks: int) -> float:
    """Bytes that one rank receives in a step: an all-reduce of the gradients of all weights."""
    numbers = assumed.items * assumed.d + rest_of_model(assumed.d)
    return 2 * (ranks - 1) / ranks * numbers * FLOAT


def step_ms(
    assumed: Assumptions, measured: Measured, ranks: int, scored: float
) -> dict[str, float]:
    """Milliseconds of a step on each of `ranks` GPUs, with a softmax over `scored` items.

    The measured step has 100 sessions. Its share for each item is paid once a step whatever the
    batch; products of the rank's sessions with the scored items (forward, twice backward, and once
    more where the softmax goes in chunks: 8 operations) come on top, and the rest of the model
    grows with the sessions of the rank.
    """
    sessions = assumed.batch / ranks
    return {
        "table": assumed.items * measured.item_ns / 1e6,
        "products": 8
        * sessions
        * scored
        * assumed.d
        / (assumed.gpu_tflops * 1e12)
        * 1e3,
        "rest": measured.base_ms * max(1.0, sessions / 100),
        "bytes": bytes_of_step(assumed, ranks) / (assumed.link * 1e9) * 1e3,
    }


def number(value: float) -> str:
    """
    >>> number(1234.5), number(12.34), number(0.1234)
    ('1,234', '12.3', '0.12')
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2g}"


def constants_table(assumed: Assumptions, measured: Measured) -> Table:
    step = f"{number(measured.base_ms)} ms + {number(measured.item_ns)} ns an item"
    step_memory = f"{number(measured.item_bytes)} bytes an item"
    preparing_memory = f"{number(measured.click_bytes)} bytes a click"
    preparing = f"{number(measured.clicks_a_second / 1e6)} million clicks a second"
    request = (
        f"{number(measured.request_ms)} ms with {measured.request_items:,} items; "
        f"{number(measured.million_ms)} ms with a million"
    )
    search = (
        f"{number(measured.faiss_ms)} ms "
        f"in {number(measured.faiss_items / 1e6)} million items for random sessions, "
        f"{number(measured.clustered_ms)} ms for sessions near an item"
    )
    index = f"{number(measured.faiss_bytes)} bytes an item"
    sessions = f"{number(measured.scored)} sessions a second"
    scoring = f"{sessions} with {measured.scored_items:,} items"
    rest = f"{rest_of_model(assumed.d):,} numbers"
    return [
        ["constant", "value", "file of `results/`"],
        ["a training step of 100 sessions, a GPU", step, "growth.json"],
        ["memory of a step, a GPU", step_memory, "growth.json"],
        ["preparing in memory", preparing_memory, "prepare.json"],
        ["preparing, two cores", preparing, "prepare.json"],
        ["a request, a core", request, "serve.json, serve_million.json"],
        ["a faiss search, a core", search, "index.json"],
        ["the faiss index", index, "index.json"],
        ["scoring files, a core", scoring, "recommend.json"],
        ["PosRec beside its table", rest, "(the model)"],
    ]


def step_and_epoch(
    assumed: Assumptions, measured: Measured, ranks: int, scored: float
) -> tuple[float, float]:
    """Milliseconds of a step, and hours of an epoch of a day's clicks."""
    step = sum(step_ms(assumed, measured, ranks, scored).values())
    return step, assumed.samples / assumed.batch * step / 3.6e6


def training_table(assumed: Assumptions, measured: Measured) -> Table:
    head = ["GPUs", "softmax over", "the table", "products", "rest of the model"]
    rows = [[*head, "gradients received", "a step", "an epoch", "memory of a GPU"]]
    memory = f"{number(assumed.items * measured.item_bytes / GIB)} GiB"
    for ranks in RANKS:
        for scored, items in (
            (assumed.items, "all items"),
            (NEGATIVES, f"{NEGATIVES:,} sampled"),
        ):
            parts = step_ms(assumed, measured, ranks, scored)
            step, hours = step_and_epoch(assumed, measured, ranks, scored)
            times = [f"{number(ms)} ms" for ms in (*parts.values(), step)]
            rows.append([str(ranks), items, *times, f"{number(hours)} h", memory])
    return rows


def day_table(assumed: Assumptions, measured: Measured) -> Table:
    """A day of the shop: what each part needs."""
    prepare_hours = number(assumed.clicks / measured.clicks_a_second / 3600)
    prepare_gib = number(assumed.clicks * measured.click_bytes / GIB)
    _, epoch_of_all = step_and_epoch(assumed, measured, 1, assumed.items)
    _, epoch_of_sampled = step_and_epoch(assumed, measured, 1, NEGATIVES)
    all_hours = number(assumed.epochs * epoch_of_all)
    sampled_hours = number(assumed.epochs * epoch_of_sampled)

    requests = number(assumed.peak_requests)
    fewest_cores, most_cores = (
        number(cores_at_the_peak(assumed, measured, search_ms))
        for search_ms in (measured.clustered_ms, measured.faiss_ms)
    )
    replica = number(assumed.items * (assumed.d * FLOAT + measured.faiss_bytes) / GIB)

    active = assumed.sessions * (30 * 60) / DAY
    stores = math.ceil(assumed.peak_requests / assumed.store_commands)
    store_gib = number(active * assumed.store_bytes / GIB)
    millions = number(active / 1e6)

    core_seconds = (
        assumed.sessions / measured.scored * assumed.items / measured.scored_items
    )
    operations = 2 * assumed.sessions * assumed.items * assumed.d
    core_hours = number(core_seconds / 3600)
    gpu_hours = number(operations / (assumed.gpu_tflops * 1e12) / 3600)
    return [
        ["part", "what it takes"],
        [
            "prepare a day's log",
            f"{prepare_hours} h on two cores, {prepare_gib} GiB in memory",
        ],
        [
            f"train {assumed.epochs} epochs",
            f"{sampled_hours} h on one GPU with a sampled softmax, "
            f"{all_hours} h with one over all items",
        ],
        [
            "serve at the peak",
            f"{requests} requests a second: {fewest_cores} cores if session vectors "
            f"lie near items, {most_cores} if they are random",
        ],
        ["memory of a replica", f"{replica} GiB for vectors and index, in each worker"],
        [
            "session store",
            f"{stores} process for {requests} commands a second; "
            f"{store_gib} GiB for {millions} million sessions",
        ],
        [
            "score a day's sessions",
            f"{core_hours} core hours against every item, or {gpu_hours} GPU hours",
        ],
    ]


def cores_at_the_peak(
    assumed: Assumptions, measured: Measured, search_ms: float
) -> float:
    search = search_ms * assumed.items / measured.faiss_items
    return assumed.peak_requests * (measured.request_ms + search) / 1000


TABLES = {"constants": constants_table, "training": training_table, "day": day_table}


def tables(assumed: Assumptions) -> dict[str, Table]:
    measured = read_constants()
    return {name: make(assumed, measured) for name, make in TABLES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in fields(Assumptions):
        kind = int if field.type is int else float
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=kind, default=field.default)
    assumed = Assumptions(**vars(parser.parse_args()))
    for name, rows in tables(assumed).items():
        print("\n".join([name, *(" | ".join(row) for row in rows), ""]))


if __name__ == "__main__":
    main()
