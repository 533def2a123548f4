"""Load: three times as many requests as can be answered, plain requests beside expensive ones, and a long time at a
steady rate, with its figure."""

import json
import multiprocessing
import random
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from fault_server import Server, make_run
from harness import random_run
from paced_client import paced
from posrec.data.vocabulary import Vocabulary
from posrec.experiments.rendering import new_figure
from posrec.recommend.export.writing import write_export
from posrec.runs.run import load_run, save_run
from serve import requests

SAMPLES = 120
INK = "#808080"
PLAIN_RATE = 50  # plain requests a second beside expensive ones
EXPENSIVE = ("diversified", "boosted", "batches", "large answers", "long filters", "abandoned batches", "all of these")
ROUNDS = 5  # of overload: another program that takes the cores for a moment spoils one of them


def mixed_requests(items: int) -> list[bytes]:
    """Nine of ten requests ask for recommendations; the others use everything else that reads the run."""
    made = requests(items)
    explain = b'{"session": ["i3", "i4"], "item": "i5"}'
    others = [
        b"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(explain) + explain,
        *(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
          for path in (b"/v1/items?query=i1", b"/v1/similar/i3", b"/v1/run", b"/metrics", b"/readyz")),
    ]  # fmt: skip
    made[::10] = [others[number % len(others)] for number in range(len(made[::10]))]
    return made


def soak(folder: Path, seconds: float, rate: int = 500) -> dict[str, Any]:
    """500 requests a second, two workers; nine of ten ask for recommendations, the others for everything else that
    reads the run. Every request gets 200."""
    server = Server(make_run(folder, 1), "--workers", 2)
    server.wait_for("serving", 2)
    series: list[dict[str, float]] = []
    stop = threading.Event()

    def sample() -> None:
        began = time.monotonic()
        while not stop.wait(seconds / SAMPLES):
            series.append({
                "seconds": round(time.monotonic() - began), "memory_mb": round(server.memory() / (1 << 20), 1),
                "files": server.files(),
            })  # fmt: skip

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        found = paced(server.port, mixed_requests(30), rate, seconds, 64)
    finally:
        stop.set()
        sampler.join()
        server.stop()
    return {"seconds": seconds, "rate": rate, **found, "tracebacks": server.tracebacks(), "series": series}


