"""Load: more requests than can be answered, plain ones beside expensive ones, a steady rate."""

import multiprocessing
import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.harness.inputs import saved_random_run
from benchmarks.reliability.paced_client import head, paced, plain_requests, post
from benchmarks.reliability.served import (
    make_run,
    memory_mb,
    open_files,
    tracebacks,
    wait_for_workers,
)
from posrec.data.vocabulary import Vocabulary
from tests.server.server_process import serving

SAMPLES = 120
PLAIN_RATE = 50  # requests a second beside the expensive ones
EXPENSIVE_CLIENTS = 16
EXPENSIVE = (
    "diversified",
    "boosted",
    "batches",
    "large answers",
    "long filters",
    "abandoned batches",
)
ALL_KINDS = "all of these"
ROUNDS = 5  # of overload: another program that takes the cores for a moment spoils one of them
AT_ONCE = 1e6  # requests a second: as many as are sent


def mixed_requests(items: int) -> list[bytes]:
    """Nine of ten requests ask for recommendations; the others use everything else that reads the
    run."""
    requests = plain_requests(items)
    paths = ("/v1/items?query=i1", "/v1/similar/i3", "/v1/run", "/metrics", "/readyz")
    others = [
        post("/v1/explain", {"session": ["i3", "i4"], "item": "i5"}),
        *(head("GET", path) for path in paths),
    ]
    for turn, index in enumerate(range(0, len(requests), 10)):
        requests[index] = others[turn % len(others)]
    return requests


def soak(folder: Path, seconds: float, rate: int = 500) -> dict[str, Any]:
    """500 requests a second, two workers; nine of ten ask for recommendations, the others for
    everything else that reads the run. Every request gets 200."""
    series: list[dict[str, float]] = []
    stop = threading.Event()
    with serving(make_run(folder), "--workers", 2, forked=False) as server:
        wait_for_workers(server, 2)
        began = time.monotonic()

        def sample() -> None:
            while not stop.wait(seconds / SAMPLES):
                held = {"memory_mb": memory_mb(server), "files": open_files(server)}
                series.append({"seconds": round(time.monotonic() - began), **held})

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            figures = paced(server.port, mixed_requests(30), rate, seconds, 64)
        finally:
            stop.set()
            sampler.join()
    return {
        "seconds": seconds,
        "rate": rate,
        **figures,
        "tracebacks": tracebacks(server),
        "series": series,
    }


