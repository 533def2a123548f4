"""Which process manager should `posrec serve --workers N` use? Three of them serve the same application side by side.

    pip install granian
    python benchmarks/process_managers.py --rounds 5 --seconds 6 --out results/process_managers.json

- `posrec`: `posrec serve --workers N`. Every worker has a SO_REUSEPORT socket of its own; the kernel picks the worker.
- `uvicorn`: `uvicorn --workers N`. The workers share one listening socket.
- `granian`: `granian --workers N`.

All servers run at once and are measured in turn, several rounds; the report holds the medians. The last measurement
kills one worker (kill -9) while clients ask, several times: `dropped` counts the requests that were lost on kept-alive
connections, `broken_connections` those of clients that opened a new connection for their request.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from conditions import conditions
from paced_client import paced
from posrec.recommend.export import write_export
from posrec.run import load_run
from posrec.server.settings import VARIABLE, ServerSettings
from report import write_report
from serve import make_run, processor_seconds, requests

APP = "posrec.server.app:create"
VARIANTS = ("posrec", "uvicorn", "granian")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def command(variant: str, port: int, workers: int, run: Path) -> list[str]:
    python, listen = sys.executable, ["--port", str(port), "--workers", str(workers)]
    match variant:
        case "posrec":
            return [python, "-m", "posrec", "serve", str(run), *listen]
        case "uvicorn":
            return [python, "-m", "uvicorn", APP, "--factory", *listen, "--no-access-log", "--lifespan", "on"]
        case "granian":
            options = ["--interface", "asgi", "--loop", "uvloop", "--http", "1", "--no-access-log", "--no-ws"]
            return [python, "-m", "granian", APP, "--factory", *listen, *options, "--respawn-failed-workers"]
    raise ValueError(variant)


class Server:
    """One variant, started; `loaded` counts the workers that have logged that they loaded the run."""

    def __init__(self, variant: str, workers: int, run: Path, shared: Path) -> None:
        self.port, self.loaded = free_port(), 0
        shared.mkdir()
        settings = ServerSettings(str(run), workers=workers, shared=str(shared))
        environment = {**os.environ, VARIABLE: msgspec.json.encode(settings).decode(), "OMP_NUM_THREADS": "1",
                       "PROMETHEUS_MULTIPROC_DIR": str(shared)}  # fmt: skip
        line = command(variant, self.port, workers, run)
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment)
        threading.Thread(target=self.read_log, daemon=True).start()
        self.wait(workers)

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.loaded += '"message": "serving"' in line

    def wait(self, workers: int) -> None:
        while self.loaded < workers:
            if self.process.poll() is not None:
                sys.exit(f"the server ended: {self.process.args}")
            time.sleep(0.1)
        time.sleep(1)

    def workers(self) -> list[int]:
        """The children that have loaded torch, and not a helper process of multiprocessing."""
        parent = self.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        pages = {int(child): int(Path(f"/proc/{child}/statm").read_text().split()[1]) for child in children}
        return [child for child, size in pages.items() if size * os.sysconf("SC_PAGE_SIZE") > 100 << 20]


def measured(server: Server, bodies: list[bytes], rate: int, seconds: float, connections: int) -> dict[str, float]:
    workers = server.workers()
    before = [processor_seconds([worker]) for worker in workers]
    found = paced(server.port, bodies, rate, seconds, connections)
    spent = [processor_seconds([worker]) - earlier for worker, earlier in zip(workers, before, strict=True)]
    kept = {name: found[name] for name in ("per_second", "p50_ms", "p90_ms", "p99_ms", "errors", "dropped")}
    # Of the workers' processor time: 0.5 is even among two, 1 means that one of them answered everything.
    return {**kept, "cpu_ms_a_request": 1000 * sum(spent) / found["requests"], "busiest_share": max(spent) / sum(spent)}


def with_a_kill(server: Server, bodies: list[bytes], rate: int, seconds: float) -> dict[str, float]:
    """Kill one worker in the middle of the load. New clients keep coming: each opens a connection for one request."""
    asked, broken, stop = 0, 0, threading.Event()

    def new_clients() -> None:
        nonlocal asked, broken
        while not stop.wait(0.005):
            asked += 1
            try:
                with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
                    client.sendall(bodies[asked % len(bodies)])
                    broken += not client.recv(65536)
            except OSError:
                broken += 1

    clients = threading.Thread(target=new_clients)
    killing = threading.Timer(seconds / 3, os.kill, (server.workers()[0], signal.SIGKILL))
    loaded = server.loaded
    clients.start()
    killing.start()
    found = paced(server.port, bodies, rate // 2, seconds, 64)
    stop.set()
    clients.join()
    server.wait(loaded + 1)
    kept = {name: found[name] for name in ("p50_ms", "p90_ms", "p99_ms", "errors", "dropped")}
    return {**kept, "new_connections": asked, "broken_connections": broken}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=43_097)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--connections", type=int, nargs="+", default=[64, 8])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("results/process_managers.json"))
    arguments = parser.parse_args()
    bodies = requests(arguments.items)
    variants: dict[str, Any] = {name: {} for name in arguments.variants}
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = folder / "run"
        make_run(run, arguments.items)
        write_export(load_run(run))
        try:
            for variant in variants:
                servers[variant] = Server(variant, arguments.workers, run, folder / variant)
                measured(servers[variant], bodies, 200, 1, 8)  # warm up
            for connections in arguments.connections:
                rounds: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
                for _ in range(arguments.rounds):
                    for variant, server in servers.items():
                        one = measured(server, bodies, arguments.rate, arguments.seconds, connections)
                        rounds[variant].append(one)
                        print(variant, connections, one, flush=True)
                for variant, all_rounds in rounds.items():
                    each = {"p50_ms_each_round": [one["p50_ms"] for one in all_rounds]}
                    variants[variant][f"{connections} connections"] = medians(all_rounds) | each
            killed: dict[str, list[dict[str, float]]] = {variant: [] for variant in variants}
            for _ in range(arguments.kills):
                for variant, server in servers.items():
                    killed[variant].append(with_a_kill(server, bodies, arguments.rate, arguments.seconds))
                    print(variant, "one worker killed", killed[variant][-1], flush=True)
            for variant, all_kills in killed.items():
                broken = [one["broken_connections"] for one in all_kills]
                variants[variant]["one worker killed"] = {**medians(all_kills), "broken_connections_each_time": broken}
        finally:
            for server in servers.values():
                server.process.terminate()
                server.process.wait()
    report = {
        "command": "python benchmarks/process_managers.py " + " ".join(sys.argv[1:]),
        "seed": 0,
        "items": arguments.items,
        "workers": arguments.workers,
        "rate": arguments.rate,
        "rounds": arguments.rounds,
        "variants": variants,
        "uvicorn": installed("uvicorn"),
        "granian": installed("granian"),
        **conditions(),
    }
    write_report(arguments.out, report)


if __name__ == "__main__":
    main()