def overload(folder: Path, seconds: float, items: int = 43_097) -> dict[str, Any]:
    """Three times as many requests a second as two workers can answer, over 2,000 connections, 43,097 items. Every
    request gets 200 or 503."""
    run = folder / "large"
    save_run(random_run(items, run), run)
    write_export(load_run(run))
    server = Server(run, "--workers", 2, onnx=True)
    server.wait_for("serving", 2)
    made = requests(items)
    everything_at_once = 1e6
    try:
        paced(server.port, made, everything_at_once, 2000 / everything_at_once, 64)  # until averages have settled
        capacity = paced(server.port, made, everything_at_once, 10_000 / everything_at_once, 64)["per_second"]
        rounds = [paced(server.port, made, 3 * capacity, seconds / ROUNDS, 2000) for _ in range(ROUNDS)]
    finally:
        server.stop()
    rounds.sort(key=lambda one: one["p99_ms"])
    middle = rounds[ROUNDS // 2]
    sums = {name: sum(one[name] for one in rounds) for name in ("requests", "errors", "dropped")}
    return {
        "seconds": seconds, "rate": 3 * capacity, "capacity_per_second": capacity,
        "connections": middle["connections"], **sums, "answered": sums["requests"] - sums["errors"],
        "middle_round": middle, "p99_ms_of_rounds": [one["p99_ms"] for one in rounds],
        "tracebacks": server.tracebacks(),
    }  # fmt: skip


def post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def expensive_request(kind: str, draw: random.Random, items: int) -> bytes:
    def session() -> list[str]:
        return [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]

    columns = ["title", "brand", "price", "text"]
    match kind:
        case "diversified":
            return post("/v1/recommend", {"session": session(), "k": 1000, "diversify": 0.5})
        case "boosted":
            factors = {f"b{brand}": draw.choice([0.5, 0.7, 1.2, 1.5, 2.0, 3.0, 5.0]) for brand in range(20)}
            return post("/v1/recommend", {"session": session(), "k": 1000, "boost": {"brand": factors}})
        case "long filters":
            first = draw.randrange(10**8)
            prices = list(range(first, first + 150_000))
            return post("/v1/recommend", {"session": session(), "filter": {"price": prices}})
        case "large answers":
            return post(
                "/v1/recommend/batch", {"sessions": [session() for _ in range(60)], "k": 1000, "fields": columns}
            )
        case _:
            return post("/v1/recommend/batch", {"sessions": [session() for _ in range(1000)], "fields": columns})


def ask_again_and_again(port: int, kind: str, clients: int, items: int, seconds: float) -> None:
    """So many clients, each of which asks again as soon as it is answered, refused or, in one kind, has left."""
    end = time.monotonic() + seconds

    def repeat(number: int) -> None:
        own = EXPENSIVE[number % (len(EXPENSIVE) - 1)] if kind == EXPENSIVE[-1] else kind
        draw = random.Random(f"{kind} {number}")
        made = [expensive_request(own, draw, items) for _ in range(4)]
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(draw.choice(made))
                if own == "abandoned batches":
                    time.sleep(0.02)
                    continue
                status = client.recv(1 << 20)[9:12]
                while client.recv(1 << 20):
                    pass
                if status == b"503":
                    time.sleep(0.1)  # Retry-After asks for a second

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def beside(folder: Path, seconds: float, items: int = 27_051, clients: int = 16) -> dict[str, Any]:
    """50 plain requests a second beside 16 clients that ask for as much as they may: long diversified lists, many
    boosts, batches, large answers, filters of 1.5 MB, batches whose clients leave, and all of these; 27,051 items, one
    worker. Every plain request gets 200 or 503."""
    run, draw = folder / "beside", random.Random(0)
    columns: dict[str, list[Any]] = {
        "title": [f"Item number {number}" for number in range(items)],
        "brand": [f"b{draw.randrange(20)}" for _ in range(items)],
        "price": [draw.randrange(500) for _ in range(items)],
        "text": ["a text of some words" for _ in range(items)],
    }
    save_run(random_run(items, run, Vocabulary([f"i{number}" for number in range(items)], columns)), run)
    write_export(load_run(run))
    server = Server(run, onnx=True)
    made = requests(items)
    kinds: dict[str, Any] = {}
    memory = server.memory()
    most_memory = memory
    try:
        kinds["nothing"] = paced(server.port, made, PLAIN_RATE, seconds, 32)
        for kind in EXPENSIVE:
            arguments = (server.port, kind, clients, items, seconds + 4)
            others = multiprocessing.get_context("spawn").Process(target=ask_again_and_again, args=arguments)
            others.start()
            time.sleep(3)  # until they have made their requests
            kinds[kind] = paced(server.port, made, PLAIN_RATE, seconds, 32)
            most_memory = max(most_memory, server.memory())
            others.join()
            print(f"beside {kind}: {kinds[kind]}", flush=True)
    finally:
        server.stop()
    sums = {name: sum(one[name] for one in kinds.values()) for name in ("requests", "errors", "dropped")}
    return {
        "seconds": seconds, "rate": PLAIN_RATE, "clients": clients, "items": items, **sums, "kinds": kinds,
        "memory_mb": round(memory / (1 << 20)), "most_memory_mb": round(most_memory / (1 << 20)),
        "tracebacks": server.tracebacks(),
    }  # fmt: skip


def draw_soak(soak: dict[str, Any], path: Path) -> None:
    """Memory and open files; the background is transparent, and the colours can be read on white and on black."""
    minutes = [sample["seconds"] / 60 for sample in soak["series"]]
    titles = {"memory_mb": "memory of all processes, MB", "files": "open files"}
    figure, panels = new_figure(1, 2, (8, 2.6))
    for panel, (measure, title) in zip(panels, titles.items(), strict=True):
        values = [sample[measure] for sample in soak["series"]]
        panel.plot(minutes, values, linewidth=1.8)
        panel.set(ylim=(0, 1.25 * max(values)), xlim=(0, max(minutes)))
        panel.set_title(title, color=INK)
        panel.set_xlabel("minutes", color=INK)
        panel.tick_params(colors=INK)
        panel.grid(color=INK, alpha=0.25)
    figure.savefig(path, transparent=True, metadata={"Date": None})
