"""What a catalogue and a click log of any size cost, computed from the constants that
results/*.json hold.

    python docs/site/scaling.py                                # 10 million items, a billion clicks a day
    python docs/site/scaling.py --items 1e6 --clicks 1e8

Nothing is measured here. Measured constants are read from the files named beside them; what was not
measured is in `Assumptions`, and every one of them is an option. The formulas are those of
docs/scaling.md."""

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
    gpu_tflops: float = (
        100.0  # that matrix products reach, a tenth of an H200's figure for bfloat16
    )
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
    item_ns: float  # growth.json: what each item adds to it: its row, gradient and moments, and its logits
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
    served = result("serve")
    million = result("serve_million")
    index = result("index")
    scored = result("recommend")
    return Measured(
        base_ms=max(0.0, small["step_ms"] - 100_000 * item_ms),
        item_ns=1e6 * item_ms,
        item_bytes=(large["step_mb"] - small["step_mb"]) * 1e6 / 900_000,
        click_bytes=prepared["contenders"]["paper"]["peak_gib"]
        * GIB
        / prepared["clicks"],
        clicks_a_second=prepared["clicks"] / prepared["contenders"]["paper"]["seconds"],
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
        one.numel()
        for name, one in model.named_parameters()
        if name != "embedding.weight"
    )


def bytes_of_step(given: Assumptions, ranks: int) -> float:
    """Bytes that one rank receives in a step: an all-reduce of the gradients of all weights."""
    return (
        2
        * (ranks - 1)
        / ranks
        * (given.items * given.d + rest_of_model(given.d))
        * FLOAT
    )


def step_ms(
    given: Assumptions, measured: Measured, ranks: int, scored: float
) -> dict[str, float]:
    """Milliseconds of a step on each of `ranks` GPUs, whose loss is a softmax over so many scored
    items.

    The measured step has 100 sessions. Its share for each item is paid once a step whatever the
    batch; products of the rank's sessions with the scored items (forward, twice backward, and once
    more where the softmax goes in chunks: 8 operations) come on top, and the rest of the model
    grows with the sessions of the rank."""
    sessions = given.batch / ranks
    return {
        "table": given.items * measured.item_ns / 1e6,
        "products": 8 * sessions * scored * given.d / (given.gpu_tflops * 1e12) * 1e3,
        "rest": measured.base_ms * max(1.0, sessions / 100),
        "bytes": bytes_of_step(given, ranks) / (given.link * 1e9) * 1e3,
    }


def number(value: float) -> str:
    """
    >>> number(1234.5), number(12.34), number(0.1234)
    ('1,234', '12.3', '0.12')
    """
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.2g}"
    )


def constants_table(given: Assumptions, measured: Measured) -> Table:
    step = f"{number(measured.base_ms)} ms + {number(measured.item_ns)} ns an item"
    request = (
        f"{number(measured.request_ms)} ms with {measured.request_items:,} items; "
    )
    searched = f"{number(measured.faiss_ms)} ms in {number(measured.faiss_items / 1e6)} million items for random sessions, "
    scored = f"{number(measured.scored)} sessions a second with {measured.scored_items:,} items"
    return [
        ["constant", "value", "file of `results/`"],
        ["a training step of 100 sessions, a GPU", step, "growth.json"],
        ["memory of a step, a GPU", f"{number(measured.item_bytes)} bytes an item", "growth.json"],
        ["preparing in memory", f"{number(measured.click_bytes)} bytes a click", "prepare.json"],
        ["preparing, two cores", f"{number(measured.clicks_a_second / 1e6)} million clicks a second", "prepare.json"],
        ["a request, a core", request + f"{number(measured.million_ms)} ms with a million",
         "serve.json, serve_million.json"],
        ["a faiss search, a core", searched + f"{number(measured.clustered_ms)} ms for sessions near an item",
         "index.json"],
        ["the faiss index", f"{number(measured.faiss_bytes)} bytes an item", "index.json"],
        ["scoring files, a core", scored, "recommend.json"],
        ["PosRec beside its table", f"{rest_of_model(given.d):,} numbers", "(the model)"],
    ]  # fmt: skip


