"""Clients that take more than their share: of memory, of the event loop, of connections."""

import functools
import http.client
import multiprocessing
import os
import signal
import socket
import sqlite3
import ssl
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.inputs import saved_random_run
from benchmarks.reliability.load import AT_ONCE, totals
from benchmarks.reliability.paced_client import (
    head,
    paced,
    percentiles,
    plain_requests,
    post,
)
from benchmarks.reliability.served import (
    Figures,
    Steps,
    memory_mb,
    processor_seconds,
    require_program,
    tracebacks,
    wait_for_workers,
)
from tests.server.nginx_process import nginx_before
from tests.server.server_process import Server, children, serving

ITEMS = 720  # so few that to refuse a request takes about as long as to answer it
KEY = "the-right-key"
BODY = 2_000_000  # bytes
MOST_GROWTH = 256  # MB: 64 MB of bodies, and what is needed to receive them
MOST_MORE = 50.0  # milliseconds
FEW_CLIENTS = 100
TIMES_AS_MANY = (4, 20)
LEAST_GOODPUT = 0.8
ROUNDS = 3  # another program that takes the cores for a moment spoils one of them
STORE = "stuck.sqlite"


def small_run(folder: Path) -> Path:
    run = folder / "small"
    return run if run.exists() else saved_random_run(ITEMS, run)


def retries(folder: Path, seconds: float) -> dict[str, Any]:
    """Clients that ask again at once, whatever they are answered: 100, 400 and 2,000 connections,
    two workers, 720 items. With 4 and 20 times the connections, at least 80 % as many requests a
    second are answered."""
    requests = plain_requests(ITEMS)
    connections = [times * FEW_CLIENTS for times in (1, *TIMES_AS_MANY)]
    rounds: dict[str, list[int]] = {str(clients): [] for clients in connections}
    loads = []
    run = small_run(folder)
    with serving(run, "--workers", 2, onnx=True, forked=False) as server:
        wait_for_workers(server, 2)
        for _ in range(2):  # until averages have settled
            first = paced(server.port, requests, AT_ONCE, 3000 / AT_ONCE, FEW_CLIENTS)
        number = first["per_second"] * seconds / (ROUNDS * len(connections))
        for _ in range(ROUNDS):
            for clients in connections:
                load = paced(server.port, requests, AT_ONCE, number / AT_ONCE, clients)
                answered = 1 - load["errors"] / load["requests"]
                rounds[str(clients)].append(round(answered * load["per_second"]))
                loads.append(load)
    middle = [statistics.median(figures) for figures in rounds.values()]
    return {
        "seconds": seconds,
        **totals(loads),
        "failed": sum(each < LEAST_GOODPUT * middle[0] for each in middle),
        "answered_per_second": rounds,
        "tracebacks": tracebacks(server),
    }


def greedy(folder: Path, steps: Steps, figures: Figures) -> Iterator[str]:
    """Ten kinds of clients, one after the other. 1,000 connections with unfinished bodies of 2 MB,
    with the key and without. Eight clients that send chunks of one byte, or read /metrics again and
    again. 160 that wait for a locked session store. A log that nobody reads. 10,000 idle
    connections, and 10,000 wrong keys. 600 broken TLS handshakes. 60 clients that do not read what
    nginx holds for them. Plain requests beside them are all answered, 99 of 100 within 50 ms more
    than without them, and memory grows by at most 256 MB."""
    run = small_run(folder)
    latencies: dict[str, list[float]] = figures.setdefault("p99_ms", {})
    for number, _ in steps:
        name = list(KINDS)[number % len(KINDS)]
        kind = KINDS[name]
        options = kind.options(folder)
        with serving(run, *options, onnx=True, forked=False, key=kind.key) as server:
            wait_for_workers(server, 1)
            before = kind.measure(server)
            memory = memory_mb(server)
            with kind.hold(server, folder) as asked:
                beside = kind.measure(asked)
                growth = memory_mb(server) - memory
        latencies[name] = [before, beside]
        figures["memory_growth_mb"] = max(figures["memory_growth_mb"], growth)
        unexpected = [line for line in server.log if "traceback" in line]
        assert not unexpected, f"{name}: {unexpected}"
        assert beside <= before + MOST_MORE, f"{name}: {before} ms, then {beside} ms"
        assert growth <= MOST_GROWTH, f"{name}: {growth} MB more memory"
        yield f"{name}: plain requests answered"


def plain_p99(server: Server) -> float:
    """In milliseconds."""
    with_key = f"Host: localhost\r\nX-API-Key: {KEY}".encode()
    requests = [
        request.replace(b"Host: localhost", with_key)
        for request in plain_requests(ITEMS, 200)
    ]
    load = paced(server.port, requests, 100, 4, 8)
    assert load["errors"] == 0, load
    return float(load["p99_ms"])


@contextmanager
def repeated_elsewhere(work: Callable[[int], None], port: int) -> Iterator[None]:
    """Eight threads of another process repeat `work(port)` until the block ends."""
    process = multiprocessing.get_context("spawn").Process(
        target=repeat, args=(work, port), daemon=True
    )
    process.start()
    time.sleep(2)  # until it has begun
    try:
        yield
    finally:
        process.kill()
        process.join()


def repeat(work: Callable[[int], None], port: int) -> None:
    def again() -> None:
        while True:
            with suppress(OSError):
                work(port)

    for _ in range(8):
        threading.Thread(target=again, daemon=True).start()
    signal.pause()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


@contextmanager
def unfinished_bodies(key: str, server: Server, folder: Path) -> Iterator[Server]:
    headers = (f"Content-Length: {BODY + 1}", f"X-API-Key: {key}")
    request = head("POST", "/v1/recommend/batch", *headers)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(server.port)) for _ in range(1000)]
        for client in clients:
            client.sendall(request)
            client.setblocking(False)
        for client in clients:
            sent = 0
            with suppress(OSError):  # it is answered, or the server does not read on
                while sent < BODY:
                    sent += client.send(b" " * min(100_000, BODY - sent))
        yield server


