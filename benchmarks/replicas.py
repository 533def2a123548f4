"""Two replicas behind nginx with sessions in Valkey or Redis: one is killed under load, then a new run is rolled out.

    python benchmarks/replicas.py --out results/replicas.json

Real processes on this machine: nginx with examples/compose/nginx.conf (only addresses are replaced), redis-server or
valkey-server, and two `posrec serve`. Clients send requests through nginx all the time: recommendations for a session
in the request, and clicks of stored sessions. In turn: a quiet time; one replica is killed with SIGKILL and started
again; and the replicas are stopped with SIGTERM and started with another run, one after the other. A click that is
answered 502 is sent again by the client, as docs/deploying.md says. In the end, the clicks in the store are compared
with those that were confirmed.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from fault_server import ITEMS, make_run
from harness import free_port, parser_for, posrec, write_result
from posrec.server.session_store import MAX_CLICKS, key

CONFIGURATION = Path(__file__).resolve().parents[1] / "examples" / "compose" / "nginx.conf"
CLIENTS, PAUSE = 8, 0.05  # clients, and seconds between the requests of each
MOST_TRIES = 5  # of a click, by the client
MOST_CLICKS = MAX_CLICKS // 2  # of a session, so that the store forgets none even if some are stored twice


def until(check: Any, what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            sys.exit(f"{what} did not happen within {seconds:.0f} seconds")
        time.sleep(0.05)


class Replica:
    """A `posrec serve` on a port that stays its own when it is started again."""

    def __init__(self, run: Path, store: str, log: Path) -> None:
        self.port, self.store, self.log = free_port(), store, log
        self.start(run)

    def start(self, run: Path) -> None:
        options = ("--no-onnx", "--session-store", self.store, "--workers", 2, "--allow-host", "*")
        line = posrec("serve", run, "--port", self.port, *options)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stderr=log, start_new_session=True)
        until(self.is_ready, "the start of a replica")

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        """Kill the server and its workers at once, as if the machine had failed."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


class Client(threading.Thread):
    """Sends recommendations and clicks in turn, and notes the status of every answer by phase; 0: no answer."""

    def __init__(self, port: int, name: str, load: "Load") -> None:
        super().__init__(daemon=True)
        self.port, self.visitor, self.load = port, name, load
        self.confirmed: dict[str, list[str]] = {}  # clicks that were answered 200, by session
        self.connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        number = 0
        while not self.load.over.is_set():
            number += 1
            item = f"i{number % ITEMS}"
            self.send("recommend", "/v1/recommend", {"session": [item], "k": 5})
            session = f"{self.visitor}-{number // MOST_CLICKS}"
            for _ in range(MOST_TRIES):
                if self.send("click", f"/v1/sessions/{session}/click", {"item": item, "k": 5}) == 200:
                    self.confirmed.setdefault(session, []).append(item)
                    break
            time.sleep(PAUSE)

    def send(self, kind: str, path: str, body: dict[str, Any]) -> int:
        phase, began = self.load.phase, time.perf_counter()
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = self.connection.getresponse()
            text, status = answer.read(), answer.status
            content = json.loads(text) if status == 200 else {}
        except (OSError, http.client.HTTPException, ValueError):
            content, status, self.connection = {}, 0, None
        with self.load.lock:
            self.load.answers[phase][kind, status] += 1
            self.load.slowest[phase] = max(self.load.slowest.get(phase, 0.0), time.perf_counter() - began)
            if content:
                self.load.runs[phase].add(content["run"])
        return status


class Load:
    def __init__(self, port: int) -> None:
        self.over, self.lock, self.phase = threading.Event(), threading.Lock(), ""
        self.answers: dict[str, Counter[tuple[str, int]]] = {}
        self.slowest: dict[str, float] = {}
        self.runs: dict[str, set[str]] = {}
        self.clients = [Client(port, f"visitor-{number}", self) for number in range(CLIENTS)]

    def begin(self, phase: str) -> None:
        self.answers[phase], self.runs[phase] = Counter(), set()
        self.phase = phase

    def figures(self, phase: str) -> dict[str, Any]:
        """Requests of a phase, and those that were not answered 200, by kind and status."""
        answers = self.answers[phase]
        failed: dict[str, dict[str, int]] = {"recommend": {}, "click": {}}
        for (kind, status), number in sorted(answers.items()):
            if status != 200:
                failed[kind][str(status)] = number
        return {
            "requests": answers.total(),
            "not_answered_200": failed,
            "slowest_ms": round(1000 * self.slowest[phase], 1),
            "runs_that_answered": len(self.runs[phase]),
        }