def step_and_epoch(
    given: Assumptions, measured: Measured, ranks: int, scored: float
) -> tuple[float, float]:
    """Milliseconds of a step, and hours of an epoch of a day's clicks."""
    step = sum(step_ms(given, measured, ranks, scored).values())
    return step, given.samples / given.batch * step / 3.6e6


def training_table(given: Assumptions, measured: Measured) -> Table:
    parts = {
        "table": "the table",
        "products": "products",
        "rest": "rest of the model",
        "bytes": "gradients received",
    }
    rows = [
        [
            "GPUs",
            "softmax over",
            *parts.values(),
            "a step",
            "an epoch",
            "memory of a GPU",
        ]
    ]
    memory = f"{number(given.items * measured.item_bytes / GIB)} GiB"
    for ranks in RANKS:
        for scored, items in (
            (given.items, "all items"),
            (NEGATIVES, f"{NEGATIVES:,} sampled"),
        ):
            each = step_ms(given, measured, ranks, scored)
            step, hours = step_and_epoch(given, measured, ranks, scored)
            times = [
                f"{number(value)} ms"
                for value in (*(each[name] for name in parts), step)
            ]
            rows.append([str(ranks), items, *times, f"{number(hours)} h", memory])
    return rows


def day_table(given: Assumptions, measured: Measured) -> Table:
    """A day of the shop: what each part needs."""
    preparing = number(given.clicks / measured.clicks_a_second / 3600)
    in_memory = number(given.clicks * measured.click_bytes / GIB)
    every, sampled = (
        given.epochs * step_and_epoch(given, measured, 1, n)[1]
        for n in (given.items, NEGATIVES)
    )
    searches = (
        ms * given.items / measured.faiss_items
        for ms in (measured.clustered_ms, measured.faiss_ms)
    )
    fewest, most = (
        given.peak_requests * (measured.request_ms + ms) / 1000 for ms in searches
    )
    replica = number(given.items * (given.d * FLOAT + measured.faiss_bytes) / GIB)
    active = given.sessions * (30 * 60) / DAY
    stores = math.ceil(given.peak_requests / given.store_commands)
    stored = f"{number(active * given.store_bytes / GIB)} GiB for {number(active / 1e6)} million sessions"
    scoring = (
        given.sessions / measured.scored * given.items / measured.scored_items / 3600
    )
    on_gpu = (
        2 * given.sessions * given.items * given.d / (given.gpu_tflops * 1e12) / 3600
    )
    return [
        ["part", "what it takes"],
        ["prepare a day's log", f"{preparing} h on two cores, {in_memory} GiB in memory"],
        [f"train {given.epochs} epochs", f"{number(sampled)} h on one GPU with a sampled softmax, {number(every)} h "
                                         "with one over all items"],
        ["serve at the peak", f"{number(given.peak_requests)} requests a second: {number(fewest)} cores if session "
                              f"vectors lie near items, {number(most)} if they are random"],
        ["memory of a replica", f"{replica} GiB for vectors and index, in each worker"],
        ["session store", f"{stores} process for {number(given.peak_requests)} commands a second; {stored}"],
        ["score a day's sessions", f"{number(scoring)} core hours against every item, or {number(on_gpu)} GPU hours"],
    ]  # fmt: skip


TABLES = {"constants": constants_table, "training": training_table, "day": day_table}


def tables(given: Assumptions) -> dict[str, Table]:
    measured = read_constants()
    return {name: make(given, measured) for name, make in TABLES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for one in fields(Assumptions):
        kind = int if one.type is int else float
        parser.add_argument(
            f"--{one.name.replace('_', '-')}", type=kind, default=one.default
        )
    for name, rows in tables(Assumptions(**vars(parser.parse_args()))).items():
        print("\n".join([name, *(" | ".join(row) for row in rows), ""]))


if __name__ == "__main__":
    main()