def send_small_chunks(port: int) -> None:
    with connected(port) as client:
        client.sendall(head("POST", "/v1/recommend", "Transfer-Encoding: chunked"))
        while True:
            client.sendall(b"1\r\n \r\n" * 100)


@contextmanager
def small_chunks(server: Server, folder: Path) -> Iterator[Server]:
    with repeated_elsewhere(send_small_chunks, server.port):
        yield server


def scrape(port: int) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        client.request("GET", "/metrics")
        client.getresponse().read()


@contextmanager
def scrapers(server: Server, folder: Path) -> Iterator[Server]:
    os.kill(children(server)[0], signal.SIGKILL)  # its files stay
    wait_for_workers(server, 3)
    with repeated_elsewhere(scrape, server.port):
        yield server


@contextmanager
def stuck_store(server: Server, folder: Path) -> Iterator[Server]:
    with closing(sqlite3.connect(folder / STORE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with repeated_elsewhere(click_on_many_connections, server.port):
            yield server


def click_on_many_connections(port: int) -> None:
    headers = ("Content-Type: application/json", f"X-API-Key: {KEY}")
    click = post("/v1/sessions/anna/click", {"item": "i3"}, *headers)
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(port)) for _ in range(20)]
        while True:
            for client in clients:
                client.sendall(click)
            for client in clients:
                client.recv(4096)


@contextmanager
def unread_log(server: Server, folder: Path) -> Iterator[Server]:
    server.stop_reading.set()
    paced(server.port, plain_requests(ITEMS), AT_ONCE, 20_000 / AT_ONCE, 16)
    yield server
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(30)


@contextmanager
def idle_connections(server: Server, folder: Path) -> Iterator[Server]:
    def seconds_of_new_ones() -> float:
        """Of the processor."""
        began = processor_seconds(server)
        for _ in range(1000):
            with connected(server.port) as client:
                client.sendall(head("GET", "/healthz"))
                client.recv(1000)
        return processor_seconds(server) - began

    with ExitStack() as stack:
        few = seconds_of_new_ones()
        for _ in range(10_000):
            stack.enter_context(connected(server.port))
        many = seconds_of_new_ones()
        assert many < 2 * few + 0.1, f"{few:.2f} s, then {many:.2f} s"
        yield server


@contextmanager
def wrong_keys(server: Server, folder: Path) -> Iterator[Server]:
    with connected(server.port) as client:
        for number in range(10_000):
            client.sendall(head("GET", "/v1/run", f"X-API-Key: {KEY}{number}"))
            assert client.recv(4096)[9:12] == b"401"
        yield server


def certificate_options(folder: Path) -> tuple[object, ...]:
    require_program("openssl")
    certificate = folder / "certificate.pem"
    key = folder / "key.pem"
    line = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost"
    files = ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*line.split(), *files], check=True, capture_output=True)
    return ("--tls-certificate", certificate, "--tls-key", key)


def unchecked_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tls_p99(server: Server) -> float:
    """In milliseconds, each request with a handshake of its own."""
    latencies = []
    for _ in range(200):
        began = time.monotonic()
        client = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=unchecked_tls()
        )
        with closing(client):
            client.request("GET", "/healthz")
            assert client.getresponse().read() == b"ok"
        latencies.append(time.monotonic() - began)
    return percentiles(latencies)["p99_ms"]


@contextmanager
def broken_handshakes(server: Server, folder: Path) -> Iterator[Server]:
    written = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        unchecked_tls().wrap_bio(ssl.MemoryBIO(), written).do_handshake()
    hello = written.read()
    sent = [b"", hello[:1], hello[:50], hello + bytes(999), head("GET", "/")]
    sent.append(os.urandom(2000))
    with ExitStack() as stack:
        for number in range(600):
            client = stack.enter_context(connected(server.port))
            client.sendall(sent[number % len(sent)])
        yield server


@contextmanager
def full_proxy(server: Server, folder: Path) -> Iterator[Server]:
    require_program("nginx")
    sessions = [["i3"]] * 100
    request = post("/v1/recommend/batch", {"sessions": sessions, "k": ITEMS})
    with nginx_before(folder, [server, server]) as nginx, ExitStack() as stack:
        for _ in range(60):
            client = stack.enter_context(connected(nginx.port))
            client.sendall(request)  # and the answer is not read
        yield nginx


class Kind(NamedTuple):
    """`hold` gives the server that plain requests are sent to meanwhile."""

    hold: Callable[[Server, Path], AbstractContextManager[Server]]
    options: Callable[[Path], tuple[object, ...]] = lambda folder: ()
    key: str | None = None
    measure: Callable[[Server], float] = plain_p99


KINDS = {
    "bodies": Kind(functools.partial(unfinished_bodies, KEY), key=KEY),
    "bodies without a key": Kind(
        functools.partial(unfinished_bodies, "wrong"), key=KEY
    ),
    "chunks": Kind(small_chunks, lambda folder: ("--workers", 2)),
    "scrapers": Kind(scrapers, lambda folder: ("--workers", 2)),
    "stuck store": Kind(
        stuck_store, lambda folder: ("--session-store", f"sqlite:{folder / STORE}")
    ),
    "unread log": Kind(unread_log, lambda folder: ("--log-requests",)),
    "connections": Kind(idle_connections),
    "keys": Kind(wrong_keys, key=KEY),
    "handshakes": Kind(broken_handshakes, certificate_options, measure=tls_p99),
    "full proxy": Kind(full_proxy),
}