def start_nginx(folder: Path, port: int, replicas: list[Replica]) -> subprocess.Popen[bytes]:
    text = CONFIGURATION.read_text(encoding="utf-8")
    for name, replica in zip(("posrec-a", "posrec-b"), replicas, strict=True):
        text = text.replace(f"{name}:8000", f"127.0.0.1:{replica.port}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/dev/stdout", str(folder / "access.log"))
    (folder / "nginx.conf").write_text(f"pid {folder}/nginx.pid;\ndaemon off;\n{text}")
    line = ["nginx", "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    process = subprocess.Popen(list(map(str, line)))
    until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the start of nginx")
    return process


def retries(log: Path) -> dict[str, int]:
    """Requests that nginx sent to a second replica, by the status of the first and of the final answer."""
    found = Counter(re.findall(r'^(\d+) "(\d+), \d+"', log.read_text(), re.MULTILINE))
    return {f"{first} then {last}": number for (last, first), number in sorted(found.items())}


def main() -> None:
    parser = parser_for(__doc__, "results/replicas.json")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the quiet time, and around each event")
    arguments = parser.parse_args()
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None or shutil.which("nginx") is None:
        sys.exit("nginx and valkey-server or redis-server are needed: apt-get install nginx-light redis-server")
    import redis

    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as opened:
        folder = Path(opened)
        first, second = make_run(folder, 1), make_run(folder, 2)
        store_port, port = free_port(), free_port()
        line = [program, "--port", str(store_port), "--save", "", "--dir", opened]
        processes.append(subprocess.Popen(line, stdout=subprocess.DEVNULL))
        store = redis.Redis(port=store_port, decode_responses=True)
        until(lambda: socket.socket().connect_ex(("127.0.0.1", store_port)) == 0, "the start of the store")
        replicas = [Replica(first, f"redis://127.0.0.1:{store_port}/0", folder / f"{name}.log") for name in "ab"]
        try:
            processes.append(start_nginx(folder, port, replicas))
            load = Load(port)
            load.begin("quiet")
            for client in load.clients:
                client.start()
            time.sleep(arguments.seconds)
            load.begin("one replica killed, and started again")
            time.sleep(arguments.seconds / 2)
            replicas[0].kill()
            time.sleep(arguments.seconds / 2)
            replicas[0].start(first)
            time.sleep(arguments.seconds / 2)
            load.begin("another run rolled out")
            codes = []
            for replica in replicas:
                codes.append(replica.stop())
                replica.start(second)
                time.sleep(arguments.seconds / 2)
            load.begin("after the rollout")
            time.sleep(arguments.seconds / 2)
            load.over.set()
            for client in load.clients:
                client.join(60)
            confirmed = {name: clicks for client in load.clients for name, clicks in client.confirmed.items()}
            stored = {name: store.lrange(key(name), 0, -1) for name in confirmed}
            lost = sum((Counter(clicks) - Counter(stored[name])).total() for name, clicks in confirmed.items())
            number = sum(map(len, confirmed.values()))
            twice = sum(map(len, stored.values())) - number + lost
            report = {
                "clients": CLIENTS,
                "phases": {phase: load.figures(phase) for phase in load.answers},
                "retried_by_nginx": retries(folder / "access.log"),
                "exit_codes_of_stopped_replicas": codes,
                "clicks_confirmed": number,
                "sessions": len(confirmed),
                "clicks_lost": lost,
                "clicks_stored_twice": twice,
                "nginx": subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=True).stderr.strip(),
                "store": Path(program).name,
            }
        finally:
            for process in [*processes, *(replica.process for replica in replicas)]:
                process.terminate()
            for process in [*processes, *(replica.process for replica in replicas)]:
                process.wait(60)
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