def overload(folder: Path, seconds: float, items: int = 43_097) -> dict[str, Any]:
    """Three times as many requests a second as two workers can answer, over 2,000 connections,
    43,097 items. Every request gets 200 or 503."""
    requests = plain_requests(items)
    run = saved_random_run(items, folder / "large")
    with serving(run, "--workers", 2, onnx=True, forked=False) as server:
        wait_for_workers(server, 2)
        # until averages have settled
        paced(server.port, requests, AT_ONCE, 2000 / AT_ONCE, 64)
        saturated = paced(server.port, requests, AT_ONCE, 10_000 / AT_ONCE, 64)
        capacity = saturated["per_second"]
        rounds = [
            paced(server.port, requests, 3 * capacity, seconds / ROUNDS, 2000)
            for _ in range(ROUNDS)
        ]
    rounds.sort(key=lambda figures: figures["p99_ms"])
    sums = totals(rounds)
    return {
        "seconds": seconds,
        "rate": 3 * capacity,
        "capacity_per_second": capacity,
        **sums,
        "answered": sums["requests"] - sums["errors"],
        "middle_round": rounds[ROUNDS // 2],
        "p99_ms_of_rounds": [figures["p99_ms"] for figures in rounds],
        "tracebacks": tracebacks(server),
    }


def totals(rounds: list[dict[str, Any]]) -> dict[str, int]:
    return {
        name: sum(figures[name] for figures in rounds)
        for name in ("requests", "errors", "dropped")
    }


def expensive_request(kind: str, draw: random.Random, items: int) -> bytes:
    def session() -> list[str]:
        return [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]

    columns = ["title", "brand", "price", "text"]
    body: dict[str, Any] = {"session": session(), "k": 1000}
    match kind:
        case "diversified":
            body["diversify"] = 0.5
        case "boosted":
            factors = [0.5, 0.7, 1.2, 1.5, 2.0, 3.0, 5.0]
            boosts = {f"b{brand}": draw.choice(factors) for brand in range(20)}
            body["boost"] = {"brand": boosts}
        case "long filters":
            first = draw.randrange(10**8)
            prices = list(range(first, first + 150_000))
            body = {"session": session(), "filter": {"price": prices}}
        case "large answers":
            sessions = [session() for _ in range(60)]
            body = {"sessions": sessions, "k": 1000, "fields": columns}
        case _:
            body = {"sessions": [session() for _ in range(1000)], "fields": columns}
    path = "/v1/recommend/batch" if "sessions" in body else "/v1/recommend"
    return post(path, body, "Connection: close")


def ask_again_and_again(port: int, kind: str, items: int, seconds: float) -> None:
    """Run clients that ask again as soon as they are answered or refused, or have left."""
    end = time.monotonic() + seconds

    def repeat(number: int) -> None:
        client_kind = kind
        if kind == ALL_KINDS:
            client_kind = EXPENSIVE[number % len(EXPENSIVE)]
        draw = random.Random(f"{kind} {number}")
        requests = [expensive_request(client_kind, draw, items) for _ in range(4)]
        while time.monotonic() < end:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=60) as client,
            ):
                client.sendall(draw.choice(requests))
                if client_kind == "abandoned batches":
                    time.sleep(0.02)
                    continue
                status = client.recv(1 << 20)[9:12]
                while client.recv(1 << 20):
                    pass
                if status == b"503":
                    time.sleep(0.1)  # Retry-After asks for a second

    threads = [
        threading.Thread(target=repeat, args=(number,))
        for number in range(EXPENSIVE_CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def beside(folder: Path, seconds: float, items: int = 27_051) -> dict[str, Any]:
    """50 plain requests a second beside 16 clients that ask for as much as they may: long
    diversified lists, many boosts, batches, large answers, filters of 1.5 MB, batches whose clients
    leave, and all of these; 27,051 items, one worker. Every plain request gets 200 or 503."""
    draw = random.Random(0)
    columns: dict[str, list[Any]] = {
        "title": [f"Item number {number}" for number in range(items)],
        "brand": [f"b{draw.randrange(20)}" for _ in range(items)],
        "price": [draw.randrange(500) for _ in range(items)],
        "text": ["a text of some words" for _ in range(items)],
    }
    vocabulary = Vocabulary([f"i{number}" for number in range(items)], columns)
    run = saved_random_run(items, folder / "beside", vocabulary)
    requests = plain_requests(items)
    with serving(run, onnx=True, forked=False) as server:
        memory = [memory_mb(server)]
        kinds = {"nothing": paced(server.port, requests, PLAIN_RATE, seconds, 32)}
        for kind in (*EXPENSIVE, ALL_KINDS):
            arguments = (server.port, kind, items, seconds + 4)
            others = multiprocessing.get_context("spawn").Process(
                target=ask_again_and_again, args=arguments
            )
            others.start()
            time.sleep(3)  # until they have made their requests
            kinds[kind] = paced(server.port, requests, PLAIN_RATE, seconds, 32)
            memory.append(memory_mb(server))
            others.join()
            print(f"beside {kind}: {kinds[kind]}", flush=True)
    return {
        "seconds": seconds,
        "rate": PLAIN_RATE,
        "clients": EXPENSIVE_CLIENTS,
        "items": items,
        **totals(list(kinds.values())),
        "kinds": kinds,
        "memory_mb": memory[0],
        "most_memory_mb": max(memory),
        "tracebacks": tracebacks(server),
    }
